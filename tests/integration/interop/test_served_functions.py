"""Served functions and TrustGraph's published client, on a genuine broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import dispatch
from tests.integration.interop.peers import CLIENTS, TIMEOUT_S

pytestmark = pytest.mark.pulsar


async def price(product: str, quantity: int = 1) -> float:
    """Price of a product."""
    return 9.5 * quantity


async def count(to: int) -> AsyncIterator[str]:
    """Count."""
    for number in range(to):
        yield f"{number} "


@pytest.mark.parametrize("kind", CLIENTS)
async def test_clients_name_the_function_in_the_config_values(url: str, topic: str, kind: str) -> None:
    server = dispatch.ToolServer(functions=[price, count], broker=url, service=topic)
    (tool, stream) = server.descriptors.tools
    async with server, CLIENTS[kind](url, topic) as client, asyncio.timeout(2 * TIMEOUT_S):
        config = {"tool": tool["tool"]}
        assert await client.call(config, {"product": "lamp", "quantity": 2}, timeout=TIMEOUT_S) == "19.0"
        chunks: list[str] = []

        async def on_chunk(text: str) -> None:
            chunks.append(text)

        whole = await client.call_streaming({"tool": stream["tool"]}, {"to": 3}, on_chunk, timeout=TIMEOUT_S)
        assert (whole, "".join(chunks)) == ("0 1 2 ", "0 1 2 ")
        with pytest.raises(
            Exception, match=r"'(price|peer)' was not executed: .*/quantity must be an integer, not a string"
        ):
            await client.call(config, {"product": "lamp", "quantity": "two"}, timeout=TIMEOUT_S)
        for arguments in ({"product": "lamp", "quantity": float("nan")},) if kind == "theirs" else ():
            with pytest.raises(Exception, match="NaN or an infinite number, which JSON does not have"):
                await client.call(config, arguments, timeout=TIMEOUT_S)
