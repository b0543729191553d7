"""Activations: coalesced, limited in number, atomic; on virtual time."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import pytest

from dispatch.catalog.activation import Activator, Prepared
from dispatch.catalog.catalog import Catalog, compare
from dispatch.catalog.merge import Merged, Merger
from dispatch.policy import Policy
from dispatch.testing.clock import advance, virtual_time
from tests.unit.catalog.live.test_merge import service, tool


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
    merger, target = Merger(), Target()
    merger.add_source("a")
    merger.set_items("a", [service()])
    activator = Activator(merger, target, target.on_activated)
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
        first = asyncio.create_task(add(activator, "one", "a"))
        await advance(0.04)
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
        replacing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await replacing
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
        waiting = asyncio.create_task(add(activator, "one"))
        await advance(0.01)
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
