"""Text that UTF-8 cannot express ended the stdio MCP server, and left ``adapters.execute`` as a UnicodeEncodeError.

Python makes it of file names that are not UTF-8, and JSON of ``"\\ud83d"``.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import AsyncIterator
from typing import Any, ClassVar

import pytest
from prometheus_client import CollectorRegistry

import dispatch
from dispatch import adapters, calling
from dispatch.errors import ToolError
from dispatch.mcp import McpServer
from dispatch.telemetry.events import log_decision
from dispatch.telemetry.exposition import LockFreeCounter, render_metrics
from tests.helpers.mcp_connections import CHANNELS, MODES, Channel, Mode, connected, text_of

NAME = os.fsdecode(b"caf\xe9.txt")


def list_files() -> str:
    """List files."""
    return f"readme.txt\n{NAME}"


def describe_files() -> dict[str, Any]:
    """Describe files."""
    return {"files": [{"name": NAME}]}


async def watch_files() -> AsyncIterator[str]:
    """Watch files."""
    yield "readme.txt"
    yield NAME


def open_file() -> str:
    """Open a file."""
    raise FileNotFoundError(NAME)


def refuse_file() -> str:
    """Refuse a file."""
    raise ToolError(NAME, f"not {NAME}")


def ping() -> str:
    """Ping."""
    return "pong"


FUNCTIONS = (list_files, describe_files, watch_files, open_file, refuse_file, ping)
RESULTS = ("list_files", "describe_files", "watch_files")
ERRORS = {"open_file": ("FileNotFoundError", "caf?.txt"), "refuse_file": ("caf?.txt", "not caf?.txt")}


def connect() -> dispatch.Dispatcher:
    return dispatch.connect("memory://", dispatch.Functions(*FUNCTIONS))


@pytest.mark.parametrize("name", RESULTS)
async def test_a_result_is_refused_as_that_of_a_service(name: str) -> None:
    async with connect() as dispatcher:
        error = (await dispatcher.execute(name)).error
    assert error.type == "invalid-result"
    assert "was executed" in error.message


@pytest.mark.parametrize("name", ERRORS)
async def test_an_error_is_valid_text(name: str) -> None:
    async with connect() as dispatcher:
        error = (await dispatcher.execute(name)).error
    assert (error.type, error.message, str(error)) == (*ERRORS[name], ERRORS[name][1])


@pytest.mark.parametrize("style", ["openai-chat", "openai-responses", "anthropic", "gemini", "mcp"])
@pytest.mark.parametrize("name", [*RESULTS, *ERRORS, NAME])
async def test_answers_for_models_can_be_encoded(name: str, style: str) -> None:
    call = {
        "openai-chat": {"id": "1", "function": {"name": name, "arguments": "{}"}},
        "openai-responses": {"type": "function_call", "call_id": "1", "name": name, "arguments": "{}"},
        "anthropic": {"type": "tool_use", "id": "1", "name": name, "input": {}},
    }.get(style, {"name": name, "args": {}, "arguments": {}})
    async with connect() as dispatcher:
        answer = await adapters.execute(dispatcher, call, style=style)
    json.dumps(answer, ensure_ascii=False).encode()


async def test_answers_to_calls_in_texts_can_be_encoded() -> None:
    class Reader:
        name = "read"
        description = "Reads."
        parameters: ClassVar[dict[str, Any]] = {"type": "object"}

        def invoke(self, **_: Any) -> str:
            return NAME

    text = '<function_call>{"name": "read", "call_objective": "half \\ud83d", "args": {}}</function_call>'
    results = await calling.call_function([Reader()], text)
    assert [each.output for each in results] == ["caf?.txt"]
    json.dumps(calling.format_answers(results), ensure_ascii=False).encode()


@pytest.mark.wall_clock
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("channel", CHANNELS)
async def test_an_mcp_server_answers_and_goes_on(channel: Channel, mode: Mode) -> None:
    progress: list[str | None] = []

    async def on_progress(_progress: float, _total: float | None, message: str | None) -> None:
        progress.append(message)

    async with connect() as dispatcher, connected(McpServer(dispatcher), channel, mode) as client:
        for name in (*RESULTS, *ERRORS):
            assert (await client.call_tool(name, {}, progress_callback=on_progress)).is_error
            assert text_of(await client.call_tool("ping", {})) == "pong"
    assert set(progress) <= {"readme.txt"}


def test_labels_of_metrics() -> None:
    registry = CollectorRegistry()
    counter = LockFreeCounter("files", "Files.", ("name",), registry=registry)
    counter.labels(NAME).inc()
    for accept in ("", "application/openmetrics-text; version=1.0.0; escaping=dots"):
        assert b'name="caf?.txt"' in render_metrics(registry, accept, "", pause=lambda: None)[1]
    counter.remove_by_labels({"name": NAME})
    assert b"caf" not in render_metrics(registry, "", "", pause=lambda: None)[1]


def test_the_audit_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "dispatch.audit"):
        log_decision(NAME, "read", False, "missing", permission=NAME, trace_id="1")
    (record,) = caplog.records
    record.getMessage().encode()
    assert record.__dict__["dispatch_user"] == "caf?.txt"
    json.dumps({key: value for key, value in record.__dict__.items() if key.startswith("dispatch_")}).encode()
