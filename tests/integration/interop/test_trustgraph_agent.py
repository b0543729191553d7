"""TrustGraph's published agent calls tool services: the genuine ``AgentManager.react`` with a scripted model."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
from trustgraph.agent.react.agent_manager import AgentManager
from trustgraph.agent.react.service import Processor
from trustgraph.agent.react.types import Action, Final

import dispatch
from dispatch.trustgraph import agent
from dispatch.trustgraph.agent import ToolServiceImpl, install
from tests.helpers.published_agent import MODULES, as_published

pytestmark = [pytest.mark.pulsar, pytest.mark.usefixtures("as_published")]
__all__ = ["as_published"]  # a fixture


class Joke(dispatch.ToolService):
    def __init__(self) -> None:
        self.users: list[str] = []

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> Any:
        self.users.append(user)
        if "topic" not in arguments:
            raise dispatch.ToolError("no-topic", "Give a topic.")
        return {"joke": f"a {config['style']} about {arguments['topic']}"}


class Prompt(NamedTuple):
    text: str
    in_token: int = 0
    out_token: int = 0
    model: str = "script"


class Model:
    """Answers with a script; records what it was shown."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.shown: list[dict[str, Any]] = []

    async def agent_react(self, variables: dict[str, Any], streaming: bool = False) -> Prompt:
        self.shown.append(variables)
        return Prompt(self.answers.pop(0))


class Backend:
    api_key = None

    def __init__(self, url: str) -> None:
        self.host = url


class Agent:
    """The published agent, as far as its tools and their calls go.

    Args:
        url: of the broker.
        topic: of the tool service.
    """

    def __init__(self, url: str, topic: str) -> None:
        self.agents: dict[str, AgentManager] = {}
        self.pubsub = Backend(url)
        self.tool_service_clients: dict[str, Any] = {}
        self.id = "agent"
        self.config_key = "agent"
        config = {
            "tool-service": {
                "jokes": {
                    "request-queue": f"non-persistent://tg/request/{topic}",
                    "response-queue": f"non-persistent://tg/response/{topic}",
                    "config-params": [{"name": "style", "required": True}],
                }
            },
            "tool": {
                "tell-joke": {
                    "type": "tool-service",
                    "name": "tell-joke",
                    "description": "Tells a joke.",
                    "service": "jokes",
                    "style": "pun",
                    "arguments": [{"name": "topic", "type": "string", "description": "What about."}],
                }
            },
        }
        self.config = {kind: {key: json.dumps(raw) for key, raw in items.items()} for kind, items in config.items()}

    async def load(self) -> None:
        await Processor.on_tools_config(cast(Any, self), "default", self.config, 1)

    async def react(self, model: Model, history: list[Action] | None = None) -> Action | Final:
        async def said(_text: str, is_final: bool = False) -> None:
            pass

        return await self.agents["default"].react(
            "What is funny about cats?", history or [], said, said, lambda _service: model
        )


@contextlib.asynccontextmanager
async def agent_of(url: str, topic: str) -> AsyncIterator[Agent]:
    made = Agent(url, topic)
    await made.load()
    try:
        yield made
    finally:
        for client in made.tool_service_clients.values():
            await client.close()


CALL = 'Thought: a joke.\nAction: tell-joke\nArgs: {"topic": "cats"}'
BARE = "Thought: a joke.\nAction: tell-joke\nArgs: {}"


async def test_the_agent_calls_a_tool_and_answers(url: str, topic: str) -> None:
    install()
    async with dispatch.ToolServer(Joke(), url, service=topic), agent_of(url, topic) as trustgraph:
        model = Model(CALL, "Thought: done.\nFinal Answer: ha")
        action = await trustgraph.react(model)
        assert isinstance(action, Action)
        assert json.loads(action.observation) == {"joke": "a pun about cats"}
        final = await trustgraph.react(model, [action])
        assert isinstance(final, Final)
        assert final.final == "ha"
        assert "a pun about cats" in str(model.shown[1])


async def test_an_error_says_what_to_do_next(url: str, topic: str) -> None:
    install()
    async with dispatch.ToolServer(Joke(), url, service=topic), agent_of(url, topic) as trustgraph:
        action = await trustgraph.react(Model(BARE))
        assert isinstance(action, Action)
        assert action.observation == "Error: Give a topic."


