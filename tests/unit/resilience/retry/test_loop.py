"""Retries carried out, on virtual time, by the rules of tenacity's objects. Guards against known troubles of tenacity's loop
(a cancellation taken for a failure and retried, statistics and state shared between calls, exceptions and results kept in
cycles), against retries of what ran in an attempt before the last, and against a storm: see test_decision.py, here once more
the whole way."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tenacity import AsyncRetrying

from dispatch.errors import Outcome
from dispatch.policy import Retry
from dispatch.resilience.aio import retry
from dispatch.resilience.durations import LatencyHistogram
from dispatch.resilience.retry import (
    FailedAttempt,
    NoRetryReason,
    RetryBudget,
    RetryDecision,
    RetryPolicy,
    RetryTarget,
    may_have_run,
)
from tests.helpers.clock import START, advance


class Result(msgspec.Struct, weakref=True):
    outcome: Outcome
    sent: bool = True
    retry_after: float | None = None
    error_type: str | None = None
    remembered: bool = False


OK = Result(Outcome.SUCCESS)
LOST = Result(Outcome.TRANSPORT)
UNSENT = Result(Outcome.TRANSPORT, sent=False)
SLOWLY = Retry(initial_backoff=1.0, max_backoff=8.0)


async def with_retries(attempt: Any, retrying: RetryPolicy, **options: Any) -> Any:
    """The first attempt inline, as those who make calls do it, and the others."""
    first = await attempt(1, RetryTarget.ANY_INSTANCE)
    if first.outcome is Outcome.SUCCESS:
        return first
    return await retry(first, attempt, retrying, **options)


class Bench:
    """A tool whose attempts end as ``script`` says, each after ``takes`` seconds."""

    def __init__(
        self,
        *script: Result | BaseException,
        settings: Retry = SLOWLY,
        repeatable: bool = True,
        takes: float = 1.0,
        drawn: Callable[[], float] = lambda: 0.5,
        floor: float = 3.0,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.script, self.takes = list(script), takes
        self.budget = RetryBudget(settings.budget_ratio, floor, loop.time)
        self.retrying = RetryPolicy(
            settings, repeatable=repeatable, budget=self.budget, durations=LatencyHistogram(loop.time), randomness=drawn
        )
        self.attempts: list[tuple[float, int, RetryTarget]] = []
        self.verdicts: list[RetryDecision | NoRetryReason] = []

    async def attempt(self, number: int, where: RetryTarget) -> Result:
        self.attempts.append((asyncio.get_running_loop().time() - START, number, where))
        await asyncio.sleep(self.takes)
        end = self.script.pop(0)
        if isinstance(end, BaseException):
            raise end
        return end

    async def call(self, timeout: float = 100.0, **options: Any) -> Result:
        deadline = asyncio.get_running_loop().time() + timeout
        return await with_retries(
            self.attempt, self.retrying, deadline=deadline, listener=self.verdicts.append, **options
        )

    @property
    def wheres(self) -> list[RetryTarget]:
        return [where for *_, where in self.attempts]


async def test_successful_call_makes_one_attempt() -> None:
    bench = Bench(OK)
    assert await bench.call() is OK
    assert bench.attempts == [(0.0, 1, RetryTarget.ANY_INSTANCE)]
    assert bench.verdicts == []


async def test_a_failure_that_no_retry_can_change_makes_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RetryPolicy, "start", None)
    end = Result(Outcome.TOOL_ERROR, error_type="no")
    bench = Bench(end)
    assert await bench.call() is end
    assert bench.verdicts == [NoRetryReason.OUTCOME]


@pytest.mark.parametrize("seed", range(30))
async def test_tenacitys_own_loop_with_the_policys_objects_makes_the_same_attempts(seed: int) -> None:
    chance = random.Random(seed)
    ends = [LOST, UNSENT, OK, Result(Outcome.TIMEOUT, remembered=True), Result(Outcome.THROTTLED, retry_after=2.5)]
    ends += [Result(Outcome.TOOL_ERROR, error_type="busy"), Result(Outcome.TOOL_ERROR, error_type="no")]
    script: list[Result | BaseException] = [*chance.choices(ends, k=3), OK]
    settings = Retry(max_attempts=4, initial_backoff=1.0, max_backoff=3.0, retryable_errors=("busy",))
    is_repeatable, keyed, share = chance.random() < 0.7, chance.random() < 0.5, chance.random()
    ours, theirs = (
        Bench(*script, settings=settings, repeatable=is_repeatable, drawn=lambda: share, floor=0.2) for _ in range(2)
    )
    await ours.call(12.0, keyed=keyed)
    remaining = ours.budget.remaining

    policy, deadline = theirs.retrying, asyncio.get_running_loop().time() + 12.0
    began = asyncio.get_running_loop().time() - START
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await asyncio.sleep(seconds)

    async for turn in AsyncRetrying(
        sleep=sleep, retry=policy.retry, stop=policy.stop, wait=policy.wait, retry_error_callback=lambda _: None
    ):
        state = turn.retry_state
        result = await theirs.attempt(state.attempt_number, RetryTarget.ANY_INSTANCE)
        state.set_result(
            FailedAttempt(
                result.outcome,
                asyncio.get_running_loop().time(),
                deadline,
                may_have_run=may_have_run(result.outcome, sent=result.sent),
                keyed=keyed,
                remembered=result.remembered,
                retry_after=result.retry_after,
                error_type=result.error_type,
            )
        )
    assert [(at - began, number) for at, number, _ in theirs.attempts] == [
        (pytest.approx(at), number) for at, number, _ in ours.attempts
    ]
    assert waits == [each.wait for each in ours.verdicts if isinstance(each, RetryDecision)]
    assert theirs.budget.remaining == remaining


async def test_attempts_repeat_after_backoff_until_one_succeeds() -> None:
    bench = Bench(LOST, UNSENT, OK)
    assert await bench.call() is OK
    assert bench.attempts == [
        (0.0, 1, RetryTarget.ANY_INSTANCE),
        (1.5, 2, RetryTarget.ANY_INSTANCE),
        (3.5, 3, RetryTarget.ANY_INSTANCE),
    ]
    assert bench.verdicts == [
        RetryDecision(0.5, RetryTarget.ANY_INSTANCE),
        RetryDecision(1.0, RetryTarget.ANY_INSTANCE),
    ]
    assert bench.budget.remaining == 28


async def test_last_result_is_returned() -> None:
    last = Result(Outcome.TIMEOUT)
    bench = Bench(LOST, LOST, last)
    assert await bench.call() is last
    assert bench.verdicts[-1] is NoRetryReason.ATTEMPTS
    assert len(bench.attempts) == 3


async def test_retry_continues_after_the_first_attempt() -> None:
    bench = Bench(OK)
    deadline = START + 100
    assert await retry(LOST, bench.attempt, bench.retrying, deadline=deadline) is OK
    assert bench.attempts == [(0.5, 2, RetryTarget.ANY_INSTANCE)]


@pytest.mark.parametrize("keyed", [False, True])
async def test_retry_respects_the_idempotency_key(keyed: bool) -> None:
    bench = Bench(OK, repeatable=False)
    options: dict[str, Any] = {"keyed": True} if keyed else {}
    first = Result(Outcome.TIMEOUT, remembered=True)
    end = await retry(first, bench.attempt, bench.retrying, deadline=START + 100, **options)
    assert end is (OK if keyed else first)


async def test_retry_after_is_waited_for() -> None:
    bench = Bench(Result(Outcome.THROTTLED, retry_after=7.0), OK)
    assert await bench.call() is OK
    assert bench.attempts[1][0] == 1.0 + 7.0 + 0.5


async def test_error_type_reaches_the_decision() -> None:
    bench = Bench(Result(Outcome.TOOL_ERROR, error_type="busy"), OK, settings=Retry(retryable_errors=("busy",)))
    assert await bench.call() is OK


async def test_result_of_a_possibly_executed_attempt_is_returned() -> None:
    """Against a promise that is not true: the last attempt was refused, which says that it did not run; the first did."""
    timed_out, refused = Result(Outcome.TIMEOUT), Result(Outcome.THROTTLED)
    assert await Bench(timed_out, refused, refused).call() is timed_out
    assert await Bench(refused, timed_out, UNSENT).call() is timed_out
    assert await Bench(UNSENT, refused, refused).call() is refused
    last = Result(Outcome.TIMEOUT)
    assert await Bench(timed_out, refused, last).call() is last
    assert await Bench(timed_out, refused, OK).call() is OK


async def test_keyed_retry_uses_the_key_holder() -> None:
    bench = Bench(Result(Outcome.TIMEOUT, remembered=True), OK, repeatable=False)
    assert await bench.call(keyed=True) is OK
    assert bench.wheres == [RetryTarget.ANY_INSTANCE, RetryTarget.KEY_HOLDER]
    assert bench.verdicts == [RetryDecision(0.5, RetryTarget.KEY_HOLDER)]
    bench = Bench(LOST, OK, repeatable=False)
    assert await bench.call(keyed=True) is LOST
    assert bench.verdicts == [NoRetryReason.UNSAFE]


async def test_throttled_attempt_is_retried_at_any_instance() -> None:
    bench = Bench(Result(Outcome.THROTTLED), UNSENT, OK, repeatable=False)
    assert await bench.call() is OK
    assert bench.wheres == [RetryTarget.ANY_INSTANCE] * 3


async def test_retry_rejected_by_a_guard_is_refunded() -> None:
    refusal = Result(Outcome.REJECTED, sent=False)
    bench = Bench(LOST, refusal)
    assert await bench.call() is LOST
    assert len(bench.attempts) == 2
    assert bench.budget.remaining == 30
    bench = Bench(refusal, settings=Retry(), floor=0.1)
    assert bench.budget.withdraw()
    assert await bench.call() is refusal
    assert bench.budget.remaining == 0, "a first attempt was not paid for"


async def test_late_backoff_is_not_followed_by_an_attempt() -> None:
    bench = Bench(LOST, OK)

    async def block() -> None:
        await asyncio.sleep(1.25)
        asyncio.get_running_loop().jump(2.0)  # type: ignore[attr-defined]  # something else kept the loop busy

    busy = asyncio.create_task(block())
    assert await bench.call(timeout=3.0) is LOST
    await busy
    assert bench.verdicts == [RetryDecision(0.5, RetryTarget.ANY_INSTANCE), NoRetryReason.TOO_LATE]
    assert len(bench.attempts) == 1
    assert bench.budget.remaining == 30, "what was not begun is given back"


@pytest.mark.parametrize("when", [0.5, 1.25, 2.0])
async def test_cancellation_ends_attempt_and_backoff_at_once(when: float) -> None:
    """Cancelled in the first attempt, while waiting, in the second attempt: never swallowed, never retried."""
    bench = Bench(LOST, LOST, OK)
    call = asyncio.create_task(bench.call())
    await advance(when)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert asyncio.get_running_loop().time() == START + when
    assert len(bench.attempts) == (1 if when < 1.5 else 2)
    assert bench.budget.remaining == (29 if when == 2.0 else 30), "a retry that was not begun is given back"
    await advance(60)
    assert len(bench.attempts) == (1 if when < 1.5 else 2)


@pytest.mark.parametrize("when", [0.5, 1.25, 2.0])
async def test_timeout_around_the_call_is_raised(when: float) -> None:
    bench = Bench(LOST, LOST, OK)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(when):
            await bench.call()
    assert asyncio.get_running_loop().time() == START + when


@pytest.mark.parametrize("before", [(), (LOST,)])
@pytest.mark.parametrize("error", [asyncio.CancelledError("inner"), KeyError("bug"), TimeoutError()])
async def test_exception_of_an_attempt_propagates_unchanged(before: tuple[Result, ...], error: BaseException) -> None:
    bench = Bench(*before, error, OK)
    with pytest.raises(type(error)) as caught:
        await bench.call()
    assert caught.value is error
    assert error.__cause__ is None
    assert len(bench.attempts) == len(before) + 1


async def test_concurrent_calls_share_no_state() -> None:
    """Ten calls with one ``RetryPolicy``, of which each fails as often as its number says."""
    bench = Bench(settings=Retry(max_attempts=10, initial_backoff=1.0, max_backoff=1.0))
    seen: dict[int, list[int]] = {number: [] for number in range(10)}

    def call(which: int) -> Any:
        tried: list[int] = []

        async def attempt(number: int, _where: RetryTarget) -> Result:
            assert tried == list(range(1, number))
            tried.append(number)
            seen[which].append(number)
            await asyncio.sleep(0.1 * (which + 1))
            return OK if number > which % 3 else LOST

        return with_retries(attempt, bench.retrying, deadline=START + 100)

    ends = await asyncio.gather(*map(call, range(10)))
    assert ends == [OK] * 10
    assert seen == {which: list(range(1, which % 3 + 2)) for which in range(10)}


async def test_results_are_not_retained() -> None:
    """Without the collector of cycles: 20,000 failures must not be 20,000 answers in memory until it comes."""
    gc.collect()
    gc.disable()
    try:
        bench = Bench(Result(Outcome.TIMEOUT), Result(Outcome.TIMEOUT), Result(Outcome.TRANSPORT))
        kept = [weakref.ref(each) for each in bench.script if isinstance(each, Result)]
        await bench.call()
        assert [each() for each in kept] == [None, None, None]
    finally:
        gc.enable()


async def test_budget_bounds_a_retry_storm() -> None:
    """1,000 calls a second for five seconds, all fail, three attempts each: at most 1.2 times as much is sent, and 3/s
    (which is 30 at once at first)."""
    chance = random.Random(5)
    bench = Bench(settings=Retry(), drawn=chance.random)
    sent = 0

    async def attempt(_number: int, _where: RetryTarget) -> Result:
        nonlocal sent
        sent += 1
        return LOST

    async def call() -> None:
        bench.budget.record_call()
        assert await with_retries(attempt, bench.retrying, deadline=START + 100) is LOST

    async with asyncio.TaskGroup() as group:
        for _ in range(5_000):
            group.create_task(call())
            await asyncio.sleep(0.001)
    assert 5_900 < sent <= 5_000 * 1.2 + 30
