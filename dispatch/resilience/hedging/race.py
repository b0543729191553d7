"""Hedged attempts: the race of a slow first attempt and a second one, of which the first answer counts.

Each attempt is a task, and neither outlives the call: the loser is cancelled and awaited, and so are both when the caller
is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from dispatch.errors import Outcome
from dispatch.resilience.hedging.decision import ANSWERED, Hedging, NoHedgeReason


class HedgedResult(Protocol):
    """The properties of an attempt's result that hedging depends on."""

    @property
    def outcome(self) -> Outcome:
        """The outcome of the attempt."""

    @property
    def sent(self) -> bool:
        """Whether the request was sent, or may have been."""


H = TypeVar("H", bound=HedgedResult)

OUTPACED = "outpaced"
"""The message with which a first attempt is cancelled when its hedge was answered first, although it started later."""


def _ignore_hedge(_decision: NoHedgeReason | None) -> None:
    pass


async def hedged(
    attempt: Callable[[bool], Coroutine[Any, Any, H]],
    hedging: Hedging,
    *,
    deadline: float,
    others: Callable[[], bool],
    listener: Callable[[NoHedgeReason | None], object] = _ignore_hedge,
) -> H:
    """Make an attempt and, if it is slow, a second one; return the first that the service answers, or the result of the
    first attempt if neither is answered.

    An attempt returns a result and raises nothing, whatever the service did; an exception of it propagates.

    Args:
        attempt: makes one attempt; its argument is True for the second, which must not use the instance of the first.
        hedging: decides, and records the durations of first attempts.
        deadline: of the call, on ``hedging.clock``.
        others: returns whether there is an instance that the first attempt did not use; called when a second one is due.
        listener: called for metrics when a second attempt is due: None if it was started, otherwise the reason.
    """
    clock = hedging.clock
    started = clock()
    delay = hedging.start_first(started, deadline)
    if delay is None:
        result = await attempt(False)
        hedging.record_first(clock() - started, result.outcome)
        return result
    first = asyncio.create_task(attempt(False))
    second: asyncio.Task[H] | None = None
    winner = first
    try:
        done, _ = await asyncio.wait((first,), timeout=delay)
        if not done:
            refusal = hedging.admit(clock(), deadline, has_other_instance=others())
            listener(refusal)
            if refusal is None:
                second = asyncio.create_task(attempt(True))
                winner = await _race(first, second)
                if winner is second:
                    first.cancel(OUTPACED)  # the message tells it from a cancellation by the caller
            else:
                await asyncio.wait((first,))
        result = winner.result()
        hedging.record_first(clock() - started, first.result().outcome if first.done() else Outcome.TIMEOUT)
        if second is not None and second.done() and not second.result().sent:
            hedging.refund()
    finally:
        await _cancel_attempts(first, second)
    return result


async def _race(first: asyncio.Task[H], second: asyncio.Task[H]) -> asyncio.Task[H]:
    """Return the attempt that is answered first; ``first`` if neither is. An exception is raised at once."""
    pending = {first, second}
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in (first, second):
            if task in done and task.result().outcome in ANSWERED:
                return task
    return first


async def _cancel_attempts(*tasks: asyncio.Task[H] | None) -> None:
    """Cancel the running tasks and wait until they have ended, even if the wait is cancelled in turn."""
    running = {task for task in tasks if task is not None and not task.done()}
    cancelled: asyncio.CancelledError | None = None
    while running:
        for task in running:
            task.cancel()
        try:
            _, running = await asyncio.wait(running)
        except asyncio.CancelledError as error:
            cancelled = error
            running = {task for task in running if not task.done()}
    if cancelled is not None:
        raise cancelled
