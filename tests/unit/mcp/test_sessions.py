"""Tools of genuine MCP servers, called through a dispatcher.
What sessions with MCP servers, and functions, have as instances: balancing, ejection, hedging, versions.
Changes of a server's list of tools come into force within a second, however they are announced.
Callbacks of an application that raise anything: the server gets an error without its text, and the session goes on.
Names in the catalogue: readable, accepted by models, and different for different tools.
Servers of the SDK's former line (``mcp<2``), over both transports.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp import MCPError, types
from mcp.types import INTERNAL_ERROR, ErrorData

import dispatch
import dispatch.mcp.sessions
from dispatch import McpServers
from dispatch.errors import ErrorType
from dispatch.mcp.conversion import Callbacks, ServerTools, choose_names, map_names
from dispatch.mcp.server import McpServer
from tests.helpers.mcp_connections import serving
from tests.helpers.mcp_servers.programs import (
    FOLDER,
    START_S,
    HttpServer,
    connected,
    free_port,
    http_server,
    stdio,
    until,
)
from tests.helpers.mcp_servers.scripted import result, scripted_stdio
from tests.helpers.mcp_servers.v1_environment import v1_python
from tests.helpers.run_profile import by_profile

pytestmark = pytest.mark.wall_clock


@pytest.fixture(params=["auto", "legacy"])
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both generations of the protocol."""
    monkeypatch.setattr(dispatch.mcp.sessions, "MODE", request.param)
    return str(request.param)


