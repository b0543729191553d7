"""Tools that this process executes: their calls, and the instance that executes them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import partial
from typing import Any

import msgspec

from dispatch._internal import (
    Clock,
    ends_task,
    is_kind,
    join_names,
    leave_task,
    loop_clock,
    retrieve_error,
    yield_to_others,
)
from dispatch.calls.attempt import Attempt
from dispatch.errors import DispatchError, TransportError
from dispatch.messaging.request import Answer, ChunkBuffer, Closed, Overflow, Refused, Request
from dispatch.messaging.wire import decode_request, utf8_size
from dispatch.results import ResultContent, read_tool_error
from dispatch.telemetry.events import ExceptionLogger

# The context of a call, for tools that this process executes.


class CallContext(msgspec.Struct, frozen=True, kw_only=True):
    """The call in which a function runs, in this process or at a service. A parameter with this annotation receives it.

    Attributes:
        tool: name of the tool.
        user: on whose behalf the tool is called; ``""``: none was given.
        call_id: id of the attempt, unique in all processes; the attribute ``request_id`` of its result.
        attempt: number of the attempt, from 1.
        deadline: when the attempt is cancelled, in seconds on ``clock``; infinite: a third-party caller gave none.
        clock: of the event loop; it may be read in any thread.
        trace_id: the trace that the call is in, as 32 hex digits; ``""``: none.
        traceparent: the W3C trace context for requests to other systems; ``""``: none.
        context: what the caller gave as ``context`` to :func:`dispatch.calling.call_function`; None: nothing, or at a
            service.
    """

    tool: str
    user: str
    call_id: str
    attempt: int
    deadline: float
    clock: Clock
    trace_id: str = ""
    traceparent: str = ""
    context: Any = None

    @property
    def remaining(self) -> float:
        """Seconds until the deadline; 0 after it."""
        return max(0.0, self.deadline - self.clock())


class LocalCall(msgspec.Struct, eq=False):
    """One attempt of a call, for what executes the tool.

    Attributes:
        tool: name of the tool in the catalogue.
        arguments: JSON values, a copy for this attempt.
        config: values of the tool's config params.
        context: of the call.
        concurrency: the limit of the tool's bulkhead; None: it has none.
        occupied: set before ``execute`` raises ``CancelledError`` while a thread still executes the tool: the call
            keeps its place in the bulkhead until this future is done.
    """

    tool: str
    arguments: dict[str, Any]
    config: dict[str, Any]
    context: CallContext
    concurrency: int | None = None
    occupied: asyncio.Future[Any] | None = None


class LocalResult(msgspec.Struct, frozen=True):
    """A result with more than a text.

    Attributes:
        text: that a model reads.
        content: everything in the result; None: nothing but the text.
        instance: id of what executed the tool; ``""``: it has none.
    """

    text: str
    content: ResultContent | None = None
    instance: str = ""


Execute = Callable[[LocalCall], Awaitable[str | LocalResult | AsyncIterator[str]]]
"""Executes a tool, in a task of its own, which is cancelled at the deadline: timeouts, retries and limits are those of the
path of a call. It returns the result as text, or with content; or the chunks of a stream.

