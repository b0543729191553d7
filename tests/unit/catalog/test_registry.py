"""The registry of a dispatcher: its sources and the items that a program puts, before, during and after a connection.
Lists of the registry: the tools in force, with their sources.
Activations: coalesced, limited in number, atomic; on virtual time.
The file of approved definitions: damaged, concurrent, with permissions.
A follower of one source: failures, recovery, backoff, changes that end or raise; on virtual time.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import stat
import threading
from collections.abc import AsyncIterator, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import dispatch
from dispatch import CallResult, Catalog, CatalogError, Dispatcher, DispatchError, Policy, PolicyError
from dispatch.catalog import UnknownToolError
from dispatch.catalog import approvals as module
from dispatch.catalog.activation import (
    MAX_PROBLEM_CHARS,
    MAX_REPORTED,
    Activator,
    Prepared,
    SourceFollower,
    close_followers,
)
from dispatch.catalog.approvals import Approvals, ApprovalsError
from dispatch.catalog.catalog import compare
from dispatch.catalog.items import Item, OnChange, SourceState
from dispatch.catalog.merge import Merged, Merger
from dispatch.documents import Problem
from dispatch.telemetry.events import CatalogChanged, Event, ItemShadowed, SourceChanged
from dispatch.testing.clock import advance, idle, virtual_time
from tests.helpers.catalog_items import JOKE_SERVICE, TELL_JOKE
from tests.helpers.clock import cancel_task, start_task
from tests.unit.catalog.test_merge import service, tool

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
async def test_a_call_of_a_tool_of_a_source_that_was_never_read_waits_for_it() -> None:
    slow = Source("slow", service(), tool("late"))
    slow.answering.clear()

    async def stream(name: str, timeout: float) -> DispatchError | None:
        results: list[CallResult] = []
        with contextlib.suppress(DispatchError):
            async for _ in dispatcher.stream(name, {}, timeout=timeout, on_result=results.append):
                pass
        return results[0].error if results else None

    async with connected(source("a"), slow) as (dispatcher, _):
        clock = asyncio.get_running_loop().time
        assert states(dispatcher) == {"a": "ok", "slow": "failed"}
        began = clock()
        absent = await dispatcher.execute("late", {}, timeout=2)
        assert (absent.error.type, absent.error.retryable, clock() - began) == ("no-instance", True, pytest.approx(2))
        calls = [asyncio.create_task(dispatcher.execute(name, {}, timeout=4)) for name in ("late", "wrong")]
        streamed = asyncio.create_task(stream("late", 4))
        await asyncio.sleep(3)
        assert not any(each.done() for each in (*calls, streamed))
        slow.answering.set()
        late, wrong = await asyncio.gather(*calls)
        ends = late.error, await streamed
        assert [each and each.type for each in ends] == ["timeout"] * 2  # its topic has no service here
        assert clock() - began == pytest.approx(2 + 4)  # the wait is a part of the timeout
        assert wrong.error.type == "unknown-tool"


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
        error = (await dispatcher.execute("calendar", {})).error
        assert (error.type, error.retryable, error.retry_after) == ("no-instance", True, 0.5)
        text = "a source that may have it is not available: 'away' (ConnectionError: no answer); 'unfit'"
        assert text in error.message
        with pytest.raises(DispatchError, match="'away'") as raised:
            dispatcher.tool("calendar")
        assert raised.value.message == error.message
        with pytest.raises(DispatchError, match="no tool service 'office' yet, and a source that may have it"):
            dispatch.ToolServiceClient(dispatcher, service="office")
        near = (await dispatcher.execute("stmp", {})).error
        assert (near.type, near.retryable, near.alternatives) == ("unknown-tool", False, ("stamp",))
        assert "Call 'stamp' if you meant that" in near.message
        assert "'away'" in near.message
        unfit.items = [Item("x", "tool", None, {})]
        with pytest.raises(TypeError, match="is no text"):
            await dispatcher.registry.refresh("unfit")
        await dispatcher.registry.put("tool", tool("other").raw)
        assert "other" in dispatcher.catalog.tools


@virtual_time
async def test_with_grants_a_caller_does_not_see_which_source_has_failed() -> None:
    away = Source("/srv/away")
    away.failure = ConnectionError("no answer at /srv/away/x")
    for grants in (None, dispatch.Grants.of({"users": {}})):
        async with connected(source("a"), away, grants=grants) as (dispatcher, _):
            message = (await dispatcher.execute("calendar", {})).error.message
            assert "a source that may have it is not available" in message
            assert ("'away' (ConnectionError: no answer at away/x)" in message) == (grants is None)
            assert "/srv" not in message


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
        assert len(await attempts(*(f"at {number}" for number in range(MAX_REPORTED + 50)))) == MAX_REPORTED - 1


@virtual_time
async def test_a_new_mistake_among_as_many_is_told_once_and_first() -> None:
    a = source("a")
    async with connected(a) as (dispatcher, events):

        async def refuse(*names: str) -> list[str]:
            del events[:]
            a.failure = CatalogError([Problem(f"{name}.json", "name", "is missing", "add it") for name in names])
            with contextlib.suppress(CatalogError):
                await dispatcher.registry.refresh("a")
            await asyncio.sleep(0)
            return [each.problem for each in events if isinstance(each, SourceChanged)]

        assert await refuse("one", "two") == ["one.json: name: is missing. Fix: add it. (and 1 more)"]
        assert await refuse("one", "three") == ["three.json: name: is missing. Fix: add it. (and 1 more)"]
        assert await refuse("one", "three") == []
        assert await refuse("one") == []


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
async def test_a_source_that_hangs_delays_the_start_by_ten_seconds() -> None:
    hanging, loop = source("hanging"), asyncio.get_running_loop()
    hanging.answering.clear()
    began = loop.time()
    async with connected(hanging, source("b")) as (dispatcher, _):
        assert loop.time() - began == pytest.approx(10, abs=0.2)
        assert (states(dispatcher), text_of(dispatcher)) == ({"hanging": "failed", "b": "ok"}, "of b")
        hanging.answering.set()
        await advance(1)
        assert (states(dispatcher), text_of(dispatcher)) == ({"hanging": "ok", "b": "ok"}, "of hanging")


@virtual_time
async def test_a_source_that_is_removed_while_it_is_added() -> None:
    async with connected() as (dispatcher, _):
        hanging = source("hanging")
        hanging.answering.clear()
        adding = await start_task(dispatcher.registry.add_source(hanging), 1)
        await dispatcher.registry.remove_source("hanging")
        await adding
        assert (states(dispatcher), hanging.closed) == ({}, 1)


@virtual_time
async def test_a_removed_source_delivers_nothing_into_its_successor() -> None:
    former = source("a", "former")
    async with connected(former) as (dispatcher, _):
        former.answering.clear()
        former.items = [service(), tool(description="late")]
        refreshing = await start_task(dispatcher.registry.refresh("a"))
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
        await cancel_task(await start_task(dispatcher.reload(hanging), 1))
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
        with pytest.raises(LookupError, match=r"was not put.* Fix: remove it from its source"):
            await registry.remove("tool", "stamp")
        await registry.put("tool", tool(description="versioned").raw | {"version": "2.0.0"})
        with pytest.raises(LookupError, match=r"was not put.* Fix: write stamp@2\.0\.0"):
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


EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "versions"


async def test_lists_follow_what_is_put_and_removed() -> None:
    jokes = dispatch.Folder(EXAMPLES, id="jokes")
    async with dispatch.connect("memory://", catalog=[jokes]) as dispatcher:
        registry = dispatcher.registry
        assert [(tool.name, tool.version) for tool in registry.list()] == [("tell-joke", "1.4.0")]
        assert [tool.version for tool in registry.list(version="^2", source="jokes")] == ["2.0.0"]
        await registry.put("tool-service", JOKE_SERVICE | {"id": "s"})
        await registry.put("tool", TELL_JOKE | {"name": "tell-pun", "service": "s", "group": ["puns"]})
        assert [tool.name for tool in registry.list(groups=["puns"])] == ["tell-pun"]
        assert [tool.name for tool in registry.list(text="PUN", service="s")] == ["tell-pun"]
        assert [tool.name for tool in registry.list(source="jokes")] == ["tell-joke"]
        await registry.remove("tool", "tell-pun")
        assert registry.list(groups=["puns"]) == ()


class Target:
    """Records what comes into force; a catalogue with the tool ``bad`` cannot be prepared."""

    def __init__(self) -> None:
        self.catalog = Catalog.empty()
        self.activations: list[tuple[float, tuple[str, ...]]] = []
        self.causes: list[tuple[set[str], bool]] = []
        self.hold = threading.Event()
        self.hold.set()
        self.threads: set[str] = set()

    def prepare(self, merged: Merged) -> Prepared:
        self.threads.add(threading.current_thread().name)
        assert self.hold.wait(10)
        if "bad" in merged.catalog.tools:
            raise ValueError("this one is bad")

        def activate() -> None:
            self.catalog = merged.catalog
            try:
                now = asyncio.get_running_loop().time()
            except RuntimeError:
                now = 0.0
            self.activations.append((now, tuple(merged.catalog.tools)))

        return Prepared(merged, activate, compare(self.catalog, merged.catalog), {})

    def on_activated(self, prepared: Prepared, causes: Collection[str], is_replaced: bool) -> None:
        self.causes.append(({*causes}, is_replaced))


def put(name: str) -> object:
    def add(merger: Merger) -> None:
        merger.set_items("a", [*merger.items("a"), tool(name)])

    return add


def make() -> tuple[Activator, Target]:
    merger, target = Merger(), Target()
    merger.add_source("a")
    merger.set_items("a", [service()])
    activator = Activator(merger, target, target.on_activated)
    assert [names for _, names in target.activations] == [()]
    return activator, target


@asynccontextmanager
async def started() -> AsyncIterator[tuple[Activator, Target]]:
    activator, target = make()
    target.activations.clear()
    target.causes.clear()
    activator.start()
    try:
        yield activator, target
    finally:
        target.hold.set()
        await activator.close()


async def add(activator: Activator, name: str, source: str = "a") -> None:
    await activator.run(put(name))
    await activator.activate(source)


async def test_before_the_start_a_change_is_in_force_at_once() -> None:
    activator, target = make()
    await add(activator, "one")
    assert target.activations[1:]
    assert target.activations[-1][1] == ("one",)
    assert target.threads == {threading.current_thread().name}
    assert not activator.is_running


@virtual_time
async def test_changes_within_50_ms_are_one_activation() -> None:
    async with started() as (activator, target):
        began = asyncio.get_running_loop().time()
        first = await start_task(add(activator, "one", "a"), 0.04)
        await asyncio.gather(first, add(activator, "two", "b"))
        assert [(at - began, names) for at, names in target.activations] == [(pytest.approx(0.05), ("one", "two"))]
        assert target.causes == [({"a", "b"}, False)]
        assert all(name.startswith("dispatch-catalog") for name in target.threads - {threading.current_thread().name})


@virtual_time
async def test_there_are_at_most_ten_activations_per_second() -> None:
    async with started() as (activator, target):
        began = asyncio.get_running_loop().time()
        for at in range(25):
            await add(activator, f"t{at}")
        times = [at for at, _ in target.activations]
        assert len(times) == 25
        assert all(later - one >= 0.1 - 1e-9 for one, later in itertools.pairwise(times))
        assert times[-1] - began == pytest.approx(0.05 + 24 * 0.1)


@virtual_time
async def test_a_catalogue_that_cannot_be_prepared_leaves_the_former_one_in_force() -> None:
    async with started() as (activator, target):
        await add(activator, "one")
        with pytest.raises(ValueError, match="this one is bad"):
            await add(activator, "bad")
        assert tuple(activator.merged.catalog.tools) == tuple(target.catalog.tools) == ("one",)
        await activator.run(lambda merger: merger.set_items("a", [service(), tool("two")]))
        await activator.activate("a")
        assert tuple(target.catalog.tools) == ("two",)


@virtual_time
async def test_a_replacement_is_complete_or_changes_nothing() -> None:
    async with started() as (activator, target):
        await add(activator, "one")

        def build(former: Merger) -> Merger:
            other = former.copy((), Policy(timeout=7))
            other.add_source("b")
            other.set_items("b", [service(), tool("bad" if is_bad else "other")])
            return other

        is_bad = True
        with pytest.raises(ValueError, match="bad"):
            await activator.replace(build, ["b"])
        await add(activator, "two")
        assert tuple(target.catalog.tools) == ("one", "two")
        is_bad = False
        await activator.replace(build, ["b"])
        assert (tuple(target.catalog.tools), activator.merged.policy.timeout) == (("other",), 7)
        assert target.causes[-1] == ({"b"}, True)


@virtual_time
async def test_a_cancelled_replacement_changes_nothing() -> None:
    async with started() as (activator, target):
        await add(activator, "one")
        target.hold.clear()
        replacing = asyncio.create_task(activator.replace(lambda former: former.copy((), Policy()), []))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await cancel_task(replacing)
        target.hold.set()
        await add(activator, "two")
        assert tuple(target.catalog.tools) == ("one", "two")


@virtual_time
async def test_a_cancelled_caller_does_not_stop_the_activation() -> None:
    async with started() as (activator, target):
        one, two = (asyncio.create_task(add(activator, name)) for name in ("one", "two"))
        await advance(0.01)
        one.cancel()
        await two
        assert one.cancelled()
        assert tuple(target.catalog.tools) == ("one", "two")


@virtual_time
async def test_a_close_fails_the_changes_that_are_not_in_force() -> None:
    async with started() as (activator, target):
        waiting = await start_task(add(activator, "one"), 0.01)
        await activator.close()
        with pytest.raises(RuntimeError, match="closed before"):
            await waiting
        assert target.activations == []


@virtual_time
async def test_a_close_fails_a_change_whose_merge_has_not_begun() -> None:
    async with started() as (activator, target):
        target.hold.clear()
        replacing = asyncio.create_task(activator.replace(lambda former: former.copy((), Policy()), []))
        await asyncio.sleep(0)
        replacing.cancel()  # its thread is still busy
        waiting = asyncio.create_task(add(activator, "one"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await activator.close()
        with pytest.raises(RuntimeError, match="closed before"):
            await waiting


A, B = "a" * 64, "b" * 64


def test_without_a_file_nothing_is_approved(tmp_path: Path) -> None:
    approvals = Approvals(tmp_path / "approved.json")
    assert (approvals.load(), approvals.modified()) == ({}, (0, 0, 0))
    assert list(tmp_path.iterdir()) == []


def test_what_is_added_is_loaded_and_replaces_its_key(tmp_path: Path) -> None:
    approvals = Approvals(tmp_path / "approved.json")
    assert approvals.add({"tool/one": frozenset({A}), "tool/two": frozenset({A})}) == Approvals(approvals.path).load()
    before = approvals.modified()
    approvals.add({"tool/one": frozenset({A, B})})
    assert approvals.load() == {"tool/one": {A, B}, "tool/two": {A}}
    assert approvals.modified() != before
    assert json.loads(approvals.path.read_text())["approved"]["tool/one"] == [A, B]
    assert [each.name for each in tmp_path.iterdir()] == ["approved.json"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"approved": []}',
        b'{"approved": {"tool/one": 7}}',
        b'{"approved": {"tool/one": ["short"]}}',
        b'{"approved": {"tool/one": ["' + b"G" * 64 + b'"]}}',
        b'{"approved": {"tool/one": [7]}}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_a_damaged_file_is_an_error_and_stays_as_it_is(tmp_path: Path, content: bytes) -> None:
    approvals = Approvals(tmp_path / "approved.json")
    approvals.path.write_bytes(content)
    for use in (approvals.load, lambda: approvals.add({"tool/one": frozenset({A})})):
        with pytest.raises(ApprovalsError, match="Fix: restore it"):
            use()
    assert approvals.path.read_bytes() == content


def test_a_file_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 50)
    approvals = Approvals(tmp_path / "approved.json")
    approvals.path.write_text(json.dumps({"approved": {"tool/one": [A]}}))
    with pytest.raises(ApprovalsError, match="more than 50 bytes"):
        approvals.load()


def test_a_place_that_cannot_be_read_or_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "approved.json").mkdir()
    with pytest.raises(ApprovalsError, match="cannot be read"):
        Approvals(tmp_path / "approved.json").load()
    with pytest.raises(ApprovalsError, match=r"cannot be written.*make its folder writable"):
        Approvals(tmp_path / "missing" / "approved.json").add({"tool/one": frozenset({A})})


def test_a_write_that_fails_leaves_the_former_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    approvals = Approvals(tmp_path / "approved.json")
    approvals.add({"tool/one": frozenset({A})})

    def refuse(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.os, "fsync", refuse)
    with pytest.raises(ApprovalsError, match="No space left"):
        approvals.add({"tool/one": frozenset({B})})
    assert approvals.load() == {"tool/one": {A}}
    assert [each.name for each in tmp_path.iterdir()] == ["approved.json"]


@virtual_time
async def test_what_appears_shortly_before_the_end_is_in_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "tools"
    for kind, raw in (("tool-service", JOKE_SERVICE), ("tool", TELL_JOKE)):
        (folder / kind).mkdir(parents=True)
        (folder / kind / "one.json").write_text(json.dumps(raw))
    source = dispatch.Folder(folder, on_change="hold")
    approvals = Approvals(tmp_path / "approved.json")
    async with dispatch.connect("memory://", catalog=[source], approvals=approvals.path) as dispatcher:
        (folder / "tool" / "two.json").write_text(json.dumps(TELL_JOKE | {"name": "two"}))
        await dispatcher.registry.refresh(source.id)
        assert "two" in dispatcher.catalog.tools
    assert approvals.load().keys() == {"tool-service/joke-service", "tool/tell-joke", "tool/two"}


def test_the_file_is_for_its_owner_only(tmp_path: Path) -> None:
    approvals = Approvals(tmp_path / "approved.json")
    approvals.add({"tool/one": frozenset({A})})
    assert stat.S_IMODE(approvals.path.stat().st_mode) == 0o600


def test_concurrent_writers_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "approved.json"

    def add(at: int) -> None:
        Approvals(path).add({f"tool/t{at}": frozenset({A})})

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(add, range(100)))
    assert set(Approvals(path).load()) == {f"tool/t{at}" for at in range(100)}


@pytest.mark.costly
def test_a_reader_sees_a_whole_file_always(tmp_path: Path) -> None:
    approvals = Approvals(tmp_path / "approved.json")
    approvals.add({"tool/one": frozenset({A})})
    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(lambda: [approvals.add({f"tool/t{at}": frozenset({A})}) for at in range(100)])
        seen = [len(approvals.load())]
        while not writing.done():
            seen.append(len(approvals.load()))
    assert seen == sorted(seen)
    assert len(approvals.load()) == 101


class Scripted:
    """A source that fails, and announces changes, on request."""

    id = "desk"

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self.attempts: list[float] = []
        self.announced: asyncio.Queue[object] = asyncio.Queue()
        self.iterations = 0
        self.closed = 0

    async def discover(self) -> Sequence[Item]:
        self.attempts.append(asyncio.get_running_loop().time())
        if self.failure is not None:
            raise self.failure
        return [tool()]

    async def changes(self) -> AsyncIterator[None]:
        self.iterations += 1
        while True:
            change = await self.announced.get()
            if isinstance(change, Exception):
                raise change
            if change == "end":
                return
            yield

    async def close(self) -> None:
        self.closed += 1


class Followed:
    """A follower with its states; ``problems`` are those for which the items are refused."""

    def __init__(self, source: Any = None) -> None:
        self.source = Scripted() if source is None else source
        self.states: list[tuple[SourceState, SourceState, str]] = []
        self.problems: list[Problem] = []
        self.follower = SourceFollower(self.source, self.accept, self.on_state, lambda: 0.5)

    async def accept(self, source: object, items: Sequence[Item]) -> Sequence[Problem]:
        return self.problems

    def on_state(self, follower: SourceFollower, former: SourceState) -> None:
        self.states.append((former, follower.state, follower.problem))

    async def __aenter__(self) -> Followed:
        self.follower.start()
        await idle()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.follower.close()

    def pauses(self) -> list[float]:
        times = self.source.attempts
        return [pytest.approx(later - one) for one, later in itertools.pairwise(times)]


@virtual_time
async def test_a_source_is_read_at_the_start_and_after_each_change() -> None:
    async with Followed() as followed:
        assert len(followed.source.attempts) == 1
        assert followed.states == [("failed", "ok", "")]
        assert followed.follower.is_ready.is_set()
        followed.source.announced.put_nowait(None)
        await advance(3_600)
        assert len(followed.source.attempts) == 2
    assert followed.source.closed == 1


@virtual_time
async def test_a_source_out_of_reach_is_tried_again_with_backoff() -> None:
    followed = Followed()
    followed.source.failure = ConnectionError("no answer")
    async with followed:
        await advance(200)
        assert followed.pauses()[:8] == [0.5, 1, 2, 4, 8, 16, 30, 30]
        assert followed.states == [("failed", "failed", "ConnectionError: no answer")]
        followed.source.failure = None
        await advance(30)
        assert followed.states[1:] == [("failed", "ok", "")]
        await advance(3_600)
        followed.source.failure = OSError()
        followed.source.attempts.clear()
        followed.source.announced.put_nowait(None)
        await advance(4)
        assert followed.pauses() == [0.5, 1, 2]
        assert followed.states[2:] == [("ok", "stale", "OSError")]
        assert isinstance(followed.follower.error, OSError)


@virtual_time
async def test_a_change_ends_the_wait_for_the_next_attempt() -> None:
    followed = Followed()
    followed.source.failure = ConnectionError("no answer")
    async with followed:
        await advance(20)
        followed.source.attempts.clear()
        followed.source.failure = None
        followed.source.announced.put_nowait(None)
        await advance(0)
        assert (len(followed.source.attempts), followed.follower.state) == (1, "ok")


@pytest.mark.parametrize("end", ["end", ConnectionError("lost")])
@virtual_time
async def test_a_source_whose_changes_are_over_is_followed_again(end: object) -> None:
    async with Followed() as followed:
        await advance(100)
        followed.source.announced.put_nowait(end)
        await advance(0.6)
        assert (followed.source.iterations, len(followed.source.attempts)) == (2, 2)
        assert followed.follower.state == "ok"
        followed.source.announced.put_nowait(None)
        await idle()
        assert len(followed.source.attempts) == 3
    stale = [] if end == "end" else [("ok", "stale", "ConnectionError: lost"), ("stale", "ok", "")]
    assert followed.states == [("failed", "ok", ""), *stale]


class Endless(Scripted):
    """A source whose changes are over at once."""

    async def changes(self) -> AsyncIterator[None]:
        self.iterations += 1
        for _ in ():
            yield


@virtual_time
async def test_a_source_without_changes_is_read_more_and_more_seldom() -> None:
    async with Followed(Endless()) as followed:
        await advance(180)
        assert followed.pauses()[:8] == [0.5, 1, 2, 4, 8, 16, 30, 30]


class Unfit(Scripted):
    """A source whose ``changes`` raises."""

    def changes(self) -> AsyncIterator[None]:
        raise NotImplementedError("later")


@virtual_time
async def test_a_source_that_cannot_be_followed_is_reported() -> None:
    async with Followed(Unfit()) as followed:
        assert followed.follower.is_ready.is_set()
        assert followed.states == [("failed", "failed", "NotImplementedError: later")]


@virtual_time
async def test_refused_items_are_a_failure_with_their_first_problem() -> None:
    followed = Followed()
    followed.problems = [
        Problem("tool/a", "name", "it is odd", "rename it", "warning"),
        Problem("tool/b", "name", "it is bad", "rename it"),
        Problem("tool/c", "name", "it is bad", "rename it"),
    ]
    async with followed:
        ((_, state, problem),) = followed.states
        assert state == "failed"
        assert problem.startswith("tool/b")
        assert problem.endswith("(and 1 more)")
        assert isinstance(followed.follower.error, CatalogError)


@virtual_time
async def test_a_long_problem_is_cut() -> None:
    followed = Followed()
    followed.source.failure = OSError("x" * 10_000)
    async with followed:
        assert len(followed.follower.problem) <= MAX_PROBLEM_CHARS


@virtual_time
async def test_a_source_that_cannot_be_closed_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    class Stuck(Scripted):
        def close(self) -> Any:
            raise OSError("still busy")

    first, second = Followed(Stuck()), Followed()
    for each in (first, second):
        each.follower.start()
    await idle()
    with caplog.at_level(logging.WARNING, "dispatch.catalog"):
        await close_followers([first.follower, second.follower])
    assert "the source 'desk' cannot be closed: OSError: still busy" in caplog.text
    assert second.source.closed == 1
