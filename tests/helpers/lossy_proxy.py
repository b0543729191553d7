"""A TCP proxy before a genuine broker that loses Pulsar messages at random, as a process: ``LossyProxy(host, port)``.

Whole messages vanish without a word, in both directions, as they do in a broker that drops; the connection stays healthy
(:class:`_Side` says how). There can be only one broker behind it.

Plain TCP only. On a persistent subscription a lost message stays unacknowledged until the consumer connects anew.
"""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import random
import signal
import struct
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

PRODUCER, SEND, SEND_RECEIPT, SEND_ERROR, MESSAGE, FLOW, CLOSE_PRODUCER, LOOKUP_RESPONSE = 5, 6, 7, 8, 9, 11, 15, 24

MAX_FRAME = 64 << 20
"""Bytes; what claims to be larger is no frame. Brokers take 5 MiB unless configured otherwise."""

Field = tuple[int, int | bytes]


def encode(fields: Iterable[Field]) -> bytes:
    """A message of numbers and byte strings."""
    out = bytearray()

    def varint(value: int) -> None:
        while value > 0x7F:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        out.append(value)

    for number, value in fields:
        if isinstance(value, int):
            varint(number << 3)
            varint(value)
        else:
            varint(number << 3 | 2)
            varint(len(value))
            out.extend(value)
    return bytes(out)


def decode(data: bytes) -> Iterator[Field]:
    """The numbers and byte strings of a message by field number; ValueError: not such a message."""
    at, end = 0, len(data)

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while at < end and shift < 64:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise ValueError("a varint does not end")

    while at < end:
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
        elif key & 7 == 2:
            size = varint()
            if at + size > end:
                raise ValueError("a byte string does not end")
            yield key >> 3, data[at : at + size]
            at += size
        else:
            raise ValueError("a field that no command has")


def frame(type: int, fields: Iterable[Field]) -> bytes:
    """A command without a payload, as it goes over the wire."""
    command = encode([(1, type), (type, encode(fields))])
    return struct.pack(">II", len(command) + 4, len(command)) + command


class Frames:
    """Cuts a stream of bytes into frames: 4 bytes of size, and as many bytes. What came in one piece is not copied."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._have = 0
        self._need = 4

    def feed(self, data: bytes) -> Iterator[memoryview]:
        """The frames, size included, that ``data`` completes; ValueError: not Pulsar's protocol."""
        if self._parts:
            self._parts.append(data)
            self._have += len(data)
            if self._have < self._need:
                return
            data = b"".join(self._parts)
            self._parts.clear()
        view, at, end = memoryview(data), 0, len(data)
        self._need = 4
        while end - at >= 4:
            (size,) = struct.unpack_from(">I", data, at)
            if not 4 < size <= MAX_FRAME:
                raise ValueError("not Pulsar's protocol (the proxy speaks no TLS)")
            if end - at < size + 4:
                self._need = size + 4
                break
            yield view[at : at + size + 4]
            at += size + 4
        if at < end:
            self._parts.append(data[at:])
            self._have = end - at


def command_of(whole: memoryview) -> bytes:
    (size,) = struct.unpack_from(">I", whole, 4)
    if size > len(whole) - 8:
        raise ValueError("a command that is longer than its frame")
    return bytes(whole[8 : 8 + size])


def type_of(whole: memoryview) -> int:
    """The command's type. Everybody writes it first; Protocol Buffers would allow another order."""
    if len(whole) > 9 and whole[8] == 0x08 and whole[9] < 0x80:
        return whole[9]
    return int(dict(decode(command_of(whole))).get(1, 0))


def body_of(whole: memoryview) -> list[Field]:
    """The fields of the command: BaseCommand keeps them under the number that is the command's type."""
    command = dict(decode(command_of(whole)))
    body = command.get(int(command.get(1, 0)))
    if not isinstance(body, bytes):
        raise ValueError("a command without its body")
    return list(decode(body))


def numbers_of(whole: memoryview) -> dict[int, int]:
    """Those of the command's fields that are numbers."""
    return {number: value for number, value in body_of(whole) if isinstance(value, int)}


