"""Servers that die, hang or do not obey: typed errors at once, one execution, a restart, and no process left."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import dispatch
import dispatch.mcp.sessions
from dispatch.mcp.sessions import McpSession
from dispatch.mcp.transports import HttpClient, LastLine
from tests.helpers.mcp_servers.programs import START_S, call_until_ok, connected, http_server, stdio, until
from tests.helpers.mcp_servers.scripted import result, scripted_stdio

pytestmark = pytest.mark.wall_clock

POLICY = {"bulkhead": {"max-concurrent-calls": 100}, "breaker": None}


def is_running(pid: int) -> bool:
    """Whether there is such a process, and it is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def assert_typed_ends(dispatcher: dispatch.Dispatcher, kill: Callable[[], object]) -> None:
    """64 calls in flight end at once when their server is killed."""
    loop = asyncio.get_running_loop()
    calls = [asyncio.create_task(dispatcher.execute("wait", {"seconds": 60}, timeout=60)) for _ in range(64)]
    async with asyncio.timeout(START_S):
        while await dispatcher.call("waiting") != "64":
            pass
    began = loop.time()
    kill()
    ended = await asyncio.gather(*calls)
    assert loop.time() - began < 2
    for each in ended:
        assert isinstance(each.error, dispatch.TransportError)
        assert (each.error.type, each.error.may_have_run, each.attempts) == ("instance-lost", True, 1)
        assert not each.error.retryable


async def assert_not_executed(dispatcher: dispatch.Dispatcher) -> None:
    """The server is out of reach, and its tools stay listed."""
    meanwhile = await dispatcher.execute("add", {"a": 1, "b": 2})
    assert (meanwhile.error.type, meanwhile.attempts) == ("no-instance", 0)
    assert meanwhile.error.retry_after is not None
    assert meanwhile.error.retry_after >= 0.5
    assert "add" in [tool.name for tool in dispatcher.registry.list()]


async def test_a_process_that_is_killed_again_and_again_in_the_middle_of_64_calls_loses_only_these(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dispatch.mcp.sessions, "REOPEN_S", START_S)
    monkeypatch.setattr(dispatch.mcp.sessions, "FIRST_RETRY_S", 300.0)
    async with connected({"calc": stdio("calculator", policy=POLICY)}) as dispatcher:
        for _ in range(3):
            pid = int(await dispatcher.call("pid"))
            await asyncio.sleep(dispatch.mcp.sessions.RESTART_S)
            await assert_typed_ends(dispatcher, partial(os.kill, pid, signal.SIGKILL))
            found = await asyncio.gather(*(dispatcher.execute("add", {"a": 1, "b": 2}) for _ in range(64)))
            assert [each.error for each in found] == [None] * 64
            assert int(await dispatcher.call("pid")) != pid
            [source] = dispatcher.registry.sources()
            assert source.state == "ok"
    assert caplog.text.count("calc: the server has ended by SIGKILL; it is started again") == 3


async def test_a_process_that_ends_at_each_call_is_not_started_again_without_a_pause(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "dispatch.mcp")
    entry = scripted_stdio({"work": ""}, policy=POLICY)
    code = entry["args"][2].replace("text = script[", "sys.exit(script[", 1)
    entry["args"][2] = code.replace('["name"]]', '["name"]])', 1)
    async with connected({"s": entry}) as dispatcher:
        while sum("the next attempt is in" in each for each in caplog.messages) < 3:
            found = await dispatcher.execute("work", {})
            assert found.error.type in ("instance-lost", "no-instance")
            await asyncio.sleep(0.01)
    assert "it is started again" not in caplog.text


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_kill_of_a_server_over_http_in_the_middle_of_64_calls_and_between_two(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch.mcp.sessions, "MODE", mode)
    with http_server("calculator") as server:
        async with connected({"calc": {"url": server.url, "policy": POLICY}}) as dispatcher:
            assert await dispatcher.call("add", {"a": 1, "b": 2}) == "3"
            await assert_typed_ends(dispatcher, server.kill)
            await assert_not_executed(dispatcher)
            await asyncio.to_thread(server.start)
            assert set(await call_until_ok(dispatcher, "add", {"a": 1, "b": 2})) <= {"no-instance"}
            server.kill()
            server.start()  # between two calls: the dispatcher's loop stands still meanwhile
            assert await dispatcher.call("add", {"a": 1, "b": 2}) == "3"


