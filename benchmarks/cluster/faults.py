"""The faults of brokers, and what the calls during each of them have to show."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.cluster.load import RIGHT, WAIT_S, services, tools
from benchmarks.harness.processes import ROOT, BenchmarkError, Child, product_command
from dispatch.devtools.localbroker import AdminError, LocalCluster

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
    number = victim(cluster)
    cluster.pause(number)
    time.sleep(10.0)
    cluster.resume(number)


def shed(cluster: LocalCluster) -> None:
    """Let the load balancer move bundles: it looks once a minute."""
    cluster.admin().configure("loadBalancerSheddingEnabled", "true")
    time.sleep(75.0)
    cluster.admin().configure("loadBalancerSheddingEnabled", "false")


def victim(cluster: LocalCluster) -> int:
    """Return the owner of the first service's request topic."""
    return cluster.owner(services()[0]["request-queue"]).number


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
        calls: calls of each kind of exchange.
        failed: failed calls by kind and type of error, of repeatable tools.
        failed_once: the same of the other tools.
        lost: calls in sessions without an answer, whose error does not say that they were not executed.
        twice: calls of tools that are not repeatable, executed more than once.
        first_success: until a call that began after the fault succeeded, of tools whose topics the victim owned.
        slowest_elsewhere: the slowest call whose topics other brokers own.
        failed_elsewhere: failed calls of those.
        reconnects: times that a client was replaced.
        moved: topics that another broker owns afterwards.
    """

    fault: str
    calls: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    failed_once: dict[str, int] = field(default_factory=dict)
    repeatable: int = 0
    lost: int = 0
    twice: int = 0
    first_success: float | None = None
    p99: float = 0.0
    slowest: float = 0.0
    slowest_elsewhere: float | None = None
    failed_elsewhere: int = 0
    moved: int = 0


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
    admin = cluster.admin()
    return {topic: cluster.owner(topic).number for name in NAMESPACES for topic in admin.topics(name)}


def measure(cluster: LocalCluster, load: Load, fault: str) -> Finding:
    """Run the load during ``fault``, and return what it shows."""
    before, number = owners(cluster), victim(cluster)
    load.begin()
    time.sleep(BEFORE_S)
    at = time.monotonic()
    FAULTS[fault](cluster)
    over = time.monotonic()
    time.sleep(AFTER_S)
    rows = load.end()
    time.sleep(1.0)
    executions = load.executions()
    import json

    json.dump(
        {
            "at": at,
            "over": over,
            "rows": rows,
            "exec": executions,
            "before": before,
            "victim": number,
            "after": owners(cluster),
        },
        open(f"/tmp/clus/{fault}.json", "w"),
    )
    return evaluate(fault, rows, executions, at, over, before, number, owners(cluster))


def evaluate(
    fault: str,
    rows: list[Any],
    executions: Counter[int],
    at: float,
    over: float,
    before: dict[str, int],
    victim_number: int,
    after: dict[str, int],
) -> Finding:
    """Compare the calls with the journal of executions and with the owners of their topics."""
    described, queues = tools(), {each["id"]: each for each in services()}
    finding = Finding(fault)
    failed: Counter[str] = Counter()
    failed_once: Counter[str] = Counter()
    elsewhere, times = [], []
    firsts = []
    for call, began, ended, how, certain in rows:
        tool = described[call // CALLERS % len(described)]
        kind = tool["service"].partition("-")[0]
        finding.calls[kind] = finding.calls.get(kind, 0) + 1
        finding.repeatable += tool["read-only"]
        times.append(ended - began)
        is_right = how == RIGHT
        if not is_right:
            (failed if tool["read-only"] else failed_once)[f"{kind} {how}"] += 1
            finding.lost += kind == "session" and not certain
        finding.twice += not tool["read-only"] and executions[call] > 1
        service = queues[tool["service"]]
        owned = {before.get(service["request-queue"]), before.get(service["response-queue"])}
        if began >= at and is_right and victim_number in owned:
            firsts.append(ended - at)
        if at <= began <= over and victim_number not in owned:
            elsewhere.append((ended - began, is_right))
    times.sort()
    finding.failed, finding.failed_once = dict(failed), dict(failed_once)
    finding.first_success = min(firsts, default=None)
    finding.p99, finding.slowest = times[int(len(times) * 0.99)], times[-1]
    finding.slowest_elsewhere = max((seconds for seconds, _ in elsewhere), default=None)
    finding.failed_elsewhere = sum(not is_right for _, is_right in elsewhere)
    finding.moved = sum(after.get(topic) != owner for topic, owner in before.items())
    return finding


__all__ = ["FAULTS", "SETTINGS", "BenchmarkError", "Finding", "Load", "loaded", "measure"]
