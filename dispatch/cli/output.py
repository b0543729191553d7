"""Output: results to stdout, everything else to stderr, colours on terminals only."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

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


def print_out(text: str, end: str = "\n") -> None:
    """Print text to stdout and flush, so that a pipe receives it immediately."""
    sys.stdout.write(text + end)
    sys.stdout.flush()


def print_json(value: Any) -> None:
    """Print one line of JSON to stdout."""
    print_out(json.dumps(value, ensure_ascii=False))


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
