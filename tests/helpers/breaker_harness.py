"""A breaker on a bench: time and chance set by hand."""

from __future__ import annotations

from typing import Any

from dispatch._internal import Rejection
from dispatch.errors import Outcome
from dispatch.resilience.breaker import BreakerPermit, BreakerRules, CircuitBreaker, State


class Bench:
    """A breaker with a clock and a chance to be set by hand, and what its listener was told."""

    def __init__(self, settings: BreakerRules | None = None, **values: Any) -> None:
        self.now = 1000.0
        self.chance = 0.5
        self.told: list[tuple[str, str, str]] = []
        self.breaker = CircuitBreaker(
            settings or BreakerRules(**values),
            clock=lambda: self.now,
            randomness=lambda: self.chance,
            on_transition=lambda *told: self.told.append(told),
        )

    def permit(self) -> BreakerPermit:
        permit = self.breaker.admit()
        assert isinstance(permit, BreakerPermit), permit
        return permit

    def refusal(self) -> tuple[str, float | None]:
        assert not self.breaker.can_admit()
        rejection = self.breaker.admit()
        assert isinstance(rejection, Rejection), rejection
        assert rejection.by == "breaker"
        return rejection.reason, rejection.retry_after

    def call(self, outcome: Outcome = Outcome.SUCCESS, took: float = 0.0, retry_after: float | None = None) -> None:
        permit = self.permit()
        self.now += took
        permit.finish(outcome, retry_after=retry_after)

    def opened(self) -> Bench:
        while self.breaker.state is State.CLOSED:
            self.call(Outcome.TIMEOUT)
        return self

    def probing(self) -> Bench:
        self.opened()
        self.now += 5.0
        return self

    def recovered(self) -> Bench:
        self.probing()
        while self.breaker.state is not State.CLOSED:
            self.call()
        return self
