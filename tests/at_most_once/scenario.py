"""Scenarios in the world of :mod:`tests.at_most_once.world`: a network, bounds, and what happens one after the other.

A scenario is a few small numbers, so that Hypothesis generates and shrinks it cheaply: a step is one number, of which
the kind is ``number // ARGUMENTS`` and the kind's argument the rest. :attr:`Scenario.code` names it in one word.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from hypothesis import strategies as st

from tests.at_most_once.world import World, longest_silence, padding
from tests.helpers.clock import advance, run
from tests.helpers.faults import FaultPlan
from tests.helpers.internals import correlator_of, sessions_of
from tests.helpers.protocol_settings import override_settings

ARGUMENTS = 32
KINDS = (
    "call", "call", "wait", "slow", "stream", "read", "burst", "keyed", "keyed", "short", "cancel", "fail",
    "kill", "join", "overlap", "drain", "dispatcher", "crash", "rest",
)  # fmt: skip
PLANS = {
    "calm": FaultPlan(),
    "loses": FaultPlan(drop=0.2),
    "repeats": FaultPlan(duplicate=0.5, max_delay=8),
    "reorders": FaultPlan(reorder=0.4, max_delay=2),
    "delays": FaultPlan(delay=0.4, max_delay=5),
    "all": FaultPlan(drop=0.15, duplicate=0.2, reorder=0.2, delay=0.2, max_delay=3),
    "bad": FaultPlan(drop=0.4, duplicate=0.2, reorder=0.2, delay=0.2, max_delay=5),
}
"""What the network does at most: each scenario's own is between nothing and that."""
BOUNDS = ("window", "places", "keys", "waiting", "sessions", "fragments")
"""What may be small."""
REFUSALS = {
    "window": set(),
    "places": {"overloaded"},
    "keys": {"reply-evicted"},
    "waiting": {"pending-limit"},
    "sessions": {"instance-lost", "instance-restarted"},
    "fragments": set(),
}
"""What a call may be told then."""
FOCUSES: tuple[tuple[str | None, tuple[str, ...]], ...] = (
    (None, ()),
    ("places", ("burst", "burst", "slow", "short", "fail", "keyed")),
    ("keys", ("keyed", "keyed", "short", "crash", "wait", "fail")),
    (None, ("drain", "kill", "slow", "burst", "call", "short")),
    (None, ("kill", "kill", "overlap", "call", "wait", "rest", "short", "drain")),
    (None, ("dispatcher", "crash", "burst", "call", "cancel", "stream", "read")),
)
"""What is small in any case, and the kinds of which a scenario consists (none: all). Events that need several of these
together are rare without a focus."""
SETTINGS: dict[str, dict[str, int]] = {
    "window": {
        "window": 2_000, "data_window": 4_000, "stream_window": 300, "senders_at_full_window": 1, "least_window": 600,
    },
    "sessions": {"max_sessions": 2, "max_half_open": 2},
    "fragments": {
        "large_bytes": 20, "fragment_bytes": 400, "packet_bytes": 400, "large_at_once": 2, "max_partial_bytes": 2_000,
    },
}  # fmt: skip
"""Constants of the protocol that are smaller then."""
SMALL: dict[str, dict[str, int]] = {
    "keys": {
        "dispatch.serving.replies.MAX_ANSWER_BYTES": 60,
        "dispatch.serving.replies.MAX_KEYS": 2,
        "dispatch.serving.replies.MAX_BYTES": 400,
    }
}
"""Constants of other modules that are smaller then."""


