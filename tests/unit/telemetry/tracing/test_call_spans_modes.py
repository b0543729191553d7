"""What travels to the service, and when spans are begun: with and without somebody who listens, and with every mode.
Trace context in message properties.
The tracer is looked up once a second while no SDK is set up, and not for every request.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import baggage, trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Decision, ParentBased, Sampler, SamplingResult
from opentelemetry.trace import (
    NonRecordingSpan,
    NoOpTracerProvider,
    SpanContext,
    TraceFlags,
    Tracer,
    TraceState,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from dispatch import Dispatcher, Telemetry
from dispatch.telemetry import tracing as service_spans
from dispatch.telemetry.observers import NULL_SERVED_REQUEST, ServerNames
from dispatch.telemetry.tracing import (
    TRACER_CHECK_S,
    ServiceTracing,
    decode_context,
    decode_span_context,
    encode_context,
    find_tracer,
    generate_unsampled,
)
from tests.helpers.clock import advance, idle
from tests.helpers.dispatcher_and_service import UNGUARDED, Peer, catalog, read, serving
from tests.helpers.telemetry_capture import Board, Spans, telling

ONCE = catalog(work={"policy": UNGUARDED})
TRACE, SPAN = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
W3C = ("traceparent", "tracestate", "baggage")


def foreign(*, sampled: bool, state: str = "") -> Context:
    """The context of an agent's span that some other library has begun."""
    flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
    own = SpanContext(TRACE, SPAN, is_remote=False, trace_flags=flags, trace_state=TraceState.from_header([state]))
    return baggage.set_baggage("user", "ann", set_span_in_context(NonRecordingSpan(own), Context()))


@contextlib.contextmanager
def within(context: Context) -> Iterator[None]:
    token = attach(context)
    try:
        yield
    finally:
        detach(token)


async def carried(telemetry: Telemetry, context: Context | None = None, *, calls: int = 1) -> list[dict[str, str]]:
    """What the requests of so many calls carry of a trace, made in that context."""
    found = []
    async with Peer.as_service() as peer, telling(telemetry, ONCE) as dispatcher:
        with within(Context() if context is None else context):
            for _ in range(calls):
                call = asyncio.create_task(dispatcher.execute("work"))
                _, properties = await peer.request()
                await peer.answer(properties, "done")
                await call
                found.append({key: value for key, value in properties.items() if key in W3C})
    return found


# -- what travels -----------------------------------------------------------------------------------------------------
async def test_native_carries_the_spans_own_context_and_no_baggage() -> None:
    spans = Spans()
    (properties,) = await carried(spans.telemetry(), foreign(sampled=True, state="vendor=1"))
    own = spans.one("send").context
    assert own.trace_id == TRACE
    assert spans.one("execute_tool").parent.span_id == SPAN
    assert properties == {
        "traceparent": f"00-{TRACE:032x}-{own.span_id:016x}-{int(own.trace_flags):02x}",
        "tracestate": "vendor=1",
    }


async def test_a_parent_that_is_not_sampled_is_passed_on_unchanged() -> None:
    spans = Spans()
    (properties,) = await carried(spans.telemetry(), foreign(sampled=False, state="vendor=1"))
    assert properties == {"traceparent": f"00-{TRACE:032x}-{SPAN:016x}-00", "tracestate": "vendor=1"}
    assert spans.begun == []


@pytest.mark.parametrize("sampled", [True, False])
async def test_propagation_only_passes_the_callers_context_on(sampled: bool) -> None:
    spans = Spans()
    (properties,) = await carried(spans.telemetry(traces="propagation-only"), foreign(sampled=sampled))
    assert properties == {"traceparent": f"00-{TRACE:032x}-{SPAN:016x}-{sampled:02x}"}
    assert spans.begun == []


async def test_propagation_only_without_a_caller_that_has_one() -> None:
    spans = Spans()
    assert await carried(spans.telemetry(traces="propagation-only")) == [{}]
    assert spans.begun == []


async def test_off_sends_no_trace_context() -> None:
    spans = Spans()
    assert await carried(spans.telemetry(traces="off"), foreign(sampled=True)) == [{}]
    assert spans.begun == []


async def test_without_an_sdk_the_callers_context_is_passed_on_all_the_same() -> None:
    """OpenTelemetry's own rule: an API without an SDK propagates."""
    assert await carried(Telemetry(metrics=False)) == [{}]
    (properties,) = await carried(Telemetry(metrics=False), foreign(sampled=True))
    assert properties == {"traceparent": f"00-{TRACE:032x}-{SPAN:016x}-01"}


