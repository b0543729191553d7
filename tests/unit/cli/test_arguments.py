"""The boundary: every error a message, every Ctrl-C the same, no traceback.
``key=value`` → typed arguments.
Exit codes and texts of errors.
What goes to a terminal, and what into a pipe.
A file with a policy → its keys, or every mistake in it.
Where broker, catalogue, policy and token come from.
Of the command line: a service's error named a topic that its user never wrote; `dispatch serve` said nothing when no
request came, and "1 requests" at its end; `doctor --loss`, interrupted after 2 of 40 lines, concluded that nothing was lost;
Ctrl-C in the first 0.3 s printed a traceback; help showed ``<bool>`` beside flags.
A broker says of an expired token only "Failed to authenticate", and so did ``dispatch doctor``, although the runbook said
that it shows there. The token itself says when it expires.
``dispatch broker start --port N`` ignored ``N`` when a broker was running; advice named ``PULSAR_URL``, which no
``dispatch`` command reads; TLS to a plain port, plain to a TLS port and an HTTP port failed as "no broker answers" or
"untrusted".
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import enum
import io
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import dispatch
from dispatch import Security, ToolServer, connect
from dispatch.catalog import Argument, ToolDescriptor
from dispatch.cli import main, serve
from dispatch.cli.app import app
from dispatch.cli.base import CliError, Exit, Settings, colorize, console, exit_code_of, make_printable, report_error
from dispatch.cli.call import read_arguments
from dispatch.devtools.localbroker import LocalBrokerUnavailableError
from dispatch.errors import (
    CallTimeoutError,
    DispatchError,
    InvalidArgumentsError,
    Outcome,
    RejectedError,
    ThrottledError,
    ToolError,
    TransportError,
)
from dispatch.messaging.wire import MAX_MESSAGE_BYTES
from dispatch.policy import DEFAULT_POLICY
from dispatch.transports import DEFAULT_BROKER
from dispatch.transports.errors import opening_failed
from dispatch.transports.memory import MemoryTransport
from tests.helpers.cli_processes import environment
from tests.helpers.clock import advance, idle
from tests.helpers.dispatcher_and_service import BROKER, REQUESTS, RESPONSES, Service, dispatching
from tests.helpers.handshake_server import CONNECTED
from tests.helpers.python_processes import finish
from tests.helpers.secured_broker import Security as Certificates
from tests.unit.cli.conftest import Run, write_catalog
from tests.unit.cli.conftest import Run as RunCommand


def test_typers_own_runner_sees_the_same_app() -> None:
    end = CliRunner().invoke(app, ["--version"])
    assert end.exit_code == 0
    assert end.output.startswith("dispatch ")


def test_an_unknown_command_is_a_usage_error(run: Run) -> None:
    assert "No such command" in run.refused("cal")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("tools", "nosuch"), 2, "There is no tool 'nosuch'"),
        (("tools", "--catalog", "nosuch"), 2, "nosuch: there is no such folder"),
        (("call", "tell-joke", "topic"), 2, "'topic' is not key=value."),
        (("call", "tell-joke", "--timeout", "5s"), 2, "Invalid value for '--timeout'"),
        (("find",), 2, "Missing argument 'QUERY'."),
        (("ping", "--broker", "pulsar://127.0.0.1:1"), 4, "no Pulsar broker replies at"),
        (("demo", "--broker", "pulsar://127.0.0.1:1"), 4, "no Pulsar broker replies at"),
        (("calls", "1"), 1, "does not answer"),
    ],
)
def test_with_json_an_error_is_json(
    run: Run, tmp_path: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    write_catalog(tmp_path / "tools")
    end = run(*arguments, "--json")
    assert (end.code, end.err) == (code, "")
    assert message in end.json["error"]["message"]
    in_text = run(*arguments)
    assert in_text.code == code
    assert end.json["error"]["fix"] in in_text.err


def test_what_was_probably_meant_is_told(run: Run, tmp_path: Path) -> None:
    write_catalog(tmp_path / "tools")
    assert "fix: to read a file, write --arguments @given.json" in run("call", "tell-joke", "-a", "given.json").err
    assert "fix: write for instance --version '^1.4'" in run("tools", "--version", "latest").err


def test_a_file_in_place_of_a_folder_is_told(run: Run, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    for command in ("rules", "dashboards"):
        end = run(command, "export", "out")
        assert (end.code, end.err) == (1, "Error: 'out' is a file, not a folder.\n  fix: name a folder\n")


def test_json_is_valid_in_every_encoding(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdout", output)
        assert main(["get", "tool/é😀", "--catalog", ".", "--json"]) == 2
    output.seek(0)
    assert "é😀" in json.loads(output.read())["error"]["message"]


def test_an_option_that_does_not_exist_is_told_where_it_goes(run: Run) -> None:
    assert "Options of a command are written after it." in run("--json", "tools").json["error"]["message"]
    assert "such as topic=cats" in run("call", "tell-joke", "--topic", "cats").err
    assert "topic=cats" not in run("tools", "--topic", "cats").err


def interrupt(*_arguments: object, **_options: object) -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(
    ("arguments", "at_work"),
    [
        (("tools",), "dispatch.catalog.folder.FolderReader.read"),
        (("check", "."), "dispatch.catalog.folder.FolderReader.read"),
        (("call", "tell-joke"), "dispatch.catalog.folder.FolderReader.read"),
        (("doctor",), "dispatch.devtools.localbroker.status"),
        (("serve", "jokes:Joke", "--service", "joke"), "dispatch.cli.serve.load_target"),
        (("bench",), "dispatch.cli.bench.find_checkout"),
        (("demo",), "dispatch.devtools.demo.Demo"),
        (("broker", "start"), "dispatch.devtools.localbroker.start_detached"),
        (("broker", "stop"), "dispatch.devtools.localbroker.stop_detached"),
        (("broker", "status"), "dispatch.devtools.localbroker.status"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_ctrl_c_at_once_in_every_command(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: tuple[str, ...], at_work: str
) -> None:
    write_catalog(tmp_path / "tools")
    monkeypatch.setattr(at_work, interrupt)
    err = run.refused(*arguments, code=130)
    assert err.endswith("Interrupted.\n")
    assert "Traceback" not in err


def test_ctrl_c_while_an_extension_module_is_imported(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def initialize(_folder: str) -> None:  # as pybind11 does
        raise ImportError("initialization failed") from KeyboardInterrupt()

    write_catalog(tmp_path / "tools")
    monkeypatch.setattr("dispatch.catalog.folder.FolderReader.read", initialize)
    end = run("tools")
    assert (end.code, end.err) == (130, "Interrupted.\n")


def test_a_fault_of_ours_is_told_in_a_line_and_with_verbose_in_full(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fault(_folder: str) -> None:
        raise KeyError("oops")

    write_catalog(tmp_path / "tools")
    monkeypatch.setattr("dispatch.catalog.folder.FolderReader.read", fault)
    short, long = run("tools"), run("tools", "--verbose")
    assert (short.code, long.code) == (70, 70)
    assert "Error: dispatch failed unexpectedly: KeyError: 'oops'" in short.err
    assert "--verbose" in short.err
    assert "Traceback" not in short.err
    assert "Traceback" in long.err


@pytest.mark.parametrize("command", ["tools", "--help", "--version", "call --help", "broker --help", ""])
def test_a_reader_that_goes_away_ends_it_quietly(catalog_folder: Path, command: str) -> None:
    options = ["--catalog", str(catalog_folder)] if command == "tools" else []
    reading, writing = os.pipe()
    os.close(reading)
    try:
        end = subprocess.run(
            [sys.executable, "-m", "dispatch", *command.split(), *options],
            env=environment(),
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writing)
    assert (end.returncode, end.stderr) == (141, "")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("command", ["tools", "check", "--help"])
def test_closed_standard_streams_change_no_exit_code(catalog_folder: Path, command: str, closed: str) -> None:
    options = ["--catalog", str(catalog_folder)] if command != "--help" else []
    program = f'exec "$0" -m dispatch "$@" {closed}'
    arguments = [*command.split(), *options]
    end = subprocess.run(
        ["/bin/sh", "-c", program, sys.executable, *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (end.returncode, end.stderr) == (0, "")


TYPES = ("string", "number", "integer", "boolean", "object", "array")
TOOL = ToolDescriptor("work", "Works.", "service", tuple(Argument(f"a-{type}", type, "…") for type in TYPES))


def read(*words: str, document: str | None = None, stdin: bytes = b"", tool: ToolDescriptor = TOOL) -> dict[str, Any]:
    return read_arguments(tool, words, document, no_warning, io.BytesIO(stdin))


def no_warning(line: str) -> None:
    raise AssertionError(f"unexpected: {line}")


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("a-string=cats", "cats"),
        ("a-string=", ""),
        ("a-string=3", "3"),
        ("a-string= two words ", " two words "),
        ("a-string=x=y", "x=y"),
        ("a-string=a:=b", "a:=b"),
        ('a-string={"a": 1}', '{"a": 1}'),
        ("a-number=2.5", 2.5),
        ("a-number=3", 3),
        ("a-number=-1e3", -1000.0),
        ("a-integer=3", 3),
        ("a-integer= 3 ", 3),
        ("a-integer=123456789012345678901234567890", 123456789012345678901234567890),
        ("a-boolean=true", True),
        ("a-boolean=False", False),
        ('a-object={"a": [1]}', {"a": [1]}),
        ("a-array=[1, null]", [1, None]),
        ("a-integer:=null", None),
        ("a-string:=[1]", [1]),
        ("a-string:=5", 5),
    ],
)
def test_a_value_has_the_type_that_the_descriptor_says(word: str, value: Any) -> None:
    (found,) = read(word).values()
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "word",
    [
        "a-number=three",
        "a-number=NaN",
        "a-number=true",
        "a-number=",
        "a-integer=3.5",
        "a-integer=true",
        "a-integer=0x10",
        "a-boolean=yes",
        "a-boolean=1",
        "a-object=[1]",
        "a-object=" + "[" * 100_000,
        "a-array={}",
        "a-array=1,2",
    ],
    ids=lambda word: word[:20],
)
def test_a_value_of_another_type_is_a_mistake_with_a_way_out(word: str) -> None:
    with pytest.raises(CliError) as told:
        read(word)
    key, text = word.split("=", 1)
    assert f"'{key}' is a" in told.value.message
    assert f"{key}=" in told.value.fix
    assert f"{key}:=" in told.value.fix
    assert text == "" or text[:20] in told.value.fix


def test_the_way_out_works() -> None:
    with pytest.raises(CliError) as told:
        read("a-integer=it's three")
    import shlex

    assert read(shlex.split(told.value.fix.rpartition(": ")[2])[0]) == {"a-integer": "it's three"}


@pytest.mark.parametrize(
    ("word", "fix"),
    [
        ("cats", "a-string=cats"),
        ("two words", "'a-string=two words'"),
        ("=x", "topic=cats"),
        ("", "topic="),
        ("a-string:cats", "write a-string=cats,"),
        ("--a-string", "write a-string=VALUE,"),
        ('{"a-string": "b=c"}', 'write --arguments \'{"a-string": "b=c"}\''),
    ],
)
def test_a_word_without_a_key_is_told_what_was_probably_meant(word: str, fix: str) -> None:
    with pytest.raises(CliError, match="is not key=value") as told:
        read(word)
    assert fix in told.value.fix


def test_an_argument_given_twice_is_a_mistake() -> None:
    with pytest.raises(CliError, match="'a-string' is given twice"):
        read("a-string=1", "a-string:=2")


def test_a_document_from_the_option_a_file_or_stdin_and_words_over_it(tmp_path: Path) -> None:
    file = tmp_path / "arguments.json"
    file.write_text('{"a-string": "grüße", "a-integer": 1}', encoding="utf-8")
    expected = {"a-string": "grüße", "a-integer": 2}
    assert read("a-integer=2", document=file.read_text(encoding="utf-8")) == expected
    assert read("a-integer=2", document=f"@{file}") == expected
    assert read("a-integer=2", document="-", stdin=file.read_bytes()) == expected


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ("[1]", "is an array, not a JSON object"),
        ('"cats"', "is a string, not a JSON object"),
        ("null", "is null, not a JSON object"),
        ("3", "is a number, not a JSON object"),
        ("true", "is a boolean, not a JSON object"),
        ("{topic: cats}", "is not JSON"),
        ('{"a": NaN}', "JSON has no NaN"),
        ("", "is not JSON"),
        ("@nowhere.json", "cannot be read: No such file"),
        ("@.", "cannot be read"),
    ],
)
def test_a_document_that_is_no_object_is_told_with_an_example(document: str, problem: str) -> None:
    with pytest.raises(CliError) as told:
        read(document=document)
    assert problem in told.value.message
    assert told.value.fix


def test_a_document_over_the_limit_is_not_even_parsed() -> None:
    with pytest.raises(CliError, match=f"stdin has more than {MAX_MESSAGE_BYTES:,} bytes"):
        read(document="-", stdin=b" " * (MAX_MESSAGE_BYTES + 1))


def test_a_document_that_is_not_utf8() -> None:
    with pytest.raises(CliError, match="stdin is not UTF-8: byte 2 begins no character"):
        read(document="-", stdin=b"{\x22\xff")


def test_an_unknown_argument_is_sent_and_warned_of_with_near_names() -> None:
    warnings: list[str] = []
    assert read_arguments(TOOL, ["a-strin=cats"], None, warnings.append) == {"a-strin": "cats"}
    (warning,) = warnings
    assert "declares no argument 'a-strin'" in warning
    assert "did you mean 'a-string'" in warning


def test_an_argument_that_is_required_and_missing_is_warned_of() -> None:
    tool = ToolDescriptor("work", "Works.", "service", (Argument("topic", "string", "…", required=True),))
    warnings: list[str] = []
    assert read_arguments(tool, [], None, warnings.append) == {}
    assert warnings == ["'work' requires topic, which is missing."]


def test_a_descriptor_without_arguments_says_nothing_about_them() -> None:
    assert read("anything=1", tool=ToolDescriptor("work", "Works.", "service")) == {"anything": "1"}


def test_an_input_schema_declares_arguments_and_their_types() -> None:
    schema = {
        "type": "object",
        "properties": {
            "topic": {"type": "string", "description": "About."},
            "count": {"type": ["integer", "null"]},
            "either": {"type": ["integer", "string"]},
            "other": {"$ref": "#/$defs/other"},
            "anything": True,
            "level": {"anyOf": [{"$ref": "#/$defs/level"}, {"type": "null"}]},
            "point": {"$ref": "#/$defs/a~1point"},
            "colour": {"const": "red"},
            "loop": {"$ref": "#/$defs/loop"},
            "lines": {"anyOf": [{"type": "integer"}, {"type": "array"}]},
        },
        "required": ["topic"],
        "$defs": {"level": {"enum": [1, 2]}, "a/point": {"type": "object"}, "loop": {"$ref": "#/$defs/loop"}},
    }
    tool = ToolDescriptor("work", "Works.", "service", input_schema=schema)
    assert [(each.name, each.type, each.required) for each in tool.described_arguments] == [
        ("topic", "string", True),
        ("count", "integer", False),
        ("either", "any", False),
        ("other", "any", False),
        ("anything", "any", False),
        ("level", "integer", False),
        ("point", "object", False),
        ("colour", "string", False),
        ("loop", "any", False),
        ("lines", "any", False),
    ]
    found = read("topic=1", "count=1", "either=1", "anything:=[1]", tool=tool)
    assert found == {"topic": "1", "count": 1, "either": "1", "anything": [1]}
    seen = read("topic=1", "level=2", 'point={"x": 1}', "colour=red", "loop=3", tool=tool)
    assert seen == {"topic": "1", "level": 2, "point": {"x": 1}, "colour": "red", "loop": "3"}
    warnings: list[str] = []
    read_arguments(tool, ["topc=1"], None, warnings.append)
    assert "did you mean 'topic'?" in warnings[0]
    assert warnings[1] == "'work' requires topic, which is missing."


class Level(enum.IntEnum):
    HIGH = 3


@dataclasses.dataclass
class Point:
    x: int


@pytest.mark.parametrize(
    ("annotation", "text", "value"),
    [
        (int | None, "3", 3),
        (int | str, "3", "3"),
        (int | list[int], "[3]", [3]),
        (int | list[int], "three", "three"),
        (Literal[1, 2], "2", 2),
        (Literal[1, "2"], "2", "2"),
        (Literal[1, "2"], "1", 1),
        (Level, "3", 3),
        (Point, '{"x": 1}', {"x": 1}),
        (Point | None, '{"x": 1}', {"x": 1}),
        (Point | int, '{"x": 1}', {"x": 1}),
        (list[Point] | None, '[{"x": 1}]', [{"x": 1}]),
    ],
    ids=str,
)
async def test_words_have_the_types_of_a_functions_signature(annotation: Any, text: str, value: object) -> None:
    async def take(it: Any) -> None: ...

    take.__annotations__["it"] = annotation
    async with dispatch.connect("memory://", [dispatch.Functions(take)]) as dispatcher:
        assert read(f"it={text}", tool=dispatcher.catalog.tool("take")) == {"it": value}


@given(st.text())
def test_any_text_is_a_string_argument_as_it_is(text: str) -> None:
    assert read(f"a-string={text}") == {"a-string": text}


@given(st.text())
def test_no_word_makes_it_fail_otherwise_than_told(word: str) -> None:
    try:
        read_arguments(TOOL, [word], None, lambda _line: None)
    except CliError as told:
        assert told.fix  # noqa: PT017 - most words are no mistake: there is nothing to expect


ERRORS: list[tuple[DispatchError, int]] = [
    (ToolError("no-joke", "nothing funny"), 1),
    (InvalidArgumentsError("invalid-arguments", "no object"), 2),
    (RejectedError("unknown-tool", "no such tool"), 2),
    (CallTimeoutError("too late", limit_name="call"), 3),
    (TransportError("unreachable", "no broker"), 4),
    (TransportError("bad-address", "no address"), 2),
    (ThrottledError("overloaded", "too much", retry_after=1.5), 5),
    (RejectedError("draining", "shutting down", rejected_by="service"), 5),
]


@pytest.mark.parametrize(("error", "code"), ERRORS, ids=lambda value: getattr(value, "type", None))
def test_each_outcome_has_its_exit_code(error: DispatchError, code: int) -> None:
    assert exit_code_of(error) == code


def test_success_is_0_and_every_outcome_is_covered() -> None:
    assert exit_code_of(None) == 0
    for outcome in Outcome:
        error = DispatchError("type", "message")
        error.outcome = outcome
        assert isinstance(exit_code_of(error), Exit)


def test_the_error_of_a_call_names_message_outcome_and_type(capsys: pytest.CaptureFixture[str]) -> None:
    error = ThrottledError("overloaded", "Too much.", retry_after=1.5, rejected_by="service")
    assert report_error(error, verbose=False) == 5
    assert capsys.readouterr().err == (
        "Error: Too much.\n  outcome throttled · type overloaded · rejected by service · retry after 1.5 s\n"
    )


def test_a_services_text_cannot_act_on_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    report_error(ToolError("\x1b[2J", "\x1b]0;title\x07"), verbose=False)
    assert "\x1b" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (CliError("Wrong.", "do it right"), 2, "Error: Wrong.\n  fix: do it right\n"),
        (LocalBrokerUnavailableError(["no java"], "Install it."), 1, "no java.\nInstall it."),
        (PermissionError(13, "Permission denied", "file"), 1, "Permission denied: 'file'"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_expected_errors_are_messages(
    error: Exception, code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report_error(error, verbose=False) == code
    written = capsys.readouterr().err
    assert text in written
    assert "Traceback" not in written


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colours_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert colorize("text", "red", Terminal()) == "\x1b[31mtext\x1b[0m"
    assert colorize("text", "red", io.StringIO()) == "text"
    monkeypatch.setenv("NO_COLOR", "1")
    assert colorize("text", "red", Terminal()) == "text"
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert colorize("text", "red", Terminal()) == "text"


@pytest.mark.parametrize(
    ("stream", "no_color", "coloured"), [(Terminal, False, True), (Terminal, True, False), (io.StringIO, False, False)]
)
def test_so_do_tables(
    monkeypatch: pytest.MonkeyPatch, stream: type[io.StringIO], no_color: bool, coloured: bool
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    target = stream()
    console(target).print("text", style="red")
    assert ("\x1b[31m" in target.getvalue()) is coloured


def test_what_a_terminal_would_act_on_is_shown_instead() -> None:
    assert make_printable("a\x1b[2Jb\n\tc\u202e") == "a\\x1b[2Jb\n\tc\\u202e"
    assert make_printable("grüße 猫") == "grüße 猫"
    assert make_printable("abcdef", limit=4) == "abc…"


def test_a_call_has_the_users_policy(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_catalog(tmp_path / "tools")
    Path("p.json").write_text('{"max-request-bytes": 40}')
    genuine = dispatch.connect
    # Nobody serves there; nothing is sent either.
    monkeypatch.setattr(
        "dispatch.cli.call.connect", lambda _broker, *args, **kwargs: genuine("memory://call", *args, **kwargs)
    )
    assert "the limit is 40" in run.refused("call", "tell-joke", "topic=cats", "--policy", "p.json")
    assert "the limit is 40" in run("--policy", "p.json", "call", "tell-joke", "topic=cats").err


def test_a_call_with_a_wrong_policy_is_not_made(run: Run, tmp_path: Path) -> None:
    write_catalog(tmp_path / "tools")
    Path("p.json").write_text('{"timeout": 0}')
    err = run.refused("call", "tell-joke", "topic=cats", "--policy", "p.json")
    assert "p.json: timeout: 0 is out of range. Fix: give seconds above 0" in err


def test_broker_from_the_option_then_the_environment_then_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings().broker_url == DEFAULT_BROKER
    monkeypatch.setenv("DISPATCH_BROKER", "pulsar://environment:1")
    assert Settings().broker_url == "pulsar://environment:1"
    assert Settings(broker="pulsar://option:1").broker_url == "pulsar://option:1"


def test_options_count_before_and_after_the_command_and_after_wins(run: Run, tmp_path: Path) -> None:
    one, two = write_catalog(tmp_path / "one"), write_catalog(tmp_path / "two", name="sing")
    assert [tool["name"] for tool in run("--catalog", str(one), "tools", "--json").json] == ["tell-joke"]
    assert [tool["name"] for tool in run("tools", "--json", "--catalog", str(two)).json] == ["sing"]
    both = run("--catalog", str(one), "tools", "--json", "--catalog", str(two))
    assert [tool["name"] for tool in both.json] == ["sing"]


def test_catalogue_from_the_environment_or_the_folder_tools(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "--catalog DIR or DISPATCH_CATALOG" in run.refused("check")
    none = run("--broker", "memory://", "tools")  # of announced services
    assert none.code == 2
    assert "memory:// is the embedded broker of a single process" in none.err
    write_catalog(tmp_path / "tools")
    assert run("tools", "--json").json[0]["name"] == "tell-joke"
    monkeypatch.setenv("DISPATCH_CATALOG", str(write_catalog(tmp_path / "other", name="sing")))
    assert run("tools", "--json").json[0]["name"] == "sing"


def test_a_catalogue_with_mistakes_is_told_with_file_and_fix(run: Run, tmp_path: Path) -> None:
    write_catalog(tmp_path / "tools", service="joke-servise")
    err = run.refused("tools")
    assert "tell-joke.json: service: there is no tool service 'joke-servise'" in err
    assert 'Fix: write "service": "joke-service"' in err


def test_the_policy_from_the_option_then_the_environment_then_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Settings().load_policy() == DEFAULT_POLICY
    (tmp_path / "one.json").write_text('{"timeout": 1, "retry": 2}')
    (tmp_path / "two.json").write_text('{"timeout": 2}')
    monkeypatch.setenv("DISPATCH_POLICY", "one.json")
    policy = Settings().load_policy()
    assert (policy.timeout, policy.retry.max_attempts) == (1, 2)
    assert Settings(policy="two.json").load_policy() == DEFAULT_POLICY.merged({"timeout": 2})


def test_a_policy_with_mistakes_is_told_with_who_named_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one.json").write_text('{"timeout": -1, "retry": {"max-attempts": 0}}')
    monkeypatch.setenv("DISPATCH_POLICY", "one.json")
    with pytest.raises(CliError) as told:
        Settings().load_policy()
    assert told.value.message == (
        "The policy file of DISPATCH_POLICY is invalid: 2 mistakes.\n"
        "  one.json: retry.max-attempts: 0 is not a whole number from 1 to 10. Fix: give 3, or 1 for no retry.\n"
        "  one.json: timeout: -1 is out of range. Fix: give seconds above 0 and at most 604800 (a week)."
    )
    with pytest.raises(CliError, match="file of --policy"):
        Settings(policy="one.json").load_policy()


def test_token_from_file_is_read_again_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    monkeypatch.setenv("DISPATCH_TOKEN", "of the environment")
    assert Settings().security().token == "of the environment"
    token = Settings(token_file=str(file)).security().token
    assert callable(token)
    assert token() == "first"
    file.write_text("second\n")
    assert token() == "second"


@pytest.mark.parametrize("option", ["token_file", "trust_certs"])
def test_a_file_that_is_not_there_is_told_before_anything_connects(option: str) -> None:
    with pytest.raises(CliError, match="'nowhere' cannot be read: No such file") as told:
        Settings(**{option: "nowhere"}).security()
    assert told.value.fix == f"change --{option.replace('_', '-')}"


def test_the_same_for_files_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPATCH_TOKEN_FILE", "nowhere")
    with pytest.raises(CliError, match="cannot be read") as told:
        Settings().security()
    assert told.value.fix == "change DISPATCH_TOKEN_FILE"


@pytest.mark.parametrize("option", ["token_file", "trust_certs"])
@pytest.mark.parametrize(
    ("kind", "problem"), [("pipe", "not a regular file"), ("huge", "more than"), ("device", "not a regular file")]
)
def test_a_file_without_an_end_is_refused(tmp_path: Path, option: str, kind: str, problem: str) -> None:
    path = tmp_path / "file"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/zero")
    else:
        path.touch()
        os.truncate(path, 10**11)
    with pytest.raises(CliError, match=f"cannot be read: {problem}"):
        Settings(**{option: str(path)}).security()


def test_a_token_file_is_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_bytes(b"\xef\xbb\xbftoken\r\n")
    token = Settings(token_file=str(path)).security().token
    assert callable(token)
    assert token() == "token"
    path.write_bytes(b"\xff\xfet\x00")
    with pytest.raises(CliError, match="cannot be read: not UTF-8"):
        Settings(token_file=str(path)).security()


def test_an_empty_token_file_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("\n")
    with pytest.raises(CliError, match="is empty"):
        Settings(token_file=str(tmp_path / "token")).security()


@pytest.mark.parametrize("command", [("call", "tell-joke"), ("serve", "jokes:Joke", "--service", "joke"), ("doctor",)])
def test_the_embedded_broker_is_of_no_use_to_a_command_alone(run: Run, command: tuple[str, ...]) -> None:
    err = run.refused(*command, "--broker", "memory://")
    assert "memory:// is the embedded broker of a single process" in err
    assert "dispatch broker start" in err
    assert "dispatch demo" in err


Captured = pytest.CaptureFixture[str]
INTERRUPTED = """
import sys
class CtrlC:
    def find_spec(self, name, *_):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, CtrlC())
