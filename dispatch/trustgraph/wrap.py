"""Our guards around TrustGraph's own client: all but the choice of an instance, which stays the client's."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from dispatch._internal.permit import Rejection
from dispatch.balancing.snapshot import InstanceView
from dispatch.calls.admission import Admission
from dispatch.calls.error_messages import refusal
from dispatch.calls.tool_guards import ToolGuards
from dispatch.errors import (
    CallTimeoutError,
    DispatchError,
    InvalidArgumentsError,
    Origin,
    Outcome,
    ToolError,
    TransportError,
)
from dispatch.messaging.wire.codec import json_text
from dispatch.policy import Annotations, Policy, PolicyError, check_repeats, check_seconds, repeatable
from dispatch.policy.repeat_safety import UNDECLARED
from dispatch.resilience.attempt_timeout import attempt_slice
from dispatch.resilience.breaker.breaker import CircuitBreaker, State
from dispatch.resilience.hedging.decision import ANSWERED
from dispatch.resilience.hedging.race import hedged
from dispatch.resilience.rate_limit.aio import user_buckets
from dispatch.resilience.retry.decision import RetryTarget
from dispatch.resilience.retry.loop import go_on
from dispatch.telemetry.events import Event, Events
from dispatch.telemetry.settings import DEFAULT_TELEMETRY, Telemetry
from dispatch.trustgraph.dialects import DEFAULT_TIMEOUT_S, dialect, takes_user, tell

if TYPE_CHECKING:
    from dispatch.telemetry.observer import Watch

TIDY_S = 0.05
"""What a wrapped client gets beyond the limit, to end by itself."""
WRAPPED_POLICY = Policy(timeout=DEFAULT_TIMEOUT_S)
"""The policy of a client that is given none: the defaults, but TrustGraph's own timeout."""

_SUCCESS = Outcome.SUCCESS
_TIMED = ANSWERED | {Outcome.TIMEOUT}

Ask = Callable[[float], Awaitable[str]]
"""Calls the client; told how many seconds it has."""


def wrap(
    client: Any,
    *,
    tool: str,
    policy: Policy | None = None,
    annotations: Annotations = UNDECLARED,
    telemetry: Telemetry = DEFAULT_TELEMETRY,
) -> WrappedClient:
    """Our guards around a client of TrustGraph's: breaker, rates, bulkhead, retries, hedges, one deadline, typed errors.

    Args:
        client: anything with TrustGraph's ``call(config, arguments, timeout=…)`` (2.11.1) or ``call(user, config,
            arguments, timeout=…)`` (the specification); ``call_streaming`` likewise.
        tool: the name for errors, metrics and policy.
        policy: what calls may take. ``balancing``, ``health`` and what concerns our own exchange have no effect: the client
            sends the message its own way. None: the defaults, with TrustGraph's timeout of 600 s.
        annotations: what the tool is declared to be. Unless it is read-only or idempotent, a call that may have run is not
            repeated; the client cannot say that a request never left, so that only what was refused is.
        telemetry: what is counted. Its calls have no spans, because the client's messages carry no context.

    Raises:
        TypeError: the client has no such ``call``.
        PolicyError: the policy would retry or hedge what must not be repeated.
    """
    return WrappedClient(client, tool, policy, annotations, telemetry)


