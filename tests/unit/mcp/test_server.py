"""The MCP server with the official client in the same process, in both protocol generations.
Messages of JSON-RPC as the server reads and writes them.
The tools of a dispatcher, served over MCP to another dispatcher, which serves them again: the same tools and results.
Spans: that of the SDK is the parent, and the only one of a server.
Twelve scenarios over each transport, with the official client, in both generations of the protocol.
Calls over MCP: progress, cancellation, structured content, and the parts of results.
Lists: pages, users, and the search in place of many tools.
Lists that change: clients of both generations of the protocol are notified within a second, once for many changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp import Client, MCPError
from mcp.client.session import IncomingMessage
from mcp_types import (
    INVALID_PARAMS,
    ImageContent,
    InitializedNotification,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    TextContent,
    ToolAnnotations,
    ToolListChangedNotification,
)

import dispatch
from dispatch import CallResult, Catalog, Dispatcher, Grants, Outcome, Policy, ToolError
from dispatch.mcp import McpServer
from dispatch.mcp.server import (
    MAX_LISTED,
    MAX_PROGRESS_CHARS,
    PAGE_SIZE,
    UnreadableMessageError,
    complete_schema,
    cut_page,
    find_id,
    read_message,
    write_message,
)
from dispatch.transports.memory import MemoryTransport
from tests.adapters.lab import Answer
from tests.adapters.scenarios import SCENARIOS, Model, run_scenario
from tests.helpers.cli_processes import REPO, environment
from tests.helpers.dispatcher_and_service import BROKER, Service, catalog, dispatching, serving, stand
from tests.helpers.mcp_connections import CHANNELS, MODES, Channel, Mode, connected, text_of
from tests.helpers.mcp_server_process import TOOLS, work

TOPIC = {"name": "topic", "type": "string", "description": "What about.", "required": True}


@pytest.mark.parametrize("mode", MODES)
async def test_tools_are_listed_and_called(mode: Literal["auto", "legacy"]) -> None:
    service = Service(lambda arguments: f"about {arguments['topic']}")
    hints = {"read-only": True, "idempotent": True, "destructive": False}
    tools = catalog(work={"arguments": [TOPIC], **hints}, bare={"destructive": False})
    async with (
        stand(service, tools) as (dispatcher, _),
        Client(McpServer(dispatcher, user="alice").sdk_server, mode=mode) as client,
    ):
        bare, _, work = (await client.list_tools()).tools
        assert (bare.name, work.name, work.description) == ("bare", "work", "Does work.")
        assert work.input_schema["properties"] == {"topic": {"type": "string", "description": "What about."}}
        assert work.input_schema["required"] == ["topic"]
        assert work.annotations == ToolAnnotations(read_only_hint=True, idempotent_hint=True)
        assert bare.annotations == ToolAnnotations(read_only_hint=False, idempotent_hint=False, destructive_hint=False)
        result = await client.call_tool("work", {"topic": "cäts"})
        assert (text_of(result), result.is_error) == ("about cäts", False)
    assert service.requests == [({}, {"topic": "cäts"}, "alice")]


@pytest.mark.parametrize("mode", MODES)
async def test_a_failure_is_a_result_for_the_model(mode: Literal["auto", "legacy"]) -> None:
    async def fail(_: dict[str, Any]) -> str:
        raise ToolError("no-cats", "there are no cats")

    async with stand(fail) as (dispatcher, _), Client(dispatcher.mcp_server().sdk_server, mode=mode) as client:
        failed, unknown = await client.call_tool("work"), await client.call_tool("wrok")
    assert failed.is_error
    assert unknown.is_error
    assert json.loads(text_of(failed))["error"] == "no-cats"
    error = json.loads(text_of(unknown))
    assert sorted(error) == ["alternatives", "error", "message", "retry_after", "retryable"]
    assert (error["error"], error["alternatives"], error["retryable"]) == ("unknown-tool", ["work"], False)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit(), LookupError("4711"), asyncio.CancelledError()])
async def test_a_function_of_the_user_that_fails_ends_its_request_alone(
    error: BaseException, mode: Literal["auto", "legacy"]
) -> None:
    broken = [True]

    def find_user(_context: object) -> str:
        if broken:
            raise error
        return "alice"

    service = Service(lambda _: "done")
    async with (
        stand(service) as (dispatcher, _),
        Client(McpServer(dispatcher, user=find_user).sdk_server, mode=mode) as client,
    ):
        with pytest.raises(MCPError, match=type(error).__name__) as caught:
            await client.call_tool("work")
        assert "4711" not in str(caught.value)
        broken.clear()
        assert text_of(await client.call_tool("work")) == "done"


CALL = b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"a","arguments":{"id":8}}}'


def refuse(data: bytes) -> tuple[int, Any, bool]:
    """The code and the id of the answer, and whether it is sent."""
    with pytest.raises(UnreadableMessageError) as caught:
        read_message(data)
    answer = json.loads(caught.value.answer)
    assert answer["jsonrpc"] == "2.0"
    assert "Nothing was executed" in answer["error"]["message"]
    return answer["error"]["code"], answer["id"], caught.value.is_answered


def test_messages() -> None:
    assert isinstance(read_message(CALL), JSONRPCRequest)
    assert isinstance(read_message(b' {"jsonrpc":"2.0","id":"x","method":"ping","params":null}\r'), JSONRPCRequest)
    assert isinstance(read_message(b'{"jsonrpc":"2.0","method":"notifications/initialized"}'), JSONRPCNotification)
    assert isinstance(read_message(b'{"jsonrpc":"2.0","id":1,"result":{}}'), JSONRPCResponse)


@pytest.mark.parametrize(
    ("data", "id"),
    [
        (b"\xef\xbb\xbf" + CALL, 7),
        (CALL[:-4], 7),
        (CALL[:24], 7),
        (CALL[:23], None),
        (CALL.replace(b"8", rb'"\ud83d"'), 7),
        (CALL.replace(b"8", b'"\xff"'), 7),
        (CALL.replace(b"8", b"NaN"), 7),
        (CALL.replace(b"8", b"-Infinity"), 7),
        (CALL.replace(b"8", b"[" * 3_000 + b"]" * 3_000), 7),
        (CALL.replace(b"8", b'{"a":' * 3_000 + b"1" + b"}" * 3_000), 7),
        (CALL.replace(b'"id":7', b'"id":"seven"')[:-1], "seven"),
        (CALL.replace(b'"id":7', rb'"id":"\ud83d"')[:-1], None),
        (CALL.replace(b'"id":7', b'"id":"\xff"')[:-1], None),
        (CALL.replace(b'"id":7,', b"")[:-1], None),
        (rb'{"method":"a\"b","params":{"id":3,"x":"]}\"{"},"id" : -4 ,"x"', -4),
        (CALL + CALL.replace(b"7", b"9"), 7),
        (CALL.decode().encode("utf-16"), None),
        (b"hello", None),
        (b"{", None),
    ],
)
def test_what_is_no_json(data: bytes, id: object) -> None:
    assert refuse(data) == (-32700, id, True)


@pytest.mark.parametrize(
    ("data", "id", "is_answered"),
    [
        (CALL.replace(b"7", b"1.5"), 1.5, True),
        (CALL.replace(b"7", b"1.0"), 1.0, True),
        (CALL.replace(b"7", b"null"), None, True),
        (CALL.replace(b"7", b"true"), None, True),
        (CALL.replace(b"7", b"[7]"), None, True),
        (CALL.replace(b'"2.0"', b'"1.0"'), 7, True),
        (CALL.replace(b'"jsonrpc":"2.0",', b""), 7, True),
        (CALL.replace(b'"tools/call"', b"3"), 7, True),
        (b'{"jsonrpc":"2.0","id":7,"method":"ping","params":[1]}', 7, True),
        (b'{"jsonrpc":"2.0","id":7}', 7, True),
        (b"{}", None, True),
        (b"[]", None, True),
        (b"[%b]" % CALL, None, True),
        (b"null", None, True),
        (b"1", None, True),
        (b'{"jsonrpc":"2.0","method":"notifications/initialized","params":[1]}', None, False),
        (b'{"method":"notifications/initialized"}', None, False),
        (b'{"id":null,"error":"an error without code"}', None, False),
        (b'{"jsonrpc":"2.0","id":1,"result":null}', 1, False),
    ],
)
def test_what_is_no_request(data: bytes, id: object, is_answered: bool) -> None:
    assert refuse(data) == (-32600, id, is_answered)


def test_the_search_for_an_id_is_bounded() -> None:
    assert find_id(b'{"id":7,"a":' + b"[]{}" * 1_000_000) == b"7"
    assert find_id(b'{"a":[' + b"{}[]" * 1_000_000 + b'],"id":7,') == b"null"
    assert find_id(b'{"id":7,"a":"' + b'\\"' * 1_000_000) == b"7"


@given(st.binary(max_size=60) | st.text('{}[]",:\\ id0."').map(str.encode))
def test_anything_is_read_or_refused(data: bytes) -> None:
    json.loads(find_id(data))
    try:
        read_message(data)
    except UnreadableMessageError as error:
        json.loads(error.answer)


def test_every_message_is_written() -> None:
    class Odd:
        def __repr__(self) -> str:
            return "odd \ud800"

    endless: dict[str, Any] = {}
    endless["again"] = endless
    for result, written in (
        ({"a": "größe"}, {"a": "größe"}),
        ({"a": "caf\udce9", "\ud800": ["\udfff"]}, {"a": "caf?", "?": ["?"]}),
        ({"a": float("nan")}, {"a": None}),
    ):
        message = json.loads(write_message(JSONRPCResponse(jsonrpc="2.0", id=3, result=result)))
        assert message == {"jsonrpc": "2.0", "id": 3, "result": written}
    for result in ({"a": Odd()}, endless):
        data = write_message(JSONRPCResponse.model_construct(jsonrpc="2.0", id=3, result=result))
        assert json.loads(data)["id"] == 3
        assert b"\n" not in data


UPSTREAM = {
    "command": sys.executable,
    "args": ["-m", "tests.helpers.mcp_server_process"],
    "cwd": str(REPO),
    "env": environment(),
    "trusted": True,
}
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("work", {"topic": "größe 🦊\u2028"}),
    ("city", {"city": "Köln"}),
    ("broken", {"topic": "x" * 60_000}),
]


async def describe(client: Client) -> list[dict[str, Any]]:
    return [tool.model_dump(exclude_none=True) for tool in (await client.list_tools()).tools]


async def answers(client: Client) -> list[dict[str, Any]]:
    results = [await client.call_tool(name, arguments) for name, arguments in CALLS]
    return [result.model_dump(exclude={"meta"}, exclude_none=True) for result in results]


@pytest.mark.process
@pytest.mark.wall_clock
async def test_the_round_trip_is_equal_and_a_result_that_the_upstream_server_cut_is_read_there() -> None:
    servers = dispatch.McpServers({"mcpServers": {"upstream": UPSTREAM}})
    async with stand(work, TOOLS, policy=Policy()) as (original, _), dispatch.connect("memory://", [servers]) as copy:
        for mode in MODES:
            async with (
                connected(McpServer(original, user="alice"), "stdio", mode) as client,
                connected(McpServer(copy, user="alice"), "stdio", mode) as other,
            ):
                assert await describe(client) == await describe(other)
                first, second = await answers(client), await answers(other)
                assert first[:2] == second[:2]
                for one in (first[2], second[2]):  # with a handle of its own
                    assert one["content"][0]["text"].startswith("about " + "x" * 49_000)
                failed = await other.call_tool("broken", {})
                assert failed.is_error
                assert "no-topic" in str(failed.content)
        async with connected(McpServer(copy), "stdio", "auto") as client:
            shown = str((await client.call_tool("broken", {"topic": "x" * 60_000})).content)
            handle = shown.rpartition('handle="')[2].partition('"')[0]
            rest = await client.call_tool("read_result", {"handle": handle, "offset": 60_000})
            assert not rest.is_error
            assert "xxxxxx" in str(rest.content)


# In a process of its own: the SDK uses the global provider, which is set once.
PROGRAM = """
import asyncio, sys
from opentelemetry import trace
from tests.helpers.telemetry_capture import Spans

