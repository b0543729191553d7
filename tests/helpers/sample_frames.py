"""A header of a packet, and a frame of each kind as it is written, with its class."""

from __future__ import annotations

from typing import Any

from dispatch.protocol import frames as wire

HEADER = (wire.VERSION, 77, 0, 5, 1234, 1, 3, 900, 48_000)
PRIVATE = "private"
"""In the place of each secret and of user data."""
FRAMES: list[tuple[tuple[Any, ...], type[Any]]] = [
    ((wire.HELLO, [1, 2], 0, "agent", "d1", 8, PRIVATE, ["reply-1", "reply-2"], 16_000_000, 2_000_000), wire.Hello),
    ((wire.ACCEPT, 1, 0, "calc-1", "i1", b"n" * 16, b"p" * 16, 16_000_000), wire.Accept),
    ((wire.REQUEST, 4, 2000, "calculator", {"idempotency-key": PRIVATE}, PRIVATE.encode()), wire.Request),
    ((wire.REPLY, 4, 0, PRIVATE.encode()), wire.Reply),
    ((wire.CHUNK, 4, 3, PRIVATE.encode()), wire.Chunk),
    ((wire.END, 4, 5, 1, PRIVATE.encode()), wire.End),
    ((wire.REFUSED, 4, "overloaded", 250, PRIVATE), wire.Refused),
    ((wire.CANCEL, 4), wire.Cancel),
    ((wire.ACK, 0, 900, [3, 5, 1, 2]), wire.Ack),
    ((wire.WINDOW, 17_000_000), wire.Window),
    ((wire.PING,), wire.Ping),
    ((wire.GOAWAY, "draining"), wire.Goaway),
    ((wire.RESET, 99, "i2"), wire.Reset),
    ((wire.FROM, 8, "reply-1", PRIVATE), wire.From),
    ((wire.PATHS, ["reply-1", "reply-2"]), wire.Paths),
    ((wire.CLOSE, "closed"), wire.Close),
    ((wire.ALIVE,), wire.Alive),
    ((wire.CREDIT, 4, 1_250_000), wire.Credit),
    ((wire.CONT, 0, 1, 7, 4, b"head", PRIVATE.encode()), wire.Cont),
]
