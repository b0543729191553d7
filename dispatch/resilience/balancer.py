"""The balancer of one service: selects an instance for each attempt and records its outcome. Sans-I/O."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from math import exp
from operator import attrgetter

import msgspec

from dispatch._internal import Clock, Randomness, Rejection, remember
from dispatch.errors import Outcome
from dispatch.policy import Balancing, OutlierDetection
from dispatch.resilience.instances import (
    DECAY_S,
    NEVER,
    InstanceState,
    InstanceView,
    Learning,
    Listener,
    OutlierDetector,
    Strategy,
    complete_rules,
    draw_two,
    view,
)

# Round-robin: each instance in turn.


_PLACE = attrgetter("place")


CROWDED, SLACK = 2, 4
"""An instance is passed over while it has more than this many times the calls of the next one, and so many more. Calls that
end at random differ by less; calls of an instance that hangs, or that always gets the slow half of a load, accumulate."""


class RoundRobin(Strategy):
    """Each instance in turn, whatever its weight: the one after the last picked, in the order of places.

    A counter modulo the number of candidates would give all turns of an excluded instance to the same other instance. An
    instance with far more calls of this dispatcher in flight than the next one gives its turn to that one. Where two kinds
    of calls alternate, one instance of two has all calls of one kind: if it hangs, these would fail until it is ejected.
    """

    def __init__(self) -> None:
        self._candidates: Sequence[InstanceState] = ()
        self._index = -1
        self._place = self._before = -1

    def pick(self, candidates: Sequence[InstanceState], now: float) -> InstanceState:
        """Return the next instance. ``candidates`` are in the order of their places, and never modified afterwards."""
        if candidates is self._candidates:
            index = self._index + 1
        else:
            self._candidates = candidates
            index = bisect_right(candidates, self._place, key=_PLACE)
        if index >= len(candidates):
            index = 0
        picked = candidates[index]
        if picked.in_flight > SLACK:
            following = (index + 1) % len(candidates)
            if picked.in_flight > CROWDED * candidates[following].in_flight + SLACK:
                index, picked = following, candidates[following]
        self._index = index
        self._before = self._place
        self._place = picked.place
        return picked

    def undo_pick(self) -> None:
        """Undo the turn: it goes to the instance after the last one that accepted its turn."""
        self._place = self._before
        self._candidates = ()


# Least request: of a few instances drawn at random, the one with the fewest calls (Envoy's ``LEAST_REQUEST``).


MUCH_SLOWER = 2.0
"""Factor above the usual duration from which an instance's calls weigh more."""
RISE, FALL = 1.01, 0.97
"""Factors of the usual duration after a slower and a faster answer: it converges where three of four are slower."""


class LeastRequest(Learning, Strategy):
    """Of ``choice_count`` instances drawn at random, the one with the fewest calls of this dispatcher for its weight.

    Two choices (the power of two choices) cost the same for any number of instances; with as many choices as instances, the
    least loaded one is always found.

    Calls of an instance that was recently much slower than usual count by the factor that it is slower. Otherwise it would
    have as many calls in flight as the others: with eight instances of which one is ten times slower, one call in 71 is
    slow, more than one percent of all; and at low load, when it is as idle as the others at each comparison, its full share.

    Args:
        randomness: random numbers.
        choice_count: number of instances that are compared, at least 2.
    """

    weighs = True

    def __init__(self, randomness: Randomness, choice_count: int) -> None:
        self._randomness = randomness
        self._choice_count = choice_count
        self.usual = 0.0
        """Typical duration of the faster instances, in seconds; 0: unknown."""

    def learn(
        self, instance: InstanceState, outcome: Outcome, duration: float, in_flight: int | None, now: float
    ) -> None:
        """See :meth:`Learning.learn`."""
        Learning.learn(self, instance, outcome, duration, in_flight, now)
        cost = instance.cost
        if not cost:
            return
        usual = self.usual
        if cost < usual:
            self.usual = usual = max(cost, usual * FALL)
        else:
            self.usual = usual = min(cost, usual * RISE) if usual else cost
        instance.brake = cost / usual if cost > MUCH_SLOWER * usual else 1.0

    def pick(self, candidates: Sequence[InstanceState], now: float) -> InstanceState:
        """Return the least loaded of the drawn instances; of equals, the one that was picked longest ago."""
        count = self._choice_count
        if count < len(candidates):
            candidates = draw_two(candidates, self._randomness) if count == 2 else self._draw(candidates, count)
        best, least = candidates[0], NEVER
        remembered = now - DECAY_S
        for each in candidates:
            load = (each.in_flight + 1) / each.weight  # with one more call, in calls per weight
            if each.stamp > remembered:
                load *= each.brake
            if load < least or (load == least and each.order < best.order):
                best = each
                least = load
        return best

    def _draw(self, candidates: Sequence[InstanceState], count: int) -> list[InstanceState]:
        """Draw ``count`` different candidates, each set equally likely (Floyd's sampling)."""
        drawn: dict[int, None] = {}
        for last in range(len(candidates) - count, len(candidates)):
            index = int(self._randomness() * (last + 1))
            drawn[last if index in drawn else index] = None
        return [candidates[index] for index in drawn]


