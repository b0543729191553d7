"""How the demonstration looks while it runs: a live view for a terminal, plain lines for a pipe."""

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
    from dispatch.devtools.demo.state_snapshot import Guards

COLUMNS = ("tool", "calls", "ok", "errors", "in flight", "p50 ms", "p95 ms", "last answer")
LEAST_TOOLS = 4
"""Rows of the table that are shown however small the terminal is."""
EVENT_LINES = (3, 9)
"""Lines for what happened lately: at least, and at most."""

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
_WIDTHS = {("instance", "state"): 13, ("circuit of", "state"): 10, ("user", "user"): 5, ("user", "ok"): 4}
"""As wide as what will stand there, so that nothing moves when a state changes; together they fit into 80 characters."""


def milliseconds(seconds: float | None) -> str:
    """A duration for people; ``-`` where none is known."""
    return "-" if seconds is None else f"{seconds * 1000:.1f}"


def rows(board: Scoreboard) -> list[tuple[str, ...]]:
    """The table's cells, tools in the order of their first call."""
    return [row(name, score) for name, score in board.tools.items()]


def row(name: str, score: ToolScore) -> tuple[str, ...]:
    """One tool's."""
    return (
        name,
        f"{score.calls:,}",
        f"{score.ok:,}",
        f"{score.errors:,}",
        f"{score.in_flight:,}",
        milliseconds(score.percentile(0.5)),
        milliseconds(score.percentile(0.95)),
        score.last,
    )


def live_view(demo: Demo, width: int = 120, height: int = 40) -> RenderableType:
    """What stands on a terminal of this size while it runs. Where there is little room, tools whose calls are the longest
    ago are left out of the table."""
    from rich.console import Group
    from rich.text import Text

    guards = demo.guards
    parts: list[RenderableType] = [_head(demo)]
    panels = _panels(guards)
    below = 1 + max(len(guards.instances), len(guards.circuits) + 1, len(guards.users)) + 1
    note = textwrap.wrap(demo.pace.shortened, width - 1)
    left = height - 1 - 2 - 1 - below - len(note) - EVENT_LINES[0]  # the cursor's line, the head, the table's own head
    shown = _latest(demo.board, max(LEAST_TOOLS, left))
    happened = event_lines(demo.events, width - 1)
    room = min(EVENT_LINES[1], EVENT_LINES[0] + max(0, left - len(demo.board.tools)))
    return Group(
        *parts,
        _calls(shown, len(demo.board.tools) - len(shown)),
        Text(),
        panels,
        *(Text(line, "yellow") for line in happened[-room:]),
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
    return Group(head, Text(_where(demo), "bold yellow", overflow="ellipsis", no_wrap=True))


def _where(demo: Demo) -> str:
    return f"Act {demo.act} of {demo.acts}: {demo.phase}" if demo.act and demo.progress < 1 else demo.phase


def _latest(board: Scoreboard, most: int) -> list[tuple[str, ToolScore]]:
    """The tools that fit, in the table's order: those whose calls began last; one row less where some are left out."""
    tools = list(board.tools.items())
    if len(tools) <= most:
        return tools
    kept = sorted(tools, key=lambda item: item[1].latest, reverse=True)[: most - 1]
    return [item for item in tools if item in kept]


def _calls(tools: list[tuple[str, ToolScore]], left_out: int) -> Table:
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
    if left_out:
        table.add_row(Text(f"and {left_out} more", "dim"))
    return table


def _panels(guards: Guards) -> Table:
    """Instances, circuits and users, side by side."""
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
        ("circuit of", "state"),
        [
            *((Text(each.tool), _state(str(each.state), each.seconds_left)) for each in guards.circuits),
            (Text(f"{guards.closed} other tools", "dim"), Text("closed", "dim")),
        ],
    )
    users = _panel(
        ("user", "ok", "limited"),
        [
            (Text(name), Text(f"{score.let_through:,}"), Text(f"{score.refused:,}", "red" if score.refused else ""))
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

    left = "" if seconds_left is None else f" {max(0.0, seconds_left):.1f} s"
    return Text(name + left, _COLOURS.get(name, ""))


def event_lines(events: list[Event], width: int) -> list[str]:
    """What happened, with the second of it, in lines of at most ``width`` characters."""
    lines: list[str] = []
    for event in events:
        lines += textwrap.wrap(f"{event.at:5.1f} s  {event.text}", width, subsequent_indent=" " * 9)
    return lines


def plain_line(demo: Demo) -> str:
    """One line of progress."""
    board = demo.board
    ok = board.outcomes[Outcome.SUCCESS]
    return (
        f"{demo.progress:4.0%}  {board.calls:5,} calls  {ok:5,} ok  {board.calls - ok - board.in_flight:3,} errors  "
        f"{board.in_flight:2} in flight  {_where(demo)}"
    )
