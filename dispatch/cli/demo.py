"""``dispatch demo``: run the demo and display it."""

from __future__ import annotations

import asyncio
import logging
import sys
import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from dispatch.cli.base import (
    Exit,
    Settings,
    align_columns,
    colorize,
    console,
    is_terminal,
    print_err,
    print_json,
    print_out,
    run_async,
    run_first,
    show_logs,
    with_settings,
)
from dispatch.cli.screen import View, choose_columns, cut_line, milliseconds, render_screen, wrap_events
from dispatch.errors import Outcome

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dispatch.devtools.demo import Demo, Event, Scoreboard, Summary


LIVE_EVERY_S = 0.125
"""Interval of the live view and of event lines for a pipe, in seconds."""
PROGRESS_TICKS = 8
"""Intervals between two lines of progress for a pipe: one second."""
PLAIN_WIDTH = 120


@with_settings("admin", "broker", "token_file", "trust_certs")
def demo(
    settings: Settings, seconds: Annotated[float | None, typer.Option(min=5, max=3600)] = None, json: bool = False
) -> None:
    """Watch agents call tools while faults are injected, in four scenarios.

    1. Every outcome that a call can have. 2. A slow instance is ejected and returns. 3. A service hangs: its circuit breaker
    opens, half-opens and closes. 4. A noisy user is rate-limited; other users are not affected.

    [bold]dispatch demo[/bold] uses the embedded broker: it needs nothing else.

    [bold]dispatch demo --broker pulsar://localhost:6650[/bold] uses a Pulsar broker (DISPATCH_BROKER is ignored here).

    Services and agents run in this process. The demo ends by itself; the exit code is 1 if a scenario deviates from the
    expected result.

    Args:
        seconds: Approximate duration; times of the guards are scaled to it. Default: 20.
        json: Print only the summary, as one line of JSON.
    """
    from dispatch.devtools.demo import DEFAULT_SECONDS, Demo

    if not settings.verbose:
        # The faults are injected: their warnings are expected.
        show_logs(False, logging.ERROR)
    duration = DEFAULT_SECONDS if seconds is None else seconds
    run = Demo(
        settings.broker or "memory://",
        duration,
        security=settings.security(),
        admin=settings.load_admin(),
        on_admin=lambda url: print_err(f"Admin: {url}"),
    )
    summary = run_async(run.run() if json else _live(run) if is_terminal(sys.stdout) else _plain(run))
    if json:
        print_json(summary.as_dict())
    else:
        show_summary(summary)
    if summary.deviations:
        for line in summary.deviations:
            print_err(f"Unexpected: {line}")
        raise typer.Exit(Exit.FAILED)


async def _live(run: Demo) -> Summary:
    from rich.live import Live

    target = console()
    # Overflow is cropped, not scrolled: the view keeps its place at any terminal size.
    with Live(console=target, auto_refresh=False, transient=False, vertical_overflow="crop") as live:

        def show() -> None:
            live.update(live_view(run, *target.size), refresh=True)

        try:
            return await _run_with_display(run, show)
        finally:
            show()


async def _plain(run: Demo) -> Summary:
    print_out(f"Agents call tools on {run.broker} for about {run.time_scale.total:.0f} s. {run.time_scale.note}.")
    shown = ticks = 0

    def show(progress: bool = True) -> None:
        nonlocal shown, ticks
        for line in wrap_events(map(format_event, run.events[shown:]), PLAIN_WIDTH):
            print_out(line)
        shown = len(run.events)
        if progress and ticks % PROGRESS_TICKS == 0:
            print_out(plain_line(run))
        ticks += 1

    try:
        return await _run_with_display(run, show)
    finally:
        show(progress=False)


async def _run_with_display(run: Demo, show: Callable[[], None]) -> Summary:
    """Run the demo and call ``show`` every :data:`LIVE_EVERY_S` seconds. An error of ``show`` ends the run."""

    async def refresh() -> NoReturn:
        while True:
            show()
            await asyncio.sleep(LIVE_EVERY_S)

    return await run_first(refresh(), run.run())


# Display of the running demo: a live view for a terminal, plain lines for a pipe.


def tool_rows(board: Scoreboard) -> list[dict[str, Any]]:
    """Return the tools in the order of their first call, as rows in the form of the admin API."""
    return [
        {
            "name": name,
            "calls": score.calls,
            "failed": score.errors,
            "in_flight": score.in_flight,
            "p50": score.percentile(0.5),
            "p95": score.percentile(0.95),
            "last": score.last,
            "latest": score.latest,
        }
        for name, score in board.tools.items()
    ]


