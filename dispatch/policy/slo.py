"""What a tool promises, so that somebody is woken when it is not kept: the settings.

In a descriptor: ``"slo": {"availability": 0.99, "latency": 2.0}``, or just the share of good calls, ``"slo": 0.99``; null:
nothing is promised. Nothing in a call changes by it: it is what ``dispatch rules export`` makes alerts of.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dispatch.policy.validation import PolicyError, check_seconds, laid_over

MIN_OBJECTIVE, MAX_OBJECTIVE = 0.5, 0.9999
"""A promise that half of the calls break is none; one broken call in more than ten thousand is too seldom to measure in the
three days that alerts look at."""
MAX_LATENCY = 81.92
"""Seconds: the largest bound of the histogram of durations (``dispatch.telemetry.names.DURATION_BUCKETS``). Beyond it no
call is told from another."""


def _check_objective(value: object, key: str, example: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PolicyError(key, f"{value!r} is not a number", f"give the share of calls, for instance {example}")
    if not MIN_OBJECTIVE <= value <= MAX_OBJECTIVE:  # false for what is not a number, too
        fix = f"give the share of calls, for instance {example} (99 % is 0.99; 1 would allow no failure at all)"
        raise PolicyError(key, f"{value!r} is not from {MIN_OBJECTIVE:g} to {MAX_OBJECTIVE:g}", fix)


class Slo(msgspec.Struct, frozen=True, rename="kebab"):
    """A service level objective of a tool, over any time. docs/how-to/runbook.md says which calls are good.

    Attributes:
        availability: the share of calls that are good, from 0.5 to 0.9999. Bad are timeouts, errors of transport, and calls
            that were refused or throttled; the tool's own error is its answer, and good. None: not promised.
        latency: seconds that a successful call may take, all its attempts and waits included; at most 81.92. It is measured
            at the next larger bucket of the histogram (2 s at 2.56 s), so that no call that kept the promise counts as slow.
            None: not promised.
        latency_share: the share of successful calls that must not take longer, from 0.5 to 0.9999. 0.95: as is usual
            for a latency that people wait for; a stricter one is about single calls.
    """

    availability: float | None = None
    latency: float | None = None
    latency_share: float = 0.95

    def __post_init__(self) -> None:
        if self.availability is not None:
            _check_objective(self.availability, "slo.availability", "0.99")
        if self.latency is not None:
            check_seconds(self.latency, "slo.latency")
            if self.latency > MAX_LATENCY:
                raise PolicyError(
                    "slo.latency",
                    f"{self.latency!r} is more than {MAX_LATENCY:g}, and longer times are not told apart",
                    "give seconds, for instance 2",
                )
        _check_objective(self.latency_share, "slo.latency-share", "0.95")
        if self.availability is None and self.latency is None:
            raise PolicyError(
                "slo", "it promises nothing", "give 'availability' or 'latency', or write null for no promise"
            )


_ANY = Slo(availability=MIN_OBJECTIVE)


def parse_slo(raw: object, base: Slo | None = None) -> Slo | None:
    """The promise that a descriptor's ``slo`` describes, laid over ``base``; None: there is none.

    Raises:
        PolicyError: neither a share nor an object, an unknown key, or a value that cannot be.
    """
    if raw is None:
        return None
    if isinstance(raw, int | float) and not isinstance(raw, bool):
        raw = {"availability": raw}
    if not isinstance(raw, Mapping):
        raise PolicyError(
            "slo",
            f"{raw!r} is neither a share nor an object",
            'write 0.99, {"availability": 0.99, "latency": 2}, or null for no promise',
        )
    return laid_over(_ANY, {"availability": None, **raw}, "slo") if base is None else laid_over(base, raw, "slo")
