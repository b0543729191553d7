"""An agent that finds its tools by words and calls a Pulsar tool, a function and an MCP tool, past an open circuit.

The model is a script: no key, the same run each time. It writes its calls in texts, or as native calls of an API:
    python examples/agent.py
    python examples/agent.py --form native
A real model, with OPENAI_API_KEY or ANTHROPIC_API_KEY set:
    python examples/agent.py --model openai:gpt-5-mini
    python examples/agent.py --model anthropic:claude-sonnet-5
The services run in this process, on the embedded broker or on Pulsar:
    python examples/agent.py --broker pulsar://localhost:6650
It needs the extra mcp: pip install 'tool-dispatch[mcp]'
"""

import argparse
import asyncio
import contextlib
import json
import os
import sys
import urllib.request
from collections.abc import Sequence

from calculator_service import Calculator

import dispatch
from dispatch import adapters
from dispatch.calling import call_function, format_answers, function_calling_prompt

TASK = "What are 20 dollars in euros, with 19 % tax, and how many kilometres are 26.2 miles?"


def service(name: str) -> dict:
    request, response = (f"non-persistent://tg/{kind}/{name}" for kind in ("request", "response"))
    return {"id": name, "request-queue": request, "response-queue": response}


def tool(name: str, of: str, description: str, argument: str, **keys: object) -> dict:
    arguments = [{"name": argument, "type": "string", "description": f"The {argument}."}]
    return {
        "type": "tool-service",
        "name": name,
        "service": of,
        "description": description,
        "arguments": arguments,
        **keys,
    }


CATALOG = dispatch.Catalog.of(
    [service("calculator"), service("rates")],
    [
        tool("calculate", "calculator", "Calculate an arithmetic expression.", "expression"),
        tool(
            "exchange-rate",
            "rates",
            "Return the exchange rate of two currencies, such as USD/EUR, at this moment.",
            "pair",
            category="money",
            policy={"timeout": 1, "breaker": {"consecutive-failures": 1}},
        ),
    ],
)


class Rates(dispatch.ToolService):
    """A Pulsar service that hangs."""

    async def invoke(self, config: dict, arguments: dict) -> str:
        await asyncio.sleep(3600)
        return "never"


@dispatch.tool(name="last-known-rate", read_only=True, category="money")
async def find_last_known_rate(pair: str) -> str:
    """Return the exchange rate of two currencies, such as USD/EUR, of yesterday."""
    return "0.92"


def serve_mcp() -> None:
    """Be the MCP server: the agent starts this file again, with --mcp-server."""
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("units", log_level="WARNING")

    @server.tool()
    def convert_miles(miles: float) -> str:
        """Convert a distance in miles to kilometres."""
        return f"{miles * 1.609344:.1f} km"

    server.run()


class ScriptedModel:
    """Stands for a language model. Each turn says in words which tool it needs, and then calls it. After an error it calls
    the tool once more, unless that was not executed: then it calls one of the alternatives."""

    TURNS = (
        ("the exchange rate of two currencies", "exchange-rate", {"pair": "USD/EUR"}),
        ("calculate an arithmetic expression", "calculate", {"expression": "20 * 0.92 * 1.19"}),
        ("convert miles to kilometres", "convert_miles", {"miles": 26.2}),
    )

    def __init__(self, form: str) -> None:
        self._form = form
        self._turn = 0
        self._answers: list[str] = []
        self._attempt = ""

    @property
    def need(self) -> str:
        """What the next tool should do."""
        return self.TURNS[self._turn][0] if self._turn < len(self.TURNS) else ""

    async def reply(self, _messages: list[dict], tools: Sequence[dispatch.BoundTool]) -> str | dict:
        if self._turn == len(self.TURNS):
            euros, km = self._answers[-2:]
            return f"20 dollars are {euros} euros with tax, and 26.2 miles are {km}."
        _, name, arguments = self.TURNS[self._turn]
        return self._write_call(self._attempt or name, arguments)

    def _write_call(self, name: str, arguments: dict) -> str | dict:
        if self._form == "text":
            call = {"name": name, "call_objective": self.need, "args": arguments}
            return f"I need {self.need}.\n<function_call>{json.dumps(call)}</function_call>"
        function = {"name": name, "arguments": json.dumps(arguments)}
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": function}],
        }

    def read(self, output: str, *, has_failed: bool) -> None:
        """Read the answer of a tool, and go on, call it once more, or call an alternative."""
        if not has_failed:
            self._answers.append(output)
            self._turn += 1
            self._attempt = ""
        elif (error := json.loads(output))["error"] == "circuit-open":
            self._attempt = error["alternatives"][0]


