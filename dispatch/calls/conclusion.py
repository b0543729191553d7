"""The end of an exchange becomes the result of a call. An error text for models says what failed, whether the tool may have
been executed, and what to do next."""

from __future__ import annotations

from dispatch.errors import (
    CallTimeoutError,
    DispatchError,
    InvalidArgumentsError,
    Origin,
    Outcome,
    RejectedError,
    ThrottledError,
    ToolError,
    TransportError,
)
from dispatch.messaging.rpc.exchange_outcome import Answer, Lost, Overflow, Settled, TimedOut, Unreadable
from dispatch.messaging.wire.properties import Property, Refusal, whole_number
from dispatch.result import CallResult

_SUCCESS = Outcome.SUCCESS
_COUNTING = (Answer, TimedOut, Lost)
"""What says how many chunks came."""


def conclude(
    settled: Settled | None,
    error: DispatchError | None,
    *,
    tool: str,
    duration: float,
    request_id: str = "",
    attempts: int = 0,
    transmissions: int = 1,
    asked_for: float = 0.0,
) -> CallResult:
    """The result of a call whose last exchange ended in ``settled`` (None: there was none), which means ``error`` to its
    caller (None: success). For the rest see :class:`CallResult`."""
    answered = type(settled) is Answer
    return CallResult(
        tool,
        _SUCCESS if error is None else error.outcome,
        settled.text if answered and error is None else "",  # type: ignore[union-attr] # an Answer
        error,
        duration,
        attempts,
        settled.chunks if isinstance(settled, _COUNTING) else 0,
        request_id,
        settled.properties.get(Property.INSTANCE) if answered else None,  # type: ignore[union-attr] # an Answer
        transmissions,
        asked_for,
    )


def error_of(settled: Settled, *, tool: str, limit: float, repeatable: bool) -> DispatchError | None:
    """The error that the end of an exchange means to its caller, None for success.

    Args:
        limit: seconds of the limit that would have run out.
        repeatable: the tool is declared read-only or idempotent, so that a repeat does no harm.
    """
    if isinstance(settled, Answer):
        if settled.error_type is None:
            return None
        return _answered_error(settled, tool, limit, repeatable)
    if isinstance(settled, TimedOut):
        return _timed_out(settled, tool, limit, repeatable)
    if isinstance(settled, Lost):
        what = "had the request and" if settled.received else "was sent the request and"
        return TransportError(
            "instance-lost",
            f"The service instance that {what} gave no sign of life for {settled.silent:.0f} s. "
            f"{_may_have_run(tool, repeatable)}",
            retryable=repeatable,
            origin=Origin.TOOL,
        )
    if isinstance(settled, Unreadable):
        return TransportError(
            "malformed-reply",
            f"The service of '{tool}' answered, but not with a response ({settled.problem}). {_may_have_run(tool)}",
            origin=Origin.TOOL,
        )
    if isinstance(settled, Overflow):
        return TransportError(
            "too-much",
            f"The answer of '{tool}' went over the limit '{settled.limit}' and was cut off. Ask for less at once, or "
            f"raise that key of the tool's policy. {_may_have_run(tool)}",
            origin=Origin.TOOL,
        )
    return settled


def _answered_error(answer: Answer, tool: str, limit: float, repeatable: bool) -> DispatchError:
    type, message = answer.error_type or "tool-error", answer.error_message
    refused = answer.properties.get(Property.REFUSED)
    if refused is None:
        return ToolError(type, message or f"'{tool}' answered with an error that says nothing more.")
    after = whole_number(answer.properties, Property.RETRY_AFTER_MS)
    seconds = None if after is None else after / 1000
    if refused == Refusal.OVERLOADED:
        when = f"not before {seconds:g} s" if seconds else "later"
        return ThrottledError(
            type,
            f"The service of '{tool}' has too much to do and did not run it. Stop; call it {when}, or use another tool.",
            retryable=True,
            retry_after=seconds,
            rejected_by="service",
        )
    if refused == Refusal.EXPIRED:
        return CallTimeoutError(
            f"'{tool}' did not run: the time of the call was over when its service came to it. Report that, or give it "
            "more time.",
            clock="call",
            type=type,
        )
    if refused == Refusal.STOPPED:
        return _timed_out(TimedOut("call", sent=True, chunks=answer.chunks - 1), tool, limit, repeatable)
    if refused == Refusal.INVALID_REQUEST:
        return InvalidArgumentsError(
            type, f"The service of '{tool}' could not read the request and did not run it: {message}"
        )
    if refused in (Refusal.FORMER, Refusal.FORGOTTEN):
        why = "was restarted" if refused == Refusal.FORMER else "no longer has the answer"
        return TransportError(
            refused,
            f"The service instance of '{tool}' {why}. {_may_have_run(tool, repeatable)}",
            retryable=repeatable,
            origin=Origin.TOOL,
        )
    return RejectedError(
        type,
        f"The service of '{tool}' did not run it: {message or refused}. Use another tool, or come back later.",
        retryable=True,
        retry_after=seconds,
        rejected_by="service",
    )


def _timed_out(end: TimedOut, tool: str, limit: float, repeatable: bool) -> DispatchError:
    if not end.sent:
        return TransportError(
            "not-sent",
            f"The request to '{tool}' could not leave within {limit:g} s: the broker did not take it. It did not run. Stop "
            "and report that the tool's broker is out of reach.",
            sent=False,
        )
    came = f" after {end.chunks} chunk(s)" if end.chunks else ""
    if end.missing is not None:
        came += f"; chunk {end.missing} was lost on the way"
    what = {
        "stream-idle": f"'{tool}' sent nothing more for {limit:g} s{came}.",
        "stream": f"The stream of '{tool}' was not complete after {limit:g} s{came}.",
    }.get(end.clock, f"'{tool}' gave no complete answer within {limit:g} s{came}.")
    return CallTimeoutError(
        f"{what} {_may_have_run(tool, repeatable)}",
        clock=end.clock,
        retryable=repeatable,
    )


def _may_have_run(tool: str, repeatable: bool = False) -> str:
    if repeatable:
        return "Report the failure, or use another tool."
    return f"It may have run all the same: do not repeat the call unless you know that '{tool}' did nothing."