# Smooth weighted round-robin.


class SmoothWeighted(Strategy):
    """nginx's smooth weighted round-robin: weights 5, 1, 1 give a a b a c a a, not five of a in a row.

    With every pick, the current weight of each instance grows by its weight; the highest is picked, and the sum of all
    weights is subtracted from it. A pick visits every candidate.
    """

    weighs = True

    def pick(self, candidates: Sequence[InstanceState], now: float) -> InstanceState:
        """Return the instance with the highest current weight; of equals, the first."""
        best = candidates[0]
        total = 0.0
        for each in candidates:
            weight = each.weight
            total += weight
            each.current = current = each.current + weight
            if current > best.current:
                best = each
        best.current -= total
        return best


# Peak EWMA: of two instances drawn at random, the one with the lower expected latency (Finagle's ``p2cPeakEwma``).


UNKNOWN = 1e12
"""Load per call of an instance whose latency is unknown: it gets one call, and no other until that call has ended."""


class PeakEwma(Learning, Strategy):
    """Of two instances drawn at random, the one with the smaller load: latency times the calls in flight plus one.

    Latencies decay as in Finagle, so that a slow instance is tried again. The calls are those of this dispatcher, and those
    of other dispatchers according to the latest reply of the instance, which decay in the same way and include calls that
    this dispatcher has cancelled and that still run.

    Args:
        randomness: random numbers.
    """

    peaks = True
    weighs = True

    def __init__(self, randomness: Randomness) -> None:
        self._randomness = randomness

    def load(self, instance: InstanceState, now: float) -> float:
        """Return the load of ``instance`` with one more call, in seconds per weight."""
        cost = instance.cost
        if not cost:
            return instance.in_flight * UNKNOWN
        pending: float = instance.in_flight + 1
        if instance.others:
            pending += instance.others * exp((instance.others_at - now) / DECAY_S)
        return cost * exp((instance.stamp - now) / DECAY_S) * pending / instance.weight

    def pick(self, candidates: Sequence[InstanceState], now: float) -> InstanceState:
        """Return the less loaded of two instances; of equals, the one that was picked longer ago."""
        one, other = draw_two(candidates, self._randomness)
        ours = self.load(one, now)
        theirs = self.load(other, now)
        if ours == theirs:
            return one if one.order <= other.order else other
        return one if ours < theirs else other


UNRESPONSIVE_RATIO = 5
"""As many old calls at one instance, for each one at another and one more, are hardly chance: calls are divided by share."""
CERTAIN_RATIO = 16
"""And as many are none, however often that is looked at: of 16 such calls at two instances, all are at one of them by chance
once in 30,000 times. A tool some of whose calls take long has old ones all the time."""
MAX_INSTANCES = 256
"""Maximum number of instances of one service: as many as a dispatcher knows by name."""
MAX_FORMER = 256
"""Maximum number of removed instances that are remembered, so that an instance that comes and goes stays ejected."""
MOST_CREDIT = 2.0
"""Maximum number of turns that an instance in slow start can accumulate, or overdraw."""

