"""One ranking of terms and vectors."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from dispatch.search.index import LEAST_SIMILARITY, Match, ToolIndex
from dispatch.search.vector_index import VectorIndex

NAMES = st.sampled_from(["a", "b", "c", "d"])
TERMS = st.dictionaries(st.sampled_from("xyz"), st.just(1.0), max_size=3)
VECTORS = st.sampled_from([(1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (-1.0, 0.2)])
CHANGES = st.lists(st.tuples(NAMES, st.none() | st.tuples(TERMS, VECTORS)), max_size=30)


def make_index(**tools: tuple[dict[str, float], tuple[float, float]]) -> ToolIndex:
    index = ToolIndex()
    index.vectors.append(VectorIndex("e"))
    for name, (terms, vector) in tools.items():
        index.add(name, terms)
        index.set_vector(name, vector, index.vectors[0])
    return index


def rank(index: ToolIndex, terms: Iterable[str], vector: tuple[float, float] | None = None) -> list[Match]:
    return list(index.rank(dict.fromkeys(terms, 1.0), vector, index.vectors[0]))


def test_without_vectors_terms_decide() -> None:
    index = make_index(a=({"x": 1.0}, (1.0, 0.0)), b=({"x": 1.0, "y": 1.0}, (0.0, 1.0)), c=({"z": 1.0}, (1.0, 1.0)))
    assert [(match.name, match.similarity) for match in rank(index, ["x", "y"])] == [("b", None), ("a", None)]


def test_vectors_decide_more_than_terms() -> None:
    index = make_index(a=({"x": 1.0}, (0.0, 1.0)), b=({}, (1.0, 0.0)), c=({}, (-1.0, 0.0)))
    first, second = rank(index, ["x"], (1.0, 0.0))
    assert (first.name, first.similarity) == ("b", 1.0)
    assert second.name == "a"
    assert 0 < second.score < first.score <= 1


def test_terms_decide_between_equal_vectors() -> None:
    index = make_index(a=({}, (1.0, 0.0)), b=({"x": 1.0}, (1.0, 0.0)))
    assert [match.name for match in rank(index, ["x"], (1.0, 0.0))] == ["b", "a"]


def test_a_similarity_below_the_least_is_no_match() -> None:
    index = make_index(a=({}, (LEAST_SIMILARITY / 2, 1.0)))
    assert (rank(index, ["x"], (1.0, 0.0))) == []


def test_a_replaced_tool_has_no_vector() -> None:
    index = make_index(a=({}, (1.0, 0.0)))
    index.add("a", {"x": 1.0})
    assert (rank(index, [], (1.0, 0.0))) == []
    assert [match.name for match in rank(index, ["x"], (1.0, 0.0))] == ["a"]


def test_common_terms_are_the_rarest_first() -> None:
    index = make_index(a=({"x": 1.0, "y": 1.0}, (1.0, 0.0)), b=({"x": 1.0}, (1.0, 0.0)))
    assert index.find_common_terms("a", ["x", "z", "y"]) == ("y", "x")
    assert index.find_common_terms("unknown", ["x"]) == ()


@given(CHANGES, st.lists(st.sampled_from("xyz"), max_size=3), VECTORS)
def test_changes_one_at_a_time_give_the_ranking_of_the_result(
    changes: list[tuple[str, tuple[dict[str, float], tuple[float, float]] | None]],
    terms: list[str],
    vector: tuple[float, float],
) -> None:
    index = make_index()
    tools = {}
    for name, tool in changes:
        if tool is None:
            index.remove(name)
            tools.pop(name, None)
        else:
            index.add(name, tool[0])
            index.set_vector(name, tool[1], index.vectors[0])
            tools[name] = tool
        assert len(index) == len(tools)
        assert (name in index) is (name in tools)
    for query in (None, vector):
        found = {match.name: round(match.score, 4) for match in rank(index, terms, query)}
        assert found == {match.name: round(match.score, 4) for match in rank(make_index(**tools), terms, query)}
        assert list(found.values()) == sorted(found.values(), reverse=True)
        assert all(0 < score <= 1 for score in found.values())
