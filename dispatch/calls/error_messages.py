"""Map failures to errors: from a guard's rejection, the end of an exchange, a mistake of the caller, or the connection.

Every text has at most two sentences: what failed and why, whether the tool was executed, and what to do next. A text never
says "try again": a model that reads this repeats the call hundreds of times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from dispatch._internal import (
    Rejection,
    excerpt,
    first_sentence,
    join_alternatives,
    join_names,
    read_text,
    type_name,
    unwrap,
)
from dispatch.catalog import ToolDescriptor, UnknownServiceError, UnknownToolError
from dispatch.documents import Problem
from dispatch.errors import (
    CallTimeoutError,
    DispatchError,
    ErrorType,
    InvalidArgumentsError,
    Origin,
    RejectedError,
    ThrottledError,
    ToolError,
    TransportError,
)
from dispatch.messaging.request import (
    READER_IDLE,
    STREAM_BUFFER_LIMIT,
    TOOL_IDLE,
    Answer,
    Closed,
    Lost,
    Overflow,
    Refused,
    Restarted,
    Settled,
    TimedOut,
    Unreadable,
)
from dispatch.messaging.wire import PayloadTooLargeError, Refusal, decode_request
from dispatch.permissions import FAILURE_CACHE_S, Decision
from dispatch.policy import Policy, PolicyError
from dispatch.protocol.events import Failure
from dispatch.schemas import IS_REQUIRED, Mistake, join_mistakes, split_pointer

_CIRCUIT = {
    "open": "its circuit breaker is open because too many of its calls failed",
    "paused": "its service asked for a pause",
    "probing": "its circuit breaker is half-open and all its trial calls are in flight",
    "forced-open": "an operator has opened its circuit breaker",
}
_BULKHEAD = {
    "queue-full": "the queue for it is full",
    "too-late": "the wait in the queue and the tool's usual duration would exceed the call's deadline",
    "too-long": "the wait in the queue would exceed bulkhead.max-wait",
    "stalled": "none of them has ended for many times their usual duration",
    "overload": "calls arrive faster than they complete",
    "full": "a hedge does not wait",
    "occupied": "all these calls have ended for their callers but still run, because a thread cannot be stopped",
}
_RATE = {
    "too-late": "{limit} is reached",
    "queue-full": "{limit} is reached and the queue for it is full",
    "quota": "its quota of calls in this day or month is used up",
}
_RATE_LIMITS = {"rate-limit": "its rate limit", "user-rate-limit": "its rate limit for this user"}
_CLOSED = frozenset({"closed", "closing"})
"""Reasons of guards that reject because the dispatcher is closed."""


# -- a guard rejected the call --------------------------------------------------------------------------------------


def error_from_rejection(rejection: Rejection, tool: str) -> DispatchError:
    """Return the error of a call that a guard rejected: THROTTLED by a rate limit or the bulkhead, REJECTED by the circuit
    breaker or the balancer. The tool was not executed."""
    by, reason, after = rejection.by, rejection.reason, rejection.retry_after
    if reason in _CLOSED:
        return error_from_closing(tool)
    if by == "bulkhead":
        why = f"the limit of calls in flight (bulkhead.max-concurrent-calls) is reached, and {_BULKHEAD.get(reason, reason)}"
        return _refuse(ThrottledError, ErrorType.BULKHEAD_FULL, tool, why, after, by)
    if by in _RATE_LIMITS:
        why = _RATE.get(reason, reason).format(limit=_RATE_LIMITS[by])
        return _refuse(ThrottledError, ErrorType.RATE_LIMITED, tool, why, after, by)
    if reason == ErrorType.PENDING_LIMIT:
        why = "the dispatcher's table of pending requests is full"
        return _refuse(ThrottledError, ErrorType.PENDING_LIMIT, tool, why, after, by)
    if by == "breaker":
        why = _CIRCUIT.get(reason, reason)
        return _refuse(RejectedError, ErrorType.CIRCUIT_OPEN, tool, why, after, by, can_recover=reason != "forced-open")
    return _refuse(
        RejectedError, ErrorType.NO_INSTANCE, tool, "no instance of its service is available", after, "balancer"
    )


def _refuse(
    kind: type[RejectedError | ThrottledError],
    type: ErrorType,
    tool: str,
    why: str,
    after: float | None,
    by: str,
    *,
    can_recover: bool = True,
) -> DispatchError:
    """Return the error of a call that ``by`` refuses for now, or for good unless it ``can_recover``."""
    text = f"Tool '{tool}' was not executed: {why}. {_advise(after, can_recover=can_recover)}"
    return kind(type, text, retryable=can_recover, retry_after=after, rejected_by=by)


def error_from_missing_instance(tool: str, request_queue: str) -> RejectedError:
    """Return the error of a call that has waited in vain for an instance of dispatch's own: the service had some before, or
    the policy ``known-instances-only`` keeps the request from third-party services. The tool was not executed."""
    return _no_instance(
        f"Tool '{tool}' was not executed: no instance of its service can be reached on {request_queue}; is the service "
        "running? Use another tool, or report that the service must be started.",
        1.0,
    )


def error_from_unserved_topic(tool: str, request_queue: str) -> RejectedError:
    """Return the error of a call whose request topic has no consumer, on a broker that knows. The tool was not executed."""
    return _no_instance(
        f"Tool '{tool}' was not executed: no service consumes {request_queue} on this embedded broker; is it running? Start "
        "it in this process before the call, or use another tool.",
        1.0,
    )


def error_from_unanswered_request(
    tool: str, limit: float, limit_name: str, request_queue: str, *, announces: bool, repeatable: bool
) -> CallTimeoutError:
    """Return the error of a call whose limit passed although no instance, and no reply, was ever seen on the topic that its
    request was sent to. ``announces``: instances of dispatch's own announce themselves there."""
    unseen = "no instance has announced itself on" if announces else "so far nothing has replied on"
    return CallTimeoutError(
        f"No reply arrived within {limit:g} s, and {unseen} {request_queue} (is the service running?); "
        f"{_doubt(tool, repeatable)}",
        limit_name=limit_name,
        retryable=repeatable,
    )


