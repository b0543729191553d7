"""What all commands share: output, exit codes and errors, options, the event loop with Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import inspect
import json
import logging
import math
import os
import re
import signal
import sys
import traceback
import typing
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import IntEnum
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TextIO, TypeVar

import msgspec
import typer
from typer.models import OptionInfo

from dispatch._internal import cancel_and_wait, join_alternatives
from dispatch.admin import Admin, check_admin
from dispatch.announcements import DEFAULT_TOPIC
from dispatch.announcements.trust import Trust, TrustFileError
from dispatch.catalog import CatalogError, Problem, UnknownToolError, VersionMismatchError
from dispatch.catalog.approvals import ApprovalsError
from dispatch.catalog.descriptors import ItemError
from dispatch.documents import DocumentError, find_write_fix, list_mistakes, parse_typed, read_regular_file
from dispatch.errors import DispatchError, ErrorType, Outcome
from dispatch.messaging.wire import TopicError
from dispatch.permissions import Grants, GrantsError
from dispatch.policy import DEFAULT_POLICY, Policy, PolicyError, load_policy_keys
from dispatch.telemetry.events import AUDIT
from dispatch.transports import DEFAULT_BROKER, Security, default_broker, normalize_address
from dispatch.transports.base import read_token_file
from dispatch.transports.errors import describe_without_call
from dispatch.trustgraph.config import DEFAULT_WORKSPACE, ConfigServiceError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


# Output: results to stdout, everything else to stderr, colours on terminals only.


_ANSI = {"red": 31, "green": 32, "yellow": 33, "cyan": 36, "bold": 1, "dim": 2}


def is_terminal(stream: TextIO) -> bool:
    """Return whether ``stream`` is a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def colorize(text: str, style: str, stream: TextIO) -> str:
    """Colour ``text`` if ``stream`` is a terminal and NO_COLOR is not set."""
    if not is_terminal(stream) or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{_ANSI[style]}m{text}\x1b[0m"


def format_count(number: int, noun: str) -> str:
    """Format a number with its noun: ``1 request``, ``2 requests``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def print_err(line: str) -> None:
    """Print a line to stderr and flush."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - output of the command line


_stdout: TextIO | None = None
"""Stdout while that of user code is diverted; None: ``sys.stdout``."""


@contextlib.contextmanager
def divert_prints() -> Iterator[None]:
    """Let what user code prints go to stderr, so that stdout has the output of the command alone."""
    global _stdout
    former, _stdout = _stdout, _stdout or sys.stdout
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        _stdout = former


def print_out(text: str, end: str = "\n") -> None:
    """Print text to stdout and flush, so that a pipe receives it immediately."""
    stream = _stdout or sys.stdout
    stream.write(text + end)
    stream.flush()


_json_printed = False
"""Whether this run has printed JSON: an error is then on stderr, so that stdout has one document, or lines of one kind."""


_owns_process = False
"""Whether the process is for this run alone."""


def begin_output(owns_process: bool) -> None:
    """Begin the output of a run of the command line."""
    global _json_printed, _owns_process
    _json_printed, _owns_process = False, owns_process


def report_interrupt() -> Exit:
    """Write that Ctrl-C ended the command. What it left half made, a connection for instance, is not to write a traceback
    when it is finalised."""
    if _owns_process:
        sys.unraisablehook = lambda _: None
    print_err("Interrupted.")
    return Exit.INTERRUPTED


def print_json(value: Any) -> None:
    """Print one line of JSON to stdout."""
    global _json_printed
    _json_printed = True
    is_utf = (_stdout or sys.stdout).encoding.lower().startswith("utf")
    print_out(json.dumps(value, ensure_ascii=not is_utf))  # what an encoding lacks is escaped as JSON has it


def print_result(value: Any, text: str, *, json: bool) -> None:
    """Print the result of a command: as JSON for programs, or as text for people."""
    if json:
        print_json(value)
    else:
        print_out(text)


def print_warning(line: str) -> None:
    """Print a warning to stderr."""
    print_err(f"{colorize('Warning:', 'yellow', sys.stderr)} {make_printable(line)}")


def make_printable(text: str, limit: int = 0) -> str:
    """Escape control characters except line ends and tabs; truncate to ``limit`` characters (0: no limit)."""
    if limit and len(text) > limit:
        text = text[: limit - 1] + "…"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def format_result(text: str) -> str:
    """Format a tool's result for stdout: unchanged for a pipe or file, without control characters for a terminal."""
    return make_printable(text) if is_terminal(sys.stdout) else text


def console(stream: TextIO | None = None) -> Console:
    """Create a rich console on ``stream`` (default stdout), with colours on terminals only; honours NO_COLOR."""
    from rich.console import Console

    target = sys.stdout if stream is None else stream
    terminal = is_terminal(target)
    return Console(
        file=target,
        force_terminal=terminal,
        highlight=False,
        emoji=False,
        no_color=None if terminal else True,
        # Lines for a pipe are neither cut nor wrapped.
        width=None if terminal else 10_000,
    )


def open_closed_streams() -> None:
    """Read nothing from, and discard what is written to, a standard stream that was closed before the process began."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - as long as the process


def escape_unencodable_output() -> None:
    """Make stdout and stderr escape characters that their encoding lacks, instead of raising."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def align_columns(rows: Sequence[tuple[str, ...]]) -> str:
    """Format rows as lines with aligned columns, two blanks between."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    )


MIN_CUT = 12
"""Characters of a cut column that a terminal shows, however wide the other columns are."""
_GAP = 2


class Rows(NamedTuple):
    """Rows of a list: a table on a terminal, elsewhere aligned lines.

    Attributes:
        columns: the texts of each column by its heading; elsewhere a line end in a heading is a blank.
        style: of the first column on a terminal.
        hidden: headings of columns that a terminal does not show.
        is_cut: a terminal cuts the last column, so that each row is one line.
        has_numbers: a terminal aligns all columns to the right.
        colours: the colour of each cell on a terminal, by the heading of its column.
    """

    columns: Mapping[str, Sequence[str]]
    style: str = ""
    hidden: Sequence[str] = ()
    is_cut: bool = False
    has_numbers: bool = False
    colours: Mapping[str, Sequence[str]] = MappingProxyType({})

    def print(self) -> None:
        """Print the rows to stdout."""
        if is_terminal(sys.stdout):
            console().print(self.as_table())
        else:
            headings = tuple(heading.upper().replace("\n", " ") for heading in self.columns)
            print_out(align_columns([headings, *zip(*self.columns.values(), strict=True)]))

    def as_table(self) -> Table:
        """Return the table for a terminal."""
        from rich.table import Table
        from rich.text import Text

        columns = {heading: texts for heading, texts in self.columns.items() if heading not in self.hidden}
        first, *_, last = columns
        limit = 0
        if self.is_cut:
            widths = (max(map(len, (heading, *texts))) for heading, texts in columns.items() if heading != last)
            limit = max(MIN_CUT, console().width - sum(_GAP + width for width in widths))
        table = Table(box=None, pad_edge=False, header_style="bold")
        for heading in columns:
            table.add_column(
                heading,
                style=self.style if heading == first else "",
                overflow="fold",
                justify="right" if self.has_numbers else "left",
                vertical="bottom" if self.has_numbers else "top",
            )
        plain = [""] * len(columns[first])
        colours = [self.colours.get(heading, plain) for heading in columns]
        for row, row_colours in zip(zip(*columns.values(), strict=True), zip(*colours, strict=True), strict=True):
            *cells, end = row
            table.add_row(*map(Text, (*cells, make_printable(end, limit)), row_colours))
        return table


def read_variable(name: str) -> str:
    """Return the value of an environment variable, without the blanks and line ends around it that those from files have;
    empty: it is not set."""
    return os.environ.get(name, "").strip()


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


def suggest(near: Sequence[str], otherwise: str) -> str:
    """Return the fix of an unknown name: ask for those that are near, or ``otherwise``."""
    return f"did you mean {join_alternatives(near)}?" if near else otherwise


def require_seconds(option: str, value: float, example: str) -> None:
    """Check that the value of an option is a number of seconds.

    Raises:
        CliError: it is infinite or no number.
    """
    if not math.isfinite(value):
        raise CliError(f"{option} {value} is not a number of seconds.", f"use for instance {example}")


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


_MISTAKES = (CatalogError, PolicyError, GrantsError, TrustFileError, UnknownToolError, VersionMismatchError)


def list_expected_errors() -> tuple[type[BaseException], ...]:
    """Return the exceptions that come from the user or the environment, not from a fault in dispatch."""
    from dispatch.devtools.localbroker import LocalBrokerError

    others = (DispatchError, CliError, TopicError, ItemError, ConfigServiceError, ApprovalsError)
    return (*_MISTAKES, *others, LocalBrokerError, OSError)


def report_error(error: Exception, verbose: bool, as_json: bool = False) -> Exit:
    """Write what ``error`` means, with its fix, to stderr (with its traceback if ``verbose``), and return the exit code.
    ``as_json``: as one line of JSON to stdout, unless it has JSON already."""
    if verbose:
        traceback.print_exception(error)
    message, fix, code = _describe_error(error, verbose)
    if as_json and not _json_printed:
        details = error.as_dict() if isinstance(error, DispatchError) else {}
        print_json({"error": {**details, "message": message, "fix": fix}})
    elif isinstance(error, DispatchError):
        print_call_error(error, message=message)
    else:
        print_error(message, fix)
    return code


def _describe_error(error: Exception, verbose: bool) -> tuple[str, str, Exit]:
    """Return what an error means, the fix (empty: the text has it) and the exit code."""
    if isinstance(error, DispatchError):
        return describe_without_call(error), "", exit_code_of(error)
    if isinstance(error, CliError):
        return error.message, error.fix, error.code
    if isinstance(error, ConfigServiceError):
        fix = (
            "check with 'dispatch doctor' that the broker is in reach, and that TrustGraph's config service runs there"
        )
        return str(error), fix, Exit.TRANSPORT
    if isinstance(error, TopicError | ItemError):
        return f"{error.problem.removesuffix('.')}.", error.fix, Exit.USAGE
    if isinstance(error, _MISTAKES):
        return str(error), "", Exit.USAGE
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        if isinstance(error, FileExistsError) and not Path(os.fsdecode(error.filename)).is_dir():
            return f"'{error.filename}' is a file, not a folder.", "name a folder", Exit.FAILED
        fix = find_write_fix(error, "correct the path, or the permissions of the file or folder")
        return f"{error.strerror}: '{error.filename}'.", fix, Exit.FAILED
    if isinstance(error, list_expected_errors()):
        return str(error), "", Exit.FAILED
    if (usage := getattr(error, "format_message", None)) is not None:  # typer's
        return usage(), "", Exit.USAGE
    fix = "" if verbose else "run the command again with --verbose, and report the traceback"
    return f"dispatch failed unexpectedly: {type(error).__name__}: {error}", fix, Exit.INTERNAL


# Log output on stderr: warnings, and with ``--verbose`` everything.


class StderrHandler(logging.Handler):
    """Writes to the current ``sys.stderr``, which a live display may have replaced."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print_err(make_printable(self.format(record)))
        except Exception:
            self.handleError(record)


def show_logs(verbose: bool, level: int = logging.WARNING, *, has_times: bool = False) -> None:
    """Show log records of dispatch from ``level`` on, with time stamps if ``has_times``; with ``verbose`` all records, with
    logger names."""
    logger = logging.getLogger("dispatch")
    for handler in list(logger.handlers):
        if isinstance(handler, StderrHandler):
            logger.removeHandler(handler)
    handler = StderrHandler()
    pattern = "%(asctime)s %(levelname)s %(name)s: %(message)s" if verbose else "%(levelname)s: %(message)s"
    if has_times and not verbose:
        pattern = f"%(asctime)s {pattern}"
    handler.setFormatter(logging.Formatter(pattern))
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if verbose else level)


