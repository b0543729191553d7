"""Of the command line: a service's error named a topic that its user never wrote; `dispatch serve` said nothing when no
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
import base64
import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from dispatch import Security, ToolServer, TransportError, connect
from dispatch.cli import main, serve
from dispatch.cli.doctor import check_token_expiry
from dispatch.devtools.localbroker import (
    LocalBrokerUnavailableError,
    choose_launcher,
    process_identity,
)
from dispatch.devtools.lossprobe import Measurement, RunResult, give_advice
from dispatch.transports.errors import opening_failed
from dispatch.transports.memory import MemoryTransport
from tests.helpers.clock import advance, idle
from tests.helpers.dispatcher_and_service import BROKER, REQUESTS, RESPONSES, Service, dispatching
from tests.helpers.handshake_server import CONNECTED
from tests.helpers.secured_broker import Security as Certificates
from tests.unit.cli.conftest import Run, as_if_alone, run, write_catalog
from tests.unit.cli.conftest import Run as RunCommand

__all__ = ["as_if_alone", "run"]
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
    return ToolServer(
        Service(lambda _: "done"), transport or BROKER, request_queue=REQUESTS, response_queue=RESPONSES, instance="a"
    )


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
    assert lines[-1] == (
        "Drained. 1 request received, 0 rejected." if calls else "Drained. 0 requests received, 0 rejected."
    )


def test_a_part_of_a_measurement_allows_no_conclusion() -> None:
    well = RunResult(100, 0, 1.0)
    cells = [Measurement(120, 1, well, well), Measurement(120, 16, well, None)]
    first = give_advice(cells, planned=40)[0]
    assert first.startswith("This allows no conclusion: 2 of 40 lines were measured")
    assert give_advice(cells)[0].startswith("Nothing was lost:")


@pytest.mark.parametrize("module", ["typing", "dispatch.calls", "dispatch.cli.app", "typer"])
def test_ctrl_c_while_the_command_line_is_imported(module: str) -> None:
    program = INTERRUPTED.format(module=module, program="/usr/bin/dispatch")
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "Interrupted.\n")


def test_ctrl_c_while_a_program_imports_dispatch_is_the_programs() -> None:
    program = INTERRUPTED.format(module="dispatch.calls", program="agent.py")
    program = program.replace("from dispatch.cli import main", "from dispatch import connect")
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode != 130
    assert ended.stderr.endswith("KeyboardInterrupt\n")


@pytest.mark.parametrize("command", ["", "doctor", "serve", "demo", "broker start", "rules export"])
def test_flags_have_no_type_in_the_help(run: RunCommand, command: str) -> None:
    out = run(*command.split(), "--help").out
    assert "--help" in out
    assert "<bool>" not in out


HOUR, DAY = 3_600.0, 86_400.0
NOW = 1_800_000_000.0


def jwt(**claims: object) -> str:
    parts = [{"alg": "HS256", "typ": "JWT"}, claims]
    return (
        ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts) + ".c2ln"
    )


@pytest.fixture
def deaf() -> Iterator[str]:
    """The URL of a server that hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            while True:
                try:
                    server.accept()[0].close()
                except OSError:
                    return

        thread = threading.Thread(target=hang_up)
        thread.start()
        yield f"pulsar://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_the_doctor_says_that_the_token_has_expired(run: Run, deaf: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPATCH_TOKEN", jwt(sub="agents", exp=time.time() - 2.5 * HOUR))
    end = run("doctor", "--broker", deaf, "--admin", "http://127.0.0.1:1", "--json")
    (found,) = [check for check in end.json["checks"] if check["name"] == "token"]
    assert found["status"] == "failed"
    assert found["detail"].startswith("the token of 'agents' has EXPIRED, 2 hours ago (2")
    assert "DISPATCH_TOKEN" in found["fix"]


@pytest.mark.parametrize(
    ("token", "status", "detail"),
    [
        (
            jwt(sub="a", exp=NOW - 30),
            "failed",
            "the token of 'a' has EXPIRED, less than a minute ago (2027-01-15 07:59:30 UTC)",
        ),
        (jwt(exp=NOW), "failed", "the token has EXPIRED, less than a minute ago (2027-01-15 08:00:00 UTC)"),
        (
            jwt(sub="a", exp=NOW + 2 * DAY + 5),
            "warning",
            "the token of 'a' expires in 2 days (2027-01-17 08:00:05 UTC)",
        ),
        (jwt(sub="a", exp=NOW + 40 * DAY), "ok", "the token of 'a' expires in 40 days (2027-02-24 08:00:00 UTC)"),
        (jwt(sub="a"), "ok", "the token of 'a' does not expire"),
        (jwt(sub="a", exp="tomorrow"), "warning", "the token of 'a' has an invalid expiry ('exp': 'tomorrow')"),
        (jwt(sub="a", exp=1e300), "warning", "the token of 'a' has an invalid expiry ('exp': 1e+300)"),
        ("not-a-token", "skipped", "not a JWT: only the broker knows its expiry"),
        ("a.b.c", "skipped", "not a JWT: only the broker knows its expiry"),
        ("a.W10.c", "skipped", "not a JWT: only the broker knows its expiry"),
    ],
)
def test_what_a_token_says_of_its_expiry(token: str, status: str, detail: str) -> None:
    found = check_token_expiry(token, NOW)
    assert (found.status, found.detail) == (status, detail)


# -- dispatch broker start ------------------------------------------------------------------------------------------
@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a broker that ``dispatch broker start`` remembers as running (this process stands in for it)."""
    monkeypatch.setenv("DISPATCH_CACHE", str(tmp_path))
    state = {
        "kind": "process",
        "service_url": "pulsar://127.0.0.1:6650",
        "web_url": "http://127.0.0.1:8080",
        "pid": os.getpid(),
        "identity": process_identity(os.getpid()),
    }
    (tmp_path / "broker").mkdir()
    (tmp_path / "broker" / "state.json").write_text(json.dumps(state))
    return "pulsar://127.0.0.1:6650"


@pytest.mark.usefixtures("own_logging")
@pytest.mark.parametrize(("option", "port"), [("--port", "7000"), ("--web-port", "7001")])
def test_start_on_another_port_than_the_running_broker_is_an_error(
    running: str, capsys: pytest.CaptureFixture[str], option: str, port: str
) -> None:
    assert main(["broker", "start", option, port]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert running in said.err
    assert f"{option} {port}" in said.err
    assert "dispatch broker stop" in said.err


def test_advice_of_a_machine_without_java_names_what_the_command_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(LocalBrokerUnavailableError, match="DISPATCH_BROKER=pulsar://"):
        choose_launcher()


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
    ended = run("call", "tell-joke", "--arguments", "@bom.json", "--broker", DEAF)
    assert (ended.code, "no Pulsar broker replies" in ended.err) == (4, True)


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
