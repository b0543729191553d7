"""Hostile packets: random bytes, well-formed packets with wild fields, and mutations of genuine packets."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import msgspec

from dispatch.protocol.frames import (
    ACCEPT,
    ACK,
    CANCEL,
    CHUNK,
    CLOSE,
    CONT,
    END,
    FROM,
    GOAWAY,
    HELLO,
    PATHS,
    PING,
    REFUSED,
    REPLY,
    REQUEST,
    RESET,
    VERSION,
    WINDOW,
)
from tests.simulation.network import response_inbox

MAX_GENUINE = 2_000
"""Genuine packets that are remembered for mutation."""
INTEGERS = (
    *(0, 1, 2, 3, 7, 31, 100, 1_000, 65_535, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1),
    *(-1, -2, -(2**31), -(2**63)),
)
SECRET = "secret of d0"
"""The fuzzer knows the secret, too: more than any adversary."""
TEXTS = (
    *("", "a", "draining", SECRET, response_inbox(SECRET, "d0"), response_inbox(SECRET, "d0-1")),
    *("é" * 100, "n" * 600, "t" * 9_000),
)
PAYLOADS = (b"", b"x", b"{}", bytes(1_000), bytes(20_000))
_encode = msgspec.msgpack.Encoder().encode
_NESTED = b"\x91" * 3_000 + b"\x90"


class PacketFuzzer:
    """Generates one hostile packet after the other.

    Args:
        r: the source of everything random.
        addresses: known addresses of sessions; the caller of the fuzzer keeps them up to date.
    """

    def __init__(self, r: random.Random, addresses: list[int]) -> None:
        self._random = r
        self._addresses = addresses
        self._genuine: list[bytes] = []
        self._kinds = (*(self._wild_packet,) * 6, self._mutation, self._mutation, self._wild_types, self._random_bytes)

    def record_genuine(self, packet: bytes) -> None:
        if len(self._genuine) < MAX_GENUINE:
            self._genuine.append(packet)
        else:
            self._genuine[self._random.randrange(MAX_GENUINE)] = packet

    def next_packet(self) -> bytes:
        return self._kinds[int(self._random.random() * len(self._kinds))]()

    def _choice(self, options: Any) -> Any:
        return options[int(self._random.random() * len(options))]  # several times faster than random.choice

    def _random_bytes(self) -> bytes:
        head = self._choice((b"", b"\x9a", b"\x9a\x01", b"\xdd\xff\xff\xff\xff"))
        return head + self._random.randbytes(int(self._random.random() * 80))

    def _integer(self) -> int:
        if self._random.random() < 0.5:
            return int(self._random.random() * 50)
        return self._choice(INTEGERS)

    def _address(self) -> int:
        if self._addresses and self._random.random() < 0.8:
            return self._choice(self._addresses)
        return self._integer()

    def _header(self) -> list[Any]:
        """The fields before the frames: nearly always valid, so that the frames are read."""
        wild = self._random.random() < 0.3
        return [
            VERSION if self._random.random() < 0.98 else self._integer(),
            self._address(),
            self._integer() if self._random.random() < 0.05 else int(self._random.random() * 4),
            self._integer(),
            self._integer(),
            self._integer() if wild else 0,
            self._integer() if wild else 3,
            self._integer(),
            self._integer() if wild else 48_000,
        ]

    def _wild_packet(self) -> bytes:
        """Every field has its type, and any value."""
        frames = [self._frame() for _ in range(self._choice((0, 1, 1, 1, 2, 5)))]
        return self._try_encode([*self._header(), frames])

    def _frame(self) -> tuple[Any, ...]:
        number, choice = self._integer, self._choice
        text = partial(choice, TEXTS)
        match int(self._random.random() * 18):
            case 0:
                versions = choice(([VERSION], [], [number()]))
                inboxes = [text() for _ in range(choice((0, 1, 4, 200)))]
                return (HELLO, versions, number(), text(), text(), number(), text(), inboxes, number())
            case 1:
                version = choice((VERSION, 0, 9))
                return (ACCEPT, version, number(), text(), text(), bytes(16), bytes(16), number())
            case 2 | 17:
                headers = choice((None, {}, {"traceparent": text()}, {str(key): "v" for key in range(100)}))
                return (REQUEST, number(), number(), text(), headers, choice(PAYLOADS))
            case 3:
                return (REPLY, number(), number(), choice(PAYLOADS))
            case 4:
                return (CHUNK, number(), number(), choice(PAYLOADS))
            case 5:
                return (END, number(), number(), number(), choice(PAYLOADS))
            case 6:
                return (REFUSED, number(), text(), number(), text())
            case 7:
                return (CANCEL, number())
            case 8:
                return (ACK, number(), number(), [number() for _ in range(choice((0, 1, 2, 2, 4, 6, 3_000)))])
            case 9:
                return (WINDOW, number())
            case 10:
                return (PING,)
            case 11:
                return (GOAWAY, text())
            case 12:
                return (RESET, self._address(), text())
            case 13:
                valid = (_encode((REPLY, number(), 0, b"")), _encode((REQUEST, number(), 0, "t", None, b"")))
                head = choice((None, b"", b"\xc0", *valid))
                return (CONT, number(), number(), number(), number(), head, choice(PAYLOADS))
            case 14:
                return (FROM, self._address(), text(), text())
            case 15:
                return (PATHS, [text() for _ in range(choice((0, 1, 4, 200)))])
            case _:
                # A session that ends at once is not tested any further.
                last = (CLOSE, text()) if self._random.random() < 0.02 else (PING, 1, 2, 3)
                return choice((last, (number() + 20, text()), ()))

    def _wild_types(self) -> bytes:
        """Some field has another type, or is missing."""
        packet: list[Any] = [*self._header(), [list(self._frame())]]
        target = packet if self._random.random() < 0.4 or not packet[-1][0] else packet[-1][0]
        at = int(self._random.random() * len(target))
        values = (None, 1.5, float("nan"), "text", b"bytes", [], {}, {"a": [1]}, [[]] * 50, True, self._integer())
        wild = self._choice(values)
        if self._random.random() < 0.3:
            del target[at]
        else:
            target[at] = wild
        data = self._try_encode(packet)
        return data if self._random.random() < 0.95 else data[:-1] + _NESTED

    def _mutation(self) -> bytes:
        if not self._genuine:
            return b""
        packet = self._choice(self._genuine)
        if self._random.random() < 0.1:
            return packet[: int(self._random.random() * len(packet))]
        changed = bytearray(packet[:2_000])
        for _ in range(self._choice((0, 1, 1, 2, 8))):
            changed[int(self._random.random() * len(changed))] = int(self._random.random() * 256)
        return bytes(changed) + packet[2_000:]

    def _try_encode(self, packet: list[Any]) -> bytes:
        try:
            return _encode(packet)
        except OverflowError:  # an integer beyond 64 bits
            return b""
