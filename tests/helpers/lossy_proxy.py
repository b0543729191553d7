"""A TCP proxy before a genuine broker that loses Pulsar messages at random, as a process: ``LossyProxy(host, port)``.

Whole messages vanish without a word, in both directions, as they do in a broker that drops; the connection stays healthy
(:mod:`tests.helpers.lossy_proxy_connection` says how). There can be only one broker behind it.

Plain TCP only. On a persistent subscription a lost message stays unacknowledged until the consumer connects anew.
"""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.helpers.lossy_proxy_connection import Exchange

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
            assert self.process.stdout is not None
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
