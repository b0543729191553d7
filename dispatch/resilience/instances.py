"""Outlier detection (passive health checks): ejection, return, pause and slow start of instances by their outcomes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, exp, log, sqrt

import msgspec

from dispatch._internal import Randomness
from dispatch.errors import Outcome
from dispatch.policy import MAX_EJECTION_S, OutlierDetection

# State of an instance as the balancer knows it, and the interface of balancing strategies.


NEVER = float("inf")
"""The infinite future."""
LEAST_S = 1e-9
"""Minimum duration of an answer: 0 stands for unknown."""
MOST_OTHERS = 1_000_000
"""Maximum of other dispatchers' calls at one instance: the value comes from a reply and is clipped."""


DECAY_S = 10.0
"""Time constant of the moving average of durations, in seconds (Finagle): a single slow answer is forgotten within a minute,
and a recovered instance is tried again as soon."""


def draw_two(candidates: Sequence[InstanceState], randomness: Randomness) -> tuple[InstanceState, InstanceState]:
    """Draw two different candidates, every ordered pair equally likely, from one random number. With replacement the busier
    of two instances would be chosen once in four times."""
    rest = len(candidates) - 1
    number = int(randomness() * (rest * (rest + 1)))
    first = number // rest
    second = number % rest
    return candidates[first], candidates[second + 1 if second >= first else second]


@dataclass(slots=True, eq=False)  # perf: a struct is slower to write to
class InstanceState:
    """The state of one instance. Strategies read it; only the balancer and the outlier detector write it.

    Attributes:
        id: name of the instance.
        weight: share of the calls, relative to the other instances.
        joined: when it became a member.
        in_flight: calls of this dispatcher in flight at the instance.
        order: number of the last pick of this instance, over all instances; 0: never picked.
        place: position among the members; candidates are in this order.
        cost: moving average of the duration of an answer, in seconds; 0: unknown.
        stamp: when ``cost`` was updated last.
        brake: factor by which it is slower than usual, if it is much slower; else 1.
        others: calls of other dispatchers at the instance, according to its replies, as of ``others_at``.
        current: current weight of the smooth weighted round-robin.
        failures: consecutive failures: timeouts only of calls that were picked after its last answer.
        answered: number of the last pick, over all instances, before its last answer.
        good, bad: successes and failures for the success rate.
        timed, slowness, spread: number, sum and sum of squares of the logarithms of durations, each relative to the usual
            duration of its tool: recent answers count most.
        times: former ejections that are not forgotten yet.
        ejected_until: end of its ejection; None: not ejected.
        ejections: ejections so far.
        epoch: number of ejections and returns; outcomes of an earlier epoch are ignored.
        is_held: an operator has ejected it: only the operator, or time, ends that.
        sick: it would be ejected if fewer instances were.
        well_since: end of its last ejection.
        probe_at: when a call may find out whether it is well again, although it is ejected; infinite: none may.
        paused_until: end of the pause that it asked for.
        warm_from: start of its slow start.
        level: share of its full share that slow start permits.
        gain, credit: in slow start, each pick adds ``gain`` to ``credit``; a turn costs 1.
        member: whether it is one of the balancer's instances now.
    """

    id: str
    weight: float
    joined: float
    in_flight: int = 0
    order: int = 0
    place: int = 0
    cost: float = 0.0
    stamp: float = 0.0
    brake: float = 1.0
    others: int = 0
    others_at: float = 0.0
    current: float = 0.0
    failures: int = 0
    answered: int = 0
    good: float = 0.0
    bad: float = 0.0
    timed: float = 0.0
    slowness: float = 0.0
    spread: float = 0.0
    times: int = 0
    ejected_until: float | None = None
    ejections: int = 0
    epoch: int = 0
    is_held: bool = False
    sick: bool = False
    well_since: float = 0.0
    probe_at: float = NEVER
    paused_until: float = 0.0
    warm_from: float = 0.0
    level: float = 1.0
    gain: float = 0.0
    credit: float = 0.0
    member: bool = True

    def __post_init__(self) -> None:
        self.stamp = self.others_at = self.well_since = self.warm_from = self.joined


