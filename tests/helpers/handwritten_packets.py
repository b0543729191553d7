"""Packets that a test writes by hand, and their delivery to a session table of a pair."""

from __future__ import annotations

from dispatch.protocol.events import Event
from dispatch.protocol.frames import HELLO, VERSION, encode_packet
from tests.helpers.session_pair import DISPATCHER, Pair


def packet(to: int, *frames: tuple[object, ...], path: int = 0, number: int = 0, data: int = 0) -> bytes:
    """Return a packet to the session with the address ``to``."""
    return encode_packet((VERSION, to, path, number, 0, 0, 0, data, 48_000), list(frames))


def hello(pair: Pair, **changes: object) -> bytes:
    """Return a HELLO to the instance, with some fields changed."""
    fields: dict[str, object] = {
        "versions": [VERSION], "features": 0, "name": DISPATCHER, "incarnation": "d1", "id": 77, "secret": "s",
        "inboxes": [DISPATCHER], "data_window": 16_000_000,
    }  # fmt: skip
    return packet(0, (HELLO, *(fields | changes).values()), number=-1)


def receive(pair: Pair, name: str, data: bytes) -> list[Event]:
    """Deliver a packet to the session table ``name``; return the events of its session."""
    return [event for _, events in pair.tables[name].receive_packet(data, pair.now) for event in events]