sys.argv = [{program!r}, "tools"]
from dispatch.cli import main
sys.exit(main())
"""


def lab(transport: MemoryTransport | None = None) -> ToolServer:
    queues = {"request_queue": REQUESTS, "response_queue": RESPONSES}
    return ToolServer(Service(lambda _: "done"), transport or BROKER, **queues, instance="a")


async def test_an_error_names_the_topic_that_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    async def subscribe(_self: object, topic: str, *_arguments: object, **_options: object) -> None:
        raise opening_failed("TopicNotFound", url=BROKER, topic=topic)

    monkeypatch.setattr(MemoryTransport, "subscribe", subscribe)
    with pytest.raises(TransportError, match=f"topic {REQUESTS}") as caught:
        await lab().start()
    assert "dispatch-instance" not in str(caught.value)


@pytest.mark.parametrize("calls", [0, 1])
async def test_a_service_without_requests_says_so_once(capsys: Captured, calls: int) -> None:
    server = lab()
    serving = asyncio.create_task(serve.serve_until_signal([serve.ServerReporter(server, json=False)]))
    await idle()
    async with dispatching() as dispatcher:
        for _ in range(calls):
            await dispatcher.call("work")
        await advance(3 * serve.IDLE_S)
    signal.raise_signal(signal.SIGTERM)
    await serving
    lines = capsys.readouterr().err.splitlines()
    said = [line for line in lines if line.startswith("No request has arrived in 15 s.")]
    assert len(said) == (not calls)
    assert all(REQUESTS in line for line in said)
    assert lines[-1] == f"Drained. {calls} request{'' if calls else 's'} received, 0 rejected."


@pytest.mark.parametrize("module", ["typing", "dispatch.calls", "dispatch.cli.app", "typer", "pydantic.fields"])
def test_ctrl_c_while_the_command_line_is_imported(module: str) -> None:
    ended = finish("-c", INTERRUPTED.format(module=module, program="/usr/bin/dispatch"))
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "Interrupted.\n")


@pytest.mark.process
def test_a_further_ctrl_c_at_the_end_of_the_process_prints_no_traceback() -> None:
    program = INTERRUPTED.format(module="typer", program="/usr/bin/dispatch")
    ending = "import signal, threading\nthreading._register_atexit(signal.raise_signal, signal.SIGINT)\n"
    ended = finish("-c", ending + program)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "Interrupted.\n")


def test_ctrl_c_while_a_program_imports_dispatch_is_the_programs() -> None:
    program = INTERRUPTED.format(module="dispatch.calls", program="agent.py")
    program = program.replace("from dispatch.cli import main", "from dispatch import connect")
    ended = finish("-c", program)
    assert ended.returncode != 130
    assert ended.stderr.endswith("KeyboardInterrupt\n")


@pytest.mark.parametrize("command", ["", "doctor", "serve", "demo", "broker start", "rules export"])
def test_flags_have_no_type_in_the_help(run: RunCommand, command: str) -> None:
    out = run(*command.split(), "--help").out
    assert "--help" in out
    assert "<bool>" not in out


# -- the wrong port -------------------------------------------------------------------------------------------------
async def _plain_broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """As Pulsar 4.0.6 does: what begins as no frame of a possible size is reset."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        size = int.from_bytes(await reader.readexactly(4), "big")
        if size > 5 << 20:
            writer.transport.abort()
            return
        _heard.append(await reader.readexactly(size))
        writer.write(CONNECTED)
        await reader.read()
    writer.close()