def live_view(demo: Demo, width: int = 120, height: int = 40) -> RenderableType:
    """Render the live view for a terminal of this size. If it is too small for all tools, the least recently called ones are
    omitted."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    head = Table.grid(padding=(0, 1))
    head.add_row(
        cut_line(f"dispatch demo on {demo.broker}", "bold"),
        ProgressBar(total=1.0, completed=demo.progress, width=20),
        Text(f"{demo.progress:4.0%}"),
    )
    phase = cut_line(_describe_phase(demo), "bold yellow")
    return render_screen(
        {"tools": tool_rows(demo.board), **demo.guards},
        View(),
        width,
        height,
        head=[head, phase],
        events=list(map(format_event, demo.events)),
        foot=[Text(line, "dim") for line in textwrap.wrap(demo.time_scale.note, width - 1)],
    )


def _describe_phase(demo: Demo) -> str:
    return (
        f"Scenario {demo.scenario_number} of {demo.scenario_count}: {demo.phase}"
        if demo.scenario_number and demo.progress < 1
        else demo.phase
    )


def format_event(event: Event) -> str:
    """Format an event with its time."""
    return f"{event.at:5.1f} s  {event.text}"


def plain_line(demo: Demo) -> str:
    """Format one line of progress."""
    board = demo.board
    ok = board.outcomes[Outcome.SUCCESS]
    return (
        f"{demo.progress:4.0%}  {board.calls:5,} calls  {ok:5,} ok  {board.calls - ok - board.in_flight:3,} errors  "
        f"{board.in_flight:2} in flight  {_describe_phase(demo)}"
    )


# Summary of the demo for people, and next steps.


MAX_WIDTH = 120
NEXT = (
    ("dispatch broker start", "start a Pulsar broker on this machine (Java 17 and Maven, or Docker)"),
    ("dispatch demo --broker pulsar://localhost:6650", "run the demo on that broker"),
    ("dispatch serve FILE.py", "serve the functions of a file as tools"),
    ("dispatch call tell-joke topic=cats", "call a tool of your catalogue (in a clone: --catalog examples/tools)"),
    ("dispatch doctor", "check connection, namespaces and services"),
    ("make test", "in a clone: run all tests with a Pulsar broker"),
)
"""Next commands, each with its purpose."""


def show_summary(summary: Summary) -> None:
    """Write the summary to stdout."""
    from dispatch.devtools.demo import QUERIES, nearest_rank

    board = summary.board
    terminal = is_terminal(sys.stdout)
    width = min(console().width, MAX_WIDTH) if terminal else MAX_WIDTH
    if not terminal:  # the live view has already shown the table
        print_out("")
        rows = tool_rows(board)
        columns = choose_columns("tools", rows)
        cells = [tuple(column.cell(row) for column in columns) for row in rows]
        print_out(align_columns([tuple(column.heading for column in columns), *cells]))
    _show_outcomes(summary, width)
    _title("Scenarios")
    for scenario in summary.scenarios:
        _fill(scenario.describe_result(), width, 2)
    _fill(f"{summary.note}.", width, 2)
    print_out("")
    for tool, score in board.tools.items():
        if score.chunks:
            after = milliseconds(nearest_rank(score.first_chunks, 0.5))
            count = f"{score.chunks:,} chunks in {score.ok:,} replies"
            _fill(f"{tool} streams its replies: {count}, time to first chunk {after} ms (p50).", width)
    rate = board.calls / summary.seconds
    if board.searches:
        names = " and ".join(QUERIES)
        _fill(
            f"{names} know no tool by name: {board.searches:,} searches found the tools of their calls, for example by "
            f"'{next(iter(QUERIES.values()))}'.",
            width,
        )
    replies = ", ".join(f"{count:,} {name}" for name, count in summary.replies.items() if count)
    _fill(
        f"{board.calls:,} calls in {summary.seconds:.1f} s ({rate:,.0f} per second) through one dispatcher on "
        f"{summary.broker}; pending at the end: {summary.pending}. Replies: {replies}.",
        width,
    )
    _title("Next steps")
    for command, why in NEXT:
        line = f"  {command:48} {why}"
        print_out(line if not terminal or len(line) <= width else f"  {command}\n      {why}")


def _fill(text: str, width: int, indent: int = 0) -> None:
    """Write a paragraph, of a list with ``indent``; names of tools and of states are not broken at their hyphens."""
    first, others = " " * indent, " " * (indent and indent + 2)
    print_out(textwrap.fill(text, width, initial_indent=first, subsequent_indent=others, break_on_hyphens=False))


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
            _fill(f"{example.tool} · {example.type}: {example.message}", width, 10)