async def test_a_stream_carries_the_trace_context() -> None:
    spans = Spans()
    async with Peer.as_service() as peer, telling(spans.telemetry(), ONCE) as dispatcher:
        reading = asyncio.create_task(read(dispatcher.stream("work"), []))
        _, properties = await peer.request()
        await peer.answer(properties, "a", chunk="0")
        await reading
    assert decode_context(properties) is not None
    assert get_current_span(decode_context(properties)).get_span_context().span_id == spans.one("send").context.span_id


# -- sampling ---------------------------------------------------------------------------------------------------------
async def test_an_unsampled_call_sends_an_unsampled_context() -> None:
    spans = Spans()
    found = [each["traceparent"] for each in await carried(spans.telemetry(sample=0.0), calls=50)]
    assert spans.begun == []
    assert {each.split("-")[0] for each in found} == {"00"}
    assert {each.split("-")[3] for each in found} == {"00"}
    assert len({each.split("-")[1] for each in found}) == 50, "a sampler by trace id must not find them all alike"
    contexts = [get_current_span(decode_context({"traceparent": each})).get_span_context() for each in found]
    assert all(each.is_valid and not each.trace_flags.sampled for each in contexts)


async def test_a_service_records_no_span_of_an_unsampled_call() -> None:
    """What was not to be traced is not begun half-way: an SDK's usual sampler keeps to its caller's word."""
    spans = Spans()
    async with (
        serving(lambda _: "done", telemetry=spans.telemetry()),
        telling(spans.telemetry(sample=0.0), ONCE) as dispatcher,
    ):
        assert (await dispatcher.execute("work")).ok
        await idle()
    assert spans.begun == []


async def test_a_call_within_a_trace_stays_in_it_whatever_the_sample() -> None:
    spans = Spans()
    await carried(spans.telemetry(sample=0.0), foreign(sampled=True), calls=3)
    assert [each.name.partition(" ")[0] for each in spans.begun] == ["execute_tool", "send"] * 3


async def test_the_sampled_share_of_calls() -> None:
    spans = Spans()
    found = await carried(spans.telemetry(sample=0.5), calls=200)
    traced = len(spans.named("execute_tool"))
    assert 50 < traced < 150  # 10⁻¹³ that it is not
    assert sum(not each["traceparent"].endswith("-00") for each in found) == traced


async def test_an_unknown_tool_is_sampled_like_any_other() -> None:
    spans = Spans()
    async with telling(spans.telemetry(sample=0.0)) as dispatcher:
        await dispatcher.execute("unheard-of")
        assert spans.begun == []
        with within(foreign(sampled=True)):
            await dispatcher.execute("unheard-of")
        assert spans.one("execute_tool").context.trace_id == TRACE


class Recording(Sampler):
    """Notes what it is asked with."""

    def __init__(self, decision: Decision) -> None:
        self.decision = decision
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def should_sample(
        self,
        parent_context: Any,
        trace_id: int,
        name: str,
        kind: Any = None,
        attributes: Any = None,
        *_: Any,
        **__: Any,
    ) -> SamplingResult:
        self.asked.append((name, dict(attributes or {})))
        return SamplingResult(self.decision)

    def get_description(self) -> str:
        return "notes"


async def test_the_sdks_sampler_is_asked_before_attributes_are_built() -> None:
    sampler = Recording(Decision.DROP)
    provider = TracerProvider(sampler=sampler)
    (properties,) = await carried(Telemetry(metrics=False, tracer_provider=provider))
    ((name, given),) = sampler.asked
    assert name == "execute_tool work"
    assert given == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "work",
        "gen_ai.tool.type": "extension",
        "gen_ai.tool.description": "Does work.",
        "dispatch.service": "lab",
    }, "what it may decide by, and is at hand"
    assert properties["traceparent"].endswith(("-00", "-02")), "not sampled: the service hears of it"


@pytest.mark.parametrize(
    ("sampler", "exemplars"),
    [(ALWAYS_OFF, 0), (Recording(Decision.RECORD_ONLY), 0), (ParentBased(Recording(Decision.RECORD_AND_SAMPLE)), 2)],
    ids=["off", "recorded only", "sampled"],
)
async def test_exemplars_point_to_sampled_spans_only(sampler: Sampler, exemplars: int) -> None:
    board = Board()
    telemetry = Telemetry(registry=board.registry, tracer_provider=TracerProvider(sampler=sampler))

    async def work(_: dict[str, Any]) -> Any:
        async def chunks() -> AsyncIterator[str]:
            yield "a"

        return chunks()

    async with serving(work), telling(telemetry, ONCE) as dispatcher:
        await read(dispatcher.stream("work"), [])
    found = [sample for family in board.registry.collect() for sample in family.samples if sample.exemplar is not None]
    assert sorted(each.name for each in found) == sorted(
        ["dispatch_call_duration_seconds_bucket", "dispatch_first_chunk_seconds_bucket"][:exemplars]
    )
    assert all(set(each.exemplar.labels) == {"trace_id", "span_id"} for each in found if each.exemplar)


