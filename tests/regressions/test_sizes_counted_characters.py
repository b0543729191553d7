"""Limits in bytes were compared with numbers of characters: an answer of other letters than ASCII could have up to four
times ``max-response-bytes``, its parts four times their size, a property four times its limit. Now all count bytes of
UTF-8."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dispatch import Dispatcher
from dispatch.errors import TransportError
from dispatch.messaging.wire import PART_BYTES, Property, decode_reply, reply_topic
from dispatch.protocol.settings import DEFAULT_SETTINGS, PACKET_OVERHEAD, fit_settings
from dispatch.transports import Mode
from dispatch.transports.memory import MemoryTransport
from tests.helpers.clock import idle
from tests.helpers.dispatcher_and_service import BROKER, RESPONSES, UNGUARDED, Peer, catalog, dispatching, read, serving
from tests.helpers.internals import correlator_of

LETTERS = pytest.mark.parametrize(("letter", "size"), [("x", 1), ("ä", 2), ("€", 3), ("😀", 4)])
LIMIT = 1_296
MAX_PROPERTY_BYTES = 8_192


def limited(**more: Any) -> Any:
    return catalog(work={"policy": {**UNGUARDED, "max-response-bytes": LIMIT, **more}})


async def _answer(peer: Peer, chunks: list[str], *, numbers: list[int] | None = None) -> None:
    _, properties = await peer.request()
    for index, chunk in enumerate(chunks):
        number = {} if numbers is None else {"chunk": str(numbers[index])}
        last = len(chunks) - 1 if numbers is None else max(numbers)
        await peer.answer(properties, chunk, end=(numbers or range(len(chunks)))[index] == last, **number)


@LETTERS
@pytest.mark.parametrize("chunks", [1, 3])
async def test_the_largest_answer_has_so_many_bytes(letter: str, size: int, chunks: int) -> None:
    count = LIMIT // size // chunks
    async with Peer.as_service() as peer, dispatching(limited()) as dispatcher:
        call = asyncio.create_task(dispatcher.execute("work"))
        await _answer(peer, [letter * count] * chunks)
        assert (await call).text == letter * count * chunks
        call = asyncio.create_task(dispatcher.execute("work"))
        await _answer(peer, [letter * count] * (chunks - 1) + [letter * (count + 1)])
        error = (await call).error
        assert isinstance(error, TransportError)
        assert (error.type, "max-response-bytes" in error.message) == ("response-limit-exceeded", True)


@LETTERS
async def test_a_stream_is_cut_off_at_so_many_bytes(letter: str, size: int) -> None:
    async with Peer.as_service() as peer, dispatching(limited()) as dispatcher:
        for more in (0, 1):
            chunks = [letter * (LIMIT // size // 2), letter * (LIMIT // size // 2 + more)]
            got: list[str] = []
            reading = asyncio.create_task(read(dispatcher.stream("work"), got))
            await _answer(peer, chunks)
            if more:
                with pytest.raises(TransportError, match="max-response-bytes"):
                    await reading
            else:
                await reading
            assert got == chunks[: 2 - more]


@LETTERS
async def test_chunks_ahead_of_a_missing_one_count_as_bytes(letter: str, size: int) -> None:
    """The first chunk comes last: those kept until then are within the limit."""
    async with Peer.as_service() as peer, dispatching(limited()) as dispatcher:
        for more in (0, 1):
            count = LIMIT // size // 2
            call = asyncio.create_task(dispatcher.execute("work"))
            await _answer(peer, [letter * (count + more), letter * count, ""], numbers=[2, 1, 0])
            assert (await call).ok == (not more)


def _limited_memory(limit: int) -> MemoryTransport:
    transport = MemoryTransport(BROKER)
    transport.max_message_bytes = limit
    return transport


@LETTERS
async def test_a_part_of_a_plain_answer_has_so_many_bytes(letter: str, size: int) -> None:
    """On the wire each message is a part, its JSON and no more."""
    limit = 8 * PART_BYTES
    text = letter * (3 * limit // size)
    network = _limited_memory(limit)
    await network.start()
    async with serving(lambda _: text, broker=network), Peer.as_caller() as caller:
        await caller.ask(b"{}", **{Property.ID: "1", Property.LARGEST: str(len(text.encode()))})
        parts: list[bytes] = []
        while not parts or not decode_reply(parts[-1]).end_of_stream:
            parts.append((await caller.arrived.get()).data())
    await network.close()
    assert "".join(decode_reply(part).response for part in parts) == text
    # No character is split: parts may be a few bytes shorter than the limit, and a 25th part carries the remainder.
    assert len([part for part in parts if len(part) > PART_BYTES // 2]) == 24
    assert len(parts) <= 25
    assert max(map(len, parts)) <= PART_BYTES + 100


@LETTERS
async def test_a_fragment_of_an_answer_in_a_session_has_so_many_bytes(letter: str, size: int) -> None:
    """On the wire each packet with a fragment is as large as settings and the broker's limit say, in bytes."""
    limit = 8 * PART_BYTES
    fragment = fit_settings(DEFAULT_SETTINGS, limit).fragment_bytes
    text = letter * (3 * limit // size)
    sizes: list[int] = []
    network = _limited_memory(limit)
    await network.start()
    async with (
        serving(lambda _: text, broker=network),
        Dispatcher(_limited_memory(limit), catalog(work={"policy": UNGUARDED}), client_id="me") as dispatcher,
    ):
        topic = reply_topic(RESPONSES, f"{correlator_of(dispatcher).identity.key}-me")
        await network.subscribe(topic, lambda message: sizes.append(len(message.data())), mode=Mode.FANOUT, name="tap")
        assert await dispatcher.call("work") == text
    await network.close()
    fragments = [each for each in sizes if each > PACKET_OVERHEAD]
    assert len(fragments) == -(-len(text.encode()) // fragment)
    assert len(text.encode()) <= sum(fragments)
    assert max(fragments) <= fragment + PACKET_OVERHEAD


@pytest.mark.parametrize(("letter", "size"), [("x", 1), ("😀", 4)])
async def test_an_id_has_so_many_bytes(letter: str, size: int) -> None:
    async with serving(lambda _: "done") as server, Peer.as_caller() as caller:
        for count, malformed in ((MAX_PROPERTY_BYTES // size, 0), (MAX_PROPERTY_BYTES // size + 1, 1)):
            await caller.ask(b"{}", id=letter * count)
            await idle()
            assert (server.requests - server.malformed, server.malformed) == (1, malformed)
        message = await caller.arrived.get()
        assert message.properties()[Property.ID] == letter * (MAX_PROPERTY_BYTES // size)
