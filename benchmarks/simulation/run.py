"""One scenario under one contender, from its first call to its last."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from benchmarks.simulation.contenders import CALL_S, DEFAULTS, POLICY, Contender, Failure, Naive, Ours, Unguarded
from benchmarks.simulation.record import BIN_S, Made, Record
from benchmarks.simulation.scenarios import Scenario, find, quick
from benchmarks.simulation.services import PlainInstance, ServedInstance
from dispatch.testing import run

CONTENDERS = ("unguarded", "naive", "ours", "ours-defaults")
"""In the order in which they are shown."""
COUNT_BEFORE_S = 0.001
STARTING_S = 1_000.0
"""Least time between the start of the dispatchers and the scenario."""
FIRST_S = 1.0
"""Time between the start of the last dispatcher and the scenario, in which announcements of instances arrive."""


def simulate(name: str, contender: str, seed: int, *, short: bool = False) -> Record:
    """Play the scenario ``name`` for ``contender`` (one of :data:`CONTENDERS`). The same arguments give the same record.

    Args:
        seed: of everything that is random: calls, work, and the contender's own draws.
        short: with half the load.

    Raises:
        KeyError: no such scenario.
        ValueError: no such contender.
    """
    if contender not in CONTENDERS:
        raise ValueError(f"there is no contender {contender!r}; choose from: {', '.join(CONTENDERS)}")
    scenario = quick(find(name)) if short else find(name)
    return run(lambda: _play(scenario, contender, seed))


async def _play(scenario: Scenario, contender: str, seed: int) -> Record:
    loop = asyncio.get_running_loop()
    start = loop.time() + STARTING_S
    record = Record(scenario.name, contender, scenario.seconds)
    record.received = [Counter() for _ in range(scenario.instances)]

    def since() -> float:
        return loop.time() - start

    served = contender.startswith("ours")
    kind = ServedInstance if served else PlainInstance
    instances: list[ServedInstance | PlainInstance] = [
        kind(scenario, number, seed, since, record) for number in range(scenario.instances)
    ]
    callers: list[Contender] = []
    async with contextlib.AsyncExitStack() as stack:
        for instance in instances:
            await instance.start()
            stack.push_async_callback(instance.close)
        for number in range(scenario.dispatchers):
            caller = await _caller(scenario, contender, number, seed, instances)
            callers.append(caller)
            stack.push_async_callback(caller.close)
        start = loop.time() + FIRST_S
        await asyncio.sleep(FIRST_S)
        _forget(record, instances)
        beside = [asyncio.create_task(_deaths(scenario, instances, since))]
        if served:
            beside.append(asyncio.create_task(_count(instances)))
        await _calls(scenario, callers, record, seed, since)
        for task in beside:
            task.cancel()
        await asyncio.wait(beside)
        for task in beside:
            if not task.cancelled():
                task.result()  # raises the error of the task
    return record


async def _caller(
    scenario: Scenario, contender: str, number: int, seed: int, instances: Sequence[ServedInstance | PlainInstance]
) -> Contender:
    if contender.startswith("ours"):
        policy = POLICY if contender == "ours" else DEFAULTS
        ours = Ours(number, seed, {**policy, "hedging": "p95"} if scenario.hedges else policy)
        await ours.start()
        return ours
    plain = [instance for instance in instances if isinstance(instance, PlainInstance)]
    return Unguarded(plain, number) if contender == "unguarded" else Naive(plain, number, seed)


def _forget(record: Record, instances: Sequence[ServedInstance | PlainInstance]) -> None:
    """Discard the records from before the scenario's start."""
    record.begun.clear()
    for instance in instances:
        if isinstance(instance, ServedInstance):
            instance.count()
    for counted in record.received:
        counted.clear()


async def _calls(
    scenario: Scenario, callers: Sequence[Contender], record: Record, seed: int, since: Callable[[], float]
) -> None:
    """Make the calls, each at its time, and wait for the last one."""
    running: set[asyncio.Task[None]] = set()

    async def one(caller: Contender) -> None:
        began = since()
        try:
            sent = await caller.call()
        except Failure as failure:
            record.failures[str(failure)] += 1
            record.calls.append(Made(began, since(), False, failure.sent))
        else:
            record.calls.append(Made(began, since(), True, sent))

    for due, number in scenario.arrivals(seed):
        if due > since():
            await asyncio.sleep(due - since())
        task = asyncio.create_task(one(callers[number]))
        running.add(task)
        task.add_done_callback(running.discard)
    await asyncio.sleep(CALL_S)
    while running:
        await asyncio.wait(list(running))


async def _deaths(
    scenario: Scenario, instances: Sequence[ServedInstance | PlainInstance], since: Callable[[], float]
) -> None:
    changes: list[tuple[float, Callable[[], Awaitable[None]]]] = []
    for number, killed, started in scenario.deaths:
        changes += [(killed, instances[number].kill), (started, instances[number].start)]
    for due, change in sorted(changes, key=lambda each: each[0]):
        await asyncio.sleep(due - since())
        await change()


async def _count(instances: Sequence[ServedInstance | PlainInstance]) -> None:
    """Read the servers' own counts just before each step ends."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    for step in itertools.count(1):
        await asyncio.sleep(began + step * BIN_S - COUNT_BEFORE_S - loop.time())
        for instance in instances:
            if isinstance(instance, ServedInstance):
                instance.count()
