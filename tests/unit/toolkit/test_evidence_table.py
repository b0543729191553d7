"""Evidence in memory: decay in virtual time, bounds and eviction."""

from __future__ import annotations

import tracemalloc
from collections import defaultdict

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dispatch.toolkit import evidence as evidence_module
from dispatch.toolkit.evidence import ONE, Evidence, EvidenceTable, Observation
from tests.helpers.run_profile import by_profile

DAY = 86_400.0
IDS = st.sampled_from(["a", "b", "c", "d"])
EVENTS = st.lists(st.tuples(IDS, IDS, st.sampled_from(Observation), st.floats(0, 40 * DAY)), max_size=60)


@given(EVENTS)
@example([("a", "a", Observation.SUCCESS, 0.0), ("a", "a", Observation.SUCCESS, 499.5 * DAY)])
def test_each_observation_counts_half_after_a_half_life(events: list[tuple[str, str, Observation, float]]) -> None:
    table = EvidenceTable(DAY, now=0.0)
    now = 0.0
    seen: dict[tuple[str, str], list[tuple[Observation, float]]] = defaultdict(list)
    for u, v, observation, pause in events:
        now += pause
        table.add(u, v, ONE[observation], now)
        seen[u, v].append((observation, now))
    assert len(table) == len(seen)
    for (u, v), observations in seen.items():
        expected = Evidence()
        for observation, time in observations:
            expected = expected.add(ONE[observation].multiply(0.5 ** ((now - time) / DAY)))
        assert table.get(u, v, now) == pytest.approx(expected, rel=1e-9)
        half = table.get(u, v, now + DAY)
        assert half is not None
        assert half == pytest.approx(expected.multiply(0.5), rel=1e-9)


CHANGES = st.tuples(IDS, IDS, st.sampled_from(["add", "replace", "remove", "clear"]), st.floats(0.1, 9))


@given(st.lists(CHANGES, max_size=80))
def test_the_table_is_a_dictionary_of_edges(steps: list[tuple[str, str, str, float]]) -> None:
    table = EvidenceTable(DAY, now=0.0)
    model: dict[tuple[str, str], Evidence] = {}
    for u, v, step, amount in steps:
        evidence = Evidence(amount, amount / 2, amount / 3)
        if step == "add":
            table.add(u, v, evidence, 0.0)
            model[u, v] = model.get((u, v), Evidence()).add(evidence)
        elif step == "replace":
            table.replace(u, v, evidence, 0.0)
            model[u, v] = evidence
        elif step == "remove":
            table.remove(u, v)
            model.pop((u, v), None)
        else:
            table.clear()
            model.clear()
    found = {(u, v): evidence for u, v, evidence in table.read_all(0.0)}
    assert found.keys() == model.keys()
    for edge, evidence in found.items():
        assert evidence == pytest.approx(model[edge])
        place = table.find_places(edge[0])[edge[1]]
        assert (table.success[place], table.weight[place]) == pytest.approx((model[edge].success, model[edge].weight))
    if not model:
        assert table.size == 0
        assert not table.find_places("a")


def test_counts_survive_thousands_of_half_lives_and_a_clock_that_is_set_back() -> None:
    table = EvidenceTable(DAY, now=0.0)
    for day in range(0, 3000, 100):
        table.add("a", "b", ONE[Observation.SUCCESS], day * DAY)
    assert table.get("a", "b", 2900 * DAY) == pytest.approx(Evidence(success=1.0))
    table.add("a", "b", ONE[Observation.SUCCESS], 2899 * DAY)
    assert table.get("a", "b", 2900 * DAY) == pytest.approx(Evidence(success=1.5))
    assert table.get("a", "b", 1e12) is not None


@pytest.mark.costly
def test_a_full_table_evicts_weak_edges_and_retains_strong_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence_module, "MAX_EDGES", 1000)
    table = EvidenceTable(DAY, now=0.0)
    for number in range(200):
        table.add("strong", f"tool-{number}", Evidence(success=50.0), 0.0)
    for number in range(20_000):
        table.add(f"weak-{number % 3000}", f"tool-{number}", ONE[Observation.UNUSED], 0.0)
        assert len(table) <= 1000
    assert len(table) == 1000
    assert len(table.find_places("strong")) == 200


def test_an_old_edge_is_weaker_than_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence_module, "MAX_EDGES", 2)
    table = EvidenceTable(DAY, now=0.0)
    table.add("a", "old", Evidence(success=3.0), 0.0)
    table.add("a", "new", Evidence(success=1.0), 3 * DAY)
    table.add("a", "newest", Evidence(success=1.0), 3 * DAY)
    assert table.find_places("a").keys() == {"new", "newest"}


def test_long_ids_are_bounded_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence_module, "MAX_BYTES", 1_000_000)
    table = EvidenceTable(DAY, now=0.0)
    for number in range(300):
        table.add("a" * 10_000 + str(number), "b" * 10_000 + str(number), ONE[Observation.SUCCESS], 0.0)
        assert table.size <= 1_000_000
    assert 40 <= len(table) <= 50


@pytest.mark.long
@pytest.mark.parametrize("each", [1, 20])
def test_100_000_edges_use_at_most_64_mib_and_no_more_than_estimated(each: int) -> None:
    edges = by_profile(short=20_000, long=100_000)
    sources = edges // each
    tracemalloc.start()
    table = EvidenceTable(DAY, now=0.0)
    for number in range(edges):
        table.add(f"{number % sources:036}", f"{number:036}", ONE[Observation.SUCCESS], 0.0)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(table) == edges
    assert used <= table.size <= 64 * 1024 * 1024 * edges / 100_000