CALCULATOR = pytest.mark.xdist_group("calculator")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The address of a calculator, for tests that do not change it."""
    with http_server("calculator") as server:
        yield server.url


async def test_calls_of_a_server_and_their_cancellation(mode: str, tmp_path: Path) -> None:
    async with connected({"calc": stdio("calculator")}) as dispatcher:
        assert await dispatcher.call("add", {"a": 1, "b": 2}) == "3"
        plain = await dispatcher.execute("text_upper", {"text": "größe 🦊"})
        assert (plain.text, plain.content, plain.instance) == ("GRÖSSE 🦊", (), "calc")
        structured = await dispatcher.execute("add", {"a": 1, "b": 2})
        assert structured.structured_content == {"result": 3}
        picture = await dispatcher.execute("picture")
        assert picture.text == "a cat\n[image: image/png, 4 bytes]"
        assert [block["type"] for block in picture.content] == ["text", "image"]
        failed = await dispatcher.execute("fail")
        assert isinstance(failed.error, dispatch.ToolError)
        assert "no such order" in failed.error.message
        late = await dispatcher.execute("wait", {"seconds": 30, "path": str(tmp_path / "late")}, timeout=0.3)
        assert late.outcome is dispatch.Outcome.TIMEOUT
        await until((tmp_path / "late").exists)
        assert await dispatcher.call("add", {"a": 1, "b": 2}) == "3"  # the server lives

        pid = await dispatcher.call("pid")
        call = asyncio.create_task(dispatcher.call("wait", {"seconds": 30, "path": str(tmp_path / "stopped")}))
        async with asyncio.timeout(START_S):
            while await dispatcher.call("waiting") != "1":
                pass
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until((tmp_path / "stopped").exists)
        assert await dispatcher.call("pid") == pid


async def answer(context: Any, params: types.ElicitRequestFormParams) -> types.ElicitResult:
    assert params.message == "Your name?"
    return types.ElicitResult(action="accept", content={"name": "Ada"})


async def test_requests_of_a_server_are_rejected_by_name(mode: str) -> None:
    name = "changing" if mode == "auto" else "calculator"  # the SDK's high-level server asks in the former protocol
    async with connected({"server": stdio(name)}) as dispatcher:
        result = await dispatcher.execute("ask")
    assert result.error is not None
    assert ("elicitation/create" if mode == "auto" else "Elicitation not supported") in result.error.message


async def test_a_callback_answers_requests_of_a_server(mode: str) -> None:
    name = "changing" if mode == "auto" else "calculator"
    with http_server(name) as server:
        async with connected({"server": {"url": server.url}}, elicitation=answer) as dispatcher:
            assert "Ada" in await dispatcher.call("ask")


@CALCULATOR
async def test_invalid_entries_are_reported_by_name_and_the_others_work(url: str) -> None:
    servers = {"calc": {"url": url}, "broken": {"args": 3}, "gone": {"command": "/no/such/program"}}
    async with connected(servers) as dispatcher:
        sources = {each.id: each for each in dispatcher.registry.sources()}
        states = {id: each.state for id, each in sources.items()}
        assert states == {"mcp-calc": "ok", "mcp-broken": "failed", "mcp-gone": "failed"}
        assert "broken: command: neither" in sources["mcp-broken"].problem
        assert "No such file" in sources["mcp-gone"].problem
        assert await dispatcher.call("add", {"a": 1, "b": 2}) == "3"


@pytest.mark.process
@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (
            {"command": "no-such-program"},
            "'no-such-program' cannot be started: No such file or directory. Fix: install it",
        ),
        ({"command": "python server.py"}, "No such file or directory. Fix: write its arguments in 'args'"),
        ({"command": "python", "cwd": "/no/such"}, "there is no folder '/no/such'. Fix: correct 'cwd'"),
        ({"command": "/etc/hostname"}, "Fix: make it executable, or write its interpreter as 'command'"),
        (
            {"url": "http://user:secret@127.0.0.1:1/mcp?key=secret"},
            "http://127.0.0.1:1 cannot be reached (ConnectError: All connection attempts failed). Fix: start it, or",
        ),
    ],
)
async def test_a_server_that_cannot_be_reached_is_told_with_its_fix(
    entry: dict[str, Any], problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    catalog = McpServers({"weather": entry})
    async with dispatch.connect("memory://", catalog=[catalog]) as dispatcher:
        (source,) = dispatcher.registry.sources()
    assert problem in source.problem
    assert problem in caplog.text
    assert "secret" not in source.problem + caplog.text


@contextmanager
def tls_server(folder: Path) -> Iterator[int]:
    """A port where a server with TLS listens, whose certificate no authority has signed; it answers nothing."""
    key, certificate = str(folder / "key.pem"), str(folder / "certificate.pem")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection, suppress(OSError):
                        context.wrap_socket(connection, server_side=True).close()

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]


@CALCULATOR
async def test_a_url_with_the_wrong_scheme_or_certificate_is_told_with_its_fix(url: str, tmp_path: Path) -> None:
    with tls_server(tmp_path) as port:
        servers = {
            "self-signed": {"url": f"https://127.0.0.1:{port}/mcp"},
            "has-tls": {"url": f"http://127.0.0.1:{port}/mcp"},
            "has-none": {"url": url.replace("http://", "https://")},
        }
        async with connected(servers) as dispatcher:
            problems = {each.id: each.problem for each in dispatcher.registry.sources()}
    assert "Fix: set SSL_CERT_FILE to the certificate of its authority" in problems["mcp-self-signed"]
    fix = "without an answer of HTTP (ReadError). Fix: write https:// in 'url' if it has TLS"
    assert fix in problems["mcp-has-tls"]
    assert "Fix: write http:// in 'url' if it has no TLS" in problems["mcp-has-none"]


@CALCULATOR
async def test_hints_are_believed_of_trusted_servers_only(url: str) -> None:
    for trusted in (False, True):
        async with connected({"calc": {"url": url, "trusted": trusted}}) as dispatcher:
            assert dispatcher.registry.get("add").read_only is trusted
            assert dispatcher.registry.get("add").destructive is None


async def test_clashing_names_have_the_prefix_from_the_start() -> None:
    answer = result({"content": [{"type": "text", "text": "fine"}]})
    servers = {name: scripted_stdio({"work": answer}) for name in ("one", "two", "three")}
    async with connected(servers) as dispatcher:
        assert set(dispatcher.catalog.tools) == {f"{name}-work" for name in servers}


@CALCULATOR
async def test_clashing_names_have_the_prefix_of_their_servers(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "dispatch.mcp")
    servers = {
        "one": {"url": url, "only": ["add", "fail"]},
        "two": {"url": url, "only": ["add"]},
        "three": {"url": url, "only": ["pid"], "prefix": "always"},
    }
    async with connected(servers) as dispatcher:
        names = ["fail", "one-add", "three-pid", "two-add"]
        await until(lambda: sorted(tool.name for tool in dispatcher.registry.list()) == names)
        assert (await dispatcher.execute("one-add", {"a": 1, "b": 2})).instance == "one"
        assert (await dispatcher.execute("two-add", {"a": 1, "b": 2})).instance == "two"
    assert [each.getMessage() for each in caplog.records] == ["several MCP servers have a tool 'add': one, two"]


@CALCULATOR
async def test_policy_and_permissions_of_a_server_hold_for_its_tools(url: str) -> None:
    entry = {"url": url, "permissions": ["calc:use"], "policy": {"rate-limit": "1/m"}}
    source = dispatch.McpServers({"calc": entry})
    permissions = {"ada": ["calc:*"]}
    async with dispatch.connect("memory://", [source], grants=lambda user: permissions.get(user, [])) as dispatcher:
        refused = await dispatcher.execute("add", {"a": 1, "b": 2}, user="bob")
        assert refused.error.type == "not-permitted"
        assert (await dispatcher.execute("add", {"a": 1, "b": 2}, user="ada")).text == "3"
        throttled = await dispatcher.execute("add", {"a": 1, "b": 2}, user="ada", timeout=0.5)
        assert throttled.outcome is dispatch.Outcome.THROTTLED


@CALCULATOR
async def test_a_changed_definition_waits_for_its_approval(url: str, tmp_path: Path) -> None:
    source = dispatch.McpServers({"calc": {"url": url, "on-change": "hold"}})
    async with dispatch.connect("memory://", [source], approvals=tmp_path / "approved.json") as dispatcher:
        assert await dispatcher.call("add", {"a": 1, "b": 2}) == "3"
        await until((tmp_path / "approved.json").exists)
    assert "tool/add" in (tmp_path / "approved.json").read_text()


@CALCULATOR
async def test_servers_that_are_added_and_removed(url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with dispatch.connect("memory://") as dispatcher:
        entries = {"calc": {"url": url, "only": ["add", "subtract"]}, "broken": {}}
        await dispatcher.registry.add_source(dispatch.McpServers(entries))
        assert [each.id for each in dispatcher.registry.sources()] == ["mcp-calc", "mcp-broken"]
        assert await dispatcher.call("add", {"a": 1, "b": 2}) == "3"
        await dispatcher.registry.remove_source("mcp-calc")
        gone = await dispatcher.execute("add", {"a": 1, "b": 2})
        assert gone.error.type == "unknown-tool"
        with pytest.raises(ValueError, match="mcp-broken"):
            await dispatcher.registry.add_source(dispatch.McpServers({"other": {}, "broken": {}}))
        assert [each.id for each in dispatcher.registry.sources()] == ["mcp-broken"]
    assert "mcp-calc: 'only' names tools that the server does not have: subtract" in caplog.messages


@CALCULATOR
async def test_a_reload_with_other_servers(url: str) -> None:
    async with connected({"calc": stdio("calculator")}) as dispatcher:
        pid = int(await dispatcher.call("pid"))
        await dispatcher.reload([dispatch.McpServers({"other": {"url": url}, "broken": {}})])
        assert (await dispatcher.execute("add", {"a": 1, "b": 2})).instance == "other"
        await until(lambda: not Path(f"/proc/{pid}").exists())


async def test_stderr_is_in_the_log_and_bounded(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dispatch.mcp")
    async with connected({"calc": stdio("calculator")}) as dispatcher:
        assert await dispatcher.call("log", {"text": "x" * 5_000, "lines": 1_000}) == "written"
    lines = [each.getMessage() for each in caplog.records if "xxx" in each.getMessage()]
    assert 50 <= len(lines) < 200
    assert max(map(len, lines)) < 1_100
    assert any("lines are left out" in each.getMessage() for each in caplog.records)


def test_an_import_of_dispatch_imports_no_mcp() -> None:
    code = "import sys, dispatch; sys.exit(any(name.split('.')[0] in ('mcp', 'mcp_types') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_the_sdk_the_error_names_the_extra() -> None:
    code = "import sys; sys.modules['mcp'] = None; import dispatch; dispatch.McpServers"
    found = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert "pip install 'tool-dispatch[mcp]'" in found.stderr


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(dispatch.CatalogError, match="No such file"):
        dispatch.McpServers(tmp_path / "mcp.json")
    (tmp_path / "mcp.json").write_text('{"mcpServers": {,}}')
    with pytest.raises(dispatch.CatalogError, match="line 1, column 17"):
        dispatch.McpServers(tmp_path / "mcp.json")


def test_a_file_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text('\ufeff{"mcpServers": {"größe": {"command": "x"}}}', "utf-8")
    assert [each.id for each in dispatch.McpServers(tmp_path / "mcp.json").sources] == ["mcp-gr_e"]


class Server:
    """An MCP server of this process with one tool.

    Args:
        version: that it declares.
    """

    def __init__(self, version: str = "1.0.0") -> None:
        self.version = version
        self.wait = 0.0
        self.is_failing = False
        self.calls = 0
        self.cancelled = 0

    @dispatch.tool(read_only=True)
    async def work(self) -> str:
        """Work."""
        self.calls += 1
        try:
            await asyncio.sleep(self.wait)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return self.version


@contextlib.asynccontextmanager
async def calling(*servers: Server, **settings: Any) -> AsyncIterator[dispatch.Dispatcher]:
    """A dispatcher with one MCP server at as many addresses."""
    async with contextlib.AsyncExitStack() as stack:
        urls = []
        for each in servers:
            other = await stack.enter_async_context(dispatch.connect("memory://", [dispatch.Functions(each.work)]))
            server = McpServer(other)
            server.sdk_server.version = each.version
            urls.append(await stack.enter_async_context(serving(server)))
        policy = settings.pop("policy", {})
        config = {"mcpServers": {"lab": {"url": urls, "trusted": True, "policy": policy, **settings}}}
        dispatcher = await stack.enter_async_context(dispatch.connect("memory://", [McpServers(config)]))
        await until(lambda: "work" in dispatcher.catalog.tools)
        await dispatcher.call("work")
        await until(lambda: len(dispatcher.instances("mcp-lab")) == len(servers))
        yield dispatcher


@pytest.mark.costly
async def test_addresses_are_balanced_and_seen() -> None:
    servers = [Server(), Server(), Server()]
    async with calling(*servers) as dispatcher:
        for each in servers:
            each.calls = 0
        results = [await dispatcher.execute("work") for _ in range(30)]
        assert [each.calls for each in servers] == [10, 10, 10]
        assert set(Counter(result.instance for result in results).values()) == {10}
        assert {view.id for view in dispatcher.instances("mcp-lab")} == {result.instance for result in results}


@pytest.mark.costly
async def test_a_server_that_hangs_is_ejected() -> None:
    servers = [Server(), Server()]
    policy = {"timeout": 0.8, "retry": 1, "breaker": None}  # on a busy machine an answer over HTTP takes 0.1 s
    async with calling(*servers, policy=policy) as dispatcher:
        servers[0].wait = 60.0
        outcomes = [(await dispatcher.execute("work")).outcome for _ in range(30)]
        assert outcomes.count(dispatch.Outcome.TIMEOUT) < 10
        assert set(outcomes[-10:]) == {dispatch.Outcome.SUCCESS}
        assert [view.state for view in dispatcher.instances("mcp-lab")].count("ejected") == 1


async def test_a_slow_server_is_hedged_at_another_one() -> None:
    servers = [Server("1.0.0"), Server("2.0.0")]
    async with calling(*servers, policy={"hedging": 0.05}) as dispatcher:
        for slow in servers:
            slow.wait = 20.0
            assert {await dispatcher.call("work", timeout=10) for _ in range(2)} != {slow.version}
            slow.wait = 0.0


async def test_a_tool_is_called_at_servers_of_the_version_that_it_requires() -> None:
    servers = [Server("1.4.0"), Server("2.1.0")]
    async with calling(*servers) as dispatcher:
        work = dispatcher.catalog.tools["work"]
        pool = dispatcher._running.pool_registry.of_service(work.service)[0]
        assert pool.versions == ("2.1.0", "1.4.0")


async def test_while_no_session_is_open_calls_end_at_once_and_say_when_to_come_back() -> None:
    server = Server()
    async with contextlib.AsyncExitStack() as stack:
        other = await stack.enter_async_context(dispatch.connect("memory://", [dispatch.Functions(server.work)]))
        async with serving(McpServer(other)) as url:
            config = {"mcpServers": {"lab": {"url": url}}}
            dispatcher = await stack.enter_async_context(dispatch.connect("memory://", [McpServers(config)]))
            assert await dispatcher.call("work") == "1.0.0"
        error: dispatch.DispatchError | None = None
        for _ in range(20):
            began = asyncio.get_running_loop().time()
            error = (await dispatcher.execute("work")).error
            if error is not None and error.type == ErrorType.NO_INSTANCE:
                break
        assert asyncio.get_running_loop().time() - began < 1
        assert error.type == ErrorType.NO_INSTANCE
        assert error.retry_after is not None


async def test_a_function_has_slow_start_and_is_seen() -> None:
    async with dispatch.connect("memory://", [dispatch.Functions(Server().work)]) as dispatcher:
        assert await dispatcher.call("work") == "1.0.0"
        (view,) = dispatcher.instances("functions")
        assert (view.id, view.state in ("warming", "up")) == ("(local)", True)


TOOLS = 124
"""Tools of the server at its start, on three pages."""


def names(dispatcher: dispatch.Dispatcher) -> set[str]:
    return {tool.name for tool in dispatcher.registry.list()}


CHANGES = by_profile(short=20, long=200)
"""Changes of the list, 20 each second."""


async def follow_changes(entry: dict[str, Any]) -> None:
    async with connected({"server": entry}) as dispatcher:
        assert len(names(dispatcher)) == TOOLS
        await dispatcher.call("change", {"count": CHANGES, "seconds": CHANGES / 20})
        began = time.monotonic()
        delays: dict[str, float] = {}
        while len(delays) < CHANGES:
            assert time.monotonic() - began < 30
            await asyncio.sleep(0.05)
            for tool in dispatcher.registry.list(text="new-"):
                delays.setdefault(tool.name, time.monotonic() - float(tool.description))
        assert max(delays.values()) < 1
        await dispatcher.call("remove", {"name": "new-0"})
        await until(lambda: "new-0" not in names(dispatcher), 1)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_20_changes_per_second_are_followed(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch.mcp.sessions, "MODE", mode)
    await follow_changes(stdio("changing"))


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_changes_over_http_and_after_a_restart(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch.mcp.sessions, "MODE", mode)
    with http_server("changing") as server:
        async with connected({"server": {"url": server.url}}) as dispatcher:
            assert len(names(dispatcher)) == TOOLS
            await dispatcher.call("remove", {"name": "tool-0"})
            await until(lambda: "tool-0" not in names(dispatcher), 1)
            server.kill()
            await asyncio.to_thread(server.start)
            await until(lambda: "tool-0" in names(dispatcher), 20)
            await until(lambda: dispatcher.registry.sources()[0].state == "ok", 20)
            await dispatcher.call("remove", {"name": "tool-1"})
            await until(lambda: "tool-1" not in names(dispatcher), 5)


async def test_a_server_that_announces_nothing_is_polled(monkeypatch: pytest.MonkeyPatch) -> None:
    async def is_polled(*options: str) -> None:
        with http_server("changing", "silent", *options) as server:
            async with connected({"server": {"url": server.url}}) as dispatcher:
                await dispatcher.call("remove", {"name": "tool-0"})
                assert "tool-0" in names(dispatcher)
                await until(lambda: "tool-0" not in names(dispatcher), 3)

    await is_polled("ttl=1000")
    monkeypatch.setattr(dispatch.mcp.sessions, "POLL_S", 1.0)
    await is_polled()


async def test_errors_of_the_protocol_and_a_change_that_leaves_the_other_items_as_they_are() -> None:
    expected: list[tuple[int, type[dispatch.DispatchError], str]] = [
        (-32602, dispatch.InvalidArgumentsError, "invalid-arguments"),
        (-32601, dispatch.RejectedError, "unknown-tool"),
        (-32603, dispatch.TransportError, "server-failed"),
        (-32000, dispatch.TransportError, "server-failed"),
    ]
    with http_server("changing") as server:
        async with connected({"server": {"url": server.url}}) as dispatcher:
            for code, kind, type in expected:
                result = await dispatcher.execute("break", {"code": code})
                assert isinstance(result.error, kind)
                assert result.error.type == type
                assert "it broke" in result.error.message
            former = dispatcher.registry.get("tool-7")
            await dispatcher.call("remove", {"name": "tool-0"})
            await until(lambda: "tool-0" not in names(dispatcher))
            assert dispatcher.registry.get("tool-7") is former
            gone = await dispatcher.execute("tool-0")
            assert gone.error.type == "unknown-tool"


@pytest.mark.parametrize(
    "error",
    [
        *(ValueError("4711"), SystemExit(4711), StopIteration(1)),
        *(GeneratorExit(), KeyboardInterrupt(), asyncio.CancelledError()),
    ],
)
@pytest.mark.parametrize("kind", ["elicitation", "sampling", "roots"])
async def test_what_a_callback_raises_is_an_error_for_the_server(
    kind: str, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: Any) -> Any:
        raise error

    options = Callbacks(**{kind: fail}).as_options()
    callback = options["list_roots_callback" if kind == "roots" else f"{kind}_callback"]
    answer = await callback("context", "parameters")
    assert isinstance(answer, ErrorData)
    assert answer.code == INTERNAL_ERROR
    assert kind in answer.message
    assert "4711" not in answer.message
    assert f"the callback for {kind} failed" in caplog.text
    assert "4711" not in caplog.text


async def test_answers_and_errors_of_the_protocol_pass() -> None:
    async def decline(_context: object) -> Any:
        raise MCPError(-1, "not allowed")

    async def answer(_context: object, parameters: object) -> Any:
        return parameters

    options = Callbacks(roots=decline, sampling=answer).as_options()
    with pytest.raises(MCPError, match="not allowed"):
        await options["list_roots_callback"]("context")
    assert await options["sampling_callback"]("context", 5) == 5
    assert options["elicitation_callback"] is None


async def test_the_cancellation_of_the_session_passes() -> None:
    async def hang(_context: object) -> Any:
        await asyncio.Event().wait()

    task = asyncio.ensure_future(Callbacks(roots=hang).as_options()["list_roots_callback"]("context"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


USABLE = re.compile(r"[A-Za-z0-9_-]{1,64}")
MCP_NAMES = st.text("ab._-/ ü", min_size=1, max_size=128)


def names_of(*servers: ServerTools) -> dict[str, dict[str, str]]:
    return {server: dict(names) for server, names in choose_names(servers).names.items()}


def test_a_usable_name_stays() -> None:
    assert map_names(["search", "read_file", "a-b"]) == {"search": "search", "read_file": "read_file", "a-b": "a-b"}


def test_other_characters_are_replaced() -> None:
    assert map_names(["files.read", "größe", "."]) == {"files.read": "files_read", "größe": "gr_e", ".": "_"}


def test_names_that_become_equal_are_told_apart_and_a_usable_one_stays() -> None:
    found = map_names(["a.b", "a_b", "a/b"])
    assert found["a_b"] == "a_b"
    assert len(set(found.values())) == 3
    assert re.fullmatch(r"a_b-[0-9a-f]{6}", found["a.b"])
    assert found["a.b"] == map_names(["a/b", "a.b", "a_b"])["a.b"]  # in any order


def test_long_names_are_cut() -> None:
    one, other = "x" * 127 + "1", "x" * 127 + "2"
    found = map_names([one, other])
    assert found[one] != found[other]
    assert found[one].startswith("x" * 57)


@given(st.lists(MCP_NAMES, max_size=30))
def test_any_names(originals: list[str]) -> None:
    found = map_names(originals)
    assert found.keys() == set(originals)
    assert len(set(found.values())) == len(set(originals))
    assert all(USABLE.fullmatch(name) for name in found.values())


def test_a_clash_adds_the_prefix_of_each_server() -> None:
    servers = (ServerTools("one", None, ("search", "add")), ServerTools("two", None, ("search",)))
    assert names_of(*servers) == {"one": {"search": "one-search", "add": "add"}, "two": {"search": "two-search"}}
    assert choose_names(servers).clashes == {"search": ("one", "two")}


def test_prefix_always_and_never() -> None:
    servers = (
        ServerTools("one", "always", ("search",)),
        ServerTools("two", None, ("search", "add")),
        ServerTools("three", "never", ("add",)),
    )
    two = {"search": "search", "add": "two-add"}
    assert names_of(*servers) == {"one": {"search": "one-search"}, "two": two, "three": {"add": "add"}}


@given(
    st.dictionaries(st.text("xyz. ", min_size=1, max_size=90), st.lists(MCP_NAMES, max_size=8), max_size=5),
    st.sampled_from(["always", None]),
)
def test_tools_of_all_servers_have_different_names(tools: dict[str, list[str]], prefix: str | None) -> None:
    servers = [ServerTools(name, prefix, tuple(each)) for name, each in tools.items()]  # type: ignore[arg-type]
    found = [name for names in choose_names(servers).names.values() for name in names.values()]
    assert all(USABLE.fullmatch(name) for name in found)
    assert len(found) == len(set(found))


@asynccontextmanager
async def entry(transport: str) -> AsyncIterator[dict[str, Any]]:
    program = str(FOLDER / "v1_server.py")
    if transport == "stdio":
        yield {"command": str(v1_python()), "args": [program]}
        return
    port = free_port()
    server = HttpServer(program, str(port), port=port, python=str(v1_python()))
    try:
        await asyncio.to_thread(server.start)
        yield {"url": server.url}
    finally:
        server.kill()


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_server_of_the_former_line(transport: str, tmp_path: Path) -> None:
    async with entry(transport) as found, connected({"former": found}) as dispatcher:
        result = await dispatcher.execute("add", {"a": 1, "b": 2})
        assert (result.text, result.structured_content) == ("3", {"result": 3})
        failed = await dispatcher.execute("fail")
        assert isinstance(failed.error, dispatch.ToolError)
        assert "no such order" in failed.error.message
        late = await dispatcher.execute("wait", {"seconds": 30, "path": str(tmp_path / "late")}, timeout=0.3)
        assert late.outcome is dispatch.Outcome.TIMEOUT
        await until((tmp_path / "late").exists)
        assert await dispatcher.call("grow") == "grown"
        limit = 1 if transport == "stdio" else 2
        await until(lambda: "new" in [tool.name for tool in dispatcher.registry.list()], limit)
        assert await dispatcher.call("new") == "new"