# Options shared by several commands: broker, catalogue, policy, token and certificates.
#
# They may precede the command (``dispatch --broker URL call …``) or follow it. Precedence: after the command, before it,
# environment, default.


DEFAULT_CATALOG = "tools"

ADMIN = ("admin", "admin_tokens", "peer")
"""The options of the admin endpoint of a long-running command."""
SOURCES = ("catalog", "trustgraph", "workspace", "announced", "trust")
"""The options that name the sources of the catalogue."""
MAX_SECRETS_BYTES = 64 * 1024
"""Of a file of tokens or keys."""
MAX_CERTIFICATES_BYTES = 16 * 1024 * 1024
Content = TypeVar("Content")
Json = Annotated[bool, typer.Option("--json", help="Print the result as one line of JSON.")]
_connection = functools.partial(typer.Option, rich_help_panel="Connection")
_admin = functools.partial(typer.Option, rich_help_panel="Admin endpoint")


class _AdminTokens(msgspec.Struct, forbid_unknown_fields=True):
    read: dict[str, str] = {}
    act: dict[str, str] = {}


def is_servers_file(path: str) -> bool:
    """Return whether a catalogue is a file of MCP servers, rather than a folder of descriptors."""
    return path.endswith(".json") and Path(path).is_file()


@dataclass
class Settings:
    """The given options, before and after the command; properties resolve environment and defaults.

    Attributes:
        broker (URL): pulsar://HOST:PORT or pulsar+ssl://HOST:PORT. Default: DISPATCH_BROKER, else pulsar://localhost:6650.
        catalog (DIR): Folder with tool-service/ID.json and tool/NAME.json, or file of MCP servers (mcp.json). May be given
            several times: where two have a tool of the same name, that of the first one is used. Default: DISPATCH_CATALOG,
            else tools/ if it exists.
        policy (FILE): JSON file with your policy; policies of services and tools override it
            (docs/how-to/choose-a-policy.md). Default: DISPATCH_POLICY, else none.
        grants (FILE): JSON file with the permissions of users (docs/how-to/permissions.md). Default: DISPATCH_GRANTS, else
            none: tools with permissions are refused.
        token_file (FILE): File with the authentication token. Default: DISPATCH_TOKEN, else DISPATCH_TOKEN_FILE.
        trust_certs (PEM): Trusted CA certificates for pulsar+ssl://. Default: DISPATCH_TRUST_CERTS, else the system's.
        trustgraph: Use the tools in TrustGraph's configuration, through the broker. They come after those of --catalog.
        workspace (NAME): Workspace in TrustGraph's configuration; '*': all. Implies --trustgraph. Default: default.
        announced: Use the tools of services that announce themselves on the broker. They come after all others. Default if
            there is no other source. Topic: DISPATCH_ANNOUNCEMENTS, else notify:tg:tool-descriptors.
        trust (FILE): JSON file that says which announced services are trusted (docs/how-to/announce-services.md). Implies
            --announced. Default: DISPATCH_TRUST, else all in the namespaces of TrustGraph's tenant.
        approvals (FILE): File of approved definitions, of connect(approvals=FILE). Default: DISPATCH_APPROVALS, else none.
        verbose: Write the log and tracebacks of errors to stderr.
        admin (HOST:PORT): Serve health, metrics for Prometheus, the admin API and the console at http://HOST:PORT; 0: any
            free port.
        admin_tokens (FILE): JSON file of bearer tokens, {"read": {"USER": "TOKEN"}, "act": {…}}. Required if other machines
            reach HOST.
        peer (URL): Admin endpoint of another process, for the console; repeatable. Agents find those at their broker.
    """

    broker: Annotated[str | None, _connection()] = None
    catalog: Annotated[list[str] | None, _connection()] = None
    policy: Annotated[str | None, _connection()] = None
    grants: Annotated[str | None, _connection()] = None
    token_file: Annotated[str | None, _connection()] = None
    trust_certs: Annotated[str | None, _connection()] = None
    trustgraph: Annotated[bool, _connection()] = False
    workspace: Annotated[str | None, _connection()] = None
    announced: Annotated[bool, _connection()] = False
    trust: Annotated[str | None, _connection()] = None
    approvals: Annotated[str | None, _connection()] = None
    verbose: Annotated[bool, typer.Option("--verbose", "-v")] = False
    admin: Annotated[str | None, _admin(envvar="DISPATCH_ADMIN")] = None
    admin_tokens: Annotated[str | None, _admin(envvar="DISPATCH_ADMIN_TOKENS")] = None
    peer: Annotated[list[str] | None, _admin()] = None
    can_be_announced: bool = False
    """Whether the command has the option ``--announced``."""

    @property
    def broker_url(self) -> str:
        """Return the URL of the broker."""
        return normalize_address(self.broker or "") or default_broker()

    def require_pulsar_url(self, command: str) -> str:
        """Return the URL for a command that communicates with other processes.

        Raises:
            CliError: it is the embedded broker, which exists in one process only.
        """
        url = self.broker_url
        if url.startswith("memory://"):
            raise CliError(
                f"memory:// is the embedded broker of a single process, so '{command}' cannot reach another process there.",
                f"start a Pulsar broker with 'dispatch broker start' and use --broker {DEFAULT_BROKER}; 'dispatch demo' "
                "uses the embedded broker",
            )
        return url

    @property
    def call_url(self) -> str:
        """Return the URL of the broker of a dispatcher; with MCP servers only, there is none beside the embedded one."""
        is_only = bool(self.catalog_folders) and self.trustgraph_workspace is None and not self.uses_announced
        return "memory://" if is_only and all(map(is_servers_file, self.catalog_folders)) else self.broker_url

    @property
    def trustgraph_workspace(self) -> str | None:
        """Return the workspace in TrustGraph's configuration; None if the configuration is not asked for."""
        return self.workspace or (DEFAULT_WORKSPACE if self.trustgraph else None)

    @property
    def uses_announced(self) -> bool:
        """Return whether announced services are a source: asked for, or there is no other one."""
        is_only = not self.catalog_folders and self.trustgraph_workspace is None
        return self.can_be_announced and (self.announced or self.trust is not None or is_only)

    @property
    def announcements(self) -> str:
        """Return the topic of the announcements."""
        return read_variable("DISPATCH_ANNOUNCEMENTS") or DEFAULT_TOPIC

    def load_trust(self) -> Trust:
        """Load the trust in announced services.

        Raises:
            TrustFileError: the file is invalid.
        """
        path = self.trust or read_variable("DISPATCH_TRUST")
        return Trust.load(path) if path else Trust()

    @property
    def approvals_file(self) -> str | None:
        """Return the path of the file of approved definitions; None if none is given."""
        return self.approvals or read_variable("DISPATCH_APPROVALS") or None

    @property
    def catalog_folders(self) -> tuple[str, ...]:
        """Return the folders of the descriptors; empty if none is given and ``tools/`` does not exist. With TrustGraph's
        configuration ``tools/`` is used only if it is given."""
        given = tuple(self.catalog or filter(None, (read_variable("DISPATCH_CATALOG"),)))
        if given or self.trustgraph_workspace is not None:
            return given
        return (DEFAULT_CATALOG,) if Path(DEFAULT_CATALOG).is_dir() else ()

    def require_catalog_folders(self) -> tuple[str, ...]:
        """Return the folders of the descriptors.

        Raises:
            CliError: no folder is given and ``tools/`` does not exist.
        """
        folders = self.catalog_folders
        if not folders:
            raise CliError(
                f"No catalogue: the folder '{DEFAULT_CATALOG}' does not exist here.",
                "name the folder with tool-service/ and tool/ with --catalog DIR or DISPATCH_CATALOG",
            )
        return folders

    @property
    def policy_file(self) -> str | None:
        """Return the path of the user's policy; None if none is given."""
        return self.policy or read_variable("DISPATCH_POLICY") or None

    def policy_keys(self) -> Mapping[str, Any]:
        """Read the keys of the user's policy, empty if none is given.

        Raises:
            CliError: the file is invalid; the message lists every mistake.
        """
        if self.policy_file is None:
            return {}
        keys, problems = check_policy_file(self.policy_file)
        if keys is None:
            how = "--policy" if self.policy else "DISPATCH_POLICY"
            raise CliError(list_mistakes(f"The policy file of {how} is invalid", problems))
        return keys

    def load_policy(self) -> Policy:
        """Load the user's policy over the defaults.

        Raises:
            CliError: the file is invalid; the message lists every mistake.
        """
        return DEFAULT_POLICY.merged(self.policy_keys())

    @property
    def grants_file(self) -> str | None:
        """Return the path of the grants; None if none is given."""
        return self.grants or read_variable("DISPATCH_GRANTS") or None

    def load_grants(self) -> Grants | None:
        """Load the grants; None if none are given.

        Raises:
            GrantsError: the file is invalid; the message lists every mistake.
        """
        return None if self.grants_file is None else Grants.load(self.grants_file)

    def security(self) -> Security:
        """Load token and TLS settings.

        Raises:
            CliError: a named file cannot be read.
        """
        from_environment = Security.from_environment()
        token = from_environment.token
        if self.token_file is not None:
            token = functools.partial(read_token_file, self.token_file)
        if callable(token):  # checked here: pulsar-client calls it on a thread where its error would be lost
            named = self.token_file or os.environ.get("DISPATCH_TOKEN_FILE", "")
            how = "--token-file" if self.token_file is not None else "DISPATCH_TOKEN_FILE"
            if not _read(named, "token", how, read_token_file):
                raise CliError(f"The token file '{named}' is empty.", f"write a token to it, or change {how}")
        certificates = self.trust_certs or from_environment.trust_certs
        if certificates is not None:
            how = "--trust-certs" if self.trust_certs is not None else "DISPATCH_TRUST_CERTS"
            _read(str(certificates), "certificate", how, _read_certificates)
        return Security(token=token, trust_certs=certificates)

    def load_admin(self) -> Admin | None:
        """Return the settings of the admin endpoint; None: there is none.

        Raises:
            CliError: one of the options is invalid.
        """
        tokens = self.admin_tokens
        if self.admin is None:
            if tokens is not None or self.peer:
                raise CliError("--admin-tokens and --peer are for the admin endpoint.", "add --admin 127.0.0.1:9464")
            return None
        users = _AdminTokens()
        try:
            if tokens is not None:
                form = 'write {"read": {"USER": "TOKEN"}, "act": {"USER": "TOKEN"}}'
                users = read_secrets(tokens, _AdminTokens, "--admin-tokens", form)
            settings = check_admin(Admin(self.admin, users.read, users.act, peers=tuple(self.peer or ())))
            import dispatch.admin.app  # noqa: F401 - here, before anything is opened, if an extra is missing

            return settings
        except ImportError as error:
            raise CliError(str(error)) from None
        except ValueError as error:
            raise CliError(f"--admin: {error}.".replace("..", ".")) from None