async def _http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """As Jetty does, Pulsar's admin interface."""
    with contextlib.suppress(OSError):
        await reader.read(4)
        writer.write(b"HTTP/1.1 400 Illegal character CNTL=0x0\r\n\r\n")
        await writer.drain()
    writer.close()


_heard: list[bytes] = []


@contextlib.asynccontextmanager
async def listening(serve: object, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)  # type: ignore[arg-type]
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, Path]:
    """A server's TLS settings, and the authority that its clients must trust."""
    folder = tmp_path_factory.mktemp("tls") / "broker"
    authority = Certificates.create(folder).ca_file
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "broker.pem", folder / "broker-key.pem")
    return context, authority


async def problem(url: str, authority: Path | None = None) -> str:
    with pytest.raises(TransportError) as caught:
        async with connect(url, security=Security(token="s3cret", trust_certs=authority)):
            raise AssertionError("it connected")
    assert (caught.value.type, caught.value.may_have_run) == ("wrong-protocol", False)
    assert url in caught.value.message
    return caught.value.message


@pytest.mark.wall_clock
async def test_tls_to_a_plain_port() -> None:
    _heard.clear()
    async with listening(_plain_broker) as port:
        said = await problem(f"pulsar+ssl://127.0.0.1:{port}")
    assert "without TLS" in said
    assert f"pulsar://127.0.0.1:{port}" in said
    assert not any(b"s3cret" in each for each in _heard), "the token was meant for an encrypted connection"