async def test_an_open_circuit_is_told_to_the_model(url: str, topic: str) -> None:
    install(policy={"timeout": 0.3, "retry": 1, "breaker": {"consecutive-failures": 2}, "known-instances-only": True})
    async with agent_of(url, topic) as trustgraph:
        actions = [await trustgraph.react(Model(CALL)) for _ in range(4)]
        assert all(isinstance(action, Action) and action.observation.startswith("Error: ") for action in actions)
        dispatcher = trustgraph.tool_service_clients["dispatch"]._dispatcher
        dispatcher.breaker("tell-joke").force_open()
        action = await trustgraph.react(Model(CALL))
        assert isinstance(action, Action)
        assert "Tool 'tell-joke' was not executed: an operator has opened its circuit breaker." in action.observation
        assert "Use another tool" in action.observation


async def test_the_user_of_the_request_reaches_the_service_and_permissions(url: str, topic: str) -> None:
    joke = Joke()

    class Request:
        user = "alice"

    async def handle(self: Any, _request: Any) -> Action | Final:
        action: Action | Final = await self.react(Model(CALL))
        return action

    install()
    async with dispatch.ToolServer(joke, url, service=topic), agent_of(url, topic) as trustgraph:
        await agent._with_user(handle)(trustgraph, Request())
        await handle(trustgraph, Request())
    assert joke.users == ["alice", ""]


async def test_a_tool_of_the_catalogue_keeps_its_policy_and_permissions(url: str, topic: str) -> None:
    descriptors = {
        "id": "jokes",
        "request-queue": f"non-persistent://tg/request/{topic}",
        "response-queue": f"non-persistent://tg/response/{topic}",
        "config-params": [{"name": "style"}],
    }
    tool = {
        "type": "tool-service",
        "name": "tell-joke",
        "description": "Tells a joke.",
        "service": "jokes",
        "style": "limerick",
        "permissions": ["tools:jokes"],
    }
    install(
        catalog=dispatch.Catalog.of([descriptors], [tool]), grants=lambda user: ["tools:*"] if user == "bob" else []
    )
    async with dispatch.ToolServer(Joke(), url, service=topic), agent_of(url, topic) as trustgraph:
        refused = await trustgraph.react(Model(CALL))
        assert isinstance(refused, Action)
        assert "was not executed" in refused.observation
        reset = agent._user.set("bob")
        allowed = await trustgraph.react(Model(CALL))
        agent._user.reset(reset)
        assert isinstance(allowed, Action)
        assert "a limerick about cats" in allowed.observation


async def test_an_argument_may_be_named_self(url: str, topic: str) -> None:
    class Echo(dispatch.ToolService):
        async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> Any:
            return arguments["self"]

    install()
    async with dispatch.ToolServer(Echo(), url, service=topic), agent_of(url, topic) as trustgraph:
        queues = (f"non-persistent://tg/{kind}/{topic}" for kind in ("request", "response"))
        argument = SimpleNamespace(name="self", type="string", description="Text.")
        tool = ToolServiceImpl(None, *queues, arguments=[argument], processor=trustgraph)
        assert await tool.invoke(self="me") == "me"


def test_the_names_are_rebound_where_they_were_imported() -> None:
    install()
    assert {module.ToolServiceImpl for module in MODULES} == {ToolServiceImpl}
    install()
    assert {module.ToolServiceImpl for module in MODULES} == {ToolServiceImpl}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dispatch.trustgraph", *arguments], capture_output=True, text=True, timeout=60
    )


def test_the_command_runs_a_program_of_trustgraph() -> None:
    found = run("agent-manager-react", "--help")
    assert found.returncode == 0, found.stderr
    assert "--pulsar-host" in found.stdout
    unknown = run("no-agent")
    assert unknown.returncode == 2
    assert "choose one of agent-manager-react, agent-orchestrator" in unknown.stderr
    assert "agent-manager-react" in run("--help").stdout
    missing = run("--policy", "no-such-file.json", "agent-manager-react", "--help")
    assert missing.returncode == 2
    assert "no-such-file.json" in missing.stderr


async def test_no_dispatcher_is_left_behind(url: str, topic: str) -> None:
    install()
    before = asyncio.all_tasks()
    async with dispatch.ToolServer(Joke(), url, service=topic), agent_of(url, topic) as trustgraph:
        await trustgraph.react(Model(CALL))
    await asyncio.sleep(0.2)
    assert asyncio.all_tasks() == before
