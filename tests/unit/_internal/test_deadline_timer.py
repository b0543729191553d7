"""Deadlines of many things: each is handled at its time, once, with one timer."""

from __future__ import annotations

import asyncio
from operator import attrgetter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch._internal import GRANULARITY_OF_EACH_S, GRANULARITY_S, DeadlineTimer
from tests.helpers.clock import START, VirtualClockLoop, advance, virtual_loop


class Thing:
    def __init__(self, seconds: float) -> None:
        self.deadline = START + seconds
        self.ended_at: float | None = None


class Things(set[Thing]):
    """Things with a timer; a deadline removes one."""

    def __init__(self) -> None:
        self.timer = DeadlineTimer(self, attrgetter("deadline"), self.on_deadline)
        self.ended: list[Thing] = []

    def add_at(self, seconds: float) -> Thing:
        thing = Thing(seconds)
        self.add(thing)
        self.timer.watch(thing.deadline)
        return thing

    def on_deadline(self, thing: Thing) -> None:
        thing.ended_at = asyncio.get_running_loop().time()
        self.remove(thing)
        self.ended.append(thing)


async def test_a_deadline_is_handled_to_the_moment() -> None:
    things = Things()
    things.add_at(7)
    first = things.add_at(5)
    await advance(4.999)
    assert things.ended == []
    await advance(10)
    assert first.ended_at == pytest.approx(START + 5, abs=1e-6)
    assert things.ended[1].ended_at == pytest.approx(START + 7, abs=1e-6)
    assert not things.timer.is_armed


async def test_deadlines_close_to_each_other_are_handled_together() -> None:
    things = Things()
    many = [things.add_at(1 + number * GRANULARITY_S / 1_000) for number in range(1_000)]
    await advance(2)
    assert len({thing.ended_at for thing in many}) == 2
    assert things.ended == many, "in the order of time"


async def test_many_things_are_checked_less_often() -> None:
    things, checks = Things(), []
    many = [things.add_at(1 + number * 1e-4) for number in range(10_000)]
    check = things.timer._check
    things.timer._check = lambda: (checks.append(len(things)), check())  # type: ignore[method-assign]
    await advance(3)
    assert len(things.ended) == 10_000
    assert len(checks) < 1 / GRANULARITY_S
    for thing in many:
        assert thing.ended_at is not None
        assert 0 <= thing.ended_at - thing.deadline <= GRANULARITY_S + 10_000 * GRANULARITY_OF_EACH_S + 1e-6


async def test_one_that_has_ended_is_not_handled() -> None:
    things = Things()
    things.remove(things.add_at(1))
    last = things.add_at(3)
    await advance(5)
    assert things.ended == [last]


async def test_the_end_of_one_can_end_or_move_another() -> None:
    things: list[Thing] = [Thing(1.0), Thing(1.0), Thing(1.0)]
    handled: list[Thing] = []

    def on_deadline(thing: Thing) -> None:
        handled.append(thing)
        if len(handled) == 1:
            things[1].deadline = START + 2
            things[2].deadline = float("inf")
        thing.deadline = float("inf")

    timer = DeadlineTimer(things, attrgetter("deadline"), on_deadline)
    timer.watch(START + 1)
    await advance(1.5)
    assert handled == things[:1]
    await advance(1)
    assert handled == things[:2]
    assert not timer.is_armed


async def test_a_closed_timer_handles_nothing() -> None:
    things = Things()
    things.add_at(1)
    things.timer.close()
    await advance(2)
    assert things.ended == []
    assert virtual_loop().list_timers() == []


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0.001, 10), st.booleans()), max_size=20))
def test_each_one_is_handled_once_at_its_time(plan: list[tuple[float, float, bool]]) -> None:
    """Against the plan: added at a time, due some seconds later, and perhaps removed before that."""

    async def scenario() -> None:
        things = Things()
        due: list[Thing] = []
        for wait, seconds, is_removed in plan:
            await advance(wait)
            thing = things.add_at(asyncio.get_running_loop().time() - START + seconds)
            if is_removed:
                things.remove(thing)
            else:
                due.append(thing)
        await advance(11)
        assert sorted(map(id, things.ended)) == sorted(map(id, due))
        for each in due:
            assert each.ended_at is not None
            assert -1e-6 <= each.ended_at - each.deadline <= GRANULARITY_S + 1e-3
        assert not things.timer.is_armed

    loop: Any = VirtualClockLoop()
    try:
        loop.run_until_complete(scenario())
    finally:
        loop.close()
