"""What ``dispatch top``, ``dispatch calls`` and the demo draw: pure functions of the values of admin endpoints
(docs/reference/admin-api.md)."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import mul
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dispatch.admin.api import describe_event, find_severity
from dispatch.cli.base import format_count, make_printable
from dispatch.errors import Outcome

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

Row = Mapping[str, Any]
Values = Mapping[str, Sequence[Row]]
"""Rows by the name of their table, and ``processes``."""

# Cells: each function reads one cell of a row.

_COLOURS: Final = ("green", "yellow", "red")
_STATES: Final = ("state", "circuit", "outcome")
"""Keys of values with a colour."""
_ALARMS: Final = {"failed": "red", "failure_rate": "red", "refused": "yellow", "error": "red"}
"""Keys of values with a colour unless they are 0 or empty."""


def one_line(text: str) -> str:
    """Escape control characters, replace line ends and tabs by blanks, and truncate to :data:`MAX_CHARS`."""
    return " ".join(make_printable(text, MAX_CHARS).splitlines()).replace("\t", " ")


MAX_CHARS: Final = 5_000
"""Characters of a line or a cell."""


def cut_line(text: str, style: str = "") -> Text:
    """Return a text in one line, which is cut where the screen ends."""
    from rich.text import Text

    return Text(one_line(text), style, no_wrap=True, overflow="ellipsis")


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        heading: of the column.
        key: of the value, by which rows are sorted.
        format: returns the cell of a value, or of the row if ``of_row``.
        is_number: aligned to the right, and sorted from the greatest value on.
        from_width: of the screen, on which the column is shown.
        min_width: so that columns do not move when a state changes.
    """

    heading: str
    key: str
    format: Callable[[Any], str] = str
    is_number: bool = False
    from_width: int = 0
    min_width: int = 0
    of_row: bool = False

    def cell(self, row: Row) -> str:
        """Return the text of the cell; ``-`` for an unknown value."""
        value = row if self.of_row else row.get(self.key)
        return "-" if value is None else one_line(self.format(value))

    def style(self, row: Row) -> str:
        """Return the style of the cell."""
        value = row.get(self.key)
        if self.key in _STATES:
            # 'open' is a sound state of a session.
            return "" if value is None or "rtt" in row else _COLOURS[find_severity(value)]
        return _ALARMS.get(self.key, "") if value else ""


NAME_CHARS: Final = 32
"""Of a name in the line of a call."""
_count: Final = "{:,.0f}".format
_rate: Final = "{:,.1f}".format
_share: Final = "{:.1%}".format


def milliseconds(seconds: float | None) -> str:
    """Format a duration in milliseconds; ``-`` if unknown."""
    return "-" if seconds is None else f"{seconds * 1000:,.1f}"


def _state(row: Row) -> str:
    """Return a state, how many of several processes see it, and the seconds until it ends."""
    left = row["seconds_left"] if row.get("seconds_left") is not None else row.get("retry_after")
    seen, of = row.get("seen", 1), row.get("of", 1)
    return (
        f"{row['state']}{f' {max(0.0, left):.1f} s' if left is not None and row['state'] != 'closed' else ''}"
        f"{f' at {seen} of {of}' if seen < of else ''}{' by hand' if row.get('is_held') else ''}"
    )


def _up(row: Row) -> str:
    known = row.get("instances") or (row.get("instances") == 0 and row.get("calls"))
    return f"{row.get('instances_up', 0)} of {row['instances']}" if known else "-"


def _name(user: str) -> str:
    return user or "-"


def _place(row: Row) -> str:
    return f"{row['tool']} at {row['instance']}" if row.get("instance") else str(row["tool"])


def clock_time(at: float) -> str:
    """Format a point in time as the local time of day."""
    return f"{time.strftime('%H:%M:%S', time.localtime(at))}.{int(at * 1000) % 1000:03}"


def _ago(seconds: float) -> str:
    minutes = int(seconds) // 60
    return f"{seconds:.0f} s" if seconds < 120 else f"{minutes} min" if minutes < 120 else f"{minutes // 60} h"


