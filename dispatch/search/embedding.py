"""Runs an embedder beside the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar, runtime_checkable

from dispatch._internal import hold

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
        self._is_free = asyncio.Lock()
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
        await self._is_free.acquire()
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()

        def finish(value: T | None, error: Exception | None) -> None:
            self._is_free.release()  # only now, also if the caller waits no longer
            if result.done():  # cancelled
                return
            if error is not None:
                result.set_exception(error)
            else:
                result.set_result(value)  # type: ignore[arg-type]  # a value where there is no error

        def work() -> None:
            value: T | None = None
            error: Exception | None = None
            try:
                value = function()
            except BaseException as raised:  # a future must not raise SystemExit in the event loop
                error = hold(raised)
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(finish, value, error)

        self._work.put(work)
        return await result


def _work_on(queue: SimpleQueue[Callable[[], object] | None]) -> None:
    while True:
        work = queue.get()
        if work is None:
            return
        work()
        del work  # it refers to the object whose end is the end of the thread


def _check_rows(rows: Any, texts: Sequence[str]) -> Any:
    if len(rows) != len(texts):
        raise ValueError(f"the embedder returned {len(rows)} rows for {len(texts)} texts")
    return rows
