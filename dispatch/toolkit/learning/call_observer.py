"""Observes the calls of a dispatcher for a learner."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from dispatch.errors import Outcome
from dispatch.toolkit.learning.evidence import Observation

if TYPE_CHECKING:
    from dispatch.calls.finished_call import FinishedCall
    from dispatch.dispatcher import Dispatcher
    from dispatch.toolkit.learning.learner import Learner

OBSERVATIONS: Final = {Outcome.SUCCESS: Observation.SUCCESS, Outcome.TOOL_ERROR: Observation.TOOL_ERROR}
"""The other outcomes, such as a rate limit or a timeout, say nothing of whether the tool fits the action."""


def observe_calls(learner: Learner, dispatcher: Dispatcher) -> Callable[[], None]:
    """Record every call of the dispatcher; returns a function that stops it. The listener does not keep the learner
    alive."""
    reference = weakref.ref(learner)

    def on_call(call: FinishedCall) -> None:
        found = reference()
        if found is None:
            unsubscribe()
        else:
            found.record_call(call.tool, OBSERVATIONS.get(call.result.outcome), call.user)

    unsubscribe = dispatcher.on_call(on_call)
    return unsubscribe
