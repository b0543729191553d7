"""Announces the descriptors of a service, so that dispatchers find its tools without configuration; and admin endpoints."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from dispatch import announcements
from dispatch._internal import cancel_and_wait
from dispatch.errors import TransportError
from dispatch.messaging.wire import TopicName
from dispatch.transports import Message, Mode, Publisher, Subscription, Transport
from dispatch.transports.errors import describe_without_call

logger = logging.getLogger("dispatch.service")

HEARTBEAT_S: Final = 5.0
JITTER: Final = 0.2
"""Share by which a heartbeat is earlier or later, so that instances that started together spread out."""
SPREAD_S: Final = 0.2
"""Seconds over which the answers to a question to all services are spread."""
MAX_RETRY_S: Final = 60.0
"""Seconds between two attempts to open a topic that the broker refuses, at most."""
FIRST_S: Final = (0.1, 0.5)
"""Seconds after the start at which heartbeats follow: each message may be lost."""

REFUSED: Final = (
    "%s is not announced on %s, so that dispatchers know its tools by a catalogue only: %s",
    "%s hears no questions about announcements on %s, and repeats its descriptors instead: %s",
)
"""Warnings where the broker refuses the topic of the announcements, and that of the questions."""

RawDescriptors = tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]
"""A service and its tools, as in the files of a catalogue."""


class DescriptorAnnouncer:
    """Announces the descriptors of one instance: at its start, on a change, by heartbeats, as an answer, and at its end.

    Args:
        transport: the service's connection.
        settings: topic, keys and labels.
        descriptors: returns the present ones.
        instance, incarnation: of the instance.
        stats: returns load and counters.
        secret: for ``bye``, which is believed without a signature where ``incarnation`` is its hash.
        receive: gets the announcements of others.
        refused: warnings, as :data:`REFUSED`; the third: ``receive`` gets none.
        log: gets them.

    Raises:
        ValueError: the descriptors are too large, or not JSON.
    """

    def __init__(
        self,
        transport: Transport,
        settings: announcements.Announce,
        descriptors: Callable[[], RawDescriptors],
        *,
        instance: str,
        incarnation: str,
        stats: Callable[[], Mapping[str, Any]],
        secret: str | None = None,
        receive: Callable[[Message], None] | None = None,
        refused: Sequence[str] = REFUSED,
        log: logging.Logger = logger,
    ) -> None:
        self._transport = transport
        self._topic = str(TopicName.parse(settings.topic))
        self._read = descriptors
        self._stats = stats
        self._descriptors = announcements.DescriptorParts(*descriptors())
        version = self._descriptors.ref.get("version")
        # The time orders the runs of an instance: late announcements of a former run are ignored.
        run = f"{time.time_ns() // 1_000_000:012x}-{incarnation}"
        info = announcements.InstanceInfo(instance, run, version, settings.weight, dict(settings.labels))
        self._writer = announcements.AnnouncementWriter(info, settings.keys)
        self._instance = instance
        self._secret = secret
        self._refused = refused
        self._log = log
        self._publisher: Publisher | None = None
        self._questions: Subscription | None = None
        self._receive = receive
        self._others: Subscription | None = None
        self._task: asyncio.Task[None] | None = None
        self._timers: set[asyncio.TimerHandle] = set()
        self._is_leaving = False
        self._is_warned = False

    async def start(self) -> None:
        """Announce the service, and begin to answer questions. A broker that refuses the topic is tried again: the service
        works without."""
        await self._open()
        self._say_all()
        self._task = asyncio.create_task(self._beat(), name="dispatch-announcements")

    async def _open(self) -> None:
        """Open the topics that are not open, each by itself: the role may have the rights for some of them."""
        for open_one, text in zip(
            (self._publish, self._hear_questions, self._hear_others), self._refused, strict=False
        ):
            try:
                await open_one()
            except TransportError as error:
                if not self._is_warned:
                    self._is_warned = True
                    self._log.warning(text, self._instance, self._topic, describe_without_call(error))

    async def _publish(self) -> None:
        if self._publisher is None:
            self._publisher = await self._transport.publisher(self._topic)

    async def _hear_questions(self) -> None:
        if self._questions is None:
            topic = announcements.question_topic(self._topic)
            self._questions = await self._transport.subscribe(topic, self._on_question, mode=Mode.FANOUT, name=_NAME)

    async def _hear_others(self) -> None:
        if self._others is not None or self._receive is None:
            return
        self._others = await self._transport.subscribe(self._topic, self._receive, mode=Mode.POLLED, name=_NAME)
        with contextlib.suppress(TransportError):  # heartbeats follow
            publisher = await self._transport.publisher(announcements.question_topic(self._topic))
            publisher.publish(announcements.Question().encode(), {}, flow=publisher.topic, on_failure=_ignore_failure)
            await publisher.close()

    @property
    def _is_open(self) -> bool:
        return None not in (self._publisher, self._questions) and (self._others is not None or self._receive is None)

    async def _beat(self) -> None:
        waited = 0.0
        for at in FIRST_S:
            await asyncio.sleep(at - waited)
            waited = at
            self._say(self._writer.write(announcements.HERE, self._descriptors))
        wait = HEARTBEAT_S
        while True:
            await asyncio.sleep(wait * (1 + JITTER * (2 * random.random() - 1)))
            if self._is_open:
                wait = HEARTBEAT_S
                self._say(self._writer.write(announcements.HERE, self._descriptors))
                continue
            await self._open()
            self._say_all()
            # Without questions every heartbeat has the descriptors; without a topic there is no heartbeat.
            wait = HEARTBEAT_S if self._publisher is not None else min(wait * 2, MAX_RETRY_S)

    def _say_all(self) -> None:
        for payload in self._writer.write_all(self._descriptors):
            self._say(payload)

    def _say(self, payload: bytes) -> None:
        if self._publisher is not None:
            with contextlib.suppress(TransportError):  # a heartbeat follows
                self._publisher.publish(payload, {}, flow=self._topic, on_failure=_ignore_failure)

    def update(self) -> None:
        """Announce changed descriptors.

        Raises:
            ValueError: they are too large, or not JSON. The former ones stay announced.
        """
        descriptors = announcements.DescriptorParts(*self._read())
        if descriptors.digest != self._descriptors.digest and not self._is_leaving:
            self._descriptors = descriptors
            self._say_all()

    def answer(self, payload: bytes) -> bytes | None:
        """Return the answer to a question to this instance; None: it is for another one."""
        question = announcements.decode_question(payload)
        if question is None or question.instance != self._instance:
            return None
        return self._write(question)

    def _write(self, question: announcements.Question) -> bytes:
        stats = self._stats() if question.stats else None
        part = min(question.part, len(self._descriptors.parts))
        return self._writer.write(
            announcements.BYE if self._is_leaving else announcements.HERE, self._descriptors, part=part, stats=stats
        )

    def _on_question(self, message: Message) -> None:
        question = announcements.decode_question(message.data())
        if question is None or self._is_leaving or len(self._timers) >= MAX_ANSWERS:
            return
        if question.service not in ("", self._descriptors.ref["id"]) or question.instance not in ("", self._instance):
            return

        def answer() -> None:
            self._timers.discard(timer)
            if not self._is_leaving:
                self._say(self._write(question))

        loop = asyncio.get_running_loop()
        timer = loop.call_later(SPREAD_S * random.random(), answer)
        self._timers.add(timer)

    def leave(self) -> None:
        """Announce that the instance accepts no further requests."""
        if not self._is_leaving:
            self._is_leaving = True
            for timer in self._timers:
                timer.cancel()
            self._timers.clear()
            if self._task is not None:
                self._task.cancel()
            self._say(self._writer.write(announcements.BYE, self._descriptors, secret=self._secret))

    async def close(self) -> None:
        """Close the topics, after :meth:`leave`."""
        self.leave()
        async with contextlib.AsyncExitStack() as stack:
            for each in (self._publisher, self._questions, self._others):
                if each is not None:
                    stack.push_async_callback(each.close)
            await cancel_and_wait((self._task,))


_NAME: Final = "dispatch-announcements"
MAX_ANSWERS: Final = 16
"""Answers that wait for their turn: further questions meanwhile are answered by these."""


def _ignore_failure(_error: TransportError) -> None:
    """Ignore an announcement that could not be sent: a heartbeat follows."""