class Strategy(ABC):
    """A balancing strategy. It may keep a position, but no list of instances: the candidates differ from call to call."""

    weighs = False
    """Whether weights determine the shares; otherwise all shares are equal."""

    @abstractmethod
    def pick(self, candidates: Sequence[InstanceState], now: float) -> InstanceState:
        """Return one of ``candidates``: at least two, in the order of their places, in a sequence that is never modified."""

    def undo_pick(self) -> None:  # noqa: B027 - most strategies have nothing to undo
        """Undo the last pick, which another guard rejected. The next pick is for the same call. Here: the turn counts."""


class Learning:
    """Mixin of strategies that use the duration of answers: an exponential moving average over time (:data:`DECAY_S`)."""

    peaks = False
    """Whether the average follows a rise at once and decays slowly (Finagle's peak EWMA)."""

    def learn(
        self, instance: InstanceState, outcome: Outcome, duration: float, in_flight: int | None, now: float
    ) -> None:
        """Learn from an attempt that has ended; ``instance.in_flight`` no longer counts it. Only a success can lower the
        average. An attempt without an answer took *at least* so long; an immediate error, failure or rejection is not a
        duration of an answer, and must not make a broken instance the fastest.

        Args:
            instance: the instance of the attempt.
            outcome: of the attempt.
            duration: in seconds.
            in_flight: the requests that the instance was running according to its reply, this one included.
            now: the current time.
        """
        if in_flight is not None:
            others = in_flight - 1 - instance.in_flight
            instance.others = min(others, MOST_OTHERS) if others > 0 else 0
            instance.others_at = now
        cost = instance.cost
        faded = exp((instance.stamp - now) / DECAY_S) if cost else 0.0
        if outcome is Outcome.SUCCESS or (outcome is Outcome.TOOL_ERROR and duration > cost):
            if duration < cost or not self.peaks:
                duration = cost * faded + duration * (1.0 - faded)
        elif outcome is Outcome.TOOL_ERROR:
            duration = cost  # the instance works: the average does not fade
        elif (outcome is not Outcome.TIMEOUT and outcome is not Outcome.CANCELLED) or duration <= cost * faded:
            return
        instance.cost = duration if duration > LEAST_S else LEAST_S
        instance.stamp = now


Listener = Callable[[str, str, str], object]
"""Called with the id of an instance, the change (``ejected``, ``returned``) and its reason: ``failures``, ``success-rate``,
``latency``, ``unresponsive``; ``over`` (the ejection time), ``answered``, ``service-recovered``; of both: ``operator``. It
must neither raise nor change the balancer."""


class EjectionRules(OutlierDetection, frozen=True, rename="kebab"):
    """A policy's outlier detection settings, and the constants that no policy sets; tests give others.

    Attributes:
        max_ejection_time: Seconds of the longest ejection, and of the longest pause that an instance may ask for.
        success_rate_stdev_factor: An instance is ejected when its success rate is so many standard deviations below the mean
            of all; None: success rates are not judged. 1.9 (Envoy). It applies from five instances on: of four, none is ever
            so far from the mean.
        success_rate_gap: And so much below the mean at least. 0.1: when all are near perfect, a single failure is many
            deviations away.
        success_rate_pair_gap: An instance is also ejected when its success rate is so far below the mean of the *other*
            instances. 0.3: this works with two, where deviations say nothing, and where several bad instances widen the
            deviation until none is outside.
        success_rate_min_calls: Calls of an instance below which its success rate is not judged. 50 (Envoy: 100 within ten
            seconds, which services of slow tools never see): one failure is 2 %, so that chance alone hardly reaches the gap
            where one call in 50 fails.
        interval: Seconds between judgements of success rates; calls that were too few to judge then count half. 10 (Envoy,
            gRPC). For each interval that an instance is healthy, one of its former ejections is forgotten (gRPC).
        latency_ratio: An instance is ejected when its durations, each relative to the usual one of its tool, are so many
            times those of the others, in the geometric mean. 3: machines of one service differ by less, and a caller hardly
            notices less. None: durations are not compared.
        latency_deviations: And so many standard errors above them at least (Welch's test, pooled variance). 6: durations of
            mixed tools and payloads spread over factors of thousands, and are compared every second for ever.
        latency_min_calls: Answers of an instance below which its durations are not judged. 30: the mean of fewer is no
            normal distribution. Of an instance that was ejected before, :data:`MIN_CALLS_AGAIN`.
        latency_interval: Seconds between comparisons of durations; older answers count half then. 1: a slow instance fills
            the bulkhead within seconds.
        slow_start_from: Share of its full share with which a slow start begins. 0.1 (Envoy).
    """

    max_ejection_time: float = MAX_EJECTION_S
    success_rate_stdev_factor: float | None = 1.9
    success_rate_gap: float = 0.1
    success_rate_pair_gap: float = 0.3
    success_rate_min_calls: int = 50
    interval: float = 10.0
    latency_ratio: float | None = 3.0
    latency_deviations: float = 6.0
    latency_min_calls: int = 30
    latency_interval: float = 1.0
    slow_start_from: float = 0.1

    @property
    def ejects(self) -> bool:
        """Whether an instance can be ejected at all."""
        return (
            self.consecutive_failures is not None
            or self.success_rate_stdev_factor is not None
            or self.latency_ratio is not None
        )