def _invalid(type: ErrorType, tool: str, what: str) -> InvalidArgumentsError:
    """Return the error of a call that its caller has to correct: ``what`` is wrong, and how to correct it."""
    return InvalidArgumentsError(type, f"Tool '{tool}' was not executed: {what}")


def _no_instance(message: str, after: float | None) -> RejectedError:
    return RejectedError(ErrorType.NO_INSTANCE, message, retryable=True, retry_after=after, rejected_by="balancer")


# -- the exchange is over -------------------------------------------------------------------------------------------


def error_from_exchange(
    settled: Settled, *, tool: str, limit: float, repeatable: bool, limit_name: str = "call"
) -> DispatchError | None:
    """Return the error that the end of an exchange means to the caller, None for success.

    Args:
        limit: seconds of the limit that applied.
        limit_name: of the limit that the service was given.
        repeatable: the tool is declared read-only or idempotent, so that a repeat does no harm.
    """
    if isinstance(settled, Answer):
        if settled.error_type is None:
            return None
        return _error_from_reply(settled, tool, limit, limit_name, repeatable)
    if isinstance(settled, TimedOut):
        if settled.may_have_run:
            return error_from_timeout(
                tool, limit, settled.limit_name, repeatable=repeatable, chunks=settled.chunks, missing=settled.missing
            )
        return TransportError(
            ErrorType.SEND_TIMEOUT,
            f"Tool '{tool}' was not executed: the broker did not accept the request within {limit:g} s. Use another tool, "
            "or report that the tool's broker is overloaded or unreachable.",
            may_have_run=False,
        )
    if isinstance(settled, Lost):
        is_restarted = settled.reason is Failure.RESTARTED
        kind = ErrorType.INSTANCE_RESTARTED if is_restarted else ErrorType.INSTANCE_LOST
        what = _LOSSES.get(settled.reason, "has ended the session")
        if settled.may_have_run:
            text = f"The instance that was sent the request {what}; {_doubt(tool, repeatable)}"
            return TransportError(kind, text, retryable=repeatable, origin=Origin.TOOL)
        text = f"Tool '{tool}' was not executed: its instance {what}. {_advise(None)}"
        return TransportError(kind, text, may_have_run=False)
    if isinstance(settled, Unreadable):
        text = f"The service sent no valid reply ({first_sentence(settled.problem)}); {_doubt(tool)}"
        return TransportError(ErrorType.MALFORMED_REPLY, text, origin=Origin.TOOL)
    if isinstance(settled, Overflow) and settled.limit == STREAM_BUFFER_LIMIT:
        return TransportError(
            ErrorType.RESPONSE_LIMIT_EXCEEDED,
            f"The reader of the stream of '{tool}' fell too far behind (stream buffer) and later chunks were dropped: "
            "its service cannot be slowed down. The tool may have been executed: check its effect before you call it again, "
            "and read the chunks promptly.",
            origin=Origin.LOCAL,
        )
    if isinstance(settled, Overflow):
        return TransportError(
            ErrorType.RESPONSE_LIMIT_EXCEEDED,
            f"The reply exceeded the policy's '{settled.limit}' and was cut off; tool '{tool}' may have been executed. "
            f"Check its effect before you call it again, and then ask for less or raise '{settled.limit}' in its policy.",
            origin=Origin.TOOL,
        )
    if isinstance(settled, Restarted):
        return TransportError(
            ErrorType.INSTANCE_LOST,
            f"The instance that replied is gone after {settled.chunks} chunk(s) of a stream; tool '{tool}' may have "
            "been executed more than once. Discard these chunks, and use another tool or report the failure.",
            retryable=True,
            origin=Origin.TOOL,
        )
    if isinstance(settled, Closed):
        if not settled.may_have_run:
            return error_from_closing(tool)
        text = f"The dispatcher was closed during the call; {_doubt(tool, repeatable)}"
        return TransportError(ErrorType.CLOSED, text)
    if isinstance(settled, Rejection):
        return error_from_rejection(settled, tool)
    return settled.error if isinstance(settled, Refused) else settled


