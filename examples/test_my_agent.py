"""How to test an agent of your own against tools that fail: faults, time that costs nothing, and no broker to start.

The agent here is small, and asks its tools for a joke until it has one. What the tests show: the fixtures that come with
dispatch, a tool that fails, one that hangs, a network that loses messages, and a broker that goes away. A seed says which
calls are hit, the same ones in each run. Run them:
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
    """The agent under test: it tells a joke, and when it cannot it says so, within ten seconds."""
    try:
        return await dispatcher.call("tell-joke", {"topic": topic}, user="alice", timeout=10)
    except dispatch.ToolError as error:
        return f"The joke tool says: {error.message}"
    except dispatch.RejectedError as error:
        return f"No jokes now, the tool is being left alone ({error.type})."
    except dispatch.DispatchError as error:
        return f"No joke today ({error.outcome})."


class Hangs(dispatch.ToolService):
    """A tool that never comes back."""

    async def invoke(self, config, arguments, user=""):
        await asyncio.sleep(3_600)


@virtual_time
async def test_it_tells_a_joke(make_dispatcher):
    async with make_dispatcher(TOOLS, services={"joke": Joke()}) as dispatcher:
        assert (
            await agent(dispatcher, "cats")
            == "Hello alice! The cat joined the Red Cross: it wanted to be a first-aid kit."
        )


@virtual_time
async def test_it_passes_on_what_the_tool_says(make_dispatcher):
    async with make_dispatcher(TOOLS, services={"joke": Joke()}) as dispatcher:
        assert await agent(dispatcher, " ") == 'The joke tool says: Say what the joke is about: {"topic": "cats"}.'


@virtual_time
async def test_it_waits_ten_seconds_and_no_longer(make_dispatcher):
    async with make_dispatcher(TOOLS, services={"joke": Hangs()}) as dispatcher:
        began = asyncio.get_running_loop().time()
        assert await agent(dispatcher, "cats") == "No joke today (timeout)."
        assert asyncio.get_running_loop().time() - began == pytest.approx(10)  # which took milliseconds


@virtual_time
async def test_a_tool_that_fails_one_time_in_three(dispatch_broker):
    async def failures(seed):
        faults = Faults(tool_error=1 / 3, direction="out", seed=seed)  # on the service's connection: of this tool alone
        async with dispatch_broker.serve(Joke(), "joke", faults=faults), dispatch_broker.connect(TOOLS) as dispatcher:
            told = [await agent(dispatcher, "cats") for _ in range(30)]
        return ["injected fault" in text for text in told]

    first = await failures(seed=7)
    assert 3 < sum(first) < 20
    assert first != await failures(seed=8)
    assert first == await failures(seed=7)  # the very same calls, so that a failure can be looked into


@virtual_time
async def test_a_lossy_network_costs_no_joke(make_dispatcher, fault_injector):
    async with make_dispatcher(TOOLS, services={"joke": Joke()}) as dispatcher:
        await agent(dispatcher, "cats")  # the two sides have met: from now on, what is lost is asked for
        fault_injector.inject(Faults(drop=0.2, duplicate=0.1, latency=(0.0, 0.2), seed=1))
        told = await asyncio.gather(*(agent(dispatcher, "cats") for _ in range(50)))
    assert all(text.startswith("Hello alice!") for text in told)
    assert fault_injector.count["in drop"] + fault_injector.count["out drop"] > 10  # they did get lost


@virtual_time
async def test_it_goes_on_when_the_broker_is_back(make_dispatcher, fault_injector):
    async with make_dispatcher(TOOLS, services={"joke": Joke()}) as dispatcher:
        fault_injector.disconnect(60)
        assert await agent(dispatcher, "cats") == "No joke today (transport)."
        await advance(60)
        assert (await agent(dispatcher, "cats")).startswith("Hello alice!")
