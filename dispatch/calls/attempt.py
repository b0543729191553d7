"""Step 4 of a call: its attempts.

:meth:`Attempts.begin` makes the first attempt inline and hedges it where the policy says so; :meth:`Attempts.retry` follows
while policy, budget and deadline allow. One attempt (:meth:`Attempts.attempt`) goes through

    a breaker · b rate limit · c bulkhead (:class:`Admission`)
    d balancer (:class:`~dispatch.routing.pool.InstancePool`) · e exchange (an :class:`~dispatch.routing.instance.Instance`)
    f finish

and every permit gets exactly one outcome, whatever happens.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec

from dispatch._internal import Clock, Rejection
from dispatch.calls.error_messages import (
    error_from_closing,
    error_from_disconnection,
    error_from_exchange,
    error_from_key_holder_loss,
    error_from_missing_instance,
    error_from_oversized_request,
    error_from_rejection,
    error_from_requirement,
    error_from_unanswered_request,
    error_from_unserved_topic,
    name_missing_argument,
)
from dispatch.calls.guards import ToolGuards
from dispatch.calls.resolution import ResolvedTool
from dispatch.errors import DispatchError, ErrorType, Origin, Outcome, ToolError, TransportError
from dispatch.messaging.request import READER_IDLE, TOOL_IDLE, Answer, Lost, Refused, Request, Settled, Tally, TimedOut
from dispatch.messaging.wire import Refusal
from dispatch.protocol.events import Failure
from dispatch.resilience.aio import OUTPACED, hedged, retry
from dispatch.resilience.breaker import BreakerPermit
from dispatch.resilience.bulkhead import BulkheadPermit
from dispatch.resilience.durations import GROWTH, MAX_MULTIPLE, attempt_deadline
from dispatch.resilience.rate_limit import REPLACED, RatePermit, Waiter
from dispatch.resilience.retry import ANSWERED, NoHedgeReason, NoRetryReason, RetryDecision, RetryTarget, may_have_run
from dispatch.routing.instance import DISCOVERY_S, GONE_S, IN_PROCESS, Channel, Connection, Holder, Instance
from dispatch.routing.pool import UNRESPONSIVE_S, InstancePool, SelectedInstance
from dispatch.telemetry.observers import (
    NO_PROPERTIES,
    NULL_REQUEST,
    CallObserver,
    RequestObserver,
    RequestRecord,
    WaitRecord,
)
from dispatch.transports.base import PEER_BACK_S

# Admission of one attempt by its tool's guards: a breaker · b rate limit · c bulkhead. Every permit is returned.
#
# The breaker's permit is released before queueing and acquired again afterwards: the breaker may open meanwhile, and a
# half-open call must not hold its place while it waits.


_SUCCESS = Outcome.SUCCESS
_CANCELLED = Outcome.CANCELLED
_REJECTED = Outcome.REJECTED
_TIMEOUT = Outcome.TIMEOUT
_TOOL_ERROR = Outcome.TOOL_ERROR

OCCUPIED_AFTER_S = 1.0
"""Seconds after the end of a call from which a thread that still executes its tool counts as hanging. Until then other calls
wait for its place."""


class Admission(msgspec.Struct, eq=False):
    """The permits of one attempt: :meth:`try_acquire`; then, if ``must_wait``, :meth:`wait` or :meth:`withdraw`; in any
    case :meth:`finish`.

    Attributes:
        place: the permit of the bulkhead; None: it has none.
        must_wait: the rate limit or the bulkhead has no place now.
    """

    _guards: ToolGuards
    _breaker: BreakerPermit | None = None
    _rate: RatePermit | None = None
    _waiter: Waiter | None = None
    place: BulkheadPermit | None = None
    must_wait: bool = False

    def try_acquire(self, user: str, deadline: float, now: float) -> Rejection | None:
        """Acquire the permits as far as possible without waiting. None: admitted, unless ``must_wait``.

        Args:
            user: on whose behalf the call is made.
            deadline: of the whole call, on the guards' clock.
            now: the current time on that clock. perf: one reading for all guards.
        """
        guards = self._guards
        breaker = guards.breaker
        if breaker is not None:
            answer = breaker.admit(now)
            if type(answer) is Rejection:
                pool = guards.pool
                # An instance has come to a service that had none, or to those that have asked for a pause.
                if pool is not None and (
                    breaker.expect_recovery(pool.returned_at) or breaker.end_pause(pool.joined_at)
                ):
                    answer = breaker.admit(now)
                if type(answer) is Rejection:
                    return answer
            permit: BreakerPermit = answer  # type: ignore[assignment] # it is no rejection
            if permit.probe and (rejection := self._cede(permit, deadline, now)) is not None:
                return rejection
            self._breaker = permit
        rates = guards.rates
        if rates is not None:
            may = rates.admit(user, deadline)
            if type(may) is RatePermit:
                self._rate = may
            elif type(may) is Waiter:
                self._waiter = may
                self._release_breaker()
                return None
            else:
                return may  # type: ignore[return-value] # a rejection
        bulkhead = guards.bulkhead
        if bulkhead is not None:
            place = bulkhead.guard.admit(now)
            if type(place) is not Rejection:
                self.place = place  # type: ignore[assignment] # likewise
            elif place.reason != "full":
                return place
            else:
                self._release_breaker()
        return None

    def _release_breaker(self) -> None:
        """Return the breaker's permit before a wait."""
        self.must_wait = True
        breaker, self._breaker = self._breaker, None
        if breaker is not None:
            breaker.finish(_CANCELLED)

    async def wait(self, user: str, deadline: float, priority: str | None) -> Rejection | None:
        """Wait for the permits that were not available. None: admitted."""
        self.must_wait = False
        waiter, self._waiter = self._waiter, None
        guards = self._guards
        if waiter is not None:
            assert guards.rates is not None
            may: RatePermit | Rejection | None = await guards.rates.wait(waiter)
            while isinstance(may, Rejection) and may.reason == REPLACED:
                may = None if guards.rates is None else await guards.rates.acquire(user, deadline)
            if isinstance(may, Rejection):
                return may
            self._rate = may
        if guards.bulkhead is not None:
            place = await guards.bulkhead.acquire(user=user, deadline=deadline, priority=priority)
            if isinstance(place, Rejection):
                return place
            self.place = place
        breaker = guards.breaker
        if breaker is not None:
            answer = breaker.admit()
            if isinstance(answer, Rejection):
                return answer
            if answer.probe and (rejection := self._cede(answer, deadline, guards.clock())) is not None:
                return rejection
            self._breaker = answer
        return None

    def _cede(self, permit: BreakerPermit, deadline: float, now: float) -> Rejection | None:
        """Leave the half-open permits but one to calls that wait as long as the tool usually takes."""
        answer_s = self._guards.answer_s(now)
        return permit.cede() if answer_s is not None and deadline - now < answer_s else None

    def release(self) -> None:
        """Return the permits before anything was sent, so that they can be acquired again."""
        self.finish(_CANCELLED, sent=False)
        self._breaker = self._rate = self.place = None

    def withdraw(self) -> None:
        """Leave the queue instead of waiting."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            assert self._guards.rates is not None
            self._guards.rates.leave(waiter)

    def record_first_chunk(self) -> None:
        """A stream has begun: the breaker counts a success now, because the stream may last longer than the lease of a
        half-open call."""
        if self._breaker is not None:
            self._breaker.finish(_SUCCESS)

    def keep_place(self, until: asyncio.Future[Any]) -> None:
        """Keep the place in the bulkhead until the future is done: the tool goes on after its attempt."""
        place, self.place = self.place, None
        if place is not None:
            until.add_done_callback(lambda _: place.finish(_CANCELLED))

    def mark_occupied(self, until: asyncio.Future[Any]) -> None:
        """Count the place in the bulkhead as occupied until the future is done, by a thread that cannot be stopped; from
        :data:`OCCUPIED_AFTER_S` on."""
        bulkhead = self._guards.bulkhead
        if bulkhead is not None:
            guard, is_counted = bulkhead.guard, False

            def begin() -> None:
                nonlocal is_counted
                is_counted = True
                guard.occupied += 1

            def end(_: object) -> None:
                timer.cancel()
                guard.occupied -= is_counted

            timer = until.get_loop().call_later(OCCUPIED_AFTER_S, begin)
            until.add_done_callback(end)

    def finish(
        self,
        outcome: Outcome,
        *,
        sent: bool,
        retry_after: float | None = None,
        counts: bool = True,
        now: float | None = None,
    ) -> None:
        """Return every permit with the outcome of the attempt; a second call does nothing.

        Args:
            outcome: of the attempt.
            sent: the request was sent, or may have been; otherwise the rate limit's permit is given back.
            retry_after: seconds that the service asked for before the next request.
            counts: the breaker counts the outcome; otherwise its permit is only returned.
            now: the current time on the guards' clock, if it is known.
        """
        # Each permit counts its first outcome only.
        if self._breaker is not None:
            self._breaker.finish(outcome if counts else _CANCELLED, retry_after=retry_after, now=now)
        if self.place is not None:
            self.place.finish(outcome, now=now)
        rate, self._rate = self._rate, None
        if rate is not None and not sent:
            rate.give_back()


# The state of one call and of one attempt of it: what is known while they are in flight, and how they end.


FAILURES = frozenset({Outcome.TIMEOUT, Outcome.TRANSPORT})
"""Outcomes that have an :class:`Origin`."""
_INSTANCE_ENDED = frozenset({ErrorType.INSTANCE_LOST, ErrorType.INSTANCE_RESTARTED})
"""Error types of requests whose instance died or was restarted."""
_CALLERS_MISTAKES = frozenset({ErrorType.REQUEST_TOO_LARGE, ErrorType.RESPONSE_LIMIT_EXCEEDED})
"""Error types of the transport that concern what the caller sent or asked for."""


class CallOptions(msgspec.Struct, frozen=True):
    """What a caller may set for one call; every field has a default.

    Attributes:
        user: on whose behalf the tool is called.
        timeout: seconds for the whole call or stream; None: the tool's policy.
        idle_timeout: seconds between two chunks of a stream; None: the tool's policy.
        idempotency_key: the caller's name for this piece of work: an instance does it once.
        priority: class in the bulkhead's queue; None: the most urgent.
        config: JSON text of the config values; None: those of the tool's descriptor.
        by_model: a model has written the arguments.
        context: any value, for tools of this process (:class:`dispatch.CallContext`).
        properties: further ones of its requests.
    """

    user: str = ""
    timeout: float | None = None
    idle_timeout: float | None = None
    idempotency_key: str | None = None
    priority: str | None = None
    config: str | None = None
    by_model: bool = False
    context: Any = None
    properties: Mapping[str, str] = NO_PROPERTIES


NO_OPTIONS = CallOptions()


class Call(msgspec.Struct, eq=False):
    """One call, over all its attempts.

    Attributes:
        tool, guards, observer: of the tool that is called, and of this call.
        options: as the caller set them.
        started: when the call began, on the loop's clock.
        payload: of each request.
        deadline: of the whole call, ``limit`` seconds after it began.
        is_stream: the caller reads chunks as they arrive.
        idle: seconds between two chunks at most, for a stream.
        stream_deadline: of a stream whose first chunk has the deadline of a call: ``deadline``; None: of any other.
        requests: sent so far, over all attempts.
        tried: names of the instances of the attempts so far.
        key_holder: the instance that may have executed the request and remembers its idempotency key.
        refused_by: names of instances that refused the request.
        last_request, last_wait, arguments: for the record of the call (:class:`~dispatch.telemetry.observers.CallRecords`).
    """

    tool: ResolvedTool
    guards: ToolGuards
    observer: CallObserver
    options: CallOptions
    started: float
    payload: bytes = b""
    deadline: float = 0.0
    limit: float = 0.0
    is_stream: bool = False
    idle: float = 0.0
    stream_deadline: float | None = None
    requests: int = 0
    tried: list[str] = []
    key_holder: Instance | None = None
    refused_by: tuple[str, ...] = ()
    last_request: RequestRecord | None = None
    last_wait: WaitRecord | None = None
    arguments: str | None = None

    def on_retry_decision(self, decision: RetryDecision | NoRetryReason) -> None:
        """Report whether a failed attempt is followed by another one."""
        if isinstance(decision, RetryDecision):
            self.observer.on_retry(decision.wait)
        elif decision is NoRetryReason.BUDGET:
            self.observer.on_budget_exhausted()

    def on_hedge_decision(self, reason: NoHedgeReason | None) -> None:
        """Report whether a hedge that was due is sent: None, or why not."""
        if reason is None:
            self.observer.on_hedge()
        elif reason is NoHedgeReason.BUDGET:
            self.observer.on_budget_exhausted()


class Attempt(msgspec.Struct, eq=False):
    """One attempt of a call.

    Attributes:
        call: that it belongs to.
        number: from 1; a hedge has that of the first attempt.
        reason: ``first``, ``retry`` or ``hedge``.
        target: which instances may be used: any, or only the holder of the call's idempotency key.
        admission: its way through the guards.
        began: when the guards had admitted it, on the loop's clock.
        deadline, limit_name, limit: when it ends, the name of that limit, and the limit in seconds.
        last_deadline: when it ends at an instance that is blocked: a retry might block another one, too. The attempt
            timeout of a policy holds there all the same.
        latest: when it ends at the latest while no call that began later has been answered.
        selected: the balancer's choice; None before it, and after its permit was returned.
        request_id: of the last request.
        request: observes the last request.
        is_addressed: the last request has an instance, and has not ended.
        sent: the request left, or may have.
        replies, first_chunk: of a stream.
        settled: how the exchange ended; None: there was none.
        outcome: CANCELLED until it is known; REJECTED when one of dispatch's own guards refused the attempt.
        error: what the caller would get; None for SUCCESS.
        retry_after: seconds that the service asked for before the next request.
        is_impatient: it timed out sooner than the tool usually answers, which says nothing about the service.
        is_usual: its duration says how long the tool takes.
        is_outpaced: its hedge was answered first.
        slowness: logarithm of the time to a stream's first chunk relative to the usual time of an answer of its tool; None:
            no stream, or its service has one instance.
        counts_for_instance, counts_for_tool: whether outlier detection and the circuit breaker count the failure.
        remembered: the instance remembers idempotency keys and is still there.
        has_ended: its stream has, and its permits were returned.
        watch: timer of a request at a topic on which nothing has replied.
        claimed: what undoes the claim on the idempotency key for the instance of the last request, the name of that
            instance, and the call's key holder before it.
    """

    call: Call
    number: int
    reason: str
    target: RetryTarget
    admission: Admission
    began: float = 0.0
    deadline: float = 0.0
    last_deadline: float = 0.0
    latest: float = 0.0
    limit_name: str = "call"
    limit: float = 0.0
    selected: SelectedInstance | None = None
    request_id: str = ""
    request: RequestObserver = NULL_REQUEST
    is_addressed: bool = False
    sent: bool = False
    replies: Request | None = None
    first_chunk: str | None = None
    settled: Settled | None = None
    outcome: Outcome = Outcome.CANCELLED
    error: DispatchError | None = None
    retry_after: float | None = None
    is_impatient: bool = False
    is_usual: bool = False
    is_outpaced: bool = False
    slowness: float | None = None
    has_ended: bool = False
    counts_for_instance: bool = True
    counts_for_tool: bool = True
    remembered: bool = False
    watch: asyncio.TimerHandle | None = None
    claimed: tuple[Callable[[], None], str, Instance | None] | None = None

    @property
    def error_type(self) -> str | None:
        """The ``type`` of the error."""
        return None if self.error is None else self.error.type

    def start(self, now: float) -> None:
        """The guards have admitted the attempt: set its own deadline.

        A stream has that of the call, unless its first chunk has one of its own. Otherwise the policy's attempt timeout, or
        a multiple of the usual duration while another attempt could follow.
        """
        call = self.call
        self.began = now
        self.deadline = self.last_deadline = call.deadline
        self.limit = call.limit
        if call.is_stream and call.stream_deadline is None:
            self.limit_name = "stream"
            return
        guards, limit = call.guards, call.tool.policy.attempt_timeout
        attempts_left, usual = 1, None
        if limit is None:
            if guards.repeatable and guards.retrying is not None:
                attempts_left += guards.retrying.settings.max_attempts - self.number
            if attempts_left <= 1:
                return
            self.latest = now + (call.deadline - now) / attempts_left
            usual = guards.usual.value(now)
            if usual is None:  # of a tool that is called seldom there are too few durations for more than a mean
                if not guards.is_mean_within((self.latest - now) / MAX_MULTIPLE):
                    return
                self.latest = call.deadline
        ends, limit_name = attempt_deadline(now, call.deadline, limit=limit, attempts_left=attempts_left, usual=usual)
        if limit_name == "attempt":
            self.deadline, self.limit_name, self.limit = ends, limit_name, ends - now
            if limit is not None:
                self.last_deadline = ends

    def postpone(self, now: float) -> float:
        """The usual time of an attempt has passed many times. Return when the attempt ends: later, while no call that began
        after it has been answered. The whole tool may be slow, and another attempt would be no faster. Where no other call
        could begin, because all places are taken, one attempt at a time makes room."""
        guards = self.call.guards
        if guards.overtook > self.began or now >= self.latest or guards.makes_room(self.began, now):
            return now
        ends = min(now + UNRESPONSIVE_S, self.latest)
        self.limit = ends - self.began
        return ends

    # -- the request --------------------------------------------------------------------------------------------

    def create_request(self, loop: asyncio.AbstractEventLoop, tally: Tally | None = None) -> Request:
        """Return the request of this attempt; ``tally`` counts its replies."""
        call = self.call
        tool, options = call.tool, call.options
        properties = self.request.properties
        if options.properties:
            properties = {**options.properties, **properties}
        request = Request(
            self.deadline,
            tool.policy.max_response_bytes,
            self.last_deadline,
            limit_name=self.limit_name,
            tally=tally,
            idle=None if not call.is_stream else call.idle if call.stream_deadline is None else 0.0,
            id=self.request_id,
            tool=tool.label,
            payload=call.payload,
            began=self.began,
            properties=properties,
            attempt=self.number,
            key=options.idempotency_key,
            is_repeatable=tool.repeatable,
            is_redeliverable=tool.is_durable and tool.may_be_redelivered(options.idempotency_key),
            place=self.admission.place,
            waiter=loop.create_future() if not call.is_stream or call.stream_deadline is not None else None,
            postpone=self.postpone if self.last_deadline > self.deadline else None,
        )
        if options.idempotency_key is not None:
            request.run_until = call.deadline  # it runs on when its attempt ends: the next attempt gets its reply
        elif self.last_deadline > self.deadline:
            if self.selected is None or self.selected.instance.is_named:
                request.run_until = self.last_deadline  # CANCEL ends it earlier, unless the instance is blocked
            elif call.guards.overtook < self.began - self.limit:
                request.run_until = max(self.latest, self.deadline)  # the whole tool is slow; there is no CANCEL
        if call.is_stream:
            self.replies = request
            if call.stream_deadline is not None:
                request.run_until = call.stream_deadline  # likewise
        return request

    async def read_first_chunk(self, request: Request, clock: Clock) -> bool:
        """Wait for the first chunk of a stream. Return False if it ended without one."""
        try:
            chunk = await anext(request, None)
        except BaseException:
            request.close()
            raise
        if chunk is not None:
            if (deadline := self.call.stream_deadline) is not None:
                self.limit_name, self.limit = "stream", deadline - self.call.started
                request.begin_stream(deadline, self.limit_name, self.call.idle)
            self.record_first_chunk(chunk, clock())
        return chunk is not None

    def clear(self, now: float) -> None:
        """Forget how the former request of this attempt ended: another instance gets one."""
        if self.admission.place is not None:
            self.admission.place.restart(now)
        self.start(now)
        self.sent = False
        self.error = self.retry_after = self.settled = None
        self.counts_for_instance = self.counts_for_tool = True

    def claim_key(self, pool: InstancePool, instance: Instance) -> None:
        """Record that ``instance`` may do the work of the call's idempotency key."""
        call = self.call
        assert call.options.idempotency_key is not None
        holder = Holder(instance.name, instance.incarnation)
        undo = pool.keys.claim(call.options.user, call.options.idempotency_key, holder)
        self.claimed = undo, instance.name, call.key_holder
        call.key_holder = instance

    def _release_key(self) -> None:
        """The request was surely not executed: its instance does not know the key."""
        if self.claimed is not None:
            call = self.call
            undo, name, call.key_holder = self.claimed
            self.claimed = None
            undo()
            if self.sent:  # and was refused there
                call.refused_by = (*call.refused_by, name)

    # -- the end ------------------------------------------------------------------------------------------------

    def reject(self, error: DispatchError) -> None:
        """One of dispatch's own guards refused the attempt."""
        self.error = error
        self.outcome = _REJECTED
        self.retry_after = error.retry_after

    def conclude(self, settled: Settled) -> None:
        """The exchange has ended in ``settled``."""
        self.settled = settled
        if type(settled) is Answer and settled.error_type is None:
            self.outcome = _SUCCESS
            return
        tool = self.call.tool
        if type(settled) is TimedOut and settled.limit_name == "call":
            self.limit = self.call.limit
        # In a session the service has all the time of the call.
        is_shared = self.selected is not None and not self.selected.instance.is_named
        limit_name = self.limit_name if is_shared else "call"
        error = error_from_exchange(
            settled, tool=tool.label, limit=self.limit, repeatable=tool.repeatable, limit_name=limit_name
        )
        assert error is not None  # only an answer can be a success
        if tool.descriptor is not None and isinstance(error, ToolError):
            error = name_missing_argument(error, tool.descriptor, self.call.payload)
        self.fail(error)

    def conclude_stream(self) -> Settled:
        """The replies of a stream have ended: as :meth:`conclude`, with the limit that passed. Return how."""
        assert self.replies is not None
        settled = self.replies.settled
        assert settled is not None
        limit_name = settled.limit_name if isinstance(settled, TimedOut) else ""
        if limit_name in (TOOL_IDLE, READER_IDLE):
            self.limit = self.call.idle
        self.conclude(settled)
        if limit_name == READER_IDLE and self.error is not None:
            self.error.origin = Origin.LOCAL
            self.counts_for_instance = self.counts_for_tool = False
        return settled

    def fail(self, error: DispatchError) -> None:
        """The attempt ended in ``error``, perhaps before anything was sent."""
        self.error = error
        self.outcome = error.outcome
        if error.type in _CALLERS_MISTAKES:
            self.outcome = Outcome.INVALID_ARGUMENTS
        elif error.rejected_by is not None and error.rejected_by != "service":
            self.outcome = _REJECTED
        self.retry_after = error.retry_after
        if self.outcome is Outcome.THROTTLED and self.selected is not None:
            # Its instance is spared; the tool pauses only when all have asked for that. Others may be about to be known.
            guards = self.call.guards
            pool = guards.pool
            self.counts_for_tool = pool is None or not (
                pool.has_other_unpaused(self.selected.pick.instance) or guards.clock() < pool.returned_at + DISCOVERY_S
            )
        never_left = type(self.settled) is Refused or (isinstance(error, TransportError) and not error.may_have_run)
        if self.sent and (never_left or error.rejected_by == "exchange"):
            self.sent = False
            self.call.requests -= 1
        if not may_have_run(self.outcome, sent=self.sent):
            self._release_key()

    def record_answer(self, now: float) -> None:
        """The instance has answered: it is healthy."""
        if self.selected is not None:
            guards, name = self.call.guards, self.selected.pick.instance
            guards.answered_by, guards.answered_at = name, now
            if self.began > guards.overtook:
                guards.overtook = self.began
            pool = guards.pool
            if pool is not None and pool.is_balanced:
                guards.answered[name] = pool.answered[name] = now
                if self.began > pool.overtook:
                    pool.overtook = self.began

    def record_first_chunk(self, chunk: str, now: float) -> None:
        """A stream has begun. Its instance has answered, and the permits of both breakers are settled: they count their
        first outcome only. The permits of the balancer and the bulkhead are held until the stream ends."""
        self.first_chunk = chunk
        self.outcome = _SUCCESS
        self.record_answer(now)
        self.admission.record_first_chunk()
        if self.selected is not None and self.selected.probe is not None:
            self.selected.probe.finish(_SUCCESS)
        guards = self.call.guards
        if guards.pool is not None and guards.pool.is_balanced:
            self.slowness = guards.record_slowness(now - self.began)

    def attribute_failure(self, now: float) -> None:
        """Find where a failure, if the attempt has one, arose, and so which guards count it."""
        error, selected = self.error, self.selected
        if error is None or self.outcome not in FAILURES:
            return
        if not self.sent or selected is None or self._was_disconnected(selected.channel):
            error.origin = Origin.LOCAL
        if error.origin is Origin.LOCAL or selected is None:
            self.counts_for_instance = self.counts_for_tool = False
            return
        guards = self.call.guards
        if guards.record_failure(selected.pick.instance, now):
            error.origin = Origin.INSTANCE
            self.counts_for_tool = False
        elif self.outcome is _TIMEOUT and guards.has_recovered(self.began, now):
            self.counts_for_tool = False
        instance = selected.instance
        if instance.is_named and error.type in _INSTANCE_ENDED:
            if instance.is_loss_counted:
                self.counts_for_instance = self.counts_for_tool = False
            instance.is_loss_counted = True

    def _was_disconnected(self, channel: Channel) -> bool:
        """Return whether the broker was out of reach at some time since the attempt began."""
        connection, topics = channel.connection, channel.topics
        return connection.was_disconnected_since(self.began) or (
            bool(topics) and connection.was_disconnected_since(self.began - PEER_BACK_S, topics)
        )

    def release_instance(self, now: float | None = None) -> None:
        """End the request and return the permits of the balancer and of the instance's breaker; ``now`` as of
        :meth:`finish`."""
        request, self.request = self.request, NULL_REQUEST
        selected, self.selected = self.selected, None
        if self.watch is not None:
            self.watch.cancel()
        if selected is None:
            request.on_end(self.outcome, self.error, instance="", sent=self.sent)
            return
        outcome, settled, guards = self.outcome, self.settled, self.call.guards
        instance, pool = selected.instance, guards.pool
        if self.first_chunk is not None and not instance.is_named:
            selected.channel.streams -= 1
        if outcome is not _SUCCESS:
            self.remembered = instance.has_key_memory and selected.channel.instances.get(instance.name) is instance
        request.on_end(outcome, self.error, instance=selected.pick.instance, sent=self.sent)
        if guards.records is not None and self.is_addressed:
            self.is_addressed = False
            error = "" if self.error is None else str(self.error.type)
            ended = guards.clock() if now is None else now
            id, name, call = self.request_id, selected.pick.instance, self.call
            call.last_request = RequestRecord(
                id, self.number, self.reason, self.began, ended, outcome, error, name, self.sent, call.last_request
            )
        if self.is_impatient:
            outcome = _CANCELLED
        if not self.counts_for_instance:
            outcome = _REJECTED  # says nothing about how long a reply takes, either
        slowness = None
        if pool is not None and pool.is_balanced and (outcome is _SUCCESS or outcome is _TOOL_ERROR):
            slowness = self.slowness
            if slowness is None and now is not None:
                took = now - self.began
                slowness = guards.record_slowness(took) if outcome is _SUCCESS else guards.slowness_of_error(took)
        in_flight = settled.in_flight if type(settled) is Answer else None
        selected.release(outcome, self.retry_after, in_flight, slowness, self.is_outpaced)

    def finish(self, now: float | None = None) -> None:
        """Step f: return every permit with the one outcome of the attempt.

        Args:
            now: the current time on the guards' clock, if it is known.
        """
        self.release_instance(now)
        outcome = self.outcome if not self.is_impatient and self.counts_for_instance else _CANCELLED
        self.admission.finish(
            outcome, sent=self.sent, retry_after=self.retry_after, counts=self.counts_for_tool, now=now
        )
        error = self.error
        if error is not None and error.rejected_by is not None:
            self.call.observer.on_rejected(error)