TABLES: Final[Mapping[str, Sequence[Column]]] = {
    "tools": (
        Column("tool", "name"),
        Column("service", "service", from_width=110),
        Column("calls", "calls", _count, True, from_width=70),
        Column("calls/s", "rate", _rate, True),
        Column("failed", "failed", _count, True, from_width=70),
        Column("% failed", "failure_rate", _share, True),
        Column("refused", "refused", _count, True, from_width=100),
        Column("running", "in_flight", _count, True, from_width=80),
        Column("queued", "queued", _count, True, from_width=130),
        Column("p50 ms", "p50", milliseconds, True, from_width=100),
        Column("p95 ms", "p95", milliseconds, True),
        Column("circuit", "circuit", min_width=9),
        Column("up", "instances_up", _up, of_row=True),
        Column("last result", "last"),
    ),
    "instances": (
        Column("instance", "id"),
        Column("state", "state", _state, of_row=True, min_width=13),
        Column("service", "service"),
        Column("version", "version", from_width=110),
        Column("running", "in_flight", _count, True),
        Column("latency ms", "latency", milliseconds, True),
        Column("failures", "failures", _count, True),
        Column("ejections", "ejections", _count, True, from_width=100),
        Column("queued", "queued", _count, True, from_width=100),
        Column("requests", "requests", _count, True, from_width=120),
        Column("errors", "errors", _count, True, from_width=120),
    ),
    "circuits": (
        Column("circuit of", "tool", _place, of_row=True),
        Column("state", "state", _state, of_row=True, min_width=10),
        Column("failures", "failure_rate", _share, True),
        Column("slow calls", "slow_call_rate", _share, True),
        Column("set until", "until", clock_time),
    ),
    "users": (
        Column("user", "user", _name, min_width=5),
        Column("calls", "calls", _count, True),
        Column("calls/s", "rate", _rate, True),
        Column("failed", "failed", _count, True),
        Column("refused", "refused", _count, True),
        Column("last call", "last", clock_time),
    ),
    "sessions": (
        Column("peer", "peer"),
        Column("service", "service"),
        Column("state", "state"),
        Column("rtt ms", "rtt", milliseconds, True),
        Column("bytes in flight", "in_flight_bytes", _count, True),
        Column("sent", "packets_sent", _count, True),
        Column("received", "packets_received", _count, True),
        Column("again", "retransmissions", _count, True),
        Column("process", "process", from_width=110),
    ),
    "calls": (
        Column("at", "at", clock_time, min_width=12),
        Column("id", "id", from_width=80),
        Column("outcome", "outcome", min_width=10),
        Column("ms", "duration", milliseconds, True),
        Column("tool", "tool"),
        Column("user", "user", _name),
        Column("instance", "instance"),
        Column("tries", "attempts", _count, True, from_width=100),
        Column("ran", "ran", from_width=100),
        Column("error", "error", from_width=90),
        Column("process", "process", from_width=130),
    ),
    "processes": (
        Column("process", "name"),
        Column("kind", "kind"),
        Column("state", "state"),
        Column("url", "url"),
        Column("host", "host", from_width=110),
        Column("pid", "pid", str, True, from_width=110),
        Column("up", "uptime", _ago, True),
        Column("calls/s", "rate", _rate, True),
        Column("running", "in_flight", _count, True),
        Column("problem", "problem"),
    ),
}

# Merging of the values of several processes.

_SUMMED: Final = ("calls", "failed", "refused", "in_flight", "queued", "rate", "requests", "errors", "ejections")
_WORST: Final = ("p50", "p95", "p99", "latency", "failures", "failure_rate", "slow_call_rate", "last", "instances")
_OF_STATE: Final = ("seconds_left", "retry_after", "until", "is_held")
_KEYS: Final = {
    "tools": ("name", "version"),
    "instances": ("service", "id"),
    "circuits": ("tool", "version", "instance"),
    "users": ("user",),
}
"""What several processes know under the same name; other rows are not merged."""


def merge(table: str, rows: Iterable[Row]) -> list[Row]:
    """Merge the rows of several processes: numbers are added, of durations, shares and states the worst is shown.
    ``urls`` are the dispatchers that know the row, ``seen`` of ``of`` of them report the state, and ``own_url`` is the
    process of an instance, ``own_service`` its service by the name that it has there."""
    if table not in _KEYS:
        return list(rows)
    merged: dict[tuple[Any, ...], dict[str, Any]] = {}
    ordered = sorted(rows, key=_is_own)  # a dispatcher knows the state of an instance for calls
    aliases = _find_aliases(ordered) if table == "instances" else {}
    for row in ordered:
        key = tuple(row.get(name) for name in _KEYS[table])
        key = aliases.get(key, key) if _is_own(row) else key
        known = merged.get(key)
        if known is None:
            known = merged[key] = {**row, "urls": [] if _is_own(row) else [row.get("url")], "seen": 1, "of": 1}
        elif _is_own(row):
            known.update({name: value for name, value in row.items() if known.get(name) is None})
        else:
            _add(known, row)
        if _is_own(row):
            known["own_url"], known["own_service"] = row.get("url"), row.get("service")
            if row["state"] != "up":
                known["state"] = row["state"]
    return list(merged.values())


