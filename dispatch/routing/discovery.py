"""Discovery: which instances serve a request topic.

A hello to the hello topic of a request topic asks for them, and each announces itself (``here``). Every producer to the
response namespace can send an announcement, so an instance is known once a session with it is open: the handshake proves
that it consumes its own topic, which lies in the request namespace.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping

import msgspec

from dispatch._internal import cancel_and_wait, remember, retrieve_error
from dispatch.errors import TransportError
from dispatch.messaging.endpoint import Endpoint
from dispatch.messaging.plain import Correlator, read_properties
from dispatch.messaging.sessions import SessionExchange
from dispatch.messaging.wire import Feature, Property, instance_topic, is_oversized
from dispatch.protocol.events import (
    Event,
    Failure,
    PeerConflict,
    PeerDraining,
    PeerRecovered,
    PeerSuspected,
    SessionClosed,
    SessionOpened,
)
from dispatch.protocol.session import CallerSession
from dispatch.routing.instance import MAX_INSTANCES, SessionInstance, TopicChannel, resume_places, suspend_places
from dispatch.transports import Message

logger = logging.getLogger("dispatch.dispatcher")

HELLO_EVERY_S = 10.0
"""Seconds between two hellos of an active dispatcher."""
HELLO_AGAIN_S = 1.0
"""The same while no instance is known."""
HELLO_URGENT_S = 0.25
"""The same while calls wait for an instance."""
GATHER_S = 0.2
"""Seconds for which calls wait, when the first instances announce themselves, until all handshakes have ended."""
SPREAD_S = 0.05
"""Seconds from the first instance on for which at most four calls at once are sent: on an idle machine the
answers of other instances to the same hello come up to 15 ms later, and a handshake takes 10."""
FIRST_HELLOS_S = (0.0, 0.03, 0.07)
"""When hellos are sent at first: each may be lost."""
WARN_MISSING_S = 2.0
"""Seconds of a call's wait after which the log says that no instance has announced itself."""
MAX_HANDSHAKES = 64
"""Handshakes at once. Each opens a topic: a flood of forged announcements must not open them without a limit."""
EVICTABLE_AFTER_S = 0.1
"""Seconds after which a handshake gives way to a new one when there are :data:`MAX_HANDSHAKES`: many times a round trip, so
that a genuine instance has answered by then."""
HANDSHAKE_S = 2.0
"""Seconds after which a handshake is given up; HELLO is sent several times meanwhile."""
PROBE_EVERY_S = 1.0
"""Seconds between two probes of an instance because another incarnation of it is announced, perhaps by a forger."""
DOUBT_S = 0.08
"""Seconds after such a probe at which the answer is known: a RESET is believed after 0.05 s without another packet."""
WARN_EVERY_S = 60.0
"""Seconds between two warnings about the instances of one name."""

_NOT_OPENED_AGAIN = (Failure.CLOSED, Failure.EVICTED, Failure.BROKER_REFUSED)
"""Ends of sessions after which another one follows an announcement only. An evicted one is opened again for the next call:
at once, it would evict another dispatcher's."""


class Handshake(msgspec.Struct, eq=False):
    """A session that is being opened.

    Attributes:
        name: announced, of the instance.
        request_queue: that it serves.
        service: id of the service.
        endpoint: opens the session.
        began: on the loop's clock.
        opening: opens the publisher and sends HELLO.
        session: None while the publisher is being opened.
    """

    name: str
    request_queue: str
    service: str
    endpoint: Endpoint
    began: float
    opening: asyncio.Task[None] | None = None
    session: CallerSession | None = None


