"""The asyncio adapter of :mod:`dispatch.resilience.bulkhead`: a wait is a future, one timer per bulkhead."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from typing import Any, Generic, TypeVar

from tenacity import RetryCallState

from dispatch._internal import EarliestTimer, Rejection, loop_clock, wait_shared
from dispatch.errors import Outcome
from dispatch.policy import Bulkhead, RateLimit
from dispatch.resilience.bulkhead import BulkheadGuard, BulkheadPermit, BulkheadWaiter, QueueLimits
from dispatch.resilience.rate_limit import (
    MAX_QUEUE,
    MAX_USERS,
    Bucket,
    CombinedBucket,
    LeakyBucket,
    RateLimiter,
    RatePermit,
    UserBuckets,
    Waiter,
)
from dispatch.resilience.retry import (
    ANSWERED,
    AttemptResult,
    FailedAttempt,
    Hedging,
    NoHedgeReason,
    NoRetryReason,
    RetryDecision,
    RetryPolicy,
    RetryTarget,
    may_have_run,
)


class AsyncBulkhead:
    """A tool's bulkhead on the event loop that runs when it is constructed. It has at most one timer, and none while the
    wait queue is empty.

    Args:
        settings: see :class:`dispatch.policy.Bulkhead`.
        limits: see :class:`BulkheadGuard`.

    Attributes:
        guard: the sans-I/O core. ``guard.admit()`` acquires a permit without waiting, as hedges do.
    """

    __slots__ = ("_loop", "_timer", "guard")

    def __init__(self, settings: Bulkhead, limits: QueueLimits | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._timer = EarliestTimer(self._expire)
        self.guard = BulkheadGuard(settings, loop_clock(), limits)

    async def acquire(
        self, *, user: str = "", deadline: float | None = None, priority: str | None = None
    ) -> BulkheadPermit | Rejection:
        """Return a permit or a rejection; waits for at most ``max_wait``, or as long as the call can still end by
        ``deadline``.

        A permit that was granted to a caller that is cancelled in the same turn of the loop goes to the next waiter.

        Args:
            user: on whose behalf: waiting calls of different users are served in turn.
            deadline: when the call ends, on the loop's clock.
            priority: one of the settings' priorities; None: the most urgent.
        """
        guard = self.guard
        if guard.in_flight < guard.limit:
            return guard.admit()
        decided: asyncio.Future[BulkheadPermit | Rejection] = self._loop.create_future()

        def decide(answer: BulkheadPermit | Rejection) -> bool:
            if decided.done():
                return False  # cancelled, but its task has not run since
            decided.set_result(answer)
            return True

        waiter = guard.enqueue(decide, user=user, deadline=deadline, priority=priority)
        if type(waiter) is not BulkheadWaiter:
            return waiter  # type: ignore[return-value] # a permit or a rejection
        self._timer.watch(waiter.expires)
        try:
            return await decided
        except asyncio.CancelledError:
            if not guard.cancel_wait(waiter) and not decided.cancelled():
                answer = decided.result()
                if isinstance(answer, BulkheadPermit):
                    answer.finish(Outcome.CANCELLED)
            raise
        finally:
            if not guard.waiting:
                self._timer.close()

    def _expire(self, now: float) -> None:
        self.guard.expire(now)
        expires = self.guard.next_expiry()
        if expires is not None:
            self._timer.watch(expires)

    def reconfigure(self, settings: Bulkhead) -> None:
        """Apply other settings; calls in flight and waiting calls stay."""
        self.guard.reconfigure(settings)

    def close(self) -> None:
        """Reject waiting and later calls; calls in flight continue."""
        self.guard.close()
        self._timer.close()


# The asyncio adapter of :mod:`dispatch.resilience.rate_limit`: one timer per tool, one future per wait.


def user_buckets(rate: RateLimit, most: int = MAX_USERS) -> UserBuckets[LeakyBucket]:
    """One bucket a user, for one tool or (given to several :class:`AsyncRateLimiter`) for all tools together.

    Args:
        rate: of each user.
        most: maximum number of users.
    """
    burst, per_second = rate.capacity, rate.per_second
    return UserBuckets(lambda empty_at: LeakyBucket(burst, per_second, empty_at), most)


class AsyncRateLimiter:
    """The rate limits of one tool, on the event loop that runs when they are constructed.

    Args:
        rate: of all users together, with their weights; None: no limit.
        user_rate: of each user at this tool; None: no limit.
        everywhere: the buckets of each user, shared by several tools; None: no limit.
        shared_rate: the rate of the buckets ``everywhere``.
        max_queue: maximum number of waiting calls.
        bucket: of all users together, in place of one for ``rate``.
        here: the buckets of each user at this tool, in place of those for ``user_rate``.
        kind: class of the core.

    The users' weights are those of the first of ``rate``, ``user_rate`` and ``shared_rate`` that is given; ``max_wait`` is
    the shortest of all. Calls of one user that wait at several tools for the user's bucket ``everywhere`` are served in
    turn; a call that is admitted at its tool at once may overtake them.
    """

    def __init__(
        self,
        rate: RateLimit | None = None,
        user_rate: RateLimit | None = None,
        *,
        everywhere: UserBuckets[Any] | None = None,
        shared_rate: RateLimit | None = None,
        max_queue: int = MAX_QUEUE,
        bucket: Bucket | None = None,
        here: UserBuckets[Any] | None = None,
        kind: type[RateLimiter] = RateLimiter,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._timer = EarliestTimer(lambda _: self._admit_waiters())
        ruling = rate or user_rate or shared_rate or RateLimit("1/s")
        if here is None and user_rate is not None:
            here = user_buckets(user_rate)
        if bucket is None and rate is not None:
            bucket = LeakyBucket(rate.capacity, rate.per_second)
        self.limiter = kind(
            loop_clock(),
            bucket=bucket,
            users=_combine(here, everywhere),
            max_queue=max_queue,
            max_wait=min(each.max_wait for each in (rate, user_rate, shared_rate, ruling) if each is not None),
            weights=dict(ruling.weights),
            on_earlier=self._admit_waiters,
        )
        """The sans-I/O core and its counters: ``granted``, ``returned``, ``refused``, ``waiting``."""
        self.rate, self.user_rate = rate, user_rate
        self.tool_bucket, self.here = bucket, here
        """For ``rate`` and ``user_rate``."""
        self.leases: Sequence[Any] = ()
        """Of the limits that a fleet shares (:class:`dispatch.resilience.fleet.Leases`)."""

    def admit(self, user: str, deadline: float) -> RatePermit | Waiter | Rejection:
        """:meth:`RateLimiter.admit` on the loop's clock. A returned :class:`Waiter` is passed to :meth:`wait`."""
        answer = self.limiter.admit(user, deadline)
        if type(answer) is Waiter:
            answer.tag = self._loop.create_future()
            self._set_timer()
        return answer

    async def wait(self, waiter: Waiter) -> RatePermit | Rejection:
        """Wait for the decision. If the caller is cancelled, its waiter is removed, and a permit granted meanwhile is
        returned."""
        try:
            await waiter.tag
        except asyncio.CancelledError:
            self.leave(waiter)
            raise
        answer = waiter.answer
        assert answer is not None
        return answer

    def leave(self, waiter: Waiter) -> None:
        """Cancel a wait. A permit granted meanwhile is returned."""
        self.limiter.leave(waiter)
        if not self.limiter.waiting:
            self._timer.close()

    async def acquire(self, user: str, deadline: float) -> RatePermit | Rejection:
        """:meth:`admit`, and :meth:`wait` for a waiter."""
        answer = self.admit(user, deadline)
        return await self.wait(answer) if type(answer) is Waiter else answer  # type: ignore[return-value]

    def close(self, reason: str = "closing") -> None:
        """Reject all waiting calls. Later calls are admitted: the owner must not make any."""
        self._timer.close()
        _wake(self.limiter.refuse_all(reason))

    def _admit_waiters(self) -> None:
        self._timer.close()
        _wake(self.limiter.admit_waiters())
        self._set_timer()

    def _set_timer(self) -> None:
        at = self.limiter.next_at()
        if at is not None:
            self._timer.watch(at)  # one that fires too early is set again