NO_INSTANCE = Rejection(by="balancer", reason="no-instance")
"""There is no instance at all. One value for all calls: a rejection retains nothing."""

_NONE: AbstractSet[str] = frozenset()
_SUCCESS = Outcome.SUCCESS


class Pick(msgspec.Struct, eq=False, gc=False):
    """The permit for one attempt at one instance, of :meth:`Balancer.pick`. Only its caller refers to it, so that it needs
    no garbage collection.

    Attributes:
        instance: id of the instance.
        started: when it was picked.
        panic: health was ignored: too few instances are healthy, or no instance is admitted.
        is_probe: the instance is ejected, and the outcome says whether it should be.
    """

    instance: str
    started: float
    panic: bool
    _balancer: Balancer
    _state: InstanceState
    _epoch: int
    _number: int
    is_probe: bool = False

    def finish(
        self,
        outcome: Outcome,
        *,
        retry_after: float | None = None,
        in_flight: int | None = None,
        outpaced: bool = False,
        slowness: float | None = None,
    ) -> None:
        """Record the outcome of the attempt. Only the first call counts.

        Args:
            outcome: of the attempt.
            retry_after: seconds of pause that the instance asked for, with THROTTLED.
            in_flight: the requests that the instance was running according to its reply, this one included.
            outpaced: the attempt was cancelled because a later hedge at another instance was answered first.
            slowness: logarithm of its duration relative to the usual one of its tool; None: unknown.
        """
        epoch = self._epoch
        if epoch < 0:
            return
        self._epoch = -1
        state = self._state
        state.in_flight -= 1
        balancer = self._balancer
        if balancer._learn is not None:
            now = balancer._clock()
            balancer._learn(state, outcome, now - self.started, in_flight, now)
        if epoch != state.epoch:
            balancer.stale += 1
            return
        if slowness is not None:
            state.timed += 1.0
            state.slowness += slowness
            state.spread += slowness * slowness
        is_newer = self._number > state.answered
        if outcome is _SUCCESS:
            state.answered = balancer._picks
        if outcome is _SUCCESS and not state.failures and state.ejected_until is None:
            state.good += 1  # the hot path: nearly every call
        elif self.is_probe:
            balancer._detector.record_probe(state, outcome, slowness, balancer._clock())
        elif outpaced:
            balancer._detector.record_outpaced(state, balancer._clock())
        else:
            balancer._detector.record_outcome(state, outcome, retry_after, balancer._clock(), is_newer=is_newer)


