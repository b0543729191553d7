"""Log lines: one for each transition of a circuit or an instance, one for each call, and exceptions without user data.

Lines of a state that flaps are limited in rate. Each record has its facts as attributes (``extra``), for formatters that
write JSON.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from dispatch._internal.suggestions import excerpt
from dispatch._internal.user_code import type_name, unwrap
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
MAX_FRAMES = 50
"""Frames of a traceback; of a deeper one the last frames are logged."""
MAX_CHAINED = 10
"""Causes of an exception, and members of a group, whose tracebacks are logged."""


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

    def log(
        self,
        level: int,
        key: tuple[str, ...],
        text: str | Callable[[], str],
        /,
        *,
        exc_info: BaseException | None = None,
        **facts: Any,
    ) -> None:
        """Log ``text``, unless ``key`` had a line less than :data:`REPEAT_INTERVAL_S` ago.

        Args:
            level: of :mod:`logging`.
            key: identifies the change.
            text: the line, or what returns it; the number of lines that were suppressed since the last one is appended.
            exc_info: an exception whose traceback, text included, is logged.
            facts: attributes of the record, each with the prefix ``dispatch_``.
        """
        now = self._clock()
        last = self._last.get(key)
        suffix = ""
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
                suffix = f" ({int(last[1])} more since the last line)"
            last[:] = [now, 0]
            self._last.move_to_end(key)
        line = text if isinstance(text, str) else text()
        self._logger.log(level, f"{line}{suffix}", exc_info=exc_info, extra=_name_facts(facts))


def _name_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a record: formatters write them as they are."""
    return {f"dispatch_{name}": scalar_text(fact) if isinstance(fact, str) else fact for name, fact in facts.items()}


class ExceptionLogger:
    """Logs what user code raised unexpectedly: one ERROR with a traceback, limited in rate for each kind of exception. A
    kind is a class and the line that raised it.

    A traceback quotes lines of source code, never values. The text of an exception, which often contains arguments, is
    logged only where user data may be recorded.

    Args:
        logger: receives the lines.
        clock: seconds, monotonic.
        content: user data may be recorded (:attr:`dispatch.Telemetry.content`): log the texts of exceptions, too.
    """

    def __init__(
        self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic, *, content: bool = False
    ) -> None:
        self._lines = TransitionLogger(logger, clock)
        self._content = content

    def log(self, text: str, raised: BaseException, **facts: Any) -> None:
        """Log ``raised``. Never raises: the code that reports a failure must go on.

        Args:
            text: what failed; the class of the exception and the traceback are appended.
            raised: by user code.
            facts: as of :meth:`TransitionLogger.log`.
        """
        raised = unwrap(raised)
        kind = type_name(raised)
        with contextlib.suppress(Exception):  # of a handler of logging, or of a property of the exception
            key = (text, kind, *_find_place(raised))
            if self._content:
                self._lines.log(logging.ERROR, key, f"{text}: {kind}", exc_info=raised, error=kind, **facts)
            else:
                self._lines.log(
                    logging.ERROR, key, lambda: f"{text}: {kind}\n{format_traceback(raised)}", error=kind, **facts
                )


def _find_place(raised: BaseException) -> tuple[str, ...]:
    """Return the file and the line that raised an exception."""
    found = raised.__traceback__
    if found is None:
        return ()
    while found.tb_next is not None:
        found = found.tb_next
    return found.tb_frame.f_code.co_filename, str(found.tb_lineno)


def format_traceback(raised: BaseException) -> str:
    """Return the traceback of an exception with those of its causes and of a group's members, without the text of any of
    them: files, lines, source code and classes."""
    return "\n\n".join(_format_chain(raised, set()))


def _format_chain(raised: BaseException, seen: set[int]) -> list[str]:
    seen.add(id(raised))
    cause, context = raised.__cause__, None if raised.__suppress_context__ else raised.__context__
    earlier, how = (cause, _CAUSE) if cause is not None else (context, _CONTEXT)
    parts = []
    if earlier is not None and id(earlier) not in seen and len(seen) < MAX_CHAINED:
        parts += [*_format_chain(earlier, seen), how]
    frames = "".join(traceback.format_tb(_skip_own_frames(raised.__traceback__), limit=-MAX_FRAMES))
    parts.append(f"Traceback (most recent call last):\n{frames}{type_name(raised)}")
    members = raised.exceptions if isinstance(raised, BaseExceptionGroup) else ()
    for number, member in enumerate(members, 1):
        if len(seen) >= MAX_CHAINED:
            break
        if id(member) not in seen:
            parts += [f"Member {number} of {len(members)} of the group:", *_format_chain(member, seen)]
    return parts


def _skip_own_frames(whole: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback from the first frame that is not dispatch's own; the whole one if all of them are."""
    found = whole
    while found is not None and found.tb_frame.f_code.co_filename.startswith(_OWN_FILES):
        found = found.tb_next
    return found or whole


_OWN_FILES = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
_CAUSE = "The above exception was the direct cause of the following exception:"
_CONTEXT = "During handling of the above exception, another exception occurred:"


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
