"""``dispatch top``: running processes on one screen, and actions on them."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import os
import re
import signal
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote, urlencode

import typer

from dispatch._internal import cancel_and_wait
from dispatch.admin.api import CallDetails, ToolDetails
from dispatch.cli.admin import ROWS, AdminError, Endpoints, Fleet, find_fleet
from dispatch.cli.base import (
    Exit,
    Settings,
    console,
    format_count,
    is_terminal,
    make_printable,
    print_json,
    run_async,
    with_settings,
)
from dispatch.cli.screen import (
    TABLES,
    Row,
    Values,
    View,
    clock_time,
    cut_line,
    event_line,
    render_screen,
    render_tool,
    select_rows,
    waterfall,
)

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

PATHS: Final = {name: f"/api/{name}" for name in ROWS} | {"calls": "/api/calls?limit=200"}
FAILED_CALLS: Final = "/api/calls?limit=200&failed=1"
PAGES: Final = tuple(TABLES)
READ: Final = {"tools": ("tools", "instances", "circuits", "users", "events")}
"""Tables that are read for a page, if not only its own."""
DURATIONS: Final = {"5 min": 300, "30 min": 1800, "2 h": 7200, "until it is undone": None}
PAGE_KEYS: Final = {
    "up": -1,
    "down": 1,
    "k": -1,
    "j": 1,
    "page up": -10,
    "page down": 10,
    "home": -(10**9),
    "end": 10**9,
}
PEERS_S: Final = 5.0
"""Seconds between two looks for further processes."""
PRINTED: Final = 10_000
"""Height of a screen that is printed once: all rows, no keys."""
PRINTED_WIDTH: Final = 140
"""For a pipe."""
HELP: Final = (
    "1 … 7, tab    another table",
    "↑ ↓ j k       select a row; page up, page down, home, end",
    "enter         open the tool, or the call; the calls of the instance or user",
    "esc           back; clear the filter",
    "/             show only rows that contain a text",
    "s, S          sort by the next column; reverse",
    "f             of calls, only those that failed",
    "o c r x       circuit of the selected tool: open, close, reset, disable (admit all calls, count none)",
    "e a d         selected instance: eject, admit, drain",
    "space         pause",
    "q, Ctrl-C     quit",
)
CIRCUIT_KEYS: Final = {"o": "open", "c": "close", "r": "reset", "x": "disable"}
INSTANCE_KEYS: Final = {"e": "eject", "a": "admit", "d": "drain"}


@with_settings("broker", "token_file", "trust_certs", "trust")
def top(
    settings: Settings, endpoints: Endpoints, every: Annotated[float, typer.Option(min=0.1)] = 1.0, json: bool = False
) -> None:
    """Watch running processes, and act on them.

    Tools, instances, circuits, users, sessions and calls of all processes together; what needs attention is first. Keys are
    shown at the bottom; [bold]?[/bold] lists all. An action asks for its reason and is written to the audit log.

    [bold]dispatch top 9464[/bold]

    [bold]dispatch top agents-1:9464 agents-2:9464 --token TOKEN[/bold]

    [bold]dispatch top --broker pulsar://localhost:6650[/bold] finds all agents and services with an admin endpoint there.

    Processes are started with --admin, connect(admin=…) or ToolServer(admin=…). Without a terminal the screen is printed
    once. The exit code is 1 if no process answers.

    Args:
        every (SECONDS): Seconds between updates.
        json: Print the present values as one line of JSON.
    """
    answers = run_async(_top(settings, endpoints, every, json))
    if not answers:
        raise typer.Exit(Exit.FAILED)


async def _top(settings: Settings, endpoints: Endpoints, every: float, json: bool) -> bool:
    screen = TopScreen(await find_fleet(settings, endpoints), _user())
    if json:
        screen.values = await screen.fleet.fetch(PATHS)
        print_json(screen.values)
    elif is_terminal(sys.stdout) and is_terminal(sys.stdin):
        await screen.run(every)
    else:
        await screen.start()
        width = console().width if is_terminal(sys.stdout) else PRINTED_WIDTH
        console().print(screen.render(width, PRINTED), width=width)
    return any(process["state"] != "unreachable" for process in screen.values["processes"])


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no name for this user id
        return "operator"


@dataclass
class Action:
    """An action that waits for its reason.

    Attributes:
        text: what it does.
        urls: of the processes that do it.
        path, body: of the request.
        durations: labels of the seconds after which it is undone, from the chosen one on; empty: it cannot be undone.
    """

    text: str
    urls: Sequence[str]
    path: str
    body: Mapping[str, Any]
    durations: list[str] = field(default_factory=lambda: list(DURATIONS))

    def request(self, user: str, reason: str) -> dict[str, Any]:
        """Return the body of the request."""
        seconds = DURATIONS[self.durations[0]] if self.durations else None
        return {**self.body, "user": user, "reason": reason, **({} if seconds is None else {"for": seconds})}


def plan_action(key: str, table: str, row: Row) -> Action | str | None:
    """Return the action of a key on a row, why it is impossible, or None: the key is for another table."""
    if key in CIRCUIT_KEYS and table in ("tools", "circuits"):
        tool = row["name"] if table == "tools" else row["tool"]
        body = {"action": CIRCUIT_KEYS[key], "version": row.get("version"), "instance": row.get("instance")}
        action = Action(
            f"{CIRCUIT_KEYS[key]} the circuit of '{tool}'",
            row["urls"],
            f"/api/circuits/{quote(tool, safe='')}",
            {name: value for name, value in body.items() if value is not None},
        )
        if key in "cr":
            action.durations.clear()
        return action
    if key in INSTANCE_KEYS and table == "instances":
        verb = INSTANCE_KEYS[key]
        own = [row["own_url"]] if row.get("own_url") else []
        urls = own if verb == "drain" else row["urls"]
        if not urls:
            return (
                "Drain needs the admin endpoint of the instance's own process: start it with --admin."
                if verb == "drain"
                else "No dispatcher on this screen calls this instance."
            )
        service = row.get("own_service" if verb == "drain" else "service")
        body = {"action": verb, **({"service": service} if service else {})}
        action = Action(f"{verb} '{row['id']}'", urls, f"/api/instances/{quote(row['id'], safe='')}", body)
        if verb != "eject":
            action.durations.clear()
        return action
    return None


def _tool_path(name: str, row: Row) -> str:
    version = f"?{urlencode({'version': row['version']})}" if row.get("version") else ""
    return f"/api/tools/{quote(name, safe='')}{version}"


def _identify(row: Row) -> tuple[Any, ...]:
    return tuple(row.get(key) for key in ("name", "id", "tool", "user", "peer", "service", "version", "instance", "at"))


class TopScreen:
    """The screen of ``dispatch top``: what is chosen, what is shown.

    Args:
        fleet: the processes.
        user: who acts.

    Attributes:
        values: of the last update.
    """

    def __init__(self, fleet: Fleet, user: str) -> None:
        self.fleet = fleet
        self.values: Values = {"processes": ()}
        self._user = user
        self._view = View()
        self._opened: list[tuple[str, Row]] = []
        """``tool`` and ``call``, each with its values."""
        self._former: list[tuple[View, list[tuple[str, Row]], Values]] = []
        """The pages from which this one was opened. Each page has a view of its own."""
        self._action: Action | None = None
        self._input: str | None = None
        """The text that is typed: of the action's reason, otherwise of the filter."""
        self._message = ""
        self._is_paused = self._shows_help = self._is_over = False

    async def run(self, every: float) -> None:
        """Show the screen until the operator quits."""
        from rich.live import Live

        target = console()
        await self.start()
        with pressed_keys() as keys, Live(console=target, screen=True, auto_refresh=False) as live:
            refreshing = asyncio.ensure_future(self._refresh_each(every, lambda: keys.put_nowait("")))
            try:
                while not self._is_over:
                    live.update(self.render(*target.size), refresh=True)
                    await self.press(await keys.get())
                    if refreshing.done():
                        refreshing.result()
            finally:
                await cancel_and_wait((refreshing,))

    async def start(self) -> None:
        """Read the first values. Services alone have no tools of their own: their instances are shown."""
        await self.refresh()
        kinds = {process["kind"] for process in self.values["processes"]}  # of a silent one the kind is unknown
        if "service" in kinds and "dispatcher" not in kinds:
            await self._show(View("instances"))

    async def _refresh_each(self, every: float, on_change: Callable[[], None]) -> None:
        looked = time.monotonic()
        try:
            while True:
                if not self._is_paused:
                    if time.monotonic() > looked + PEERS_S:
                        looked = time.monotonic()
                        await self.fleet.find_peers()
                    await self.refresh()
                    on_change()
                await asyncio.sleep(every)
        finally:
            on_change()

    async def refresh(self) -> None:
        """Read the values of the table that is shown."""
        view = self._view
        tables = {name: PATHS[name] for name in READ.get(view.table, (view.table,)) if name in PATHS}
        if view.failed_only and "calls" in tables:
            tables["calls"] = FAILED_CALLS
        opened = self._opened
        if opened and opened[0][0] == "tool":
            tool = opened[0][1]
            tables = {"calls": f"/api/calls?{urlencode({'limit': 100, 'tool': tool['name']})}"}
            found = await self._read(_tool_path(tool["name"], tool), ToolDetails)
            if found is not None:
                opened[0] = "tool", {**found, "urls": tool["urls"]}
        values = await self.fleet.fetch(tables)
        if view is not self._view:  # another page was opened meanwhile, whose rows these are not
            return
        values["calls"] = sorted(values.get("calls", ()), key=lambda call: call["at"], reverse=True)
        values["events"] = sorted(values.get("events", ()), key=lambda event: event["at"])[-20:]
        before = self._selected_row()
        self.values = values
        self._select(before)

    def _select(self, row: Row | None) -> None:
        """Select ``row`` at its present position, if it is there: the selection follows it when the order changes."""
        rows = [_identify(each) for each in self._rows()]
        if row is not None and _identify(row) in rows:
            self._view.selected = rows.index(_identify(row))

    async def _read(self, path: str, kind: Any, url: str = "") -> Row | None:
        """Return the object at ``path`` of the process at ``url``, or of the first one that has it; None: there is none."""
        endpoints = self.fleet.endpoints
        asked = Fleet([endpoints[url]] if url in endpoints else []) if url else self.fleet
        answers = await asked.ask_each(path, kind)
        if not answers.found:
            self._message = next((str(error) for error in reversed(answers.refused.values())), "")
            return None
        return dict(answers.found[0][1])

    async def press(self, key: str) -> None:
        """Do what ``key`` means; ``""``: nothing, there are new values."""
        if not key:
            return
        self._message = ""
        if self._input is not None:
            await self._type(key)
        elif self._shows_help:
            self._shows_help = False
        elif not await self._move(key):
            await self._act(key)

    async def _type(self, key: str) -> None:
        text, action = self._input or "", self._action
        if key == "escape":
            if action is None:
                self._view.pattern = ""
            self._input = self._action = None
        elif key == "enter":
            if action is None:
                self._view.pattern, self._view.selected, self._input = text, 0, None
            elif text.strip():
                self._input = self._action = None
                await self._perform(action, text.strip())
        elif key == "tab" and action is not None and action.durations:
            action.durations.append(action.durations.pop(0))
        else:
            self._input = text[:-1] if key == "backspace" else text + key if len(key) == 1 else text
        if action is None and self._input is not None:
            self._view.pattern, self._view.selected = self._input, 0  # shown while it is typed

    async def _perform(self, action: Action, reason: str) -> None:
        done, refusal = [], ""
        urls = [url for url in action.urls if url in self.fleet.endpoints]
        for url in urls:
            try:
                done.append(await self.fleet.endpoints[url].post(action.path, action.request(self._user, reason)))
            except AdminError as error:
                refusal = str(error)
        self._message = refusal
        if done:
            until = done[0].get("until")
            where = f" in {len(done)} of {len(urls)} processes" if refusal else ""
            self._message = (
                f"Done{where}: {action.text}{f', until {clock_time(until)[:8]}' if until else ''}. {refusal}".rstrip()
            )
        await self.refresh()

    async def _move(self, key: str) -> bool:
        """Change what is shown; return False if ``key`` means something else."""
        view, rows = self._view, self._rows()
        if key in PAGE_KEYS:
            view.selected = max(0, min(len(rows) - 1, view.selected + PAGE_KEYS[key]))
        elif (key.isdecimal() and 0 < int(key) <= len(PAGES)) or key == "tab":
            number = PAGES.index(view.table) + 1 if key == "tab" else int(key) - 1
            await self._show(View(PAGES[number % len(PAGES)]))
        elif key == "escape":
            if self._former:  # as it was: no process is waited for
                self._view, self._opened, self.values = self._former.pop()
            else:
                view.pattern, view.selected = "", 0
        elif key == "enter":
            if (row := self._selected_row()) is not None:
                await self._enter(row)
        else:
            return False
        return True

    async def _show(self, view: View) -> None:
        self._view, self._opened, self._former = view, [], []
        await self.refresh()

    def _open(self, view: View, *opened: tuple[str, Row]) -> None:
        self._former.append((self._view, self._opened, self.values))
        self._view, self._opened = view, [*self._opened, *opened]

    async def _enter(self, row: Row) -> None:
        table = "calls" if self._opened else self._view.table
        if table in ("instances", "users"):
            self._open(View("calls", pattern=row["id"] if table == "instances" else row["user"]))
            await self.refresh()
        elif table == "calls" and not self._is_open("call"):
            call = await self._read(f"/api/calls/{quote(str(row['id']), safe='')}", CallDetails, row["url"])
            if call is not None:
                self._open(replace(self._view), ("call", call))
        elif table in ("tools", "circuits"):
            tool = await self._read(_tool_path(row["name"] if table == "tools" else row["tool"], row), ToolDetails)
            if tool is not None:
                self._open(replace(self._view, selected=0), ("tool", {**tool, "urls": row["urls"]}))
                await self.refresh()

    def _is_open(self, kind: str) -> bool:
        return bool(self._opened) and self._opened[-1][0] == kind

    async def _act(self, key: str) -> None:
        view = self._view
        if key == "q":
            self._is_over = True
        elif key == "?":
            self._shows_help = True
        elif key == " ":
            self._is_paused = not self._is_paused
        elif key == "/":
            self._input = view.pattern
        elif key in "sS":
            before = self._selected_row()
            view.sort_by_next() if key == "s" else setattr(view, "is_reversed", not view.is_reversed)
            self._select(before)
        elif key == "f" and view.table == "calls":
            self._view = replace(view, failed_only=not view.failed_only, selected=0)
            await self.refresh()
        else:
            table, row = view.table, self._selected_row()
            if self._is_open("tool"):
                table, row = "tools", self._opened[-1][1]
            elif self._opened:
                row = None
            planned = None if row is None else plan_action(key, table, row)
            if isinstance(planned, str):
                self._message = planned
            elif planned is not None:
                self._action, self._input = planned, ""

    def _rows(self) -> list[Row]:
        return select_rows(self.values, View("calls") if self._opened else self._view)

    def _selected_row(self) -> Row | None:
        rows = self._rows()
        return rows[min(self._view.selected, len(rows) - 1)] if rows else None

    def render(self, width: int, height: int) -> RenderableType:
        """Return the screen for a terminal of this size."""
        from rich.console import Group
        from rich.text import Text

        head, foot = [*headlines(self.values, time.time())], self._foot(width)
        if self._shows_help:
            return Group(*head, Text(), *(Text(line) for line in HELP), Text(), Text("Any key: back", "dim"))
        if self._is_open("call"):
            return Group(*head, Text(), *waterfall(self._opened[-1][1], width), Text(), *foot)
        selected = min(self._view.selected, max(0, len(self._rows()) - 1))
        if self._is_open("tool"):
            return render_tool(self._opened[-1][1], self.values, width, height, head=head, foot=foot, selected=selected)
        head.append(self._tabs())
        events = [event_line(event) for event in self.values.get("events", ())]
        is_live = height < PRINTED
        return render_screen(
            self.values,
            self._view,
            width,
            height,
            head=head,
            events=events,
            foot=foot if is_live else (),
            selected=selected if is_live else None,
        )

    def _tabs(self) -> Text:
        view = self._view
        text = cut_line("")
        for number, name in enumerate(PAGES, 1):
            text.append(f"{number} {name}", "bold reverse" if name == view.table else "dim")
            text.append("  ")
        sort = next((column.heading for column in TABLES[view.table] if column.key == view.sort), "")
        notes = [
            f"filter '{make_printable(view.pattern)}'" if view.pattern else "",
            f"by {sort}" if sort else "",
            "reversed" if view.is_reversed else "",
            "failed only" if view.failed_only else "",
            "PAUSED" if self._is_paused else "",
        ]
        return text.append(" · ".join(filter(None, notes)), "yellow")

    def _foot(self, width: int) -> list[Text]:
        from rich.text import Text

        def fold(text: str, style: str) -> list[Text]:
            return [Text(text[at : at + width], style, no_wrap=True) for at in range(0, len(text), width)]

        action = self._action
        if action is not None:
            how_long = f" for {action.durations[0]} (tab: another)" if action.durations else ""
            where = format_count(len(action.urls), "process").replace("processs", "processes")
            text = f"{action.text[:1].upper()}{action.text[1:]} in {where}{how_long}? enter: yes · esc: no · Reason: "
            return fold(f"{make_printable(text + (self._input or ''))}▏", "bold yellow")
        if self._input is not None:
            return fold(f"Filter: {make_printable(self._input)}▏  enter: keep · esc: clear", "bold yellow")
        keys = "? help  q quit  ↑↓ enter esc  / filter  s sort  o c r x circuit  e a d instance"
        if self._message:
            return [Text(line, "bold") for line in textwrap.wrap(make_printable(self._message), width)]
        return [cut_line(keys, "dim")]


