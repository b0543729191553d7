"""The registry of a dispatcher: its sources and the items that a program puts, before, during and after a connection."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import dispatch
from dispatch import Catalog, CatalogError, Dispatcher, Policy, PolicyError
from dispatch.catalog import UnknownToolError
from dispatch.catalog.activation import MAX_REPORTED
from dispatch.catalog.approvals import ApprovalsError
from dispatch.catalog.items import Item
from dispatch.catalog.sources import OnChange, SourceState
from dispatch.telemetry.events import CatalogChanged, Event, ItemShadowed, SourceChanged
from dispatch.testing.clock import advance, idle, virtual_time
from tests.unit.catalog.live.test_merge import service, tool

brokers = itertools.count()


class Source:
    """A source that delivers given items, or raises, or hangs."""

    def __init__(self, id: str, *items: Item, on_change: OnChange = "apply") -> None:
        self.id = id
        self.on_change = on_change
        self.items: Sequence[object] = items
        self.failure: Exception | None = None
        self.answering = asyncio.Event()
        self.answering.set()
        self.closed = 0

    async def discover(self) -> Sequence[Any]:
        await self.answering.wait()
        if self.failure is not None:
            raise self.failure
        return self.items

    async def changes(self) -> AsyncIterator[None]:
        await asyncio.get_running_loop().create_future()
        yield

    async def close(self) -> None:
        self.closed += 1


def source(id: str, text: str = "", **keys: Any) -> Source:
    return Source(id, service(), tool(description=text or f"of {id}"), **keys)


@asynccontextmanager
async def connected(*catalog: Any, **keys: Any) -> AsyncIterator[tuple[Dispatcher, list[Event]]]:
    events: list[Event] = []
    dispatcher = dispatch.connect(f"memory://registry-{next(brokers)}", list(catalog), **keys)
    dispatcher.on_event(events.append)
    async with dispatcher:
        events.clear()
        yield dispatcher, events


def text_of(dispatcher: Dispatcher, name: str = "stamp") -> str:
    return dispatcher.catalog.tools[name].description


def states(dispatcher: Dispatcher) -> dict[str, SourceState]:
    return {each.id: each.state for each in dispatcher.registry.sources()}


# -- sources ------------------------------------------------------------------------------------------------------------


@virtual_time
async def test_a_source_is_added_with_the_lowest_precedence_and_removed() -> None:
    async with connected(source("a")) as (dispatcher, events):
        registry, added = dispatcher.registry, Source("b", tool("other"), tool(description="of b"))
        await registry.add_source(added)
        assert registry.source("b") is added
        assert (states(dispatcher), text_of(dispatcher)) == ({"a": "ok", "b": "ok"}, "of a")
        assert registry.get("other") is dispatcher.catalog.tools["other"]
        assert [event.name for event in events if isinstance(event, ItemShadowed)] == ["stamp"]
        with pytest.raises(ValueError, match="'b' already"):
            await registry.add_source(source("b"))
        await registry.remove_source("b")
        assert (states(dispatcher), added.closed) == ({"a": "ok"}, 1)
        assert set(dispatcher.catalog.tools) == {"stamp"}
        with pytest.raises(LookupError, match="no source 'b'; the sources are: a"):
            await registry.remove_source("b")
        changes = [(event.source, event.old, event.new) for event in events if isinstance(event, SourceChanged)]
        assert changes[-1] == ("b", "ok", "removed")


@virtual_time
async def test_a_source_out_of_reach_or_unfit_is_added_as_well() -> None:
    async with connected(source("a")) as (dispatcher, _):
        away, unfit = source("away"), Source("unfit")
        away.failure = ConnectionError("no answer")
        unfit.items = [{"id": "desk"}]
        await dispatcher.registry.add_source(away)
        await dispatcher.registry.add_source(unfit)
        problems = {each.id: (each.state, each.problem) for each in dispatcher.registry.sources()}
        assert problems["away"] == ("failed", "ConnectionError: no answer")
        state, problem = problems["unfit"]
        assert (state, "delivers dict, which is no Item" in problem) == ("failed", True)
        unfit.items = [Item("x", "tool", None, {})]
        with pytest.raises(TypeError, match="is no text"):
            await dispatcher.registry.refresh("unfit")
        await dispatcher.registry.put("tool", tool("other").raw)
        assert "other" in dispatcher.catalog.tools


@virtual_time
async def test_each_new_problem_of_a_stale_source_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    a = source("a")
    async with connected(a) as (dispatcher, events):
        caplog.set_level(logging.INFO, "dispatch.transitions")

        async def attempts(*problems: str) -> list[tuple[str, str, str]]:
            del events[:]
            for problem in problems:
                a.failure = ConnectionError(problem) if problem else None
                with contextlib.suppress(ConnectionError):
                    await dispatcher.registry.refresh("a")
            await asyncio.sleep(0)
            return [(each.old, each.new, each.problem) for each in events if isinstance(each, SourceChanged)]

        first, second = "ConnectionError: one", "ConnectionError: two"
        assert await attempts("one", "one", "two", "one", "two") == [("ok", "stale", first), ("stale", "stale", second)]
        assert states(dispatcher) == {"a": "stale"}
        assert await attempts("", "two") == [("stale", "ok", ""), ("ok", "stale", second)]
        lines = [record.getMessage() for record in caplog.records if record.name == "dispatch.transitions"]
        assert lines[:2] == [f"source a: ok to stale ({first})", f"source a: still stale ({second})"]
        many = await attempts(*(f"at {number}" for number in range(MAX_REPORTED + 50)))
        assert len(many) == MAX_REPORTED - 1


@virtual_time
async def test_the_first_problem_of_a_source_is_told() -> None:
    async with connected(source("a")) as (dispatcher, events):
        away = source("away")
        away.failure = ConnectionError("no answer")
        await dispatcher.registry.add_source(away)
        changes = [(each.old, each.new, each.problem) for each in events if isinstance(each, SourceChanged)]
        assert changes[-1] == ("failed", "failed", "ConnectionError: no answer")


@virtual_time
async def test_a_refresh_delivers_the_items_or_raises_what_is_wrong() -> None:
    a = source("a")
    async with connected(a) as (dispatcher, _):
        a.items = [service(), tool(description="new")]
        await dispatcher.registry.refresh("a")
        assert text_of(dispatcher) == "new"
        a.failure = ConnectionError("no answer")
        with pytest.raises(ConnectionError, match="no answer"):
            await dispatcher.registry.refresh("a")
        assert (text_of(dispatcher), states(dispatcher)) == ("new", {"a": "stale"})
        with pytest.raises(LookupError):
            await dispatcher.registry.refresh("b")


@virtual_time
async def test_a_source_that_hangs_delays_the_start_by_five_seconds() -> None:
    hanging, loop = source("hanging"), asyncio.get_running_loop()
    hanging.answering.clear()
    began = loop.time()
    async with connected(hanging, source("b")) as (dispatcher, _):
        assert loop.time() - began == pytest.approx(5, abs=0.2)
        assert (states(dispatcher), text_of(dispatcher)) == ({"hanging": "failed", "b": "ok"}, "of b")
        hanging.answering.set()
        await advance(1)
        assert (states(dispatcher), text_of(dispatcher)) == ({"hanging": "ok", "b": "ok"}, "of hanging")


@virtual_time
async def test_a_source_that_is_removed_while_it_is_added() -> None:
    async with connected() as (dispatcher, _):
        hanging = source("hanging")
        hanging.answering.clear()
        adding = asyncio.create_task(dispatcher.registry.add_source(hanging))
        await advance(1)
        await dispatcher.registry.remove_source("hanging")
        await adding
        assert (states(dispatcher), hanging.closed) == ({}, 1)


@virtual_time
async def test_a_removed_source_delivers_nothing_into_its_successor() -> None:
    former = source("a", "former")
    async with connected(former) as (dispatcher, _):
        former.answering.clear()
        former.items = [service(), tool(description="late")]
        refreshing = asyncio.create_task(dispatcher.registry.refresh("a"))
        await idle()
        await dispatcher.reload(source("a", "successor"))
        former.answering.set()
        with pytest.raises(LookupError, match="removed meanwhile"):
            await refreshing
        await advance(1)
        assert text_of(dispatcher) == "successor"


async def test_before_the_start_changes_are_in_force_at_once() -> None:
    dispatcher = dispatch.connect("memory://registry-before", None)
    await dispatcher.registry.add_source(source("a"))
    assert (states(dispatcher), text_of(dispatcher)) == ({"a": "ok"}, "of a")
    await dispatcher.registry.put("tool", tool(description="put").raw)
    assert text_of(dispatcher) == "put"
    await dispatcher.registry.remove_source("a")
    assert set(dispatcher.catalog.tools) == set()
    await dispatcher.registry.remove("tool", "stamp")


@virtual_time
async def test_a_close_closes_every_source_once_and_keeps_the_catalogue() -> None:
    a, b = source("a"), source("b")
    async with connected(a, b) as (dispatcher, _):
        pass
    assert (a.closed, b.closed, text_of(dispatcher)) == (1, 1, "of a")
    assert asyncio.all_tasks() == {asyncio.current_task()}


# -- replacement --------------------------------------------------------------------------------------------------------


@virtual_time
async def test_a_reload_replaces_the_sources_and_keeps_what_was_put() -> None:
    a, b = source("a"), source("b")
    async with connected(a, b) as (dispatcher, events):
        await dispatcher.registry.put("tool", tool("other").raw)
        c = source("c")
        await dispatcher.reload([c, b])
        assert list(states(dispatcher)) == ["put", "c", "b"]
        assert (a.closed, b.closed, c.closed, text_of(dispatcher)) == (1, 0, 0, "of c")
        assert "other" in dispatcher.catalog.tools
        changed = [event for event in events if isinstance(event, CatalogChanged)][-1]
        assert list(changed.changed) == ["stamp"]
        await dispatcher.reload(Catalog.empty())
        assert (set(dispatcher.catalog.tools), b.closed, c.closed) == (set(), 1, 1)


@virtual_time
async def test_a_reload_that_fails_changes_nothing_and_closes_the_new_sources(tmp_path: Path) -> None:
    a, new = source("a"), source("new")
    async with connected(a) as (dispatcher, _):
        before = dispatcher.catalog
        with pytest.raises(CatalogError):
            await dispatcher.reload([new, tmp_path / "missing"])
        with pytest.raises(ApprovalsError):
            await dispatcher.reload([new, source("holding", on_change="hold")])
        with pytest.raises(PolicyError):
            await dispatcher.reload([new, Catalog.of([], [])], policy=Policy(timeout=-1))
        with pytest.raises(ValueError, match="already"):
            await dispatcher.reload([new, source("new")])
        assert dispatcher.catalog is before
        assert (states(dispatcher), a.closed, new.closed) == ({"a": "ok"}, 0, 2)
        a.items = [service(), tool(description="still followed")]
        await dispatcher.registry.refresh("a")
        assert text_of(dispatcher) == "still followed"


@virtual_time
async def test_a_cancelled_reload_changes_nothing() -> None:
    a, hanging = source("a"), source("hanging")
    hanging.answering.clear()
    async with connected(a) as (dispatcher, _):
        reloading = asyncio.create_task(dispatcher.reload(hanging))
        await advance(1)
        reloading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reloading
        assert (states(dispatcher), a.closed, hanging.closed, text_of(dispatcher)) == ({"a": "ok"}, 0, 1, "of a")
        await dispatcher.registry.add_source(source("b"))


@virtual_time
async def test_a_source_out_of_reach_at_a_reload_is_tried_again() -> None:
    away = source("away")
    away.failure = ConnectionError("no answer")
    async with connected(source("a")) as (dispatcher, _):
        await dispatcher.reload([away, source("b")])
        assert (states(dispatcher), text_of(dispatcher)) == ({"away": "failed", "b": "ok"}, "of b")
        away.failure = None
        await advance(2)
        assert (states(dispatcher), text_of(dispatcher)) == ({"away": "ok", "b": "ok"}, "of away")


# -- items --------------------------------------------------------------------------------------------------------------


@virtual_time
async def test_what_is_put_precedes_all_sources_until_it_is_removed() -> None:
    async with connected(source("a")) as (dispatcher, _):
        registry = dispatcher.registry
        for text in ("first", "second"):
            await registry.put("tool", tool(description=text).raw)
            assert text_of(dispatcher) == text
        assert [(each.id, each.items) for each in registry.sources()] == [("put", 1), ("a", 1)]
        await registry.remove("tool", "stamp")
        assert text_of(dispatcher) == "of a"
        with pytest.raises(LookupError, match="was not put"):
            await registry.remove("tool", "stamp")


@virtual_time
async def test_versions_are_put_and_removed_each_by_itself() -> None:
    async with connected() as (dispatcher, _):
        registry = dispatcher.registry
        await registry.put("tool-service", service().raw)
        for version in ("1.0.0", "2.0.0"):
            await registry.put("tool", tool(version=version).raw)
        assert [each.version for each in dispatcher.catalog.versions("stamp")] == ["2.0.0", "1.0.0"]
        await registry.remove("tool", "stamp@2.0.0")
        assert [each.version for each in dispatcher.catalog.versions("stamp")] == ["1.0.0"]


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        ("tool", {"type": "tool-service", "name": "x", "service": "missing", "description": "d"}),
        ("tool", {"type": "tool-service", "name": "x", "service": "desk", "description": 7}),
        ("tool", {"type": "tool-service", "service": "desk"}),
        ("tool", {}),
        ("tool-service", {"id": ""}),
        ("toolbox", {"name": "x"}),
    ],
)
@virtual_time
async def test_an_invalid_item_is_not_put(kind: str, raw: dict[str, Any]) -> None:
    async with connected(source("a")) as (dispatcher, _):
        before = dispatcher.catalog
        with pytest.raises(CatalogError):
            await dispatcher.registry.put(kind, raw)
        assert dispatcher.catalog is before
        await dispatcher.registry.put("tool", tool("other").raw)
        assert set(dispatcher.catalog.tools) == {"stamp", "other"}


@virtual_time
async def test_a_put_during_a_reload_is_not_lost() -> None:
    async with connected(source("a")) as (dispatcher, _):
        puts = [dispatcher.registry.put("tool", tool(f"t{at}").raw) for at in range(20)]
        reloads = [dispatcher.reload(source(id)) for id in ("b", "c")]
        await asyncio.gather(*puts, *reloads)
        assert set(dispatcher.catalog.tools) == {"stamp", *(f"t{at}" for at in range(20))}
        with pytest.raises(UnknownToolError):
            dispatcher.registry.get("t20")


@virtual_time
async def test_an_unknown_tool_is_unknown() -> None:
    async with connected() as (dispatcher, _):
        with pytest.raises(UnknownToolError):
            dispatcher.registry.get("stamp")


@virtual_time
async def test_a_policy_that_fits_the_used_version_of_a_service_is_accepted() -> None:
    async with connected() as (dispatcher, _):
        registry = dispatcher.registry
        await registry.put("tool-service", service(version="1.0.0").raw)
        await registry.put("tool", tool(requires="^1", policy={"retry": {"initial-backoff": 1.5}}).raw)
        with_short_backoff = service(version="2.0.0", policy={"retry": {"max-backoff": 1.0}})
        await registry.put("tool-service", with_short_backoff.raw)
        assert dispatcher.catalog.service_of("stamp").version == "1.0.0"
