"""The end of a call, for listeners of a dispatcher."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

import msgspec

from dispatch.result import CallResult

logger = logging.getLogger("dispatch.dispatcher")


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


class CallListeners:
    """Calls each listener at the end of each call.

    Attributes:
        current: the listeners. perf: the call path reads it; without listeners it does nothing else.
    """

    def __init__(self) -> None:
        self.current: tuple[Callable[[FinishedCall], object], ...] = ()

    def subscribe(self, listener: Callable[[FinishedCall], object]) -> Callable[[], None]:
        """Add a listener; return a function that removes it."""
        self.current = (*self.current, listener)

        def unsubscribe() -> None:
            listeners = list(self.current)
            with contextlib.suppress(ValueError):
                listeners.remove(listener)
            self.current = tuple(listeners)

        return unsubscribe

    def publish(self, call: FinishedCall) -> None:
        """Call every listener. An exception of one is logged, and affects nothing else."""
        for listener in self.current:
            try:
                listener(call)
            except Exception:
                logger.exception("a listener of calls failed")
