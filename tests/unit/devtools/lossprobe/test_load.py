"""The load: so many at once, an end, and every call in exactly one count."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.devtools.lossprobe import MAX_SILENCES, SILENCE_S, FailedCallError, Load, LostCallError, RunResult
from tests.helpers import clock

ANSWERED, LOST, FAILED, SILENT = "answered", "lost", "failed", "silent"


class Script:
    """Calls that end as it says, over and over; each takes ``takes`` seconds of the virtual clock."""

    def __init__(self, *ends: str, takes: float = 0.001) -> None:
        self._ends = itertools.cycle(ends)
        self._takes = takes
        self.ends: list[str] = []
        self.at_once = self.most_at_once = self.cancelled = 0
        self.five = asyncio.Event()

    async def call(self) -> None:
        end = next(self._ends)
        self.ends.append(end)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        if self.at_once == 5:
            self.five.set()
        try:
            if end == SILENT:
                await asyncio.get_running_loop().create_future()
            await asyncio.sleep(self._takes)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.at_once -= 1
        if end == LOST:
            raise LostCallError
        if end == FAILED:
            raise FailedCallError("refused")


async def run(
    script: Script, *, in_flight: int = 1, calls: int | None = None, seconds: float | None = None
) -> RunResult:
    return await Load(script.call, in_flight=in_flight, calls=calls, seconds=seconds).run()


async def test_so_many_calls_with_so_many_at_once() -> None:
    script = Script(ANSWERED)
    found = await run(script, in_flight=4, calls=40)
    assert (found.calls, found.lost, found.errors) == (40, 0, {})
    assert script.most_at_once == 4
    assert found.seconds == pytest.approx(0.01)
    assert found.rate == pytest.approx(4_000)


async def test_calls_are_begun_for_so_long_and_then_awaited() -> None:
    script = Script(ANSWERED, takes=0.4)
    found = await run(script, in_flight=2, seconds=1.0)
    assert found.calls == 6  # the last begin at 0.8 s
    assert found.seconds == pytest.approx(1.2)


async def test_whichever_end_comes_first() -> None:
    assert (await run(Script(ANSWERED, takes=0.4), calls=2, seconds=10.0)).calls == 2
    assert (await run(Script(ANSWERED, takes=0.4), calls=100, seconds=1.0)).calls == 3


async def test_a_run_without_an_end_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="needs an end"):
        Load(Script(ANSWERED).call, in_flight=1, calls=None, seconds=None)


async def test_lost_and_failed_ones_are_counted_apart_and_the_rest_goes_on() -> None:
    found = await run(Script(ANSWERED, LOST, FAILED, ANSWERED), in_flight=3, calls=40)
    assert (found.calls, found.lost, found.errors, found.answered) == (40, 10, {"refused": 10}, 20)


async def test_what_waits_through_a_silence_is_lost() -> None:
    script = Script(ANSWERED, SILENT, ANSWERED)
    found = await run(script, in_flight=2, calls=12)
    assert (found.calls, found.lost, found.answered) == (12, 4, 8)
    assert script.cancelled == 4


async def test_while_others_are_answered_nobody_is_given_up() -> None:
    slow = asyncio.get_running_loop().create_future()
    quick = Script(ANSWERED, takes=1.0)
    answered = itertools.count(1)

    async def call() -> None:
        if next(answered) == 1:
            await slow
        else:
            await quick.call()

    asyncio.get_running_loop().call_later(5 * SILENCE_S, slow.set_result, None)
    found = await Load(call, in_flight=2, calls=20, seconds=None).run()
    assert (found.calls, found.lost) == (20, 0)


@pytest.mark.parametrize("in_flight", [1, 8])
async def test_where_nobody_answers_it_ends_soon(in_flight: int) -> None:
    started = asyncio.get_running_loop().time()
    found = await run(Script(SILENT), in_flight=in_flight, calls=1_000)
    assert found.lost == found.calls == in_flight * MAX_SILENCES
    assert (found.seconds, found.rate) == (0.0, 0.0)
    assert asyncio.get_running_loop().time() - started < (MAX_SILENCES + 1) * SILENCE_S


async def test_failures_without_any_wait_do_not_stop_the_loop() -> None:
    async def call() -> None:
        raise FailedCallError("queue-full")

    turns = itertools.count()
    loop = asyncio.get_running_loop()

    def turn() -> None:
        next(turns)
        loop.call_soon(turn)

    turn()
    running = asyncio.create_task(Load(call, in_flight=2, calls=50, seconds=None).run())
    found = await running
    assert found.errors == {"queue-full": 50}
    assert next(turns) >= 25


async def test_cancelled_it_leaves_nothing() -> None:
    script = Script(SILENT)
    running = asyncio.create_task(run(script, in_flight=5, calls=5))
    await script.five.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (script.at_once, script.cancelled) == (0, 5)


async def test_a_fault_in_a_call_is_not_taken_for_a_loss() -> None:
    async def call() -> None:
        raise KeyError("a defect of the load")

    with pytest.raises(ExceptionGroup) as raised:
        await Load(call, in_flight=2, calls=10, seconds=None).run()
    assert raised.group_contains(KeyError)


@given(
    st.lists(st.sampled_from([ANSWERED, ANSWERED, LOST, FAILED, SILENT]), min_size=1, max_size=12),
    st.integers(1, 9),
    st.integers(1, 40),
)
def test_each_call_is_in_exactly_one_count(ends: list[str], in_flight: int, calls: int) -> None:
    script = Script(*ends)
    found = clock.run(lambda: run(script, in_flight=in_flight, calls=calls))
    assert found.calls == len(script.ends) <= calls
    assert found.lost == script.ends.count(LOST) + script.ends.count(SILENT)
    assert sum(found.errors.values()) == script.ends.count(FAILED)
    assert found.answered == script.ends.count(ANSWERED)
    assert script.most_at_once <= in_flight
    assert script.at_once == 0
