"""Malformed messages: unreadable payloads, wrong ids, and replies that are replaced by errors."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping

import msgspec

from dispatch.messaging.wire.codec import ErrorInfo, MalformedMessageError, Reply, decode_reply, encode_reply
from dispatch.messaging.wire.properties import MAX_PROPERTY_BYTES, Property
from dispatch.protocol.wire.frames import End as FrameOfEnd
from dispatch.protocol.wire.frames import MalformedPacketError, Status, decode_packet, encode, is_packet
from dispatch.protocol.wire.frames import Reply as FrameOfReply
from dispatch.transports import DurableMessage, Message

INJECTED_ERROR = "injected-fault"
"""Type of the errors that the fault ``tool_error`` injects."""


class AlteredMessage:
    """A message with this content. ``raises`` names the method that raises, as a client library's may: ``properties`` or
    ``data``."""

    def __init__(self, payload: bytes, properties: Mapping[str, str], *, raises: str = "") -> None:
        self._payload = payload
        self._properties = dict(properties)
        self._raises = raises

    def properties(self) -> dict[str, str]:
        if self._raises == "properties":
            raise RuntimeError("the properties are not readable")
        return dict(self._properties)

    def data(self) -> bytes:
        if self._raises == "data":
            raise UnicodeError("the data is not readable")
        return self._payload


class AlteredDurableMessage(DurableMessage):
    """The content of ``shown`` in place of a durable message's, which is acknowledged with it."""

    __slots__ = ("_inner", "_shown", "backlog", "kept", "lag")

    def __init__(self, inner: DurableMessage, shown: Message) -> None:
        self._inner = inner
        self._shown = shown
        self.lag = inner.lag
        self.backlog = inner.backlog
        self.kept = False

    def properties(self) -> dict[str, str]:
        return self._shown.properties()

    def data(self) -> bytes:
        return self._shown.data()

    def keep(self) -> None:
        self.kept = True
        self._inner.keep()

    def acknowledge(self) -> None:
        self._inner.acknowledge()

    def settle(self, then: Callable[[], object]) -> None:
        self.kept = True
        self._inner.settle(then)


WRONG_TYPES = json.dumps(
    {"error": 5, "response": {}, "end_of_stream": "yes", "user": [], "config": 7, "arguments": [1]}
).encode()

MALFORMED_PAYLOADS: tuple[bytes, ...] = (
    b"",
    b" ",
    b"null",
    b"[]",
    b"17",
    b'"text"',
    b"{",
    b"{}{}",
    b"\x00",
    b"\xff\xfe{}",
    b'{"response": "\xff", "user": "\xff"}',
    b'{"response": "\\ud800", "user": "\\ud800"}',
    b'{"response": NaN, "user": NaN}',
    b'{"response": ' + b"9" * 5_000 + b', "user": 1}',
    b"[" * 100_000,
    b'{"error": ' * 2_000,
    b'{"error": {"message": ["not a text"]}, "arguments": "not JSON"}',
    b"<html>502 Bad Gateway</html>",
    WRONG_TYPES,
)
"""Payloads that are neither a request nor a reply."""


def malformed_payload(rng: random.Random, payload: bytes) -> bytes:
    """Return a payload that is neither a request nor a reply, made from ``payload`` or independent of it."""
    kind = rng.randrange(4)
    if kind == 0 and len(payload) > 1:
        return _keep_unreadable(
            payload[: rng.randrange(1, len(payload))]
        )  # an object without its last brace is not JSON
    if kind == 1:
        return b"\xff" + rng.randbytes(rng.randrange(40))
    if kind == 2:
        return _keep_unreadable(payload + b"}")
    return rng.choice(MALFORMED_PAYLOADS)


def _keep_unreadable(data: bytes) -> bytes:
    """Return ``data``, or something unreadable if it is complete: a former fault may have cut or appended the same byte."""
    for decode in (decode_packet, msgspec.json.decode):
        try:
            decode(data)
        except (MalformedPacketError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        return b"\xff" + data
    return data


def replace_id(rng: random.Random, properties: Mapping[str, str], how: str) -> dict[str, str]:
    """Return ``properties`` with an ``id`` that is missing, oversized, or that of no request."""
    others = {key: value for key, value in properties.items() if key != Property.ID}
    match how:
        case "missing_id":
            if rng.random() < 0.3:
                others[Property.ID] = ""
            return others
        case "oversized_id":
            return {**others, Property.ID: properties.get(Property.ID, "") + "x" * MAX_PROPERTY_BYTES}
        case _:
            return {**others, Property.ID: f"{rng.getrandbits(64):016x}-{rng.randrange(1000):x}"}


def make_tool_error(payload: bytes, properties: Mapping[str, str]) -> tuple[bytes, dict[str, str]] | None:
    """Return the reply as a tool's own error; None: the message is not a tool's reply."""
    if not payload or Property.ID not in properties or properties.keys() & {Property.REPLY_TO, Property.REFUSED}:
        return None
    if not _is_reply(payload):
        return None
    error = ErrorInfo(INJECTED_ERROR, "The tool failed (an injected fault).")
    kept = {
        name: value
        for name, value in properties.items()
        # An error ends the reply, and has no index among its chunks.
        if name not in (Property.MORE, Property.CHUNK)
    }
    return encode_reply(Reply(error, "", True)), kept


def make_tool_error_packet(data: bytes) -> bytes | None:
    """Return a packet of a session with a tool's own error in place of each result; None: it has none."""
    try:
        packet = decode_packet(data)
    except MalformedPacketError:
        return None
    error = msgspec.json.encode(ErrorInfo(INJECTED_ERROR, "The tool failed (an injected fault)."))
    frames = [
        msgspec.structs.replace(frame, status=int(Status.ERROR), payload=error)
        if isinstance(frame, (FrameOfReply, FrameOfEnd))
        else frame
        for frame in packet.frames
    ]
    if frames == packet.frames:
        return None
    return encode(msgspec.structs.replace(packet, frames=frames))


def _is_reply(payload: bytes) -> bool:
    try:
        raw = json.loads(payload)
        decode_reply(payload)
    except (MalformedMessageError, ValueError, RecursionError):
        return False
    return isinstance(raw, dict) and "arguments" not in raw and bool(raw.keys() & {"response", "error"})


def alter_message(rng: random.Random, message: Message, fault: str) -> Message | None:
    """Return ``message`` with the content that ``fault`` gives it; the message itself, if the fault does not change content;
    None if the fault does not apply to it."""
    properties = message.properties()
    match fault:
        case "tool_error" if is_packet(message.data()):
            packet = make_tool_error_packet(message.data())
            if packet is None:
                return None
            shown = AlteredMessage(packet, properties)
        case "malformed":
            shown = AlteredMessage(malformed_payload(rng, message.data()), properties)
        case "raising":
            shown = AlteredMessage(message.data(), properties, raises=rng.choice(("properties", "data")))
        case "missing_id" | "oversized_id" | "foreign_id":
            shown = AlteredMessage(message.data(), replace_id(rng, properties, fault))
        case "tool_error":
            reply = make_tool_error(message.data(), properties)
            if reply is None:
                return None
            shown = AlteredMessage(*reply)
        case _:
            return message
    return AlteredDurableMessage(message, shown) if isinstance(message, DurableMessage) else shown
