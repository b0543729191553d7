"""An agent loop: a model selects tools, dispatch calls them, and the results go back to the model.

`run_agent` below is the loop of every agent framework. A tool has a name, a description and a JSON Schema of its arguments,
as model APIs expect them; `await tool.invoke(**arguments)` calls it; every failure is a DispatchError, whose message tells
the model what to do next. Replace `ScriptedModel` by a real model.

It needs no broker: the services run in this process on the embedded one.
    python examples/agent_loop.py
With services in other processes, for instance `python examples/joke_service.py` and the other two services:
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
    """Stands for a language model: for each task it selects the tool with the most similar description."""

    def __init__(self, tasks: str) -> None:
        self.tasks = tasks.splitlines()

    def reply(self, tools: list[dict], messages: list[dict]) -> dict:
        done = sum(message["role"] == "tool" for message in messages)
        if done == len(self.tasks):
            return {"role": "assistant", "content": f"All {done} tasks are done."}
        wanted, _, value = self.tasks[done].partition(": ")
        best = max(tools, key=lambda tool: len(find_words(tool["description"]) & find_words(wanted)))
        argument = best["parameters"]["required"][0]
        return {"role": "assistant", "call": {"name": best["name"], "arguments": {argument: value}}}


def find_words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]{4,}", text.lower()))


def print_hint(name: str) -> None:
    print(f"   {name} has not replied yet; `dispatch doctor` shows whether its service is running", file=sys.stderr)


async def run_agent(model: ScriptedModel, dispatcher: dispatch.Dispatcher, user: str) -> list[dict]:
    """Query the model until it requests no more calls. Returns the conversation."""
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
        hint = asyncio.get_running_loop().call_later(3, print_hint, name)
        try:
            content = await (tools.get(name) or dispatcher.tool(name)).invoke(**arguments)
        except dispatch.DispatchError as error:
            content = f"Error ({error.type}): {error}"  # the model reads the message and decides
        finally:
            hint.cancel()
        print(f"<- {content}")
        messages.append({"role": "tool", "name": name, "content": content})


async def run(broker: str, user: str = "alice") -> list[dict]:
    async with contextlib.AsyncExitStack() as stack:
        if broker.startswith("memory://"):
            for service, topic in ((Joke(), "joke"), (Calculator(), "calculator"), (CustomRag(), "custom-rag")):
                await stack.enter_async_context(dispatch.ToolServer(service, broker, service=topic))
        dispatcher = await stack.enter_async_context(dispatch.connect(broker, catalog=TOOLS))
        messages = await run_agent(ScriptedModel(TASKS), dispatcher, user)
        print(messages[-1]["content"])
        return messages


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", default="memory://", help="URL of the broker (default: %(default)s)")
    try:
        asyncio.run(run(parser.parse_args().broker))
    except KeyboardInterrupt:
        sys.exit(130)
    except dispatch.DispatchError as error:
        sys.exit(f"error: {error}")
