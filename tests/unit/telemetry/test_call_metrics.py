"""Each way a call can end is counted in exactly its series, once. Guards against calls that are counted twice or not at all,
and against a number in flight that never comes back to 0.
States of circuits in a text of metrics; those of a running dispatcher: tests/unit/cli/test_tools_circuits.py.
Counters and histograms without locks: a scrape gets the same text as of prometheus-client's own.
Metrics of attempts: queue waits, rejections, retries and hedges.
The series of the catalogue's sources are bounded and removed with their source.
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
from dispatch.resilience.bulkhead import QueueLimits
from dispatch.telemetry.call_metrics import (
    MAX_SOURCES,
    MAX_VERSIONS,
    BoundedSeries,
    Instruments,
    ToolKey,
    ToolMeter,
    VersionMeter,
)
from dispatch.telemetry.exposition import LockFreeCounter, LockFreeHistogram
from dispatch.telemetry.gauges import parse_circuit_states
from dispatch.telemetry.observers import DURATION_BUCKETS, OTHER, REFUSED
from tests.helpers.clock import advance, idle, reply_after, wait_at
from tests.helpers.dispatcher_and_service import UNGUARDED, Peer, catalog, read, serving
from tests.helpers.internals import correlator_of
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


@pytest.fixture
def board() -> Board:
    return Board()


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
async def test_a_call_that(story: Story, board: Board) -> None:
    policy = {"retry": 1, "bulkhead": None} if story in WITH_BREAKER else UNGUARDED
    async with deaf(board, policy=policy) as (dispatcher, peer):
        await story(dispatcher, peer)
        assert board.counted() == STORIES[story]
        # The other two create no series of the tool.
        if story not in (stream_is_never_begun, meets_a_closed_dispatcher):
            nothing_left(board)


async def test_all_ends_of_calls_in_sequence(board: Board) -> None:
    """What one leaves behind, another would find."""
    stories = [story for story in STORIES if story not in (meets_a_closed_dispatcher, finds_nobody)]
    expected: dict[str, float] = {}
    policy = {"retry": 1, "bulkhead": None, "breaker": {"consecutive-failures": 100}}
    async with deaf(board, policy=policy) as (it, peer):
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
async def test_an_unknown_tool_is_counted_as_other(board: Board) -> None:
    async with telling(board.telemetry()) as dispatcher:
        assert (await dispatcher.execute("wrok")).outcome is Outcome.REJECTED
        with pytest.raises(DispatchError):
            await dispatcher.call("krow")
        with pytest.raises(DispatchError):
            await read(dispatcher.stream("owrk"), [])
        assert board.counted() == {"calls_total _OTHER refused": 3, "refused_calls_total _NONE unknown-tool": 3}
        assert board["inflight_calls _OTHER"] == 0
        assert not [key for name in ("wrok", "krow", "owrk") for key in board.of(name)]


async def test_a_service_without_a_tool_has_a_name_that_no_tool_has(board: Board) -> None:
    async with serving(lambda _: "done"), telling(board.telemetry(), catalog(lab={})) as dispatcher:
        await ToolServiceClient(dispatcher, service="lab").call({}, {})
        await dispatcher.execute("lab")
        counted = board.counted()
        assert counted["calls_total service:lab success"] == counted["calls_total lab success"] == 1


async def test_arguments_that_raise_are_invalid_arguments(board: Board) -> None:
    """A mapping of the user's own: its error is the caller's, and the call has ended all the same."""

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
    assert list(parse_circuit_states(TEXT)) == [("tell-joke", "open", 1), ('a "b"', "closed", 2)]
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
    count = LockFreeCounter("n", "N.", ("tool",), registry=ours)
    counter = Counter("n", "N.", ("tool",), registry=theirs)
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
    with pytest.raises(DuplicateTimeseries):
        LockFreeCounter("s", "S.", (), registry=registry)
    with pytest.raises(DuplicateTimeseries):
        Histogram("s", "S.", registry=registry)


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


# -- limits -----------------------------------------------------------------------------------------------------------


async def test_a_rejection_by_the_tools_rate_limit(board: Board) -> None:
    policy = {**UNGUARDED, "rate-limit": {"rate": "1/s", "burst": 1, "max-wait": 0}}
    async with serving(lambda _: "done"), telling(board.telemetry(), work(policy=policy)) as dispatcher:
        assert [(await dispatcher.execute("work")).ok for _ in range(3)] == [True, False, False]
        assert board.counted() == {
            **ends("success", SENT, OK),
            "calls_total work throttled": 2,
            "rejections_total work rate-limit": 2,
            "rate_limited_total work tool": 2,
        }
        nothing_left(board)


async def test_a_rejection_by_the_users_rate_limit(board: Board) -> None:
    policy = {**UNGUARDED, "user-rate-limit": {"rate": "1/s", "burst": 1, "max-wait": 0}}
    async with serving(lambda _: "done"), telling(board.telemetry(), work(policy=policy)) as dispatcher:
        assert [(await dispatcher.execute("work", user="hog")).ok for _ in range(3)] == [True, False, False]
        assert board.counted() == {
            **ends("success", SENT, OK),
            "calls_total work refused": 2,
            "refused_calls_total hog user-rate-limit": 2,
            "rejections_total work rate-limit": 2,
            "rate_limited_total work user": 2,
        }


async def test_a_retry_that_the_users_rate_limit_rejects_does_not_hide_the_failure_of_its_call(board: Board) -> None:
    policy = {"user-rate-limit": {"rate": "1/m", "burst": 1, "max-wait": 0}, "timeout": 9, "attempt-timeout": 1}
    async with deaf(board, read_only=True, policy=policy) as (dispatcher, _):
        assert (await dispatcher.execute("work", user="hog")).outcome is Outcome.TIMEOUT
        counted = board.counted()
        assert (counted["calls_total work timeout"], counted["rejections_total work rate-limit"]) == (1, 1)
        assert "rate_limited_total work user" not in counted


async def test_queue_waits_and_rejections_of_the_bulkhead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatch.resilience.bulkhead.QUEUE_LIMITS", QueueLimits(max_length=1))
    board, gate = Board(), asyncio.Event()
    slow = wait_at(gate)
    policy = {**UNGUARDED, "bulkhead": {"max-concurrent-calls": 1, "max-wait": 2}}
    async with serving(slow), telling(board.telemetry(), work(policy=policy)) as dispatcher:
        calls = [asyncio.create_task(dispatcher.execute("work")) for _ in range(3)]
        await advance(1.5)
        now = board.read()
        assert (now["inflight_calls work"], now["queued_calls work"], now["pending_requests"]) == (2, 1, 1)
        gate.set()
        results = await asyncio.gather(*calls)
        assert [result.ok for result in results] == [True, True, False]
        assert board.counted() == {
            "calls_total work success": 2,
            "calls_total work throttled": 1,
            "rejections_total work bulkhead": 1,
            "attempts_total work first": 2,
            "call_duration_seconds_count work ok": 2,
            "queue_wait_seconds_count work": 2,
        }
        assert board["queue_wait_seconds_sum work"] == pytest.approx(1.5 + 0, abs=0.01)
        nothing_left(board)


async def test_calls_that_are_cancelled_in_the_queue(board: Board) -> None:
    policy = {**UNGUARDED, "bulkhead": {"max-concurrent-calls": 1, "max-wait": 9}}
    async with deaf(board, policy=policy) as (dispatcher, peer):
        first = asyncio.create_task(dispatcher.execute("work"))
        _, properties = await peer.request()
        second = asyncio.create_task(dispatcher.execute("work"))
        await advance(1)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        await peer.answer(properties, "done")
        await first
        cancelled = ("calls_total work cancelled", "queue_wait_seconds_count work")
        assert board.counted() == ends("success", SENT, OK, *cancelled)
        nothing_left(board)


# -- more than one attempt --------------------------------------------------------------------------------------------


async def test_a_retry_is_counted_as_an_attempt_and_not_as_a_call(board: Board) -> None:
    async with deaf(board, policy={}) as (dispatcher, peer):
        call = asyncio.create_task(dispatcher.execute("work"))
        _, properties = await peer.request()
        await peer.answer(properties, error=("overloaded", "full"), refused="overloaded", retry_after_ms="100")
        _, properties = await peer.request()
        await peer.answer(properties, "done")
        assert (await call).attempts == 2
        retried = ("attempts_total work retry", "rejections_total work service")
        assert board.counted() == ends("success", SENT, OK, *retried)


async def test_retries_beyond_the_budget_are_counted(monkeypatch: pytest.MonkeyPatch, board: Board) -> None:
    monkeypatch.setattr("dispatch.calls.guards.MIN_REPEATS_PER_S", 0.1)
    policy = {"attempt-timeout": 0.5, "breaker": None}
    async with deaf(board, policy=policy, idempotent=True) as (dispatcher, peer):
        results = await asyncio.gather(*(dispatcher.execute("work", timeout=5) for _ in range(50)))
        assert sum(result.attempts for result in results) == 61
        assert board.counted() == {
            "calls_total work timeout": 50,
            "call_duration_seconds_count work error": 50,
            "attempts_total work first": 50,
            "attempts_total work retry": 11,
            "retry_budget_exhausted_total work": 50,
        }
        assert peer.arrived.qsize() == 61


async def test_a_hedge_is_counted_as_an_attempt_and_not_as_a_call(board: Board) -> None:
    gate = asyncio.Event()
    slow = wait_at(gate, "slow")
    tool = work(read_only=True, policy={"hedging": 0.2, "balancing": "round-robin"})
    async with (
        serving(slow, instance="a"),
        serving(lambda _: "fast", instance="b"),
        telling(board.telemetry(), tool) as dispatcher,
    ):
        results = [await dispatcher.execute("work") for _ in range(4)]
        assert [result.text for result in results] == ["fast"] * 4
        hedged = sum(result.attempts - 1 for result in results)
        assert hedged == 2
        counted = board.counted()
        assert counted["attempts_total work hedge"] == hedged
        assert counted["attempts_total work first"] == counted["calls_total work success"] == 4
        nothing_left(board)


async def test_hedges_beyond_the_budget_are_counted(board: Board) -> None:
    slow = reply_after(1)
    tool = work(read_only=True, policy={"hedging": 0.2})
    async with serving(slow, instance="a"), serving(slow, instance="b"), telling(board.telemetry(), tool) as dispatcher:
        results = await asyncio.gather(*(dispatcher.execute("work") for _ in range(50)))
        hedged = sum(result.attempts - 1 for result in results)
        assert 0 < hedged < 50
        assert board["attempts_total work hedge"] == hedged
        assert board["retry_budget_exhausted_total work"] == 50 - hedged


async def test_an_attempt_that_was_not_sent_is_not_counted(board: Board) -> None:
    async with deaf(board) as (dispatcher, peer):
        await succeeds(dispatcher, peer)
        correlator_of(dispatcher)._max_pending = 0
        result = await dispatcher.execute("work")
        assert (result.outcome, result.attempts) == (Outcome.THROTTLED, 0)
        refused = ("calls_total work throttled", "rejections_total work exchange")
        assert board.counted() == ends("success", SENT, OK, *refused)


async def test_calls_that_share_an_exchange_are_timed_each_by_itself() -> None:
    board, gate = Board(), asyncio.Event()
    slow = wait_at(gate)
    tool = work(read_only=True, policy={"single-flight": True})
    async with serving(slow), telling(board.telemetry(), tool) as dispatcher:
        first = asyncio.create_task(dispatcher.execute("work"))
        await advance(3)
        second = asyncio.create_task(dispatcher.execute("work"))
        left = asyncio.create_task(dispatcher.execute("work"))
        await advance(1)
        left.cancel()
        gate.set()
        durations = [(await first).duration, (await second).duration]
        assert durations == pytest.approx([4, 1], abs=0.01)
        with pytest.raises(asyncio.CancelledError):
            await left
        assert board["call_duration_seconds_sum work ok"] == pytest.approx(5, abs=0.02)
        assert board.counted() == {
            "calls_total work success": 2,
            "calls_total work cancelled": 1,
            "attempts_total work first": 1,
            "call_duration_seconds_count work ok": 2,
        }
        nothing_left(board)


class Series:
    """The series of one registry, read as a scrape reads them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.tools = Instruments.of(self.registry).tools
        self.held: dict[str, ToolMeter] = {}

    def versions(self, tool: str) -> BoundedSeries[str, VersionMeter]:
        if tool not in self.held:
            self.held[tool] = self.tools.acquire(ToolKey(tool, OTHER if tool == OTHER else "lab"))
        return self.held[tool].versions

    def remove_tool(self, tool: str) -> None:
        self.tools.release(self.held.pop(tool).label, is_removed=True)

    def read(self) -> dict[tuple[str, str, str], float]:
        return {
            (each.labels["tool"], each.labels["version"], each.labels["outcome_class"]): each.value
            for family in self.registry.restricted_registry(["dispatch_version_calls_total"]).collect()
            for each in family.samples
        }

    def labels(self) -> set[tuple[str, str]]:
        return {key[:2] for key in self.read()}


