"""The proxy's process without a broker: its sockets, its end, and what it says when something is wrong."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from dispatch.devtools.localbroker import find_free_ports
from tests.helpers.lossy_proxy import ROOT, LossyProxy
from tests.helpers.pulsar_frames import LOOKUP_RESPONSE, SEND, SEND_RECEIPT, body_of, frame, numbers_of, type_of

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Proxied = tuple[asyncio.StreamReader, asyncio.StreamWriter, LossyProxy]

SOON = 30.0
"""Seconds in which something must have happened that takes milliseconds."""


@contextlib.asynccontextmanager
async def proxied(answer: Answer, *, loss: float = 0.0) -> AsyncIterator[Proxied]:
    """A proxy before a server of ours that does ``answer``, and a connection to it: reader, writer, proxy."""
    loop = asyncio.get_running_loop()
    serving: list[asyncio.Task[None]] = []

    async def serve(connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection)
        with contextlib.suppress(ConnectionError):  # the proxy is gone before everything was read or written
            await answer(reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    def accept() -> None:
        with contextlib.suppress(BlockingIOError):  # there is none at the moment
            while True:
                connection, _ = listener.accept()
                serving.append(loop.create_task(serve(connection)))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        loop.add_reader(listener, accept)
        try:
            async with LossyProxy("127.0.0.1", listener.getsockname()[1], loss=loss) as proxy:
                reader, writer = await connect(proxy)
                async with asyncio.timeout(SOON):
                    yield reader, writer, proxy
                writer.close()
                await writer.wait_closed()
        finally:
            loop.remove_reader(listener)
            accept()  # asyncio's own server would forget what it has not accepted yet, and leave its socket open
            async with asyncio.timeout(SOON):
                await asyncio.gather(*serving)


async def connect(proxy: LossyProxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", int(proxy.url.rpartition(":")[2]))


async def read_frame(reader: asyncio.StreamReader) -> memoryview:
    head = await reader.readexactly(4)
    return memoryview(head + await reader.readexactly(int.from_bytes(head)))


@pytest.mark.wall_clock
async def test_a_reader_that_does_not_read_holds_the_broker_back_and_loses_no_byte() -> None:
    """Far more than the proxy and the system's buffers hold: the proxy must stop reading, and start again."""
    content = [frame(18, [(number + 1, bytes([number]) * (1 << 20))]) for number in range(64)]
    held_back: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def pour(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for each in content:
            writer.write(each)
            if not held_back.done():
                try:
                    async with asyncio.timeout(0.5):
                        await writer.drain()
                except TimeoutError:
                    held_back.set_result(True)
            await writer.drain()
        if not held_back.done():
            held_back.set_result(False)

    async with proxied(pour) as (reader, _, _):
        assert await held_back
        for each in content:
            assert await read_frame(reader) == each
        assert await reader.read() == b"", "and the end of the connection is passed on"


@pytest.mark.wall_clock
async def test_the_end_of_the_client_s_connection_reaches_the_broker() -> None:
    came: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def listen(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        came.set_result(await reader.read())

    async with proxied(listen) as (_, writer, _):
        writer.write(frame(18, []) + b"\0\0\0\x09 half a")
        writer.close()
        assert await came == frame(18, []), "no half frame"


@pytest.mark.wall_clock
async def test_lookups_lead_to_the_proxy_and_lost_messages_are_receipted() -> None:
    async def look_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frame(LOOKUP_RESPONSE, [(1, b"pulsar://elsewhere:6650"), (3, 1), (4, 9)]))
        await writer.drain()
        await reader.read()

    async with proxied(look_up, loss=1.0) as (reader, writer, proxy):
        assert body_of(await read_frame(reader)) == [(1, proxy.url.encode()), (3, 1), (4, 9)]
        writer.write(frame(SEND, [(1, 3), (2, 4)]))
        whole = await read_frame(reader)
        assert (type_of(whole), numbers_of(whole)) == (SEND_RECEIPT, {1: 3, 2: 4})


@pytest.mark.wall_clock
@pytest.mark.parametrize("from_client", [True, False])
async def test_another_protocol_ends_the_connection_and_only_that(
    from_client: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not from_client:
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await reader.read()

    async with proxied(babble) as (reader, writer, proxy):
        if from_client:
            writer.write(struct.pack(">II", 0, 0))
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        _, other = await connect(proxy)
        other.close()
        await other.wait_closed()
    assert "not Pulsar's protocol" in capfd.readouterr().err


@pytest.mark.wall_clock
async def test_without_a_broker_connections_end_at_once() -> None:
    async with LossyProxy("127.0.0.1", find_free_ports(1)[0]) as proxy:
        reader, writer = await connect(proxy)
        async with asyncio.timeout(SOON):
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
        writer.close()
        with contextlib.suppress(ConnectionResetError):
            await writer.wait_closed()
        assert proxy.connections == 1


@pytest.mark.wall_clock
async def test_nothing_is_left_behind() -> None:
    async with LossyProxy("127.0.0.1", 1, loss=0.25) as proxy:
        process = proxy.process
        assert process is not None
    assert process.returncode == 0
    with pytest.raises(ConnectionRefusedError):
        await connect(proxy)
    assert (proxy.loss_out, proxy.passed) == (0.25, 0), "what it has counted can still be read"


def test_it_says_when_its_process_has_crashed() -> None:
    proxy = LossyProxy("127.0.0.1", 1).__enter__()
    assert proxy.process is not None
    proxy.process.kill()
    proxy.process.wait()
    with pytest.raises(RuntimeError, match="ended by itself"):
        proxy.__exit__(None)
    assert proxy.process is None


def test_it_ends_with_its_owner() -> None:
    script = (
        "from tests.helpers.lossy_proxy import LossyProxy\n"
        "with LossyProxy('127.0.0.1', 1) as proxy: print(proxy.url, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline().startswith(b"pulsar://127.0.0.1:")
        owner.kill()
        # The proxy has its owner's stderr: that is at its end when both are.
        assert owner.communicate(timeout=SOON) == (b"", b"")


@pytest.mark.parametrize("chance", [-0.1, 1.1, float("nan")])
def test_a_chance_is_between_0_and_1(chance: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        LossyProxy("127.0.0.1", 1, loss_in=chance)
    proxy = LossyProxy("127.0.0.1", 1, loss=0.5)
    with pytest.raises(ValueError, match="between 0 and 1"):
        proxy.loss_out = chance
    assert (proxy.loss_out, proxy.loss_in) == (0.5, 0.5)


@pytest.mark.parametrize("url", ["pulsar+ssl://127.0.0.1:6651", "pulsar://127.0.0.1", "pulsar://a:1,b:2", "http://a:1"])
def test_it_stands_before_one_plain_broker(url: str) -> None:
    with pytest.raises(ValueError, match=r"pulsar://HOST:PORT|Port could not be cast"):
        LossyProxy.before(url)
