"""``dispatch demo``: run the demo and display it."""

from __future__ import annotations

import asyncio
import logging
import sys
import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from dispatch._internal import cancel_and_wait
from dispatch.cli.base import (
    AdminAddress,
    Exit,
    Settings,
    align_columns,
    colorize,
    console,
    is_terminal,
    print_err,
    print_json,
    print_out,
    read_admin_options,
    run_async,
    show_logs,
    with_settings,
)
from dispatch.errors import Outcome

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from dispatch.devtools.demo import Demo, Scoreboard, Summary
    from dispatch.devtools.demo.run import GuardSnapshot
    from dispatch.devtools.demo.scenarios import Event
    from dispatch.devtools.demo.world import ToolScore


LIVE_EVERY_S = 0.125
"""Interval of the live view and of event lines for a pipe, in seconds."""
PROGRESS_TICKS = 8
"""Intervals between two lines of progress for a pipe: one second."""
PLAIN_WIDTH = 120


@with_settings("broker", "token_file", "trust_certs")
def demo(
    settings: Settings,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds",
            min=5,
            max=3600,
            help="Approximate duration; times of the guards are scaled to it. Default: 20.",
            show_default=False,
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print only the summary, as one line of JSON.")] = False,
    admin: AdminAddress = None,
) -> None:
    """Watch agents call tools while faults are injected, in four scenarios.

    1. Every outcome that a call can have. 2. A slow instance is ejected and returns. 3. A service hangs: its circuit breaker
    opens, half-opens and closes. 4. A noisy user is rate-limited; other users are not affected.

    [bold]dispatch demo[/bold] uses the embedded broker: it needs nothing else.

    [bold]dispatch demo --broker pulsar://localhost:6650[/bold] uses a Pulsar broker (DISPATCH_BROKER is ignored here).

    Services and agents run in this process. The demo ends by itself; the exit code is 1 if a scenario deviates from the
    expected result.
    """
    from dispatch.devtools.demo import Demo
    from dispatch.devtools.demo.world import DEFAULT_SECONDS

    if not settings.verbose:
        # The faults are injected: their warnings are expected.
        show_logs(False, logging.ERROR)
    duration = DEFAULT_SECONDS if seconds is None else seconds
    run = Demo(
        settings.broker or "memory://",
        duration,
        security=settings.security(),
        admin=read_admin_options(admin, None, None),
        on_admin=lambda url: print_err(f"Admin: {url}"),
    )
    summary = run_async(_quiet(run) if json else _live(run) if is_terminal(sys.stdout) else _plain(run))
    if json:
        print_json(summary.as_dict())
    else:
        show_summary(summary)
    if summary.deviations:
        for line in summary.deviations:
            print_err(f"Unexpected: {line}")
        raise typer.Exit(Exit.FAILED)


async def _quiet(run: Demo) -> Summary:
    return await run.run()


async def _live(run: Demo) -> Summary:
    from rich.live import Live

    target = console()
    # Overflow is cropped, not scrolled: the view keeps its place at any terminal size.
    with Live(console=target, auto_refresh=False, transient=False, vertical_overflow="crop") as live:

        def show() -> None:
            live.update(live_view(run, *target.size), refresh=True)

        try:
            return await _run_with_display(run, show, LIVE_EVERY_S)
        finally:
            show()


async def _plain(run: Demo) -> Summary:
    print_out(f"Agents call tools on {run.broker} for about {run.time_scale.total:.0f} s. {run.time_scale.note}.")
    shown = ticks = 0

    def show(progress: bool = True) -> None:
        nonlocal shown, ticks
        for line in event_lines(run.events[shown:], width=PLAIN_WIDTH):
            print_out(line)
        shown = len(run.events)
        if progress and ticks % PROGRESS_TICKS == 0:
            print_out(plain_line(run))
        ticks += 1

    try:
        return await _run_with_display(run, show, LIVE_EVERY_S)
    finally:
        show(progress=False)


async def _run_with_display(run: Demo, show: Callable[[], None], every: float) -> Summary:
    """Run the demo and call ``show`` every ``every`` seconds. An error of ``show`` ends the run."""

    async def refresh() -> None:
        while True:
            show()
            await asyncio.sleep(every)

    running, refreshing = asyncio.ensure_future(run.run()), asyncio.ensure_future(refresh())
    try:
        await asyncio.wait({running, refreshing}, return_when=asyncio.FIRST_COMPLETED)
        if refreshing.done():
            refreshing.result()  # raises its error: it ends only by one
        return running.result()
    finally:
        await cancel_and_wait((running, refreshing))


# Display of the running demo: a live view for a terminal, plain lines for a pipe.


COLUMNS = ("tool", "calls", "ok", "errors", "in flight", "p50 ms", "p95 ms", "last result")
MIN_TOOLS = 4
"""Minimum number of table rows, however small the terminal is."""
EVENT_LINES = (3, 9)
"""Minimum and maximum number of lines for recent events."""

_COLOURS = {
    "up": "green",
    "closed": "green",
    "warming": "yellow",
    "half-open": "yellow",
    "paused": "yellow",
    "ejected": "red",
    "open": "red",
}

_NUMBERS = ("running", "ok", "limited")
_WIDTHS = {("instance", "state"): 13, ("breaker of", "state"): 10, ("user", "user"): 5, ("user", "ok"): 4}
"""Minimum column widths: wide enough that columns do not move on a state change; they fit into 80 characters."""


def format_milliseconds(seconds: float | None) -> str:
    """Format a duration in milliseconds; ``-`` if unknown."""
    return "-" if seconds is None else f"{seconds * 1000:.1f}"