spans = Spans()
trace.set_tracer_provider(spans.provider)

from dispatch import Telemetry
from dispatch.mcp import McpServer
import dispatch
from tests.helpers.mcp_connections import connected

@dispatch.tool(name="work")
async def work() -> str:
    "Work."
    return "done"

async def main(mode):
    async with dispatch.connect("memory://", dispatch.Functions(work), telemetry=Telemetry()) as dispatcher:
        async with connected(McpServer(dispatcher), "stdio", mode) as client:
            with trace.get_tracer("test").start_as_current_span("agent"):
                await client.call_tool("work")

for mode in sys.argv[1:]:
    asyncio.run(main(mode))
    print(*spans.tree(), sep="\\n")
    print([each.name for each in spans.ended if each.kind is trace.SpanKind.SERVER])
    assert spans.open == []
    spans.begun.clear()
    spans.ended.clear()
    print("\\f", end="")
"""


def test_the_span_of_the_sdk_is_the_parent() -> None:
    command = [sys.executable, "-c", PROGRAM, *MODES]
    ended = subprocess.run(command, cwd=REPO, env=environment(), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    *outputs, rest = ended.stdout.split("\f")
    assert (len(outputs), rest) == (len(MODES), "")
    for output in outputs:
        assert_parent(output)


def assert_parent(output: str) -> None:
    lines = output.splitlines()
    start = lines.index("agent")
    tree = [line for line in lines[start:-1] if line.startswith(" ") or line == "agent"]
    names = [line.strip() for line in tree]
    assert names.count("tools/call work") == 1, output
    server = names.index("tools/call work")
    assert "execute_tool work" in names[server + 1], output
    depth = [len(line) - len(line.lstrip()) for line in tree]
    assert depth[server + 1] == depth[server] + 2
    assert lines[-1].count("tools/call work") == 1
    assert "execute_tool" not in lines[-1]


@pytest.mark.costly
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize(("channel", "mode"), [("stdio", "auto"), ("http", "auto"), ("http", "legacy")])
def test_scenarios(scenario: str, mode: Mode, channel: Channel) -> None:
    async def call_tool(dispatcher: dispatch.Dispatcher, name: str, arguments: dict[str, Any], user: str) -> Answer:
        async with connected(McpServer(dispatcher, user=user), channel, mode) as client:
            result = await client.call_tool(name, arguments)
        return Answer(text_of(result), result.is_error)

    run_scenario(scenario, Model(call_tool))


CITY = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "people": {"type": "integer"}},
    "required": ["name"],
    "additionalProperties": False,
}


def functions(**tools: Any) -> dispatch.Functions:
    return dispatch.Functions(*(dispatch.tool(name=name)(function) for name, function in tools.items()))


@pytest.mark.wall_clock
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("channel", CHANNELS)
async def test_chunks_are_progress(channel: Channel, mode: Mode) -> None:
    async def tell() -> AsyncIterator[str]:
        for chunk in ("one ", "zwei ", "", "三" * 5_000):
            yield chunk

    seen: list[tuple[float, float | None, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, total, message))

    async with (
        dispatch.connect("memory://", functions(tell=tell)) as dispatcher,
        connected(McpServer(dispatcher), channel, mode) as client,
    ):
        result = await client.call_tool("tell", progress_callback=on_progress)
        assert text_of(result) == "one zwei " + "三" * 5_000
        for _ in range(100):  # notifications are delivered in tasks of their own
            await asyncio.sleep(0.01)
            if len(seen) >= 3:
                break
    chunks = sorted((number, message) for number, _, message in seen)
    assert [message for _, message in chunks if message] == ["one ", "zwei ", "三" * MAX_PROGRESS_CHARS]


@pytest.mark.wall_clock
@pytest.mark.parametrize("mode", MODES)
async def test_a_reply_that_is_no_stream_is_no_progress_and_has_the_timeout_of_a_call(mode: Mode) -> None:
    async def work(arguments: dict[str, Any]) -> str:
        if not arguments:
            await asyncio.Event().wait()
        return "done"

    seen: list[str | None] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append(message)

    async with (
        stand(work, policy=Policy(timeout=0.2)) as (dispatcher, _),
        connected(McpServer(dispatcher), "stdio", mode) as client,
        asyncio.timeout(10),
    ):
        assert text_of(await client.call_tool("work", {"more": 1}, progress_callback=on_progress)) == "done"
        result = await client.call_tool("work", progress_callback=on_progress)
    assert json.loads(text_of(result))["error"] == "timeout"
    assert seen == []


@pytest.mark.wall_clock
@pytest.mark.parametrize("mode", MODES)
async def test_a_failure_behind_chunks_is_a_result(mode: Mode) -> None:
    async def tell() -> AsyncIterator[str]:
        yield "one"
        raise dispatch.ToolError("out-of-words", "there are no more words")

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        pass

    async with (
        dispatch.connect("memory://", functions(tell=tell)) as dispatcher,
        connected(McpServer(dispatcher), "stdio", mode) as client,
    ):
        result = await client.call_tool("tell", progress_callback=on_progress)
    assert result.is_error
    assert json.loads(text_of(result))["error"] == "out-of-words"


@pytest.mark.wall_clock
@pytest.mark.parametrize("has_progress", [False, True])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("channel", CHANNELS)
async def test_a_cancelled_call_stops_at_the_instance(channel: Channel, mode: Mode, has_progress: bool) -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    async def work(arguments: dict[str, Any]) -> str:
        if arguments:
            return "done"
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return ""

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        pass

    async with stand(work) as (dispatcher, _), connected(McpServer(dispatcher), channel, mode) as client:
        options: dict[str, Any] = {"progress_callback": on_progress} if has_progress else {}
        call = asyncio.create_task(client.call_tool("work", {}, **options))
        await started.wait()
        call.cancel()
        await asyncio.wait_for(stopped.wait(), 10)
        await asyncio.wait([call])
        assert dispatcher.pending_requests == 0
        # The connection goes on.
        assert text_of(await client.call_tool("work", {"more": 1})) == "done"


@pytest.mark.parametrize("mode", MODES)
async def test_an_output_schema_makes_structured_content(mode: Mode) -> None:
    answers = {"work": '{"name": "Köln", "people": 1000000}', "wrong": '{"people": "many"}', "numbers": "[1, 2]"}
    tools = catalog(
        work={"output-schema": CITY},
        wrong={"output-schema": CITY},
        numbers={"output-schema": {"type": "array", "items": {"type": "integer"}}},
    )
    answer = ""
    async with (
        stand(lambda _: answer, tools) as (dispatcher, _),
        connected(McpServer(dispatcher), "process", mode) as client,
    ):
        listed = {tool.name: tool.output_schema for tool in (await client.list_tools()).tools}
        assert listed == {"work": CITY, "wrong": CITY, "numbers": None, "read_result": None}
        answer = answers["work"]
        result = await client.call_tool("work")
        assert result.structured_content == {"name": "Köln", "people": 1_000_000}
        assert json.loads(text_of(result)) == result.structured_content
        answer = answers["wrong"]
        wrong = await client.call_tool("wrong")
        assert wrong.is_error
        error, shown = wrong.content
        assert isinstance(error, TextContent)
        assert isinstance(shown, TextContent)
        assert json.loads(error.text)["error"] == "invalid-output"
        assert json.loads(shown.text) == {"people": "many"}
        answer = answers["numbers"]
        numbers = await client.call_tool("numbers")
        assert (text_of(numbers), numbers.structured_content) == ("[1,2]", None)


@pytest.mark.parametrize("mode", MODES)
async def test_all_parts_of_a_result_are_passed_on(mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = ({"type": "text", "text": "a cat"}, {"type": "image", "data": "AAAA", "mimeType": "image/png"})
    text = "a cat\n[image: image/png, 3 bytes]"
    result = CallResult("work", Outcome.SUCCESS, text, content=parts, structured_content={"cat": True})
    async with stand(lambda _: "") as (dispatcher, _), connected(McpServer(dispatcher), "process", mode) as client:

        async def execute(*_: Any, **__: Any) -> CallResult:
            return result

        monkeypatch.setattr(dispatcher, "execute", execute)
        answer = await client.call_tool("work")
        assert answer.content == [TextContent(text="a cat"), ImageContent(data="AAAA", mime_type="image/png")]
        assert answer.structured_content == {"cat": True}
        long = msgspec.structs.replace(result, text="x" * 60_000)
        monkeypatch.setattr(dispatcher, "execute", lambda *_, **__: asyncio.sleep(0, long))
        cut, image = (await client.call_tool("work")).content
        assert isinstance(cut, TextContent)
        assert len(cut.text) <= 50_000
        assert isinstance(image, ImageContent)


@pytest.mark.wall_clock
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("channel", CHANNELS)
async def test_parts_that_strict_clients_refuse_cost_no_result(
    channel: Channel, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = {"type": "resource_link", "uri": "/tmp/cat.png", "name": "a cat"}
    file, resource = {**link, "uri": "file:///tmp/cat.png"}, {"uri": "cat", "text": "purr"}
    parts = (link, file, {"type": "resource", "resource": resource})
    result = CallResult("work", Outcome.SUCCESS, "a cat", content=parts, structured_content=["a cat"])
    async with stand(lambda _: "") as (dispatcher, _), connected(McpServer(dispatcher), channel, mode) as client:
        monkeypatch.setattr(dispatcher, "execute", lambda *_, **__: asyncio.sleep(0, result))
        answer = await client.call_tool("work")
        assert [each.type for each in answer.content] == ["text", "resource_link", "text"]
        texts = [each.text for each in answer.content if isinstance(each, TextContent)]
        assert texts == ["[link: /tmp/cat.png, a cat]", "purr"]
        assert answer.structured_content == (["a cat"] if mode == "auto" else None)


@pytest.mark.parametrize("mode", MODES)
async def test_arguments_are_checked_here(mode: Mode) -> None:
    service = Service(lambda _: "done")
    schema = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
    async with (
        stand(service, catalog(work={"input-schema": schema})) as (dispatcher, _),
        connected(McpServer(dispatcher), "process", mode) as client,
    ):
        for arguments in ({}, {"number": "one"}):
            result = await client.call_tool("work", arguments)
            assert result.is_error
            error = json.loads(text_of(result))
            assert error["error"] == "invalid-arguments"
            assert "/number" in error["message"]
    assert service.requests == []


@pytest.mark.parametrize("mode", MODES)
async def test_a_cursor_of_another_server_is_an_error_of_the_protocol(mode: Mode) -> None:
    async with stand(lambda _: "") as (dispatcher, _), connected(McpServer(dispatcher), "process", mode) as client:
        for cursor in ("?", "päge", "AAA"):
            with pytest.raises(MCPError) as caught:
                await client.list_tools(cursor=cursor)
            assert caught.value.error.code == INVALID_PARAMS


@pytest.mark.parametrize("mode", MODES)
async def test_permissions_that_cannot_be_resolved_are_said(mode: Mode) -> None:
    async def fail(_: str) -> list[str]:
        raise OSError("no directory")

    tools: Catalog = catalog(work={"permissions": ["work"]})
    async with (
        dispatch.connect("memory://", tools, grants=fail) as dispatcher,
        connected(McpServer(dispatcher, user="alice"), "process", mode) as client,
    ):
        with pytest.raises(MCPError, match="permissions"):
            await client.list_tools()
        result = await client.call_tool("work")
        assert json.loads(text_of(result))["error"] == "permissions-unavailable"


NAMES = st.sets(st.text(min_size=1, max_size=8), max_size=3 * PAGE_SIZE)


@given(NAMES)
def test_pages_are_the_whole_list_in_order(names: set[str]) -> None:
    seen: list[str] = []
    page, cursor = cut_page(names, None)
    seen += page
    while cursor is not None:
        assert len(page) == PAGE_SIZE
        page, cursor = cut_page(names, cursor)
        seen += page
    assert seen == sorted(names)


@given(NAMES, st.sets(st.text(min_size=1, max_size=8), max_size=20), st.data())
def test_a_change_between_pages_moves_no_other_tool(names: set[str], added: set[str], data: st.DataObject) -> None:
    page, cursor = cut_page(names, None)
    if cursor is None:
        return
    removed = data.draw(st.sets(st.sampled_from(sorted(names))))
    changed = (names | added) - removed
    seen = [*page]
    while cursor is not None:
        page, cursor = cut_page(changed, cursor)
        seen += page
    assert len(seen) == len(set(seen))
    assert names - removed <= set(seen)


def test_the_root_of_a_schema_is_an_object() -> None:
    assert complete_schema({"properties": {}}) == {"properties": {}, "type": "object"}
    assert complete_schema({"type": "object"}) == {"type": "object"}


def many(number: int, **others: dict[str, Any]) -> Catalog:
    return catalog(**{f"tool-{at:03}": {"description": f"Counts sheep number {at}."} for at in range(number)}, **others)


async def list_names(client: Client) -> list[str]:
    page = await client.list_tools()
    names = [tool.name for tool in page.tools]
    while page.next_cursor is not None:
        page = await client.list_tools(cursor=page.next_cursor)
        names += [tool.name for tool in page.tools]
    return names


@pytest.mark.costly
@pytest.mark.parametrize("mode", MODES)
async def test_up_to_forty_tools_are_listed_and_more_are_found(mode: Mode) -> None:
    service = Service(lambda arguments: f"called with {arguments}")
    joke = {"description": "Tells a joke about a goat.", "read-only": True}
    async with stand(service, many(MAX_LISTED - 1, joke=joke)) as (dispatcher, _):
        async with connected(McpServer(dispatcher, user="alice"), "process", mode) as client:
            assert len(await list_names(client)) == MAX_LISTED + 1  # with read_result
        await dispatcher.reload(many(MAX_LISTED, joke=joke))
        server = McpServer(dispatcher, user="alice", always=["tool-007", "no-such-tool"])
        async with connected(server, "process", mode) as client:
            assert await list_names(client) == ["call_tool", "find_tools", "read_result", "tool-007"]
            found = json.loads(text_of(await client.call_tool("find_tools", {"query": "joke goat", "limit": 2})))
            first = found["tools"][0]
            assert (first["name"], first["description"], first["read_only"]) == ("joke", joke["description"], True)
            assert first["parameters"]["type"] == "object"
            found = json.loads(text_of(await client.call_tool("find_tools", {"query": "sheep", "limit": 2})))
            assert len(found["tools"]) == 2
            called = await client.call_tool("call_tool", {"name": "joke", "arguments": {"x": 1}})
            assert (text_of(called), called.is_error) == ("called with {'x': 1}", False)
            assert text_of(await client.call_tool("joke")) == "called with {}"  # a client may know the name
    assert [user for *_, user in service.requests] == ["alice", "alice"]


@pytest.mark.parametrize("mode", MODES)
async def test_the_search_can_be_forced_and_forbidden(mode: Mode) -> None:
    async with stand(lambda _: "done", many(2 * PAGE_SIZE)) as (dispatcher, _):
        async with connected(McpServer(dispatcher, search="never"), "process", mode) as client:
            names = await list_names(client)
            assert len(names) == 2 * PAGE_SIZE + 1
            assert names == sorted(names)
        await dispatcher.reload(catalog(work={}))
        async with connected(McpServer(dispatcher, search="always"), "process", mode) as client:
            assert await list_names(client) == ["call_tool", "find_tools", "read_result"]
        with pytest.raises(ValueError, match="search"):
            McpServer(dispatcher, search="maybe")  # type: ignore[typeddict-item] # a value that a user may write


async def test_their_arguments_are_checked() -> None:
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("find_tools", {}, "/query"),
        ("find_tools", {"query": ""}, "/query"),
        ("find_tools", {"query": "x", "limit": 0}, "/limit"),
        ("find_tools", {"query": "x", "depth": 1}, "/depth"),
        ("call_tool", {"arguments": {}}, "/name"),
        ("call_tool", {"name": "work", "arguments": []}, "/arguments"),
        ("read_result", {}, "/handle"),
    ]
    async with (
        stand(lambda _: "done") as (dispatcher, _),
        connected(McpServer(dispatcher, search="always"), "process", "auto") as client,
    ):
        for name, arguments, place in cases:
            result = await client.call_tool(name, arguments)
            assert result.is_error
            error = json.loads(text_of(result))
            assert error["error"] == "invalid-arguments"
            assert place in error["message"]


@pytest.mark.parametrize("mode", MODES)
async def test_call_tool_answers_as_the_tool_does(mode: Mode) -> None:
    async with (
        stand(lambda _: "x" * 60_000) as (dispatcher, _),
        connected(McpServer(dispatcher, search="always"), "process", mode) as client,
    ):
        for name in ("wrok", "call_tool", "find_tools"):
            result = await client.call_tool("call_tool", {"name": name})
            assert json.loads(text_of(result))["error"] == "unknown-tool"
        shown = text_of(await client.call_tool("call_tool", {"name": "work"}))
        handle = shown.rpartition('handle="')[2].partition('"')[0]
        arguments = {"handle": handle, "offset": 59_990}
        whole = await client.call_tool("call_tool", {"name": "read_result", "arguments": arguments})
        assert text_of(whole) == "x" * 10


@pytest.mark.parametrize("mode", MODES)
async def test_tools_of_the_catalogue_keep_their_names(mode: Mode) -> None:
    service = Service(lambda arguments: f"mine: {arguments}")
    tools = catalog(find_tools={}, read_result={}, work={})
    async with (
        stand(service, tools) as (dispatcher, _),
        connected(McpServer(dispatcher, search="always", always=["find_tools"]), "process", mode) as client,
    ):
        assert await list_names(client) == ["call_tool", "find_all_tools", "find_tools", "read_result"]
        assert text_of(await client.call_tool("find_tools")) == "mine: {}"
        found = json.loads(text_of(await client.call_tool("find_all_tools", {"query": "work"})))["tools"]
        assert found[0]["name"] == "work"
        # A handle decides whose read_result it is.
        assert text_of(await client.call_tool("read_result", {"handle": "x"})) == "mine: {'handle': 'x'}"
        handle = dispatcher.results.add("whole", "")
        assert text_of(await client.call_tool("read_result", {"handle": handle})) == "whole"


@pytest.mark.costly
@pytest.mark.parametrize("mode", MODES)
async def test_users_see_and_find_what_they_may_call(mode: Mode) -> None:
    tools = catalog(work={}, secret={"permissions": ["secrets"], "description": "Tells a secret."})
    grants = Grants.of({"users": {"alice": ["secrets"], "bob": []}})
    async with serving(lambda _: "done"), Dispatcher(MemoryTransport(BROKER), tools, grants=grants) as dispatcher:
        for user, names in (("alice", ["secret", "work"]), ("bob", ["work"])):
            async with connected(McpServer(dispatcher, user=user), "process", mode) as client:
                assert await list_names(client) == sorted([*names, "read_result"])
            async with connected(McpServer(dispatcher, user=user, search="always"), "process", mode) as client:
                found = json.loads(text_of(await client.call_tool("find_tools", {"query": "secret"})))["tools"]
                assert sorted(each["name"] for each in found if each["name"] != "work") == names[:-1]
                result = await client.call_tool("call_tool", {"name": "secret"})
                assert result.is_error is (user == "bob")


async def test_a_function_of_the_request_names_the_user() -> None:
    service = Service(lambda _: "done")
    async with stand(service) as (dispatcher, _):
        server = McpServer(dispatcher, user=lambda request: f"user of {request.method}")
        async with connected(server, "process", "auto") as client:
            await client.call_tool("work")
    assert [user for *_, user in service.requests] == ["user of tools/call"]


@pytest.mark.wall_clock
async def test_lists_are_stale_at_once() -> None:
    async with stand(lambda _: "") as (dispatcher, _), connected(McpServer(dispatcher), "stdio", "auto") as client:
        page = await client.list_tools()
        assert (page.ttl_ms, page.cache_scope) == (0, "private")


class Notifications:
    """Counts the notifications that a client receives.

    Attributes:
        number: of them.
    """

    def __init__(self) -> None:
        self.number = 0
        self._arrived = asyncio.Event()

    async def on_message(self, message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            self.number += 1
            self._arrived.set()

    @contextlib.asynccontextmanager
    async def of(self, client: Client, mode: Mode) -> AsyncIterator[None]:
        """Listen, if the client's generation of the protocol has to."""
        if mode == "legacy":
            yield
            return
        async with client.listen(tools_list_changed=True):
            yield

    async def wait(self) -> float:
        """Wait for the next one; return the seconds that it took."""
        started = time.monotonic()
        await asyncio.wait_for(self._arrived.wait(), 10)
        self._arrived.clear()
        return time.monotonic() - started


