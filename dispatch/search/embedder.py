"""What a search needs of a model for embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Embedder(Protocol):
    """A model that gives texts vectors, near each other where the texts mean the same.

    Its methods run in one thread of the search, never on the event loop.
    """

    @property
    def id(self) -> str:
        """Identity of the model: vectors of the same id are comparable. Another id rebuilds the index."""

    def encode(self, texts: Sequence[str]) -> Any:
        """Return an array of shape (number of texts, dimensions): a row for each text, of any length but 0."""


@runtime_checkable
class QueryEmbedder(Embedder, Protocol):
    """An embedder that gives queries other vectors than the texts of tools."""

    def encode_queries(self, texts: Sequence[str]) -> Any:
        """Return the array of :meth:`Embedder.encode` for queries."""