def name_missing_argument(error: ToolError, tool: ToolDescriptor, payload: bytes) -> ToolError:
    """Return the error of a tool, or one that says more: a tool that reads an argument which the request does not have often
    fails with nothing but the argument's name, a KeyError. Arguments that are declared optional are not named.

    Args:
        payload: of the request.
    """
    for argument in tool.described_arguments:
        name = argument.name
        is_named = argument.required is not False and error.message in (repr(name), f"KeyError: {name!r}")
        if is_named and name not in decode_request(payload).arguments:
            return ToolError(
                error.type,
                f"The argument '{name}' is missing. The tool may have been executed in part: check its effect, and call it "
                "with that argument.",
            )
    return error


_NOT_EXECUTED = " was not executed: "


def _error_from_reply(answer: Answer, tool: str, limit: float, limit_name: str, repeatable: bool) -> DispatchError:
    refused = answer.refused
    if refused is None:
        return ToolError(
            answer.error_type or ErrorType.TOOL_ERROR,
            answer.error_message
            or f"Tool '{tool}' was executed and failed without a message. Report the failure, or use another tool.",
        )
    seconds = answer.retry_after
    if refused == Refusal.OVERLOADED:
        return _refuse(ThrottledError, ErrorType.OVERLOADED, tool, "its service is overloaded", seconds, "service")
    if refused == Refusal.EXPIRED:
        return CallTimeoutError(
            f"Tool '{tool}' was not executed: the call's deadline passed before its service could start it. Call it with a "
            "longer timeout, or use another tool.",
            limit_name="call",
            type=ErrorType.EXPIRED,
        )
    if refused == Refusal.STOPPED:
        return error_from_timeout(tool, limit, limit_name, repeatable=repeatable, chunks=answer.chunks - 1)
    why = first_sentence(answer.error_message)
    _, is_whole, problem = why.partition(_NOT_EXECUTED)
    if refused == Refusal.INVALID_ARGUMENTS:
        what = f"{problem if is_whole else why}. Correct the arguments."
        return _invalid(ErrorType.INVALID_ARGUMENTS, tool, what)
    if refused == Refusal.UNKNOWN_TOOL:
        return RejectedError(
            ErrorType.UNKNOWN_TOOL,
            f"Tool '{tool}'{_NOT_EXECUTED}{problem if is_whole else why}. Use another tool.",
            rejected_by="service",
        )
    if refused == Refusal.INVALID_REQUEST:
        what = f"its service could not read the request ({problem if is_whole else why}). Correct the arguments."
        return _invalid(ErrorType.INVALID_REQUEST, tool, what)
    if refused == Refusal.TOO_LARGE:
        what = "its service accepts no request of this size. Send less at a time."
        return _invalid(ErrorType.REQUEST_TOO_LARGE, tool, what)
    if refused == Refusal.REPLY_EVICTED:
        text = f"The service no longer keeps the reply; {_doubt(tool, repeatable)}"
        return TransportError(ErrorType.REPLY_EVICTED, text, retryable=repeatable, origin=Origin.TOOL)
    if refused == Refusal.DRAINING:
        return _refuse(RejectedError, ErrorType.DRAINING, tool, "its service is shutting down", seconds, "service")
    why = f"its service refused the request ({why or refused})"
    return _refuse(RejectedError, ErrorType.SERVICE_REFUSED, tool, why, seconds, "service")


