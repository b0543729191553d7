"""Virtual time: a test runner that misses leaks would make all other tests worthless.
dispatch.testing is imported by users' tests alone.
"""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from dispatch.testing.clock import START, DeadlockError, VirtualClockLoop, advance, idle, run, virtual_time
from tests.helpers.clock import start_task
from tests.test_imports import GRAPH


async def test_a_virtual_sleep_takes_no_wall_time() -> None:
    await asyncio.sleep(30)
    assert asyncio.get_running_loop().time() == START + 30


async def test_advance_runs_timers_that_are_due_and_no_others() -> None:
    happened: list[int] = []
    loop = asyncio.get_running_loop()
    timers = [loop.call_later(seconds, happened.append, seconds) for seconds in (1, 2, 3)]
    await advance(2)
    assert happened == [1, 2]
    timers[-1].cancel()


async def test_idle_runs_ready_callbacks_without_advancing_time() -> None:
    steps: list[int] = []

    async def many() -> None:
        for step in range(100):
            await asyncio.sleep(0)
            steps.append(step)

    task = await start_task(many())
    assert len(steps) == 100
    assert asyncio.get_running_loop().time() == START
    await task


async def test_time_stands_still_while_a_thread_runs() -> None:
    begun = threading.Event()
    working = asyncio.create_task(asyncio.to_thread(begun.wait, 10))
    asyncio.get_running_loop().call_soon(begun.set)
    assert await working
    assert asyncio.get_running_loop().time() == START


def test_a_deadlock_fails_at_once() -> None:
    async def hangs() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(DeadlockError, match=r"hangs|create_future"):
        run(hangs)


def test_a_remaining_task_fails_the_test() -> None:
    async def leaves() -> None:
        leaves.task = asyncio.create_task(asyncio.Event().wait())  # type: ignore[attr-defined]

    with pytest.raises(AssertionError, match="tasks are left"):
        run(leaves)


def test_a_remaining_timer_fails_the_test() -> None:
    async def leaves() -> None:
        asyncio.get_running_loop().call_later(5, print)

    with pytest.raises(AssertionError, match="timers are left"):
        run(leaves)


def test_an_exception_that_is_never_retrieved_fails_the_test() -> None:
    async def fails() -> None:
        raise ValueError("nobody looks")

    async def starts() -> None:
        task = await start_task(fails())
        del task

    with pytest.raises(AssertionError, match="nobody looks"):
        run(starts)


def test_a_timer_that_is_set_for_ever_fails_the_test() -> None:
    async def spins() -> None:
        loop = asyncio.get_running_loop()

        def again() -> None:
            loop.call_later(1e6, again)

        again()
        await loop.create_future()

    with pytest.raises(DeadlockError, match="days of virtual time"):
        run(spins)


def test_without_strict_remaining_tasks_are_cancelled() -> None:
    cancelled: list[bool] = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(True)

    async def leaves() -> str:
        leaves.task = asyncio.create_task(waits())  # type: ignore[attr-defined]
        asyncio.get_running_loop().call_later(5, print)
        return "done"

    assert run(leaves, strict=False) == "done"
    assert cancelled == [True]


def test_without_strict_unretrieved_exceptions_are_ignored() -> None:
    async def fails() -> None:
        raise ValueError("nobody looks")

    async def starts() -> None:
        task = await start_task(fails())
        del task

    run(starts, strict=False)


def test_a_decorated_function_is_a_plain_one_and_keeps_its_parameters() -> None:
    @virtual_time
    async def waited(seconds: float, *, twice: bool = False) -> float:
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(seconds * (1 + twice))
        return asyncio.get_running_loop().time() - began

    assert not inspect.iscoroutinefunction(waited)
    assert list(inspect.signature(waited).parameters) == ["seconds", "twice"]
    assert (waited(3600), waited(3600, twice=True)) == (3600, 7200)


def test_a_decorated_function_raises_the_original_error() -> None:
    @virtual_time
    async def fails() -> None:
        await asyncio.sleep(1)
        raise LookupError("its own")

    with pytest.raises(LookupError, match="its own"):
        fails()


def test_another_loop_can_be_given() -> None:
    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        assert runner.run(asyncio.wait_for(asyncio.sleep(3600, "late"), 7200)) == "late"


@pytest.mark.parametrize("helper", [idle, lambda: advance(1)])
def test_helpers_reject_a_real_loop(helper: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with pytest.raises(RuntimeError, match="@virtual_time"):
        run(helper, loop=asyncio.SelectorEventLoop())


def test_no_other_package_imports_testing() -> None:
    importers = GRAPH.find_modules_that_directly_import("dispatch.testing") | {
        importer
        for module in GRAPH.find_descendants("dispatch.testing")
        for importer in GRAPH.find_modules_that_directly_import(module)
    }
    assert [module for module in importers if not module.startswith("dispatch.testing")] == []


def test_testing_imports_no_test_runner() -> None:
    runners = {"pytest", "_pytest", "hypothesis", "pulsar", "_pulsar"}
    script = f"import dispatch.testing, sys; print(*{runners!r} & set(sys.modules))"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout.split() == []


def test_all_public_names_exist() -> None:
    from dispatch import testing

    assert sorted(testing.__all__) == testing.__all__
    for name in testing.__all__:
        assert getattr(testing, name).__doc__, f"{name} says what it is"


def test_a_test_that_is_no_coroutine_function_is_told() -> None:
    problem = r"^the test returned None, not a coroutine\. Fix: write it with 'async def'\.$"
    with pytest.raises(TypeError, match=problem):
        virtual_time(lambda: None)()  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match=r"^main must be a coroutine function, as in run\(main\), not an int\.$"):
        run(3)  # type: ignore[arg-type]
