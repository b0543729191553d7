"""Families that write their own text: it equals prometheus-client's text of the same registry."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import Exemplar
from prometheus_client.exposition import generate_latest as plain
from prometheus_client.openmetrics.exposition import generate_latest as open_metrics

from dispatch.telemetry.exposition import (
    VALUES,
    HistogramFamily,
    LockFreeCounter,
    LockFreeHistogram,
    TextFamily,
    ValueFamily,
    render_metrics,
)
from tests.unit.telemetry.test_exposition import OPEN_METRICS

TEXTS = st.text(st.sampled_from('a%s(){}\\"\n\0é ='), max_size=6)
AMOUNTS = st.one_of(st.sampled_from([0.0, 1e-7, 0.5, 1e6, 12_345_678.0, 1e22]), st.floats(0, 1e9))
FORMATS: list[Any] = [(OPEN_METRICS, open_metrics), ("text/plain", plain)]


def text_of(registry: CollectorRegistry, accept: str) -> str:
    return render_metrics(registry, accept, "", pause=lambda: None)[1].decode()


class Ours:
    """A collector of some families."""

    def __init__(self, *families: TextFamily) -> None:
        self.families = families

    def collect(self) -> tuple[TextFamily, ...]:
        return self.families


@given(st.lists(st.tuples(TEXTS, TEXTS, AMOUNTS, st.none() | TEXTS)))
def test_the_text_equals_prometheus_clients(told: list[tuple[str, str, float, str | None]]) -> None:
    registry = CollectorRegistry()
    counter = LockFreeCounter("n", 'N "quoted" \\ and\nbroken.', ("tool", "outcome"), registry=registry)
    timing = LockFreeHistogram("s", "S.", ("tool", "about"), buckets=(0.1, 1.0, 1e6), registry=registry)
    Gauge("other", "Not ours.", ("tool",), registry=registry).labels("x").set(1)
    for tool, outcome, amount, trace in told:
        counter.labels(tool, outcome).inc(amount)
        counter.labels(tool, "whole").inc()
        timing.labels(tool, outcome).observe(amount, None if trace is None else {"trace_id": trace, "also": "%s"})
    for accept, encode in FORMATS:
        assert text_of(registry, accept) == encode(registry).decode()


@pytest.mark.parametrize(("accept", "encode"), FORMATS)
def test_families_without_labels_and_without_series(accept: str, encode: Any) -> None:
    registry = CollectorRegistry()
    registry.register(
        Ours(
            ValueFamily("none", "None.", "gauge", ("a",), lambda: ()),
            ValueFamily("bare", "Bare.", "gauge", (), lambda: [((), math.inf)]),
            ValueFamily("large", "Large.", "counter", (), lambda: [((), 2_500_000)]),
            HistogramFamily("h", "H.", (), ("1.0", "+Inf"), lambda: [((), (1, 2), 3.5, (None, Exemplar({}, 7.0)))]),
        )
    )
    assert text_of(registry, accept) == encode(registry).decode()


def test_a_piece_has_a_bounded_number_of_series() -> None:
    family = ValueFamily("n", "N.", "counter", ("a",), lambda: [((str(n),), n) for n in range(2 * VALUES + 1)])
    assert [piece.count("\n") for piece in family.text(open_metrics=False)] == [2, VALUES, VALUES, 1]
