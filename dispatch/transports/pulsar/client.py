"""A ``pulsar.Client`` with its producers and consumers. Blocking calls of pulsar-client run on dispatch's own threads.

One client serves both directions: receipts and replies share a connection, and a call costs a fifth less than with two. The
callback of a receipt delays the client's I/O thread only briefly because the thread keeps its Python state
(:func:`keep_thread_state`); without that, the thread read so slowly that the broker dropped messages.

Listeners and ``send_async`` cost half as much for each call as ``pulsar.asyncio`` with awaited receipts
(docs/architecture.md), and a receive cannot be cancelled half-way, which loses a message there.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import logging
import os
import re
import threading
import uuid
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import _pulsar
import pulsar

from dispatch._internal import DaemonThreads
from dispatch.errors import TransportError
from dispatch.telemetry.observers import NO_PROPERTIES
from dispatch.transports.base import RELEASED_S, Mode, Security
from dispatch.transports.errors import bad_address, closed, opening_failed

# The Pulsar client's own log lines, through ``logging`` (logger ``dispatch.pulsar``), quietly.
#
# The C++ client accepts a Python logger, but calls it from its own threads, which can lock up the interpreter
# (apache/pulsar-client-python issue 116; apache/pulsar issue 11847). It therefore writes to a pipe, which a thread of this
# module reads. Its logger is global to the process: the first client sets it, and all others use the same pipe.


logger = logging.getLogger("dispatch.pulsar")
logger.addHandler(logging.NullHandler())

_LINE = re.compile(r"^\S+ \S+ (?P<level>[A-Z]+)\s+\[\d+\] (?P<text>.*)$")
_LEVELS = {"WARN": logging.DEBUG, "ERROR": logging.INFO, "FATAL": logging.ERROR, "INFO": logging.DEBUG}
# One level lower than the client's: failures reach the caller as typed errors, and while a broker restarts the client's
# attempts to reconnect would fill the log.

_PIPE_BYTES = 1 << 20
_MAX_LINE = 2_000
_lock = threading.Lock()
_sink: Any = None


def client_logger() -> Any:
    """The ``logger`` argument for ``pulsar.Client``."""
    global _sink
    with _lock:
        if _sink is None:
            _sink = _open_pipe()
        return _sink


def _open_pipe() -> Any:
    if not os.path.isdir("/dev/fd"):
        return pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    reading, writing = os.pipe()
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):  # an unprivileged process may be refused the size; the default does too
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    thread = threading.Thread(target=_forward, args=(reading,), name="dispatch-pulsar-logs", daemon=True)
    thread.start()
    return pulsar.FileLogger(pulsar.LoggerLevel.Warn, f"/dev/fd/{writing}")


def _forward(fd: int) -> None:
    with open(fd, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            text = line.rstrip("\n")[:_MAX_LINE]
            match = _LINE.match(text)
            if match is None:
                logger.debug("%s", text)
            elif "Failed to getLastMessageId" not in text:  # see PulsarClient.replies
                logger.log(_LEVELS.get(match["level"], logging.DEBUG), "%s", match["text"])


# A reader of pulsar-client that pushes its messages to a listener.
#
# pulsar-client has reader listeners, but never frees a reader that has one (3.13.0): the reader, its consumer and the
# listener refer to each other in C++. Its client then keeps a thread and 6 file descriptors, also after it was closed. A
# reader without a listener is freed, so a thread reads its messages here.


POLL_S = 0.5
"""Longest time the thread stays in pulsar-client, in seconds. A read without a timeout may never return: closing a client
can stop its executor before pulsar-client has called back for a pending read."""
END_S = 2.0
"""Longest time, in seconds, that closing waits for the thread. A thread that is still in pulsar-client when the interpreter
ends aborts the process."""


class ListenedReader:
    """A ``pulsar.Reader`` without a listener, and a thread that calls ``listener(reader, message)`` for each message.

    Args:
        reader: the reader.
        listener: is called on the thread and must not raise.
    """

    def __init__(self, reader: Any, listener: Callable[[Any, Any], None]) -> None:
        self._reader = reader
        self._listener = listener
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._read, name="dispatch-pulsar-reader", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while not self._closed.is_set():
            try:
                message = self._reader.read_next(int(POLL_S * 1000))
            except pulsar.Timeout:
                continue
            except Exception:  # closed, or disconnected
                self._closed.wait(POLL_S)
                continue
            self._listener(self, message)
            del message  # a large message would be retained until the next one

    def is_connected(self) -> bool:
        """Whether messages can arrive."""
        return self._thread.is_alive() and bool(self._reader.is_connected())

    def ask_last_message(self, on_reply: Callable[[Any, Any], None]) -> None:
        """Ask the broker for the last message of the topic, which it compares with the one that was read."""
        self._reader._reader.has_message_available_async(on_reply)

    def close(self) -> None:
        """Close the reader and end the thread."""
        self.end()
        try:
            self._reader.close()
        finally:
            self.join()

    def end(self) -> None:
        """Let the thread end: at once when the reader or its client is closed, otherwise within :data:`POLL_S`."""
        self._closed.set()

    def join(self) -> None:
        """Wait for the end of the thread, at most :data:`END_S`."""
        self._thread.join(END_S)


Receipt = Callable[[Any, Any], None]

_threads = DaemonThreads("dispatch-pulsar")
"""Separate threads: tools that block the event loop's default executor must not delay a connection."""

