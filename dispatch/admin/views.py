"""What the admin endpoint shows of a process, as JSON values: of a dispatcher, or of the tool servers of a process."""

from __future__ import annotations

import os
import socket
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from dispatch import __version__
from dispatch._internal import loop_clock
from dispatch.admin.api import Instance, Tool, ToolDetails
from dispatch.admin.recent import ANSWERED, RATE_SLOTS, SLOT_S, RecentCalls, RecordedCall, ToolCalls
from dispatch.announcements import Announce
from dispatch.calls.resolution import LiveCatalog, ResolvedTool, meter_label
from dispatch.calls.runtime import Runtime
from dispatch.policy import Policy, explain_policy
from dispatch.protocol.session import SessionState, find_state
from dispatch.resilience.breaker import CircuitBreaker
from dispatch.resilience.instances import UP_STATES, InstanceView
from dispatch.routing.instance import SessionInstance, SharedTopic
from dispatch.routing.pool import InstancePool, PoolKey
from dispatch.telemetry.events import Event, Listeners
from dispatch.telemetry.observers import ObservedServer

MAX_EVENTS: Final = 500
_NO_INSTANCE: Final = dict.fromkeys(Instance.__annotations__)
_SESSION_FIELDS: Final = ("rtt", "window", "in_flight_bytes", "queued_bytes")
_PACKET_FIELDS: Final = ("packets_sent", "packets_received", "retransmissions", "duplicates")

Values = dict[str, Any]


class Views(Protocol):
    """What a process shows. Every method returns JSON values (docs/reference/admin-api.md); a process that has none of a
    kind inherits the empty lists."""

    events: EventLog

    @property
    def kind(self) -> str: ...
    @property
    def recent(self) -> RecentCalls | None: ...

    def find_reasons(self) -> list[str]:
        """Return why the process is not ready; empty: it is."""

    def describe(self) -> Values: ...
    def tools(self) -> list[Values]: ...
    def tool(self, name: str, version: str | None) -> Values | None: ...
    def instances(self) -> list[Values]: ...
    def sessions(self) -> list[Values]: ...

    def circuits(self, tool: str | None) -> list[Values]:
        return []

    def circuits_at(self, instance: str, service: str) -> list[Values]:
        """Return the circuits of all tools at one instance of a service."""
        return []

    def versions(self) -> list[Values]:
        """Return each version of each tool."""
        return self.tools()

    def users(self) -> list[Values]:
        return []

    def sources(self) -> list[Values]:
        return []

    def policy(self) -> list[Values]:
        return []


class EventLog:
    """The last events of a process, and their listeners."""

    def __init__(self) -> None:
        self._events: deque[Values] = deque(maxlen=MAX_EVENTS)
        self._listeners: Listeners[Values] = Listeners("a listener of events")
        self.subscribe = self._listeners.subscribe
        """Call a function with each event. Returns a function that removes it."""

    def record(self, event: Event) -> None:
        """Record an event."""
        values = event.as_dict()
        self._events.append(values)
        self._listeners.publish(values)

    def latest(self) -> list[Values]:
        """Return the events, the latest first."""
        return list(reversed(self._events))


def describe_process(views: Views, started: float, labels: Mapping[str, str]) -> Values:
    """Return ``/api/process``."""
    reasons = views.find_reasons()
    own = {"host": socket.gethostname(), "pid": os.getpid(), "started": started, "uptime": time.time() - started}
    common = {"kind": views.kind, "version": __version__, "ready": not reasons, "reasons": reasons}
    return {**common, **own, "labels": dict(labels), **views.describe()}