# -- an SDK that comes later ------------------------------------------------------------------------------------------
@pytest.fixture
def no_global_provider(monkeypatch: pytest.MonkeyPatch) -> Any:
    """As when a program starts. Gives what sets the global one."""
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER_SET_ONCE", type(trace._TRACER_PROVIDER_SET_ONCE)())
    return trace.set_tracer_provider


async def test_an_sdk_that_is_set_up_after_the_dispatcher_is_noticed(no_global_provider: Any) -> None:
    spans = Spans()
    quiet = Telemetry(metrics=False)
    async with serving(lambda _: "done", telemetry=quiet), telling(quiet, ONCE) as dispatcher:
        await dispatcher.call("work")
        no_global_provider(spans.provider)
        await advance(1)
        await dispatcher.call("work")
        await idle()
    assert [each.name.partition(" ")[0] for each in spans.begun] == ["execute_tool", "send", "process", "send"]
    assert spans.open == []


# -- at the service ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("mode", ["native", "propagation-only", "off"])
async def test_a_tools_own_spans_are_part_of_the_callers_trace(mode: str) -> None:
    """Its own spans, and the calls that it makes itself, are part of it; with ``off`` it knows nothing of it."""
    caller, service = Spans(), Spans()
    seen: list[SpanContext] = []

    def work(_: dict[str, Any]) -> str:
        seen.append(get_current_span().get_span_context())
        if mode != "off":  # the embedded broker is in this process, and so is the caller's own context
            assert baggage.get_all() == {}
        return "done"

    async with (
        serving(work, telemetry=service.telemetry(traces=mode)),
        telling(caller.telemetry(), ONCE) as dispatcher,
    ):
        with within(baggage.set_baggage("user", "ann", Context())):
            await dispatcher.call("work")
            await dispatcher.call("work")
        await idle()
    sends = [each.context for each in caller.named("send")]
    if mode == "native":
        assert [each.parent.span_id for each in service.named("process")] == [each.span_id for each in sends]
        assert [each.span_id for each in seen] == [each.context.span_id for each in service.named("process")]
    elif mode == "propagation-only":
        assert [(each.trace_id, each.span_id, each.is_remote) for each in seen] == [
            (each.trace_id, each.span_id, True) for each in sends
        ]
    else:
        assert not any(each.is_valid for each in seen)
    assert bool(service.begun) == (mode == "native")
    assert get_current_span().get_span_context().is_valid is False, "nothing is left in this task"


async def test_an_agent_that_is_a_tool_continues_the_trace() -> None:
    """A tool that calls another tool: still one trace."""
    spans = Spans()
    outer: list[Dispatcher] = []

    async def work(arguments: dict[str, Any]) -> str:
        return await outer[0].call("work", {"deep": False}) if arguments["deep"] else "done"

    async with serving(work, telemetry=spans.telemetry()), telling(spans.telemetry(), ONCE) as dispatcher:
        outer.append(dispatcher)
        assert await dispatcher.call("work", {"deep": True}) == "done"
        await idle()
    assert [line.replace("  ", "·").partition(" ")[0] for line in spans.tree()] == [
        *("execute_tool", "·send", "··process"),
        *("···execute_tool", "····send", "·····process", "······send"),
        "···send",
    ]
    assert len({each.context.trace_id for each in spans.ended}) == 1


@pytest.mark.parametrize(
    "traceparent", ["", "rubbish", f"00-{'0' * 32}-{SPAN:016x}-01", f"00-{TRACE:032x}-{SPAN:016x}-zz", "x" * 5_000]
)
async def test_a_malformed_context_is_ignored(traceparent: str) -> None:
    spans = Spans()
    async with serving(lambda _: "done", telemetry=spans.telemetry()), Peer.as_caller() as caller:
        await caller.ask(b'{"config": "{}", "arguments": "{}"}', id="theirs", traceparent=traceparent)
        message = await caller.arrived.get()
        await idle()
    assert spans.one("process").parent is None
    sent = spans.one("send").context
    assert message.properties()["traceparent"].split("-")[1:3] == [f"{sent.trace_id:032x}", f"{sent.span_id:016x}"]


