"""Log lines: one for each transition of a circuit or an instance, one for each call, and exceptions without user data.

Lines of a state that flaps are limited in rate. Each record has its facts as attributes (``extra``), for formatters that
write JSON.
"""

from __future__ import annotations

import logging
import traceback
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from dispatch._internal.suggestions import excerpt
from dispatch._internal.utf8 import scalar_text

CALLS = logging.getLogger("dispatch.calls")
"""One line for each call, at DEBUG."""

AUDIT = logging.getLogger("dispatch.audit")
"""One line for each decision on a tool with permissions, at INFO."""

REPEAT_INTERVAL_S = 10.0
"""Seconds between two lines for the same change of one circuit or instance. A breaker is open for 5 s at first: one that
flaps writes about one line in two cycles."""
MAX_USER_CHARS = 256
"""Characters of a user's name in a line."""
MAX_KEYS = 1_000
"""Changes whose last line is remembered; beyond that the oldest is evicted, and its next line is written at once."""


class TransitionLogger:
    """Logs transitions, limited in rate for each key.

    Args:
        logger: receives the lines.
        clock: seconds, monotonic.
    """

    def __init__(self, logger: logging.Logger, clock: Callable[[], float]) -> None:
        self._logger = logger
        self._clock = clock
        self._last: OrderedDict[tuple[str, ...], list[float]] = OrderedDict()

    def log(self, level: int, key: tuple[str, ...], text: str, /, **facts: Any) -> None:
        """Log ``text``, unless ``key`` had a line less than :data:`REPEAT_INTERVAL_S` ago.

        Args:
            level: of :mod:`logging`.
            key: identifies the change.
            text: the line; the number of lines that were suppressed since the last one is appended.
            facts: attributes of the record, each with the prefix ``dispatch_``.
        """
        now = self._clock()
        last = self._last.get(key)
        if last is None:
            last = self._last[key] = [now, 0]
            if len(self._last) > MAX_KEYS:
                self._last.popitem(last=False)
        elif now < last[0] + REPEAT_INTERVAL_S:
            last[1] += 1
            return
        else:
            facts["repeated"] = int(last[1])
            if last[1]:
                text = f"{text} ({int(last[1])} more since the last line)"
            last[:] = [now, 0]
            self._last.move_to_end(key)
        self._logger.log(level, text, extra=_name_facts(facts))


def _name_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a record: formatters write them as they are."""
    return {f"dispatch_{name}": scalar_text(fact) if isinstance(fact, str) else fact for name, fact in facts.items()}


def log_exception(logger: logging.Logger, level: int, text: str, error: BaseException, *, content: bool) -> None:
    """Log the type of an exception and where it was raised, but not its text, which often contains arguments.

    Args:
        logger, level, text: of the line.
        error: the exception.
        content: user data may be recorded (:attr:`dispatch.Telemetry.content`): log the exception's text, too.
    """
    if not logger.isEnabledFor(level):
        return
    if content:
        logger.log(level, "%s: %s", text, type(error).__name__, exc_info=error)
    else:
        frames = "".join(traceback.format_tb(error.__traceback__)).rstrip()
        logger.log(level, "%s: %s\n%s", text, type(error).__name__, frames)


def log_decision(user: str, tool: str, is_allowed: bool, reason: str, *, permission: str, trace_id: str) -> None:
    """Log whether a user may call a tool. Arguments are never logged here.

    Args:
        user: on whose behalf the tool is called; empty: the caller gave none.
        tool: label of the tool.
        is_allowed: the decision.
        reason: see :class:`dispatch.permissions.permission_set.Decision`.
        permission: the first one that the user lacks; empty: none, or not known.
        trace_id: of the call; empty: that of the current span, if there is one.
    """
    decision = "allowed" if is_allowed else "refused"
    facts = {
        "user": user,
        "tool": tool,
        "decision": decision,
        "reason": reason,
        "permission": permission,
        "trace_id": trace_id or _current_trace_id(),
    }
    AUDIT.info(
        "%s: '%s' for user '%s' (%s)",
        decision,
        excerpt(tool),
        excerpt(user, MAX_USER_CHARS),
        f"{reason} {excerpt(permission)}" if permission else reason,
        extra=_name_facts(facts),
    )


def _current_trace_id() -> str:
    from opentelemetry.trace import get_current_span  # perf: most processes have no audit log

    context = get_current_span().get_span_context()
    return f"{context.trace_id:032x}" if context.is_valid else ""


def log_call(tool: str, outcome: str, seconds: float, *, call_id: str, error_type: str, trace_id: str) -> None:
    """Log a call that has ended after ``seconds``. Texts that are not known are empty."""
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
        extra=_name_facts(facts),
    )