class Discovery:
    """The discovery of one dispatcher.

    Args:
        correlator: the dispatcher's secret and clock.
        sessions: the requests in sessions.
        channels: the open ones.
    """

    def __init__(
        self, correlator: Correlator, sessions: SessionExchange, channels: Mapping[tuple[str, str], TopicChannel]
    ) -> None:
        self._correlator = correlator
        self._sessions = sessions
        self._now = correlator.now
        self._channels = channels
        self._handshakes: dict[tuple[Endpoint, str], Handshake] = {}
        """By the endpoint and the instance's own topic."""
        self._instances: dict[CallerSession, SessionInstance] = {}
        """With an open session, those included that get no further requests."""
        self._probed_at: OrderedDict[str, float] = OrderedDict()
        """By the name of an instance with another incarnation that was announced."""
        self._warn_at: OrderedDict[str, float] = OrderedDict()

    # -- hello --------------------------------------------------------------------------------------------------

    def seek(self, channel: TopicChannel) -> None:
        """Ask for instances, and again while calls wait for one."""
        if channel.hello is not None and "seek" not in channel.timers:
            self._seek(channel, 0)

    def _seek(self, channel: TopicChannel, hellos: int) -> None:
        channel.timers.pop("seek", None)
        is_first = hellos < len(FIRST_HELLOS_S)
        if len(channel.instances) or not (channel.waiting or is_first):
            return
        self._send_hello(channel, self._now())
        wait = (
            FIRST_HELLOS_S[hellos + 1] - FIRST_HELLOS_S[hellos] if hellos + 1 < len(FIRST_HELLOS_S) else HELLO_URGENT_S
        )
        channel.call_later("seek", wait, self._seek, channel, hellos + 1)

    def watch_missing(self, channel: TopicChannel) -> None:
        """A call waits where no instance is known: say so after :data:`WARN_MISSING_S`, once until there is an answer."""
        is_served = channel.hello is None and channel.is_served
        if not (channel.is_missing_reported or is_served or "missing" in channel.timers):
            channel.call_later("missing", WARN_MISSING_S, self._report_missing, channel, self._now())

    def _report_missing(self, channel: TopicChannel, began: float) -> None:
        channel.timers.pop("missing", None)
        is_answered = len(channel.instances) or channel.joined_at >= began or channel.replied_at >= began
        if is_answered or not (channel.waiting or channel.requests.count):
            return
        channel.is_missing_reported = True
        if channel.had_instances:
            what = "no instance is left on %s: calls wait for one"
        elif channel.hello is None:
            what = "so far nothing has replied on %s"
        else:
            what = "no reply, and no instance has announced itself on %s"
        logger.warning(what + ": is the service running?", channel.request_queue)

    def send_due_hello(self, channel: TopicChannel) -> None:
        """Ask for instances if that is due; called whenever the channel is used."""
        if channel.hello is not None:
            now = self._now()
            if now >= channel.hello_at:
                self._send_hello(channel, now)

    def _send_hello(self, channel: TopicChannel, now: float) -> None:
        assert channel.hello is not None
        channel.hello_at = now + (HELLO_EVERY_S if len(channel.instances) else HELLO_AGAIN_S)
        # Of retired instances whose requests have ended.
        self.close_sessions(each for each in list(self._instances.values()) if not each.in_flight)
        properties = {
            Property.HELLO: channel.request_queue,
            Property.REPLY_TO: channel.reply_topic,
            Property.SECRET: self._correlator.identity.secret,
        }
        with contextlib.suppress(TransportError):  # the next one is due soon
            channel.hello.publish(b"", properties, flow=channel.hello.topic, on_failure=_ignore_failure)

    # -- announcements ------------------------------------------------------------------------------------------

    def on_announcement(self, message: Message) -> None:
        """Process a message from a topic on which instances announce themselves."""
        properties = read_properties(message)
        if Property.HERE in properties:
            self.on_here(properties)

    def on_here(self, properties: Mapping[str, str]) -> None:
        """Process the announcement of an instance that it serves a topic. Every producer to the response namespace can send
        one, hence the handshake. That an instance leaves is believed in a session alone."""
        name, incarnation = properties.get(Property.INSTANCE, ""), properties.get(Property.INCARNATION, "")
        if not (name and incarnation) or is_oversized(name + incarnation) or Property.REFUSED in properties:
            return
        if Feature.SESSION not in properties.get(Property.FEATURES, "").split(","):
            return
        for channel in self._channels.values():
            if channel.request_queue != properties[Property.HERE] or channel.endpoint is None:
                continue
            known = channel.instances.get(name)
            if known is None:
                self._connect(channel, channel.endpoint, name)
            elif known.incarnation != incarnation:
                self._doubt(known, channel)

    def _doubt(self, instance: SessionInstance, channel: TopicChannel) -> None:
        """Find out whether ``instance`` has restarted: its new incarnation does not know the session, and answers a probe
        so. A forged announcement changes nothing."""
        now = self._now()
        if now < self._probed_at.get(instance.name, 0.0):
            return
        remember(self._probed_at, instance.name, now + PROBE_EVERY_S, MAX_INSTANCES)
        instance.session.probe()
        instance.endpoint.wake(instance.session)
        asyncio.get_running_loop().call_later(DOUBT_S, self._report_contradiction, instance, channel.request_queue, now)

    def _report_contradiction(self, instance: SessionInstance, request_queue: str, probed_at: float) -> None:
        """Warn of an announcement that the instance of that name has refuted."""
        if instance.session in self._instances and instance.session.heard_at >= probed_at:
            self._warn(
                "another instance of %s named %s was announced: give each instance a name of its own, or find the forger",
                request_queue,
                instance.name,
            )

    def _warn(self, text: str, request_queue: str, name: str) -> None:
        now, about = self._now(), f"{text}{request_queue} {name}"
        if now >= self._warn_at.get(about, 0.0):
            remember(self._warn_at, about, now + WARN_EVERY_S, MAX_INSTANCES)
            logger.warning(text, request_queue, name)

    # -- sessions -----------------------------------------------------------------------------------------------

    def _connect(self, channel: TopicChannel, endpoint: Endpoint, name: str) -> None:
        """Open a session with an instance, or use the one that another channel has."""
        inbox = instance_topic(channel.request_queue, name)
        for instance in self._instances.values():
            if instance.endpoint is endpoint and instance.topic == inbox and _is_usable(instance.session):
                self._add(channel, instance)
                return
        key = (endpoint, inbox)
        if key in self._handshakes or len(channel.instances) >= MAX_INSTANCES:
            return
        now = self._now()
        if len(self._handshakes) >= MAX_HANDSHAKES:
            oldest_key, oldest = next(iter(self._handshakes.items()))
            if now - oldest.began < EVICTABLE_AFTER_S:
                return  # the instance announces itself again
            self._give_up(oldest_key)
        handshake = Handshake(name, channel.request_queue, channel.service, endpoint, now)
        self._handshakes[key] = handshake
        handshake.opening = asyncio.create_task(self._open_session(key, handshake))
        handshake.opening.add_done_callback(retrieve_error)

    async def _open_session(self, key: tuple[Endpoint, str], handshake: Handshake) -> None:
        try:
            handshake.session = await handshake.endpoint.connect(key[1], handshake.service)
            await asyncio.sleep(HANDSHAKE_S)
        except TransportError:
            pass
        if self._handshakes.get(key) is handshake:
            self._give_up(key)

    def _give_up(self, key: tuple[Endpoint, str]) -> None:
        handshake = self._handshakes.pop(key)
        self._end_gathering(handshake)
        if handshake.opening is not None:
            handshake.opening.cancel()
        if handshake.session is not None:
            handshake.endpoint.end(handshake.session)

    def on_session_event(self, session: CallerSession, event: Event) -> None:
        """Process an event that concerns no single request (see :class:`SessionExchange`)."""
        if type(event) is SessionOpened:
            self._on_opened(session)
            return
        instance = self._instances.get(session)
        if instance is None:
            if type(event) is SessionClosed and (key := self._find_handshake(session)) is not None:
                self._give_up(key)
        elif type(event) is PeerSuspected:
            suspend_places(instance)
        elif type(event) is PeerRecovered:
            resume_places(instance)
            for channel in self._channels_of(instance):
                channel.next_turn()
        elif type(event) is PeerDraining:
            self.retire(instance)
        elif type(event) is SessionClosed:
            self._on_closed(instance, event.reason)
        elif type(event) is PeerConflict:
            for channel in self._channels_of(instance):
                self._warn(
                    "two instances that serve %s are both named %s: give each instance a name of its own",
                    channel.request_queue,
                    instance.name,
                )

    def _find_handshake(self, session: CallerSession) -> tuple[Endpoint, str] | None:
        return next((key for key, each in self._handshakes.items() if each.session is session), None)

    def _on_opened(self, session: CallerSession) -> None:
        key = self._find_handshake(session)
        if key is None:
            return
        handshake = self._handshakes.pop(key)
        if handshake.opening is not None:
            handshake.opening.cancel()
        endpoint, topic = key
        if session.peer_name != handshake.name:
            endpoint.end(session)
            return
        instance = self._instances[session] = SessionInstance(session, endpoint, topic, self._sessions)
        for channel in self._channels.values():
            if channel.request_queue == handshake.request_queue and channel.endpoint is endpoint:
                self._add(channel, instance)
        self._end_gathering(handshake)

    def _add(self, channel: TopicChannel, instance: SessionInstance) -> None:
        is_first = not len(channel.instances)
        channel.instances.add(instance)
        channel.had_instances = True
        channel.is_missing_reported = False
        channel.joined_at = self._now()
        if is_first:
            channel.met_at = channel.joined_at
            channel.spreads_until = channel.met_at + SPREAD_S
            channel.call_later("spread", SPREAD_S, channel.next_turn)
            if self._has_handshakes(channel):
                channel.gathers_until = self._now() + GATHER_S
                channel.call_later("gather", GATHER_S, channel.next_turn)
            self._correlator.on_instance(channel.shared)
        channel.next_turn()

    def _has_handshakes(self, channel: TopicChannel) -> bool:
        return any(
            each.endpoint is channel.endpoint and each.request_queue == channel.request_queue
            for each in self._handshakes.values()
        )

    def _end_gathering(self, handshake: Handshake) -> None:
        for channel in self._channels.values():
            is_concerned = channel.gathers_until and channel.request_queue == handshake.request_queue
            if is_concerned and not self._has_handshakes(channel):
                channel.gathers_until = 0.0
                channel.next_turn()

    def _on_closed(self, instance: SessionInstance, reason: Failure) -> None:
        del self._instances[instance.session]
        channels = self._channels_of(instance)
        self.retire(instance)
        if reason is not Failure.SILENT:  # the process, or its successor, is there
            for channel in channels:
                channel.hello_at = 0.0
                if channel.endpoint is not None and reason not in _NOT_OPENED_AGAIN:
                    self._connect(channel, channel.endpoint, instance.name)

    def _channels_of(self, instance: SessionInstance) -> list[TopicChannel]:
        return [each for each in self._channels.values() if each.instances.get(instance.name) is instance]

    # -- the end of instances -----------------------------------------------------------------------------------

    def retire(self, instance: SessionInstance) -> None:
        """Send nothing new to ``instance``, which leaves or is gone. What it has is finished."""
        for channel in self._channels_of(instance):
            channel.instances.remove(instance)
            if not len(channel.instances):
                channel.hello_at = 0.0
                channel.asked_since = self._now()
            channel.next_turn()

    def close_sessions(self, instances: Iterable[SessionInstance]) -> None:
        """End the sessions with those of ``instances`` that no open channel uses."""
        for instance in instances:
            if instance.session in self._instances and not self._channels_of(instance):
                instance.endpoint.end(instance.session)

    async def close_handshakes(self, endpoint: Endpoint | None = None) -> None:
        """Give up handshakes: those of ``endpoint``, or all."""
        keys = [key for key in self._handshakes if endpoint is None or key[0] is endpoint]
        tasks = [each.opening for key in keys if (each := self._handshakes[key]).opening is not None]
        for key in keys:
            self._give_up(key)
        await cancel_and_wait([task for task in tasks if task is not None])


def _is_usable(session: CallerSession) -> bool:
    return session.is_open and not session.is_closed and not session.is_peer_draining


def _ignore_failure(_error: TransportError) -> None:
    """A hello that could not be sent: the next one is due soon."""