_LOSSES = {
    Failure.SILENT: "has sent nothing for some time",
    Failure.RESTARTED: "has restarted",
    Failure.CLOSED: "has stopped",
    Failure.VIOLATION: "does not follow the session protocol",
    Failure.BROKER_REFUSED: "can be sent nothing more, because the broker refuses it",
}


def error_from_timeout(
    tool: str, limit: float, limit_name: str, *, repeatable: bool, chunks: int = 0, missing: int | None = None
) -> CallTimeoutError:
    """Return the error of a call whose limit passed after the request was sent.

    Args:
        limit: seconds of the limit ``limit_name``; see :class:`CallTimeoutError`.
        repeatable: the tool is declared read-only or idempotent.
        chunks: of the reply that arrived.
        missing: index of a chunk that was lost, None if none was.
    """
    came = f" after {chunks} chunk(s)" if chunks else ""
    if missing is not None:
        came += f" (chunk {missing} was lost)"
    what = {
        TOOL_IDLE: f"The stream brought nothing for {limit:g} s{came}",
        READER_IDLE: f"The reader of the stream read nothing for {limit:g} s{came} while further ones waited",
        "stream": f"The stream was not complete within {limit:g} s{came}",
    }.get(limit_name, f"No complete reply arrived within {limit:g} s{came}")
    return CallTimeoutError(f"{what}; {_doubt(tool, repeatable)}", limit_name=limit_name, retryable=repeatable)


def error_from_key_holder_loss(tool: str) -> TransportError:
    """Return the error of a retry under an idempotency key whose instance is gone: another one could execute it twice."""
    return TransportError(
        ErrorType.INSTANCE_LOST, f"The instance that had the request and its idempotency key is gone; {_doubt(tool)}"
    )


def error_from_client_failure(tool: str, failure: Exception) -> TransportError:
    """Return the error of a wrapped client that raised an unexpected exception."""
    raised = unwrap(failure)
    return TransportError(
        ErrorType.CLIENT_FAILED,
        f"The wrapped client failed ({type_name(raised)}: {first_sentence(read_text(raised))}); {_doubt(tool)}",
        origin=Origin.TOOL,
    )


