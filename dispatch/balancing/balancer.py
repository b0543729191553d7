"""The instances of a service, and who gets the next call."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet

import msgspec

from dispatch._internal.permit import Clock, Randomness, Rejection
from dispatch.balancing.instance_state import NEVER, InstanceState, Strategy
from dispatch.balancing.least_request import LeastRequest
from dispatch.balancing.outlier_detection import Listener, OutlierDetector, complete_rules
from dispatch.balancing.peak_ewma import PeakEwma
from dispatch.balancing.round_robin import RoundRobin
from dispatch.balancing.snapshot import InstanceView, view
from dispatch.balancing.weighted_round_robin import SmoothWeighted
from dispatch.errors import Outcome
from dispatch.policy.balancing import Balancing
from dispatch.policy.outlier_detection import OutlierDetection

MAX_INSTANCES = 256
"""Instances of one service at once: as many as a dispatcher knows by name."""
MAX_FORMER = 256
"""Former instances that are remembered, the latest ones, so that an instance that comes and goes stays ejected."""
MOST_CREDIT = 2.0
"""Turns that an instance in its slow start can save up, or overdraw."""

NO_INSTANCE = Rejection(by="balancer", reason="no-instance")
"""There is no instance at all. One value for all calls: a rejection retains nothing."""

_NONE: AbstractSet[str] = frozenset()
_SUCCESS = Outcome.SUCCESS


class Pick(msgspec.Struct, eq=False, gc=False):
    """The permit for one attempt at one instance. Made by :meth:`Balancer.pick`; nothing holds on to it but its caller.

    Attributes:
        instance: its id.
        started: when it was picked.
        panic: health was not asked: too few are well, or none may be used.
    """

    instance: str
    started: float
    panic: bool
    _balancer: Balancer
    _state: InstanceState
    _epoch: int

    @property
    def learns(self) -> bool:
        """Does whoever picks want to know what instances are running?"""
        return self._balancer._learn is not None

    def finish(
        self,
        outcome: Outcome,
        *,
        retry_after: float | None = None,
        in_flight: int | None = None,
        outpaced: bool = False,
    ) -> None:
        """The attempt has ended. Exactly once counts: a second call does nothing.

        Args:
            outcome: how it ended.
            retry_after: seconds that the instance asked to be spared for, with THROTTLED.
            in_flight: what its reply says that it was running, that request included.
            outpaced: it was given up because another instance, asked later, has answered.
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
        elif outcome is _SUCCESS and not state.failures and state.ejected_until is None:
            state.good += 1  # what nearly every call comes to
        elif outpaced:
            balancer._detector.outpaced(state, balancer._clock())
        else:
            balancer._detector.heard(state, outcome, retry_after, balancer._clock())