def _wake(waiters: list[Waiter]) -> None:
    for waiter in waiters:
        if not waiter.tag.done():  # done: cancelled
            waiter.tag.set_result(None)


def _combine(
    here: UserBuckets[Any] | None, everywhere: UserBuckets[Any] | None
) -> Callable[[str, float], Bucket] | None:
    if here is None:
        return None if everywhere is None else everywhere.get
    if everywhere is None:
        return here.get
    one, other = here.get, everywhere.get
    return lambda user, now: CombinedBucket(one(user, now), other(user, now))


# The retries of one call, as tenacity's objects decide (:class:`dispatch.resilience.retry.RetryPolicy`).
#
# The loop is not tenacity's ``AsyncRetrying``, which awaits about ten coroutines for each decision: three attempts take
# 129 µs there and 20 µs here, and a call that failed and is not retried 47 µs and 5 µs. It would also take the cancellation
# of an attempt for its outcome, and store it.


R = TypeVar("R", bound=AttemptResult)

Attempt = Callable[[int, RetryTarget], Awaitable[R]]
"""Makes one attempt, given its number, from 1, and the instances that it may use."""


async def retry(
    result: R,
    attempt: Attempt[R],
    policy: RetryPolicy,
    *,
    deadline: float,
    keyed: bool,
    listener: Callable[[RetryDecision | NoRetryReason], object],
) -> R:
    """Retry a call whose first attempt failed, and return the result of the call.

    That is the result of the attempt that succeeds, or of the last attempt that may have been executed, or of the last
    attempt if surely none was executed: "not executed" would not be true of the call if an earlier attempt may have run.

    Args:
        result: of the first attempt, which is not a success.
        attempt: see :data:`Attempt`.
        policy: decides after each attempt. The caller counts the call itself (``policy.budget.record_call()``).
        deadline: of the whole call, on the running loop's clock.
        keyed: whether the call has an idempotency key.
        listener: called with each decision after a failed attempt, for metrics.
    """
    clock = loop_clock()
    state: RetryCallState | None = None
    executed: R | None = None
    while True:
        may_run = may_have_run(result.outcome, sent=result.sent)
        if may_run:
            executed = result
        failed = FailedAttempt(result, clock(), deadline, may_run, keyed)
        if state is None:
            objection = policy.objection(failed)
            if objection is not None:  # perf: most failed calls need no state
                listener(objection)
                return result
            state = policy.start()
        state.set_result(failed)
        decision = policy.decide(state)
        listener(decision)
        if not isinstance(decision, RetryDecision):
            return result if executed is None else executed
        is_begun = False
        try:
            await asyncio.sleep(decision.wait)
            if policy.is_too_late(clock(), deadline):  # the backoff took longer than planned
                listener(NoRetryReason.TOO_LATE)
                return result if executed is None else executed
            is_begun = True
        finally:
            if not is_begun:
                policy.budget.refund()
        state.prepare_for_next_attempt()
        result = await attempt(state.attempt_number, decision.where)
        if result.outcome is Outcome.SUCCESS:
            return result
        if result.outcome is Outcome.REJECTED:
            policy.budget.refund()  # rejected by a guard of the dispatcher: no request was sent


