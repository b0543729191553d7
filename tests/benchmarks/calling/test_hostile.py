"""Texts that cost the most time."""

from __future__ import annotations

from benchmarks.calling.hostile import HOSTILE, SIZE, find_slowest


def test_the_search_for_slow_texts_returns_the_slowest_ones() -> None:
    found = find_slowest(0.2, seed=1, count=4)
    assert len(found) == 4
    assert found == sorted(found, reverse=True)
    assert all(SIZE * 0.99 <= len(each.text) <= SIZE for _, each in [*found, *((0, each) for each in HOSTILE)])