def rows(board: Scoreboard) -> list[tuple[str, ...]]:
    """Return the table's cells, tools in the order of their first call."""
    return [row(name, score) for name, score in board.tools.items()]


def row(name: str, score: ToolScore) -> tuple[str, ...]:
    """Return the cells of one tool."""
    return (
        name,
        f"{score.calls:,}",
        f"{score.ok:,}",
        f"{score.errors:,}",
        f"{score.in_flight:,}",
        format_milliseconds(score.percentile(0.5)),
        format_milliseconds(score.percentile(0.95)),
        score.last,
    )


def live_view(demo: Demo, width: int = 120, height: int = 40) -> RenderableType:
    """Render the live view for a terminal of this size. If it is too small for all tools, the least recently called ones are
    omitted."""
    from rich.console import Group
    from rich.text import Text

    guards = demo.guards
    parts: list[RenderableType] = [_head(demo)]
    panels = _panels(guards)
    below = 1 + max(len(guards.instances), len(guards.circuits) + 1, len(guards.users)) + 1
    note = textwrap.wrap(demo.time_scale.note, width - 1)
    available = (
        height - 1 - 2 - 1 - below - len(note) - EVENT_LINES[0]
    )  # minus the cursor's line, the head and the table's head
    shown = _select_latest(demo.board, max(MIN_TOOLS, available))
    events = event_lines(demo.events, width - 1)
    event_count = min(EVENT_LINES[1], EVENT_LINES[0] + max(0, available - len(demo.board.tools)))
    return Group(
        *parts,
        _calls(shown, len(demo.board.tools) - len(shown)),
        Text(),
        panels,
        *(Text(line, "yellow") for line in events[-event_count:]),
        *(Text(line, "dim") for line in note),
    )


def _head(demo: Demo) -> RenderableType:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    head = Table.grid(padding=(0, 1))
    head.add_row(
        Text(f"dispatch demo on {demo.broker}", "bold", overflow="ellipsis", no_wrap=True),
        ProgressBar(total=1.0, completed=demo.progress, width=20),
        Text(f"{demo.progress:4.0%}"),
    )
    return Group(head, Text(_describe_phase(demo), "bold yellow", overflow="ellipsis", no_wrap=True))


def _describe_phase(demo: Demo) -> str:
    return (
        f"Scenario {demo.scenario_number} of {demo.scenario_count}: {demo.phase}"
        if demo.scenario_number and demo.progress < 1
        else demo.phase
    )


def _select_latest(board: Scoreboard, count: int) -> list[tuple[str, ToolScore]]:
    """Select the most recently called tools, in the table's order; one row less if some are omitted."""
    tools = list(board.tools.items())
    if len(tools) <= count:
        return tools
    selected = sorted(tools, key=lambda item: item[1].latest, reverse=True)[: count - 1]
    return [item for item in tools if item in selected]


def _calls(tools: list[tuple[str, ToolScore]], omitted: int) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    for column in COLUMNS:
        last = column == COLUMNS[-1]
        table.add_column(
            column,
            justify="left" if last or column == "tool" else "right",
            style="cyan" if column == "tool" else "",
            no_wrap=True,
            overflow="ellipsis",
            ratio=1 if last else None,
        )
    for name, score in tools:
        table.add_row(*map(Text, row(name, score)))
    if omitted:
        table.add_row(Text(f"and {omitted} more", "dim"))
    return table


def _panels(guards: GuardSnapshot) -> Table:
    """Render instances, circuit breakers and users side by side."""
    from rich.table import Table
    from rich.text import Text

    instances = _panel(
        ("instance", "state", "running"),
        [
            (Text(view.id), _state(view.state, view.seconds_left), Text(f"{view.in_flight}"))
            for view in guards.instances
        ],
    )
    circuits = _panel(
        ("breaker of", "state"),
        [
            *((Text(each.tool), _state(str(each.state), each.seconds_left)) for each in guards.circuits),
            (Text(f"{guards.closed} other tools", "dim"), Text("closed", "dim")),
        ],
    )
    users = _panel(
        ("user", "ok", "limited"),
        [
            (Text(name), Text(f"{score.admitted:,}"), Text(f"{score.rejected:,}", "red" if score.rejected else ""))
            for name, score in guards.users.items()
        ],
    )
    grid = Table.grid(padding=(0, 2))
    grid.add_row(instances, circuits, users)
    return grid


def _panel(columns: tuple[str, ...], cells: list[tuple[RenderableType, ...]]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(
            column,
            justify="right" if column in _NUMBERS else "left",
            no_wrap=True,
            min_width=_WIDTHS.get((columns[0], column)),
        )
    for row in cells:
        table.add_row(*row)
    return table


def _state(name: str, seconds_left: float | None) -> RenderableType:
    from rich.text import Text

    remaining = "" if seconds_left is None else f" {max(0.0, seconds_left):.1f} s"
    return Text(name + remaining, _COLOURS.get(name, ""))


def event_lines(events: list[Event], width: int) -> list[str]:
    """Format events with their time in lines of at most ``width`` characters."""
    lines: list[str] = []
    for event in events:
        lines += textwrap.wrap(f"{event.at:5.1f} s  {event.text}", width, subsequent_indent=" " * 9)
    return lines


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
    from dispatch.devtools.demo.world import QUERIES, nearest_rank

    board = summary.board
    terminal = is_terminal(sys.stdout)
    width = min(console().width, MAX_WIDTH) if terminal else MAX_WIDTH
    if not terminal:  # the live view has already shown the table
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
