"""Discovery: which instances serve a request topic.

A hello to the hello topic of a request topic asks for them, and each announces itself (``here``). Every producer to the
response namespace can send an announcement, so an instance first proves that it consumes its own topic, which lies in the
request namespace: a random value is sent there and must come back with the name and the incarnation that were announced.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from dispatch._internal.cancellation import retrieve_error
from dispatch.errors import TransportError
from dispatch.messaging.rpc.correlation import Correlator, read_properties
from dispatch.messaging.wire.properties import Feature, Property, Refusal, is_oversized
from dispatch.messaging.wire.topics import instance_topic
from dispatch.routing.channel import Channel, limit_flow
from dispatch.routing.instance import HELLO_AGAIN_S, HELLO_EVERY_S, MAX_INSTANCES, Instance
from dispatch.transports import Message, Publisher, Transport

logger = logging.getLogger("dispatch.dispatcher")

HELLO_WAIT_S = 0.1
"""How long the first call of a channel waits for an instance to announce itself. Third-party services never do."""
HELLOS = 3
"""Hellos sent meanwhile: each may be lost."""
MAX_CHALLENGES = 64
"""Challenges at once. Each opens a topic: a flood of forged announcements must not open them without a limit."""
EVICTABLE_AFTER_S = 0.1
"""Seconds after which a challenge gives way to a new one when there are :data:`MAX_CHALLENGES`: many times a round trip, so
that a genuine instance has answered by then."""
SENT_AT_S = (0.1, 0.4, 1.5)
"""Seconds until a challenge that is not answered is sent again, and again, and then given up: each message may be lost."""
_NONCE_BYTES = 12


class Challenge:
    """One challenge: to be sent, and answered.

    Args:
        name, incarnation: what was announced, and must answer.
        now: the loop's clock, in seconds.
    """

    __slots__ = ("begun_at", "incarnation", "name", "nonce", "outcome")

    def __init__(self, name: str, incarnation: str, now: float) -> None:
        self.name = name
        self.incarnation = incarnation
        self.begun_at = now
        self.nonce = os.urandom(_NONCE_BYTES).hex()
        self.outcome: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def conclude(self, is_genuine: bool) -> None:
        """It was answered, or must give way to another one."""
        if not self.outcome.done():
            self.outcome.set_result(is_genuine)


class Challenges:
    """The challenges of one dispatcher that wait for an answer."""

    def __init__(self) -> None:
        self._waiting: dict[str, Challenge] = {}
        self._loop = asyncio.get_running_loop()

    def begin(self, name: str, incarnation: str) -> Challenge | None:
        """Return a new challenge; None: there are too many. It must be passed to :meth:`pose`."""
        now = self._loop.time()
        if len(self._waiting) >= MAX_CHALLENGES:
            oldest = next(iter(self._waiting.values()))
            if now - oldest.begun_at < EVICTABLE_AFTER_S:
                return None
            del self._waiting[oldest.nonce]
            oldest.conclude(False)
        challenge = Challenge(name, incarnation, now)
        self._waiting[challenge.nonce] = challenge
        return challenge

    async def pose(self, challenge: Challenge, publisher: Publisher, properties: Mapping[str, str]) -> bool:
        """Send ``challenge`` and return whether the instance answers it.

        Args:
            publisher: to the instance's own topic.
            properties: of the dispatcher: where to answer.
        """
        message = {
            **properties,
            Property.CHALLENGE: challenge.nonce,
            Property.INCARNATION: challenge.incarnation,
        }
        for seconds in SENT_AT_S:
            if not challenge.outcome.done():
                with contextlib.suppress(TransportError):  # sent again soon
                    publisher.publish(b"", message, flow=publisher.topic, on_failure=_lost)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    return await asyncio.shield(challenge.outcome)
        return False

    def end(self, challenge: Challenge) -> None:
        """Nothing waits for ``challenge`` any more."""
        self._waiting.pop(challenge.nonce, None)
        challenge.conclude(False)

    def answer(self, nonce: str, name: str, incarnation: str) -> None:
        """An instance answered."""
        challenge = self._waiting.get(nonce)
        if challenge is not None and (challenge.name, challenge.incarnation) == (name, incarnation):
            challenge.conclude(True)


class Discovery:
    """The discovery of one dispatcher.

    Args:
        transport: the connection.
        correlator: its session, request ids and clock.
        channels: the open ones.
        close_later: runs a coroutine that closes something in the background.
    """

    def __init__(
        self,
        transport: Transport,
        correlator: Correlator,
        channels: Mapping[tuple[str, str], Channel],
        close_later: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._transport = transport
        self._correlator = correlator
        self._channels = channels
        self._close_later = close_later
        self._challenges = Challenges()
        self.verifying: dict[tuple[str, str, str], asyncio.Task[None]] = {}
        """Instances that are being challenged, by request topic, name and incarnation."""
        self.retired: list[Instance] = []
        """Instances that get nothing new and may still have requests in flight."""

    async def await_first(self, channel: Channel) -> None:
        """Ask for instances, and wait up to :data:`HELLO_WAIT_S` until one is known."""
        loop = asyncio.get_running_loop()
        for _ in range(HELLOS):
            self._send_hello(channel, loop.time())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HELLO_WAIT_S / HELLOS):
                    await channel.met.wait()
                    return

    def send_due_hello(self, channel: Channel) -> None:
        """Ask for instances if that is due; called whenever the channel is used."""
        if channel.hello is not None:
            now = self._correlator.now()
            if now >= channel.hello_at:
                self._send_hello(channel, now)

    def _on_suspicion(self, channel: Channel) -> None:
        """Ask for instances earlier than due: one may have gone, and there may be others."""
        now = asyncio.get_running_loop().time()
        if channel.hello is not None and now >= channel.hello_at - HELLO_EVERY_S + HELLO_AGAIN_S:
            self._send_hello(channel, now)

    def _send_hello(self, channel: Channel, now: float) -> None:
        assert channel.hello is not None
        known = channel.instances
        # No instance could be heard of while the broker was out of reach.
        if not self._transport.was_disconnected_since(now - HELLO_EVERY_S):
            for stale in known.stale(now):
                self.retire(channel, stale)
        channel.hello_at = now + (HELLO_EVERY_S if len(known) else HELLO_AGAIN_S)
        self.close_retired()
        properties = {
            Property.HELLO: channel.request_queue,
            Property.REPLY_TO: channel.replies.first.topic,
            Property.SESSION: self._correlator.session.secret,
        }
        with contextlib.suppress(TransportError):  # the next one is due soon
            channel.hello.publish(b"", properties, flow=channel.hello.topic, on_failure=_unheard)

    def on_announcement(self, message: Message) -> None:
        """Take a message from a topic on which instances announce that they come and go."""
        properties = read_properties(message)
        if Property.HERE in properties:
            self.on_here(properties)

    def on_here(self, properties: Mapping[str, str]) -> None:
        """Process the announcement of an instance that it serves a topic, or no longer does. Every producer to the response
        namespace can send one, hence the challenge."""
        name, incarnation = properties.get(Property.INSTANCE, ""), properties.get(Property.INCARNATION, "")
        if not (name and incarnation) or is_oversized(name + incarnation):
            return
        challenge = properties.get(Property.CHALLENGE)
        if challenge is not None:
            self._challenges.answer(challenge, name, incarnation)
            return
        for channel in self._channels.values():
            if channel.request_queue != properties[Property.HERE] or channel.hello is None:
                continue
            known = channel.instances.get(name)
            if properties.get(Property.REFUSED) == Refusal.DRAINING:
                if known is not None and known.incarnation == incarnation:
                    self.retire(channel, known)
            elif known is not None and known.incarnation == incarnation:
                known.last_seen = asyncio.get_running_loop().time()
                known.unanswered = 0
            elif Feature.REPAIR in (features := properties.get(Property.FEATURES, "").split(",")):
                self._challenge(channel, name, incarnation, frozenset(features))

    def _challenge(self, channel: Channel, name: str, incarnation: str, features: frozenset[str]) -> None:
        key = (channel.request_queue, name, incarnation)
        if key in self.verifying or len(channel.instances) >= MAX_INSTANCES:
            return
        challenge = self._challenges.begin(name, incarnation)
        if challenge is None:
            return  # it announces itself again
        task = self.verifying[key] = asyncio.create_task(self._verify_instance(channel, challenge, features))
        task.add_done_callback(lambda _: self.verifying.pop(key, None))
        task.add_done_callback(lambda _: self._challenges.end(challenge))
        task.add_done_callback(retrieve_error)

    async def _verify_instance(self, channel: Channel, challenge: Challenge, features: frozenset[str]) -> None:
        """Add the instance to the known ones if it proves that it consumes its own topic."""
        name, incarnation = challenge.name, challenge.incarnation
        topic = instance_topic(channel.request_queue, name)
        publisher = await self._transport.publisher(topic)
        properties = {
            Property.REPLY_TO: channel.replies.first.topic,
            Property.SESSION: self._correlator.session.secret,
        }
        try:
            is_genuine = await self._challenges.pose(challenge, publisher, properties)
        except BaseException:
            await publisher.close()
            raise
        if not is_genuine:
            await publisher.close()
            return
        now = asyncio.get_running_loop().time()
        instance = Instance(
            name,
            incarnation,
            topic,
            limit_flow(publisher, acknowledges=True),
            now,
            lambda: self._on_suspicion(channel),
            parts=Feature.PARTS in features,
            cancels=Feature.CANCEL in features,
        )
        former = channel.instances.add(instance)
        if former is not None:
            if channel.replaced.get(name) == incarnation:
                logger.warning(
                    "two instances that serve %s are both named %s: give each instance a name of its own",
                    channel.request_queue,
                    name,
                )
            channel.replaced[name] = former.incarnation
            while len(channel.replaced) > MAX_INSTANCES:
                del channel.replaced[next(iter(channel.replaced))]
            self.retired.append(former)
            former.next_turn()
        for other in channel.instances:
            other.next_turn()  # requests that wait for a new instance may go to this one
        channel.met.set()

    def retire(self, channel: Channel, instance: Instance) -> None:
        """Send nothing new to ``instance``, which leaves or has gone."""
        if channel.instances.remove(instance):
            self.retired.append(instance)
            instance.next_turn()
            if not len(channel.instances):
                channel.met.clear()
                channel.hello_at = 0.0

    def close_retired(self) -> None:
        """Close the topics of retired instances without requests in flight."""
        waiting = []
        for instance in self.retired:
            if instance.in_flight:
                waiting.append(instance)
                continue
            self._close_later(instance.publisher.close())
        self.retired = waiting


def _unheard(_error: TransportError) -> None:
    """A hello that could not be sent: the next one is due soon."""


def _lost(_error: TransportError) -> None:
    """A challenge that could not be sent: it is sent again."""