async def test_the_first_call_after_a_server_is_back_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a server with one address, and of one with another address where nothing answers."""
    monkeypatch.setattr(dispatch.mcp.sessions, "FIRST_RETRY_S", 300.0)

    with http_server("calculator") as server:
        lonely = {"url": server.url, "prefix": "always", "policy": {"retry": None}}
        pair = lonely | {"url": [server.url, "http://127.0.0.1:1/mcp"]}
        async with connected({"one": lonely, "two": pair}) as dispatcher:

            async def call_both() -> list[dispatch.CallResult]:
                return [await dispatcher.execute(name, {"a": 1, "b": 2}) for name in ("one-add", "two-add")]

            assert [found.text for found in await call_both()] == ["3", "3"]
            server.kill()
            for _ in range(3):
                for found in await call_both():
                    assert found.error.type in ("instance-lost", "no-instance")
                    assert found.duration < 1.5
                await asyncio.sleep(0.6)
            await asyncio.to_thread(server.start)
            await asyncio.sleep(0.6)
            assert [(found.error, found.text) for found in await call_both()] == [(None, "3")] * 2


async def test_a_server_that_comes_after_the_start_is_found_by_the_next_call_or_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatch.mcp.sessions, "FIRST_RETRY_S", 300.0)
    monkeypatch.setattr("dispatch.catalog.activation.FIRST_RETRY_S", 300.0)
    with http_server("calculator") as server:
        server.kill()
        calc = {"calc": {"url": server.url}}
        async with connected(calc) as called, connected(calc) as listed, connected(calc) as searched:
            error = (await called.execute("add", {"a": 1, "b": 2})).error
            assert (error.type, error.retryable) == ("no-instance", True)
            assert "'mcp-calc' (McpServerError: http://127.0.0.1:" in error.message
            assert not await listed.tools()
            assert not await searched.find("add two numbers")
            await asyncio.to_thread(server.start)
            await asyncio.sleep(0.6)
            assert await called.call("add", {"a": 1, "b": 2}) == "3"
            async with asyncio.timeout(START_S):
                while not await listed.tools():  # noqa: ASYNC110 - the dispatcher is asked each time
                    await asyncio.sleep(0.05)
                while not await searched.find("add two numbers"):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)


async def test_the_end_of_a_session_is_no_error_where_its_server_has_gone() -> None:
    async with HttpClient(lambda: None, lambda: None, {}) as http:
        assert (await http.delete("http://127.0.0.1:1/mcp")).status_code == 204


async def test_nothing_is_tried_before_the_start_and_after_the_end() -> None:
    servers = {"mcpServers": {"away": {"url": "http://127.0.0.1:1/mcp"}}}
    dispatcher = dispatch.connect("memory://", [dispatch.McpServers(servers)])

    async def assert_nothing_is_tried() -> None:
        assert not await dispatcher.tools()
        with pytest.raises(dispatch.DispatchError, match="there is no tool 'add'"):
            dispatcher.tool("add")
        assert not [each for each in asyncio.all_tasks() if each.get_name().startswith("dispatch-mcp-")]

    await assert_nothing_is_tried()
    async with dispatcher:
        assert "cannot be reached" in dispatcher.registry.sources()[0].problem
    await assert_nothing_is_tried()


async def test_calls_ask_a_server_that_is_down_twice_a_second_and_wait_for_one_that_hangs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dispatch.mcp.sessions, "FIRST_RETRY_S", 300.0)
    caplog.set_level("WARNING", "dispatch.mcp")

    loop = asyncio.get_running_loop()
    with http_server("calculator") as server:
        async with connected({"calc": {"url": server.url, "policy": POLICY}}) as dispatcher:
            assert await dispatcher.call("add", {"a": 1, "b": 2}) == "3"
            server.kill()
            attempts: list[float] = []
            open_transport = McpSession._run

            async def count(session: McpSession, on_started: Callable[[], object]) -> None:
                attempts.append(loop.time())
                await open_transport(session, on_started)

            monkeypatch.setattr(McpSession, "_run", count)
            until = loop.time() + 2
            while loop.time() < until:
                await asyncio.gather(*(dispatcher.execute("add", {"a": 1, "b": 2}) for _ in range(5)))
                await asyncio.sleep(0.01)
            assert 2 <= len(attempts) <= 5
            told = [each for each in caplog.records if "the next attempt" in each.getMessage()]
            assert len(told) <= 3

            async def hang(_session: McpSession, _on_started: Callable[[], object]) -> None:
                await asyncio.sleep(300)

            monkeypatch.setattr(McpSession, "_run", hang)
            await asyncio.sleep(0.6)
            found = await asyncio.gather(*(dispatcher.execute("add", {"a": 1, "b": 2}) for _ in range(5)))
            assert {each.error.type for each in found if each.error is not None} == {"no-instance"}
            assert all(1.5 < each.duration < 4 for each in found)
            found = [await dispatcher.execute("add", {"a": 1, "b": 2}) for _ in range(5)]
            assert all(each.duration < 1 for each in found), "one attempt at a time"


async def test_calls_are_balanced_between_several_addresses() -> None:
    with http_server("calculator") as one, http_server("calculator") as two:
        async with connected({"calc": {"url": [one.url, two.url], "policy": POLICY}}) as dispatcher:
            found = [await dispatcher.execute("pid") for _ in range(20)]
            assert len({each.text for each in found}) == 2
            assert len({each.instance for each in found}) == 2
            one.kill()
            met = [await dispatcher.execute("pid") for _ in range(20)]
            assert {each.error.type for each in met if each.error is not None} <= {"instance-lost"}
            after = [await dispatcher.execute("pid") for _ in range(10)]
            assert [each.error for each in after] == [None] * 10
            assert len({each.text for each in after}) == 1


async def test_a_server_of_two_that_is_frozen_gets_no_further_calls() -> None:
    with http_server("calculator") as one, http_server("calculator") as two:
        async with connected({"calc": {"url": [one.url, two.url]}}) as dispatcher:
            pids = [int(await dispatcher.call("pid")) for _ in range(20)]
            frozen = pids[0]
            os.kill(frozen, signal.SIGSTOP)
            calls = [asyncio.create_task(dispatcher.call("pid")) for _ in range(10)]
            try:
                async with asyncio.timeout(20):
                    while True:
                        pair = [asyncio.create_task(dispatcher.call("pid")) for _ in range(2)]
                        calls += pair
                        if not (await asyncio.wait(pair, timeout=1))[1]:
                            break
                assert frozen not in [int(await each) for each in pair]
            finally:
                for each in calls:
                    each.cancel()


async def test_a_secret_in_an_address_is_not_repeated(caplog: pytest.LogCaptureFixture) -> None:
    url = ["http://user:secret@127.0.0.1:1/secret/mcp?key=secret", "http://127.0.0.1:1/secret-two/mcp"]
    async with connected({"calc": {"url": url}}) as dispatcher:
        (source,) = dispatcher.registry.sources()
        assert source.state == "failed"
        assert "secret" not in source.problem
    assert "secret" not in caplog.text


def script(tmp_path: Path, code: str) -> dict[str, Any]:
    """The entry of a server that is a short program."""
    path = tmp_path / "server.py"
    path.write_text(textwrap.dedent(code))
    return {"command": sys.executable, "args": [str(path)]}


async def test_a_handshake_that_hangs_fails_and_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch.mcp.sessions, "HANDSHAKE_S", 1.0)
    code = f"""
        import os, time
        open({str(tmp_path / "pid")!r}, "w").write(str(os.getpid()))
        time.sleep(60)
    """
    async with connected({"slow": script(tmp_path, code)}) as dispatcher:
        await until(lambda: "no handshake" in dispatcher.registry.sources()[0].problem)
    assert not is_running(int((tmp_path / "pid").read_text()))


async def test_a_server_that_does_not_list_its_tools_is_told_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch.mcp.sessions, "HANDSHAKE_S", 1.0)
    async with connected({"s": scripted_stdio({"one": ""}, pages=[""])}) as dispatcher:
        await until(lambda: "no reply to tools/list within" in dispatcher.registry.sources()[0].problem)


async def test_a_process_that_starts_slowly_has_more_time_at_its_next_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch.mcp.sessions, "HANDSHAKE_S", 0.3)
    monkeypatch.setattr(dispatch.mcp.sessions, "MAX_PATIENCE", 60)
    entry = scripted_stdio({"one": ""})
    entry["args"][2] = f"import time\ntime.sleep(1)  # a download, again at each start\n{entry['args'][2]}"
    async with connected({"slow": entry}) as dispatcher:
        await until(lambda: dispatcher.registry.sources()[0].state == "ok", 60)


CHILD = """
    import os, signal, subprocess, sys, time
    is_stubborn = "stubborn" in sys.argv
    if is_stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sleep = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", sleep])
    sys.argv[1] = sys.argv[1].replace("PIDS", f"{os.getpid()} {child.pid}")
    exec(sys.argv[2])
    if is_stubborn:
        time.sleep(600)