class ApiModel:
    """A model of OpenAI or Anthropic, behind its API. It is shown all tools."""

    need = ""  # it does not say it beforehand

    def __init__(self, name: str) -> None:
        self._provider, _, self._model = name.partition(":")
        variable = f"{self._provider.upper()}_API_KEY"
        if self._provider not in ("openai", "anthropic") or not self._model:
            sys.exit(f"error: unknown model '{name}'; write openai:MODEL or anthropic:MODEL")
        if variable not in os.environ:
            sys.exit(f"error: {variable} is not set; set it to your key, or leave --model out")
        self._key = os.environ[variable]
        self.dispatcher: dispatch.Dispatcher | None = None

    async def reply(self, messages: list[dict], tools: Sequence[dispatch.BoundTool]) -> dict:
        is_openai = self._provider == "openai"
        assert self.dispatcher is not None
        described = await adapters.specs(self.dispatcher, style="openai-chat" if is_openai else "anthropic")
        body = {"model": self._model, "messages": messages, "tools": described}
        if is_openai:
            address = os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1") + "/chat/completions"
            headers = {"Authorization": f"Bearer {self._key}"}
        else:
            address = os.environ.get("ANTHROPIC_BASE_URL", "https://api.anthropic.com") + "/v1/messages"
            headers = {"x-api-key": self._key, "anthropic-version": "2023-06-01"}
            body["max_tokens"] = 1024
        headers["Content-Type"] = "application/json"
        request = urllib.request.Request(address, json.dumps(body).encode(), headers)
        answer = await asyncio.to_thread(lambda: json.load(urllib.request.urlopen(request, timeout=60)))
        return answer["choices"][0]["message"] if is_openai else {"role": "assistant", "content": answer["content"]}

    def read(self, output: str, *, has_failed: bool) -> None:
        """The answer is in the messages."""


async def run_agent(model: ScriptedModel | ApiModel, dispatcher: dispatch.Dispatcher, user: str) -> str:
    """Query the model until it calls nothing, and return its answer."""
    messages: list[dict] = [{"role": "user", "content": TASK}]
    while True:
        found = await dispatcher.find(model.need, limit=2, user=user) if model.need else []
        tools = [each.tool for each in found] or list(await dispatcher.tools(user=user))
        if found:
            print(f"?  {model.need}: {', '.join(f'{each.name} ({each.score:.2f})' for each in found)}")
        if isinstance(model, ScriptedModel):
            messages[0] = {"role": "user", "content": f"{function_calling_prompt(tools)}\n{TASK}"}
        reply = await model.reply(messages, tools)
        messages.append(reply if isinstance(reply, dict) else {"role": "assistant", "content": reply})
        results = await call_function(tools, reply)
        if results is None:
            return reply if isinstance(reply, str) else _text_of(reply)
        for result in results:
            has_failed = result.status.value == "FAILED"
            print(f"-> {result.func_name} {json.dumps(result.func_args)}\n<- {result.output}")
            model.read(result.output, has_failed=has_failed)
        messages += format_answers(results)


def _text_of(message: dict) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(block.get("text", "") for block in content)


async def run(broker: str, model: ScriptedModel | ApiModel, user: str = "alice") -> None:
    servers = dispatch.McpServers(
        {"mcpServers": {"units": {"command": sys.executable, "args": [__file__, "--mcp-server"]}}}
    )
    async with contextlib.AsyncExitStack() as stack:
        for implementation, topic in ((Calculator(), "calculator"), (Rates(), "rates")):
            await stack.enter_async_context(dispatch.ToolServer(implementation, broker, service=topic))
        sources = [CATALOG, dispatch.Functions(find_last_known_rate), servers]
        dispatcher = await stack.enter_async_context(dispatch.connect(broker, catalog=sources))
        if isinstance(model, ApiModel):
            model.dispatcher = dispatcher
        await dispatcher.search.refresh()  # by meaning from the first search on, with the extra search
        print(f"=  {await run_agent(model, dispatcher, user)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", default="memory://", help="URL of the broker (default: %(default)s)")
    parser.add_argument("--form", choices=["text", "native"], default="text", help="of the scripted model's calls")
    parser.add_argument("--model", help="a real model: openai:MODEL or anthropic:MODEL")
    parser.add_argument("--mcp-server", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.mcp_server:
        serve_mcp()
        sys.exit()
    try:
        asyncio.run(run(options.broker, ApiModel(options.model) if options.model else ScriptedModel(options.form)))
    except KeyboardInterrupt:
        sys.exit(130)
    except (dispatch.DispatchError, ImportError) as error:
        sys.exit(f"error: {error}")