@dataclass(frozen=True)
class Scenario:
    """``seed``: the network's dice. ``plan``: a key of PLANS. ``small``: which BOUNDS are, as bits. ``steps``: numbers."""

    seed: int
    plan: int
    small: int
    steps: tuple[int, ...]

    @property
    def code(self) -> str:
        return ".".join(map(str, (self.seed, self.plan, self.small, *self.steps)))

    @classmethod
    def of(cls, code: str) -> Scenario:
        """The scenario of that code."""
        seed, plan, small, *steps = map(int, code.split("."))
        return cls(seed, plan, small, tuple(steps))

    @property
    def bounds(self) -> tuple[str, ...]:
        return tuple(name for bit, name in enumerate(BOUNDS) if self.small >> bit & 1)

    @property
    def network(self) -> FaultPlan:
        most, dice = list(PLANS.values())[self.plan], random.Random(self.seed)
        chances = {name: dice.random() * chance for name, chance in most.list_probabilities("out")}
        return replace(most, **chances, max_delay=dice.random() * most.max_delay)

    def __repr__(self) -> str:
        steps = ", ".join(f"{KINDS[step // ARGUMENTS]} {step % ARGUMENTS}" for step in self.steps)
        small = f"; small: {', '.join(self.bounds)}" if self.small else ""
        return f"<scenario {self.code}: {list(PLANS)[self.plan]}{small}; {steps}>"