class Balancer:
    """Picks an instance for each attempt, and learns from how it ended.

    While there is an instance at all, a pick is never refused: when too few are well, health is not asked (panic).

    Args:
        members: the first instances, as :meth:`replace` takes them.
        balancing: how to pick.
        outlier_detection: when an instance is ejected; None: never.
        clock: seconds.
        randomness: what strategies draw with.
        admits: what else must agree to an instance (its own circuit breaker), by id. It is only asked, and must change
            nothing. When it agrees to none, it is passed over.
        listener: hears of ejections and returns.

    Attributes:
        stale: outcomes that were not counted, because the instance had been ejected, or had returned, since the pick.
    """

    __slots__ = (
        "_admits",
        "_balancing",
        "_calm",
        "_choose",
        "_clock",
        "_detector",
        "_everyone",
        "_fit",
        "_former",
        "_gated",
        "_learn",
        "_members",
        "_panic",
        "_picks",
        "_randomness",
        "_steady",
        "_strategy",
        "stale",
    )

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
        self._fit: list[InstanceState] = []  # all that are not ejected; all in panic
        self._calm: list[InstanceState] = []  # of these, who did not ask to be spared; if there are any
        self._steady: list[InstanceState] = []  # of these, who need not be held back …
        self._gated: list[InstanceState] = []  # … and who must, in their slow start
        self._panic = False
        self._use(balancing)
        self.replace(members)

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, id: object) -> bool:
        return id in self._members

    def _use(self, balancing: Balancing) -> None:
        self._balancing = balancing
        self._strategy: Strategy = make_strategy(balancing, self._randomness)
        self._choose = self._strategy.pick  # bound once: it is asked for each attempt
        self._learn = self._strategy.learn if self._strategy.learns else None

    def configure(self, balancing: Balancing, outlier_detection: OutlierDetection | None) -> None:
        """Other settings from now on. What is known of the instances stays, and calls in flight count on."""
        if balancing != self._balancing:
            self._use(balancing)
        self._detector.configure(complete_rules(outlier_detection), self._clock())

    def add(self, id: str, weight: float = 1.0) -> bool:
        """Use an instance, from now on; or give it another weight. One that was removed lately comes back as it went: an
        ejection goes on. False: there are too many (:data:`MAX_INSTANCES`), and it is not used.

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
            # Its ejection cannot last longer than that; as long again, and it has earned a fresh start.
            if former is not None and now - removed_at < 2 * self._detector.settings.max_ejection_time:
                state = former
            else:
                state = InstanceState(id, weight, now)
            self._members[id] = state
            self._detector.joined(state, now)
        elif state.weight != weight:
            self._detector.due = now
        state.weight = weight
        return True

    def renew(self, id: str) -> None:
        """An instance was started anew: what its former life did says nothing about this one, which begins with a slow
        start. Does nothing when it is none of the members."""
        state = self._members.get(id)
        if state is None:
            return
        self._detector.left(state)
        now = self._clock()
        fresh = self._members[id] = InstanceState(id, state.weight, now)
        self._detector.joined(fresh, now)

    def pardon(self) -> None:
        """The service as a whole was in trouble, and is well again: who is ejected returns at once."""
        self._detector.pardon(self._clock())

    def remove(self, id: str) -> bool:
        """Use an instance no more. Its calls in flight may finish. False: it is not known."""
        state = self._members.pop(id, None)
        if state is None:
            return False
        self._detector.left(state)
        self._former[id] = state, self._clock()
        while len(self._former) > MAX_FORMER:
            self._former.popitem(last=False)
        return True

    def replace(self, members: Mapping[str, float] | Iterable[str]) -> None:
        """Use these instances and no others: a mapping of ids to weights, or ids alone. What is known of those that stay
        stays. Beyond :data:`MAX_INSTANCES` they are left out.

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
        """Who gets this attempt. The pick must be finished.

        Args:
            tried: ids of instances that this call has been sent to already. They are left out, unless there is no other
                that may be used.
            capable: ids of the instances that can serve this attempt; None: each can. No other one is picked, even in
                panic.

        Returns:
            The pick; or :data:`NO_INSTANCE`, when there is none at all.
        """
        now = self._clock()
        if now >= self._detector.due:
            self._sort(now)
        pool = self._opened() if self._gated else self._steady
        panic = self._panic
        if not pool or (capable is not None and capable.isdisjoint(self._members)):
            return NO_INSTANCE
        if tried or capable is not None:
            state, refused = self._another(tried, pool, now, capable)
            panic = panic or refused
        else:
            state = self._choose(pool, now) if len(pool) > 1 else pool[0]
            if self._admits is not None and not self._admits(state.id):
                if len(pool) > 1:
                    self._strategy.refused()
                state, refused = self._another(tried, pool, now)
                panic = panic or refused
        return self._taken(state, now, panic)

    def take(self, id: str) -> Pick | Rejection:
        """This instance and no other, however it is doing: for an attempt that is of use there alone. The pick must be
        finished. :data:`NO_INSTANCE`, when it is none of the members."""
        now = self._clock()
        # Slow start and success rates compare instances: a lone one has nothing to sort, unless it is to return.
        if now >= self._detector.due and (len(self._members) > 1 or self._detector.ejected):
            self._sort(now)
        state = self._members.get(id)
        return NO_INSTANCE if state is None else self._taken(state, now, False)

    def _taken(self, state: InstanceState, now: float, panic: bool) -> Pick:
        state.in_flight += 1
        self._picks = state.order = self._picks + 1
        if state.gain:
            state.credit = max(state.credit - 1.0, -MOST_CREDIT)
        return Pick(state.id, now, panic, self, state, state.epoch)

    def _another(
        self, tried: AbstractSet[str], pool: list[InstanceState], now: float, capable: AbstractSet[str] | None = None
    ) -> tuple[InstanceState, bool]:
        """The best of the ``capable`` that was not tried and is admitted; and whether it was taken although none may be."""
        admits, calm, fit, everyone = self._admits, self._calm, self._fit, self._everyone
        if capable is not None:
            pool, calm, fit, everyone = (
                [state for state in candidates if state.id in capable] for candidates in (pool, calm, fit, everyone)
            )
        for candidates in (pool, calm, fit):
            left = [state for state in candidates if state.id not in tried and (admits is None or admits(state.id))]
            if left:
                return self._one(left, now), False
        for candidates in (calm, fit):
            left = [state for state in candidates if admits is None or admits(state.id)]
            if left:
                return self._one(left, now), False
        # Rather one that is ejected than one that is not there.
        everyone = [state for state in everyone if admits is None or admits(state.id)] or everyone
        return self._one([state for state in everyone if state.id not in tried] or everyone, now), True

    def _one(self, candidates: list[InstanceState], now: float) -> InstanceState:
        return self._choose(candidates, now) if len(candidates) > 1 else candidates[0]

    def _opened(self) -> list[InstanceState]:
        """Those who may be picked now, while some are in their slow start: these earn a part of a turn with each pick, and
        have one when it is whole. So none gets more than its part, whatever the strategy thinks of an idle newcomer."""
        opened = False
        for state in self._gated:
            credit = state.credit + state.gain
            state.credit = credit if credit < MOST_CREDIT else MOST_CREDIT
            if credit >= 1.0:
                opened = True
        if not opened:
            return self._steady
        return [state for state in self._calm if not state.gain or state.credit >= 1.0]

    def _sort(self, now: float) -> None:
        """Who may be picked, and who not: worked out when something has changed, not for each pick."""
        detector = self._detector
        detector.tick(now)
        self._everyone = everyone = list(self._members.values())
        fit = [state for state in everyone if state.ejected_until is None]
        self._panic = panic = len(fit) < detector.settings.panic_threshold * len(everyone) or all(
            state.sick for state in fit
        )
        self._fit = fit = everyone if panic else fit
        self._calm = calm = [state for state in fit if state.paused_until <= now] or fit
        warmest = max((state.level for state in calm), default=1.0)
        # In step with the warmest: when all are new, nobody is held back.
        self._gated = [] if panic else [state for state in calm if state.level < warmest]
        self._steady = calm if panic else [state for state in calm if state.level == warmest]
        weighs = self._strategy.weighs
        total = sum(state.weight for state in calm) if weighs else len(calm)
        for place, state in enumerate(everyone):
            state.place = place
            state.gain = 0.0
        for state in self._gated:
            state.gain = state.level / warmest * (state.weight if weighs else 1.0) / total

    def glimpse(self) -> tuple[InstanceView, ...]:
        """As :meth:`instances`, without anything being worked out for it: for whoever looks from another thread."""
        now = self._clock()
        return tuple(view(state, now) for state in list(self._members.values()))

    def instances(self) -> tuple[InstanceView, ...]:
        """How each instance is doing."""
        now = self._clock()
        if now >= self._detector.due:
            self._sort(now)
        return tuple(view(state, now) for state in self._everyone)


def check_weight(id: str, weight: float) -> None:
    """Raises ValueError unless ``weight`` is a number above 0."""
    if not 0 < weight < NEVER:
        raise ValueError(f"the weight of {id!r} must be a number above 0, not {weight!r}")


def make_strategy(balancing: Balancing, randomness: Randomness) -> Strategy:
    """The strategy of that name, with its settings."""
    match balancing.strategy:
        case "weighted":
            return SmoothWeighted()
        case "least-request":
            return LeastRequest(randomness, balancing.choice_count)
        case "peak-ewma":
            return PeakEwma(randomness)
        case _:
            return RoundRobin()