@pytest.mark.wall_clock
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("channel", CHANNELS)
@pytest.mark.costly
async def test_many_changes_are_one_notification(channel: Channel, mode: Mode) -> None:
    seen = Notifications()
    async with (
        dispatching(catalog(work={})) as dispatcher,
        connected(McpServer(dispatcher), channel, mode, message_handler=seen.on_message) as client,
        seen.of(client, mode),
    ):
        assert client.server_capabilities.tools.list_changed
        assert [tool.name for tool in (await client.list_tools()).tools] == ["read_result", "work"]
        for _ in range(3 if mode == "legacy" else 0):
            await client.session.send_notification(InitializedNotification())  # some clients do so again
        await dispatcher.reload(catalog(work={}, more={}))
        for number in range(10):
            await dispatcher.reload(catalog(work={}, **{f"more-{number}": {}}))
        assert await seen.wait() < 1
        assert [tool.name for tool in (await client.list_tools()).tools] == ["more-9", "read_result", "work"]
        await asyncio.sleep(0.6)  # for a notification that must not come
        assert seen.number <= 2
        number = seen.number
        await dispatcher.reload(catalog(work={}, last={}))
        assert await seen.wait() < 1
        assert seen.number == number + 1


@pytest.mark.wall_clock
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("channel", CHANNELS)
async def test_a_client_that_does_not_listen_gets_the_new_list(channel: Channel, mode: Mode) -> None:
    async with dispatching(catalog(work={})) as dispatcher, connected(McpServer(dispatcher), channel, mode) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["read_result", "work"]
        await dispatcher.reload(catalog(work={}, more={}))
        assert [tool.name for tool in (await client.list_tools()).tools] == ["more", "read_result", "work"]