def _find_aliases(rows: Iterable[Row]) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """Return the key that dispatchers have for an instance, by the key that its own process has: the id of a service in a
    catalogue may be another one than the service's own name. Ids that are not unique have none."""
    own: dict[str, set[tuple[Any, ...]]] = {}
    known: dict[str, set[tuple[Any, ...]]] = {}
    for row in rows:
        if _is_own(row) or row.get("kind") == "session":
            (own if _is_own(row) else known).setdefault(row["id"], set()).add((row.get("service"), row["id"]))
    return {
        keys.copy().pop(): known[id].copy().pop()
        for id, keys in own.items()
        if len(keys) == len(known.get(id, ())) == 1
    }


def _is_own(row: Row) -> bool:
    return row.get("kind") == "own"


def _add(known: dict[str, Any], row: Row) -> None:
    known["urls"].append(row.get("url"))
    rates: list[float] = [known.get("rate") or 0.0, row.get("rate") or 0.0]
    shares = known.get("failure_rate"), row.get("failure_rate")
    for key in ("state", "circuit"):
        if row.get(key) is not None:
            before, after = find_severity(known.get(key)), find_severity(row[key])
            known["of"] += 1
            if after > before or known.get(key) is None:
                known.update({each: row[each] for each in (key, *_OF_STATE) if each in row}, seen=1)
            elif after == before:
                known["seen"] += 1
    for key, value in row.items():
        old = known.get(key)
        if old is None:
            known[key] = value
        elif value is not None and key in _SUMMED and not isinstance(value, Mapping):  # 'refused' of an instance
            known[key] = old + value
        elif value is not None and key in _WORST:
            known[key] = max(old, value)
        elif value is not None and key == "instances_up":
            known[key] = min(old, value)
    if None not in shares and any(rates):
        known["failure_rate"] = sum(map(mul, shares, rates)) / sum(rates)


# What the operator has chosen, and the keys that change it.


@dataclass
class View:
    """What a screen shows.

    Attributes:
        table: its name.
        sort: key of the column by which rows are sorted; empty: trouble first.
        is_reversed: the order of the rows.
        pattern: rows contain it.
        selected: position of the selected row.
        failed_only: of calls, only those that failed.
    """

    table: str = "tools"
    sort: str = ""
    is_reversed: bool = False
    pattern: str = ""
    selected: int = 0
    failed_only: bool = False

    def sort_by_next(self) -> None:
        """Sort by the next column; after the last one: trouble first."""
        keys = ["", *(column.key for column in TABLES[self.table])]
        self.sort, self.is_reversed = keys[(keys.index(self.sort) + 1) % len(keys)], False


def select_rows(values: Values, view: View) -> list[Row]:
    """Return the rows of a view's table that match its pattern, in its order."""
    columns = TABLES[view.table]
    pattern = view.pattern.lower()
    rows = [
        row
        for row in values.get(view.table, ())
        if (not pattern or any(pattern in column.cell(row).lower() for column in columns))
        and not (view.table == "calls" and view.failed_only and row.get("outcome") == "success")
    ]
    column = next((each for each in columns if each.key == view.sort), None)
    if column is not None:
        known = [row for row in rows if row.get(column.key) is not None]
        known.sort(key=lambda row: row[column.key], reverse=column.is_number)
        rows = known + [row for row in rows if row.get(column.key) is None]
    elif view.table not in ("calls", "users"):
        rows.sort(key=_trouble, reverse=True)
    return rows[::-1] if view.is_reversed else rows


def _trouble(row: Row) -> tuple[float, ...]:
    state = row.get("circuit") if "circuit" in row else None if "rtt" in row else row.get("state")
    return (find_severity(state), round(row.get("failure_rate") or 0.0, 2))


# Rendering.