# Hedged attempts: the race of a slow first attempt and a second one, of which the first answer counts.
#
# Each attempt is a task, and neither outlives the call: the loser is cancelled and awaited, and so are both when the caller
# is cancelled.


OUTPACED = "outpaced"
"""The message with which a first attempt is cancelled when its hedge was answered first, although it started later."""


async def hedged(
    attempt: Callable[[bool], Coroutine[Any, Any, R]],
    hedging: Hedging,
    *,
    deadline: float,
    others: Callable[[], bool],
    listener: Callable[[NoHedgeReason | None], object],
) -> R:
    """Make an attempt and, if it is slow, a second one; return the first that the service answers, or the result of the
    first attempt if neither is answered.

    An attempt returns a result and raises nothing, whatever the service did; an exception of it propagates.

    Args:
        attempt: makes one attempt; its argument is True for the second, which must not use the instance of the first.
        hedging: decides, and records the durations of first attempts.
        deadline: of the call, on ``hedging.clock``.
        others: returns whether there is an instance that the first attempt did not use; called when a second one is due.
        listener: called for metrics when a second attempt is due: None if it was started, otherwise the reason.
    """
    clock = hedging.clock
    started = clock()
    delay = hedging.start_first(started, deadline)
    if delay is None:
        result = await attempt(False)
        if result.is_usual:
            hedging.record_first(clock() - started)
        return result
    first = asyncio.create_task(attempt(False))
    second: asyncio.Task[R] | None = None
    winner = first
    try:
        done, _ = await asyncio.wait((first,), timeout=delay)
        if not done:
            refusal = hedging.admit(clock(), deadline, has_other_instance=others())
            listener(refusal)
            if refusal is None:
                second = asyncio.create_task(attempt(True))
                winner = await _race(first, second)
                if winner is second:
                    first.cancel(OUTPACED)  # the message tells it from a cancellation by the caller
            else:
                await asyncio.wait((first,))
        result = winner.result()
        if not first.done() or first.result().is_usual:
            hedging.record_first(clock() - started)
        if second is not None and second.done() and not second.result().sent:
            hedging.refund()
    finally:
        await _cancel_and_wait(first, second)
    return result


