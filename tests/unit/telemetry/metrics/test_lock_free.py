"""Counters and histograms without locks: a scrape gets the same text as of prometheus-client's own."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import Exemplar, Timestamp
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.registry import DuplicateTimeseries

from dispatch.telemetry.exposition import LockFreeCounter, LockFreeHistogram
from dispatch.telemetry.observers import DURATION_BUCKETS

AMOUNTS = st.one_of(st.sampled_from(DURATION_BUCKETS), st.floats(0.0, 200.0))


@pytest.fixture
def switching() -> Iterator[None]:
    """Threads change as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def scraped(registry: CollectorRegistry) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """All samples, but for the times at which series were created."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in registry.collect()
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


@given(st.lists(st.tuples(st.sampled_from("ab"), AMOUNTS)))
def test_the_exposition_equals_that_of_prometheus_clients_metrics(told: list[tuple[str, float]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    count, counter = (
        LockFreeCounter("n", "N.", ("tool",), registry=ours),
        Counter("n", "N.", ("tool",), registry=theirs),
    )
    timing = LockFreeHistogram("s", "S.", ("tool",), buckets=DURATION_BUCKETS, registry=ours)
    histogram = Histogram("s", "S.", ("tool",), buckets=DURATION_BUCKETS, registry=theirs)
    for tool, amount in told:
        for each in (count, counter):
            each.labels(tool).inc()
            each.labels(tool).inc(amount)
        for one in (timing, histogram):
            one.labels(tool).observe(amount)
    assert scraped(ours) == scraped(theirs)


def test_series_are_created_once_and_removed_by_their_labels() -> None:
    registry = CollectorRegistry()
    counter = LockFreeCounter("n", "N.", ("tool", "outcome"), registry=registry)
    for tool in "ab":
        for outcome in ("ok", "bad"):
            counter.labels(tool, outcome).inc()
    assert counter.labels("a", "ok") is counter.labels("a", "ok")
    counter.remove_by_labels({"tool": "a"})
    counter.remove_by_labels({"tool": "b", "outcome": "bad"})
    counter.remove_by_labels({"tool": "nobody"})
    assert scraped(registry) == {("n_total", (("outcome", "ok"), ("tool", "b"))): 1}
    with pytest.raises(ValueError, match=r"n needs a value for each label of \('tool', 'outcome'\), not \('a',\)"):
        counter.labels("a")
    with pytest.raises(ValueError, match="not in tuple"):
        counter.remove_by_labels({"user": "a"})
    with pytest.raises(ValueError, match="name the first label of n: tool"):
        counter.remove_by_labels({"outcome": "ok"})
    counter.labels("b", "bad").inc(3)
    counter.remove_by_labels({"tool": "b"})
    assert scraped(registry) == {}
    counter.labels("b", "bad").inc(5)
    assert scraped(registry) == {("n_total", (("outcome", "bad"), ("tool", "b"))): 5}


def test_a_duplicate_name_is_an_error() -> None:
    registry = CollectorRegistry()
    LockFreeHistogram("s", "S.", (), buckets=(1.0,), registry=registry)
    for make in (
        lambda: LockFreeCounter("s", "S.", (), registry=registry),
        lambda: Histogram("s", "S.", registry=registry),
    ):
        with pytest.raises(DuplicateTimeseries):
            make()


def test_an_exemplar_stays_at_its_bucket_until_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatch.telemetry.exposition.time.time", lambda: 1_000.5)
    registry = CollectorRegistry()
    timing = LockFreeHistogram("s", "S.", ("tool",), buckets=(0.1, 1.0), registry=registry).labels("a")
    timing.observe(0.1, {"trace_id": "first"})
    timing.observe(0.05, {"trace_id": "second"})
    timing.observe(0.07)
    timing.observe(50.0, {"trace_id": "slow"})
    text = openmetrics(registry).decode()
    exemplars = {
        sample.labels["le"]: sample.exemplar
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "s_bucket"
    }
    assert exemplars == {
        "0.1": Exemplar({"trace_id": "second"}, 0.05, Timestamp(1_000, 5e8)),
        "1.0": None,
        "+Inf": Exemplar({"trace_id": "slow"}, 50.0, Timestamp(1_000, 5e8)),
    }
    assert "_created" not in text
    assert scraped(registry)["s_count", (("tool", "a"),)] == 4
    assert scraped(registry)["s_sum", (("tool", "a"),)] == math.fsum((0.1, 0.05, 0.07, 50.0))


@pytest.mark.usefixtures("switching")
def test_increments_of_threads_are_not_lost() -> None:
    registry = CollectorRegistry()
    counter = LockFreeCounter("n", "N.", ("tool",), registry=registry)
    timing = LockFreeHistogram("s", "S.", ("tool",), buckets=(0.1,), registry=registry).labels("a")
    together = threading.Barrier(4)

    def work() -> None:
        together.wait()
        for _ in range(20_000):
            counter.labels("a").inc()
            timing.observe(0.5)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        seen = scraped(registry)
        assert seen["s_bucket", (("le", "+Inf"), ("tool", "a"))] == seen["s_count", (("tool", "a"),)]
    for thread in threads:
        thread.join()
    assert counter.labels("a").value == 80_000
    assert timing.counts == [0, 80_000]
    assert timing.sum == 40_000.0
