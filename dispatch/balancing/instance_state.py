"""What all strategies have in common: what is known of an instance, and how one is asked for the next."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from typing import Protocol

from dispatch._internal.permit import Randomness
from dispatch.errors import Outcome

NEVER = float("inf")
"""A moment that does not come."""
LEAST_S = 1e-9
"""What an answer takes at least: 0 means that nothing is known."""
MOST_OTHERS = 1_000_000
"""Others' calls at one instance, at most: what a reply claims is not believed without end."""


DECAY_S = 10.0
"""Seconds in which an observation of an instance's speed loses all but 1/e of its weight (Finagle): one slow answer is
forgotten within a minute, and an instance that has recovered is tried again as soon."""


def draw_two(candidates: Sequence[InstanceState], randomness: Randomness) -> tuple[InstanceState, InstanceState]:
    """Draw two different candidates, every ordered pair equally likely, from one random number. With replacement the busier
    of two instances would be chosen once in four times."""
    rest = len(candidates) - 1
    number = int(randomness() * (rest * (rest + 1)))
    first = number // rest
    second = number % rest
    return candidates[first], candidates[second + 1 if second >= first else second]


class InstanceState:
    """What a balancer knows of one instance. Strategies read it; only the balancer and its health write it.

    Attributes:
        id: its name.
        weight: its share of the calls, relative to the others'.
        in_flight: calls of ours that it has.
        order: number of the pick that last took it, over all instances; 0: none has yet.
        place: where it stands among the members; candidates come in that order.
        cost: seconds that an answer takes, as a moving average; 0: not known.
        stamp: when ``cost`` was told last.
        brake: so many times slower than is usual, if it is much slower; else 1.
        others: calls that it has from others, as far as its replies say, at the moment ``others_at``.
        current: the smooth weighted turn's account.
        failures: in a row.
        good, bad: calls that success rates are made of.
        times: former ejections that are not forgotten.
        ejected_until: the end of its ejection, or None.
        ejections: how often it was ejected, ever, in all.
        epoch: counts ejections and returns: what was picked in an earlier one says nothing about this one.
        sick: it would have been ejected, if not too many were.
        well_since: the end of its last ejection.
        paused_until: it asked to be spared until then.
        warm_from: when its slow start began.
        level: how much of its full share it may have.
        gain, credit: while it is held back: what each pick adds to its credit; a turn costs 1.
        member: it is one of the balancer's instances now.
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
        "stamp",
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


class Strategy(Protocol):
    """A way to pick. It may keep a position, but no list of instances: the candidates differ from call to call."""

    learns: bool
    """It wants to be told how each attempt ended (:meth:`learn`)."""
    weighs: bool
    """It gives each instance calls as its weight says; otherwise all get the same."""

    def pick(self, candidates: Sequence[InstanceState], now: float) -> InstanceState:
        """One of ``candidates``: two at least, in the order of their places, in a sequence that is never changed."""

    def refused(self) -> None:
        """The last pick was not taken: another guard would not have it. The next question is for the same call."""

    def learn(
        self, instance: InstanceState, outcome: Outcome, duration: float, in_flight: int | None, now: float
    ) -> None:
        """An attempt has ended; ``instance.in_flight`` does not count it any more. Only called if :attr:`learns`.

        Args:
            instance: where.
            outcome: how.
            duration: seconds that it took.
            in_flight: the instance's own count of what it was running, itself included, if its reply said so.
            now: the moment.
        """


class Unlearning:
    """For strategies that need to know nothing."""

    __slots__ = ()
    learns = False

    def refused(self) -> None:
        """The instance has had its turn."""

    def learn(
        self, instance: InstanceState, outcome: Outcome, duration: float, in_flight: int | None, now: float
    ) -> None:
        """Nothing to learn."""


class Learning:
    """For strategies that know how long an instance takes: an average over time, in which what is older fades.

    Args:
        decay: seconds in which an observation loses all but 1/e of its weight.
    """

    __slots__ = ("decay",)
    learns = True
    peaks = False
    """The average follows a rise at once, and sinks slowly (Finagle's peak-EWMA)."""

    def __init__(self, decay: float) -> None:
        self.decay = decay

    def refused(self) -> None:
        """Nothing to take back: a pick changes nothing here."""

    def learn(
        self, instance: InstanceState, outcome: Outcome, duration: float, in_flight: int | None, now: float
    ) -> None:
        """See :meth:`Strategy.learn`. Only an answer can make an instance look faster than before. What ended without one
        took so long *at least*; what failed or was refused at once says nothing of how long an answer takes, and must not
        make a broken instance look like the fastest of all."""
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
