"""``dispatch tools --watch``: follow the sources, and report each change."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from dispatch._internal.cancellation import cancel_and_wait
from dispatch.catalog.live.approvals import Approvals
from dispatch.catalog.live.merge import Merged
from dispatch.catalog.sources.base import SourceStatus
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

    def show_note(self, note: str, state: WatchedState) -> None:
        """Show a note that is no event, with the state after it."""

    def show_state(self, state: WatchedState) -> None:
        """Show that the state differs without an event: circuits became known."""


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
        self._known_circuits: dict[str, str] = {}
        self._metrics_problem = ""
        self._read: tuple[Merged, tuple[SourceStatus, ...], tuple[int, ...] | None] | None = None
        self.is_started = False

    async def run(self) -> None:
        """Show the state and every change, until it is cancelled.

        Raises:
            TransportError: no broker answers.
            CliError: the metrics cannot be read at the start.
        """
        circuits = await asyncio.to_thread(read_circuits, self._metrics) if self._metrics else None
        self._known_circuits.update(circuits or {})
        events = self._dispatcher.events()
        async with self._dispatcher:
            state = self._read_state(WatchedState({}, (), {}, circuits))
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
                        former, state = state, self._read_state(state)
                        self._display.show_event(found, state.list_changes(former), state)
                if circuits.done():
                    state = self._show_circuits(circuits.result(), state)
                    circuits = asyncio.create_task(self._await_circuits())
        finally:
            await cancel_and_wait((event, circuits))

    def _read_state(self, former: WatchedState) -> WatchedState:
        """Return ``former`` if nothing has changed: one activation is reported by up to a thousand events."""
        registry = self._dispatcher.registry
        statuses = registry.sources()
        read = registry.merged, statuses, None if self._approvals is None else Approvals(self._approvals).modified()
        if self._read is not None and read[0] is self._read[0] and read[1:] == self._read[1:]:
            return former
        self._read = read
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
            former.circuits,
        )

    async def _await_circuits(self) -> Mapping[str, str] | CliError:
        if not self._metrics:
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(CIRCUITS_EVERY_S)
        try:
            return await asyncio.to_thread(read_circuits, self._metrics)
        except CliError as error:
            return error

    def _show_circuits(self, found: Mapping[str, str] | CliError, state: WatchedState) -> WatchedState:
        """Show changed circuits, and return the state with them. While the metrics cannot be read, they are unknown."""
        problem = found.message if isinstance(found, CliError) else ""
        circuits = {} if isinstance(found, CliError) else found
        now = state._replace(circuits=circuits)
        if problem != self._metrics_problem:
            self._metrics_problem = problem
            self._display.show_note(problem or "The metrics are read again.", now)
        elif circuits != state.circuits:
            self._display.show_state(now)
        for tool, circuit in circuits.items():
            former = self._known_circuits.get(tool, circuit)
            if tool in state.tools and former != circuit:
                event = CircuitChanged(time.time(), tool, None, former, circuit, "read from the metrics")
                self._display.show_event(event, [f"circuit of {tool}: {former} → {circuit}"], now)
        self._known_circuits.update(circuits)
        return now


async def _await_event(events: EventStream) -> Event | None:
    return await anext(events, None)
