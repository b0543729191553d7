"""How the demonstration looks: a live table, plain lines for a pipe, and the summary."""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING

from dispatch.cli.output import console, is_terminal, paint, put
from dispatch.demo.scoreboard import nearest_rank
from dispatch.outcome import Outcome

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dispatch.demo import Demo, Scoreboard, Summary

_COLUMNS = ("tool", "calls", "ok", "errors", "in flight", "p50 ms", "p95 ms", "last answer")


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.1f}"


def rows(board: Scoreboard) -> list[tuple[str, ...]]:
    """The table's cells, tools in the order of their first call."""
    return [
        (
            name,
            f"{score.calls:,}",
            f"{score.ok:,}",
            f"{score.errors:,}",
            f"{score.in_flight:,}",
            _milliseconds(score.percentile(0.5)),
            _milliseconds(score.percentile(0.95)),
            score.last,
        )
        for name, score in board.tools.items()
    ]


def live_view(demo: Demo) -> RenderableType:
    """What stands on the terminal while it runs."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    for column in _COLUMNS:
        last = column == _COLUMNS[-1]
        table.add_column(
            column,
            justify="left" if last or column == "tool" else "right",
            style="cyan" if column == "tool" else "",
            no_wrap=True,
            overflow="ellipsis",
            ratio=1 if last else None,
        )
    for row in rows(demo.board):
        table.add_row(*map(Text, row))
    head = Table.grid(padding=(0, 1))
    head.add_row(
        Text(f"dispatch demo on {demo.broker}", "bold"),
        ProgressBar(total=1.0, completed=demo.progress, width=20),
        Text(f"{demo.progress:4.0%}"),
        Text(demo.phase, "yellow"),
    )
    return Group(head, table)


def plain_line(demo: Demo) -> str:
    """One line of progress."""
    board = demo.board
    ok = board.outcomes[Outcome.SUCCESS]
    return (
        f"{demo.progress:4.0%}  {board.calls:5,} calls  {ok:5,} ok  {board.calls - ok - board.in_flight:2,} errors  "
        f"{board.in_flight:2} in flight  {demo.phase}"
    )


def show_summary(summary: Summary) -> None:
    """What came of it, and what to do next, on stdout."""
    board = summary.board
    if not is_terminal(sys.stdout):  # there the live table has said it already
        from dispatch.cli.tools import aligned

        put("")
        put(aligned([_COLUMNS, *rows(board)]))
    put("")
    put(paint("How the calls ended", "bold", sys.stdout))
    width = min(console().width, 120) if is_terminal(sys.stdout) else 120
    for outcome, count in board.outcomes.items():
        colour = "green" if outcome is Outcome.SUCCESS else "yellow"
        put(f"  {paint(f'{outcome:18}', colour, sys.stdout)} {count:6,}")
        example = board.examples.get(outcome)
        if example is not None:
            text = f"{example.tool} · {example.type}: {example.message}"
            put(textwrap.fill(text, width, initial_indent=" " * 10, subsequent_indent=" " * 12))
    rate = board.calls / summary.seconds
    replies = ", ".join(f"{count:,} {name}" for name, count in summary.replies.items() if count)
    put("")
    for tool, score in board.tools.items():
        if score.chunks:
            after = _milliseconds(nearest_rank(score.first_chunks, 0.5))
            put(
                f"{tool} answers in a stream: {score.chunks:,} chunks in {score.ok:,} answers, the first after {after} ms "
                "(p50)."
            )
    put(
        f"{board.calls:,} calls in {summary.seconds:.1f} s ({rate:,.0f} a second) through one dispatcher on "
        f"{summary.broker}; left waiting: {summary.pending}. Replies: {replies}."
    )
    put("")
    put(paint("What to do next", "bold", sys.stdout))
    for command, why in (
        ("dispatch broker start", "a genuine Pulsar on this machine (Java 17 and Maven, or Docker)"),
        ("dispatch demo --broker pulsar://localhost:6650", "the same through it"),
        ("dispatch serve MODULE:CLASS --topic joke", "serve a tool of your own"),
        (
            "dispatch call tell-joke topic=cats",
            "call a tool of your catalogue (in a checkout: --catalog examples/tools)",
        ),
        ("dispatch doctor", "what is missing, and how to mend it"),
        ("make test", "in a checkout: every test, against a genuine Pulsar"),
    ):
        put(f"  {command:48} {why}")
