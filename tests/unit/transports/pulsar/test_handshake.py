"""The handshake against a server that answers, refuses, talks rubbish, or says nothing at all.
Whatever bytes come back, a handshake ends as a connection or as a typed error; and the few fields it reads, it reads.
The handshake over TLS: whom we trust, what is told when we do not, and a peer that stops talking half-way.
"""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import socket
import ssl
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dispatch.errors import TransportError
from dispatch.transports.base import Security
from dispatch.transports.pulsar import handshake
from dispatch.transports.pulsar.handshake import HEAD_START_S, find_broker, read_fields, shake_hands
from tests.helpers.clock import cancel_task, run
from tests.helpers.handshake_server import CONNECTED, Answer, error, fields, frame, greeter, hang, number, text, varint
from tests.helpers.run_profile import examples
from tests.helpers.secured_broker import Security as Certificates

SOON_S = 0.2
"""The time limit of a handshake that comes to nothing. The others have as long as a busy machine may take."""
NOBODY = Security()
UNRESOLVED = "no-such-host.invalid"


async def refused(url: str, security: Security = NOBODY, limit: float = 5.0) -> TransportError:
    with pytest.raises(TransportError) as caught:
        await shake_hands(url, security, limit)
    assert caught.value.may_have_run is False
    assert url in caught.value.message
    return caught.value


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address where nobody listens, and nobody will."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@contextmanager
def file_descriptors_used_up() -> Iterator[None]:
    """The limit of open files is reached in this block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.dup(0)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0], hard))
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for file in taken:
            os.close(file)


@pytest.mark.wall_clock
@pytest.mark.costly
async def test_time_in_which_the_process_did_not_run_does_not_count() -> None:
    async with greeter(CONNECTED) as broker:
        asyncio.get_running_loop().call_soon(time.sleep, 3.0)
        assert await shake_hands(broker.url(), NOBODY, 2.0) == 5 << 20


@pytest.mark.wall_clock
async def test_the_limit_of_open_files_is_named_as_the_cause(nobody: str) -> None:
    with file_descriptors_used_up():
        problem = await refused(f"pulsar://{nobody}")
    assert problem.type == "unreachable"
    assert "its limit of open files" in problem.message
    assert "ulimit -n" in problem.message


@pytest.mark.wall_clock
async def test_a_broker_that_says_connected_is_a_broker() -> None:
    async with greeter(CONNECTED) as broker:
        await shake_hands(broker.url(), NOBODY)
        async with asyncio.timeout(5):
            await broker.gone.acquire()
    (greeting,) = broker.greetings
    assert greeting == {1: b"dispatch", 4: 19}, "the client's name, and a protocol that says its errors"


@pytest.mark.wall_clock
@pytest.mark.parametrize(
    ("said", "limit"),
    [*((number(3, size), size) for size in (5 << 20, 1_000)), (b"", None), (number(3, 0), None), (text(3, b"x"), None)],
)
async def test_a_broker_may_say_how_large_a_message_may_be(said: bytes, limit: int | None) -> None:
    async with greeter(frame(number(1, 3) + text(3, text(1, b"Pulsar Server") + number(2, 21) + said))) as broker:
        assert await shake_hands(broker.url(), NOBODY) == limit


@pytest.mark.wall_clock
async def test_we_say_who_we_are_with_a_token_and_ask_for_it_each_time() -> None:
    given = iter(["first", "seçond"])
    async with greeter(CONNECTED) as broker:
        await shake_hands(broker.url(), Security(token="abc.def"))
        fresh = Security(token=lambda: next(given))
        for _ in range(2):
            await shake_hands(broker.url(), fresh)
    assert [greeting[3].decode() for greeting in broker.greetings] == ["abc.def", "first", "seçond"]
    assert {greeting[5] for greeting in broker.greetings} == {b"token"}


@pytest.mark.wall_clock
@pytest.mark.parametrize("code", [3, 4])
async def test_a_refusal_of_our_credentials_says_what_the_broker_said(code: int) -> None:
    async with greeter(error(code, b"Token expired at noon")) as broker:
        problem = await refused(broker.url(), Security(token="s3cret"))
    assert problem.type == "unauthorized"
    assert "Token expired at noon" in problem.message
    assert "DISPATCH_TOKEN" in problem.message, "it names the fix"
    assert "s3cret" not in problem.message


@pytest.mark.wall_clock
@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (error(0, b"too many connections"), "too many connections"),
        (frame(number(1, 14)), ""),
        (frame(number(1, 14) + number(14, 5)), ""),
        (frame(number(1, 14) + text(14, b"")), ""),
        (frame(number(1, 14) + text(14, number(3, 7))), ""),
        (error(99, b"\xff\xfe" + b"x" * 100_000), ""),
    ],
)
async def test_another_refusal_is_told_as_it_was_said_also_in_an_odd_shape(answer: bytes, told: str) -> None:
    async with greeter(answer) as broker:
        problem = await refused(broker.url())
    assert problem.type == "connection-refused"
    assert told in problem.message
    assert len(problem.message) < 500


@pytest.mark.wall_clock
@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x15\x03\x03\x00\x02\x02\x0a",
        b"\0\0\0\0",
        b"\0\0\0\x03abc",
        b"\0\0\0\x04\0\0\0\0",
        b"\0\0\0\x08\xff\xff\xff\xffabcd",
        b"\xff\xff\xff\xff" + b"x" * 1_000,
        b"\0\x10\0\x01" + b"x" * 10_000,
        frame(b"\xff"),
        frame(varint(2**70)),
        frame(number(1, 3)[:1]),
        frame(text(1, b"3")),
        frame(number(1, 7)),
        frame(bytes([1 << 3 | 5]) + b"1234"),
        frame(bytes([3 << 3 | 2]) + varint(1_000)),
    ],
    ids=lambda answer: answer[:12].hex(),
)
async def test_rubbish_is_no_broker(answer: bytes) -> None:
    async with greeter(answer) as broker:
        assert (await refused(broker.url(), limit=SOON_S)).type == "unreachable"


@pytest.mark.wall_clock
async def test_a_port_that_speaks_http_is_told_as_such() -> None:
    async with greeter(b"HTTP/1.1 400 Bad Request\r\n\r\n") as broker:
        assert (await refused(broker.url())).type == "wrong-protocol"


async def _closes(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def _resets(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def _stops_half_way(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(CONNECTED[:-3])


async def _closes_half_way(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(CONNECTED[:-3])
    writer.write_eof()


@pytest.mark.wall_clock
@pytest.mark.parametrize("answer", [_closes, _resets, hang, _stops_half_way, _closes_half_way])
async def test_one_that_does_not_answer_is_not_waited_for_long(answer: Answer) -> None:
    loop = asyncio.get_running_loop()
    async with greeter(answer) as broker:
        started = loop.time()
        assert (await refused(broker.url(), limit=SOON_S)).type == "unreachable"
        assert loop.time() - started < SOON_S + 2
        async with asyncio.timeout(5):
            await broker.gone.acquire()


@pytest.mark.wall_clock
async def test_a_trickle_of_bytes_does_not_prolong_the_wait() -> None:
    async def trickle(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\0\x0f\xff\xff")
        while not writer.is_closing():
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0)

    loop = asyncio.get_running_loop()
    async with greeter(trickle) as broker:
        started = loop.time()
        assert (await refused(broker.url(), limit=SOON_S)).type == "unreachable"
        assert loop.time() - started < SOON_S + 2


@pytest.mark.wall_clock
async def test_nobody_there_names_the_way_out(nobody: str) -> None:
    problem = await refused(f"pulsar://{nobody}")
    assert problem.type == "unreachable"
    assert "dispatch broker start" in problem.message


@pytest.mark.wall_clock
@pytest.mark.parametrize("host", ["a..b", "x" * 300])
async def test_a_host_that_cannot_be_is_unreachable(host: str) -> None:
    assert (await refused(f"pulsar://{host}:6650")).type == "unreachable"


@pytest.mark.wall_clock
async def test_one_of_several_brokers_is_enough(nobody: str) -> None:
    async with greeter(CONNECTED) as broker:
        await shake_hands(f"pulsar://{nobody},127.0.0.1:{broker.port}", NOBODY)
        assert len(broker.greetings) == 1


@pytest.mark.wall_clock
async def test_what_a_broker_said_is_told_rather_than_that_another_is_away(nobody: str) -> None:
    async with greeter(error(3, b"expired")) as broker:
        url = f"pulsar://127.0.0.1:{broker.port},{nobody}"
        assert (await refused(url)).type == "unauthorized"


@pytest.mark.wall_clock
@pytest.mark.parametrize(
    "order", ["hanging first", "hanging second", "unresolved first", "closed first", "unauthorized first"]
)
@pytest.mark.costly
async def test_the_broker_of_a_list_that_replies_is_found_whatever_the_others_do(nobody: str, order: str) -> None:
    async with greeter(CONNECTED) as broker, greeter(hang) as hanging, greeter(error(3, b"expired")) as strict:
        good = f"127.0.0.1:{broker.port}"
        names = {
            "hanging first": f"127.0.0.1:{hanging.port},{good}",
            "hanging second": f"{good},127.0.0.1:{hanging.port}",
            "unresolved first": f"{UNRESOLVED},{good}",
            "closed first": f"{nobody},{good}",
            "unauthorized first": f"127.0.0.1:{strict.port},{good}",
        }[order]
        async with asyncio.timeout(15):
            found = await find_broker(f"pulsar://{names}", lambda url: shake_hands(url, NOBODY, 30))
    assert (found.url, found.limit) == (f"pulsar://{good}", 5 << 20)
    assert found.unresolved == ((UNRESOLVED,) if order == "unresolved first" else ())


@pytest.mark.wall_clock
async def test_of_several_brokers_that_reply_the_first_in_the_list_is_used() -> None:
    async def late(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(HEAD_START_S / 10)
        writer.write(CONNECTED)

    async with greeter(late) as first, greeter(CONNECTED) as second:
        url = f"pulsar://127.0.0.1:{first.port},127.0.0.1:{second.port}"
        found = await find_broker(url, lambda url: shake_hands(url, NOBODY, 30))
    assert found.url == f"pulsar://127.0.0.1:{first.port}"


@pytest.mark.wall_clock
async def test_names_that_do_not_resolve_are_named(nobody: str) -> None:
    problem = await refused(f"pulsar://{UNRESOLVED}:6650")
    assert problem.type == "unreachable"
    assert f"the name '{UNRESOLVED}' cannot be resolved" in problem.message
    both = await refused(f"pulsar://{UNRESOLVED},{nobody},other.invalid")
    assert both.type == "unreachable"
    assert f"the names '{UNRESOLVED}' and 'other.invalid' cannot be resolved" in both.message


@pytest.mark.wall_clock
async def test_whoever_gives_up_hangs_up() -> None:
    greeted = asyncio.Event()

    async def heard(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        greeted.set()

    async with greeter(heard) as broker:
        shaking = asyncio.create_task(shake_hands(broker.url(), NOBODY, 30))
        await greeted.wait()
        await cancel_task(shaking)
        async with asyncio.timeout(5):
            await broker.gone.acquire()


@pytest.mark.wall_clock
@pytest.mark.parametrize(
    ("raised", "shown"),
    [(RuntimeError("secret"), "RuntimeError"), (FileNotFoundError(2, "No such file", "/run/token"), "/run/token")],
)
async def test_a_token_that_cannot_be_had_is_told_as_such(raised: Exception, shown: str) -> None:
    def token() -> str:
        raise raised

    async with greeter(CONNECTED) as broker:
        problem = await refused(broker.url(), Security(token=token))
        assert broker.greetings == []
    assert problem.type == "unauthorized"
    assert shown in problem.message
    assert "secret" not in problem.message


@pytest.mark.wall_clock
async def test_a_token_that_is_no_text_is_told_as_such(nobody: str) -> None:
    problem = await refused(f"pulsar://{nobody}", Security(token=lambda: None))  # type: ignore[arg-type,return-value]
    assert problem.type == "unauthorized"


NUMBERS = st.integers(0, 2**64 - 1)
FIELDS = st.integers(1, 2**29 - 1)


@given(st.binary(max_size=200))
@example(b"\x80" * 9)
@example(b"\x80" * 11 + b"\x01")
@example(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")
def test_any_bytes_are_fields_or_no_message(data: bytes) -> None:
    try:
        found = list(read_fields(data))
    except ValueError:
        return
    size = sum(1 + (1 if isinstance(value, int) else 1 + len(value)) for _, value in found)
    assert size <= len(data), "nothing was read twice, and nothing beyond the end"


@given(st.lists(st.tuples(FIELDS, st.one_of(NUMBERS, st.binary(max_size=300)))))
def test_what_was_written_is_read(written: list[tuple[int, int | bytes]]) -> None:
    data = b"".join(number(key, value) if isinstance(value, int) else text(key, value) for key, value in written)
    assert list(read_fields(data)) == written
    assert fields(data) == dict(written), "the reader of the tests agrees"


@given(FIELDS, st.binary(min_size=1, max_size=300))
def test_a_message_that_was_cut_off_is_none(key: int, value: bytes) -> None:
    whole = text(key, value)
    for length in range(1, len(whole)):
        with pytest.raises(ValueError, match="not a Protocol Buffers message"):
            list(read_fields(whole[:length]))


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=200))
@example("x" * 127)
@example("x" * 128)
@example("x" * 600)  # what a token has
@example("x" * 16_384)
def test_our_own_greeting_can_be_read(token: str) -> None:
    command = fields(handshake._connect_command(Security(token=token, certificate="agent.pem")))
    assert command[1] == 2
    greeting = fields(command[2])
    assert (greeting[3].decode(), greeting[5]) == (token, b"token"), "a token goes before a certificate"


class _Writer:
    """The other direction of a connection, which nobody looks at; it says whether it was closed."""

    def __init__(self) -> None:
        self.closed = False

    def write(self, data: bytes) -> None:
        assert struct.unpack(">I", data[:4])[0] == len(data) - 4

    async def drain(self) -> None:
        """There is always room."""

    def close(self) -> None:
        self.closed = True

    async def wait_closed(self) -> None:
        """It is closed at once."""


def answered(answer: bytes, ends: bool) -> str:
    """What becomes of a handshake that is answered with these bytes; then the connection ends, or it hangs."""

    async def scenario() -> str:
        writer = _Writer()

        async def open_connection(*_args: Any, **_kwargs: Any) -> tuple[asyncio.StreamReader, _Writer]:
            reader = asyncio.StreamReader()
            reader.feed_data(answer)
            if ends:
                reader.feed_eof()
            return reader, writer

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asyncio, "open_connection", open_connection)
            try:
                await shake_hands("pulsar://broker.example", Security())
            except TransportError as problem:
                return "perhaps sent" if problem.may_have_run else problem.type
            finally:
                assert writer.closed
        return "connected"

    return run(scenario)


COMMANDS = st.one_of(
    st.binary(max_size=100),
    st.lists(
        st.one_of(
            st.builds(number, st.integers(1, 16), st.sampled_from([2, 3, 14, 2**63])),
            st.builds(text, st.integers(1, 16), st.binary(max_size=50)),
        )
    ).map(b"".join),
)


@given(COMMANDS.map(frame), st.booleans())
@settings(max_examples=examples(60), deadline=None)
def test_any_frame_ends_in_a_connection_or_in_a_typed_error(answer: bytes, ends: bool) -> None:
    assert answered(answer, ends) in {"connected", "unreachable", "unauthorized", "connection-refused"}


@given(st.binary(max_size=100), st.booleans())
@settings(max_examples=examples(40), deadline=None)
def test_what_begins_larger_than_any_frame_is_no_broker(answer: bytes, ends: bool) -> None:
    assert answered(b"\x01" + answer, ends) == "unreachable"


REPLIES = (CONNECTED, error(3, b"Token expired"), error(0, b"busy"))


@given(st.sampled_from(REPLIES), st.integers(0, 100), st.integers(0, 255), st.booleans())
@settings(max_examples=examples(60), deadline=None)
def test_a_damaged_answer_ends_in_one_of_them_too(answer: bytes, at: int, byte: int, ends: bool) -> None:
    damaged = bytearray(answer)
    damaged[at % len(damaged)] = byte
    assert answered(bytes(damaged), ends) in {"connected", "unreachable", "unauthorized", "connection-refused"}


def test_what_follows_the_command_in_its_frame_is_not_read() -> None:
    command = CONNECTED[8:]
    followed = struct.pack(">II", len(command) + 4 + 3, len(command)) + command + b"\xff\xff\xff"
    assert answered(followed, ends=False) == "connected"


@pytest.mark.parametrize(
    ("answer", "becomes"), [(CONNECTED, "connected"), (error(3, b"expired"), "unauthorized"), (b"", "unreachable")]
)
def test_the_whole_answers_do_what_they_say(answer: bytes, becomes: str) -> None:
    assert answered(answer, ends=False) == becomes
    assert answered(answer, ends=True) == becomes


SOON_S_TLS = 2.0
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


async def problem_with(url: str, security: Security, timeout: float = SOON_S_TLS) -> TransportError:
    with pytest.raises(TransportError) as caught:
        await shake_hands(url, security, timeout)
    assert caught.value.may_have_run is False
    return caught.value


@pytest.mark.wall_clock
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_a_broker_whose_authority_we_trust_is_a_broker(identity: Identity, host: str) -> None:
    async with greeter(CONNECTED, tls=identity.server) as broker:
        await shake_hands(broker.url(host), Security(token="abc", trust_certs=identity.authority), SOON_S_TLS)
    assert broker.greetings[0][3] == b"abc"


@pytest.mark.wall_clock
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


@pytest.mark.wall_clock
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
        await shake_hands(broker.url("broker.example"), careless, SOON_S_TLS)


@pytest.mark.wall_clock
async def test_our_own_certificate_is_shown_and_named(identity: Identity) -> None:
    identity.server.load_verify_locations(identity.client)
    identity.server.verify_mode = ssl.CERT_OPTIONAL
    try:
        async with greeter(CONNECTED, tls=identity.server) as broker:
            security = Security(trust_certs=identity.authority, certificate=identity.client, key=identity.client_key)
            await shake_hands(broker.url(), security, SOON_S_TLS)
    finally:
        identity.server.verify_mode = ssl.CERT_NONE
    assert broker.greetings[0][5] == b"tls"
    assert broker.certificates[0]["subject"] == ((("commonName", "agent"),),)


@pytest.mark.wall_clock
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


@pytest.mark.wall_clock
async def test_a_plain_greeting_to_a_port_that_speaks_tls_is_told_as_such(identity: Identity) -> None:
    async with greeter(CONNECTED, tls=identity.server) as broker:
        problem = await problem_with(f"pulsar://127.0.0.1:{broker.port}", Security(token="abc"))
    assert problem.type == "wrong-protocol"
    assert f"Use pulsar+ssl://127.0.0.1:{broker.port}" in problem.message
    assert all(3 not in greeting for greeting in broker.greetings), "no token to a broker that is not trusted"


@pytest.mark.wall_clock
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


@pytest.mark.wall_clock
async def test_a_peer_that_stops_talking_after_the_tls_handshake_is_not_waited_for_long(
    identity: Identity, stuck: int
) -> None:
    loop = asyncio.get_running_loop()
    started = loop.time()
    security = Security(trust_certs=identity.authority)
    assert (await problem_with(f"pulsar+ssl://127.0.0.1:{stuck}", security, 0.5)).type == "unreachable"
    assert loop.time() - started < 5, "nor for its farewell"


@pytest.mark.wall_clock
async def test_one_that_answers_and_then_says_no_goodbye_is_a_broker(identity: Identity) -> None:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CONNECTED)
        await writer.drain()
        writer.transport.pause_reading()  # type: ignore[attr-defined] # it never sees that we say ours

    loop = asyncio.get_running_loop()
    async with greeter(answer, tls=identity.server) as broker:
        started = loop.time()
        await shake_hands(broker.url(), Security(trust_certs=identity.authority), SOON_S_TLS)
        assert loop.time() - started < SOON_S_TLS + 1


@pytest.mark.wall_clock
async def test_a_peer_that_never_begins_the_tls_handshake_is_not_waited_for_long(identity: Identity) -> None:
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the system accepts for it
        started = loop.time()
        url = f"pulsar+ssl://127.0.0.1:{silent.getsockname()[1]}"
        assert (await problem_with(url, Security(trust_certs=identity.authority), 0.3)).type == "unreachable"
        assert loop.time() - started < 5
