"""The announced services as a live source of the catalogue."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from types import NoneType
from typing import Any, Final

from dispatch._internal import cancel_and_wait, check_instance, explain_keywords, wait_set
from dispatch.announcements import DEFAULT_TOPIC, Question, question_topic
from dispatch.announcements.table import AnnouncementTable, Inquiry
from dispatch.announcements.trust import Trust
from dispatch.catalog.items import Broker, BrokerSubscription, Item, OnChange
from dispatch.errors import TransportError
from dispatch.messaging.wire import TopicName
from dispatch.transports.errors import describe_without_call

logger = logging.getLogger("dispatch.catalog")

TICK_S: Final = 1.0
"""Seconds between two checks which instances are silent, and whether the connection was lost."""
SETTLE_S: Final = 0.4
"""Seconds for which the first discovery waits for answers to ``who``: they are spread over 0.2 s, and received by polls."""
FIRST_S: Final = 2.0
"""Seconds after which the first discovery does not wait for the proofs of services any longer."""
ASK_S: Final = 1.0
"""Seconds until an instance must have answered a question."""
RESEND_S: Final = 0.25
"""Seconds without an answer after which a question is sent again: the topics may drop a message."""
WHO_AGAIN_S: Final = 0.1
"""Seconds after which ``who`` is sent a second time."""


SetShares = Callable[[str, Mapping[str, float]], None]
"""Takes a request topic, and the shares of its calls by instance, where they are not 1; 0: while there are others, none."""


class Announced:
    """The services that announce themselves, followed live over the broker. A service is in the catalogue while it has
    instances, and 60 s longer.

    Args:
        trust: which announcements are accepted.
        topic: of the announcements; a whole name or TrustGraph's short form.
        id: unique in a dispatcher; the label ``source`` of its metrics.
        namespace: prefix of the names.
        on_change: ``hold``: a changed definition waits for its approval.
        until: name of a tool: the first discovery ends as soon as it is found.

    Raises:
        TopicError: ``topic`` is not a topic name.
    """

    is_atomic = False

    @explain_keywords
    def __init__(
        self,
        trust: Trust | None = None,
        *,
        topic: str = DEFAULT_TOPIC,
        id: str = "announced",
        namespace: str = "",
        on_change: OnChange = "apply",
        until: str = "",
    ) -> None:
        check_instance("trust", trust, (Trust, NoneType), "a dispatch.Trust, or None")
        name = TopicName.parse(topic)
        self.topic = str(name)
        self.id = id
        self.namespace = namespace
        self.on_change: OnChange = on_change
        self.trust = (trust or Trust()).within(name.tenant)
        self.table = AnnouncementTable(self.trust, source=id, namespace=namespace)
        self._until = until
        self._broker: Broker | None = None
        self._set_shares: SetShares | None = None
        self._version = 0
        self._items: list[Item] = []
        self._reset()

    def connect(self, broker: Broker) -> None:
        """Use ``broker`` from now on. The dispatcher calls this before the first :meth:`discover`."""
        if broker is not self._broker:
            self._broker = broker
            self._reset()

    def _reset(self) -> None:
        """Begin anew, on another broker and perhaps another event loop."""
        self._subscription: BrokerSubscription | None = None
        self._subscribing = asyncio.Lock()
        self._is_changed = asyncio.Event()
        self._has_progress = asyncio.Event()
        self._is_settled = self._is_proceeding = False
        self._tasks: set[asyncio.Task[None]] = set()

    def use_shares(self, set_shares: SetShares) -> None:
        """Call ``set_shares`` with the shares of a service's instances, by its request topic, when they change."""
        self._set_shares = set_shares
        for queue, shares in self.table.shares.items():
            set_shares(queue, dict(shares))

    async def close(self) -> None:
        """End the subscription, and the questions."""
        subscription, self._subscription = self._subscription, None
        try:
            await cancel_and_wait(self._tasks)
        finally:
            if subscription is not None:
                await subscription.close()

    async def discover(self) -> Sequence[Item]:
        """Return the items of all announced services. The first time it waits for the services that run already.

        Raises:
            TransportError: the broker is out of reach, or refuses the topic.
            RuntimeError: not connected: the source belongs to no started dispatcher.
        """
        broker = self._connected
        await self._subscribe(broker)
        if not self._is_settled:
            await self._settle(broker)
        if self._version != self.table.version:
            self._version, self._items = self.table.version, self.table.items()
        return self._items

    @property
    def _connected(self) -> Broker:
        if self._broker is None:
            raise RuntimeError(
                "This source is not connected. Pass it to dispatch.connect(catalog=…) and start the dispatcher."
            )
        return self._broker

    async def _subscribe(self, broker: Broker) -> None:
        async with self._subscribing:
            if self._subscription is None:
                self._subscription = await broker.subscribe(self.topic, self._on_message, is_polled=True)

    async def _settle(self, broker: Broker) -> None:
        """Ask for the services that run, and wait for their proofs."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        self.table.tick(began, is_connected=broker.is_connected)
        try:
            await self._ask_all(broker)
        except TransportError as error:  # the role may only consume: heartbeats follow
            text = "announced services cannot be asked, and are found by their heartbeats, within 6 s: %s"
            logger.warning(text, describe_without_call(error))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(began + FIRST_S):
                while not self._is_found() and (self.table.is_asking or loop.time() < began + SETTLE_S):
                    self._has_progress.clear()
                    await wait_set(self._has_progress, None if self.table.is_asking else began + SETTLE_S - loop.time())
        self._is_settled = True

    def _is_found(self) -> bool:
        return bool(self._until) and any(
            item.kind == "tool" and item.key.partition("@")[0] == self._until for item in self.table.items()
        )

    async def _ask_all(self, broker: Broker) -> None:
        """Ask all services to announce themselves."""
        payload = Question().encode()
        await broker.publish(question_topic(self.topic), payload)

        async def repeat() -> None:
            await asyncio.sleep(WHO_AGAIN_S)
            with contextlib.suppress(TransportError):  # the first one was sent
                await broker.publish(question_topic(self.topic), payload)

        self._start(repeat())

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _on_message(self, payload: bytes) -> None:
        self.table.receive(payload)
        if not self._is_proceeding:  # perf: once for all messages that have arrived together
            self._is_proceeding = True
            asyncio.get_running_loop().call_soon(self._proceed)

    def _proceed(self) -> None:
        """Send the questions that are due, and report what has changed."""
        self._is_proceeding = False
        broker = self._connected
        for inquiry in self.table.pop_inquiries():
            self._start(self._ask(broker, inquiry))
        for queue, shares in self.table.pop_changed_shares():
            if self._set_shares is not None:
                self._set_shares(queue, shares)
        for report in self.table.pop_reports():
            logger.warning("%s", report)
        if self.table.version != self._version:
            self._is_changed.set()
        self._has_progress.set()

    async def _ask(self, broker: Broker, inquiry: Inquiry) -> None:
        question = Question(instance=inquiry.instance, part=inquiry.part)
        began = asyncio.get_running_loop().time()
        try:
            payload = await broker.ask_instance(
                inquiry.request_queue,
                inquiry.response_queue,
                question.encode(),
                timeout=ASK_S,
                resend_after=RESEND_S,
            )
        except TransportError:
            self.table.abandon(inquiry)
        except TimeoutError:
            if broker.is_connected and not broker.was_disconnected_since(began):
                self.table.receive_answer(inquiry, None)
            else:
                self.table.abandon(inquiry)
        else:
            self.table.receive_answer(inquiry, payload)
        self._proceed()

    async def changes(self) -> AsyncIterator[None]:
        """Yield after each change of the announced services.

        Raises:
            RuntimeError: not connected.
        """
        broker, loop = self._connected, asyncio.get_running_loop()
        in_reach_at = loop.time()
        while True:
            await wait_set(self._is_changed, TICK_S)
            is_connected = broker.is_connected
            self.table.tick(loop.time(), is_connected=is_connected)
            if is_connected and self._is_settled:
                if broker.was_disconnected_since(in_reach_at):
                    with contextlib.suppress(TransportError):  # heartbeats follow
                        await self._ask_all(broker)
                in_reach_at = loop.time()
            self._proceed()
            if self._is_changed.is_set():
                self._is_changed.clear()
                yield