"""


def parent(tmp_path: Path, *options: str) -> dict[str, Any]:
    """The entry of a server with a child. Its tool ``pids`` answers with the ids of both."""
    answers = {"pids": result({"content": [{"type": "text", "text": "PIDS"}]})}
    *_, code, script_of_replies = scripted_stdio(answers)["args"]
    entry = script(tmp_path, CHILD)
    entry["args"] += [script_of_replies, code, *options]
    return entry


async def read_pids(dispatcher: dispatch.Dispatcher) -> list[int]:
    return list(map(int, (await dispatcher.call("pids")).split()))


@pytest.mark.parametrize("options", [[], ["stubborn"]])
async def test_a_server_and_its_children_end_with_the_dispatcher(tmp_path: Path, options: list[str]) -> None:
    async with connected({"parent": parent(tmp_path, *options)}) as dispatcher:
        pids = await read_pids(dispatcher)
        assert all(map(is_running, pids))
    await until(lambda: not any(map(is_running, pids)), 1)  # they were killed, and the kernel needs a moment


async def test_the_children_of_a_killed_server_end_and_hide_its_death_from_no_call(tmp_path: Path) -> None:
    async with connected({"parent": parent(tmp_path)}) as dispatcher:
        server, child = await read_pids(dispatcher)
        os.kill(server, signal.SIGKILL)  # the child keeps the pipes open
        await until(lambda: not is_running(child))
        await call_until_ok(dispatcher, "pids", {})


async def test_servers_end_with_a_process_that_closes_nothing(tmp_path: Path) -> None:
    code = f"""
        import asyncio, dispatch

        async def main():
            dispatcher = dispatch.connect("memory://", [dispatch.McpServers({{"parent": {parent(tmp_path)!r}}})])
            await dispatcher.start()
            print(await dispatcher.call("pids"), flush=True)

        asyncio.run(main())
    """
    (tmp_path / "main.py").write_text(textwrap.dedent(code))
    silent = {"stdout": -1, "stderr": asyncio.subprocess.DEVNULL}
    process = await asyncio.create_subprocess_exec(sys.executable, str(tmp_path / "main.py"), **silent)
    output, _ = await process.communicate()
    pids = list(map(int, output.split()))
    assert len(pids) == 2
    await until(lambda: not any(map(is_running, pids)))


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (
            "import no_such_module",
            "exit status 1 (its last line: ModuleNotFoundError: No module named 'no_such_module')",
        ),
        ("import sys; sys.exit('usage: server PATH')", "exit status 1 (its last line: usage: server PATH)"),
        ("import os; os.abort()", "the server has ended by SIGABRT"),
        ("", "the server has ended with exit status 0"),
        ("import os, time; os.close(1); time.sleep(60)", "the server has closed its stdin or stdout, and was ended"),
    ],
)
async def test_a_server_that_ends_by_itself_is_told_about_with_what_it_wrote(
    tmp_path: Path, code: str, text: str
) -> None:
    async with connected({"bad": script(tmp_path, code)}) as dispatcher:
        assert text in dispatcher.registry.sources()[0].problem


NPM = """npm error code E404
npm error 404 Not Found - GET https://registry.example/no-such-server
npm error 404
npm error 404 Note that you can also install from a
npm error A complete log of this run can be found in: /logs/debug-0.log
"""
DOCKER = """docker: Cannot connect to the Docker daemon at unix:///var/run/docker.sock.

