"""Steps d and e of an attempt whose tool this process executes: a function, or another system's tool behind an executor."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial

from dispatch._internal.permit import Clock, Rejection
from dispatch.calls.call_state import Attempt, Call
from dispatch.calls.error_messages import error_from_rejection
from dispatch.calls.invokers.call_context import CallContext
from dispatch.calls.invokers.local_execution import LocalExecution
from dispatch.calls.invokers.local_executor import LocalCall, LocalExecutor
from dispatch.errors import TransportError
from dispatch.messaging.rpc.exchange_outcome import Closed
from dispatch.messaging.wire.codec import decode_request
from dispatch.telemetry.logs import ExceptionLogger

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
        request = attempt.request = call.observer.on_request("", "", id, attempt.number, attempt.reason)
        given = decode_request(call.payload)
        context = CallContext(
            tool=tool.label,
            user=call.options.user,
            call_id=id,
            attempt=attempt.number,
            deadline=attempt.deadline,
            clock=self._now,
            trace_id=call.observer.trace_id,
            traceparent=request.properties.get("traceparent", ""),
            context=call.options.context,
        )
        attempt.sent = True
        call.requests += 1
        bulkhead = tool.policy.bulkhead
        concurrency = None if bulkhead is None else bulkhead.max_concurrent_calls
        execution = LocalExecution(
            executor,
            LocalCall(tool.label, given.arguments, given.config, context, concurrency),
            clock=attempt.clock,
            max_bytes=tool.policy.max_response_bytes,
            is_stream=call.is_stream,
            idle=call.idle,
            keep_place=attempt.admission.keep_place,
            mark_occupied=attempt.admission.mark_occupied,
            activate=request.activate,
            failures=self._failures,
        )
        self._running.add(execution)
        execution.task.add_done_callback(partial(self._on_task_end, execution))
        if call.is_stream:
            attempt.replies = execution
            if await self._has_chunk(attempt, execution):
                return
        else:
            await execution.wait()
        if execution.refused is not None:
            attempt.sent = False
            call.requests -= 1
            raise execution.refused
        if isinstance(execution.settled, TransportError):
            execution.settled.retryable = tool.repeatable
        if call.is_stream:
            attempt.conclude_stream()
        else:
            assert execution.settled is not None
            attempt.conclude(execution.settled)

    def _on_task_end(self, execution: LocalExecution, task: asyncio.Task[None]) -> None:
        self._running.discard(execution)
        execution.settle_ended(task)

    async def _has_chunk(self, attempt: Attempt, execution: LocalExecution) -> bool:
        """Wait for the first chunk of a stream. False: it ended without one."""
        try:
            chunk = await anext(execution, None)
        except BaseException:
            execution.close()
            raise
        if chunk is None:
            return False
        attempt.record_first_chunk(chunk, self._now())
        return True

    async def close(self) -> None:
        """Cancel the tools that run, and wait a moment for them. Their callers are told that the dispatcher was closed."""
        running = tuple(self._running)
        for execution in running:
            execution.settle(Closed(sent=True))
        if running:
            _, pending = await asyncio.wait([each.task for each in running], timeout=CLOSE_S)
            if pending:
                logger.warning("%d tools of this process ignore their cancellation and still run", len(pending))
