"""Messages as no peer should send them."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping

from dispatch.messages import MAX_PROPERTY_CHARS, Property


class OddMessage:
    """A message in the hand; with ``raises`` its ``properties()`` or its ``data()`` raises, as a client library's may."""

    def __init__(self, payload: bytes, properties: Mapping[str, str], *, raises: str = "") -> None:
        self._payload = payload
        self._properties = dict(properties)
        self._raises = raises

    def properties(self) -> dict[str, str]:
        if self._raises == "properties":
            raise RuntimeError("the properties cannot be read")
        return dict(self._properties)

    def data(self) -> bytes:
        if self._raises == "data":
            raise UnicodeError("the data cannot be read")
        return self._payload


WRONG_TYPES = json.dumps(
    {"error": 5, "response": {}, "end_of_stream": "yes", "user": [], "config": 7, "arguments": [1]}
).encode()

RUBBISH: tuple[bytes, ...] = (
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
"""Payloads that are neither a request nor a response."""


def rubbish(rng: random.Random, payload: bytes) -> bytes:
    """A payload that is neither, made from ``payload`` or out of nothing."""
    kind = rng.randrange(4)
    if kind == 0 and len(payload) > 1:
        return payload[: rng.randrange(1, len(payload))]  # an object without its last brace is no JSON
    if kind == 1:
        return b"\xff" + rng.randbytes(rng.randrange(40))
    if kind == 2:
        return payload + b"}"
    return rng.choice(RUBBISH)


def with_other_id(rng: random.Random, properties: Mapping[str, str], how: str) -> dict[str, str]:
    """``properties`` with the id missing, oversized, or somebody else's."""
    others = {key: value for key, value in properties.items() if key != Property.ID}
    match how:
        case "missing_id":
            if rng.random() < 0.3:
                others[Property.ID] = ""
            return others
        case "oversized_id":
            return {**others, Property.ID: properties.get(Property.ID, "") + "x" * MAX_PROPERTY_CHARS}
        case _:
            return {**others, Property.ID: f"{rng.getrandbits(64):016x}-{rng.randrange(1000):x}"}
