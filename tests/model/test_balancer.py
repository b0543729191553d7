"""The balancer against a plain model of what it owes to everybody, in any order of events and with any strategy."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dispatch.errors import Outcome
from dispatch.policy import STRATEGIES, Balancing
from dispatch.resilience.balancer import NO_INSTANCE, Balancer, Pick
from dispatch.resilience.instances import EjectionRules
from tests.helpers.balancers import START
from tests.helpers.state_machine_settings import machine

IDS = st.sampled_from("abcdef")
FAILURES = (Outcome.TIMEOUT, Outcome.TRANSPORT)
NEUTRAL = (Outcome.CANCELLED, Outcome.REJECTED, Outcome.THROTTLED)


class Known:
    """The model of one instance: all that was told of it."""

    def __init__(self) -> None:
        self.member = True
        self.in_flight = 0
        self.failures = 0
        self.answered = 0
        self.out_until: float | None = None
        self.times = 0
        self.well_since = START
        self.life = 0
        self.left_at = START


class BalancerMachine(RuleBasedStateMachine):
    """The model recounts failures, ejections and their ends by itself; it knows nothing of strategies and lists."""

    HEALTH = EjectionRules(
        consecutive_failures=3,
        success_rate_stdev_factor=None,
        base_ejection_time=10,
        max_ejection_time=25,
        interval=5,
        slow_start_window=8,
    )

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.known: dict[str, Known] = {}
        self.picked = 0
        self.shut: set[str] = set()
        self.picks: list[tuple[Pick, Known, int, int]] = []
        self.told: list[tuple[str, str, str]] = []
        self.owed: list[tuple[str, str, str]] = []

    @initialize(strategy=st.sampled_from(STRATEGIES), seed=st.integers(0, 9))
    def begin(self, strategy: str, seed: int) -> None:
        self.balancer = Balancer(
            balancing=Balancing(strategy=strategy),
            outlier_detection=self.HEALTH,
            clock=lambda: self.now,
            randomness=random.Random(seed).random,
            admits=lambda id: id not in self.shut,
            listener=lambda *change: self.told.append(change),
        )

    def members(self) -> dict[str, Known]:
        return {id: known for id, known in self.known.items() if known.member}

    def let_return(self) -> None:
        for id, known in self.members().items():
            if known.out_until is not None and self.now >= known.out_until:
                self.back(id, known, "over")
                known.failures = 2

    def back(self, id: str, known: Known, why: str) -> None:
        known.out_until = None
        known.well_since = self.now
        known.life += 1
        self.owed.append((id, "returned", why))

    @rule(id=IDS, weight=st.sampled_from([0.5, 1.0, 3.0]))
    def add(self, id: str, weight: float) -> None:
        assert self.balancer.add(id, weight)
        self.join(id)

    def join(self, id: str) -> None:
        known = self.known.get(id)
        # One that was away for twice the longest ejection begins anew.
        if known is None or (not known.member and self.now - known.left_at >= 2 * self.HEALTH.max_ejection_time):
            known = self.known[id] = Known()
            known.well_since = self.now
        known.member = True

    def leave(self, id: str) -> None:
        known = self.known.get(id)
        if known is not None and known.member:
            known.member = False
            known.left_at = self.now

    @rule(id=IDS)
    def remove(self, id: str) -> None:
        assert self.balancer.remove(id) == (id in self.members())
        self.leave(id)

    @rule(ids=st.sets(IDS, max_size=4))
    def replace(self, ids: set[str]) -> None:
        self.balancer.replace(sorted(ids))
        for id in set("abcdef") - ids:
            self.leave(id)
        for id in ids:
            self.join(id)

    @rule(ids=st.sets(IDS))
    def breakers(self, ids: set[str]) -> None:
        self.shut = ids

    @rule(seconds=st.sampled_from([0.5, 2.0, 5.0, 11.0, 40.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(
        tried=st.frozensets(IDS, max_size=3),
        capable=st.none() | st.frozensets(IDS, max_size=4),
        count=st.integers(1, 6),
    )
    def pick(self, tried: frozenset[str], capable: frozenset[str] | None, count: int) -> None:
        for _ in range(count):
            members = self.members()
            picked = self.balancer.pick(tried, capable)
            self.let_return()
            usable = {id: each for id, each in members.items() if capable is None or id in capable}
            if not usable:
                assert picked is NO_INSTANCE
                return
            assert isinstance(picked, Pick)
            known = usable[picked.instance]
            self.picked += 1
            known.in_flight += 1
            self.picks.append((picked, known, known.life, self.picked))
            if picked.is_probe:
                assert known.out_until is not None
                continue
            can_go = {id for id, each in usable.items() if each.out_until is None and id not in self.shut}
            if can_go and not picked.panic:
                assert picked.instance in can_go
                assert picked.instance not in tried or can_go <= tried
            fit = [each for each in members.values() if each.out_until is None]
            if picked.panic and len(fit) * 2 >= len(members):
                assert not can_go or all(each.failures >= 3 for each in fit)
            if not picked.panic:
                assert can_go
            elif not can_go:
                there = set(usable) - self.shut or set(usable)  # rather one that is ejected than one that is not there
                assert picked.instance in there
                assert picked.instance not in tried or there <= tried

    @rule(data=st.data(), outcome=st.sampled_from(Outcome), count=st.integers(1, 4))
    def finish(self, data: Any, outcome: Outcome, count: int) -> None:
        for _ in range(min(count, len(self.picks))):
            index = data.draw(st.integers(0, len(self.picks) - 1))
            picked, known, life, number = self.picks.pop(index)
            picked.finish(outcome, retry_after=3.0, in_flight=4)
            picked.finish(Outcome.TIMEOUT)
            known.in_flight -= 1
            if life != known.life:
                continue
            is_old = outcome is Outcome.TIMEOUT and number <= known.answered
            if outcome is Outcome.SUCCESS:
                known.answered = self.picked
            if outcome not in NEUTRAL and not is_old and not picked.is_probe:
                self.count(picked.instance, known, failed=outcome in FAILURES)

    def count(self, id: str, known: Known, *, failed: bool) -> None:
        if not failed:
            if known.member and known.out_until is not None:
                self.back(id, known, "answered")
            known.failures = 0
            return
        known.failures += 1
        members = self.members()
        out = sum(each.out_until is not None for each in members.values())
        most = max(len(members) // 2, 1 if len(members) >= 3 else 0)
        if known.failures >= 3 and known.member and known.out_until is None and out < most:
            known.times = min(3, max(0, known.times - int((self.now - known.well_since) / 5)) + 1)
            known.out_until = self.now + min(25, 10 * known.times)
            known.life += 1
            self.owed.append((id, "ejected", "failures"))

    @invariant()
    def the_books_are_right(self) -> None:
        if not hasattr(self, "balancer"):
            return
        seen = {view.id: view for view in self.balancer.instances()}
        self.let_return()
        assert list(seen) == list(dict.fromkeys(seen))
        assert set(seen) == set(self.members()) == {id for id in "abcdef" if id in self.balancer}
        assert sorted(self.told) == sorted(self.owed)
        for id, known in self.members().items():
            assert seen[id].in_flight == known.in_flight
            assert seen[id].failures == known.failures
            assert (seen[id].state == "ejected") == (known.out_until is not None)
            if known.out_until is not None:
                assert seen[id].seconds_left == known.out_until - self.now
        out = sum(each.out_until is not None for each in self.members().values())
        assert self.balancer._detector.ejected == out


TestBalancerMachine = pytest.mark.costly(BalancerMachine.TestCase)
TestBalancerMachine.settings = machine(30, 40)
