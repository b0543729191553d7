"""The path of a topic's messages through a faulty connection: when each is delivered, and in which order."""

from __future__ import annotations

import asyncio
import math

from dispatch.testing.delay_queue import DelayedMessage, DelayQueue, Deliver
from dispatch.testing.faults import Direction, FaultInjector, FaultSampler


class MessagePath:
    """One topic in one direction of a connection.

    Args:
        injector: the faults in force.
        connection: number of the connection.
        queue: delayed messages of the connection in that direction.
        direction, topic: of the messages.
    """

    def __init__(
        self, injector: FaultInjector, connection: int, queue: DelayQueue, direction: Direction, topic: str
    ) -> None:
        self._injector = injector
        self._connection = connection
        self._queue = queue
        self._direction: Direction = direction
        self._topic = topic
        self._sampler: FaultSampler | None = None
        self._epoch = -1
        self._last: DelayedMessage | None = None
        self._last_due = 0.0
        self._held: list[DelayedMessage] = []

    @property
    def sampler(self) -> FaultSampler | None:
        """Draws the faults that are in force now; None: there are none."""
        if self._epoch != self._injector.epoch:
            self._epoch = self._injector.epoch
            self._sampler = self._injector.find_sampler(self._connection, self._direction, self._topic)
        return self._sampler

    def count_fault(self, fault: str) -> None:
        """Count an injected fault."""
        self._injector.count[f"{self._direction} {fault}"] += 1

    def deliver_in_order(self, deliver: Deliver, sampler: FaultSampler | None) -> None:
        """Deliver a message after the previous ones of its topic: now, or after its latency."""
        now = asyncio.get_running_loop().time()
        seconds = sampler.draw_latency() if sampler is not None else 0.0
        is_behind = now <= self._last_due or (self._last is not None and self._last.is_waiting)
        if not seconds and not is_behind:
            deliver()
        elif not self._overflows():
            # Timers of one instant have no order among themselves.
            self._last_due = max(now + seconds, math.nextafter(self._last_due, math.inf))
            self._last = self._queue.add(deliver, self._last_due)

    def deliver_later(self, sampler: FaultSampler, deliver: Deliver) -> DelayedMessage | None:
        """Deliver a message after a delay, regardless of its order. Return None if it is lost."""
        if self._overflows():
            return None
        return self._queue.add(deliver, asyncio.get_running_loop().time() + sampler.draw_delay())

    def hold_until_next(self, sampler: FaultSampler, deliver: Deliver) -> None:
        """Hold a message until the topic's next one is delivered, at most for a delay."""
        message = self.deliver_later(sampler, deliver)
        if message is not None:
            self._held = [each for each in self._held if each.is_waiting]
            self._held.append(message)

    def release_held(self) -> None:
        """Deliver the messages that are held until the next one."""
        while self._held:
            self._held.pop().deliver()

    def _overflows(self) -> bool:
        if self._queue.is_full:
            self.count_fault("overflow")
            return True
        return False