class DispatcherViews:
    """What the process of a dispatcher shows.

    Args:
        runtime: of the dispatcher.
        live: its catalogue.
        recent: its calls.
        name: the dispatcher's id.
    """

    kind = "dispatcher"

    def __init__(self, runtime: Runtime, live: LiveCatalog, recent: RecentCalls, name: str) -> None:
        self.runtime = runtime
        self.live = live
        self.recent = recent
        self.events = EventLog()
        self._name = name
        self._started = recent.clock()
        self.is_started = False
        self.deadlines: dict[tuple[str, str | None, str | None], float] = {}
        """When the states of circuits that operators have set are undone, by tool, version and instance."""
        self.held_until: dict[tuple[str, str], float] = {}
        """When the ejections of instances by operators are undone."""

    # -- the process --------------------------------------------------------------------------------------------

    def find_reasons(self) -> list[str]:
        reasons = [] if self.runtime.connected else ["disconnected"]
        if self.runtime.attempts.is_closing:
            reasons.append("draining")
        return reasons if self.is_started else [*reasons, "catalogue not loaded"]

    def describe(self) -> Values:
        recent = self.recent
        recent.count()
        known = recent.tools.values()
        rates = [self._rate([each]) for each in known]
        return {
            "name": self._name,
            "broker": self.runtime.broker_url,
            "tools": len(self.live.resolver.catalog.tools),
            "calls": recent.total,
            "failed": sum(each.failed for each in known),
            "in_flight": self.runtime.guard_registry.calls_in_flight,
            "rate": sum(rate for rate, _ in rates),
        }

    def _rate(self, calls: Sequence[ToolCalls]) -> tuple[float, float | None]:
        """Return calls a second, and the share of failed ones, over the last minute."""
        total = failed = 0
        for each in calls:
            its = each.history(RATE_SLOTS)
            total += sum(its[0])
            failed += sum(its[1])
        now = self.recent.clock()
        seconds = min((RATE_SLOTS - 1) * SLOT_S + now % SLOT_S, max(now - self._started, 1.0))
        return total / seconds, failed / total if total else None

    # -- tools --------------------------------------------------------------------------------------------------

    def resolve(self, name: str, version: str | None) -> ResolvedTool:
        """Return a version of a tool, by default the default one; of ``service:ID`` the service, called without a tool.

        Raises:
            DispatchError: there is none.
        """
        resolver = self.live.resolver
        kind, _, id = name.partition(":")
        if kind == "service" and name not in resolver.catalog.tools:
            return resolver.service(id)
        return (version and resolver.find(name, version)) or resolver.tool(name, version)

    def _list_services(self) -> list[str]:
        """Return the labels of the services that were called without a tool, or have none."""
        catalog = self.live.resolver.catalog
        with_tools = {tool.service for tool in catalog.tools.values()}
        called = {each.label for each in self.runtime.guard_registry.all()}
        labels = {id: meter_label(id, is_tool=False) for id in catalog.services}
        return [label for id, label in labels.items() if id not in with_tools or label in called]

    def tools(self) -> list[Values]:
        self.recent.count()
        calls: dict[str, list[ToolCalls]] = {}
        for (label, _), each in self.recent.tools.items():
            calls.setdefault(label, []).append(each)
        pools = {
            key: [find_instance_state(pool, view, instance) in UP_STATES for view, instance, _ in pool.describe()]
            for key, pool in self.runtime.pool_registry.all()
        }
        resolver = self.live.resolver
        waiting = self.runtime.queued()
        found = [*map(resolver.describe, resolver.catalog.tools)]
        found += [self.resolve(label, None) for label in self._list_services()]
        running = self._count_running()
        return [self._row(each, calls.get(each.meter_label, ()), pools, waiting, running) for each in found]

    def _count_running(self) -> Counter[str]:
        """Return the calls in flight by the label of the tool, over all its versions."""
        running: Counter[str] = Counter()
        for each in self.runtime.guard_registry.all():
            running[each.label] += each.calls.count
        return running

    def _row(
        self,
        tool: ResolvedTool,
        calls: Sequence[ToolCalls],
        pools: Mapping[PoolKey, Sequence[bool]],
        waiting: Mapping[tuple[str, str], int],
        running: Counter[str],
    ) -> Values:
        guards = self.runtime.guard_registry.find(tool)
        durations = None if guards is None else guards.durations
        rate, failure_rate = self._rate(calls) if calls else (0.0, None)
        instances = pools.get(tool.pool_key, ())
        return {
            "name": tool.meter_label,
            "version": tool.version,
            "service": tool.service_id,
            **{key: sum(getattr(each, key) for each in calls) for key in ("calls", "failed", "refused")},
            "in_flight": running[tool.meter_label],
            "queued": waiting.get((tool.meter_label, tool.service_id), 0),
            "rate": rate,
            "failure_rate": failure_rate,
            **{f"p{share}": None if durations is None else durations.quantile(share / 100) for share in (50, 95, 99)},
            "circuit": None if guards is None or guards.breaker is None else str(guards.breaker.state),
            "instances": len(instances),
            "instances_up": sum(instances),
        }

    def tool(self, name: str, version: str | None) -> Values | None:
        resolver = self.live.resolver
        catalog = resolver.catalog
        if name in catalog.tools:
            tool = resolver.describe(name) if version is None else resolver.find(name, version)
            versions = [each.version for each in catalog.versions(name)]
        else:
            tool = self.resolve(name, None) if name in self._list_services() and version is None else None
            versions = [None]
        if tool is None:
            return None
        descriptor = tool.descriptor
        self.recent.count()
        calls = [each for (label, _), each in self.recent.tools.items() if label == name]
        pool = next((pool for key, pool in self.runtime.pool_registry.all() if key == tool.pool_key), None)
        views = [] if pool is None else self._instances_of(tool.pool_key, pool, self._average_durations())
        pools = {tool.pool_key: [view["state"] in UP_STATES for view in views]}
        histories = [each.history() for each in calls]
        return {
            **self._row(tool, calls, pools, self.runtime.queued(), self._count_running()),
            "description": tool.description,
            "versions": versions,
            "permissions": [*(descriptor.permissions if descriptor else ()), *tool.service.permissions],
            "read_only": descriptor.read_only if descriptor else None,
            "idempotent": descriptor.idempotent if descriptor else None,
            "request_queue": tool.service.request_queue,
            "history": {
                "seconds": SLOT_S,
                "calls": [sum(column) for column in zip(*(its for its, _ in histories), strict=True)],
                "failed": [sum(column) for column in zip(*(its for _, its in histories), strict=True)],
            },
            "circuits": self.circuits(name),
            "instance_list": views,
            "events": [each for each in self.events.latest() if concerns(each, name, tool.service_id)],
            "policy": self._explain(
                tool.policy, ("service", tool.service.policy), ("tool", descriptor.policy if descriptor else {})
            ),
        }

    # -- instances and circuits ---------------------------------------------------------------------------------

    def instances(self) -> list[Values]:
        found: dict[tuple[str, str], Values] = {}
        durations = self._average_durations()
        for key, pool in self.runtime.pool_registry.all():
            for view in self._instances_of(key, pool, durations):
                known = found.setdefault((view["service"], view["id"]), view)
                if known is not view:
                    known["in_flight"] += view["in_flight"]
        return list(found.values())

    def _average_durations(self) -> dict[tuple[str, str], float]:
        """Return the mean duration of the answers among the last calls, by service and instance."""
        sums: dict[tuple[str, str], tuple[int, float]] = {}
        for call in self.recent.latest():
            attempt = call.request
            while attempt is not None:
                if attempt.outcome in ANSWERED:
                    place = call.tool.service, attempt.instance
                    count, total = sums.get(place, (0, 0.0))
                    sums[place] = count + 1, total + attempt.ended - attempt.started
                attempt = attempt.previous
        return {place: total / count for place, (count, total) in sums.items()}

    def _instances_of(
        self, key: PoolKey, pool: InstancePool, durations: Mapping[tuple[str, str], float]
    ) -> list[Values]:
        found = []
        for view, instance, version in pool.describe():
            kind = "session" if isinstance(instance, SessionInstance) else "local"
            until = self.held_until.get((key.service, view.id))
            held = {"seconds_left": until - time.time()} if view.is_held and until is not None else {}
            found.append(
                {
                    **_NO_INSTANCE,
                    **msgspec.structs.asdict(view),
                    **held,
                    "state": find_instance_state(pool, view, instance),
                    "latency": view.latency or durations.get((key.service, view.id)),
                    "service": key.service,
                    "version": version,
                    "kind": "topic" if isinstance(instance, SharedTopic) else kind,
                }
            )
        return found

    def circuits(self, tool: str | None) -> list[Values]:
        found = []
        for guards in self.runtime.guard_registry.all():
            if tool is None or guards.label == tool:
                breakers: dict[str | None, CircuitBreaker | None] = {None: guards.breaker}
                if tool is not None:
                    breakers.update(guards.instance_breakers)
                for instance, breaker in breakers.items():
                    if breaker is not None:
                        key = guards.label, guards.version, instance
                        found.append(describe_circuit(*key, breaker, self.deadlines.get(key)))
        return found

    def circuits_at(self, instance: str, service: str) -> list[Values]:
        """Return the circuits of all tools at one instance of a service."""
        return [
            describe_circuit(each.label, each.version, instance, breaker, None)
            for each in self.runtime.guard_registry.all()
            if (breaker := each.instance_breakers.get(instance)) is not None and each.service == service
        ]

    def versions(self) -> list[Values]:
        """Return each version of each tool."""
        catalog = self.live.resolver.catalog
        return [
            {"name": each.name, "version": each.version, "service": each.service}
            for name in catalog.tools
            for each in catalog.versions(name)
        ]

    def sessions(self) -> list[Values]:
        # By the session itself: the services of one process may have one name of their instances.
        services = {
            id(instance.session): key.service
            for key, pool in self.runtime.pool_registry.all()
            for _, instance, _ in pool.describe()
            if isinstance(instance, SessionInstance)
        }
        return [
            describe_session(services.get(id(session)), session)
            for table in self.runtime.channels.session_tables()
            for session in list(table.sessions.values())
        ]

    # -- users and calls ----------------------------------------------------------------------------------------

    def users(self) -> list[Values]:
        recent = self.recent
        recent.count()
        now = recent.clock()
        wall = time.time() - now
        found = [
            {
                "user": user,
                "calls": its.calls,
                "failed": its.failed,
                "refused": its.refused,
                "rate": its.rate(now, self._started),
                "last": wall + its.last,
                "tools": None,
            }
            for user, its in recent.users.items()
        ]
        return sorted(found, key=lambda each: (-each["rate"], -each["last"]))

    # -- the catalogue ------------------------------------------------------------------------------------------

    def sources(self) -> list[Values]:
        registry = self.live.registry
        found = []
        for status in registry.sources():
            report = registry.merged.reports.get(status.id)
            lists: Values = {"refused": [], "shadowed": [], "held": []}
            if report is not None:
                lists["refused"] = [msgspec.structs.asdict(each) for each in report.describe_refused(status.id)]
                lists["shadowed"] = [msgspec.structs.asdict(each) for each in report.shadowed]
                lists["held"] = [msgspec.structs.asdict(each) for each in report.held]
            found.append({**msgspec.structs.asdict(status), **lists})
        return found

    def policy(self) -> list[Values]:
        return self._explain(self.live.resolver.policy)

    def _explain(self, policy: Policy, *layers: tuple[str, Mapping[str, Any]]) -> list[Values]:
        own = ("dispatcher", self.live.resolver.policy)
        return [each._asdict() for each in explain_policy(policy, (own, *layers))]