_KEY_HOLDER, _ANY_INSTANCE = RetryTarget.KEY_HOLDER, RetryTarget.ANY_INSTANCE
_TIMED = ANSWERED | {_TIMEOUT}


LEAST_REST = 0.1
"""Share of a call's time that is left to the tool when its call waits for an instance, where it usually takes less."""
MAX_WAITING = 20_000
"""Calls that wait for the broker or an instance at once: some kilobytes each."""
MAX_HOPS = 4
"""Instances that are tried in turn while each one declines the request, because it is draining or overloaded."""

_ENDED = frozenset({Failure.SILENT, Failure.RESTARTED, Failure.CLOSED})
"""Why a session ends whose instance has ended, or is about to: another one may take its place."""
_NO_INSTANCE = Rejection("balancer", "no-instance")


class Pools(Protocol):
    """The instance pools of tools."""

    def get(self, user: ResolvedTool) -> InstancePool | None:
        """Return the pool of a tool's service if it is open."""

    async def open(self, user: ResolvedTool, deadline: float) -> InstancePool:
        """Return the pool of a tool's service, opened if necessary.

        Raises:
            TransportError: the broker is out of reach, or refuses, or takes longer than ``deadline``.
        """


class Attempts:
    """Makes the attempts of calls, on the running loop.

    Args:
        pools: the instances of each service.
        clock: the loop's.
        new_id: returns an id that was never used before.
        broker: the connection over which pools are opened, but for tools of this process.

    Attributes:
        is_closing: no attempt begins any more.
    """

    def __init__(self, pools: Pools, clock: Clock, new_id: Callable[[], str], broker: Connection = IN_PROCESS) -> None:
        self._pools = pools
        self._loop = asyncio.get_running_loop()
        self._now = clock
        self._new_id = new_id
        self._broker = broker
        self._waiting = 0
        self.is_closing = False

    async def run(self, call: Call) -> Attempt:
        """Make the attempts of a call and return the one that the caller gets the result of. A stream's has its first chunk;
        its caller calls :meth:`follow_stream`, reads the rest and calls :meth:`end_stream`."""
        attempt = await self.begin(call)
        return attempt if attempt.outcome is _SUCCESS else await self.retry(call, attempt)

    def begin(self, call: Call) -> Coroutine[Any, Any, Attempt]:
        """Return the first attempt of a call, hedged where the policy says so, to be awaited. perf: the coroutine of
        :meth:`attempt` itself."""
        guards = call.guards
        guards.budget.record_call(call.started)
        target = _ANY_INSTANCE if call.options.idempotency_key is None else _KEY_HOLDER
        hedging = guards.hedging
        if hedging is None or call.is_stream:
            return self.attempt(call, 1, target)
        return hedged(
            lambda second: self.attempt(call, 1, _ANY_INSTANCE if second else target, hedge=second),
            hedging,
            deadline=call.deadline,
            others=partial(self._has_untried, call),
            listener=call.on_hedge_decision,
        )

    async def retry(self, call: Call, attempt: Attempt) -> Attempt:
        """Retry a call whose first attempt failed, while policy, budget and deadline allow. Return the attempt that the
        caller gets the result of."""
        retrying = call.guards.retrying
        if retrying is None:
            return attempt
        again: Callable[[int, RetryTarget], object] = partial(self.attempt, call)
        return await retry(
            attempt,
            again,  # type: ignore[arg-type] # mypy loses the coroutine of a partial method
            retrying,
            deadline=call.deadline,
            keyed=call.options.idempotency_key is not None,
            listener=call.on_retry_decision,
        )

    async def attempt(self, call: Call, number: int, target: RetryTarget, *, hedge: bool = False) -> Attempt:
        """Make one attempt: until the whole reply is there, or the first chunk of a stream. Where an instance declines the
        request, it is sent to another one.

        Args:
            number: of the attempt, from 1.
            target: which instances may be used: any, or only the holder of the call's idempotency key.
            hedge: it runs beside the first attempt, and does not wait for a place.
        """
        guards = call.guards
        reason = "hedge" if hedge else "retry" if number > 1 else "first"
        admission, ended = Admission(guards), None
        attempt = Attempt(call, number, reason, target, admission)
        try:
            if self.is_closing:
                attempt.reject(error_from_closing(call.tool.label))
                return attempt
            while True:
                pool = self._find_ready(attempt)
                # An open circuit rejects at once, and a hedge does not wait.
                if pool is None and not hedge and (guards.breaker is None or guards.breaker.can_admit()):
                    await self._await_ready(attempt)
                rejection = admission.try_acquire(call.options.user, call.deadline, self._now())  # a, b, c
                if not admission.must_wait:
                    break
                rejection = await self._wait(attempt, hedge=hedge)
                pool = None if rejection is not None else self._find_ready(attempt)
                if rejection is not None or pool is not None:
                    break
                admission.release()  # the instances were lost meanwhile
            if rejection is not None:
                attempt.reject(error_from_rejection(rejection, call.tool.label))
                return attempt
            pool = guards.pool = pool or await self._open_pool(call)
            now = self._now()
            if now >= guards.check_at and pool.is_balanced:
                guards.find_unresponsive(now)
            attempt.start(now)
            for hop in range(1, MAX_HOPS + 1):
                selected = self._select(attempt, pool)  # d
                request = attempt.create_request(self._loop, pool.tally)
                selected.instance.send(request, attempt)  # e
                if pool.is_balanced and request.is_repeatable and not selected.channel.is_served:
                    self._watch_unserved(attempt, request, pool, selected.channel)
                settled = None if request.waiter is None else await request  # None: its chunks are read
                if settled is not None:
                    attempt.conclude(settled)
                elif await attempt.read_first_chunk(request, self._now):
                    if not selected.instance.is_named:
                        selected.channel.streams += 1
                        selected.channel.record_reply(request.instance, self._now())
                    break
                else:
                    settled = attempt.conclude_stream()
                if not selected.instance.is_named:
                    self._conclude_shared(attempt, selected, settled)
                if (
                    attempt.outcome is _SUCCESS
                    or hop == MAX_HOPS
                    or not _is_declined(attempt, pool, selected, settled)
                    or (pool := await self._find_other(attempt, pool, settled)) is None
                ):
                    break
            if call.is_stream and call.stream_deadline is None:
                attempt.attribute_failure(self._now())
            else:
                ended = self._now()
                self._learn(attempt, ended)
        except DispatchError as error:
            attempt.fail(error)
            attempt.attribute_failure(self._now())
        except asyncio.CancelledError as cancelled:
            attempt.is_outpaced = cancelled.args == (OUTPACED,)
            raise
        finally:
            if attempt.first_chunk is None:
                attempt.finish(ended)  # f
        return attempt

    async def _wait(self, attempt: Attempt, *, hedge: bool) -> Rejection | None:
        """Wait for a rate limit or the bulkhead."""
        if hedge:
            attempt.admission.withdraw()
            return Rejection("bulkhead", "full")
        call = attempt.call
        began = self._now()
        call.guards.find_unresponsive(began, must_wait=True)
        try:
            return await attempt.admission.wait(call.options.user, call.deadline, call.options.priority)
        finally:
            waited = self._now() - began
            call.observer.on_queued(waited)
            if call.guards.records is not None:
                call.last_wait = WaitRecord(began, waited, call.last_wait)

    def _learn(self, attempt: Attempt, ended: float) -> None:
        """Record how long the attempt took, for timeouts and hedges to come."""
        guards, outcome = attempt.call.guards, attempt.outcome
        took = ended - attempt.began
        is_usual = outcome is _SUCCESS
        if not is_usual:
            # An error at once says nothing about the duration of an answer, nor does a timeout before the usual one.
            # Timeouts are among the usual durations, which are up to GROWTH too long.
            usual = guards.answer_s(ended)
            is_usual = outcome is _TIMEOUT if usual is None else took * GROWTH >= usual
            attempt.is_impatient = outcome is _TIMEOUT and not is_usual and guards.is_impatient(took)
        if outcome is _SUCCESS or outcome is _TOOL_ERROR:
            attempt.record_answer(ended)
        else:
            attempt.attribute_failure(ended)
        # What times out at one instance while another one answers says nothing about the tool.
        attempt.is_usual = is_usual and outcome in _TIMED and attempt.counts_for_tool
        if attempt.is_usual and guards.hedging is None:
            guards.durations.record(took, ended)

    def _find_ready(self, attempt: Attempt) -> InstancePool | None:
        """Return the pool of an attempt whose request can be sent now: the broker is in reach, and an instance."""
        pool = self._pools.get(attempt.call.tool)
        return pool if pool is not None and pool.connection.connected and _can_send(pool, attempt) else None

    async def _open_pool(self, call: Call) -> InstancePool:
        return self._pools.get(call.tool) or await self._pools.open(call.tool, call.deadline)

    def _has_untried(self, call: Call) -> bool:
        """Whether the service has an instance that no attempt of the call was sent to."""
        pool = self._pools.get(call.tool)
        return pool is not None and pool.has_untried(call.tried, call.tool.requires)

    async def _await_ready(self, attempt: Attempt) -> None:
        """Wait for the broker, and for an instance of the tool's service: until :meth:`_latest_start`. The call
        holds no permit meanwhile.

        Raises:
            DispatchError: there is none. Nothing was sent.
        """
        call = attempt.call
        tool, deadline = call.tool, call.deadline
        broker = IN_PROCESS if tool.is_local else self._broker
        if not broker.connected:
            if self._waiting >= MAX_WAITING:
                raise error_from_disconnection(tool.label, broker.url)
            self._waiting += 1
            try:
                if not await broker.await_connection(deadline):
                    raise error_from_disconnection(tool.label, broker.url)
            finally:
                self._waiting -= 1
        pool = await self._open_pool(call)
        if _can_send(pool, attempt):
            return
        for channel in pool.channels:
            if not (channel.is_known or broker.has_subscriber(channel.request_queue)):
                raise error_from_unserved_topic(tool.label, channel.request_queue)
        if self._waiting >= MAX_WAITING:
            raise error_from_rejection(_NO_INSTANCE, tool.label)
        ends = self._latest_start(call)
        is_over = False
        self._waiting += 1
        try:
            while is_over or not _can_send(pool, attempt):
                now = self._now()
                errors = [channel.opening_error for channel in pool.channels]
                if errors[0] is not None and all(errors):
                    raise TransportError(errors[0].type, errors[0].message, may_have_run=False)
                if tool.is_local and (absence := _find_absence(pool, tool.label)) is not None:
                    raise absence
                if now >= ends:
                    if not broker.connected:
                        raise error_from_disconnection(tool.label, broker.url)
                    if pool.has_ready(tool.requires):
                        return  # it waited for further instances, and has no more time for that
                    if (size := len(call.payload)) > (limit := pool.connection.max_message_bytes):
                        raise error_from_oversized_request(tool.label, size, int(limit))
                    if broker.was_disconnected_since(call.started):  # the instances may be there
                        raise error_from_disconnection(tool.label, broker.url, is_back=True)
                    raise _error_without_instance(tool, pool)
                await self._await_turn(pool.channels, min(ends, now + DISCOVERY_S))
                pool = await self._open_pool(call)
                # What has waited for instances of dispatch's own does not go to the shared topic.
                is_over = self._now() >= ends and not pool.known and any(each.had_instances for each in pool.channels)
        finally:
            self._waiting -= 1
        if not broker.connected:  # it was lost meanwhile
            await self._await_ready(attempt)

    def _latest_start(self, call: Call) -> float:
        """Return until when a call waits for an instance: as long as the tool could still be executed afterwards. Where no
        instance has been known for :data:`GONE_S`, only for :data:`DISCOVERY_S`."""
        now, tool = self._now(), call.tool
        usual = call.guards.usual.value(now) or 0.0
        latest = call.deadline - min(max(usual, call.limit * LEAST_REST), call.limit / 2)
        pool = self._pools.get(tool)
        if pool is None or pool.known:
            return latest
        if tool.policy.known_instances_only or any(channel.had_instances for channel in pool.channels):
            gone = max(channel.asked_since for channel in pool.channels) + GONE_S
        elif len(call.payload) > pool.connection.max_message_bytes:
            gone = now
        else:
            return latest
        return min(latest, max(now + DISCOVERY_S, gone))

    async def _await_turn(self, channels: Sequence[Channel], until: float) -> None:
        """Wait for a change of what can be reached through ``channels``."""
        turns = [(channel, channel.create_turn()) for channel in channels]
        for channel in channels:
            channel.seek_instances()
        try:
            await asyncio.wait(
                [turn for _, turn in turns], timeout=until - self._now(), return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for channel, turn in turns:
                channel.leave(turn)
                turn.cancel()

    def _conclude_shared(self, attempt: Attempt, selected: SelectedInstance, settled: Settled) -> None:
        """The request of an attempt at a topic that all instances share has ended."""
        tool, channel = attempt.call.tool, selected.channel
        if type(settled) is TimedOut and not channel.is_served:
            topic, announces = channel.request_queue, channel.hello is not None
            attempt.fail(
                error_from_unanswered_request(
                    tool.label,
                    attempt.limit,
                    settled.limit_name,
                    topic,
                    announces=announces,
                    repeatable=tool.repeatable,
                )
            )
        elif type(settled) is Answer:
            now = self._now()
            channel.record_reply(settled.instance, now)
            if settled.refused is None:
                channel.refused_since = math.inf
                return
            # The broker distributes the requests, so one of many instances may refuse its part.
            channel.refused_since = min(channel.refused_since, now)
            lasting = max(DISCOVERY_S, attempt.call.guards.usual.value(now) or 0.0)
            attempt.counts_for_tool &= now >= channel.refused_since + lasting

    def _watch_unserved(
        self, attempt: Attempt, request: Request, pool: InstancePool, channel: Channel, waited: float = 0.0
    ) -> None:
        """End a repeatable request at a listed topic on which nothing has replied, so that it is sent to another instance:
        once others have replied, and would have answered it in the time that it has ``waited``."""
        if channel.is_served:
            return  # since it was last looked at
        if pool.is_served and attempt.call.guards.is_overdue(waited):
            request.settle(Lost(Failure.REPLACED, may_have_run=False))
        else:
            again = partial(self._watch_unserved, attempt, request, pool, channel, waited + UNRESPONSIVE_S)
            attempt.watch = self._loop.call_later(UNRESPONSIVE_S, again)

    async def _find_other(self, attempt: Attempt, pool: InstancePool, settled: Settled) -> InstancePool | None:
        """An instance has declined the request of an attempt: prepare that for another one, and return the pool; None: no
        instance has taken its place."""
        call, was_sent = attempt.call, attempt.sent
        attempt.release_instance()
        attempt.clear(self._now())
        if _can_send(pool, attempt):
            return pool
        if attempt.admission.place is not None:
            attempt.admission.place.suspend()
        try:
            await self._await_ready(attempt)
        except DispatchError:
            attempt.sent = was_sent
            attempt.conclude(settled)
            return None
        pool = call.guards.pool = await self._open_pool(call)
        attempt.clear(self._now())
        return pool

    def _select(self, attempt: Attempt, pool: InstancePool) -> SelectedInstance:
        """Step d: pick the instance of the next request.

        Raises:
            DispatchError: there is no instance that may, or can, have the request.
        """
        call, at_home = attempt.call, attempt.target is _KEY_HOLDER
        tool, options = call.tool, call.options
        key = options.idempotency_key
        is_large = len(call.payload) > pool.connection.max_message_bytes  # only a session carries it
        selected = pool.pick(
            call.guards,
            call.tried,
            key=key if at_home else None,
            is_bound=not tool.repeatable,
            user=options.user,
            refused=call.refused_by,
            is_large=is_large,
            requires=tool.requires,
        )
        if selected is None:
            raise _error_without_instance(tool, pool)
        attempt.selected = selected
        instance, topic = selected.instance, selected.channel.request_queue
        if call.key_holder is not None and at_home and instance is not call.key_holder:
            raise error_from_key_holder_loss(tool.label)
        if not instance.is_named:
            if is_large:
                raise error_from_oversized_request(
                    tool.label, len(call.payload), int(pool.connection.max_message_bytes)
                )
            if tool.policy.known_instances_only and selected.channel.hello is not None:
                raise error_from_missing_instance(tool.label, topic)
            if not self._broker.has_subscriber(topic):
                raise error_from_unserved_topic(tool.label, topic)
        attempt.request_id = instance.next_request_id or self._new_id()
        call.tried.append(selected.pick.instance)
        attempt.request = call.observer.on_request(
            instance.topic, topic, attempt.request_id, attempt.number, attempt.reason
        )
        attempt.is_addressed = True
        if not instance.is_named:
            selected.channel.watch_missing()
        attempt.sent = True
        call.requests += 1
        if key is not None and at_home and instance.has_key_memory:
            attempt.claim_key(pool, instance)
        return selected

    def follow_stream(self, attempt: Attempt) -> None:
        """Return the permits of a stream when its tool has ended, or a limit has passed: its reader may be slow, or gone."""
        replies = attempt.replies
        if replies is not None and attempt.first_chunk is not None:
            replies.on_settled = partial(self.end_stream, attempt)
            if replies.settled is not None:
                self.end_stream(attempt, self._now() if attempt.call.stream_deadline is not None else None)

    def end_stream(self, attempt: Attempt, now: float | None = None) -> None:
        """End a stream that has settled, or that its caller closes early. A second call does nothing. ``now``: it was no
        stream: its attempt took until then."""
        replies = attempt.replies
        if replies is None or attempt.first_chunk is None or attempt.has_ended:
            return
        attempt.has_ended = True
        if replies.settled is None:
            attempt.outcome = Outcome.CANCELLED
            replies.close()
        else:
            attempt.conclude_stream()
            attempt.attribute_failure(self._now())
        attempt.finish(now)


def _can_send(pool: InstancePool, attempt: Attempt) -> bool:
    call, options = attempt.call, attempt.call.options
    tool = call.tool
    is_large = len(call.payload) > pool.connection.max_message_bytes
    return pool.can_send(
        needs_instance=is_large or tool.policy.known_instances_only,
        repeatable=tool.repeatable,
        requires=tool.requires,
        key=options.idempotency_key if attempt.target is _KEY_HOLDER and not tool.repeatable else None,
        user=options.user,
        refused=call.refused_by,
    )


def _find_absence(pool: InstancePool, tool: str) -> DispatchError | None:
    """Return why a call need not wait for an instance in this process; None: it may."""
    errors = []
    for channel in pool.channels:
        for instance in channel.instances:
            error = instance.find_absence(tool)
            if error is None:
                return None
            errors.append(error)
    return min(errors, key=lambda error: error.retry_after or 0.0, default=error_from_rejection(_NO_INSTANCE, tool))


def _error_without_instance(tool: ResolvedTool, pool: InstancePool) -> DispatchError:
    requires = tool.requires
    if not pool.known and pool.channels[0].hello is not None:
        return error_from_missing_instance(tool.label, pool.channels[0].request_queue)
    if requires is None or pool.select_versions(requires):
        return error_from_rejection(_NO_INSTANCE, tool.label)
    return error_from_requirement(tool.label, tool.service_id, requires.text, pool.versions, by="balancer")


def _is_declined(attempt: Attempt, pool: InstancePool, selected: SelectedInstance, settled: Settled) -> bool:
    """Whether the instance surely did not execute the request, because it is draining, overloaded or gone, so that
    another one may; or the request is repeatable, and its instance stopped while the tool ran, or one was found after it was
    sent to the shared topic. After an instance that has ended the call waits for one, unless it is a hedge."""
    instance = selected.instance
    if not instance.is_named:
        return type(settled) is Lost and not settled.may_have_run
    if type(settled) is Refused:
        return settled.elsewhere and pool.has_other(instance.name)
    if type(settled) is Answer and settled.refused == Refusal.OVERLOADED:
        return pool.has_other(instance.name)
    if type(settled) is Answer and settled.refused == Refusal.DRAINING:
        selected.channel.retire(instance)
        has_ended = True
    elif type(settled) is Answer and settled.error_type == ErrorType.CANCELLED and attempt.call.tool.repeatable:
        has_ended = selected.channel.instances.get(instance.name) is not instance
        if not has_ended:
            return False  # the tool itself has raised that
    elif not isinstance(settled, Lost | TransportError) or settled.may_have_run:
        return False
    else:
        has_ended = isinstance(settled, Lost) and settled.reason in _ENDED
    return len(selected.channel.instances) > 0 or (has_ended and attempt.reason != "hedge")
