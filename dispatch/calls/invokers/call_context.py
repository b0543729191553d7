"""The context of a call, for tools that this process executes."""

from __future__ import annotations

from typing import Any

import msgspec

from dispatch._internal.permit import Clock


class CallContext(msgspec.Struct, frozen=True, kw_only=True):
    """The call in which a function of this process runs. A parameter with this annotation receives it.

    Attributes:
        tool: name of the tool.
        user: on whose behalf the tool is called; ``""``: none was given.
        call_id: id of the attempt, unique in all processes; the attribute ``request_id`` of its result.
        attempt: number of the attempt, from 1.
        deadline: when the attempt is cancelled, in seconds on ``clock``.
        clock: of the event loop; it may be read in any thread.
        trace_id: the trace that the call is in, as 32 hex digits; ``""``: none.
        traceparent: the W3C trace context for requests to other systems; ``""``: none.
        context: what the caller gave as ``context`` to :func:`dispatch.calling.call_function`; None: nothing.
    """

    tool: str
    user: str
    call_id: str
    attempt: int
    deadline: float
    clock: Clock
    trace_id: str = ""
    traceparent: str = ""
    context: Any = None

    @property
    def remaining(self) -> float:
        """Seconds until the deadline; 0 after it."""
        return max(0.0, self.deadline - self.clock())
