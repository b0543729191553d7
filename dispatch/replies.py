"""Where a service's answers go: the caller's own topic if it may be used, else the service's response topic."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping

from dispatch.catalog.topics import TopicName
from dispatch.outcome import TransportError
from dispatch.transports import Publisher, Transport

logger = logging.getLogger("dispatch.service")

MAX_REPLY_TOPICS = 1_024
"""Reply topics kept open at once; the one that was quiet longest is closed for a new one."""
WARN_EVERY_S = 10.0
"""Lost answers are warned of once in so many seconds."""
MAX_WAITING = 10_000
"""Answers that may wait for a reply topic to be opened, over all topics."""


class ReplyRouter:
    """Sends answers, opening callers' topics as they are met.

    Args:
        transport: the service's connection.
        response_queue: the service's response topic, for everyone who has no topic of their own.
        namespaces: ``tenant/namespace`` where callers' topics may lie, besides the response queue's own.
    """

    def __init__(self, transport: Transport, response_queue: str, namespaces: Iterable[str] = ()) -> None:
        self._transport = transport
        self._response_queue = response_queue
        self._allowed = {TopicName.parse(response_queue).namespace_path, *namespaces}
        self._publishers: OrderedDict[str, Publisher] = OrderedDict()
        self._opening: dict[str, tuple[asyncio.Task[None], deque[tuple[bytes, Mapping[str, str]]]]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._waiting = 0
        self._quiet_until = 0.0
        self._known: dict[str, bool] = {}
        self.lost = 0
        """Answers that could not be sent."""

    async def start(self) -> None:
        """Open the response topic.

        Raises:
            TransportError: it cannot be opened.
        """
        self._publishers[self._response_queue] = await self._transport.publisher(self._response_queue)

    def topic_for(self, reply_to: str | None) -> str:
        """``reply_to`` if it is a topic in a namespace that we may answer in, else the response topic."""
        if not reply_to or len(reply_to) > 512:
            return self._response_queue
        allowed = self._known.get(reply_to)
        if allowed is None:
            try:
                allowed = TopicName.parse(reply_to).namespace_path in self._allowed
            except ValueError:
                allowed = False
            if len(self._known) >= 4 * MAX_REPLY_TOPICS:
                self._known.clear()
            self._known[reply_to] = allowed
        return reply_to if allowed else self._response_queue

    def send(self, reply_to: str | None, payload: bytes, properties: Mapping[str, str]) -> None:
        """Send an answer; never raises. What cannot be sent is counted: its caller has a deadline."""
        topic = self.topic_for(reply_to)
        publisher = self._publishers.get(topic)
        if publisher is not None and topic not in self._opening:
            self._publishers.move_to_end(topic)
            self._publish(publisher, payload, properties)
            return
        if self._waiting >= MAX_WAITING:
            self.lost += 1
            return
        entry = self._opening.get(topic)
        if entry is None:
            entry = self._opening[topic] = (asyncio.create_task(self._open(topic)), deque())
        entry[1].append((payload, properties))
        self._waiting += 1

    async def writable(self, reply_to: str | None) -> None:
        """Wait until answers to this caller are not queued behind the publish window."""
        topic = self.topic_for(reply_to)
        entry = self._opening.get(topic)
        if entry is not None:
            await asyncio.shield(entry[0])
        publisher = self._publishers.get(topic)
        if publisher is not None:
            await publisher.writable(topic)

    async def _open(self, topic: str) -> None:
        fallback = self._publishers[self._response_queue]
        try:
            publisher = await self._transport.publisher(topic)
        except Exception as error:  # whatever it is: the answers that wait here must go somewhere
            logger.warning("cannot answer on %s (%s): answering on %s", topic, error, self._response_queue)
            publisher = fallback
        else:
            self._publishers[topic] = publisher
        _, waiting = self._opening.pop(topic)
        for payload, properties in waiting:
            self._waiting -= 1
            self._publish(publisher, payload, properties)
        self._close_quietest()

    def _close_quietest(self) -> None:
        while len(self._publishers) > MAX_REPLY_TOPICS:
            topic = next(t for t in self._publishers if t != self._response_queue)
            task = asyncio.create_task(self._publishers.pop(topic).close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _publish(self, publisher: Publisher, payload: bytes, properties: Mapping[str, str]) -> None:
        try:
            publisher.publish(payload, properties, flow=publisher.topic, on_failure=self._failed)
        except TransportError as error:
            self._failed(error)

    def _failed(self, error: TransportError) -> None:
        self.lost += 1
        now = asyncio.get_running_loop().time()
        if now >= self._quiet_until:  # a broker that goes away takes many answers with it: say it once
            self._quiet_until = now + WARN_EVERY_S
            logger.warning("answers could not be sent (%d so far): %s", self.lost, error.message)

    async def flush(self) -> None:
        """Wait until every answer is out."""
        while self._opening:
            await asyncio.wait([task for task, _ in self._opening.values()])
        await self._transport.flush()

    async def close(self) -> None:
        """Close the topics."""
        for task in [task for task, _ in self._opening.values()] + list(self._closing):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        for publisher in self._publishers.values():
            await publisher.close()
        self._publishers.clear()
