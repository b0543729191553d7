"""Summary of the demo for people, and next steps."""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING

from dispatch.cli.output import colorize, console, is_terminal, print_out
from dispatch.cli.views.demo import COLUMNS, format_milliseconds, rows
from dispatch.devtools.demo.agents import QUERIES
from dispatch.devtools.demo.scoreboard import nearest_rank
from dispatch.errors import Outcome

if TYPE_CHECKING:
    from dispatch.devtools.demo import Summary

MAX_WIDTH = 120
NEXT = (
    ("dispatch broker start", "start a Pulsar broker on this machine (Java 17 and Maven, or Docker)"),
    ("dispatch demo --broker pulsar://localhost:6650", "run the demo on that broker"),
    ("dispatch serve MODULE:CLASS --service joke", "serve your own tool"),
    ("dispatch call tell-joke topic=cats", "call a tool of your catalogue (in a clone: --catalog examples/tools)"),
    ("dispatch doctor", "check connection, namespaces and services"),
    ("make test", "in a clone: run all tests with a Pulsar broker"),
)
"""Next commands, each with its purpose."""


def show_summary(summary: Summary) -> None:
    """Write the summary to stdout."""
    board = summary.board
    terminal = is_terminal(sys.stdout)
    width = min(console().width, MAX_WIDTH) if terminal else MAX_WIDTH
    if not terminal:  # the live view has already shown the table
        from dispatch.cli.output import align_columns

        print_out("")
        print_out(align_columns([COLUMNS, *rows(board)]))
    _show_outcomes(summary, width)
    _title("Scenarios")
    for scenario in summary.scenarios:
        _fill(scenario.describe_result(), width)
    _fill(f"{summary.note}.", width)
    print_out("")
    for tool, score in board.tools.items():
        if score.chunks:
            after = format_milliseconds(nearest_rank(score.first_chunks, 0.5))
            count = f"{score.chunks:,} chunks in {score.ok:,} replies"
            print_out(
                textwrap.fill(f"{tool} streams its replies: {count}, time to first chunk {after} ms (p50).", width)
            )
    rate = board.calls / summary.seconds
    if board.searches:
        names = " and ".join(QUERIES)
        print_out(
            textwrap.fill(
                f"{names} know no tool by name: {board.searches:,} searches found the tools of their calls, for example by "
                f"'{next(iter(QUERIES.values()))}'.",
                width,
            )
        )
    replies = ", ".join(f"{count:,} {name}" for name, count in summary.replies.items() if count)
    print_out(
        textwrap.fill(
            f"{board.calls:,} calls in {summary.seconds:.1f} s ({rate:,.0f} per second) through one dispatcher on "
            f"{summary.broker}; pending at the end: {summary.pending}. Replies: {replies}.",
            width,
            break_on_hyphens=False,
        )
    )
    _title("Next steps")
    for command, why in NEXT:
        line = f"  {command:48} {why}"
        print_out(line if not terminal or len(line) <= width else f"  {command}\n      {why}")


def _fill(text: str, width: int) -> None:
    """Write a paragraph of the list of scenarios; names of tools and of states are not broken at their hyphens."""
    print_out(textwrap.fill(text, width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False))


def _title(text: str) -> None:
    print_out("")
    print_out(colorize(text, "bold", sys.stdout))


def _show_outcomes(summary: Summary, width: int) -> None:
    """Write the count of each outcome with the message of its first error."""
    board = summary.board
    _title("Outcomes")
    for outcome, count in board.outcomes.items():
        colour = "green" if outcome is Outcome.SUCCESS else "yellow"
        print_out(f"  {colorize(f'{outcome:18}', colour, sys.stdout)} {count:6,}")
        example = board.examples.get(outcome)
        if example is not None:
            text = f"{example.tool} · {example.type}: {example.message}"
            print_out(textwrap.fill(text, width, initial_indent=" " * 10, subsequent_indent=" " * 12))
