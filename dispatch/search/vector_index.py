"""Vectors by slot with their cosine similarities to a query. Changes one vector at a time. Needs numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]

BLOCK_ROWS: Final = 1_024
"""Vectors in one block of memory. One matrix for all would be copied when it grows, 20 ms at 8,192 vectors of 256."""


class VectorIndex:
    """Unit vectors of one embedder, in blocks of memory. Each slot holds the vector of a tool, or zeros.

    Attributes:
        embedder_id: of the embedder that all vectors are from.
    """

    def __init__(self, embedder_id: str) -> None:
        self.embedder_id = embedder_id
        self._blocks: list[Vectors] = []

    def set_vector(self, slot: int, vector: Any) -> None:
        """Put the vector of a tool into ``slot``.

        Raises:
            ValueError: the vector is no finite row of numbers, or has other dimensions than the vectors in the index.
        """
        row = to_unit_rows([vector])[0]
        self._check_dimensions(row)
        while slot >= len(self._blocks) * BLOCK_ROWS:
            self._blocks.append(np.zeros((BLOCK_ROWS, len(row)), np.float32))
        self._blocks[slot // BLOCK_ROWS][slot % BLOCK_ROWS] = row

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
        if slot < len(self._blocks) * BLOCK_ROWS:
            self._blocks[slot // BLOCK_ROWS][slot % BLOCK_ROWS] = 0

    def score(self, vector: Any, slots: int) -> Vectors:
        """Return the cosine similarities of the first ``slots`` slots to a query, each in [-1, 1]; 0 without a vector.

        Raises:
            ValueError: see :meth:`set_vector`.
        """
        query = to_unit_rows([vector])[0]
        self._check_dimensions(query)
        scores = np.zeros(slots, np.float32)
        for start, block in zip(range(0, slots, BLOCK_ROWS), self._blocks, strict=False):
            part = scores[start : start + BLOCK_ROWS]
            # perf: einsum stays in this thread. BLAS shares a matrix between threads, which wait on a busy machine.
            np.einsum("ij,j->i", block[: len(part)], query, out=part)
        return scores

    def _check_dimensions(self, vector: Vectors) -> None:
        if self._blocks and len(vector) != self._blocks[0].shape[1]:
            raise ValueError(
                f"the vector has {len(vector)} dimensions, those in the index have {self._blocks[0].shape[1]}"
            )


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