class WrappedClient:
    """See :func:`wrap`. The same calls as :class:`dispatch.ToolServiceClient`; use it on one event loop at a time."""

    def __init__(
        self,
        client: Any,
        tool: str,
        policy: Policy | None = None,
        annotations: Annotations = UNDECLARED,
        telemetry: Telemetry = DEFAULT_TELEMETRY,
    ) -> None:
        self._telemetry = telemetry
        self._events = Events()
        self._client = client
        self.tool = tool
        self.policy = WRAPPED_POLICY if policy is None else policy
        own = () if policy is None or policy.hedge is None else ("hedge",)
        check_repeats(annotations, self.policy, own)
        self._repeatable = repeatable(annotations)
        self._takes_user = takes_user(client)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._made: ToolGuards | None = None
        self._watch: Watch | None = None

    @property
    def breaker(self) -> CircuitBreaker:
        """The circuit breaker: its ``state``, ``force_open()``, ``disable()``, ``reset()``.

        Raises:
            ValueError: the policy has no breaker.
            RuntimeError: no event loop runs.
        """
        breaker = self._guards().breaker
        if breaker is None:
            raise ValueError(f"the policy of '{self.tool}' has no breaker")
        return breaker

    def _guards(self) -> ToolGuards:
        loop = asyncio.get_running_loop()
        if self._made is None or loop is not self._loop:
            from dispatch.telemetry.observer import Watch  # as in Dispatcher.start

            self._loop = loop
            if self._watch is not None:
                self._watch.close()
            self._watch = Watch(self._telemetry, self._events, loop.time)
            self._made = ToolGuards(
                self.policy,
                repeatable=self._repeatable,
                clock=loop.time,
                randomness=random.random,
                shared_users=user_buckets,
                watch=self._watch,
                label=self.tool,
            )
            self._watch.observe(self)
        return self._made

    def on_event(self, listener: Callable[[Event], object]) -> Callable[[], None]:
        """As :meth:`dispatch.Dispatcher.on_event`: transitions of the circuit breaker."""
        return self._events.on(listener)

    # What a scrape sees: the circuit and the line. The connection, and whoever serves the tool, are the client's own.

    connected = None
    pending = 0

    def circuits(self) -> Mapping[str, State]:
        """The state of the circuit breaker, if there is one."""
        breaker = None if self._made is None else self._made.breaker
        return {} if breaker is None else {self.tool: breaker.state}

    def queued(self) -> Mapping[str, int]:
        """Calls that wait in line."""
        return {} if self._made is None else {self.tool: self._made.waiting}

    def fleets(self) -> Iterable[tuple[str, tuple[InstanceView, ...]]]:
        """None: the client's topic is one for all instances."""
        return ()

    def tools(self) -> Mapping[str, int]:
        """None: it is in no catalogue."""
        return {}

    async def call(self, *values: Any, timeout: float | None = None, **named: Any) -> str:
        """As :meth:`dispatch.ToolServiceClient.call`. ``timeout``: seconds for the whole call; None: the policy's."""
        limit = self.policy.timeout if timeout is None else timeout
        given = dialect(("config", "arguments", "timeout"), values, named | {"timeout": limit})
        call = _Call(self, given)
        return await call.guarded(lambda seconds: self._client.call(*self._leading(given), timeout=seconds))

    async def call_streaming(self, *values: Any, timeout: float | None = None, **named: Any) -> str:
        """As :meth:`dispatch.ToolServiceClient.call_streaming`. Nothing is repeated once a chunk was given."""
        limit = self.policy.timeout if timeout is None else timeout
        given = dialect(("config", "arguments", "callback", "timeout"), values, named | {"timeout": limit})
        call = _Call(self, given)
        loop = asyncio.get_running_loop()

        async def callback(chunk: str) -> None:
            # Asked at each chunk too: before Python 3.12 asyncio.wait_for, which TrustGraph's client uses, can swallow
            # the cancellation by which a limit is kept.
            if loop.time() >= call.deadline:
                raise TimeoutError
            call.told = True
            try:
                await tell(given["callback"], chunk)
            except Exception as error:
                raise _CallbackError(error) from error

        return await call.guarded(
            lambda seconds: self._client.call_streaming(*self._leading(given), callback, timeout=seconds), hedge=False
        )

    def _leading(self, given: Mapping[str, Any]) -> tuple[Any, ...]:
        if self._takes_user:
            return given["user"], given["config"], given["arguments"]
        return given["config"], given["arguments"]


class _Attempt:
    """How one attempt ended. See :class:`dispatch.resilience.retry.loop.Attempted`."""

    __slots__ = ("error", "outcome", "sent", "text")

    def __init__(self) -> None:
        self.outcome = Outcome.CANCELLED
        self.sent = False
        self.error: DispatchError | None = None
        self.text = ""

    @property
    def retry_after(self) -> float | None:
        return None if self.error is None else self.error.retry_after

    @property
    def error_type(self) -> str | None:
        return None if self.error is None else self.error.type

    @property
    def remembered(self) -> bool:
        return False  # whoever has it is not known

    def failed(self, error: DispatchError) -> None:
        self.error = error
        self.outcome = error.outcome


