"""Waiting for a bulkhead permit on an event loop: cancellation at any moment, one timer, goodput under tenfold overload.

Guards against defects of other libraries: a caller that is cancelled as its permit is granted leaks the permit, or consumes
the wake-up of the next waiter.
Goal G12: a bulkhead in front of a simulated service at two to ten times its capacity.

Guards against congestion collapse: work for cancelled callers, so that goodput falls as load rises.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from typing import Any

import pytest

from dispatch._internal import Rejection
from dispatch.errors import Outcome
from dispatch.policy import Bulkhead
from dispatch.resilience.aio import AsyncBulkhead
from dispatch.resilience.bulkhead import BulkheadPermit, QueueLimits
from tests.helpers.clock import advance, idle, virtual_loop

OK = Outcome.SUCCESS


def bulkhead(**settings: Any) -> AsyncBulkhead:
    limits = QueueLimits(max_length=settings.pop("max_length", 4))
    return AsyncBulkhead(Bulkhead(**{"max_concurrent_calls": 1, "max_wait": 1.0, **settings}), limits)


def granted(answer: BulkheadPermit | Rejection) -> BulkheadPermit:
    assert isinstance(answer, BulkheadPermit)
    return answer


def waiting(door: AsyncBulkhead, **how: Any) -> asyncio.Task[BulkheadPermit | Rejection]:
    return asyncio.create_task(door.acquire(**how))


async def test_free_permit_is_acquired_without_suspending() -> None:
    door = bulkhead()
    entering = door.acquire()
    with pytest.raises(StopIteration) as ended:
        entering.send(None)
    granted(ended.value.value).finish(OK)


async def test_waiter_receives_the_released_permit() -> None:
    door = bulkhead()
    held = granted(await door.acquire())
    first, second = waiting(door), waiting(door)
    await idle()
    assert len(virtual_loop().list_timers()) == 1, "one timer, however many wait"
    held.finish(OK)
    permit = granted(await first)
    assert not second.done()
    permit.finish(OK)
    granted(await second).finish(OK)
    assert door.guard.in_flight == 0
    assert virtual_loop().list_timers() == []


async def test_rejection_does_not_wait() -> None:
    door = bulkhead(max_wait=0)
    held = granted(await door.acquire())
    assert await door.acquire() == Rejection("bulkhead", "full", None)
    held.finish(OK)


async def test_wait_ends_after_max_wait() -> None:
    door = bulkhead(max_wait=1.0)
    loop = virtual_loop()
    held = granted(await door.acquire())
    began = loop.time()
    ends: dict[str, float] = {}

    async def wait(name: str, left: float | None) -> str:
        answer = await door.acquire(deadline=None if left is None else loop.time() + left)
        ends[name] = round(loop.time() - began, 6)
        assert isinstance(answer, Rejection)
        return answer.reason

    is_waiting = [
        asyncio.create_task(wait(name, left)) for name, left in (("a", None), ("b", 0.25), ("c", 0.5), ("d", 9.0))
    ]
    await idle()
    assert len(loop.list_timers()) == 1
    assert await asyncio.gather(*is_waiting) == ["too-long", "too-late", "too-late", "too-long"]
    assert ends == {"a": 1.0, "b": 0.25, "c": 0.5, "d": 1.0}
    assert loop.list_timers() == []
    held.finish(OK)


async def test_only_an_earlier_expiry_moves_the_timer() -> None:
    door = bulkhead(max_wait=1.0)
    loop = virtual_loop()
    held = granted(await door.acquire())
    is_waiting = [waiting(door)]
    await idle()
    [timer] = loop.list_timers()
    is_waiting.append(waiting(door, deadline=loop.time() + 1.0))
    await idle()
    assert loop.list_timers() == [timer]
    is_waiting.append(waiting(door, deadline=loop.time() + 0.5))
    await idle()
    [sooner] = loop.list_timers()
    assert sooner.when() == loop.time() + 0.5
    assert [getattr(answer, "reason", None) for answer in await asyncio.gather(*is_waiting)] == [
        "too-long",
        "too-late",
        "too-late",
    ]
    held.finish(OK)


async def test_early_timer_ends_the_wait() -> None:
    """A loop's timers may be early by its clock's resolution: setting one again for the same instant would spin."""
    door = bulkhead(max_wait=1.0)
    held = granted(await door.acquire())
    wait = waiting(door)
    await idle()
    [timer] = virtual_loop().list_timers()
    timer._callback(*timer._args)  # type: ignore[attr-defined]
    timer.cancel()
    assert await wait == Rejection("bulkhead", "too-long", None)
    held.finish(OK)


async def test_cancelled_waiter_is_removed_from_the_queue() -> None:
    door = bulkhead()
    held = granted(await door.acquire())
    wait = waiting(door)
    await idle()
    wait.cancel()
    with pytest.raises(asyncio.CancelledError):
        await wait
    assert door.guard.waiting == 0
    assert virtual_loop().list_timers() == []
    held.finish(OK)
    assert door.guard.in_flight == 0


@pytest.mark.parametrize("cancelled_first", [True, False])
async def test_permit_of_a_waiter_cancelled_in_the_same_turn_goes_to_the_next(cancelled_first: bool) -> None:
    """Other semaphores lose the place here, or the wake-up of the next."""
    door = bulkhead()
    held = granted(await door.acquire())
    first, second = waiting(door), waiting(door)
    await idle()
    if cancelled_first:
        first.cancel()
        held.finish(OK)
    else:
        held.finish(OK)
        first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    permit = granted(await second)
    assert door.guard.in_flight == 1
    assert door.guard.service_s == 0.0, "a call that never began says nothing of how long one takes"
    permit.finish(OK)
    assert door.guard.granted == door.guard.released


async def test_cancellation_in_the_turn_of_the_rejection_is_raised() -> None:
    door = bulkhead()
    held = granted(await door.acquire())
    wait = waiting(door)
    await idle()
    door.guard.expire(virtual_loop().time() + 1.0)
    wait.cancel()
    with pytest.raises(asyncio.CancelledError):
        await wait
    held.finish(OK)
    assert door.guard.in_flight == 0


async def test_settings_may_change_while_calls_wait() -> None:
    door = bulkhead()
    held = granted(await door.acquire())
    is_waiting = [waiting(door) for _ in range(3)]
    await idle()
    door.reconfigure(Bulkhead(max_concurrent_calls=2, max_wait=1.0))
    await idle()
    assert [wait.done() for wait in is_waiting] == [True, False, False]
    held.finish(OK)
    for wait in is_waiting:
        granted(await wait).finish(OK)
    assert door.guard.in_flight == 0


async def test_close_rejects_waiting_calls() -> None:
    door = bulkhead()
    held = granted(await door.acquire())
    wait = waiting(door, priority="batch")
    await idle()
    door.close()
    assert virtual_loop().list_timers() == []
    assert await wait == Rejection("bulkhead", "closed", None)
    assert await door.acquire() == Rejection("bulkhead", "closed", None)
    held.finish(OK)
    assert await door.acquire() == Rejection("bulkhead", "closed", None)
    door.close()


async def test_priorities_are_respected() -> None:
    door = bulkhead()
    held = granted(await door.acquire())
    batch, urgent = waiting(door, priority="batch"), waiting(door, priority="interactive")
    await idle()
    held.finish(OK)
    permit = granted(await urgent)
    assert not batch.done()
    permit.finish(OK)
    granted(await batch).finish(OK)


@pytest.mark.parametrize("seed", range(10))
async def test_no_permit_is_lost_under_random_cancellation(seed: int) -> None:
    """2,000 calls, each cancelled with a chance of a third at a moment of chance, often that of a grant."""
    chance = random.Random(seed)
    door = bulkhead(max_concurrent_calls=3, max_length=8, max_wait=0.25)
    most = 0

    async def call() -> None:
        nonlocal most
        left = chance.choice([None, 0.125, 1.0])
        deadline = None if left is None else virtual_loop().time() + left
        permit = await door.acquire(deadline=deadline, priority=chance.choice(["interactive", "batch"]))
        if isinstance(permit, BulkheadPermit):
            most = max(most, door.guard.in_flight)
            outcome = Outcome.CANCELLED
            try:
                await asyncio.sleep(chance.choice([0.0, 0.0, 0.0625, 0.125]))
                outcome = OK
            finally:
                permit.finish(outcome)

    tasks: list[asyncio.Task[None]] = []
    for _ in range(200):
        tasks += [asyncio.create_task(call()) for _ in range(chance.randrange(6))]
        await asyncio.sleep(chance.choice([0.0, 0.0, 0.0625]))
        for task in tasks[-12:]:
            if chance.random() < 1 / 12:
                task.cancel()
        guard = door.guard
        assert guard.granted - guard.released == guard.in_flight <= 3
        assert guard.waiting <= 8
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(each) for each in ended} <= {type(None), asyncio.CancelledError}
    assert most == 3
    assert door.guard.in_flight == door.guard.waiting == 0
    assert door.guard.granted == door.guard.released > 50
    assert [isinstance(door.guard.admit(), BulkheadPermit) for _ in range(4)] == [True, True, True, False]


async def test_hung_service_bounds_waits_and_frees_its_permits() -> None:
    door = bulkhead(max_concurrent_calls=2, max_length=2, max_wait=1.0)
    silent = [granted(await door.acquire()) for _ in range(2)]
    began = virtual_loop().time()
    answers = await asyncio.gather(*(door.acquire() for _ in range(50)))
    reasons = Counter(answer.reason for answer in answers if isinstance(answer, Rejection))
    assert reasons == {"queue-full": 48, "too-long": 2}
    assert virtual_loop().time() == pytest.approx(began + 1.0)
    for permit in silent:
        permit.finish(Outcome.TIMEOUT)
    granted(await door.acquire()).finish(OK)


SERVERS, SERVICE_S, DEADLINE_S, SECONDS = 8, 0.1, 1.0, 12.0
CAPACITY = SERVERS / SERVICE_S


class Service:
    """So many at work, the rest in a line without end; it does not notice that a caller has left."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.line: deque[asyncio.Future[None]] = deque()
        self.busy = 0
        self.longest = 0

    def call(self) -> asyncio.Future[None]:
        answer = virtual_loop().create_future()
        self.line.append(answer)
        self.longest = max(self.longest, len(self.line))
        self._work()
        return answer

    def _work(self) -> None:
        while self.busy < SERVERS and self.line:
            self.busy += 1
            virtual_loop().call_later(SERVICE_S * self.chance.uniform(0.5, 1.5), self._done, self.line.popleft())

    def _done(self, answer: asyncio.Future[None]) -> None:
        self.busy -= 1
        if not answer.done():
            answer.set_result(None)
        self._work()