@pytest.fixture
def series() -> Series:
    return Series()


def test_calls_are_counted_by_class_of_outcome(series: Series) -> None:
    meter = series.versions("joke").acquire("1.0.0")
    assert series.read() == {("joke", "1.0.0", each): 0 for each in ("ok", "error", "other")}
    for outcome in Outcome:
        meter.record_call(outcome)
    assert series.read() == {("joke", "1.0.0", "ok"): 1, ("joke", "1.0.0", "error"): 3, ("joke", "1.0.0", "other"): 4}


def test_further_versions_share_other(series: Series) -> None:
    meters = [series.versions("joke").acquire(f"{number}.0.0") for number in range(MAX_VERSIONS + 2)]
    assert [meter.label for meter in meters[MAX_VERSIONS:]] == [OTHER, OTHER]
    assert len(series.labels()) == MAX_VERSIONS + 1
    assert series.versions("find").acquire("9.0.0").label == "9.0.0", "four of each tool"
    series.versions("joke").release(meters[0].label, is_removed=True)
    assert series.versions("joke").acquire("9.0.0").label == "9.0.0"


def test_a_removed_version_ends_with_its_last_dispatcher(series: Series) -> None:
    one, other = (series.versions("joke").acquire("1.0.0") for _ in range(2))
    series.versions("joke").acquire("2.0.0")
    series.versions("joke").release(one.label, is_removed=True)
    assert ("joke", "1.0.0") in series.labels()
    series.versions("joke").release(other.label, is_removed=True)
    assert series.labels() == {("joke", "2.0.0")}


