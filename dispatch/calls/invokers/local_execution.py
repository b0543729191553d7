"""The execution of one attempt in this process, in a task of its own.

The caller waits for the task no longer than its deadline: a tool that ignores its cancellation, or a thread, which cannot be
cancelled, delays no caller. It keeps its place in the bulkhead until it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import Any

import msgspec

from dispatch._internal.cancellation import retrieve_error
from dispatch._internal.user_code import ends_task, unwrap
from dispatch.calls.invokers.local_executor import (
    FailedCallError,
    LocalCall,
    LocalExecutor,
    LocalResult,
    RefusedCallError,
)
from dispatch.errors import DispatchError
from dispatch.messaging.rpc.chunk_buffer import ChunkBuffer
from dispatch.messaging.rpc.exchange_outcome import Answer, Overflow, Settled, TimedOut
from dispatch.messaging.wire.properties import utf8_size
from dispatch.result import read_tool_error
from dispatch.telemetry.logs import ExceptionLogger

MAX_BYTES_AHEAD = 4 * 1024
"""Bytes of chunks, each its payload and 64, that a stream may be ahead of its reader; then its tool waits: 64 short chunks.
In one process more would save nothing."""

KeepPlace = Callable[[asyncio.Future[Any]], object]
"""Keeps the place of an attempt in the bulkhead until the future is done."""


class LocalExecution:
    """One attempt: await :meth:`wait` for its end, or iterate over its chunks. ``settled`` then says how it ended.

    Args:
        executor: of the tool's service.
        call: the attempt.
        clock: name of the limit that ``call.context.deadline`` is.
        max_bytes: of the whole result, as UTF-8.
        is_stream: chunks are read as they come; otherwise they are joined.
        idle: seconds that may pass without a chunk, or without a read while chunks wait; 0: any.
        keep_place: called when the execution goes on after its caller.
        mark_occupied: called when a thread goes on after its cancellation, with what is done when the thread is.
        activate: called in the task before the tool.
        failures: logs what the tool raises unexpectedly.

    Attributes:
        settled: how the attempt ended; None: it has not.
        on_settled: called once ``settled`` is set.
        refused: the error of an executor that did not execute the tool.
        task: executes the tool.
    """

    __slots__ = (
        "_buffer",
        "_call",
        "_count",
        "_failures",
        "_is_stream",
        "_keep_place",
        "_loop",
        "_mark_occupied",
        "_max_bytes",
        "_size",
        "_space",
        "_timer",
        "_waiter",
        "on_settled",
        "refused",
        "settled",
        "task",
    )

    def __init__(
        self,
        executor: LocalExecutor,
        call: LocalCall,
        *,
        clock: str,
        max_bytes: int,
        is_stream: bool,
        idle: float,
        keep_place: KeepPlace,
        mark_occupied: KeepPlace,
        activate: Callable[[], object],
        failures: ExceptionLogger,
    ) -> None:
        self.settled: Settled | None = None
        self.on_settled: Callable[[], object] | None = None
        self.refused: DispatchError | None = None
        self._call = call
        self._max_bytes = max_bytes
        self._is_stream = is_stream
        self._buffer = ChunkBuffer(idle, self._expire, self._on_read)
        self._keep_place = keep_place
        self._mark_occupied = mark_occupied
        self._failures = failures
        self._count = 0
        self._size = 0
        self._waiter: asyncio.Future[None] | None = None
        self._space: asyncio.Event | None = None
        loop = self._loop = asyncio.get_running_loop()
        self._timer = loop.call_at(call.context.deadline, self._expire, clock)
        self.task = loop.create_task(self._run(executor, activate))

    # -- the caller ---------------------------------------------------------------------------------------------

    async def wait(self) -> Settled:
        """Wait for the end. A cancellation cancels the tool."""
        try:
            while self.settled is None:
                self._waiter = self._loop.create_future()
                await self._waiter
        except asyncio.CancelledError:
            self.close()
            raise
        return self.settled

    def __aiter__(self) -> LocalExecution:
        return self

    def __anext__(self) -> Coroutine[Any, Any, str]:
        return self._buffer.read()

    def _on_read(self, _size: int) -> None:
        if self._space is not None and self._buffer.size < MAX_BYTES_AHEAD:
            self._space.set()

    def close(self) -> None:
        """Cancel the tool; its caller has gone."""
        self.settle(TimedOut("abandoned", sent=True, chunks=self._count))

    def settle(self, settled: Settled) -> None:
        """End the attempt; only the first call counts. A tool that still runs is cancelled, and keeps its place until it
        has ended."""
        if self.settled is not None:
            return
        self.settled = settled
        self._timer.cancel()
        task = self.task
        if asyncio.current_task(self._loop) is not task and not task.done():
            task.cancel()
            ended = self._loop.create_future()
            task.add_done_callback(partial(self._await_thread, ended))
            self._keep_place(ended)
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        self._buffer.end()
        if self.on_settled is not None:
            self.on_settled()

    def _expire(self, clock: str) -> None:
        self.settle(TimedOut(clock, sent=True, chunks=self._count))

    # -- the tool -----------------------------------------------------------------------------------------------

    async def _run(self, executor: LocalExecutor, activate: Callable[[], object]) -> None:
        try:
            activate()
            result = await executor.execute(self._call)
            if isinstance(result, LocalResult):
                self._end_with_content(result)
                return
            text = result if isinstance(result, str) else await self._read(result)
            if self.settled is None:
                self._end(text)
        except RefusedCallError as refused:
            self.refused = refused.error
            self._fail(refused.error.type, refused.error.message)
        except FailedCallError as failed:
            self.settle(failed.error)
        except BaseException as raised:  # one that leaves the task, such as SystemExit, would end the event loop
            if isinstance(raised, GeneratorExit) and ends_task(raised, self.task):
                raise
            self._fail_by(raised)

    def settle_ended(self, task: asyncio.Task[None]) -> None:
        """Settle an attempt whose task has ended without settling it: it was cancelled before it began, for example."""
        if self.settled is None:
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            self._fail_by(error or asyncio.CancelledError())

    def _fail_by(self, raised: BaseException) -> None:
        """End the attempt with the error of the tool, unless dispatch has ended it and cancelled the tool."""
        if self.settled is not None:
            return
        self._fail(*read_tool_error(raised))
        if not isinstance(unwrap(raised), DispatchError) and not ends_task(raised, self.task):
            tool = self._call.tool
            self._failures.log(f"tool '{tool}' failed", raised, tool=tool)

    async def _read(self, chunks: AsyncIterator[str]) -> str:
        """Read the chunks of a stream; return the whole text unless its caller reads them."""
        texts: list[str] = []
        try:
            self._buffer.start()
            async for chunk in chunks:
                if self.settled is not None:
                    break
                self._count += 1
                if not self._fits(chunk):
                    break
                if not self._is_stream:
                    texts.append(chunk)
                elif chunk:
                    await self._push(chunk)
                else:
                    self._buffer.record_progress()
        finally:
            close = getattr(chunks, "aclose", None)
            if close is not None:
                await close()
        return "".join(texts)

    def _end(self, text: str) -> None:
        if self._count:  # a stream
            self.settle(Answer(text, chunks=self._count))
        elif self._fits(text):
            self._add(text)
            self.settle(Answer(text))

    def _end_with_content(self, result: LocalResult) -> None:
        content = result.content
        if content is not None:
            self._size += len(msgspec.json.encode(content))
        if self._fits(result.text):
            self._add(result.text)
            self.settle(Answer(result.text, instance=result.instance or None, content=content))

    def _fits(self, text: str) -> bool:
        self._size += utf8_size(text)
        if self._size <= self._max_bytes:
            return True
        self.settle(Overflow("max-response-bytes"))
        return False

    async def _push(self, chunk: str) -> None:
        """Give a chunk to the reader, and wait while the reader is far behind."""
        self._add(chunk)
        if self._buffer.size >= MAX_BYTES_AHEAD:
            self._space = self._space or asyncio.Event()
            while self._buffer.size >= MAX_BYTES_AHEAD:
                self._space.clear()
                await self._space.wait()

    def _add(self, text: str) -> None:
        if self._is_stream and text:
            self._buffer.add(text, utf8_size(text))

    def _fail(self, type: str, message: str) -> None:
        self.settle(Answer("", type, message, self._count + 1))

    def _await_thread(self, ended: asyncio.Future[None], task: asyncio.Task[None]) -> None:
        """Complete ``ended`` when the cancelled task has ended, and a thread that it had started, too."""
        retrieve_error(task)
        occupied = self._call.occupied
        if occupied is None or occupied.done():
            _complete(ended)
        else:
            self._mark_occupied(occupied)
            occupied.add_done_callback(lambda _: _complete(ended))


def _complete(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
