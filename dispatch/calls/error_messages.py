"""What a guard's refusal means to a caller: a typed error, whose text says what to do next."""

from __future__ import annotations

import math

from dispatch._internal.permit import Rejection
from dispatch.errors import DispatchError, RejectedError, ThrottledError, TransportError

_CIRCUIT = {
    "open": "its service has failed too often lately, and is left alone for now",
    "paused": "its service asked to be left alone for now",
    "probing": "its service was in trouble, and a few other calls are finding out whether it is well again",
    "forced-open": "an operator has taken it out of use",
}
_LIMITED = {
    "queue-full": "as many calls wait for a place as may (bulkhead.queue)",
    "too-late": "the wait for a place would outlast the call's deadline",
    "too-long": "the wait for a place would be longer than bulkhead.max-wait",
    "overload": "calls come faster than places become free",
    "full": "a hedge does not wait for a place",
}
"""Why a call did not get one of the bulkhead's places."""
_OFTEN = {
    "too-large": "one call costs more than its rate ever lets through at once",
    "too-late": "it may be called only so often",
    "queue-full": "it may be called only so often, and no more calls can wait for that",
}

_OFTEN_BY_USER = {
    "too-large": _OFTEN["too-large"],
    "too-late": "this user may call it only so often",
    "queue-full": "this user may call it only so often, and no more calls can wait for that",
}


def refusal(rejection: Rejection, tool: str) -> DispatchError:
    """The error for a call of ``tool`` that one of its guards refused. The tool did not run.

    THROTTLED: too much at once, by the rate or the bulkhead; REJECTED: by the breaker or the balancer.
    """
    after = rejection.retry_after
    if rejection.reason in ("closed", "closing", "loop-ended"):
        return closed()
    if rejection.by == "breaker":
        why = _CIRCUIT.get(rejection.reason, rejection.reason)
        forced = rejection.reason == "forced-open"
        return RejectedError(
            "circuit-open",
            f"'{tool}' was not called: {why}. {_next(after, known=not forced)}",
            retryable=not forced,
            retry_after=after,
            rejected_by="breaker",
        )
    if rejection.by == "bulkhead":
        return ThrottledError(
            "too-busy",
            f"'{tool}' was not executed: this dispatcher's limit of calls in flight (bulkhead.max-concurrent-calls) is "
            f"reached, and {_LIMITED.get(rejection.reason, rejection.reason)}. {_next(after)}",
            retryable=True,
            retry_after=after,
            rejected_by=rejection.by,
        )
    if rejection.by in ("rate", "user-rate"):
        why = (_OFTEN_BY_USER if rejection.by == "user-rate" else _OFTEN).get(rejection.reason, rejection.reason)
        return ThrottledError(
            "rate-limited",
            f"'{tool}' was not called: {why}. {_next(after)}",
            retryable=rejection.reason != "too-large",
            retry_after=after,
            rejected_by=rejection.by,
        )
    return RejectedError(
        rejection.reason,
        f"'{tool}' was not called: no instance of its service is there. {_next(after)}",
        retryable=True,
        retry_after=after,
        rejected_by=rejection.by,
    )


def closed() -> TransportError:
    """The dispatcher takes no more calls."""
    return TransportError("closed", "The dispatcher is closed; nothing was sent.", sent=False)


def disconnected(tool: str, url: str) -> TransportError:
    """The connection to the broker is down."""
    return TransportError(
        "disconnected",
        f"'{tool}' was not executed: the broker at {url} is out of reach. Stop and report that.",
        sent=False,
    )


def with_alternatives(error: DispatchError, tools: tuple[str, ...]) -> DispatchError:
    """``error``, with tools that could do instead: in its attribute and in its text."""
    if tools and not error.alternatives:
        error.alternatives = tools
        error.message += f" Tools like it: {', '.join(tools)}."
        error.args = (error.message,)
    return error


def _next(after: float | None, *, known: bool = True) -> str:
    if not known:
        return "Stop, and use another tool."
    if after is None:
        return "Stop; use another tool, or come back later."
    seconds = math.ceil(after) if after >= 1 else math.ceil(after * 10) / 10
    return f"Stop; use another tool, or call it not before {seconds:g} s."
