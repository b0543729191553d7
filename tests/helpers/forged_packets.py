"""Packets that an agent can forge from what it reads in a dispatcher's inbox: it may consume that topic, and produce to the
inboxes of instances (docs/explanation/security.md).
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from dispatch.protocol.frames import (
    ACK,
    CANCEL,
    CLOSE,
    CONT,
    FEATURES,
    FROM,
    GOAWAY,
    HELLO,
    HELLO_ADDRESS,
    PATHS,
    REQUEST,
    RESET,
    UNNUMBERED,
    VERSION,
    WINDOW,
    Accept,
    MalformedPacketError,
    decode_packet,
    derive_address,
    encode_packet,
)

Frame = tuple[Any, ...]

STREAMS = range(64)
"""Numbers of requests that forged frames name."""
GUESSES = ("", "secret", "0" * 32)
"""Secrets that a forger tries."""


def list_forged_packets(overheard: Iterable[bytes], inbox: str, own_inbox: str, seed: int = 0) -> list[bytes]:
    """Return packets for the inbox of an instance.

    Args:
        overheard: packets that the agent has read from a dispatcher's inbox.
        inbox: that one.
        own_inbox: another topic that the agent reads, where it would like to have replies.
        seed: of addresses that are guessed.
    """
    dice = random.Random(seed)
    replayed = list(overheard)
    addresses, nonces = _read(replayed)
    guessed = {derive_address(secret, id, nonce) for secret in GUESSES for id in addresses for nonce in nonces}
    targets = sorted(addresses | guessed) + [dice.getrandbits(63) for _ in range(32)]
    forged = replayed + [_packet(address, frames) for address in targets for frames in _frames(address, own_inbox)]
    for id in sorted(addresses):
        for secret in GUESSES:
            for inboxes in ([inbox], [own_inbox], [inbox, own_inbox]):
                hello = (HELLO, [VERSION], FEATURES, "dispatcher", "incarnation", id, secret, inboxes, 1 << 24)
                forged.append(_packet(HELLO_ADDRESS, [hello], UNNUMBERED))
            forged.append(_packet(dice.getrandbits(63), [(FROM, id, inbox, secret)]))
    whole = _packet(HELLO_ADDRESS, [(CLOSE, "closed")])
    return [*forged, *(whole[:end] for end in range(1, len(whole))), b"\x9a" + b"\x91" * 2_000, whole[:1] * 500]


def _read(packets: Iterable[bytes]) -> tuple[set[int], set[bytes]]:
    """Return the addresses of the dispatcher's sessions, and the nonces of instances."""
    addresses, nonces = set(), set()
    for data in packets:
        try:
            packet = decode_packet(data)
        except MalformedPacketError:
            continue
        addresses.add(packet.to)
        nonces |= {frame.nonce for frame in packet.frames if isinstance(frame, Accept)}
    return addresses, nonces


def _frames(address: int, own_inbox: str) -> list[list[Frame]]:
    arguments = b'{"user":"","config":"{}","arguments":"{\\"text\\":\\"forged\\"}"}'
    return [
        [(REQUEST, stream, 0, "echo", None, arguments) for stream in STREAMS],
        [(CANCEL, stream) for stream in STREAMS],
        [(CONT, 0, 0, len(arguments), 0, None, arguments)],
        [(ACK, 0, 0, [0, 1_000_000])],
        [(WINDOW, 0)],
        [(PATHS, [own_inbox])],
        [(GOAWAY, "draining")],
        [(CLOSE, "closed")],
        [(RESET, address, "another")],
    ]


def _packet(address: int, frames: list[Frame], number: int = 1_000_000) -> bytes:
    return encode_packet((VERSION, address, 0, number, 0, 1, 0, 0, 48_000), frames)
