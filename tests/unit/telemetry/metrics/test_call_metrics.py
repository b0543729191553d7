"""Each way a call can end is counted in exactly its series, once. Guards against calls that are counted twice or not at all,
and against a number in flight that never comes back to 0."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from dispatch import Catalog, Dispatcher, DispatchError, ToolError, ToolServiceClient
from dispatch.errors import Outcome
from dispatch.telemetry.observers import REFUSED
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