class _Call:
    """One call of a wrapped client, over all its attempts."""

    def __init__(self, client: WrappedClient, given: Mapping[str, Any]) -> None:
        self._tool = client.tool
        self._given = given
        self._guards = client._guards()
        self._now = asyncio.get_running_loop().time
        try:
            limit = check_seconds(given["timeout"])
            json_text(given["arguments"] or {}, "arguments")
        except (PolicyError, TypeError) as error:
            raise InvalidArgumentsError("invalid-arguments", f"{error}. '{self._tool}' was not called.") from None
        self._limit = limit
        self.deadline = self._now() + limit
        self.told = False
        """A chunk was given to the caller: nothing can be repeated any more."""

    async def guarded(self, ask: Ask, *, hedge: bool = True) -> str:
        """The answer, or its error. Counted, whatever becomes of it."""
        meter, began = self._guards.meter, self._now()
        if meter is None:
            return await self._guarded(ask, hedge=hedge)
        meter.in_flight += 1
        outcome = Outcome.CANCELLED
        try:
            text = await self._guarded(ask, hedge=hedge)
            outcome = _SUCCESS
        except DispatchError as error:
            outcome = error.outcome
            raise
        finally:
            meter.finished(outcome, self._now() - began)
        return text

    async def _guarded(self, ask: Ask, *, hedge: bool) -> str:
        guards = self._guards
        guards.budget.called()
        tried: list[str] = []
        if guards.hedging is None or not hedge:
            made = await self._attempt(ask, 1)
        else:
            made = await hedged(
                lambda second: self._attempt(ask, 1, hedge=second),
                guards.hedging,
                deadline=self.deadline,
                others=lambda: True,  # the client has one topic, and its broker may give it to another instance
                listener=guards.unhedged,
            )
        if made.outcome is not _SUCCESS and guards.retrying is not None and not self.told:

            async def again(number: int, _tried: list[str], _where: RetryTarget) -> _Attempt:
                return await self._attempt(ask, number)

            made = await go_on(made, tried, again, guards.retrying, deadline=self.deadline, listener=guards.unrepeated)
        if made.error is not None:
            raise made.error
        return made.text

    async def _attempt(self, ask: Ask, number: int, *, hedge: bool = False) -> _Attempt:
        guards, made = self._guards, _Attempt()
        passage = Admission(guards)
        try:
            refused = passage.enter(self._given["user"], self.deadline)
            if passage.waits:
                if hedge:
                    passage.give_up()
                    refused = Rejection("bulkhead", "full")
                else:
                    refused = await passage.wait(self.deadline, None)
            if refused is not None:
                made.error = refusal(refused, self._tool)
                made.outcome = Outcome.REJECTED
                return made
            began = self._now()
            ends, clock = self._slice(began, number)
            made.sent = True
            if guards.meter is not None:
                guards.meter.attempts["hedge" if hedge else "retry" if number > 1 else "first"].inc()
            await self._ask(made, ask, ends - began, clock)
            if guards.hedging is None and made.outcome in _TIMED:
                guards.durations.learn(self._now() - began)
        finally:
            counts = made.error is None or made.error.origin is not Origin.LOCAL
            passage.finish(made.outcome, sent=made.sent, retry_after=made.retry_after, counts=counts)
            if made.error is not None:
                passage.tell(made.error)
        return made

    def _slice(self, now: float, number: int) -> tuple[float, str]:
        guards = self._guards
        left, usual = 1, None
        if guards.repeatable and guards.retrying is not None:
            usual = guards.usual.value(now)
            if usual is not None:
                left = max(1, guards.retrying.settings.attempts - number + 1)
        return attempt_slice(now, self.deadline, limit=guards.policy.attempt_timeout, attempts_left=left, usual=usual)

    async def _ask(self, made: _Attempt, ask: Ask, seconds: float, clock: str) -> None:
        tool = self._tool
        try:
            # The client's own limit is per message and starts late; ours covers everything. It comes a moment later,
            # because TrustGraph's client tidies up after its own limit only.
            async with asyncio.timeout(seconds + TIDY_S):
                made.text = await ask(seconds)
            made.outcome = _SUCCESS
        except _CallbackError as failed:
            made.outcome = _SUCCESS  # of the tool: what failed is the caller's own
            raise failed.error from None
        except TimeoutError:
            advice = (
                "Report the failure, or use another tool."
                if self._guards.repeatable
                else "It may have run all the same: do not repeat the call unless you know that it did nothing."
            )
            limit = self._limit if clock == "call" else seconds
            made.failed(
                CallTimeoutError(
                    f"'{tool}' gave no complete answer within {limit:g} s. {advice}",
                    clock=clock,
                    retryable=self._guards.repeatable,
                )
            )
        except DispatchError as error:
            made.failed(error)
        except RuntimeError as error:
            # TrustGraph's client keeps the message of the tool's error, and loses its type.
            made.failed(_caused(ToolError("tool-error", str(error)), error))
        except Exception as error:
            made.failed(
                _caused(
                    TransportError(
                        "client-failed",
                        f"The client of '{tool}' failed: {type(error).__name__}: {error}",
                        origin=Origin.TOOL,
                    ),
                    error,
                )
            )


class _CallbackError(Exception):
    """Carries what the caller's callback raised through the client: it is the caller's own, not the client's failure."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def _caused(error: DispatchError, cause: Exception) -> DispatchError:
    error.__cause__ = cause
    return error
