"""The state-set of circuits cannot lie: after any sequence of calls, operators' choices, reloads and waits it is what the
breakers themselves say."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from dispatch import Dispatcher, Policy, RejectedError, ToolError
from dispatch._internal import RETENTION_S
from dispatch.resilience.breaker import BreakerRules, CircuitBreaker, State
from dispatch.telemetry.events import CircuitChanged, Event
from dispatch.transports.memory import MemoryTransport
from tests.helpers.clock import advance, run
from tests.helpers.dispatcher_and_service import BROKER, catalog, serving
from tests.helpers.run_profile import examples
from tests.helpers.telemetry_capture import Board

BREAKER = {"consecutive-failures": 2, "open-duration": 1, "half-open-calls": 1, "count-tool-errors": True}
POLICY: dict[str, Any] = {"retry": 1, "bulkhead": None, "breaker": BREAKER}
OTHER_BREAKER = {**BREAKER, "consecutive-failures": 1, "open-duration": 3, "half-open-calls": 2}
OTHER_POLICY: dict[str, Any] = {**POLICY, "breaker": OTHER_BREAKER}
CATALOGS = {
    "as it was": catalog(work={"policy": POLICY}, idle={"policy": POLICY}),
    "other settings": catalog(work={"policy": OTHER_POLICY}, idle={}),
    "without a breaker": catalog(work={"policy": {**POLICY, "breaker": None}}),
    "without the tool": catalog(idle={}),
}
EXACT = Policy(breaker=BreakerRules(jitter=0.0, half_open_rounds=1))
CLOCK_ERROR_S = 1e-6
"""Sums of waits in different orders differ by so much, at most."""
CALLS = ("succeed", "fail", "time out", "leave")
CHOICES = ("force_open", "disable", "metrics_only", "reset", "open_until")

steps = st.one_of(
    st.tuples(st.just("call"), st.sampled_from(CALLS)),
    st.tuples(st.just("call"), st.just("fail")),
    st.tuples(st.just("choose"), st.sampled_from(CHOICES)),
    st.tuples(st.just("reload"), st.sampled_from(sorted(CATALOGS))),
    st.tuples(st.just("wait"), st.sampled_from([0.5, 1.0, 4.0, RETENTION_S])),
)


async def work(arguments: dict[str, Any]) -> str:
    if arguments["do"] == "fail":
        raise ToolError("failed", "as told")
    if arguments["do"] != "succeed":
        await asyncio.sleep(60)
    return "done"


async def do(dispatcher: Dispatcher, what: str, how: Any) -> None:
    if what == "wait":
        await advance(how)
    elif what == "reload":
        await dispatcher.reload(CATALOGS[how])
    elif what == "call":
        call = asyncio.create_task(dispatcher.execute("work", {"do": how}, timeout=0.5))
        if how == "leave":
            await advance(0.1)
            call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call
    else:
        with contextlib.suppress(RejectedError, ValueError):  # the tool, or its breaker, is not there now
            breaker = dispatcher.breaker("work")
            if how == "open_until":
                breaker.open_until(asyncio.get_running_loop().time() + 2)
            else:
                getattr(breaker, how)()


def circuits(board: Board, tool: str = "work") -> dict[str, float]:
    start = f"circuit_state {tool} "
    return {key.removeprefix(start): value for key, value in board.read().items() if key.startswith(start)}


def dispatcher_of(board: Board) -> Dispatcher:
    return Dispatcher(MemoryTransport(BROKER), CATALOGS["as it was"], policy=EXACT, telemetry=board.telemetry())


class Circuits:
    """The circuits of the tool in some dispatchers. That of a removed tool is retained for a time."""

    def __init__(self, *dispatchers: Dispatcher) -> None:
        self._dispatchers = dispatchers
        self._former: dict[Dispatcher, CircuitBreaker] = {}
        self._removed_at: dict[Dispatcher, float] = {}

    def states(self) -> Counter[str]:
        found: Counter[str] = Counter()
        now = asyncio.get_running_loop().time()
        for each in self._dispatchers:
            try:
                self._former[each] = each.breaker("work")
            except RejectedError:
                removed_at = self._removed_at.setdefault(each, now)
                if now - removed_at >= RETENTION_S - CLOCK_ERROR_S:
                    self._former.pop(each, None)
            except ValueError:  # its policy has none
                self._former.pop(each, None)
                self._removed_at.pop(each, None)
            else:
                self._removed_at.pop(each, None)
            if each in self._former:
                found[self._former[each].state] += 1
        return found


@pytest.mark.costly
@settings(max_examples=examples(24))
@given(st.lists(steps, max_size=30))
def test_the_state_is_the_breakers_own_and_exactly_one(story: list[tuple[str, Any]]) -> None:
    async def told() -> None:
        board, counted, changes = Board(), Counter[str](), []

        def count(event: Event) -> None:
            if isinstance(event, CircuitChanged) and event.instance is None:
                counted[event.new] += 1
                changes.append((event.old, event.new))

        async with serving(work), dispatcher_of(board) as dispatcher:
            dispatcher.on_event(count)
            known = Circuits(dispatcher)
            for what, how in (("call", "succeed"), *story):
                await do(dispatcher, what, how)
                there = known.states()
                if not (there or "work" in dispatcher.catalog.tools or board.of("work")):
                    counted.clear()  # with its series
                shown = circuits(board)
                if there:
                    assert shown == {str(state): there[state] for state in State}
                    assert sorted(shown.values()) == [0] * (len(State) - 1) + [1]
                else:
                    assert shown == {}
                now = board.read()
                assert {each: n for each, n in counted.items() if n} == {
                    state: now[f"circuit_transitions_total work {state}"]
                    for state in map(str, State)
                    if now.get(f"circuit_transitions_total work {state}")
                }
            assert all(old != new for old, new in changes)

    run(told)


@pytest.mark.costly
@settings(max_examples=examples(12))
@given(st.lists(st.tuples(st.integers(0, 1), steps), max_size=30))
def test_with_two_dispatchers_each_state_is_how_many_circuits_are_in_it(
    story: list[tuple[int, tuple[str, Any]]],
) -> None:
    async def told() -> None:
        board = Board()
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(serving(work))
            both = [await stack.enter_async_context(dispatcher_of(board)) for _ in range(2)]
            known = Circuits(*both)
            begin = [(number, ("call", "succeed")) for number in range(2)]
            for number, (what, how) in (*begin, *story):
                await do(both[number], what, how)
                there = known.states()  # which makes a circuit where there was none yet: a closed one
                shown = circuits(board)
                assert {state: n for state, n in shown.items() if n} == {str(state): n for state, n in there.items()}
                assert not shown or set(shown) == set(map(str, State))

    run(told)