def batch_size(whole: memoryview) -> int:
    """How many messages a MESSAGE holds, each of which costs a permit: a field of the metadata behind the command."""
    at = 8 + int.from_bytes(whole[4:8])
    if bytes(whole[at : at + 2]) == b"\x0e\x02":  # the broker's own metadata come first
        at += 6 + int.from_bytes(whole[at + 2 : at + 6])
    if bytes(whole[at : at + 2]) == b"\x0e\x01":  # a checksum
        at += 6
    size = int.from_bytes(whole[at : at + 4])
    metadata = bytes(whole[at + 4 : at + 4 + size])
    if b"\x58" not in metadata:  # the field's tag; most have none, and need no decoding
        return 1
    return int(dict(decode(metadata)).get(11, 1))


Pieces = list[memoryview | bytes]


class Tally(Protocol):
    """The chances, which may change at any time, and the counts. A batch counts as what it holds."""

    loss_out: float
    loss_in: float
    dropped_sends: int
    dropped_messages: int
    passed_sends: int
    passed_messages: int


class Exchange:
    """One client's connection, without the sockets: what came from one side, and what goes to which side for it."""

    def __init__(self, url: str, tally: Tally, dice_out: random.Random, dice_in: random.Random) -> None:
        self._url = url.encode()
        self._tally = tally
        self._dice_out, self._dice_in = dice_out, dice_in
        self._from_client, self._from_broker = Frames(), Frames()
        # By producer: what waits for its receipt, oldest first, and the forged receipts which have to wait behind it.
        self._unreceipted: dict[int, deque[tuple[int, bytes | None]]] = {}

    def from_client(self, data: bytes) -> tuple[Pieces, Pieces]:
        """What goes to the broker, and what goes back to the client."""
        onward: Pieces = []
        back: Pieces = []
        for whole in self._from_client.feed(data):
            type = type_of(whole)
            if type == SEND and self._loses(whole, back):
                continue
            if type == PRODUCER:
                self._unreceipted.pop(numbers_of(whole)[2], None)
            onward.append(whole)
        return onward, back

    def from_broker(self, data: bytes) -> tuple[Pieces, Pieces]:
        """What goes to the client, and what goes back to the broker."""
        onward: Pieces = []
        tally, permits = self._tally, dict[int, int]()
        for whole in self._from_broker.feed(data):
            type = type_of(whole)
            if type == MESSAGE:
                count = batch_size(whole)
                if self._dice_in.random() < tally.loss_in:
                    consumer = numbers_of(whole)[1]
                    permits[consumer] = permits.get(consumer, 0) + count
                    tally.dropped_messages += count
                    continue
                tally.passed_messages += count
            onward.append(self._through_proxy(whole) if type == LOOKUP_RESPONSE else whole)
            if type in (SEND_RECEIPT, SEND_ERROR):
                onward.extend(self._receipts_behind(numbers_of(whole)))
            elif type == CLOSE_PRODUCER:  # the broker's own wish: the client will send everything unreceipted again
                self._unreceipted.pop(numbers_of(whole)[1], None)
        return onward, [frame(FLOW, [(1, consumer), (2, count)]) for consumer, count in permits.items()]

    def _loses(self, whole: memoryview, back: Pieces) -> bool:
        send = numbers_of(whole)
        producer, sequence, count = send[1], send[2], send.get(3, 1)
        waiting = self._unreceipted.get(producer)
        if self._dice_out.random() >= self._tally.loss_out:
            self._tally.passed_sends += count
            if waiting is None:
                waiting = self._unreceipted[producer] = deque()
            waiting.append((sequence, None))
            return False
        self._tally.dropped_sends += count
        receipt: list[Field] = [(1, producer), (2, sequence), (3, encode([(1, 0), (2, 0)]))]
        if 6 in send:
            receipt.append((4, send[6]))  # the last sequence id of a batch
        forged = frame(SEND_RECEIPT, receipt)
        if waiting is None:
            back.append(forged)
        else:
            waiting.append((sequence, forged))
        return True

    def _receipts_behind(self, receipt: dict[int, int]) -> Iterator[bytes]:
        producer = receipt[1]
        waiting = self._unreceipted.get(producer)
        if waiting is None or waiting[0][0] != receipt[2]:
            return
        waiting.popleft()
        while waiting and (forged := waiting[0][1]) is not None:
            yield forged
            waiting.popleft()
        if not waiting:
            del self._unreceipted[producer]

    def _through_proxy(self, whole: memoryview) -> bytes:
        # Not the field proxy_through_service_url: with that, a client makes a second connection for its topics.
        response = [field for field in body_of(whole) if field[0] != 2]  # 2: the address for TLS
        return frame(
            LOOKUP_RESPONSE, [(1, self._url) if number == 1 else (number, value) for number, value in response]
        )


