"""The handshake against a server that answers, refuses, talks rubbish, or says nothing at all."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from dispatch.errors import TransportError
from dispatch.transports.base import Security
from dispatch.transports.pulsar.handshake import HEAD_START_S, find_broker, shake_hands
from tests.helpers.handshake_server import (
    CONNECTED,
    Answer,
    error,
    frame,
    greeter,
    hang,
    number,
    text,
    varint,
)

pytestmark = pytest.mark.wall_clock

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


async def test_a_broker_that_says_connected_is_a_broker() -> None:
    async with greeter(CONNECTED) as broker:
        await shake_hands(broker.url(), NOBODY)
        async with asyncio.timeout(5):
            await broker.gone.acquire()
    (greeting,) = broker.greetings
    assert greeting == {1: b"dispatch", 4: 19}, "the client's name, and a protocol that says its errors"


@pytest.mark.parametrize(
    ("said", "limit"),
    [
        (number(3, 5 << 20), 5 << 20),
        (number(3, 1_000), 1_000),
        (b"", None),
        (number(3, 0), None),
        (text(3, b"x"), None),
    ],
)
async def test_a_broker_may_say_how_large_a_message_may_be(said: bytes, limit: int | None) -> None:
    async with greeter(frame(number(1, 3) + text(3, text(1, b"Pulsar Server") + number(2, 21) + said))) as broker:
        assert await shake_hands(broker.url(), NOBODY) == limit


async def test_we_say_who_we_are_with_a_token_and_ask_for_it_each_time() -> None:
    given = iter(["first", "seçond"])
    async with greeter(CONNECTED) as broker:
        await shake_hands(broker.url(), Security(token="abc.def"))
        fresh = Security(token=lambda: next(given))
        for _ in range(2):
            await shake_hands(broker.url(), fresh)
    assert [greeting[3].decode() for greeting in broker.greetings] == ["abc.def", "first", "seçond"]
    assert {greeting[5] for greeting in broker.greetings} == {b"token"}


@pytest.mark.parametrize("code", [3, 4])
async def test_a_refusal_of_our_credentials_says_what_the_broker_said(code: int) -> None:
    async with greeter(error(code, b"Token expired at noon")) as broker:
        problem = await refused(broker.url(), Security(token="s3cret"))
    assert problem.type == "unauthorized"
    assert "Token expired at noon" in problem.message
    assert "DISPATCH_TOKEN" in problem.message, "it names the fix"
    assert "s3cret" not in problem.message


async def test_another_refusal_is_told_as_it_was_said() -> None:
    async with greeter(error(0, b"too many connections")) as broker:
        problem = await refused(broker.url())
    assert problem.type == "connection-refused"
    assert "too many connections" in problem.message


@pytest.mark.parametrize(
    "answer",
    [
        frame(number(1, 14)),
        frame(number(1, 14) + number(14, 5)),
        frame(number(1, 14) + text(14, b"")),
        frame(number(1, 14) + text(14, number(3, 7))),
        error(99, b"\xff\xfe" + b"x" * 100_000),
    ],
)
async def test_a_refusal_in_an_odd_shape_is_one_all_the_same(answer: bytes) -> None:
    async with greeter(answer) as broker:
        problem = await refused(broker.url())
    assert problem.type == "connection-refused"
    assert len(problem.message) < 500


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


@pytest.mark.parametrize("answer", [_closes, _resets, hang, _stops_half_way, _closes_half_way])
async def test_one_that_does_not_answer_is_not_waited_for_long(answer: Answer) -> None:
    loop = asyncio.get_running_loop()
    async with greeter(answer) as broker:
        started = loop.time()
        assert (await refused(broker.url(), limit=SOON_S)).type == "unreachable"
        assert loop.time() - started < SOON_S + 2
        async with asyncio.timeout(5):
            await broker.gone.acquire()


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


async def test_nobody_there_names_the_way_out(nobody: str) -> None:
    problem = await refused(f"pulsar://{nobody}")
    assert problem.type == "unreachable"
    assert "dispatch broker start" in problem.message


@pytest.mark.parametrize("host", ["a..b", "x" * 300])
async def test_a_host_that_cannot_be_is_unreachable(host: str) -> None:
    assert (await refused(f"pulsar://{host}:6650")).type == "unreachable"


async def test_one_of_several_brokers_is_enough(nobody: str) -> None:
    async with greeter(CONNECTED) as broker:
        await shake_hands(f"pulsar://{nobody},127.0.0.1:{broker.port}", NOBODY)
        assert len(broker.greetings) == 1


async def test_what_a_broker_said_is_told_rather_than_that_another_is_away(nobody: str) -> None:
    async with greeter(error(3, b"expired")) as broker:
        url = f"pulsar://127.0.0.1:{broker.port},{nobody}"
        assert (await refused(url)).type == "unauthorized"


@pytest.mark.parametrize(
    "order", ["hanging first", "hanging second", "unresolved first", "closed first", "unauthorized first"]
)
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


async def test_of_several_brokers_that_reply_the_first_in_the_list_is_used() -> None:
    async def late(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(HEAD_START_S / 10)
        writer.write(CONNECTED)

    async with greeter(late) as first, greeter(CONNECTED) as second:
        url = f"pulsar://127.0.0.1:{first.port},127.0.0.1:{second.port}"
        found = await find_broker(url, lambda url: shake_hands(url, NOBODY, 30))
    assert found.url == f"pulsar://127.0.0.1:{first.port}"


async def test_names_that_do_not_resolve_are_named(nobody: str) -> None:
    problem = await refused(f"pulsar://{UNRESOLVED}:6650")
    assert problem.type == "unreachable"
    assert f"the name '{UNRESOLVED}' cannot be resolved" in problem.message
    both = await refused(f"pulsar://{UNRESOLVED},{nobody},other.invalid")
    assert both.type == "unreachable"
    assert f"the names '{UNRESOLVED}' and 'other.invalid' cannot be resolved" in both.message


async def test_whoever_gives_up_hangs_up() -> None:
    greeted = asyncio.Event()

    async def heard(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        greeted.set()

    async with greeter(heard) as broker:
        shaking = asyncio.create_task(shake_hands(broker.url(), NOBODY, 30))
        await greeted.wait()
        shaking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await shaking
        async with asyncio.timeout(5):
            await broker.gone.acquire()


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


async def test_a_token_that_is_no_text_is_told_as_such(nobody: str) -> None:
    problem = await refused(f"pulsar://{nobody}", Security(token=lambda: None))  # type: ignore[arg-type,return-value]
    assert problem.type == "unauthorized"
