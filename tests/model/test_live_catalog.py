"""The live catalogue against a simple model, while 24 callers call on the embedded broker, in virtual time.

Each caller sees the former catalogue or the new one, never a part of it, and no call of a tool in force fails.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import dispatch
from dispatch import Outcome, ToolServer, ToolService
from dispatch.catalog.items import Item
from dispatch.testing.clock import VirtualClockLoop, advance
from tests.helpers.run_profile import by_profile

T = TypeVar("T")
State = Mapping[str, tuple[str, str]]
"""By name of a tool: its source, and its text."""

CALLERS = 24
STEADY = "steady"
NAMES = ("one", "two", "three")
INVALID = 7
SERVICE = {
    "id": "desk",
    "request-queue": "non-persistent://tg/request/desk",
    "response-queue": "non-persistent://tg/response/desk",
    "config-params": [{"name": "text"}],
}
SETTLE_S = 1.0
"""Until a change of a source is in force, at most."""

brokers = itertools.count()
texts = st.sampled_from(["red", "green", INVALID])
contents = st.dictionaries(st.sampled_from(NAMES), texts)


def tool(name: str, text: object) -> dict[str, Any]:
    return {"type": "tool-service", "name": name, "service": "desk", "description": text, "text": str(text)}


class Echo(ToolService):
    async def invoke(self, config: Mapping[str, str], arguments: object, user: str = "") -> str:
        await asyncio.sleep(0.05)
        return config["text"]


class ChangingSource:
    """A source of a steady tool and others; it may be out of reach."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.is_in_reach = True
        self.delivered: dict[str, object] = {}
        self.valid: dict[str, str] = {}
        self._items: Sequence[Item] = ()
        self._change = asyncio.Event()
        self.set({})

    def set(self, content: Mapping[str, object]) -> None:
        """Have these tools from now on, without an announcement."""
        self.delivered = {STEADY: f"steady of {self.id}", **content}
        raws = [tool(name, text) for name, text in self.delivered.items()]
        tools = (Item(raw["name"], "tool", raw["name"], raw) for raw in raws)
        self._items = [Item("desk", "tool-service", "desk", SERVICE), *tools]

    def announce(self) -> None:
        self._change.set()

    def read(self) -> None:
        """Update the model: a reading succeeds, and an invalid item keeps its last valid text."""
        valid = {name: self.valid.get(name) if text == INVALID else text for name, text in self.delivered.items()}
        self.valid = {name: str(text) for name, text in valid.items() if text is not None}

    async def discover(self) -> Sequence[Item]:
        if not self.is_in_reach:
            raise ConnectionError("out of reach")
        return self._items

    async def changes(self) -> AsyncIterator[None]:
        while True:
            await self._change.wait()
            self._change.clear()
            yield


