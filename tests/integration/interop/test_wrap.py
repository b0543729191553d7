"""`dispatch.wrap` around TrustGraph's client adds typed errors and one deadline, and costs the client nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import dispatch
from tests.integration.interop.conftest import Cell
from tests.integration.interop.peers import TIMEOUT_S, catalog, their_client

pytestmark = pytest.mark.pulsar


async def test_a_timeout_leaves_nothing_behind_in_their_client(url: str, topic: str) -> None:
    async with their_client(url, topic) as theirs:  # and nobody serves
        client = dispatch.wrap(theirs, tool="peer")
        for _ in range(3):
            with pytest.raises(
                dispatch.CallTimeoutError, match=r"^No complete reply arrived within 0\.1 s; tool 'peer'"
            ) as caught:
                await client.call({}, {"join": "text"}, timeout=0.1)
        assert (caught.value.limit_name, caught.value.retryable) == ("call", False)
        assert theirs._rr_client.pending == {}  # type: ignore[attr-defined] # TrustGraph's own table


class Endless(dispatch.ToolService):
    """A stream that goes on until ``enough``."""

    enough = False

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> AsyncIterator[str]:
        while not self.enough:
            yield "on and on "


async def test_a_stream_has_one_deadline_for_all_its_pieces(url: str, topic: str) -> None:
    """TrustGraph's own limit is for each piece: a stream that never pauses for so long never ends."""
    service = Endless()
    pieces: list[str] = []
    async with dispatch.ToolServer(service, url, service=topic), their_client(url, topic) as theirs:
        client = dispatch.wrap(theirs, tool="peer")
        call = asyncio.create_task(client.call_streaming({}, {}, pieces.append, timeout=1))
        try:
            # Their client loses a cancellation that comes together with a piece (asyncio.wait_for before Python 3.12).
            ended, _ = await asyncio.wait({call}, timeout=3)
            assert ended, f"still under way after {len(pieces)} pieces"
        finally:
            service.enough = True
            (end,) = await asyncio.gather(call, return_exceptions=True)
    assert isinstance(end, dispatch.CallTimeoutError)
    assert pieces


async def test_what_the_callback_raises_is_its_own(cell: Cell) -> None:
    class MineError(Exception):
        pass

    async def callback(piece: str) -> None:
        raise MineError(piece)

    async with cell() as client:
        with pytest.raises(MineError, match=r"^customers\|text$"):
            await client.call_streaming({"prefix": "customers"}, {"join": "text"}, callback, timeout=TIMEOUT_S)


async def test_our_own_client_knows_the_service_by_its_id(url: str, topic: str) -> None:
    async with dispatch.connect(url, catalog(topic)) as dispatcher:
        with pytest.raises(dispatch.RejectedError, match=r"'pier'.*peer"):
            dispatch.ToolServiceClient(dispatcher, service="pier")
