"""The loop's clock: the same time, whoever tells it.
Calls that block, in threads that nobody has to wait for.
Deadlines of many things: each is handled at its time, once, with one timer.
Retention, in virtual time.


"""

from __future__ import annotations

import asyncio
import itertools
import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from dispatch import _internal
from dispatch._internal import (
    GRANULARITY_OF_EACH_S,
    GRANULARITY_S,
    RETENTION_S,
    DaemonThreads,
    DeadlineTimer,
    EarliestTimer,
    Retention,
    encode_text,
    excerpt,
    find_near_names,
    join_alternatives,
    join_names,
    loop_clock,
    scalar_text,
    scalar_value,
)
from tests.helpers.clock import START, VirtualClockLoop, advance, idle, run, virtual_loop
from tests.helpers.python_processes import REPO
from tests.helpers.run_profile import examples


async def test_virtual_loop_time_is_used() -> None:
    clock = loop_clock()
    before = clock()
    await advance(30)
    assert clock() - before == 30
    assert clock() == asyncio.get_running_loop().time()


@pytest.mark.wall_clock
async def test_clock_of_asyncio_loops_is_time_monotonic() -> None:
    assert loop_clock() is time.monotonic
    loop = asyncio.get_running_loop()
    assert loop.time() <= loop_clock()() <= loop.time()


def test_custom_loop_clock_is_used() -> None:
    class Late(asyncio.SelectorEventLoop):
        def time(self) -> float:
            return super().time() + 1_000_000

    async def read() -> float:
        return loop_clock()()

    with asyncio.Runner(loop_factory=Late) as runner:
        assert runner.run(read()) > time.monotonic() + 999_000


def test_loop_clock_requires_a_running_loop() -> None:
    with pytest.raises(RuntimeError):
        loop_clock()


WAIT_S = 30.0


def test_future_carries_result_and_exception() -> None:
    threads = DaemonThreads("test-blocking")
    assert threads.submit(divmod, 7, 2).result(WAIT_S) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        threads.submit(divmod, 7, 0).result(WAIT_S)


def test_blocked_call_does_not_block_others() -> None:
    threads = DaemonThreads("test-blocking")
    never = threading.Event()
    stuck = [threads.submit(never.wait) for _ in range(20)]
    assert threads.submit(threading.current_thread).result(WAIT_S).name == "test-blocking"
    never.set()
    assert all(each.result(WAIT_S) for each in stuck)


def test_interpreter_exits_despite_a_blocked_thread() -> None:
    program = (
        "import threading; from dispatch._internal import DaemonThreads; "
        "DaemonThreads('stuck').submit(threading.Event().wait); print('ends')"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=REPO, capture_output=True, text=True, timeout=WAIT_S)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ends\n", "")


async def test_a_timer_calls_at_the_earliest_time_and_can_be_set_again() -> None:
    times: list[float] = []
    timer = EarliestTimer(times.append)
    for seconds in (5, 3, 4, math.inf):
        timer.watch(START + seconds)
    await advance(10)
    assert times == [pytest.approx(START + 3, abs=1e-6)]
    timer.watch(START + 11)
    timer.close()
    timer.watch(START + 12)
    await advance(10)
    assert times[1:] == [pytest.approx(START + 12, abs=1e-6)]
    assert virtual_loop().list_timers() == []


class Thing:
    def __init__(self, seconds: float) -> None:
        self.deadline = START + seconds
        self.ended_at: float | None = None


class Things(set[Thing]):
    """Things with a timer; a deadline removes one."""

    def __init__(self) -> None:
        self.timer = DeadlineTimer(self, attrgetter("deadline"), self.on_deadline)
        self.ended: list[Thing] = []

    def add_at(self, seconds: float) -> Thing:
        thing = Thing(seconds)
        self.add(thing)
        self.timer.watch(thing.deadline)
        return thing

    def on_deadline(self, thing: Thing) -> None:
        thing.ended_at = asyncio.get_running_loop().time()
        self.remove(thing)
        self.ended.append(thing)