def test_the_series_of_a_closed_dispatcher_stay(series: Series) -> None:
    meter = series.versions("joke").acquire("1.0.0")
    meter.record_call(Outcome.SUCCESS)
    series.versions("joke").release(meter.label, is_removed=False)
    assert series.read()["joke", "1.0.0", "ok"] == 1
    series.versions("joke").acquire("1.0.0").record_call(Outcome.SUCCESS)
    assert series.read()["joke", "1.0.0", "ok"] == 2


def test_the_series_of_all_versions_end_with_the_tool(series: Series) -> None:
    former = series.versions("joke")
    meters = [former.acquire(f"{number}.0.0") for number in range(MAX_VERSIONS + 1)]
    series.versions("find").acquire("1.0.0")
    series.remove_tool("joke")
    assert series.labels() == {("find", "1.0.0")}
    former.release(meters[0].label, is_removed=True)
    assert series.labels() == {("find", "1.0.0")}
    series.versions("joke").acquire(meters[1].label)
    former.release(meters[1].label, is_removed=True)
    assert series.labels() == {("find", "1.0.0"), ("joke", "1.0.0")}, "added again meanwhile"


def test_tools_without_series_of_their_own_have_one_for_all_versions(series: Series) -> None:
    assert {series.versions(OTHER).acquire(version).label for version in ("1.0.0", "2.0.0")} == {OTHER}


