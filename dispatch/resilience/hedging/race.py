"""Hedges, carried out: a second attempt beside a first one that is slow; the first answer counts.

Both run as tasks of their own, and neither outlives the call: whoever loses is cancelled and awaited, and so are both when
the caller is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from dispatch.errors import Outcome
from dispatch.resilience.hedging.decision import ANSWERED, Hedging, NoHedgeReason


class Raced(Protocol):
    """What an attempt's result says of it."""

    @property
    def outcome(self) -> Outcome:
        """How it ended."""

    @property
    def sent(self) -> bool:
        """The request has left, or may have."""


R = TypeVar("R", bound=Raced)

OUTPACED = "outpaced"
"""The message with which a first attempt is cancelled whose hedge was answered first, although it began later."""


def _nobody(_verdict: NoHedgeReason | None) -> None:
    pass


async def hedged(
    attempt: Callable[[bool], Coroutine[Any, Any, R]],
    hedging: Hedging,
    *,
    deadline: float,
    others: Callable[[], bool],
    listener: Callable[[NoHedgeReason | None], object] = _nobody,
) -> R:
    """The first of one or two attempts that the service answers, or the first attempt's result if it answers neither.

    An attempt gives a result, never an exception, whatever the service did; if one raises all the same, so does this.

    Args:
        attempt: makes one attempt; told whether it is the second, which must leave out the instance of the first.
        hedging: decides, and is told how long first attempts take.
        deadline: of the call, on ``hedging.clock``.
        others: is there an instance that the first attempt did not go to? Asked when a second one is due.
        listener: hears, for metrics, when a second one was due: None, it was begun; otherwise why not.
    """
    clock = hedging.clock
    started = clock()
    delay = hedging.begin(started, deadline)
    if delay is None:
        result = await attempt(False)
        hedging.learn(clock() - started, result.outcome)
        return result
    first = asyncio.create_task(attempt(False))
    second: asyncio.Task[R] | None = None
    winner = first
    try:
        done, _ = await asyncio.wait((first,), timeout=delay)
        if not done:
            refusal = hedging.admit(clock(), deadline, others=others())
            listener(refusal)
            if refusal is None:
                second = asyncio.create_task(attempt(True))
                winner = await _race(first, second)
                if winner is second:
                    first.cancel(OUTPACED)  # that one is told more than that nobody waits for it
            else:
                await asyncio.wait((first,))
        result = winner.result()
        hedging.learn(clock() - started, first.result().outcome if first.done() else Outcome.TIMEOUT)
        if second is not None and second.done() and not second.result().sent:
            hedging.refund()
    finally:
        await _end(first, second)
    return result


async def _race(first: asyncio.Task[R], second: asyncio.Task[R]) -> asyncio.Task[R]:
    """Whoever is answered first; the first one, if neither is. An exception counts at once."""
    pending = {first, second}
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in (first, second):
            if task in done and task.result().outcome in ANSWERED:
                return task
    return first


async def _end(*tasks: asyncio.Task[R] | None) -> None:
    """Cancel those that have not ended, and wait until they have, even if that is cancelled in turn."""
    left = {task for task in tasks if task is not None and not task.done()}
    cancelled: asyncio.CancelledError | None = None
    while left:
        for task in left:
            task.cancel()
        try:
            _, left = await asyncio.wait(left)
        except asyncio.CancelledError as error:
            cancelled = error
            left = {task for task in left if not task.done()}
    if cancelled is not None:
        raise cancelled