async def test_a_deadline_is_handled_to_the_moment() -> None:
    things = Things()
    things.add_at(7)
    first = things.add_at(5)
    await advance(4.999)
    assert things.ended == []
    await advance(10)
    assert first.ended_at == pytest.approx(START + 5, abs=1e-6)
    assert things.ended[1].ended_at == pytest.approx(START + 7, abs=1e-6)
    assert things.timer._timer is None


async def test_deadlines_close_to_each_other_are_handled_together() -> None:
    things = Things()
    many = [things.add_at(1 + number * GRANULARITY_S / 1_000) for number in range(1_000)]
    await advance(2)
    assert len({thing.ended_at for thing in many}) == 2
    assert things.ended == many, "in the order of time"


async def test_many_things_are_checked_less_often() -> None:
    things, checks = Things(), []
    check = things.timer._check
    things.timer._on_time = lambda now: (checks.append(len(things)), check(now))
    many = [things.add_at(1 + number * 1e-4) for number in range(10_000)]
    await advance(3)
    assert len(things.ended) == 10_000
    assert len(checks) < 1 / GRANULARITY_S
    for thing in many:
        assert thing.ended_at is not None
        assert 0 <= thing.ended_at - thing.deadline <= GRANULARITY_S + 10_000 * GRANULARITY_OF_EACH_S + 1e-6


async def test_one_that_has_ended_is_not_handled() -> None:
    things = Things()
    things.remove(things.add_at(1))
    last = things.add_at(3)
    await advance(5)
    assert things.ended == [last]


async def test_the_end_of_one_can_end_or_move_another() -> None:
    things: list[Thing] = [Thing(1.0), Thing(1.0), Thing(1.0)]
    handled: list[Thing] = []

    def on_deadline(thing: Thing) -> None:
        handled.append(thing)
        if len(handled) == 1:
            things[1].deadline = START + 2
            things[2].deadline = float("inf")
        thing.deadline = float("inf")

    timer = DeadlineTimer(things, attrgetter("deadline"), on_deadline)
    timer.watch(START + 1)
    await advance(1.5)
    assert handled == things[:1]
    await advance(1)
    assert handled == things[:2]
    assert timer._timer is None


async def test_a_closed_timer_handles_nothing() -> None:
    things = Things()
    things.add_at(1)
    things.timer.close()
    await advance(2)
    assert things.ended == []
    assert virtual_loop().list_timers() == []


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0.001, 10), st.booleans()), max_size=20))
def test_each_one_is_handled_once_at_its_time(plan: list[tuple[float, float, bool]]) -> None:
    """Against the plan: added at a time, due some seconds later, and perhaps removed before that."""

    async def scenario() -> None:
        things = Things()
        due: list[Thing] = []
        for wait, seconds, is_removed in plan:
            await advance(wait)
            thing = things.add_at(asyncio.get_running_loop().time() - START + seconds)
            if is_removed:
                things.remove(thing)
            else:
                due.append(thing)
        await advance(11)
        assert sorted(map(id, things.ended)) == sorted(map(id, due))
        for each in due:
            assert each.ended_at is not None
            assert -1e-6 <= each.ended_at - each.deadline <= GRANULARITY_S + 1e-3
        assert things.timer._timer is None

    loop: Any = VirtualClockLoop()
    try:
        loop.run_until_complete(scenario())
    finally:
        loop.close()


class ThingsRetention:
    """Things that may be in use."""

    def __init__(self) -> None:
        self.busy: dict[str, list[Callable[[], object]]] = {}
        self.dropped: list[tuple[str, float]] = []
        self.retention: Retention[str] = Retention(self._drop, self._await_idle)

    def _drop(self, key: str) -> None:
        self.dropped.append((key, asyncio.get_running_loop().time()))

    def _await_idle(self, key: str, callback: Callable[[], object]) -> bool:
        if key not in self.busy:
            return False
        self.busy[key].append(callback)
        return True

    def use(self, key: str) -> None:
        self.busy.setdefault(key, [])

    def end_use(self, key: str) -> None:
        for callback in self.busy.pop(key, []):
            callback()


