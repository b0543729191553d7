"""Vectors by slot with their cosine similarities to a query. Changes one vector at a time. Needs numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]


class VectorIndex:
    """Unit vectors of one embedder, in one matrix that grows by doubling. Each slot holds the vector of a tool, or zeros.

    Attributes:
        embedder_id: of the embedder that all vectors are from.
    """

    def __init__(self, embedder_id: str) -> None:
        self.embedder_id = embedder_id
        self._matrix: Vectors = np.zeros((0, 0), np.float32)

    def set_vector(self, slot: int, vector: Any) -> None:
        """Put the vector of a tool into ``slot``.

        Raises:
            ValueError: the vector is no finite row of numbers, or has other dimensions than the vectors in the index.
        """
        row = to_unit_rows([vector])[0]
        rows, dimensions = self._matrix.shape
        if dimensions and len(row) != dimensions:
            raise ValueError(f"the vector has {len(row)} dimensions, those in the index have {dimensions}")
        if slot >= rows or not dimensions:
            grown = np.zeros((max(2 * rows, slot + 1, 64), len(row)), np.float32)
            grown[:rows, :dimensions] = self._matrix
            self._matrix = grown
        self._matrix[slot] = row

    @staticmethod
    def mix_rows(rows: Any, weights: Sequence[float]) -> Vectors:
        """Return the sum of rows as unit vectors, each with its weight: the vector of a query and its context.

        Raises:
            ValueError: see :func:`to_unit_rows`.
        """
        mixed: Vectors = np.asarray(weights[: len(rows)], np.float32) @ to_unit_rows(rows)
        return mixed

    def clear_vector(self, slot: int) -> None:
        """Remove the vector of ``slot``, if there is one."""
        if slot < len(self._matrix):
            self._matrix[slot] = 0

    def score(self, vector: Any, slots: int) -> Vectors:
        """Return the cosine similarities of the first ``slots`` slots to a query, each in [-1, 1]; 0 without a vector.

        Raises:
            ValueError: see :meth:`set_vector`.
        """
        query = to_unit_rows([vector])[0]
        scores = np.zeros(slots, np.float32)
        used = min(slots, len(self._matrix))
        if used:
            if len(query) != self._matrix.shape[1]:
                raise ValueError(
                    f"the query has {len(query)} dimensions, those in the index have {self._matrix.shape[1]}"
                )
            # perf: einsum stays in this thread. BLAS shares a large matrix between threads, which wait on a busy machine.
            scores[:used] = np.einsum("ij,j->i", self._matrix[:used], query)
        return scores


def to_unit_rows(rows: Any) -> Vectors:
    """Return rows as vectors of length 1; a row of zeros stays one.

    Raises:
        ValueError: they are no finite numbers in rows of one length.
    """
    matrix: Vectors = np.asarray(rows, np.float32)
    if matrix.ndim != 2 or not np.isfinite(matrix).all():
        raise ValueError("an embedder must give each text one row of finite numbers")
    lengths: Vectors = np.asarray(np.linalg.norm(matrix, axis=1, keepdims=True), np.float32)
    lengths[lengths == 0] = 1
    return matrix / lengths
