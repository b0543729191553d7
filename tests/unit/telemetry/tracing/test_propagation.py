"""Trace context in message properties."""

from __future__ import annotations

import re
from collections import Counter
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from dispatch.telemetry.tracing import decode_context, decode_span_context, encode_context, generate_unsampled

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
