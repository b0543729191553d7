"""Mistakes of a new user ended in an AttributeError of the inside, or in a text that named no fix. Each says now what is
wrong and what to write instead."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dispatch
from dispatch.catalog import check_items
from dispatch.catalog.items import Item
from dispatch.testing import EmbeddedBroker
from dispatch.toolkit import McpConfig, McpService, McpTransportConfig, McpTransportType, Toolkit
from dispatch.toolkit.graph import ToolGroupType
from dispatch.transports.memory import MemoryTransport
from tests.helpers.catalog_items import JOKE_SERVICE, TELL_JOKE
from tests.unit.cli.conftest import Run, as_if_alone, run, write_catalog

__all__ = ["as_if_alone", "run"]

BROKER = "memory://first-hour"


class Joke(dispatch.ToolService):
    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        return f"About {arguments['topic']}."


class Client:
    async def call(self, config: Any, arguments: Any, timeout: float = 600) -> str:
        return "done"


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


any_value: Any = None
"""Of another type than the signature says."""


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        (
            lambda: dispatch.connect(any_value),
            "None is not a broker address: is an environment variable unset? Use pulsar:",
        ),
        (lambda: dispatch.connect(Path("x")), "PosixPath is not a broker address. Use pulsar://HOST:6650"),
        (lambda: dispatch.ToolServer(Joke(), any_value, service="joke"), "is an environment variable unset?"),
        (
            lambda: dispatch.connect(BROKER, policy=["timeout"]),
            "policy must be dispatch.Policy(timeout=10) or {'timeout':",
        ),
        (lambda: dispatch.connect(BROKER, policy=dispatch.Policy), "not the class Policy"),
        (lambda: dispatch.connect(BROKER, policy={"timeot": 3}), "did you mean 'timeout'?"),
        (lambda: dispatch.connect(BROKER, policy={"timeout": "soon"}), "give seconds"),
        (lambda: dispatch.connect(BROKER, telemetry=any_value), "telemetry must be a dispatch.Telemetry, such as"),
        (lambda: dispatch.connect(BROKER, telemetry=dispatch.Telemetry), "not the class Telemetry"),
        (lambda: dispatch.connect(BROKER, security="token"), "security must be a dispatch.Security, such as"),
        (lambda: dispatch.connect(BROKER, grants={"users": {}}), "dispatch.Grants.of({…})"),
        (lambda: dispatch.connect(BROKER, grants=dispatch.Grants), "not the class Grants"),
        (
            lambda: dispatch.connect(BROKER, catalog=[add]),
            "function add is no source of a catalogue. Fix: wrap it: dispatch.",
        ),
        (lambda: dispatch.connect(BROKER, catalog=add), "dispatch.Functions(add)"),
        (lambda: dispatch.connect(BROKER, catalog={"tools": []}), "use dispatch.Catalog.of(services=[…], tools=[…])"),
        (lambda: dispatch.connect(BROKER, catalog=[{"mcpServers": {}}]), "use dispatch.McpServers({…})"),
        (
            lambda: dispatch.connect(BROKER, catalog=[dispatch.Folder]),
            "the class Folder is no source of a catalogue. Fix: pa",
        ),
        (
            lambda: dispatch.connect(BROKER, catalog=3),
            "an int is no source of a catalogue. Fix: give a Catalog, the path",
        ),
        (lambda: dispatch.connect(any_value), "None is not a broker address: is an environment variable unset?"),
        (lambda: dispatch.Dispatcher(MemoryTransport), "the class MemoryTransport is not a broker address."),
        (lambda: dispatch.ToolServer(Joke, BROKER, service="joke"), "Joke is a class: pass an instance, Joke()"),
        (lambda: dispatch.ToolServer(add, BROKER, service="joke"), "catalog=dispatch.Functions(add)"),
        (lambda: dispatch.wrap(Client, tool="t"), "Client is a class: pass an instance, Client(…)."),
    ],
)
def test_a_value_of_another_kind_is_told_with_what_to_give(mistake: Callable[[], object], said: str) -> None:
    with pytest.raises((TypeError, ValueError, dispatch.DispatchError)) as told:
        mistake()
    assert said in str(told.value)


@pytest.mark.parametrize(
    ("mistake", "key", "near"),
    [
        (lambda: dispatch.Policy(timeot=3), "timeot", "timeout"),
        (lambda: dispatch.Policy(**{"attempt-timeout": 3}), "attempt-timeout", "attempt_timeout"),
        (lambda: dispatch.Retry(max_attemps=3), "max_attemps", "max_attempts"),
        (lambda: dispatch.tool(readonly=True), "readonly", "read_only"),
        (lambda: dispatch.connect(BROKER, catalogue="tools/"), "catalogue", "catalog"),
        (lambda: dispatch.ToolServer(Joke(), BROKER, services="joke"), "services", "service"),
        (lambda: dispatch.Telemetry(contents=True), "contents", "content"),
        (lambda: dispatch.Security(tokn="x"), "tokn", "token"),
        (lambda: dispatch.Folder("tools", watched=True), "watched", "watch"),
        (lambda: dispatch.Functions(add, name_space="x"), "name_space", "namespace"),
        (lambda: dispatch.wrap(Client(), tool="t", annotation=None), "annotation", "annotations"),
        (lambda: dispatch.Catalog.of(service=[]), "service", "services"),
    ],
)
def test_a_misspelt_keyword_is_told_with_the_one_that_is_near(
    mistake: Callable[[], object], key: str, near: str
) -> None:
    with pytest.raises(TypeError) as told:
        mistake()
    assert str(told.value) == f"Unexpected keyword argument '{key}': did you mean '{near}'?"


def test_a_keyword_that_is_near_to_none_is_told_with_all() -> None:
    with pytest.raises(TypeError, match=r"Unexpected keyword argument 'xyzzy': the keywords are rate, burst, .*\."):
        dispatch.RateLimit(xyzzy=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="missing"):  # Python's own texts stay
        dispatch.ToolServer()  # type: ignore[call-arg]


async def test_a_policy_may_be_an_object_as_in_a_descriptor() -> None:
    tools = dispatch.Catalog.of([JOKE_SERVICE], [TELL_JOKE])
    async with dispatch.connect(BROKER, tools, policy={"timeout": 3, "retry": {"max-attempts": 2}}) as dispatcher:
        policy = dispatcher._live.resolver.policy
        assert policy == dispatch.Policy(timeout=3, retry=2)
        await dispatcher.reload(policy={"timeout": 4})
        assert dispatcher._live.resolver.policy == dispatch.Policy(timeout=4)
    assert dispatch.wrap(Client(), tool="t", policy={"retry": 1}).policy.timeout == 600  # over TrustGraph's own


async def test_without_a_catalogue_the_log_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "dispatch.calls"):
        async with dispatch.connect(BROKER) as dispatcher:
            for _ in range(2):
                result = await dispatcher.execute("tell-joke", {})
                assert result.error is not None
                assert result.error.message.endswith("Report that no tools are loaded.")
    (record,) = caplog.records
    assert "connect(catalog=…) was not given" in record.getMessage()
    caplog.clear()
    async with dispatch.connect(BROKER, dispatch.Catalog.of([JOKE_SERVICE], [TELL_JOKE])) as dispatcher:
        await dispatcher.execute("unknown", {})
    assert caplog.records == []


async def test_retry_after_is_in_milliseconds() -> None:
    policy = {"policy": {"user-rate-limit": {"rate": "1/s", "burst": 1, "max-wait": 0}}}
    tools = dispatch.Catalog.of([JOKE_SERVICE], [TELL_JOKE | policy])
    async with EmbeddedBroker().connect(tools, services={"joke": Joke()}) as dispatcher:
        await dispatcher.execute("tell-joke", {"topic": "cats"})
        error = (await dispatcher.execute("tell-joke", {"topic": "cats"})).error
        assert error is not None
        assert error.retry_after is not None
        assert 0.9 < error.retry_after <= 1
        assert len(str(error.as_dict()["retry_after"])) <= 5
    for seconds, shown in ((1 / 3, 0.334), (1.1, 1.1), (2.96601, 2.967), (0.1, 0.1), (12, 12)):
        assert dispatch.ThrottledError("t", "m", retry_after=seconds).retry_after == shown


def test_a_fix_is_not_escaped() -> None:
    service = JOKE_SERVICE | {"config-params": [{"name": "style", "required": True}]}
    tool = {key: value for key, value in TELL_JOKE.items() if key != "style"} | {"service": "  scherz‑dienst "}
    items = [Item("s", "tool-service", "joke-service", service), Item("t", "tool", "tell-joke", tool)]
    fixes = [problem.fix for problem in check_items(items)[1]]
    items[1] = Item("t", "tool", "tell-joke", tool | {"service": "joke-service"})
    fixes += [problem.fix for problem in check_items(items)[1]]
    assert 'write "service": "scherz‑dienst"' in fixes
    assert 'add "style": "…"' in fixes
    assert not [fix for fix in fixes if "\\u" in fix]


def test_a_toolkit_file_that_is_missing(run: Run, tmp_path: Path) -> None:
    with pytest.raises(
        dispatch.CatalogError, match=r"gone\.yml: there is no such file\. Fix: create it, or correct the path"
    ):
        Toolkit.load(tmp_path / "gone.yml")
    with pytest.raises(dispatch.CatalogError, match="cannot be read: Is a directory"):
        Toolkit.load(tmp_path)
    end = run("toolkit", "show", str(tmp_path / "gone.yml"))
    assert (end.code, "there is no such file" in end.err, "Errno" in end.err) == (2, True, False)


def test_an_error_of_the_system_is_told_without_its_number(run: Run, tmp_path: Path) -> None:
    (tmp_path / "toolkit.yml").write_text("actions: []\n")
    end = run("toolkit", "draw", str(tmp_path / "toolkit.yml"), "--output", f"{tmp_path}/gone/x.mmd")
    assert end.err.startswith(f"Error: No such file or directory: '{tmp_path}/gone/x.mmd'.")


@pytest.mark.parametrize("command", [("serve", "first_jokes.py:Joke", "--service", "joke"), ("demo", "--seconds", "5")])
def test_a_command_that_calls_no_tool_does_not_say_that_none_was_executed(
    run: Run, tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "first_jokes.py").write_text(
        "import dispatch\nclass Joke(dispatch.ToolService):\n    async def invoke(self, config, arguments): ...\n"
    )
    arguments = [str(tmp_path / each) if each.startswith("first_jokes") else each for each in command]
    end = run(*arguments, "--broker", "pulsar://127.0.0.1:1")
    assert "no Pulsar broker replies at pulsar://127.0.0.1:1" in end.out + end.err
    assert "executed" not in end.out + end.err


async def test_a_connection_to_an_mcp_server_has_chat2graphs_parameter() -> None:
    class Connection:
        async def close(self) -> None: ...

    async def connect(_: McpConfig) -> Any:
        return Connection()

    transport = McpTransportConfig(McpTransportType.STDIO, command="x")
    service = McpService(McpConfig(ToolGroupType.MCP, "server", transport), connect)
    assert type(await service.create_connection(tool_call_ctx=None)) is Connection
    assert type(await service.create_connection(object())) is Connection


@dispatch.tool
def undescribed(a: int) -> int:
    return a


async def test_a_function_without_a_docstring_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    source = dispatch.Functions(add, undescribed)
    with caplog.at_level(logging.WARNING, "dispatch.catalog"):
        async with dispatch.connect(BROKER, source) as dispatcher:
            await dispatcher.registry.refresh(source.id)
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{__name__}.undescribed has no docstring, by which models choose tools.")


def test_metrics_without_circuits_are_told(run: Run, tmp_path: Path) -> None:
    from prometheus_client import CollectorRegistry

    from dispatch.telemetry.exposition import expose_metrics

    write_catalog(tmp_path / "tools")
    with expose_metrics(dispatch.Telemetry(registry=CollectorRegistry()), 0) as port:
        url = f"http://127.0.0.1:{port}/metrics"
        end = run("tools", "--catalog", str(tmp_path / "tools"), "--metrics", url)
    assert (end.code, "tell-joke" in end.out) == (0, True)
    assert f"Warning: The metrics at {url} have no circuits" in end.err


@pytest.mark.parametrize("line_break", ["\n", "\\n"])
def test_an_excerpt_of_a_call_is_escaped_once(line_break: str) -> None:
    from dispatch.calling import parse

    (call,) = parse(f'<function_call>{{"name": "a", "args": {{"x": "one{line_break}two" oops}}}}</function_call>')
    assert call.error is not None
    assert "one\\ntwo" in call.error
    assert "\\\\n" not in call.error
