"""The values of the admin API (docs/reference/admin-api.md), for the endpoint and for its clients. A client accepts a value
without some of the fields, as of an earlier version, and ignores others, as those of a later one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Annotated, Any, Final, Required, TypedDict

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Number = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]
Time = Annotated[float, msgspec.Meta(ge=0, le=1e11)]


class Process(TypedDict, total=False):
    """A process: ``/api/process``."""

    kind: Required[str]
    name: Required[str]
    version: str
    host: str
    pid: Count
    started: Time
    uptime: Number
    broker: str
    ready: bool
    reasons: list[str]
    labels: dict[str, str]
    tools: Count | None
    calls: Count | None
    failed: Count | None
    in_flight: Count | None
    rate: Number | None


class Instance(TypedDict, total=False):
    """An instance: ``/api/instances``."""

    id: Required[str]
    state: Required[str]
    service: str | None
    version: str | None
    kind: str | None
    weight: Number | None
    is_held: bool | None
    seconds_left: Number | None
    latency: Number | None
    in_flight: Count | None
    failures: Count | None
    ejections: Count | None
    queued: Count | None
    concurrency: Count | None
    requests: Count | None
    errors: Count | None
    refused: dict[str, Count] | None


class Circuit(TypedDict, total=False):
    """A circuit breaker: ``/api/circuits``."""

    tool: Required[str]
    state: Required[str]
    version: str | None
    instance: str | None
    retry_after: Number | None
    failure_rate: Number | None
    slow_call_rate: Number | None
    until: Time | None


class Event(TypedDict, total=False):
    """An event of any kind."""

    event: Required[str]
    at: Required[Time]
    action: str | None
    active_origin: str | None
    active_source: str | None
    added: list[str]
    added_count: Count
    broker: str | None
    change: str | None
    changed: list[str]
    changed_count: Count
    connected: bool
    fingerprints: dict[str, str]
    fix: str | None
    instance: str | None
    key: str | None
    name: str | None
    new: str | None
    ok: bool
    old: str | None
    origin: str | None
    problem: str | None
    reason: str | None
    removed: list[str]
    removed_count: Count
    seconds: Number
    service: str | None
    source: str | None
    target: str | None
    tool: str | None
    tools: Count
    until: Time | None
    user: str | None
    version: str | None


class Tool(TypedDict, total=False):
    """A tool: ``/api/tools``."""

    name: Required[str]
    version: str | None
    service: str | None
    circuit: str | None
    calls: Count | None
    failed: Count | None
    refused: Count | None
    in_flight: Count | None
    queued: Count | None
    instances: Count | None
    instances_up: Count | None
    rate: Number | None
    failure_rate: Number | None
    p50: Number | None
    p95: Number | None
    p99: Number | None


class History(TypedDict, total=False):
    """Calls of a tool over time, in slots of ``seconds``."""

    seconds: Number
    calls: list[Count]
    failed: list[Count]


class PolicyValue(TypedDict):
    """A value of a policy, and where it comes from."""

    key: str
    value: Any
    source: str


class ToolDetails(Tool, total=False):
    """One tool: ``/api/tools/NAME``."""

    description: str | None
    versions: list[str | None]
    permissions: list[str]
    read_only: bool | None
    idempotent: bool | None
    request_queue: str | None
    history: History | None
    circuits: list[Circuit]
    instance_list: list[Instance]
    events: list[Event]
    policy: list[PolicyValue]


class User(TypedDict, total=False):
    """A user: ``/api/users``."""

    user: Required[str]
    calls: Count | None
    failed: Count | None
    refused: Count | None
    rate: Number | None
    last: Time | None
    tools: Count | None


class Session(TypedDict, total=False):
    """A session: ``/api/sessions``."""

    peer: str | None
    service: str | None
    state: str | None
    rtt: Number | None
    window: Number | None
    in_flight_bytes: Count | None
    queued_bytes: Count | None
    packets_sent: Count | None
    packets_received: Count | None
    retransmissions: Count | None
    duplicates: Count | None


class Call(TypedDict, total=False):
    """A call: ``/api/calls``."""

    id: Required[str]
    at: Required[Time]
    tool: Required[str]
    user: Required[str]
    outcome: Required[str]
    duration: Required[Number]
    version: str | None
    service: str | None
    instance: str | None
    error: str | None
    rejected_by: str | None
    ran: str | None
    trace_id: str | None
    wait: Number | None
    attempts: Count


class Wait(TypedDict):
    """A wait of a call in a queue."""

    start: Number
    duration: Number | None


class Attempt(TypedDict, total=False):
    """An attempt of a call."""

    number: Required[Count]
    start: Required[Number]
    duration: Required[Number | None]
    outcome: Required[str]
    reason: str | None
    request_id: str | None
    instance: str | None
    error: str | None
    sent: bool | None


class CallDetails(Call, total=False):
    """One call: ``/api/calls/ID``."""

    message: str | None
    arguments: str | None
    chunks: Count
    waits: list[Wait] | None
    trail: list[Attempt] | None


class Peer(TypedDict):
    """The admin endpoint of another process: ``/api/peers``."""

    url: str
    name: str


_AS_USUAL: Final = frozenset({"up", "warming", "closed", "ready", "ok", "success"})
_SEVERE: Final = frozenset(
    {"open", "forced-open", "ejected", "failed", "unreachable", "timeout", "transport", "rejected"}
)


def find_severity(state: str | None) -> int:
    """Return how much a state of ``/api/…``, or an outcome, needs attention: 0 (as usual, also None), 2 (calls fail), or 1:
    all others, also those of a later version. The state of a session is not meant, whose ``open`` is as usual."""
    return 0 if state is None or state in _AS_USUAL else 2 if state in _SEVERE else 1


_ORIGIN = ("event", "at", "url", "process")


def describe_event(event: Mapping[str, Any]) -> str:
    """Return an event of ``/api/events`` in words, without its time; ``?`` for a field that is missing."""
    kind = event["event"]
    of = defaultdict(lambda: "?", event)
    if kind == "circuit":
        where = f" at {of['instance']}" if of["instance"] else ""
        return f"circuit of {of['tool']}{where}: {of['old']} → {of['new']} ({of['reason']})"
    if kind == "instance":
        reason = "" if of["change"] in ("joined", "left") else f": {of['reason']}"
        return f"instance {of['instance']} of {of['service']} {of['change']}{reason}"
    if kind == "action":
        return f"{of['user']}: {of['action']} {of['target']} ({of['reason']})"
    if kind == "catalog":
        counts = (f"{of[f'{change}_count']} {change}" for change in ("added", "changed", "removed"))
        return f"catalogue: {of['tools']} tools, {', '.join(counts)} by {of['source']} {of['problem']}"
    if kind == "source":
        # A source begins as failed: it has no items before it is read for the first time, and nothing has failed yet.
        former = "" if (of["old"], of["new"]) == ("failed", "ok") else f"{of['old'] or 'new'} → "
        return f"source {of['source']}: {former}{of['new']} {of['problem']}".rstrip()
    if kind == "broker":
        change = f"back after {of['seconds']} s" if of["connected"] is True else "lost"
        return f"broker {of['broker']}: {change}"
    if kind == "item-refused":
        return (
            f"{' '.join(filter(None, (of['origin'], of['key'])))} of source {of['source']} is refused: {of['problem']}"
        )
    if kind == "item-shadowed":
        return f"{of['name']} of source {of['source']} is not in force: it is that of {of['active_source']}"
    if kind == "change-held":
        return f"a definition of {of['name']} of source {of['source']} waits for approval"
    facts = (f"{key} {value}" for key, value in event.items() if value and key not in _ORIGIN)
    return f"{kind}: {', '.join(facts)}"
