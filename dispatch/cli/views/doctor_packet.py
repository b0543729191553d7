"""``dispatch doctor --packet``: a packet of a session, for people. Payloads are user data: only their sizes are shown."""

from __future__ import annotations

import base64
import binascii
import re
import sys
from typing import TYPE_CHECKING, Any

from dispatch.cli.output import align_columns, make_printable, print_json, print_out

if TYPE_CHECKING:
    from dispatch.protocol.wire.frames import Packet

_SECRET = "hidden"
_SECRETS = frozenset({"secret"})
"""Fields with which a reader of the output could forge packets."""
_TEXTS = frozenset({"message"})
"""Fields with texts of a tool or its service."""


def show_packet(text: str, *, json: bool) -> None:
    """Decode and print a packet.

    Args:
        text: the packet in hexadecimal or base64; ``-``: read from stdin, as such a text or as its bytes.
        json: print one line of JSON instead.

    Raises:
        CliError: the text is no packet.
    """
    from dispatch.cli.exit_codes import CliError
    from dispatch.protocol.wire.frames import MalformedPacketError, decode_packet

    try:
        packet = decode_packet(read_bytes(sys.stdin.buffer.read() if text == "-" else text))
    except (MalformedPacketError, ValueError) as error:
        raise CliError(
            f"This is no packet of a session: {error}.", "give its bytes in hexadecimal or base64, beginning with 9a"
        ) from None
    described = describe_packet(packet)
    if json:
        print_json(described)
        return
    print_out(align_columns([(name, str(value)) for name, value in described.items() if name != "frames"]))
    for frame in described["frames"]:
        fields = ", ".join(f"{name} {value}" for name, value in frame.items() if name != "frame")
        print_out(make_printable(f"{frame['frame']}  {fields}".rstrip()))


def read_bytes(given: str | bytes) -> bytes:
    """Return the bytes of a packet that is given as such, in hexadecimal (blanks and colons between are skipped) or base64.

    Raises:
        ValueError: the text is neither.
    """
    from dispatch.protocol import is_packet

    if isinstance(given, bytes):
        if is_packet(given):
            return given
        given = given.decode("ascii", "replace")
    try:
        return bytes.fromhex(re.sub(r"[\s:]|0x", "", given))
    except ValueError:
        try:
            return base64.b64decode("".join(given.split()), validate=True)
        except binascii.Error:
            raise ValueError("the text is neither hexadecimal nor base64") from None


def describe_packet(packet: Packet) -> dict[str, Any]:
    """Return the fields of a packet and its frames as plain values, without secrets and user data."""
    header: dict[str, Any] = {name: getattr(packet, name) for name in packet.__struct_fields__ if name != "frames"}
    return header | {"frames": [_describe_frame(frame) for frame in packet.frames]}


def _describe_frame(frame: Any) -> dict[str, Any]:
    described: dict[str, Any] = {"frame": type(frame).__name__.upper()}
    for name in frame.__struct_fields__:
        value = getattr(frame, name)
        if name in _SECRETS:
            value = _SECRET
        elif isinstance(value, bytes | memoryview):
            value = f"{len(value):,} bytes"
        elif name in _TEXTS and isinstance(value, str):
            value = f"{len(value):,} characters"
        elif isinstance(value, dict):
            value = sorted(value)  # the names of headers
        described[name] = value
    return described
