"""A header of a packet, and a frame of each kind as it is written, with its class."""

from __future__ import annotations

from typing import Any

from dispatch.protocol import frames

HEADER = (frames.VERSION, 77, 0, 5, 1234, 1, 3, 900, 48_000)
PRIVATE = "private"
"""In the place of each secret and of user data."""
FRAMES: list[tuple[tuple[Any, ...], type[Any]]] = [
    ((frames.HELLO, [1, 2], 0, "agent", "d1", 8, PRIVATE, ["reply-1", "reply-2"], 16_000_000, 2_000_000), frames.Hello),
    ((frames.ACCEPT, 1, 0, "calc-1", "i1", b"n" * 16, b"p" * 16, 16_000_000), frames.Accept),
    ((frames.REQUEST, 4, 2000, "calculator", {"idempotency-key": PRIVATE}, PRIVATE.encode()), frames.Request),
    ((frames.REPLY, 4, 0, PRIVATE.encode()), frames.Reply),
    ((frames.CHUNK, 4, 3, PRIVATE.encode()), frames.Chunk),
    ((frames.END, 4, 5, 1, PRIVATE.encode()), frames.End),
    ((frames.REFUSED, 4, "overloaded", 250, PRIVATE), frames.Refused),
    ((frames.CANCEL, 4), frames.Cancel),
    ((frames.ACK, 0, 900, [3, 5, 1, 2]), frames.Ack),
    ((frames.WINDOW, 17_000_000), frames.Window),
    ((frames.PING,), frames.Ping),
    ((frames.GOAWAY, "draining"), frames.Goaway),
    ((frames.RESET, 99, "i2"), frames.Reset),
    ((frames.FROM, 8, "reply-1", PRIVATE), frames.From),
    ((frames.PATHS, ["reply-1", "reply-2"]), frames.Paths),
    ((frames.CLOSE, "closed"), frames.Close),
    ((frames.ALIVE,), frames.Alive),
    ((frames.CREDIT, 4, 1_250_000), frames.Credit),
    ((frames.CONT, 0, 1, 7, 4, b"head", PRIVATE.encode()), frames.Cont),
]