OK = pulsar.Result.Ok
TOO_LARGE = pulsar.Result.MessageTooBig

OPERATION_TIMEOUT_S = 5
"""Timeout in seconds for creating a producer or consumer."""

DEAF = "the broker delivers nothing to the subscription; it is opened again"
"""Told of a subscription that looks connected and is not."""

OPENINGS = 16
"""Concurrent blocking calls of one client. One for a topic whose broker was killed waits until another broker owns it."""

OPENINGS_END_S = 1.0
"""Seconds that closing waits for producers and consumers being opened. pulsar-client may never complete an opening whose
client was closed; the wait is bounded because a broker may not reply either."""

SEND_TIMEOUT_MS = 10_000
"""Timeout of a publish in milliseconds. One timeout fails all pending publishes of its producer, so it must not be short."""

RECEIVER_QUEUE = 10_000
"""Permits that a consumer grants the broker. They are renewed after half of them are used, so a burst of 5,000 fits at any
time; beyond the permits the broker drops non-persistent messages silently."""


def _client(url: str, security: Security) -> Any:
    authentication = None
    if security.token is not None:
        authentication = pulsar.AuthenticationToken(security.token)
    elif security.certificate is not None:
        authentication = pulsar.AuthenticationTLS(str(security.certificate), str(security.key))
    try:
        return pulsar.Client(
            url,
            authentication=authentication,
            operation_timeout_seconds=OPERATION_TIMEOUT_S,
            connection_timeout_ms=3_000,
            tls_trust_certs_file_path=str(security.trust_certs) if security.trust_certs else None,
            tls_validate_hostname=security.validate_hostname,
            tls_certificate_file_path=str(security.certificate) if security.certificate else None,
            tls_private_key_file_path=str(security.key) if security.key else None,
            logger=client_logger(),
        )
    except (ValueError, TypeError, RuntimeError, pulsar.PulsarException) as error:
        raise bad_address(url, f" for pulsar-client ({error})") from None


