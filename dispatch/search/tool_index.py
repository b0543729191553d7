"""The index of a search: terms of all tools, vectors of those that are embedded, and one ranking of both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dispatch.search.bm25_index import BM25Index

if TYPE_CHECKING:
    from dispatch.search.vector_index import VectorIndex

LEXICAL_WEIGHT: Final = 0.2
"""Weight of the lexical score beside the cosine similarity. Best of 0 to 0.5 on MetaTool's queries, where
reciprocal-rank fusion is worse than the vectors alone."""

HALF_SCORE: Final = 8.0
"""BM25 score whose lexical score is 0.5: about that of one rare word."""

LEAST_SIMILARITY: Final = 0.1
"""Cosine similarity below which a tool is no match. On MetaTool's queries 99.9 % of the tools that answer are above it."""


class Match(NamedTuple):
    """A tool that matches a query.

    Attributes:
        name: of the tool.
        score: in (0, 1], comparable within one search.
        similarity: cosine similarity of the vectors; None: lexical search.
    """

    name: str
    score: float
    similarity: float | None


class ToolIndex:
    """Terms and vectors of tools by name. Changing one tool costs time linear in its text.

    Attributes:
        vectors: by embedder; a tool that changes or is removed loses its vector in all of them.
    """

    def __init__(self) -> None:
        self.vectors: list[VectorIndex] = []
        self._terms = BM25Index()
        self._slots: dict[str, int] = {}
        self._names: list[str | None] = []
        """Name of the tool in each slot."""
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, name: object) -> bool:
        return name in self._slots

    def add(self, name: str, terms: Mapping[str, float]) -> None:
        """Add the tool ``name`` with its weighted terms, or replace it; its vectors are removed."""
        slot = self._slots.get(name)
        if slot is None:
            slot = self._free.pop() if self._free else len(self._names)
            self._slots[name] = slot
            if slot == len(self._names):
                self._names.append(name)
            else:
                self._names[slot] = name
        else:
            self._clear_vectors(slot)
        self._terms.add(slot, terms)

    def set_vector(self, name: str, vector: Any, vectors: VectorIndex) -> None:
        """Put the vector of a tool into ``vectors``, one of :attr:`vectors`. Nothing happens if the tool was removed.

        Raises:
            ValueError: the vector does not fit the others.
        """
        slot = self._slots.get(name)
        if slot is not None:
            vectors.set_vector(slot, vector)

    def remove(self, name: str) -> None:
        """Remove the tool ``name``; nothing happens without it."""
        slot = self._slots.pop(name, None)
        if slot is None:
            return
        self._terms.remove(slot)
        self._clear_vectors(slot)
        self._names[slot] = None
        self._free.append(slot)

    def rank(
        self, terms: Mapping[str, float], vector: Any = None, vectors: VectorIndex | None = None
    ) -> Iterator[Match]:
        """Iterate over the tools that match a query, best first.

        Args:
            terms: weights of the terms of the query.
            vector: of the query; None: lexical search.
            vectors: of the embedder that ``vector`` is from.

        Raises:
            ValueError: the vector does not fit those in the index.
        """
        scores = self._terms.score(terms)
        lexical = {slot: score / (score + HALF_SCORE) for slot, score in scores.items()}
        if vector is None or vectors is None:
            return self._rank_lexical(lexical)
        return self._rank_both(lexical, vectors.score(vector, len(self._names)))

    def find_common_terms(self, name: str, terms: Iterable[str]) -> tuple[str, ...]:
        """Return those of ``terms`` that the tool ``name`` has, the rarest first."""
        slot = self._slots.get(name)
        found = [term for term in terms if slot is not None and self._terms.has_term(slot, term)]
        return tuple(sorted(found, key=self._terms.weigh_term, reverse=True))

    def _clear_vectors(self, slot: int) -> None:
        for vectors in self.vectors:
            vectors.clear_vector(slot)

    def _rank_lexical(self, lexical: dict[int, float]) -> Iterator[Match]:
        for slot in sorted(lexical, key=lambda slot: (-lexical[slot], slot)):
            name = self._names[slot]
            if name is not None:
                yield Match(name, lexical[slot], None)

    def _rank_both(self, lexical: dict[int, float], similarities: Any) -> Iterator[Match]:
        scores = similarities.clip(0, 1)  # an opposite meaning counts as an unrelated one
        slots = list(lexical)
        scores[slots] += [LEXICAL_WEIGHT * lexical[slot] for slot in slots]
        for slot in (-scores).argsort(kind="stable").tolist():
            name, similarity = self._names[slot], float(similarities[slot])
            if name is None or (similarity < LEAST_SIMILARITY and slot not in lexical):
                continue
            score = (max(similarity, 0.0) + LEXICAL_WEIGHT * lexical.get(slot, 0.0)) / (1 + LEXICAL_WEIGHT)
            yield Match(name, min(score, 1.0), similarity)
