"""Runs an embedder beside the event loop."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar, runtime_checkable

from dispatch._internal import fulfil

# What a search needs of a model for embeddings.


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


T = TypeVar("T")


class EmbedderThread:
    """A daemon thread that loads an embedder and calls its methods, one at a time: an embedder that never returns blocks
    neither the event loop nor the exit of the process. The thread ends with this object.

    Args:
        load_embedder: called by :meth:`load`.
    """

    def __init__(self, load_embedder: Callable[[], Embedder]) -> None:
        self._load_embedder = load_embedder
        self._embedder: Embedder | None = None
        self._work: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        weakref.finalize(self, self._work.put, None)

    @property
    def id(self) -> str:
        """The present id of the embedder."""
        assert self._embedder is not None  # it is loaded
        return self._embedder.id

    async def load(self) -> None:
        """Load the embedder, unless it is loaded. Raises what loading raises."""
        if self._embedder is None:
            self._embedder = await self._run(self._load_embedder)

    async def encode(self, texts: Sequence[str]) -> Any:
        """Return the vectors of tools; see :meth:`Embedder.encode`. Raises what the embedder raises."""
        assert self._embedder is not None
        encode = self._embedder.encode
        return await self._run(lambda: _check_rows(encode(texts), texts))

    async def encode_queries(self, texts: Sequence[str]) -> Any:
        """Return the vectors of queries; see :meth:`QueryEmbedder.encode_queries`. Raises what the embedder raises."""
        assert self._embedder is not None
        embedder = self._embedder
        encode = embedder.encode_queries if isinstance(embedder, QueryEmbedder) else embedder.encode
        return await self._run(lambda: _check_rows(encode(texts), texts))

    async def _run(self, function: Callable[[], T]) -> T:
        if self._thread is None:
            self._thread = threading.Thread(target=_work_on, args=(self._work,), name="dispatch-search", daemon=True)
            self._thread.start()
        future: Future[T] = Future()
        self._work.put(partial(fulfil, future, function))
        return await asyncio.wrap_future(future)


def _work_on(queue: SimpleQueue[Callable[[], object] | None]) -> None:
    for work in iter(queue.get, None):
        work()
        del work  # it refers to the object whose end is the end of the thread


def _check_rows(rows: Any, texts: Sequence[str]) -> Any:
    if len(rows) != len(texts):
        raise ValueError(f"the embedder returned {len(rows)} rows for {len(texts)} texts")
    return rows
