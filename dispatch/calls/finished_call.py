"""The end of a call, for listeners of a dispatcher."""

from __future__ import annotations

import msgspec

from dispatch.result import CallResult


class FinishedCall(msgspec.Struct, frozen=True):
    """A call that has ended.

    Attributes:
        tool: name of the tool.
        user: on whose behalf it was called.
        result: of the call. The text of a stream is not in it.
        by_model: a model has written the arguments.
    """

    tool: str
    user: str
    result: CallResult
    by_model: bool = False
