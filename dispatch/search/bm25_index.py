"""Inverted index with BM25 scores that changes one entry at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping

SATURATION = 1.2
"""BM25's k1: how soon further occurrences of a term add little. The usual value (Robertson and Zaragoza, 2009)."""

LENGTH_NORMALIZATION = 0.75
"""BM25's b: how much a long entry's terms weigh less. The usual value."""


MAX_POSTINGS = 1_000
"""Entries that may share a term for it to count. A term of more entries says little, and would cost a search of 10,000 tools
milliseconds."""


class BM25Index:
    """Entries with weighted terms, by key.

    A term's weight is how often it occurs, each occurrence counted with the weight of its field. Nothing in it depends
    on a language. Adding or removing an entry costs time linear in its distinct terms.
    """

    def __init__(self) -> None:
        self._postings: dict[str, dict[int, float]] = {}
        self._terms: dict[int, Mapping[str, float]] = {}
        self._lengths: dict[int, float] = {}
        self._total_length = 0.0

    def __len__(self) -> int:
        return len(self._terms)

    def __contains__(self, key: int) -> bool:
        return key in self._terms

    def add(self, key: int, terms: Mapping[str, float]) -> None:
        """Add the entry ``key``, or replace it.

        Args:
            key: of the entry.
            terms: weights of its terms, each above 0.
        """
        self.remove(key)
        self._terms[key] = terms
        for term, weight in terms.items():
            self._postings.setdefault(term, {})[key] = weight
        self._lengths[key] = sum(terms.values())
        self._total_length += self._lengths[key]

    def remove(self, key: int) -> None:
        """Remove the entry ``key``; nothing happens without it."""
        terms = self._terms.pop(key, None)
        if terms is None:
            return
        for term in terms:
            posting = self._postings[term]
            del posting[key]
            if not posting:
                del self._postings[term]
        self._total_length -= self._lengths.pop(key)

    def has_term(self, key: int, term: str) -> bool:
        """Return whether the entry ``key`` has ``term``."""
        return term in self._terms.get(key, ())

    def weigh_term(self, term: str) -> float:
        """Return the inverse document frequency of ``term``; 0 if no entry has it."""
        found = len(self._postings.get(term, ()))
        return math.log(1 + (len(self._terms) - found + 0.5) / (found + 0.5)) if found else 0.0

    def score(self, terms: Mapping[str, float]) -> dict[int, float]:
        """Return the BM25 scores of all entries that have one of ``terms``, each above 0. Terms of more than
        :data:`MAX_POSTINGS` entries do not count.

        Args:
            terms: weights of the terms of a query, each above 0; usually 1.
        """
        scores: dict[int, float] = {}
        if not self._terms:
            return scores
        fixed = SATURATION * (1 - LENGTH_NORMALIZATION)
        per_length = SATURATION * LENGTH_NORMALIZATION * len(self._terms) / max(self._total_length, 1e-9)
        lengths = self._lengths
        for term, query_weight in terms.items():
            posting = self._postings.get(term)
            if not posting or len(posting) > MAX_POSTINGS:
                continue
            factor = query_weight * self.weigh_term(term) * (SATURATION + 1)
            for key, weight in posting.items():
                gain = factor * weight / (weight + fixed + per_length * lengths[key])
                scores[key] = scores.get(key, 0.0) + gain
        return scores
