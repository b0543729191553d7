"""The handshake over TLS: whom we trust, what is told when we do not, and a peer that stops talking half-way."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dispatch.devtools.localbroker.launch import Security as Certificates
from dispatch.errors import TransportError
from dispatch.transports.base import Security
from dispatch.transports.pulsar.handshake import shake_hands
from tests.helpers.handshake_server import CONNECTED, greeter

pytestmark = pytest.mark.wall_clock

SOON_S = 2.0
"""A TLS handshake is real work on a busy machine."""


@dataclass(frozen=True)
class Identity:
    """An authority, a server's certificate for localhost and 127.0.0.1, and a client's of its own making."""

    authority: Path
    server: ssl.SSLContext
    client: Path
    client_key: Path


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    folder = tmp_path_factory.mktemp("tls")
    made = Certificates.create(folder / "broker")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "broker" / "broker.pem", folder / "broker" / "broker-key.pem")
    client, key = folder / "client.pem", folder / "client-key.pem"
    openssl = shutil.which("openssl")
    assert openssl is not None
    arguments = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    subprocess.run(
        [openssl, *arguments, "-subj", "/CN=agent", "-keyout", key, "-out", client],
        check=True,
        capture_output=True,
        timeout=30,
    )
    return Identity(made.ca_file, server, client, key)


async def problem_with(url: str, security: Security, timeout: float = SOON_S) -> TransportError:
    with pytest.raises(TransportError) as caught:
        await shake_hands(url, security, timeout)
    assert caught.value.may_have_run is False
    return caught.value


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_a_broker_whose_authority_we_trust_is_a_broker(identity: Identity, host: str) -> None:
    async with greeter(CONNECTED, tls=identity.server) as broker:
        await shake_hands(broker.url(host), Security(token="abc", trust_certs=identity.authority), SOON_S)
    assert broker.greetings[0][3] == b"abc"


async def test_an_authority_that_we_do_not_know_is_told_with_the_fix_and_never_gets_our_token(
    identity: Identity,
) -> None:
    async with greeter(CONNECTED, tls=identity.server) as broker:
        for security in (Security(token="abc"), Security(token="abc", trust_certs=identity.client)):
            problem = await problem_with(broker.url("localhost"), security)
            assert problem.type == "untrusted"
            assert "CERTIFICATE_VERIFY_FAILED" in problem.message
            assert "trust_certs" in problem.message
        assert broker.greetings == []


async def test_a_certificate_for_another_host_is_not_trusted_unless_we_say_so(
    identity: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = asyncio.open_connection

    async def elsewhere(host: str, port: int, **options: object) -> object:
        return await inner("127.0.0.1", port, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(asyncio, "open_connection", elsewhere)
    async with greeter(CONNECTED, tls=identity.server) as broker:
        trusting = Security(trust_certs=identity.authority)
        assert (await problem_with(broker.url("broker.example"), trusting)).type == "untrusted"
        careless = Security(trust_certs=identity.authority, validate_hostname=False)
        await shake_hands(broker.url("broker.example"), careless, SOON_S)


async def test_our_own_certificate_is_shown_and_named(identity: Identity) -> None:
    identity.server.load_verify_locations(identity.client)
    identity.server.verify_mode = ssl.CERT_OPTIONAL
    try:
        async with greeter(CONNECTED, tls=identity.server) as broker:
            security = Security(trust_certs=identity.authority, certificate=identity.client, key=identity.client_key)
            await shake_hands(broker.url(), security, SOON_S)
    finally:
        identity.server.verify_mode = ssl.CERT_NONE
    assert broker.greetings[0][5] == b"tls"
    assert broker.certificates[0]["subject"] == ((("commonName", "agent"),),)


@pytest.mark.parametrize(
    ("answer", "kind", "fix"),
    [
        (CONNECTED, "wrong-protocol", "the broker's TLS port"),
        (b"SSH-2.0-\r\n", "untrusted", "the port that speaks TLS"),
    ],
)
async def test_a_port_that_speaks_no_tls_is_told_as_such(
    identity: Identity, answer: bytes, kind: str, fix: str
) -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(5)
        writer.write(answer)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        problem = await problem_with(f"pulsar+ssl://127.0.0.1:{port}", Security(trust_certs=identity.authority))
    assert problem.type == kind
    assert fix in problem.message


async def test_a_plain_greeting_to_a_port_that_speaks_tls_is_told_as_such(identity: Identity) -> None:
    async with greeter(CONNECTED, tls=identity.server) as broker:
        problem = await problem_with(f"pulsar://127.0.0.1:{broker.port}", Security(token="abc"))
    assert problem.type == "wrong-protocol"
    assert f"Use pulsar+ssl://127.0.0.1:{broker.port}" in problem.message
    assert all(3 not in greeting for greeting in broker.greetings), "no token to a broker that is not trusted"


@pytest.mark.parametrize(
    ("broken", "shown"),
    [
        ({"trust_certs": "/no/such/authority.pem"}, "No such file"),
        ({"trust_certs": "/dev/null"}, "certificate files"),
        ({"certificate": "/no/such/agent.pem"}, "No such file"),
        ({"certificate": "ours"}, "certificate files"),
    ],
)
async def test_files_that_cannot_be_used_are_told_before_anything_is_sent(
    identity: Identity, broken: dict[str, str], shown: str
) -> None:
    if broken.get("certificate") == "ours":
        broken = {"certificate": str(identity.client)}  # without its key
    async with greeter(CONNECTED, tls=identity.server) as broker:
        problem = await problem_with(broker.url(), Security(**{"trust_certs": identity.authority, **broken}))  # type: ignore[arg-type]
        assert broker.certificates == []
    assert problem.type == "untrusted"
    assert shown in problem.message


@pytest.fixture
def stuck(identity: Identity) -> Iterator[int]:
    """The port of a server that ends the TLS handshake and then neither reads nor writes, as a stopped process does."""
    listening = socket.create_server(("127.0.0.1", 0))
    accepted: list[ssl.SSLSocket] = []

    def serve() -> None:
        try:
            while True:
                plain, _ = listening.accept()
                accepted.append(identity.server.wrap_socket(plain, server_side=True))
        except OSError:
            return  # it was shut down below

    thread = threading.Thread(target=serve)
    thread.start()
    yield listening.getsockname()[1]
    listening.shutdown(socket.SHUT_RDWR)
    thread.join()
    listening.close()
    for tls in accepted:
        tls.close()


async def test_a_peer_that_stops_talking_after_the_tls_handshake_is_not_waited_for_long(
    identity: Identity, stuck: int
) -> None:
    loop = asyncio.get_running_loop()
    started = loop.time()
    security = Security(trust_certs=identity.authority)
    assert (await problem_with(f"pulsar+ssl://127.0.0.1:{stuck}", security, 0.5)).type == "unreachable"
    assert loop.time() - started < 5, "nor for its farewell"


async def test_one_that_answers_and_then_says_no_goodbye_is_a_broker(identity: Identity) -> None:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CONNECTED)
        await writer.drain()
        writer.transport.pause_reading()  # type: ignore[attr-defined] # it never sees that we say ours

    loop = asyncio.get_running_loop()
    async with greeter(answer, tls=identity.server) as broker:
        started = loop.time()
        await shake_hands(broker.url(), Security(trust_certs=identity.authority), SOON_S)
        assert loop.time() - started < SOON_S + 1


async def test_a_peer_that_never_begins_the_tls_handshake_is_not_waited_for_long(identity: Identity) -> None:
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the system accepts for it
        started = loop.time()
        url = f"pulsar+ssl://127.0.0.1:{silent.getsockname()[1]}"
        assert (await problem_with(url, Security(trust_certs=identity.authority), 0.3)).type == "unreachable"
        assert loop.time() - started < 5
