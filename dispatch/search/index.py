"""Inverted index with BM25 scores that changes one entry at a time."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Hashable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from dispatch.catalog import ToolDescriptor
    from dispatch.search.vector_index import VectorIndex


SATURATION = 1.2
"""BM25's k1: how soon further occurrences of a term add little. The usual value (Robertson and Zaragoza, 2009)."""

LENGTH_NORMALIZATION = 0.75
"""BM25's b: how much a long entry's terms weigh less. The usual value."""


MAX_POSTINGS = 1_000
"""Entries that may share a term for it to count beside rarer ones. A term of more entries says little, and would cost a
search of 10,000 tools milliseconds."""

COMMON_TERMS = 3
"""Terms that count in a query whose terms are all shared by more than :data:`MAX_POSTINGS` entries: the rarest ones."""


K = TypeVar("K", bound=Hashable)


class BM25Index(Generic[K]):
    """Entries with weighted terms, by key.

    A term's weight is how often it occurs, each occurrence counted with the weight of its field. Nothing in it depends
    on a language. Adding or removing an entry costs time linear in its distinct terms.
    """

    def __init__(self) -> None:
        self._postings: dict[str, dict[K, float]] = {}
        self._terms: dict[K, Mapping[str, float]] = {}
        self._lengths: dict[K, float] = {}
        self._total_length = 0.0

    def __len__(self) -> int:
        return len(self._terms)

    def add(self, key: K, terms: Mapping[str, float]) -> None:
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

    def remove(self, key: K) -> None:
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

    def has_term(self, key: K, term: str) -> bool:
        """Return whether the entry ``key`` has ``term``."""
        return term in self._terms.get(key, ())

    def weigh_term(self, term: str) -> float:
        """Return the inverse document frequency of ``term``; 0 if no entry has it."""
        found = len(self._postings.get(term, ()))
        return math.log(1 + (len(self._terms) - found + 0.5) / (found + 0.5)) if found else 0.0

    def select_counted(self, terms: Iterable[str]) -> list[str]:
        """Return those of ``terms`` that :meth:`score` counts: the known ones of at most :data:`MAX_POSTINGS` entries; if
        all are more common, :data:`COMMON_TERMS` of them."""
        known = [term for term in terms if term in self._postings]
        rare = [term for term in known if len(self._postings[term]) <= MAX_POSTINGS]
        return rare or sorted(known, key=self.weigh_term, reverse=True)[:COMMON_TERMS]

    def score(self, terms: Mapping[str, float]) -> dict[K, float]:
        """Return the BM25 scores of all entries that have one of the terms that :meth:`select_counted` returns, each above
        0.

        Args:
            terms: weights of the terms of a query, each above 0; usually 1.
        """
        scores: dict[K, float] = {}
        if not self._terms:
            return scores
        fixed = SATURATION * (1 - LENGTH_NORMALIZATION)
        per_length = SATURATION * LENGTH_NORMALIZATION * len(self._terms) / max(self._total_length, 1e-9)
        lengths = self._lengths
        for term in self.select_counted(terms):
            factor = terms[term] * self.weigh_term(term) * (SATURATION + 1)
            for key, weight in self._postings[term].items():
                gain = factor * weight / (weight + fixed + per_length * lengths[key])
                scores[key] = scores.get(key, 0.0) + gain
        return scores


# The index of a search: terms of all tools, vectors of those that are embedded, and one ranking of both.


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
        self._terms: BM25Index[int] = BM25Index()
        self._slots: dict[str, int] = {}
        self._names: list[str | None] = []
        """Name of the tool in each slot."""
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._slots)

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

    def drop_counted(self, terms: Mapping[str, float]) -> dict[str, float]:
        """Return those of ``terms`` that :meth:`rank` does not count, as they are more common than the others."""
        counted = self._terms.select_counted(terms)
        return {term: weight for term, weight in terms.items() if counted and term not in counted}

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


# Split texts into the terms of the inverted index: Unicode's NFKC form, case folded, in any script.


_ASCII_WORD = re.compile(r"[A-Za-z0-9]+")
# An upper-case letter behind a lower-case one or a digit, or the last one of several before a lower-case one.
_ASCII_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
# Scripts that are written without spaces between words: Thai and Lao, Burmese, Khmer, kana, bopomofo, Han, Hangul.
_UNSPACED = re.compile(
    "([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u312f\u31a0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+)"
)