async def test_a_thing_is_dropped_after_its_time() -> None:
    things, loop = ThingsRetention(), asyncio.get_running_loop()
    start = loop.time()
    things.retention.add("a")
    await advance(20)
    things.retention.add("b")
    things.retention.add("a")  # it is retained already
    await advance(RETENTION_S - 20 - 0.001)
    assert things.dropped == []
    assert "a" in things.retention
    await advance(20.001)
    assert things.dropped == [("a", start + RETENTION_S), ("b", start + 20 + RETENTION_S)]
    assert len(things.retention) == 0
    assert virtual_loop().list_timers() == []


@pytest.fixture
def things() -> ThingsRetention:
    return ThingsRetention()


async def test_a_thing_in_use_is_dropped_with_the_end_of_its_use(things: ThingsRetention) -> None:
    things.use("a")
    things.retention.add("a")
    await advance(3 * RETENTION_S)
    assert things.dropped == []
    things.end_use("a")
    assert [key for key, _ in things.dropped] == ["a"]


async def test_a_thing_that_returns_is_not_dropped(things: ThingsRetention) -> None:
    things.use("b")
    for key in "ab":
        things.retention.add(key)
    await advance(RETENTION_S / 2)
    assert things.retention.restore("a")
    assert not things.retention.restore("a")
    await advance(RETENTION_S)
    assert things.retention.restore("b")  # it has expired, and was in use
    things.retention.add("b")
    things.end_use("b")  # the callback of the first wait
    await advance(RETENTION_S - 0.001)
    assert things.dropped == []
    await advance(0.001)
    assert [key for key, _ in things.dropped] == ["b"]


async def test_many_things_are_dropped_in_several_turns(things: ThingsRetention) -> None:
    count = 3 * _internal.BATCH
    for number in range(count):
        things.retention.add(str(number))
    turns: list[int] = []
    loop = asyncio.get_running_loop()

    def watch() -> None:
        turns.append(len(things.dropped))
        if turns[-1] < count:
            loop.call_soon(watch)

    loop.call_at(loop.time() + RETENTION_S, watch)
    await advance(RETENTION_S)
    await idle()
    assert len(things.dropped) == count
    assert max(after - before for before, after in itertools.pairwise(turns)) <= _internal.BATCH


async def test_the_oldest_expires_early_at_the_limit(monkeypatch: pytest.MonkeyPatch, things: ThingsRetention) -> None:
    monkeypatch.setattr(_internal, "MAX_RETAINED", 3)
    things.use("0")
    for number in range(5):
        things.retention.add(str(number))
    assert [key for key, _ in things.dropped] == ["1"]
    things.end_use("0")
    assert [key for key, _ in things.dropped] == ["1", "0"]
    things.retention.close()


async def test_nothing_is_dropped_after_the_close(things: ThingsRetention) -> None:
    things.use("b")
    for key in "ab":
        things.retention.add(key)
    await advance(1)
    things.retention.close()
    things.end_use("b")
    await advance(2 * RETENTION_S)
    assert things.dropped == []


steps = st.one_of(
    st.tuples(st.sampled_from(["add", "restore", "use", "end use"]), st.sampled_from("abc")),
    st.tuples(st.just("wait"), st.sampled_from([1.0, RETENTION_S / 2, RETENTION_S])),
)


@pytest.mark.costly
@settings(max_examples=examples(80))
@given(st.lists(steps, max_size=30))
def test_a_thing_is_retained_for_its_time_and_while_it_is_in_use(story: list[tuple[str, str | float]]) -> None:
    async def tell() -> None:
        things, loop = ThingsRetention(), asyncio.get_running_loop()
        due: dict[str, float] = {}
        for what, how in story:
            before = len(things.dropped)
            if what == "wait":
                await advance(float(how))
            else:
                key = str(how)
                if what == "add":
                    things.retention.add(key)
                    due.setdefault(key, loop.time() + RETENTION_S)
                elif what == "restore":
                    assert things.retention.restore(key) == (due.pop(key, None) is not None)
                elif what == "use":
                    things.use(key)
                else:
                    things.end_use(key)
            expected = {key for key, at in due.items() if at <= loop.time() and key not in things.busy}
            assert {key for key, _ in things.dropped[before:]} == expected
            assert len(things.dropped) - before == len(expected)
            for key in expected:
                del due[key]
            assert len(things.retention) == len(due)
        things.retention.close()

    run(tell)


