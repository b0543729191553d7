"""The result of a call: a value, without logic."""

from __future__ import annotations

from typing import Any

import msgspec

from dispatch.errors import DispatchError, Outcome

_SUCCESS = Outcome.SUCCESS


class CallResult(msgspec.Struct, frozen=True):
    """How one call ended.

    Attributes:
        tool: the tool that was asked for.
        outcome: the one :class:`~dispatch.Outcome` of the call.
        text: the answer, the texts of a stream put together; ``""`` unless ``outcome`` is SUCCESS.
        error: what :meth:`Dispatcher.call` would raise; None for SUCCESS.
        duration: seconds from the call to its end.
        attempts: requests that were sent for it; 0 when nothing was.
        transmissions: how often the last of them was sent: more than 1 when its answer had to be asked for.
        recovery_seconds: seconds from the first retransmission request to the end of the call; 0.0 when there was none.
        chunks: messages the answer came in.
        request_id: the property ``id`` of the last attempt, ``""`` when nothing was sent.
        instance: id of the service instance that answered, when it says so.
    """

    tool: str
    outcome: Outcome
    text: str = ""
    error: DispatchError | None = None
    duration: float = 0.0
    attempts: int = 0
    chunks: int = 0
    request_id: str = ""
    instance: str | None = None
    transmissions: int = 1
    recovery_seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Did it succeed?"""
        return self.error is None

    def as_dict(self) -> dict[str, Any]:
        """The result as plain values, for ``--json``."""
        return {
            "tool": self.tool,
            "outcome": str(self.outcome),
            "text": self.text,
            "error": self.error.as_dict() if self.error is not None else None,
            "duration": round(self.duration, 6),
            "attempts": self.attempts,
            "chunks": self.chunks,
            "request_id": self.request_id,
            "instance": self.instance,
            "transmissions": self.transmissions,
            "recovery_seconds": round(self.recovery_seconds, 6),
        }
