"""The circuit breaker as a caller sees it: open, forced open, unaffected by callers, and alternatives to its tool.
Limits as a caller sees them: bulkhead and its queue, priorities, and rate limits of tools and users.
Retries of calls, over the embedded broker, on a virtual clock.
Calls with more than one attempt at once (hedging), and attempts with more than one call (single-flight).
Calls while their dispatcher drains or its catalogue is reloaded.
Calls of a service with several instances: load balancing and outlier detection.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from typing import Any

import pytest
from prometheus_client import REGISTRY

from dispatch import (
    CallResult,
    CallTimeoutError,
    Catalog,
    Dispatcher,
    Functions,
    Policy,
    RejectedError,
    ThrottledError,
    ToolError,
    TransportError,
    connect,
    tool,
)
from dispatch._internal import RETENTION_S
from dispatch.errors import Outcome
from dispatch.messaging.wire import Property
from dispatch.policy import Breaker, Bulkhead
from dispatch.resilience.breaker import State
from dispatch.resilience.bulkhead import QueueLimits
from dispatch.routing.instance import GONE_S
from dispatch.transports.memory import MemoryTransport
from tests.helpers.clock import advance, cancel_task, idle, now, start_task
from tests.helpers.dispatcher_and_service import (
    BROKER,
    UNGUARDED,
    Gate,
    Peer,
    Service,
    catalog,
    dispatching,
    follow_instances,
    read,
    serving,
    stand,
    tool_of,
    topics_of,
)


def tools(**keys: Any) -> Catalog:
    """Return a catalogue of ``work`` with these further keys (``_`` for ``-``)."""
    return catalog(work={key.replace("_", "-"): value for key, value in keys.items()})


class Work:
    """Work of the instances of :func:`pair`. ``first`` hangs, or fails at once, while the flag is set."""

    def __init__(self) -> None:
        self.hanging = self.failing = False

    async def __call__(self, name: str) -> str:
        if self.failing and name == "first":
            raise RuntimeError("no database")
        await self.pause(name)
        return name

    async def pause(self, name: str, seconds: float = 0.05) -> None:
        await asyncio.sleep(3_600 if self.hanging and name == "first" else seconds)


@contextlib.asynccontextmanager
async def pair(
    work: Callable[[str], Any], descriptors: Catalog | None = None, at: Mapping[str, Mapping[str, str]] | None = None
) -> AsyncIterator[Dispatcher]:
    """A dispatcher, and the instances ``first`` and ``second`` (their topics: ``at``) that run ``work`` of their names."""
    at = at or {}
    async with (
        serving(lambda _: work("first"), at=at.get("first"), instance="first"),
        serving(lambda _: work("second"), at=at.get("second"), instance="second"),
        dispatching(descriptors) as dispatcher,
    ):
        yield dispatcher


async def begin(
    dispatcher: Dispatcher, count: int, interval: float, call: Callable[[], Coroutine[Any, Any, Any]] | None = None
) -> list[asyncio.Task[Any]]:
    """Begin a call of ``work``, or what ``call`` returns, every ``interval`` seconds."""
    calls = []
    for _ in range(count):
        calls.append(asyncio.create_task(call() if call else dispatcher.execute("work")))
        await advance(interval)
    return calls


async def count_outcomes(calls: Iterable[asyncio.Task[CallResult]]) -> Counter[Outcome]:
    return Counter(each.outcome for each in await asyncio.gather(*calls))


async def time_stream(dispatcher: Dispatcher, chunks: int) -> float:
    """Read a stream of ``work`` that has so many chunks, and return its seconds."""
    began, arrived = now(), []
    await read(dispatcher.stream("work"), arrived)
    assert len(arrived) == chunks
    return now() - began


@contextlib.asynccontextmanager
async def deaf(**keys: Any) -> AsyncIterator[tuple[Dispatcher, Peer]]:
    """A dispatcher of ``work`` with these further keys, and a service that replies only as the test says."""
    async with Peer.as_service() as peer, dispatching(tools(**keys)) as dispatcher:
        yield dispatcher, peer


@pytest.mark.usefixtures("exact_breakers")
async def test_a_tool_that_fails_is_left_alone_and_found_again() -> None:
    settings = {"consecutive-failures": 3, "open-duration": 5, "half-open-calls": 1}
    alive = False

    async def work(arguments: dict[str, Any]) -> str:
        if not alive:
            await asyncio.sleep(100)
        return "done"

    async with stand(work, tools(policy={"timeout": 1, "breaker": settings})) as (dispatcher, server):
        for _ in range(3):
            with pytest.raises(CallTimeoutError):
                await dispatcher.call("work")
        assert dispatcher.breaker("work").state is State.OPEN
        began, before = now(), server.requests
        with pytest.raises(RejectedError) as caught:
            await dispatcher.call("work")
        error = caught.value
        assert now() == began, "at once"
        assert (error.type, error.rejected_by, error.retryable) == ("circuit-open", "breaker", True)
        assert error.retry_after == pytest.approx(5, abs=0.01)
        assert "in 5 s or later" in error.message
        assert "try again" not in error.message
        result = await dispatcher.execute("work")
        assert (result.outcome, result.attempts, result.request_id) == (Outcome.REJECTED, 0, "")
        assert server.requests == before
        alive = True
        await advance(5)
        assert await dispatcher.call("work") == "done"
        assert dispatcher.breaker("work").state is State.CLOSED


@pytest.mark.costly
async def test_callers_in_haste_do_not_take_a_tool_from_those_who_wait() -> None:
    """Their timeouts open the circuit before the first answer tells how long the tool takes, and cannot show that it works.
    Where nothing answers, timeouts of the same length open it."""
    outcomes = {"hasty": Counter[Outcome](), "patient": Counter[Outcome]()}

    async def call(dispatcher: Dispatcher, user: str, timeout: float) -> None:
        outcomes[user][(await dispatcher.execute("work", user=user, timeout=timeout)).outcome] += 1

    async with stand(lambda _: asyncio.sleep(2, "done")) as (dispatcher, _), asyncio.TaskGroup() as calls:
        for number in range(600):
            calls.create_task(call(dispatcher, "hasty", 1.0))
            if number % 5 == 0:
                calls.create_task(call(dispatcher, "patient", 30.0))
            await advance(0.1)
    assert outcomes["hasty"][Outcome.SUCCESS] == 0
    assert outcomes["patient"][Outcome.SUCCESS] >= 100, outcomes
    assert outcomes["hasty"][Outcome.REJECTED] > 100, "the circuit was open for some seconds"
    async with deaf() as (dispatcher, _):
        for _ in range(12):
            await call(dispatcher, "hasty", 1.0)
        assert dispatcher.breaker("work").state is State.OPEN


async def test_a_tool_that_has_become_fast_is_found_by_callers_in_haste() -> None:
    seconds = 3_600.0

    async with stand(lambda _: asyncio.sleep(seconds, "done"), tools(policy={"retry": 1})) as (dispatcher, _):
        seconds = 2.0
        for _ in range(3):
            await dispatcher.call("work")
        seconds = 3_600.0
        await asyncio.gather(*(dispatcher.execute("work", timeout=3) for _ in range(30)))
        assert dispatcher.breaker("work").state is State.OPEN
        seconds = 0.1
        for _ in range(400):
            await dispatcher.execute("work", timeout=1)
            await advance(0.1)
        assert dispatcher.breaker("work").state is State.CLOSED


async def test_an_operator_takes_a_tool_out_of_use() -> None:
    async with stand(lambda _: "done") as (dispatcher, _):
        dispatcher.breaker("work").force_open()
        with pytest.raises(RejectedError, match="an operator has opened its circuit breaker") as caught:
            await dispatcher.call("work")
        assert not caught.value.retryable
        with pytest.raises(RejectedError):
            await anext(dispatcher.stream("work"))
        dispatcher.breaker("work").reset()
        assert await dispatcher.call("work") == "done"


async def test_who_has_no_breaker_is_told_so() -> None:
    async with stand(lambda _: "done", tools(policy={"breaker": None})) as (dispatcher, _):
        with pytest.raises(ValueError, match="has no breaker"):
            dispatcher.breaker("work")
        with pytest.raises(RejectedError):
            dispatcher.breaker("nothing")


async def test_a_caller_that_leaves_counts_as_nothing() -> None:
    async with stand(Gate(), tools(policy={"breaker": {"consecutive-failures": 1}})) as (dispatcher, _):
        for _ in range(5):
            await cancel_task(await start_task(dispatcher.call("work")))
        assert dispatcher.breaker("work").state is State.CLOSED
        stream = dispatcher.stream("work")
        reading = asyncio.ensure_future(anext(stream))
        await idle()
        await cancel_task(reading)
        assert dispatcher.breaker("work").state is State.CLOSED


async def test_what_the_caller_did_wrong_says_nothing_of_the_service() -> None:
    """Against one careless caller who closes a tool to all: too much sent or asked for, and timeouts nobody could meet."""
    settings = {"breaker": {"consecutive-failures": 3}, "max-response-bytes": 100}

    async def work(arguments: dict[str, Any]) -> str:
        await asyncio.sleep(0.1)
        return "x" * arguments.get("size", 0)

    async with stand(work, tools(policy=settings)) as (dispatcher, _):
        for _ in range(120):
            assert (await dispatcher.execute("work")).ok
        for _ in range(5):
            assert (await dispatcher.execute("work", {"size": 1_000})).outcome is Outcome.TRANSPORT
            assert (await dispatcher.execute("work", timeout=0.01)).outcome is Outcome.TIMEOUT
        assert dispatcher.breaker("work").state is State.CLOSED
        await advance(120)  # what it usually takes is forgotten: any timeout may be the service's
        for _ in range(3):
            assert (await dispatcher.execute("work", timeout=0.01)).outcome is Outcome.TIMEOUT
        assert dispatcher.breaker("work").state is State.OPEN


async def test_an_error_names_tools_that_could_do_instead() -> None:
    listed = {
        "joke": {"tags": ["fun"], "category": "talk"},
        "riddle": {"tags": ["fun"]},
        "poem": {"category": "talk"},
        "weather": {"tags": ["sky"]},
    }
    async with stand(lambda _: "done", catalog(**listed)) as (dispatcher, _):
        dispatcher.breaker("joke").force_open()
        with pytest.raises(RejectedError) as caught:
            await dispatcher.call("joke")
        assert caught.value.alternatives == ("riddle", "poem")
        assert caught.value.message.endswith("Use another tool (riddle, poem), or report the failure.")
        assert str(caught.value) == caught.value.message
        dispatcher.breaker("weather").force_open()
        with pytest.raises(RejectedError) as caught:
            await dispatcher.call("weather")
        assert caught.value.alternatives == ()


# -- bulkhead -------------------------------------------------------------------------------------------------------
@pytest.fixture
def gate() -> Gate:
    return Gate()


async def test_so_many_at_once_so_many_in_line_and_no_more(monkeypatch: pytest.MonkeyPatch, gate: Gate) -> None:
    monkeypatch.setattr("dispatch.resilience.bulkhead.QUEUE_LIMITS", QueueLimits(max_length=1))
    policy = {"bulkhead": {"max-concurrent-calls": 2, "max-wait": 1}}
    async with stand(gate, tools(policy=policy)) as (dispatcher, _):
        calls = [asyncio.create_task(dispatcher.call("work")) for _ in range(3)]
        await advance(0.01)
        assert gate.running == 2
        with pytest.raises(ThrottledError) as caught:
            await dispatcher.call("work")
        assert (caught.value.type, caught.value.rejected_by) == ("bulkhead-full", "bulkhead")
        gate.open.set()
        assert await asyncio.gather(*calls) == ["done"] * 3
        assert gate.most == 2


@pytest.mark.usefixtures("strangers")
async def test_whoever_waits_for_a_place_sees_the_circuit_open() -> None:
    """Against a herd: those in line were let in by a breaker that has opened since."""
    policy = {
        "timeout": 2,
        "bulkhead": {"max-concurrent-calls": 3, "max-wait": 5},
        "breaker": {"consecutive-failures": 3},
    }
    async with deaf(policy=policy) as (dispatcher, peer):
        results = await asyncio.gather(*(dispatcher.execute("work", timeout=2 + 2 * (n > 2)) for n in range(9)))
        assert Counter(result.outcome for result in results) == {Outcome.TIMEOUT: 3, Outcome.REJECTED: 6}
        assert peer.arrived.qsize() == 3


async def test_the_urgent_goes_first() -> None:
    order: list[str] = []

    async def work(arguments: dict[str, Any]) -> str:
        order.append(arguments["who"])
        await asyncio.sleep(0.1)
        return "done"

    async with stand(work, tools(policy={"bulkhead": 1})) as (dispatcher, _):
        first = await start_task(dispatcher.call("work", {"who": "first"}))
        batch = await start_task(dispatcher.call("work", {"who": "batch"}, priority="batch"))
        chat = asyncio.create_task(dispatcher.call("work", {"who": "chat"}, priority="interactive"))
        await asyncio.gather(first, batch, chat)
        assert order == ["first", "chat", "batch"]


# -- rate limits ----------------------------------------------------------------------------------------------------
async def test_a_rate_is_kept_and_who_would_wait_too_long_is_told_when_to_come_back() -> None:
    policy = {"rate-limit": {"rate": "10/s", "burst": 1, "max-wait": 0.5}}
    async with stand(lambda _: "done", tools(policy=policy)) as (dispatcher, _):
        began = now()
        results = await asyncio.gather(*(dispatcher.execute("work") for _ in range(10)))
        done = [result for result in results if result.ok]
        refused = [result.error for result in results if not result.ok]
        assert len(done) == 6
        assert now() - began == pytest.approx(0.5, abs=0.02)
        for error in refused:
            assert isinstance(error, ThrottledError)
            assert (error.type, error.rejected_by) == ("rate-limited", "rate-limit")
            assert error.retry_after == pytest.approx(0.6, abs=0.01)


async def test_one_user_does_not_take_the_others_share() -> None:
    policy = {"user-rate-limit": {"rate": "1/s", "max-wait": 0}}
    async with stand(lambda _: "done", tools(policy=policy)) as (dispatcher, _):
        hog = await asyncio.gather(*(dispatcher.execute("work", user="hog") for _ in range(5)))
        assert sum(result.ok for result in hog) == 1
        assert (await dispatcher.execute("work", user="ann")).ok


async def test_a_users_rate_can_be_for_several_tools_together() -> None:
    both = {"policy": {"shared-user-rate-limit": {"rate": "2/s", "max-wait": 0}}}
    async with stand(lambda _: "done", catalog(one=both, two=both)) as (dispatcher, _):
        results = [await dispatcher.execute(tool, user="ann") for tool in ("one", "two", "one", "two")]
        assert [result.ok for result in results] == [True, True, False, False]
        assert (await dispatcher.execute("one", user="bob")).ok


async def test_what_never_left_costs_nothing_of_the_rate() -> None:
    policy = {"rate-limit": {"rate": "1/h", "max-wait": 0}, "bulkhead": 1, "retry": 1}
    async with serving(lambda _: "done"), dispatching(tools(policy=policy)) as dispatcher:
        dispatcher.breaker("work").force_open()
        for _ in range(3):
            assert (await dispatcher.execute("work")).outcome is Outcome.REJECTED
        dispatcher.breaker("work").reset()
        assert (await dispatcher.execute("work")).ok
        assert (await dispatcher.execute("work")).outcome is Outcome.THROTTLED


async def test_what_was_refused_for_want_of_room_is_tried_again_when_it_may_be() -> None:
    async with deaf() as (dispatcher, peer):
        call = asyncio.create_task(dispatcher.execute("work"))
        request, first = await peer.request()
        began = now()
        await peer.answer(first, error=("overloaded", "full"), refused="overloaded", retry_after_ms="500")
        again, second = await peer.request()
        assert 0.5 <= now() - began <= 0.55
        assert again == request
        assert second[Property.ID] != first[Property.ID]
        assert (first.get(Property.ATTEMPT), second[Property.ATTEMPT]) == (None, "2")
        await peer.answer(second, "done")
        result = await call
        assert (result.text, result.attempts, result.request_id) == ("done", 2, second[Property.ID])


async def test_what_may_have_run_is_not_tried_again_unless_it_may_run_twice() -> None:
    async with deaf(policy={"attempt-timeout": 1}) as (dispatcher, peer):
        with pytest.raises(CallTimeoutError) as caught:
            await dispatcher.call("work", timeout=5)
        assert (caught.value.limit_name, peer.arrived.qsize()) == ("attempt", 1)
    async with deaf(policy={"attempt-timeout": 1}, idempotent=True) as (dispatcher, peer):
        result = await dispatcher.execute("work", timeout=5)
        assert (result.outcome, result.attempts) == (Outcome.TIMEOUT, 3)
        assert peer.arrived.qsize() == 3
    async with deaf(policy={"attempt-timeout": 1}) as (dispatcher, peer):
        result = await dispatcher.execute("work", timeout=5, idempotency_key="once")
        assert (result.outcome, result.attempts) == (Outcome.TIMEOUT, 1), "it is not known to keep keys"


async def test_a_key_is_repeated_where_it_is_known_and_runs_once() -> None:
    service = Service(Gate())
    slow = {"attempt-timeout": 1, "retry": {"initial-backoff": 0.01, "max-backoff": 0.01}}
    async with stand(service, tools(policy=slow), instance="first") as (dispatcher, _):
        call = await start_task(dispatcher.execute("work", timeout=10, idempotency_key="once"), 2.5)
        assert len(service.requests) == 1
        service._work.open.set()  # type: ignore[attr-defined] # the gate above
        result = await call
        assert (result.text, result.attempts) == ("done", 3)
        assert len(service.requests) == 1


async def test_a_tools_own_error_is_its_answer() -> None:
    def fail(arguments: dict[str, Any]) -> str:
        raise ToolError("busy", "come back")

    async with stand(fail, tools(idempotent=True)) as (dispatcher, server):
        for _ in range(30):
            with pytest.raises(ToolError):
                await dispatcher.call("work")
        assert server.requests == 30
        assert dispatcher.breaker("work").state is State.CLOSED, "and says nothing of its service's health"
    async with stand(fail, tools(idempotent=True, policy={"retry": {"retryable-errors": ["busy"]}})) as (dispatcher, _):
        result = await dispatcher.execute("work")
        assert (result.outcome, result.attempts) == (Outcome.TOOL_ERROR, 3)


async def test_retries_are_a_share_of_the_calls_however_many_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatch.calls.guards.MIN_REPEATS_PER_S", 0.1)
    policy = {"attempt-timeout": 0.5, "breaker": None}
    async with deaf(policy=policy, idempotent=True) as (dispatcher, peer):
        results = await asyncio.gather(*(dispatcher.execute("work", timeout=5) for _ in range(50)))
        assert all(result.outcome is Outcome.TIMEOUT for result in results)
        assert peer.arrived.qsize() == sum(result.attempts for result in results) == 50 + 50 * 0.2 + 1


async def test_a_caller_that_leaves_during_the_wait_leaves_nothing_behind() -> None:
    async with deaf() as (dispatcher, peer):
        call = asyncio.create_task(dispatcher.execute("work"))
        _, properties = await peer.request()
        await peer.answer(properties, error=("overloaded", "full"), refused="overloaded", retry_after_ms="5000")
        await advance(1)
        await cancel_task(call)
        await advance(10)
        assert peer.arrived.empty()
        assert dispatcher.pending_requests == 0


async def test_a_stream_is_tried_again_until_its_first_chunk() -> None:
    async with deaf() as (dispatcher, peer):
        stream = dispatcher.stream("work")
        first = asyncio.ensure_future(anext(stream))
        _, properties = await peer.request()
        await peer.answer(properties, error=("overloaded", "full"), refused="overloaded", retry_after_ms="100")
        _, properties = await peer.request()
        assert properties[Property.ATTEMPT] == "2"
        await peer.answer(properties, "a", end=False)
        assert await first == "a"
        await peer.answer(properties, error=("overloaded", "full"), refused="overloaded", retry_after_ms="100")
        with pytest.raises(ThrottledError):
            await anext(stream)
        await advance(5)
        assert peer.arrived.empty()


# -- hedging --------------------------------------------------------------------------------------------------------
async def test_a_slow_first_attempt_is_hedged_at_another_instance() -> None:
    slow, fast = Gate(), Service(lambda _: "fast")
    async with (
        serving(slow, instance="slow"),
        dispatching(tools(read_only=True, policy={"hedging": 0.2})) as dispatcher,
    ):
        running = await start_task(dispatcher.call("work"), 0.5)
        async with serving(fast, instance="fast"):
            await advance(12)  # until the dispatcher looks who is there
            before, began = slow.most, now()
            for _ in range(4):
                assert await dispatcher.call("work") == "fast"
            assert slow.most > before, "some began there"
            assert 0.2 <= now() - began <= 0.9
            await idle()
            assert slow.running == 1, "losers are cancelled, and their service hears of it"
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def test_an_instance_that_is_silent_is_ejected_although_its_calls_are_hedged() -> None:
    silent, fast = Gate(), Service(lambda _: "fast")
    async with (
        serving(silent, instance="silent") as server,
        serving(fast, instance="fast"),
        dispatching(tools(read_only=True, policy={"hedging": 0.2})) as dispatcher,
    ):
        assert [await dispatcher.call("work") for _ in range(40)] == ["fast"] * 40
        assert server.requests == 5
        assert {view.id: view.state for view in dispatcher.instances("lab")}["silent"] == "ejected"


# -- single-flight --------------------------------------------------------------------------------------------------
async def test_calls_that_are_the_same_share_one_exchange(gate: Gate) -> None:
    service = Service(gate)
    async with stand(service, tools(read_only=True, policy={"single-flight": True})) as (dispatcher, _):
        same = [asyncio.create_task(dispatcher.execute("work", {"n": 1}, user="ann")) for _ in range(5)]
        other = asyncio.create_task(dispatcher.execute("work", {"n": 2}, user="ann"))
        bob = await start_task(dispatcher.execute("work", {"n": 1}, user="bob"), 0.01)
        assert len(service.requests) == 3
        same[0].cancel()  # even the one that began it
        await idle()
        gate.open.set()
        results = await asyncio.gather(*same[1:], other, bob)
        assert [result.text for result in results] == ["done 1"] * 4 + ["done 2", "done 1"]
        assert len(service.requests) == 3
        assert (await dispatcher.execute("work", {"n": 1}, user="ann")).ok
        assert len(service.requests) == 4, "only while it is under way"


async def test_a_shared_call_whose_own_exchange_ends_as_expired_is_not_made_again() -> None:
    tools = catalog(work={"read-only": True, "policy": {**UNGUARDED, "single-flight": True}})
    async with Peer.as_service() as peer, dispatching(tools) as dispatcher:
        call = asyncio.create_task(dispatcher.execute("work", timeout=5))
        _, properties = await peer.request()
        await peer.answer(properties, error=("expired", "The deadline had passed."), refused="expired")
        result = await call
        assert result.outcome is Outcome.TIMEOUT
        assert result.duration < 5
        assert peer.arrived.empty(), "one request"


# -- drain ----------------------------------------------------------------------------------------------------------
def _memory() -> MemoryTransport:
    return MemoryTransport(BROKER)


async def test_draining_lets_finish_what_runs_and_refuses_the_rest(gate: Gate) -> None:
    async with serving(gate):
        dispatcher = Dispatcher(_memory(), tools(policy={"bulkhead": 1}))
        await dispatcher.start()
        running = await start_task(dispatcher.execute("work"))
        waiting = await start_task(dispatcher.execute("work"))
        closing = await start_task(dispatcher.close(drain=5))
        queued = await waiting
        late = await dispatcher.execute("work")
        for result in (queued, late):
            assert isinstance(result.error, TransportError)
            assert (result.error.type, result.error.may_have_run) == ("closed", False)
        gate.open.set()
        assert (await running).ok
        await closing


async def test_a_drain_ends_when_its_time_is_over() -> None:
    async with serving(Gate()):
        dispatcher = Dispatcher(_memory(), tools())
        await dispatcher.start()
        running = await start_task(dispatcher.execute("work"))
        began = now()
        await dispatcher.close(drain=5)
        assert now() - began == pytest.approx(5, abs=0.1)
        assert (await running).error.type == "closed"


# -- reload ---------------------------------------------------------------------------------------------------------
async def test_a_new_policy_keeps_the_breaker_and_what_is_under_way(gate: Gate) -> None:
    async with stand(gate, tools(policy={"breaker": {"consecutive-failures": 3}})) as (dispatcher, _):
        running = await start_task(dispatcher.call("work"))
        breaker = dispatcher.breaker("work")
        breaker.force_open()
        await dispatcher.reload(tools(policy={"breaker": {"consecutive-failures": 7}, "bulkhead": 1}))
        assert dispatcher.breaker("work") is breaker
        assert (breaker.state, breaker.settings.consecutive_failures) == (State.FORCED_OPEN, 7)
        breaker.reset()
        waiting = await start_task(dispatcher.call("work"))
        assert gate.running == 1, "the new limit counts the call that began under the old one"
        gate.open.set()
        assert await asyncio.gather(running, waiting) == ["done", "done"]


async def test_a_removed_tool_finds_its_guards_again_for_a_time() -> None:
    async with stand(lambda _: "done", catalog(one={}, two={})) as (dispatcher, _):
        assert await dispatcher.call("one") == "done"
        former = dispatcher.breaker("one")
        former.force_open()
        await dispatcher.reload(catalog(two={}, three={}))
        with pytest.raises(RejectedError, match="no tool 'one'"):
            await dispatcher.call("one")
        assert await dispatcher.call("three") == "done"
        await advance(RETENTION_S - 1)
        policy = Policy(breaker=Breaker(consecutive_failures=4), bulkhead=Bulkhead(max_wait=0))
        await dispatcher.reload(catalog(one={}), policy=policy)
        assert dispatcher.breaker("one") is former
        assert former.settings.consecutive_failures == 4
        await advance(RETENTION_S)  # it is no longer removed
        with pytest.raises(RejectedError, match="operator"):
            await dispatcher.call("one")
        await dispatcher.reload(catalog(two={}))
        await advance(RETENTION_S)
        await dispatcher.reload(catalog(one={}))
        assert dispatcher.breaker("one") is not former
        assert await dispatcher.call("one") == "done"


async def test_instances_with_topics_of_their_own_take_turns() -> None:
    listed = list_instances("x", "y", scheme="non-persistent")
    async with contextlib.AsyncExitStack() as stack:
        for name, at in listed.items():
            await stack.enter_async_context(serving(lambda _, name=name: name, at=at, instance=name))
        dispatcher = await stack.enter_async_context(dispatching(catalog(service={"instances": [*listed.values()]})))
        assert dispatcher.instances("lab") == ()
        answers = Counter([await dispatcher.call("work") for _ in range(10)])
        assert answers == {"x": 5, "y": 5}
        assert {view.id: view.state for view in dispatcher.instances("lab")} == {"x": "warming", "y": "warming"}
        with pytest.raises(RejectedError):
            dispatcher.instances("nothing")


async def test_an_instance_that_fails_is_left_out() -> None:
    tool = tools(idempotent=True, policy={"attempt-timeout": 0.5, "timeout": 5})
    async with (
        serving(Gate(), instance="stuck"),
        serving(lambda _: "fine", instance="fine"),
        dispatching(tool) as dispatcher,
    ):
        await dispatcher.execute("work")
        await advance(0.5)
        results = [await dispatcher.execute("work") for _ in range(40)]
        assert all(result.ok for result in results)
        assert sum(result.attempts for result in results) <= 40 + 8
        assert {view.id: view.state for view in dispatcher.instances("lab")}["stuck"] == "ejected"


@pytest.mark.usefixtures("exact_breakers")
async def test_when_a_tool_is_well_again_its_instances_are() -> None:
    well = False

    async def work(_: dict[str, Any]) -> str:
        if not well:
            await asyncio.sleep(100)
        return "done"

    settings = {"consecutive-failures": 20, "open-duration": 5, "half-open-calls": 2}
    policy = {"timeout": 1, "breaker": settings, "outlier-detection": {"consecutive-failures": 3}}
    async with contextlib.AsyncExitStack() as stack:
        for name in "abcd":
            await stack.enter_async_context(serving(work, instance=name))
        dispatcher = await stack.enter_async_context(dispatching(tools(policy=policy)))
        while dispatcher.breaker("work").state is not State.OPEN:
            await dispatcher.execute("work")
        assert sum(view.state == "ejected" for view in dispatcher.instances("lab")) == 2
        well = True
        await advance(5)
        assert [await dispatcher.call("work") for _ in range(2)] == ["done"] * 2
        assert dispatcher.breaker("work").state is State.CLOSED
        assert [view.state for view in dispatcher.instances("lab") if view.state == "ejected"] == []


PERSISTENT = topics_of("lab", "persistent")
READS = tools(read_only=True)
SMALL = {"concurrency": 1, "max_queue": 0}


def list_instances(*names: str, scheme: str = "persistent") -> dict[str, dict[str, str]]:
    """Return instances by their names, as a descriptor lists them."""
    return {name: {"id": name, **topics_of(f"lab-{name}", scheme)} for name in names}


def listing(instances: Mapping[str, Mapping[str, str]], is_read: bool = False) -> Catalog:
    """Return a catalogue of ``work`` on persistent topics with these instances."""
    return catalog(service={**PERSISTENT, "instances": [*instances.values()]}, work={"read-only": is_read})


@pytest.mark.parametrize("is_repeatable", [False, True])
async def test_one_overloaded_instance_on_a_shared_topic_does_not_pause_the_tool(is_repeatable: bool) -> None:
    """The broker distributes the requests, so the others get theirs all the same."""

    async with contextlib.AsyncExitStack() as stack:
        for name in "abcd":
            options = {"instance": name, **(SMALL if name == "a" else {})}
            await stack.enter_async_context(serving(lambda _: asyncio.sleep(0.05, "done"), at=PERSISTENT, **options))
        descriptors = catalog(service=PERSISTENT, work={"read-only": is_repeatable})
        dispatcher = await stack.enter_async_context(dispatching(descriptors))
        outcomes = await count_outcomes(await begin(dispatcher, 400, 0.01))
        assert outcomes[Outcome.REJECTED] == 0
        assert outcomes[Outcome.SUCCESS] >= 390


async def test_instances_on_a_shared_topic_that_answer_nothing_but_refusals_pause_the_tool() -> None:
    async with (
        serving(lambda _: asyncio.sleep(20, "done"), at=PERSISTENT, **SMALL),
        dispatching(catalog(service=PERSISTENT), policy=Policy(retry=None)) as dispatcher,
    ):
        first = await start_task(dispatcher.execute("work"), 0.1)
        for _ in range(10):
            assert (await dispatcher.execute("work")).outcome is Outcome.THROTTLED
            assert dispatcher.breaker("work").retry_after is None
            await advance(0.09)
        await advance(0.2)
        await dispatcher.execute("work")
        assert dispatcher.breaker("work").retry_after is not None
        assert (await first).outcome is Outcome.SUCCESS


async def test_a_persistent_topic_on_which_nothing_replies_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async with dispatching(catalog(service=PERSISTENT)) as dispatcher:
        call = await start_task(dispatcher.execute("work", timeout=5), 2.1)
        unanswered = "so far nothing has replied on persistent://tg/request/lab"
        assert caplog.messages == [f"{unanswered}: is the service running?"]
        error = (await call).error
        assert f"{unanswered} (is the service running?); tool 'work' may have been executed" in error.message
        async with serving(lambda _: asyncio.sleep(3, "done"), at=PERSISTENT):
            assert await dispatcher.call("work") == "done"
            assert (await dispatcher.execute("work", timeout=1)).outcome is Outcome.TIMEOUT
    assert len(caplog.messages) == 1


@pytest.mark.costly
async def test_an_instance_behind_a_shared_topic_that_hangs_does_not_keep_calls_from_the_other() -> None:
    """Half of the calls are at it, and they alone fail."""

    async with (
        serving(lambda _: asyncio.sleep(0.05, "done"), instance="a", at=PERSISTENT),
        serving(lambda _: asyncio.sleep(3_600, "never"), instance="b", at=PERSISTENT),
        dispatching(catalog(service=PERSISTENT)) as dispatcher,
    ):
        calls = await begin(dispatcher, 60 * 40, 0.025)
        assert await count_outcomes(calls) == {Outcome.SUCCESS: 1_200, Outcome.TIMEOUT: 1_200}


async def test_the_places_of_a_tool_on_a_shared_topic_hold_while_nothing_is_answered(gate: Gate) -> None:
    async with (
        serving(gate, at=PERSISTENT),
        dispatching(catalog(service=PERSISTENT), policy=Policy(bulkhead=Bulkhead(4))) as dispatcher,
    ):
        gate.open.set()
        await asyncio.gather(*(dispatcher.call("work") for _ in range(20)))
        gate.open.clear()
        calls = await begin(dispatcher, 100, 0.1)
        assert gate.most == 4
        gate.open.set()
        await asyncio.gather(*calls)


async def test_a_listed_topic_that_answers_nothing_but_refusals_does_not_pause_the_tool() -> None:
    """The other topic of the service has asked for no pause."""

    calls: list[asyncio.Task[CallResult]] = []
    listed = list_instances("small", "large")
    async with (
        serving(lambda _: asyncio.sleep(20 if calls else 0, "late"), at=listed["small"], **SMALL),
        serving(lambda _: "done", at=listed["large"]),
        dispatching(listing(listed), policy=Policy(retry=None)) as dispatcher,
    ):
        await asyncio.gather(dispatcher.call("work"), dispatcher.call("work"))  # each of them has replied
        for _ in range(60):
            calls.append(asyncio.create_task(dispatcher.execute("work")))
            await advance(0.1)
        outcomes = await count_outcomes(calls)
        assert outcomes[Outcome.THROTTLED] > 1
        assert outcomes[Outcome.REJECTED] == 0


async def test_reads_at_a_listed_topic_that_nothing_serves_go_to_the_other_one() -> None:
    """They go there as soon as an answer would have come; the default policy leaves a slow tool all its time."""
    listed = list_instances("absent", "present")
    async with (
        serving(lambda _: asyncio.sleep(0.5, "done"), at=listed["present"]),
        dispatching(listing(listed, is_read=True)) as dispatcher,
    ):
        began = now()
        assert await asyncio.gather(*(dispatcher.call("work") for _ in range(64))) == ["done"] * 64
        assert now() - began < 3


async def test_a_listed_topic_on_which_nothing_has_replied_gets_one_request_at_a_time() -> None:
    """As long as another one replies, and until it has replied itself: then it has its share."""
    listed = list_instances("late", "early")
    async with (
        serving(lambda _: asyncio.sleep(0.01, "early"), at=listed["early"]),
        dispatching(listing(listed)) as dispatcher,
    ):
        calls = await begin(dispatcher, 100, 0.1)
        async with serving(lambda _: asyncio.sleep(0.01, "late"), at=listed["late"]):
            outcomes = await count_outcomes(calls)
            assert outcomes[Outcome.SUCCESS] >= 99
            answers = Counter([await dispatcher.call("work") for _ in range(100)])
            assert answers["late"] >= 45


async def test_reads_at_a_listed_topic_with_a_slow_tool_stay_there() -> None:
    began: list[str] = []

    async def work(name: str) -> str:
        began.append(name)
        await asyncio.sleep(10 if name == "first" else 12)
        return name

    listed = list_instances("first", "second")
    async with pair(work, listing(listed, is_read=True), listed) as dispatcher:
        answers = await asyncio.gather(*(dispatcher.call("work") for _ in range(10)))
        assert Counter(answers) == Counter(began) == {"first": 5, "second": 5}


@pytest.mark.costly
@pytest.mark.parametrize("is_read", [False, True])
@pytest.mark.parametrize("is_listed", [False, True])
@pytest.mark.parametrize("rate", [2, 20])
async def test_an_instance_that_hangs_gets_hardly_a_call_at_any_rate(rate: int, is_listed: bool, is_read: bool) -> None:
    """Agents make few calls: it is noticed before they fail, and before they fill the bulkhead."""
    work = Work()
    listed = list_instances("first", "second")
    descriptors = listing(listed, is_read=is_read) if is_listed else catalog(work={"read-only": is_read})
    async with pair(work, descriptors, listed if is_listed else None) as dispatcher:
        assert set(await count_outcomes(await begin(dispatcher, 10 * rate, 1 / rate))) == {Outcome.SUCCESS}
        work.hanging = True
        outcomes = await count_outcomes(await begin(dispatcher, 29 * rate, 1 / rate))
        assert outcomes[Outcome.SUCCESS] >= 29 * rate - (0 if is_read else rate)


@pytest.fixture
def work() -> Work:
    return Work()


@pytest.mark.costly
async def test_calls_that_must_go_to_an_instance_that_hangs_leave_places_to_the_others(work: Work) -> None:
    """Those with an idempotency key that it may know: they would fill the bulkhead beside an idle instance."""
    async with pair(work) as dispatcher:
        keyed, calls = [], []
        for number in range(3_000):
            work.hanging = number >= 400
            key = f"key-{number}" if number % 4 == 0 else None
            call = asyncio.create_task(dispatcher.execute("work", idempotency_key=key))
            (calls if key is None else keyed).append(call)
            await advance(1 / 40)
        outcomes = await count_outcomes(calls)
        assert outcomes[Outcome.SUCCESS] >= 0.99 * len(calls)
        assert {each.outcome for each in await asyncio.gather(*keyed)} == {Outcome.SUCCESS, Outcome.TIMEOUT}


@pytest.mark.costly
@pytest.mark.parametrize("strategy", ["least-request", "peak-ewma"])
async def test_strategies_that_measure_do_not_take_an_instance_that_fails_at_once_for_a_fast_one(strategy: str) -> None:
    work = Work()
    async with pair(work, catalog(work={"policy": {"balancing": strategy}})) as dispatcher:
        calls = await begin(dispatcher, 400, 1 / 40)
        work.failing = True
        calls += await begin(dispatcher, 800, 1 / 40)
        outcomes = await count_outcomes(calls)
        assert outcomes[Outcome.TOOL_ERROR] <= 0.7 * 800


async def test_an_instance_that_hangs_is_ejected_although_the_first_calls_were_slow() -> None:
    """Calls that end before the longest of a few durations wait long enough to tell that it hangs."""
    work, cold = Work(), iter((0.4, 0.4))
    async with pair(
        lambda name: work.pause(name, next(cold, 0.01)), tools(policy={"retry": 1, "breaker": None})
    ) as dispatcher:
        for _ in range(10):
            await dispatcher.call("work")
        work.hanging = True
        outcomes = [(await dispatcher.execute("work", timeout=0.2)).outcome for _ in range(30)]
        assert outcomes.count(Outcome.TIMEOUT) <= 6
        assert set(outcomes[-10:]) == {Outcome.SUCCESS}


async def test_an_instance_that_fails_at_once_does_not_get_the_calls_of_the_others(work: Work) -> None:
    """It is no fast one beside which they are slow."""
    async with pair(work) as dispatcher:
        outcomes: Counter[Outcome] = Counter()
        for number in range(320):
            work.failing = number >= 80
            outcomes[(await dispatcher.execute("work")).outcome] += 1
            await advance(0.1)
        assert outcomes == {Outcome.SUCCESS: 200, Outcome.TOOL_ERROR: 120}
        assert [each.ejections for each in dispatcher.instances("lab")] == [0, 0]


async def test_the_timeout_of_attempts_does_not_shrink_when_a_tool_fails_at_once() -> None:
    """After an outage of what it needs the tool takes as long as ever: its attempts would time out, and the circuit open."""
    failing, calls = False, []

    async def work(_: object) -> str:
        if failing:
            raise RuntimeError("no database")
        await asyncio.sleep(3)
        return "done"

    phases = ((40, Outcome.SUCCESS), (280, Outcome.TOOL_ERROR), (80, Outcome.SUCCESS))
    async with stand(work, catalog(work={"read-only": True})) as (dispatcher, _):
        for count, outcome in phases:
            failing = outcome is Outcome.TOOL_ERROR
            calls += await begin(dispatcher, count, 0.25)
        outcomes = [each.outcome for each in await asyncio.gather(*calls)]
        assert outcomes == [outcome for count, outcome in phases for _ in range(count)]


@pytest.mark.costly
async def test_a_tool_that_becomes_slow_as_a_whole_is_no_failure() -> None:
    """A cache is empty, for example: no attempt at another instance would be faster, and no instance hangs."""
    service = Service(lambda _: asyncio.sleep(1.5 if len(service.requests) > 200 else 0.05, "done"))
    async with (
        serving(service, instance="first"),
        serving(service, instance="second"),
        dispatching(READS) as dispatcher,
    ):
        changes = follow_instances(dispatcher)
        calls = await begin(dispatcher, 600, 0.1)
        assert {(each.outcome, each.attempts) for each in await asyncio.gather(*calls)} == {(Outcome.SUCCESS, 1)}
        assert [each.change for each in changes] == ["joined", "joined"]
        assert len(service.requests) == 600


@pytest.mark.parametrize("seconds", [1.5, 5])
async def test_a_tool_on_a_shared_topic_that_becomes_slow_as_a_whole_is_no_failure(seconds: float) -> None:
    """Its service has more time than the usual limit of an attempt, once no later call is answered within that."""
    service = Service(lambda _: asyncio.sleep(seconds if len(service.requests) > 200 else 0.05, "done"))
    descriptors = catalog(service=PERSISTENT, work={"read-only": True})
    async with serving(service, at=PERSISTENT), dispatching(descriptors) as dispatcher:
        assert set(await count_outcomes(await begin(dispatcher, 500, 0.1))) == {Outcome.SUCCESS}
        assert len(service.requests) < 530


async def test_a_function_of_this_process_that_becomes_slow_is_no_failure() -> None:
    began: list[float] = []

    @tool(read_only=True)
    async def work() -> str:
        """Work."""
        began.append(now())
        await asyncio.sleep(1.5 if len(began) > 100 else 0.05)
        return "done"

    async with connect(BROKER, catalog=[Functions(work)]) as dispatcher:
        calls = await begin(dispatcher, 300, 0.1)
        assert {(each.outcome, each.attempts) for each in await asyncio.gather(*calls)} == {(Outcome.SUCCESS, 1)}
        assert len(began) == 300


async def test_a_stream_of_this_process_may_last_longer_than_a_call() -> None:
    """Also for a caller that learns only with the first chunk that it is a stream."""

    async def count_up() -> AsyncIterator[str]:
        """Count."""
        for number in range(45):
            await asyncio.sleep(1)
            yield str(number)

    async with connect(BROKER, catalog=[Functions(count_up)]) as dispatcher:
        whole: list[bool] = []
        chunks: list[str] = []
        await read(dispatcher.stream("count_up", on_begin=whole.append), chunks)
        assert (whole, len(chunks)) == ([False], 45)


async def test_reads_that_are_called_seldom_are_repeated_when_an_instance_hangs(work: Work) -> None:
    """There are never ten durations in a minute."""
    async with pair(work, catalog(work={"read-only": True})) as dispatcher:
        calls = await begin(dispatcher, 10, 10)
        work.hanging = True
        calls += await begin(dispatcher, 60, 10)
        results = (await asyncio.gather(*calls))[:-4]  # no later call is answered while the last ones wait
        assert all(each.ok for each in results)
        assert max(each.duration for each in results) < 12


async def test_slow_reads_that_are_called_seldom_have_their_time() -> None:
    service = Service(lambda _: asyncio.sleep(2 if len(service.requests) % 4 else 20, "done"))
    async with (
        serving(service, instance="first"),
        serving(service, instance="second"),
        dispatching(READS) as dispatcher,
    ):
        assert set(await count_outcomes(await begin(dispatcher, 30, 8))) == {Outcome.SUCCESS}
        assert len(service.requests) == 30


@pytest.mark.parametrize("is_read", [False, True])
async def test_a_read_whose_service_stops_while_the_tool_runs_is_made_at_another_instance(is_read: bool) -> None:
    began: list[str] = []

    async def work(name: str) -> str:
        began.append(name)
        await asyncio.sleep(5)
        return name

    async with (
        serving(lambda _: work("first"), instance="first", drain_timeout=1) as first,
        serving(lambda _: work("second"), instance="second", drain_timeout=1) as second,
        dispatching(catalog(work={"read-only": is_read})) as dispatcher,
    ):
        call = await start_task(dispatcher.execute("work"), 1)
        stopped, other = (first, "second") if began == ["first"] else (second, "first")
        await stopped.drain()
        result = await call
        if is_read:
            assert (result.text, began[1:]) == (other, [other])
        else:
            assert (result.error is not None, len(began)) == (True, 1)
            with pytest.raises(ToolError, match="may have been executed"):
                raise result.error or AssertionError


async def test_a_version_without_instances_loses_its_share_until_there_is_one() -> None:
    services = [{"id": name, **topics_of(name)} for name in ("lab", "next")]
    tools = [
        tool_of("lab", "work", version="1.0.0", rollout={"2.0.0": 100}),
        tool_of("next", "work", version="2.0.0"),
    ]
    async with serving(lambda _: "former"), dispatching(Catalog.of(services, tools)) as dispatcher:
        for _ in range(2):
            async with serving(lambda _: "next", at=services[1]):
                await advance(1)
                assert await dispatcher.call("work") == "next"
            await advance(1.5)
            assert await dispatcher.call("work", timeout=5) == "former"


@pytest.mark.costly
@pytest.mark.parametrize("policy", [{}, {"hedging": "p95"}])
async def test_reads_with_a_key_leave_the_instance_of_the_key_when_it_hangs(policy: dict[str, Any]) -> None:
    """A second execution elsewhere does no harm, and the other instance has nothing to do."""
    work, numbers = Work(), itertools.count()

    def call() -> Coroutine[Any, Any, CallResult]:
        return dispatcher.execute("work", idempotency_key=f"key-{next(numbers)}")

    async with pair(work, catalog(work={"read-only": True, "policy": policy})) as dispatcher:
        calls = await begin(dispatcher, 500, 1 / 40, call)
        work.hanging = True
        calls += await begin(dispatcher, 1_500, 1 / 40, call)
        results = await asyncio.gather(*calls)
        assert all(each.ok for each in results)
        assert sum(each.duration > 0.5 for each in results) < 50


@pytest.mark.parametrize("knows_consumers", [False, True])
async def test_the_topic_of_a_listed_instance_that_is_gone_gets_no_calls_while_others_are_there(
    knows_consumers: bool,
) -> None:
    """However long it is gone; a broker other than the embedded one does not know that its topic has no consumer."""

    class Broker(MemoryTransport):
        def has_subscriber(self, topic: str) -> bool:
            return not knows_consumers or super().has_subscriber(topic)

    listed = list_instances("first", "second", scheme="non-persistent")
    async with (
        serving(lambda _: "second", at=listed["second"]),
        dispatching(catalog(service={"instances": [*listed.values()]}), transport=Broker(BROKER)) as dispatcher,
    ):
        async with serving(lambda _: "first", at=listed["first"]):
            assert {await dispatcher.call("work") for _ in range(4)} == {"first", "second"}
        for _ in range(8):
            await advance(GONE_S / 4)
            assert [await dispatcher.call("work", timeout=1) for _ in range(4)] == ["second"] * 4
        async with serving(lambda _: "first", at=listed["first"]):
            await advance(1)
            assert "first" in {await dispatcher.call("work") for _ in range(40)}


@pytest.mark.costly
async def test_an_instance_whose_streams_stop_half_way_leaves_places_to_the_other(work: Work) -> None:

    async def halves(name: str) -> AsyncIterator[str]:
        yield name
        await work.pause(name, 1)
        yield name

    async with pair(halves) as dispatcher:
        calls = await begin(dispatcher, 80, 1 / 8, lambda: time_stream(dispatcher, 2))
        work.hanging = True
        calls += await begin(dispatcher, 320, 1 / 8, lambda: time_stream(dispatcher, 2))
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert not [each for each in ends if isinstance(each, RejectedError)]
        assert max(each for each in ends if isinstance(each, float)) < 2


@pytest.mark.costly
@pytest.mark.parametrize("policy", [{}, {"bulkhead": None}])
async def test_an_instance_that_hangs_in_every_second_call_is_ejected(policy: dict[str, Any]) -> None:
    """It answers the others, so that it is not silent, and at this rate it does not fill the bulkhead."""
    began: Counter[str] = Counter()

    async def work(name: str) -> str:
        began[name] += 1
        await asyncio.sleep(3_600 if name == "first" and began[name] > 50 and began[name] % 2 else 0.05)
        return name

    async with pair(work, catalog(work={"policy": policy})) as dispatcher:
        outcomes = await count_outcomes(await begin(dispatcher, 350, 0.1))
        assert outcomes[Outcome.TIMEOUT] <= 22


@pytest.mark.costly
async def test_an_instance_that_works_again_is_not_judged_by_what_hung_there_before() -> None:
    """Its calls with keys go there all the same, and each answer would be followed by an ejection."""
    work, numbers, calls = Work(), itertools.count(), []

    def call() -> Coroutine[Any, Any, CallResult]:
        return dispatcher.execute("work", idempotency_key=f"key-{next(numbers) // 4}")

    async with pair(work) as dispatcher:
        changes = follow_instances(dispatcher)
        for count in (200, 400, 1_000):
            work.hanging = count == 400
            calls += await begin(dispatcher, count, 1 / 40, call)
        outcomes = [each.outcome for each in await asyncio.gather(*calls)]
        assert set(outcomes[620:]) == {Outcome.SUCCESS}
        assert set(outcomes) == {Outcome.SUCCESS, Outcome.TIMEOUT}
        assert sum(each.change == "ejected" for each in changes) <= 2


@pytest.mark.costly
async def test_streams_on_a_shared_topic_that_stop_half_way_leave_places_to_the_others() -> None:
    async def work(name: str) -> AsyncIterator[str]:
        yield name
        await asyncio.sleep(3_600 if name == "first" else 0.2)
        yield name

    at = dict.fromkeys(("first", "second"), PERSISTENT)
    async with pair(work, catalog(service=PERSISTENT), at) as dispatcher:
        calls = await begin(dispatcher, 400, 1 / 20, lambda: time_stream(dispatcher, 2))
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert not [each for each in ends if isinstance(each, RejectedError)]
        assert sum(isinstance(each, float) for each in ends) == 200


@pytest.mark.costly
async def test_new_instances_beside_one_with_a_queue_are_used_at_once() -> None:
    """Slow start gives them a share of the turns, and of the calls in flight: the queue makes turns rare."""

    async with contextlib.AsyncExitStack() as stack:
        dispatcher = await stack.enter_async_context(dispatching())
        calls: list[asyncio.Task[CallResult]] = []
        for instances, seconds in ((1, 10), (3, 20)):
            for number in range(instances):
                name = f"{instances}-{number}"
                await stack.enter_async_context(
                    serving(lambda _: asyncio.sleep(2, "done"), instance=name, concurrency=16)
                )
            calls += await begin(dispatcher, seconds * 25, 1 / 25)
        assert set(await count_outcomes(calls)) == {Outcome.SUCCESS}


@pytest.mark.costly
async def test_what_hung_before_a_tool_recovered_opens_no_circuit_when_it_times_out() -> None:
    """The tool has been well for 20 s then. Calls that hang all the time open it."""
    hanging = 0.0
    service = Service(lambda _: asyncio.sleep(3_600 if len(service.requests) % 10 < 10 * hanging else 0.05, "done"))
    async with stand(service) as (dispatcher, _):
        calls = []
        for count, hanging in ((25, 0.0), (50, 1.0), (325, 0.0)):  # noqa: B007 - the service reads it
            calls += await begin(dispatcher, count, 1 / 5)
        assert await count_outcomes(calls) == {Outcome.SUCCESS: 350, Outcome.TIMEOUT: 50}
        hanging = 0.6
        calls = await begin(dispatcher, 300, 1 / 5, lambda: dispatcher.execute("work", timeout=20))
        assert dispatcher.breaker("work").state is not State.CLOSED
        await asyncio.gather(*calls)


async def test_the_error_of_an_attempt_that_its_service_stopped_names_the_limit_of_the_attempt() -> None:
    policy = {"attempt-timeout": 0.5006, "timeout": 5, "retry": 1}
    tools = catalog(service=PERSISTENT, work={"policy": policy})
    async with stand(lambda _: asyncio.sleep(60), tools, at=PERSISTENT) as (dispatcher, _):
        with pytest.raises(CallTimeoutError, match=r"within 0\.5006 s") as caught:
            await dispatcher.call("work")
        assert (caught.value.limit_name, caught.value.type) == ("attempt", "attempt-timeout")


async def test_a_read_that_has_the_only_place_makes_room_when_its_instance_hangs(work: Work) -> None:
    """No other call could be answered meanwhile."""
    async with pair(work, catalog(work={"read-only": True, "policy": {"bulkhead": 1}})) as dispatcher:
        calls = await begin(dispatcher, 20, 0.5)
        work.hanging = True
        calls += await begin(dispatcher, 120, 0.5)
        outcomes = await count_outcomes(calls)
        assert outcomes[Outcome.SUCCESS] >= 138


async def test_where_a_tool_hangs_everywhere_no_instance_is_ejected_for_the_other_tools() -> None:
    """One of two has more of its calls than the other, because that one answered earlier."""
    hanging = False

    async def work(arguments: Mapping[str, Any]) -> str:
        await asyncio.sleep(3_600 if hanging and "hang" in arguments else 0.05)
        return "done"

    async with (
        serving(work, instance="first"),
        serving(work, instance="second"),
        dispatching(catalog(work={}, other={})) as dispatcher,
    ):
        changes = follow_instances(dispatcher)
        calls = []
        for number in range(280):
            hanging = number >= 80
            calls.append(asyncio.create_task(dispatcher.execute("work", {"hang": True})))
            calls.append(asyncio.create_task(dispatcher.execute("other")))
            await advance(1 / 8)
        assert all(each.ok for each in await asyncio.gather(*calls[1::2]))
        assert "ejected" not in {each.change for each in changes}
        for each in calls:
            each.cancel()


async def test_an_instance_that_hangs_is_known_to_all_tools_of_its_service(work: Work) -> None:
    """Each of them alone is called too seldom to find out."""
    names = [f"tool-{number}" for number in range(20)]
    async with pair(work, catalog(**{name: {} for name in names})) as dispatcher:
        changes = follow_instances(dispatcher)
        randomness, calls = random.Random(1), []
        for number in range(180):
            work.hanging = number >= 60
            calls.append(asyncio.create_task(dispatcher.execute(randomness.choice(names))))
            await advance(0.5)
        first = next(each for each in changes if each.change != "joined")
        assert (first.instance, first.change) == ("first", "unresponsive")
        states = {each.id: each.state for each in dispatcher.instances("lab")}
        assert states == {"first": "unresponsive", "second": "up"}
        in_metrics = {"service": "lab", "state": "unresponsive"}
        assert REGISTRY.get_sample_value("dispatch_instances", in_metrics) == 1
        outcomes = await count_outcomes(calls)
        assert outcomes[Outcome.SUCCESS] >= 176


async def test_an_unresponsive_instance_that_was_ejected_has_not_returned_when_it_answers() -> None:
    async with pair(lambda name: asyncio.sleep(8 if name == "first" else 0.05, name)) as dispatcher:
        changes = follow_instances(dispatcher)
        calls = await begin(dispatcher, 20, 0.25)
        (pool,) = dispatcher._runtime.pool_registry.of_service("lab")
        pool.balancer.hold("first")
        calls += await begin(dispatcher, 40, 0.25)
        assert set(await count_outcomes(calls)) == {Outcome.SUCCESS}
        assert [each.change for each in changes if each.change != "joined"] == ["unresponsive", "ejected"]


@pytest.mark.costly
@pytest.mark.parametrize("rate", [2, 20])
async def test_an_instance_whose_streams_do_not_begin_gets_hardly_a_call(rate: int, work: Work) -> None:
    """Its streams would fill the bulkhead until their idle limits, while the other instance has nothing to do."""

    async def thirds(name: str) -> AsyncIterator[str]:
        for _ in range(3):
            await work.pause(name, 0.02)
            yield name

    async with pair(thirds) as dispatcher:
        calls = await begin(dispatcher, 10 * rate, 1 / rate, lambda: time_stream(dispatcher, 3))
        work.hanging = True
        calls += await begin(dispatcher, 29 * rate, 1 / rate, lambda: time_stream(dispatcher, 3))
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(each, float) for each in ends) >= 38 * rate


@pytest.mark.costly
async def test_calls_of_very_uneven_durations_are_still_shared_evenly() -> None:
    randomness = random.Random(7)
    served: Counter[str] = Counter()

    async def work(name: str) -> str:
        served[name] += 1
        await asyncio.sleep(min(randomness.lognormvariate(-1.5, 1.5), 20))
        return name

    async with pair(work) as dispatcher:
        assert set(await count_outcomes(await begin(dispatcher, 1_200, 0.1))) == {Outcome.SUCCESS}
        assert min(served.values()) >= 0.45 * 1_200
