"""The power of two choices: draw two, take the one with less to do."""

from __future__ import annotations

from dispatch._internal.permit import Randomness
from dispatch.balancing.instance_state import InstanceState
from dispatch.balancing.twochoices import TwoChoices
from dispatch.errors import Outcome

MUCH_SLOWER = 2.0
"""So many times slower than usual: then its calls count for more."""
RISE, FALL = 1.01, 0.97
"""What a slower and a faster answer do to what is usual: it settles where three of four are slower."""


class PowerOfTwoChoices(TwoChoices):
    """Of two drawn at random, the one with fewer calls of ours for its weight. The cost does not grow with the instances.

    Calls of an instance that was lately seen to be much slower than usual count as many times as it is slower. Without that
    it would have as many calls as the others at any moment: of ten times slower ones, as one in 71 of all is with eight
    instances, which is the whole of the slowest hundredth; and its full turn where there is little to do, because it is as
    idle as the others whenever it is looked at.

    Args:
        randomness: what they are drawn with.
        decay: seconds for which an instance that was slow is remembered for it.
    """

    __slots__ = ("usual",)

    def __init__(self, randomness: Randomness, decay: float) -> None:
        super().__init__(randomness, decay)
        self.usual = 0.0
        """Seconds that the faster instances take, about; 0: not known."""

    def learn(
        self, instance: InstanceState, outcome: Outcome, duration: float, in_flight: int | None, now: float
    ) -> None:
        """See :class:`Learning`."""
        TwoChoices.learn(self, instance, outcome, duration, in_flight, now)
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
        """What taking another call would mean for ``instance``, in calls for a weight of 1."""
        load = (instance.in_flight + 1) / instance.weight
        return load * instance.brake if now - instance.stamp < self.decay else load
