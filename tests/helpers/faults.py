"""Faults for our own tests: :mod:`dispatch.testing`, with one seed for both directions, and replies counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from dispatch import testing
from dispatch.messaging.wire import Property
from dispatch.testing import FaultInjector
from dispatch.testing import Faults as FaultPlan
from dispatch.transports import AnswerLate, Handler, Message, Mode, Subscription, Transport

__all__ = ["FaultPlan", "FaultyTransport"]


class FaultyTransport(testing.FaultyTransport):
    """See there. ``count`` says how often each fault happened; ``handed`` how many replies reached handlers."""

    def __init__(self, inner: Transport, *, outgoing: FaultPlan, incoming: FaultPlan, seed: int) -> None:
        super().__init__(inner)
        self.seed = seed
        self._handed: Counter[str] = Counter()
        self._plans = (outgoing, incoming)
        self.change(outgoing=outgoing, incoming=incoming)

    def change(self, *, outgoing: FaultPlan | None = None, incoming: FaultPlan | None = None) -> None:
        """From now on; a direction that is not named stays as it is."""
        self._plans = (outgoing or self._plans[0], incoming or self._plans[1])
        self.injector.inject(
            replace(self._plans[0], direction="out", seed=self.seed),
            replace(self._plans[1], direction="in", seed=self.seed),
        )

    def heal(self) -> None:
        self.change(outgoing=FaultPlan(), incoming=FaultPlan())

    def another(self) -> testing.FaultyTransport:
        return _Further(self.inner.another(), self.injector, self._handed)

    @property
    def handed(self) -> int:
        """Replies that reached handlers, on this connection and on others made of it."""
        return self._handed.total()

    async def subscribe(
        self, topic: str, handler: Handler, *, mode: Mode, name: str, answer_late: AnswerLate | None = None
    ) -> Subscription:
        return await super().subscribe(topic, _counting(topic, handler, self._handed), mode=mode, name=name)


class _Further(testing.FaultyTransport):
    def __init__(self, inner: Transport, injector: FaultInjector, handed: Counter[str]) -> None:
        super().__init__(inner, injector)
        self._handed = handed

    async def subscribe(
        self, topic: str, handler: Handler, *, mode: Mode, name: str, answer_late: AnswerLate | None = None
    ) -> Subscription:
        return await super().subscribe(topic, _counting(topic, handler, self._handed), mode=mode, name=name)


def _counting(topic: str, handler: Handler, handed: Counter[str]) -> Handler:
    if "/dispatch-announce-" in topic:
        return handler

    def counting(message: Message) -> None:
        if _is_reply(message):
            handed[topic] += 1
        handler(message)

    return counting


def _is_reply(message: Message) -> bool:
    """Everything but an announcement. What cannot be read might have been a reply."""
    try:
        return Property.HERE not in message.properties()
    except Exception:
        return True
