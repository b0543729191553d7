"""A bulkhead on a clock of its own, for tests."""

from __future__ import annotations

from typing import Any

import msgspec

from dispatch._internal import Rejection
from dispatch.errors import Outcome
from dispatch.policy import Bulkhead
from dispatch.resilience.bulkhead import INTERVALS, BulkheadGuard, BulkheadPermit, BulkheadWaiter, QueueLimits

OK = Outcome.SUCCESS


class Bench:
    """A bulkhead on a clock of its own, with a ``max_wait`` of 1 s unless another is given; ``told`` has who got what, in
    order."""

    def __init__(self, **settings: Any) -> None:
        self.now = 1_000.0
        limits = {name: settings.pop(name) for name in QueueLimits.__struct_fields__ if name in settings}
        self.guard = BulkheadGuard(
            Bulkhead(**{"max_concurrent_calls": 1, "max_wait": 1.0, **settings}),
            lambda: self.now,
            QueueLimits(**{"max_length": 4, **limits}),
        )
        self.told: list[tuple[str, BulkheadPermit | Rejection]] = []
        self.absent: set[str] = set()

    def acquire(self) -> BulkheadPermit:
        permit = self.guard.admit()
        assert isinstance(permit, BulkheadPermit)
        return permit

    def enqueue(
        self, name: str, *, left: float | None = None, priority: str | None = None
    ) -> BulkheadPermit | BulkheadWaiter | Rejection:
        def decide(answer: BulkheadPermit | Rejection) -> bool:
            self.told.append((name, answer))
            return name not in self.absent

        return self.guard.enqueue(decide, deadline=None if left is None else self.now + left, priority=priority)

    def wait(self, *names: str, **how: Any) -> list[BulkheadWaiter]:
        waiters = [self.enqueue(name, **how) for name in names]
        for waiter in waiters:
            assert isinstance(waiter, BulkheadWaiter)
            assert waiter.is_waiting
        return waiters  # type: ignore[return-value]

    def serve(self, seconds: float, outcome: Outcome = OK) -> None:
        """One call of so many seconds."""
        permit = self.acquire()
        self.now += seconds
        permit.finish(outcome)

    def stand(self) -> None:
        """The queue stands from now on: calls arrive faster than they end."""
        trend = self.guard._queue.trend
        trend._count, trend._is_first, trend.is_overloaded = INTERVALS, False, True

    @property
    def names(self) -> str:
        """Who got a place, in order; a refused one as ``name:reason``."""
        return " ".join(f"{name}:{got.reason}" if isinstance(got, Rejection) else name for name, got in self.told)

    def last(self) -> BulkheadPermit:
        permit = self.told[-1][1]
        assert isinstance(permit, BulkheadPermit)
        return permit


def reconfigure(bench: Bench, **changes: Any) -> None:
    bench.guard.reconfigure(msgspec.structs.replace(bench.guard.settings, **changes))