class LiveCatalogMachine(RuleBasedStateMachine):
    """Changes the catalogue by every way; the model knows the texts in force."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualClockLoop()
        self.put: dict[str, str] = {}
        self.problems: list[str] = []
        self.calls = 0
        self.is_over = False

    @initialize(seed=st.integers(0, 1_000))
    def open(self, seed: int) -> None:
        self.randomness = random.Random(seed)
        self.run(self._open)

    async def _open(self) -> None:
        broker = f"memory://live-catalog-{next(brokers)}"
        self.sources = [ChangingSource("a"), ChangingSource("b")]
        for source in self.sources:
            source.read()
        self.server = ToolServer(Echo(), broker, service="desk")
        self.dispatcher = dispatch.connect(broker, self.sources)
        await self.server.start()
        await self.dispatcher.start()
        self.allowed = [self.expected()]
        self.callers = [asyncio.create_task(self._call()) for _ in range(CALLERS)]

    def run(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return self.loop.run_until_complete(function())

    # -- the model ------------------------------------------------------------------------------------------------------

    def expected(self) -> State:
        state = {name: ("put", text) for name, text in self.put.items()}
        for source in self.sources:
            for name, text in source.valid.items():
                state.setdefault(name, (source.id, text))
        return state

    def seen(self) -> State:
        catalog = self.dispatcher.catalog
        return {name: (catalog.source_of(name), each.description) for name, each in catalog.tools.items()}

    async def _call(self) -> None:
        while not self.is_over:
            seen = self.seen()
            if seen not in self.allowed:
                self.problems.append(f"{seen} is none of {self.allowed}")
            name = self.randomness.choice((STEADY, *NAMES))
            result = await self.dispatcher.execute(name)
            self.calls += 1
            outcome = Outcome.SUCCESS if name in seen else Outcome.REJECTED
            if result.outcome is not outcome or (name in seen and result.text != seen[name][1]):
                self.problems.append(f"a call of '{name}' had the outcome {result.outcome}: {result}")
            await asyncio.sleep(self.randomness.uniform(0.05, 0.4))

    def change(self, change: Callable[[], Coroutine[Any, Any, object]], *, settle_s: float = 0.0) -> None:
        """Make a change of which the model already knows."""

        async def make() -> None:
            self.allowed = [*self.allowed, self.expected()]
            await change()
            await advance(settle_s)
            self.allowed = [self.expected()]
            await advance(0.2)

        self.run(make)

    # -- changes --------------------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from((STEADY, *NAMES)), text=st.sampled_from(["blue", "black"]))
    def put_item(self, name: str, text: str) -> None:
        self.put = {**self.put, name: text}
        self.change(lambda: self.dispatcher.registry.put("tool", tool(name, text)))

    @precondition(lambda self: self.put)
    @rule(data=st.data())
    def remove_item(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.put)))
        self.put = {each: text for each, text in self.put.items() if each != name}
        self.change(lambda: self.dispatcher.registry.remove("tool", name))

    @rule(name=st.sampled_from(NAMES))
    def put_invalid_item(self, name: str) -> None:
        async def put() -> None:
            try:
                await self.dispatcher.registry.put("tool", tool(name, INVALID))
            except dispatch.CatalogError:
                return
            self.problems.append("an invalid item was put")

        self.change(put)

    @rule(at=st.integers(0, 1), content=contents)
    def deliver(self, at: int, content: dict[str, object]) -> None:
        source = self.sources[at]
        source.set(content)
        if source.is_in_reach:
            source.read()

        async def announce() -> None:
            source.announce()

        self.change(announce, settle_s=SETTLE_S)

    @rule(at=st.integers(0, 1))
    def fail(self, at: int) -> None:
        source = self.sources[at]
        source.is_in_reach = False

        async def announce() -> None:
            source.announce()

        self.change(announce, settle_s=SETTLE_S)
        (status,) = (each for each in self.dispatcher.registry.sources() if each.id == source.id)
        assert status.state == "stale"

    @rule(at=st.integers(0, 1))
    def recover(self, at: int) -> None:
        source = self.sources[at]
        source.is_in_reach = True
        source.read()
        self.change(lambda: self.dispatcher.registry.refresh(source.id))

    @rule()
    def reload_in_another_order(self) -> None:
        self.sources = self.sources[::-1]
        self.change(lambda: self.dispatcher.reload(self.sources))

    @rule(timeout=st.sampled_from([20.0, 40.0]))
    def reload_policy(self, timeout: float) -> None:
        self.change(lambda: self.dispatcher.reload(policy=dispatch.Policy(timeout=timeout)))

    # -- promises -------------------------------------------------------------------------------------------------------

    @invariant()
    def nothing_failed(self) -> None:
        assert not self.problems, self.problems[:3]

    @invariant()
    def the_model_is_in_force(self) -> None:
        if hasattr(self, "dispatcher"):
            assert self.seen() == self.expected()

    def teardown(self) -> None:
        async def close() -> None:
            self.is_over = True
            await asyncio.gather(*self.callers)
            await self.dispatcher.close()
            await self.server.close()

        try:
            if hasattr(self, "callers"):
                self.run(close)
                assert self.calls >= CALLERS
                assert not self.problems, self.problems[:3]
        finally:
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()


TestLiveCatalog = pytest.mark.costly(LiveCatalogMachine.TestCase)
TestLiveCatalog.settings = settings(
    max_examples=by_profile(short=10, long=120), stateful_step_count=by_profile(short=15, long=40), deadline=None
)
