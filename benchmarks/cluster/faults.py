"""The faults of brokers, and what the calls during each of them have to show."""

from __future__ import annotations

import contextlib
import itertools
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from benchmarks.cluster.load import RIGHT, WAIT_S, services, tools
from benchmarks.harness.broker import suspend
from benchmarks.harness.processes import ROOT, Child, product_command
from dispatch.devtools.localbroker import LOOPBACK, AdminError, LocalBrokerError
from dispatch.devtools.localcluster import LocalCluster

RATE = 400.0
"""Calls a second of all dispatchers together."""
CALLERS = 2
BEFORE_S = 5.0
AFTER_S = 8.0
"""Seconds of load before a fault, and after it."""
NAMESPACES = ("tg/request", "tg/response", "tg/flow")


def roll(cluster: LocalCluster) -> None:
    """Restart all brokers, one after the other."""
    for node in cluster.brokers:
        cluster.restart(node.number)
        time.sleep(2.0)


def kill_owner(cluster: LocalCluster) -> None:
    """Kill the broker that owns a topic, which stays away."""
    cluster.kill(victim(cluster))
    time.sleep(10.0)


def unload(cluster: LocalCluster) -> None:
    """Unload each namespace every 2 s."""
    for _ in range(5):
        for namespace in NAMESPACES:
            with contextlib.suppress(AdminError):  # a bundle of it moves already
                cluster.unload(namespace)
        time.sleep(2.0)


def freeze(cluster: LocalCluster) -> None:
    """Suspend the broker that owns a topic for 10 s."""
    process = cluster.process(cluster.broker(victim(cluster)))
    suspend(process)
    time.sleep(10.0)
    process.send_signal(signal.SIGCONT)


def shed(cluster: LocalCluster) -> None:
    """Let the load balancer move bundles: it looks once a minute."""
    path = "brokers/configuration/loadBalancerSheddingEnabled"
    cluster.admin().request("POST", f"{path}/true")
    time.sleep(75.0)
    cluster.admin().request("POST", f"{path}/false")


def victim(cluster: LocalCluster) -> int:
    """Return the owner of a request topic that owns the fewest inboxes of dispatchers: not all calls pass it."""
    owned = owners(cluster)
    inboxes = Counter(owner for topic, owner in owned.items() if "/dispatch-reply-" in topic)
    return min((owned[each["request-queue"]] for each in services()), key=lambda number: (inboxes[number], number))


def nothing(cluster: LocalCluster) -> None:
    """Compare: no fault."""
    time.sleep(10.0)


FAULTS: dict[str, Callable[[LocalCluster], None]] = {
    "none": nothing,
    "rolling restart": roll,
    "owner killed": kill_owner,
    "owner suspended 10 s": freeze,
    "namespaces unloaded": unload,
    "load shedding": shed,
}
VICTIMS = ("owner killed", "owner suspended 10 s")
"""Faults of one broker."""
SETTINGS = {
    # By default a broker records acknowledgements once a second, and delivers the others again when it is killed.
    "managedLedgerDefaultMarkDeleteRateLimit": "0",
    "loadBalancerLoadPlacementStrategy": "org.apache.pulsar.broker.loadbalance.impl.RoundRobinBrokerSelector",
    "loadBalancerSheddingEnabled": "false",
    "loadBalancerLoadSheddingStrategy": "org.apache.pulsar.broker.loadbalance.impl.UniformLoadShedder",
    "loadBalancerMsgRateDifferenceShedderThreshold": "10",
    "minUnloadMessage": "10",
    "minUnloadMessageThroughput": "1",
    "maxUnloadPercentage": "0.5",
    "loadBalancerSheddingGracePeriodMinutes": "0",
    "loadBalancerReportUpdateMinIntervalMillis": "2000",
}
"""Settings of brokers with which bundles are spread, and the load balancer moves them under this small load."""