async def test_a_reply_with_a_malformed_context_is_accepted() -> None:
    spans = Spans()
    async with Peer.as_service() as peer, telling(spans.telemetry(), ONCE) as dispatcher:
        call = asyncio.create_task(dispatcher.call("work"))
        _, properties = await peer.request()
        await peer.answer(properties, "done", traceparent="rubbish")
        assert await call == "done"
    assert spans.one("execute_tool").links == ()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [({"traces": "loud"}, "traces"), ({"sample": 1.5}, "sample"), ({"sample": -0.1}, "sample")],
)
def test_invalid_settings_are_errors(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Telemetry(**settings)


STATES = st.dictionaries(st.from_regex(r"[a-z]{1,8}", fullmatch=True), st.from_regex(r"[!-+]{1,8}", fullmatch=True))
ORIGINS = st.builds(
    lambda trace_id, span_id, flags, state: SpanContext(
        trace_id, span_id, is_remote=False, trace_flags=TraceFlags(flags), trace_state=TraceState(list(state.items()))
    ),
    st.integers(0, 2**128 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 3),
    STATES,
)


@given(ORIGINS)
def test_encoded_context_equals_the_propagators_and_is_decodable(origin: SpanContext) -> None:
    expected: dict[str, str] = {}
    if origin.is_valid:
        TraceContextTextMapPropagator().inject(expected, set_span_in_context(NonRecordingSpan(origin)))
    assert encode_context(origin) == encode_context(NonRecordingSpan(origin)) == expected
    read = decode_span_context(expected)
    if origin.is_valid:
        assert read is not None
        assert (read.trace_id, read.span_id, read.trace_flags, dict(read.trace_state)) == (
            *(origin.trace_id, origin.span_id, origin.trace_flags),
            dict(origin.trace_state),
        )
    else:
        assert read is decode_context(expected) is None


def test_unsampled_contexts_have_distinct_trace_ids() -> None:
    made = list(islice(generate_unsampled(), 2_000))
    traces = Counter()  # type: Counter[str]
    for text in made:
        found = re.fullmatch(r"00-([0-9a-f]{32})-([0-9a-f]{16})-00", text)
        assert found, text
        traces[found[1]] += 1
        origin = decode_span_context({"traceparent": text})
        assert origin is not None
        assert not origin.trace_flags.sampled
    assert set(traces.values()) == {1}


def test_a_sampler_by_trace_id_samples_its_share_of_them() -> None:
    """What a service without a look at the flag would do: an eighth of them, whatever was drawn."""
    low = [int(text.split("-")[1][16:], 16) for text in islice(generate_unsampled(), 256 * 8)]
    assert sum(each < 2**61 for each in low) == 256


class _Request:
    """A request without a trace context."""

    id = "id"
    headers: Mapping[str, str] = {}
    reply_topic = "responses"


REQUEST = _Request()


def test_a_tracer_of_the_settings_provider_is_found_unless_it_is_a_no_op() -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    assert find_tracer(Telemetry(tracer_provider=provider)) is not None
    assert find_tracer(Telemetry(tracer_provider=NoOpTracerProvider())) is None
    assert find_tracer(Telemetry(tracer_provider=provider, traces="propagation-only")) is None
    assert find_tracer(Telemetry()) is None, "this process has no global provider"


async def test_a_service_checks_once_a_second_for_an_sdk_until_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    checks, is_set_up = [], False
    provider = TracerProvider(shutdown_on_exit=False)

    def check(settings: Telemetry) -> Tracer | None:
        checks.append(settings)
        return find_tracer(Telemetry(tracer_provider=provider)) if is_set_up else None

    monkeypatch.setattr(service_spans, "find_tracer", check)
    tracing = ServiceTracing(Telemetry(), ServerNames("s", "i", "t", "r-{dispatcher}", "responses"))
    now = 1_000.0
    for _ in range(50):
        assert tracing.start_request(REQUEST, now, NULL_SERVED_REQUEST) is NULL_SERVED_REQUEST
    assert len(checks) == 1
    is_set_up = True
    assert tracing.start_request(REQUEST, now + TRACER_CHECK_S / 2, NULL_SERVED_REQUEST) is NULL_SERVED_REQUEST
    for _ in range(3):
        request = tracing.start_request(REQUEST, now + TRACER_CHECK_S, NULL_SERVED_REQUEST)
        assert request is not NULL_SERVED_REQUEST
        request.on_end()
    assert len(checks) == 2, "no further check once there is an SDK"