class ObservedService(ObservedServer, Protocol):
    """A tool server, as the admin endpoint sees it."""

    instance: str
    request_queue: str
    concurrency: int
    announce: Announce | None

    @property
    def descriptors(self) -> tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]: ...
    @property
    def requests(self) -> int: ...
    @property
    def errors(self) -> int: ...
    @property
    def is_draining(self) -> bool: ...
    @property
    def is_connected(self) -> bool: ...
    @property
    def broker_url(self) -> str: ...
    async def drain(self) -> None: ...


class ServiceViews(Views):
    """What the process of tool servers shows.

    Args:
        servers: of the process.
    """

    kind = "service"
    recent = None

    def __init__(self, servers: Sequence[ObservedService]) -> None:
        self.servers = servers
        self.events = EventLog()
        self._clock = loop_clock()
        self._before = (self._clock(), 0)
        self._rate = 0.0

    def find_reasons(self) -> list[str]:
        found = {"disconnected": not all(each.is_connected for each in self.servers)}
        found["draining"] = any(each.is_draining for each in self.servers)
        return [reason for reason, holds in found.items() if holds]

    def describe(self) -> Values:
        requests = sum(each.requests for each in self.servers)
        now, (before, former) = self._clock(), self._before
        if now - before >= SLOT_S:  # between two readings, the first of which is the start
            self._rate, self._before = (requests - former) / (now - before), (now, requests)
        return {
            "name": ", ".join(dict.fromkeys(each.instance for each in self.servers)),
            "broker": self.servers[0].broker_url,
            "tools": sum(len(each.descriptors[1]) for each in self.servers),
            "calls": requests,
            "failed": sum(each.errors for each in self.servers),
            "in_flight": sum(each.running for each in self.servers),
            "rate": self._rate,
        }

    def tools(self) -> list[Values]:
        return [_describe_tool(server, tool) for server in self.servers for tool in server.descriptors[1]]

    def tool(self, name: str, version: str | None) -> Values | None:
        for server in self.servers:
            for tool in server.descriptors[1]:
                if tool["name"] == name and version in (None, tool.get("version")):
                    return {
                        **dict.fromkeys(ToolDetails.__annotations__),
                        **{each: [] for each in ("permissions", "circuits", "events", "policy")},
                        **_describe_tool(server, tool),
                        "description": tool.get("description", ""),
                        "versions": [tool.get("version")],
                        "request_queue": server.request_queue,
                        "history": {"seconds": SLOT_S, "calls": [], "failed": []},
                        "instance_list": [self._instance(server)],
                    }
        return None

    def instances(self) -> list[Values]:
        return [self._instance(each) for each in self.servers]

    def _instance(self, server: ObservedService) -> Values:
        return {
            **_NO_INSTANCE,
            "id": server.instance,
            "service": server.service_id,
            "state": "draining" if server.is_draining else "up",
            "version": server.descriptors[0].get("version"),
            "kind": "own",
            "in_flight": server.running,
            "is_held": False,
            "queued": server.queued,
            "concurrency": server.concurrency,
            "requests": server.requests,
            "errors": server.errors,
            "refused": dict(server.refused),
        }

    def sessions(self) -> list[Values]:
        return [
            describe_session(server.service_id, session)
            for server in self.servers
            if server.session_table is not None
            for session in list(server.session_table.sessions.values())
        ]


