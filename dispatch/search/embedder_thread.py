"""Runs an embedder beside the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from dispatch.search.embedder import Embedder, QueryEmbedder

T = TypeVar("T")


class EmbedderThread:
    """Calls of one embedder, one at a time, each in a daemon thread: an embedder that never returns blocks neither the event
    loop nor the exit of the process.

    Attributes:
        embedder: whose methods are called.
    """

    def __init__(self, embedder: Embedder) -> None:
        self.embedder = embedder
        self._is_free = asyncio.Lock()

    async def encode(self, texts: Sequence[str]) -> Any:
        """Return the vectors of tools; see :meth:`Embedder.encode`. Raises what the embedder raises."""
        return await self._run(lambda: _check_rows(self.embedder.encode(texts), texts))

    async def encode_queries(self, texts: Sequence[str]) -> Any:
        """Return the vectors of queries; see :meth:`QueryEmbedder.encode_queries`. Raises what the embedder raises."""
        embedder = self.embedder
        encode = embedder.encode_queries if isinstance(embedder, QueryEmbedder) else embedder.encode
        return await self._run(lambda: _check_rows(encode(texts), texts))

    async def _run(self, function: Callable[[], T]) -> T:
        await self._is_free.acquire()
        # Released when the thread has ended, also if the caller waits no longer.
        return await run_in_thread(function, on_end=self._is_free.release)


async def run_in_thread(function: Callable[[], T], *, on_end: Callable[[], object] = lambda: None) -> T:
    """Call ``function`` in a daemon thread of its own.

    Args:
        on_end: called on the event loop when the thread has ended, also if the caller was cancelled before.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def finish(value: T | None, error: Exception | None) -> None:
        on_end()
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
            error = raised if isinstance(raised, Exception) else RuntimeError(f"{type(raised).__name__} in an embedder")
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(finish, value, error)

    threading.Thread(target=work, name="dispatch-search", daemon=True).start()
    return await result


def _check_rows(rows: Any, texts: Sequence[str]) -> Any:
    if len(rows) != len(texts):
        raise ValueError(f"the embedder returned {len(rows)} rows for {len(texts)} texts")
    return rows
