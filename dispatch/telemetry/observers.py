"""The observer of calls: what the call path reports, without knowing whether metrics, traces or logs listen.

A dispatcher has one :class:`DispatcherObserver`; it gives a :class:`CallObserver` for each tool, which gives one for each
call, which gives a :class:`RequestObserver` for each request of the call. These classes observe nothing, and so do their
objects below, which are used where telemetry is off: the call path has no conditions on it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import msgspec

from dispatch._internal import NamedFields, check_function, check_instance
from dispatch.errors import DispatchError, Outcome
from dispatch.results import CallResult

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider
    from prometheus_client import CollectorRegistry


# What the registry of a dispatcher's catalogue reports about items.


class RefusedItem(msgspec.Struct, frozen=True):
    """An invalid item: its last valid version stays in force, or it has none and is not in the catalogue.

    Attributes:
        source: id of its source.
        origin: path or position of the item, such as ``tool/find.json`` or ``tools[2]``.
        key: path of the invalid value inside the descriptor, such as ``arguments[1].type``; empty: the whole item.
        problem: description of the problem.
        fix: how to correct it.
    """

    source: str
    origin: str
    key: str
    problem: str
    fix: str


class ShadowedItem(msgspec.Struct, frozen=True):
    """A valid item that is not in force, because a source that comes earlier has an item with the same name.

    Attributes:
        name: of both tools, or id of both services.
        source, origin: of the shadowed item.
        active_source, active_origin: of the item that is in force.
    """

    name: str
    source: str
    origin: str
    active_source: str
    active_origin: str


class HeldChange(msgspec.Struct, frozen=True):
    """A changed definition that waits for approval; the former one stays in force.

    Attributes:
        source: id of its source.
        name: of the tool.
        old: fingerprint of the definition in force; empty: the tool is new and not in force.
        new: fingerprint of the definition that waits.
    """

    source: str
    name: str
    old: str
    new: str


NO_PROPERTIES: Final[Mapping[str, str]] = {}


class Counter(Protocol):
    """A counter that the message path increments in place: a function call for each reply would cost more than the rest."""

    value: float


class ObservedTool(Protocol):
    """The called tool, as observers see it."""

    @property
    def label(self) -> str:
        """The tool's name."""

    @property
    def service_id(self) -> str:
        """The id of the tool's service."""

    @property
    def description(self) -> str:
        """The description for models."""

    @property
    def tool_type(self) -> str:
        """The type of the tool, as OpenTelemetry names it in ``gen_ai.tool.type``."""


class RequestObserver:
    """Receives the end of one request of a call."""

    __slots__ = ()

    properties: Mapping[str, str] = NO_PROPERTIES
    """Message properties that the request carries: the trace context."""

    def activate(self) -> None:
        """Make the request's span the current one of the running task, in which this process executes the tool."""

    def on_end(self, outcome: Outcome, error: DispatchError | None, *, instance: str, sent: bool) -> None:
        """Observe the end of the request.

        Args:
            outcome, error: of the request's attempt.
            instance: name of the instance that the request was addressed to.
            sent: it was sent, or may have been.
        """


