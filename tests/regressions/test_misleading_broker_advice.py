"""``dispatch broker start --port N`` ignored ``N`` when a broker was running; advice named ``PULSAR_URL``, which no
``dispatch`` command reads; TLS to a plain port, plain to a TLS port and an HTTP port failed as "no broker answers" or
"untrusted"."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dispatch import Security, TransportError, connect
from dispatch.cli import main
from dispatch.devtools.localbroker import LocalBrokerUnavailableError, choose_launcher
from dispatch.devtools.localbroker.launch import Security as Certificates
from dispatch.devtools.localbroker.processes import process_identity
from tests.helpers.handshake_server import CONNECTED, greeter

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


def test_advice_of_a_machine_without_java_names_what_the_command_reads() -> None:
    with pytest.raises(LocalBrokerUnavailableError, match="DISPATCH_BROKER=pulsar://"):
        choose_launcher(which=lambda _: None, environ={})


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
async def test_plain_to_a_tls_port(certificates: tuple[ssl.SSLContext, Path]) -> None:
    async with greeter(CONNECTED, tls=certificates[0]) as broker:
        said = await problem(f"pulsar://127.0.0.1:{broker.port}")
    assert "speaks TLS" in said
    assert f"pulsar+ssl://127.0.0.1:{broker.port}" in said


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
