"""Where a request goes, with what properties, and how its answer is asked for: to an instance of ours that is known by name,
or to the service's shared topic.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

from dispatch.calls.request import nobody_takes_parts, nobody_there
from dispatch.calls.resolved_tool import ResolvedTool
from dispatch.messaging.rpc.correlation import Correlator
from dispatch.messaging.rpc.fragmented_publish import FragmentedRequest
from dispatch.messaging.rpc.retransmission import Patience, Repair
from dispatch.messaging.rpc.retransmittable_request import RetransmittableRequest
from dispatch.messaging.wire.codec import PLAIN_FROM
from dispatch.messaging.wire.properties import Property
from dispatch.policy import Policy
from dispatch.routing.channel import Channel, Channels
from dispatch.routing.instance_pool import InstancePool, SelectedInstance
from dispatch.routing.reply_connections import ReplyConnection
from dispatch.transports import Publisher, Transport

MEET_S = 1.0
"""How long a call that only an instance of ours may take waits for one to be known: the time between two hellos."""


class Addressing:
    """Addresses requests, for one dispatcher.

    Args:
        transport: knows how large a message may be.
        exchange: knows what is settled, and how much is waited for.
        routes: knows the instances.
    """

    def __init__(self, transport: Transport, exchange: Correlator, routes: Channels) -> None:
        self._transport = transport
        self._exchange = exchange
        self._routes = routes

    def large(self, payload: bytes) -> bool:
        """Does it go in parts only?"""
        return len(payload) > self._transport.max_message_bytes

    def wants_ours(self, target: ResolvedTool, payload: bytes) -> bool:
        """May only an instance of ours have the request, or can nobody else take it?"""
        return target.policy.only_ours or len(payload) > self._transport.max_message_bytes

    async def meet(self, fleet: InstancePool, deadline: float) -> None:
        """Wait until an instance is known, for a moment at most. For requests that :meth:`wants_ours` is true of."""
        routes = [route for route in fleet.routes if route.hello is not None]
        if not routes:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(min(deadline, self._exchange.now() + MEET_S)):
                while not fleet.known:
                    for route in routes:
                        self._routes.greet(route)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(MEET_S / 4):
                            await routes[0].met.wait()

    async def turn(self, fleet: InstancePool, deadline: float) -> None:
        """Wait while every instance is new and has not answered its first request, until ``deadline`` at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                while held := fleet.held():
                    turn = asyncio.Event()
                    for instance in held:
                        instance.on_turn(turn.set)
                    await turn.wait()

    def request(
        self,
        target: ResolvedTool,
        place: SelectedInstance,
        id: str,
        payload: bytes,
        deadline: float,
        idempotency_key: str | None,
        patience: Patience,
        attempt: int = 1,
        carried: Mapping[str, str] | None = None,
    ) -> tuple[Publisher, dict[str, str], RetransmittableRequest | None]:
        """The publisher of a request, its properties (``carried`` among them), and how to ask for its answer; None: it
        cannot be asked for.

        Raises:
            TransportError: nobody is known who may have it.
        """
        exchange, routes, policy = self._exchange, self._routes, target.policy
        route, instance = place.route, place.instance
        now, limit = exchange.now(), self._transport.max_message_bytes
        large = len(payload) > limit
        if large and (instance is None or not instance.parts):
            raise nobody_takes_parts(target.label, len(payload), limit)
        if instance is None:
            if policy.only_ours and route.hello is not None:
                raise nobody_there(target.label, route.request_queue)
            properties = self._properties(
                id, route, route.replies.first, policy, deadline - now, idempotency_key, attempt
            )
            if carried:
                properties |= carried
            if target.redelivered(idempotency_key):
                properties[Property.REPEATABLE] = "1"
            return route.publisher, properties, None
        # What keeps everything on its way (a persistent topic) holds nothing up.
        lane = route.replies.pick(exchange.pending, policy.reply_connections if route.acknowledged else 1)
        properties = self._properties(id, route, lane, policy, deadline - now, idempotency_key, attempt)
        if carried:
            properties |= carried
        properties[Property.INCARNATION] = instance.incarnation
        if not instance.is_proven:
            properties[Property.ACK] = "1"  # the next request waits for its acknowledgement
        if route.replies.mean_reply_bytes >= PLAIN_FROM:
            properties[Property.PLAIN] = "1"
        settled = instance.settled(id)
        if settled is not None:
            properties[Property.SETTLED] = settled
        repair = Repair(now, patience.seconds, policy.give_up_after)
        parted = None
        if large:
            parted = FragmentedRequest(instance.publisher, payload, limit)
            properties |= parted.about
        line = RetransmittableRequest(
            instance, repair, b"" if large else payload, properties, target.label, lane, parted
        )
        acked = routes.carried(instance)
        if acked is not None:
            # Once: a question for the answer repeats the line's own.
            properties = {**properties, Property.ACKED: acked}
        return parted or instance.publisher, properties, line

    def _properties(
        self,
        id: str,
        route: Channel,
        lane: ReplyConnection,
        policy: Policy,
        seconds: float,
        idempotency_key: str | None,
        attempt: int,
    ) -> dict[str, str]:
        properties = {
            Property.ID: id,
            Property.REPLY_TO: lane.topic,
            Property.SESSION: self._exchange.session.secret,
            Property.REMAINING_MS: str(max(1, int(seconds * 1000))),
        }
        if route.acknowledged:
            properties[Property.CREDIT] = str(self._routes.credit)
        if policy.large_payloads:
            properties[Property.LARGEST] = str(policy.max_result)
        if attempt > 1:
            properties[Property.ATTEMPT] = str(attempt)
        if idempotency_key is not None:
            properties[Property.IDEMPOTENCY_KEY] = idempotency_key
        return properties