It raises :class:`RefusedCallError` where the tool was not executed, :class:`FailedCallError` where the way to the tool
failed, and any other exception as the tool's own error: its type and message reach the caller.
"""


class RefusedCallError(Exception):
    """An instance refuses a call; the tool was not executed.

    Args:
        error: that the caller gets.
        elsewhere: another instance of the service may execute it.
    """

    def __init__(self, error: DispatchError, *, elsewhere: bool = False) -> None:
        super().__init__(error.message)
        self.error = error
        self.elsewhere = elsewhere


class FailedCallError(Exception):
    """The connection of an instance to its tool failed during a call; the tool may have been executed.

    Args:
        error: that the caller gets; None: the time limit has passed.
    """

    def __init__(self, error: DispatchError | None) -> None:
        super().__init__("the time limit has passed" if error is None else error.message)
        self.error = error


# The execution of one attempt in this process, in a task of its own.
#
# The caller waits for the task no longer than its deadline: a tool that ignores its cancellation, or a thread, which cannot
# be cancelled, delays no caller. It keeps its place in the bulkhead until it ends.


MAX_BYTES_AHEAD = 4 * 1024
"""Bytes of chunks, each its payload and 64, that a stream may be ahead of its reader; then its tool waits: 64 short chunks.
In one process more would save nothing."""
CHUNKS_OF_TURN = 64
"""Chunks after which a stream that is read as a whole gives the event loop a turn: an endless one that waits for nothing
would otherwise stop every other task, and pass its deadline."""


class LocalExecution:
    """Executes one request in a task (:class:`~dispatch.messaging.request.Executor`).

    Args:
        instance: that executes it.
        call: the attempt, for the tool.
        request: that is settled.
        attempt: the same for dispatch.

    Attributes:
        task: executes the tool.
    """

    __slots__ = ("_admission", "_call", "_instance", "_loop", "_repeatable", "_space", "_timer", "request", "task")

    def __init__(self, instance: LocalInstance, call: LocalCall, request: Request, attempt: Attempt) -> None:
        self.request = request
        self._instance = instance
        self._call = call
        self._admission = attempt.admission
        self._repeatable = attempt.call.tool.repeatable
        self._space: asyncio.Event | None = None
        loop = self._loop = asyncio.get_running_loop()
        self._timer = loop.call_at(request.deadline, self._expire)
        request.executor = self
        self.task = loop.create_task(self._run(attempt.request.activate))

    def _expire(self) -> None:
        """The deadline has passed, unless that is a later one."""
        request = self.request
        if request.is_over(self._loop.time()):
            request.expire(request.limit_name)
        else:
            self._timer = self._loop.call_at(request.deadline, self._expire)

    # -- the caller ---------------------------------------------------------------------------------------------

    def cancel(self, _request: Request) -> bool:
        """See :class:`~dispatch.messaging.request.Executor`: the end of the request cancels the task."""
        return True

    def on_read(self, _request: Request, _size: int) -> None:
        """Let the tool go on if it waits for its reader."""
        buffer = self.request.buffer
        if self._space is not None and buffer is not None and buffer.size < MAX_BYTES_AHEAD:
            self._space.set()

    def on_settled(self, _request: Request) -> None:
        """Cancel a tool that still runs. It keeps its place until it has ended."""
        self._timer.cancel()
        task = self.task
        if asyncio.current_task(self._loop) is not task and not task.done():
            task.cancel()
            ended = self._loop.create_future()
            task.add_done_callback(partial(self._await_thread, ended))
            self._admission.keep_place(ended)

    # -- the tool -----------------------------------------------------------------------------------------------

    async def _run(self, activate: Callable[[], object]) -> None:
        try:
            activate()
            result = await self._instance.execute(self._call)
            if isinstance(result, LocalResult):
                self._end(result.text, result.content, result.instance)
            elif isinstance(result, str):
                self._end(result)
            else:
                await self._read(result)
        except RefusedCallError as refused:
            self.request.settle(Refused(refused.error, refused.elsewhere))
        except FailedCallError as failed:
            if failed.error is None:
                self.request.expire(self.request.limit_name)
                return
            if isinstance(failed.error, TransportError) and failed.error.may_have_run:
                failed.error.retryable = self._repeatable
            self.request.settle(failed.error)
        except BaseException as raised:  # one that leaves the task, such as SystemExit, would end the event loop
            if is_kind(raised, GeneratorExit) and ends_task(raised, self.task):
                raise
            self._fail_by(raised)

    def on_end(self, task: asyncio.Task[None]) -> None:
        """Settle an attempt whose task has ended without settling it: it was cancelled before it began, for example."""
        self._instance.running.discard(self)
        if self.request.settled is None:
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            self._fail_by(asyncio.CancelledError() if error is None else error)

    def _fail_by(self, raised: BaseException) -> None:
        """End the attempt with the error of the tool, unless dispatch has ended it and cancelled the tool."""
        if self.request.settled is not None:
            return
        self.request.settle(Answer("", *read_tool_error(raised), self.request.chunks + 1))
        if not ends_task(raised, self.task):
            tool = self._call.tool
            self._instance.failures.log_tool_error(f"tool '{tool}'", raised, tool=tool)

    async def _read(self, chunks: AsyncIterator[str]) -> None:
        """Read the chunks of a stream."""
        request = self.request
        try:
            request.begin(self, full=MAX_BYTES_AHEAD)
            async for chunk in chunks:
                if request.settled is not None:
                    break
                request.chunks += 1
                if not self._fits(chunk):
                    break
                request.add_text(chunk, utf8_size(chunk))
                if request.buffer is not None:
                    await self._await_reader(request.buffer)
                elif request.chunks % CHUNKS_OF_TURN == 0:
                    await yield_to_others()
        finally:
            close = getattr(chunks, "aclose", None)
            if close is not None:
                await close()
        if request.settled is None:
            if request.chunks:
                request.settle(Answer(request.text, chunks=request.chunks))
            else:
                self._end("")

    async def _await_reader(self, buffer: ChunkBuffer) -> None:
        """Wait while the reader is far behind."""
        if buffer.size >= MAX_BYTES_AHEAD:
            self._space = self._space or asyncio.Event()
            while buffer.size >= MAX_BYTES_AHEAD:
                self._space.clear()
                await self._space.wait()

    def _end(self, text: str, content: ResultContent | None = None, instance: str = "") -> None:
        """End with the whole result, which is the only chunk of a stream."""
        request = self.request
        if request.settled is not None:
            return
        if content is not None:
            request.reply_bytes += len(msgspec.json.encode(content))
        if self._fits(text):
            if request.buffer is not None and text and not request.is_undecided:
                request.add_text(text, utf8_size(text))
            request.settle(Answer(text, instance=instance or None, content=content))

    def _fits(self, text: str) -> bool:
        request = self.request
        request.reply_bytes += utf8_size(text)
        if request.reply_bytes <= request.max_reply_bytes:
            return True
        request.settle(Overflow("max-response-bytes"))
        return False

    def _await_thread(self, ended: asyncio.Future[None], task: asyncio.Task[None]) -> None:
        """Complete ``ended`` when the cancelled task has ended, and a thread that it had started, too."""
        retrieve_error(task)
        occupied = self._call.occupied
        if occupied is None or occupied.done():
            _complete(ended)
        else:
            self._admission.mark_occupied(occupied)
            occupied.add_done_callback(lambda _: _complete(ended))


def _complete(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


# What executes tools in this process, as an instance of their service.


logger = logging.getLogger("dispatch.dispatcher")

CLOSE_S = 1.0
"""Seconds that :func:`close_local` waits for cancelled tools: long enough for clean-up, short for a person."""
LOCAL = "(local)"
"""The name of the only instance of a service that this process has: names of instances have no parentheses."""


class LocalInstance:
    """Executes the tools of a service in this process (:class:`~dispatch.routing.instance.Instance`).

    Args:
        execute: a tool.
        name: see :class:`~dispatch.routing.instance.Instance`.

    Attributes:
        failures: logs what tools raise unexpectedly.
        running: executions whose tasks have not ended.
    """

    is_named = True
    has_key_memory = is_loss_counted = False
    incarnation = topic = next_request_id = ""

    def __init__(self, execute: Execute, name: str = LOCAL) -> None:
        self.name = name
        self.execute = execute
        self.failures = ExceptionLogger(logger, time.monotonic)
        self.running: set[LocalExecution] = set()

    @property
    def version(self) -> str | None:
        """See :class:`~dispatch.routing.instance.Instance`."""
        return None

    @property
    def is_suspect(self) -> bool:
        """See :class:`~dispatch.routing.instance.Instance`."""
        return False

    def find_absence(self, _tool: str) -> DispatchError | None:
        """Return why a call of a tool need not wait for this instance, which cannot be reached; None: it may."""
        return None

    def find_requests(self) -> list[Request]:
        """See :class:`~dispatch.routing.instance.Instance`."""
        return [each.request for each in self.running if each.request.settled is None]

    def send(self, request: Request, attempt: Attempt) -> None:
        """Execute the tool in a task of its own, in a copy of the caller's context."""
        call, number = attempt.call, attempt.number
        tool, observer = call.tool, call.observer
        given = decode_request(request.payload)
        context = CallContext(
            tool=tool.label,
            user=call.options.user,
            call_id=request.id,
            attempt=number,
            deadline=attempt.deadline,
            clock=loop_clock(),
            trace_id=observer.trace_id,
            traceparent=request.properties.get("traceparent", ""),
            context=call.options.context,
        )
        bulkhead = tool.policy.bulkhead
        concurrency = None if bulkhead is None else bulkhead.max_concurrent_calls
        local = LocalCall(tool.label, given.arguments, given.config, context, concurrency)
        execution = LocalExecution(self, local, request, attempt)
        self.running.add(execution)
        execution.task.add_done_callback(execution.on_end)


async def close_local(instances: Iterable[LocalInstance]) -> None:
    """Cancel the tools that run, and wait a moment for them. Their callers are told that the dispatcher was closed."""
    running = [execution for instance in instances for execution in instance.running]
    for execution in running:
        execution.request.settle(Closed(may_have_run=True))
    if running:
        _, pending = await asyncio.wait([each.task for each in running], timeout=CLOSE_S)
        for task in pending:
            leave_task(task)
        if pending:
            names = {each.request.tool for each in running if each.task in pending}
            text = "%d tools of this process ignore their cancellation and still run. They are left alone: %s"
            logger.warning(text, len(pending), join_names(sorted(names), 5))
