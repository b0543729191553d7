"""``dispatch call``: what it prints for each way a call can end. Over a broker: integration/pulsar/test_cli.py."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dispatch import Dispatcher, ToolError, ToolServer
from dispatch.cli.call import call_tool, show
from dispatch.results import CallResult
from dispatch.transports.memory import MemoryTransport
from tests.helpers.cli_processes import WAIT_S, ended, started
from tests.helpers.dispatcher_and_service import BROKER, REQUESTS, RESPONSES, catalog, serving
from tests.helpers.mcp_servers.scripted import result, scripted_stdio
from tests.unit.cli.conftest import Run

Captured = pytest.CaptureFixture[str]


def unstarted() -> Dispatcher:
    return Dispatcher(MemoryTransport(BROKER), catalog())


async def called(work: Any) -> CallResult:
    async with serving(work):
        return await call_tool(unstarted(), "work", {"n": 1}, user="alice", timeout=None)


def shown(result: CallResult, *, streamed: bool = False, as_json: bool = False) -> int:
    return show(result, catalog().service("lab"), streamed=streamed, json=as_json)


@pytest.mark.parametrize(("answer", "out"), [("ha", "ha\n"), ("ha\n", "ha\n"), ("", "\n"), ("grüße 猫", "grüße 猫\n")])
async def test_the_answer_and_nothing_else_goes_to_stdout(answer: str, out: str, capsys: Captured) -> None:
    assert shown(await called(lambda _arguments: answer)) == 0
    assert capsys.readouterr() == (out, "")


@pytest.mark.wall_clock
def test_the_tools_of_mcp_servers_in_a_file_need_no_broker(run: Run, tmp_path: Path) -> None:
    answer = result({"content": [{"type": "text", "text": "fine"}]})
    servers = {name: scripted_stdio({"work": answer, f"only_{name}": answer}) for name in ("one", "two")}
    servers["away"] = {"url": "http://127.0.0.1:1/mcp"}
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": servers}))
    given = "--catalog", str(file)
    assert run("call", "one-work", *given).out == "fine\n"
    err = run.refused("call", "zzz", *given, code=5)
    assert "'mcp-away' (McpServerError: http://127.0.0.1:1 cannot be reached" in err
    assert len(run("tools", *given, "--json").json) == 4  # those of the servers that are in reach
    assert "only_two" in run("find", "only two", *given).out
    rest = run("tools", *given, "--all").out
    assert "http://127.0.0.1:1 cannot be reached" in rest
    assert "loaded as a whole" not in rest
    file.write_text(json.dumps({"mcpServers": {"away": servers["away"]}}))
    assert "The tools cannot be loaded: 1 mistake." in run("tools", *given).err
    del servers["away"]
    file.write_text(json.dumps({"mcpServers": servers}))
    listed = run("tools", *given, "--json")
    assert {each["name"] for each in listed.json} == {"one-work", "two-work", "only_one", "only_two"}
    assert run("check", str(file)).code == 0
    assert "only_two" in run("find", "only two", *given).out


@pytest.mark.wall_clock
def test_the_hint_at_the_timeout_of_an_mcp_server_names_no_topic(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"one": scripted_stdio({"work": ""})}}))  # never replies
    err = run.refused("call", "work", "--timeout", "0.3", "--catalog", str(file), code=3)
    assert err.endswith("\n  hint: give it more time with --timeout SECONDS\n")


async def test_a_tools_error_goes_to_stderr_with_outcome_type_and_message(capsys: Captured) -> None:
    def fail(_arguments: Any) -> None:
        raise ToolError("no-joke", "Nothing funny.")

    assert shown(await called(fail)) == 1
    assert capsys.readouterr() == ("", "Error: Nothing funny.\n  outcome tool_error · type no-joke\n")


async def test_without_a_service_the_hint_asks_whether_one_listens(capsys: Captured) -> None:
    assert shown(await call_tool(unstarted(), "work", {}, user="", timeout=2.5)) == 5
    out, err = capsys.readouterr()
    assert out == ""
    assert "no service consumes non-persistent://tg/request/lab" in err
    assert "outcome rejected · type no-instance" in err
    assert "hint: check with 'dispatch doctor' that a service consumes non-persistent://tg/request/lab" in err


async def test_json_is_the_whole_result_whatever_it_is(capsys: Captured) -> None:
    result = await called(lambda _arguments: "ha")
    assert shown(result, as_json=True) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert json.loads(out) == result.as_dict()
    assert json.loads(out)["text"] == "ha"


class Stream:
    def __init__(self, error: bool = False) -> None:
        self.error = error

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any]) -> AsyncIterator[str]:
        yield "one "
        yield "two"
        if self.error:
            raise ToolError("torn", "No more.")


async def stream_of(service: Stream, as_json: bool = False) -> CallResult:
    async with ToolServer(service, BROKER, request_queue=REQUESTS, response_queue=RESPONSES):
        return await call_tool(unstarted(), "work", {}, user="", timeout=None, stream=True, json=as_json)


async def test_a_stream_is_printed_chunk_by_chunk_and_ends_its_line(capsys: Captured) -> None:
    result = await stream_of(Stream())
    assert capsys.readouterr().out == "one two\n"
    assert (result.text, result.chunks, result.attempts) == ("one two", 2, 1)
    assert shown(result, streamed=True) == 0
    assert capsys.readouterr() == ("", "")


async def test_a_stream_that_breaks_keeps_what_came_and_tells_the_error(capsys: Captured) -> None:
    assert shown(await stream_of(Stream(error=True)), streamed=True) == 1
    assert capsys.readouterr() == ("one two\n", "Error: No more.\n  outcome tool_error · type torn\n")


async def test_a_stream_as_json_is_a_line_per_chunk_and_one_for_the_result(capsys: Captured) -> None:
    assert shown(await stream_of(Stream(), as_json=True), streamed=True, as_json=True) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[:2] == [{"chunk": "one "}, {"chunk": "two"}]
    assert lines[2]["result"]["outcome"] == "success"
    assert lines[2]["result"]["chunks"] == 2
    assert lines[2]["result"]["text"] == "one two"
    assert lines[2]["result"]["request_id"]
    assert lines[2]["result"]["instance"]


def test_an_unknown_tool_is_told_before_anything_connects(run: Run, catalog_folder: Path) -> None:
    err = run.refused("call", "tel-joke", "--catalog", str(catalog_folder), "--broker", "pulsar://127.0.0.1:1")
    assert "Call 'tell-joke' if you meant that" in err
    assert "outcome rejected · type unknown-tool · rejected by catalog" in err
    as_json = run.clean("call", "tel-joke", "--json", "--catalog", str(catalog_folder), code=2)
    assert as_json.json["error"]["alternatives"] == ["tell-joke"]


def test_arguments_that_are_no_object(run: Run, catalog_folder: Path) -> None:
    err = run.refused("call", "tell-joke", "--arguments", '["cats"]', "--catalog", str(catalog_folder))
    assert "--arguments is an array, not a JSON object" in err


def test_no_broker_is_exit_code_4_and_names_the_command_that_starts_one(run: Run, catalog_folder: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: nobody else can have this port
        broker = f"pulsar://127.0.0.1:{unused.getsockname()[1]}"
        options = ("topic=cats", "--catalog", str(catalog_folder), "--broker", broker)
        end, as_json = run("call", "tell-joke", *options), run("call", "tell-joke", "--json", *options)
    assert (end.code, as_json.code) == (4, 4)
    assert f"no Pulsar broker replies at {broker}. Start one (`dispatch broker start`)" in end.err
    assert "outcome transport · type unreachable" in end.err
    assert as_json.json["outcome"] == "transport"


def test_an_address_that_is_none(run: Run, catalog_folder: Path) -> None:
    err = run.refused("call", "tell-joke", "--catalog", str(catalog_folder), "--broker", "localhost:6650")
    assert "Use pulsar://HOST:6650" in err


@pytest.mark.parametrize("timeout", ["-1", "0", "nan", "inf"])
def test_a_number_that_is_no_timeout_is_told_without_a_broker(run: Run, catalog_folder: Path, timeout: str) -> None:
    end = run("call", "tell-joke", "topic=x", "--timeout", timeout, "--catalog", str(catalog_folder))
    assert (end.code, "is out of range" in end.err, "broker" in end.err) == (2, True, False), end


def test_a_timeout_that_cannot_be(run: Run, catalog_folder: Path) -> None:
    assert "--timeout" in run.refused("call", "tell-joke", "--timeout", "soon", "--catalog", str(catalog_folder))


def test_ctrl_c_while_it_reads_its_arguments(catalog_folder: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with (
        started("call", "tell-joke", "--catalog", str(catalog_folder), "--arguments", f"@{pipe}") as program,
        pipe.open("wb"),  # opens as soon as the program reads
    ):
        program.interrupt()
        program.assert_interrupted()


def test_ctrl_c_while_a_broker_does_not_answer(catalog_folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(WAIT_S)
        broker = f"pulsar://127.0.0.1:{silent.getsockname()[1]}"
        arguments = ("call", "tell-joke", "topic=cats", "--catalog", str(catalog_folder), "--broker", broker)
        with started(*arguments, "--stream", "--json") as program:
            greeting, _ = silent.accept()
            with greeting:
                assert greeting.recv(1)  # it waits for an answer to this now
                program.interrupt()
                program.assert_interrupted()


def test_something_else_than_a_broker(catalog_folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        broker = f"pulsar://127.0.0.1:{silent.getsockname()[1]}"
        code, out, err = ended(
            *("call", "tell-joke", "topic=cats", "--timeout", "1", "--catalog", str(catalog_folder), "--broker", broker)
        )
    assert (code, out) == (4, "")
    assert "outcome transport · type unreachable" in err


async def test_cancellation_closes_the_connection(capsys: Captured) -> None:
    dispatcher = unstarted()
    begun = asyncio.Event()

    def work(_arguments: Any) -> Any:
        begun.set()
        return asyncio.sleep(3600)

    async with serving(work):
        calling = asyncio.ensure_future(call_tool(dispatcher, "work", {}, user="", timeout=None))
        await begun.wait()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
    assert not dispatcher.is_connected
    assert capsys.readouterr() == ("", "")
