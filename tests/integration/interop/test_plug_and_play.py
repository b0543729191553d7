"""From nothing: one command serves a file of functions, and every kind of agent on the broker calls them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from trustgraph.agent.react.service import Processor
from trustgraph.agent.react.types import Action
from trustgraph.base import AsyncProcessor

import dispatch
from dispatch.trustgraph.agent import install
from tests.helpers.published_agent import as_published
from tests.helpers.python_processes import finish, running
from tests.integration.interop.test_trustgraph_agent import Model
from tests.integration.interop.test_trustgraph_config import until

pytestmark = [pytest.mark.pulsar, pytest.mark.usefixtures("as_published")]
__all__ = ["as_published"]  # a fixture

SHOP = '''
import dispatch


class Shop:
    def sell(self, product, quantity):
        return f"{quantity} x {product} ordered"


dispatch.provide(Shop, Shop())


@dispatch.tool(read_only=True, policy={"timeout": 3})
def price(product: str) -> float:
    """Price of a product in euros."""
    return 19.9


@dispatch.tool
async def order(product: str, quantity: int, shop: Shop) -> str:
    """Order a product."""
    return shop.sell(product, quantity)
'''
PRICE, ORDERED = "19.9", "2 x lamp ordered"


class Agent(AsyncProcessor):  # type: ignore[misc]  # the package has no type information
    """TrustGraph's agent: follows the configuration, and calls tools as ``AgentManager.react`` does."""

    def __init__(self, url: str, id: str) -> None:
        super().__init__(id=id, pulsar_host=url)
        self.agents: dict[str, Any] = {}
        self.config_key = "agent"
        self.tool_service_clients: dict[str, Any] = {}
        self.register_config_handler(
            lambda *values: Processor.on_tools_config(self, *values), types=["tool", "tool-service"]
        )

    def has_tools(self, workspace: str, *names: str) -> bool:
        return workspace in self.agents and set(names) <= set(self.agents[workspace].tools)

    async def call(self, workspace: str, tool: str, arguments: dict[str, Any]) -> str:
        async def said(_text: str, is_final: bool = False) -> None:
            pass

        model = Model(f"Thought: now.\nAction: {tool}\nArgs: {json.dumps(arguments)}")
        action = await self.agents[workspace].react("?", [], said, said, lambda _service: model)
        assert isinstance(action, Action)
        return action.observation


@contextlib.asynccontextmanager
async def trustgraph_agent(url: str) -> AsyncIterator[Agent]:
    agent = Agent(url, f"agent-{secrets.token_hex(4)}")
    await agent.start()
    try:
        yield agent
    finally:
        for client in agent.tool_service_clients.values():
            await client.close()
        await agent.stop()


async def test_every_agent_calls_functions_that_one_command_serves(url: str, workspace: str, tmp_path: Path) -> None:
    id = secrets.token_hex(4)  # other tests announce tools, too
    price, order = f"price_{id}", f"order_{id}"
    file = tmp_path / f"shop_{id}.py"
    file.write_text(SHOP.replace("def price", f"def {price}").replace("def order", f"def {order}"))
    command = ("-m", "dispatch")
    install()
    with (
        running(*command, "mirror", "--broker", url, "--workspace", workspace, ready="Mirroring"),
        running(*command, "serve", str(file), "--broker", url, ready="consumes"),
    ):
        async with dispatch.connect(url, catalog=[dispatch.Announced()]) as dispatcher, trustgraph_agent(url) as agent:
            await until(lambda: {price, order} <= set(dispatcher.catalog.tools))
            assert await dispatcher.call(price, {"product": "lamp"}) == PRICE
            assert await dispatcher.call(order, {"product": "lamp", "quantity": 2}) == ORDERED
            ended = await asyncio.to_thread(finish, *command, "call", price, "product=lamp", "--broker", url)
            assert (ended.stdout, ended.stderr) == (f"{PRICE}\n", "")

            arguments = [*command, "mcp", "--announced", "--broker", url]
            async with Client(StdioServerParameters(command=sys.executable, args=arguments)) as client:
                for _ in range(100):
                    if {price, order} <= {tool.name for tool in (await client.list_tools()).tools}:
                        break
                    await asyncio.sleep(0.05)
                found = await client.call_tool(price, {"product": "lamp"})
                assert found.content[0].text == PRICE
                found = await client.call_tool(order, {"product": "lamp", "quantity": 2})
                assert found.content[0].text == ORDERED

            async with dispatch.connect(url, dispatch.TrustGraphConfig(workspace)) as mirrored:
                assert await mirrored.call(price, {"product": "lamp"}) == PRICE
            await until(lambda: agent.has_tools(workspace, price, order), 20)
            assert await agent.call(workspace, price, {"product": "lamp"}) == PRICE
            assert await agent.call(workspace, order, {"product": "lamp", "quantity": 2}) == ORDERED
