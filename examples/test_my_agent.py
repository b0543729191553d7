"""Tests of your own agent against failing tools: injected faults, virtual time, and no broker to start.

The agent here calls one tool. The tests use the fixtures of dispatch: a tool that fails, a tool that hangs, a network that
loses messages, and a broker outage. A seed determines the affected calls, so that each run is the same. Run them:
    pytest examples/test_my_agent.py
"""

import asyncio
from pathlib import Path

import pytest
from joke_service import Joke

import dispatch
from dispatch.testing import Faults, advance, virtual_time

TOOLS = Path(__file__).parent / "tools"


async def agent(dispatcher: dispatch.Dispatcher, topic: str) -> str:
    """The agent under test: returns a joke or an explanation within ten seconds."""
    try:
        return await dispatcher.call("tell-joke", {"topic": topic}, user="alice", timeout=10)
    except dispatch.ToolError as error:
        return f"The joke tool says: {error.message}"
    except dispatch.RejectedError as error:
        return f"No jokes now, the tool is not available ({error.type})."
    except dispatch.DispatchError as error:
        return f"No joke today ({error.outcome})."


class HangingService(dispatch.ToolService):
    """A tool that never replies."""

    async def invoke(self, config, arguments, user=""):
        await asyncio.sleep(3_600)


@virtual_time
async def test_agent_returns_a_joke(make_dispatcher):
    async with make_dispatcher(TOOLS, services={"joke": Joke()}) as dispatcher:
        assert (
            await agent(dispatcher, "cats")
            == "Hello alice! The cat joined the Red Cross: it wanted to be a first-aid kit."
        )


@virtual_time
async def test_agent_passes_on_a_tool_error(make_dispatcher):
    async with make_dispatcher(TOOLS, services={"joke": Joke()}) as dispatcher:
        assert await agent(dispatcher, " ") == 'The joke tool says: Pass the topic of the joke: {"topic": "cats"}.'


@virtual_time
async def test_agent_times_out_after_ten_seconds(make_dispatcher):
    async with make_dispatcher(TOOLS, services={"joke": HangingService()}) as dispatcher:
        started_at = asyncio.get_running_loop().time()
        assert await agent(dispatcher, "cats") == "No joke today (timeout)."
        assert asyncio.get_running_loop().time() - started_at == pytest.approx(
            10
        )  # virtual seconds: the test takes milliseconds


@virtual_time
async def test_tool_that_fails_one_time_in_three(dispatch_broker):
    async def failures(seed):
        faults = Faults(
            tool_error=1 / 3, direction="out", seed=seed
        )  # on the service's connection: affects this tool only
        async with dispatch_broker.serve(Joke(), "joke", faults=faults), dispatch_broker.connect(TOOLS) as dispatcher:
            texts = [await agent(dispatcher, "cats") for _ in range(30)]
        return ["injected fault" in text for text in texts]

    first = await failures(seed=7)
    assert 3 < sum(first) < 20
    assert first != await failures(seed=8)
    assert first == await failures(seed=7)  # the same calls fail again, so that a failure can be debugged


@virtual_time
async def test_lossy_network_loses_no_call(make_dispatcher, fault_injector):
    async def call_after(seconds, dispatcher):
        await asyncio.sleep(seconds)
        return await agent(dispatcher, "cats")

    async with make_dispatcher(TOOLS, services={"joke": Joke()}) as dispatcher:
        await agent(dispatcher, "cats")  # after discovery, lost messages are retransmitted
        fault_injector.inject(Faults(drop=0.2, duplicate=0.1, latency=(0.0, 0.2), seed=1))
        # Calls that begin at the same time travel in one message and share its fate; these begin 0.1 s apart.
        texts = await asyncio.gather(*(call_after(n / 10, dispatcher) for n in range(50)))
    assert all(text.startswith("Hello alice!") for text in texts)
    assert fault_injector.count["in drop"] + fault_injector.count["out drop"] > 10  # messages were lost


@virtual_time
async def test_agent_recovers_after_a_broker_outage(make_dispatcher, fault_injector):
    async with make_dispatcher(TOOLS, services={"joke": Joke()}) as dispatcher:
        fault_injector.disconnect(60)
        assert await agent(dispatcher, "cats") == "No joke today (transport)."
        await advance(60)
        assert (await agent(dispatcher, "cats")).startswith("Hello alice!")
