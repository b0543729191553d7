"""Steps d and e of an attempt: the balancer picks an instance, and the exchange sends the request and awaits the reply."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from dispatch._internal.permit import Rejection
from dispatch.calls.call_state import Attempt, Call, Replies
from dispatch.calls.error_messages import (
    error_from_disconnection,
    error_from_key_holder_loss,
    error_from_missing_instance,
    error_from_oversized_request,
    error_from_rejection,
    error_from_unanswered_request,
    error_from_unserved_topic,
)
from dispatch.calls.resolution.resolution_errors import error_from_requirement
from dispatch.calls.resolution.resolved_tool import ResolvedTool
from dispatch.errors import DispatchError, Outcome, TransportError
from dispatch.messaging.rpc.correlation import Correlator
from dispatch.messaging.rpc.exchange_outcome import Answer, Lost, Settled, TimedOut
from dispatch.messaging.rpc.pending import ReplyStream, Single, Slot
from dispatch.messaging.rpc.session_exchange import SessionExchange
from dispatch.messaging.rpc.session_request import SessionRequest, SessionStream
from dispatch.messaging.wire.properties import Property, Refusal
from dispatch.protocol.events import Failure
from dispatch.resilience.retry.decision import RetryTarget
from dispatch.routing.channel import DISCOVERY_S, GONE_S, Channel
from dispatch.routing.channel_registry import Channels
from dispatch.routing.instance import Instance
from dispatch.routing.instance_pool import InstancePool, SelectedInstance
from dispatch.routing.pool_registry import PoolRegistry
from dispatch.transports import Transport

STREAM_BUFFER = 4 * 1024 * 1024
"""Bytes of chunks, each its payload and 64, held for a reader that is slower than the stream of a third-party service:
60,000 chunks of a model. A reader further behind gets an error, because the plain exchange cannot hold a service back."""
LEAST_REST = 0.1
"""Share of a call's time that is left to the tool when its call waits for an instance, where it usually takes less."""
MAX_WAITING = 20_000
"""Calls that wait for an instance at once: some kilobytes each."""
MAX_HOPS = 4
"""Instances that are tried in turn while each one declines the request, because it is draining or overloaded."""

_ENDED = frozenset({Failure.SILENT, Failure.RESTARTED, Failure.CLOSED})
"""Why a session ends whose instance has ended, or is about to: another one may take its place."""
_SUCCESS = Outcome.SUCCESS
_KEY_HOLDER = RetryTarget.KEY_HOLDER
_NO_INSTANCE = Rejection("balancer", "no-instance")


