"""One forged announcement made an instance of its sender, which then read arguments and forged answers; 300 of them took a
tool out of service. Requests travelled in the response namespace, where every agent may subscribe. Now an announcement is
believed after its sender has proved that it consumes the instance's own topic, in the request namespace.
One forged announcement with a later incarnation silenced a tool, and so did the restart of a named instance on a clock
that was behind. Now incarnations are random, and the one that answers a challenge last is the current one.
One forged ``settled`` with the prefix of a dispatcher's ids ended all its calls for ever. Now an instance changes what it
knows of a dispatcher for that dispatcher's session alone.
A ``reply-to`` that was an instance's own topic or a request topic made an answer run a tool elsewhere (399 runs for 200
requests). Now ``reply-to`` must be a reply topic of the sender, and a reply is no request. Own topics of instances had
ambiguous names: those of ``web-1`` of the service ``search`` and of ``1`` of ``search-web`` were one.
A call with an unknown ``priority`` was queued before all batch calls: it is an error, and nothing is sent. ``null`` for
``retry``, ``health``, ``balancing`` and ``single-flight`` was refused: it switches each off, as for the other parts.
A tool of an MCP server whose schema is in draft-04, -06 or -07, or has a pattern of JavaScript, was refused.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

import dispatch
from dispatch import Catalog, InvalidArgumentsError, Outcome, Policy, ToolError
from dispatch.cli.check import plan_of
from dispatch.messaging.wire import instance_topic
from dispatch.policy import Balancing, OutlierDetection, PolicyError, Retry, parse_policy
from dispatch.transports import Mode
from dispatch.transports.memory import MemoryPublisher, MemoryTransport
from tests.helpers.clock import advance, idle
from tests.helpers.dispatcher_and_service import (
    BROKER,
    REQUESTS,
    RESPONSES,
    Peer,
    Service,
    catalog,
    dispatching,
    serving,
    stand,
)
from tests.helpers.internals import attempts_of, correlator_of

OTHERS = "non-persistent://tg/response/"


class Listening(MemoryTransport):
    """A connection that shows its topics, and writes down what it publishes."""

    def __init__(self) -> None:
        super().__init__(BROKER)
        self.topics: set[str] = set()
        self.published: list[tuple[str, bytes, Mapping[str, str]]] = []

    async def subscribe(self, topic: str, handler: Any, *, mode: Mode, name: str) -> Any:
        self.topics.add(topic)
        return await super().subscribe(topic, handler, mode=mode, name=name)

    async def publisher(self, topic: str) -> Any:
        connection = self

        class Noting(MemoryPublisher):
            def publish(self, payload: bytes, properties: Mapping[str, str], **more: Any) -> Any:
                connection.published.append((topic, payload, dict(properties)))
                return super().publish(payload, properties, **more)

            def send_packet(self, payload: bytes) -> bool:
                connection.published.append((topic, payload, {}))
                return super().send_packet(payload)

        return Noting(self, topic)


async def forged(forger: Peer, topics: set[str], name: str) -> str:
    """Send forged announcements to every topic in the response namespace, and return the topic on which requests would come,
    as far as an agent may consume it."""
    own = f"{OTHERS}dispatch-control-lab-{name}"
    said = {"here": REQUESTS, "instance": name, "incarnation": "f" * 32, "control": own, "features": "session"}
    for topic in sorted(topics):
        if topic.startswith(OTHERS):
            await forger.send(topic, b"", said)
    return own


@pytest.mark.parametrize("count", [1, 300])
async def test_a_forged_announcement_gets_no_request_and_costs_no_call(count: int) -> None:
    service, connection = Service(lambda _: "genuine"), Listening()
    async with (
        serving(service),
        dispatching(transport=connection) as dispatcher,
        Peer.as_caller(f"{OTHERS}dispatch-control-lab-forger-0") as forger,
    ):
        assert await dispatcher.call("work") == "genuine"
        for number in range(count):
            await forged(forger, connection.topics, f"forger-{number}")
        await advance(0.1)
        results = await asyncio.gather(*(dispatcher.execute("work", timeout=5) for _ in range(100)))
        assert [result.text for result in results] == ["genuine"] * 100
        assert forger.arrived.empty(), "it was sent a request"
        assert len(dispatcher.instances("lab")) == 1


async def test_nothing_that_agents_can_read_has_a_request_in_it() -> None:
    connection = Listening()
    async with serving(lambda _: "done"), dispatching(transport=connection) as dispatcher:
        for _ in range(100):
            assert await dispatcher.call("work", {"card": "4111"}) == "done"
    assert len(connection.published) > 100
    in_the_open = [topic for topic, _, _ in connection.published if "/request/" not in topic]
    assert in_the_open == []


async def test_calls_that_come_together_to_one_new_instance_all_succeed() -> None:
    async with serving(lambda _: "done"), dispatching() as dispatcher:
        results = await asyncio.gather(*(dispatcher.execute("work") for _ in range(100)))
        assert [result.text for result in results] == ["done"] * 100


async def test_a_forged_challenge_or_hello_makes_no_instance_speak_to_another_dispatcher() -> None:
    connection = Listening()
    async with (
        serving(lambda _: "done") as server,
        dispatching(transport=connection) as dispatcher,
        Peer.as_caller(RESPONSES) as agent,
    ):
        assert await dispatcher.call("work") == "done"
        (reply_topic,) = (topic for topic in connection.topics if "dispatch-reply-" in topic)
        requests = "non-persistent://tg/request/"
        before = server.counts()["malformed"]
        for topic in (f"{requests}dispatch-hello-lab", f"{requests}dispatch-instance-3-lab-{server.instance}"):
            asked = {"hello": REQUESTS, "challenge": "1", "incarnation": server.incarnation, "reply-to": reply_topic}
            await agent.send(topic, b"", asked)
            await agent.send(topic, b"", asked | {"session": "an agent's own"})
        taken: list[Any] = []
        await agent.transport.subscribe(reply_topic, taken.append, mode=Mode.FANOUT, name="agent")
        await idle()
        assert taken == []
        assert server.counts()["malformed"] == before + 2, "those on the instance's own topic, which are no packets"


async def test_a_forged_later_incarnation_silences_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(lambda _: "genuine", instance="one"), dispatching() as dispatcher, Peer.as_caller() as forger:
        assert await dispatcher.call("work") == "genuine"
        said = {"here": REQUESTS, "instance": "one", "incarnation": "f" * 32, "features": "session"}
        for name in ("hello", "announce"):
            control = "non-persistent://tg/response/dispatch-control-lab-one"
            await forger.send(f"non-persistent://tg/response/dispatch-{name}-lab", b"", said | {"control": control})
        await advance(0.1)
        results = await asyncio.gather(*(dispatcher.execute("work", timeout=5) for _ in range(50)))
        assert [result.text for result in results] == ["genuine"] * 50
    assert "another instance of" in caplog.text


async def test_an_instance_that_restarts_on_a_clock_that_is_behind_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with dispatching() as dispatcher:
        life = serving(lambda _: "former", instance="one")
        former = await life.__aenter__()
        assert await dispatcher.call("work") == "former"
        await former._transport.close()  # killed: it says no goodbye
        now = time.time_ns()
        monkeypatch.setattr(time, "time_ns", lambda: now - 3600 * 10**9)
        async with serving(lambda _: "new", instance="one"):
            await advance(1)
            results = await asyncio.gather(*(dispatcher.execute("work", timeout=5) for _ in range(50)))
            assert [result.text for result in results] == ["new"] * 50
        await former.close()


async def test_two_instances_of_one_name_are_told_of_on_both_sides(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        serving(lambda _: "a", instance="one"),
        dispatching() as dispatcher,
        serving(lambda _: "b", instance="one"),
    ):
        for _ in range(5):
            await advance(11)  # it asks who is there
            assert (await dispatcher.call("work")) in ("a", "b")
    texts = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert any("two instances" in text and "named one" in text for text in texts), "the dispatcher"
    assert any("another instance" in text and "named one" in text for text in texts), "the instance"


async def test_what_a_drained_instance_has_is_finished_while_its_successor_of_the_same_name_runs() -> None:
    """Neither of the two speaks for the other one."""
    go = asyncio.Event()

    async def work(_: object) -> str:
        await go.wait()
        return "former"

    async with dispatching() as dispatcher, serving(work, instance="one") as former:
        call = asyncio.create_task(dispatcher.execute("work"))
        await advance(1)
        draining = asyncio.create_task(former.drain())
        async with serving(lambda _: "new", instance="one"):
            await advance(1)
            assert await dispatcher.call("work") == "new"
            await advance(3)
            go.set()
            assert (await call).text == "former"
            await draining


async def test_a_third_party_that_listens_to_announcements_sees_no_secret() -> None:
    async with Peer.as_caller(RESPONSES) as agent:
        seen: list[dict[str, str]] = []
        for name in ("dispatch-announce-lab", "dispatch-hello-lab"):
            await agent.transport.subscribe(
                f"non-persistent://tg/response/{name}",
                lambda message: seen.append(dict(message.properties())),
                mode=Mode.FANOUT,
                name="agent",
            )
        async with serving(lambda _: "done"), dispatching() as dispatcher:
            assert await dispatcher.call("work") == "done"
        assert len(seen) >= 1
        assert all("session" not in each for each in seen)


KEPT = RESPONSES.replace("non-persistent", "persistent")


def own_topics(name: str) -> tuple[str, ...]:
    """Where an agent can send something to the instance: the topics of either layout."""
    return (
        REQUESTS,
        f"non-persistent://tg/response/dispatch-control-lab-{name}",
        f"non-persistent://tg/request/dispatch-instance-3-lab-{name}",
    )


@pytest.mark.parametrize("session", [{}, {"session": "an agent's own"}])
async def test_a_forged_settled_ends_no_call(session: dict[str, str]) -> None:
    async with serving(lambda _: "genuine", instance="one"), dispatching() as dispatcher, Peer.as_caller() as agent:
        result = await dispatcher.execute("work")
        prefix = result.request_id.split("-")[0]
        for topic in own_topics("one"):
            forged = {"id": f"{prefix}-{'f' * 14}", "reply-to": "non-persistent://tg/response/lab", "settled": "f" * 14}
            await agent.send(topic, b'{"config":"{}","arguments":"{}"}', forged | session)
        await idle()
        results = await asyncio.gather(*(dispatcher.execute("work", timeout=5) for _ in range(50)))
        assert [result.text for result in results] == ["genuine"] * 50


@pytest.mark.parametrize("session", [{}, {"session": "an agent's own"}])
async def test_a_forged_cancellation_or_copy_ends_no_call(session: dict[str, str]) -> None:
    go = asyncio.Event()

    async def work(arguments: dict[str, Any]) -> str:
        if "forged" in arguments:
            return "forged"
        await go.wait()
        return "genuine"

    ids: list[str] = []
    # Requests of sessions have no ids: those of the plain exchange, which a persistent topic keeps, have.
    async with (
        serving(work, instance="one", response_queue=KEPT),
        dispatching(catalog(service={"response-queue": KEPT})) as dispatcher,
        Peer.as_caller() as agent,
    ):
        new_id = attempts_of(dispatcher)._new_id
        attempts_of(dispatcher)._new_id = lambda: ids.append(new_id()) or ids[-1]  # type: ignore[func-returns-value] # one expression
        calls = [asyncio.create_task(dispatcher.execute("work")) for _ in range(10)]
        await advance(1)
        assert len(ids) == 10
        forged = b'{"config":"{}","arguments":"{\\"forged\\":1}"}'
        for topic in own_topics("one"):
            for id in ids:
                for more in ({"cancel": "1"}, {}):
                    await agent.send(topic, forged, {"id": id} | more | session)
        await advance(1)
        assert not any(call.done() for call in calls)
        go.set()
        assert [(await call).text for call in calls] == ["genuine"] * 10


OTHER = "non-persistent://tg/response/other"


@pytest.mark.parametrize(
    "reply_to",
    [
        OTHER,
        "non-persistent://tg/response/dispatch-control-other-two",
        "non-persistent://tg/response/dispatch-control-7-other-two",
        "non-persistent://tg/request/dispatch-instance-5-other-two",
        "non-persistent://tg/response/dispatch-announce-other",
        "non-persistent://tg/response/dispatch-hello-other",
    ],
)
async def test_an_answer_runs_no_tool_of_another_service(reply_to: str) -> None:
    first, second = Service(lambda _: '{"arguments":"{}"}'), Service(lambda _: "ran")
    async with (
        serving(first, instance="one", reply_namespaces=["tg/request"]),
        serving(second, instance="two", request_queue=OTHER, response_queue="non-persistent://tg/response/third"),
        Peer.as_caller(RESPONSES) as agent,
    ):
        for number in range(100):
            await agent.ask(b"{}", id=f"0123456789abcdef-{number + 1:x}", reply_to=reply_to, session="an agent's own")
        await advance(1)
        assert len(first.requests) == 100
        assert second.requests == []
        assert agent.arrived.qsize() == 100, "they went where all answers go"


async def test_a_third_partys_reply_on_a_request_topic_runs_nothing() -> None:
    service = Service(lambda _: "ran")
    async with serving(service) as server, Peer.as_caller() as agent:
        for payload in (b'{"error":null,"response":"x","end_of_stream":true}', b'{"response":"x"}'):
            await agent.ask(payload, id="1")
        await advance(1)
        assert service.requests == []
        assert server.refused["invalid-request"] == 2


async def test_services_and_instances_whose_names_run_together_do_not_meet() -> None:
    names = ("search", "web-1"), ("search-web", "1")
    topics = {
        each: {f"{of}_queue": f"non-persistent://tg/{of}/{each}" for of in ("request", "response")} for each, _ in names
    }
    tools = Catalog.of(
        [{"id": each, **{key.replace("_", "-"): topic for key, topic in topics[each].items()}} for each in topics],
        [{"type": "tool-service", "name": f"ask-{each}", "description": "", "service": each} for each in topics],
    )
    async with (
        serving(lambda _: "of search", instance="web-1", **topics["search"]) as one,
        serving(lambda _: "of search-web", instance="1", **topics["search-web"]) as other,
        dispatching(tools) as dispatcher,
    ):
        for _ in range(20):
            texts = await asyncio.gather(dispatcher.call("ask-search"), dispatcher.call("ask-search-web"))
            assert texts == ["of search", "of search-web"]
        assert (one.requests, other.requests) == (20, 20), "neither saw a request of the other one"
        inboxes = {instance_topic(each.request_queue, each.instance) for each in (one, other)}
        assert len(inboxes) == 2


async def test_a_reply_topic_of_another_dispatcher_is_not_answered() -> None:
    async with serving(lambda _: "done"), dispatching() as dispatcher, Peer.as_caller() as agent:
        assert await dispatcher.call("work") == "done"
        topic = f"non-persistent://tg/response/dispatch-reply-{correlator_of(dispatcher).identity.key}-{dispatcher.client_id}"
        before = dict(dispatcher.reply_counts())
        for session in ({}, {"session": "an agent's own"}):
            await agent.send(REQUESTS, b"{}", {"id": "0123456789abcdef-1", "reply-to": topic, **session})
        await advance(1)
        # Both answers are on the response topic, where the dispatcher listens, too, and knows no such id.
        after = dispatcher.reply_counts()
        assert {key: after[key] - before[key] for key in after if after[key] != before[key]} == {"unknown": 2}
        assert agent.arrived.qsize() == 3 - 1, "and the answer to the call went to the dispatcher alone"


OFF = {"retry": None, "outlier-detection": None, "balancing": None, "single-flight": None}


def tools(policy: dict[str, Any], **keys: Any) -> Catalog:
    return catalog(work={"policy": policy, **keys})


# -- priority -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("priority", ["urgent", "Batch", "", 5, ["batch"]])
async def test_an_unknown_priority_is_an_error_and_nothing_is_sent(priority: Any) -> None:
    async with Peer.as_service() as peer, dispatching() as dispatcher:
        result = await dispatcher.execute("work", priority=priority)
        assert (result.outcome, result.attempts) == (Outcome.INVALID_ARGUMENTS, 0)
        assert isinstance(result.error, InvalidArgumentsError)
        assert result.error.type == "unknown-priority"
        assert "interactive, batch" in result.error.message
        with pytest.raises(InvalidArgumentsError, match="was not executed"):
            await anext(dispatcher.stream("work", priority=priority))
        assert peer.arrived.empty()


async def test_known_priorities_are_those_of_the_policy() -> None:
    policy = {"bulkhead": {"priorities": ["chat", "night"]}}
    async with stand(lambda _: "done", tools(policy)) as (dispatcher, _):
        assert await dispatcher.call("work", priority="night") == "done"
        with pytest.raises(InvalidArgumentsError, match="chat, night"):
            await dispatcher.call("work", priority="batch")


async def test_without_a_bulkhead_there_is_no_queue_and_a_priority_has_no_effect() -> None:
    async with stand(lambda _: "done", tools({"bulkhead": None})) as (dispatcher, _):
        assert await dispatcher.call("work", priority="batch") == "done"


async def test_a_priority_that_a_reload_removes_does_not_jump_the_queue() -> None:
    order: list[str] = []

    async def work(arguments: dict[str, Any]) -> str:
        order.append(arguments["who"])
        await asyncio.sleep(0.1)
        return "done"

    before = tools({"bulkhead": {"max-concurrent-calls": 1, "priorities": ["interactive", "batch"]}})
    after = tools({"bulkhead": {"max-concurrent-calls": 1, "priorities": ["interactive", "night"]}})
    async with stand(work, before) as (dispatcher, _):
        calls = [asyncio.create_task(dispatcher.call("work", {"who": "first"}))]
        await idle()
        calls.append(asyncio.create_task(dispatcher.call("work", {"who": "batch"}, priority="batch")))
        await idle()
        await dispatcher.reload(after)
        calls.append(asyncio.create_task(dispatcher.call("work", {"who": "chat"})))
        await asyncio.gather(*calls)
    assert order == ["first", "chat", "batch"]


# -- null -----------------------------------------------------------------------------------------------------------
def test_null_is_accepted_and_a_part_switched_on_again_begins_with_the_defaults() -> None:
    parts = {"retry": {"max-backoff": 1}, "outlier-detection": {"panic-threshold": 0.2}, "balancing": "least-request"}
    base = parse_policy({**parts, "single-flight": True})
    off = base.merged(OFF)
    assert (off.retry, off.outlier_detection, off.balancing, off.single_flight) == (None, None, Balancing(), False)
    assert Policy(retry=None, outlier_detection=None, balancing=None, single_flight=None) == off  # type: ignore[arg-type]  # as in JSON
    parts = {"retry": {"initial-backoff": 0.1}, "outlier-detection": {"max-ejection-ratio": 0.9}}
    again = off.merged({**parts, "balancing": {"choice-count": 3}})
    assert again.retry == Retry(initial_backoff=0.1)
    assert again.outlier_detection == OutlierDetection(max_ejection_ratio=0.9)
    assert again.balancing == Balancing(choice_count=3)


@pytest.mark.parametrize("key", ["timeout", "known-instances-only", "max-response-bytes"])
def test_what_is_no_part_cannot_be_null(key: str) -> None:
    with pytest.raises(PolicyError, match=f"'{key}'"):
        parse_policy({key: None})


async def test_retry_null_repeats_nothing() -> None:
    runs: list[int] = []

    def fail(_: dict[str, Any]) -> str:
        runs.append(1)
        raise ToolError("busy", "come back")

    on = {"retry": {"retryable-errors": ["busy"]}}
    async with stand(fail, tools(on, idempotent=True)) as (dispatcher, _):
        assert (await dispatcher.execute("work")).attempts == 3
    async with stand(fail, tools(on | {"retry": None}, idempotent=True)) as (dispatcher, _):
        assert (await dispatcher.execute("work")).attempts == 1
    assert len(runs) == 4


async def test_retry_null_keeps_hedges() -> None:
    async def work(_: dict[str, Any]) -> str:
        await asyncio.sleep(1)
        return "done"

    policy = {"retry": None, "hedging": 0.1}
    async with (
        serving(work, instance="one"),
        serving(work, instance="two"),
        dispatching(tools(policy, idempotent=True)) as dispatcher,
    ):
        await advance(2)
        assert (await dispatcher.execute("work")).attempts == 2


@pytest.mark.parametrize(("health", "share"), [({}, (5, 5)), (None, (50, 50))])
async def test_health_null_ejects_no_instance(health: dict[str, Any] | None, share: tuple[int, int]) -> None:
    runs: Counter[str] = Counter()

    async def hang(_: dict[str, Any]) -> str:
        runs["ill"] += 1
        await asyncio.sleep(3600)
        return "never"

    def answer(_: dict[str, Any]) -> str:
        runs["well"] += 1
        return "done"

    policy = {"timeout": 0.2, "outlier-detection": health, "breaker": None, "retry": None}
    async with (
        serving(Service(hang), instance="ill"),
        serving(Service(answer), instance="well"),
        dispatching(catalog(service={"policy": policy})) as dispatcher,
    ):
        await advance(60)  # an instance that joined is beyond its slow start
        for _ in range(100):
            await dispatcher.execute("work")
        ejected = [view.id for view in dispatcher.instances("lab") if view.ejections]
        assert share[0] <= runs["ill"] <= share[1], runs
        assert bool(ejected) == (health is not None)


async def test_health_switched_off_by_a_reload_returns_the_ejected_instance() -> None:
    failing = True

    async def work(_: dict[str, Any]) -> str:
        if failing:
            await asyncio.sleep(3600)
        return "done"

    policy: dict[str, Any] = {"timeout": 0.2, "breaker": None, "retry": None}
    policy["outlier-detection"] = {"base-ejection-time": 300}
    async with (
        serving(Service(work), instance="one"),
        serving(Service(work), instance="two"),
        serving(Service(work), instance="three"),
        dispatching(catalog(service={"policy": policy})) as dispatcher,
    ):
        for _ in range(30):
            await dispatcher.execute("work")
        assert any(view.state == "ejected" for view in dispatcher.instances("lab"))
        failing = False
        await dispatcher.reload(catalog(service={"policy": policy | {"outlier-detection": None}}))
        assert await dispatcher.call("work") == "done"
        assert {view.state for view in dispatcher.instances("lab")} == {"up"}


async def test_balancing_null_is_round_robin_whatever_the_service_says() -> None:
    runs: Counter[str] = Counter()

    def counted(name: str) -> Service:
        def work(_: dict[str, Any]) -> str:
            runs[name] += 1
            return "done"

        return Service(work)

    both = catalog(service={"policy": {"balancing": "peak-ewma"}}, work={"policy": {"balancing": None}})
    async with (
        serving(counted("one"), instance="one"),
        serving(counted("two"), instance="two"),
        dispatching(both) as dispatcher,
    ):
        await advance(60)
        for _ in range(40):
            await dispatcher.call("work")
    assert runs == {"one": 20, "two": 20}


async def test_single_flight_null_shares_no_exchange() -> None:
    service = Service(lambda _: "done")
    own = {"policy": {"single-flight": None}, "read-only": True}
    both = catalog(service={"policy": {"single-flight": True}}, work=own)
    async with stand(service, both) as (dispatcher, _):
        await asyncio.gather(*(dispatcher.call("work", {"same": 1}) for _ in range(5)))
    assert len(service.requests) == 5


def test_the_plan_says_what_null_switched_off() -> None:
    plan = plan_of(tools({**OFF, "hedging": None}, idempotent=True), "work")
    assert not {"retry", "outlier-detection", "single-flight"} & set(plan.guards)
    assert plan.retries == "none"
    rows = {row.key: (row.value, row.source) for row in plan.rows}
    assert (rows["retry"], rows["outlier-detection"]) == ((None, "tool"), (None, "tool"))
    assert rows["balancing.strategy"] == ("round-robin", "tool")
    assert rows["single-flight"] == (False, "tool")


SERVER = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message["method"] == "initialize":
        info = {"name": "server", "version": "1"}
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
    elif message["method"] == "tools/list":
        result = {"tools": json.loads(sys.argv[1])}
    else:
        result = {"content": [{"type": "text", "text": "done"}]}
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


D4, D6, D7 = (f"http://json-schema.org/draft-0{number}/schema#" for number in (4, 6, 7))


TUPLE: dict[str, Any] = {"type": "array", "items": [{"type": "string"}, {"type": "integer"}], "additionalItems": False}


PATTERN = {"oneOf": [{"type": "string", "pattern": "^[^]+$"}, {"type": "integer"}]}


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], list[Any], list[Any]]] = {
    # schema of the argument, further keywords of the root, arguments that are right, arguments that are wrong
    "tuple": (TUPLE, {}, [["x", 1], ["x"]], [[1, "x"], ["x", 1, 2]]),
    "tuple-of-draft-07": (TUPLE, {"$schema": D7}, [["x", 1]], [["x", 1, 2]]),
    "flag": ({"minimum": 3, "exclusiveMinimum": True}, {}, [4], [3]),
    "flag-of-draft-04": ({"maximum": 3, "exclusiveMaximum": False}, {"$schema": D4}, [3], [4]),
    "place": ({"$ref": "#P"}, {"definitions": {"p": {"$id": "#P", "type": "null"}}}, [None], [1]),
    "place-of-draft-04": (
        {"$ref": "#P"},
        {"$schema": D4, "definitions": {"p": {"id": "#P", "type": "null"}}},
        [None],
        [1],
    ),
    "beside-a-reference": (
        {"$ref": "#/definitions/p", "minLength": 5},
        {"$schema": D6, "definitions": {"p": {"type": "string"}}},
        ["x"],
        [1],
    ),
    "javascript": (PATTERN, {}, ["x", 1], [None]),
    "backreference": ({"type": "string", "pattern": r"^(?<a>\w)\k<a>$"}, {"$schema": D7}, ["aa"], [1]),
    "python": ({"type": "string", "pattern": r"(?P<a>x)\Z"}, {}, ["x"], [1]),
}


@pytest.mark.wall_clock
async def test_the_tools_are_used_and_their_arguments_are_checked() -> None:
    tools = [
        {"name": name, "inputSchema": {"type": "object", "properties": {"a": schema}, **keywords}}
        for name, (schema, keywords, _, _) in CASES.items()
    ]
    servers = {"s": {"command": sys.executable, "args": ["-c", SERVER, json.dumps(tools)]}}
    async with dispatch.connect("memory://", dispatch.McpServers({"mcpServers": servers})) as dispatcher:
        (source,) = dispatcher.registry.sources()
        assert (source.tools, source.refused) == (len(CASES), 0)
        for name, (_, _, right, wrong) in CASES.items():
            for value in right:
                result = await dispatcher.execute(name, {"a": value}, by_model=True)
                assert (result.error, result.text) == (None, "done"), (name, value)
            for value in wrong:
                error = (await dispatcher.execute(name, {"a": value}, by_model=True)).error
                assert error is not None, (name, value)
                assert error.type == "invalid-arguments"
