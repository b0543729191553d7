"""Replies as foreign servers write them: each call ends at once, with a name for what happened, and no reply is logged.
Lists of tools as foreign servers write them: one bad tool costs itself, and no list is read for ever.
Results of MCP: what a model reads, and what else there is.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import pprint
import re
from collections.abc import AsyncIterator, Callable
from email.utils import formatdate
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import types

import dispatch
import dispatch.mcp.sessions
import dispatch.mcp.transports
from dispatch._internal import cancel_and_wait
from dispatch.calls.local import LocalResult
from dispatch.errors import ToolError
from dispatch.mcp.conversion import read_result
from dispatch.mcp.replies import TransportFailure
from dispatch.mcp.sessions import Pages, ToolList
from dispatch.mcp.transports import HttpClient, LastLine, read_retry_after, trusted_certificates
from dispatch.results import ResultContent
from tests.helpers.mcp_servers.programs import call_until_ok, connected, until
from tests.helpers.mcp_servers.scripted import MODERN, Answer, event, result, scripted_http, scripted_stdio, tool

pytestmark = pytest.mark.wall_clock

SECRET = "secret-page"


def failure(code: int, message: str = "it broke", id: str = "@ID@") -> str:
    return f'{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":"{message}"}}}}'


TEXT = {"type": "text", "text": "fine"}
GOOD = result({"content": [TEXT]})
DEEP = "[" * 5_000 + "]" * 5_000
LESS_DEEP = "[" * 300 + "]" * 300
"""What Python's JSON reads, but not what the SDK does."""
MALFORMED = {
    "half a surrogate pair": result({"content": [{"type": "text", "text": "secret-page \ud83d"}]}),
    "not UTF-8": '{"jsonrpc":"2.0","id":@ID@,"result":{"content":[{"type":"text","text":"secret-page \xff"}]}}',
    "a control character": '{"jsonrpc":"2.0","id":@ID@,"result":{"content":[{"type":"text","text":"secret-page \t"}]}}',
    "no result": '{"jsonrpc":"2.0","id":@ID@,"result":null}',
    "a result that is a list": '{"jsonrpc":"2.0","id":@ID@,"result":["secret-page"]}',
    "an error without a message": '{"jsonrpc":"2.0","id":@ID@,"error":{"code":-32000}}',
    "an error with a code that is a text": '{"jsonrpc":"2.0","id":@ID@,"error":{"code":"E42","message":"secret-page"}}',
    "an error that is a text": '{"jsonrpc":"2.0","id":@ID@,"error":"secret-page"}',
    "no version": '{"id":@ID@,"result":{"content":[{"type":"text","text":"secret-page"}]}}',
    "another version": '{"jsonrpc":"1.0","result":{"content":[{"type":"text","text":"secret-page"}]},"id":@ID@}',
    "the id at the end": '{"jsonrpc":"2.0","result":{"content":[{"type":"text","text":"secret-page \\ud83d"}]},"id":@ID@}',
    "deep nesting": result({"content": [], "structuredContent": {"id": 7, "a": "DEEP"}}).replace('"DEEP"', DEEP),
    "nesting that JSON reads": result({"content": [], "structuredContent": "DEEP"}).replace('"DEEP"', LESS_DEEP),
    "such nesting behind text": "x " + result({"content": [], "_meta": {"a": "DEEP"}}).replace('"DEEP"', LESS_DEEP),
    "a cut line": '{"jsonrpc":"2.0","id":@ID@,"result":{"content":[{"type":"text","text":"secret-page',
    "no content": result({"value": "secret-page"}),
    "an id that no request has": GOOD.replace("@ID@", "[@ID@]"),
    "text in front of an unreadable one": "x " + result({"content": [{"type": "text", "text": "secret-page \ud83d"}]}),
}
_REPLY = {"jsonrpc": "2.0", "id": "@ID@", "result": {"content": [{"type": "text", "text": "it's secret-page"}]}}
SPLIT = {
    "over several lines": json.dumps(_REPLY, indent=2),
    "with another order of keys": json.dumps(dict(reversed(_REPLY.items())), indent="\t"),
    "in Python's form": str(_REPLY),
    "in Python's form, over several lines": pprint.pformat(_REPLY),
    "over several lines, without an id": json.dumps({**_REPLY, "id": None}, indent=2),
    "an error": json.dumps({"jsonrpc": "2.0", "id": "@ID@", "error": {"code": -1, "message": "secret-page"}}, indent=2),
    "behind a line of a log": "{starting, it's time}\n" + json.dumps(_REPLY, indent=2),
    "in front of a notification": f'{json.dumps(_REPLY, indent=2)}\n{{"jsonrpc":"2.0","method":"notifications/message"}}',
}
SPLIT = {name: re.sub("[\"']@ID@[\"']", "@ID@", text) for name, text in SPLIT.items()}
NOTE = '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"secret-page"}}'
READABLE: dict[str, str] = {
    "a notification in front": f"{NOTE}{GOOD}",
    "a notification behind": f"{GOOD} {NOTE}",
    "text in front": f"[INFO] sends {GOOD}",
    "text behind": f"{GOOD} secret-page",
    "colours": f"\x1b[32m{GOOD}\x1b[0m",
    "a copy of the request in front": '[INFO] has {"jsonrpc":"2.0","id":@ID@,"method":"ping","params":{}}\n' + GOOD,
    "a copy in Python's form in front": SPLIT["in Python's form"] + f"\n{GOOD}",
    "a copy over several lines in front": f"{SPLIT['over several lines']}\n{GOOD}",
    "a method": GOOD.replace('"result"', '"method": "tools/call", "result"'),
    "an error that is null": GOOD[:-1] + ', "error": null}',
    "an id that is a text": GOOD.replace("@ID@", '"@ID@"'),
    "an id that is a text with a blank": GOOD.replace("@ID@", '" @ID@"'),
    "an id with a fraction of zero": GOOD.replace("@ID@", "@ID@.0"),
    "an id with an exponent of zero": GOOD.replace("@ID@", "@ID@e0"),
    "an id that is a text with zeros": GOOD.replace("@ID@", '"00@ID@"'),
    "an id that is a text with a sign": GOOD.replace("@ID@", '"+@ID@"'),
    "a notification that is not valid": NOTE.replace('"level":"info",', "") + "\n" + GOOD,
    "progress that is a list": NOTE.replace("message", "progress").replace("{", "[") + "\n" + GOOD,
    "content that is a text": result({"content": "fine"}),
    "content that is a block": result({"content": TEXT}),
    "a list of texts": result({"content": ["fine"]}),
    "a block without a type": result({"content": [{"text": "fine"}]}),
    "a block that is null": result({"content": [None, TEXT]}),
    "a list as metadata": result({"content": [{**TEXT, "_meta": []}], "_meta": []}),
    "a list for no annotations": result({"content": [{**TEXT, "annotations": []}]}),
    "annotations that are not valid": result({"content": [{**TEXT, "annotations": {"audience": ["robot"]}}]}),
    "an object for no error": result({"content": [TEXT], "isError": {}}),
}
LONG = "x" * 20_000
BLOCKS: dict[str, tuple[dict[str, Any], str]] = {
    "of an unknown kind": ({"type": "json", "json": {"a": 1}}, '{"type":"json","json":{"a":1}}'),
    "of an unknown kind, long": ({"type": "film", "data": LONG}, "[content of an unknown kind, 20,025 characters]"),
    "with a number as text": ({"type": "text", "text": 4711}, "4711"),
    "with an object as text": ({"type": "text", "text": {"a": 1}}, '{"a":1}'),
    "with null as text": ({"type": "text", "text": None}, ""),
    "with a picture of no type": ({"type": "image", "data": "AAAA"}, "[image: application/octet-stream, 3 bytes]"),
}


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO)
    caplog.set_level(logging.INFO, "dispatch")  # a command line that ran before may have set it
    return caplog


async def assert_malformed(dispatcher: dispatch.Dispatcher, name: str, reason: str = "") -> None:
    found = await dispatcher.execute(name, {}, timeout=30)
    assert (found.error.type, found.outcome) == ("malformed-reply", "transport"), name
    assert found.duration < 15, name
    assert SECRET not in found.error.message
    assert "4711" not in found.error.message
    assert reason in found.error.message