# -- the caller made a mistake --------------------------------------------------------------------------------------


def error_from_mistake(tool: str, policy: Policy, mistake: Exception) -> InvalidArgumentsError:
    """Return the error of a call that is not valid: ``mistake`` was raised before anything was sent."""
    if isinstance(mistake, PayloadTooLargeError):
        fix = ""
        if mistake.limit == policy.max_request_bytes:
            fix = ", or raise 'max-request-bytes' in the tool's policy"
        what = f"its request would have {mistake}. Send less, for instance a reference to the data{fix}."
        return _invalid(ErrorType.REQUEST_TOO_LARGE, tool, what)
    if isinstance(mistake, PolicyError):
        is_priority = mistake.key == "priority"
        what = mistake.problem if is_priority else f"the {mistake.key} is not valid ({mistake.problem})"
        kind = ErrorType.UNKNOWN_PRIORITY if is_priority else ErrorType.INVALID_TIMEOUT
        return _invalid(kind, tool, f"{what}. {mistake.fix[:1].upper()}{mistake.fix[1:]}.")
    what = f"{first_sentence(str(mistake))}. Correct the arguments."
    return _invalid(ErrorType.INVALID_ARGUMENTS, tool, what)


def error_from_argument_mistakes(tool: str, mistakes: Sequence[Mistake]) -> InvalidArgumentsError:
    """Return the error of a call whose arguments do not match the tool's schema. The tool was not executed."""
    what = f"its arguments have {len(mistakes)} mistakes"
    if len(mistakes) == 1:
        keys = split_pointer(mistakes[0].path)
        is_missing = mistakes[0].message == IS_REQUIRED and len(keys) == 1
        what = f"the argument '{excerpt(keys[0])}' is missing" if is_missing else "its arguments have a mistake"
    what = f"{what} ({join_mistakes(mistakes)}). Correct the arguments."
    return _invalid(ErrorType.INVALID_ARGUMENTS, tool, what)


def error_from_oversized_request(tool: str, size: int, limit: int) -> InvalidArgumentsError:
    """Return the error of a request of ``size`` bytes, above the broker's ``limit``, without an instance that a session is
    open with. The tool was not executed."""
    what = (
        f"its request would have {size:,} bytes, the limit is {limit:,}, and no instance is known that accepts more. Send "
        "less, for instance a reference to the data."
    )
    return _invalid(ErrorType.REQUEST_TOO_LARGE, tool, what)


def error_from_closing(tool: str) -> TransportError:
    """Return the error of a call of ``tool`` on a dispatcher that is closed or closing."""
    text = f"Tool '{tool}' was not executed: the dispatcher is closed. Connect a new dispatcher."
    return TransportError(ErrorType.CLOSED, text, may_have_run=False)


def error_from_disconnection(tool: str, url: str, *, is_back: bool = False) -> TransportError:
    """Return the error of a call of ``tool`` while the connection to the broker is down; or when it ``is_back``, and no
    instance of the tool's service has been heard since."""
    if is_back:
        what = f"the connection to the broker at {url} was lost, and no instance has been heard since. Call it again."
    else:
        what = f"the broker at {url} is unreachable. Report the failure; `dispatch doctor` finds its cause."
    return TransportError(ErrorType.DISCONNECTED, f"Tool '{tool}' was not executed: {what}", may_have_run=False)


def add_alternatives(error: DispatchError, tools: tuple[str, ...]) -> DispatchError:
    """Add the names of tools that can be used instead, to the attribute and to the text of ``error``."""
    if tools and not error.alternatives:
        error.alternatives = tools
        names = ", ".join(tools)
        head, found, tail = error.message.partition("another tool")
        error.message = (
            f"{head}{found} ({names}){tail}" if found else f"{error.message.removesuffix('.')} (or use: {names})."
        )
        error.args = (error.message,)
    return error