Run 'docker run --help' for more information
"""
UV = """error: No solution found when resolving tool dependencies
  cause: Because no-such-server was not found in the package registry, it cannot be used.
"""
RUST = """thread 'main' (7) panicked at src/main.rs:2:5:
no database
note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace
"""
GO = "panic: no database\n\ngoroutine 1 [running]:\nmain.main()\n\t/src/main.go:5 +0x25\nexit status 2\n"
NODE = "node:internal/loader:1\n  throw err;\n\nError: Cannot find module '/x'\n    at a (b:1)\n\nNode.js v20.20.2\n"
CLAP = "error: unexpected argument '--x' found\n\nUsage: server [OPTIONS]\n\nFor more information, try '--help'.\n"
GROUP = """Starting the server
  + Exception Group Traceback (most recent call last):
  |   File "server.py", line 1, in <module>
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "server.py", line 2, in serve
    | ValueError: no database
    +------------------------------------
"""


REASONS = {
    NPM: "npm error 404 Not Found - GET https://registry.example/no-such-server",
    DOCKER: "docker: Cannot connect to the Docker daemon at unix:///var/run/docker.sock.",
    UV: "error: No solution found when resolving tool dependencies cause: Because no-such-server",
    RUST: "thread 'main' (7) panicked at src/main.rs:2:5: no database",
    GO: "panic: no database",
    NODE: "Error: Cannot find module '/x'",
    CLAP: "error: unexpected argument '--x' found",
    GROUP: "ValueError: no database",
    "flag provided but not defined: -x\nUsage of server:\n  -http string\n": "flag provided but not defined: -x",
}


@pytest.mark.parametrize("ends", [True, False])
async def test_the_line_that_names_the_error_of_a_server_is_told_about_whether_it_ends_or_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    if not ends:
        monkeypatch.setattr(dispatch.mcp.sessions, "HANDSHAKE_S", 1.0)
    then = "sys.exit(1)" if ends else "time.sleep(60)"
    entries = {}
    for number, written in enumerate(REASONS):
        (tmp_path / str(number)).mkdir()
        code = f"import sys, time\nsys.stderr.write({written!r})\nsys.stderr.flush()\n{then}"
        entries[f"bad-{number}"] = script(tmp_path / str(number), code)
    async with connected(entries) as dispatcher:

        def problems() -> list[str]:
            return [source.problem for source in dispatcher.registry.sources()]

        await until(lambda: all("its last line" in problem for problem in problems()))
        for problem, reason in zip(problems(), REASONS.values(), strict=True):
            assert f"(its last line: {reason}" in problem


async def test_an_error_of_long_ago_is_not_the_reason_of_an_end() -> None:
    last = LastLine()
    last.add("ValueError: of a call that failed", 10.0)
    last.add("listening", 10.1)
    assert last.text == "ValueError: of a call that failed"
    last.add("out of memory", 60.0)
    assert last.text == "out of memory"


async def test_a_call_that_waits_for_a_server_until_its_limit_was_not_executed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The server ends after it has served, and its next start takes longer than the call has."""
    entry = scripted_stdio({"work": result({"content": [{"type": "text", "text": "done"}]})}, policy=POLICY)
    marker = tmp_path / "started"
    entry["args"][2] = f"""
import os, sys, time
if os.path.exists({str(marker)!r}):
    time.sleep(60)
with open({str(marker)!r}, "w") as file:
    file.write(str(os.getpid()))
{entry["args"][2]}"""
    async with connected({"s": entry}) as dispatcher:
        assert await dispatcher.call("work", {}) == "done"
        await asyncio.sleep(dispatch.mcp.sessions.RESTART_S)
        os.kill(int(marker.read_text()), signal.SIGKILL)
        await until(lambda: "it is started again" in caplog.text)
        found = await dispatcher.execute("work", {}, timeout=1)
    assert (found.error.type, found.outcome, found.attempts) == ("no-instance", "rejected", 0)
    assert found.duration < 1.5