def split_terms(text: str) -> list[str]:
    """Return the terms of ``text`` in order: its words in NFKC form and case folded.

    ``_`` separates words. A word in camelCase gives its parts and itself (``getUser``: get, user, getuser), because a query
    may write it either way. Scripts without spaces between words give each two neighbouring characters (bigrams).
    """
    if text.isascii():
        return [term for match in _ASCII_WORD.finditer(text) for term in _split_ascii(match[0])]
    terms = []
    for word in _find_words(unicodedata.normalize("NFKC", text)):
        for part in filter(None, _UNSPACED.split(word)):
            terms += _split_bigrams(part) if _UNSPACED.match(part) else _split_humps(part)
    return terms


def strip_plural(term: str) -> str:
    """Return an ASCII term without the ending of an English plural. It raises BM25's recall@5 on MetaTool by 0.06."""
    if len(term) < 4 or not term.endswith("s") or not term.isascii():
        return term
    if term.endswith("ies") and len(term) > 4:
        return term[:-3] + "y"
    return term if term.endswith(("ss", "us", "is")) else term[:-1]


def _split_ascii(word: str) -> list[str]:
    if word[1:].islower() or (word.isalpha() and word.isupper()) or word.isdigit():
        return [word.lower()]
    parts = _ASCII_HUMP.split(word)
    return [part.lower() for part in (parts if len(parts) == 1 else [*parts, word])]


def _find_words(text: str) -> Iterator[str]:
    # ``\w`` has no combining marks, without which words of Indic scripts fall apart.
    for is_word, chars in groupby(text, lambda char: char.isalnum() or unicodedata.category(char)[0] == "M"):
        if is_word:
            yield "".join(chars)


def _split_bigrams(run: str) -> list[str]:
    return [run[index : index + 2] for index in range(len(run) - 1)] or [run]


def _split_humps(word: str) -> list[str]:
    starts = [0]
    for index in range(1, len(word)):
        before, char, after = word[index - 1], word[index], word[index + 1 : index + 2]
        if char.isupper() and (before.islower() or before.isdigit() or (before.isupper() and after.islower())):
            starts.append(index)
    parts = [word[start:end] for start, end in zip(starts, [*starts[1:], len(word)], strict=True)]
    return [_fold(part) for part in (parts if len(parts) == 1 else [*parts, word])]


def _fold(word: str) -> str:
    # Case folding may leave the normal form (Unicode's NFKC_Casefold repeats it for the same reason).
    return unicodedata.normalize("NFKC", word.casefold())


# The texts of a tool that a search compares with a query.


NAME_WEIGHT: Final = 3.0
"""Weight of a term of the name beside one of the description. On MetaTool's queries 2 to 4 are alike, and better than 1."""

ARGUMENT_WEIGHT: Final = 0.5
"""Weight of a term of an argument: arguments say how a tool is called, rarely what it is for."""

CONTEXT_WEIGHT: Final = 0.3
"""Weight of the context of a query beside the query: it decides between tools that fit the query alike. Not measured: no
public data has queries with a context."""

MAX_CHARS: Final = 4_000
"""Characters of each text that are indexed, which bounds the cost of one tool."""


def weigh_terms(tool: ToolDescriptor) -> dict[str, float]:
    """Return the weighted terms of a tool: of its name, description, tags, category and arguments."""
    arguments = " ".join(f"{argument.name} {argument.description}" for argument in tool.described_arguments)
    weights: dict[str, float] = {}
    for text, weight in (
        (tool.name, NAME_WEIGHT),
        (tool.description, 1.0),
        (" ".join((*tool.tags, tool.category or "")), 1.0),
        (arguments, ARGUMENT_WEIGHT),
    ):
        for term in list_terms(text):
            weights[term] = weights.get(term, 0.0) + weight
    return weights


def list_terms(text: str) -> list[str]:
    """Return the terms of a text as they are in the index."""
    return [strip_plural(term) for term in split_terms(text[:MAX_CHARS])]


def weigh_query(query: str, context: str = "") -> dict[str, float]:
    """Return the weights of the terms of a query: 1, and :data:`CONTEXT_WEIGHT` for those of its context alone."""
    return {**dict.fromkeys(list_terms(context), CONTEXT_WEIGHT), **dict.fromkeys(list_terms(query), 1.0)}


def describe_tool(tool: ToolDescriptor) -> str:
    """Return the text of a tool for an embedder: the words of its name, its description, its tags."""
    return " ".join((*split_terms(tool.name), tool.description[:MAX_CHARS], *tool.tags))


def describe_context(context: object) -> str:
    """Return the text of a context: a text, or the name and description of an action."""
    if isinstance(context, str):
        return context
    fields: Mapping[str, object] = context if isinstance(context, Mapping) else {}
    texts = [fields.get(key) or getattr(context, key, None) for key in ("name", "description")]
    return " ".join(text for text in texts if isinstance(text, str))
