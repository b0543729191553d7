"""State of an instance as the balancer knows it, and the interface of balancing strategies."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

from dispatch._internal.permit import Randomness
from dispatch.errors import Outcome

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


class InstanceState:
    """The state of one instance. Strategies read it; only the balancer and the outlier detector write it.

    Attributes:
        id: name of the instance.
        weight: share of the calls, relative to the other instances.
        in_flight: calls of this dispatcher in flight at the instance.
        order: number of the last pick of this instance, over all instances; 0: never picked.
        place: position among the members; candidates are in this order.
        cost: moving average of the duration of an answer, in seconds; 0: unknown.
        stamp: when ``cost`` was updated last.
        brake: factor by which it is slower than usual, if it is much slower; else 1.
        others: calls of other dispatchers at the instance, according to its replies, as of ``others_at``.
        current: current weight of the smooth weighted round-robin.
        failures: consecutive failures.
        good, bad: successes and failures for the success rate.
        timed, slowness, spread: number, sum and sum of squares of the logarithms of durations, each relative to the usual
            duration of its tool: recent answers count most.
        times: former ejections that are not forgotten yet.
        ejected_until: end of its ejection; None: not ejected.
        ejections: ejections so far.
        epoch: number of ejections and returns; outcomes of an earlier epoch are ignored.
        sick: it would be ejected if fewer instances were.
        well_since: end of its last ejection.
        paused_until: end of the pause that it asked for.
        warm_from: start of its slow start.
        level: share of its full share that slow start permits.
        gain, credit: in slow start, each pick adds ``gain`` to ``credit``; a turn costs 1.
        member: whether it is one of the balancer's instances now.
    """

    __slots__ = (
        "bad",
        "brake",
        "cost",
        "credit",
        "current",
        "ejected_until",
        "ejections",
        "epoch",
        "failures",
        "gain",
        "good",
        "id",
        "in_flight",
        "level",
        "member",
        "order",
        "others",
        "others_at",
        "paused_until",
        "place",
        "sick",
        "slowness",
        "spread",
        "stamp",
        "timed",
        "times",
        "warm_from",
        "weight",
        "well_since",
    )

    def __init__(self, id: str, weight: float, now: float) -> None:
        self.id = id
        self.weight = weight
        self.in_flight = 0
        self.order = 0
        self.place = 0
        self.cost = 0.0
        self.stamp = now
        self.brake = 1.0
        self.others = 0
        self.others_at = now
        self.current = 0.0
        self.failures = 0
        self.good = 0.0
        self.bad = 0.0
        self.timed = self.slowness = self.spread = 0.0
        self.times = 0
        self.ejected_until: float | None = None
        self.ejections = 0
        self.epoch = 0
        self.sick = False
        self.well_since = now
        self.paused_until = 0.0
        self.warm_from = now
        self.level = 1.0
        self.gain = 0.0
        self.credit = 0.0
        self.member = True


class Strategy:
    """A balancing strategy. It may keep a position, but no list of instances: the candidates differ from call to call."""

    __slots__ = ()
    learns = False
    """Whether the outcome of each attempt is passed to :meth:`learn`."""
    weighs = False
    """Whether weights determine the shares; otherwise all shares are equal."""

    def pick(self, candidates: Sequence[InstanceState], now: float) -> InstanceState:
        """Return one of ``candidates``: at least two, in the order of their places, in a sequence that is never modified."""
        raise NotImplementedError

    def undo_pick(self) -> None:
        """Undo the last pick, which another guard rejected. The next pick is for the same call. Here: the turn counts."""

    def learn(
        self, instance: InstanceState, outcome: Outcome, duration: float, in_flight: int | None, now: float
    ) -> None:
        """Learn from an attempt that has ended; ``instance.in_flight`` no longer counts it. Called only if :attr:`learns`.

        Args:
            instance: the instance of the attempt.
            outcome: of the attempt.
            duration: in seconds.
            in_flight: the requests that the instance was running according to its reply, this one included.
            now: the current time.
        """


class Learning(Strategy):
    """Base of strategies that use the duration of answers: an exponential moving average over time.

    Args:
        decay: time constant of the average, in seconds.
    """

    __slots__ = ("decay",)
    learns = True
    peaks = False
    """Whether the average follows a rise at once and decays slowly (Finagle's peak EWMA)."""

    def __init__(self, decay: float) -> None:
        self.decay = decay

    def learn(
        self, instance: InstanceState, outcome: Outcome, duration: float, in_flight: int | None, now: float
    ) -> None:
        """See :meth:`Strategy.learn`. Only an answer can lower the average. An attempt without an answer took *at least* so
        long; an immediate failure or rejection is not a duration of an answer, and must not make a broken instance the
        fastest."""
        if in_flight is not None:
            others = in_flight - 1 - instance.in_flight
            instance.others = min(others, MOST_OTHERS) if others > 0 else 0
            instance.others_at = now
        cost = instance.cost
        faded = exp((instance.stamp - now) / self.decay) if cost else 0.0
        if outcome is Outcome.SUCCESS or outcome is Outcome.TOOL_ERROR:
            if duration < cost or not self.peaks:
                duration = cost * faded + duration * (1.0 - faded)
        elif (outcome is not Outcome.TIMEOUT and outcome is not Outcome.CANCELLED) or duration <= cost * faded:
            return
        instance.cost = duration if duration > LEAST_S else LEAST_S
        instance.stamp = now
