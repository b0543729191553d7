"""Exit codes, and a clear message instead of a traceback for every expected error."""

from __future__ import annotations

import sys
import traceback
from enum import IntEnum

from dispatch.catalog import CatalogError
from dispatch.cli.output import colorize, make_printable, print_err
from dispatch.errors import DispatchError, ErrorType, Outcome
from dispatch.policy import PolicyError
from dispatch.transports.errors import describe_without_call


class Exit(IntEnum):
    """Exit codes; ``dispatch --help`` lists them."""

    OK = 0
    FAILED = 1
    """The tool replied with an error; a check failed; something did not start."""
    USAGE = 2
    """Invalid options or arguments, an unknown tool, a catalogue with mistakes. No tool was executed."""
    TIMEOUT = 3
    """A limit of the call passed."""
    TRANSPORT = 4
    """The broker cannot be reached, or the request or its reply was lost."""
    REJECTED = 5
    """Throttled or rejected: the tool was not executed."""
    INTERNAL = 70
    """A fault in dispatch itself (``EX_SOFTWARE`` of sysexits.h)."""
    INTERRUPTED = 130
    """Ctrl-C: 128 + SIGINT."""
    BROKEN_PIPE = 141
    """The reader of the output closed it (``| head``): 128 + SIGPIPE."""


EXIT_CODES_HELP = (
    "Exit codes: 0 success · 1 the tool replied with an error, or a check failed · 2 invalid usage or arguments, unknown "
    "tool, mistakes in the catalogue · 3 timeout · 4 transport: no broker, or the request or its reply was lost · "
    "5 throttled or rejected · 130 interrupted"
)

_BY_OUTCOME = {
    Outcome.SUCCESS: Exit.OK,
    Outcome.TOOL_ERROR: Exit.FAILED,
    Outcome.INVALID_ARGUMENTS: Exit.USAGE,
    Outcome.THROTTLED: Exit.REJECTED,
    Outcome.TIMEOUT: Exit.TIMEOUT,
    Outcome.TRANSPORT: Exit.TRANSPORT,
    Outcome.REJECTED: Exit.REJECTED,
    Outcome.CANCELLED: Exit.INTERRUPTED,
}


class CliError(Exception):
    """A mistake of the user, or of the machine's configuration, with its fix.

    Args:
        message: what is wrong.
        fix: what to do; ``""`` when the message says it.
        code: the exit code.
    """

    def __init__(self, message: str, fix: str = "", code: Exit = Exit.USAGE) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix
        self.code = code


def exit_code_of(error: DispatchError | None) -> Exit:
    """Return the exit code of a call that ended with ``error`` (None: success)."""
    if error is None:
        return Exit.OK
    if error.type in (ErrorType.UNKNOWN_TOOL, ErrorType.UNKNOWN_SERVICE, ErrorType.BAD_ADDRESS):
        return Exit.USAGE
    return _BY_OUTCOME[error.outcome]


def print_call_error(error: DispatchError, hint: str = "", message: str = "") -> None:
    """Write the error of a call to stderr: message, outcome, type. ``message``: default: of the error."""
    print_error(message or error.message)
    details = [f"outcome {error.outcome}", f"type {make_printable(error.type, limit=200)}"]
    if error.rejected_by is not None:
        details.append(f"rejected by {error.rejected_by}")
    if error.retry_after is not None:
        details.append(f"retry after {error.retry_after:g} s")
    print_err(f"  {' · '.join(details)}")
    if hint:
        print_err(f"  {colorize('hint:', 'cyan', sys.stderr)} {make_printable(hint)}")


def print_error(message: str, fix: str = "") -> None:
    """Write ``Error: message`` and its fix to stderr."""
    print_err(f"{colorize('Error:', 'red', sys.stderr)} {make_printable(message)}")
    if fix:
        print_err(f"  {colorize('fix:', 'cyan', sys.stderr)} {make_printable(fix)}")


def list_expected_errors() -> tuple[type[BaseException], ...]:
    """Return the exceptions that come from the user or the environment, not from a fault in dispatch."""
    from dispatch.devtools.localbroker import LocalBrokerError

    return (DispatchError, CatalogError, PolicyError, CliError, LocalBrokerError, OSError)


def report_error(error: Exception, verbose: bool) -> Exit:
    """Write what ``error`` means to stderr (with its traceback if ``verbose``), and return the exit code."""
    if verbose:
        traceback.print_exception(error)
    if isinstance(error, DispatchError):
        print_call_error(error, message=describe_without_call(error))
        return exit_code_of(error)
    if isinstance(error, CliError):
        print_error(error.message, error.fix)
        return error.code
    if isinstance(error, CatalogError | PolicyError):
        print_error(str(error))
        return Exit.USAGE
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        print_error(
            f"{error.strerror}: '{error.filename}'.", "correct the path, or the permissions of the file or folder"
        )
        return Exit.FAILED
    if isinstance(error, list_expected_errors()):
        print_error(str(error))
        return Exit.FAILED
    print_error(
        f"dispatch failed unexpectedly: {type(error).__name__}: {error}",
        "" if verbose else "run the command again with --verbose, and report the traceback",
    )
    return Exit.INTERNAL
