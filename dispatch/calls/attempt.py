"""Attempts: step 4 of a call. One attempt passes its tool's guards, gets an instance, makes the exchange, and tells
everybody who gave it a permit how it ended, exactly once, whatever happened.

    a breaker · b limiter · c bulkhead (:mod:`dispatch.calls.admission`)
    d balancer (:mod:`dispatch.routing.instance_pool`) · e exchange · f finish
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from dispatch._internal.permit import Rejection
from dispatch.calls.addressing import Addressing
from dispatch.calls.admission import Admission
from dispatch.calls.attempt_state import FAILURES, Attempt, Call
from dispatch.calls.error_messages import closed, disconnected, refusal
from dispatch.calls.tool_guards import ToolGuards
from dispatch.errors import DispatchError, Outcome, TransportError
from dispatch.messaging.rpc.correlation import Correlator
from dispatch.messaging.rpc.exchange_outcome import Answer, Lost, Settled, TimedOut
from dispatch.messaging.rpc.retransmittable_request import RetransmittableRequest
from dispatch.messaging.wire.properties import Property, Refusal
from dispatch.resilience.attempt_timeout import attempt_slice
from dispatch.resilience.hedging.decision import ANSWERED
from dispatch.resilience.hedging.race import OUTPACED
from dispatch.resilience.retry.decision import RetryTarget
from dispatch.routing.channel import Channels
from dispatch.routing.instance_pool import InstancePool
from dispatch.routing.pool_registry import PoolRegistry
from dispatch.transports import Publisher, Transport

MAX_HOPS = 4
"""Instances that are tried in turn, when each says that it is about to leave and has not run the request."""

_SUCCESS, _TIMEOUT, _TOOL_ERROR = Outcome.SUCCESS, Outcome.TIMEOUT, Outcome.TOOL_ERROR
_HOME = RetryTarget.HOME
_TIMED = ANSWERED | {_TIMEOUT}
_KEEPER_GONE = (
    "The service instance that had the request has gone, and with it what it knew of its idempotency key. It may have run "
    "all the same: do not repeat the call unless you know that it did nothing."
)
NOTHING: Mapping[str, str] = {}
_NOBODY = Rejection("balancer", "no-instance")


class Attempts:
    """Makes attempts, for one dispatcher.

    Args:
        transport: the connection.
        exchange, addressing, routes, fleets: the dispatcher's.
    """

    def __init__(
        self, transport: Transport, exchange: Correlator, addressing: Addressing, routes: Channels, fleets: PoolRegistry
    ) -> None:
        self._transport = transport
        self._exchange = exchange
        self._addressing = addressing
        self._routes = routes
        self._fleets = fleets
        self._now = exchange.now
        self.closing = False
        """No attempt is begun any more."""

    async def call(
        self, call: Call, number: int, tried: list[str], where: RetryTarget, *, hedge: bool = False
    ) -> Attempt:
        """One attempt that wants its whole answer at once.

        Args:
            number: of the attempt, from 1.
            tried: names of the instances of former attempts; its own is added.
            where: HOME: where the call's key belongs.
            hedge: it runs beside another one, and does not wait for room.
        """
        guards, target = call.guards, call.target
        reason = "hedge" if hedge else "retry" if number > 1 else "first"
        made = Attempt(Admission(guards), reason=reason, meter=guards.meter)
        try:
            fleet = await self._enter(made, call, hedge=hedge)
            if fleet is None:
                return made
            began = made.began = self._now()
            deadline, clock, limit = self._slice(call, began, number)
            hops = 0
            while True:
                hops += 1
                publisher, properties, line = self._place(made, call, fleet, tried, where, deadline, number)
                settled = await self._exchange.request(  # e exchange
                    made.id,
                    publisher,
                    call.payload,
                    properties,
                    flow=target.label,
                    deadline=deadline,
                    clock=clock,
                    max_bytes=target.policy.max_result,
                    line=line,
                    tally=fleet.tally,
                )
                made.ended(settled, call, limit)
                if made.outcome is _SUCCESS or hops >= MAX_HOPS or not self._gone(made, settled):
                    break  # else that instance did not run it, and is no longer asked: another one is
                made.left()
            ended = self._now()
            took = ended - began
            if made.outcome is _SUCCESS or made.outcome is _TOOL_ERROR:
                made.answered(guards, ended)
            else:
                self._attribute(made, guards)
                if made.outcome is _TIMEOUT:
                    made.impatient = took < (guards.usual.value(ended) or 0.0)
            if guards.hedging is None and made.outcome in _TIMED and made.counts_for_instance and not made.impatient:
                guards.durations.learn(took)
            if line is not None and not line.resent and type(settled) is Answer:
                guards.patience.learn(took)
        except DispatchError as failure:
            made.failed(failure, call)
            self._attribute(made, guards)
        except asyncio.CancelledError as cancelled:
            made.outpaced = cancelled.args == (OUTPACED,)
            raise
        finally:
            made.finish()
        return made

    async def stream(self, call: Call, number: int, tried: list[str], where: RetryTarget) -> Attempt:
        """One attempt that wants chunks: until the first one is there. One that has begun well has the outcome SUCCESS so
        far; its caller takes the rest from ``replies``, and calls :meth:`end`."""
        target, policy = call.target, call.target.policy
        guards = call.guards
        made = Attempt(Admission(guards), reason="retry" if number > 1 else "first", meter=guards.meter)
        try:
            fleet = await self._enter(made, call, hedge=False)
            if fleet is None:
                return made
            made.began = self._now()
            hops = 0
            while True:
                hops += 1
                publisher, properties, line = self._place(made, call, fleet, tried, where, call.deadline, number)
                replies = made.replies = self._exchange.stream(
                    made.id,
                    publisher,
                    call.payload,
                    properties,
                    flow=target.label,
                    deadline=call.deadline,
                    idle=call.idle,
                    max_bytes=policy.max_result,
                    max_buffer=policy.stream_buffer,
                    line=line,
                    tally=fleet.tally,
                )
                if replies.settled is not None:
                    await asyncio.sleep(0)  # as in Exchange.request
                made.first = await anext(replies, None)
                if made.first is not None:
                    made.record_first_chunk(guards, self._now())
                    return made
                self._stream_ended(made, call)
                if hops >= MAX_HOPS or not self._gone(made, replies.settled):
                    return made
                made.left()
        except DispatchError as failure:
            made.failed(failure, call)
            self._attribute(made, guards)
            return made
        except BaseException:
            if made.replies is not None:
                made.replies.close()
            raise
        finally:
            if made.first is None:
                made.finish()

    def end(self, made: Attempt, call: Call) -> None:
        """A stream is read to its end, or its reader has gone."""
        replies = made.replies
        if replies is None or made.first is None:
            return
        if replies.settled is None:
            made.outcome = Outcome.CANCELLED
            replies.close()
        else:
            self._stream_ended(made, call)
        made.finish()

    def _stream_ended(self, made: Attempt, call: Call) -> None:
        assert made.replies is not None
        settled = made.replies.settled
        assert settled is not None
        idle = isinstance(settled, TimedOut) and settled.clock == "stream-idle"
        made.ended(settled, call, call.idle if idle else call.limit)
        self._attribute(made, call.guards)

    def _attribute(self, made: Attempt, guards: ToolGuards) -> None:
        if made.outcome in FAILURES:
            made.attribute(guards, disconnected=self._transport.was_disconnected_since(made.began), now=self._now())

    async def _enter(self, made: Attempt, call: Call, *, hedge: bool) -> InstancePool | None:
        """a, b, c: through the guards, and to the instances there are. None: ``made`` is refused.

        Raises:
            TransportError: the broker is out of reach. No guard was asked.
        """
        if self.closing:
            made.refused(closed())
            return None
        transport = self._transport
        if not transport.connected and not await transport.await_connection(call.deadline):
            raise disconnected(call.target.label, transport.url)
        passage, target = made.passage, call.target
        refused = passage.enter(call.user, call.deadline)
        if passage.waits:
            if hedge:
                passage.give_up()
                refused = Rejection("bulkhead", "full")
            else:
                refused = await passage.wait(call.deadline, call.priority)
        if refused is not None:
            made.refused(refusal(refused, target.label))
            return None
        fleet = call.guards.fleet = self._fleets.get(target) or await self._fleets.open(target, call.deadline)
        if self._addressing.wants_ours(target, call.payload) and not fleet.known:
            await self._addressing.meet(fleet, call.deadline)
        if fleet.new and fleet.held():
            await self._addressing.turn(fleet, call.deadline)
        return fleet

    def _place(
        self,
        made: Attempt,
        call: Call,
        fleet: InstancePool,
        tried: list[str],
        where: RetryTarget,
        deadline: float,
        number: int,
    ) -> tuple[Publisher, dict[str, str], RetransmittableRequest | None]:
        """d: the balancer picks the instance. How the request gets there, and how its answer is asked for.

        Raises:
            DispatchError: there is nobody who may, or can, have it.
        """
        made.sent = False  # as if nothing had been before
        made.error = made.retry_after = None
        place = fleet.pick(
            call.guards,
            tried,
            key=call.key if where is _HOME else None,
            user=call.user,
            refused=call.refused,
            parts=self._addressing.large(call.payload),
        )
        if place is None:
            raise refusal(_NOBODY, call.target.label)
        made.place = place
        if call.keeper is not None and where is _HOME and place.instance is not call.keeper:
            raise TransportError("instance-lost", _KEEPER_GONE)
        tried.append(place.pick.instance)
        if call.key is not None:
            deadline = call.deadline  # what a key names goes on when an attempt ends: the next one gets its answer
        made.id = self._exchange.new_id()
        carried = NOTHING if call.trace is None else call.trace.carried
        if carried is None:
            assert call.trace is not None
            made.span = call.trace.send(place.topic, place.route.request_queue, made.id, number, made.reason)
            carried = made.span.properties
        publisher, properties, made.line = self._addressing.request(
            call.target, place, made.id, call.payload, deadline, call.key, call.guards.patience, number, carried
        )
        made.sent = True
        call.requests += 1
        if call.key is not None and where is _HOME and place.instance is not None:
            made.claim(call, fleet, place.instance)
        return publisher, properties, made.line

    def _slice(self, call: Call, now: float, number: int) -> tuple[float, str, float]:
        """When this attempt ends, the name of that limit, and its seconds."""
        limit, left, usual = call.target.policy.attempt_timeout, 1, None
        if limit is None:
            guards = call.guards
            if guards.repeatable and guards.retrying is not None:
                left += guards.retrying.settings.attempts - number
            if left <= 1 or (usual := guards.usual.value(now)) is None:
                return call.deadline, call.clock, call.limit
        ends, clock = attempt_slice(now, call.deadline, limit=limit, attempts_left=left, usual=usual)
        if clock == "attempt":
            return ends, clock, ends - now
        return call.deadline, call.clock, call.limit

    def _gone(self, made: Attempt, settled: Settled | None) -> bool:
        """Is the instance leaving, and did it not run the request? Then another one may. In any case it is no longer asked
        when it has gone."""
        place = made.place
        if place is None or place.instance is None:
            return False
        route = place.route
        if isinstance(settled, Lost):
            self._routes.retire(route, place.instance)
            return False
        if not isinstance(settled, Answer):
            return False
        refused = settled.properties.get(Property.REFUSED)
        if refused not in (Refusal.DRAINING, Refusal.FORMER):
            return False
        self._routes.retire(route, place.instance)
        # When nobody is left who is known to take it, the caller is told at once. And a former life may have run it.
        return refused == Refusal.DRAINING and len(route.instances) > 0