async def test_an_unreadable_reply_on_stdio_ends_its_call(logged: pytest.LogCaptureFixture) -> None:
    answers = {f"tool-{number}": text for number, text in enumerate(MALFORMED.values())}
    async with connected({"s": scripted_stdio({**answers, "good": GOOD}, policy={"breaker": None})}) as dispatcher:
        for name in answers:
            await assert_malformed(dispatcher, name)
        assert await dispatcher.call("good", {}) == "fine"
    assert SECRET not in logged.text


async def test_a_reply_that_is_no_json_in_one_line_ends_its_call(logged: pytest.LogCaptureFixture) -> None:
    answers = {f"tool-{number}": text for number, text in enumerate(SPLIT.values())}
    async with connected({"s": scripted_stdio({**answers, "good": GOOD}, policy={"breaker": None})}) as dispatcher:
        for name in answers:
            await assert_malformed(dispatcher, name, "(no JSON in one line; MCP has one message per line)")
        assert await dispatcher.call("good", {}) == "fine"
        two = [asyncio.create_task(dispatcher.execute(name, {}, timeout=1.5)) for name in ("tool-0", "tool-4")]
        named, unnamed = await asyncio.gather(*two)
        assert named.error.type == "malformed-reply"
        assert unnamed.error.type == "timeout", "of two, none is certainly meant"
    assert SECRET not in logged.text


@pytest.mark.parametrize("rows", [5_000, 70_000], ids=["0.4 MB", "5 MB"])
async def test_a_long_reply_over_several_lines_ends_its_call(logged: pytest.LogCaptureFixture, rows: int) -> None:
    reply = {"jsonrpc": "2.0", "id": "@ID@", "result": {"content": [], "structuredContent": {"rows": ["@ROWS@"]}}}
    last_first = dict(reversed(reply.items()))
    texts = [json.dumps(reply, indent=2), json.dumps(last_first, indent=2), json.dumps(reply, indent=0)]
    answers = {f"tool-{n}": re.sub('"(@[A-Z]+@)"', r"\1", text) for n, text in enumerate(texts)}
    entry = scripted_stdio({**answers, "good": GOOD}, rows=rows, policy={"breaker": None})
    async with connected({"s": entry}) as dispatcher:
        for name in answers:
            await assert_malformed(dispatcher, name, "(no JSON in one line; MCP has one message per line)")
            assert await dispatcher.call("good", {}) == "fine"
    assert SECRET not in logged.text


async def test_a_server_that_writes_no_message_in_one_line_is_told_about() -> None:
    welcome = SPLIT["an error"]
    entry = scripted_stdio({}, before="exit")
    entry["args"][-1] = json.dumps({**json.loads(entry["args"][-1]), "before": "", "welcome": welcome})
    async with connected({"s": entry}) as dispatcher:
        [source] = dispatcher.registry.sources()
        assert "MCP has one message per line" in str(source.problem)


@pytest.mark.parametrize("is_modern", [False, True], ids=["legacy", "2026-07-28"])
async def test_an_unusual_reply_on_stdio_is_read(logged: pytest.LogCaptureFixture, is_modern: bool) -> None:
    answers = {f"tool-{number}": text for number, text in enumerate(READABLE.values())}
    blocks = {f"block-{n}": result({"content": [TEXT, block]}) for n, (block, _) in enumerate(BLOCKS.values())}
    entry = scripted_stdio({**answers, **blocks}, is_modern=is_modern)
    async with connected({"s": entry}) as dispatcher:
        for name, kind in zip(answers, READABLE, strict=True):
            found = await dispatcher.execute(name, {}, timeout=10)
            assert (kind, found.error, found.text) == (kind, None, "fine")
        for name, (_, text) in zip(blocks, BLOCKS.values(), strict=True):
            assert await dispatcher.call(name, {}) == f"fine\n{text}"
    assert SECRET not in logged.text


async def test_an_error_on_stdio_that_names_no_request_is_that_of_the_only_one() -> None:
    error = failure(-32000, id="null")
    async with connected({"s": scripted_stdio({"work": error, "good": GOOD})}) as dispatcher:
        found = await dispatcher.execute("work", {}, timeout=30)
        assert (found.error.type, found.duration < 15) == ("server-failed", True)
        assert await dispatcher.call("good", {}) == "fine"


@pytest.mark.parametrize("id", ["4711", '"call-@ID@"', "-1", '"@ID@.0"'])
async def test_a_reply_on_stdio_to_a_request_that_was_never_sent_ends_the_only_one(id: str) -> None:
    wrong = GOOD.replace("@ID@", id)
    answers = {"work": wrong, "both": f"{wrong}\n{GOOD}", "good": GOOD, "signed": GOOD.replace("@ID@", '"+@ID@"')}
    async with connected({"s": scripted_stdio(answers)}) as dispatcher:
        assert await dispatcher.call("signed", {}) == "fine"
        await assert_malformed(dispatcher, "work", "its id is that of no request")
        assert await dispatcher.call("both", {}) == "fine"
        assert await dispatcher.call("good", {}) == "fine"


@pytest.mark.parametrize("id", ["", '"id":null,', '"id":-1,', '"id":"0",'])
@pytest.mark.parametrize("answer", ['"error":{"code":-32601,"message":"no such method"}', '"result":{}'])
async def test_an_answer_to_a_notification_is_that_of_no_request(id: str, answer: str) -> None:
    note = f'{{"jsonrpc":"2.0",{id}{answer}}}'
    async with connected({"s": scripted_stdio({"work": note, "good": GOOD}, note=note)}) as dispatcher:
        assert await dispatcher.call("good", {}) == "fine"
        assert (await dispatcher.execute("work", {}, timeout=30)).duration < 15


@pytest.mark.parametrize("exits", [False, True])
async def test_a_message_without_a_line_end_is_read(exits: bool) -> None:
    async with connected({"s": scripted_stdio({"work": GOOD}, end="", exits=exits)}) as dispatcher:
        assert await dispatcher.call("work", {}) == "fine"


async def test_a_storm_of_notifications_does_not_stop_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    received = most = 0

    async def count(_list: ToolList, _message: object) -> None:
        nonlocal received
        received += 1

    async def tick() -> None:
        nonlocal most
        while True:
            before = received
            await asyncio.sleep(0)
            most = max(most, received - before)

    monkeypatch.setattr(ToolList, "on_message", count)
    different = '{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"_meta":{"n":%d}}}\n'
    answers = {"equal": 600 * (different % 0) + GOOD, "different": "".join(map(different.__mod__, range(600))) + GOOD}
    async with connected({"s": scripted_stdio(answers)}) as dispatcher:
        ticking = asyncio.create_task(tick())
        assert await dispatcher.call("equal", {}) == "fine"
        assert received < 300
        assert await dispatcher.call("different", {}) == "fine"
        assert received >= 600
        await cancel_and_wait((ticking,))
    assert most < 20


async def test_of_a_storm_of_lines_on_stdout_few_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(LastLine, "add", lambda _, line, __: lines.append(line))
    answers = {"busy": "begin\n" + 20_000 * "x\n" + "end\n" + GOOD}
    async with connected({"s": scripted_stdio(answers)}) as dispatcher:
        assert await dispatcher.call("busy", {}) == "fine"
    assert lines[0] == "(stdout) begin"
    assert lines[-1] == "(stdout) end"
    assert len(lines) < 3_000


@pytest.mark.parametrize("is_stream", [False, True], ids=["json", "events"])
@pytest.mark.costly
async def test_an_unreadable_reply_over_http_ends_its_call(logged: pytest.LogCaptureFixture, is_stream: bool) -> None:
    answers = dict(enumerate(MALFORMED.values()))

    def answer(message: dict[str, Any], _: object) -> Answer:
        text = answers.get(int(message["params"]["name"].partition("-")[2]), GOOD)
        return event(text) if is_stream else Answer(text)

    names = [f"tool-{number}" for number in answers]
    async with over_http(answer, tools=[*names, "good-99"], entry={"policy": {"breaker": None}}) as (dispatcher, _):
        for name in names:
            await assert_malformed(dispatcher, name)
        assert await dispatcher.call("good-99", {}) == "fine"
    assert SECRET not in logged.text


