"""The MCP server as a process, on its standard streams."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import sys
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp_types import TextContent

import dispatch.mcp.server
from dispatch import Dispatcher, Policy
from dispatch.mcp import McpServer
from dispatch.mcp.server import DescriptorLines, StdioMessages
from tests.helpers.cli_processes import REPO
from tests.helpers.dispatcher_and_service import Service, stand
from tests.helpers.mcp_connections import connected, text_of
from tests.helpers.python_processes import environment

ARGUMENTS = ["-m", "tests.helpers.mcp_server_process"]
PROCESS = StdioServerParameters(command=sys.executable, args=ARGUMENTS, cwd=REPO, env=dict(environment()))


@pytest.mark.wall_clock
@pytest.mark.process
async def test_stdout_carries_the_protocol_only() -> None:
    async with Client(PROCESS) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["broken", "city", "read_result", "work"]
        arguments: dict[str, Any] = {"topic": "cäts\u2028\n", "print": True}
        result = await client.call_tool("work", arguments)
    assert result.content == [TextContent(text="about cäts\u2028\n")]


@pytest.mark.costly
@pytest.mark.wall_clock
async def test_messages_of_any_length_arrive_whole() -> None:
    """They are longer than a chunk of a pipe, which ends within a character."""
    service = Service(lambda arguments: arguments["text"])
    async with (
        stand(service, policy=Policy(max_result_chars=2_000_000)) as (dispatcher, _),
        connected(McpServer(dispatcher), "stdio", "auto") as client,
    ):
        for text in ("三" * 100_000, "🦊größe\u2028" * 30_001):
            assert text_of(await client.call_tool("work", {"text": text})) == text
        many = [client.call_tool("work", {"text": str(number)}) for number in range(200)]
        assert [text_of(each) for each in await asyncio.gather(*many)] == [str(number) for number in range(200)]


PING = b'{"jsonrpc":"2.0","id":7,"method":"ping"}\n'


class Pipes:
    """A server on two pipes.

    Attributes:
        client: what the client writes to.
        reading: what the client reads.
        task: the server.
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        requests, responses = os.pipe(), os.pipe()
        self.client, self.reading = requests[1], responses[0]
        self._answers: DescriptorLines | None = None
        server = McpServer(dispatcher).sdk_server

        async def serve() -> None:
            messages = StdioMessages(requests[0], responses[1])
            await server.run(messages, messages, server.create_initialization_options())
            for descriptor in (requests[0], responses[1]):
                os.close(descriptor)

        self.task = asyncio.create_task(serve())

    def write(self, data: bytes) -> None:
        os.write(self.client, data)

    async def read(self) -> Any:
        if self._answers is None:
            self._answers = DescriptorLines(self.reading)
        return json.loads(await anext(self._answers))


@pytest.mark.wall_clock
async def test_a_line_that_is_no_message_ends_nothing_and_has_an_answer() -> None:
    async with stand(lambda _: "done") as (dispatcher, _):
        server = Pipes(dispatcher)
        server.write(b"\n{\nnull\n \r\n[]\n\xff\xfe\n" + PING.replace(b"7", b"1.5") + PING)
        answers = [await server.read() for _ in range(6)]
        assert [each["error"]["code"] for each in answers[:5]] == [-32700, -32600, -32600, -32700, -32600]
        assert [each["id"] for each in answers] == [None, None, None, None, 1.5, 7]
        os.close(server.client)
        await server.task
    os.close(server.reading)


@pytest.mark.wall_clock
async def test_a_last_line_that_is_cut_off_has_an_answer() -> None:
    async with stand(lambda _: "done") as (dispatcher, _):
        server = Pipes(dispatcher)
        server.write(PING.rstrip(b"}\n") + b",")
        os.close(server.client)
        answer = await server.read()
        assert (answer["id"], answer["error"]["code"]) == (7, -32700)
        await server.task
    os.close(server.reading)


def initialize(version: str) -> bytes:
    info = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    return line({"id": 1, "method": "initialize", "params": info}, {"method": "notifications/initialized"})


def line(*messages: dict[str, Any]) -> bytes:
    return b"".join(json.dumps({"jsonrpc": "2.0", **each}).encode() + b"\n" for each in messages)


def batch(*messages: dict[str, Any]) -> bytes:
    return json.dumps([{"jsonrpc": "2.0", **each} for each in messages]).encode() + b"\n"


CALL = {"method": "tools/call", "params": {"name": "work", "arguments": {}}}


@pytest.mark.wall_clock
async def test_a_message_that_is_too_large_has_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch.mcp.server, "MAX_MESSAGE_BYTES", 100_000)
    service = Service(lambda _: "done")
    async with stand(service) as (dispatcher, _):
        server = Pipes(dispatcher)
        call = {"id": 2, "method": "tools/call", "params": {"name": "work", "arguments": {"a": "x" * 300_000}}}
        server.write(initialize("2025-06-18"))
        await asyncio.to_thread(server.write, line(call) + b"y" * 300_000 + b"\n" + PING)
        answers = [await server.read() for _ in range(4)]
        assert [each["id"] for each in answers] == [1, 2, None, 7]
        assert [each["error"]["code"] for each in answers[1:3]] == [-32600, -32600]
        assert "more than 100,000 bytes. Nothing was executed" in answers[1]["error"]["message"]
        assert service.requests == []
        os.close(server.client)
        await server.task
    os.close(server.reading)