def scenarios(focus: int = 0) -> st.SearchStrategy[Scenario]:
    """Any scenario of a focus. Every other one has all other bounds as they are by default."""
    every = 2 ** len(BOUNDS)
    bound, names = FOCUSES[focus]
    kinds = [KINDS.index(name) for name in names]
    bits = 1 << BOUNDS.index(bound) if bound else 0

    def scenario(drawn: tuple[int, int, int, list[int]]) -> Scenario:
        seed, plan, small, steps = drawn
        if kinds:
            steps = [kinds[step // ARGUMENTS % len(kinds)] * ARGUMENTS + step % ARGUMENTS for step in steps]
        return Scenario(seed, plan, max(0, small - every) | bits, tuple(steps))

    steps = st.lists(st.integers(0, len(KINDS) * ARGUMENTS - 1), min_size=1, max_size=20)
    whole = st.tuples(st.integers(0, 2**16), st.integers(0, len(PLANS) - 1), st.integers(0, 2 * every - 1), steps)
    return whole.map(scenario)


@contextlib.contextmanager
def small(names: tuple[str, ...], plan: FaultPlan) -> Iterator[None]:
    """Bounds that are constants of the product are small meanwhile, and no silence of the network is taken for death."""
    settings: dict[str, Any] = {"give_up": longest_silence(plan), "callee_give_up": longest_silence(plan)}
    with contextlib.ExitStack() as stack:
        for name in names:
            settings |= SETTINGS.get(name, {})
            for target, value in SMALL.get(name, {}).items():
                stack.enter_context(mock.patch(target, value))
        stack.enter_context(override_settings(**settings))
        yield


def run_scenario(scenario: Scenario) -> Counter[str]:
    """Run a scenario, on virtual time. Returns what was seen in it: faults, steps, and how calls ended.

    Raises:
        AssertionError: something is not as it must be.
    """
    with small(scenario.bounds, scenario.network):
        return run(lambda: _ScenarioRun(scenario).run())


class _ScenarioRun:
    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        bounds = scenario.bounds
        options: dict[str, Any] = {"concurrency": 1, "max_queue": 2} if "places" in bounds else {}
        policy: dict[str, Any] = {}
        refusals = frozenset[str]().union(*(REFUSALS[name] for name in bounds))
        if scenario.seed % 2:
            # What was refused, or never sent, is then sent again: under another id, perhaps to another instance.
            policy["retry"] = {"max-attempts": 3}
        self.world = World(scenario.network, scenario.seed, refusals=refusals, server=options, policy=policy)
        self.world.keys_kept = "keys" not in bounds
        self.world.on_dispatcher = self._small_table
        self.tasks: list[asyncio.Task[Any]] = []

    def _small_table(self, dispatcher: Any) -> None:
        if "waiting" in self.scenario.bounds:
            correlator_of(dispatcher)._max_tombstones = 4
            for exchange in (correlator_of(dispatcher), sessions_of(dispatcher)):
                exchange._max_pending = 5

    async def run(self) -> Counter[str]:
        world = self.world
        await world.instance()
        await world.dispatcher()
        assert (await world.call(world.dispatchers[0])).ok  # they have met
        world.storm()
        for step in self.scenario.steps:
            kind, argument = divmod(step, ARGUMENTS)
            await getattr(self, f"_{KINDS[kind]}")(argument)
        for result in await asyncio.gather(*self.tasks, return_exceptions=True):
            if isinstance(result, asyncio.CancelledError):
                world.seen["cancelled by its caller"] += 1
            elif isinstance(result, BaseException):
                raise result
        await world.end()
        world.seen.update(KINDS[step // ARGUMENTS] for step in self.scenario.steps)
        world.seen.update(f"small {name}" for name in self.scenario.bounds)
        return world.seen

    def _start(self, doing: Any) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(doing))

    def _ask(self, **arguments: Any) -> None:
        dispatchers = self.world.dispatchers
        self._start(self.world.call(dispatchers[len(self.tasks) % len(dispatchers)], **arguments))

    # -- steps: each takes a number below ARGUMENTS -------------------------------------------------------------

    async def _call(self, a: int) -> None:
        self._ask(pad=a % 4 * 700, more=padding(a // 4 % 4 * 500))

    async def _wait(self, a: int) -> None:
        await advance(a * 0.1)

    async def _slow(self, a: int) -> None:
        self._ask(seconds=a / 3)

    async def _stream(self, a: int) -> None:
        self._ask(chunks=1 + a)

    async def _read(self, a: int) -> None:
        dispatchers = self.world.dispatchers
        leave_after = 1 + a // 4 if a % 4 == 1 else None
        pause = a / 50 if a % 4 == 2 else 0.0
        dispatcher = dispatchers[len(self.tasks) % len(dispatchers)]
        self._start(self.world.read(dispatcher, chunks=1 + a, leave_after=leave_after, pause=pause))

    async def _burst(self, a: int) -> None:
        for number in range(2 + a % 7):
            self._ask(seconds=number * a / 50, pad=a * 20)

    async def _keyed(self, a: int) -> None:
        how = ({}, {"seconds": a / 8}, {"chunks": a}, {"fails": True})[a // 3 % 4]
        self._ask(key=f"key {a % 3}", **how)

    async def _short(self, a: int) -> None:
        self._ask(timeout=0.01 + a / 16, seconds=0.5)

    async def _cancel(self, a: int) -> None:
        waiting = [task for task in self.tasks if not task.done()]
        if waiting:
            waiting[a % len(waiting)].cancel()

    async def _fail(self, a: int) -> None:
        self._ask(fails=True, seconds=a / 20)

    async def _kill(self, a: int) -> None:
        servers = self.world.servers
        server = servers[a % len(servers)]
        await self.world.kill(server)
        if a % 2 or len(servers) == 1:
            await self.world.instance(server.instance if a % 4 < 2 else None)

    async def _join(self, a: int) -> None:
        if len(self.world.servers) < 4:
            await self.world.instance()

    async def _overlap(self, a: int) -> None:
        """The next life of an instance begins before the former one ends."""
        server = self.world.servers[a % len(self.world.servers)]
        if server.instance in [each.instance for each in self.world.servers if each is not server]:
            return
        await self.world.instance(server.instance)
        await advance(a / 10)
        await (self.world.leave(server) if a % 2 else self.world.kill(server))

    async def _drain(self, a: int) -> None:
        server = self.world.servers[a % len(self.world.servers)]
        await self.world.instance()
        self._start(self.world.leaving(server))

    async def _dispatcher(self, a: int) -> None:
        """Another one comes, in a calm moment or in the middle of the storm."""
        world = self.world
        if len(world.dispatchers) >= 3:
            return
        if a % 2 == 0:
            world.calm()
        dispatcher = await world.dispatcher()
        if a % 2 == 0:
            await world.call(dispatcher)
            world.storm()

    async def _crash(self, a: int) -> None:
        """A dispatcher goes, with or without a word, and another one comes, under its name or a new one."""
        world = self.world
        dispatcher = world.dispatchers[a % len(world.dispatchers)]
        await (world.crash(dispatcher) if a % 2 else world.close(dispatcher))
        await world.dispatcher(dispatcher.client_id if a % 4 < 2 else None)

    async def _rest(self, a: int) -> None:
        """So long that much is forgotten."""
        await advance((10, 70, 650)[a % 3])