def read_secrets(name: str, kind: type[Content], option: str, form: str) -> Content:
    """Read a JSON file of secrets, as a type.

    Raises:
        CliError: it cannot be read, or does not fit. The error has no value of the file.
    """
    try:
        return parse_typed(read_regular_file(name, MAX_SECRETS_BYTES, "remove old ones")[0], name, kind)
    except OSError as error:
        raise CliError(f"The file '{name}' cannot be read: {error.strerror}.", f"change {option}") from None
    except DocumentError:
        raise CliError(f"The file '{name}' is invalid.", form) from None


def _read(name: str, what: str, how: str, read: Callable[[str], Content]) -> Content:
    try:
        return read(name)
    except (OSError, DocumentError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CliError(f"The {what} file '{name}' cannot be read: {reason}.", f"change {how}") from None


def _read_certificates(name: str) -> bytes:
    return read_regular_file(name, MAX_CERTIFICATES_BYTES, "")[0]


# Commands: functions whose parameters are options and arguments, described in their docstrings.


_ENTRY: Final = re.compile(r"^    (\w+)(?: \((.+?)\))?: ", re.MULTILINE)
"""Begin of a parameter in a docstring: ``name (METAVAR): help``."""


def read_help(docstring: str | None) -> tuple[str, dict[str, tuple[str | None, str]]]:
    """Return the help in a docstring, and metavar and help of each parameter in its last section, ``Args`` or
    ``Attributes``."""
    text, *section = re.split(r"\n\n(?:Args|Attributes):\n", inspect.cleandoc(docstring or ""))
    _, *parts = _ENTRY.split("".join(section))
    entries = zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    # typer keeps line ends within paragraphs.
    paragraphs = "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
    return paragraphs, {name: (metavar, " ".join(help.split())) for name, metavar, help in entries}


def declare_parameters(command: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a command, or of :class:`Settings`, as typer reads them: options, and arguments where there
    is no default. Annotations have what the docstring does not say. A parameter whose type is a dataclass stands for its
    fields: options that several commands have."""
    hints, (_, described) = typing.get_type_hints(command, include_extras=True), read_help(command.__doc__)
    annotated: Any = Annotated
    declared: dict[str, inspect.Parameter] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        if name in ("settings", "can_be_announced"):
            continue
        if is_dataclass(hints[name]):
            declared |= declare_parameters(hints[name])
            continue
        kind, *infos = typing.get_args(hints[name]) if typing.get_origin(hints[name]) is Annotated else (hints[name],)
        default = typer.Argument() if parameter.default is parameter.empty else typer.Option()
        info: Any = copy.copy(infos[0] if infos else default)
        if isinstance(info, OptionInfo) and info.default is ...:  # no name is given
            info.param_decls = (f"--{name.strip('_').replace('_', '-')}",)
        metavar, help = described.get(name, (None, ""))
        info.metavar, info.help = metavar or info.metavar, help or info.help
        declared[name] = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=annotated[kind, info])
    return declared


_OPTIONS = declare_parameters(Settings)


def with_settings(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a function a command: its parameters are those of :func:`declare_parameters`. The named options and
    ``--verbose`` are added; it receives ``settings`` in their place."""
    names = (*names, "verbose")

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
        added = [*(_OPTIONS[name] for name in names), context]
        signature = inspect.Signature([*declare_parameters(command).values(), *added])
        hints = typing.get_type_hints(command)
        groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
        del groups["settings"]

        @functools.wraps(command)
        def run(*, context: typer.Context, **values: Any) -> Any:
            root = context.find_root()
            settings = root.obj = root.obj or Settings()
            settings.can_be_announced = "announced" in names
            for name in names:
                given = values.pop(name)
                if given or name in ADMIN:  # an empty address is a mistake
                    setattr(settings, name, given)
            show_logs(settings.verbose)
            for name, kind in groups.items():
                values[name] = kind(**{each.name: values.pop(each.name) for each in fields(kind)})
            return command(settings=settings, **values)

        run.__doc__, _ = read_help(command.__doc__)
        run.__signature__ = signature  # type: ignore[attr-defined] # typer reads the options from it
        run.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
        return run

    return decorate


def make_group(help: str) -> typer.Typer:
    """Return a group of commands, such as ``dispatch broker``."""
    return typer.Typer(help=help, no_args_is_help=True, rich_markup_mode="rich", add_completion=False)


# Running of a coroutine with orderly shutdown on Ctrl-C at any time.
#
# ``asyncio.run`` handles Ctrl-C only while the loop runs: shortly before, a half-created loop ends with a traceback; in
# between its interrupt count is reset and a bare ``CancelledError`` escapes. Ctrl-C right after a command's first output
# triggers both.


T = TypeVar("T")


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """Run ``main`` on a new event loop.

    The first Ctrl-C cancels it; the second does not wait for its cleanup. An existing handler of SIGINT stays in place.

    Args:
        main: the coroutine to run.

    Raises:
        KeyboardInterrupt: ``main`` ended because of Ctrl-C.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return asyncio.run(main)
    interrupt = _InterruptHandler()
    signal.signal(signal.SIGINT, interrupt)
    try:
        with asyncio.Runner() as runner:
            return runner.run(interrupt.run(main))
    except asyncio.CancelledError:
        if interrupt.count:
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class _InterruptHandler:
    """Handles SIGINT before, during and after a task."""

    def __init__(self) -> None:
        self.count = 0
        self._cancel: Callable[[], object] | None = None

    def __call__(self, _signal: int, _frame: FrameType | None) -> None:
        self.count += 1
        if self.count > 1:
            raise KeyboardInterrupt
        self._cancel_task()

    async def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Await ``main``; a Ctrl-C before or during it cancels it."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)  # also wakes the loop
        if self.count:
            self._cancel_task()
        try:
            return await main
        finally:
            self._cancel = None

    def _cancel_task(self) -> None:
        cancel, self._cancel = self._cancel, None  # at most once
        if cancel is not None:
            cancel()


async def run_until_sigterm(main: Coroutine[Any, Any, object]) -> None:
    """Run ``main`` until it ends, or SIGTERM cancels it; Ctrl-C cancels this coroutine, and so ``main``.

    Raises:
        Exception: of ``main``.
    """
    task = asyncio.ensure_future(main)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        await cancel_and_wait([task])


async def run_until(stop: asyncio.Event, main: Coroutine[Any, Any, object]) -> bool:
    """Run ``main`` until it ends, or ``stop`` is set: then it is cancelled. Return whether it has ended by itself.

    Raises:
        Exception: of ``main``.
    """
    task, stopped = asyncio.ensure_future(main), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        return task.done()
    finally:
        await cancel_and_wait((task, stopped))


async def run_first(*mains: Coroutine[Any, Any, T]) -> T:
    """Run coroutines until the first of them ends, and return its result; the others are cancelled.

    Raises:
        Exception: of the one that has ended.
    """
    tasks = [asyncio.ensure_future(main) for main in mains]
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task for task in tasks if task in ended).result()
    finally:
        await cancel_and_wait(tasks)


def report_admin(url: str | None) -> None:
    """Report the address of the admin endpoint, and from now on what operators do there: the audit log has a level of its
    own, so that an action that raises the level of ``dispatch`` does not hide the actions after it."""
    if url is not None:
        AUDIT.setLevel(logging.INFO)
        print_err(f"Admin: {url}")


# Reading of a policy file: its keys, or every mistake in it.


def check_policy_file(name: str) -> tuple[Mapping[str, Any] | None, list[Problem]]:
    """Read the policy in the file ``name``: its keys (None if invalid) and every problem. A missing or malformed file is a
    problem, not an exception."""
    warnings: list[Problem] = []

    def warn(key: str, problem: str, fix: str) -> None:
        warnings.append(Problem(name, key, problem, fix, "warning"))

    try:
        return load_policy_keys(name, warn), warnings
    except PolicyError as error:
        return None, list(error.problems)
