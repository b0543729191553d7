"""Fragmentation: large payloads travel in several messages. Splitting and reassembly. Pure; the clock is passed in.

An incomplete request is dropped after a time without fragments, and the bytes of all incomplete requests are limited, so
that abandoned ones retain no memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

PART_BYTES = 256 * 1024
"""Bytes of a fragment. Large enough that the cost of a message is small, small enough that a lost fragment is soon sent
again and small messages pass in between."""
MAX_PARTS = 1_000
"""Fragments of one payload; larger payloads have larger fragments. Fewer than a receiver keeps behind a missing one."""
MAX_PAYLOAD_BYTES = 64 * 1024 * 1024
"""Default limit in bytes of a fragmented request or reply of a service."""
MAX_JOINING = 256
"""Incomplete requests of a service at once."""
JOIN_IDLE_S = 15.0
"""Seconds after the last fragment at which an incomplete request is dropped. A waiting caller retransmits every few
seconds."""
_LARGEST_CHAR = 4
"""Bytes of a character in UTF-8, at most."""
MAX_RANGES = 64
"""Gaps reported at once: a property has a limit, and the next retransmission asks for the others."""


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


def parts_of(size: int, limit: int) -> int:
    """Return the number of fragments for a request of ``size`` bytes. ``limit``: bytes of a message.

    Raises:
        ValueError: it is too large.
    """
    length = min(max(PART_BYTES, -(-size // MAX_PARTS)), limit)
    count = -(-size // length)
    if count > MAX_PARTS:
        raise ValueError(f"{size:,} bytes are too many for {MAX_PARTS:,} parts of {limit:,} bytes")
    return count


def part_at(index: int, count: int, size: int) -> tuple[int, int]:
    """Return start and end of fragment ``index`` of ``count`` in a payload of ``size`` bytes."""
    length = -(-size // count)
    return min(index * length, size), min((index + 1) * length, size)


def write_parts(count: int, size: int) -> str:
    """Encode the property ``parts``."""
    return f"{count}/{size}"


def read_parts(text: str) -> tuple[int, int] | None:
    """Decode the property ``parts``: number of fragments, and bytes in all; None if it is malformed."""
    count, _, size = text.partition("/")
    if not (_is_number(count) and _is_number(size)):
        return None
    number, total = int(count), int(size)
    if not 1 <= number <= MAX_PARTS or total < number:
        return None
    if part_at(number - 1, number, total)[0] >= total:
        return None  # the last ones would be empty
    return number, total


def write_ranges(indices: Iterable[int]) -> str:
    """Encode ascending ``indices`` as ``0,3-7``, at most :data:`MAX_RANGES` ranges."""
    ranges: list[tuple[int, int]] = []
    for index in indices:
        if ranges and ranges[-1][1] == index - 1:
            ranges[-1] = ranges[-1][0], index
        elif len(ranges) == MAX_RANGES:
            break
        else:
            ranges.append((index, index))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def read_ranges(text: str, count: int) -> list[int]:
    """Decode the ranges of :func:`write_ranges` among ``count`` indices; malformed ones are skipped."""
    found: list[int] = []
    for piece in text.split(",", MAX_RANGES)[:MAX_RANGES]:
        first, dash, last = piece.partition("-")
        if _is_number(first) and (not dash or _is_number(last)):
            found.extend(range(int(first), min(int(last) if dash else int(first), count - 1) + 1))
    return found[:count]


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 16


class FragmentError(Exception):
    """A fragment that is refused. ``str()`` gives the reason. ``full``: the buffer is full, a temporary condition."""

    def __init__(self, why: str, *, full: bool = False) -> None:
        super().__init__(why)
        self.full = full


class FragmentedPayload:
    """A request of which some fragments have arrived."""

    __slots__ = ("_buffer", "_here", "count", "expires", "missing", "size")

    def __init__(self, count: int, size: int) -> None:
        self.count = count
        self.size = size
        self.expires = 0.0
        self.missing = count
        """Number of missing fragments."""
        self._here = bytearray(count)
        self._buffer = bytearray(size)

    def add(self, index: int, payload: bytes) -> None:
        """Add a fragment; a duplicate changes nothing."""
        start, end = part_at(index, self.count, self.size)
        if not 0 <= index < self.count or len(payload) != end - start:
            raise FragmentError(f"part {index} of {self.count} has {len(payload):,} bytes, not {end - start:,}")
        if not self._here[index]:
            self._here[index] = 1
            self.missing -= 1
            self._buffer[start:end] = payload

    def missing_ranges(self) -> str:
        """Return the missing fragments, as :func:`write_ranges` encodes them."""
        return write_ranges(index for index, here in enumerate(self._here) if not here)

    def payload(self) -> bytes:
        """Return the complete request."""
        return bytes(self._buffer)


class FragmentBuffer:
    """The incomplete requests of a service instance. A request without a recent fragment is dropped: no part of it was
    executed, and a caller that still waits sends it again.

    Args:
        max_bytes: of the largest request, and of all together; each counts in full from its first fragment.
        max_joins: requests.
        idle: seconds without a fragment or a retransmission.
    """

    def __init__(
        self, max_bytes: int = MAX_PAYLOAD_BYTES, *, max_joins: int = MAX_JOINING, idle: float = JOIN_IDLE_S
    ) -> None:
        self._max_bytes = max_bytes
        self._max_joins = max_joins
        self._idle = idle
        self._joins: OrderedDict[str, FragmentedPayload] = OrderedDict()
        self.size = 0
        """Bytes reserved."""

    def __len__(self) -> int:
        return len(self._joins)

    def __contains__(self, id: str) -> bool:
        return id in self._joins

    def join(self, id: str, count: int, size: int, now: float) -> FragmentedPayload:
        """Return the request ``id`` of ``count`` fragments and ``size`` bytes; add it if it is not known.

        Raises:
            FragmentError: the buffer is full, or the fragments of the request contradict each other.
        """
        join = self._joins.get(id)
        if join is None:
            if size > self._max_bytes:
                raise FragmentError(f"the request has {size:,} bytes, the service takes {self._max_bytes:,}")
            if len(self._joins) >= self._max_joins or self.size + size > self._max_bytes:
                raise FragmentError("too many large requests are on their way to the service", full=True)
            join = self._joins[id] = FragmentedPayload(count, size)
            self.size += size
        elif (join.count, join.size) != (count, size):
            raise FragmentError("the parts of the request contradict each other")
        join.expires = now + self._idle
        self._joins.move_to_end(id)
        return join

    def drop(self, id: str) -> None:
        """Remove ``id``, which is complete or refused."""
        join = self._joins.pop(id, None)
        if join is not None:
            self.size -= join.size

    def remove_expired(self, now: float) -> list[str]:
        """Remove the requests without a recent fragment and return their ids."""
        found = []
        for id, join in self._joins.items():  # in the order of their last fragments
            if join.expires > now:
                break
            found.append(id)
        for id in found:
            self.drop(id)
        return found

    def next_expiry(self) -> float | None:
        """Return when :meth:`remove_expired` is due next; None if the buffer is empty."""
        for join in self._joins.values():
            return join.expires
        return None
