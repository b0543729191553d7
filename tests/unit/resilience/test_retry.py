"""Retries carried out, on virtual time, by the rules of tenacity's objects. Guards against known troubles of tenacity's loop
(a cancellation taken for a failure and retried, statistics and state shared between calls, exceptions and results kept in
cycles), against retries of what ran in an attempt before the last, and against a storm, the whole way.
Decisions about retries. Guards against a retry of what may have run, retry storms (goal: what is sent is at most 1.2
times what is offered, and the floor, while everything fails; without a budget it is thrice), retries in step with each
other, a service's own retry-after passed over, and retries that cannot end in time.
"""

from __future__ import annotations

import asyncio
import gc
import math
import random
import weakref
from collections.abc import Callable
from itertools import product
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tenacity import AsyncRetrying

from dispatch.errors import Outcome
from dispatch.policy import DEFAULT_RETRY, Retry
from dispatch.resilience.aio import retry
from dispatch.resilience.durations import LatencyHistogram
from dispatch.resilience.retry import (
    NON_RETRYABLE_ERRORS,
    RETRYABLE_OUTCOMES,
    FailedAttempt,
    NoRetryReason,
    RetryBudget,
    RetryDecision,
    RetryPolicy,
    RetryTarget,
    may_have_run,
)
from tests.helpers.clock import START, advance, cancel_task, start_task


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
    return await retry(first, attempt, retrying, **{"keyed": False, "listener": lambda _: None, **options})


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
    assert (bench.attempts, bench.verdicts) == ([(0.0, 1, RetryTarget.ANY_INSTANCE)], [])


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
        may_run = may_have_run(result.outcome, sent=result.sent)
        state.set_result(FailedAttempt(result, asyncio.get_running_loop().time(), deadline, may_run, keyed))
    found = [(at - began, number) for at, number, _ in theirs.attempts]
    assert found == [(pytest.approx(at), number) for at, number, _ in ours.attempts]
    assert waits == [each.wait for each in ours.verdicts if isinstance(each, RetryDecision)]
    assert theirs.budget.remaining == remaining


async def test_the_state_of_a_call_belongs_to_tenacitys_loop_with_the_policys_objects() -> None:
    policy = Bench(OK).retrying
    state = policy.start()
    loop = state.retry_object
    assert (loop.retry, loop.stop, loop.wait) == (policy.retry, policy.stop, policy.wait)
    assert (state.attempt_number, state.fn, state.args, state.kwargs) == (1, None, (), {})


async def test_attempts_repeat_after_backoff_until_one_succeeds() -> None:
    bench = Bench(LOST, UNSENT, OK)
    assert await bench.call() is OK
    assert bench.attempts == [
        (0.0, 1, RetryTarget.ANY_INSTANCE),
        (1.5, 2, RetryTarget.ANY_INSTANCE),
        (3.5, 3, RetryTarget.ANY_INSTANCE),
    ]
    found = bench.verdicts
    assert found == [RetryDecision(0.5, RetryTarget.ANY_INSTANCE), RetryDecision(1.0, RetryTarget.ANY_INSTANCE)]
    assert bench.budget.remaining == 28


async def test_last_result_is_returned() -> None:
    last = Result(Outcome.TIMEOUT)
    bench = Bench(LOST, LOST, last)
    assert await bench.call() is last
    assert bench.verdicts[-1] is NoRetryReason.ATTEMPTS
    assert len(bench.attempts) == 3


async def test_retry_continues_after_the_first_attempt() -> None:
    bench = Bench(OK)
    options: dict[str, Any] = {"deadline": START + 100, "keyed": False, "listener": bench.verdicts.append}
    assert await retry(LOST, bench.attempt, bench.retrying, **options) is OK
    assert bench.attempts == [(0.5, 2, RetryTarget.ANY_INSTANCE)]


@pytest.mark.parametrize("keyed", [False, True])
async def test_retry_respects_the_idempotency_key(keyed: bool) -> None:
    bench = Bench(OK, repeatable=False)
    options: dict[str, Any] = {"deadline": START + 100, "keyed": keyed, "listener": bench.verdicts.append}
    first = Result(Outcome.TIMEOUT, remembered=True)
    assert await retry(first, bench.attempt, bench.retrying, **options) is (OK if keyed else first)


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
    await cancel_task(await start_task(bench.call(), when))
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

    assert await asyncio.gather(*map(call, range(10))) == [OK] * 10
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


