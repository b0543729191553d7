"""The interface of what executes tools in this process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any, Protocol

import msgspec

from dispatch._internal import Clock, Rejection, ends_task, retrieve_error, unwrap
from dispatch.calls.attempt import Attempt, Call
from dispatch.calls.error_messages import error_from_rejection
from dispatch.errors import DispatchError, TransportError
from dispatch.messaging.request import Answer, ChunkBuffer, Closed, Overflow, Request
from dispatch.messaging.wire import decode_request, utf8_size
from dispatch.result import ResultContent, read_tool_error
from dispatch.telemetry.events import ExceptionLogger

# The context of a call, for tools that this process executes.


class CallContext(msgspec.Struct, frozen=True, kw_only=True):
    """The call in which a function of this process runs. A parameter with this annotation receives it.

    Attributes:
        tool: name of the tool.
        user: on whose behalf the tool is called; ``""``: none was given.
        call_id: id of the attempt, unique in all processes; the attribute ``request_id`` of its result.
        attempt: number of the attempt, from 1.
        deadline: when the attempt is cancelled, in seconds on ``clock``.
        clock: of the event loop; it may be read in any thread.
        trace_id: the trace that the call is in, as 32 hex digits; ``""``: none.
        traceparent: the W3C trace context for requests to other systems; ``""``: none.
        context: what the caller gave as ``context`` to :func:`dispatch.calling.call_function`; None: nothing.
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
    """One attempt of a call, for its executor.

    Attributes:
        tool: name of the tool in the catalogue.
        arguments: JSON values, a copy for this attempt.
        config: values of the tool's config params.
        context: of the call.
        concurrency: the limit of the tool's bulkhead; None: it has none.
        occupied: set by the executor before it raises ``CancelledError`` while a thread still executes the tool: the call
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


class LocalExecutor(Protocol):
    """Executes the tools of one local service. It has no timeouts, retries or limits of its own: the call path has."""

    @property
    def request_queue(self) -> str:
        """The request topic of the service (:func:`~dispatch.calls.resolution.local_queue`)."""

    async def execute(self, call: LocalCall) -> str | LocalResult | AsyncIterator[str]:
        """Execute the tool. It runs in a task of its own, which is cancelled at the deadline.

        Returns:
            The result as text, or with content; or the chunks of a stream.

        Raises:
            RefusedCallError: the tool was not executed.
            FailedCallError: the connection to the tool failed; it may have been executed.
            Exception: the tool's own error; its type and message reach the caller.
        """


class RefusedCallError(Exception):
    """An executor refuses a call; the tool was not executed.

    Args:
        error: that the caller gets.
    """

    def __init__(self, error: DispatchError) -> None:
        super().__init__(error.message)
        self.error = error


class FailedCallError(Exception):
    """The connection of an executor to its tool failed during a call; the tool may have been executed.

    Args:
        error: that the caller gets.
    """

    def __init__(self, error: TransportError) -> None:
        super().__init__(error.message)
        self.error = error


# The execution of one attempt in this process, in a task of its own.
#
# The caller waits for the task no longer than its deadline: a tool that ignores its cancellation, or a thread, which cannot
# be cancelled, delays no caller. It keeps its place in the bulkhead until it ends.


MAX_BYTES_AHEAD = 4 * 1024
"""Bytes of chunks, each its payload and 64, that a stream may be ahead of its reader; then its tool waits: 64 short chunks.
In one process more would save nothing."""

KeepPlace = Callable[[asyncio.Future[Any]], object]
"""Keeps the place of an attempt in the bulkhead until the future is done."""


class LocalExecution:
    """Executes one request in a task (:class:`~dispatch.messaging.request.Executor`).

    Args:
        executor: of the tool's service.
        call: the attempt.
        request: that is settled.
        keep_place: called when the execution goes on after its caller.
        mark_occupied: called when a thread goes on after its cancellation, with what is done when the thread is.
        activate: called in the task before the tool.
        failures: logs what the tool raises unexpectedly.

    Attributes:
        refused: the error of an executor that did not execute the tool.
        task: executes the tool.
    """

    __slots__ = (
        "_call",
        "_failures",
        "_keep_place",
        "_loop",
        "_mark_occupied",
        "_space",
        "_timer",
        "refused",
        "request",
        "task",
    )

    def __init__(
        self,
        executor: LocalExecutor,
        call: LocalCall,
        request: Request,
        *,
        keep_place: KeepPlace,
        mark_occupied: KeepPlace,
        activate: Callable[[], object],
        failures: ExceptionLogger,
    ) -> None:
        self.refused: DispatchError | None = None
        self.request = request
        self._call = call
        self._keep_place = keep_place
        self._mark_occupied = mark_occupied
        self._failures = failures
        self._space: asyncio.Event | None = None
        loop = self._loop = asyncio.get_running_loop()
        self._timer = loop.call_at(request.deadline, request.expire, request.clock)
        request.executor = self
        self.task = loop.create_task(self._run(executor, activate))

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
            self._keep_place(ended)

    # -- the tool -----------------------------------------------------------------------------------------------

    async def _run(self, executor: LocalExecutor, activate: Callable[[], object]) -> None:
        try:
            activate()
            result = await executor.execute(self._call)
            if isinstance(result, LocalResult):
                self._end_with_content(result)
                return
            if isinstance(result, str):
                self._end(result)
            else:
                await self._read(result)
        except RefusedCallError as refused:
            self.refused = refused.error
            self._fail(refused.error.type, refused.error.message)
        except FailedCallError as failed:
            self.request.settle(failed.error)
        except BaseException as raised:  # one that leaves the task, such as SystemExit, would end the event loop
            if isinstance(raised, GeneratorExit) and ends_task(raised, self.task):
                raise
            self._fail_by(raised)

    def settle_ended(self, task: asyncio.Task[None]) -> None:
        """Settle an attempt whose task has ended without settling it: it was cancelled before it began, for example."""
        if self.request.settled is None:
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            self._fail_by(error or asyncio.CancelledError())

    def _fail_by(self, raised: BaseException) -> None:
        """End the attempt with the error of the tool, unless dispatch has ended it and cancelled the tool."""
        if self.request.settled is not None:
            return
        self._fail(*read_tool_error(raised))
        if not isinstance(unwrap(raised), DispatchError) and not ends_task(raised, self.task):
            tool = self._call.tool
            self._failures.log(f"tool '{tool}' failed", raised, tool=tool)

    async def _read(self, chunks: AsyncIterator[str]) -> None:
        """Read the chunks of a stream."""
        request = self.request
        try:
            request.begin(self)
            async for chunk in chunks:
                if request.settled is not None:
                    break
                request.chunks += 1
                if not self._fits(chunk):
                    break
                request.add_text(chunk, utf8_size(chunk))
                if request.buffer is not None:
                    await self._await_reader(request.buffer)
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

    def _end(self, text: str) -> None:
        if self.request.settled is None and self._fits(text):
            self._settle(Answer(text))

    def _end_with_content(self, result: LocalResult) -> None:
        content = result.content
        if content is not None:
            self.request.reply_bytes += len(msgspec.json.encode(content))
        if self._fits(result.text):
            self._settle(Answer(result.text, instance=result.instance or None, content=content))

    def _settle(self, answer: Answer) -> None:
        """End with the whole result, which is the only chunk of a stream."""
        if self.request.buffer is not None and answer.text:
            self.request.add_text(answer.text, utf8_size(answer.text))
        self.request.settle(answer)

    def _fits(self, text: str) -> bool:
        request = self.request
        request.reply_bytes += utf8_size(text)
        if request.reply_bytes <= request.max_reply_bytes:
            return True
        request.settle(Overflow("max-response-bytes"))
        return False

    def _fail(self, type: str, message: str) -> None:
        self.request.settle(Answer("", type, message, self.request.chunks + 1))

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


# Steps d and e of an attempt whose tool this process executes: a function, or another system's tool behind an executor.


logger = logging.getLogger("dispatch.dispatcher")

CLOSE_S = 1.0
"""Seconds that :meth:`LocalInvoker.close` waits for cancelled tools: long enough for clean-up, short for a person."""

_NO_EXECUTOR = Rejection("balancer", "no-instance")


class LocalInvoker:
    """Executes the tools of local services (:class:`~dispatch.calls.attempt.Invoker`).

    Args:
        executors: by the request topics of their services.
        clock: the loop's.
        new_id: returns an id that was never used before.
        content: texts of tools' exceptions may be logged.
    """

    def __init__(
        self, executors: Mapping[str, LocalExecutor], clock: Clock, new_id: Callable[[], str], *, content: bool = False
    ) -> None:
        self._executors = executors
        self._now = clock
        self._new_id = new_id
        self._running: set[LocalExecution] = set()
        self._failures = ExceptionLogger(logger, clock, content=content)

    def is_ready(self, call: Call) -> bool:
        """True: no broker takes part."""
        return True

    async def await_ready(self, call: Call) -> None:
        """Do nothing: no broker takes part."""

    def has_untried(self, call: Call) -> bool:
        """Return False: there is one executor."""
        return False

    def attribute_failure(self, attempt: Attempt) -> None:
        """Do nothing: every failure is the tool's."""

    async def invoke(self, attempt: Attempt) -> None:
        """Execute the tool, and await its result or first chunk.

        Raises:
            DispatchError: the executor is gone, or refuses the call.
        """
        call = attempt.call
        tool = call.tool
        executor = self._executors.get(tool.service.request_queue)
        if executor is None:
            raise error_from_rejection(_NO_EXECUTOR, tool.label)
        attempt.start(self._now())
        id = attempt.request_id = self._new_id()
        observer = attempt.request = call.observer.on_request("", "", id, attempt.number, attempt.reason)
        given = decode_request(call.payload)
        context = CallContext(
            tool=tool.label,
            user=call.options.user,
            call_id=id,
            attempt=attempt.number,
            deadline=attempt.deadline,
            clock=self._now,
            trace_id=call.observer.trace_id,
            traceparent=observer.properties.get("traceparent", ""),
            context=call.options.context,
        )
        attempt.sent = True
        call.requests += 1
        bulkhead = tool.policy.bulkhead
        concurrency = None if bulkhead is None else bulkhead.max_concurrent_calls
        request = attempt.create_request()
        execution = LocalExecution(
            executor,
            LocalCall(tool.label, given.arguments, given.config, context, concurrency),
            request,
            keep_place=attempt.admission.keep_place,
            mark_occupied=attempt.admission.mark_occupied,
            activate=observer.activate,
            failures=self._failures,
        )
        self._running.add(execution)
        execution.task.add_done_callback(partial(self._on_task_end, execution))
        if call.is_stream:
            if await attempt.read_first_chunk(request, self._now):
                return
        else:
            await request
        if execution.refused is not None:
            attempt.sent = False
            call.requests -= 1
            raise execution.refused
        settled = request.settled
        assert settled is not None
        if isinstance(settled, TransportError):
            settled.retryable = tool.repeatable
        if call.is_stream:
            attempt.conclude_stream()
        else:
            attempt.conclude(settled)

    def _on_task_end(self, execution: LocalExecution, task: asyncio.Task[None]) -> None:
        self._running.discard(execution)
        execution.settle_ended(task)

    async def close(self) -> None:
        """Cancel the tools that run, and wait a moment for them. Their callers are told that the dispatcher was closed."""
        running = tuple(self._running)
        for execution in running:
            execution.request.settle(Closed(sent=True))
        if running:
            _, pending = await asyncio.wait([each.task for each in running], timeout=CLOSE_S)
            if pending:
                logger.warning("%d tools of this process ignore their cancellation and still run", len(pending))
