"""A model without native function calls: it writes calls in its text, dispatch executes them, and the results go back to it.

`converse` below is the whole loop. The replies of `ScriptedModel` have the faults of real ones: a trailing comma, a misspelt
name, an argument of a wrong type, and a call that is cut off. Replace it by a real model; no key is needed here.

It needs no broker: the calculator runs in this process on the embedded one, beside a function that is a tool.
    python examples/function_calls.py
With the calculator in another process, `python examples/calculator_service.py --broker pulsar://localhost:6650`:
    python examples/function_calls.py --broker pulsar://localhost:6650
"""

import argparse
import asyncio
import contextlib
import sys
from pathlib import Path

from calculator_service import Calculator

import dispatch
from dispatch.calling import call_function, format_answers, function_calling_prompt

TOOLS = Path(__file__).parent / "tools"


@dispatch.tool(read_only=True)
async def list_prices(product: str, years: int = 1) -> list[int]:
    """List the prices of a product in euros, one for each year."""
    return [89 + 4 * year for year in range(years)]


@dispatch.tool(destructive=True)
async def remove_product(product: str) -> str:
    """Remove a product from the shop."""
    return f"{product} is removed"


REPLIES = [
    """I need the prices of three years, and a sum.
<function_call>{"name": "list_prices", "call_objective": "", "args": {"product": "kettle", "years": "three"}}</function_call>
<function_call>{"name": "calculator", "call_objective": "sum", "args": {"expression": "85 + 81"}}</function_call>""",
    """Both calls need corrections.
<function_call>{"name": "list_prices", "call_objective": "see", "args": {"product": "kettle", "years": 3,}}</function_call>
<function_call>{"name": "calculate", "call_objective": "sum", "args": {"expression": "85 + 81"}}</function_call>""",
    """The kettle is too expensive, so it goes.
<function_call>{"name": "remove_product", "call_objective": "clean up", "args": {"product": "kett""",
    "The kettle costs 89, 93 and 97 euros. I have not removed it.",
]


class ScriptedModel:
    """Stands for a language model: it replies with the next of its texts."""

    def __init__(self, replies: list[str]) -> None:
        self.replies = list(replies)

    def reply(self, messages: list[dict]) -> str:
        return self.replies.pop(0)


async def converse(model: ScriptedModel, dispatcher: dispatch.Dispatcher, user: str, task: str) -> list[dict]:
    """Query the model until its text calls nothing. Returns the conversation."""
    tools = await dispatcher.tools(user=user)
    messages = [{"role": "system", "content": function_calling_prompt(tools)}, {"role": "user", "content": task}]
    while True:
        text = model.reply(messages)
        messages.append({"role": "assistant", "content": text})
        results = await call_function(tools, text)
        if results is None:
            return messages
        for result in results:
            print(f"{result.status.value:9} {result.func_name} {result.func_args}\n          {result.output}")
        messages += format_answers(results)


async def run(broker: str, user: str = "alice") -> list[dict]:
    async with contextlib.AsyncExitStack() as stack:
        if broker.startswith("memory://"):
            await stack.enter_async_context(dispatch.ToolServer(Calculator(), broker, service="calculator"))
        sources = [TOOLS, dispatch.Functions(list_prices, remove_product)]
        dispatcher = await stack.enter_async_context(dispatch.connect(broker, catalog=sources))
        messages = await converse(ScriptedModel(REPLIES), dispatcher, user, "What does the kettle cost?")
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