def _describe_tool(server: ObservedService, tool: Mapping[str, Any]) -> Values:
    """Return a tool of a service as a row of ``/api/tools``."""
    return {
        **dict.fromkeys(Tool.__annotations__),
        "name": tool["name"],
        "version": tool.get("version"),
        "service": server.service_id,
        "instances": 1,
        "instances_up": int(not server.is_draining),
    }


def find_instance_state(pool: InstancePool, view: InstanceView, instance: object) -> str:
    """Return the state of an instance; of a shared topic ``unanswered`` while nothing has ever replied there, or since its
    last instance has left: perhaps nothing consumes it."""
    if isinstance(instance, SharedTopic) and view.state in UP_STATES:
        channel = next((each for each in pool.channels if each.request_queue == instance.topic), None)
        if channel is not None:
            is_left = channel.had_instances and channel.answered_at < channel.asked_since
            return "unanswered" if is_left or not channel.is_served else view.state
    return view.state


def concerns(event: Values, tool: str, service: str) -> bool:
    """Return whether an event is about a tool: its circuit, an instance of its service, its definition."""
    names = (*event.get("added", ()), *event.get("changed", ()), *event.get("removed", ()))
    if event["event"] == "action":
        return str(event["target"]).split(" ")[:2] in (["circuit", tool], ["definition", tool])
    return event.get("tool") == tool or event.get("service") == service or tool in (event.get("name"), *names)


