"""Each way a call can end is counted in exactly its series, once. Guards against calls that are counted twice or not at all,
and against a number in flight that never comes back to 0.
States of circuits in a text of metrics; those of a running dispatcher: tests/unit/cli/catalog/test_circuits.py.
Counters and histograms without locks: a scrape gets the same text as of prometheus-client's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import Exemplar, Timestamp
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.registry import DuplicateTimeseries

from dispatch import Catalog, Dispatcher, DispatchError, ToolError, ToolServiceClient
from dispatch.errors import Outcome
from dispatch.telemetry.exposition import LockFreeCounter, LockFreeHistogram
from dispatch.telemetry.gauges import parse_circuit_states
from dispatch.telemetry.observers import DURATION_BUCKETS, REFUSED
from tests.helpers.clock import advance, idle
from tests.helpers.dispatcher_and_service import UNGUARDED, Peer, catalog, read, serving
from tests.helpers.telemetry_capture import Board, telling


def work(**keys: Any) -> Catalog:
    return catalog(work={key.replace("_", "-"): value for key, value in keys.items()})


@contextlib.asynccontextmanager
async def deaf(board: Board, **keys: Any) -> AsyncIterator[tuple[Dispatcher, Peer]]:
    """A service that takes requests, and answers what the test says; each call goes once, unless ``keys`` say more."""
    keys.setdefault("policy", UNGUARDED)
    async with Peer.as_service() as peer, telling(board.telemetry(), work(**keys)) as dispatcher:
        yield dispatcher, peer


def nothing_left(board: Board) -> None:
    now = board.read()
    for key in ("inflight_calls work", "queued_calls work", "pending_requests"):
        assert now[key] == 0, key
    ended = {key: n for key, n in now.items() if key.startswith("calls_total work")}
    assert set(ended) == {f"calls_total work {outcome}" for outcome in (*Outcome, REFUSED)}


# -- one call, as its service and its caller have it ------------------------------------------------------------------
async def answered(dispatcher: Dispatcher, peer: Peer, **how: Any) -> None:
    call = asyncio.create_task(dispatcher.execute("work"))
    _, properties = await peer.request()
    await peer.answer(properties, **how)
    await call


async def succeeds(dispatcher: Dispatcher, peer: Peer) -> None:
    await answered(dispatcher, peer, text="done")


async def fails(dispatcher: Dispatcher, peer: Peer) -> None:
    await answered(dispatcher, peer, error=("busy", "come back"))


async def is_unreadable_to_us(dispatcher: Dispatcher, peer: Peer) -> None:
    await answered(dispatcher, peer, payload=b"{")


async def is_refused_by_the_service(dispatcher: Dispatcher, peer: Peer) -> None:
    await answered(dispatcher, peer, error=("overloaded", "full"), refused="overloaded", retry_after_ms="500")


async def is_unreadable_to_the_service(dispatcher: Dispatcher, peer: Peer) -> None:
    await answered(dispatcher, peer, error=("invalid-request", "what?"), refused="invalid-request")


async def meets_a_service_that_leaves(dispatcher: Dispatcher, peer: Peer) -> None:
    await answered(dispatcher, peer, error=("draining", "leaving"), refused="draining")


async def has_arguments_that_json_cannot_say(dispatcher: Dispatcher, peer: Peer) -> None:
    await dispatcher.execute("work", {"what": object()})


async def has_a_limit_that_is_none(dispatcher: Dispatcher, peer: Peer) -> None:
    await dispatcher.execute("work", timeout=-1)


async def is_not_answered(dispatcher: Dispatcher, peer: Peer) -> None:
    await dispatcher.execute("work", timeout=3)


async def is_cancelled(dispatcher: Dispatcher, peer: Peer) -> None:
    call = asyncio.create_task(dispatcher.execute("work"))
    await peer.request()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def meets_an_open_circuit(dispatcher: Dispatcher, peer: Peer) -> None:
    dispatcher.breaker("work").force_open()
    await dispatcher.execute("work")
    dispatcher.breaker("work").reset()


async def meets_a_closed_dispatcher(dispatcher: Dispatcher, peer: Peer) -> None:
    await dispatcher.close()
    await dispatcher.execute("work")


async def finds_nobody(dispatcher: Dispatcher, peer: Peer) -> None:
    await dispatcher.reload(work(policy={**UNGUARDED, "known-instances-only": True}))
    await dispatcher.execute("work")


# -- likewise a stream ------------------------------------------------------------------------------------------------
async def streams(dispatcher: Dispatcher, peer: Peer) -> None:
    chunks: list[str] = []
    reading = asyncio.create_task(read(dispatcher.stream("work"), chunks))
    _, properties = await peer.request()
    for index, text in enumerate("abc"):
        await peer.answer(properties, text, end=text == "c", chunk=str(index))
    await reading
    assert chunks == ["a", "b", "c"]


async def streams_an_error(dispatcher: Dispatcher, peer: Peer) -> None:
    reading = asyncio.create_task(read(dispatcher.stream("work"), []))
    _, properties = await peer.request()
    await peer.answer(properties, "a", end=False, chunk="0")
    await peer.answer(properties, error=("broken", "half-way"), chunk="1")
    with pytest.raises(ToolError):
        await reading


async def streams_and_falls_silent(dispatcher: Dispatcher, peer: Peer) -> None:
    reading = asyncio.create_task(read(dispatcher.stream("work", idle_timeout=1), []))
    _, properties = await peer.request()
    await peer.answer(properties, "a", end=False, chunk="0")
    with pytest.raises(DispatchError):
        await reading


async def streams_with_wrong_arguments(dispatcher: Dispatcher, peer: Peer) -> None:
    with pytest.raises(DispatchError):
        await read(dispatcher.stream("work", {"what": object()}), [])


async def streams_against_an_open_circuit(dispatcher: Dispatcher, peer: Peer) -> None:
    dispatcher.breaker("work").force_open()
    with pytest.raises(DispatchError):
        await read(dispatcher.stream("work"), [])
    dispatcher.breaker("work").reset()


async def stream_is_left(dispatcher: Dispatcher, peer: Peer) -> None:
    async with contextlib.aclosing(dispatcher.stream("work")) as stream:
        first = asyncio.ensure_future(anext(stream))
        _, properties = await peer.request()
        await peer.answer(properties, "a", end=False, chunk="0")
        assert await first == "a"


async def stream_is_cancelled_before_its_first_chunk(dispatcher: Dispatcher, peer: Peer) -> None:
    reading = asyncio.create_task(read(dispatcher.stream("work"), []))
    await peer.request()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


async def stream_is_cancelled_half_way(dispatcher: Dispatcher, peer: Peer) -> None:
    chunks: list[str] = []
    reading = asyncio.create_task(read(dispatcher.stream("work"), chunks))
    _, properties = await peer.request()
    await peer.answer(properties, "a", end=False, chunk="0")
    await idle()
    assert chunks == ["a"]
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


async def stream_is_never_begun(dispatcher: Dispatcher, peer: Peer) -> None:
    await dispatcher.stream("work").aclose()


SENT = "attempts_total work first"
OK, ERROR = "call_duration_seconds_count work ok", "call_duration_seconds_count work error"
INVALID = "refused_calls_total _NONE invalid-arguments"
FORCED = "circuit_transitions_total work forced-open"
RESET = "circuit_transitions_total work closed"
FIRST_CHUNK = "first_chunk_seconds_count work"


def ends(outcome: str, *others: str) -> dict[str, float]:
    return {f"calls_total work {outcome}": 1, **dict.fromkeys(others, 1)}


Story = Callable[[Dispatcher, Peer], Awaitable[None]]
STORIES: dict[Story, dict[str, float]] = {
    succeeds: ends("success", SENT, OK),
    fails: ends("tool_error", SENT, ERROR),
    is_unreadable_to_us: ends("transport", SENT, ERROR),
    is_refused_by_the_service: ends("throttled", SENT, "rejections_total work service"),
    is_unreadable_to_the_service: ends("invalid_arguments", SENT, INVALID),
    meets_a_service_that_leaves: ends("rejected", SENT, "rejections_total work service"),
    has_arguments_that_json_cannot_say: ends("invalid_arguments", INVALID),
    has_a_limit_that_is_none: ends("invalid_arguments", INVALID),
    is_not_answered: ends("timeout", SENT, ERROR),
    is_cancelled: ends("cancelled", SENT),
    meets_an_open_circuit: ends("rejected", "rejections_total work breaker", FORCED, RESET),
    meets_a_closed_dispatcher: ends("transport", ERROR),
    finds_nobody: ends("rejected", "rejections_total work balancer"),
    streams: ends("success", SENT, OK, FIRST_CHUNK),
    streams_an_error: ends("tool_error", SENT, ERROR, FIRST_CHUNK),
    streams_and_falls_silent: ends("timeout", SENT, ERROR, FIRST_CHUNK),
    streams_with_wrong_arguments: ends("invalid_arguments", INVALID),
    streams_against_an_open_circuit: ends("rejected", "rejections_total work breaker", FORCED, RESET),
    stream_is_left: ends("cancelled", SENT, FIRST_CHUNK),
    stream_is_cancelled_before_its_first_chunk: ends("cancelled", SENT),
    stream_is_cancelled_half_way: ends("cancelled", SENT, FIRST_CHUNK),
    stream_is_never_begun: {},
}
WITH_BREAKER = {meets_an_open_circuit, streams_against_an_open_circuit}


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
async def test_a_call_that(story: Story) -> None:
    board = Board()
    policy = {"retry": 1, "bulkhead": None} if story in WITH_BREAKER else UNGUARDED
    async with deaf(board, policy=policy) as (dispatcher, peer):
        await story(dispatcher, peer)
        assert board.counted() == STORIES[story]
        if story not in (
            stream_is_never_begun,
            meets_a_closed_dispatcher,
        ):  # there nobody has heard of the tool, or looks
            nothing_left(board)


async def test_all_ends_of_calls_in_sequence() -> None:
    """What one leaves behind, another would find."""
    board = Board()
    stories = [story for story in STORIES if story not in (meets_a_closed_dispatcher, finds_nobody)]
    expected: dict[str, float] = {}
    async with deaf(board, policy={"retry": 1, "bulkhead": None, "breaker": {"consecutive-failures": 100}}) as (
        it,
        peer,
    ):
        for story in stories:
            while not peer.arrived.empty():
                peer.arrived.get_nowait()  # what the one before did not wait for
            await story(it, peer)
            await advance(1)  # until a pause that the service asked for is over
            for key, count in STORIES[story].items():
                expected[key] = expected.get(key, 0) + count
        assert board.counted() == expected
        nothing_left(board)


# -- tools that there are not, and services without one --------------------------------------------------------------
async def test_an_unknown_tool_is_counted_as_other() -> None:
    board = Board()
    async with telling(board.telemetry()) as dispatcher:
        assert (await dispatcher.execute("wrok")).outcome is Outcome.REJECTED
        with pytest.raises(DispatchError):
            await dispatcher.call("krow")
        with pytest.raises(DispatchError):
            await read(dispatcher.stream("owrk"), [])
        assert board.counted() == {"calls_total _OTHER refused": 3, "refused_calls_total _NONE unknown-tool": 3}
        assert board["inflight_calls _OTHER"] == 0
        assert not [key for name in ("wrok", "krow", "owrk") for key in board.of(name)]


async def test_a_service_without_a_tool_has_a_name_that_no_tool_has() -> None:
    board = Board()
    async with serving(lambda _: "done"), telling(board.telemetry(), catalog(lab={})) as dispatcher:
        await ToolServiceClient(dispatcher, service="lab").call({}, {})
        await dispatcher.execute("lab")
        counted = board.counted()
        assert counted["calls_total service:lab success"] == counted["calls_total lab success"] == 1


async def test_arguments_that_raise_are_invalid_arguments() -> None:
    """A mapping of the user's own: its error is the caller's, and the call has ended all the same."""
    board = Board()

    class Odd(dict[str, Any]):
        def __iter__(self) -> Any:
            raise KeyError("gone")

    async with deaf(board) as (dispatcher, _):
        with pytest.raises(KeyError):
            await dispatcher.execute("work", Odd(a=1))
        with pytest.raises(KeyError):
            await read(dispatcher.stream("work", Odd(a=1)), [])
        assert board.counted() == {"calls_total work cancelled": 2}
        nothing_left(board)


TEXT = """\
# TYPE dispatch_circuit_state gauge
dispatch_circuit_state{tool="tell-joke",state="open"} 1.0
dispatch_circuit_state{tool="a \\"b\\"",state="closed"} 2.0
# TYPE dispatch_calls counter
dispatch_calls_total{tool="tell-joke"} 7.0
"""


def test_only_circuits_are_counted() -> None:
    assert list(parse_circuit_states(TEXT)) == [
        ("tell-joke", "open", 1),
        ('a "b"', "closed", 2),
    ]
    assert list(parse_circuit_states("")) == []


@pytest.mark.parametrize("text", ["<html>{", 'dispatch_circuit_state{state="open"} 1', "dispatch_circuit_state{tool="])
def test_a_text_without_metrics(text: str) -> None:
    with pytest.raises(ValueError, match="not the text of metrics"):
        list(parse_circuit_states(text))


AMOUNTS = st.one_of(st.sampled_from(DURATION_BUCKETS), st.floats(0.0, 200.0))


@pytest.fixture
def switching() -> Iterator[None]:
    """Threads change as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def scraped(registry: CollectorRegistry) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """All samples, but for the times at which series were created."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in registry.collect()
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


@given(st.lists(st.tuples(st.sampled_from("ab"), AMOUNTS)))
def test_the_exposition_equals_that_of_prometheus_clients_metrics(told: list[tuple[str, float]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    count, counter = (
        LockFreeCounter("n", "N.", ("tool",), registry=ours),
        Counter("n", "N.", ("tool",), registry=theirs),
    )
    timing = LockFreeHistogram("s", "S.", ("tool",), buckets=DURATION_BUCKETS, registry=ours)
    histogram = Histogram("s", "S.", ("tool",), buckets=DURATION_BUCKETS, registry=theirs)
    for tool, amount in told:
        for each in (count, counter):
            each.labels(tool).inc()
            each.labels(tool).inc(amount)
        for one in (timing, histogram):
            one.labels(tool).observe(amount)
    assert scraped(ours) == scraped(theirs)


def test_series_are_created_once_and_removed_by_their_labels() -> None:
    registry = CollectorRegistry()
    counter = LockFreeCounter("n", "N.", ("tool", "outcome"), registry=registry)
    for tool in "ab":
        for outcome in ("ok", "bad"):
            counter.labels(tool, outcome).inc()
    assert counter.labels("a", "ok") is counter.labels("a", "ok")
    counter.remove_by_labels({"tool": "a"})
    counter.remove_by_labels({"tool": "b", "outcome": "bad"})
    counter.remove_by_labels({"tool": "nobody"})
    assert scraped(registry) == {("n_total", (("outcome", "ok"), ("tool", "b"))): 1}
    with pytest.raises(ValueError, match=r"n needs a value for each label of \('tool', 'outcome'\), not \('a',\)"):
        counter.labels("a")
    with pytest.raises(ValueError, match="not in tuple"):
        counter.remove_by_labels({"user": "a"})
    with pytest.raises(ValueError, match="name the first label of n: tool"):
        counter.remove_by_labels({"outcome": "ok"})
    counter.labels("b", "bad").inc(3)
    counter.remove_by_labels({"tool": "b"})
    assert scraped(registry) == {}
    counter.labels("b", "bad").inc(5)
    assert scraped(registry) == {("n_total", (("outcome", "bad"), ("tool", "b"))): 5}


def test_a_duplicate_name_is_an_error() -> None:
    registry = CollectorRegistry()
    LockFreeHistogram("s", "S.", (), buckets=(1.0,), registry=registry)
    for make in (
        lambda: LockFreeCounter("s", "S.", (), registry=registry),
        lambda: Histogram("s", "S.", registry=registry),
    ):
        with pytest.raises(DuplicateTimeseries):
            make()


def test_an_exemplar_stays_at_its_bucket_until_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatch.telemetry.exposition.time.time", lambda: 1_000.5)
    registry = CollectorRegistry()
    timing = LockFreeHistogram("s", "S.", ("tool",), buckets=(0.1, 1.0), registry=registry).labels("a")
    timing.observe(0.1, {"trace_id": "first"})
    timing.observe(0.05, {"trace_id": "second"})
    timing.observe(0.07)
    timing.observe(50.0, {"trace_id": "slow"})
    text = openmetrics(registry).decode()
    exemplars = {
        sample.labels["le"]: sample.exemplar
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "s_bucket"
    }
    assert exemplars == {
        "0.1": Exemplar({"trace_id": "second"}, 0.05, Timestamp(1_000, 5e8)),
        "1.0": None,
        "+Inf": Exemplar({"trace_id": "slow"}, 50.0, Timestamp(1_000, 5e8)),
    }
    assert "_created" not in text
    assert scraped(registry)["s_count", (("tool", "a"),)] == 4
    assert scraped(registry)["s_sum", (("tool", "a"),)] == math.fsum((0.1, 0.05, 0.07, 50.0))


@pytest.mark.usefixtures("switching")
def test_increments_of_threads_are_not_lost() -> None:
    registry = CollectorRegistry()
    counter = LockFreeCounter("n", "N.", ("tool",), registry=registry)
    timing = LockFreeHistogram("s", "S.", ("tool",), buckets=(0.1,), registry=registry).labels("a")
    together = threading.Barrier(4)

    def work() -> None:
        together.wait()
        for _ in range(20_000):
            counter.labels("a").inc()
            timing.observe(0.5)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        seen = scraped(registry)
        assert seen["s_bucket", (("le", "+Inf"), ("tool", "a"))] == seen["s_count", (("tool", "a"),)]
    for thread in threads:
        thread.join()
    assert counter.labels("a").value == 80_000
    assert timing.counts == [0, 80_000]
    assert timing.sum == 40_000.0
