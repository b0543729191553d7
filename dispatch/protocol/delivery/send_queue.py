"""Frames that wait to be sent: control frames first, then small ones in order, and large payloads in fragments, in turns."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from dispatch.protocol.delivery.path import Cargo, Frames
from dispatch.protocol.settings import Settings
from dispatch.protocol.wire.frames import CANCEL, CONT, FRAME_BYTES, REFUSED, REQUEST, TRACE_BYTES, encode

_LEAST_FRAGMENT = 512
"""Bytes of a fragment at least: smaller ones cost more than they carry."""


_WITHDRAWALS = (CANCEL, REFUSED)
"""Frames that let a receiver drop what it has of the payloads of a stream."""


def frame_size(frame: tuple[Any, ...]) -> int:
    """Return the estimated bytes of a frame: those of its payload, of the trace context behind it, and a constant."""
    payload, size = frame[-1], FRAME_BYTES
    if type(payload) is dict:
        payload, size = frame[-2], FRAME_BYTES + TRACE_BYTES
    return size + (len(payload) if type(payload) is bytes else 0)


class LargePayload:
    """A payload that travels in fragments.

    Attributes:
        stream: of its frame.
        head: its frame without the payload.
        message: its number among the large payloads of the session; -1 before its first fragment.
        offset: of the next fragment.
        undelivered: bytes that the receiver has not acknowledged.
        is_withdrawn: the receiver is told to drop what it has.
    """

    __slots__ = ("head", "is_withdrawn", "message", "offset", "stream", "undelivered", "view")

    def __init__(self, frame: tuple[Any, ...]) -> None:
        self.stream: int = frame[1]
        at = -2 if type(frame[-1]) is dict else -1
        self.head = encode((*frame[:at], b"", *frame[at:][1:]))
        self.view = memoryview(frame[at])
        self.message = -1
        self.offset = 0
        self.undelivered = len(self.view)
        self.is_withdrawn = False

    @property
    def is_packed(self) -> bool:
        """Whether the last fragment was packed: the receiver may have the whole payload."""
        return self.offset >= len(self.view)


class SendQueue:
    """The queue of one session.

    Attributes:
        begun_bytes: payloads of several fragments that have begun and are incomplete at the receiver, as far as is known.
        control: frames without a payload, which flow control does not delay.
        packed_requests: the highest number of a small request that was packed; -1: none.
        on_request_cut: called with a small request that travels in fragments all the same.
    """

    __slots__ = (
        "_begun",
        "_large",
        "_max_begun_bytes",
        "_messages",
        "_settings",
        "_small",
        "_small_bytes",
        "_waiting",
        "_whole_bytes",
        "begun_bytes",
        "control",
        "on_request_cut",
        "packed_requests",
    )

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.control: Frames = []
        self._small: Frames = []
        self._small_bytes = 0
        self._large: deque[LargePayload] = deque()
        self._waiting: deque[LargePayload] = deque()
        self._begun: list[LargePayload] = []
        """Those of ``begun_bytes``."""
        self.begun_bytes = 0
        self._max_begun_bytes = settings.max_partial_bytes // 2
        self._whole_bytes = settings.fragment_bytes
        self._messages = 0
        self.packed_requests = -1
        self.on_request_cut: Callable[[LargePayload], object] = _ignore

    @property
    def has_small(self) -> bool:
        """Whether small frames wait."""
        return bool(self._small)

    @property
    def small_frames(self) -> int:
        """Small frames that wait."""
        return len(self._small)

    @property
    def has_large(self) -> bool:
        """Whether fragments wait."""
        return bool(self._large)

    @property
    def bytes(self) -> int:
        """Payload bytes that wait."""
        size = self._small_bytes
        if self._large or self._waiting:
            size += sum(len(each.view) - each.offset for each in (*self._large, *self._waiting))
        return size

    def __len__(self) -> int:
        return len(self.control) + len(self._small) + len(self._large) + len(self._waiting)

    def add(self, frame: tuple[Any, ...], size: int) -> LargePayload | None:
        """Add a frame whose last element is its payload; ``size`` of it and of a trace context behind it. Return it if it
        travels in fragments."""
        if size > self._settings.large_bytes:
            return self._add_large(frame)
        self._small.append(frame)
        self._small_bytes += size + FRAME_BYTES
        return None

    def _add_large(self, frame: tuple[Any, ...]) -> LargePayload:
        large = LargePayload(frame)
        self._waiting.append(large)
        self._begin_waiting()
        return large

    def divide_room(self, share: float) -> None:
        """Set the part of what a receiver retains of incomplete payloads that this sender may use. Below 1.0, the window has
        no room for whole fragments: every large payload is incomplete for a while."""
        settings = self._settings
        self._max_begun_bytes = int(settings.max_partial_bytes // 2 * share)
        self._whole_bytes = settings.fragment_bytes if share >= 1.0 else 0
        unsent = [each for each in self._large if each.message < 0 and each not in self._begun]
        self._large = deque(each for each in self._large if each not in unsent)
        self._waiting.extendleft(reversed(unsent))
        self._begin_waiting()

    def _begin_waiting(self) -> None:
        """Begin payloads that wait, in order, while the receiver has room for what is incomplete; one may always begin.
        Those of one fragment pass larger ones that have to wait for that."""
        settings, waiting = self._settings, self._waiting
        blocked: list[LargePayload] = []
        while waiting and len(self._large) < settings.large_at_once:
            large = waiting.popleft()
            size = len(large.view)
            if size > self._whole_bytes:
                if blocked or (self.begun_bytes and self.begun_bytes + size > self._max_begun_bytes):
                    blocked.append(large)
                    continue
                self._begun.append(large)
                self.begun_bytes += size
            self._large.append(large)
        waiting.extendleft(reversed(blocked))

    def record_delivered(self, frames: Frames) -> None:
        """Record that the receiver has acknowledged ``frames``: it has fragments, or has dropped them."""
        for frame in frames:
            for large in self._begun:
                if frame[0] == CONT:
                    if large.message == frame[1]:
                        large.undelivered -= len(frame[-1])
                elif large.is_withdrawn and frame[0] in _WITHDRAWALS and large.stream == frame[1]:
                    large.undelivered = 0
        self._set_begun([each for each in self._begun if each.undelivered])

    def _set_begun(self, begun: list[LargePayload]) -> None:
        self._begun = begun
        self.begun_bytes = sum(len(each.view) for each in begun)
        self._begin_waiting()

    # -- packing ------------------------------------------------------------------------------------------------

    def pop_small(self, room: int) -> Cargo:
        """Remove small frames of about ``room`` bytes; at least one."""
        frames, size = self._small, self._small_bytes
        if size <= room:
            self._small, self._small_bytes = [], 0
        else:
            count = size = 0
            for frame in frames:
                length = frame_size(frame)
                if count and size + length > room:
                    break
                count += 1
                size += length
            frames = self._small[:count]
            del self._small[:count]
            self._small_bytes -= size
        self._record_requests(frames)
        return Cargo(frames, size)

    def _record_requests(self, frames: Frames) -> None:
        for frame in reversed(frames):
            if frame[0] == REQUEST:
                self.packed_requests = frame[1]
                return

    def cut_oversized(self, room: int) -> None:
        """Let small frames of more than ``room`` bytes at the front travel in fragments."""
        while self._small and frame_size(self._small[0]) > max(room, _LEAST_FRAGMENT):
            frame = self._small.pop(0)
            self._small_bytes -= frame_size(frame)
            large = self._add_large(frame)
            if frame[0] == REQUEST:
                self.on_request_cut(large)

    def pop_fragment(self, room: int) -> tuple[tuple[Any, ...], int]:
        """Remove the next fragment, of at most ``room`` bytes. Return its frame and its size."""
        large = self._large.popleft()
        if large.message < 0:
            large.message = self._messages
            self._messages += 1
        start = large.offset
        piece = large.view[start : start + min(max(room, _LEAST_FRAGMENT), self._settings.fragment_bytes)]
        large.offset = start + len(piece)
        head = None if start else large.head
        frame = (CONT, large.message, start, len(large.view), large.stream, head, piece)
        if not large.is_packed:
            self._large.append(large)
        else:
            self._begin_waiting()
        return frame, len(piece) + FRAME_BYTES

    # -- withdrawal ---------------------------------------------------------------------------------------------

    def withdraw_request(self, stream: int) -> None:
        """Remove a small request that was not packed."""
        for at, frame in enumerate(self._small):
            if frame[0] == REQUEST and frame[1] == stream:
                self._small_bytes -= frame_size(frame)
                del self._small[at]
                return

    @property
    def has_withdrawn(self) -> bool:
        """Whether the receiver is to learn that it may drop a part of a payload."""
        return any(each.is_withdrawn for each in self._begun)

    def withdraw_large(self, stream: int) -> None:
        """Remove the large payloads of ``stream``. A frame follows that lets the receiver drop what it has of them."""
        for large in self._begun:
            if large.stream == stream and large.message >= 0:
                large.is_withdrawn = True
        self._drop(stream)

    def drop_large(self, stream: int) -> None:
        """Remove the large payloads of ``stream``, of which the receiver accepts nothing more."""
        self._drop(stream)
        self._set_begun([each for each in self._begun if each.stream != stream])

    def _drop(self, stream: int) -> None:
        self._waiting = deque(each for each in self._waiting if each.stream != stream)
        self._large = deque(each for each in self._large if each.stream != stream)
        self._set_begun([each for each in self._begun if each.is_withdrawn or each.stream != stream])

    def clear(self) -> None:
        """Remove everything."""
        self.control.clear()
        self._small.clear()
        self._small_bytes = 0
        self._large.clear()
        self._waiting.clear()
        self._begun.clear()
        self.begun_bytes = 0


def _ignore(_payload: LargePayload) -> None:
    """Do nothing."""
