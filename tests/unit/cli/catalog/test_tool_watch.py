"""The watch in this process, with a display that records; as a process: tests/unit/cli/commands/catalog."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest

import dispatch
from dispatch.catalog import Item
from dispatch.catalog.catalog import ListConditions
from dispatch.cli.base import CliError
from dispatch.cli.tools import ToolWatch, WatchedState
from dispatch.telemetry.events import CircuitChanged, Event, ItemRefused
from tests.helpers.followed_config import SERVICE, TOOL

Shown = tuple[str, Any]


class Recorder:
    """Records what is shown."""

    def __init__(self) -> None:
        self.shown: asyncio.Queue[Shown] = asyncio.Queue()
        self.states: list[WatchedState] = []

    def show(self, event: Event | str | None, changes: Sequence[str], state: WatchedState) -> None:
        if isinstance(event, str):
            self._record("note", event, state)
        elif event is not None:
            self._record(type(event).__name__, list(changes), state)
        elif not self.states:
            self._record("start", sorted(state.tools), state)
        else:
            self._record("state", dict(state.circuits or {}), state)

    def _record(self, kind: str, value: Any, state: WatchedState) -> None:
        self.shown.put_nowait((kind, value))
        self.states.append(state)

    async def next(self, kind: str) -> Any:
        """What is shown next of that kind."""
        async with asyncio.timeout(10):
            while True:
                found, value = await self.shown.get()
                if found == kind:
                    return value

    async def next_changes(self) -> list[str]:
        """The lines of the next activation that changes a wanted tool."""
        while True:
            lines: list[str] = await self.next("CatalogChanged")
            if lines:
                return lines


class Pushed:
    """A source whose items are pushed."""

    id = "pushed"

    def __init__(self, *items: Item) -> None:
        self._items: Sequence[Item] = items
        self._changed = asyncio.Event()

    def push(self, *items: Item) -> None:
        self._items = items
        self._changed.set()

    async def discover(self) -> Sequence[Item]:
        return self._items

    async def changes(self) -> AsyncIterator[None]:
        while True:
            await self._changed.wait()
            self._changed.clear()
            yield


def item(raw: Mapping[str, Any]) -> Item:
    kind, key = ("tool-service", raw["id"]) if "id" in raw else ("tool", raw["name"])
    return Item(f"{kind}/{key}", kind, key, dict(raw))


@contextlib.asynccontextmanager
async def watching(
    source: Pushed, wanted: ListConditions | None = None, metrics: Sequence[str] = ()
) -> AsyncIterator[Recorder]:
    recorder = Recorder()
    dispatcher = dispatch.connect("memory://watched", [source])
    watch = ToolWatch(dispatcher, wanted or ListConditions(), None, metrics, recorder.show)
    task = asyncio.create_task(watch.run())
    try:
        yield recorder
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    assert not dispatcher.is_connected


async def test_each_change_of_the_tools_that_are_wanted_is_one_line() -> None:
    source = Pushed(item(SERVICE), item(TOOL))
    async with watching(source, ListConditions(text="joke")) as recorder:
        assert await recorder.next("start") == ["tell-joke"]
        source.push(
            item(SERVICE),
            item(TOOL),
            item(TOOL | {"name": "sing", "description": "Sing."}),
            item(TOOL | {"name": "joke", "version": "1.0.0"}),
        )
        (added,) = await recorder.next_changes()
        assert added.startswith("+ joke 1.0.0  ")
        source.push(item(SERVICE), item(TOOL | {"description": "Tell another joke", "policy": {"timeout": 3}}))
        changed, removed = await recorder.next_changes()
        assert changed.startswith("~ tell-joke  ")
        assert removed == "- joke"


async def test_an_activation_with_many_refused_items_is_read_once() -> None:
    source = Pushed(item(SERVICE), item(TOOL))
    async with watching(source) as recorder:
        await recorder.next("start")
        source.push(item(SERVICE), item(TOOL), *(item({"name": f"broken-{number}"}) for number in range(100)))
        for _ in range(100):
            assert await recorder.next(ItemRefused.__name__) == []
        assert len({id(state) for state in recorder.states}) == 2  # at the start, and after the activation
        assert len([each for each in recorder.states[-1].unused if each.status == "refused"]) >= 100


async def test_circuits_that_change_become_unknown_and_return(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Mapping[str, str] | CliError] = [
        {},
        {"tell-joke": "closed"},
        {"tell-joke": "open", "other": "open"},
        CliError("The metrics cannot be read."),
        {"tell-joke": "closed"},
    ]

    def read(_urls: Sequence[str]) -> Mapping[str, str]:
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(found, CliError):
            raise found
        return found

    monkeypatch.setattr("dispatch.cli.tools.read_circuits", read)
    monkeypatch.setattr("dispatch.cli.tools.CIRCUITS_EVERY_S", 0.001)
    async with watching(Pushed(item(SERVICE), item(TOOL)), metrics=["http://agent/metrics"]) as recorder:
        assert await recorder.next("state") == {"tell-joke": "closed"}
        assert await recorder.next(CircuitChanged.__name__) == ["circuit of tell-joke: closed → open"]
        assert await recorder.next("note") == "The metrics cannot be read."
        assert {} in [state.circuits for state in recorder.states]
        assert await recorder.next("note") == "The metrics are read again."
        assert await recorder.next(CircuitChanged.__name__) == ["circuit of tell-joke: open → closed"]