async def _race(first: asyncio.Task[R], second: asyncio.Task[R]) -> asyncio.Task[R]:
    """Return the attempt that is answered first; ``first`` if neither is. An exception is raised at once."""
    pending = {first, second}
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in (first, second):
            if task in done and task.result().outcome in ANSWERED:
                return task
    return first


async def _cancel_and_wait(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel the running tasks and wait until they have ended, even if the wait is cancelled in turn."""
    running = {task for task in tasks if task is not None and not task.done()}
    cancelled: asyncio.CancelledError | None = None
    while running:
        for task in running:
            task.cancel()
        try:
            _, running = await asyncio.wait(running)
        except asyncio.CancelledError as error:
            cancelled = error
            running = {task for task in running if not task.done()}
    if cancelled is not None:
        raise cancelled


# Single flight: identical concurrent calls share one exchange.


T = TypeVar("T")


class _Flight(Generic[T]):
    __slots__ = ("task", "waiting")

    def __init__(self, task: asyncio.Task[T]) -> None:
        self.task = task
        self.waiting = 0


class SingleFlight(Generic[T]):
    """Runs one of several concurrent calls with the same key; the others receive its result.

    That call is a separate task: a cancelled caller does not affect the others, and the last caller that is cancelled
    cancels the task and waits until it has ended.

    Attributes:
        shared: calls so far that received the result of another call.
    """

    def __init__(self) -> None:
        self._flights: dict[Hashable, _Flight[T]] = {}
        self.shared = 0

    def __len__(self) -> int:
        """Running calls."""
        return len(self._flights)

    async def share(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, T]], deadline: float) -> T | None:
        """Return the result of the running call of ``key``; starts it with ``make`` if there is none.

        Args:
            key: identifies identical calls.
            make: makes the coroutine of the call.
            deadline: when this caller stops waiting, on the loop's clock.

        Returns:
            The result; None after the deadline. An exception of the call is raised at every caller.
        """
        flight = self._flights.get(key)
        if flight is None or flight.task.done():  # its callback has yet to remove it: awaiting it would not yield
            flight = self._flights[key] = _Flight(asyncio.create_task(make()))
            task = flight.task
            task.add_done_callback(lambda _: self._remove_flight(key, task))
        else:
            self.shared += 1
        flight.waiting += 1
        try:
            async with asyncio.timeout_at(deadline):
                return await wait_shared(flight.task)
        except TimeoutError:
            if flight.task.done() and not flight.task.cancelled():
                return flight.task.result()
            return None
        finally:
            flight.waiting -= 1
            if not flight.waiting and not flight.task.done():
                self._remove_flight(key, flight.task)
                await _cancel_and_wait(flight.task)

    def _remove_flight(self, key: Hashable, task: asyncio.Task[T]) -> None:
        flight = self._flights.get(key)
        if flight is not None and flight.task is task:
            del self._flights[key]
