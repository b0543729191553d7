"""A handshake with the broker: reports within milliseconds what pulsar-client reports as a timeout after seconds.

A wrong token makes pulsar-client reconnect silently until its operation times out. This sends Pulsar's CONNECT command
over a connection of its own and reads the answer: CONNECTED, or an error with the broker's own words.
Protocol: pulsar.apache.org, "Binary protocol"; field numbers from PulsarApi.proto.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
from collections.abc import AsyncIterator, Iterator

from dispatch._internal.user_code import read_text, type_name
from dispatch.errors import TransportError
from dispatch.transports.errors import (
    connection_refused,
    no_token,
    unauthorized,
    unreachable,
    untrusted,
    wrong_protocol,
)
from dispatch.transports.pulsar.service_url import endpoints
from dispatch.transports.security import Security

TIMEOUT_S = 3.0
"""Timeout in seconds of the handshake: as long as pulsar-client waits for a connection."""

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
    problem = unreachable(url)
    context, greeting = _prepared(url, security)
    for host, port in endpoints(url):
        try:
            async with asyncio.timeout(timeout):
                return await _shake(url, host, port, context, greeting)
        except ssl.SSLCertVerificationError as error:
            problem = untrusted(url, error.reason or str(error))
        except ssl.SSLError as error:
            problem = await _mismatch(url, host, port, timeout) or untrusted(url, error.reason or str(error))
        except _HungUpError:
            problem = await _mismatch(url, host, port, timeout) or problem
        except (OSError, TimeoutError, asyncio.IncompleteReadError, ValueError):
            pass  # the next broker may reply
        except TransportError as error:
            problem = error
    raise problem


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
        return wrong_protocol(url, host, port, http=begin == _HTTP)
    return None


def _prepared(url: str, security: Security) -> tuple[ssl.SSLContext | None, bytes]:
    """Prepare the TLS settings and the Connect command."""
    try:
        context = _tls(security) if url.startswith("pulsar+ssl://") else None
    except (OSError, ValueError) as error:
        raise untrusted(url, f"the certificate files cannot be used: {error}") from None
    try:
        return context, _connect_command(security)
    except BaseException as raised:  # anything that the function that supplies the token raises
        said = read_text(raised) if isinstance(raised, OSError) else type_name(raised)  # others may quote the token
        raise no_token(url, f"the file or the function that gives it failed: {said}") from None


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
            raise wrong_protocol(url, host, port, http=True)
        if begin.startswith(_TLS_ALERT):
            raise _HungUpError
        size = int.from_bytes(begin, "big")
        if not 4 <= size <= _MAX_FRAME:
            raise ValueError("not a Pulsar frame")
        frame = await reader.readexactly(size)
    (command_size,) = struct.unpack_from(">I", frame)
    command = dict(_fields(frame[4 : 4 + command_size]))
    if command.get(1) == _ERROR:
        error = command.get(_ERROR)
        details = dict(_fields(error)) if isinstance(error, bytes) else {}
        message = details.get(3, b"")
        said = message.decode(errors="replace")[:300] if isinstance(message, bytes) else ""
        if details.get(2) in (_AUTHENTICATION_ERROR, _AUTHORIZATION_ERROR):
            raise unauthorized(url, said)
        raise connection_refused(url, said)
    if command.get(1) != _CONNECTED:
        raise ValueError("not a Pulsar broker")
    connected = command.get(_CONNECTED)
    limit = dict(_fields(connected)).get(_MAX_MESSAGE_SIZE) if isinstance(connected, bytes) else None
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


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
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