class CallObserver:
    """Receives the events of one call, in the order in which they happen; it ends with ``on_end`` or ``on_cancel``."""

    __slots__ = ()

    def start_call(self, tool: ObservedTool, started: float, user: str = "") -> CallObserver:
        """Return the observer of a call of ``user`` that began at ``started``, on the loop's clock. Called on the observer
        of all calls of the tool (:meth:`DispatcherObserver.observe_tool`)."""
        return self

    @property
    def trace_id(self) -> str:
        """The trace that the call is in, as 32 hex digits; empty: none."""
        return ""

    def on_arguments(self, arguments: Mapping[str, Any]) -> None:
        """Observe the valid arguments. They are user data, recorded only if telemetry has ``content`` on."""

    def on_queued(self, seconds: float) -> None:
        """Observe that an attempt waited ``seconds`` for a rate limit or the bulkhead."""

    def on_rejected(self, error: DispatchError) -> None:
        """Observe that an attempt was rejected before the tool was executed; ``error.rejected_by`` names the part."""

    def on_request(self, topic: str, template: str, id: str, number: int, reason: str) -> RequestObserver:
        """Observe a request before it is sent, or before this process executes the tool.

        Args:
            topic, template: topic of the request; ``template`` is the service's request topic, of which instances' topics
                derive. Both ``""``: this process executes the tool.
            id: of the request.
            number: of the attempt, from 1.
            reason: ``first``, ``retry`` or ``hedge``.
        """
        return NULL_REQUEST

    def on_retry(self, wait: float) -> None:
        """Observe that the call is retried after ``wait`` seconds."""

    def on_hedge(self) -> None:
        """Observe that a hedge is sent beside the first attempt."""

    def on_refused(self, user: str, reason: str) -> None:
        """Observe that the call was refused because of its caller alone, before ``on_end``
        (:attr:`~dispatch.errors.DispatchError.policy_refusal`)."""

    def on_budget_exhausted(self) -> None:
        """Observe that a retry or a hedge was due and is not sent: the retry budget is exhausted."""

    def on_first_chunk(self, seconds: float, exemplar: dict[str, str] | None = None) -> None:
        """Observe the first chunk of a stream, ``seconds`` after the start of the call."""

    def on_chunk(self, text: str) -> None:
        """Observe a chunk of a stream. It is user data, as the arguments."""

    def on_end(self, result: CallResult, reply: Mapping[str, str], exemplar: dict[str, str] | None = None) -> None:
        """Observe the end of the call.

        Args:
            result: the caller's result.
            reply: trace context of the reply, as ``traceparent`` and ``tracestate``.
            exemplar: ``trace_id`` and ``span_id`` for the measurement of the call.
        """

    def on_cancel(self, seconds: float, attempts: int, exemplar: dict[str, str] | None = None) -> None:
        """Observe that the call was cancelled, or its stream closed early, after ``seconds`` and ``attempts`` requests."""


class RequestRecord(msgspec.Struct, eq=False, gc=False):
    """A request of a recorded call, which has ended. Times are on the loop's clock. perf: structs are created without a
    function call.

    Attributes:
        id: of the request.
        number, reason: of its attempt, as of :meth:`CallObserver.on_request`.
        started: when the guards had admitted it.
        ended: when it did.
        outcome, error: of its attempt; ``error`` is the type, empty without one.
        instance: name of the instance that it was addressed to.
        sent: it was sent, or may have been.
        previous: the request that ended before it in the same call.
    """

    id: str
    number: int
    reason: str
    started: float
    ended: float
    outcome: Outcome
    error: str
    instance: str
    sent: bool
    previous: RequestRecord | None


class WaitRecord(msgspec.Struct, eq=False, gc=False):
    """A wait of a recorded call for a rate limit or the bulkhead: ``started`` on the loop's clock, and seconds.
    ``previous``: the wait before it in the same call."""

    started: float
    duration: float
    previous: WaitRecord | None


class CallTrail(Protocol):
    """What the path of a call has noted for its record: the last request that has ended and the last wait, and its
    arguments as JSON if they may be recorded."""

    last_request: RequestRecord | None
    last_wait: WaitRecord | None
    arguments: str | None


class CallRecords(Protocol):
    """Keeps records of the calls of one version of a tool. The path of a call notes requests and waits, and calls one
    method at the end. perf: as an observer, which is called at each step, it cost 2 µs a call.

    Attributes:
        content: arguments may be recorded.
    """

    content: bool

    def add(self, user: str, started: float, result: CallResult, trail: CallTrail | None, trace_id: str) -> None:
        """Record a call that has ended.

        Args:
            user, started: as of :meth:`CallObserver.start_call`.
            result: the caller's.
            trail: None: nothing was sent.
            trace_id: of the call; empty: it is in no trace.
        """

    def add_cancelled(self, user: str, started: float, seconds: float, trail: CallTrail | None, trace_id: str) -> None:
        """Record a call that was cancelled after ``seconds``, or a stream that was closed early."""