def read_sources(board: Board) -> dict[str, float]:
    return {key: value for key, value in board.read().items() if key.startswith("catalog_")}


def test_series_exist_at_0_from_the_start(board: Board) -> None:
    assert Instruments.of(board.registry).sources.acquire("tools").label == "tools"
    assert read_sources(board) == {"catalog_reloads_total tools ok": 0, "catalog_reloads_total tools failed": 0}


def test_the_last_reload_decides(board: Board) -> None:
    series = Instruments.of(board.registry).sources
    meter = series.acquire("tools")
    for is_successful in (True, False, True):
        meter.record_reload(is_successful=is_successful)
        assert board["catalog_last_reload_successful tools"] == is_successful
    assert board["catalog_reloads_total tools ok"] == 2
    assert board["catalog_reloads_total tools failed"] == 1


def test_many_sources_share_one_series(caplog: pytest.LogCaptureFixture, board: Board) -> None:
    series = Instruments.of(board.registry).sources
    labels = [series.acquire(f"source-{number}").label for number in range(MAX_SOURCES + 3)]
    assert labels == [f"source-{number}" for number in range(MAX_SOURCES)] + [OTHER] * 3
    assert caplog.text.count("further ones share the series _OTHER") == 1
    assert series.labels() == set(labels)
    for label in labels:
        series.release(label, is_removed=True)
    assert series.labels() == {OTHER}, "the counts of several sources must not decrease"


def test_sources_that_come_and_go_leave_nothing(board: Board) -> None:
    series = Instruments.of(board.registry).sources
    for number in range(1_000):
        meter = series.acquire(f"source-{number}")
        assert meter.label == f"source-{number}"
        meter.record_reload(is_successful=False)
        series.release(meter.label, is_removed=True)
    assert read_sources(board) == {}
    assert series.labels() == set()


def test_a_further_source_replaces_one_whose_dispatchers_are_closed(board: Board) -> None:
    series = Instruments.of(board.registry).sources
    meters = [series.acquire(f"source-{number}") for number in range(MAX_SOURCES)]
    for closed in meters[7:9]:
        closed.record_reload(is_successful=True)
        series.release(closed.label, is_removed=False)
    assert [series.acquire(name).label for name in ("new-1", "new-2", "new-3")] == ["new-1", "new-2", OTHER]
    assert board.of("source-7") == board.of("source-8") == []
    assert len(series.labels()) == MAX_SOURCES + 1


def test_a_closed_dispatcher_keeps_the_counts(board: Board) -> None:
    series = Instruments.of(board.registry).sources
    series.acquire("tools").record_reload(is_successful=True)
    series.release("tools", is_removed=False)
    assert board["catalog_reloads_total tools ok"] == 1
    series.acquire("tools")
    series.release("tools", is_removed=True)
    assert read_sources(board) == {}
