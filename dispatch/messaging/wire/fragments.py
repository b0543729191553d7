"""Fragments of large plain replies: chunks of a stream that are marked as the text of one. Sessions have their own."""

from __future__ import annotations

from collections.abc import Iterator

PART_BYTES = 256 * 1024
"""Bytes of a fragment: so large that the cost of a message is small, so small that other messages pass in between."""
MAX_PARTS = 1_000
"""Fragments of one payload; larger payloads have larger fragments. Fewer than a receiver keeps behind a missing one."""
MAX_PAYLOAD_BYTES = 64 * 1024 * 1024
"""Default limit in bytes of a request or a reply of a service."""
_LARGEST_CHAR = 4
"""Bytes of a character in UTF-8, at most."""


def split_text(text: str, size: int, limit: int) -> Iterator[tuple[str, bool]]:
    """Yield the fragments of ``text``, each with whether another one follows.

    Args:
        size: of the text, in bytes.
        limit: bytes of a message. Parts are much smaller, because JSON can make six of one.

    Parts of a text that is not ASCII can be up to three bytes shorter, so that there can be one more than
    :data:`MAX_PARTS`.
    """
    length = min(max(PART_BYTES, -(-size // MAX_PARTS)), limit // 8)
    if text.isascii():
        length = max(1, length)
        for start in range(0, len(text), length):
            yield text[start : start + length], start + length < len(text)
        return
    length = max(_LARGEST_CHAR, length)
    data = text.encode()
    end = 0
    while end < len(data):
        start, end = end, min(end + length, len(data))
        while end < len(data) and data[end] & 0xC0 == 0x80:  # a part ends before a character that would not fit
            end -= 1
        yield data[start:end].decode(), end < len(data)
