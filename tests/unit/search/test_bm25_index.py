"""The inverted index: BM25 scores, one entry at a time."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.search.index import BM25Index

TERMS = st.dictionaries(st.sampled_from("abcdefgh"), st.sampled_from([1.0, 2.0, 3.0]), max_size=6)
CHANGES = st.lists(st.tuples(st.integers(0, 9), st.none() | TERMS), max_size=40)


def make_index(entries: dict[int, dict[str, float]]) -> BM25Index:
    index = BM25Index()
    for key, terms in entries.items():
        index.add(key, terms)
    return index


def weigh(query: str) -> dict[str, float]:
    return dict.fromkeys(query, 1.0)


def compute_score(entries: dict[int, dict[str, float]], key: int, query: str) -> float:
    """BM25 by its definition (k1 = 1.2, b = 0.75)."""
    average = sum(sum(terms.values()) for terms in entries.values()) / len(entries)
    score = 0.0
    for term in sorted(set(query)):
        weight = entries[key].get(term, 0.0)
        found = sum(term in terms for terms in entries.values())
        if weight:
            inverse = math.log(1 + (len(entries) - found + 0.5) / (found + 0.5))
            length = sum(entries[key].values()) / average
            score += inverse * weight * 2.2 / (weight + 1.2 * (0.25 + 0.75 * length))
    return score


def test_an_empty_index_has_no_scores() -> None:
    assert BM25Index().score({"a": 1.0}) == {}


def test_rare_terms_weigh_more() -> None:
    index = make_index({1: {"a": 1.0, "c": 1.0}, 2: {"b": 1.0, "c": 1.0}, 3: {"a": 1.0, "c": 1.0}})
    assert index.weigh_term("b") > index.weigh_term("a") > index.weigh_term("c") > 0
    assert index.weigh_term("unknown") == 0


def test_terms_of_a_query_have_weights() -> None:
    index = make_index({1: {"a": 1.0}, 2: {"b": 1.0}})
    whole = index.score({"a": 1.0, "b": 1.0})
    assert index.score({"a": 1.0, "b": 0.5}) == pytest.approx({1: whole[1], 2: whole[2] / 2})


def test_short_entries_score_higher() -> None:
    scores = make_index({1: {"a": 1.0}, 2: {"a": 1.0, "b": 1.0, "c": 1.0}}).score({"a": 1.0})
    assert scores[1] > scores[2]


def test_an_entry_without_terms_is_an_entry() -> None:
    index = make_index({1: {}, 2: {"a": 1.0}})
    assert len(index) == 2
    assert index.score({"a": 1.0}).keys() == {2}
    index.remove(2)
    assert index.score({"a": 1.0}) == {}


@given(st.dictionaries(st.integers(0, 9), TERMS, min_size=1), st.text("abcdefgh", max_size=6))
def test_scores_are_those_of_the_definition(entries: dict[int, dict[str, float]], query: str) -> None:
    scores = make_index(entries).score(weigh(query))
    assert scores.keys() == {key for key, terms in entries.items() if set(terms) & set(query)}
    for key, score in scores.items():
        assert score == pytest.approx(compute_score(entries, key, query))


@given(CHANGES, st.text("abcdefgh", max_size=6))
def test_changes_one_at_a_time_give_the_index_of_the_result(
    changes: list[tuple[int, dict[str, float] | None]], query: str
) -> None:
    index = BM25Index()
    entries: dict[int, dict[str, float]] = {}
    for key, terms in changes:
        if terms is None:
            index.remove(key)
            entries.pop(key, None)
        else:
            index.add(key, terms)
            entries[key] = terms
        assert len(index) == len(entries)
        assert (key in index) is (key in entries)
    assert index.score(weigh(query)) == pytest.approx(make_index(entries).score(weigh(query)))