@dataclass
class Finding:
    """What the calls during one fault show. Times are in seconds.

    Attributes:
        fault: its name.
        calls: number of calls, of which ``repeatable`` are of repeatable tools, by kind of exchange.
        failed, failed_once: failed calls by kind of exchange and error type, of repeatable tools and of the others.
        lost: calls in sessions without an answer, whose error does not say that they were not executed.
        twice: calls of tools that are not repeatable, executed more than once; ``twice_in_sessions``: of these, in sessions.
        back_after: until a call of each tool with sessions whose request topic the victim owned has succeeded that began
            half a second after the fault or later; None: the fault has no victim, or it owned no such topic.
        p99, slowest: durations of all calls.
        elsewhere: calls during the fault whose topics other brokers own.
        failed_elsewhere, slowest_elsewhere: of those.
        moved: topics that another broker owns afterwards.
    """

    fault: str
    calls: int = 0
    repeatable: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    failed_once: dict[str, int] = field(default_factory=dict)
    lost: int = 0
    twice: int = 0
    twice_in_sessions: int = 0
    back_after: float | None = None
    p99: float = 0.0
    slowest: float = 0.0
    elsewhere: int = 0
    failed_elsewhere: int = 0
    slowest_elsewhere: float = 0.0
    moved: int = 0

    def failed_share(self, kind: str) -> float:
        """Return the share of failed calls of repeatable tools."""
        failed = sum(count for how, count in self.failed.items() if how.startswith(kind))
        return failed / max(1, self.repeatable[kind])


class Load:
    """The processes of the load on ``cluster``: two with two instances of every service, and two dispatchers.

    Args:
        products: checkouts whose ``dispatch`` the services and the callers use, one for each process in turn.
    """

    def __init__(self, cluster_url: str, services_of: list[Path], callers_of: list[Path], stack: contextlib.ExitStack):
        self.services = [self._start(stack, product, "service") for product in services_of]
        for number, child in enumerate(self.services):
            child.begin({"role": "service", "url": cluster_url, "instances": [f"{number}a", f"{number}b"]})
        self.callers = [self._start(stack, product, "caller") for product in callers_of]
        for number, child in enumerate(self.callers):
            child.begin({"role": "caller", "url": cluster_url, "first": number, "step": len(callers_of)})
        self.executions()

    @staticmethod
    def _start(stack: contextlib.ExitStack, product: Path, role: str) -> Child:
        return stack.enter_context(Child(role, product_command(product, "benchmarks.cluster.load")))

    def begin(self) -> None:
        """Begin to make calls."""
        for child in self.callers:
            child.ask({"rate": RATE / len(self.callers)}, WAIT_S)

    def end(self) -> list[Any]:
        """Stop, and return the rows of all calls."""
        for child in self.callers:
            child.send({"do": "end"})
        return [row for child in self.callers for row in child.wait_for_answer(2 * WAIT_S)["rows"]]

    def executions(self) -> Counter[int]:
        """Return how often each call was executed since the last time."""
        return Counter(number for child in self.services for number in child.ask({"do": "end"}, WAIT_S)["executed"])


@contextlib.contextmanager
def loaded(
    cluster_url: str, services_of: list[Path] | None = None, callers_of: list[Path] | None = None
) -> Iterator[Load]:
    """Run the load inside the context."""
    with contextlib.ExitStack() as stack:
        yield Load(cluster_url, services_of or [ROOT] * 2, callers_of or [ROOT] * CALLERS, stack)


def owners(cluster: LocalCluster) -> dict[str, int]:
    """Return the number of the broker that owns each topic."""
    admin, numbers = cluster.admin(), {node.url: node.number for node in cluster.brokers}

    def owner(topic: str) -> int:
        place = quote(topic.replace("://", "/", 1))
        return numbers[admin.request("GET", f"/lookup/v2/topic/{place}")["brokerUrl"]]

    return {topic: owner(topic) for name in NAMESPACES for topic in admin.topics(name)}