NARROW: Final = 80
"""Width below which users are a page of their own only."""
MIN_WIDTH: Final = 12
"""A name may have as much, or a fifth of the screen: a longer one is cut, so that it displaces no figure."""
_NAMED: Final = ("name", "service", "version", "id", "tool", "instance", "user", "peer", "process")
"""Keys of values that are names."""
WIDE: Final = 130
"""Width from which columns are two blanks apart."""
MIN_ROWS: Final = 4
"""Rows of the tools, if anything else is shown."""
PANEL_ROWS: Final = 6
EVENT_LINES: Final = (3, 9)
"""Minimum and maximum number of lines for recent events."""


def choose_columns(table: str, rows: Sequence[Row], width: int = 10_000) -> list[Column]:
    """Return the columns of a table for a screen of this width, of which the rows have values; the first one always."""
    first, *others = (column for column in TABLES[table] if column.from_width <= width)
    return [first, *(column for column in others if any(column.key in row for row in rows))]


def render_table(
    table: str,
    rows: Sequence[Row],
    width: int,
    height: int = 10_000,
    *,
    selected: int | None = None,
    columns: Sequence[Column] | None = None,
) -> Table:
    """Render rows in at most ``height`` lines, with the heading. If they do not fit, those around the ``selected`` one
    are shown, without a selected one those that were called last."""
    from rich.table import Table
    from rich.text import Text

    shown = columns or choose_columns(table, rows, width)
    fills = columns is None and not shown[-1].is_number
    gap = 2 if width >= WIDE else 1
    result = Table(box=None, pad_edge=False, header_style="bold", padding=(0, gap, 0, 0), expand=fills)
    visible, omitted = _fit(rows, max(1, height - 1), selected)
    texts = [[column.cell(row) for row in visible] for column in shown]
    widths = {
        column.key: max(map(len, (column.heading, *cells))) + gap for column, cells in zip(shown, texts, strict=True)
    }
    names = [key for key in widths if key in _NAMED]
    space = width - sum(widths[key] for key in widths if key not in _NAMED)
    longest = max(MIN_WIDTH, min(width // 5, space // max(1, len(names)) - gap))
    for column in shown:
        result.add_column(
            column.heading,
            justify="right" if column.is_number else "left",
            no_wrap=True,
            overflow="ellipsis",
            min_width=column.min_width or None,
            max_width=longest if column.key in _NAMED else None,
            ratio=1 if fills and column is shown[-1] else None,
        )
    for row, *cells in zip(visible, *texts, strict=True):
        is_selected = selected is not None and row is rows[selected]
        colours = (
            "" if is_selected else column.style(row) or ("cyan" if column is shown[0] else "") for column in shown
        )
        result.add_row(*map(Text, cells, colours), style="reverse" if is_selected else "")
    if omitted or not rows:
        result.add_row(Text(f"and {omitted} more" if rows else "none", "dim"))
    return result


def _fit(rows: Sequence[Row], count: int, selected: int | None) -> tuple[Sequence[Row], int]:
    if len(rows) <= count:
        return rows, 0
    count = max(1, count - 1)
    if selected is None:
        latest = sorted(range(len(rows)), key=lambda index: rows[index].get("latest", 0), reverse=True)[:count]
        return [rows[index] for index in sorted(latest)], len(rows) - count
    first = min(max(0, selected - count // 2), len(rows) - count)
    return rows[first : first + count], len(rows) - count


def render_screen(
    values: Values,
    view: View,
    width: int,
    height: int,
    *,
    head: Sequence[RenderableType] = (),
    events: Sequence[str] = (),
    foot: Sequence[RenderableType] = (),
    selected: int | None = None,
) -> RenderableType:
    """Render a screen: ``head``, the table of the view, below the tools the guards and the latest ``events``, and ``foot``.

    Args:
        height: of the terminal; the last line is the cursor's.
        selected: position of the selected row; None: rows cannot be selected.
    """
    from rich.console import Group
    from rich.text import Text

    rows = select_rows(values, view)
    space = height - 1 - len(head) - len(foot)
    panels, panel_height = _panels(values, width) if view.table == "tools" else (Text(), space)
    if space < MIN_ROWS + 1 + panel_height + 1 + EVENT_LINES[0]:
        return Group(*head, render_table(view.table, rows, width, space, selected=selected), *foot)
    space -= panel_height + 1
    table_height = min(len(rows) + 1, space - EVENT_LINES[0])
    lines = wrap_events(events, width - 1)
    lines = lines[-min(EVENT_LINES[1], max(EVENT_LINES[0], space - table_height)) :]
    return Group(
        *head,
        render_table("tools", rows, width, table_height, selected=selected),
        Text(),
        panels,
        *(cut_line(line, "yellow") for line in lines),
        *foot,
    )


def _panels(values: Values, width: int) -> tuple[RenderableType, int]:
    """Return instances, circuits that are not closed and, where there is room, users side by side, and their height."""
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table

    columns = {name: {column.key: column for column in TABLES[name]} for name in ("instances", "circuits", "users")}
    circuits = [row for row in values.get("circuits", ()) if row.get("state") != "closed"]
    closed = len(values.get("circuits", ())) - len(circuits)
    circuits = select_rows({"circuits": circuits}, View("circuits"))
    if closed:
        circuits.append({"tool": format_count(closed, "other" if circuits else "tool"), "state": "closed"})
    users = sorted(values.get("users", ()), key=lambda row: row.get("refused") or 0, reverse=True)
    found = (
        ("instances", select_rows(values, View("instances")), ("id", "state", "in_flight")),
        ("circuits", circuits, ("tool", "state")),
        ("users", users, ("user", "calls", "refused")),
    )[: 3 if width >= NARROW else 2]
    tables = [
        render_table(
            name,
            rows,
            min(width, WIDE - 1),
            PANEL_ROWS + 1,
            columns=[columns[name][key]._replace(from_width=0) for key in keys],
        )
        for name, rows, keys in found
    ]
    ample = Console(width=10_000)
    if sum(Measurement.get(ample, ample.options, each).maximum + 2 for each in tables) > width + 2:
        tables = tables[:2]  # the figures of all would be cut
    grid = Table.grid(padding=(0, 2))
    grid.add_row(*tables)
    return grid, 1 + min(PANEL_ROWS, max(len(rows) for _, rows, _ in found[: len(tables)]))


def wrap_events(events: Iterable[str], width: int) -> list[str]:
    """Wrap events that begin with their time in lines of at most ``width`` characters."""
    return [line for each in events for line in textwrap.wrap(each, width, subsequent_indent=" " * 9)]


def event_line(event: Row) -> str:
    """Format an event of ``/api/events`` as one line."""
    return one_line(f"{clock_time(event['at'])[:8]} {describe_event(event)}")


_OUTCOME_CHARS: Final = max(map(len, Outcome))


def call_line(call: Row, process: str = "") -> Text:
    """Format a call as one line: when, id, outcome, duration, tool, user, instance, and what is unusual."""
    from rich.text import Text

    outcome = str(call["outcome"])
    more = [
        call["error"] if call.get("error") not in (None, outcome) else "",
        f"{call['attempts']} attempts" if call.get("attempts", 1) > 1 else "",
        "may have run" if call.get("ran") == "maybe" else "",
        process,
    ]
    text = Text(one_line(f"{clock_time(call['at'])} {call['id']:>6} "))
    text.append(one_line(f"{outcome:{_OUTCOME_CHARS}} "), _COLOURS[find_severity(outcome)])
    text.append(f"{milliseconds(call['duration']):>8} ms ")
    names = call["tool"], _name(call["user"]), call.get("instance") or "-"
    tool, user, instance = (make_printable(each, NAME_CHARS) for each in names)
    text.append(one_line(f"{tool:14} {user:8} {instance:10}"))
    text.append(one_line("".join(f"  {each}" for each in more if each)), "dim")
    return text


# The timeline of one call.

LABEL_WIDTH: Final = 26


def waterfall(call: Row, width: int) -> list[Text]:
    """Return the timeline of one call: facts, then a line for each wait and attempt."""
    from rich.text import Text

    outcome, total = str(call["outcome"]), max(call["duration"], 1e-6)
    head = Text("call ", no_wrap=False)
    head.append(one_line(f"{call['id']}  "), "bold")
    head.append(one_line(str(call["tool"])), "bold cyan")
    head.append(one_line(f"{' ' + call['version'] if call.get('version') else ''} of {call.get('service') or '-'}  "))
    head.append(one_line(outcome), _COLOURS[find_severity(outcome)])
    head.append(f" after {milliseconds(call['duration'])} ms")
    ran = {"yes": "the tool ran", "no": "the tool did not run", "maybe": "the tool may have run"}
    facts = [
        f"began {clock_time(call['at'])}",
        f"user {call.get('user') or '-'}",
        ran.get(str(call.get("ran")), ""),
        f"error {call['error']}" if call.get("error") else "",
        f"rejected by {call['rejected_by']}" if call.get("rejected_by") else "",
        f"{call['chunks']} chunks" if call.get("chunks", 0) > 1 else "",
        f"trace {call['trace_id']}" if call.get("trace_id") else "",
    ]
    lines = [head, Text(one_line(" · ".join(filter(None, facts))))]
    if call.get("message"):
        lines.append(Text(one_line(str(call["message"])), "yellow"))
    if call.get("arguments") is not None:
        lines.append(Text(one_line(f"arguments {call['arguments']}"), "dim"))
    parts = [("wait for a place", "", each, "") for each in call.get("waits") or ()]
    for each in call.get("trail") or ():
        reason = f"  ({each['reason']})" if each.get("reason") not in (None, "", "first") else ""
        note = one_line(f"  {each.get('error') or each['outcome']}{reason}")
        parts.append((f"attempt {each['number']} {each.get('instance') or '-'}", str(each["outcome"]), each, note))
    if not parts:
        return [*lines, Text("Nothing was sent.", "dim")]
    bars = max(10, width - LABEL_WIDTH - 14 - max(len(note) for *_, note in parts))
    lines.append(Text(f"{'':{LABEL_WIDTH}} 0{milliseconds(total) + ' ms':>{bars - 1}}", "dim"))
    for label, outcome, each, note in sorted(parts, key=lambda part: part[2]["start"]):
        first = max(0, min(bars - 1, int(each["start"] / total * bars)))
        length = max(1, min(bars - first, round((each["duration"] or 0.0) / total * bars)))
        line = Text(f"{make_printable(label, LABEL_WIDTH):{LABEL_WIDTH}} {' ' * first}", no_wrap=True)
        line.append(("█" if outcome else "░") * length, _COLOURS[find_severity(outcome)] if outcome else "dim")
        lines.append(line.append(f"{' ' * (bars - first - length)} {milliseconds(each['duration']):>9} ms{note}"))
    return lines


# One tool.

_BARS: Final = "▁▂▃▄▅▆▇█"


def sparkline(counts: Sequence[float]) -> str:
    """Return a bar for each count, relative to the greatest; a blank for 0."""
    most = max(counts, default=0)
    return "".join(_BARS[min(7, int(count / most * 8))] if count else " " for count in counts) if most else ""


def render_tool(
    tool: Row,
    values: Values,
    width: int,
    height: int,
    *,
    head: Sequence[RenderableType] = (),
    foot: Sequence[RenderableType] = (),
    selected: int | None = None,
) -> RenderableType:
    """Render one tool: its facts, guards and policy, and its latest calls; a small screen has less, and its foot."""
    from rich.console import Group
    from rich.text import Text

    title = cut_line(str(tool["name"]), "bold cyan")
    title.append(
        one_line(f" {tool.get('version') or ''} of {tool.get('service') or '-'}  {tool.get('description') or ''}")
    )
    history = tool.get("history") or {}
    minutes = max(1, min(5, (width - 40) // 12))  # a slot has 5 s
    calls, failed = (history.get(key, ())[-12 * minutes :] for key in ("calls", "failed"))
    events = sorted(tool.get("events", ()), key=lambda event: event["at"])
    policy = [
        f"{each['key']} {each['value']} ({each['source']})"
        for each in tool.get("policy", ())
        if each["source"] != "default"
    ]
    lines = [
        title,
        cut_line(f"calls of the last {minutes} min  {sparkline(calls)}  {sum(calls):,}"),
        cut_line(f"failed                   {sparkline(failed)}  {sum(failed):,}", "red" if any(failed) else "dim"),
        cut_line(f"policy: {', '.join(policy) or 'defaults'}", "dim"),
        *(cut_line(event_line(event), "yellow") for event in events[-3:]),
    ]
    found = {"instances": tool.get("instance_list", ()), "circuits": tool.get("circuits", ())}
    panels, panel_height = _panels(found, width)
    parts: list[RenderableType] = [*lines, Text(), panels, Text()]
    space = height - 1 - len(head) - len(foot) - len(lines) - panel_height - 2
    if space < MIN_ROWS + 1:
        parts, space = [*lines], space + panel_height + 2
    if space < MIN_ROWS:
        return Group(*head, *lines[: max(1, space + len(lines))], *foot)
    table = render_table("calls", select_rows(values, View("calls")), width, space, selected=selected)
    return Group(*head, *parts, table, *foot)
