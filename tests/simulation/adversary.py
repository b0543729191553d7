"""An agent without good intentions: it reads everything sent towards dispatchers and writes everything towards instances."""

from __future__ import annotations

import random
from collections import deque

from dispatch.protocol.frames import (
    ACCEPT,
    CANCEL,
    CLOSE,
    FROM,
    HELLO_ADDRESS,
    PING,
    REQUEST,
    RESET,
    VERSION,
    MalformedPacketError,
    decode_packet,
    encode_packet,
)
from tests.simulation.network import Network

MAX_CAPTURED = 200
WRONG_NAMESPACE = "elsewhere/inbox"


class Adversary:
    """Sends packets that an instance must ignore and count."""

    def __init__(self, network: Network, r: random.Random) -> None:
        self._network = network
        self._random = r
        self._captured: deque[tuple[str, bytes]] = deque(maxlen=MAX_CAPTURED)
        network.on_response = self._capture

    def _capture(self, topic: str, packet: bytes) -> None:
        self._captured.append((topic, packet))

    def attack(self, inbox: str) -> None:
        """Send one forged packet to an instance's inbox."""
        forge = self._random.choice(
            (self._random_bytes, self._replay, self._mutate, self._guess_address, self._reflect)
        )
        self._network.publish(inbox, forge(), is_forged=True)

    def _random_bytes(self) -> bytes:
        return self._random.choice((b"", b"\x9a", b"{}")) + self._random.randbytes(self._random.randrange(200))

    def _replay(self) -> bytes:
        """A genuine packet of an instance to a dispatcher, sent to an instance."""
        return self._random.choice(self._captured)[1] if self._captured else b""

    def _mutate(self) -> bytes:
        packet = bytearray(self._replay())
        for _ in range(self._random.randrange(1, 4)):
            if packet:
                packet[self._random.randrange(len(packet))] = self._random.getrandbits(8)
        return bytes(packet)

    def _guess_address(self) -> bytes:
        """A well-formed packet to an address that the adversary knows (a dispatcher's), or guesses."""
        r, known = self._random, self._known_address()
        frame = r.choice(
            (
                (REQUEST, 0, 0, "stolen", None, b"forged"),
                (CANCEL, r.randrange(100)),
                (RESET, known, "forged"),
                (ACCEPT, VERSION, 0, "forged", "forged", bytes(16), bytes(16), 1_000_000),
                (CLOSE, "forged"),
                (PING,),
            )
        )
        address = r.choice((HELLO_ADDRESS, known, r.getrandbits(63)))
        return encode_packet((VERSION, address, 0, r.randrange(-1, 50), 0, 0, 0, 0, 48_000), [frame])

    def _reflect(self) -> bytes:
        """A probe with an unknown address: the instance sends RESET to a dispatcher that did not ask for it."""
        topic = self._captured[-1][0] if self._captured else WRONG_NAMESPACE
        frame = (FROM, self._known_address(), self._random.choice((topic, WRONG_NAMESPACE)), "guessed")
        header = (VERSION, self._random.getrandbits(63), 0, 0, 0, 0, 0, 0, 48_000)
        return encode_packet(header, [frame, (PING,)])

    def _known_address(self) -> int:
        if not self._captured:
            return 1
        try:
            return decode_packet(self._random.choice(self._captured)[1]).to
        except MalformedPacketError:
            return 1
