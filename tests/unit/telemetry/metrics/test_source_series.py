"""The series of the catalogue's sources are bounded and removed with their source."""

from __future__ import annotations

import pytest

from dispatch.telemetry.call_metrics import MAX_SOURCES, Instruments
from dispatch.telemetry.observers import OTHER
from tests.helpers.telemetry_capture import Board


def read(board: Board) -> dict[str, float]:
    return {key: value for key, value in board.read().items() if key.startswith("catalog_")}


def test_series_exist_at_0_from_the_start() -> None:
    board = Board()
    assert Instruments.of(board.registry).sources.acquire("tools").label == "tools"
    assert read(board) == {"catalog_reloads_total tools ok": 0, "catalog_reloads_total tools failed": 0}


def test_the_last_reload_decides() -> None:
    board = Board()
    series = Instruments.of(board.registry).sources
    meter = series.acquire("tools")
    for is_successful in (True, False, True):
        meter.record_reload(is_successful=is_successful)
        assert board["catalog_last_reload_successful tools"] == is_successful
    assert board["catalog_reloads_total tools ok"] == 2
    assert board["catalog_reloads_total tools failed"] == 1


def test_many_sources_share_one_series(caplog: pytest.LogCaptureFixture) -> None:
    board = Board()
    series = Instruments.of(board.registry).sources
    labels = [series.acquire(f"source-{number}").label for number in range(MAX_SOURCES + 3)]
    assert labels == [f"source-{number}" for number in range(MAX_SOURCES)] + [OTHER] * 3
    assert caplog.text.count("further ones share the series _OTHER") == 1
    assert series.labels() == set(labels)
    for label in labels:
        series.release(label, is_removed=True)
    assert series.labels() == {OTHER}, "the counts of several sources must not decrease"


def test_sources_that_come_and_go_leave_nothing() -> None:
    board = Board()
    series = Instruments.of(board.registry).sources
    for number in range(1_000):
        meter = series.acquire(f"source-{number}")
        assert meter.label == f"source-{number}"
        meter.record_reload(is_successful=False)
        series.release(meter.label, is_removed=True)
    assert read(board) == {}
    assert series.labels() == set()


def test_a_further_source_replaces_one_whose_dispatchers_are_closed() -> None:
    board = Board()
    series = Instruments.of(board.registry).sources
    meters = [series.acquire(f"source-{number}") for number in range(MAX_SOURCES)]
    for closed in meters[7:9]:
        closed.record_reload(is_successful=True)
        series.release(closed.label, is_removed=False)
    assert [series.acquire(name).label for name in ("new-1", "new-2", "new-3")] == ["new-1", "new-2", OTHER]
    assert board.of("source-7") == board.of("source-8") == []
    assert len(series.labels()) == MAX_SOURCES + 1


def test_a_closed_dispatcher_keeps_the_counts() -> None:
    board = Board()
    series = Instruments.of(board.registry).sources
    series.acquire("tools").record_reload(is_successful=True)
    series.release("tools", is_removed=False)
    assert board["catalog_reloads_total tools ok"] == 1
    series.acquire("tools")
    series.release("tools", is_removed=True)
    assert read(board) == {}