@pytest.mark.costly
@pytest.mark.parametrize(
    ("ratio", "floor", "least", "most"),
    [(0.2, 3.0, 5_900, 5_000 * 1.2 + 30), (1.0, 1_000.0, 5_000 * 2.8, 5_000 * 3)],
    ids=["budget", "none"],
)
async def test_budget_bounds_a_retry_storm(ratio: float, floor: float, least: float, most: float) -> None:
    """1,000 calls a second for five seconds, all fail, three attempts each: at most 1.2 times as much is sent, and 3/s
    (which is 30 at once at first). Without a budget it would be thrice as much."""
    chance = random.Random(5)
    bench = Bench(settings=Retry(budget_ratio=ratio), drawn=chance.random, floor=floor)
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
    assert least < sent <= most


NOW = 1_000.0


class DecisionBench:
    """One tool's retries: ``drawn`` is the next random number, ``now`` the time."""

    def __init__(
        self,
        settings: Retry = DEFAULT_RETRY,
        *,
        repeatable: bool = True,
        drawn: float = 0.5,
        took: float | None = None,
        floor: float = 3.0,
    ) -> None:
        self.now, self.drawn = NOW, drawn
        self.budget = RetryBudget(settings.budget_ratio, floor, lambda: self.now)
        self.durations = LatencyHistogram(lambda: self.now)
        self.retrying = RetryPolicy(
            settings, repeatable=repeatable, budget=self.budget, durations=self.durations, randomness=lambda: self.drawn
        )
        if took is not None:
            for _ in range(10):
                self.durations.record(took)

    def decide(self, outcome: Outcome = Outcome.TRANSPORT, **changes: Any) -> RetryDecision | NoRetryReason:
        state = self.retrying.start()
        state.attempt_number = changes.pop("attempt", 1)
        told = {key: changes.pop(key) for key in ("retry_after", "error_type", "remembered") if key in changes}
        circumstances = {"now": self.now, "deadline": NOW + 30, "may_have_run": True, "keyed": False} | changes
        state.set_result(FailedAttempt(Result(outcome, **told), **circumstances))
        left = self.budget.remaining
        verdict = self.retrying.decide(state)
        assert left - self.budget.remaining == isinstance(verdict, RetryDecision), "only a retry is paid for"
        return verdict

    def wait(self, outcome: Outcome = Outcome.TRANSPORT, **changes: Any) -> float:
        verdict = self.decide(outcome, **changes)
        assert isinstance(verdict, RetryDecision), verdict
        return verdict.wait


# -- what can get better ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("outcome", Outcome)
def test_only_retryable_outcomes_are_retried(outcome: Outcome) -> None:
    verdict = DecisionBench().decide(outcome)
    if outcome in (Outcome.TRANSPORT, Outcome.TIMEOUT, Outcome.THROTTLED):
        assert isinstance(verdict, RetryDecision)
    else:
        assert verdict is NoRetryReason.OUTCOME
    assert (outcome in RETRYABLE_OUTCOMES) == isinstance(verdict, RetryDecision)


@pytest.mark.parametrize("error_type", sorted(NON_RETRYABLE_ERRORS))
def test_permanent_transport_errors_are_not_retried(error_type: str) -> None:
    assert DecisionBench().decide(Outcome.TRANSPORT, error_type=error_type) is NoRetryReason.OUTCOME


def test_other_transport_errors_are_retried() -> None:
    assert isinstance(DecisionBench().decide(Outcome.TRANSPORT, error_type="instance-lost"), RetryDecision)


def test_a_tools_own_error_is_retried_when_the_settings_name_its_type() -> None:
    bench = DecisionBench(Retry(retryable_errors=("locked", "busy")))
    assert isinstance(bench.decide(Outcome.TOOL_ERROR, error_type="busy"), RetryDecision)
    assert bench.decide(Outcome.TOOL_ERROR, error_type="gone") is NoRetryReason.OUTCOME
    assert bench.decide(Outcome.TOOL_ERROR) is NoRetryReason.OUTCOME
    assert bench.decide(Outcome.INVALID_ARGUMENTS, error_type="busy") is NoRetryReason.OUTCOME