def headlines(values: Values, now: float) -> list[Text]:
    """Return the sums over all processes, and a line for each process that does not answer."""
    from rich.text import Text

    processes = values["processes"]
    dispatchers = [each for each in processes if each["kind"] == "dispatcher" and each["state"] != "unreachable"]
    services = sum(each["kind"] == "service" for each in processes)
    calls, failed = (sum(each.get(key) or 0 for each in dispatchers) for key in ("calls", "failed"))
    running, rate = (sum(each.get(key) or 0 for each in dispatchers) for key in ("in_flight", "rate"))
    parts = [
        clock_time(now)[:8],
        f"{format_count(len(dispatchers), 'dispatcher')}, {format_count(services, 'service')}",
        f"{rate:,.1f} calls/s",
        f"{failed:,} failed of {calls:,}",
        f"{running:,} running",
    ]
    lines = [cut_line(" · ".join(parts), "bold")]
    bad = [each for each in processes if each["state"] != "ready"]
    for each in bad[:3]:
        lines.append(cut_line(f"! {each['kind']} {each['name']} is {each['state']}: {each['problem']}", "red"))
    if len(bad) > len(lines) - 1:
        lines.append(Text(f"! and {len(bad) - 3} more: key 7", "red"))
    return lines


# Keys of the terminal as they are pressed; the terminal is restored afterwards.


