"""The load in virtual time: counted and uncounted calls."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from benchmarks.workers import load as module
from benchmarks.workers.load import Load, measure, reach
from dispatch import DispatchError, TransportError


def rate_of(found: dict[str, Any]) -> float:
    """Answers per second."""
    return float(found["counted"] / found["seconds"])


async def test_figures_are_of_the_measurement_and_not_of_its_ramp() -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def call() -> str:
        # Four times as slow in the ramp: seen in the figures, it would change every one of them.
        await asyncio.sleep(0.04 if loop.time() - began < 0.5 else 0.01)
        return "right"

    found = await measure(Load(call, "right", TimeoutError), level=4, seconds=1.0, ramp=0.52)
    assert rate_of(found) == pytest.approx(400, rel=0.02)
    assert found["p50_ms"] == pytest.approx(10)
    assert found["p99_ms"] == pytest.approx(10)
    assert found["seconds"] == pytest.approx(1.0)
    assert found["calls"] == found["answered"] == pytest.approx(4 * 13 + 400, abs=8)
    assert (found["lost"], found["errors"]) == (0, {})
    assert found["cpu_s"]["client"] > 0


async def test_percentiles() -> None:
    count = 0

    async def call() -> str:
        nonlocal count
        count += 1
        await asyncio.sleep(0.1 if count % 50 == 0 else 0.01)
        return ""

    found = await measure(Load(call, "", TimeoutError), level=1, seconds=20.0, ramp=0.0)
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

    await measure(Load(call, b"", TimeoutError), level=7, seconds=1.0, ramp=0.1)
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

    found = await measure(Load(call, "right", DispatchError), level=1, seconds=10.0, ramp=0.0)
    assert found["lost"] == found["errors"]["TransportError"] > 10
    assert found["calls"] == found["answered"] + found["lost"] == count
    assert found["p99_ms"] == pytest.approx(10)
    assert rate_of(found) == pytest.approx(9 / 0.59, rel=0.05)


async def test_nothing_but_losses_is_a_result_too() -> None:
    async def call() -> str:
        await asyncio.sleep(0.1)
        raise TimeoutError

    found = await measure(Load(call, "", TimeoutError), level=2, seconds=1.0, ramp=0.0)
    assert (found["p50_ms"], found["p99_ms"]) == (None, None)
    assert rate_of(found) == 0
    assert found["lost"] == found["calls"] > 0


@pytest.mark.parametrize("wrong", ["wrong", b"right", None])
async def test_a_wrong_answer_ends_the_run(wrong: Any) -> None:
    async def call() -> Any:
        await asyncio.sleep(0.01)
        return wrong

    with pytest.raises(ExceptionGroup) as failed:
        await measure(Load(call, "right", TimeoutError), level=3, seconds=1.0, ramp=0.0)
    assert failed.value.subgroup(ValueError) is not None


async def test_an_error_that_is_no_loss_ends_the_run() -> None:
    async def call() -> str:
        await asyncio.sleep(0.01)
        raise KeyError("a mistake of the client's")

    with pytest.raises(ExceptionGroup) as failed:
        await measure(Load(call, "", TimeoutError), level=3, seconds=1.0, ramp=0.0)
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


async def test_an_open_load_does_not_wait_for_answers() -> None:
    running = most = 0

    async def call() -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.5)
        running -= 1
        return ""

    found = await measure(Load(call, "", TimeoutError), level=1_000, seconds=4.0, ramp=1.0, mode="open")
    assert rate_of(found) == pytest.approx(1_000, rel=0.1)
    assert found["calls"] == found["answered"] == pytest.approx(5_000, rel=0.1)
    assert most == pytest.approx(500, rel=0.2)
    # Calls of one millisecond begin together: their wait counts.
    assert 500 < found["p50_ms"] <= 502


async def test_a_stall_at_the_end_of_an_open_load_adds_no_calls() -> None:
    loop = asyncio.get_running_loop()
    stalls = iter([30.0])

    class StallingClock(module.Meter):
        """A meter whose clock stalls for half a minute in the middle of the measurement."""

        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            began = loop.time()
            self.stalled = 0.0

            def clock() -> float:
                if loop.time() - began >= 0.5:
                    self.stalled += next(stalls, 0.0)
                return loop.time() + self.stalled

            self.clock = clock

    async def call() -> str:
        await asyncio.sleep(0)
        return ""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "Meter", StallingClock)
        found = await measure(Load(call, "", TimeoutError), level=1_000, seconds=1.0, ramp=0.0, mode="open")
    # Those that were due during the stall, within the measurement, are made after it.
    assert found["calls"] == pytest.approx(1_000, rel=0.1)


async def test_a_burst_begins_at_once_and_the_next_one_after_the_last_answer() -> None:
    began: list[float] = []
    loop = asyncio.get_running_loop()

    async def call() -> str:
        began.append(loop.time())
        await asyncio.sleep(0.01 * (1 + len(began) % 4))
        return ""

    found = await measure(Load(call, "", TimeoutError), level=4, seconds=1.0, ramp=0.04, mode="burst")
    assert rate_of(found) == pytest.approx(100, rel=0.05)
    assert [len(set(began[start : start + 4])) for start in range(0, len(began), 4)] == [1] * (len(began) // 4)
    assert found["p50_ms"] == pytest.approx(20)


async def test_large_calls_beside_are_not_counted_and_their_losses_neither() -> None:
    large = 0

    async def call() -> str:
        await asyncio.sleep(0.01)
        return "small"

    async def call_large() -> str:
        nonlocal large
        large += 1
        await asyncio.sleep(0.1)
        if large % 2:
            raise TimeoutError
        return "large"

    load = Load(call, "small", TimeoutError, large_call=call_large, large_answer="large")
    found = await measure(load, level=2, seconds=1.0, ramp=0.0, beside=3)
    assert found["calls"] == pytest.approx(200, abs=4)
    assert found["lost"] == 0
    assert large == pytest.approx(30, abs=4)