class PulsarClient:
    """An asyncio interface to a client of pulsar-client. Methods are called on the event loop and do not block it."""

    def __init__(self, url: str, security: Security) -> None:
        self.url = url
        self._held: Any = _client(url, security)
        self._turn = asyncio.Semaphore(OPENINGS)
        self._awaited: set[asyncio.Future[Any]] = set()
        self._opening = 0
        self._opened = threading.Condition()
        self._readers: weakref.WeakSet[ListenedReader] = weakref.WeakSet()

    @property
    def _client(self) -> Any:
        client = self._held
        if client is None:
            raise pulsar.AlreadyClosed("the client was closed")
        return client

    async def producer(self, topic: str) -> Any:
        """Open a producer for ``topic``, unbatched: a batch goes to one consumer and defeats the broker's round-robin."""
        return await self._open(
            topic,
            lambda: self._client.create_producer(
                topic,
                batching_enabled=False,
                block_if_queue_full=False,  # blocking would stop the event loop
                max_pending_messages=10_000,
                send_timeout_millis=SEND_TIMEOUT_MS,
            ),
        )

    async def consumer(
        self, topic: str, mode: Mode, name: str, listener: Callable[[Any, Any], None], *, after: Any = None
    ) -> Any:
        """Open a consumer or reader that calls ``listener(consumer, message)`` on a thread of its own. One that is POLLED,
        on a non-persistent topic, calls nothing: :func:`receive_arrived` returns its messages.

        A FANOUT consumer leaves nothing on the broker, however it ends: on a non-persistent topic it is an
        exclusive consumer, whose subscription ends with it; on a persistent one it is a reader, whose subscription is not
        durable. Both need the right to consume the topic and no other one.

        Args:
            topic: its topic.
            mode: see :class:`Mode`.
            name: of the subscription (SHARED), or its prefix.
            listener: must not raise.
            after: the id of the message after which a reader begins; None: with messages from now on.
        """
        if mode is Mode.SHARED:
            return await self._open(topic, lambda: self._subscribe(topic, name, pulsar.ConsumerType.Shared, listener))
        unique = f"{name}-{uuid.uuid4().hex[:8]}"  # a second consumer of an exclusive subscription would be refused
        if not topic.startswith("persistent://"):
            called = None if mode is Mode.POLLED else listener
            return await self._open(
                topic, lambda: self._subscribe(topic, unique, pulsar.ConsumerType.Exclusive, called)
            )
        return await self._open(topic, lambda: self._read(topic, unique, listener, after))

    def _subscribe(self, topic: str, name: str, type: Any, listener: Callable[[Any, Any], None] | None) -> Any:
        return self._settled(
            topic,
            self._client.subscribe(
                topic,
                name,
                consumer_type=type,
                message_listener=listener,
                receiver_queue_size=RECEIVER_QUEUE,
                negative_ack_redelivery_delay_ms=int(RELEASED_S * 1000),
            ),
        )

    def _read(self, topic: str, name: str, listener: Callable[[Any, Any], None], after: Any) -> Any:
        reader = self._settled(
            topic,
            self._client.create_reader(
                topic,
                pulsar.MessageId.latest if after is None else after,
                receiver_queue_size=RECEIVER_QUEUE,
                reader_name=name,
                subscription_role_prefix=name,
            ),
        )
        listened = ListenedReader(reader, listener)
        self._readers.add(listened)
        return listened

    def _settled(self, topic: str, opened: Any) -> Any:
        # A round trip after the permits, on the same connection: when it returns, the broker has the permits and delivers
        # every message published from now on.
        try:
            self._client.get_topic_partitions(topic)
        except BaseException:
            _close_quietly(opened)  # without an owner it would consume messages
            raise
        return opened

    async def last_message(self, consumer: Any) -> Any:
        """Return the id of the last message on the topic of ``consumer``; None if unknown (a partitioned topic)."""
        result, last = await _ask_last_message(consumer)
        return last if result == OK else None

    async def close_listening(self, consumer: Any, topic: str) -> None:
        """Close a consumer after its listener has been called for every message that the broker had sent before.

        pulsar-client discards what has arrived for a consumer that closes, and what arrives until the broker has closed it
        (3.13.0, ``ConsumerImpl::closeAsync``). A second consumer is the mark behind which nothing waits: its opening is a
        round trip on the connection, and its pending receive fails on the thread of the listener, after the calls for
        the messages before it. The consumer is closed there, before the thread waits for messages again.
        """

        def close() -> None:
            closed = threading.Event()

            def close_here(_result: Any, _message: Any) -> None:
                keep_thread_state()
                with contextlib.suppress(Exception):  # it would end the process
                    consumer._consumer.close_async(lambda _result: closed.set())

            with contextlib.suppress(Exception):  # without the right to subscribe, or the connection is lost
                if consumer.is_connected():
                    name = f"dispatch-mark-{uuid.uuid4().hex[:8]}"
                    mark = self._client.subscribe(topic, name, receiver_queue_size=1)
                    try:
                        mark._consumer.receive_async(close_here)
                    finally:
                        mark.close()
                    closed.wait(OPERATION_TIMEOUT_S)
            _close_quietly(consumer)

        await asyncio.get_running_loop().run_in_executor(_threads, close)

    async def answers(self, consumer: Any) -> bool | None:
        """Return whether the broker replies twice on the connection of ``consumer``: then it has received all earlier
        commands. None: it does not reply at all, while the connection is open."""
        for _question in range(2):  # the first one lets pulsar-client's thread run its timers
            result, _ = await _ask_last_message(consumer)
            if result in (pulsar.Result.OperationNotSupported, pulsar.Result.InvalidConfiguration):
                return bool(consumer.is_connected())  # a partitioned topic has no such command
            if result != OK:
                return None if result is None and consumer.is_connected() else False
        return True

    async def replies(self, consumer: Any) -> bool:
        """Return whether the owner of the topic of a consumer, or of a :class:`ListenedReader`, replies within
        :data:`OPERATION_TIMEOUT_S`. An error is a reply, too: a non-persistent topic has no last message.

        Takes 0.2 ms of processor time. pulsar-client itself finds out after 30 to 60 s that an owner hangs.
        """
        result, _ = await _ask_last_message(consumer)
        if result is None or result == pulsar.Result.Timeout:
            return False
        return result == OK or bool(consumer.is_connected())

    async def is_attached(self, consumer: Any) -> bool | None:
        """Return whether the broker delivers the messages of its topic to an exclusive consumer: while it does, it refuses a
        second one. None: unknown, the topic may be moving.

        Seen with Pulsar 4.0.6 when topics are unloaded on a busy machine: a broker replies to a consumer that the statistics
        of the topic do not know, and never delivers anything to it; pulsar-client says that it is connected.

        Takes 0.5 ms of processor time, and two lines of the broker's log.
        """

        def ask() -> bool | None:
            try:
                second = self._client.subscribe(
                    consumer.topic(),
                    consumer.subscription_name(),
                    consumer_type=pulsar.ConsumerType.Exclusive,
                    receiver_queue_size=1,
                )
            except pulsar.ConsumerBusy:
                return True
            except Exception:
                return None
            _close_quietly(second)
            return False

        with self._opened:
            self._opening += 1  # closing the client waits for it, for OPENINGS_END_S at most
        return await asyncio.get_running_loop().run_in_executor(_threads, self._make, ask)

    async def _open(self, topic: str, make: Callable[[], Any]) -> Any:
        loop = asyncio.get_running_loop()
        handed: asyncio.Future[Any] = loop.create_future()
        self._awaited.add(handed)
        try:
            async with self._turn:
                if not handed.done():
                    with self._opened:
                        self._opening += 1
                    opening = loop.run_in_executor(_threads, self._make, make)
                    opening.add_done_callback(partial(_hand_over, handed))
                return await handed
        except pulsar.PulsarException as error:
            raise opening_failed(type(error).__name__, url=self.url, topic=topic) from None
        finally:
            self._awaited.discard(handed)

    def _make(self, make: Callable[[], Any]) -> Any:
        try:
            return make()
        finally:
            with self._opened:
                self._opening -= 1
                self._opened.notify_all()

    def fail_openings(self, error: TransportError) -> None:
        """Fail all producers and consumers that are being opened; one that opens nevertheless is closed."""
        for handed in self._awaited:
            if not handed.done():
                with contextlib.suppress(RuntimeError):  # its event loop is closed: nothing waits for it any more
                    handed.set_exception(error)

    async def close(self) -> None:
        """Close the client and everything on it; pending publishes end with ``AlreadyClosed``."""
        try:
            async with asyncio.timeout(OPERATION_TIMEOUT_S + 1):
                await asyncio.get_running_loop().run_in_executor(_threads, self._close)
        except TimeoutError:
            client = self._held
            if client is not None:
                client.shutdown()  # close() waits for the broker, which may hang
        finally:
            self.fail_openings(closed())

    def _close(self) -> None:
        with self._opened:
            self._opened.wait_for(lambda: not self._opening, OPENINGS_END_S)
        self.close_now()

    def close_now(self) -> None:
        """Close the client, blocking. The last resort at interpreter exit: a client that is still open then aborts the
        process."""
        client = self._held
        if client is None:
            return
        readers = list(self._readers)
        for reader in readers:
            reader.end()
        _close_quietly(client)
        for reader in readers:
            reader.join()
        # Threads and file descriptors are released when nothing refers to the client any more. This must not wait for a
        # garbage collection: pulsar.Client has a list of its consumers, and each of them refers to it.
        getattr(client, "_consumers", []).clear()
        self._held = None