_KEY = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO.|.", re.DOTALL)
_NAMES: Final = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1b[C": "right",
    "\x1b[D": "left",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[H": "home",
    "\x1b[F": "end",
    "\x1b": "escape",
    "\r": "enter",
    "\n": "enter",
    "\t": "tab",
    "\x7f": "backspace",
    "\b": "backspace",
}


def read_keys(text: str) -> list[str]:
    """Return the keys in what a terminal has sent: characters, and names such as ``up``; unknown ones are omitted."""
    keys = (match.group().replace("\x1bO", "\x1b[") for match in _KEY.finditer(text))
    return [_NAMES.get(key, key) for key in keys if key in _NAMES or key.isprintable()]


@contextlib.contextmanager
def pressed_keys() -> Iterator[asyncio.Queue[str]]:
    """Yield a queue of the keys pressed inside the context; empty forever if stdin is no terminal. SIGTERM and SIGHUP
    end the process after the context has been left, so that the terminal is restored then, too."""
    keys: asyncio.Queue[str] = asyncio.Queue()
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    received: list[signal.Signals] = []

    def end(number: signal.Signals) -> None:
        received.append(number)
        task.cancel()

    with contextlib.ExitStack() as stack:
        stack.callback(lambda: signal.raise_signal(received[0]) if received else None)
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, end, number)
            stack.callback(loop.remove_signal_handler, number)
        if is_terminal(sys.stdin):
            import termios
            import tty

            terminal = sys.stdin.fileno()

            def read() -> None:
                for key in read_keys(os.read(terminal, 4096).decode(errors="replace")):
                    keys.put_nowait(key)

            stack.callback(termios.tcsetattr, terminal, termios.TCSADRAIN, termios.tcgetattr(terminal))
            tty.setcbreak(terminal)
            loop.add_reader(terminal, read)
            stack.callback(loop.remove_reader, terminal)
        yield keys
