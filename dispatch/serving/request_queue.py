"""The requests of one service instance from their acceptance to their end: run at once, queued, or refused."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from dispatch.messaging.wire.codec import Request
from dispatch.messaging.wire.properties import Property, Refusal
from dispatch.messaging.wire.sessions import is_sender
from dispatch.serving.deduplication.deduplication import Deduplicator
from dispatch.serving.deduplication.idempotency_keys import MAX_DUPLICATES, KeyedExecution
from dispatch.serving.durable_requests import DurableRequests
from dispatch.serving.inbound_request import DEALT_WITH, InboundRequest
from dispatch.serving.reply_sender import ReplySender
from dispatch.serving.request_runner import RequestRunner
from dispatch.serving.tool_executor import ToolExecutor
from dispatch.serving.tool_service import Invoke
from dispatch.telemetry.logs import log_exception
from dispatch.telemetry.served_request_observer import ServerObserver

logger = logging.getLogger("dispatch.service")


class RequestQueue:
    """Runs at most ``concurrency`` requests at once and queues at most ``max_queue``; refuses all others.

    Args:
        invoke: the tool.
        threads: of synchronous tools. A thread that outlives its request occupies the request's slot.
        sender, deduplicator, durable, observer: of the instance.
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
        deduplicator: Deduplicator,
        durable: DurableRequests,
        observer: ServerObserver,
        *,
        id: str,
        concurrency: int,
        max_queue: int,
        now: Callable[[], float],
        content: bool,
    ) -> None:
        self.runner = RequestRunner(
            invoke, sender, deduplicator, durable, self.refuse, observer, id=id, now=now, content=content
        )
        self._threads = threads
        self._sender = sender
        self._deduplicator = deduplicator
        self._durable = durable
        self._id = id
        self._concurrency = concurrency
        self._max_queue = max_queue
        self._now = now
        self._content = content
        self._tasks: set[asyncio.Task[KeyedExecution | None]] = set()
        self._duplicates: set[asyncio.Task[None]] = set()  # they wait for the first request with their idempotency key
        self._queued: deque[InboundRequest] = deque()
        self._by_id: dict[str, InboundRequest] = {}  # those of dispatchers, which may cancel them, until they end
        self._is_draining = False
        self._idle = asyncio.Event()
        self._idle.set()
        self.requests = 0
        """Requests that arrived, without retransmissions."""
        self.cancelled = 0
        """Requests that were stopped because their callers cancelled them."""

    @property
    def running(self) -> int:
        """Requests being run."""
        return len(self._tasks.difference(self._threads.abandoned))

    @property
    def occupied(self) -> int:
        """Occupied slots: running requests, and threads that outlived theirs."""
        return len(self._tasks)

    @property
    def queued(self) -> int:
        """Queued requests."""
        return len(self._queued)

    def accept(self, work: InboundRequest) -> bool:
        """Run, queue or refuse ``work``. Return False for a duplicate or a cancellation."""
        if Property.CANCEL in work.properties:
            if not is_sender(work.properties.get(Property.SESSION), work.id):
                return False
            if Property.GOODBYE in work.properties:
                self._deduplicator.leave(work.id)
            else:
                self._cancel(work.id)
            return False
        refusal = self._deduplicator.check_request(work)
        if refusal == DEALT_WITH:
            return False
        self.requests += 1
        if refusal is not None:
            self.refuse(work, refusal, work.problem)
            return True
        if work.entry is not None:
            self._by_id[work.id] = work
        if Property.ACK in work.properties:
            self._sender.send_receipt(work)
        if self._is_draining:
            self.refuse(work, Refusal.DRAINING)
        elif self._is_late(work):
            self.refuse(work, Refusal.EXPIRED)
        elif len(self._tasks) < self._concurrency:
            self._begin(work)
        elif len(self._queued) < self._max_queue and not self._is_stuck:
            self._queued.append(work)
        else:
            self.refuse(work, Refusal.OVERLOADED)
        return True

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
        self._by_id.pop(work.id, None)
        self._sender.refuse(work, reason, detail)
        self._durable.record_end(work)

    # -- draining -----------------------------------------------------------------------------------------------

    def stop_accepting(self) -> None:
        """Refuse further requests as draining. Durable requests that are queued go to other instances."""
        self._is_draining = True
        self._queued = deque(work for work in self._queued if not self._durable.leave(work))

    def refuse_queued(self, incomplete: Iterable[InboundRequest]) -> None:
        """Refuse the requests of which parts are missing, and those in the queue, as draining."""
        for work in (*incomplete, *self._queued):
            self.refuse(work, Refusal.DRAINING)
        self._queued.clear()

    async def finish(self, timeout: float) -> None:
        """Wait up to ``timeout`` seconds for the running requests, then cancel them."""
        for task in self._threads.abandoned:
            task.cancel()  # it only occupies a slot
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._idle.wait()
        cut_off = [*self._tasks, *self._duplicates]
        for task in cut_off:
            task.cancel()
        if cut_off:
            await asyncio.wait(cut_off)

    # -- one request --------------------------------------------------------------------------------------------

    def _cancel(self, id: str) -> None:
        """Stop the request ``id``, which its caller has cancelled."""
        work = self._by_id.get(id)
        # Other callers may wait for a request that runs under an idempotency key.
        if work is None or work.abandoned or work.keyed is not None:
            return
        work.abandoned = True
        self.cancelled += 1
        if work.task is not None:
            work.task.cancel()

    def _is_late(self, work: InboundRequest) -> bool:
        return work.deadline is not None and self._now() >= work.deadline

    def _begin(self, work: InboundRequest) -> None:
        task = work.task = asyncio.get_running_loop().create_task(self._run(work))
        self._tasks.add(task)
        self._idle.clear()
        task.add_done_callback(partial(self._on_run, work))

    async def _run(self, work: InboundRequest) -> KeyedExecution | None:
        request = self.runner.read(work)
        if not isinstance(request, Request):
            return request
        try:
            await self.runner.run(work, request)
            return None
        finally:
            if self._threads.abandoned:
                await self._hold_place(work)

    async def _hold_place(self, work: InboundRequest) -> None:
        """Occupy the request's slot until the thread of its tool has returned."""
        returned = None if work.task is None else self._threads.abandoned.get(work.task)
        if returned is None or self._is_draining:
            return
        if self._is_stuck:
            while (waiting := self._next_queued()) is not None:
                self.refuse(waiting, Refusal.OVERLOADED)
        await returned

    @property
    def _is_stuck(self) -> bool:
        """Whether abandoned threads occupy every slot: when one becomes free is unknown."""
        return len(self._threads.abandoned) >= self._concurrency

    def _on_run(self, work: InboundRequest, task: asyncio.Task[KeyedExecution | None]) -> None:
        self._tasks.discard(task)
        first = None if task.cancelled() or task.exception() is not None else task.result()
        if first is None or not self._await_first(work, first):
            self._conclude(work, task)
        while len(self._tasks) < self._concurrency and (waiting := self._next_queued()) is not None:
            self._begin(waiting)
        if not self._tasks and not self._duplicates:
            self._idle.set()

    def _await_first(self, work: InboundRequest, first: KeyedExecution) -> bool:
        """Let ``work`` wait for the reply of ``first`` without occupying a slot. Return False if it is cancelled or
        refused."""
        if work.abandoned:
            return False
        if len(self._duplicates) >= MAX_DUPLICATES:
            self.refuse(work, Refusal.OVERLOADED, f"{MAX_DUPLICATES} requests with known idempotency keys wait.")
            return False
        task = work.task = asyncio.get_running_loop().create_task(self.runner.answer_duplicate(work, first))
        self._duplicates.add(task)
        task.add_done_callback(partial(self._on_duplicate, work))
        return True

    def _on_duplicate(self, work: InboundRequest, task: asyncio.Task[None]) -> None:
        self._duplicates.discard(task)
        self._conclude(work, task)
        if not self._tasks and not self._duplicates:
            self._idle.set()

    def _conclude(self, work: InboundRequest, task: asyncio.Task[Any]) -> None:
        """Forget ``work``, whose last task has ended."""
        self._by_id.pop(work.id, None)
        self._deduplicator.record_end(work)
        self._durable.record_end(work)
        if not task.cancelled() and (error := task.exception()) is not None:
            text = "a request ended without an answer"
            log_exception(logger, logging.ERROR, text, error, content=self._content)

    def _next_queued(self) -> InboundRequest | None:
        """Remove and return the next queued request whose caller still waits for it."""
        while self._queued:
            work = self._queued.popleft()
            if work.abandoned:
                self._by_id.pop(work.id, None)
                self._deduplicator.record_end(work)
            elif self._is_late(work):
                self.refuse(work, Refusal.EXPIRED)
            else:
                return work
        return None
