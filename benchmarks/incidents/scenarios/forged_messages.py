"""Forged messages: what the holder of an agent's token, or of any connection, can do to other agents' calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.harness.processes import BenchmarkError, Child
from benchmarks.incidents import forged_wire
from benchmarks.incidents.figures import RIGHT, WRONG, Call, Figure, begun, calls_of, common_failures, share
from benchmarks.incidents.forged_wire import Names
from benchmarks.incidents.lab import REACH_S, Lab, grant, queues, topics, unique
from benchmarks.incidents.scenario import Scenario
from dispatch.devtools.localbroker import LocalBroker

RATE = 25.0
TIMEOUT_S = 2.0
LISTEN_S = 2.0
"""How long the forger reads before it sends: it learns ids and genuine announcements."""
MANY = 300


@dataclass(frozen=True)
class Overheard:
    """What the forger has read.

    Attributes:
        ids: first parts of the ids of requests.
        here: a genuine announcement; empty: none.
        addresses: of the caller's sessions.
    """

    ids: list[str]
    here: dict[str, str]
    addresses: list[int]


@dataclass(frozen=True)
class Attack:
    """Messages that are sent once.

    Attributes:
        messages: makes them from the names, and from what was read.
    """

    name: str
    messages: Callable[[Names, Overheard], list[dict[str, Any]]]
    seconds: float = 15.0


ATTACKS = (
    Attack(
        "forged 'here'",
        lambda names, read: forged_wire.announcements(names, names.forged, forged_wire.FORGED, template=read.here),
    ),
    Attack(f"{MANY} forged 'here'", lambda names, read: forged_wire.many(names, MANY, read.here), 40.0),
    Attack("later incarnation", lambda names, read: forged_wire.later_life(names, read.here), 30.0),
    Attack("forged 'settled'", lambda names, read: forged_wire.settled(names, read.ids), 30.0),
    Attack("forged packets", lambda names, read: forged_wire.packets(names, read.addresses), 30.0),
)

Tokens = dict[str, str | None]
"""The tokens of ``service``, ``agent`` (the caller) and ``forger``."""


def with_agents_token(lab: Lab) -> Iterator[Figure]:
    """The forger has the token of an agent's role: it produces to the request namespace and consumes from the other."""
    broker = lab.brokers.get_secured()
    run = unique("role")
    tokens: Tokens = {who: broker.token(f"{run}-{who}") for who in ("service", "agent", "forger")}
    grant(broker, "tg/request", f"{run}-service", "consume")
    grant(broker, "tg/response", f"{run}-service", "produce")
    for who in ("agent", "forger"):
        grant(broker, "tg/request", f"{run}-{who}", "produce")
        grant(broker, "tg/response", f"{run}-{who}", "consume")
    needed = "TrustGraph's"
    if not works(lab, broker, tokens):
        needed = "both actions in both"
        for who in ("service", "agent"):
            for namespace in ("tg/request", "tg/response"):
                grant(broker, namespace, f"{run}-{who}", "produce", "consume")
    yield Figure("grants that service and caller need", needed, "", "TrustGraph's")
    yield from attacked(lab, broker, tokens)


def with_any_connection(lab: Lab) -> Iterator[Figure]:
    """No authorization: the forger produces to any namespace, and consumes from the response namespace."""
    return attacked(lab, lab.brokers.get(), {"service": None, "agent": None, "forger": None})


def works(lab: Lab, broker: LocalBroker, tokens: Tokens) -> bool:
    """Does a service start, and does a call succeed by way of an instance that is known by name?"""
    lab.progress.step("forged: do service and caller work with TrustGraph's grants?", 15)
    with ExitStack() as stack:
        spec = {"url": broker.service_url, **queues(unique("grants"))}
        try:
            lab.start("service", {**spec, "token": tokens["service"]}, stack)
            caller = lab.start("caller", {**spec, "token": tokens["agent"], "timeout": TIMEOUT_S}, stack)
            return bool(caller.ask({"do": "reach", "seconds": 8}, 40)["kind"] == RIGHT)
        except BenchmarkError:
            return False


def attacked(lab: Lab, broker: LocalBroker, tokens: Tokens) -> Iterator[Figure]:
    """The figures of all attacks."""
    for attack in ATTACKS:
        part = partial(one, lab, broker, tokens, attack, reading=attack is ATTACKS[0])
        yield from lab.attempt(attack.name, part)