@pytest.mark.process  # openssl
@pytest.mark.wall_clock
@pytest.mark.parametrize("scheme", ["pulsar", "pulsar+ssl"])
@pytest.mark.parametrize("https", [False, True])
async def test_a_port_that_speaks_http(scheme: str, https: bool, certificates: tuple[ssl.SSLContext, Path]) -> None:
    server_tls, authority = certificates
    async with listening(_http, server_tls if https else None) as port:
        said = await problem(f"{scheme}://127.0.0.1:{port}", authority)
    assert "speaks HTTP" in said
    assert "6650" in said


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_the_address_of_the_admin_interface(scheme: str) -> None:
    with pytest.raises(TransportError, match="admin interface") as caught:
        connect(f"{scheme}://localhost:8080")
    assert caught.value.type == "bad-address"


@pytest.mark.pulsar
async def test_the_ports_of_a_genuine_broker(pulsar_endpoint: object) -> None:
    service_url, web_url = pulsar_endpoint.service_url, pulsar_endpoint.web_url  # type: ignore[attr-defined]
    assert "without TLS" in await problem(service_url.replace("pulsar://", "pulsar+ssl://"))
    assert "speaks HTTP" in await problem(web_url.replace("http://", "pulsar://"))
    assert "speaks HTTP" in await problem(web_url.replace("http://", "pulsar+ssl://"))