def _hand_over(handed: asyncio.Future[Any], opening: asyncio.Future[Any]) -> None:
    if opening.cancelled():
        handed.cancel()
    elif (error := opening.exception()) is not None:
        if not handed.done():
            handed.set_exception(error)
    elif not handed.done():
        handed.set_result(opening.result())
    else:  # the caller has gone: without an owner it would stay open
        asyncio.get_running_loop().run_in_executor(_threads, _close_quietly, opening.result())


def _close_quietly(*opened: Any) -> None:
    for each in opened:
        with contextlib.suppress(Exception):
            each.close()


class ClosedHandle:
    """Replaces a closed producer or consumer: a reference to the closed one would retain its client's threads and file
    descriptors."""

    def is_connected(self) -> bool:
        """False."""
        return False

    def close(self) -> None:
        """Do nothing."""

    @property
    def _producer(self) -> Any:
        raise pulsar.AlreadyClosed("the producer was closed")


CLOSED_HANDLE = ClosedHandle()


def send_message(
    producer: Any, payload: bytes, on_receipt: Receipt, properties: Mapping[str, str] = NO_PROPERTIES
) -> None:
    """Send a message, past the checks of ``Producer.send_async`` for what dispatch never gives it.

    Raises:
        Exception: pulsar-client cannot send it, or the producer is closed.
    """
    builder = _pulsar.MessageBuilder()
    builder.content(payload)
    for name, value in properties.items():
        builder.property(name, value)
    producer._producer.send_async(builder.build(), on_receipt)


