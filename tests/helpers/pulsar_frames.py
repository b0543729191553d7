"""Pulsar's binary protocol, as far as a proxy has to read it, and nothing of `dispatch`: frames, commands, batches.

Protocol: pulsar.apache.org, "Binary protocol"; numbers from PulsarApi.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

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
