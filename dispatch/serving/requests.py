"""The requests of one service instance from their acceptance to their end: run at once, queued, or refused."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Callable
from functools import partial
from operator import attrgetter

from dispatch._internal import DeadlineTimer, ends_task, excerpt, is_kind, join_names, leave_task, loop_clock
from dispatch.errors import ErrorType
from dispatch.messaging.request import PAUSED_S
from dispatch.messaging.wire import (
    InvalidResultError,
    MalformedMessageError,
    Refusal,
    Request,
    is_oversized,
    write_result,
)
from dispatch.results import read_tool_error
from dispatch.serving.fair_places import FairPlaces
from dispatch.serving.replies import (
    KEY_AGE_S,
    MAX_DUPLICATES,
    IdempotencyKeys,
    InboundRequest,
    KeyedExecution,
    RecordedReplies,
    ReplySender,
)
from dispatch.serving.tool_service import Invoke, RefusedRequestError, ToolExecutor
from dispatch.telemetry.events import ExceptionLogger
from dispatch.telemetry.observers import RunResult, ServerObserver

logger = logging.getLogger("dispatch.service")


CANCEL_S = 1.0
"""Seconds that a draining server waits for cancelled tools: long enough for clean-up, short for a person."""
RECHECK_S = 0.05
"""Seconds between two attempts to start queued requests while places are reserved for other tools."""


class RequestQueue:
    """Runs at most ``concurrency`` requests at once and queues at most ``max_queue``; refuses all others. Tools and callers
    share both fairly (:class:`FairPlaces`).

    Args:
        invoke: the tool.
        threads: of synchronous tools. A thread that outlives its request occupies the request's slot.
        sender, observer: of the instance.
        id: the service's id, for logs and refusals.
        concurrency: requests that run at once.
        max_queue: queued requests.
        content: texts of exceptions may be logged.
        decode: reads a request.
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
        content: bool,
        decode: Callable[[bytes], Request],
    ) -> None:
        self.keys = IdempotencyKeys()
        self._now = loop_clock()
        self._failures = ExceptionLogger(logger, self._now, content=content)
        self._invoke = invoke
        self._observer = observer
        self._decode = decode
        self._threads = threads
        self._sender = sender
        self._id = id
        self._concurrency = concurrency
        self._loop = asyncio.get_running_loop()
        self._places: FairPlaces[InboundRequest] = FairPlaces(concurrency, max_queue)
        self._deadlines = DeadlineTimer(self._places.occupants, attrgetter("stop_at"), self._handle_deadline)
        self._waits = DeadlineTimer(self._places.waiting, attrgetter("deadline"), self._expire)
        self._recheck: asyncio.TimerHandle | None = None
        self._paused_at = -math.inf
        """When paused streams were looked for."""
        self._duplicates: set[asyncio.Task[None]] = set()  # they wait for the first request with their idempotency key
        self.is_draining = False
        self._idle = asyncio.Event()
        self._idle.set()
        self.requests = 0
        """Requests that arrived."""
        self.errors = 0
        """Requests whose tool raised an error."""
        self.cancelled = 0
        """Requests that were stopped because their callers cancelled them."""

    @property
    def running(self) -> int:
        """Requests being run."""
        abandoned, occupants = self._threads.abandoned, self._places.occupants
        return len(occupants) if not abandoned else sum(work.task not in abandoned for work in occupants)

    @property
    def occupied(self) -> int:
        """Occupied slots: running requests, and threads that outlived theirs."""
        return self._places.running

    @property
    def queued(self) -> int:
        """Queued requests."""
        return len(self._places.waiting)

    def accept(self, work: InboundRequest, now: float) -> None:
        """Run, queue or refuse ``work``, which arrives ``now``."""
        self.requests += 1
        if self.is_draining and work.caller:
            self.refuse(work, Refusal.DRAINING)
        elif work.deadline <= now:
            self.refuse(work, Refusal.EXPIRED)
        elif self._places.start(work, work.tool, work.caller, now) or (
            self._pause_streams(now) and self._places.start(work, work.tool, work.caller, now)
        ):
            self._begin(work)
        elif self._threads.abandoned and self._places.is_stuck(work.tool, now):
            self.refuse(work, Refusal.OVERLOADED)
        else:
            surplus = self._places.wait(work, work.tool, work.caller, now)
            if surplus is not work:
                self._waits.watch(work.deadline)
                self._check_again()
            if surplus is not None:
                self.refuse(surplus, Refusal.OVERLOADED)

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
        retry_after = None
        if reason == Refusal.OVERLOADED and not detail:
            places = self._places
            detail = f"{self._id} runs {places.running} requests and {len(places.waiting)} wait."
            if self._threads.abandoned and places.is_stuck(work.tool, self._now()):
                all_places = f"All {places.running_of(work.tool)} places of {self._id}"
                if places.running < self._concurrency:
                    all_places += " for this tool"
                detail = f"{all_places} are held by threads that run on after their deadline."
            else:
                retry_after = places.retry_after(work.tool)
        self._sender.refuse(work, reason, detail, retry_after=retry_after)
        if work.task is None:
            work.replies.close()

    def cancel(self, work: InboundRequest) -> None:
        """Stop ``work``, which its caller has cancelled, unless it has just been stopped at its deadline. One with an
        idempotency key runs on: other callers may wait for its reply."""
        if work.is_cancelled or work.is_expired or work.keyed is not None:
            return
        work.is_cancelled = True
        self.cancelled += 1
        if self._places.leave(work, self._now()):
            work.replies.close()
        work.stop()

    def forget_caller(self, caller: str) -> None:
        """Reserve no places for a caller that has gone."""
        self._places.forget_caller(caller)

    def _expire(self, work: InboundRequest) -> None:
        """Refuse a queued request at its deadline: the tool will certainly not be executed."""
        self._places.leave(work, self._now())
        self.refuse(work, Refusal.EXPIRED)

    # -- draining -----------------------------------------------------------------------------------------------

    def stop_accepting(self) -> None:
        """Refuse further requests as draining, but for those of third-party callers, who cannot send them elsewhere. Queued
        requests that other instances can receive go to them."""
        self.is_draining = True
        for work in tuple(self._places.waiting):
            if work.replies.hand_over():
                self._places.leave(work, self._now())

    def refuse_queued(self) -> None:
        """Refuse the queued requests as draining, but for those of third-party callers."""
        self._refuse_queued(lambda work: bool(work.caller))

    def _refuse_queued(self, which: Callable[[InboundRequest], bool]) -> None:
        for work in filter(which, tuple(self._places.waiting)):
            self._places.leave(work, self._now())
            self.refuse(work, Refusal.DRAINING)

    async def finish(self, timeout: float) -> None:
        """Wait up to ``timeout`` seconds for the running requests, then cancel them, and wait up to :data:`CANCEL_S`."""
        for work in tuple(self._places.occupants):
            if work.task is not None and work.task.done():
                self._free_slot(work)  # only its thread runs
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._idle.wait()
        self._refuse_queued(lambda _: True)
        cut_off = [*self._duplicates]
        for work in self._places.occupants:
            if work.task is not None:
                work.is_stopped = True
                cut_off.append(work.task)
        for task in cut_off:
            task.cancel()
        if cut_off:
            await asyncio.wait(cut_off, timeout=CANCEL_S)
        endless = [work for work in self._places.occupants if work.task is not None and not work.task.done()]
        for work in endless:
            self._reply_to_cancelled(work)
            leave_task(work.task)
        if endless:
            # In the plain exchange the config values stand for the tool's name.
            names = {excerpt(work.tool) for work in endless if work.tool.lstrip()[:1] not in ("", "{")}
            text = "tools of %s that ignore their cancellation, and still run: %d. They are left alone%s"
            logger.warning(text, self._id, len(endless), f": {join_names(sorted(names), 5)}" if names else "")
        for work in tuple(self._places.occupants):
            self._end_run(work, None)  # cancelled before its first step, or endless
        self._deadlines.close()
        self._waits.close()
        if self._recheck is not None:
            self._recheck.cancel()

    # -- one request --------------------------------------------------------------------------------------------

    def _begin(self, work: InboundRequest) -> None:
        """Run ``work``, which has a place."""
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
                first = await self._execute(work)
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
        if returned is None or self.is_draining:
            self._free_slot(work)
            return
        places, now = self._places, self._now()
        places.mark_stuck(work, 1)
        returned.add_done_callback(partial(self._on_return, work))
        if places.is_stuck(work.tool, now):
            for waiting in [each for each in places.waiting if each.tool == work.tool]:
                places.leave(waiting, now)
                self.refuse(waiting, Refusal.OVERLOADED)

    def _on_return(self, work: InboundRequest, _returned: object) -> None:
        self._places.mark_stuck(work, -1)
        self._free_slot(work)

    def _free_slot(self, work: InboundRequest) -> None:
        self._places.release(work, self._now())
        if self._places.waiting:
            self._start_waiting()
        self._check_idle()

    def _start_waiting(self) -> None:
        now = self._now()
        while (work := self._places.start_next(now)) is not None:
            if work.deadline <= now:  # the timer is late
                self._places.release(work, now)
                self.refuse(work, Refusal.EXPIRED)
            else:
                self._begin(work)
        self._check_again()

    def _check_again(self) -> None:
        """Look after a while whether the other tools still need the places that are reserved for them, and whether readers
        of streams have paused."""
        if not self._places.waiting:
            return
        due = self._now() + (RECHECK_S if self._places.is_blocked else PAUSED_S)
        if self._recheck is None or due < self._recheck.when():
            if self._recheck is not None:
                self._recheck.cancel()
            self._recheck = self._loop.call_at(due, self._on_recheck)

    def _on_recheck(self) -> None:
        self._recheck = None
        self._pause_streams(self._now())
        self._start_waiting()

    def _pause_streams(self, now: float) -> bool:
        """Give away the places of streams that wait for readers that have paused; return whether there are any."""
        if now - self._paused_at < RECHECK_S:
            return False
        self._paused_at = now
        paused = False
        for work in self._places.occupants:
            if now - work.waits_since >= PAUSED_S and work.resume is None and self._places.pause(work, now):
                work.resume = partial(self._resume, work)
                paused = True
        return paused

    def _resume(self, work: InboundRequest) -> None:
        self._places.resume(work, self._now())

    def _check_idle(self) -> None:
        if not self._places.occupants and not self._duplicates:
            self._idle.set()

    def _await_first(self, work: InboundRequest, first: KeyedExecution) -> bool:
        """Let ``work`` wait for the reply of ``first`` without occupying a slot. Return False if it is cancelled or
        refused."""
        if work.is_cancelled:
            return False
        if len(self._duplicates) >= MAX_DUPLICATES:
            self.refuse(work, Refusal.OVERLOADED, f"{MAX_DUPLICATES} requests with known idempotency keys wait.")
            return False
        task = work.task = self._loop.create_task(self._answer_duplicate(work, first))
        self._duplicates.add(task)
        task.add_done_callback(partial(self._on_duplicate, work))
        return True

    def _on_duplicate(self, work: InboundRequest, task: asyncio.Task[None]) -> None:
        self._duplicates.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log_failure(error)
        work.replies.close()
        self._check_idle()

    # -- its tool -----------------------------------------------------------------------------------------------

    def _read(self, work: InboundRequest, now: float) -> Request | KeyedExecution | None:
        """Decode the request of ``work``, and claim its idempotency key. Return the first execution under the same key if
        there is one; None: the request is malformed and has been refused."""
        try:
            request = self._decode(work.payload)
        except MalformedMessageError as error:
            self.refuse(work, Refusal.INVALID_REQUEST, f"The tool was not executed: {error}.")
            return None
        work.payload = b""
        work.replies.release_payload()
        key = work.idempotency_key
        if key is not None:
            if is_oversized(key):
                too_long = "The tool was not executed: the idempotency key is too long."
                self.refuse(work, Refusal.INVALID_REQUEST, too_long)
                return None
            keyed, is_first = self.keys.claim(request.user, key, now)
            if not is_first:
                return keyed
            work.keyed = keyed
            work.replies = RecordedReplies(work.replies, self.keys, keyed)
        return request

    async def _answer_duplicate(self, work: InboundRequest, first: KeyedExecution) -> None:
        """Reply to ``work`` with the reply to the ``first`` request with its idempotency key, once that has ended."""
        work.observer = self._observer.start_request(work, self._now())
        try:
            async with asyncio.timeout_at(None if work.deadline == math.inf else work.deadline):
                await first.ended.wait()
            if first.refusal is not None:
                self.refuse(work, *first.refusal)
            elif not first.messages:
                self.refuse(work, Refusal.REPLY_EVICTED)
            await self._sender.stream_stored(work, first)
        except TimeoutError:
            self.refuse(
                work, Refusal.STOPPED, "The caller's deadline passed before the first request of its key ended."
            )
        except asyncio.CancelledError:
            self._reply_to_cancelled(work)
            raise
        finally:
            work.observer.on_end()

    def _reply_to_cancelled(self, work: InboundRequest) -> None:
        """Reply to a request whose task is cancelled because the service stops."""
        if work.is_cancelled or work.replies.hand_over():
            work.observer.on_error(ErrorType.CANCELLED)
            return
        stopped = (
            "The service stopped while the tool ran; the tool may have been executed. Check its effect before you call it "
            "again."
        )
        self._sender.send_error(work, ErrorType.CANCELLED, stopped, ErrorType.CANCELLED)

    def _handle_deadline(self, work: InboundRequest) -> None:
        """Cancel the tool of ``work`` at its caller's deadline. Under an idempotency key only refuse the request: the tool
        runs on, for the next request with that key, until the key is too old to be stored."""
        runs_until = 0.0 if work.keyed is None else work.keyed.born + KEY_AGE_S
        if runs_until > work.stop_at and not work.is_refused:
            work.stop_at = runs_until
            self.refuse(
                work,
                Refusal.STOPPED,
                "The caller's deadline passed. The tool runs on: a request with the same idempotency key gets its reply.",
            )
        else:
            work.stop_at = math.inf
            work.is_expired = True
            work.stop()

    async def _execute(self, work: InboundRequest) -> KeyedExecution | None:
        """Run the tool of ``work``, and reply. Only a cancellation of the task is raised.

        Returns:
            The first execution under the same idempotency key, if there is one: then the tool does not run, and
            :meth:`_answer_duplicate` replies.
        """
        began = self._now()
        request = self._read(work, began)
        if type(request) is not Request:
            assert not isinstance(request, Request)
            return request
        end: RunResult | None = "stopped"
        work.observer = self._observer.start_request(work, began)
        try:
            result = await self._invoke(request, work)
            if type(result) is str:
                self._sender.send_result(work, result)
            elif isinstance(result, AsyncIterator):
                await self._sender.send_stream(work, result)
            else:
                self._sender.send_result(work, write_result(result))
            end = "ok"
        except RefusedRequestError as refused:
            end = None
            self._refuse_unexecuted(work, request.user, refused)
        except BaseException as raised:  # one that leaves the task, such as SystemExit, would end the event loop
            is_cancellation = is_kind(raised, asyncio.CancelledError)
            if ends_task(raised, work.task) and (work.is_stopped or not is_cancellation):
                if not is_cancellation:
                    raise
                if not work.is_expired:
                    self._reply_to_cancelled(work)
                    raise
                self._on_expiry(work)
            elif is_kind(raised, TimeoutError) and work.is_expired:
                # Not the tool's own error: the caller's deadline, which its own clock is about to notice too.
                self._on_expiry(work)
            else:
                end = "error"
                self.errors += 1
                self._sender.send_error(work, *read_tool_error(raised))
                name = self._id
                if is_kind(raised, InvalidResultError) and raised.tool:
                    name = f"{name}: tool '{raised.tool}'"
                self._failures.log_tool_error(name, raised, service=self._id)
        finally:
            if end is not None:
                work.observer.on_tool_end(end, self._now() - began)
            work.observer.on_end()
        return None

    def _refuse_unexecuted(self, work: InboundRequest, user: str, refused: RefusedRequestError) -> None:
        """Refuse a request that its tool does not accept. A later request with its idempotency key is executed."""
        if work.keyed is not None and work.idempotency_key is not None:
            self.keys.release(user, work.idempotency_key)
            work.keyed.refusal = (refused.reason, refused.message)
        if not work.is_refused:
            self.refuse(work, refused.reason, refused.message)

    def _on_expiry(self, work: InboundRequest) -> None:
        if not work.is_refused:
            self.refuse(work, Refusal.STOPPED)

    def _log_failure(self, error: BaseException) -> None:
        self._failures.log("a request ended without an answer", error)