FILES = {
    "bom.json": b'\xef\xbb\xbf{"topic": "cats"}',
    "empty.json": b"",
    "list.json": b"[]",
    "tabs.yaml": b"\tretry:\n\t  max-attempts: 2\n",
    "told_shop.py": b'import dispatch\n@dispatch.tool\ndef price(product: str) -> float:\n    "Price."\n    return 1.0\n',
    "told_wrong.py": b"import dispatch\n@dispatch.tool\ndef a(*numbers: int) -> int:\n    'Add.'\n    return 1\n"
    b"@dispatch.tool(policy={'timeot': 3})\ndef b(number: int) -> int:\n    'Add.'\n    return 1\n",
}
DEAF = "pulsar://127.0.0.1:1"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (
            "serve told_shop.py --descriptors nope",
            "--descriptors is for service classes, and 'told_shop.py' is functions, whose descriptors are generated.",
        ),
        (
            "serve told_shop.py --service a/b",
            "'a/b' is no name of a service.\n  fix: write a name without blanks and '/'",
        ),
        (
            "serve told_shop.py --announce x",
            "--announce: 'x' is no whole topic name.\n  fix: write a whole name such as notify:tg",
        ),
        ("serve told_wrong.py", "2 mistakes"),
        ("call tell-joke topic", "fix: write topic=VALUE, or give --arguments JSON"),
        ("call price --announced --trust empty.json", 'the file is empty. Fix: write for instance {"services"'),
        ("toolkit show empty.json", "the file is empty. Fix: write its content, or delete the file."),
        (
            "stats --fleet X",
            "digits and hyphens, and 'X' has not.\n  fix: give the name of connect(fleet=…), such as shop",
        ),
        (
            "ping --topic foo",
            "--topic: 'foo' is no whole topic name.\n  fix: write a whole name, for example 'notify:tg:",
        ),
        ("tools --metrics http://127.0.0.1:1/metrics", "cannot be read: Connection refused.\n"),
        ("get --catalog .", "'dispatch get tool' lists all tools"),
        ("doctor --broker pulsar://127.0.0.1:1", "nothing answers at 127.0.0.1:1: Connection refused\n"),
        ("check --policy tabs.yaml", "fix: correct line 1, column 1: YAML is indented with blanks, not tabs"),
    ],
)
def test_a_mistake_names_the_option_and_the_fix(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, said: str
) -> None:
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    write_catalog(tmp_path / "tools")
    monkeypatch.setenv("DISPATCH_BROKER", DEAF)
    monkeypatch.setattr(sys, "path", [*sys.path])
    ended = run(*command.split())
    assert ended.code in (1, 2, 4)
    assert said in ended.out + ended.err