ROOT = Path(__file__).parents[2]

MAX_WAITING = 8 << 20
"""Bytes that may wait in the proxy for a slow reader, each way. A broker drops what does not fit into 64 KiB; the proxy
reads so far ahead that it is (nearly) the only one that loses anything."""
STOP_S = 5.0
"""How long the process may take to end by itself."""


class Shared(ctypes.Structure):
    """The rates and counters, in memory that the proxy's process and its owner share."""

    loss_out: float
    loss_in: float
    dropped_sends: int
    dropped_messages: int
    passed_sends: int
    passed_messages: int
    connections: int

    _fields_ = (
        ("loss_out", ctypes.c_double),
        ("loss_in", ctypes.c_double),
        ("dropped_sends", ctypes.c_uint64),
        ("dropped_messages", ctypes.c_uint64),
        ("passed_sends", ctypes.c_uint64),
        ("passed_messages", ctypes.c_uint64),
        ("connections", ctypes.c_uint64),
    )


class _Side(asyncio.Protocol):
    """One of the two sockets of a connection."""

    transport: asyncio.Transport
    other: _Side | None = None

    def __init__(self, exchange: Exchange, client: bool) -> None:
        self._route = exchange.from_client if client else exchange.from_broker

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(high=MAX_WAITING)

    def data_received(self, data: bytes) -> None:
        assert self.other is not None
        try:
            onward, back = self._route(data)
        except (ValueError, KeyError) as error:
            sys.stderr.write(f"lossy_proxy: connection closed: {error}\n")
            self.transport.abort()
            return
        if onward:
            self.other.transport.writelines(onward)
        if back:
            self.transport.writelines(back)

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.other is not None:
            self.other.transport.close()


async def _accept(client: _Side, exchange: Exchange, host: str, port: int) -> None:
    client.transport.pause_reading()
    try:
        _, broker = await asyncio.get_running_loop().create_connection(lambda: _Side(exchange, False), host, port)
    except OSError:
        client.transport.abort()
        return
    client.other, broker.other = broker, client
    if client.transport.is_closing() or broker.transport.is_closing():
        client.transport.close()
        broker.transport.close()
    else:
        client.transport.resume_reading()


async def _main(host: str, port: int, seed: int, memory: int, listen_on: int) -> None:
    shared = Shared.from_buffer(mmap.mmap(memory, ctypes.sizeof(Shared)))
    loop = asyncio.get_running_loop()
    dice = random.Random(f"{seed} out"), random.Random(f"{seed} in")  # or one direction would disturb the other
    accepting: set[asyncio.Task[None]] = set()

    class Client(_Side):
        def __init__(self) -> None:
            self._exchange = Exchange(url, shared, *dice)
            super().__init__(self._exchange, True)

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            shared.connections += 1
            task = loop.create_task(_accept(self, self._exchange, host, port))
            accepting.add(task)
            task.add_done_callback(accepting.discard)

    server = await loop.create_server(Client, "127.0.0.1", listen_on)
    url = f"pulsar://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    sys.stdout.write(url + "\n")
    sys.stdout.flush()
    # The owner's end of the pipe closes when it ends, however it ends.
    await asyncio.to_thread(sys.stdin.read)
    server.close()


