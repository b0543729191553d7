"""``dispatch tools --watch``: follow the sources, and report each change."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from dispatch._internal.cancellation import cancel_and_wait
from dispatch.cli.catalog.approval import load_approved
from dispatch.cli.catalog.circuits import read_circuits
from dispatch.cli.catalog.listed_tool import ListedTool, UnusedItem, list_unused
from dispatch.cli.catalog.snapshot import Snapshot
from dispatch.cli.catalog.tool_filter import ToolFilter
from dispatch.cli.exit_codes import CliError
from dispatch.dispatcher import Dispatcher
from dispatch.telemetry.events import (
    CatalogChanged,
    ChangeHeld,
    CircuitChanged,
    Event,
    EventStream,
    ItemRefused,
    ItemShadowed,
    SourceChanged,
)

CIRCUITS_EVERY_S: Final = 2.0
"""Seconds between two readings of the circuits: an open circuit stays open for 5 s or longer."""
_SHOWN: Final = (CatalogChanged, SourceChanged, ItemRefused, ItemShadowed, ChangeHeld)


class WatchedState(NamedTuple):
    """The tools and sources at one moment.

    Attributes:
        tools: in force, by name, in the order of the catalogue.
        unused: what is not in force.
        sources: id and state of each source.
        circuits: state by the tool's label; None: they are not read.
    """

    tools: Mapping[str, ListedTool]
    unused: Sequence[UnusedItem]
    sources: Mapping[str, str]
    circuits: Mapping[str, str] | None

    def list_changes(self, former: WatchedState) -> list[str]:
        """Return one line for each tool that was added (``+``), changed (``~``) or removed (``-``)."""
        lines = []
        for name, each in self.tools.items():
            old = former.tools.get(name)
            if old is None or (old.tool, old.source, old.fingerprint) != (each.tool, each.source, each.fingerprint):
                version = f" {each.tool.version}" if each.tool.version else ""
                lines.append(f"{'+' if old is None else '~'} {name}{version}  {each.short_fingerprint}  {each.source}")
        lines += [f"- {name}" for name in former.tools if name not in self.tools]
        return lines


class WatchDisplay(Protocol):
    """Shows what is watched."""

    def show_start(self, state: WatchedState) -> None:
        """Show the state at the start."""

    def show_event(self, event: Event, changes: Sequence[str], state: WatchedState) -> None:
        """Show an event.

        Args:
            event: that occurred.
            changes: lines for the tools that changed, among those that are listed.
            state: after the event.
        """

    def show_note(self, note: str) -> None:
        """Show a note that is no event."""


class ToolWatch:
    """Follows the sources of a dispatcher.

    Args:
        dispatcher: not started yet.
        wanted: the tools that are listed.
        approvals: file of approved definitions; None: nothing is held.
        metrics: URLs of metrics endpoints of running agents; empty: no circuits.
        display: shows the changes.

    Attributes:
        is_started: the state at the start is shown.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        wanted: ToolFilter,
        approvals: str | None,
        metrics: Sequence[str],
        display: WatchDisplay,
    ) -> None:
        self._dispatcher = dispatcher
        self._wanted = wanted
        self._approvals = approvals
        self._metrics = metrics
        self._display = display
        self._circuits: Mapping[str, str] | None = None
        self._metrics_problem = ""
        self.is_started = False

    async def run(self) -> None:
        """Show the state and every change, until it is cancelled.

        Raises:
            TransportError: no broker answers.
            CliError: the metrics cannot be read at the start.
        """
        if self._metrics:
            self._circuits = await asyncio.to_thread(read_circuits, self._metrics)
        events = self._dispatcher.events()
        async with self._dispatcher:
            state = self._read_state()
            self.is_started = True
            self._display.show_start(state)
            await self._follow(events, state)

    async def _follow(self, events: EventStream, state: WatchedState) -> None:
        event = asyncio.create_task(_await_event(events))
        circuits = asyncio.create_task(self._await_circuits())
        try:
            while True:
                await asyncio.wait((event, circuits), return_when=asyncio.FIRST_COMPLETED)
                if event.done():
                    found = event.result()
                    if found is None:
                        return
                    event = asyncio.create_task(_await_event(events))
                    if isinstance(found, _SHOWN):
                        former, state = state, self._read_state()
                        self._display.show_event(found, state.list_changes(former), state)
                if circuits.done():
                    self._show_circuits(circuits.result(), state)
                    circuits = asyncio.create_task(self._await_circuits())
        finally:
            await cancel_and_wait((event, circuits))

    def _read_state(self) -> WatchedState:
        registry = self._dispatcher.registry
        statuses = registry.sources()
        failed = [
            UnusedItem("refused", "source", "", each.id, each.id, each.problem, "correct it; it is read again")
            for each in statuses
            if each.state != "ok"
        ]
        unused = [*failed, *list_unused(Snapshot(registry.merged, {}, {}), load_approved(self._approvals))]
        return WatchedState(
            {each.tool.name: each for each in self._wanted.select(registry.catalog)},
            self._wanted.select_unused(unused),
            {each.id: each.state for each in statuses},
            self._circuits,
        )

    async def _await_circuits(self) -> Mapping[str, str] | CliError:
        if not self._metrics:
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(CIRCUITS_EVERY_S)
        try:
            return await asyncio.to_thread(read_circuits, self._metrics)
        except CliError as error:
            return error

    def _show_circuits(self, found: Mapping[str, str] | CliError, state: WatchedState) -> None:
        problem = found.message if isinstance(found, CliError) else ""
        if problem and problem != self._metrics_problem:
            self._display.show_note(problem)
        self._metrics_problem = problem
        former = self._circuits or {}
        self._circuits = {} if isinstance(found, CliError) else found
        if problem:
            return
        for tool, now in self._circuits.items():
            if tool in state.tools and former.get(tool, now) != now:
                event = CircuitChanged(time.time(), tool, None, former[tool], now, "read from the metrics")
                line = f"circuit of {tool}: {former[tool]} → {now}"
                self._display.show_event(event, [line], state._replace(circuits=self._circuits))


async def _await_event(events: EventStream) -> Event | None:
    return await anext(events, None)
