"""One line for each transition of a circuit or an instance, and no flood of them: what flaps is said again now and then,
with how often it happened meanwhile. Each record has its facts as attributes (``extra``), for whoever logs as JSON.
"""

from __future__ import annotations

import logging
import traceback
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

CALLS = logging.getLogger("dispatch.calls")
"""One line for each call, at DEBUG: none unless somebody asks for it."""

QUIET_S = 10.0
"""How often one circuit, or one instance, may say the same change: an open time is 5 s at first, so that one that flaps says
a line a cycle and is quiet in between."""
MAX_KEYS = 1_000
"""Changes that are remembered; of those that were quiet for longest it is forgotten that they are quiet."""


class Transitions:
    """Writes the lines.

    Args:
        logger: where to.
        clock: seconds.
    """

    def __init__(self, logger: logging.Logger, clock: Callable[[], float]) -> None:
        self._logger = logger
        self._clock = clock
        self._last: OrderedDict[tuple[str, ...], list[float]] = OrderedDict()

    def say(self, level: int, key: tuple[str, ...], text: str, **facts: Any) -> None:
        """One line, unless the same ``key`` had one lately.

        Args:
            level: of :mod:`logging`.
            key: what is the same.
            text: the line.
            facts: attributes of the record, each with ``dispatch_`` before its name.
        """
        now = self._clock()
        last = self._last.get(key)
        if last is None:
            last = self._last[key] = [now, 0]
            if len(self._last) > MAX_KEYS:
                self._last.popitem(last=False)
        elif now < last[0] + QUIET_S:
            last[1] += 1
            return
        else:
            facts["repeated"] = int(last[1])
            if last[1]:
                text = f"{text} ({int(last[1])} times more since)"
            last[:] = [now, 0]
            self._last.move_to_end(key)
        self._logger.log(level, text, extra={f"dispatch_{name}": value for name, value in facts.items()})


def log_exception(logger: logging.Logger, level: int, text: str, error: BaseException, *, content: bool) -> None:
    """One line with the type of an exception, and where it was raised. Not its text, which often holds arguments.

    Args:
        content: arguments may be recorded (:attr:`dispatch.Telemetry.content`): its text, too.
    """
    if not logger.isEnabledFor(level):
        return
    if content:
        logger.log(level, "%s: %s", text, type(error).__name__, exc_info=error)
    else:
        frames = "".join(traceback.format_tb(error.__traceback__)).rstrip()
        logger.log(level, "%s: %s\n%s", text, type(error).__name__, frames)


def say_call(tool: str, outcome: str, seconds: float, *, call_id: str, error_type: str, trace_id: str) -> None:
    """The line of a call that has ended. Texts that are not known are empty."""
    facts = {
        "tool": tool,
        "call_id": call_id,
        "outcome": outcome,
        "error_type": error_type,
        "trace_id": trace_id,
        "seconds": seconds,
    }
    CALLS.debug(
        "'%s': %s after %.3f s",
        tool,
        outcome,
        seconds,
        extra={f"dispatch_{name}": fact for name, fact in facts.items()},
    )