OTHER = '{"jsonrpc":"2.0","id":"another","result":{"content":[]}}'
NO_RESULTS: list[tuple[Answer, str]] = [
    (Answer("<html>secret-page</html>", kind="text/html"), "malformed-reply"),
    (Answer("secret-page"), "malformed-reply"),
    (Answer(""), "malformed-reply"),
    (Answer("", 202), "malformed-reply"),
    (Answer("", 204), "malformed-reply"),
    (Answer(OTHER), "malformed-reply"),
    (Answer(GOOD, headers={"Content-Encoding": "gzip"}), "malformed-reply"),
    (Answer(f"data: {GOOD}\n\n", kind="text/event-stream", headers={"Content-Encoding": "gzip"}), "malformed-reply"),
    (Answer(NOTE.replace('"secret-page"', "1")), "malformed-reply"),
    (event("secret-page"), "malformed-reply"),
    (event(OTHER), "malformed-reply"),
    (event(OTHER)._replace(is_open=True), "malformed-reply"),
    (Answer("id: 1\ndata:\n\n", kind="text/event-stream"), "instance-lost"),
    (Answer(": nothing\n\n", kind="text/event-stream"), "instance-lost"),
    (Answer(failure(-32000, id="null")), "server-failed"),
    (Answer('{"jsonrpc":"2.0","error":{"code":-32000,"message":"it broke"}}'), "server-failed"),
    (Answer(failure(-32602, id="null"), 400), "invalid-arguments"),
    (event(failure(-32000, id="null")), "server-failed"),
    *(
        (Answer(failure(-32602, text)), type)
        for text, type in {
            "Unknown tool: work": "unknown-tool",  # of MCP's text and the SDK for Python; those of two in Go and of Rust
            r"unknown tool \"work\"": "unknown-tool",
            "tool 'work' not found: tool not found": "unknown-tool",
            "tool not found": "unknown-tool",
            "Tool work: city not found": "invalid-arguments",
            "unknown tool_choice": "invalid-arguments",
        }.items()
    ),
    (Answer(failure(-32981)), "server-failed"),
    (Answer("<html>secret-page</html>", 502, "text/html"), "server-failed"),
    (Answer('{"error":"secret-page"}', 400), "server-failed"),
    (Answer("secret-page", 404, "text/plain"), "unknown-tool"),
]
RESULTS = [
    Answer(GOOD, kind="text/plain"),
    Answer("\xef\xbb\xbf" + GOOD),
    Answer(f"[{GOOD}]"),
    Answer(f"[{OTHER},{GOOD}]"),
    Answer(GOOD.replace("@ID@", "@ID@.0")),
    event(OTHER, GOOD)._replace(is_open=True),
    Answer(f"data: {GOOD}\r\r", kind="text/event-stream", is_open=True),
    Answer(f"data: {GOOD}\r\n\r\n", kind="text/event-stream; charset=utf-16", is_open=True),
    Answer(GOOD.replace("@ID@", '"@ID@"')),
    event('{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"\\ud83d"}}', "[DONE]", GOOD),
    event('{"jsonrpc":"2.0","id":"a","method":"sampling/createMessage","params":"secret-page"}', GOOD),
    event(GOOD.replace('"result"', '\ndata: "result"')),
    Answer("id: 1\ndata:\n\nevent: ping\ndata: x\n\ndata: " + GOOD + "\n\n", kind="text/event-stream; charset=utf-8"),
    Answer("event: message\ndata: " + GOOD, kind="text/event-stream"),
    Answer("\xef\xbb\xbfdata: " + GOOD + "\n", kind="text/event-stream"),
]


@contextlib.asynccontextmanager
async def over_http(
    answer: Any, *, entry: dict[str, Any] | None = None, refuse_all: Answer | None = None, **options: Any
) -> AsyncIterator[tuple[dispatch.Dispatcher, Any]]:
    """A dispatcher with the tools of a scripted server; ``entry`` is what its entry has besides the address."""
    with scripted_http(answer, **options) as server:
        server.refuse_all = refuse_all
        async with connected({"s": {"url": server.url, **(entry or {})}}) as dispatcher:
            yield dispatcher, server