def describe_circuit(
    tool: str, version: str | None, instance: str | None, breaker: CircuitBreaker, until: float | None
) -> Values:
    """Return a circuit of ``/api/circuits``."""
    return {
        "tool": tool,
        "version": version,
        "instance": instance,
        "state": str(breaker.state),
        "retry_after": breaker.retry_after,
        "failure_rate": breaker.failure_rate,
        "slow_call_rate": breaker.slow_call_rate,
        "until": until,
    }


def describe_session(service: str | None, session: Any) -> Values:
    """Return a session of ``/api/sessions``."""
    state: SessionState = find_state(session)
    return {
        "service": service,
        "peer": session.peer_name,
        "state": str(state),
        **{field: getattr(session, field) for field in _SESSION_FIELDS},
        **{field: getattr(session.statistics, field) for field in _PACKET_FIELDS},
    }


def describe_call(call: RecordedCall, wall: float, *, whole: bool = False) -> Values:
    """Return a call of ``/api/calls``.

    Args:
        wall: the time since the epoch at which the loop's clock was 0.
        whole: with attempts and waits, as ``/api/calls/ID``.
    """
    attempts = call.attempts()
    values: Values = {
        "id": str(call.number),
        "at": wall + call.started,
        "tool": call.tool.label,
        "version": call.tool.version,
        "service": call.tool.service or None,
        "user": call.user,
        "outcome": str(call.outcome),
        "error": call.error or None,
        "rejected_by": call.rejected_by or None,
        "ran": call.ran,
        "duration": call.duration,
        "wait": sum(each.duration for each in call.waits()),
        "attempts": len(attempts),
        "instance": attempts[-1].instance if attempts else None,
        "trace_id": call.trace_id,
    }
    if whole:
        values["message"] = call.message or None
        values["chunks"] = call.chunks
        values["arguments"] = call.arguments
        values["waits"] = [{"start": each.started - call.started, "duration": each.duration} for each in call.waits()]
        values["trail"] = [
            {
                "number": each.number,
                "reason": each.reason,
                "request_id": each.id,
                "instance": each.instance or None,
                "start": each.started - call.started,
                "duration": each.ended - each.started,
                "outcome": str(each.outcome),
                "error": each.error or None,
                "sent": each.sent,
            }
            for each in attempts
        ]
    return values