TOOLS = ("tell-joke", "tell-story", "calculate", "query-customers", "query-products")


@pytest.mark.parametrize(
    "name",
    ["Tell-Joke", "tell_joke", "TELL.JOKE", "tell joke", "tell--joke", "tell_-joke", "tell\tjoke", "tell\u00a0joke"],
)
def test_another_case_or_separator_is_the_best_match(name: str) -> None:
    assert find_near_names(name, ("tell-jokes", "tell-joke"))[0] == "tell-joke"


def test_another_spelling_is_found() -> None:
    assert find_near_names("tel-joke", TOOLS)[0] == "tell-joke"
    assert find_near_names("calcluate", TOOLS) == ("calculate",)


def test_nothing_is_near_to_something_else_altogether() -> None:
    assert find_near_names("send-email", TOOLS) == ()
    assert find_near_names("anything", ()) == ()


def test_all_names_that_differ_in_case_only_are_near() -> None:
    assert set(find_near_names("ping", ("PING", "Ping", "pong"), limit=2)) == {"PING", "Ping"}


def test_the_limit_holds() -> None:
    assert len(find_near_names("tool-0", [f"tool-{n}" for n in range(50)], limit=3)) == 3


def test_in_a_large_catalogue_near_names_are_still_found() -> None:
    many = [f"lookup-{n}-archive" for n in range(5_000)] + ["customer-report"]
    assert find_near_names("costumer-report", many)[0] == "customer-report"
    assert find_near_names("cutsomers", [*many, "customers"])[0] == "customers"


def test_a_name_without_end_is_compared_by_its_beginning() -> None:
    assert find_near_names("x" * 1_000_000, ("x" * 100,)) == ("x" * 100,)


def test_a_long_list_is_cut_and_counted() -> None:
    assert join_names(("a", "b")) == "a, b"
    assert join_names([f"t{n}" for n in range(1_025)], limit=2) == "t0, t1 and 1,023 more"


def test_alternatives_read_as_a_sentence() -> None:
    assert join_alternatives(("a",)) == "'a'"
    assert join_alternatives(("a", "b", "c")) == "'a', 'b' or 'c'"


def test_an_excerpt_is_short_and_harmless_to_a_terminal() -> None:
    assert excerpt("schön") == "schön"
    assert excerpt("x" * 100, 10) == "x" * 9 + "…"
    assert excerpt("a\x1b[31mb\n\ud800") == r"a\x1b[31mb\n\ud800"


ANY_TEXT = st.text(st.characters(exclude_categories=()))


@given(ANY_TEXT)
def test_every_text_is_encoded(text: str) -> None:
    assert encode_text(text) == scalar_text(text).encode()
    assert len(scalar_text(text)) == len(text)


@pytest.mark.parametrize("text", ["", "a", "größe 🦊", "\0\u2028"])
def test_a_valid_text_is_unchanged(text: str) -> None:
    assert scalar_text(text) is text
    assert encode_text(text).decode() == text


def test_a_value_that_holds_itself_and_one_that_is_deep() -> None:
    endless: dict[str, Any] = {"a": "\ud800"}
    endless |= {"b": endless, "c": [endless, endless]}
    found = scalar_value(endless)
    assert found["a"] == "?"
    assert found["b"] is found["c"][1] is found
    deep: Any = "\ud800"
    for _ in range(100_000):
        deep = [deep]
    found = scalar_value(deep)
    while isinstance(found, list):
        (found,) = found
    assert found == "?"


def test_values() -> None:
    value: Any = {"a\ud83d": ["\udce9", 1, None, {"b": ("ok", True)}], "c": 1.5}
    assert scalar_value(value) == {"a?": ["?", 1, None, {"b": ["ok", True]}], "c": 1.5}