@pytest.mark.wall_clock
@pytest.mark.costly
async def test_a_client_that_reads_no_answers_is_not_read_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch.mcp.server, "MAX_WRITING", 50)
    monkeypatch.setattr(dispatch.mcp.server, "CHUNK_BYTES", 4_096)
    async with stand(lambda _: "done") as (dispatcher, _):
        server = Pipes(dispatcher)
        os.set_blocking(server.client, False)
        for pipe in (server.client, server.reading):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 4_096)
        written, idle = 0, 0
        while idle < 40 and written < 100_000:
            try:
                written += os.write(server.client, (PING * 100)[written % len(PING) :])
                idle = 0
            except BlockingIOError:
                idle += 1
                await asyncio.sleep(0.05)
        assert written < 50_000  # 160 pings are answered; 500 are in chunks and in the pipe
        for _ in range(written // len(PING)):
            assert (await server.read())["id"] == 7
        os.close(server.client)
        await server.task
    os.close(server.reading)


@pytest.mark.wall_clock
@pytest.mark.parametrize(("seconds", "error"), [(2.0, None), (60.0, "timeout")])
@pytest.mark.costly
async def test_a_client_that_closes_stdin_has_each_answer_within_the_limits_of_its_call(
    seconds: float, error: str | None
) -> None:
    async def work(_: object) -> str:
        await asyncio.sleep(seconds)
        return "done"

    async with stand(work, policy=Policy(timeout=3.0)) as (dispatcher, _):
        server = Pipes(dispatcher)
        server.write(initialize("2025-06-18") + line({"id": 2, **CALL}, {"id": 2, **CALL}))
        os.close(server.client)
        assert (await server.read())["id"] == 1
        for _ in range(2):  # an id that is used twice has two answers
            answer = await server.read()
            text = answer["result"]["content"][0]["text"]
            assert (text if error is None else json.loads(text)["error"]) == (error or "done")
        async with asyncio.timeout(1):
            await server.task
    os.close(server.reading)


@pytest.mark.wall_clock
async def test_a_client_that_has_gone_ends_the_server_and_its_calls() -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def work(_: object) -> str:
        started.set()
        try:
            await asyncio.sleep(20)
        finally:
            ended.set()
        return "done"

    async with stand(work) as (dispatcher, _):
        server = Pipes(dispatcher)
        server.write(initialize("2025-06-18") + line({"id": 2, **CALL}))
        assert await asyncio.to_thread(os.read, server.reading, 65_536)  # no thread goes on to read
        await started.wait()
        os.close(server.client)
        os.close(server.reading)
        async with asyncio.timeout(3):
            await server.task
            await ended.wait()


@pytest.mark.wall_clock
async def test_a_batch_has_one_answer_with_those_of_its_requests() -> None:
    started = asyncio.Event()

    async def work(arguments: dict[str, Any]) -> str:
        started.set()
        await asyncio.sleep(arguments.get("seconds", 0))
        return "done"

    def call(id: int, seconds: float) -> dict[str, Any]:
        return {"id": id, "method": "tools/call", "params": {"name": "work", "arguments": {"seconds": seconds}}}

    async with stand(work) as (dispatcher, _):
        server = Pipes(dispatcher)
        ping = {"id": 2, "method": "ping"}
        cancel = {"method": "notifications/cancelled", "params": {"requestId": 3}}
        server.write(initialize("2025-03-26") + batch(ping, call(3, 20), call(4, 0.1), {"id": 1.5, "method": "ping"}))
        assert (await server.read())["result"]["protocolVersion"] == "2025-03-26"
        await started.wait()
        server.write(batch(cancel) + batch(call(5, 0), {"id": 6, "method": "initialize"}) + b"[]\n")
        seen = [await server.read() for _ in range(3)]
        (empty,) = [each for each in seen if isinstance(each, dict)]
        assert empty["error"]["code"] == -32600
        first, second = sorted((each for each in seen if isinstance(each, list)), key=len, reverse=True)
        assert {each["id"]: each.get("error", {}).get("code") for each in first} == {1.5: -32600, 2: None, 4: None}
        assert {each["id"]: each.get("error", {}).get("code") for each in second} == {5: None, 6: -32600}
        server.write(batch(call(7, 0.1)))
        os.close(server.client)
        (last,) = await server.read()
        assert last["result"]["content"][0]["text"] == "done"
        await server.task
    os.close(server.reading)


@pytest.mark.wall_clock
@pytest.mark.parametrize("version", ["2025-06-18", None])
async def test_a_batch_of_another_version_is_refused_with_what_to_do(version: str | None) -> None:
    async with stand(lambda _: "done") as (dispatcher, _):
        server = Pipes(dispatcher)
        if version is not None:
            server.write(initialize(version))
            await server.read()
        server.write(batch({"id": 2, "method": "ping"}))
        error = (await server.read())["error"]
        assert error["code"] == -32600
        assert "2025-03-26 only, after 'initialize': send each message by itself" in error["message"]
        os.close(server.client)
        await server.task
    os.close(server.reading)


@pytest.mark.wall_clock
async def test_a_request_before_the_handshake_is_told_to_send_it() -> None:
    async with stand(lambda _: "done") as (dispatcher, _):
        server = Pipes(dispatcher)
        server.write(line({"id": 1, **CALL}, {"id": 2, "method": "tools/call", "params": {"name": 5}}))
        answers = sorted([await server.read(), await server.read()], key=lambda answer: answer["id"])
        assert [each["error"]["code"] for each in answers] == [-32600, -32602]
        assert "send 'initialize' first" in answers[0]["error"]["message"]
        os.close(server.client)
        await server.task
    os.close(server.reading)


@pytest.mark.wall_clock
async def test_a_client_that_closes_stdout_ends_the_server() -> None:
    async with stand(lambda _: "done") as (dispatcher, _):
        server = Pipes(dispatcher)
        server.write(PING)
        assert await asyncio.to_thread(os.read, server.reading, 65_536)  # no thread goes on to read
        os.close(server.reading)
        server.write(b"{\n")
        await server.task
    os.close(server.client)
