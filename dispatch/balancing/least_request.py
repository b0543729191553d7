"""Least request: of a few instances drawn at random, the one with the fewest calls (Envoy's ``LEAST_REQUEST``)."""

from __future__ import annotations

from collections.abc import Sequence

from dispatch._internal.permit import Randomness
from dispatch.balancing.instance_state import DECAY_S, InstanceState, Learning, draw_two
from dispatch.errors import Outcome

MUCH_SLOWER = 2.0
"""Factor above the usual duration from which an instance's calls weigh more."""
RISE, FALL = 1.01, 0.97
"""Factors of the usual duration after a slower and a faster answer: it converges where three of four are slower."""


class LeastRequest(Learning):
    """Of ``choice_count`` instances drawn at random, the one with the fewest calls of this dispatcher for its weight.

    Two choices (the power of two choices) cost the same for any number of instances; with as many choices as instances, the
    least loaded one is always found.

    Calls of an instance that was recently much slower than usual count by the factor that it is slower. Otherwise it would
    have as many calls in flight as the others: with eight instances of which one is ten times slower, one call in 71 is
    slow, more than one percent of all; and at low load, when it is as idle as the others at each comparison, its full share.

    Args:
        randomness: random numbers.
        choice_count: number of instances that are compared, at least 2.
        decay: seconds for which a slow answer of an instance is remembered.
    """

    __slots__ = ("_choice_count", "_randomness", "usual")
    weighs = True

    def __init__(self, randomness: Randomness, choice_count: int, decay: float = DECAY_S) -> None:
        super().__init__(decay)
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

    def load(self, instance: InstanceState, now: float) -> float:
        """Return the load of ``instance`` with one more call, in calls per weight."""
        load = (instance.in_flight + 1) / instance.weight
        return load * instance.brake if now - instance.stamp < self.decay else load

    def pick(self, candidates: Sequence[InstanceState], now: float) -> InstanceState:
        """Return the least loaded of the drawn instances; of equals, the one that was picked longest ago."""
        count = self._choice_count
        if count < len(candidates):
            candidates = draw_two(candidates, self._randomness) if count == 2 else self._draw(candidates, count)
        best = candidates[0]
        least = self.load(best, now)
        remembered = now - self.decay
        for each in candidates:
            # Inlined load(): this loop runs for every compared instance.
            load = (each.in_flight + 1) / each.weight
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