class DispatcherObserver:
    """Observes one dispatcher from its start to its close: its tools, services, sessions and its catalogue. All methods but
    those of calls are off the path of a call.

    The reports about items (:class:`RefusedItem`, :class:`ShadowedItem`, :class:`HeldChange`) are complete: each call passes
    all that hold at that moment, and the observer writes a log line and publishes an event only for those that are new. The
    registry so needs no memory of what it has reported, and an item that is invalid for a day is reported once.
    """

    def attach(self, dispatcher: Any) -> None:
        """Read the gauges of ``dispatcher`` at each scrape.

        Args:
            dispatcher: a :class:`~dispatch.telemetry.gauges.ObservedDispatcher`.
        """

    def observe_tool(self, label: str, version: str | None = None, service: str = "") -> CallObserver:
        """Return the observer of the calls of a version of the tool with that label, which the service with the id
        ``service`` executes (:meth:`CallObserver.start_call`). None: the tool declares no version."""
        return NULL_CALL

    def record_calls(self, label: str, version: str | None, service: str) -> CallRecords | None:
        """Return the records of the calls of a version of a tool, which ``service`` executes from now on; None: calls are
        not recorded."""
        return None

    def observe_service(self, id: str) -> Mapping[Any, Counter] | None:
        """Return counters of the replies of the service ``id`` by :class:`~dispatch.messaging.request.Disposition`;
        ``_OTHER``: of replies that belong to no service. None: replies are not counted."""
        return None

    def observe_sessions(self, table: Any) -> None:
        """Read the sessions with instances at each scrape.

        Args:
            table: a :class:`~dispatch.protocol.table.SessionTable`.
        """

    def release_sessions(self, table: Any) -> None:
        """Stop reading the sessions of ``table``; their counts stay."""

    def on_unknown_tool(self, name: str, error: DispatchError, now: float, user: str = "") -> None:
        """Observe the call of a tool that is in no catalogue."""

    def on_circuit_transition(
        self, tool: str, version: str | None, service: str, instance: str | None, old: Any, new: Any, reason: str
    ) -> None:
        """Observe a transition of the circuit breaker of a version of a tool, or of its breaker at one instance.

        Args:
            tool, version, service: as of :meth:`observe_tool`.
            instance: name of the instance; None: the tool's own breaker.
            old, new: states (:class:`~dispatch.resilience.breaker.State`).
            reason: of the transition.
        """

    def on_instance_change(self, service: str, instance: str, change: str, reason: str) -> None:
        """Observe that an instance ``joined``, ``left``, was ``ejected``, is ``unresponsive`` or has ``returned``."""

    def on_connection_change(self, broker: str, is_connected: bool, seconds: float) -> None:
        """Observe that the connection to the broker was lost, or is back after ``seconds``."""

    def release_tool(self, label: str) -> None:
        """Remove the series of a tool that was removed from the catalogue."""

    def release_version(self, label: str, version: str) -> None:
        """Remove the series of a version of a tool that was removed from the catalogue."""

    def release_service(self, id: str) -> None:
        """Remove the series of a service that was removed from the catalogue."""

    def on_activated(
        self,
        sources: Collection[str],
        tools: int,
        names: Mapping[str, Collection[str]],
        fingerprints: Mapping[str, str],
        *,
        is_reload: bool,
    ) -> None:
        """Observe that another catalogue or policy is in force.

        Args:
            sources: ids of the sources that caused it.
            tools: number of tools in force.
            names: of the tools that were ``added``, ``changed`` and ``removed``.
            fingerprints: by the name of the tool; only those of ``added`` and ``changed`` are read.
            is_reload: by :meth:`dispatch.Dispatcher.reload`, so that former reloads that were rejected are made good.
        """

    def on_reload_rejected(self, sources: Collection[str], tools: int, problem: str) -> None:
        """Observe that :meth:`dispatch.Dispatcher.reload` with these sources was rejected because of ``problem``: the
        previous catalogue and policy, with ``tools`` tools, stay in force."""

    def on_source_changed(self, source: str, old: str, new: str, problem: str = "") -> None:
        """Observe that a source changed its state. Only changes of the state are reported, not each further failure.

        Args:
            source: its id.
            old: the former state (:data:`dispatch.catalog.items.SourceState`); empty: the source was added.
            new: the state; ``removed``: the source was removed, and its series with it.
            problem: why it is not ``ok``, in one line.
        """

    def on_refused_items(self, source: str, items: Collection[RefusedItem]) -> None:
        """Observe all refused items of a source."""

    def on_shadowed_items(self, source: str, items: Collection[ShadowedItem]) -> None:
        """Observe all shadowed items of a source."""

    def on_held_changes(self, source: str, changes: Collection[HeldChange]) -> None:
        """Observe all held changes of a source."""

    def close(self) -> None:
        """End the observation."""


NULL_REQUEST = RequestObserver()
NULL_CALL = CallObserver()
NULL_DISPATCHER = DispatcherObserver()

# The observer of served requests: what a tool service reports, without knowing whether metrics or traces listen.
#
# A tool server has one :class:`ServerObserver`, which gives a :class:`ServedRequestObserver` for each request that it runs.
# These classes observe nothing, and so do their objects at the end of this module, which are used where telemetry is off:
# the serving path has no conditions on it.


RunResult = Literal["ok", "error", "stopped"]
"""The end of a run of the tool: a result; the tool's error; or it was cancelled, or its caller's deadline passed."""