@pytest.mark.parametrize(("attempts", "made", "more"), [(3, 1, True), (3, 2, True), (3, 3, False), (1, 1, False)])
def test_max_attempts_limits_attempts(attempts: int, made: int, more: bool) -> None:
    verdict = DecisionBench(Retry(max_attempts=attempts)).decide(attempt=made)
    assert isinstance(verdict, RetryDecision) if more else verdict is NoRetryReason.ATTEMPTS


# -- what may be repeated, and where ------------------------------------------------------------------------------
@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("sent", [False, True])
@pytest.mark.parametrize("remembered", [False, True])
def test_repeatable_tool_is_retried_at_any_instance(keyed: bool, sent: bool, remembered: bool) -> None:
    verdict = DecisionBench(repeatable=True).decide(
        Outcome.TIMEOUT, may_have_run=sent, keyed=keyed, remembered=remembered
    )
    assert isinstance(verdict, RetryDecision)
    assert verdict.where is RetryTarget.ANY_INSTANCE


@pytest.mark.parametrize(
    ("keyed", "sent", "remembered", "expected"),
    [
        (False, False, False, RetryTarget.ANY_INSTANCE),
        (False, False, True, RetryTarget.ANY_INSTANCE),
        (False, True, False, NoRetryReason.UNSAFE),
        (False, True, True, NoRetryReason.UNSAFE),
        (True, False, False, RetryTarget.KEY_HOLDER),
        (True, False, True, RetryTarget.KEY_HOLDER),
        (True, True, False, NoRetryReason.UNSAFE),
        (True, True, True, RetryTarget.KEY_HOLDER),
    ],
)
def test_possibly_executed_call_is_retried_only_at_the_key_holder(
    keyed: bool, sent: bool, remembered: bool, expected: RetryTarget | NoRetryReason
) -> None:
    verdict = DecisionBench(repeatable=False).decide(
        Outcome.TIMEOUT, may_have_run=sent, keyed=keyed, remembered=remembered
    )
    assert (verdict.where if isinstance(verdict, RetryDecision) else verdict) is expected


def test_remembered_tool_error_is_not_retried() -> None:
    bench = DecisionBench(Retry(retryable_errors=("busy",)), repeatable=False)
    assert bench.decide(Outcome.TOOL_ERROR, error_type="busy") is NoRetryReason.UNSAFE
    assert bench.decide(Outcome.TOOL_ERROR, error_type="busy", keyed=True) is NoRetryReason.UNSAFE
    assert bench.decide(Outcome.TOOL_ERROR, error_type="busy", keyed=True, remembered=True) is NoRetryReason.OUTCOME
    anywhere = DecisionBench(Retry(retryable_errors=("busy",)), repeatable=True).decide(
        Outcome.TOOL_ERROR, error_type="busy", keyed=True
    )
    assert isinstance(anywhere, RetryDecision)
    assert anywhere.where is RetryTarget.ANY_INSTANCE


@pytest.mark.parametrize(("outcome", "sent"), list(product(Outcome, (False, True))))
def test_attempt_may_have_run_unless_unsent_or_rejected(outcome: Outcome, sent: bool) -> None:
    assert may_have_run(outcome, sent=sent) == (sent and outcome not in (Outcome.THROTTLED, Outcome.REJECTED))


# -- how long to wait ---------------------------------------------------------------------------------------------
def test_backoff_is_uniform_up_to_a_doubling_capped_bound() -> None:
    bench = DecisionBench(Retry(max_attempts=10, initial_backoff=0.05, max_backoff=0.3), drawn=0.0)
    assert [bench.wait(attempt=number) for number in range(1, 6)] == [0.0] * 5
    bench.drawn = 0.5
    assert [bench.wait(attempt=number) for number in range(1, 6)] == pytest.approx([0.025, 0.05, 0.1, 0.15, 0.15])


def test_backoff_is_added_to_retry_after() -> None:
    bench = DecisionBench()
    assert bench.wait(Outcome.THROTTLED, retry_after=1.5) == pytest.approx(1.5 + 0.025)
    bench.drawn = 0.0
    assert bench.wait(Outcome.TRANSPORT, retry_after=1.5) == 1.5


@pytest.mark.parametrize("nonsense", [0.0, -5.0, math.nan, None])
def test_invalid_retry_after_is_ignored(nonsense: float | None) -> None:
    assert DecisionBench().wait(retry_after=nonsense) == pytest.approx(0.025)