def _advise(after: float | None, *, can_recover: bool = True) -> str:
    if not can_recover:
        return "Use another tool, or report the failure."
    if after is None:
        return "Use another tool, or call it again later."
    seconds = math.ceil(after) if after >= 1 else math.ceil(after * 10) / 10
    return f"Use another tool, or call it again in {seconds:g} s or later."


def _doubt(tool: str, repeatable: bool = False) -> str:
    if repeatable:
        return (
            f"tool '{tool}' may have been executed, and a repeat does no harm. Use another tool, or report the failure."
        )
    return f"tool '{tool}' may have been executed. Check its effect before you call it again, or report the failure."


# Errors of calls that are refused because of permissions. The tool was not executed.


BY = "permissions"
"""The part that rejects the call, in errors and metrics."""


def error_from_unknown_permissions(user: str, *, is_cache_miss: bool = False) -> RejectedError:
    """Return the error of a list of tools for ``user`` whose permissions could not be resolved.

    Args:
        is_cache_miss: they were not asked for.
    """
    advice = "Use Dispatcher.tools(), which asks for them," if is_cache_miss else "Report the failure, or ask again"
    return _without_permissions(
        f"No tool was executed: the permissions of {_describe_caller(user)} are not known. {advice}"
    )


def _without_permissions(text: str) -> RejectedError:
    """Return an error that may be gone when the permissions are asked for again."""
    text = f"{text} in {FAILURE_CACHE_S:g} s or later."
    kind = ErrorType.PERMISSIONS_UNAVAILABLE
    return RejectedError(kind, text, retryable=True, retry_after=FAILURE_CACHE_S, rejected_by=BY)


def _describe_caller(user: str) -> str:
    return f"user '{excerpt(user)}'" if user else "a call without a user"


def error_from_decision(decision: Decision, tool: str, user: str) -> RejectedError:
    """Return the error of a call of ``tool`` that ``decision`` refuses to ``user``."""
    caller = _describe_caller(user)
    if decision.reason == "unavailable":
        return _without_permissions(
            f"Tool '{tool}' was not executed: the permissions of {caller} could not be resolved. Use another tool, or call "
            "it again"
        )
    permission = excerpt(decision.permission)
    if decision.reason == "no-grants":
        why = f"it requires the permission '{permission}', and the dispatcher has no grants"
        fix = "it must be connected with grants"
    elif decision.reason == "denied":
        why, fix = f"{caller} is denied the permission '{permission}'", "the denial must be removed from the grants"
    else:
        why, fix = f"{caller} does not have the permission '{permission}'", "the permission must be granted"
    return RejectedError(
        ErrorType.NOT_PERMITTED,
        f"Tool '{tool}' was not executed: {why}. Use another tool, or report that {fix}.",
        rejected_by=BY,
    )


# Errors of names and versions that the catalogue does not have. The texts follow :mod:`dispatch.calls.error_messages`.


def error_from_unknown_name(unknown: UnknownToolError | UnknownServiceError) -> RejectedError:
    """Return the error of a call of a tool, or a service, that is not in the catalogue."""
    is_tool = isinstance(unknown, UnknownToolError)
    what = "tool" if is_tool else "tool service"
    if not unknown.known:
        advice = f"Report that no {what}s are loaded."
    elif unknown.near:
        near = join_alternatives(unknown.near)
        advice = f"Call {near} if you meant that, or another one of these: {join_names(unknown.known)}."
    else:
        advice = f"Call one of these: {join_names(unknown.known)}."
    return RejectedError(
        ErrorType.UNKNOWN_TOOL if is_tool else ErrorType.UNKNOWN_SERVICE,
        f"No tool was executed: there is no {what} '{excerpt(unknown.name)}'. {advice}",
        rejected_by="catalog",
        alternatives=unknown.near,
    )