@contextlib.asynccontextmanager
async def connected_to(*answers: Answer) -> AsyncIterator[tuple[dispatch.Dispatcher, list[Any]]]:
    """A dispatcher with a server for each answer; their tools are ``s0-work`` and so on."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(scripted_http(answer)) for answer in answers]
        entries = {f"s{number}": {"url": each.url, "prefix": "always"} for number, each in enumerate(servers)}
        async with connected(entries) as dispatcher:
            yield dispatcher, servers


@pytest.mark.costly
async def test_other_replies_over_http_that_are_no_results(logged: pytest.LogCaptureFixture) -> None:
    async with connected_to(*(answer for answer, _ in NO_RESULTS)) as (dispatcher, servers):
        for number, (server, (answer, type)) in enumerate(zip(servers, NO_RESULTS, strict=True)):
            found = await dispatcher.execute(f"s{number}-work", {}, timeout=30)
            assert found.error.type == type, answer
            assert found.duration < 15, answer
            assert SECRET not in found.error.message
            assert server.requests.count("tools/call") == 1, answer
    assert SECRET not in logged.text


@pytest.mark.costly
async def test_unusual_replies_over_http_that_are_results(logged: pytest.LogCaptureFixture) -> None:
    async with connected_to(*RESULTS) as (dispatcher, _):
        for number, answer in enumerate(RESULTS):
            assert await dispatcher.call(f"s{number}-work", {}) == "fine", answer
    assert SECRET not in logged.text


@pytest.mark.costly
async def test_a_call_that_is_cancelled_leaves_no_connection_at_a_server_that_never_answers() -> None:
    for answer in (Answer(is_open=True), Answer(": nothing\n\n", kind="text/event-stream", is_open=True)):
        async with over_http(answer) as (dispatcher, server):
            found = await asyncio.gather(*(dispatcher.execute("work", {}, timeout=0.5) for _ in range(8)))
            assert [each.outcome for each in found] == ["timeout"] * 8
            await until(lambda server=server: server.open == 0)


@pytest.mark.costly
async def test_a_stream_that_a_server_ends_before_the_reply_is_resumed_until_its_call_is_cancelled() -> None:
    begin = Answer("id: \xc3\xa9 7\ndata:\n\n", kind="text/event-stream")
    async with over_http(begin) as (dispatcher, server):
        server.resumed = event(GOOD), []
        assert await dispatcher.call("work", {}) == "fine"
        assert server.resumed[1] == ["\xc3\xa9 7"]
        server.resumed = begin, []
        found = await dispatcher.execute("work", {}, timeout=2)
        assert (found.outcome, len(server.resumed[1]) > 0) == ("timeout", True)
        resumed = len(server.resumed[1])
        await asyncio.sleep(3)
        assert len(server.resumed[1]) == resumed


async def test_a_reply_of_many_megabytes_in_one_event() -> None:
    async with over_http(event(result({"content": [{"type": "text", "text": "x" * 3_000_000}]}))) as (dispatcher, _):
        assert len(await dispatcher.call("work", {})) == 3_000_000


async def test_a_reply_over_http_without_an_end_is_read_as_far_as_a_message_may_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatch.mcp.transports, "MAX_MESSAGE_BYTES", 10_000)
    large = Answer(result({"content": [{"type": "text", "text": "x" * 100_000}]}))
    async with connected_to(large, Answer(large.body, 500), Answer(GOOD)) as (dispatcher, _):
        for number in range(2):
            found = await dispatcher.execute(f"s{number}-work", {}, timeout=30)
            assert (found.error.type, "more than 10000 bytes" in found.error.message) == ("malformed-reply", True)
        assert await dispatcher.call("s2-work", {}) == "fine"


async def test_a_cut_event_without_a_blank_line_is_a_lost_reply() -> None:
    async with connected_to(Answer("data: " + GOOD[:40], kind="text/event-stream")) as (dispatcher, _):
        found = await dispatcher.execute("s0-work", {}, timeout=30)
        assert found.error.type == "instance-lost"


async def test_a_session_id_that_no_header_can_have_is_told() -> None:
    async with over_http(Answer(GOOD), refuse=Answer(status=404), session="s\xe9cret") as (dispatcher, _):
        [source] = dispatcher.registry.sources()
        assert "Mcp-Session-Id has other characters than visible ASCII" in source.problem
        assert "cret" not in source.problem


async def test_a_log_on_stdout_ends_no_call() -> None:
    request = {"jsonrpc": "2.0", "id": "@ID@", "method": "tools/call", "params": {"result": 1}}
    entry = {"level": "info", "id": "@ID@", "result": "done", "error": None}
    texts = [json.dumps(request, indent=2), str(request), json.dumps(entry, indent=2), str(entry), "{\n}", "{a"]
    texts += ["INFO sends " + str(_REPLY), "  " + str(_REPLY), "[" + str(_REPLY) + "]"]

    lines = "\n".join(text.replace("'@ID@'", "@ID@").replace('"@ID@"', "@ID@") for text in texts)
    async with connected({"s": scripted_stdio({"work": lines})}) as dispatcher:
        found = await dispatcher.execute("work", {}, timeout=2)
        assert found.error.type == "timeout"


async def test_unusual_replies_on_stdio_that_are_results_and_lines_that_are_none(
    logged: pytest.LogCaptureFixture,
) -> None:
    log, other = '{"level":"info","id":@ID@,"msg":"a line of a log"}', '{"jsonrpc":"2.0","result":"secret-page"}'
    broken = '{"jsonrpc":"2.0","id":@ID@,"result":{"content":[{"type":"text","text":"one\nsecret-page"}]}}'
    lines = "\n".join(["hello", log, "[INFO] ready", other, GOOD])
    answers = {"log": lines, "mark": "\xef\xbb\xbf" + GOOD, "batch": f"[{GOOD}]", "end": GOOD + "\r"}
    async with connected({"s": scripted_stdio({**answers, "broken": broken})}) as dispatcher:
        for name in answers:
            assert await dispatcher.call(name, {}) == "fine"
        await assert_malformed(dispatcher, "broken")
        assert await dispatcher.call("mark", {}) == "fine"
    assert SECRET not in logged.text
    assert "s: (stdout) hello" in logged.text
    assert "s: (stdout) [INFO] ready" in logged.text
    assert "a line of a log" in logged.text
    assert any("an unreadable message of" in each for each in logged.messages)


def answer_by_name(answers: dict[str, str]) -> Callable[[dict[str, Any], object], Answer]:
    return lambda message, _: Answer(answers[message["params"]["name"]])


@pytest.mark.parametrize("is_http", [False, True], ids=["stdio", "http"])
async def test_numbers_that_json_does_not_have(is_http: bool) -> None:
    numbers = ["NaN", "Infinity", "-Infinity", "1e999", "-1E+400", "1" * 400 + ".0"]
    answers = {}
    for at, number in enumerate(numbers):
        bad = result({"content": [], "structuredContent": {"a": [{"b": "NUMBER"}]}})
        answers[f"bad-{at}"] = bad.replace('"NUMBER"', number)
        good = {"type": "text", "text": f"{number} Infinity 1e999"}
        answers[f"good-{at}"] = result({"content": [good], "structuredContent": {"a": 1e300}})
    with scripted_http(answer_by_name(answers), tools=[*answers]) as server:
        entry = {"url": server.url} if is_http else scripted_stdio(answers)
        async with connected({"s": entry}) as dispatcher:
            for at, number in enumerate(numbers):
                found = await dispatcher.execute(f"bad-{at}", {}, timeout=30)
                assert isinstance(found.error, dispatch.ToolError)
                assert found.error.type == "invalid-result"
                assert "was executed" in found.error.message
                assert number in await dispatcher.call(f"good-{at}", {})


# -- results in old and new forms --------------------------------------------------------------------------------------
X = {"type": "text", "text": "x"}
PICTURE = {"type": "image", "data": "AAAA", "mimeType": "image/png"}
STRUCTURED = {
    "no text": ({"content": [], "structuredContent": {"a": [1, "größe"]}}, '{"a":[1,"größe"]}'),
    "no content": ({"structuredContent": {"a": 1}}, '{"a":1}'),
    "null for an empty list": ({"content": None, "structuredContent": {"a": 1}, "isError": None}, '{"a":1}'),
    "an empty text": ({"content": [{"type": "text", "text": ""}], "structuredContent": {"a": 1}}, '{"a":1}'),
    "a text": ({"content": [X], "structuredContent": {"a": 1}}, "x"),
    "null, which is nothing": ({"content": [X], "structuredContent": None}, "x"),
    "a list": ({"content": [], "structuredContent": [1, 2]}, "[1,2]"),
    "nothing": ({"content": []}, ""),
    "a picture": ({"content": [PICTURE], "structuredContent": {"a": 1}}, '[image: image/png, 3 bytes]\n{"a":1}'),
    "a picture in both": (
        {"content": [PICTURE], "structuredContent": {"content": [PICTURE]}},
        "[image: image/png, 3 bytes]\n"
        '{"content":[{"type":"image","data":"[image: image/png, 3 bytes]","mimeType":"image/png"}]}',
    ),
}


@pytest.mark.parametrize("is_modern", [False, True], ids=["legacy", "2026-07-28"])
@pytest.mark.parametrize("is_http", [False, True], ids=["stdio", "http"])
async def test_structured_content_and_results_without_a_type(is_modern: bool, is_http: bool) -> None:
    answers = {f"tool-{number}": result(value) for number, (value, _) in enumerate(STRUCTURED.values())}
    answers["failed"] = result({"content": [], "structuredContent": {"code": 7}, "isError": True})
    with scripted_http(answer_by_name(answers), tools=[*answers], is_modern=is_modern) as server:
        entry = {"url": server.url} if is_http else scripted_stdio(answers, is_modern=is_modern)
        async with connected({"s": entry}) as dispatcher:
            for number, (kind, (value, text)) in enumerate(STRUCTURED.items()):
                found = await dispatcher.execute(f"tool-{number}", {})
                assert (found.error, found.text) == (None, text), kind
                if isinstance(value.get("structuredContent"), dict) or is_modern:
                    assert found.structured_content == value.get("structuredContent"), kind
            failed = await dispatcher.execute("failed", {})
            assert failed.error.message == '{"code":7}'


# -- HTTP statuses -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("answer", "seconds"),
    [
        (Answer("slow down", 429, "text/plain", {"Retry-After": " 7 "}), 7.0),
        (Answer(failure(-32000, "quota", id="null"), 429, headers={"Retry-After": "7"}), 7.0),
        (Answer("", 503, headers={"Retry-After": "7"}), 7.0),
        (Answer("", 429), None),
    ],
)
async def test_a_server_that_asks_for_a_pause(
    answer: Answer, seconds: float | None, logged: pytest.LogCaptureFixture
) -> None:
    policy = {"retry": None, "breaker": {"consecutive-failures": 2}}
    async with over_http(answer, entry={"policy": policy}) as (dispatcher, _):
        found = await dispatcher.execute("work", {})
        assert isinstance(found.error, dispatch.ThrottledError)
        assert found.outcome is dispatch.Outcome.THROTTLED
        assert found.error.retry_after == seconds
        assert found.error.rejected_by == "service"
        assert f"HTTP status {answer.status}" in found.error.message
        for _ in range(10):
            await dispatcher.execute("work", {})
    assert "closed to open" not in logged.text


@pytest.mark.parametrize("body", ["", failure(-32000, "4 MB at most", id="null")])
async def test_arguments_that_are_too_large_for_the_server_were_not_executed(body: str) -> None:
    async with over_http(Answer(body, 413)) as (dispatcher, _):
        found = await dispatcher.execute("work", {})
    assert found.outcome is dispatch.Outcome.INVALID_ARGUMENTS
    assert "was not executed" in found.error.message
    assert "HTTP status 413" in found.error.message


async def test_a_pause_that_is_asked_for_at_the_handshake(logged: pytest.LogCaptureFixture) -> None:
    async with over_http(Answer(GOOD), refuse_all=Answer("", 503, headers={"Retry-After": "7"})) as (dispatcher, _):
        assert "HTTP status 503" in dispatcher.registry.sources()[0].problem
    assert "HTTP status 503 Service Unavailable; the next attempt is in 7.0 s" in logged.text


def test_dates_and_nonsense_in_retry_after() -> None:
    now = 1_800_000_000.0
    assert read_retry_after(formatdate(now + 90, usegmt=True), now) == 90
    assert read_retry_after(formatdate(now - 90, usegmt=True), now) == 0
    assert read_retry_after("Fri, 01 Jan 99999999999999999999 00:00:00 GMT", now) is None
    assert [read_retry_after(text, now) for text in ("2.5", "-1")] == [2.5, 0]
    assert [read_retry_after(text, now) for text in ("", "soon", "nan", "inf")] == [None] * 4


@pytest.mark.parametrize(("status", "what"), [(401, "401 Unauthorized"), (403, "403 Forbidden")])
async def test_credentials_that_are_refused(status: int, what: str) -> None:
    with scripted_http(Answer(result({"content": []})), refuse=Answer("", 404)) as server:
        headers = {"Authorization": "Bearer secret-page"}
        async with connected({"s": {"url": server.url, "headers": headers}}) as dispatcher:
            assert await dispatcher.call("work", {}) == ""
            server.refuse_all = Answer("no", status, "text/plain")
            for _ in range(3):
                found = await dispatcher.execute("work", {})
                assert isinstance(found.error, dispatch.RejectedError)
                assert (found.error.type, found.error.retryable) == ("unauthorized", False)
                assert f"HTTP status {what}" in found.error.message
        async with connected({"s": {"url": server.url, "headers": headers}}) as dispatcher:
            [source] = dispatcher.registry.sources()
            assert f"HTTP status {what}. Fix: write its credentials as 'headers'" in source.problem


# -- sessions that the server has forgotten ------------------------------------------------------------------------------
def error(code: int, message: str, status: int) -> Answer:
    return Answer(json.dumps({"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}}), status)


FORGOTTEN = {
    "TypeScript SDK": error(-32001, "Session not found", 404),
    "TypeScript SDK, not initialized": error(-32000, "Bad Request: Server not initialized", 400),
    "TypeScript examples": error(-32000, "Bad Request: No valid session ID provided", 400),
    "Python SDK": error(-32600, "Session not found", 404),
    "Python SDK 1.8": Answer("Bad Request: No valid session ID provided", 400, "text/plain"),
    "Go": Answer("Invalid session ID", 404, "text/plain"),
    "Go, old": Answer("Invalid session ID", 400, "text/plain"),
    "Rust": Answer("Unauthorized: Session not found", 401, "text/plain"),
    "a gateway": Answer("", 410),
    "an error without a status": error(-32000, "No valid session", 200),
    "an event": event(failure(-32000, "Server not initialized")),
}


@pytest.mark.costly
@pytest.mark.parametrize("form", FORGOTTEN.values(), ids=FORGOTTEN)
async def test_a_session_that_the_server_has_forgotten_is_opened_again(
    form: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine the refusals of 8 calls, a ping, or the handshake take longer than calls wait for them.
    monkeypatch.setattr("dispatch.mcp.transports.PING_S", 20.0)
    monkeypatch.setattr("dispatch.mcp.transports.REFUSALS_S", 20.0)
    monkeypatch.setattr("dispatch.mcp.sessions.REOPEN_S", 20.0)
    async with over_http(Answer(GOOD), refuse=form) as (dispatcher, server):
        assert await dispatcher.call("work", {}) == "fine"
        for _ in range(2):
            server.sessions.clear()  # it has restarted
            found = await asyncio.gather(*(dispatcher.execute("work", {}) for _ in range(8)))
            assert [each.error for each in found] == [None] * 8
        assert server.requests.count("initialize") == 3


@pytest.mark.parametrize(
    "ping",
    [Answer(result({})), Answer("", 400), Answer("", 405), error(-32601, "no such method", 404)],
    ids=["200", "400", "405", "404"],
)
@pytest.mark.costly
async def test_a_session_that_has_ended_with_the_status_404_is_opened_again_whatever_a_ping_is_answered(
    ping: Answer,
) -> None:
    with scripted_http(Answer(GOOD), refuse=Answer("", 404)) as server:
        server.ping = ping
        async with connected({"s": {"url": server.url}}) as dispatcher:
            assert await dispatcher.call("work", {}) == "fine"
            server.sessions.clear()
            assert await dispatcher.call("work", {}) == "fine"
            assert server.requests.count("initialize") == 2


@pytest.mark.costly
async def test_a_session_that_a_server_answers_with_its_own_failure_is_opened_again_for_the_next_call() -> None:
    async with over_http(Answer(GOOD), refuse=Answer("TypeError", 500, "text/plain")) as (dispatcher, server):
        assert await dispatcher.call("work", {}) == "fine"
        server.sessions.clear()
        found = await dispatcher.execute("work", {})
        assert found.error.type == "server-failed"  # it may have been executed
        await call_until_ok(dispatcher, "work", {})


@pytest.mark.parametrize("status", [400, 404, 409, 500])
async def test_an_error_in_a_session_that_the_server_knows_ends_only_its_call(status: int) -> None:
    failed = error(-32000, "no such browser session", status)
    async with over_http(failed, refuse=Answer("", 404)) as (dispatcher, server):
        for _ in range(3):
            found = await dispatcher.execute("work", {})
            assert found.error.type == "server-failed"
            assert "no such browser session" in found.error.message
        assert server.requests.count("tools/call") == 3
        assert server.requests.count("initialize") == 1


@pytest.mark.costly
async def test_a_server_that_knows_no_session_at_all_is_not_asked_without_a_pause() -> None:
    with scripted_http(Answer(GOOD), refuse=Answer("", 404)) as server:
        server.sessions = type("Nothing", (set,), {"add": lambda *_: None})()
        async with connected({"s": {"url": server.url}}) as dispatcher:
            await asyncio.sleep(1)
            assert dispatcher.registry.sources()[0].state == "failed"
            assert server.requests.count("initialize") <= 3


GOOD_LISTS = result({"content": [TEXT], "structuredContent": {}})
ANY = {"type": "object"}
COMPLETED: dict[str, dict[str, Any]] = {
    "only $schema": tool("odd", inputSchema={"$schema": "http://json-schema.org/draft-07/schema#"}),
    "anyOf at the root": tool("odd", inputSchema={"anyOf": [{"type": "object"}, {"type": "object"}]}),
    "type null": tool("odd", inputSchema={"type": None, "properties": {"a": {"type": "string"}}}),
    "a list of types": tool("odd", inputSchema={"type": ["object", "null"]}),
    "a list for no properties": tool("odd", inputSchema={"type": "object", "properties": []}),
    "null for empty lists": tool("odd", inputSchema={"type": "object", "properties": None, "required": None}),
    "an object for no required names": tool("odd", inputSchema={"type": "object", "required": {}}),
    "an empty schema": tool("odd", inputSchema={}),
    "an empty list as schema": tool("odd", inputSchema=[]),
    "true as schema": tool("odd", inputSchema=True),
    "null as schema": tool("odd", inputSchema=None),
    "no schema": {"name": "odd"},
    "an output schema without a type": tool("odd", outputSchema={"properties": {}}),
    "an output schema that is a text": tool("odd", outputSchema="x"),
    "null everywhere": {"name": "odd", "inputSchema": ANY, "description": None, "title": None, "annotations": None},
    "a list for no hints": tool("odd", annotations=[]),
    "a hint that is a text": tool("odd", annotations={"readOnlyHint": "perhaps"}),
    "a description that is a number": tool("odd", description=7),
    "an unknown kind of execution": tool("odd", execution={"taskSupport": "sometimes"}),
    "an icon without an address": tool("odd", icons=[{"sizes": "any"}]),
}
NESTED: dict[str, Any] = {}
for _ in range(120):
    NESTED = {"type": "object", "properties": {"a": NESTED}}
FAULTY: dict[str, Any] = {
    "of a text": {"type": "string"},
    "with a type in capitals": {"type": "Object", "properties": {"a": {"type": "String"}}},
    "with a property that is a number": {"type": "object", "properties": {"a": 3}},
    "with a property that is null": {"type": "object", "properties": {"a": None}},
    "with a list of properties": {"type": "object", "properties": [{"name": "a"}]},
    "with required names that are numbers": {"type": "object", "required": [1]},
    "with a required name that is no list": {"type": "object", "required": "a"},
    "with a number without an end": {"type": "object", "properties": {"a": {"default": float("nan")}}},
    "with a number of many digits": {"type": "object", "properties": {"a": {"maximum": 10**40}}},
    "with many levels": NESTED,
    "with levels beyond any reader": {"type": "object", "properties": {"a": {"default": "DEEP"}}},
}
"""Schemas that are used without the part that has a fault."""
REFUSED: dict[str, Any] = {
    "a schema that is a text": tool("odd", inputSchema="object"),
    "false as schema": tool("odd", inputSchema=False),
    "no name": {"inputSchema": ANY},
    "a name that is a number": {"name": 7, "inputSchema": ANY},
    "a number": 7,
    "null": None,
    "a tool that requires tasks": tool("odd", execution={"taskSupport": "required"}),
    "an empty name": tool(""),
}


def names(dispatcher: dispatch.Dispatcher) -> list[str]:
    return sorted(each.name for each in dispatcher.registry.list())


@pytest.fixture(params=[False, True], ids=["legacy", "2026-07-28"])
def is_modern(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


async def test_an_unusual_definition_is_completed(is_modern: bool) -> None:
    odd = {f"odd-{number}": each for number, each in enumerate(COMPLETED.values())}
    pages = [result({"tools": [tool("one"), *(each | {"name": name} for name, each in odd.items()), tool("two")]})]
    entry = scripted_stdio(dict.fromkeys(odd, GOOD_LISTS), pages=pages, is_modern=is_modern)
    async with connected({"s": entry}) as dispatcher:
        (source,) = dispatcher.registry.sources()
        assert (source.state, source.tools, source.refused) == ("ok", 2 + len(odd), 0)
        for name, kind in zip(odd, COMPLETED, strict=True):
            assert (kind, await dispatcher.call(name, {})) == (kind, "fine")


async def test_definitions_that_are_not_usable_are_refused_by_their_names(
    is_modern: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    odd = [
        each | {"name": f"odd-{n}"} if isinstance(each, dict) and each.get("name") == "odd" else each
        for n, each in enumerate(REFUSED.values())
    ]
    pages = [result({"tools": [tool("one"), *odd, tool("two")]})]
    async with connected({"s": scripted_stdio({"one": GOOD_LISTS}, pages=pages, is_modern=is_modern)}) as dispatcher:
        (source,) = dispatcher.registry.sources()
        assert source.state == "ok"
        usual = [name for name in names(dispatcher) if not name.startswith("odd")]
        assert usual == ["one", "two"]
        assert await dispatcher.call("one", {}) == "fine"
    assert "s: odd-0: " in caplog.text
    assert "s: odd-1: " in caplog.text
    assert "s: odd-6: the server executes it as a task only" in caplog.text
    assert "(a tool without a name): tools[" in caplog.text


async def test_of_several_tools_of_one_name_one_is_used_and_told(
    is_modern: bool, caplog: pytest.LogCaptureFixture
) -> None:
    page = result({"tools": [tool("twin"), tool("twin", description="last"), tool("twin", inputSchema=7), tool("one")]})
    server = scripted_stdio({"twin": GOOD_LISTS}, pages=[page], is_modern=is_modern)
    async with connected({"s": server}) as dispatcher:
        assert {each.name: each.description for each in dispatcher.registry.list()} == {"twin": "last", "one": ""}
        assert await dispatcher.call("twin", {}) == "fine"
    assert "the server lists several tools of one name, and the last definition is used: twin" in caplog.text


@pytest.mark.parametrize("deep", [DEEP, LESS_DEEP], ids=["deep", "less-deep"])
async def test_a_fault_of_a_schema_costs_only_its_keyword(
    is_modern: bool, deep: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    faulty = [tool(f"odd-{n}", inputSchema=schema, _meta=[]) for n, schema in enumerate(FAULTY.values())]
    page = result({"tools": [tool("one"), *faulty, tool("two", outputSchema=NESTED)]}).replace('"DEEP"', deep)
    answers = {each["name"]: GOOD_LISTS for each in faulty}
    async with connected({"s": scripted_stdio(answers, pages=[page], is_modern=is_modern)}) as dispatcher:
        assert names(dispatcher) == sorted([*answers, "one", "two"])
        for name in answers:
            assert await dispatcher.call(name, {}) == "fine"
    for number, kind in enumerate(FAULTY):
        assert f"s: odd-{number} is used with a part of its schema: input-schema" in caplog.text, kind


def page(*tools: str, cursor: object = None) -> str:
    return result({"tools": [tool(name) for name in tools], "nextCursor": cursor})


FAILURE = failure(-32603, "out of order")
NO_SUCH_METHOD = failure(-32601, "no such method")
REFUSAL = failure(-32602, "invalid cursor")


PAGES: list[tuple[list[str], list[str]]] = [
    ([page("a", cursor="x"), page("b", cursor="y"), page("c")], ["a", "b", "c"]),
    ([page("a", cursor=1), page("b")], ["a", "b"]),
    ([page("a", cursor="")], ["a"]),
    ([page("a", cursor="x"), page("b", cursor="")], ["a", "b"]),
    ([page("a", cursor="x")], ["a"]),
    ([page("a", cursor="x"), page("b", cursor="x")], ["a", "b"]),
    ([page("a", cursor="x"), page("b", cursor="y"), page("c", cursor="x")], ["a", "b", "c"]),
    ([page("a", cursor="@PAGE@")], ["a"]),
    ([page("a", cursor="x"), page(cursor="y"), page("b")], ["a", "b"]),
    ([page("a", cursor="x"), page(cursor="@PAGE@")], ["a"]),
    ([page("a", cursor="x"), REFUSAL], ["a"]),
    ([page("a", cursor="x"), FAILURE], ["a"]),
    ([page("a", cursor="x"), page("b", cursor="y"), result(None)], ["a", "b"]),
    ([page("a", cursor="x"), result({"tools": "none"})], ["a"]),
    ([NO_SUCH_METHOD], []),
    *(([result({"tools": tools, "nextCursor": None, "_meta": None, "ttlMs": "1"})], []) for tools in (None, {}, [])),
]


async def test_pages() -> None:
    made = (scripted_stdio({"a": GOOD_LISTS}, pages=pages, prefix="always") for pages, _ in PAGES)
    servers = {f"s{number}": server for number, server in enumerate(made)}
    async with connected(servers) as dispatcher:
        for id, source, (pages, found) in zip(servers, dispatcher.registry.sources(), PAGES, strict=True):
            assert (source.state, source.tools) == ("ok", len(found)), pages
            of_server = [name for name in names(dispatcher) if name.startswith(f"{id}-")]
            assert of_server == [f"{id}-{each}" for each in found]
            if found:
                assert await dispatcher.call(f"{id}-a", {}) == "fine", pages


async def test_a_page_that_fails_later_leaves_the_list_as_it_was(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dispatch.mcp.sessions, "POLL_S", 0.1)
    monkeypatch.setattr(dispatch.mcp.sessions, "MIN_POLL_S", 0.1)
    pages = [page("a", cursor="x"), FAILURE, page("a", cursor="x"), page("b"), page("a", cursor="x"), FAILURE]
    async with connected({"s": scripted_stdio({"b": GOOD_LISTS}, pages=pages)}) as dispatcher:
        assert names(dispatcher) == ["a"]
        await until(lambda: names(dispatcher) == ["a", "b"])
        await until(lambda: "cannot be read again: out of order" in caplog.text)
        assert names(dispatcher) == ["a", "b"]
    assert "cannot be read to its end (out of order); its first 1 tools are used" in caplog.text


WELCOMES: list[dict[str, Any]] = [
    {"capabilities": []},
    {"capabilities": None},
    {"capabilities": {"tools": []}},
    {"capabilities": {"tools": True, "logging": True, "prompts": []}},
    {"serverInfo": None},
    {"serverInfo": {"name": "x"}},
    {"serverInfo": {"name": "x", "version": 1.2}},
    {"serverInfo": {"name": "x", "version": "1", "icons": [{}]}},
    {"instructions": None, "_meta": None},
    {"instructions": 7, "_meta": []},
    {"protocolVersion": None},
]


async def test_an_incomplete_handshake_is_completed(is_modern: bool) -> None:
    options = {"is_modern": is_modern, "prefix": "always"}
    servers = {f"s{n}": scripted_stdio({"work": GOOD}, welcome=odd, **options) for n, odd in enumerate(WELCOMES)}
    async with connected(servers) as dispatcher:
        for id, odd in zip(servers, WELCOMES, strict=True):
            assert await dispatcher.call(f"{id}-work", {}) == "fine", odd


@pytest.mark.parametrize("version", ["1.0", "2099-01-01"])
async def test_a_server_of_another_protocol_is_told_about(version: str) -> None:
    async with connected({"s": scripted_stdio({"work": GOOD}, welcome={"protocolVersion": version})}) as dispatcher:
        [source] = dispatcher.registry.sources()
        assert f"it speaks the protocol '{version}', and dispatch 2024-11-05 to {MODERN}. Fix: update" in source.problem


@pytest.mark.parametrize("before", ["exit", "hang", "ignore"])
async def test_a_server_that_minds_a_request_before_the_handshake(before: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch.mcp.transports, "PROBE_S", 0.2)
    monkeypatch.setattr(dispatch.mcp.sessions, "HANDSHAKE_S", 2.0 if before == "hang" else 10.0)
    async with connected({"s": scripted_stdio({"work": GOOD}, before=before)}) as dispatcher:
        await call_until_ok(dispatcher, "work", {})


async def test_requests_of_a_server_are_answered_whatever_their_parameters_are(
    logged: pytest.LogCaptureFixture,
) -> None:
    asked = "\n".join(
        f'{{"jsonrpc":"2.0","id":{90 + n},"method":"ping","params":{params}}}'
        for n, params in enumerate(["[]", "null", '{"_meta":[]}', '"secret-page"'])
    )
    async with connected({"s": scripted_stdio({"work": f"{asked}\n{GOOD}"})}) as dispatcher:
        assert await dispatcher.call("work", {}) == "fine"
        await until(lambda: all(f'"id":{90 + n},"result":{{}}' in logged.text for n in range(4)))


@pytest.mark.parametrize("is_http", [False, True], ids=["stdio", "http"])
async def test_requests_of_a_server_without_an_end_do_not_fill_the_memory(is_http: bool) -> None:
    most = 0
    ping = '{"jsonrpc":"2.0","id":"same","method":"ping"}'

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, len(asyncio.all_tasks()))
            await asyncio.sleep(0.001)

    with scripted_http(event(*[ping] * 500, GOOD)) as server:
        # The server on stdio reads no answers before it has written all requests.
        stdio = scripted_stdio({"work": f"@PINGS@{GOOD}"})
        async with connected({"s": {"url": server.url} if is_http else stdio}) as dispatcher:
            watching = asyncio.create_task(watch())
            assert await dispatcher.call("work", {}) == "fine"
            await cancel_and_wait([watching])
            assert await dispatcher.call("work", {}) == "fine"
    assert most < 150


async def test_a_list_without_an_end_is_used_as_far_as_it_was_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dispatch.mcp.sessions, "MAX_PAGES", 50)
    pages = [page("a-@PAGE@", cursor="@PAGE@")]
    async with connected({"s": scripted_stdio({"a-0": GOOD_LISTS}, pages=pages)}) as dispatcher:
        assert len(names(dispatcher)) == 50
        assert await dispatcher.call("a-0", {}) == "fine"
    assert "the list of tools has no end; its first 50 tools are used" in caplog.text


async def test_a_page_that_does_not_arrive_costs_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch.mcp.sessions, "LIST_S", 0.3)
    async with connected({"s": scripted_stdio({"a": GOOD_LISTS}, pages=[page("a", cursor="x"), ""])}) as dispatcher:
        assert names(dispatcher) == ["a"]
        assert await dispatcher.call("a", {}) == "fine"


async def test_a_tool_that_becomes_bad_is_refused_and_the_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch.mcp.sessions, "POLL_S", 0.1)
    monkeypatch.setattr(dispatch.mcp.sessions, "MIN_POLL_S", 0.1)
    pages = [page("a", "b"), result({"tools": [tool("a"), tool("b", inputSchema=False)]})]
    async with connected({"s": scripted_stdio({"a": GOOD_LISTS}, pages=pages)}) as dispatcher:
        await until(lambda: dispatcher.registry.sources()[0].refused)
        assert "a" in names(dispatcher)
        assert await dispatcher.call("a", {}) == "fine"


async def test_a_list_that_is_announced_as_changed_at_each_read_is_not_read_without_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads = 0
    read_next = Pages.read_next

    async def count(pages: Pages) -> float:
        nonlocal reads
        reads += 1
        return await read_next(pages)

    monkeypatch.setattr(Pages, "read_next", count)
    announced = '{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}\n' + page("a")
    welcome = {"capabilities": {"tools": {"listChanged": True}}}
    async with connected({"s": scripted_stdio({"a": GOOD}, pages=[announced], welcome=welcome)}) as dispatcher:
        await asyncio.sleep(3)
        assert 2 < reads < 8
        assert await dispatcher.call("a", {}) == "fine"


def text(value: str) -> types.TextContent:
    return types.TextContent(type="text", text=value)


def result_results(
    *blocks: types.ContentBlock, structured: object = None, is_error: bool = False
) -> types.CallToolResult:
    return types.CallToolResult(content=list(blocks), structured_content=structured, is_error=is_error)


def test_one_text_needs_no_content() -> None:
    assert read_result(result_results(text("a")), "server") == LocalResult("a", None, "server")


def test_everything_else_is_kept() -> None:
    assert read_result(result_results(text("a"), text("b"), structured={"n": 1}), "").content == ResultContent(
        ({"type": "text", "text": "a"}, {"type": "text", "text": "b"}), {"n": 1}
    )
    assert read_result(result_results(), "") == LocalResult("", ResultContent())


def test_a_model_reads_the_texts_and_what_the_rest_is() -> None:
    file = types.TextResourceContents(uri="file:///a.txt", text="meow")
    binary = types.BlobResourceContents(uri="file:///b.bin", blob="AAAA")
    found = read_result(
        result_results(
            text("a cat"),
            types.ImageContent(type="image", data="AAAA", mime_type="image/png"),
            types.AudioContent(type="audio", data="AAA=", mime_type="audio/wav"),
            types.ResourceLink(type="resource_link", uri="file:///cat.txt", name="cat", description="About cats."),
            *(types.EmbeddedResource(type="resource", resource=each) for each in (file, binary)),
        ),
        "",
    )
    assert found.text.splitlines() == [
        "a cat",
        "[image: image/png, 3 bytes]",
        "[audio: audio/wav, 2 bytes]",
        "[link: file:///cat.txt, cat, About cats.]",
        "meow",
        "[resource: file:///b.bin]",
    ]
    kinds = [block["type"] for block in found.content.blocks]
    assert kinds == ["text", "image", "audio", "resource_link", "resource", "resource"]
    assert found.content.blocks[1]["mimeType"] == "image/png"


def test_an_error_of_the_tool() -> None:
    with pytest.raises(ToolError, match="no such order") as caught:
        read_result(result_results(text("no such order"), is_error=True), "")
    assert caught.value.type == "tool-error"


def an_object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


OUTPUTS = {
    "a pattern of JavaScript": an_object(y={"type": "string", "pattern": "^(?<y>\\\\p{L}+)$"}),
    "draft-04": an_object(n={"type": "number", "minimum": 0, "exclusiveMinimum": True}),
    "a reference to nowhere": an_object(y={"$ref": "#/definitions/none"}),
    "a reference to an address": an_object(y={"$ref": "http://127.0.0.1:9/y"}),
    "a reference to itself": {"$ref": "#"},
    "a dialect that is a number": {"$schema": 7, "type": "object"},
    "four million subschemas": {
        "$ref": "#/$defs/0",
        "$defs": {str(n): {"allOf": [{"$ref": f"#/$defs/{n + 1}"}] * 2} for n in range(22)} | {"22": {}},
    },
    "a pattern that takes hours": an_object(y={"type": "string", "pattern": "^(a+)+$"}),
}


async def test_a_result_that_does_not_match_its_output_schema_is_told_without_its_values() -> None:
    schema = an_object(y={"type": "string", "enum": ["a"]})
    page = result({"tools": [tool(name, outputSchema=schema) for name in ("wrong", "none", "right")]})
    answers = {
        "wrong": result({"content": [TEXT], "structuredContent": {"y": SECRET}}),
        "none": GOOD,
        "right": result({"content": [TEXT], "structuredContent": {"y": "a"}}),
    }
    async with connected({"s": scripted_stdio(answers, pages=[page])}) as dispatcher:
        await assert_malformed(dispatcher, "wrong", "structuredContent/y does not match the output schema: must be")
        await assert_malformed(dispatcher, "none", "it has no structured content")
        assert await dispatcher.call("right", {}) == "fine"


async def test_a_result_is_kept_whose_output_schema_cannot_be_read(logged: pytest.LogCaptureFixture) -> None:
    names = [f"tool-{number}" for number in range(len(OUTPUTS))]
    page = [tool(name, outputSchema=schema) for name, schema in zip(names, OUTPUTS.values(), strict=True)]
    page.append(tool("any", outputSchema={}))
    given = result({"content": [TEXT], "structuredContent": {"y": 40 * "a", "n": 1}})
    deep = json.loads('{"a":' * 150 + "1" + "}" * 150)
    page.append(tool("deep", outputSchema={"type": "object", "properties": {"a": {"$ref": "#"}}}))
    answers = {**dict.fromkeys(names, given), "any": GOOD}
    answers["deep"] = result({"content": [TEXT], "structuredContent": deep})
    async with connected({"s": scripted_stdio(answers, pages=[result({"tools": page})])}) as dispatcher:
        for name in answers:
            assert await dispatcher.call(name, {}) == "fine"


async def test_half_a_surrogate_pair_in_a_description_costs_no_tool(logged: pytest.LogCaptureFixture) -> None:
    page = result({"tools": [tool("good"), tool("cut", description="an emoji, cut \ud83d")]})
    answers = {"good": GOOD, "cut": GOOD}
    async with connected({"s": scripted_stdio(answers, pages=[page])}) as dispatcher:
        assert await dispatcher.call("good", {}) == await dispatcher.call("cut", {}) == "fine"


@pytest.mark.parametrize("levels", [50, 400, 1_500])
async def test_half_a_surrogate_pair_beside_a_deep_schema_costs_no_tool(levels: int) -> None:
    deep = '{"type":"object","properties":{"x":' * levels + "{}" + "}}" * levels
    given = result({"tools": [tool("good", description="an emoji, cut \ud83d"), tool("deep", inputSchema={"DEEP": 1})]})
    page = given.replace('{"DEEP": 1}', deep)
    assert deep in page
    async with connected({"s": scripted_stdio({"good": GOOD}, pages=[page])}) as dispatcher:
        assert await dispatcher.call("good", {}) == "fine"


async def test_a_redirected_request_and_headers_in_any_encoding() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        body = GOOD.replace("@ID@", "7").encode()
        elsewhere = b"HTTP/1.1 307 Moved\r\nLocation: /mcp\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        found = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-Region: S\xe3o Paulo\r\n"
        found += b"Connection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        writer.write(found if head.startswith(b"POST /mcp ") else elsewhere)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp/"
        async with HttpClient(lambda: None, lambda: None, {}) as client:
            message = {"jsonrpc": "2.0", "id": 7, "method": "tools/call"}
            moved = (await client.post(url, json=message)).next_request  # the SDK follows it so
            assert moved is not None
            answered = await client.send(moved)
            ended = (await client.delete(url)).next_request  # the session
            assert ended is not None
            assert (await client.send(ended)).status_code == 307
    assert answered.json()["result"]["content"] == [{"type": "text", "text": "fine"}]


@pytest.mark.parametrize(
    ("status", "location", "text"),
    [
        (308, "http://u:secret-page@other.test/mcp?k=secret-page", "it redirects to 'http://other.test/mcp', which is"),
        (302, "/login?next=secret-page", "/login', which is not followed; write this as 'url' if it is the server's"),
        (307, "http://other.test:secret-page/", "it redirects to what is no address"),
    ],
)
async def test_a_redirect_that_is_not_followed_is_told_with_what_to_write(
    logged: pytest.LogCaptureFixture, status: int, location: str, text: str
) -> None:
    with scripted_http(Answer("secret-page", status, "text/html", {"Location": location})) as server:
        async with connected({"s": {"url": server.url}}) as dispatcher:
            found = await dispatcher.execute("work", {}, timeout=30)
            assert f"HTTP status {status}" in str(found.error)
            assert text in str(found.error)
            server.refuse_all = Answer("", status, "text/html", {"Location": location})
        async with connected({"s": {"url": server.url}}) as dispatcher:
            [source] = dispatcher.registry.sources()
            assert text in str(source.problem)
            assert "/site-packages/" not in str(source.problem)
    assert SECRET not in logged.text


@pytest.mark.parametrize(("status", "what"), [(404, "404 Not Found"), (405, "405 Method Not Allowed")])
async def test_an_address_that_takes_no_messages_is_told_with_what_to_write(status: int, what: str) -> None:
    """Servers of the SSE transport have another address for messages, which they send to a GET."""
    async with over_http(Answer(""), refuse_all=Answer("Cannot POST /sse", status, "text/html")) as (dispatcher, _):
        [source] = dispatcher.registry.sources()
        assert f"HTTP status {what}: the address takes no messages by POST, as one of the SSE" in source.problem
        assert "as 'url'" in source.problem


@pytest.mark.parametrize("kind", ["text/html", "application/json"])
async def test_an_address_that_is_none_of_mcp_is_told_with_what_to_write(kind: str) -> None:
    async with over_http(
        Answer(""),
        refuse_all=Answer("<html>secret-page</html>" if kind == "text/html" else '{"status": "up"}', kind=kind),
    ) as (dispatcher, _):
        [source] = dispatcher.registry.sources()
        assert "the address is not that of an MCP server; write that one" in source.problem
        assert SECRET not in source.problem


async def test_a_stream_that_ends_at_once_is_not_opened_again_without_a_pause() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        writer.write(b"retry: 0\ndata:\n\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
        async with HttpClient(lambda: None, lambda: None, {}) as client:
            texts = [(await (await client.get(url)).aread()).decode() for _ in range(6)]
    # Milliseconds until the SDK opens the stream again.
    assert [re.findall(r"retry: (\d+)", text) for text in texts] == [[f"{1000 * n}"] for n in (1, 2, 4, 8, 10, 10)]


@pytest.mark.costly
async def test_a_notification_without_a_response_does_not_hold_later_messages() -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1_000)
        await released.wait()
        writer.close()

    released = asyncio.Event()
    async with await asyncio.start_server(hang, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
        async with HttpClient(lambda: None, lambda: None, {}) as client, asyncio.timeout(20):
            answered = await client.post(url, json={"jsonrpc": "2.0", "method": "notifications/cancelled"})
            assert answered.json()["error"]["code"] == TransportFailure.REPLY_LOST
            with pytest.raises(httpx2.ReadTimeout):
                await client.delete(url)
        released.set()


def test_clients_share_the_certificates_until_these_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("certificates")
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    monkeypatch.setattr(httpx2, "create_ssl_context", object)
    first = trusted_certificates()
    assert trusted_certificates() is first
    os.utime(file, ns=(1, 1))
    assert trusted_certificates() is not first
