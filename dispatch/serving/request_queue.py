"""The requests of one service instance from their acceptance to their end: run at once, queued, or refused."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import deque
from collections.abc import Callable
from functools import partial
from operator import attrgetter

from dispatch._internal.deadline_timer import DeadlineTimer
from dispatch.messaging.wire.properties import Refusal
from dispatch.serving.idempotency_keys import MAX_DUPLICATES, IdempotencyKeys, KeyedExecution
from dispatch.serving.inbound_request import InboundRequest
from dispatch.serving.reply_sender import ReplySender
from dispatch.serving.request_runner import RequestRunner
from dispatch.serving.tool_executor import ToolExecutor
from dispatch.serving.tool_service import Invoke
from dispatch.telemetry.logs import ExceptionLogger
from dispatch.telemetry.served_request_observer import ServerObserver

logger = logging.getLogger("dispatch.service")


class RequestQueue:
    """Runs at most ``concurrency`` requests at once and queues at most ``max_queue``; refuses all others.

    Args:
        invoke: the tool.
        threads: of synchronous tools. A thread that outlives its request occupies the request's slot.
        sender, observer: of the instance.
        id: the service's id, for logs and refusals.
        concurrency: requests that run at once.
        max_queue: queued requests.
        now: the loop's clock.
        content: texts of exceptions may be logged.
    """

    def __init__(
        self,
        invoke: Invoke,
        threads: ToolExecutor,
        sender: ReplySender,
        observer: ServerObserver,
        *,
        id: str,
        concurrency: int,
        max_queue: int,
        now: Callable[[], float],
        content: bool,
    ) -> None:
        self.keys = IdempotencyKeys()
        self._failures = ExceptionLogger(logger, now, content=content)
        self._runner = RequestRunner(
            invoke, sender, self.keys, self.refuse, observer, id=id, now=now, failures=self._failures
        )
        self._threads = threads
        self._sender = sender
        self._id = id
        self._concurrency = concurrency
        self._max_queue = max_queue
        self._now = now
        self._loop = asyncio.get_running_loop()
        self._slots: set[InboundRequest] = set()
        self._deadlines = DeadlineTimer(self._slots, attrgetter("stop_at"), self._runner.handle_deadline)
        self._duplicates: set[asyncio.Task[None]] = set()  # they wait for the first request with their idempotency key
        self._queued: deque[InboundRequest] = deque()
        self._is_draining = False
        self._idle = asyncio.Event()
        self._idle.set()
        self.requests = 0
        """Requests that arrived."""
        self.cancelled = 0
        """Requests that were stopped because their callers cancelled them."""

    @property
    def running(self) -> int:
        """Requests being run."""
        abandoned = self._threads.abandoned
        return len(self._slots) if not abandoned else sum(work.task not in abandoned for work in self._slots)

    @property
    def occupied(self) -> int:
        """Occupied slots: running requests, and threads that outlived theirs."""
        return len(self._slots)

    @property
    def queued(self) -> int:
        """Queued requests."""
        return len(self._queued)

    def accept(self, work: InboundRequest, now: float) -> None:
        """Run, queue or refuse ``work``, which arrives ``now``."""
        self.requests += 1
        if self._is_draining:
            self.refuse(work, Refusal.DRAINING)
        elif work.deadline <= now:
            self.refuse(work, Refusal.EXPIRED)
        elif len(self._slots) < self._concurrency:
            self._begin(work)
        elif len(self._queued) < self._max_queue and not self._is_stuck:
            self._queued.append(work)
        else:
            self.refuse(work, Refusal.OVERLOADED)

    def record_declined(self, reason: str) -> None:
        """Count a request that its session has refused by itself."""
        self.requests += 1
        self._sender.count_refusal(reason)

    def refuse(self, work: InboundRequest, reason: str, detail: str = "") -> None:
        """Answer ``work`` with a refusal.

        Args:
            work: the request.
            reason: one of :class:`Refusal`.
            detail: a sentence for the caller; empty: the one of the reason.
        """
        if reason == Refusal.OVERLOADED and not detail:
            detail = f"{self._id} runs {self._concurrency} requests and {self._max_queue} wait."
            if self._is_stuck:
                places = f"All {self._concurrency} places of {self._id}"
                detail = f"{places} are held by threads that run on after their deadline."
        self._sender.refuse(work, reason, detail)
        if work.task is None:
            work.replies.close()

    def cancel(self, work: InboundRequest) -> None:
        """Stop ``work``, which its caller has cancelled. One with an idempotency key runs on: other callers may wait for
        its reply."""
        if work.is_cancelled or work.keyed is not None:
            return
        work.is_cancelled = True
        self.cancelled += 1
        work.stop()

    # -- draining -----------------------------------------------------------------------------------------------

    def stop_accepting(self) -> None:
        """Refuse further requests as draining. Queued requests that other instances can receive go to them."""
        self._is_draining = True
        self._queued = deque(work for work in self._queued if not work.replies.hand_over())

    def refuse_queued(self) -> None:
        """Refuse the queued requests as draining."""
        for work in self._queued:
            self.refuse(work, Refusal.DRAINING)
        self._queued.clear()

    async def finish(self, timeout: float) -> None:
        """Wait up to ``timeout`` seconds for the running requests, then cancel them."""
        for work in tuple(self._slots):
            if work.task is not None and work.task.done():
                self._free_slot(work)  # only its thread runs
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._idle.wait()
        cut_off = [*(work.task for work in self._slots if work.task is not None), *self._duplicates]
        for task in cut_off:
            task.cancel()
        if cut_off:
            await asyncio.wait(cut_off)
        for work in tuple(self._slots):
            self._end_run(work, None)  # cancelled before its first step
        self._deadlines.close()

    # -- one request --------------------------------------------------------------------------------------------

    def _begin(self, work: InboundRequest) -> None:
        self._slots.add(work)
        self._idle.clear()
        work.task = self._loop.create_task(self._run(work))
        self._deadlines.watch(work.stop_at)

    async def _run(self, work: InboundRequest) -> None:
        work.is_started = True
        first = None
        try:
            if work.is_expired:
                self.refuse(work, Refusal.EXPIRED)
            elif not work.is_cancelled:
                first = await self._runner.run(work)
        except asyncio.CancelledError:
            self._end_run(work, None)
            raise
        except GeneratorExit:  # of a tool: it closes the coroutines that await the tool, one by one
            if not work.is_running:
                raise
        except Exception as error:
            self._log_failure(error)
        # Here and not in a callback of the task: the reply leaves in this turn of the loop, with the load after its end.
        self._end_run(work, first)

    @property
    def _is_stuck(self) -> bool:
        """Whether abandoned threads occupy every slot: when one becomes free is unknown."""
        return len(self._threads.abandoned) >= self._concurrency

    def _end_run(self, work: InboundRequest, first: KeyedExecution | None) -> None:
        """Free the slot of ``work``, unless its thread runs on; let it wait for the reply of ``first``."""
        work.stop_at = math.inf
        if self._threads.abandoned:
            self._hold_slot(work)
        else:
            self._free_slot(work)
        if first is None or not self._await_first(work, first):
            work.replies.close()

    def _hold_slot(self, work: InboundRequest) -> None:
        """Occupy the slot until the thread of the tool has returned."""
        returned = None if work.task is None else self._threads.abandoned.get(work.task)
        if returned is None or self._is_draining:
            self._free_slot(work)
            return
        returned.add_done_callback(lambda _: self._free_slot(work))
        if self._is_stuck:
            while (waiting := self._next_queued()) is not None:
                self.refuse(waiting, Refusal.OVERLOADED)

    def _free_slot(self, work: InboundRequest) -> None:
        self._slots.discard(work)
        while self._queued and len(self._slots) < self._concurrency:
            waiting = self._next_queued()
            if waiting is not None:
                self._begin(waiting)
        self._check_idle()

    def _check_idle(self) -> None:
        if not self._slots and not self._duplicates:
            self._idle.set()

    def _await_first(self, work: InboundRequest, first: KeyedExecution) -> bool:
        """Let ``work`` wait for the reply of ``first`` without occupying a slot. Return False if it is cancelled or
        refused."""
        if work.is_cancelled:
            return False
        if len(self._duplicates) >= MAX_DUPLICATES:
            self.refuse(work, Refusal.OVERLOADED, f"{MAX_DUPLICATES} requests with known idempotency keys wait.")
            return False
        task = work.task = self._loop.create_task(self._runner.answer_duplicate(work, first))
        self._duplicates.add(task)
        task.add_done_callback(partial(self._on_duplicate, work))
        return True

    def _on_duplicate(self, work: InboundRequest, task: asyncio.Task[None]) -> None:
        self._duplicates.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log_failure(error)
        work.replies.close()
        self._check_idle()

    def _log_failure(self, error: BaseException) -> None:
        self._failures.log("a request ended without an answer", error)

    def _next_queued(self) -> InboundRequest | None:
        """Remove and return the next queued request whose caller still waits for it."""
        while self._queued:
            work = self._queued.popleft()
            if work.is_cancelled:
                work.replies.close()
            elif work.deadline <= self._now():
                self.refuse(work, Refusal.EXPIRED)
            else:
                return work
        return None
