"""Streams: our service streams to all three clients; TrustGraph's cannot, and its one answer is a stream of one."""

from __future__ import annotations

import pytest

import dispatch
from tests.integration.interop.conftest import Cell
from tests.integration.interop.peers import CLIENTS, TIMEOUT_S, Peer, catalog, request_topic, response_topic
from tests.integration.interop.tool_behaviour import BIG, PREFIX, UNICODE, digest

pytestmark = pytest.mark.pulsar


class Pieces(list[str]):
    """The callback: keeps what it is given."""

    async def __call__(self, piece: str) -> None:
        self.append(piece)


async def test_an_answer_or_an_error_that_is_no_stream(cell: Cell) -> None:
    pieces = Pieces()
    async with cell() as client:
        whole = await client.call_streaming(PREFIX, {"join": "text"}, pieces, timeout=TIMEOUT_S)
        assert (whole, pieces) == ("customers|text", ["customers|text"])
        with pytest.raises(RuntimeError, match=r"^no such customer$"):
            await client.call_streaming(PREFIX, {"refuse": "no such customer"}, pieces, timeout=TIMEOUT_S)
        assert pieces == ["customers|text"]
        assert await client.call(PREFIX, {"join": "again"}, timeout=TIMEOUT_S) == "customers|again"


async def test_pieces_come_in_order_and_an_error_after_them(client_kind: str, url: str, topic: str) -> None:
    async with dispatch.ToolServer(Peer(), url, service=topic), CLIENTS[client_kind](url, topic) as client:
        for sent in ([f"{n} " for n in range(100)], list(UNICODE.values()), ["one"], []):
            pieces = Pieces()
            whole = await client.call_streaming({}, {"pieces": sent}, pieces, timeout=TIMEOUT_S)
            assert (whole, pieces) == ("".join(sent), sent)
        pieces = Pieces()
        await client.call_streaming({}, {"pieces": [{"row": 1}, [2], 3]}, pieces, timeout=TIMEOUT_S)
        assert pieces == ['{"row": 1}', "[2]", "3"], "no texts: as JSON"
        pieces = Pieces()
        with pytest.raises(RuntimeError, match=r"^out of words$") as caught:
            await client.call_streaming({}, {"pieces": ["a", "b"], "broken": "out of words"}, pieces, timeout=TIMEOUT_S)
        assert pieces == ["a", "b"]
        if client_kind == "ours":
            assert isinstance(caught.value, dispatch.ToolError)
            assert caught.value.type == "Refused"


async def test_a_stream_of_a_mebibyte(client_kind: str, url: str, topic: str) -> None:
    """On persistent topics, because the broker drops pieces of this size on others when they come one upon the other."""
    queue = f"persistent://tg/flow/{topic}"
    server = dispatch.ToolServer(Peer(), url, request_queue=request_topic(queue), response_queue=response_topic(queue))
    text = BIG["ASCII"]
    sent = [text[start : start + 65_536] for start in range(0, len(text), 65_536)]
    pieces = Pieces()
    async with server, CLIENTS[client_kind](url, queue) as client:
        whole = await client.call_streaming({}, {"pieces": sent}, pieces, timeout=TIMEOUT_S)
    assert digest(whole) == digest(text)
    assert [len(piece) for piece in pieces] == [65_536] * 16


async def test_our_clients_take_a_stream_whole(url: str, topic: str) -> None:
    """TrustGraph's ``call`` takes the first piece for the answer; ours waits for the last."""
    async with dispatch.ToolServer(Peer(), url, service=topic), dispatch.connect(url, catalog(topic)) as dispatcher:
        client = dispatch.ToolServiceClient(dispatcher, service="peer")
        assert await client.call({}, {"pieces": ["a", "b", "c"]}, timeout=TIMEOUT_S) == "abc"
        assert dispatcher.pending_requests == 0
