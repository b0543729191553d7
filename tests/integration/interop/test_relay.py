"""``dispatch relay`` between TrustGraph's published client and its published ``DynamicToolService``, both unmodified."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from trustgraph.agent.react.service import Processor
from trustgraph.base.tool_client import ToolClient
from trustgraph.schema import ToolRequest, ToolResponse

import dispatch
from dispatch.messaging.wire import MAX_MESSAGE_BYTES
from dispatch.relay import Relay, RelayConfig
from tests.helpers.cli_processes import ended
from tests.integration.interop.conftest import TheirService
from tests.integration.interop.peers import (
    TIMEOUT_S,
    Client,
    Peer,
    call_again,
    our_client,
    registered,
    request_topic,
    response_topic,
    their_client,
)
from tests.integration.interop.test_trustgraph_agent import Model
from tests.integration.interop.tool_behaviour import PREFIX, digest

pytestmark = pytest.mark.pulsar


def write_config(folder: Path, url: str, topic: str, *instances: str, tool: Any = None, **keys: Any) -> Path:
    """Write a relay's configuration and its catalogue: a service on the public ``topic``, and one tool."""
    service = {
        "id": "peer",
        "request-queue": request_topic(topic),
        "response-queue": response_topic(topic),
        "config-params": [{"name": "prefix"}],
        "instances": [
            {"id": each, "request-queue": request_topic(each), "response-queue": response_topic(each)}
            for each in instances
        ],
    }
    described = {"type": "tool-service", "name": "join", "description": "Joins.", "service": "peer", **PREFIX}
    for path, raw in (
        ("tools/tool-service/peer.json", service),
        ("tools/tool/join.json", described | (tool or {})),
        (
            "relay.json",
            {"broker": url, "catalog": ["tools"], **{key.replace("_", "-"): value for key, value in keys.items()}},
        ),
    ):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(json.dumps(raw))
    return folder / "relay.json"


async def test_a_published_client_reaches_a_published_service(
    url: str, topic: str, their_service: TheirService, tmp_path: Path
) -> None:
    config = RelayConfig.load(write_config(tmp_path, url, topic, their_service.topic))
    async with Relay(config) as relay, their_client(url, topic) as client:
        assert await client.call(PREFIX, {"join": "a"}, timeout=TIMEOUT_S) == "customers|a"
        assert await client.call({"prefix": "x"}, {"join": "b"}, timeout=TIMEOUT_S) == "x|b"
        with pytest.raises(RuntimeError, match="no customer"):
            await client.call(PREFIX, {"refuse": "no customer"}, timeout=TIMEOUT_S)
        assert relay.servers[0].requests == 3


async def test_a_published_client_reads_a_stream_chunk_by_chunk(url: str, topic: str, tmp_path: Path) -> None:
    pieces = [f"piece {number} " for number in range(200)]
    chunks: list[str] = []

    async def read(chunk: str) -> None:
        chunks.append(chunk)

    config = RelayConfig.load(write_config(tmp_path, url, topic, f"{topic}-1"))
    async with (
        dispatch.ToolServer(Peer(), url, service=f"{topic}-1"),
        Relay(config),
        their_client(url, topic) as client,
    ):
        text = await client.call_streaming(PREFIX, {"pieces": pieces}, read, timeout=TIMEOUT_S)
        assert (text, chunks) == ("".join(pieces), pieces)
        chunks.clear()
        with pytest.raises(RuntimeError, match="the end"):
            await client.call_streaming(PREFIX, {"pieces": pieces[:2], "broken": "the end"}, read, timeout=TIMEOUT_S)
        assert chunks == pieces[:2]


LARGE = "x" * (MAX_MESSAGE_BYTES + 1_000)
"""A request with it is larger than a message that dispatch sends, and not larger than one that the broker accepts."""


async def read_refusal(client: Client) -> str:
    """Return the error of a request with :data:`LARGE`; it is sent again if the broker has dropped it."""
    for _ in range(4):
        try:
            return await client.call(PREFIX, {"measure": LARGE}, timeout=5)
        except TimeoutError:
            continue
        except RuntimeError as error:
            return str(error)
    return "no answer"


