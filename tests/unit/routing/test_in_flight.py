"""Calls under way, and the end of those that began with a former catalogue."""

from __future__ import annotations

import asyncio

from dispatch.routing.in_flight import ActiveCalls, CatalogGenerations
from tests.helpers.clock import idle


async def test_all_who_wait_for_the_end_are_told() -> None:
    calls = ActiveCalls()
    await calls.wait_idle()
    calls.__enter__()
    waiting = [asyncio.create_task(calls.wait_idle()) for _ in range(2)]
    await idle()
    calls.__exit__()
    calls.__enter__()  # the next one, before they were woken: they wait for that, too
    await idle()
    assert not any(task.done() for task in waiting)
    calls.__exit__()
    await asyncio.gather(*waiting)


async def test_a_generation_ends_with_its_last_call_and_not_before_an_earlier_one() -> None:
    ended: list[int] = []
    generations = CatalogGenerations(asyncio.get_running_loop(), ended.append)
    first = generations.current
    with first:
        generations.begin()
        second = generations.current
        with second:
            generations.begin()
            assert (generations.number, generations.count, generations.are_former_pending) == (3, 2, True)
        await idle()
        assert ended == []
    await idle()
    assert ended == [1, 2]
    generations.begin()
    await idle()
    assert ended == [1, 2, 3]
    assert not generations.are_former_pending
    await generations.close()


async def test_nothing_is_under_way_when_no_generation_has_a_call() -> None:
    generations = CatalogGenerations(asyncio.get_running_loop(), lambda _: None)
    first = generations.current
    with first:
        generations.begin()
        with generations.current:
            waiting = asyncio.create_task(generations.wait_idle())
            await idle()
        await idle()
        assert not waiting.done()
    await waiting
    with generations.current:
        generations.begin()
        await idle()
        await generations.close()
