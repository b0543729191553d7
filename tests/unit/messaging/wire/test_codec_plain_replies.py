"""Large answers between our two sides travel as the text itself, without JSON around it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dispatch import Dispatcher
from dispatch.errors import ToolError, TransportError
from dispatch.messaging.rpc.correlation import OWN_TOPIC
from dispatch.messaging.wire.codec import PLAIN_FROM, decode_reply, encode_request
from dispatch.messaging.wire.properties import PLAIN_LAST, Property
from dispatch.transports.base import Message
from tests.helpers.dispatcher_and_service import Peer, dispatching, serving, stand
from tests.helpers.internals import correlator_of

LARGE = PLAIN_FROM * 2


async def work(arguments: dict[str, Any]) -> Any:
    if "chunks" in arguments:
        return _stream(arguments["chunks"])
    if "half" in arguments:
        return "x" * LARGE + "\ud800"
    if "raise" in arguments:
        raise ToolError("no", "x" * LARGE)
    return arguments.get("text", "ä" * LARGE)


async def _stream(chunks: list[str]) -> AsyncIterator[str]:
    for chunk in chunks:
        yield chunk


class Replies:
    """What comes to a dispatcher's reply topics, looked at on the way."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.messages: list[Message] = []
        exchange = correlator_of(dispatcher)
        receive = exchange.receive

        def noting(message: Message, properties: Any, via: int = OWN_TOPIC) -> None:
            if Property.CHUNK in properties or message.data():
                self.messages.append(message)
            receive(message, properties, via)

        exchange.receive = noting  # type: ignore[method-assign] # a look, nothing else

    @property
    def plain(self) -> list[str | None]:
        return [message.properties().get(Property.PLAIN) for message in self.messages]


async def used_to_large_answers(dispatcher: Dispatcher) -> Replies:
    """After some of them a dispatcher says that it reads them plainly."""
    replies = Replies(dispatcher)
    for _ in range(16):
        assert await dispatcher.call("work") == "ä" * LARGE
    assert replies.plain[0] is None
    assert replies.plain[-1] == PLAIN_LAST
    assert replies.messages[-1].data() == ("ä" * LARGE).encode()
    replies.messages.clear()
    return replies


async def test_a_large_answer_comes_as_it_is_and_a_small_one_as_ever() -> None:
    async with stand(work) as (dispatcher, _):
        replies = await used_to_large_answers(dispatcher)
        assert await dispatcher.call("work", {"text": "x" * PLAIN_FROM}) == "x" * PLAIN_FROM
        assert await dispatcher.call("work", {"text": "x" * (PLAIN_FROM - 1)}) == "x" * (PLAIN_FROM - 1)
        assert replies.plain == [PLAIN_LAST, None]


@pytest.mark.parametrize(("letter", "size"), [("ä", 2), ("€", 3), ("😀", 4)])
async def test_a_reply_is_large_by_its_bytes_and_not_by_its_characters(letter: str, size: int) -> None:
    count = -(-PLAIN_FROM // size)
    async with stand(work) as (dispatcher, _):
        replies = await used_to_large_answers(dispatcher)
        assert await dispatcher.call("work", {"text": letter * count}) == letter * count
        assert await dispatcher.call("work", {"text": letter * (count - 1)}) == letter * (count - 1)
        assert replies.plain == [PLAIN_LAST, None]


async def test_an_answer_that_is_json_is_not_written_twice() -> None:
    async with stand(work) as (dispatcher, _):
        replies = await used_to_large_answers(dispatcher)
        said = await dispatcher.call("work", {"text": {"numbers": ["1"] * LARGE}})
        assert replies.messages[0].data() == said.encode()


async def test_chunks_come_as_they_are_in_order_with_small_ones_between() -> None:
    chunks = ["a" * LARGE, "b", "ü" * LARGE, "", "c" * PLAIN_FROM]
    async with stand(work) as (dispatcher, _):
        replies = await used_to_large_answers(dispatcher)
        assert [chunk async for chunk in dispatcher.stream("work", {"chunks": chunks})] == [
            each for each in chunks if each
        ]
        assert [plain for plain in replies.plain if plain] == ["chunk"] * 3
        replies.messages.clear()
        assert await dispatcher.call("work", {"chunks": chunks}) == "".join(chunks)


async def test_a_large_error_keeps_its_type() -> None:
    async with stand(work) as (dispatcher, _):
        await used_to_large_answers(dispatcher)
        with pytest.raises(ToolError, match="x" * 100) as caught:
            await dispatcher.call("work", {"raise": True})
        assert caught.value.type == "no"


async def test_what_is_no_text_is_told() -> None:
    async with stand(work) as (dispatcher, _):
        await used_to_large_answers(dispatcher)
        with pytest.raises(ToolError, match="not valid text") as caught:
            await dispatcher.call("work", {"half": True})
        assert caught.value.type == "invalid-result"


async def test_what_is_no_text_on_the_wire_costs_its_call_only() -> None:
    async with Peer.as_service() as peer, dispatching() as dispatcher:
        call = asyncio.create_task(dispatcher.execute("work"))
        _, properties = await peer.request()
        await peer.answer(properties, payload=b"\xff" * LARGE, plain=PLAIN_LAST)
        result = await call
        assert isinstance(result.error, TransportError)
        assert "not readable" in result.error.message


async def test_what_is_kept_for_others_with_the_same_key_can_be_read_by_all() -> None:
    async with stand(work) as (dispatcher, _):
        replies = await used_to_large_answers(dispatcher)
        for _ in range(2):
            assert await dispatcher.call("work", idempotency_key="one") == "ä" * LARGE
        assert replies.plain == [None, None]


async def test_whoever_does_not_say_that_it_reads_them_gets_json() -> None:
    async with serving(work), Peer.as_caller() as peer:
        await peer.ask(encode_request("{}", "{}"), id="one")
        message = await peer.arrived.get()
        assert Property.PLAIN not in message.properties()
        assert decode_reply(message.data()).response == "ä" * LARGE
