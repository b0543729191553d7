"""Reassembly of large payloads from their fragments."""

from __future__ import annotations

from dispatch.protocol.delivery.numbers import SeenNumbers
from dispatch.protocol.settings import Settings
from dispatch.protocol.wire.frames import Cont, Payload, decode_payload_frame

_LEAST_PIECE = 256
"""Bytes of a fragment on average, at least: the number of fragments that are retained is bounded by it."""


class PartialPayload:
    """A payload of which fragments are missing."""

    __slots__ = ("head", "pieces", "size", "stream", "total")

    def __init__(self, stream: int, total: int) -> None:
        self.stream = stream
        self.total = total
        self.head: bytes | None = None
        self.pieces: dict[int, memoryview] = {}
        self.size = 0

    @property
    def is_complete(self) -> bool:
        """Whether every byte is there: no two fragments overlap."""
        return self.size == self.total


class Reassembly:
    """The incomplete payloads of one session.

    Attributes:
        size: bytes that are retained.
    """

    __slots__ = ("_done", "_partials", "_settings", "size")

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._partials: dict[int, PartialPayload] = {}
        self._done = SeenNumbers()
        self.size = 0

    def __len__(self) -> int:
        return len(self._partials) + len(self._done.above)

    def is_new(self, message: int) -> bool:
        """Return whether no fragment of ``message`` has arrived."""
        return message not in self._partials and message not in self._done

    def ignore(self, message: int) -> None:
        """Drop later fragments of ``message``."""
        self._done.add(message)

    def fits(self, frame: Cont) -> bool:
        """Return whether the payload that ``frame`` belongs to may be incomplete beside the others. One alone may have any
        size, and one of a single fragment is never incomplete."""
        settings, partial = self._settings, self._partials.get(frame.message)
        if partial is None and frame.message in self._done:
            return True  # a late copy: nothing is retained of it
        others = self.size - (0 if partial is None else partial.size)
        return (
            frame.total > 0
            and (partial is not None or len(self._partials) < settings.max_partials)
            and (
                not others
                or len(frame.piece) == frame.total
                or self.size + len(frame.piece) <= settings.max_partial_bytes
            )
            and len(self._done.above) <= settings.max_gaps
        )

    def add(self, frame: Cont) -> Payload | None:
        """Add a fragment. Return the frame with its whole payload when it is complete."""
        message, partial = frame.message, self._partials.get(frame.message)
        if partial is None:
            if message in self._done:
                return None
            partial = self._partials[message] = PartialPayload(frame.stream, frame.total)
        if frame.offset in partial.pieces or not 0 <= frame.offset <= partial.total - len(frame.piece):
            return None
        if len(partial.pieces) > partial.total // _LEAST_PIECE + 16:
            return None
        partial.pieces[frame.offset] = frame.piece
        partial.size += len(frame.piece)
        self.size += len(frame.piece)
        if frame.head is not None:
            partial.head = frame.head
        return self._join(message, partial) if partial.size >= partial.total else None

    def _join(self, message: int, partial: PartialPayload) -> Payload | None:
        self._remove(message)
        whole = None if partial.head is None else decode_payload_frame(partial.head)
        if whole is None or whole.stream != partial.stream or not partial.is_complete:
            return None
        pieces = partial.pieces
        whole.payload = b"".join(pieces[at] for at in sorted(pieces))
        return whole

    def _remove(self, message: int) -> None:
        self.size -= self._partials.pop(message).size
        self._done.add(message)

    def drop(self, stream: int) -> None:
        """Drop the incomplete payloads of ``stream``, and their later fragments."""
        for message in [message for message, each in self._partials.items() if each.stream == stream]:
            self._remove(message)

    def clear(self) -> None:
        """Drop everything."""
        self._partials.clear()
        self._done = SeenNumbers()
        self.size = 0