async def test_a_request_too_large_for_a_published_service_is_refused_and_holds_up_no_other(
    url: str, topic: str, their_service: TheirService, tmp_path: Path
) -> None:
    """A caller of dispatch sends it to the relay in fragments, and a published client as one message.

    While such a message fills a connection, the broker drops others for it on non-persistent topics, by its counters: of 60
    small requests behind one of a published client 8, and of 50 replies of a published service 1. So calls are repeated.
    """
    config = RelayConfig.load(write_config(tmp_path, url, topic, their_service.topic))
    async with Relay(config), their_client(url, topic) as theirs, our_client(url, topic) as ours:
        for client in (theirs, ours):
            assert await client.call(PREFIX, {"join": "before"}, timeout=TIMEOUT_S) == "customers|before"
            refusal = asyncio.create_task(read_refusal(client))
            assert await call_again(client, {"join": "beside"}, PREFIX) == "customers|beside"
            text = await refusal
            assert text.startswith("Tool 'join' was not executed: its request would have 5,223,"), "by the relay"
            assert f"the limit is {MAX_MESSAGE_BYTES:,}, " in text
            assert await call_again(client, {"join": "after"}, PREFIX) == "customers|after"


async def test_a_request_above_the_limit_of_a_message_reaches_an_instance_of_dispatch(
    url: str, topic: str, tmp_path: Path
) -> None:
    config = RelayConfig.load(write_config(tmp_path, url, topic, f"{topic}-1"))
    async with (
        dispatch.ToolServer(Peer(), url, service=f"{topic}-1"),
        Relay(config),
        their_client(url, topic) as theirs,
        our_client(url, topic) as ours,
    ):
        for client in (theirs, ours):
            assert await call_again(client, {"measure": LARGE}) == digest(LARGE)


class Joke(dispatch.ToolService):
    """Tells a joke, as a text or as chunks."""

    def __init__(self) -> None:
        self.calls: list[tuple[dict[str, Any], dict[str, Any], str]] = []

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> Any:
        self.calls.append((config, arguments, user))
        if "topic" not in arguments:
            raise dispatch.ToolError("no-topic", "Give a topic.")
        return f"a joke about {arguments['topic']}"


async def test_the_published_agent_calls_a_tool_as_an_mcp_tool(
    url: str, topic: str, workspace: str, tmp_path: Path
) -> None:
    """Genuine ``AgentManager.react``, ``McpToolImpl`` and ``ToolClient``, and the genuine config service."""
    processor, flow = f"mcp-tool-{topic}", f"flow-{topic}"
    path = write_config(
        tmp_path, url, topic, f"{topic}-1", **{"mcp-tool": {"processor": processor, "workspace": workspace}}
    )
    topics = {"request": f"request:tg:{flow}", "response": f"response:tg:{flow}"}
    put = ("put", "--as", "mcp-tool", "join", "--catalog", str(tmp_path / "tools"))
    code, out, err = await asyncio.to_thread(ended, *put, "--workspace", workspace, "--broker", url)
    assert (code, out) == (0, f"trustgraph:{workspace}/tool/join: written.\n"), err
    source = dispatch.TrustGraphConfig(workspace)
    async with dispatch.connect(url, source):
        await source.put_text(f"processor:{processor}", "one", json.dumps({"topics": topics}))
        written = json.loads(await source.get_text("tool", "join") or "")
    assert (written["type"], written["mcp-tool"]) == ("mcp-tool", "join")
    joke = Joke()
    served: asyncio.Queue[str] = asyncio.Queue()
    async with (
        dispatch.ToolServer(joke, url, service=f"{topic}-1"),
        Relay(RelayConfig.load(path), on_change=served.put_nowait),
        mcp_tool_client(url, flow) as client,
    ):
        while "serves the flow" not in await asyncio.wait_for(served.get(), TIMEOUT_S):
            """The service comes first."""
        agents: Any = SimpleNamespace(agents={}, id="agent", config_key="agent")
        agents.tool_service_clients = {}
        await Processor.on_tools_config(agents, workspace, {"tool": {"join": json.dumps(written)}}, 1)
        model = Model(
            'Thought: a joke.\nAction: join\nArgs: {"topic": "cats"}', "Thought: a joke.\nAction: join\nArgs: {}"
        )

        def context(name: str) -> Any:
            return client if name == "mcp-tool-request" else model

        for observation in ("a joke about cats", "Error: Give a topic."):
            action = await agents.agents[workspace].react("Joke?", [], say, say, context)
            assert action.observation == observation
    assert joke.calls == [(PREFIX, {"topic": "cats"}, "default-user"), (PREFIX, {}, "default-user")]


async def say(_text: str, is_final: bool = False) -> None:
    """What the agent says while it thinks."""


def mcp_tool_client(url: str, topic: str) -> contextlib.AbstractAsyncContextManager[Any]:
    """TrustGraph's client of its ``mcp-tool`` processor."""
    return registered(url, (request_topic(topic), ToolRequest), (response_topic(topic), ToolResponse), ToolClient)
