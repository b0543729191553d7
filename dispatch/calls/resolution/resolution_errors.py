"""Errors of names and versions that the catalogue does not have. The texts follow :mod:`dispatch.calls.error_messages`."""

from __future__ import annotations

from collections.abc import Sequence

from dispatch._internal.suggestions import excerpt, join_alternatives, join_names
from dispatch.catalog import UnknownServiceError, UnknownToolError
from dispatch.errors import ErrorType, InvalidArgumentsError, RejectedError


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
    return InvalidArgumentsError(
        ErrorType.INVALID_ARGUMENTS,
        f"Tool '{excerpt(tool)}' was not executed: {reason}. Correct 'version', or leave it out.",
    )
