"""What a tool server answers: results, errors and streams, whatever a tool's author makes of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dispatch import ToolService
from dispatch._internal import MAX_ERROR_CHARS
from dispatch.errors import InvalidArgumentsError, ThrottledError, ToolError
from dispatch.messaging.wire import MAX_MESSAGE_BYTES
from tests.helpers.clock import VirtualClockLoop, idle
from tests.helpers.dispatcher_and_service import Peer, Service, catalog, read, serving, stand


async def failure(work: Any) -> ToolError:
    """What a caller gets of ``work``."""
    async with stand(work) as (dispatcher, server):
        began = asyncio.get_running_loop().time()
        with pytest.raises(ToolError) as caught:
            await dispatcher.call("work", timeout=5)
        assert asyncio.get_running_loop().time() == began, "an error is an answer, not a timeout"
        await idle()
        assert server.running == 0
        return caught.value


def raising(error: BaseException) -> Any:
    def work(_: Any) -> None:
        raise error

    return work


# -- results --------------------------------------------------------------------------------------------------------


async def test_a_request_arrives_whole() -> None:
    service = Service(lambda _: "done")
    tools = catalog(service={"config-params": [{"name": "style"}]}, work={"style": {"deep": ["ü"]}})
    async with stand(service, tools) as (dispatcher, _):
        await dispatcher.call("work", {"städte": ["Köln", None, 1.5], "tief": {"a": {}}}, user="älice")
    assert service.requests == [
        ({"style": {"deep": ["ü"]}}, {"städte": ["Köln", None, 1.5], "tief": {"a": {}}}, "älice")
    ]


@pytest.mark.parametrize(
    ("result", "text"),
    [("ha", "ha"), ("", ""), ({"a": [1, "ü"]}, '{"a": [1, "ü"]}'), (None, "null"), (False, "false"), ([], "[]")],
)
async def test_any_json_result_reaches_the_caller(result: object, text: str) -> None:
    async with stand(lambda _: result) as (dispatcher, _):
        assert await dispatcher.call("work") == text


async def test_the_largest_result_passes_and_a_larger_one_is_an_error_that_says_so() -> None:
    most = 2 * MAX_MESSAGE_BYTES
    async with stand(lambda arguments: "x" * arguments["size"], max_payload_bytes=most) as (dispatcher, _):
        for size in (MAX_MESSAGE_BYTES, MAX_MESSAGE_BYTES + 1, most):
            assert len(await dispatcher.call("work", {"size": size})) == size
        with pytest.raises(ToolError, match="too large") as caught:
            await dispatcher.call("work", {"size": most + 1})
        assert caught.value.type == "result-too-large"
        assert f"{most:,}" in caught.value.message


async def test_a_result_json_cannot_say_is_an_error_that_names_its_type() -> None:
    error = await failure(lambda _: object())
    assert error.type == "invalid-result"
    assert "cannot be written as JSON (JSON cannot express an object)" in error.message


async def test_half_a_surrogate_pair_is_an_error() -> None:
    for result in ("\ud800", {"a": "\udfff"}):
        error = await failure(lambda _, result=result: result)
        assert error.type == "invalid-result"


@pytest.mark.parametrize("result", [float("nan"), [float("inf")], {"a": {"b": float("-inf")}}])
async def test_a_number_that_json_does_not_have_is_an_error(result: object) -> None:
    error = await failure(lambda _: result)
    assert error.type == "invalid-result"
    assert "NaN or an infinite number" in error.message


async def test_an_endless_result_is_an_error() -> None:
    endless: dict[str, Any] = {}
    endless["again"] = endless
    assert (await failure(lambda _: endless)).type == "invalid-result"


# -- errors ---------------------------------------------------------------------------------------------------------


class OddError(Exception):
    pass


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise ValueError("not even that")


@pytest.mark.parametrize(
    ("error", "type", "message"),
    [
        (ToolError("no-such-city", "There is no city of that name."), "no-such-city", "There is no city of that name."),
        (OddError("it broke"), "OddError", "it broke"),
        (KeyError("topic"), "KeyError", "KeyError: 'topic'"),
        (ThrottledError("quota", "Not before noon."), "quota", "Not before noon."),
        (InvalidArgumentsError("bad", "No."), "bad", "No."),
        (UnprintableError(), "UnprintableError", "(the text of a UnprintableError cannot be read)"),
        (OddError("half \ud800 pair"), "OddError", "half ? pair"),
        (ToolError("half \ud800", "pair"), "half ?", "pair"),
        (ToolError(5, 6), "5", "6"),  # type: ignore[arg-type]
        (ToolError(5, None), "tool-error", "5"),  # type: ignore[arg-type]
        (RecursionError("deep"), "RecursionError", "deep"),
        (StopAsyncIteration(), "RuntimeError", None),
        (ExceptionGroup("two", [OddError("one"), OddError("two")]), "ExceptionGroup", "two (2 sub-exceptions)"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
async def test_an_exception_reaches_the_caller_with_its_type_and_its_message(
    error: Exception, type: str, message: str | None
) -> None:
    if isinstance(error, StopAsyncIteration):

        async def work(_: Any) -> None:
            raise StopIteration  # which asyncio turns into a RuntimeError

        caught = await failure(work)
    else:
        caught = await failure(raising(error))
    assert caught.type == type
    assert caught.message == (message or "coroutine raised StopIteration")


async def test_an_error_without_a_message_still_says_something() -> None:
    assert "failed without a message" in (await failure(raising(OddError()))).message


async def test_an_endless_error_message_is_cut_off() -> None:
    error = await failure(raising(OddError("x" * 6 * 1024 * 1024)))
    assert (error.type, len(error.message)) == ("OddError", MAX_ERROR_CHARS)


async def test_a_tool_that_is_cancelled_from_within_answers() -> None:
    error = await failure(raising(asyncio.CancelledError()))
    assert error.type == "cancelled"


# -- threads --------------------------------------------------------------------------------------------------------


async def test_a_plain_function_runs_in_a_thread_and_holds_nobody_up() -> None:
    release = threading.Event()

    class Slow(ToolService):
        def invoke(self, config: Any, arguments: Any, user: str = "") -> str:
            if "wait" in arguments:
                release.wait(20)
            return threading.current_thread().name

    async with stand(Slow()) as (dispatcher, _):
        waiting = asyncio.create_task(dispatcher.call("work", {"wait": True}))
        assert await dispatcher.call("work") != threading.current_thread().name
        assert not waiting.done()
        release.set()
        await waiting


async def test_a_thread_that_takes_too_long_is_given_up_at_the_deadline() -> None:
    release = threading.Event()

    class Slow(ToolService):
        def invoke(self, config: Any, arguments: Any, user: str = "") -> str:
            release.wait(20)
            return "too late"

    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualClockLoop)
    async with serving(Slow()) as server, Peer.as_caller() as caller:
        loop.threads_may_hang = True
        await caller.ask(b"{}", id="1", remaining_ms="1000")
        assert b"stopped" in (await caller.arrived.get()).data()
        await idle()
        assert server.running == 0
        release.set()


# -- streams --------------------------------------------------------------------------------------------------------


async def replies(work: Any, count: int) -> list[tuple[dict[str, str], bytes]]:
    """The first ``count`` replies to one request, as they are on the wire."""
    async with serving(work), Peer.as_caller() as caller:
        await caller.ask(b"{}", id="1")
        messages = [await caller.arrived.get() for _ in range(count)]
        await idle()
        assert caller.arrived.empty()
        return [(message.properties(), message.data()) for message in messages]


async def test_a_stream_is_one_reply_a_chunk_with_its_index_and_an_end() -> None:
    async def stream() -> AsyncIterator[Any]:
        yield "Once"
        yield {"upon": 1}

    got = await replies(lambda _: stream(), 3)
    assert [properties["chunk"] for properties, _ in got] == ["0", "1", "2"]
    assert [payload for _, payload in got] == [
        b'{"error":null,"response":"Once","end_of_stream":false}',
        b'{"error":null,"response":"{\\"upon\\": 1}","end_of_stream":false}',
        b'{"error":null,"response":"","end_of_stream":true}',
    ]


async def test_a_plain_answer_has_no_index() -> None:
    ((properties, payload),) = await replies(lambda _: "done", 1)
    assert "chunk" not in properties
    assert payload == b'{"error":null,"response":"done","end_of_stream":true}'


async def test_an_empty_stream_is_an_empty_answer() -> None:
    async def stream() -> AsyncIterator[str]:
        for nothing in ():
            yield nothing

    async with stand(lambda _: stream()) as (dispatcher, _):
        assert await dispatcher.call("work") == ""


class Counting:
    """A stream that fails with ``error`` after two chunks, and says whether it was closed."""

    def __init__(self, error: Exception | None = None, item: Any = "fine") -> None:
        self.error = error
        self.item = item
        self.closed = False
        self.given = 0

    def items(self) -> AsyncIterator[Any]:
        self.kept = self._items()  # so that nobody but the server closes it
        return self.kept

    async def _items(self) -> AsyncIterator[Any]:
        try:
            for _ in range(5):
                self.given += 1
                if self.given == 3 and self.error is not None:
                    raise self.error
                yield self.item if self.given == 3 else "fine"
        finally:
            self.closed = True


@pytest.mark.parametrize(
    ("stream", "type"),
    [
        (Counting(error=OddError("it broke")), "OddError"),
        (Counting(error=ToolError("no-more", "That is all.")), "no-more"),
        (Counting(item=object()), "invalid-result"),
        (Counting(item="\ud800"), "invalid-result"),
        (Counting(item=float("nan")), "invalid-result"),
        (Counting(item="x" * MAX_MESSAGE_BYTES), "result-too-large"),
    ],
    ids=["exception", "tool error", "no JSON", "surrogate", "no number", "too large"],
)
async def test_a_stream_that_fails_ends_with_an_error_and_stops(stream: Counting, type: str) -> None:
    got: list[str] = []
    async with stand(lambda _: stream.items(), max_payload_bytes=MAX_MESSAGE_BYTES - 1) as (dispatcher, server):
        with pytest.raises(ToolError) as caught:
            await read(dispatcher.stream("work", timeout=5), got)
        assert caught.value.type == type
        assert got == ["fine", "fine"]
        await idle()
        assert stream.closed
        assert stream.given == 3, "nothing is made for nobody"
        assert server.running == 0
        replies = dispatcher.reply_counts()
        assert sum(replies.values()) == replies["matched"], "nothing is sent after the end"


async def test_an_error_in_a_stream_has_no_index_so_that_it_counts_at_once() -> None:
    got = await replies(lambda _: Counting(item="x" * MAX_MESSAGE_BYTES).items(), 3)
    assert [properties.get("chunk") for properties, _ in got] == ["0", "1", None]


async def test_any_async_iterator_is_a_stream_even_without_aclose() -> None:
    class Three:
        left = 3

        def __aiter__(self) -> Three:
            return self

        async def __anext__(self) -> str:
            if not self.left:
                raise StopAsyncIteration
            self.left -= 1
            return str(self.left)

    async with stand(lambda _: Three()) as (dispatcher, _):
        assert [chunk async for chunk in dispatcher.stream("work")] == ["2", "1", "0"]