def complete_rules(settings: OutlierDetection | None) -> EjectionRules:
    """The rules of a policy's settings; None: no ejection and no slow start."""
    if settings is None:
        return NO_EJECTION
    return settings if isinstance(settings, EjectionRules) else EjectionRules(**msgspec.structs.asdict(settings))


NO_EJECTION = EjectionRules(
    consecutive_failures=None, success_rate_stdev_factor=None, latency_ratio=None, slow_start_window=None
)

MIN_CALLS_AGAIN = 5
"""Answers of an instance that was ejected before after which its durations are judged: each one costs its caller."""

PROBE_S = 1.0
"""Seconds between an ejection, or a probe, and the next probe of the instance."""
PROBE_LOAD = 8
"""Calls in flight at each other instance from which an idle ejected one is probed: with fewer it is not missed."""
PROBE_GAIN = 2.0
"""A probe that is answered so many times faster than is usual by then ends the ejection."""
PAUSE_S = 1.0
"""Pause after THROTTLED without a retry-after, in seconds."""
STEPS = 20
"""Steps of a slow start: shares are computed once per step, not for each pick."""

_SUCCESS = Outcome.SUCCESS
_INVALID = Outcome.INVALID_ARGUMENTS
_TOOL_ERROR = Outcome.TOOL_ERROR
_THROTTLED = Outcome.THROTTLED
_FAILURES = (Outcome.TIMEOUT, Outcome.TRANSPORT)


def outliers(rates: Sequence[float], settings: EjectionRules) -> list[int]:
    """Return the indices of the success rates that are outliers, the lowest rate first.

    An outlier is below the mean of all by ``success_rate_stdev_factor`` standard deviations and ``success_rate_gap``
    (Envoy); or below the mean of the others by ``success_rate_pair_gap``, which works with two instances, and when several
    bad ones widen the deviation so far that none is outside.
    """
    count = len(rates)
    if count < 2 or settings.success_rate_stdev_factor is None:
        return []
    total = sum(rates)
    mean = total / count
    deviation = sqrt(sum((rate - mean) ** 2 for rate in rates) / count)
    lowest = mean - max(settings.success_rate_stdev_factor * deviation, settings.success_rate_gap)
    found = [
        index
        for index, rate in enumerate(rates)
        if rate < lowest or rate < (total - rate) / (count - 1) - settings.success_rate_pair_gap
    ]
    return sorted(found, key=rates.__getitem__)


def _mean_slowness(state: InstanceState) -> float:
    return state.slowness / state.timed