class ServerNames(msgspec.Struct, frozen=True):
    """The names of a tool server in metrics and traces.

    Attributes:
        service: id of the service.
        instance: id of the instance.
        topic: the request topic.
        replies: template of the callers' reply topics.
        responses: the service's response topic.
    """

    service: str
    instance: str
    topic: str
    replies: str
    responses: str


class ObservedServer(Protocol):
    """A tool server as a scrape reads it, on any thread."""

    refused: dict[str, int]
    service_id: str

    @property
    def running(self) -> int:
        """Requests being run."""

    @property
    def queued(self) -> int:
        """Requests that wait for a place."""

    @property
    def abandoned_threads(self) -> int:
        """Threads that still run a tool although its request has ended."""

    @property
    def session_table(self) -> Any:
        """Sessions of dispatchers, a :class:`~dispatch.protocol.table.SessionTable`; None: it has none."""

    def counts(self) -> Mapping[str, int]:
        """Return the counts since the start, by the names in :mod:`dispatch.telemetry.gauges`."""


class ObservedRequest(Protocol):
    """A request as its observers read it."""

    @property
    def id(self) -> str:
        """The request's id, which its caller knows too."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers with the caller's trace context, among others."""

    @property
    def reply_topic(self) -> str:
        """The topic that the reply goes to."""


class ServedRequestObserver:
    """Receives the events of one request from the start of its run; ``on_end`` is the last one."""

    __slots__ = ()

    @property
    def traceparent(self) -> str:
        """The W3C trace context of the request's span; ``""``: it has none."""
        return ""

    def on_reply(self, *, is_last: bool) -> Mapping[str, str]:
        """Observe a message of the reply before it is sent, and return its trace context, as W3C's headers."""
        return NO_PROPERTIES

    def on_error(self, error_type: str) -> None:
        """Observe that the request ends in an error of that type."""

    def on_tool_end(self, result: RunResult, seconds: float) -> None:
        """Observe the end of the tool's run after ``seconds``. A duplicate, which runs no tool, has none."""

    def on_end(self) -> None:
        """Observe the end of the request."""


class ServerObserver:
    """Observes one tool server from its start to its close."""

    def attach(self, server: ObservedServer) -> None:
        """Read the counts and gauges of ``server`` at each scrape."""

    def rename(self, service: str) -> None:
        """From now on the server has the id ``service``."""

    def start_request(self, request: ObservedRequest, now: float) -> ServedRequestObserver:
        """Begin to observe a request in the task that runs it: the request's trace context becomes the task's.

        Args:
            request: the request.
            now: seconds, on the loop's clock.
        """
        return NULL_SERVED_REQUEST

    def close(self) -> None:
        """End the observation: gauges are no longer read, counts stay."""


NULL_SERVED_REQUEST = ServedRequestObserver()
NULL_SERVER = ServerObserver()

# Settings of telemetry.


Redact = Callable[[str, str, str], str | None]
"""Receives ``"arguments"`` or ``"result"``, the tool's name and the text that would be recorded. Returns the text to record
instead, or None to record nothing."""


EXPECTED_TELEMETRY: Final = "a dispatch.Telemetry, such as dispatch.Telemetry(content=True)"
"""What errors of the argument ``telemetry`` ask for."""


class Telemetry(msgspec.Struct, metaclass=NamedFields, frozen=True, kw_only=True, eq=False):
    """Which metrics and traces a dispatcher or a tool server records.

    Attributes:
        metrics: measure calls for Prometheus.
        registry: the registry of the metrics; None: prometheus-client's own ``REGISTRY``. Dispatchers may share one: their
            counts add up.
        traces: ``native``: record spans if an OpenTelemetry SDK is set up; ``propagation-only``: record none, but pass the
            caller's trace context on to the service; ``off``: neither.
        sample: share (0 to 1) of calls outside a trace that begin one. It is drawn before a span is built, so that a call
            that is not sampled costs next to nothing; an SDK's own sampler is asked after it. Calls inside a trace follow
            that trace's decision.
        tracer_provider: None: OpenTelemetry's global one.
        content: record arguments and results on spans, and texts of exceptions in logs. Off by default: they are user data.
        redact: called with each text before ``content`` records it; None: texts are recorded as they are.
    """

    metrics: bool = True
    registry: CollectorRegistry | None = None
    traces: Literal["native", "propagation-only", "off"] = "native"
    sample: float = 1.0
    tracer_provider: TracerProvider | None = None
    content: bool = False
    redact: Redact | None = None

    def __post_init__(self) -> None:
        check_instance("metrics", self.metrics, bool, "True or False")
        check_instance("content", self.content, bool, "True or False")
        if self.traces not in ("native", "propagation-only", "off"):
            raise ValueError(f"traces must be 'native', 'propagation-only' or 'off', not {self.traces!r}")
        if self.redact is not None:
            check_function("redact", self.redact, "return the text without waiting")
        check_instance("sample", self.sample, (int, float), "a number from 0 to 1")
        if not 0.0 <= self.sample <= 1.0:
            raise ValueError(f"sample must be from 0 (no call) to 1 (every call), not {self.sample!r}")


