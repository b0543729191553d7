"""Retention, in virtual time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from dispatch import _internal
from dispatch._internal import RETENTION_S, Retention
from tests.helpers.clock import advance, idle, run, virtual_loop
from tests.helpers.run_profile import examples


class Things:
    """Things that may be in use."""

    def __init__(self) -> None:
        self.busy: dict[str, list[Callable[[], object]]] = {}
        self.dropped: list[tuple[str, float]] = []
        self.retention: Retention[str] = Retention(self._drop, self._await_idle)

    def _drop(self, key: str) -> None:
        self.dropped.append((key, asyncio.get_running_loop().time()))

    def _await_idle(self, key: str, callback: Callable[[], object]) -> bool:
        if key not in self.busy:
            return False
        self.busy[key].append(callback)
        return True

    def use(self, key: str) -> None:
        self.busy.setdefault(key, [])

    def end_use(self, key: str) -> None:
        for callback in self.busy.pop(key, []):
            callback()


async def test_a_thing_is_dropped_after_its_time() -> None:
    things, loop = Things(), asyncio.get_running_loop()
    start = loop.time()
    things.retention.add("a")
    await advance(20)
    things.retention.add("b")
    things.retention.add("a")  # it is retained already
    await advance(RETENTION_S - 20 - 0.001)
    assert things.dropped == []
    assert "a" in things.retention
    await advance(20.001)
    assert things.dropped == [("a", start + RETENTION_S), ("b", start + 20 + RETENTION_S)]
    assert len(things.retention) == 0
    assert virtual_loop().list_timers() == []


async def test_a_thing_in_use_is_dropped_with_the_end_of_its_use() -> None:
    things = Things()
    things.use("a")
    things.retention.add("a")
    await advance(3 * RETENTION_S)
    assert things.dropped == []
    things.end_use("a")
    assert [key for key, _ in things.dropped] == ["a"]


async def test_a_thing_that_returns_is_not_dropped() -> None:
    things = Things()
    things.use("b")
    for key in "ab":
        things.retention.add(key)
    await advance(RETENTION_S / 2)
    assert things.retention.restore("a")
    assert not things.retention.restore("a")
    await advance(RETENTION_S)
    assert things.retention.restore("b")  # it has expired, and was in use
    things.retention.add("b")
    things.end_use("b")  # the callback of the first wait
    await advance(RETENTION_S - 0.001)
    assert things.dropped == []
    await advance(0.001)
    assert [key for key, _ in things.dropped] == ["b"]


async def test_many_things_are_dropped_in_several_turns() -> None:
    things = Things()
    count = 3 * _internal.BATCH
    for number in range(count):
        things.retention.add(str(number))
    turns: list[int] = []
    loop = asyncio.get_running_loop()

    def watch() -> None:
        turns.append(len(things.dropped))
        if turns[-1] < count:
            loop.call_soon(watch)

    loop.call_at(loop.time() + RETENTION_S, watch)
    await advance(RETENTION_S)
    await idle()
    assert len(things.dropped) == count
    assert max(after - before for before, after in itertools.pairwise(turns)) <= _internal.BATCH


async def test_the_oldest_expires_early_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_internal, "MAX_RETAINED", 3)
    things = Things()
    things.use("0")
    for number in range(5):
        things.retention.add(str(number))
    assert [key for key, _ in things.dropped] == ["1"]
    things.end_use("0")
    assert [key for key, _ in things.dropped] == ["1", "0"]
    things.retention.close()


async def test_nothing_is_dropped_after_the_close() -> None:
    things = Things()
    things.use("b")
    for key in "ab":
        things.retention.add(key)
    await advance(1)
    things.retention.close()
    things.end_use("b")
    await advance(2 * RETENTION_S)
    assert things.dropped == []


steps = st.one_of(
    st.tuples(st.sampled_from(["add", "restore", "use", "end use"]), st.sampled_from("abc")),
    st.tuples(st.just("wait"), st.sampled_from([1.0, RETENTION_S / 2, RETENTION_S])),
)


@settings(max_examples=examples(200))
@given(st.lists(steps, max_size=30))
def test_a_thing_is_retained_for_its_time_and_while_it_is_in_use(story: list[tuple[str, str | float]]) -> None:
    async def tell() -> None:
        things, loop = Things(), asyncio.get_running_loop()
        due: dict[str, float] = {}
        for what, how in story:
            before = len(things.dropped)
            if what == "wait":
                await advance(float(how))
            else:
                key = str(how)
                if what == "add":
                    things.retention.add(key)
                    due.setdefault(key, loop.time() + RETENTION_S)
                elif what == "restore":
                    assert things.retention.restore(key) == (due.pop(key, None) is not None)
                elif what == "use":
                    things.use(key)
                else:
                    things.end_use(key)
            expected = {key for key, at in due.items() if at <= loop.time() and key not in things.busy}
            assert {key for key, _ in things.dropped[before:]} == expected
            assert len(things.dropped) - before == len(expected)
            for key in expected:
                del due[key]
            assert len(things.retention) == len(due)
        things.retention.close()

    run(tell)