def spread(cluster: LocalCluster, namespace: str) -> None:
    """Assign the bundles of a namespace to the brokers in turn."""
    admin = cluster.admin()
    bundles = itertools.pairwise(admin.request("GET", f"namespaces/{namespace}/bundles")["boundaries"])
    for (low, high), node in zip(bundles, itertools.cycle(cluster.brokers), strict=False):
        to = f"{LOOPBACK}:{node.web_port}"
        admin.request("PUT", f"namespaces/{namespace}/{low}_{high}/unload?destinationBroker={to}")


def persist(action: Callable[[], Any]) -> Any:
    """Return the result of an admin request that may fail for some seconds: no broker is the leader, a bundle moves."""
    end = time.monotonic() + WAIT_S
    while True:
        try:
            return action()
        except LocalBrokerError:
            if time.monotonic() > end:
                raise
            time.sleep(1.0)


def measure(cluster: LocalCluster, load: Load, fault: str) -> Finding:
    """Run the load during ``fault``, and return what it shows; all brokers run afterwards."""
    for namespace in NAMESPACES:
        persist(partial(spread, cluster, namespace))
    time.sleep(3.0)
    before, number = persist(partial(owners, cluster)), persist(partial(victim, cluster))
    load.begin()
    time.sleep(BEFORE_S)
    at = time.monotonic()
    FAULTS[fault](cluster)
    over = time.monotonic()
    time.sleep(AFTER_S)
    calls = load.end()
    time.sleep(1.0)
    finding = evaluate(fault, calls, load.executions(), (at, over), before, number)
    after = persist(partial(owners, cluster))
    finding.moved = sum(after.get(topic) != owner for topic, owner in before.items())
    for node in cluster.brokers:
        if not cluster.is_ready(node):
            cluster.restart(node.number)
    return finding


def evaluate(
    fault: str,
    calls: list[Any],
    executions: Counter[int],
    times: tuple[float, float],
    before: dict[str, int],
    victim_number: int,
) -> Finding:
    """Compare the calls with the journal of executions and with the owners of their topics.

    Args:
        times: when the fault began and when it was over.
        before: the number of the broker that owned each topic.
    """
    finding, described = Finding(fault), tools()
    queues = {each["id"]: each["request-queue"] for each in services()}
    failed, failed_once, repeatable = Counter[str](), Counter[str](), Counter[str]()
    back: dict[str, float] = {}
    durations = sorted(ended - began for _, began, ended, *_ in calls)
    for number, began, ended, how, certain in calls:
        tool = described[number // CALLERS % len(described)]
        service, kind = tool["service"], tool["service"].partition("-")[0]
        repeatable[kind] += tool["read-only"]
        if how != RIGHT:
            (failed if tool["read-only"] else failed_once)[f"{kind} {how}"] += 1
            finding.lost += kind == "session" and not certain
        is_twice = not tool["read-only"] and executions[number] > 1
        finding.twice += is_twice
        finding.twice_in_sessions += is_twice and kind == "session"
        if (
            kind == "session"
            and before.get(queues[service]) == victim_number
            and began >= times[0] + 0.5
            and how == RIGHT
        ):
            back[tool["name"]] = min(back.get(tool["name"], ended), ended)
        is_touched = any(
            owner == victim_number
            for topic, owner in before.items()
            if topic.endswith((f"/{service}", f"-caller{number % CALLERS}")) or f"-{service}-{service}-" in topic
        )
        if times[0] <= began <= times[1] and not is_touched:
            finding.elsewhere += 1
            finding.failed_elsewhere += how != RIGHT
            finding.slowest_elsewhere = max(finding.slowest_elsewhere, ended - began)
    finding.calls, finding.repeatable = len(calls), dict(repeatable)
    finding.failed, finding.failed_once = dict(failed), dict(failed_once)
    finding.p99, finding.slowest = durations[int(len(durations) * 0.99)], durations[-1]
    if fault in VICTIMS and back:
        finding.back_after = max(back.values()) - times[0]
    return finding