async def test_output_that_is_no_message_is_logged_and_a_server_that_ends_at_once_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "dispatch.mcp")
    async with connected({"bad": script(tmp_path, "print('hello')")}) as dispatcher:
        await until(lambda: sum("the next attempt is in" in each for each in caplog.messages) >= 3)
        assert dispatcher.registry.sources()[0].state == "failed"
    assert "bad: (stdout) hello" in caplog.messages
    waits = [float(each.rpartition(" in ")[2].split()[0]) for each in caplog.messages if "next attempt" in each]
    assert 0.4 <= waits[0] <= 0.5
    assert waits[0] < waits[1] < waits[2]


async def test_servers_start_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch.mcp.sessions, "MAX_STARTS", 1)
    starting: set[McpSession] = set()
    most: list[int] = []
    original = McpSession._run

    async def counted(session: McpSession, on_started: Callable[[], object]) -> None:
        def on_open() -> None:
            starting.discard(session)
            on_started()

        starting.add(session)
        most.append(len(starting))
        try:
            await original(session, on_open)
        finally:
            starting.discard(session)

    monkeypatch.setattr(McpSession, "_run", counted)
    servers = {name: scripted_stdio({"add": result({})}, prefix="always") for name in ("one", "two", "three")}
    async with connected(servers) as dispatcher:
        await until(lambda: len(dispatcher.registry.list()) == 3, 30)
    assert most == [1, 1, 1]


