"""Which instances are well: ejection, return, pauses, slow start. Reads outcomes; never an exception, never a clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil, sqrt

from dispatch.balancing.instance_state import NEVER, InstanceState
from dispatch.errors import Outcome
from dispatch.policy.balancing import Health

Listener = Callable[[str, str, str], object]
"""Hears of an instance (its id), what became of it (``ejected``, ``returned``) and why: ``failures``, ``success-rate``;
``over`` (its time is), ``answered``. It must neither raise nor change the balancer."""

PAUSE_S = 1.0
"""How long an instance that is throttled, and does not say for how long, is given less work."""
STEPS = 20
"""Steps of a slow start: what each may have is worked out so often, and not for each pick."""

_SUCCESS = Outcome.SUCCESS
_INVALID = Outcome.INVALID_ARGUMENTS
_TOOL_ERROR = Outcome.TOOL_ERROR
_THROTTLED = Outcome.THROTTLED
_FAILURES = (Outcome.TIMEOUT, Outcome.TRANSPORT)


def outliers(rates: Sequence[float], settings: Health) -> list[int]:
    """Which of these success rates stand out, the lowest first.

    One does when it is ``sigma`` deviations, and ``gap``, below the mean of all (Envoy); or ``pair_gap`` below the mean of
    the others, which works with two, and when several bad ones widen the deviation so far that none is outside.
    """
    count = len(rates)
    if count < 2 or settings.sigma is None:
        return []
    total = sum(rates)
    mean = total / count
    deviation = sqrt(sum((rate - mean) ** 2 for rate in rates) / count)
    lowest = mean - max(settings.sigma * deviation, settings.gap)
    found = [
        index
        for index, rate in enumerate(rates)
        if rate < lowest or rate < (total - rate) / (count - 1) - settings.pair_gap
    ]
    return sorted(found, key=rates.__getitem__)


class HealthWatch:
    """Decides who is ejected and who comes back.

    An ejection ends when its time is over; or when the instance, used all the same because nothing else was left, answers.
    An instance that comes back is on probation: until it has answered once, a single failure ejects it again, for longer.

    Args:
        settings: the rules.
        members: the instances, by id; the balancer's own mapping, which it keeps up to date.
        listener: hears of ejections and returns.
        now: the moment.

    Attributes:
        due: when :meth:`tick` wants to be called; the past, when something has changed.
        ejected: how many members are.
    """

    __slots__ = ("_judge_at", "_listener", "_members", "due", "ejected", "settings")

    def __init__(
        self, settings: Health, members: Mapping[str, InstanceState], listener: Listener | None, now: float
    ) -> None:
        self.settings = settings
        self._members = members
        self._listener = listener
        self._judge_at = now + settings.interval
        self.ejected = 0
        self.due = -NEVER

    def configure(self, settings: Health, now: float) -> None:
        """Other rules from now on. What is known stays, and ejections under way keep their end, unless the new rules eject
        no instance: then all return."""
        self.settings = settings
        self._judge_at = min(self._judge_at, now + settings.interval)
        self.due = -NEVER

    def heard(self, state: InstanceState, outcome: Outcome, retry_after: float | None, now: float) -> None:
        """An attempt that was picked in the instance's present epoch has ended."""
        if outcome is _SUCCESS or outcome is _INVALID or (outcome is _TOOL_ERROR and not self.settings.tool_errors):
            self._succeeded(state, now)
        elif outcome is _THROTTLED:
            pause = PAUSE_S if retry_after is None else retry_after
            if pause > 0:  # false for what is no number, too
                state.paused_until = max(state.paused_until, now + min(pause, self.settings.eject_max))
                self.due = -NEVER
        elif outcome in _FAILURES or outcome is _TOOL_ERROR:
            self._failed(state, now)

    def _succeeded(self, state: InstanceState, now: float) -> None:
        state.good += 1
        if state.member:
            if state.ejected_until is not None:
                self._release(state, now, "answered")
            elif state.sick:
                state.sick = False
                self.due = -NEVER
        state.failures = 0

    def outpaced(self, state: InstanceState, now: float) -> None:
        """An attempt was given up because another instance, asked later, has answered. One alone says nothing, and success
        rates leave it out: a few calls in a hundred of any instance end so. But one that is silent, or slow, is never seen
        to fail where its calls are hedged: it is found out by the row."""
        self._failed_again(state, now)

    def _failed(self, state: InstanceState, now: float) -> None:
        state.bad += 1
        self._failed_again(state, now)

    def _failed_again(self, state: InstanceState, now: float) -> None:
        state.failures += 1
        limit = self.settings.consecutive
        if limit is None or state.failures < limit or not state.member or state.ejected_until is not None:
            return
        if self.may_eject():
            self._eject(state, now, "failures")
        elif not state.sick:
            state.sick = True
            self.due = -NEVER

    def may_eject(self) -> bool:
        """Is there room for one more ejection?"""
        count = len(self._members)
        allowed = int(count * self.settings.eject_share + 1e-9)  # 0.29 times 100 is less than 29
        return self.ejected < max(allowed, 1 if count >= 3 else 0)

    def _eject(self, state: InstanceState, now: float, reason: str) -> None:
        settings = self.settings
        former = max(0, state.times - int((now - state.well_since) / settings.interval))
        # No more are remembered than make the longest ejection: else a long bad past would outlive its cause.
        state.times = min(former + 1, ceil(settings.eject_max / settings.eject_for))
        state.ejected_until = now + min(settings.eject_for * state.times, settings.eject_max)
        state.ejections += 1
        self.ejected += 1
        self._turned(state)
        self._tell(state.id, "ejected", reason)

    def _release(self, state: InstanceState, now: float, reason: str) -> None:
        limit = self.settings.consecutive
        state.ejected_until = None
        state.failures = 0 if limit is None else limit - 1  # on probation
        state.well_since = state.warm_from = now
        state.credit = 0.0
        self.ejected -= 1
        self._turned(state)
        self._tell(state.id, "returned", reason)

    def pardon(self, now: float) -> None:
        """The whole service was in trouble, and is well: that some of its instances were ejected meanwhile says nothing
        about them. They return at once, on probation; and neither they nor those that have returned need a slow start."""
        for state in self._members.values():
            if not state.times:
                continue
            if state.ejected_until is not None:
                self._release(state, now, "pardoned")
            state.times -= 1
            state.warm_from = now - (self.settings.slow_start or 0.0)
            self.due = -NEVER

    def _turned(self, state: InstanceState) -> None:
        state.epoch += 1
        state.sick = False
        state.good = state.bad = 0.0
        self.due = -NEVER

    def _tell(self, id: str, change: str, reason: str) -> None:
        if self._listener is not None:
            self._listener(id, change, reason)

    def joined(self, state: InstanceState, now: float) -> None:
        """``state`` is a member from now on, maybe again: what was known of it holds; its slow start begins anew."""
        state.member = True
        state.warm_from = now
        state.credit = 0.0
        state.sick = False
        self.ejected += state.ejected_until is not None
        self.due = -NEVER

    def left(self, state: InstanceState) -> None:
        """``state`` is no member any more."""
        state.member = False
        self.ejected -= state.ejected_until is not None
        self.due = -NEVER

    def tick(self, now: float) -> None:
        """Do what is due: judge success rates, let those return whose time is over, warm up. Sets :attr:`due`."""
        if now >= self._judge_at:
            self._judge_at = now + self.settings.interval
            self._judge(now)
        for state in self._members.values():
            if state.ejected_until is not None and (now >= state.ejected_until or not self.settings.ejects):
                self._release(state, now, "over")
        due = self._judge_at
        for state in self._members.values():
            due = min(due, self._warm(state, now))
            if state.ejected_until is not None and state.ejected_until < due:
                due = state.ejected_until
            if now < state.paused_until < due:
                due = state.paused_until
        self.due = due

    def _warm(self, state: InstanceState, now: float) -> float:
        """Set how much of its full share ``state`` may have; returns when that changes."""
        settings = self.settings
        passed = now - state.warm_from
        if settings.slow_start is None or passed >= settings.slow_start:
            state.level = 1.0
            return NEVER
        step = int(passed * STEPS / settings.slow_start)
        state.level = max(settings.slow_start_from, step / STEPS)
        return state.warm_from + (step + 1) * settings.slow_start / STEPS

    def _judge(self, now: float) -> None:
        settings = self.settings
        judged = [
            state
            for state in self._members.values()
            if state.ejected_until is None and state.good + state.bad >= settings.volume
        ]
        for index in outliers([state.good / (state.good + state.bad) for state in judged], settings):
            if self.may_eject():
                self._eject(judged[index], now, "success-rate")
        for state in judged:  # afresh: a bad hour must not outweigh the good minute after it
            state.good = state.bad = 0.0
        for state in self._members.values():
            state.good /= 2
            state.bad /= 2
