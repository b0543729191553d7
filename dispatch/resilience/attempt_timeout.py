"""What an attempt may take of the time that its call has left.

A call has one absolute deadline. Were each attempt to have all of it, the first that hangs would leave nothing for a
second one; were the shares fixed, a slow tool would be cut off although there is time. So attempts that could be followed
by another one share what is left, and none gets less than the tool is known to take.
"""

from __future__ import annotations

ROOM = 2.0
"""An attempt gets at least so many times what the tool nearly always stays below: a slow day is no failure."""
ENOUGH, ENOUGH_S = 20.0, 1.0
"""And so many times that, or so many seconds if that is more, is enough, as long as another attempt may follow: what takes
so much longer than ever is lost, or its instance is stuck. Against one of eight instances that takes requests and answers
none, calls of 25 ms were right in 99.5 % of cases so, in 63 % with no limit, because those that hang fill all the places."""


def attempt_slice(
    now: float,
    deadline: float,
    *,
    limit: float | None = None,
    attempts_left: int = 1,
    usual: float | None = None,
) -> tuple[float, str]:
    """The time of an attempt that begins ``now``: when it ends, on the clock of the call's deadline and never after that;
    and which limit that is, for the error of an attempt that runs into it: ``attempt`` or ``call``.

    Args:
        deadline: the whole call's.
        limit: seconds that the policy gives to an attempt; None: a fair share of what is left, or what is enough.
        attempts_left: this attempt, and those that could follow if it timed out: 1 for a tool that may not be repeated then.
        usual: seconds below which nearly all of the tool's attempts stay, a high percentile; None when it is not known.
            For a share only: a limit is a limit.
    """
    if limit is None:
        limit = (deadline - now) / attempts_left
        if usual is not None:
            if attempts_left > 1:
                enough = ENOUGH * usual
                if enough < ENOUGH_S:
                    enough = ENOUGH_S
                if limit > enough:
                    limit = enough
            if limit < ROOM * usual:
                limit = ROOM * usual
    ends = now + limit
    return (ends, "attempt") if ends < deadline else (deadline, "call")
