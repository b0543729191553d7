"""A service, a dispatcher with an admin endpoint over it, and its HTTP client."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple
from uuid import uuid4

import httpx2

import dispatch
from dispatch import Admin, Dispatcher, ToolServer


def price(item: str) -> str:
    """Price of an item"""
    if item == "bad":
        raise ValueError(f"no such item: {item}")
    if item == "odd":
        raise dispatch.ToolError("t" * 200, "an error with a long type")
    return "3"


def order(item: str) -> str:
    """Order an item"""
    return f"ordered {item}"


class Observed(NamedTuple):
    """What a test has: the client's base is the endpoint of the dispatcher."""

    dispatcher: Dispatcher
    server: ToolServer
    client: httpx2.AsyncClient

    async def get(self, path: str) -> Any:
        response = await self.client.get(path)
        assert response.status_code == 200, response.text
        return response.json()


@contextlib.asynccontextmanager
async def observed(
    admin: Admin | str = "127.0.0.1:0", broker: str = "", instance: str = "shop-1", **options: Any
) -> AsyncIterator[Observed]:
    """The stand. ``options``: of the dispatcher."""
    broker = broker or f"memory://{uuid4().hex}"
    server = ToolServer(functions=[price, order], service="shop", instance=instance, broker=broker, admin="127.0.0.1:0")
    async with (
        server,
        dispatch.connect(broker, dispatch.Announced(until="price"), admin=admin, **options) as dispatcher,
        httpx2.AsyncClient(base_url=dispatcher.admin_url or "", trust_env=False) as client,
    ):
        yield Observed(dispatcher, server, client)


async def eventually(condition: Callable[[], Any]) -> None:
    """Wait until ``condition``, or what it returns an awaitable of, holds."""
    for _ in range(1_000):
        found = condition()
        if await found if inspect.isawaitable(found) else found:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the condition did not hold in 20 s")