class Balancer:
    """Picks an instance for each attempt, and learns from the outcomes.

    While there is any instance, a pick succeeds: when too few instances are healthy, health is ignored (panic mode).

    Args:
        members: the initial instances, as for :meth:`replace`.
        balancing: the strategy.
        outlier_detection: when an instance is ejected; None: never.
        clock: seconds.
        randomness: random numbers of the strategy.
        admits: whether an instance admits calls (its own circuit breaker), by id; must not change any state. It is ignored
            when it admits no instance.
        listener: called at ejections and returns.

    Attributes:
        stale: outcomes that were ignored because the instance was ejected, or returned, since the pick.
    """

    def __init__(
        self,
        members: Mapping[str, float] | Iterable[str] = (),
        *,
        balancing: Balancing,
        outlier_detection: OutlierDetection | None,
        clock: Clock,
        randomness: Randomness,
        admits: Callable[[str], bool] | None = None,
        listener: Listener | None = None,
    ) -> None:
        self._clock = clock
        self._randomness = randomness
        self._admits = admits
        self._members: dict[str, InstanceState] = {}
        self._former: OrderedDict[str, tuple[InstanceState, float]] = OrderedDict()
        self._detector = OutlierDetector(complete_rules(outlier_detection), self._members, listener, clock())
        self._picks = 0
        self.stale = 0
        self._everyone: list[InstanceState] = []
        self._fit: list[InstanceState] = []  # not ejected; in panic mode all
        self._calm: list[InstanceState] = []  # of these, not paused; all of these if every one is paused
        self._steady: list[InstanceState] = []  # of these, not in slow start
        self._gated: list[InstanceState] = []  # of these, in slow start
        self._panic = False
        self._set_strategy(balancing)
        self.replace(members)

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, id: object) -> bool:
        return id in self._members

    def _set_strategy(self, balancing: Balancing) -> None:
        self._balancing = balancing
        self._strategy: Strategy = make_strategy(balancing, self._randomness)
        self._choose = self._strategy.pick  # bound once: every attempt calls it
        self._learn = self._strategy.learn if isinstance(self._strategy, Learning) else None

    def configure(self, balancing: Balancing, outlier_detection: OutlierDetection | None) -> None:
        """Apply other settings. The state of the instances stays, and calls in flight are counted."""
        if balancing != self._balancing:
            self._set_strategy(balancing)
        self._detector.configure(complete_rules(outlier_detection), self._clock())

    def add(self, id: str, weight: float = 1.0) -> bool:
        """Add an instance, or change its weight. A recently removed instance keeps its state: an ejection continues. False:
        the limit :data:`MAX_INSTANCES` is reached, and the instance is not added.

        Raises:
            ValueError: the weight is not above 0.
        """
        check_weight(id, weight)
        state = self._members.get(id)
        now = self._clock()
        if state is None:
            if len(self._members) >= MAX_INSTANCES:
                return False
            former, removed_at = self._former.pop(id, (None, 0.0))
            # No ejection lasts longer than max_ejection_time; after twice that time the former state is outdated.
            if former is not None and now - removed_at < 2 * self._detector.settings.max_ejection_time:
                state = former
            else:
                state = InstanceState(id, weight, now)
            self._members[id] = state
            self._detector.add_member(state, now)
        elif state.weight != weight:
            self._detector.due = now
        state.weight = weight
        return True

    def reset_instance(self, id: str) -> None:
        """Reset the state of a restarted instance, which begins with a slow start. Does nothing for an unknown instance."""
        state = self._members.get(id)
        if state is None:
            return
        self._detector.remove_member(state)
        now = self._clock()
        fresh = self._members[id] = InstanceState(id, state.weight, now)
        self._detector.add_member(fresh, now)

    def end_ejections(self) -> None:
        """End all ejections at once: the service as a whole had failed, and has recovered."""
        self._detector.end_ejections(self._clock())

    def eject_unresponsive(self, old: Mapping[str, int], ratio: int = UNRESPONSIVE_RATIO) -> None:
        """Eject instances that accept calls and do not answer them: for their share of the calls they have ``ratio`` times
        as many old ones as another instance.

        Args:
            old: by instance, calls that should have ended long ago.
        """
        now, weighs = self._clock(), self._strategy.weighs
        shares = {id: (self._members[id].weight if weighs else 1.0) * self._members[id].level for id in old}
        least = min((count + 1) / shares[id] for id, count in old.items()) if old else NEVER
        for id, count in old.items():
            if count >= ratio * least * shares[id] and count >= ratio:
                self._detector.eject_unresponsive(self._members[id], now)

    def hold(self, id: str) -> None:
        """Eject an instance on behalf of an operator, until :meth:`admit`, or until it restarts."""
        self._detector.hold(self._members[id], self._clock())

    def admit(self, id: str) -> None:
        """End the ejection of an instance, if it is ejected."""
        self._detector.admit(self._members[id], self._clock())

    def end_hold(self, id: str) -> bool:
        """End the ejection of an instance by an operator, also if the instance has left meanwhile. False: there is none."""
        state = self._members.get(id)
        if state is None:
            state = self._former.get(id, (None, 0.0))[0]
            if state is None or not state.is_held:
                return False
            del self._former[id]
        elif state.is_held:
            self._detector.admit(state, self._clock())
        else:
            return False
        return True

    def remove(self, id: str) -> bool:
        """Remove an instance. Its calls in flight may finish. False: it is unknown."""
        state = self._members.pop(id, None)
        if state is None:
            return False
        self._detector.remove_member(state)
        remember(self._former, id, (state, self._clock()), MAX_FORMER)
        return True

    def replace(self, members: Mapping[str, float] | Iterable[str]) -> None:
        """Replace the instances by these: a mapping of ids to weights, or ids. Instances that stay keep their state.
        Instances beyond :data:`MAX_INSTANCES` are ignored.

        Raises:
            ValueError: a weight is not above 0.
        """
        wanted = dict(members) if isinstance(members, Mapping) else dict.fromkeys(members, 1.0)
        for id, weight in wanted.items():
            check_weight(id, weight)
        for id in [id for id in self._members if id not in wanted]:
            self.remove(id)
        for id, weight in wanted.items():
            self.add(id, weight)

    def pick(self, tried: AbstractSet[str] = _NONE, capable: AbstractSet[str] | None = None) -> Pick | Rejection:
        """Pick the instance of an attempt. The pick must be finished.

        Args:
            tried: ids of the instances that this call has been sent to. They are avoided while another instance is usable.
            capable: ids of the instances that can serve this attempt; None: all. No other instance is picked, even in panic
                mode.

        Returns:
            The pick; or :data:`NO_INSTANCE` if there is no instance.
        """
        now = self._clock()
        if now >= self._detector.due:
            self._update_candidates(now)
        pool = self._candidates_in_slow_start() if self._gated else self._steady
        panic = self._panic
        if self._detector.ejected and not tried and capable is None and not panic:
            probed = self._detector.take_probe(now)
            if probed is not None and (self._admits is None or self._admits(probed.id)):
                return self._grant(probed, now, False, is_probe=True)
        if not pool or (capable is not None and capable.isdisjoint(self._members)):
            return NO_INSTANCE
        if tried or capable is not None:
            state, none_admitted = self._pick_other(tried, pool, now, capable)
            panic = panic or none_admitted
        else:
            state = self._choose(pool, now) if len(pool) > 1 else pool[0]
            if self._admits is not None and not self._admits(state.id):
                if len(pool) > 1:
                    self._strategy.undo_pick()
                state, none_admitted = self._pick_other(tried, pool, now)
                panic = panic or none_admitted
        return self._grant(state, now, panic)

    def pick_instance(self, id: str, now: float | None = None) -> Pick | Rejection:
        """Pick this instance, whatever its health, for an attempt that only it can serve. The pick must be finished.
        :data:`NO_INSTANCE` if it is unknown. ``now``: the current time, if it is known."""
        if now is None:
            now = self._clock()
        # Slow start and success rates compare instances: a single one needs no update, unless its ejection may end.
        if now >= self._detector.due and (len(self._members) > 1 or self._detector.ejected):
            self._update_candidates(now)
        state = self._members.get(id)
        return NO_INSTANCE if state is None else self._grant(state, now, False)

    def _grant(self, state: InstanceState, now: float, panic: bool, is_probe: bool = False) -> Pick:
        state.in_flight += 1
        self._picks = state.order = self._picks + 1
        if state.gain:
            state.credit = max(state.credit - 1.0, -MOST_CREDIT)
        return Pick(state.id, now, panic, self, state, state.epoch, state.order, is_probe)

    def _pick_other(
        self, tried: AbstractSet[str], pool: list[InstanceState], now: float, capable: AbstractSet[str] | None = None
    ) -> tuple[InstanceState, bool]:
        """Return the best of the ``capable`` instances that is untried and admitted, and whether no instance is admitted."""
        admits, calm, fit, everyone = self._admits, self._calm, self._fit, self._everyone
        if capable is not None:
            pool, calm, fit, everyone = (
                [state for state in candidates if state.id in capable] for candidates in (pool, calm, fit, everyone)
            )
        for candidates in (pool, calm, fit):
            left = [state for state in candidates if state.id not in tried and (admits is None or admits(state.id))]
            if left:
                return self._choose_one(left, now), False
        for candidates in (calm, fit):
            left = [state for state in candidates if admits is None or admits(state.id)]
            if left:
                return self._choose_one(left, now), False
        # An ejected instance rather than none.
        everyone = [state for state in everyone if admits is None or admits(state.id)] or everyone
        return self._choose_one([state for state in everyone if state.id not in tried] or everyone, now), True

    def _choose_one(self, candidates: list[InstanceState], now: float) -> InstanceState:
        return self._choose(candidates, now) if len(candidates) > 1 else candidates[0]

    def _candidates_in_slow_start(self) -> list[InstanceState]:
        """Return the instances that may be picked now, while some are in slow start: these accumulate a fraction of a turn
        with each pick, and are candidates at a whole turn. So none exceeds its share, however idle it seems to the
        strategy. They are candidates, too, while they have less than that share of the calls in flight at any other
        instance: where those have queues, a share of the turns leaves a new one idle."""
        least = min((state.in_flight for state in self._steady), default=0)
        opened = []
        for state in self._gated:
            credit = state.credit + state.gain
            state.credit = credit if credit < MOST_CREDIT else MOST_CREDIT
            if credit >= 1.0 or state.in_flight < int(state.level * least):
                opened.append(state)
        if not opened:
            return self._steady
        return [state for state in self._calm if not state.gain or state in opened]

    def _update_candidates(self, now: float) -> None:
        """Compute the candidates, after a change and not for each pick."""
        detector = self._detector
        detector.update(now)
        self._everyone = everyone = list(self._members.values())
        fit = [state for state in everyone if state.ejected_until is None]
        self._panic = panic = len(fit) < detector.settings.panic_threshold * len(everyone) or all(
            state.sick for state in fit
        )
        self._fit = fit = everyone if panic else fit
        self._calm = calm = [state for state in fit if state.paused_until <= now] or fit
        warmest = max((state.level for state in calm), default=1.0)
        # Relative to the warmest: when all instances are new, none is held back.
        self._gated = [] if panic else [state for state in calm if state.level < warmest]
        self._steady = calm if panic else [state for state in calm if state.level == warmest]
        weighs = self._strategy.weighs
        total = sum(state.weight for state in calm) if weighs else len(calm)
        for place, state in enumerate(everyone):
            state.place = place
            state.gain = 0.0
        for state in self._gated:
            state.gain = state.level / warmest * (state.weight if weighs else 1.0) / total

    def is_ejected(self, id: str) -> bool:
        """Return whether the instance is ejected."""
        state = self._members.get(id)
        return state is not None and state.ejected_until is not None

    def well_since(self, id: str) -> float:
        """Return when the last ejection of an instance ended, or when it became known; infinite: it is not known."""
        state = self._members.get(id)
        return NEVER if state is None else state.well_since

    def has_unpaused(self, ids: Iterable[str]) -> bool:
        """Return whether one of these instances has asked for no pause."""
        now, members = self._clock(), self._members
        return any(members[id].paused_until <= now for id in ids if id in members)

    def peek_instances(self) -> tuple[InstanceView, ...]:
        """Return the views of :meth:`instances` as of the last update, without any change of state: safe to call from
        another thread."""
        now = self._clock()
        return tuple(view(state, now) for state in list(self._members.values()))

    def instances(self) -> tuple[InstanceView, ...]:
        """Return a view of each instance."""
        now = self._clock()
        if now >= self._detector.due:
            self._update_candidates(now)
        return self.peek_instances()


def check_weight(id: str, weight: float) -> None:
    """Raise ValueError unless ``weight`` is a number above 0."""
    if not 0 < weight < NEVER:
        raise ValueError(f"the weight of {id!r} must be a number above 0, not {weight!r}")


def make_strategy(balancing: Balancing, randomness: Randomness) -> Strategy:
    """Return the strategy that the settings name."""
    match balancing.strategy:
        case "weighted":
            return SmoothWeighted()
        case "least-request":
            return LeastRequest(randomness, balancing.choice_count)
        case "peak-ewma":
            return PeakEwma(randomness)
        case _:
            return RoundRobin()
