"""Errors of calls that are refused because of permissions. The tool was not executed."""

from __future__ import annotations

from dispatch._internal.suggestions import excerpt
from dispatch.errors import ErrorType, RejectedError
from dispatch.permissions.permission_lookup import FAILURE_CACHE_S
from dispatch.permissions.permission_set import Decision

BY = "permissions"
"""The part that rejects the call, in errors and metrics."""


def error_from_unknown_permissions(user: str) -> RejectedError:
    """Return the error of a list of tools for ``user`` whose permissions could not be resolved, or are not cached."""
    return RejectedError(
        ErrorType.PERMISSIONS_UNAVAILABLE,
        f"No tool was executed: the permissions of {_describe_caller(user)} are not known. Use Dispatcher.tools(), which "
        f"asks for them, in {FAILURE_CACHE_S:g} s or later.",
        retryable=True,
        retry_after=FAILURE_CACHE_S,
        rejected_by=BY,
    )


def _describe_caller(user: str) -> str:
    return f"user '{excerpt(user)}'" if user else "a call without a user"


def error_from_decision(decision: Decision, tool: str, user: str) -> RejectedError:
    """Return the error of a call of ``tool`` that ``decision`` refuses to ``user``."""
    caller = _describe_caller(user)
    if decision.reason == "unavailable":
        return RejectedError(
            ErrorType.PERMISSIONS_UNAVAILABLE,
            f"Tool '{tool}' was not executed: the permissions of {caller} could not be resolved. Use another tool, or call "
            f"it again in {FAILURE_CACHE_S:g} s or later.",
            retryable=True,
            retry_after=FAILURE_CACHE_S,
            rejected_by=BY,
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
