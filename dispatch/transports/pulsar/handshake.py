"""A handshake with the broker: reports within milliseconds what pulsar-client reports as a timeout after seconds.

A wrong token makes pulsar-client reconnect silently until its operation times out. This sends Pulsar's CONNECT command
over a connection of its own and reads the answer: CONNECTED, or an error with the broker's own words.
Protocol: pulsar.apache.org, "Binary protocol"; field numbers from PulsarApi.proto.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from dispatch._internal import cancel_and_wait, read_text, type_name
from dispatch.errors import ErrorType, TransportError
from dispatch.transports import errors
from dispatch.transports.base import Security

# Reading a Pulsar service URL.


DEFAULT_PORTS = {"pulsar": 6650, "pulsar+ssl": 6651}
"""Pulsar's ports of each scheme."""


def endpoints(url: str) -> list[tuple[str, int]]:
    """The hosts and ports of ``pulsar://host:port,host:port``.

    Raises:
        TransportError: not such a URL.
    """
    scheme, separator, rest = url.partition("://")
    scheme = scheme.lower()
    found: list[tuple[str, int]] = []
    why = " (http is for Pulsar's admin interface)" if scheme in ("http", "https") else ""
    if separator and scheme in DEFAULT_PORTS:
        for part in rest.rstrip("/").split(","):
            host, port = _split(part)
            port = port or str(DEFAULT_PORTS[scheme])
            if not _usable(host):
                break
            if not (port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) < 65536):
                why = f": its port '{port}' is not a number from 1 to 65535"
                break
            found.append((host, int(port)))
        else:
            return found
    raise errors.bad_address(url, why)


def broker_urls(url: str) -> list[str]:
    """Return the URL of each broker of ``url``. The one of a single broker is ``url`` itself.

    Raises:
        TransportError: not such a URL.
    """
    brokers = endpoints(url)
    if len(brokers) == 1:
        return [url]
    scheme = url.partition("://")[0]
    return [f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}" for host, port in brokers]


def _usable(host: str) -> bool:
    return host != "" and host.isprintable() and not any(c in host for c in "/@?# ")


def _split(part: str) -> tuple[str, str]:
    if part.startswith("["):  # an IPv6 address
        host, bracket, port = part[1:].partition("]")
        return (host, port[1:]) if bracket and port[:1] in ("", ":") else ("", "")
    host, _, port = part.partition(":")
    return host, port


TIMEOUT_S = 3.0
"""Timeout in seconds of the handshake: as long as pulsar-client waits for a connection."""

STALL_S = 0.1
"""Seconds after its time at which a timeout that passes shows that the process did not run."""
HEAD_START_S = 0.5
"""Seconds that earlier brokers of a list may reply after a later one: a reply takes milliseconds."""

PROBE_S = 1.0
"""Timeout in seconds for probing the protocol of a port after a failed handshake."""

FAREWELL_S = 0.5
"""Timeout in seconds of the TLS shutdown; asyncio would wait 30 s for a broker that has stopped."""

_HTTP = b"HTTP"
_TLS_ALERT = b"\x15\x03"
_CONNECT, _CONNECTED, _ERROR = 2, 3, 14
_AUTHENTICATION_ERROR, _AUTHORIZATION_ERROR = 3, 4
_MAX_MESSAGE_SIZE = 3
_PROTOCOL_VERSION = 19
_MAX_FRAME = 1 << 20


async def shake_hands(url: str, security: Security, timeout: float = TIMEOUT_S) -> int | None:
    """Connect to one of the brokers of ``url``, authenticate, and disconnect; ``timeout`` is in seconds, for each broker.
    Returns its ``maxMessageSize`` in bytes, if it says one.

    Raises:
        TransportError: ``unreachable``, ``unauthorized``, ``untrusted`` (TLS) or ``wrong-protocol`` (TLS and plain mixed up,
            or an HTTP port); each names the fix.
    """
    context, greeting = _prepared(url, security)

    async def shake(broker: str) -> int | None:
        ((host, port),) = endpoints(broker)
        return await _shake_hands_with(url, host, port, context, greeting, timeout)

    return (await find_broker(url, shake)).limit


