"""What goes to the terminal: results to stdout, everything else to stderr, colours only where they are seen."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

_ANSI = {"red": 31, "green": 32, "yellow": 33, "cyan": 36, "bold": 1, "dim": 2}


def is_terminal(stream: TextIO) -> bool:
    """Does a person look at it, on something that can move its cursor?"""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def paint(text: str, style: str, stream: TextIO) -> str:
    """``text`` in a colour, if ``stream`` is a terminal and NO_COLOR is not set."""
    if not is_terminal(stream) or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{_ANSI[style]}m{text}\x1b[0m"


def counted(number: int, noun: str) -> str:
    """``1 request``, ``2 requests``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def say(line: str) -> None:
    """A line to stderr, at once."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - this is the command line's output


def put(text: str, end: str = "\n") -> None:
    """Text to stdout, at once: whoever reads a pipe sees it when it is there."""
    sys.stdout.write(text + end)
    sys.stdout.flush()


def put_json(value: Any) -> None:
    """One line of JSON to stdout."""
    put(json.dumps(value, ensure_ascii=False))


def warn(line: str) -> None:
    """A warning to stderr."""
    say(f"{paint('Warning:', 'yellow', sys.stderr)} {printable(line)}")


def printable(text: str, limit: int = 0) -> str:
    """``text`` without what a terminal would act on (line ends and tabs stay); cut after ``limit`` characters."""
    if limit and len(text) > limit:
        text = text[: limit - 1] + "…"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def result_text(text: str) -> str:
    """A tool's answer for stdout: byte for byte into a pipe or file, harmless on a terminal."""
    return printable(text) if is_terminal(sys.stdout) else text


def console(stream: TextIO | None = None) -> Console:
    """A rich console on stdout, or on another stream. It colours terminals only, and honours NO_COLOR."""
    from rich.console import Console

    target = sys.stdout if stream is None else stream
    terminal = is_terminal(target)
    return Console(
        file=target,
        force_terminal=terminal,
        highlight=False,
        emoji=False,
        no_color=None if terminal else True,
        # Into a pipe lines are as long as they are: nothing is cut or folded.
        width=None if terminal else 10_000,
    )


def harden_streams() -> None:
    """Characters that stdout's encoding does not have become escapes instead of an exception."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
