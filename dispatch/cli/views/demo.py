"""Display of the running demo: a live view for a terminal, plain lines for a pipe."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from dispatch.devtools.demo.scoreboard import ToolScore
from dispatch.errors import Outcome

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from dispatch.devtools.demo import Demo, Scoreboard
    from dispatch.devtools.demo.scenarios import Event
    from dispatch.devtools.demo.state_snapshot import GuardSnapshot

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
