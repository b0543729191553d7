"""Embedders that the tests control."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from dispatch.search import Embedder

WORDS = ("rain", "sun", "cook", "pasta", "book", "train")


class WordEmbedder:
    """Gives each of :data:`WORDS` a dimension; synonyms share one."""

    SYNONYMS: ClassVar = {"weather": "rain", "forecast": "sun", "recipe": "cook", "journey": "train", "travel": "train"}

    def __init__(self, id: str = "words") -> None:
        self.id = id
        self.encoded: list[str] = []

    def encode(self, texts: Sequence[str]) -> Any:
        self.encoded += texts
        rows = []
        for text in texts:
            words = [self.SYNONYMS.get(word, word) for word in text.lower().strip("?.").split()]
            rows.append([float(words.count(word)) for word in WORDS])
        return rows


class FailingEmbedder(WordEmbedder):
    """Raises an error at the calls for which ``fails`` is set."""

    def __init__(self, error: BaseException, id: str = "failing") -> None:
        super().__init__(id)
        self.error = error
        self.fails = True

    def encode(self, texts: Sequence[str]) -> Any:
        if self.fails:
            raise self.error
        return super().encode(texts)


class HangingEmbedder(WordEmbedder):
    """Waits in ``encode_queries`` until ``released`` is set."""

    def __init__(self) -> None:
        super().__init__("hanging")
        self.released = threading.Event()
        self.waiting = 0

    def encode_queries(self, texts: Sequence[str]) -> Any:
        self.waiting += 1
        self.released.wait(30)
        return self.encode(texts)


def load(embedder: Embedder) -> Callable[[], Embedder]:
    return lambda: embedder


def fail_to_import() -> Embedder:
    raise ImportError("no such package")