class LossyProxy:
    """See the module. Used with ``async with`` (or ``with``); starting blocks for the tenth of a second a process takes.

    Args:
        target_host: where the broker listens,
        target_port: and on which port.
        loss: the chance of a message to be lost, both ways, unless the next two say otherwise.
        loss_out: the chance from client to broker. Both can be set while it runs, and hold from then on.
        loss_in: the chance from broker to client.
        rng: decides which; the same one loses the same, as far as messages come in the same order. None: seed 0.
        port: where the proxy listens; 0 for any free one. A second proxy on the port of one that has stopped looks like a
            broker that was away.
    """

    url: str
    """``pulsar://`` and the proxy's address, once it runs."""

    def __init__(
        self,
        target_host: str,
        target_port: int,
        *,
        loss: float = 0.0,
        loss_out: float | None = None,
        loss_in: float | None = None,
        rng: random.Random | None = None,
        port: int = 0,
    ) -> None:
        self._port = port
        self._target = (target_host, target_port)
        self._seed = (rng or random.Random(0)).getrandbits(64)
        self._shared = Shared()
        self.process: subprocess.Popen[str] | None = None
        self.loss_out = loss if loss_out is None else loss_out
        self.loss_in = loss if loss_in is None else loss_in

    @classmethod
    def before(cls, url: str, **options: Any) -> LossyProxy:
        """A proxy before the broker at ``url`` (``pulsar://HOST:PORT``); options as above."""
        parts = urlsplit(url)
        if parts.scheme != "pulsar" or not parts.hostname or not parts.port:
            raise ValueError(f"the proxy needs one broker's address, pulsar://HOST:PORT, not {url}")
        return cls(parts.hostname, parts.port, **options)

    @property
    def loss_out(self) -> float:
        return self._shared.loss_out

    @loss_out.setter
    def loss_out(self, chance: float) -> None:
        self._shared.loss_out = _chance(chance)

    @property
    def loss_in(self) -> float:
        return self._shared.loss_in

    @loss_in.setter
    def loss_in(self, chance: float) -> None:
        self._shared.loss_in = _chance(chance)

    @property
    def dropped_sends(self) -> int:
        """Messages of clients that no broker got, each of a batch counted."""
        return self._shared.dropped_sends

    @property
    def dropped_messages(self) -> int:
        """Messages of the broker that no client got, each of a batch counted."""
        return self._shared.dropped_messages

    @property
    def passed_sends(self) -> int:
        return self._shared.passed_sends

    @property
    def passed_messages(self) -> int:
        return self._shared.passed_messages

    @property
    def passed(self) -> int:
        """Messages that were let through, both ways."""
        return self.passed_sends + self.passed_messages

    @property
    def connections(self) -> int:
        """Connections that clients have made until now: it grows when one hangs up and comes back."""
        return self._shared.connections

    def __enter__(self) -> LossyProxy:
        assert self.process is None, "it runs already"
        with tempfile.TemporaryFile() as memory:
            memory.truncate(ctypes.sizeof(Shared))
            shared = Shared.from_buffer(mmap.mmap(memory.fileno(), ctypes.sizeof(Shared)))
            ctypes.pointer(shared)[0] = self._shared
            self._shared = shared
            host, port = self._target
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", __name__),
                    *(host, str(port), str(self._seed), str(memory.fileno()), str(self._port)),
                ],
                cwd=ROOT,
                pass_fds=[memory.fileno()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        try:
            self.url = self.process.stdout.readline().strip()
            if not self.url:
                raise RuntimeError("the proxy did not start; see what it wrote to stderr")
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_rest: object) -> None:
        crashed = self.process is not None and self.process.poll() is not None
        self._stop()
        if crashed and kind is None:
            raise RuntimeError("the proxy ended by itself; see what it wrote to stderr")

    async def __aenter__(self) -> LossyProxy:
        return self.__enter__()

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.__exit__(kind, *rest)

    def _stop(self) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        try:
            process.communicate(timeout=STOP_S)  # closes the pipe that it waits for
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        # The counters stay readable; the shared memory goes.
        self._shared = Shared.from_buffer_copy(self._shared)


def _chance(value: float) -> float:
    if not 0 <= value <= 1:
        raise ValueError(f"a chance is between 0 and 1, not {value}")
    return value


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the owner, whose end is ours as well
    asyncio.run(_main(sys.argv[1], *map(int, sys.argv[2:])))
