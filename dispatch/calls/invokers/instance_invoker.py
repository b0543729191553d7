"""Steps d and e of an attempt: the balancer picks an instance, and the exchange sends the request and awaits the reply."""

from __future__ import annotations

import asyncio
import contextlib

from dispatch._internal.permit import Rejection
from dispatch.calls.call_state import Attempt, Call
from dispatch.calls.error_messages import (
    error_from_disconnection,
    error_from_key_holder_loss,
    error_from_missing_instance,
    error_from_rejection,
    error_from_unfragmentable_request,
)
from dispatch.calls.resolution.resolution_errors import error_from_requirement
from dispatch.calls.resolution.resolved_tool import ResolvedTool
from dispatch.errors import DispatchError, Outcome
from dispatch.messaging.rpc.correlation import Correlator
from dispatch.messaging.rpc.exchange_outcome import Answer, Lost, Settled
from dispatch.messaging.rpc.fragmented_publish import FragmentedRequest
from dispatch.messaging.rpc.retransmission import Repair
from dispatch.messaging.rpc.retransmittable_request import RetransmittableRequest
from dispatch.messaging.wire.codec import PLAIN_FROM
from dispatch.messaging.wire.properties import Property, Refusal
from dispatch.resilience.retry.decision import RetryTarget
from dispatch.routing.channel import Channel
from dispatch.routing.channel_registry import Channels
from dispatch.routing.instance_pool import InstancePool, SelectedInstance
from dispatch.routing.pool_registry import PoolRegistry
from dispatch.routing.reply_connections import MAX_REPLY_CONNECTIONS, ReplyConnection
from dispatch.transports import Publisher, Transport

STREAM_BUFFER = 1024
"""Chunks held for a reader that is slower than its stream: seconds of a fast model. A reader further behind gets an error,
because a non-persistent topic cannot be held back."""
DISCOVERY_S = 1.0
"""Seconds that a call which only a known instance may execute waits for one: the time between two hellos."""
MAX_HOPS = 4
"""Instances that are tried in turn while each one declines the request because it is draining."""

_SUCCESS = Outcome.SUCCESS
_KEY_HOLDER = RetryTarget.KEY_HOLDER
_NO_INSTANCE = Rejection("balancer", "no-instance")


