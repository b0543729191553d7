"""An agent loop: a model chooses tools, dispatch calls them, and what they answer goes back to the model.

What it shows: the loop of every agent framework, in `agent` below. A tool gives it a name, a description and a JSON Schema
for its arguments, which is what the model APIs take; `await tool.invoke(**arguments)` calls it; and whatever goes wrong is
one DispatchError, whose text tells the model what to do next. Put a real model in the place of `ScriptedModel`.

It needs no broker: the services run in this process, on the embedded one.
    python examples/agent_loop.py
With services that run elsewhere, for instance `python examples/joke_service.py` and its two neighbours:
    python examples/agent_loop.py --broker pulsar://localhost:6650
"""

import argparse
import asyncio
import contextlib
import re
import sys
from pathlib import Path

from calculator_service import Calculator
from custom_rag_service import CustomRag
from joke_service import Joke

import dispatch

TOOLS = Path(__file__).parent / "tools"
TASKS = """\
Calculate the arithmetic expression: (17.5 + 3) * 12 / 4
Answer a question about customers: Which complaint came up most often last month?
Answer a question about a product, what it costs: How many euros is the quickest kettle?
Calculate the arithmetic expression: 1 / 0
Tell one short joke about: cheese"""


class ScriptedModel:
    """In the place of a language model: for each task it chooses the tool whose description fits best."""

    def __init__(self, tasks: str) -> None:
        self.tasks = tasks.splitlines()

    def reply(self, tools: list[dict], messages: list[dict]) -> dict:
        done = sum(message["role"] == "tool" for message in messages)
        if done == len(self.tasks):
            return {"role": "assistant", "content": f"That was all: {done} tasks."}
        wanted, _, value = self.tasks[done].partition(": ")
        best = max(tools, key=lambda tool: len(words(tool["description"]) & words(wanted)))
        argument = best["parameters"]["required"][0]
        return {"role": "assistant", "call": {"name": best["name"], "arguments": {argument: value}}}


def words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]{4,}", text.lower()))


def hint(name: str) -> None:
    print(f"   no answer of {name} yet: does its service run? `dispatch doctor` tells who listens", file=sys.stderr)


async def agent(model: ScriptedModel, dispatcher: dispatch.Dispatcher, user: str) -> list[dict]:
    """Ask the model until it has no more calls to make. Gives the whole conversation."""
    tools = {name: dispatcher.tool(name, user=user) for name in dispatcher.catalog.tools}
    schemas = [{"name": t.name, "description": t.description, "parameters": t.parameters} for t in tools.values()]
    messages: list[dict] = []
    while True:
        message = model.reply(schemas, messages)
        messages.append(message)
        if "call" not in message:
            return messages
        name, arguments = message["call"]["name"], message["call"]["arguments"]
        print(f"-> {name} {arguments}")
        waiting = asyncio.get_running_loop().call_later(3, hint, name)
        try:
            content = await (tools.get(name) or dispatcher.tool(name)).invoke(**arguments)
        except dispatch.DispatchError as error:
            content = f"Error ({error.type}): {error}"  # the model reads it, and decides
        finally:
            waiting.cancel()
        print(f"<- {content}")
        messages.append({"role": "tool", "name": name, "content": content})


async def run(broker: str, user: str = "alice") -> list[dict]:
    async with contextlib.AsyncExitStack() as stack:
        if broker.startswith("memory://"):
            for service, topic in ((Joke(), "joke"), (Calculator(), "calculator"), (CustomRag(), "custom-rag")):
                await stack.enter_async_context(dispatch.ToolServer(service, broker, service=topic))
        dispatcher = await stack.enter_async_context(dispatch.connect(broker, catalog=TOOLS))
        messages = await agent(ScriptedModel(TASKS), dispatcher, user)
        print(messages[-1]["content"])
        return messages


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", default="memory://", help="its address (%(default)s)")
    try:
        asyncio.run(run(parser.parse_args().broker))
    except KeyboardInterrupt:
        sys.exit(130)
    except dispatch.DispatchError as error:
        sys.exit(f"error: {error}")
