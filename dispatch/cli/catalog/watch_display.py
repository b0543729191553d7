"""The displays of ``dispatch tools --watch``: JSON, lines, or a live table on a terminal."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from dispatch.catalog import Catalog
from dispatch.cli.catalog.tool_table import make_tool_table, make_unused_table, print_tools, print_unused
from dispatch.cli.catalog.tool_watch import WatchedState
from dispatch.cli.output import make_printable, print_json, print_out
from dispatch.telemetry.events import CatalogChanged, ChangeHeld, Event, ItemRefused, ItemShadowed, SourceChanged

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType
    from rich.live import Live

MAX_LINES: Final = 10
"""Recent changes below the live table."""
_SHOWN_DIGITS: Final = 12


def describe_event(event: Event, changes: Sequence[str]) -> list[str]:
    """Return the lines of an event."""
    match event:
        case CatalogChanged(ok=False):
            lines = [f"reload refused: {event.problem}"]
        case SourceChanged():
            lines = [f"source {event.source}: {event.new}{f': {event.problem}' if event.problem else ''}"]
        case ItemRefused():
            where = f"{event.origin}: {event.key}" if event.key else event.origin
            lines = [f"refused {where}: {event.problem}. Fix: {event.fix}."]
        case ItemShadowed():
            lines = [f"shadowed {event.name} of {event.source}: {event.active_source} comes earlier"]
        case ChangeHeld():
            new = event.new[:_SHOWN_DIGITS]
            lines = [f"held {event.name} {new} of {event.source}: dispatch tools approve {event.name}"]
        case _:
            lines = []
    at = time.strftime("%H:%M:%S", time.localtime(event.at))
    return [f"{at}  {make_printable(' '.join(line.split()))}" for line in (*lines, *changes)]


class JsonDisplay:
    """One JSON line for the state at the start (``event``: ``tools``), and one for each event.

    Args:
        catalog: returns the catalogue in force.
    """

    def __init__(self, catalog: Callable[[], Catalog]) -> None:
        self._catalog = catalog

    def show_start(self, state: WatchedState) -> None:
        catalog = self._catalog()
        tools = [each.as_dict(catalog) for each in state.tools.values()]
        print_json({"event": "tools", "at": time.time(), "sources": dict(state.sources), "tools": tools})

    def show_event(self, event: Event, changes: Sequence[str], state: WatchedState) -> None:
        print_json(event.as_dict())

    def show_note(self, note: str, state: WatchedState) -> None:
        print_json({"event": "note", "at": time.time(), "note": note})

    def show_state(self, state: WatchedState) -> None:
        pass


class LineDisplay:
    """The tables at the start, and lines for each change.

    Args:
        shows_unused: also what is not in force.
    """

    def __init__(self, shows_unused: bool) -> None:
        self._shows_unused = shows_unused

    def show_start(self, state: WatchedState) -> None:
        print_tools(list(state.tools.values()), state.circuits)
        if self._shows_unused:
            print_unused(state.unused)
        print_out("")

    def show_event(self, event: Event, changes: Sequence[str], state: WatchedState) -> None:
        for line in describe_event(event, changes):
            print_out(line)

    def show_note(self, note: str, state: WatchedState) -> None:
        print_out(f"{time.strftime('%H:%M:%S')}  {make_printable(note)}")

    def show_state(self, state: WatchedState) -> None:
        pass


class LiveDisplay:
    """A table that is replaced at each change, with the recent changes below it.

    Args:
        live: the display of rich.
        shows_unused: also what is not in force.
    """

    def __init__(self, live: Live, shows_unused: bool) -> None:
        self._live = live
        self._shows_unused = shows_unused
        self._lines: deque[str] = deque(maxlen=MAX_LINES)

    def show_start(self, state: WatchedState) -> None:
        self.show_state(state)

    def show_event(self, event: Event, changes: Sequence[str], state: WatchedState) -> None:
        self._lines.extend(describe_event(event, changes))
        self.show_state(state)

    def show_note(self, note: str, state: WatchedState) -> None:
        self._lines.append(f"{time.strftime('%H:%M:%S')}  {make_printable(note)}")
        self.show_state(state)

    def show_state(self, state: WatchedState) -> None:
        from rich.console import Group
        from rich.text import Text

        parts: list[RenderableType] = [make_tool_table(list(state.tools.values()), state.circuits)]
        if self._shows_unused and state.unused:
            parts += ["", make_unused_table(state.unused)]
        sources = "  ".join(f"{id}: {now}" for id, now in state.sources.items())
        parts += ["", Text(make_printable(sources), style="dim"), *map(Text, self._lines)]
        self._live.update(Group(*parts), refresh=True)
