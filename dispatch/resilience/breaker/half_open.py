"""Half-open: the few calls that find out whether a service is well again. Pure bookkeeping.

Places are for calls *in flight*, so that a slow probe does not hold up the verdict of the others, and each is a lease: a
probe that is never heard of again gives its place back by the clock, not by its caller's discipline.
"""

from __future__ import annotations

from dispatch.resilience.breaker.rules import BreakerRules

RECOVERED = "recovered"
"""The last round was passed."""
PROBE_FAILED = "probe-failed"
PROBE_SLOW = "probe-slow"


class HalfOpenCalls:
    """One time of being half-open: rounds of N, 2N, 4N … calls, each passed by as many results. A lease that has
    been given can become shorter, and never longer: what has run out has run out, whether somebody looked or not.

    In the first round one failure is enough to open again: a service that fails one of its first three is ill. In later
    rounds the failure rate judges as it does when closed; otherwise a service with one failure in ten, which opens nothing,
    would hardly ever get through 21 calls without one, and flap. Slow calls are judged by their rate in every round.

    Attributes:
        round: from 0.
        lost: probes whose lease ran out.
    """

    __slots__ = ("_failures", "_leases", "_results", "_serial", "_slow", "lost", "round")

    def __init__(self) -> None:
        self.round = 0
        self.lost = 0
        self._results = self._failures = self._slow = 0
        self._serial = 0
        self._leases: dict[int, tuple[float, float]] = {}  # their start and end, by the probe's number

    def room(self, now: float, settings: BreakerRules) -> bool:
        """May another probe go? Takes back the places of those whose lease is over."""
        leases = self._leases
        for number in [number for number, (_, end) in leases.items() if now >= end]:
            del leases[number]
            self.lost += 1
        return len(leases) < settings.half_open_calls << self.round

    def begin(self, now: float, settings: BreakerRules) -> int:
        """A probe goes; there is room. Returns its number, from 1."""
        self._serial += 1
        self._leases[self._serial] = now, now + settings.half_open_lease
        return self._serial

    def shorten(self, lease: float) -> None:
        """Leases are so long now, in seconds; those under way too, if they are longer."""
        self._leases = {number: (start, min(end, start + lease)) for number, (start, end) in self._leases.items()}

    def end(self, number: int, now: float) -> bool:
        """A probe has ended, somehow: its place is free. False: its lease was over, its result means nothing."""
        lease = self._leases.pop(number, None)
        if lease is None:
            return False
        if now >= lease[1]:
            self.lost += 1
            return False
        return True

    def judge(self, failed: bool, slow: bool, settings: BreakerRules) -> str | None:
        """A probe's result. Returns why to open again, RECOVERED, or None: go on probing."""
        size = settings.half_open_calls << self.round
        self._results += 1
        self._failures += failed
        self._slow += slow
        if failed and (self.round == 0 or self._failures / size >= settings.failure_rate):
            return PROBE_FAILED
        if slow and self._slow / size >= settings.slow_call_rate:
            return PROBE_SLOW
        if self._results < size:
            return None
        if self.round + 1 >= settings.half_open_rounds:
            return RECOVERED
        self.round += 1
        self._results = self._failures = self._slow = 0
        return None
