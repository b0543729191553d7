"""What is too large for one message travels in parts: how it is split, and put together again. Pure, clock handed in.

An answer is split as a text, because its parts are responses as any other; a request as bytes, which nobody but the one
instance that it is meant for ever sees. Nothing is run before all of it is here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

PART_BYTES = 256 * 1024
"""Size of a part. Large enough that a part's own cost is small beside it, small enough that what is lost is soon sent again,
and that the small messages of others get through in between."""
MAX_PARTS = 1_000
"""Parts of one payload; larger ones have larger parts. Fewer than a receiver keeps while an earlier one is missing."""
MAX_PAYLOAD_BYTES = 64 * 1024 * 1024
"""The largest payload that a service takes or gives in parts, unless its owner says otherwise."""
MAX_JOINING = 256
"""Requests of which a service has some parts at once."""
JOIN_IDLE_S = 15.0
"""How long parts are kept while no further one comes. A caller who still waits asks every few seconds at the latest."""
_LARGEST_CHAR = 4
"""Bytes of a character in UTF-8, at most."""
MAX_RANGES = 64
"""Gaps that are named at once: a property has a limit, and the next question names the others."""


def split_text(text: str, size: int, limit: int) -> Iterator[tuple[str, bool]]:
    """The parts of ``text``, and for each whether another one follows.

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
    """In how many parts a request of ``size`` bytes goes. ``limit``: bytes of a message.

    Raises:
        ValueError: it is too large for that.
    """
    length = min(max(PART_BYTES, -(-size // MAX_PARTS)), limit)
    count = -(-size // length)
    if count > MAX_PARTS:
        raise ValueError(f"{size:,} bytes are too many for {MAX_PARTS:,} parts of {limit:,} bytes")
    return count


def part_at(index: int, count: int, size: int) -> tuple[int, int]:
    """Where part ``index`` of ``count`` begins and ends, in ``size`` bytes."""
    length = -(-size // count)
    return min(index * length, size), min((index + 1) * length, size)


def write_parts(count: int, size: int) -> str:
    """The property ``parts``."""
    return f"{count}/{size}"


def read_parts(text: str) -> tuple[int, int] | None:
    """Number of parts and bytes in all, as the property ``parts`` says it; None: it says nothing sensible."""
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
    """Ascending ``indices`` as ``0,3-7``; the first :data:`MAX_RANGES` gaps."""
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
    """What :func:`write_ranges` wrote, of ``count`` indices; nothing of what cannot be read."""
    found: list[int] = []
    for piece in text.split(",", MAX_RANGES)[:MAX_RANGES]:
        first, dash, last = piece.partition("-")
        if _is_number(first) and (not dash or _is_number(last)):
            found.extend(range(int(first), min(int(last) if dash else int(first), count - 1) + 1))
    return found[:count]


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 16


class FragmentError(Exception):
    """A part that cannot be taken. ``str()`` says why. ``full``: for want of room, which passes."""

    def __init__(self, why: str, *, full: bool = False) -> None:
        super().__init__(why)
        self.full = full


class FragmentedPayload:
    """A request some of whose parts are here."""

    __slots__ = ("_buffer", "_here", "count", "expires", "missing", "size")

    def __init__(self, count: int, size: int) -> None:
        self.count = count
        self.size = size
        self.expires = 0.0
        self.missing = count
        """How many parts are not here."""
        self._here = bytearray(count)
        self._buffer = bytearray(size)

    def add(self, index: int, payload: bytes) -> None:
        """Put a part where it belongs; a repeated one changes nothing."""
        start, end = part_at(index, self.count, self.size)
        if not 0 <= index < self.count or len(payload) != end - start:
            raise FragmentError(f"part {index} of {self.count} has {len(payload):,} bytes, not {end - start:,}")
        if not self._here[index]:
            self._here[index] = 1
            self.missing -= 1
            self._buffer[start:end] = payload

    def gaps(self) -> str:
        """The missing parts, as :func:`write_ranges` has them."""
        return write_ranges(index for index, here in enumerate(self._here) if not here)

    def whole(self) -> bytes:
        """The request, when nothing is missing."""
        return bytes(self._buffer)


class FragmentBuffer:
    """The requests of a service instance that are not complete. What no part comes of for a while is dropped: nothing of it
    was run, and whoever still waits for it sends it again when it asks.

    Args:
        max_bytes: of the largest request, and of all of them, counted in full from the first part on.
        max_joins: requests.
        idle: seconds without a part or a question.
    """

    def __init__(
        self, max_bytes: int = MAX_PAYLOAD_BYTES, *, max_joins: int = MAX_JOINING, idle: float = JOIN_IDLE_S
    ) -> None:
        self._max_bytes = max_bytes
        self._max_joins = max_joins
        self._idle = idle
        self._joins: OrderedDict[str, FragmentedPayload] = OrderedDict()
        self.size = 0
        """Bytes held."""

    def __len__(self) -> int:
        return len(self._joins)

    def __contains__(self, id: str) -> bool:
        return id in self._joins

    def join(self, id: str, count: int, size: int, now: float) -> FragmentedPayload:
        """The request ``id`` in ``count`` parts, ``size`` bytes in all; it begins if it is not known.

        Raises:
            FragmentError: there is no room for it, or it was said to be another size before.
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
        """Forget ``id``: it is complete, or refused."""
        join = self._joins.pop(id, None)
        if join is not None:
            self.size -= join.size

    def expired(self, now: float) -> list[str]:
        """What was silent for too long, dropped."""
        found = []
        for id, join in self._joins.items():  # in the order in which they were heard of
            if join.expires > now:
                break
            found.append(id)
        for id in found:
            self.drop(id)
        return found

    def next_expiry(self) -> float | None:
        """When :meth:`expired` is to be asked next."""
        for join in self._joins.values():
            return join.expires
        return None