@pytest.mark.wall_clock
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.costly
async def test_changed_permissions_change_the_list(mode: Mode, tmp_path: Path) -> None:
    file = tmp_path / "grants.json"
    file.write_text(json.dumps({"users": {"alice": []}}))
    tools, seen = catalog(work={}, secret={"permissions": ["secrets"]}), Notifications()
    async with (
        Dispatcher(MemoryTransport(BROKER), tools, grants=Grants.load(file)) as dispatcher,
        connected(McpServer(dispatcher, user="alice"), "stdio", mode, message_handler=seen.on_message) as client,
        seen.of(client, mode),
    ):
        assert [tool.name for tool in (await client.list_tools()).tools] == ["read_result", "work"]
        file.write_text(json.dumps({"users": {"alice": ["secrets"]}}))
        await seen.wait()
        assert [tool.name for tool in (await client.list_tools()).tools] == ["read_result", "secret", "work"]


@pytest.mark.wall_clock
@pytest.mark.parametrize("mode", MODES)
async def test_a_closed_session_leaves_nothing_behind(mode: Mode) -> None:
    async with dispatching(catalog(work={})) as dispatcher:
        server = McpServer(dispatcher)
        before = len(dispatcher._events)
        for _ in range(3):
            seen = Notifications()
            async with (
                connected(server, "stdio", mode, message_handler=seen.on_message) as client,
                seen.of(client, mode),
            ):
                await client.list_tools()
        assert len(dispatcher._events) == before
        await dispatcher.reload(catalog(other={}))  # notifies no closed session


@pytest.mark.wall_clock
@pytest.mark.costly
async def test_an_equal_catalogue_is_no_change() -> None:
    seen = Notifications()
    async with (
        dispatching(catalog(work={})) as dispatcher,
        connected(McpServer(dispatcher), "stdio", "legacy", message_handler=seen.on_message) as client,
    ):
        await client.list_tools()
        await dispatcher.reload(catalog(work={}))
        await asyncio.sleep(0.6)  # for a notification that must not come
        assert seen.number == 0