class OutlierDetector:
    """Decides which instances are ejected and when they return.

    An ejection ends after its time, or when the instance answers a call that panic mode sent to it. A returned instance is
    on probation: until its first answer, a single failure ejects it again, for longer.

    Slow answers and timeouts also come from queues, when more is called than all instances can do: then the ejection of one
    makes it worse for the others, which would not end before the load does. So while the others are busy, and the ejected
    instance has finished what it had, single calls probe it: if it answers faster than they do, the judgement was wrong, and
    it returns with its full share. A probe that fails is the last one.

    Args:
        settings: the rules.
        members: the instances by id: the balancer's own mapping, which the balancer updates.
        listener: called at ejections and returns.
        now: the current time.

    Attributes:
        due: when :meth:`update` must be called next; minus infinity after a change.
        ejected: number of ejected members.
    """

    def __init__(
        self, settings: EjectionRules, members: Mapping[str, InstanceState], listener: Listener | None, now: float
    ) -> None:
        self.settings = settings
        self._members = members
        self._listener = listener
        self._judge_at = now + settings.interval
        self._compare_at = now + settings.latency_interval
        self.ejected = 0
        self.due = -NEVER

    def configure(self, settings: EjectionRules, now: float) -> None:
        """Apply other rules. The state stays, and current ejections keep their end, unless the new rules eject no instance:
        then all instances return."""
        self.settings = settings
        self._judge_at = min(self._judge_at, now + settings.interval)
        self.due = -NEVER

    def record_outcome(
        self, state: InstanceState, outcome: Outcome, retry_after: float | None, now: float, *, is_newer: bool
    ) -> None:
        """Record the outcome of an attempt that was picked in the instance's current epoch.

        Args:
            is_newer: it was picked after the instance's last answer. An older one that times out is in a queue: the
                instance works, and how well the success rate says.
        """
        if (
            outcome is _SUCCESS
            or outcome is _INVALID
            or (outcome is _TOOL_ERROR and not self.settings.count_tool_errors)
        ):
            self._record_success(state, now)
        elif outcome is _THROTTLED:
            pause = PAUSE_S if retry_after is None else retry_after
            if pause > 0:  # False for NaN, too
                state.paused_until = max(state.paused_until, now + min(pause, self.settings.max_ejection_time))
                self.due = -NEVER
        elif outcome in _FAILURES or outcome is _TOOL_ERROR:
            state.bad += 1
            if is_newer or outcome is not Outcome.TIMEOUT:
                self._count_failure(state, now, is_late=outcome is Outcome.TIMEOUT)

    def _record_success(self, state: InstanceState, now: float) -> None:
        state.good += 1
        if state.member:
            if state.ejected_until is not None and not state.is_held:
                self._release(state, now, "answered")
                state.warm_from = state.joined  # it had its full share before
            elif state.sick:
                state.sick = False
                self.due = -NEVER
        state.failures = 0

    def record_outpaced(self, state: InstanceState, now: float) -> None:
        """Record an attempt that was cancelled because a later hedge was answered first. A single one means nothing, and is
        not part of success rates: a few percent of the calls of any instance end so. But a silent or slow instance never
        fails where its calls are hedged: it is detected by consecutive outpaced attempts."""
        self._count_failure(state, now, is_late=True)

    def record_probe(self, state: InstanceState, outcome: Outcome, slowness: float | None, now: float) -> None:
        """Record the outcome of a probe (:meth:`take_probe`)."""
        if slowness is None or state.is_held or state.ejected_until is None:
            state.probe_at = NEVER
        elif slowness <= -log(PROBE_GAIN):
            self._release(state, now, "answered")
            state.failures = 0
            state.times -= 1
            state.warm_from = state.joined

    def take_probe(self, now: float) -> InstanceState | None:
        """Return an ejected instance that the next call probes, if one is due."""
        for state in self._members.values():
            if state.ejected_until is not None and now >= state.probe_at and not state.in_flight:
                state.probe_at = now + PROBE_S
                if all(
                    other.in_flight >= PROBE_LOAD for other in self._members.values() if other.ejected_until is None
                ):
                    return state
        return None

    def _count_failure(self, state: InstanceState, now: float, *, is_late: bool) -> None:
        state.failures += 1
        limit = self.settings.consecutive_failures
        if limit is None or state.failures < limit or not state.member or state.ejected_until is not None:
            return
        if self.can_eject():
            self._eject(state, now, "failures", is_late=is_late)
        elif not state.sick:
            state.sick = True
            self.due = -NEVER

    def can_eject(self) -> bool:
        """Whether the ejection ratio permits one more ejection."""
        count = len(self._members)
        allowed = int(count * self.settings.max_ejection_ratio + 1e-9)  # in floating point, 0.29 * 100 < 29
        return self.ejected < max(allowed, 1 if count >= 3 else 0)

    def eject_unresponsive(self, state: InstanceState, now: float) -> None:
        """Eject an instance that accepts calls and does not answer them, as far as the ejection ratio permits."""
        if self.settings.ejects and state.ejected_until is None and self.can_eject():
            self._eject(state, now, "unresponsive", is_late=True)

    def _eject(self, state: InstanceState, now: float, reason: str, *, is_late: bool) -> None:
        settings = self.settings
        former = max(0, state.times - int((now - state.well_since) / settings.interval))
        # Ejections beyond the longest duration are not counted: otherwise they would have to decay without an effect.
        state.times = min(former + 1, ceil(settings.max_ejection_time / settings.base_ejection_time))
        state.ejected_until = now + min(settings.base_ejection_time * state.times, settings.max_ejection_time)
        state.ejections += 1
        state.probe_at = now + PROBE_S if is_late else NEVER
        self.ejected += 1
        self._start_epoch(state)
        self._notify(state.id, "ejected", reason)

    def _release(self, state: InstanceState, now: float, reason: str) -> None:
        limit = self.settings.consecutive_failures
        state.ejected_until = None
        state.is_held = False
        state.failures = 0 if limit is None else limit - 1  # on probation
        state.well_since = state.warm_from = now
        state.credit = 0.0
        self.ejected -= 1
        self._start_epoch(state)
        self._notify(state.id, "returned", reason)

    def hold(self, state: InstanceState, now: float) -> None:
        """Eject an instance on behalf of an operator, until :meth:`admit`. Where too few instances are left, it is called
        all the same (panic mode)."""
        state.is_held = True
        if state.ejected_until is None:
            state.ejections += 1
            self.ejected += 1
            self._start_epoch(state)
            self._notify(state.id, "ejected", "operator")
        state.ejected_until = NEVER
        self.due = -NEVER

    def admit(self, state: InstanceState, now: float) -> None:
        """End the ejection of an instance on behalf of an operator."""
        if state.ejected_until is not None:
            self._release(state, now, "operator")
            state.failures = 0

    def end_ejections(self, now: float) -> None:
        """End all ejections after a failure of the whole service: an ejection during it says nothing about the instance.
        The instances return at once, on probation; neither they nor instances that returned earlier need a slow start."""
        for state in self._members.values():
            if not state.times or state.is_held:
                continue
            if state.ejected_until is not None:
                self._release(state, now, "service-recovered")
            state.times -= 1
            state.warm_from = state.joined
            self.due = -NEVER

    def _start_epoch(self, state: InstanceState) -> None:
        state.epoch += 1
        state.sick = False
        state.good = state.bad = 0.0
        state.timed = state.slowness = state.spread = 0.0
        self.due = -NEVER

    def _notify(self, id: str, change: str, reason: str) -> None:
        if self._listener is not None:
            self._listener(id, change, reason)

    def add_member(self, state: InstanceState, now: float) -> None:
        """Add a member, or a former member with its state; its slow start begins again."""
        state.member = True
        state.joined = state.warm_from = now
        state.credit = 0.0
        state.sick = False
        self.ejected += state.ejected_until is not None
        self.due = -NEVER

    def remove_member(self, state: InstanceState) -> None:
        """Remove a member."""
        state.member = False
        self.ejected -= state.ejected_until is not None
        self.due = -NEVER

    def update(self, now: float) -> None:
        """Apply what is due: success rates, ends of ejections, slow-start steps. Sets :attr:`due`."""
        if now >= self._judge_at:
            self._judge_at = now + self.settings.interval
            self._judge(now)
        if now >= self._compare_at:
            self._compare_at = now + self.settings.latency_interval
            if len(self._members) > 1 and self.settings.latency_ratio is not None:
                self._compare_durations(now, self.settings.latency_ratio)
        for state in self._members.values():
            if state.ejected_until is not None and (
                now >= state.ejected_until or not (self.settings.ejects or state.is_held)
            ):
                self._release(state, now, "over")
        due = min(self._judge_at, self._compare_at) if len(self._members) > 1 else self._judge_at
        for state in self._members.values():
            due = min(due, self._warm(state, now))
            if state.ejected_until is not None and state.ejected_until < due:
                due = state.ejected_until
            if now < state.paused_until < due:
                due = state.paused_until
        self.due = due

    def _warm(self, state: InstanceState, now: float) -> float:
        """Set the slow-start level of ``state``; return when it changes next."""
        settings = self.settings
        passed = now - state.warm_from
        if settings.slow_start_window is None or passed >= settings.slow_start_window:
            state.level = 1.0
            return NEVER
        step = int(passed * STEPS / settings.slow_start_window)
        state.level = max(settings.slow_start_from, step / STEPS)
        return state.warm_from + (step + 1) * settings.slow_start_window / STEPS

    def _compare_durations(self, now: float, ratio: float) -> None:
        """Eject the slowest instance if it is an outlier among its peers.

        Logarithms make a factor of a duration a difference, and the mean of a mixture of fast and slow tools stable. Of each
        duration the usual one of its tool is subtracted before, so that it does not matter which tools an instance got.
        """
        settings = self.settings
        healthy = [state for state in self._members.values() if state.ejected_until is None]
        known = [state for state in healthy if state.timed >= settings.latency_min_calls]
        judged = known + [
            state for state in healthy if state.times and state.timed >= MIN_CALLS_AGAIN and state not in known
        ]
        if known and len(judged) > 1:
            slowest = max(judged, key=_mean_slowness)
            others = [state for state in known if state is not slowest]
            count = sum(state.timed for state in others)
            if others and self._is_slow(slowest, others, count, ratio) and self.can_eject():
                self._eject(slowest, now, "latency", is_late=True)
        for state in judged:
            state.timed /= 2
            state.slowness /= 2
            state.spread /= 2

    def _is_slow(self, slowest: InstanceState, others: Sequence[InstanceState], count: float, ratio: float) -> bool:
        excess = _mean_slowness(slowest) - sum(state.slowness for state in others) / count
        if excess < log(ratio):
            return False
        compared = [slowest, *others]
        total = slowest.timed + count
        within = sum(state.spread - state.slowness * state.slowness / state.timed for state in compared)
        variance = max(within, 0.0) / max(total - len(compared), 1.0)
        return excess >= self.settings.latency_deviations * sqrt(variance * (1 / slowest.timed + 1 / count))

    def _judge(self, now: float) -> None:
        settings = self.settings
        judged = [
            state
            for state in self._members.values()
            if state.ejected_until is None and state.good + state.bad >= settings.success_rate_min_calls
        ]
        for index in outliers([state.good / (state.good + state.bad) for state in judged], settings):
            if self.can_eject():
                self._eject(judged[index], now, "success-rate", is_late=False)
        for state in judged:  # reset: failures of the past must not outweigh later successes
            state.good = state.bad = 0.0
        for state in self._members.values():
            state.good /= 2
            state.bad /= 2