def error_from_refused_tool(error: RejectedError, name: str, problem: Problem) -> RejectedError:
    """Return ``error``, of a call of the unknown tool ``name``, where a source has the tool, with a mistake: one that names
    the mistake and its fix. The file is left out, since a model reads the message."""
    what = f"{problem.key}: {problem.problem}" if problem.key else problem.problem
    return RejectedError(
        error.type,
        f"No tool was executed: the tool '{excerpt(name)}' was refused when it was loaded ({excerpt(what, 250)}). "
        f"Use another tool; to have this one, {excerpt(problem.fix, 250)}.",
        rejected_by=error.rejected_by,
        alternatives=error.alternatives,
    )


MAX_SHOWN_SOURCES: Final = 2
"""Failed sources that an error names with their problems."""


def error_from_failed_sources(
    error: RejectedError, name: str, failed: Sequence[tuple[str, str]], retry_after: float | None
) -> RejectedError:
    """Return ``error``, of a call of the unknown tool or service ``name``, where a source that may have it is not available.
    A name without near ones may be right: the call may be repeated.

    Args:
        failed: ids and problems of the sources, of a folder without its path; none: they are not for the caller.
        retry_after: seconds until one of them is read again; None: none is.
    """
    shown = "; ".join(
        f"'{excerpt(id)}' ({excerpt(problem.rstrip('.'), 250)})" for id, problem in failed[:MAX_SHOWN_SOURCES]
    )
    more = f", and {len(failed) - MAX_SHOWN_SOURCES} more" * (len(failed) > MAX_SHOWN_SOURCES)
    what = f"source that may have it is not available: {shown or 'the log says which one, and why'}{more}"
    if error.alternatives or retry_after is None:
        text = f"{error.message} A {what}."
        return RejectedError(error.type, text, rejected_by=error.rejected_by, alternatives=error.alternatives)
    kind = "tool" if error.type == ErrorType.UNKNOWN_TOOL else "tool service"
    return _no_instance(
        f"No tool was executed: there is no {kind} '{excerpt(name)}' yet, and a {what}. {_advise(retry_after)}",
        retry_after,
    )


def error_from_version_mismatch(tool: str, range: str, available: Sequence[str]) -> RejectedError:
    """Return the error of a call whose ``version`` no version of the tool satisfies.

    Args:
        available: versions of the tool, highest first.
    """
    if not available:
        what, advice = "no version is declared for it", "Call it without a version"
    else:
        what, advice = f"there are {join_names(available)}", "Call one of these, or call it without a version"
    return RejectedError(
        ErrorType.VERSION_MISMATCH,
        f"Tool '{tool}' was not executed: none of its versions satisfies '{excerpt(range)}', {what}. {advice}.",
        rejected_by="catalog",
    )


def error_from_hidden_versions(tool: str) -> RejectedError:
    """Return the error of a version mismatch for a user without permission to call the tool: it names no versions."""
    return RejectedError(
        ErrorType.VERSION_MISMATCH,
        f"Tool '{tool}' was not executed: no version that the user may call satisfies the call. Use another tool.",
        rejected_by="catalog",
    )


def error_from_requirement(
    tool: str, service: str, range: str, available: Sequence[str], *, by: str = "catalog"
) -> RejectedError:
    """Return the error of a call of a tool whose ``requires`` no version of its service satisfies.

    Args:
        available: versions of the service and of its instances, highest first.
        by: the part that rejects the call.
    """
    known = f"there are {join_names(available)}" if available else "no version is declared"
    return RejectedError(
        ErrorType.VERSION_MISMATCH,
        f"Tool '{tool}' was not executed: it requires version '{excerpt(range)}' of '{excerpt(service)}', and {known}. Use "
        "another tool, or report that a service of that version must be started.",
        retryable=by != "catalog",
        rejected_by=by,
    )


def error_from_invalid_range(tool: str, reason: str) -> InvalidArgumentsError:
    """Return the error of a call whose ``version`` is no range, for that ``reason``."""
    return _invalid(ErrorType.INVALID_ARGUMENTS, excerpt(tool), f"{reason}. Correct 'version', or leave it out.")
