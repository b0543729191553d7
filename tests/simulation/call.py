"""One call of a story: the request and what the tool does with it."""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass

from tests.simulation.conditions import Conditions


class Kind(enum.StrEnum):
    REPLY = "reply"
    STREAM = "stream"
    ERROR = "error"
    """A reply with the error status."""
    REFUSAL = "refusal"
    BROKEN_STREAM = "broken stream"
    """Some chunks, then a refusal: the tool did not execute to its end."""


@dataclass(frozen=True, kw_only=True)
class Call:
    token: str
    kind: Kind
    instance: str
    """Name of the instance that the first attempt addresses."""
    at: float
    """Seconds after the start of the story."""
    request_bytes: int
    reply_bytes: int
    chunks: int
    duration_s: float
    deadline_s: float | None
    """Seconds after ``at``."""
    grace_s: float | None
    """With an idempotency key the instance may start this many seconds after the caller's deadline."""
    cancel_after_s: float | None
    headers: dict[str, str] | None
    max_reply_bytes: int
    read_s: float
    """Seconds that the caller takes for each chunk."""

    @classmethod
    def draw(cls, r: random.Random, number: int, instance: str, at: float, conditions: Conditions) -> Call:
        has_deadline = conditions.has_deadlines and r.random() < 0.8
        reply_bytes = r.choice((0, 50, 120, 2_000)) if r.random() < 0.9 else 80_000
        return cls(
            token=f"t{number}",
            kind=r.choices(list(Kind), (8, 2, 1, 1, 1))[0],
            instance=instance,
            at=at,
            request_bytes=r.choice((10, 10, 100, 3_000)) if r.random() < 0.95 else 90_000,
            reply_bytes=reply_bytes,
            chunks=r.randrange(6),
            duration_s=r.choice((0.0, 0.0, 0.001, 0.1, 1.0, 4.0)),
            deadline_s=r.choice((0.01, 0.5, 30.0)) if has_deadline else None,
            grace_s=5.0 if has_deadline and r.random() < 0.1 else None,
            cancel_after_s=r.choice((0.0, 0.0005, 0.004, 0.02, 0.1, 0.7))
            if r.random() < conditions.cancelled
            else None,
            headers=None if r.random() < 0.8 else {"traceparent": f"00-{number}", "attempt": "1"},
            max_reply_bytes=1_000 if reply_bytes > 1_000 and r.random() < 0.1 else 1_000_000,
            read_s=r.choice((0.0, 0.0, 0.001, 0.3, 5.0)),
        )

    def request(self, attempt: int) -> bytes:
        return f"{self.token}.{attempt}:".encode() + b"q" * self.request_bytes

    def reply(self, index: int = 0) -> bytes:
        return f"{self.token}/{index}:".encode() + b"r" * self.reply_bytes

    @property
    def is_too_large(self) -> bool:
        """The reply, or all chunks together, may exceed what the caller accepts."""
        count = max(self.chunks, 1) if self.kind in (Kind.STREAM, Kind.BROKEN_STREAM) else 1
        return count * len(self.reply()) > self.max_reply_bytes
