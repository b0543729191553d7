"""Calls and requests of one simulated run, and figures computed from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

BIN_S = 0.25
"""The requests that reach an instance are counted in steps of this."""


class Made(msgspec.Struct, frozen=True, array_like=True):
    """One call: when it began and ended, whether it got its answer, and how many requests were sent for it."""

    began: float
    ended: float
    ok: bool
    sent: int


@dataclass
class Record:
    """One run: a scenario under one contender. Times are in virtual seconds from its start.

    Attributes:
        seconds: how long calls were made.
        calls: all of them.
        received: requests that reached each instance, by step of :data:`BIN_S`.
        begun: when an instance began to work on a request, and which dispatcher's it was.
        failures: why calls failed, counted by the type of the error.
    """

    scenario: str
    contender: str
    seconds: float
    calls: list[Made] = field(default_factory=list)
    received: list[Counter[int]] = field(default_factory=list)
    begun: list[tuple[float, int]] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)

    def offered(self, since: float, until: float) -> int:
        """Calls that began in that time."""
        return sum(since <= call.began < until for call in self.calls)

    def answered(self, since: float, until: float) -> int:
        """Calls that got their answer in that time."""
        return sum(call.ok and since <= call.ended < until for call in self.calls)

    def success(self, since: float, until: float) -> float:
        """Share of the calls that began in that time which got their answer; 1.0 when there were none."""
        made = [call.ok for call in self.calls if since <= call.began < until]
        return sum(made) / len(made) if made else 1.0

    def latency(self, share: float, since: float, until: float) -> float | None:
        """Seconds below which that share of the answers stays, of calls that began in that time. None: no answer."""
        took = sorted(call.ended - call.began for call in self.calls if call.ok and since <= call.began < until)
        return took[min(int(share * len(took)), len(took) - 1)] if took else None

    def load(self, since: float, until: float, instance: int | None = None) -> int:
        """Requests that reached the service, or one instance of it, in that time (whole steps)."""
        first, last = round(since / BIN_S), round(until / BIN_S)
        counted = self.received if instance is None else [self.received[instance]]
        return sum(count for each in counted for step, count in each.items() if first <= step < last)

    def amplification(self, since: float, until: float) -> float:
        """Requests that were sent for each call that began in that time, whether they arrived or not."""
        sent = sum(call.sent for call in self.calls if since <= call.began < until)
        return sent / max(1, self.offered(since, until))

    def recovery(self, well_at: float, *, share: float = 0.95) -> float | None:
        """Seconds from ``well_at`` until, of each second's calls to the end of the run, at least that share got an answer.
        None: not within the run."""
        last = well_at
        for step in range(int(self.seconds - well_at)):
            since = well_at + step
            if self.success(since, since + 1) < share:
                last = since + 1
        return None if last > self.seconds - 2 else last - well_at

    def probes(self, since: float, until: float, quiet: float = 1.5) -> list[float]:
        """When each dispatcher asked the service again for the first time in a while: the first request after at least
        ``quiet`` seconds without one, of those that began in that time."""
        last: dict[int, float] = {}
        found: dict[int, float] = {}
        for time, caller in self.begun:
            if since <= time < until:
                if time - last.get(caller, time) >= quiet:
                    found.setdefault(caller, time)
                last[caller] = time
        return sorted(found.values())


def fullest(times: Sequence[float], slot: float) -> float:
    """The largest share of ``times`` (sorted) that lies within any ``slot`` seconds; 0.0 for none."""
    most = first = 0
    for index, time in enumerate(times):
        while time - times[first] >= slot:
            first += 1
        most = max(most, index - first + 1)
    return most / len(times) if times else 0.0
