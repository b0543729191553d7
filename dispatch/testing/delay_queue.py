"""The way of a topic's messages through a faulty connection: what is held back on it, for how long, in which order."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final

from dispatch.testing.faults import Dice, Direction, FaultInjector

MAX_HELD: Final = 100_000
"""Messages that one connection may hold back in each direction; one more is lost, as in a queue that is full."""

Go = Callable[[], object]


class Held:
    """A message that is held back. It goes once: when it is due, or before."""

    __slots__ = ("_go", "_holding", "_timer")

    def __init__(self, holding: Holding, go: Go, due: float) -> None:
        self._holding = holding
        self._go: Go | None = go
        self._timer = asyncio.get_running_loop().call_at(due, self.release)

    @property
    def waits(self) -> bool:
        """It has not gone yet."""
        return self._go is not None

    def release(self) -> None:
        """It goes now, unless it has gone."""
        go = self._leave()
        if go is not None:
            go()

    def cancel(self) -> bool:
        """It never goes. False: it has gone."""
        return self._leave() is not None

    def _leave(self) -> Go | None:
        go, self._go = self._go, None
        if go is not None:
            self._timer.cancel()
            self._holding.left(self)
        return go


class Holding:
    """What a connection holds back in one direction."""

    def __init__(self) -> None:
        self._held: set[Held] = set()
        self._emptied: asyncio.Future[None] | None = None

    @property
    def full(self) -> bool:
        """There is no room for one more."""
        return len(self._held) >= MAX_HELD

    def hold(self, go: Go, due: float) -> Held:
        """Hold a message back until ``due``, by the loop's clock."""
        held = Held(self, go, due)
        self._held.add(held)
        return held

    def left(self, held: Held) -> None:
        """It has gone, or never will."""
        self._held.discard(held)
        if not self._held and self._emptied is not None:
            self._emptied.set_result(None)
            self._emptied = None

    async def emptied(self) -> None:
        """Wait until nothing is held back."""
        while self._held:
            if self._emptied is None:
                self._emptied = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._emptied)

    def clear(self) -> None:
        """Nothing that is held back goes any more."""
        for held in list(self._held):
            held.cancel()


class Way:
    """One topic in one direction."""

    def __init__(
        self, injector: FaultInjector, connection: int, holding: Holding, direction: Direction, topic: str
    ) -> None:
        self._injector = injector
        self._connection = connection
        self._holding = holding
        self._direction: Direction = direction
        self._topic = topic
        self._dice: Dice | None = None
        self._epoch = -1
        self._last: Held | None = None
        self._last_due = 0.0
        self._until_next: list[Held] = []

    @property
    def dice(self) -> Dice | None:
        """What decides now. None: nothing happens."""
        if self._epoch != self._injector.epoch:
            self._epoch = self._injector.epoch
            self._dice = self._injector.dice(self._connection, self._direction, self._topic)
        return self._dice

    def happened(self, fault: str) -> None:
        """Count it."""
        self._injector.count[f"{self._direction} {fault}"] += 1

    def go(self, go: Go, dice: Dice | None) -> None:
        """Let a message go in its order: now, or after its latency."""
        now = asyncio.get_running_loop().time()
        seconds = dice.latency() if dice is not None else 0.0
        behind = now <= self._last_due or (self._last is not None and self._last.waits)
        if not seconds and not behind:
            go()
        elif not self._full():
            # Timers of one instant have no order among themselves.
            self._last_due = max(now + seconds, math.nextafter(self._last_due, math.inf))
            self._last = self._holding.hold(go, self._last_due)

    def later(self, dice: Dice, go: Go) -> Held | None:
        """Let a message go after a delay, whatever its order. None: it is lost."""
        return None if self._full() else self._holding.hold(go, asyncio.get_running_loop().time() + dice.delay())

    def until_next(self, dice: Dice, go: Go) -> None:
        """Hold a message back until another has gone, at most for a delay."""
        held = self.later(dice, go)
        if held is not None:
            self._until_next = [each for each in self._until_next if each.waits]
            self._until_next.append(held)

    def release(self) -> None:
        """Another has gone."""
        while self._until_next:
            self._until_next.pop().release()

    def _full(self) -> bool:
        if self._holding.full:
            self.happened("overflow")
            return True
        return False
