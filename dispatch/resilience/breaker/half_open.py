"""Half-open calls: the few calls that probe whether a service has recovered. Sans-I/O.

Permits limit the calls *in flight*, so that a slow call does not delay the decision of the others. Each permit is a lease:
it expires by the clock even if the call is never finished.
"""

from __future__ import annotations

from dispatch.resilience.breaker.rules import BreakerRules

RECOVERED = "recovered"
"""The last round succeeded: the breaker closes."""
PROBE_FAILED = "probe-failed"
PROBE_SLOW = "probe-slow"


class HalfOpenCalls:
    """One half-open period: rounds of N, 2N, 4N … calls, each complete after as many results. A lease can be shortened but
    not extended: an expired lease stays expired, whether or not the expiry has been noticed.

    In the first round one failure opens the circuit again: a service that fails one of its first three calls has not
    recovered. In later rounds the failure rate decides, as in the closed state; otherwise a service with one failure in ten,
    which does not open a closed circuit, would rarely pass 21 calls, and the breaker would flap. Slow calls are judged by
    their rate in every round.

    Attributes:
        round: number of the current round, from 0.
        lost: calls whose lease expired.
    """

    __slots__ = ("_failures", "_leases", "_results", "_serial", "_slow", "lost", "round")

    def __init__(self) -> None:
        self.round = 0
        self.lost = 0
        self._results = self._failures = self._slow = 0
        self._serial = 0
        self._leases: dict[int, tuple[float, float]] = {}  # start and end, by the number of the call

    def has_free_permit(self, now: float, settings: BreakerRules) -> bool:
        """Whether another call may start. Frees the permits of calls whose lease has expired."""
        leases = self._leases
        for number in [number for number, (_, end) in leases.items() if now >= end]:
            del leases[number]
            self.lost += 1
        return len(leases) < settings.half_open_calls << self.round

    def start_call(self, now: float, settings: BreakerRules) -> int:
        """Start a call, after :meth:`has_free_permit`. Returns its number, from 1."""
        self._serial += 1
        self._leases[self._serial] = now, now + settings.half_open_lease
        return self._serial

    def shorten_leases(self, lease: float) -> None:
        """Shorten leases in progress to ``lease`` seconds; shorter ones stay as they are."""
        self._leases = {number: (start, min(end, start + lease)) for number, (start, end) in self._leases.items()}

    def end_call(self, number: int, now: float) -> bool:
        """Free the permit of a call. False: its lease had expired, and its outcome must be ignored."""
        lease = self._leases.pop(number, None)
        if lease is None:
            return False
        if now >= lease[1]:
            self.lost += 1
            return False
        return True

    def judge_result(self, failed: bool, slow: bool, settings: BreakerRules) -> str | None:
        """Record the result of a call. Returns a reason to open again, RECOVERED, or None to continue probing."""
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
