"""Replies to requests that have ended: late ones, and repeated ones. Pure."""

from __future__ import annotations

from dispatch.protocol.wire.frames import Chunk, End, Refused, Reply

MAX_GIVEN_UP = 1_024
"""Requests that were given up and are remembered, until their session is at rest."""


class UnmatchedReplies:
    """Counts the frames of a session's replies that no request waits for.

    Attributes:
        late: their requests were given up.
        repeated: their requests were answered already: a packet was sent again.
    """

    __slots__ = ("_given_up", "late", "repeated")

    def __init__(self) -> None:
        self.late = self.repeated = 0
        self._given_up: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._given_up)

    def record_given_up(self, stream: int) -> None:
        """Record that a request was given up; the oldest one is forgotten if there are too many."""
        if len(self._given_up) >= MAX_GIVEN_UP:
            del self._given_up[next(iter(self._given_up))]
        self._given_up[stream] = None

    def record_frame(self, frame: Reply | Chunk | End | Refused) -> None:
        """Count a frame. All but a chunk are the last one of their requests."""
        if frame.stream not in self._given_up:
            self.repeated += 1
            return
        self.late += 1
        if type(frame) is not Chunk:
            del self._given_up[frame.stream]

    def clear(self) -> None:
        """Forget all requests: no late reply can follow."""
        self._given_up.clear()
