"""The breaker against a model that keeps every call and counts them anew each time, over any schedule.

Guards against what no example thinks of: results of one state in another, lost and cancelled probes between others, pauses
across transitions, an operator's hand at any moment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dispatch._internal import Rejection
from dispatch.errors import Outcome
from dispatch.resilience.breaker import BreakerPermit, BreakerRules, CircuitBreaker
from tests.helpers.state_machine_settings import machine

SMALL = BreakerRules(
    window_calls=8,
    min_calls=4,
    window_duration=10.0,
    slow_call_duration=2.0,
    slow_call_rate=0.75,
    consecutive_failures=5,
    no_success_duration=6.0,
    no_success_failures=3,
    open_duration=4.0,
    max_open_duration=20.0,
    jitter=0.5,
    decay_duration=8.0,
    half_open_calls=2,
    half_open_rounds=2,
    half_open_lease=5.0,
    max_retry_after=50.0,
)
OTHER = BreakerRules(
    window_calls=8,
    min_calls=6,
    window_duration=10.0,
    slow_call_duration=None,
    failure_rate=0.4,
    consecutive_failures=None,
    no_success_duration=None,
    open_duration=1.0,
    max_open_duration=30.0,
    jitter=0.25,
    decay_duration=4.0,
    half_open_calls=1,
    half_open_rounds=3,
    half_open_lease=8.0,
    max_retry_after=25.0,
    count_tool_errors=True,
)
RETRY_AFTER = st.sampled_from([None, 0.0, -1.0, 1.0, 3.25, 7.0, 1e9])


@dataclass
class Flying:
    epoch: int
    at: float
    lease_end: float | None
    """None: it is no probe."""
    done: bool = False


@dataclass
class Model:
    """As plain as can be: lists, and everything computed when it is asked for."""

    rules: BreakerRules
    now: float = 0.0
    chance: float = 0.5
    state: str = "closed"
    epoch: int = 0
    stale: int = 0
    until: float = -1.0
    level: int = 0
    healthy_since: float | None = None
    calls: list[tuple[float, bool, bool]] = field(default_factory=list)
    frozen_at: float | None = None
    half_open_calls: list[Flying] = field(default_factory=list)
    round: int = 0
    results: list[tuple[bool, bool]] = field(default_factory=list)

    def go(self, state: str) -> None:
        counting = ("closed", "metrics-only")
        if self.state in counting and state not in counting:
            self.frozen_at = self.now
        if state in counting:
            self.calls, self.frozen_at = [], None
        self.state, self.epoch = state, self.epoch + 1
        self.half_open_calls, self.results, self.round = [], [], 0

    def health(self) -> None:
        if self.healthy_since is not None:
            for _ in range(int((self.now - self.healthy_since) // self.rules.decay_duration)):
                self.level = max(0, self.level - 1)
        self.healthy_since = None

    def trip(self, retry_after: float | None) -> None:
        self.health()
        rules = self.rules
        base = min(rules.open_duration * 2**self.level, rules.max_open_duration / (1 + rules.jitter))
        if base < rules.max_open_duration / (1 + rules.jitter):
            self.level += 1
        seconds = base * (1 + rules.jitter * (2 * self.chance - 1))
        if self.asked(retry_after):
            seconds = max(seconds, self.asked(retry_after) + rules.open_duration * rules.jitter * self.chance)
        self.until = max(self.until, self.now + seconds)
        self.go("open")

    def asked(self, retry_after: float | None) -> float:
        return min(max(retry_after or 0.0, 0.0), self.rules.max_retry_after)

    def places(self) -> int:
        live = [probe for probe in self.half_open_calls if not probe.done and self.now < (probe.lease_end or 0.0)]
        return self.rules.half_open_calls * 2**self.round - len(live)

    def refusal(self) -> str | None:
        if self.state == "forced-open":
            return "forced-open"
        if self.now < self.until:
            return "open" if self.state == "open" else "paused"
        return "probing" if self.state == "half-open" and self.places() <= 0 else None

    def admit(self) -> Flying:
        if self.state == "open":
            self.go("half-open")
        probe = self.state == "half-open"
        flying = Flying(self.epoch, self.now, self.now + self.rules.half_open_lease if probe else None)
        if probe:
            self.half_open_calls.append(flying)
        return flying

    def finish(self, flying: Flying, outcome: Outcome, retry_after: float | None) -> None:
        if flying.done:
            return
        flying.done = True
        took = self.now - flying.at
        if flying.epoch != self.epoch or (flying.lease_end is not None and self.now >= flying.lease_end):
            self.stale += 1
            return
        if self.state == "disabled" or outcome in ("cancelled", "rejected"):
            return
        if outcome == "throttled":
            if self.asked(retry_after) and self.state != "metrics-only":
                self.until = max(self.until, self.now + self.asked(retry_after))
            return
        rules = self.rules
        failing = {"timeout", "transport"}
        failing |= {"tool_error"} if rules.count_tool_errors else set()
        failed = str(outcome) in failing
        slow = rules.slow_call_duration is not None and took >= rules.slow_call_duration
        if self.state == "half-open":
            self.probed(failed, slow, retry_after)
            return
        self.calls.append((self.now, failed, slow))
        if self.state == "closed" and self.trouble(failed, slow):
            self.trip(retry_after)

    def probed(self, failed: bool, slow: bool, retry_after: float | None) -> None:
        self.results.append((failed, slow))
        size = self.rules.half_open_calls * 2**self.round
        failures, slows = (sum(result[each] for result in self.results) for each in (0, 1))
        too_many = failed and (self.round == 0 or failures / size >= self.rules.failure_rate)
        too_slow = slow and slows / size >= self.rules.slow_call_rate
        if too_many or too_slow:
            self.trip(retry_after)
        elif len(self.results) >= size:
            self.results = []
            self.round += 1
            if self.round >= self.rules.half_open_rounds:
                self.go("closed")
                self.healthy_since = self.now

    def trouble(self, failed: bool, slow: bool) -> bool:
        rules = self.rules
        run: list[float] = []
        for at, was_failure, _ in self.calls:
            run = [*run, at] if was_failure else []
        if failed and rules.consecutive_failures is not None and len(run) >= rules.consecutive_failures:
            return True
        enough = rules.no_success_duration is not None and len(run) >= rules.no_success_failures
        if failed and enough and self.now - run[0] >= (rules.no_success_duration or 0.0):
            return True
        rates = [self.rate(which) for which in (1, 2)]
        return (failed and rates[0] is not None and rates[0] >= rules.failure_rate) or (
            slow and rates[1] is not None and rates[1] >= rules.slow_call_rate
        )

    def rate(self, which: int) -> float | None:
        now = self.now if self.frozen_at is None else self.frozen_at
        part = self.rules.window_duration / 10
        by_time = [call for call in self.calls if call[0] // part > now // part - 10]
        shares = [
            sum(call[which] for call in window_calls) / len(window_calls)
            for window_calls in (self.calls[-self.rules.window_calls :], by_time)
            if len(window_calls) >= self.rules.min_calls
        ]
        return max(shares) if shares else None


class BreakerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model(SMALL)
        self.told: list[tuple[str, str]] = []
        self.breaker = CircuitBreaker(
            SMALL,
            clock=lambda: self.model.now,
            randomness=lambda: self.model.chance,
            on_transition=lambda old, new, why: self.told.append((old, new)),
        )
        self.flying: list[tuple[BreakerPermit, Flying]] = []

    @rule(quarters=st.integers(1, 12) | st.integers(1, 100))
    def time_passes(self, quarters: int) -> None:
        self.model.now += quarters / 4

    @rule(chance=st.sampled_from([0.0, 0.25, 0.5, 0.75]))
    def chance_changes(self, chance: float) -> None:
        self.model.chance = chance

    @rule(calls=st.integers(1, 4))
    def admit(self, calls: int) -> None:
        for _ in range(calls):
            reason, until = self.model.refusal(), self.model.until
            admitted = self.breaker.admit()
            if reason is None:
                assert isinstance(admitted, BreakerPermit)
                self.flying.append((admitted, self.model.admit()))
                continue
            wait = until - self.model.now if reason in ("open", "paused") else None
            assert admitted == Rejection("breaker", reason, wait)

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), outcome=st.sampled_from(Outcome), retry_after=RETRY_AFTER, twice=st.booleans())
    def finish(self, data: Any, outcome: Outcome, retry_after: float | None, twice: bool) -> None:
        at = data.draw(st.integers(0, len(self.flying) - 1))
        permit, flying = self.flying[at] if twice else self.flying.pop(at)
        permit.finish(outcome, retry_after=retry_after)
        self.model.finish(flying, outcome, retry_after)

    @precondition(lambda self: self.flying)
    @rule(outcome=st.sampled_from([Outcome.SUCCESS, Outcome.SUCCESS, Outcome.TIMEOUT]), most=st.integers(1, 6))
    def finish_the_oldest(self, outcome: Outcome, most: int) -> None:
        for _ in range(min(most, len(self.flying))):
            permit, flying = self.flying.pop(0)
            permit.finish(outcome)
            self.model.finish(flying, outcome, None)

    @precondition(lambda self: self.model.refusal() is None)
    @rule(outcome=st.sampled_from([Outcome.SUCCESS, Outcome.TIMEOUT]), most=st.integers(1, 8))
    def calls_that_end_at_once(self, outcome: Outcome, most: int) -> None:
        for _ in range(most):
            if self.model.refusal() is None:
                permit = self.breaker.admit()
                assert isinstance(permit, BreakerPermit)
                flying = self.model.admit()
                permit.finish(outcome)
                self.model.finish(flying, outcome, None)

    @rule(
        state=st.sampled_from(["forced-open", "disabled", "metrics-only", "closed", "closed"]), really=st.integers(0, 3)
    )
    def operate(self, state: str, really: int) -> None:
        if really:  # seldom: most schedules are the breaker's own
            return
        breaker, model = self.breaker, self.model
        does = {"forced-open": breaker.force_open, "disabled": breaker.disable, "metrics-only": breaker.metrics_only}
        does.get(state, breaker.reset)()
        if state == "closed":
            model.level, model.healthy_since = 0, None
        if state == "closed" or model.state != state:
            model.until = -1.0
            model.go(state)

    @rule(quarters=st.integers(-4, 60) | st.just(10**9))
    def told_until_when(self, quarters: int) -> None:
        model = self.model
        instant = model.now + quarters / 4
        self.breaker.open_until(instant)
        if model.state in ("closed", "open", "half-open") and instant > model.now:
            model.until = max(model.until, min(instant, model.now + model.rules.max_retry_after))
            if model.state != "open":
                model.health()
                model.go("open")

    @rule(rules=st.sampled_from([SMALL, OTHER]))
    def take_new_settings_over(self, rules: BreakerRules) -> None:
        self.breaker.reconfigure(rules)
        self.model.rules = rules
        for probe in self.model.half_open_calls:  # shorter, never longer
            assert probe.lease_end is not None
            probe.lease_end = min(probe.lease_end, probe.at + rules.half_open_lease)

    @invariant()
    def it_is_as_the_model_says(self) -> None:
        breaker, model = self.breaker, self.model
        assert (breaker.state, breaker.epoch, breaker.stale) == (model.state, model.epoch, model.stale)
        assert breaker.can_admit() == (model.refusal() is None)
        assert (breaker.failure_rate, breaker.slow_call_rate) == (model.rate(1), model.rate(2))
        assert breaker.retry_after == (model.until - model.now if model.until > model.now else None)

    @invariant()
    def what_was_told_is_a_chain_that_ends_in_the_present(self) -> None:
        states = ["closed", *(new for _, new in self.told)]
        assert [old for old, _ in self.told] == states[:-1]
        assert states[-1] == self.breaker.state


TestBreakerMachine = pytest.mark.costly(BreakerMachine.TestCase)
TestBreakerMachine.settings = machine(50, 50)