def test_arguments_of_a_file_may_begin_with_a_byte_order_mark(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bom.json").write_bytes(FILES["bom.json"])
    write_catalog(tmp_path / "tools")
    err = run.refused("call", "tell-joke", "--arguments", "@bom.json", "--broker", DEAF, code=4)
    assert "no Pulsar broker replies" in err


def test_a_port_that_mcp_cannot_have_is_named(run: Run, tmp_path: Path) -> None:
    write_catalog(tmp_path / "tools")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = run("mcp", "--http", address, "--broker", "memory://")
    assert ended.code == 4
    assert f"MCP cannot be served on {address} (Address already in use)." in ended.err
    assert "fix: use another port" in ended.err


def test_what_is_no_admin_endpoint_is_not_quoted(run: Run) -> None:
    page = b"<html><title>Error 404</title>"
    answer = b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n%s" % (len(page), page)

    def serve_pages(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                with listener.accept()[0] as connection:
                    connection.recv(65_536)
                    connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve_pages, args=(listener,), daemon=True)
        thread.start()
        ended = run("calls", str(listener.getsockname()[1]))
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()
    assert "an HTML page, so that it is no admin endpoint" in ended.err
    assert "<html>" not in ended.err


def test_a_line_end_of_a_variable_does_not_matter(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_catalog(tmp_path / "descriptors")
    monkeypatch.setenv("DISPATCH_CATALOG", "descriptors\n")
    monkeypatch.setenv("DISPATCH_POLICY", " ")
    ended = run("check")
    assert (ended.code, ended.out.startswith("descriptors: 1 service, 1 tool, no mistakes.")) == (0, True)