async def test_calls_wait_for_servers_that_are_still_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatch.catalog.registry.FIRST_DISCOVERY_S", 0.2)
    servers = {}
    for number in range(8):
        entry = scripted_stdio({f"work_{number}": result({"content": [{"type": "text", "text": f"by {number}"}]})})
        entry["args"][2] = f"import time; time.sleep({1 + number % 3 / 2})\n{entry['args'][2]}"
        servers[f"s{number}"] = entry
    async with connected(servers) as dispatcher:
        assert {source.problem for source in dispatcher.registry.sources()} == {"not read yet"}
        calls = [dispatcher.call(f"work_{number}") for number in range(8)]
        assert await asyncio.gather(*calls) == [f"by {number}" for number in range(8)]
        unknown = await dispatcher.execute("work_8")
        assert unknown.error.type == "unknown-tool"


async def test_the_waits_grow_however_long_each_attempt_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dispatch.mcp.sessions, "HANDSHAKE_S", 0.3)
    monkeypatch.setattr(dispatch.mcp.sessions, "STABLE_S", 0.1)
    caplog.set_level("WARNING", "dispatch.mcp")

    def reports() -> list[str]:
        return [each.getMessage() for each in caplog.records if each.name == "dispatch.mcp"]

    async with connected({"slow": script(tmp_path, "import time; time.sleep(60)")}):
        await until(lambda: len(reports()) >= 2, 20)
    waits = [float(each.rpartition(" in ")[2].split()[0]) for each in reports()]
    assert waits[0] < waits[1]