async def overload(times: int, door: AsyncBulkhead | None, seed: int) -> tuple[Counter[str], Service, int]:
    """``times`` as many calls as the service can do, each with a second: how they ended, and the most that waited."""
    chance = random.Random(seed)
    loop = virtual_loop()
    service = Service(seed)
    ends: Counter[str] = Counter()
    most = 0
    until = loop.time() + SECONDS

    async def call() -> None:
        nonlocal most
        deadline = loop.time() + DEADLINE_S
        permit = None
        if door is not None:
            most = max(most, door.guard.waiting)
            assert len(door.guard._queue._expiries) <= 2 * door.guard.limits.max_length + 17
            permit = await door.acquire(deadline=deadline, priority=chance.choice(["interactive", "batch"]))
            if isinstance(permit, Rejection):
                ends[permit.reason] += 1
                return
        outcome = OK
        try:
            async with asyncio.timeout_at(deadline):
                await service.call()
        except TimeoutError:
            outcome = Outcome.TIMEOUT
        if outcome is not OK or loop.time() <= until:
            ends[outcome] += 1
        if permit is not None:
            permit.finish(outcome)

    tasks = set()
    while loop.time() < until:
        task = asyncio.create_task(call())
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        await asyncio.sleep(chance.expovariate(times * CAPACITY))
    await asyncio.gather(*tasks)
    await advance(60 if door is None else 1)  # what is left in the service is worked off
    while service.busy:
        await advance(60)
    return ends, service, most


@pytest.mark.parametrize("times", [2, 10])
async def test_goodput_under_overload_stays_near_capacity(times: int) -> None:
    """Goal G12: at least 90 % of what the service can do is answered in time, whatever is asked, in bounded memory."""
    door = AsyncBulkhead(Bulkhead(max_concurrent_calls=SERVERS), QueueLimits(max_length=32))
    ends, service, most = await overload(times, door, seed=times)
    assert ends[OK] / (CAPACITY * SECONDS) >= 0.9
    assert ends[Outcome.TIMEOUT] <= 0.01 * ends[OK], "hardly any work is done for callers who have left"
    assert most <= 32
    assert service.longest <= SERVERS
    assert door.guard.granted == door.guard.released


async def test_without_a_bulkhead_goodput_collapses() -> None:
    """So that the goal above is worth something."""
    ends, service, _ = await overload(2, None, seed=2)
    assert ends[OK] / (CAPACITY * SECONDS) <= 0.5
    assert service.longest > 200