async def _shake_hands_with(
    url: str, host: str, port: int, context: ssl.SSLContext | None, greeting: bytes, timeout: float
) -> int | None:
    try:
        try:
            async with asyncio.timeout(timeout) as limit:
                return await _shake(url, host, port, context, greeting)
        except TimeoutError:
            if asyncio.get_running_loop().time() < (limit.when() or math.inf) + STALL_S:
                raise
        async with asyncio.timeout(timeout):  # this process did not run: the reply may have been there
            return await _shake(url, host, port, context, greeting)
    except ssl.SSLCertVerificationError as error:
        raise errors.untrusted(url, error.reason or str(error)) from None
    except ssl.SSLError as error:
        raise await _mismatch(url, host, port, timeout) or errors.untrusted(url, error.reason or str(error)) from None
    except _HungUpError:
        raise await _mismatch(url, host, port, timeout) or errors.unreachable(url) from None
    except (socket.gaierror, UnicodeError):  # UnicodeError: a label of the name is empty or too long
        raise errors.UnresolvedHostError(url, host) from None
    except (OSError, TimeoutError, asyncio.IncompleteReadError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            raise errors.too_many_open_files(url) from None
        raise errors.unreachable(url) from None


@dataclass(frozen=True)
class FoundBroker:
    """A broker that has replied.

    Attributes:
        url: its own URL, one of those in the list.
        limit: its ``maxMessageSize`` in bytes; None: it said none.
        unresolved: hosts of the list whose names could not be resolved.
    """

    url: str
    limit: int | None
    unresolved: tuple[str, ...] = ()


async def find_broker(url: str, shake: Callable[[str], Coroutine[Any, Any, int | None]]) -> FoundBroker:
    """Find a broker of ``url`` that replies: the first one in the order of the list, so that all processes with one list use
    the same broker. All are asked at once, and a broker that hangs costs :data:`HEAD_START_S`, not its timeout.

    Args:
        url: one broker, or a list.
        shake: shakes hands with the broker of one URL, as :func:`shake_hands`.

    Raises:
        TransportError: no broker replies, or none accepts the connection.
    """
    brokers = broker_urls(url)
    if len(brokers) == 1:
        return FoundBroker(url, await shake(url))
    tasks = [asyncio.create_task(shake(broker)) for broker in brokers]
    try:
        pending, head_start = set(tasks), None
        while pending:
            done, pending = await asyncio.wait(pending, timeout=head_start, return_when=asyncio.FIRST_COMPLETED)
            first = next((at for at, task in enumerate(tasks) if task.done() and task.exception() is None), None)
            if first is not None and (not done or all(task.done() for task in tasks[:first])):
                return FoundBroker(brokers[first], tasks[first].result(), tuple(_unresolved(tasks)))
            head_start = None if first is None else HEAD_START_S
        hosts = tuple(_unresolved(tasks))
        problem = errors.UnresolvedHostError(url, *hosts) if hosts else errors.unreachable(url)
        raise next((error for task in tasks if not _is_unreachable(error := task.exception())), None) or problem
    finally:
        await cancel_and_wait(tasks)


def _is_unreachable(error: BaseException | None) -> bool:
    return isinstance(error, TransportError) and error.type == ErrorType.UNREACHABLE


def _unresolved(tasks: Iterable[asyncio.Task[int | None]]) -> Iterator[str]:
    for task in tasks:
        if task.done() and not task.cancelled() and isinstance(error := task.exception(), errors.UnresolvedHostError):
            yield from error.hosts


class _HungUpError(Exception):
    """The peer closed the connection before it sent anything, or sent a TLS alert: it may expect TLS, or expect none."""


async def _mismatch(url: str, host: str, port: int, timeout: float) -> TransportError | None:
    """Probe the port without TLS where ``url`` says TLS, and the other way round. None: neither Pulsar nor HTTP answers."""
    tls = url.startswith("pulsar+ssl://")
    context = None
    if not tls:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # nothing secret is sent: neither token nor certificate
    try:
        async with asyncio.timeout(min(timeout, PROBE_S)), _connection(host, port, context) as (reader, writer):
            begin = await _ask(reader, writer, _connect_command(Security()))
    except (OSError, TimeoutError, asyncio.IncompleteReadError, _HungUpError):
        return None
    if begin == _HTTP or 4 <= int.from_bytes(begin, "big") <= _MAX_FRAME:
        return errors.wrong_protocol(url, host, port, http=begin == _HTTP)
    return None


def _prepared(url: str, security: Security) -> tuple[ssl.SSLContext | None, bytes]:
    """Prepare the TLS settings and the Connect command."""
    try:
        context = _tls(security) if url.startswith("pulsar+ssl://") else None
    except (OSError, ValueError) as error:
        raise errors.untrusted(url, f"the certificate files cannot be used: {error}") from None
    try:
        return context, _connect_command(security)
    except BaseException as raised:  # anything that the function that supplies the token raises
        said = read_text(raised) if isinstance(raised, OSError) else type_name(raised)  # others may quote the token
        raise errors.no_token(url, f"the file or the function that gives it failed: {said}") from None


@contextlib.asynccontextmanager
async def _connection(
    host: str, port: int, context: ssl.SSLContext | None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Open a connection, with TLS if there is a ``context``, and close it at the end."""
    # Without a name to check against, asyncio would refuse to open a TLS connection at all.
    try:
        reader, writer = await asyncio.open_connection(
            host,
            port,
            ssl=context,
            server_hostname=host if context else None,
            ssl_shutdown_timeout=FAREWELL_S if context else None,
        )
    except ConnectionResetError:  # in the TLS handshake
        raise _HungUpError from None
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError, ssl.SSLError):
            await writer.wait_closed()


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, greeting: bytes) -> bytes:
    """Send ``greeting``, and return the first four bytes of the answer."""
    try:
        writer.write(_frame(greeting))
        await writer.drain()
        return await reader.readexactly(4)
    except (ConnectionError, asyncio.IncompleteReadError) as error:
        if isinstance(error, asyncio.IncompleteReadError) and error.partial:
            raise
        raise _HungUpError from None


async def _shake(url: str, host: str, port: int, context: ssl.SSLContext | None, greeting: bytes) -> int | None:
    async with _connection(host, port, context) as (reader, writer):
        begin = await _ask(reader, writer, greeting)
        if begin == _HTTP:
            raise errors.wrong_protocol(url, host, port, http=True)
        if begin.startswith(_TLS_ALERT):
            raise _HungUpError
        size = int.from_bytes(begin, "big")
        if not 4 <= size <= _MAX_FRAME:
            raise ValueError("not a Pulsar frame")
        frame = await reader.readexactly(size)
    (command_size,) = struct.unpack_from(">I", frame)
    command = dict(read_fields(frame[4 : 4 + command_size]))
    if command.get(1) == _ERROR:
        error = command.get(_ERROR)
        details = dict(read_fields(error)) if isinstance(error, bytes) else {}
        message = details.get(3, b"")
        said = message.decode(errors="replace")[:300] if isinstance(message, bytes) else ""
        if details.get(2) in (_AUTHENTICATION_ERROR, _AUTHORIZATION_ERROR):
            raise errors.unauthorized(url, said)
        raise errors.connection_refused(url, said)
    if command.get(1) != _CONNECTED:
        raise ValueError("not a Pulsar broker")
    connected = command.get(_CONNECTED)
    limit = dict(read_fields(connected)).get(_MAX_MESSAGE_SIZE) if isinstance(connected, bytes) else None
    return limit if isinstance(limit, int) and limit > 0 else None


def _tls(security: Security) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(security.trust_certs) if security.trust_certs else None)
    context.check_hostname = security.validate_hostname
    if security.certificate is not None:
        context.load_cert_chain(str(security.certificate), str(security.key) if security.key else None)
    return context


def _connect_command(security: Security) -> bytes:
    connect = _text(1, "dispatch") + _number(4, _PROTOCOL_VERSION)
    if security.token is not None:
        token = security.token if isinstance(security.token, str) else security.token()
        connect += _text(3, token) + _text(5, "token")
    elif security.certificate is not None:
        connect += _text(5, "tls")
    return _number(1, _CONNECT) + _bytes(_CONNECT, connect)


def _frame(command: bytes) -> bytes:
    return struct.pack(">II", len(command) + 4, len(command)) + command


# Protocol Buffers, as far as two commands need them.


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode())


def read_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Numbers and byte strings of a message by field number.

    Raises:
        ValueError: not such a message.
    """
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            if at >= len(data) or shift > 63:
                raise ValueError("not a Protocol Buffers message")
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
        elif key & 7 == 2:
            size = varint()
            if at + size > len(data):
                raise ValueError("not a Protocol Buffers message")
            yield key >> 3, data[at : at + size]
            at += size
        else:
            raise ValueError("a field of a kind that is not expected here")
