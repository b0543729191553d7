"""Settings of service level objectives.

In a descriptor: ``"slo": {"availability": 0.99, "latency": 2.0}``, or the share of good calls alone, ``"slo": 0.99``; null:
no objective. Objectives change no call: ``dispatch rules export`` creates alerts from them.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dispatch._internal.arguments import NamedFields
from dispatch.policy.validation import PolicyError, check_seconds, merge_keys

MIN_OBJECTIVE, MAX_OBJECTIVE = 0.5, 0.9999
"""Below a half an objective has no use; less than one bad call in ten thousand is too rare to be measured in the three days
that alerts evaluate."""
MAX_LATENCY = 81.92
"""Seconds: the largest bound of the histogram of durations (``dispatch.telemetry.names.DURATION_BUCKETS``). Longer
durations are not distinguished."""


def _check_objective(value: object, key: str, example: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PolicyError(key, f"{value!r} is not a number", f"give the share of calls, for instance {example}")
    if not MIN_OBJECTIVE <= value <= MAX_OBJECTIVE:  # false for NaN, too
        fix = f"give the share of calls, for instance {example} (99 % is 0.99; 1 would allow no failure at all)"
        raise PolicyError(key, f"{value!r} is not from {MIN_OBJECTIVE:g} to {MAX_OBJECTIVE:g}", fix)


class Slo(msgspec.Struct, metaclass=NamedFields, frozen=True, rename="kebab"):
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
                    f"{self.latency!r} is more than {MAX_LATENCY:g}, and longer times are not distinguished",
                    "give seconds, for instance 2",
                )
        _check_objective(self.latency_share, "slo.latency-share", "0.95")
        if self.availability is None and self.latency is None:
            raise PolicyError(
                "slo", "it sets no objective", "give 'availability' or 'latency', or write null for no objective"
            )


_ANY = Slo(availability=MIN_OBJECTIVE)


def parse_slo(raw: object, base: Slo | None = None) -> Slo | None:
    """Return the objectives of a descriptor's ``slo``, merged over ``base``; None: no objective.

    Raises:
        PolicyError: neither a share nor an object, an unknown key, or an invalid value.
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
    return merge_keys(_ANY, {"availability": None, **raw}, "slo") if base is None else merge_keys(base, raw, "slo")
