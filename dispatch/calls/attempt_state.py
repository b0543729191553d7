"""One call, and one attempt of it: what is known while they go, and what guards are told when they end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from dispatch.calls.admission import Admission
from dispatch.calls.conclusion import error_of
from dispatch.calls.resolved_tool import ResolvedTool
from dispatch.calls.tool_guards import ToolGuards
from dispatch.errors import DispatchError, Origin, Outcome, TransportError
from dispatch.messaging.rpc.exchange_outcome import Answer, Settled
from dispatch.messaging.rpc.pending import ReplyStream
from dispatch.messaging.rpc.retransmittable_request import RetransmittableRequest
from dispatch.messaging.wire.properties import Property, Refusal, whole_number
from dispatch.resilience.hedging.decision import NoHedgeReason
from dispatch.resilience.retry.decision import NoRetryReason, RetryDecision, may_have_run
from dispatch.routing.instance import Instance
from dispatch.routing.instance_pool import InstancePool, SelectedInstance
from dispatch.routing.key_holders import Claim, Holder
from dispatch.telemetry.names import HEDGE_EVENT, RETRY_EVENT, WAIT

if TYPE_CHECKING:
    from dispatch.telemetry.metrics.instruments import ToolMeter
    from dispatch.telemetry.tracing.interface import CallTrace, SendTrace
else:
    CallTrace = SendTrace = ToolMeter = Any  # msgspec looks annotations up

_SUCCESS, _CANCELLED, _REJECTED = Outcome.SUCCESS, Outcome.CANCELLED, Outcome.REJECTED
FAILURES = frozenset({Outcome.TIMEOUT, Outcome.TRANSPORT})
"""Outcomes that have an :class:`Origin`."""
_ENDED_LIVES = frozenset({"instance-lost", Refusal.FORMER})
"""Types of errors of requests whose instance died, or was restarted."""
_NOT_THE_SERVICES = frozenset({"payload-too-large", "too-large", "too-much"})
"""Types of errors of transport that are about what the caller sent, or asked for."""


class Call(msgspec.Struct, eq=False):
    """One call, over all its attempts.

    Args:
        target, guards: of its tool.
        payload: of its requests.
        user: on whose behalf.
        deadline: of the whole call, on the loop's clock; ``limit`` seconds after its start.
        clock: the name of that limit: ``call`` or ``stream``.
        key: its idempotency key.
        priority: its class, where calls wait in line.
        idle: seconds between two chunks at most, for a stream.
        trace: its span; None: nobody listens.

    Attributes:
        requests: sent so far, over all attempts.
        keeper: the instance that may have run the request, and knows its idempotency key.
        refused: names of instances that refused the request.
    """

    target: ResolvedTool
    guards: ToolGuards
    payload: bytes
    user: str
    deadline: float
    limit: float
    clock: str = "call"
    key: str | None = None
    priority: str | None = None
    idle: float = 0.0
    trace: CallTrace | None = None
    requests: int = 0
    keeper: Instance | None = None
    refused: tuple[str, ...] = ()

    def retried(self, verdict: RetryDecision | NoRetryReason) -> None:
        """After an attempt that failed: there is to be another one, or why not."""
        self.guards.unrepeated(verdict)
        if self.trace is not None and isinstance(verdict, RetryDecision):
            self.trace.event(RETRY_EVENT, {WAIT: verdict.wait})

    def hedged(self, verdict: NoHedgeReason | None) -> None:
        """A second attempt was due: why it was not begun, or None."""
        self.guards.unhedged(verdict)
        if self.trace is not None and verdict is None:
            self.trace.event(HEDGE_EVENT, {})


class Attempt(msgspec.Struct, eq=False):
    """How one attempt goes, and how it ended.

    Attributes:
        outcome: how it ended. CANCELLED until it is known; REJECTED when one of our guards refused it.
        impatient: it ended with a timeout that was shorter than the tool usually takes: no word about the service.
        counts_for_instance, counts_for_tool: the failure counts as one of the instance, and as one of the tool.
        settled: how its exchange ended; None: there was none.
        error: what its caller would be told; None for SUCCESS.
        began: when it had passed the guards.
        sent: the request left, or may have.
        retry_after: seconds that the service asked to be left alone for.
        outpaced: its hedge was answered first.
        id: of its last request.
        line: how the answer was asked for.
        remembered: the instance remembers idempotency keys, and is still there.
        replies, first: of a stream: what comes, and what came first.
        span: of its request.
        reason: why it is made: ``first``, ``retry``, ``hedge``.
        meter: counts it, if it left; None: nobody does.
        claimed: the idempotency key, as claimed for the instance of its last request; and the call's keeper before that.
    """

    passage: Admission
    place: SelectedInstance | None = None
    outcome: Outcome = Outcome.CANCELLED
    settled: Settled | None = None
    error: DispatchError | None = None
    impatient: bool = False
    counts_for_instance: bool = True
    counts_for_tool: bool = True
    began: float = 0.0
    sent: bool = False
    retry_after: float | None = None
    outpaced: bool = False
    id: str = ""
    line: RetransmittableRequest | None = None
    remembered: bool = False
    replies: ReplyStream | None = None
    first: str | None = None
    span: SendTrace | None = None
    reason: str = "first"
    meter: ToolMeter | None = None
    claimed: tuple[Claim, Instance | None] | None = None

    @property
    def error_type(self) -> str | None:
        """The ``type`` of its error."""
        return None if self.error is None else self.error.type

    def claim(self, call: Call, fleet: InstancePool, instance: Instance) -> None:
        """Record that ``instance`` may do the work of the call's idempotency key."""
        assert call.key is not None
        holder = Holder(instance.name, instance.incarnation)
        self.claimed = fleet.keys.claim(call.user, call.key, holder), call.keeper
        call.keeper = instance

    def _release(self, call: Call) -> None:
        """The request surely did not run: its instance knows nothing of the key."""
        if self.claimed is not None:
            claim, call.keeper = self.claimed
            self.claimed = None
            claim.undo()
            if self.sent:  # and was refused there
                call.refused = (*call.refused, claim.holder.name)

    def refused(self, error: DispatchError) -> None:
        """One of our own guards said no."""
        self.error = error
        self.outcome = Outcome.REJECTED
        self.retry_after = error.retry_after

    def ended(self, settled: Settled, call: Call, limit: float) -> None:
        """The exchange is over. ``limit``: seconds of the limit that it had."""
        self.settled = settled
        if type(settled) is Answer and settled.error_type is None:
            self.outcome = _SUCCESS
            return
        target = call.target
        error = error_of(settled, tool=target.label, limit=limit, repeatable=target.repeatable)
        assert error is not None  # only an answer can be a success
        self.failed(error, call)

    def failed(self, error: DispatchError, call: Call) -> None:
        """It ended in an error, perhaps before anything was sent."""
        self.error = error
        self.outcome = error.outcome
        if error.type in _NOT_THE_SERVICES:
            self.outcome = Outcome.INVALID_ARGUMENTS
        elif error.rejected_by is not None and error.rejected_by != "service":
            self.outcome = Outcome.REJECTED
        self.retry_after = error.retry_after
        never_left = isinstance(error, TransportError) and not error.sent
        if self.sent and (never_left or error.rejected_by == "exchange"):
            self.sent = False
            call.requests -= 1
        if not may_have_run(self.outcome, sent=self.sent):
            self._release(call)

    def answered(self, guards: ToolGuards, now: float) -> None:
        """Its instance has answered."""
        assert self.place is not None
        guards.answered_by, guards.answered_at = self.place.pick.instance, now

    def record_first_chunk(self, guards: ToolGuards, now: float) -> None:
        """A stream has begun. Its instance has answered, and both breakers' permits are settled: they count their first end
        only. The balancer's and the bulkhead's are not before the stream ends."""
        self.outcome = _SUCCESS
        self.answered(guards, now)
        self.passage.record_first_chunk()
        assert self.place is not None
        if self.place.probe is not None:
            self.place.probe.finish(_SUCCESS)

    def attribute(self, guards: ToolGuards, *, disconnected: bool, now: float) -> None:
        """Find where a failure arose, and so what counts it.

        Args:
            guards: of the tool.
            disconnected: the broker was out of reach at some time since the request was sent.
            now: the moment, on the guards' clock.
        """
        error, place = self.error, self.place
        if error is None or self.outcome not in FAILURES:
            return
        if disconnected or not self.sent or place is None:
            error.origin = Origin.LOCAL
        if error.origin is Origin.LOCAL or place is None:
            self.counts_for_instance = self.counts_for_tool = False
            return
        if guards.record_failure(place.pick.instance, now):
            error.origin = Origin.INSTANCE
            self.counts_for_tool = False
        instance = place.instance
        if instance is not None and error.type in _ENDED_LIVES:
            if instance.is_loss_counted:
                self.counts_for_instance = self.counts_for_tool = False
            instance.is_loss_counted = True

    def left(self) -> None:
        """Finish what concerns the instance. Guards are told that an impatient one was abandoned."""
        place, self.place = self.place, None
        if place is None:
            return
        meter = self.meter
        if meter is not None and self.sent:
            sent = meter.first if self.reason == "first" else meter.attempts[self.reason]
            sent.value += 1
        settled = self.settled
        instance = place.instance
        if self.outcome is not _SUCCESS:
            self.remembered = instance is not None and place.route.instances.get(instance.name) is instance
        running = None
        if place.pick.learns and type(settled) is Answer:
            running = whole_number(settled.properties, Property.IN_FLIGHT)
        outcome = self.outcome if not self.impatient else _CANCELLED
        if not self.counts_for_instance:
            outcome = _REJECTED  # says nothing about how long an answer takes, either
        transmissions = 1 if self.line is None else self.line.repair.transmissions
        if transmissions > 1:
            place.asked(transmissions - 1)
        span, self.span = self.span, None
        if span is not None:
            span.ended(self.outcome, self.error, place.pick.instance, transmissions)
        place.pick.finish(outcome, retry_after=self.retry_after, in_flight=running, outpaced=self.outpaced)
        if place.probe is not None:
            place.probe.finish(outcome, retry_after=self.retry_after)

    def finish(self) -> None:
        """f: every permit gets the outcome."""
        self.left()
        outcome = self.outcome if not self.impatient and self.counts_for_instance else _CANCELLED
        self.passage.finish(outcome, sent=self.sent, retry_after=self.retry_after, counts=self.counts_for_tool)
        if self.error is not None:
            self.passage.tell(self.error)