DEFAULT_TELEMETRY = Telemetry()
SILENT = Telemetry(metrics=False, traces="off")
"""Neither metrics nor traces."""

# Names that operators see: of spans, attributes and events, and the buckets of histograms. A test freezes them, because
# dashboards, rules and users' queries depend on them.
#
# Spans and attributes follow OpenTelemetry's semantic conventions. They are written out here because the Python package has
# those of generative AI and messaging only among the deprecated and incubating ones. dispatch's own begin with
# ``dispatch.``.


SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"
"""Version of the conventions that the names follow."""

DURATION_BUCKETS: Final = (
    *(0.001, 0.0025, 0.005),
    *(0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92),
)
"""Upper bounds in seconds. From 10 ms on they are those of the conventions' ``gen_ai.execute_tool.duration``; the finer ones
below resolve the overhead of dispatch itself."""
FIRST_CHUNK_BUCKETS: Final = (0.01, 0.1, 0.5, 2.5, 10.0)
"""Upper bounds in seconds of the time to the first chunk of a stream."""
WAIT_BUCKETS: Final = (0.001, 0.01, 0.1, 1.0)
"""Upper bounds in seconds of the time in a queue, by default 1 s at most."""

OTHER: Final = "_OTHER"
"""Label of every name that is in no catalogue: models invent names, and the number of series must stay bounded."""
REFUSED: Final = "refused"
"""Value of the label ``outcome`` for calls that were refused because of their caller alone
(:attr:`~dispatch.errors.DispatchError.policy_refusal`): unknown tools, permissions, and a user's own rate limit. Invalid
arguments have their own value."""

# -- spans ------------------------------------------------------------------------------------------------------

EXECUTE_TOOL: Final = "execute_tool"
EXECUTE_LOCALLY: Final = "attempt"
"""An attempt that this process executes; others are ``send`` spans."""
SEND: Final = "send"
PROCESS: Final = "process"

OPERATION: Final = "gen_ai.operation.name"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_TYPE: Final = "gen_ai.tool.type"
TOOL_DESCRIPTION: Final = "gen_ai.tool.description"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
TOOL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_RESULT: Final = "gen_ai.tool.call.result"
EXTENSION: Final = "extension"
"""Type of a tool that is called on the agent's side and runs elsewhere."""

MESSAGING_SYSTEM: Final = "messaging.system"
PULSAR: Final = "pulsar"
"""Value of ``messaging.system``, for the embedded broker too: its topics are named and behave as Pulsar's."""
MESSAGING_OPERATION: Final = "messaging.operation.name"
MESSAGING_OPERATION_TYPE: Final = "messaging.operation.type"
MESSAGING_DESTINATION: Final = "messaging.destination.name"
MESSAGING_TEMPLATE: Final = "messaging.destination.template"
MESSAGING_TEMPORARY: Final = "messaging.destination.temporary"
MESSAGING_CONVERSATION: Final = "messaging.message.conversation_id"
MESSAGING_CLIENT: Final = "messaging.client.id"

ERROR_TYPE: Final = "error.type"

# dispatch's own attributes.
SERVICE: Final = "dispatch.service"
INSTANCE: Final = "dispatch.instance"
OUTCOME: Final = "dispatch.outcome"
ATTEMPTS: Final = "dispatch.attempts"
ATTEMPT: Final = "dispatch.attempt.number"
ATTEMPT_REASON: Final = "dispatch.attempt.reason"
CHUNKS: Final = "dispatch.chunks"
FIRST_CHUNK: Final = "dispatch.first_chunk.seconds"

# Events on the span of a call.
RETRY_EVENT: Final = "dispatch.retry"
HEDGE_EVENT: Final = "dispatch.hedge"
REJECTED_EVENT: Final = "dispatch.rejected"
REASON: Final = "dispatch.reason"
WAIT: Final = "dispatch.wait.seconds"