# View of an instance's state for metrics and operators.


UP_STATES = ("up", "warming")
"""States of an instance that gets calls."""


class InstanceView(msgspec.Struct, frozen=True):
    """The state of an instance at one moment.

    Attributes:
        id: name of the instance.
        state: ``ejected``, ``paused`` (it asked for a pause), ``unresponsive`` (it answers nothing while others do),
            ``warming`` (slow start) or ``up``.
        weight: share of the calls, relative to the other instances.
        in_flight: calls of this dispatcher in flight at the instance.
        seconds_left: seconds until the ejection or pause ends; else None.
        failures: consecutive failures.
        ejections: ejections since the instance was first known.
        latency: moving average of the duration of an answer, in seconds; None: unknown, or not used by the strategy.
        is_held: an operator has ejected it.
    """

    id: str
    state: str
    weight: float
    in_flight: int
    seconds_left: float | None
    failures: int
    ejections: int
    latency: float | None
    is_held: bool = False


def view(state: InstanceState, now: float) -> InstanceView:
    """Return the view of ``state`` at ``now``."""
    remaining = None
    if state.ejected_until is not None:
        kind, remaining = "ejected", state.ejected_until - now
    elif state.paused_until > now:
        kind, remaining = "paused", state.paused_until - now
    else:
        kind = "warming" if state.level < 1.0 else "up"
    return InstanceView(
        state.id,
        kind,
        state.weight,
        state.in_flight,
        None if state.is_held else remaining,
        state.failures,
        state.ejections,
        state.cost or None,
        state.is_held,
    )
