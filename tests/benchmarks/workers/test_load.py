"""The load in virtual time: counted and uncounted calls."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from benchmarks.workers import load as module
from benchmarks.workers.load import Load, measure, reach
from dispatch import DispatchError, TransportError


async def test_figures_are_of_the_measurement_and_not_of_its_ramp() -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def call() -> str:
        # Four times as slow in the ramp: seen in the figures, it would change every one of them.
        await asyncio.sleep(0.04 if loop.time() - began < 0.5 else 0.01)
        return "right"

    found = await measure(Load(call, "right", TimeoutError), in_flight=4, seconds=1.0, ramp=0.52)
    assert found["calls_per_second"] == pytest.approx(400, rel=0.02)
    assert found["p50_ms"] == pytest.approx(10)
    assert found["p99_ms"] == pytest.approx(10)
    assert found["seconds"] == pytest.approx(1.0)
    assert found["calls"] == found["answered"] == pytest.approx(4 * 13 + 400, abs=8)
    assert (found["lost"], found["errors"]) == (0, {})
    assert found["cpu_us_per_call"] > 0


async def test_percentiles() -> None:
    count = 0

    async def call() -> str:
        nonlocal count
        count += 1
        await asyncio.sleep(0.1 if count % 50 == 0 else 0.01)
        return ""

    found = await measure(Load(call, "", TimeoutError), in_flight=1, seconds=20.0, ramp=0.0)
    assert found["p50_ms"] == pytest.approx(10)
    assert found["p99_ms"] == pytest.approx(100)


async def test_never_more_in_flight_than_asked() -> None:
    running = most = 0

    async def call() -> bytes:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return b""

    await measure(Load(call, b"", TimeoutError), in_flight=7, seconds=1.0, ramp=0.1)
    assert (running, most) == (0, 7)


async def test_lost_calls_are_counted_by_kind_and_have_no_latency() -> None:
    count = 0

    async def call() -> str:
        nonlocal count
        count += 1
        if count % 10 == 0:
            await asyncio.sleep(0.5)
            raise TransportError("publish-dropped", "It was dropped.")
        await asyncio.sleep(0.01)
        return "right"

    found = await measure(Load(call, "right", DispatchError), in_flight=1, seconds=10.0, ramp=0.0)
    assert found["lost"] == found["errors"]["TransportError"] > 10
    assert found["calls"] == found["answered"] + found["lost"] == count
    assert found["p99_ms"] == pytest.approx(10)
    assert found["calls_per_second"] == pytest.approx(9 / 0.59, rel=0.05)


async def test_nothing_but_losses_is_a_result_too() -> None:
    async def call() -> str:
        await asyncio.sleep(0.1)
        raise TimeoutError

    found = await measure(Load(call, "", TimeoutError), in_flight=2, seconds=1.0, ramp=0.0)
    assert (found["p50_ms"], found["p99_ms"], found["cpu_us_per_call"]) == (None, None, None)
    assert found["calls_per_second"] == 0
    assert found["lost"] == found["calls"] > 0


@pytest.mark.parametrize("wrong", ["wrong", b"right", None])
async def test_a_wrong_answer_ends_the_run(wrong: Any) -> None:
    async def call() -> Any:
        await asyncio.sleep(0.01)
        return wrong

    with pytest.raises(ExceptionGroup) as failed:
        await measure(Load(call, "right", TimeoutError), in_flight=3, seconds=1.0, ramp=0.0)
    assert failed.value.subgroup(ValueError) is not None


async def test_an_error_that_is_no_loss_ends_the_run() -> None:
    async def call() -> str:
        await asyncio.sleep(0.01)
        raise KeyError("a mistake of the client's")

    with pytest.raises(ExceptionGroup) as failed:
        await measure(Load(call, "", TimeoutError), in_flight=3, seconds=1.0, ramp=0.0)
    assert failed.value.subgroup(KeyError) is not None


async def test_the_first_answer_is_waited_for() -> None:
    count = 0

    async def call() -> str:
        nonlocal count
        count += 1
        await asyncio.sleep(1)
        if count < 4:
            raise TimeoutError
        return "right"

    await reach(Load(call, "right", TimeoutError))
    assert count == 4


async def test_but_not_for_ever() -> None:
    async def call() -> str:
        await asyncio.sleep(1)
        raise KeyError

    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(TimeoutError):
        await reach(Load(call, "", KeyError))
    assert loop.time() - began == pytest.approx(module.REACH_S)