@pytest.mark.parametrize("retry_after", [None, 1.0])
def test_callers_that_failed_together_do_not_retry_together(retry_after: float | None) -> None:
    """A thousand callers fail in one instant: no twentieth of the time after it gets more than 15 % of them. In step, one
    would get all."""
    chance = random.Random(7)
    bench = DecisionBench(floor=1_000)
    waits = []
    for _ in range(1_000):
        bench.drawn = chance.random()
        waits.append(bench.wait(Outcome.THROTTLED, retry_after=retry_after, attempt=2) - (retry_after or 0.0))
    assert min(waits) >= 0.0
    assert max(waits) < 0.1
    slots = [int(wait / 0.1 * 20) for wait in waits]
    assert max(slots.count(slot) for slot in range(20)) <= 150


# -- what can still be in time ------------------------------------------------------------------------------------
@pytest.mark.parametrize(("left", "begun"), [(0.0, False), (-1.0, False), (0.99, False), (1.1, True)])
def test_retry_that_cannot_finish_in_time_is_not_made(left: float, begun: bool) -> None:
    verdict = DecisionBench(took=1.0).decide(deadline=NOW + left)
    assert isinstance(verdict, RetryDecision) if begun else verdict is NoRetryReason.TOO_LATE


def test_time_of_exactly_the_median_permits_a_retry_without_backoff() -> None:
    bench = DecisionBench(took=1.0, drawn=0.999)
    median = bench.durations.quantile(0.5)
    assert median is not None
    assert bench.wait(now=0.0, deadline=median) == 0.0
    assert bench.decide(now=0.0, deadline=median - 1e-9) is NoRetryReason.TOO_LATE


def test_backoff_leaves_time_for_the_attempt() -> None:
    bench = DecisionBench(Retry(initial_backoff=2.0), took=1.0, drawn=0.5)
    median = bench.durations.quantile(0.5)
    assert bench.wait(deadline=NOW + 2) == pytest.approx((2 - median) / 2)
    assert bench.wait(deadline=NOW + 2.5, retry_after=0.5) == pytest.approx(0.5 + (2 - median) / 2)
    assert bench.wait(deadline=NOW + 30) == pytest.approx(1.0)


def test_half_of_the_time_is_reserved_while_the_median_is_unknown() -> None:
    bench = DecisionBench(Retry(initial_backoff=2.0), drawn=0.5)
    assert bench.wait(deadline=NOW + 2) == pytest.approx(0.5)
    assert bench.decide(deadline=NOW) is NoRetryReason.TOO_LATE


@pytest.mark.parametrize("retry_after", [2.0, 3.0, math.inf])
def test_retry_after_beyond_the_deadline_ends_the_call(retry_after: float) -> None:
    assert (
        DecisionBench().decide(Outcome.THROTTLED, retry_after=retry_after, deadline=NOW + 2) is NoRetryReason.TOO_LATE
    )


@given(
    attempt=st.integers(1, 9),
    left=st.floats(-1, 100),
    retry_after=st.one_of(st.none(), st.floats(-1, 100)),
    took=st.one_of(st.none(), st.floats(0.001, 50)),
    drawn=st.floats(0, 1, exclude_max=True),
)
def test_every_backoff_respects_retry_after_and_deadline(
    attempt: int, left: float, retry_after: float | None, took: float | None, drawn: float
) -> None:
    bench = DecisionBench(Retry(max_attempts=10), drawn=drawn, took=took)
    verdict = bench.decide(attempt=attempt, retry_after=retry_after, deadline=NOW + left)
    if isinstance(verdict, RetryDecision):
        asked = max(retry_after or 0.0, 0.0)
        assert asked <= verdict.wait <= asked + min(2.0, 0.05 * 2 ** (attempt - 1))
        assert verdict.wait + (took or 0.0) <= left + 1e-9
    else:
        assert verdict is NoRetryReason.TOO_LATE
        assert left - max(retry_after or 0.0, 0.0) < max((took or 0.0) * 1.05, 1e-9)


# -- what it is paid from -----------------------------------------------------------------------------------------
def test_exhausted_budget_ends_retries() -> None:
    bench = DecisionBench(floor=0.2)
    assert [isinstance(bench.decide(), RetryDecision) for _ in range(3)] == [True, True, False]
    assert bench.decide() is NoRetryReason.BUDGET