class InstanceInvoker:
    """Sends requests to the instances of services (:class:`~dispatch.calls.attempt.Invoker`).

    Args:
        transport: the connection.
        correlator: the requests in flight.
        channels: topics and discovery.
        pools: the instances of each service.
    """

    def __init__(self, transport: Transport, correlator: Correlator, channels: Channels, pools: PoolRegistry) -> None:
        self._transport = transport
        self._correlator = correlator
        self._channels = channels
        self._pools = pools
        self._now = correlator.now

    @property
    def is_connected(self) -> bool:
        """Whether the broker is in reach."""
        return self._transport.connected

    async def await_connection(self, call: Call) -> None:
        """Wait for the broker to come back, for a moment.

        Raises:
            TransportError: it did not.
        """
        if not await self._transport.await_connection(call.deadline):
            raise error_from_disconnection(call.tool.label, self._transport.url)

    def has_untried(self, call: Call) -> bool:
        """Whether the service has an instance that no attempt of the call was sent to."""
        pool = self._pools.get(call.tool)
        if pool is None:
            return False
        requires = call.tool.requires
        names = [view.id for view in pool.instances()] if requires is None else pool.select_versions(requires)
        return any(name not in call.tried for name in names)

    def attribute_failure(self, attempt: Attempt) -> None:
        """See :meth:`Attempt.attribute_failure`."""
        disconnected_since = self._transport.was_disconnected_since(attempt.began)
        attempt.attribute_failure(disconnected=disconnected_since, now=self._now())

    async def invoke(self, attempt: Attempt) -> None:
        """Send the request and await the reply; where a draining instance declines it, send it to another one.

        Raises:
            DispatchError: no instance may or can have the request, or its topics cannot be opened.
        """
        call = attempt.call
        tool = call.tool
        pool = call.guards.pool = self._pools.get(tool) or await self._pools.open(tool, call.deadline)
        is_large = len(call.payload) > self._transport.max_message_bytes  # it is sent in fragments
        if (is_large or tool.policy.known_instances_only) and not pool.known:
            await self._await_instance(pool, call.deadline)
        if pool.new and pool.held():
            pool = call.guards.pool = await self._await_turn(tool, pool, call.deadline)
        attempt.start(self._now())
        hops = 0
        while True:
            hops += 1
            publisher, properties = self._address(attempt, pool, is_large)
            if call.is_stream:
                settled = await self._await_first_chunk(attempt, pool, publisher, properties)
                if settled is None:
                    return
                attempt.conclude_stream()
            else:
                settled = await self._correlator.request(
                    attempt.request_id,
                    publisher,
                    call.payload,
                    properties,
                    flow=tool.label,
                    deadline=attempt.deadline,
                    clock=attempt.clock,
                    max_bytes=tool.policy.max_response_bytes,
                    line=attempt.retransmission,
                    tally=pool.tally,
                )
                attempt.conclude(settled)
            if attempt.outcome is _SUCCESS or hops >= MAX_HOPS or not self._is_declined(attempt, settled):
                return
            attempt.release_instance()

    async def _await_first_chunk(
        self, attempt: Attempt, pool: InstancePool, publisher: Publisher, properties: dict[str, str]
    ) -> Settled | None:
        """Send the request of a stream. None: its first chunk is there; otherwise how it ended without one."""
        call, policy = attempt.call, attempt.call.tool.policy
        replies = attempt.replies = self._correlator.stream(
            attempt.request_id,
            publisher,
            call.payload,
            properties,
            flow=call.tool.label,
            deadline=call.deadline,
            idle=call.idle,
            max_bytes=policy.max_response_bytes,
            max_buffer=STREAM_BUFFER,
            line=attempt.retransmission,
            tally=pool.tally,
        )
        try:
            if replies.settled is not None:
                await asyncio.sleep(0)  # as in Correlator.request
            chunk = await anext(replies, None)
        except BaseException:
            replies.close()
            raise
        if chunk is None:
            return replies.settled
        attempt.record_first_chunk(chunk, self._now())
        return None

    # -- d: the instance ----------------------------------------------------------------------------------------

    def _address(self, attempt: Attempt, pool: InstancePool, is_large: bool) -> tuple[Publisher, dict[str, str]]:
        """Pick the instance; return the publisher of the request and its properties.

        Raises:
            DispatchError: there is no instance that may, or can, have the request.
        """
        attempt.clear()
        call, at_home = attempt.call, attempt.target is _KEY_HOLDER
        options = call.options
        key = options.idempotency_key
        selected = pool.pick(
            call.guards,
            call.tried,
            key=key if at_home else None,
            user=options.user,
            refused=call.refused_by,
            parts=is_large,
            requires=call.tool.requires,
        )
        if selected is None:
            raise self._error_without_instance(call.tool, pool)
        attempt.selected = selected
        instance = selected.instance
        if call.key_holder is not None and at_home and instance is not call.key_holder:
            raise error_from_key_holder_loss(call.tool.label)
        if is_large and (instance is None or not instance.parts):
            raise error_from_unfragmentable_request(
                call.tool.label, len(call.payload), self._transport.max_message_bytes
            )
        call.tried.append(selected.pick.instance)
        attempt.request_id = self._correlator.new_id()
        attempt.request = call.observer.on_request(
            selected.topic, selected.route.request_queue, attempt.request_id, attempt.number, attempt.reason
        )
        publisher, properties = self._compose(attempt, selected)
        attempt.sent = True
        call.requests += 1
        if key is not None and at_home and instance is not None:
            attempt.claim_key(pool, instance)
        return publisher, properties

    @staticmethod
    def _error_without_instance(tool: ResolvedTool, pool: InstancePool) -> DispatchError:
        requires = tool.requires
        if requires is None or pool.select_versions(requires):
            return error_from_rejection(_NO_INSTANCE, tool.label)
        return error_from_requirement(tool.label, tool.service_id, requires.text, pool.versions, by="balancer")

    def _compose(self, attempt: Attempt, selected: SelectedInstance) -> tuple[Publisher, dict[str, str]]:
        """Return the publisher of the request and its properties; set how it is retransmitted.

        Raises:
            RejectedError: no instance is known that may have it.
        """
        call, channel, instance = attempt.call, selected.route, selected.instance
        tool, policy, payload = call.tool, call.tool.policy, call.payload
        now, limit = self._now(), self._transport.max_message_bytes
        is_large = len(payload) > limit
        if instance is None:
            if policy.known_instances_only and channel.hello is not None:
                raise error_from_missing_instance(tool.label, channel.request_queue)
            properties = self._properties(attempt, channel, channel.replies.first, now)
            if tool.may_be_redelivered(call.options.idempotency_key):
                properties[Property.REPEATABLE] = "1"
            attempt.retransmission = None
            return channel.publisher, properties
        # A persistent topic keeps everything: its replies need no further connections.
        lane = channel.replies.pick(self._correlator.pending, MAX_REPLY_CONNECTIONS if channel.acknowledged else 1)
        properties = self._properties(attempt, channel, lane, now)
        properties[Property.INCARNATION] = instance.incarnation
        if not instance.is_proven:
            properties[Property.ACK] = "1"  # the next request waits for its acknowledgement
        if channel.replies.mean_reply_bytes >= PLAIN_FROM:
            properties[Property.PLAIN] = "1"
        # An earlier request on the shared topic may arrive at this instance later than this one. If this one settled it,
        # the instance would refuse it.
        settled = None if channel.unaddressed else instance.settled(attempt.request_id)
        if settled is not None:
            properties[Property.SETTLED] = settled
        repair = Repair(now, call.guards.patience.seconds, policy.instance_timeout)
        fragmented = None
        if is_large:
            fragmented = FragmentedRequest(instance.publisher, payload, limit)
            properties |= fragmented.about
        attempt.retransmission = RetransmittableRequest(
            instance, repair, b"" if is_large else payload, properties, tool.label, lane, fragmented
        )
        acknowledged = self._channels.carried(instance)
        if acknowledged is not None:
            # Once: a retransmission repeats the properties of the request.
            properties = {**properties, Property.ACKED: acknowledged}
        return fragmented or instance.publisher, properties

    def _properties(self, attempt: Attempt, channel: Channel, lane: ReplyConnection, now: float) -> dict[str, str]:
        policy, key = attempt.call.tool.policy, attempt.call.options.idempotency_key
        # A keyed request goes on when its attempt ends: the next attempt gets its reply.
        deadline = attempt.deadline if key is None else attempt.call.deadline
        properties = {
            Property.ID: attempt.request_id,
            Property.REPLY_TO: lane.topic,
            Property.SESSION: self._correlator.session.secret,
            Property.REMAINING_MS: str(max(1, int((deadline - now) * 1000))),
            Property.LARGEST: str(policy.max_response_bytes),
            **attempt.request.properties,
        }
        if key is not None:
            properties[Property.IDEMPOTENCY_KEY] = key
        if channel.acknowledged:
            properties[Property.CREDIT] = str(self._channels.credit)
        if attempt.number > 1:
            properties[Property.ATTEMPT] = str(attempt.number)
        return properties

    def _is_declined(self, attempt: Attempt, settled: Settled) -> bool:
        """Whether the instance is draining and did not execute the request, so that another one may. An instance that is
        gone, or goes, gets no further requests."""
        selected = attempt.selected
        if selected is None or selected.instance is None:
            return False
        channel, instance = selected.route, selected.instance
        if isinstance(settled, Lost):
            self._channels.discovery.retire(channel, instance)
            return False
        if not isinstance(settled, Answer):
            return False
        refused = settled.refused
        if refused not in (Refusal.DRAINING, Refusal.INSTANCE_RESTARTED):
            return False
        self._channels.discovery.retire(channel, instance)
        # Without another known instance the caller is told at once. And a former incarnation may have executed it.
        return refused == Refusal.DRAINING and len(channel.instances) > 0

    # -- waiting for instances ----------------------------------------------------------------------------------

    async def _await_instance(self, pool: InstancePool, deadline: float) -> None:
        """Wait until an instance is known, for at most :data:`DISCOVERY_S`."""
        channels = [channel for channel in pool.routes if channel.hello is not None]
        if not channels:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(min(deadline, self._now() + DISCOVERY_S)):
                while not pool.known:
                    for channel in channels:
                        self._channels.discovery.send_due_hello(channel)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(DISCOVERY_S / 4):
                            await channels[0].met.wait()

    async def _await_turn(self, tool: ResolvedTool, pool: InstancePool, deadline: float) -> InstancePool:
        """Wait while every instance is new and has not answered its first request. Return the pool, open: all its instances
        may have been replaced meanwhile."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                while held := pool.held():
                    turn = asyncio.Event()
                    for instance in held:
                        instance.on_turn(turn.set)
                    await turn.wait()
                    pool = self._pools.get(tool) or await self._pools.open(tool, deadline)
        return pool