class InstanceInvoker:
    """Sends requests to the instances of services (:class:`~dispatch.calls.attempt.Invoker`).

    Args:
        transport: the connection.
        correlator: the requests in flight of the plain exchange.
        sessions: the requests in flight in sessions.
        channels: topics and discovery.
        pools: the instances of each service.
    """

    def __init__(
        self,
        transport: Transport,
        correlator: Correlator,
        sessions: SessionExchange,
        channels: Channels,
        pools: PoolRegistry,
    ) -> None:
        self._transport = transport
        self._correlator = correlator
        self._sessions = sessions
        self._channels = channels
        self._pools = pools
        self._now = correlator.now
        self._waiting = 0

    def is_ready(self, call: Call) -> bool:
        """Whether the request of a call can be sent now: the broker is in reach, and an instance."""
        pool = self._pools.get(call.tool)
        return pool is not None and self._transport.connected and self._can_send(pool, call)

    def _can_send(self, pool: InstancePool, call: Call) -> bool:
        tool = call.tool
        is_large = len(call.payload) > self._transport.max_message_bytes  # only a session carries it
        return pool.can_send(
            needs_instance=is_large or tool.policy.known_instances_only,
            repeatable=tool.repeatable,
            requires=tool.requires,
        )

    async def await_ready(self, call: Call) -> None:
        """Wait for the broker, briefly, and for an instance of the tool's service: until :meth:`_latest_start`.

        Raises:
            DispatchError: there is none. Nothing was sent.
        """
        tool, deadline = call.tool, call.deadline
        if not self._transport.connected and not await self._transport.await_connection(deadline):
            raise error_from_disconnection(tool.label, self._transport.url)
        pool = self._pools.get(tool) or await self._pools.open(tool, deadline)
        if self._can_send(pool, call):
            return
        for route in pool.routes:
            if not (route.is_known or self._transport.has_subscriber(route.request_queue)):
                raise error_from_unserved_topic(tool.label, route.request_queue)
        if self._waiting >= MAX_WAITING:
            raise error_from_rejection(_NO_INSTANCE, tool.label)
        ends = self._latest_start(call)
        is_over = False
        self._waiting += 1
        try:
            while is_over or not self._can_send(pool, call):
                now = self._now()
                errors = [route.opening_error for route in pool.routes]
                if errors[0] is not None and all(errors):
                    raise TransportError(errors[0].type, errors[0].message, sent=False)
                if now >= ends:
                    if (size := len(call.payload)) > (limit := self._transport.max_message_bytes):
                        raise error_from_oversized_request(tool.label, size, limit)
                    raise self._error_without_instance(tool, pool)
                await self._await_turn(pool.routes, min(ends, now + DISCOVERY_S))
                pool = self._pools.get(tool) or await self._pools.open(tool, deadline)
                # What has waited for instances of dispatch's own does not go to the shared topic.
                is_over = self._now() >= ends and not pool.known and any(each.had_instances for each in pool.routes)
        finally:
            self._waiting -= 1

    def _latest_start(self, call: Call) -> float:
        """Return until when a call waits for an instance: as long as the tool could still be executed afterwards. Where no
        instance has been known for :data:`GONE_S`, only for :data:`DISCOVERY_S`."""
        now, tool = self._now(), call.tool
        usual = call.guards.usual.value(now) or 0.0
        latest = call.deadline - min(max(usual, call.limit * LEAST_REST), call.limit / 2)
        pool = self._pools.get(tool)
        if pool is None or pool.known:
            return latest
        if tool.policy.known_instances_only or any(route.had_instances for route in pool.routes):
            gone = max(route.asked_since for route in pool.routes) + GONE_S
        elif len(call.payload) > self._transport.max_message_bytes:
            gone = now
        else:
            return latest
        return min(latest, max(now + DISCOVERY_S, gone))

    async def _await_turn(self, channels: Sequence[Channel], until: float) -> None:
        """Wait for a change of what can be reached through ``channels``."""
        turns = [(channel, channel.create_turn()) for channel in channels]
        for channel in channels:
            self._channels.discovery.seek(channel)
            self._channels.discovery.watch_missing(channel)
        try:
            await asyncio.wait(
                [turn for _, turn in turns], timeout=until - self._now(), return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for channel, turn in turns:
                channel.leave(turn)
                turn.cancel()

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
        """Send the request and await the reply; where an instance declines it, send it to another one.

        Raises:
            DispatchError: no instance may or can have the request, or its topics cannot be opened.
        """
        call = attempt.call
        tool = call.tool
        pool = call.guards.pool = self._pools.get(tool) or await self._pools.open(tool, call.deadline)
        is_large = len(call.payload) > self._transport.max_message_bytes
        attempt.start(self._now())
        hops = 0
        while True:
            hops += 1
            selected = self._select(attempt, pool, is_large)
            if call.is_stream:
                settled = await self._await_first_chunk(attempt, pool, selected)
                if settled is None:
                    return
                attempt.conclude_stream()
            else:
                if selected.instance is None:
                    request: Single | SessionRequest = self._send_plainly(attempt, pool, selected.route)
                else:
                    request = self._send_in_session(attempt, pool, selected.instance)
                try:
                    settled = await request.waiter
                except asyncio.CancelledError:
                    request.abandon()
                    raise
                attempt.conclude(settled)
            if type(settled) is TimedOut and selected.instance is None and not selected.route.is_known:
                attempt.fail(
                    error_from_unanswered_request(
                        tool.label,
                        attempt.limit,
                        settled.clock,
                        selected.route.request_queue,
                        repeatable=tool.repeatable,
                    )
                )
            if selected.instance is None and type(settled) is Answer and settled.instance is None:
                selected.route.record_answer(self._now())
            if (
                attempt.outcome is _SUCCESS
                or hops >= MAX_HOPS
                or not self._is_declined(attempt, pool, selected, settled)
            ):
                return
            was_sent = attempt.sent
            attempt.release_instance()
            attempt.clear(self._now())
            if not self._can_send(pool, call):
                if attempt.admission.place is not None:
                    attempt.admission.place.suspend()
                try:
                    await self.await_ready(call)
                except DispatchError:
                    attempt.sent = was_sent
                    attempt.conclude(settled)  # no instance has taken the place of the one that declined
                    return
                pool = call.guards.pool = self._pools.get(tool) or await self._pools.open(tool, call.deadline)
                attempt.clear(self._now())

    async def _await_first_chunk(
        self, attempt: Attempt, pool: InstancePool, selected: SelectedInstance
    ) -> Settled | None:
        """Send the request of a stream. None: its first chunk is there; otherwise how it ended without one."""
        if selected.instance is None:
            replies: Replies = self._stream_plainly(attempt, pool, selected.route)
        else:
            replies = self._stream_in_session(attempt, pool, selected.instance)
        attempt.replies = replies
        try:
            chunk = await anext(replies, None)
        except BaseException:
            replies.close()
            raise
        if chunk is None:
            return replies.settled
        attempt.record_first_chunk(chunk, self._now())
        return None

    # -- d: the instance ----------------------------------------------------------------------------------------

    def _select(self, attempt: Attempt, pool: InstancePool, is_large: bool) -> SelectedInstance:
        """Pick the instance of the next request.

        Raises:
            DispatchError: there is no instance that may, or can, have the request.
        """
        call, at_home = attempt.call, attempt.target is _KEY_HOLDER
        options = call.options
        key = options.idempotency_key
        selected = pool.pick(
            call.guards,
            call.tried,
            key=key if at_home else None,
            user=options.user,
            refused=call.refused_by,
            is_large=is_large,
            requires=call.tool.requires,
        )
        if selected is None:
            raise self._error_without_instance(call.tool, pool)
        attempt.selected = selected
        instance = selected.instance
        if call.key_holder is not None and at_home and instance is not call.key_holder:
            raise error_from_key_holder_loss(call.tool.label)
        if instance is None:
            if is_large:
                raise error_from_oversized_request(
                    call.tool.label, len(call.payload), self._transport.max_message_bytes
                )
            if call.tool.policy.known_instances_only and selected.route.hello is not None:
                raise error_from_missing_instance(call.tool.label, selected.route.request_queue)
            attempt.request_id = self._correlator.new_id()
        else:
            attempt.request_id = instance.next_request_id
        call.tried.append(selected.pick.instance)
        attempt.request = call.observer.on_request(
            selected.topic, selected.route.request_queue, attempt.request_id, attempt.number, attempt.reason
        )
        if instance is None:
            self._channels.discovery.watch_missing(selected.route)
        attempt.sent = True
        call.requests += 1
        if key is not None and at_home and instance is not None:
            attempt.claim_key(pool, instance)
        return selected

    @staticmethod
    def _error_without_instance(tool: ResolvedTool, pool: InstancePool) -> DispatchError:
        requires = tool.requires
        if not pool.known and pool.routes[0].hello is not None:
            return error_from_missing_instance(tool.label, pool.routes[0].request_queue)
        if requires is None or pool.select_versions(requires):
            return error_from_rejection(_NO_INSTANCE, tool.label)
        return error_from_requirement(tool.label, tool.service_id, requires.text, pool.versions, by="balancer")

    def _is_declined(self, attempt: Attempt, pool: InstancePool, selected: SelectedInstance, settled: Settled) -> bool:
        """Whether the instance surely did not execute the request, because it is draining, overloaded or gone, so that
        another one may; or an instance was found for a repeatable request that was sent to the shared topic. After an
        instance that has ended the call waits for one, unless it is a hedge."""
        if selected.instance is None:
            return type(settled) is Lost and not settled.sent
        if type(settled) is Answer and settled.refused == Refusal.OVERLOADED:
            return pool.has_other(selected.instance.name)
        if type(settled) is Answer and settled.refused == Refusal.DRAINING:
            self._channels.discovery.retire(selected.instance)
            has_ended = True
        elif not isinstance(settled, Lost | TransportError) or settled.sent:
            return False
        else:
            has_ended = isinstance(settled, Lost) and settled.reason in _ENDED
        return len(selected.route.instances) > 0 or (has_ended and attempt.reason != "hedge")

    # -- e: a request in a session ------------------------------------------------------------------------------

    def _send_in_session(self, attempt: Attempt, pool: InstancePool, instance: Instance) -> SessionRequest:
        call = attempt.call
        request = SessionRequest(
            self._sessions,
            instance,
            attempt.deadline,
            attempt.clock,
            call.tool.policy.max_response_bytes,
            pool.tally,
            attempt.last_deadline,
        )
        self._send(attempt, request)
        return request

    def _stream_in_session(self, attempt: Attempt, pool: InstancePool, instance: Instance) -> SessionStream:
        call = attempt.call
        stream = SessionStream(
            self._sessions,
            instance,
            call.deadline,
            call.tool.policy.max_response_bytes,
            pool.tally,
            idle=call.idle,
        )
        self._send(attempt, stream)
        return stream

    def _send(self, attempt: Attempt, request: SessionRequest) -> None:
        call, key = attempt.call, attempt.call.options.idempotency_key
        request.place = attempt.admission.place
        headers, run_until = attempt.request.properties, None
        if attempt.last_deadline > attempt.deadline:
            run_until = attempt.last_deadline  # CANCEL ends it earlier, unless the instance is blocked
        if key is not None or attempt.number > 1:
            headers = dict(headers)
            if attempt.number > 1:
                headers[Property.ATTEMPT] = str(attempt.number)
            if key is not None:
                headers[Property.IDEMPOTENCY_KEY] = key
                # It runs on when its attempt ends: the next attempt gets its reply.
                run_until = call.deadline
        self._sessions.send(request, call.tool.label, call.payload, headers or None, run_until)

    # -- e: the plain exchange ----------------------------------------------------------------------------------

    def _send_plainly(self, attempt: Attempt, pool: InstancePool, channel: Channel) -> Single:
        correlator, max_bytes = self._correlator, attempt.call.tool.policy.max_response_bytes
        request = Single(
            correlator,
            attempt.request_id,
            attempt.deadline,
            attempt.clock,
            max_bytes,
            pool.tally,
            waiter=correlator.loop.create_future(),
        )
        self._publish(attempt, request, channel)
        return request

    def _stream_plainly(self, attempt: Attempt, pool: InstancePool, channel: Channel) -> ReplyStream:
        call, max_bytes = attempt.call, attempt.call.tool.policy.max_response_bytes
        stream = ReplyStream(
            self._correlator,
            attempt.request_id,
            call.deadline,
            "stream",
            max_bytes,
            pool.tally,
            idle=call.idle,
            max_buffer=STREAM_BUFFER,
        )
        self._publish(attempt, stream, channel)
        return stream

    def _publish(self, attempt: Attempt, request: Slot, channel: Channel) -> None:
        call = attempt.call
        properties = self._properties(attempt, channel)
        request.channel, request.place, request.is_repeatable = channel, attempt.admission.place, call.tool.repeatable
        self._correlator.send(request, channel.publisher, call.payload, properties, call.tool.label)

    def _properties(self, attempt: Attempt, channel: Channel) -> dict[str, str]:
        call, tool = attempt.call, attempt.call.tool
        key = call.options.idempotency_key
        # A keyed request goes on when its attempt ends: the next attempt gets its reply.
        deadline = attempt.deadline if key is None else call.deadline
        properties = {
            Property.ID: attempt.request_id,
            Property.REPLY_TO: channel.reply_topic,
            Property.SESSION: self._correlator.session.secret,
            Property.REMAINING_MS: str(max(1, int((deadline - self._now()) * 1000))),
            Property.LARGEST: str(tool.policy.max_response_bytes),
            **attempt.request.properties,
        }
        if key is not None:
            properties[Property.IDEMPOTENCY_KEY] = key
        if attempt.number > 1:
            properties[Property.ATTEMPT] = str(attempt.number)
        if tool.may_be_redelivered(key):
            properties[Property.REPEATABLE] = "1"
        return properties
