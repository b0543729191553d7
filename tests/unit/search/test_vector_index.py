"""Vectors by slot, one at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.search.vector_index import VectorIndex, to_unit_rows

VECTORS = st.lists(st.sampled_from([-2.0, -1.0, 0.0, 0.5, 3.0]), min_size=3, max_size=3)


def test_scores_are_cosines() -> None:
    index = VectorIndex("e")
    index.set_vector(0, [2.0, 0.0])
    index.set_vector(1_500, [-3.0, 0.0])
    scores = index.score([5.0, 0.0], 3_000)
    assert index.score([5.0, 0.0], 1).tolist() == [1.0]
    assert scores[[0, 1, 1_500, 2_999]].tolist() == [1.0, 0.0, -1.0, 0.0]


def test_an_empty_index_scores_zero() -> None:
    assert VectorIndex("e").score([1.0, 2.0], 3).tolist() == [0.0, 0.0, 0.0]


def test_other_dimensions_are_rejected() -> None:
    index = VectorIndex("e")
    index.set_vector(0, [1.0, 2.0])
    with pytest.raises(ValueError, match="3 dimensions"):
        index.set_vector(1, [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="3 dimensions"):
        index.score([1.0, 2.0, 3.0], 1)


@pytest.mark.parametrize("rows", [[["a"]], [[float("nan")]], [[float("inf")]], [1.0], [[1.0], [1.0, 2.0]]])
def test_rows_that_are_no_vectors_are_rejected(rows: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        to_unit_rows(rows)


@given(st.lists(st.tuples(st.sampled_from([0, 1, 7, 1_023, 1_024, 2_048]), st.none() | VECTORS), max_size=30), VECTORS)
def test_changes_one_at_a_time_give_the_vectors_of_the_result(
    changes: list[tuple[int, list[float] | None]], query: list[float]
) -> None:
    index = VectorIndex("e")
    vectors: dict[int, list[float]] = {}
    for slot, vector in changes:
        if vector is None:
            index.clear_vector(slot)
            vectors.pop(slot, None)
        else:
            index.set_vector(slot, vector)
            vectors[slot] = vector
    scores = index.score(query, 2_100)
    for slot in (0, 1, 2, 7, 1_022, 1_023, 1_024, 1_025, 2_048, 2_099):
        vector = vectors.get(slot, [0.0])
        lengths = np.linalg.norm(vector) * np.linalg.norm(query)
        expected = np.dot(vector, query) / lengths if slot in vectors and lengths else 0.0
        assert scores[slot] == pytest.approx(expected, abs=1e-5)