async def _ask_last_message(consumer: Any) -> tuple[Any, Any]:
    """Ask the owner of the topic of a consumer, or of a :class:`ListenedReader`, for its last message. Return the result of
    pulsar-client, and the message's id, which a reader does not have; None: no result within :data:`OPERATION_TIMEOUT_S`.

    pulsar-client (3.13.0) may never have one while the connection is open: seen of persistent topics whose owner was
    suspended for 10 s. So no thread waits for it.
    """
    loop = asyncio.get_running_loop()
    replied: asyncio.Future[tuple[Any, Any]] = loop.create_future()

    def settle(reply: tuple[Any, Any]) -> None:
        if not replied.done():
            replied.set_result(reply)

    def on_reply(result: Any, last: Any) -> None:
        keep_thread_state()
        with contextlib.suppress(RuntimeError):  # the event loop is closed: nothing waits for it any more
            loop.call_soon_threadsafe(settle, (result, last))

    try:
        if isinstance(consumer, ListenedReader):
            consumer.ask_last_message(on_reply)
        else:
            consumer._consumer.get_last_message_id_async(on_reply)
        async with asyncio.timeout(OPERATION_TIMEOUT_S):
            return await replied
    except TimeoutError:
        return None, None
    except Exception:  # closed
        return pulsar.Result.AlreadyClosed, None


def abandon(consumer: Any) -> None:
    """Close a consumer whose broker does not reply, without waiting for it: it has no connection from now on."""
    _threads.submit(_close_quietly, consumer)


async def close_opened(*opened: Any) -> None:
    """Close producers, consumers or readers, one after the other."""
    if any(opened):
        await asyncio.get_running_loop().run_in_executor(_threads, _close_quietly, *opened)


def receive_arrived(consumer: Any, limit: int) -> list[Any]:
    """Return the messages that have arrived at a consumer without a listener, at most ``limit``. It does not wait."""
    messages = []
    with contextlib.suppress(pulsar.PulsarException):  # Timeout: there are no more; or the connection is lost
        for _ in range(limit):
            messages.append(consumer.receive(0))
    return messages


async def pause(consumer: Any) -> None:
    """Stop the deliveries to ``consumer``."""
    with contextlib.suppress(Exception):  # closed, or without a listener: then it brings none
        await asyncio.get_running_loop().run_in_executor(_threads, consumer.pause_message_listener)


# Threads of pulsar-client keep their Python thread state from one callback to the next.
#
# They are not Python threads: pybind11 creates a thread state for each callback and discards it afterwards, which costs an
# mmap, a munmap and a TLB flush of every processor. A call has two callbacks (a receipt, a reply), and so has a served
# request: about 20 µs of 80 to 120 µs per call.


_kept = threading.local()


def keep_thread_state() -> None:
    """Retain the state of the current thread until it ends. Cheap to repeat; called in each callback.

    It costs about 20 kB per thread, which are not freed at its end: two threads per connection, two more per reconnection.
    """
    try:
        _kept.already  # noqa: B018 - a thread state that is new has no attributes in here
    except AttributeError:
        _kept.already = True
        # One more reference, that is never given back. The state exists and is the running one: this only counts.
        ctypes.pythonapi.PyGILState_Ensure()