def one(lab: Lab, broker: LocalBroker, tokens: Tokens, attack: Attack, *, reading: bool) -> list[Figure]:
    """One attack on a service and a caller of its own; ``reading``: with what the forger can read before it."""
    seconds = 4.0 if lab.short else attack.seconds
    lab.progress.step(f"forged: {attack.name}", seconds + 15)
    secured = tokens["forger"] is not None
    with ExitStack() as stack:
        topic, dispatcher = unique("forged"), unique("agent")
        spec = {"url": broker.service_url, **queues(topic)}
        lab.start("service", {**spec, "token": tokens["service"], "instance": forged_wire.GENUINE}, stack)
        mark = f"secret-{topic.rpartition('-')[2]}-"
        victim = {**spec, "token": tokens["agent"], "name": dispatcher, "mark": mark, "timeout": TIMEOUT_S}
        caller = lab.start("caller", victim, stack)
        forger = lab.start("forger", {"url": broker.service_url, "token": tokens["forger"]}, stack)
        caller.ask({"do": "reach", "seconds": REACH_S}, REACH_S + 10)
        admin = broker.admin()
        listed = {space: topics(admin, space, topic, dispatcher) for space in ("tg/request", "tg/response")}
        names = Names(topic, dispatcher, tuple(listed["tg/request"] + listed["tg/response"]))
        # With authorization the broker decides. Without it, a reader of requests could be the service itself.
        readable = names.listed if secured else listed["tg/response"]
        opened = forger.ask({"do": "listen", "topics": list(readable)}, 120)["opened"]
        forger.ask({"do": "listen", "topics": names.forged, "fake": True}, 120)
        before = seen(forger)
        caller.ask({"do": "begin", "rate": RATE}, 10)
        time.sleep(LISTEN_S)
        read = seen(forger)
        calls = taken(caller)
        figures = []
        if reading:
            for space in listed:
                subscribed = sum(each in opened for each in listed[space])
                figures.append(
                    Figure(
                        f"topics of {space} the forger can read",
                        f"{subscribed} of {len(listed[space])}" if secured or space == "tg/response" else "not tried",
                        "",
                        "0" if space == "tg/request" else "",
                    )
                )
            calls_read = read["secrets"] - before["secrets"]
            figures.append(
                Figure(
                    "others' requests read, before any attack",
                    min(1.0, calls_read / len(calls)) if calls else None,
                    "%",
                    "0 %",
                )
            )
        overheard = Overheard(read["prefixes"], genuine(read["here"], topic), read["addresses"])
        sent = forger.ask({"do": "send", "messages": attack.messages(names, overheard)}, 120)
        attacked_at = time.monotonic()
        time.sleep(seconds if sent["taken"] else min(seconds, 5.0))
        hijacked = seen(forger)["requests"]
        calls += calls_of(caller.ask({"do": "end"}, TIMEOUT_S + 30)["calls"])
    return figures + figures_of(attack.name, begun(calls, attacked_at), sent, hijacked)


def genuine(here: dict[str, str], topic: str) -> dict[str, str]:
    """A genuine announcement that was read, if it is of this service."""
    return here if topic in here.get("here", "") else {}


def seen(forger: Child) -> dict[str, Any]:
    """Return the messages that the forger has read so far."""
    return forger.ask({"do": "seen"}, 30)


def taken(caller: Child) -> list[Call]:
    """Return the calls that ended since the last request for them."""
    return calls_of(caller.ask({"do": "take"}, 30)["calls"])


def figures_of(name: str, calls: list[Call], sent: dict[str, int], hijacked: int) -> list[Figure]:
    """The figures of one attack; ``calls`` are those that began after it."""
    return [
        Figure(f"{name}: messages the broker took", f"{sent['taken']} of {sent['taken'] + sent['refused']}"),
        Figure(f"{name}: calls answered rightly", share(calls, RIGHT), "%", "100 %"),
        Figure(f"{name}: calls answered by the forger", share(calls, WRONG), "%", "0 %"),
        Figure(f"{name}: requests that the forger got", hijacked, "", "0"),
        Figure(f"{name}: calls, failures", f"{len(calls)}, {common_failures(calls)}", "", "none"),
    ]


AGENT = Scenario(
    "forged-agent",
    "authorization on; the forger's token may produce to tg/request and consume from tg/response",
    with_agents_token,
    seconds=200,
    short_seconds=70,
)
OPEN = Scenario(
    "forged-open",
    "no authorization; the forger produces anywhere and consumes from tg/response",
    with_any_connection,
    seconds=190,
    short_seconds=60,
)
