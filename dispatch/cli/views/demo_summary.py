"""What came of the demonstration, for people, and what to do next."""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING

from dispatch.cli.output import console, is_terminal, paint, put
from dispatch.cli.views.demo import COLUMNS, milliseconds, rows
from dispatch.devtools.demo.scoreboard import nearest_rank
from dispatch.errors import Outcome

if TYPE_CHECKING:
    from dispatch.devtools.demo import Summary

MOST_WIDTH = 120
NEXT = (
    ("dispatch broker start", "a genuine Pulsar on this machine (Java 17 and Maven, or Docker)"),
    ("dispatch demo --broker pulsar://localhost:6650", "the same through it"),
    ("dispatch serve MODULE:CLASS --topic joke", "serve a tool of your own"),
    ("dispatch call tell-joke topic=cats", "call a tool of your catalogue (in a checkout: --catalog examples/tools)"),
    ("dispatch doctor", "what is missing, and how to mend it"),
    ("make test", "in a checkout: every test, against a genuine Pulsar"),
)
"""Commands, and what each is for."""


def show_summary(summary: Summary) -> None:
    """Write it to stdout."""
    board = summary.board
    terminal = is_terminal(sys.stdout)
    width = min(console().width, MOST_WIDTH) if terminal else MOST_WIDTH
    if not terminal:  # there the live table has said it already
        from dispatch.cli.commands.tools import aligned

        put("")
        put(aligned([COLUMNS, *rows(board)]))
    _ends(summary, width)
    _title("What the guards did")
    for act in summary.acts:
        put(textwrap.fill(act.account(), width, initial_indent="  ", subsequent_indent="    "))
    put(textwrap.fill(f"{summary.shortened}.", width, initial_indent="  ", subsequent_indent="    "))
    put("")
    for tool, score in board.tools.items():
        if score.chunks:
            after = milliseconds(nearest_rank(score.first_chunks, 0.5))
            count = f"{score.chunks:,} chunks in {score.ok:,} answers"
            put(textwrap.fill(f"{tool} answers in a stream: {count}, the first after {after} ms (p50).", width))
    rate = board.calls / summary.seconds
    replies = ", ".join(f"{count:,} {name}" for name, count in summary.replies.items() if count)
    put(
        textwrap.fill(
            f"{board.calls:,} calls in {summary.seconds:.1f} s ({rate:,.0f} a second) through one dispatcher on "
            f"{summary.broker}; left waiting: {summary.pending}. Replies: {replies}.",
            width,
            break_on_hyphens=False,
        )
    )
    _title("What to do next")
    for command, why in NEXT:
        line = f"  {command:48} {why}"
        put(line if not terminal or len(line) <= width else f"  {command}\n      {why}")


def _title(text: str) -> None:
    put("")
    put(paint(text, "bold", sys.stdout))


def _ends(summary: Summary, width: int) -> None:
    """How often each outcome occurred, with the text of the first such error."""
    board = summary.board
    _title("How the calls ended")
    for outcome, count in board.outcomes.items():
        colour = "green" if outcome is Outcome.SUCCESS else "yellow"
        put(f"  {paint(f'{outcome:18}', colour, sys.stdout)} {count:6,}")
        example = board.examples.get(outcome)
        if example is not None:
            text = f"{example.tool} · {example.type}: {example.message}"
            put(textwrap.fill(text, width, initial_indent=" " * 10, subsequent_indent=" " * 12))
