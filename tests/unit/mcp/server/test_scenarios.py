"""Twelve scenarios over each transport, with the official client, in both generations of the protocol."""

from __future__ import annotations

from typing import Any

import pytest

import dispatch
from dispatch.mcp import McpServer
from tests.adapters.lab import Answer
from tests.adapters.scenarios import SCENARIOS, Model, run_scenario
from tests.helpers.mcp_connections import CHANNELS, MODES, Channel, Mode, connected, text_of


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("channel", CHANNELS)
def test_scenarios(scenario: str, mode: Mode, channel: Channel) -> None:
    async def call_tool(dispatcher: dispatch.Dispatcher, name: str, arguments: dict[str, Any], user: str) -> Answer:
        async with connected(McpServer(dispatcher, user=user), channel, mode) as client:
            result = await client.call_tool(name, arguments)
        return Answer(text_of(result), result.is_error)

    run_scenario(scenario, Model(call_tool))
