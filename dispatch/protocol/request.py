"""A request of a caller until its final event. The asyncio layer derives from it what its own caller waits for."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dispatch.protocol.delivery.send_queue import LargePayload
    from dispatch.protocol.wire.frames import End


class OutgoingRequest:
    """One request.

    Args:
        deadline: on the caller's clock, after which it fails; ``math.inf``: never.
        last_deadline: the deadline instead, should the callee be suspected when the first one passes; if later.
        max_reply_bytes: largest reply; a stream's chunks are counted together.

    Attributes:
        stream: its number in its session; -1 before it is sent.
        chunks: of a stream, that were delivered in order.
        reply_bytes: payloads of the chunks that have arrived.
        read_bytes: of chunks that the application has read, as flow control counts them.
        credited_bytes: those of them that the callee has learned of.
    """

    __slots__ = (
        "ahead",
        "chunks",
        "credited_bytes",
        "deadline",
        "end",
        "large",
        "last_deadline",
        "max_reply_bytes",
        "read_bytes",
        "reply_bytes",
        "stream",
    )

    def __init__(
        self,
        deadline: float = math.inf,
        max_reply_bytes: int = 64 * 1024 * 1024,
        last_deadline: float = -math.inf,
    ) -> None:
        self.stream = -1
        self.deadline = deadline
        self.last_deadline = max(deadline, last_deadline)
        self.max_reply_bytes = max_reply_bytes
        self.chunks = 0
        self.reply_bytes = 0
        self.read_bytes = self.credited_bytes = 0
        self.ahead: dict[int, bytes] | None = None
        """Chunks that arrived before an earlier one."""
        self.end: End | None = None
        """The end of the stream, if it arrived before a chunk."""
        self.large: LargePayload | None = None
        """Its payload, if that travels in fragments."""
