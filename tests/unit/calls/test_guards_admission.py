"""Goal G8: callers that are cancelled and time out at random moments leave nothing in any guard.

Guards against a bulkhead that is down from four places to none after a few cancelled waiters (aioresilience), one that keeps
places of those who left the line (hyx), and a limiter that keeps entries of callers who are gone.
Places in the bulkhead that threads have after the end of their calls.
Guards of tools that are removed and return, in virtual time.
Of 300 concurrent calls of a tool of 2 or 5 s, 65 were answered: the others were refused after 1 s, as calls of an
overloaded tool, though all could be answered within their 30 s.

The wait for a permit follows the tool, and one burst is no overload.
Of 1,000 concurrent calls of a healthy tool 81 % were refused as "too busy": 64 ran, 128 waited, and a line is short.

The line is limited by waiting time, and the refusal names the dispatcher's own limit: the tool is not busy.
Of 100 concurrent calls right after `connect`, all went to one of several instances when it announced itself 10 ms before the
others: its handshake had ended by then.

In the first 50 ms after the first instance four calls at once are sent, so that a burst finds the others, too.
Of 30,000 calls on a busy machine, 500 a second, 305 were refused because calls had waited for 0.4 s.

The queue stands when more calls arrive than are served for 2 s.
A broker outage opened every tool's circuit breaker, and the death of one of several instances the whole tool's.

A failure counts where it arose: a local one nowhere, that of one instance for this instance, and for the tool only while no
other instance answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple, cast

import pytest

import dispatch
from benchmarks.harness.broker import Endpoint
from dispatch import CallResult, CallTimeoutError, Catalog, CircuitChanged, Dispatcher, Event, Origin, ThrottledError
from dispatch._internal import RETENTION_S, Rejection
from dispatch.calls.attempt import OCCUPIED_AFTER_S, Admission
from dispatch.calls.guards import GuardKey, GuardRegistry, ToolGuards, create_rate_limiter
from dispatch.calls.resolution import ResolvedTool
from dispatch.errors import Outcome
from dispatch.policy import Bulkhead, Policy, RateLimit
from dispatch.resilience.aio import user_buckets
from dispatch.resilience.breaker import BreakerRules, State
from dispatch.resilience.bulkhead import QueueLimits
from dispatch.resilience.rate_limit import LeakyBucket, RatePermit, UserBuckets, Waiter
from dispatch.routing.discovery import SPREAD_S
from dispatch.telemetry.observers import DispatcherObserver
from dispatch.testing import Faults, FaultyTransport
from dispatch.transports.base import RECONNECT_WAIT_S
from dispatch.transports.memory import MemoryTransport
from tests.helpers.catalogs import catalog_of, unique_topic
from tests.helpers.clock import advance, start_task, virtual_loop
from tests.helpers.dispatcher_and_service import (
    BROKER,
    REQUESTS,
    RESPONSES,
    Peer,
    catalog,
    dispatching,
    read,
    serving,
    stand,
)
from tests.helpers.echo_service import Echo
from tests.helpers.lossy_proxy import LossyProxy

CALLS = 20_000


POLICY = Policy(
    rate_limit=RateLimit("300/s", burst=5, max_wait=0.3),
    user_rate_limit=RateLimit("120/s", burst=3, max_wait=0.3),
    bulkhead=Bulkhead(max_concurrent_calls=8, max_wait=0.2),
    breaker=BreakerRules(consecutive_failures=8, open_duration=0.2, half_open_lease=1.0),
)


ENDS = (*[Outcome.SUCCESS] * 12, Outcome.TIMEOUT, Outcome.TRANSPORT, Outcome.THROTTLED, Outcome.TOOL_ERROR)


class Crowd:
    """Callers of one tool, each as patient as chance has it."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.clock = virtual_loop().time
        self.shared: dict[RateLimit, UserBuckets[LeakyBucket]] = {}
        self.guards = ToolGuards(
            POLICY,
            repeatable=True,
            clock=self.clock,
            randomness=self.chance.random,
            rates=lambda policy: create_rate_limiter(
                policy, lambda rate: self.shared.setdefault(rate, user_buckets(rate))
            ),
        )
        self.ends: dict[str, int] = {}

    async def call(self) -> None:
        chance = self.chance
        deadline = self.clock() + chance.choice((0.02, 0.2, 2.0))
        admission, outcome, sent = Admission(self.guards), Outcome.CANCELLED, False
        end = "cancelled"
        try:
            refused = admission.try_acquire(f"user{chance.randrange(5)}", deadline, self.clock())
            if admission.must_wait:
                if chance.random() < 0.05:
                    admission.withdraw()
                    refused = Rejection("test", "gave-up")
                else:
                    refused = await admission.wait("", deadline, None)
            if refused is not None:
                outcome, end = Outcome.REJECTED, f"{refused.by} {refused.reason}"
                return
            if chance.random() < 0.05:
                end = "not sent"
                return
            sent = True
            await asyncio.sleep(chance.expovariate(25.0))
            sick = self.clock() % 10.0 > 8.0
            outcome = Outcome.TIMEOUT if sick else chance.choice(ENDS)
            end = str(outcome)
        finally:
            admission.finish(outcome, sent=sent, retry_after=0.01 if outcome is Outcome.THROTTLED else None)
            admission.finish(Outcome.TIMEOUT, sent=False)  # once counts
            self.ends[end] = self.ends.get(end, 0) + 1

    async def come(self, calls: int) -> None:
        loop, chance = virtual_loop(), self.chance
        tasks = []
        for _ in range(calls):
            task = asyncio.ensure_future(self.call())
            tasks.append(task)
            if chance.random() < 0.4:
                loop.call_later(chance.expovariate(20.0), task.cancel)
            if chance.random() < 0.9:
                await asyncio.sleep(chance.expovariate(400.0))
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.costly
async def test_cancelled_callers_leave_no_permit_no_waiter_and_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timers and tasks that are left fail any test here (tests/helpers/clock.py)."""
    monkeypatch.setattr("dispatch.resilience.bulkhead.QUEUE_LIMITS", QueueLimits(max_length=6))
    crowd = Crowd(0)
    await crowd.come(CALLS)
    guards = crowd.guards
    bulkhead, limiter = guards.bulkhead.guard, guards.rates.limiter
    assert (bulkhead.in_flight, bulkhead.waiting) == (0, 0)
    assert bulkhead.granted == bulkhead.released > CALLS / 10
    assert (limiter.waiting, limiter._user_queues, limiter._due) == (0, {}, [])
    assert not limiter._turns
    assert limiter.returned > 100, "permits of calls that were never sent went back"
    met = {"cancelled", "not sent", "success", "timeout", "breaker open", "rate-limit too-late", "bulkhead queue-full"}
    assert met <= set(crowd.ends), met - set(crowd.ends)
    assert sum(crowd.ends.values()) <= CALLS, "who was cancelled before its first step never came"

    # And all of it still works: as many places as before, and a circuit that closes.
    await advance(30)
    while guards.breaker.state is not State.CLOSED:
        admission = Admission(guards)
        assert admission.try_acquire("user", crowd.clock() + 1, crowd.clock()) is None
        admission.finish(Outcome.SUCCESS, sent=True)
        await advance(1)
    limit = bulkhead.limit
    places = [bulkhead.admit() for _ in range(limit + 1)]
    assert [isinstance(place, Rejection) for place in places] == [False] * limit + [True]


def create_guards(bulkhead: Bulkhead | None) -> ToolGuards:
    policy = Policy(bulkhead=bulkhead, breaker=None)
    clock = virtual_loop().time
    return ToolGuards(policy, repeatable=False, clock=clock, randomness=lambda: 0.5, rates=lambda policy: None)


def admit(guards: ToolGuards) -> tuple[Admission, Rejection | None]:
    admission, now = Admission(guards), virtual_loop().time()
    return admission, admission.try_acquire("", now + 60, now)


async def test_a_thread_that_hangs_makes_others_fail_at_once_after_a_while() -> None:
    guards = create_guards(Bulkhead(max_concurrent_calls=1))
    hanging, _ = admit(guards)
    thread: asyncio.Future[None] = virtual_loop().create_future()
    hanging.keep_place(thread)
    hanging.mark_occupied(thread)
    hanging.finish(Outcome.TIMEOUT, sent=True)

    other, refused = admit(guards)
    assert (refused, other.must_wait) == (None, True), "the thread may be about to end"
    await advance(OCCUPIED_AFTER_S)
    assert guards.bulkhead.guard.occupied == 1
    _, refused = admit(guards)
    assert refused == Rejection("bulkhead", "occupied", None)

    thread.set_result(None)
    await advance(0)
    assert (guards.bulkhead.guard.occupied, guards.bulkhead.guard.in_flight) == (0, 0)
    assert admit(guards)[1] is None


async def test_a_thread_that_ends_soon_is_never_counted() -> None:
    guards = create_guards(Bulkhead(max_concurrent_calls=1))
    late, _ = admit(guards)
    thread: asyncio.Future[None] = virtual_loop().create_future()
    late.keep_place(thread)
    late.mark_occupied(thread)
    late.finish(Outcome.TIMEOUT, sent=True)
    await advance(OCCUPIED_AFTER_S / 2)
    thread.set_result(None)
    await advance(OCCUPIED_AFTER_S)
    assert (guards.bulkhead.guard.occupied, guards.bulkhead.guard.in_flight) == (0, 0)


async def test_without_a_bulkhead_nothing_is_counted() -> None:
    admission, _ = admit(create_guards(None))
    thread: asyncio.Future[None] = virtual_loop().create_future()
    admission.keep_place(thread)
    admission.mark_occupied(thread)
    thread.set_result(None)


RATE, BURST = 5, 5


class Called(NamedTuple):
    """A tool, as far as its guards know it."""

    label: str
    version: str | None
    policy: Policy
    is_tool: bool = True
    repeatable: bool = False
    service_id: str = ""


class Registry:
    """A registry over a catalogue that is a dictionary. A key is the name of a tool, or ``NAME@VERSION``."""

    def __init__(self, **policies: Policy) -> None:
        self.policies: dict[str, Policy] = policies
        self.released: list[str] = []
        observer = DispatcherObserver()
        observer.release_tool = self.released.append  # type: ignore[method-assign] # records the labels
        observer.release_version = lambda *of: self.released.append("@".join(of))  # type: ignore[method-assign] # likewise
        self.registry = GuardRegistry(asyncio.get_running_loop().time, random.random, observer, self._find, None)

    def _find(self, key: GuardKey) -> ResolvedTool | None:
        _, name, version = key
        policy = self.policies.get(name if version is None else f"{name}@{version}")
        return None if policy is None else cast(ResolvedTool, Called(name, version, policy))

    def guards_of(self, key: str, policy: Policy | None = None) -> ToolGuards:
        name, _, version = key.partition("@")
        tool = Called(name, version or None, policy or self.policies[key])
        return self.registry.of_tool(cast(ResolvedTool, tool))

    def remove(self, key: str) -> Policy:
        policy = self.policies.pop(key)
        self.renew(key)
        return policy

    def put(self, key: str, policy: Policy) -> None:
        self.policies[key] = policy
        self.renew(key)

    def renew(self, key: str) -> None:
        self.registry.renew(self._find, [(True, key.partition("@")[0])])


async def test_a_tool_that_returns_finds_its_guards() -> None:
    tools = Registry(a=Policy(), b=Policy())
    guards, other = tools.guards_of("a"), tools.guards_of("b")
    policy = tools.remove("a")
    await advance(RETENTION_S - 0.001)
    assert tools.registry.all() == [guards, other]
    assert tools.guards_of("a", policy) is guards  # a call that began before the removal
    tools.put("a", Policy(bulkhead=Bulkhead(3)))
    assert tools.guards_of("a") is guards
    assert guards.policy == tools.policies["a"]
    await advance(2 * RETENTION_S)
    assert tools.guards_of("a") is guards
    assert tools.released == []


async def test_guards_are_dropped_after_their_time_and_their_last_call() -> None:
    tools = Registry(a=Policy(), b=Policy())
    guards = tools.guards_of("a")
    with tools.guards_of("b").calls:
        for key in "ab":
            tools.remove(key)
        await advance(RETENTION_S)
        assert tools.released == ["a"]
        await advance(RETENTION_S)
        assert (tools.released, tools.registry.calls_in_flight) == (["a"], 1)
    assert (tools.released, tools.registry.all()) == (["a", "b"], [])
    tools.put("a", Policy())
    assert tools.guards_of("a") is not guards


async def test_guards_of_a_call_that_began_long_before_are_dropped_too() -> None:
    tools = Registry()
    first = tools.guards_of("a", Policy())  # no catalogue has the tool any more
    assert tools.guards_of("a", Policy()) is first
    await advance(RETENTION_S)
    assert (tools.registry.all(), tools.released) == ([], ["a"])


async def test_new_guards_have_the_policy_in_force() -> None:
    tools = Registry(a=Policy(bulkhead=Bulkhead(3)))
    assert tools.guards_of("a", Policy(bulkhead=None)).policy == tools.policies["a"]


async def test_limits_of_users_that_tools_share_are_retained_as_well() -> None:
    shared = RateLimit("5/s")
    tools = Registry(a=Policy(shared_user_rate_limit=shared), b=Policy(shared_user_rate_limit=shared))
    for key in "ab":
        tools.guards_of(key)
    users = tools.registry._users[shared]
    tools.remove("a")
    await advance(RETENTION_S)
    assert tools.registry._users == {shared: users}
    tools.put("b", Policy())  # no tool has the limit now
    await advance(RETENTION_S - 1)
    tools.put("b", Policy(shared_user_rate_limit=shared))
    await advance(2 * RETENTION_S)
    assert tools.registry._users == {shared: users}
    tools.put("b", Policy(shared_user_rate_limit=RateLimit("6/s")))
    await advance(RETENTION_S)
    assert list(tools.registry._users) == [RateLimit("6/s")]
    tools.remove("b")
    await advance(RETENTION_S)
    assert (tools.registry._users, tools.registry._user_holders) == ({}, {})


async def test_the_wait_for_the_last_call_includes_those_of_removed_tools() -> None:
    tools = Registry(a=Policy(), b=Policy())
    a, b = tools.guards_of("a"), tools.guards_of("b")
    with a.calls:
        with b.calls:
            tools.remove("a")
            assert tools.registry.calls_in_flight == 2
            waiting = await start_task(tools.registry.wait_idle(), 1)
        await advance(1)
        assert not waiting.done()
    await waiting
    tools.registry.close()


# -- versions -------------------------------------------------------------------------------------------------------
ONE, TWO = "a@1.0.0", "a@2.0.0"


LIMITED = Policy(rate_limit=RateLimit("5/s", burst=5, max_wait=0))


def admitted(guards: ToolGuards, calls: int) -> int:
    """How many of some calls the rate limit of ``guards`` admits now."""
    return sum(isinstance(guards.rates.admit("alice", 0.0), RatePermit) for _ in range(calls))


async def test_versions_share_their_rate_limits_and_nothing_else() -> None:
    tools = Registry(**{ONE: LIMITED, TWO: LIMITED})
    one, two = tools.guards_of(ONE), tools.guards_of(TWO)
    assert one.rates is two.rates is not None
    for guard in ("breaker", "bulkhead", "budget", "durations", "calls"):
        assert getattr(one, guard) is not getattr(two, guard)
    assert admitted(one, 3) + admitted(two, 10) == 5


async def test_a_version_that_comes_later_raises_no_limit() -> None:
    tools = Registry(**{ONE: LIMITED})
    assert admitted(tools.guards_of(ONE), 10) == 5
    tools.remove(ONE)
    tools.put(TWO, LIMITED)
    assert admitted(tools.guards_of(TWO), 10) == 0
    tools.put(ONE, LIMITED)
    assert tools.guards_of(ONE).rates is tools.guards_of(TWO).rates
    tools.registry.close()


async def test_another_limit_applies_to_every_version() -> None:
    tools = Registry(**{ONE: LIMITED, TWO: LIMITED})
    one, two = tools.guards_of(ONE), tools.guards_of(TWO)
    other = Policy(rate_limit=RateLimit("7/s", burst=7, max_wait=0))
    tools.policies = {ONE: other, TWO: other}
    tools.renew("a")
    assert one.rates is two.rates
    assert admitted(one, 4) + admitted(two, 10) == 7
    tools.policies = {ONE: Policy(), TWO: Policy()}
    tools.renew("a")
    assert (one.rates, two.rates) == (None, None)


async def test_a_version_that_missed_a_change_of_the_limits_returns_with_the_new_ones() -> None:
    tools = Registry(**{ONE: LIMITED, TWO: LIMITED})
    one, two = tools.guards_of(ONE), tools.guards_of(TWO)
    tools.remove(ONE)
    tools.put(TWO, Policy(rate_limit=RateLimit("7/s")))
    assert one.rates is not two.rates
    tools.policies |= {ONE: LIMITED, TWO: LIMITED}
    tools.renew("a")
    assert one.rates is two.rates
    tools.registry.close()


async def test_the_series_of_a_version_end_with_it_and_those_of_the_tool_with_the_last() -> None:
    tools = Registry(**{ONE: LIMITED, TWO: LIMITED})
    one = tools.guards_of(ONE)
    tools.guards_of(TWO)
    tools.remove(TWO)
    await advance(RETENTION_S)
    assert (tools.released, tools.registry.all()) == ([TWO], [one])
    tools.remove(ONE)
    await advance(RETENTION_S)
    assert (tools.released, tools.registry.owners) == ([TWO, ONE, "a"], [])


async def test_calls_that_wait_are_counted_once_for_all_versions() -> None:
    patient = Policy(rate_limit=RateLimit("1/s", burst=1, max_wait=60))
    tools = Registry(**{ONE: patient, TWO: patient})
    one, two = tools.guards_of(ONE), tools.guards_of(TWO)
    deadline = asyncio.get_running_loop().time() + 60
    answers = [guards.rates.admit("alice", deadline) for guards in (one, two, one) if guards.rates is not None]
    assert [isinstance(answer, Waiter) for answer in answers] == [False, True, True]
    assert (tools.registry.waiting, one.waiting) == ({("a", ""): 2}, 2)
    tools.registry.close()
    assert tools.registry.waiting == {("a", ""): 0}


# -- through the dispatcher -------------------------------------------------------------------------------------------
async def recreate(dispatcher: Dispatcher, tools: Catalog, wait: Callable[[], float]) -> None:
    """Delete all tools and create them again."""
    await dispatcher.reload(Catalog.empty())
    await advance(wait())
    await dispatcher.reload(tools)
    await advance(wait())


@pytest.mark.costly
@pytest.mark.parametrize("key", ["rate-limit", "user-rate-limit", "shared-user-rate-limit"])
async def test_deleting_and_creating_a_tool_raises_no_rate_limit(key: str) -> None:
    tools = catalog(work={"policy": {key: {"rate": f"{RATE}/s", "burst": BURST, "max-wait": 0}, "retry": 1}})
    executed: list[float] = []
    loop, drawn = asyncio.get_running_loop(), random.Random(3)

    def work(_: dict[str, Any]) -> str:
        executed.append(loop.time())
        return "done"

    async with serving(work), dispatching(tools) as dispatcher:
        began = loop.time()
        for _ in range(300):
            results = await asyncio.gather(*(dispatcher.execute("work", user="alice") for _ in range(4)))
            assert {result.outcome for result in results} <= {Outcome.SUCCESS, Outcome.THROTTLED, Outcome.REJECTED}
            await recreate(dispatcher, tools, lambda: drawn.uniform(0.0, 0.1))
        seconds = loop.time() - began
        assert len(executed) <= BURST + RATE * seconds
        assert len(executed) > 0.9 * RATE * seconds  # the limit, and nothing else, held the calls back
        for first, later in zip(executed, executed[BURST + RATE :], strict=False):
            assert later - first >= 1.0 - 1e-6  # at most the burst and one second's rate in any second


async def test_a_deleted_tool_keeps_its_breaker_its_bulkhead_its_budget_and_its_measurements() -> None:
    gate = asyncio.Event()

    async def work(_: dict[str, Any]) -> str:
        await gate.wait()
        return "done"

    policy = {"bulkhead": {"max-concurrent-calls": 2, "max-wait": 0}, "retry": 1}
    tools = catalog(work={"idempotent": True, "policy": policy})
    async with serving(work), dispatching(tools) as dispatcher:
        calls = [asyncio.create_task(dispatcher.execute("work", timeout=300)) for _ in range(2)]
        await advance(1)
        guards = dispatcher._running.guards_of(dispatcher._live.resolver.tool("work"))
        budget, durations, breaker = guards.budget, guards.durations, dispatcher.breaker("work")
        for _ in range(10):
            await recreate(dispatcher, tools, lambda: 1.0)
            assert (await dispatcher.execute("work")).error.rejected_by == "bulkhead"
        gate.set()
        assert all(result.ok for result in await asyncio.gather(*calls))
        breaker.force_open()
        await recreate(dispatcher, tools, lambda: 1.0)
        assert dispatcher.breaker("work").state is State.FORCED_OPEN
        again = dispatcher._running.guards_of(dispatcher._live.resolver.tool("work"))
        assert (again, again.budget, again.durations) == (guards, budget, durations)


BURST_CALLS, PERMITS = 300, 64


async def work(arguments: Any) -> str:
    await asyncio.sleep(arguments["seconds"])
    return "done"


@contextlib.asynccontextmanager
async def fleet(instances: int, **keys: Any) -> AsyncIterator[Dispatcher]:
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(instances):
            await stack.enter_async_context(serving(work))
        yield await stack.enter_async_context(dispatching(catalog(work=keys)))


def outcomes(results: list[CallResult]) -> Counter[str]:
    return Counter(result.outcome for result in results)


async def at_once(dispatcher: Dispatcher, seconds: float, count: int = BURST_CALLS) -> list[CallResult]:
    return await asyncio.gather(*(dispatcher.execute("work", {"seconds": seconds}) for _ in range(count)))


@pytest.mark.costly
@pytest.mark.parametrize(
    ("seconds", "instances", "before", "is_repeatable"),
    [
        (0.1, 1, 0, False),
        (0.1, 4, BURST_CALLS, True),
        (1, 1, BURST_CALLS, True),
        (1, 4, 1, False),
        (2, 1, 1, True),
        (2, 4, 0, False),
        (5, 1, 0, True),
        (5, 1, 1, False),
        (5, 1, BURST_CALLS, False),
        (5, 4, BURST_CALLS, True),
    ],
)
async def test_burst_is_answered(seconds: float, instances: int, before: int, is_repeatable: bool) -> None:
    """When nothing is known of the tool, after a call, and after another burst."""
    async with fleet(instances, **{"read-only": is_repeatable}) as dispatcher:
        if before:
            await at_once(dispatcher, seconds, before)
        assert outcomes(await at_once(dispatcher, seconds)) == {"success": BURST_CALLS}


async def test_first_burst_is_spread_over_instances_that_announce_themselves_a_little_later() -> None:
    executed: Counter[str] = Counter()

    def serve_as(name: str) -> Callable[[Any], Awaitable[str]]:
        async def work(_arguments: Any) -> str:
            executed[name] += 1
            await asyncio.sleep(1)
            return "done"

        return work

    later = FaultyTransport(MemoryTransport(BROKER), Faults(latency=0.02, direction="out"))
    await later.start()
    async with serving(serve_as("first")), serving(serve_as("later"), broker=later), dispatching() as dispatcher:
        assert outcomes(await asyncio.gather(*(dispatcher.execute("work", {}) for _ in range(60)))) == {"success": 60}
        assert max(executed.values()) <= 34
    await later.close()


async def test_first_calls_do_not_wait_for_further_instances() -> None:
    async with serving(work), dispatching() as dispatcher:
        began = asyncio.get_running_loop().time()
        await at_once(dispatcher, 0, 4)
        assert asyncio.get_running_loop().time() - began < 0.05


async def test_first_calls_without_time_to_wait_go_to_the_instance_that_is_there() -> None:
    async with serving(work), dispatching() as dispatcher:
        results = await asyncio.gather(*(dispatcher.execute("work", {"seconds": 0}, timeout=0.05) for _ in range(20)))
        assert outcomes(results) == {"success": 20}


async def test_burst_of_a_new_dispatcher_finds_the_places_that_a_closed_one_had() -> None:
    """They were kept for the closed one for a second: a dispatcher that was restarted waited for places that were free."""
    async with serving(work):
        for _ in range(2):
            async with dispatching() as dispatcher:
                began = asyncio.get_running_loop().time()
                assert outcomes(await at_once(dispatcher, 1, PERMITS)) == {"success": PERMITS}
                assert asyncio.get_running_loop().time() - began < 1.5


@pytest.mark.parametrize("seconds", [1, 2, 5])
async def test_burst_of_slow_calls_after_fast_ones_is_answered(seconds: float) -> None:
    async with fleet(1) as dispatcher:
        await at_once(dispatcher, 0.1)
        assert outcomes(await at_once(dispatcher, seconds)) == {"success": BURST_CALLS}


@pytest.mark.costly
@pytest.mark.parametrize(("seconds", "callers"), [(1, 200), (1, 1_000)])
async def test_user_with_any_number_of_calls_at_once_costs_no_other_user_one(seconds: float, callers: int) -> None:
    """The tool's places are enough for both, if they have them in turn."""
    async with fleet(1) as dispatcher:

        async def flood() -> None:
            while True:
                result = await dispatcher.execute("work", {"seconds": seconds}, user="flood")
                if not result.ok:
                    await asyncio.sleep(0.05)

        flooding = [asyncio.create_task(flood()) for _ in range(callers)]
        await advance(2)
        calls = []
        for _ in range(100):
            calls.append(asyncio.create_task(dispatcher.execute("work", {"seconds": seconds}, user="other")))
            await asyncio.sleep(0.1)
        results = await asyncio.gather(*calls)
        for each in flooding:
            each.cancel()
        assert outcomes(results) == {"success": 100}


async def test_burst_that_cannot_be_answered_whole_is_answered_as_far_as_it_can() -> None:
    """Cold: 8 s each, so that three rounds of 64 end within the 30 s."""
    async with fleet(1) as dispatcher:
        results = await at_once(dispatcher, 8)
        ends = Counter("success" if result.error is None else result.error.type for result in results)
        assert ends["success"] >= 3 * (PERMITS - 4), "an instance keeps some of its places for other tools"
        assert set(ends) == {"success", "bulkhead-full"}, "no call was executed in vain"


async def test_tool_that_hangs_refuses_quickly_after_many_of_its_durations() -> None:
    async with fleet(1) as dispatcher:
        await at_once(dispatcher, 0.05, 10)
        hanging = await start_task(at_once(dispatcher, 60, PERMITS), 1.5)
        began = virtual_loop().time()
        results = await at_once(dispatcher, 0.05, 100)
        assert virtual_loop().time() == began
        assert Counter(result.error.type for result in results if result.error is not None) == {"bulkhead-full": 100}
        hanging.cancel()


async def test_tool_of_which_nothing_is_known_and_that_hangs_refuses_after_half_of_the_time() -> None:
    async with fleet(1) as dispatcher:
        hanging = await start_task(at_once(dispatcher, 60, PERMITS), 0.01)
        results = await at_once(dispatcher, 60, 100)
        assert {result.error.type for result in results if result.error is not None} == {"bulkhead-full"}
        assert max(result.duration for result in results) == pytest.approx(15, abs=0.1)
        hanging.cancel()


async def test_burst_on_a_third_party_service_that_does_one_request_at_a_time_is_answered() -> None:
    """As TrustGraph's own joke service: 300 calls of 50 ms each take 15 s."""
    async with Peer.as_service() as peer, dispatching() as dispatcher:

        async def serve() -> None:
            while True:
                _, properties = await peer.request()
                await asyncio.sleep(0.05)
                await peer.answer(properties, "ha")

        serving_all = asyncio.create_task(serve())
        results = await asyncio.gather(*(dispatcher.execute("work") for _ in range(BURST_CALLS)))
        assert outcomes(results) == {"success": BURST_CALLS}
        serving_all.cancel()


MAX_WAIT_S = 1.0


PLACES = 10_000


async def answers_at_once(dispatcher: Dispatcher, count: int) -> list[CallResult]:
    return await asyncio.gather(*(dispatcher.execute("work") for _ in range(count)))


def taking(seconds: float) -> Any:
    return lambda _: asyncio.sleep(seconds, "done")


@pytest.mark.costly
@pytest.mark.parametrize("seconds", [0.001, 0.05])
async def test_a_burst_that_is_worked_off_within_the_waiting_time_loses_no_call(seconds: float) -> None:
    """1 ms, and what makes the 1,000th call wait for 0.8 s."""
    async with stand(taking(seconds)) as (dispatcher, server):
        for _ in range(2):  # also when it is known how long the tool takes
            assert outcomes(await answers_at_once(dispatcher, 1_000)) == {"success": 1_000}
            await advance(2)
        assert server.running == 0


async def test_a_burst_after_slow_calls_is_not_refused_by_what_they_took() -> None:
    """By the mean of the calls before it, the last of 1,000 would wait for 1.5 s; in fact for 15 ms."""
    seconds = 0.1

    async with stand(lambda _: asyncio.sleep(seconds, "done")) as (dispatcher, _):
        await answers_at_once(dispatcher, 64)
        seconds = 0.001
        assert outcomes(await answers_at_once(dispatcher, 1_000)) == {"success": 1_000}


async def test_no_call_waits_for_longer_than_the_limit() -> None:
    async with stand(taking(0.1), policy=Policy(bulkhead=Bulkhead(max_wait=MAX_WAIT_S))) as (dispatcher, _):
        await dispatcher.call("work", {})  # the first burst waits for further instances
        results = await answers_at_once(dispatcher, 2_000)
        refused = [result for result in results if not result.ok]
        assert 500 <= len(results) - len(refused) <= 64 * 11, "as many as the tool does in that time"
        assert max(result.duration for result in refused) <= MAX_WAIT_S + 0.001


@pytest.mark.costly
async def test_no_more_wait_than_there_are_places() -> None:
    async with stand(taking(5), policy=Policy(bulkhead=Bulkhead(max_wait=MAX_WAIT_S))) as (dispatcher, _):
        calls = await start_task(answers_at_once(dispatcher, 64 + PLACES + 100), 0.5)
        assert dispatcher._running.queued() == {("work", "lab"): PLACES}
        refused = [result.error.type for result in await calls if result.error is not None]
        assert Counter(refused) == {"bulkhead-full": PLACES + 100}


async def test_the_refusal_names_the_limit_of_the_dispatcher() -> None:
    async with stand(taking(5), policy=Policy(bulkhead=Bulkhead(1, MAX_WAIT_S))) as (dispatcher, _):
        results = await answers_at_once(dispatcher, 2)
        (error,) = (result.error for result in results if result.error is not None)
        assert isinstance(error, ThrottledError)
        assert (error.type, error.rejected_by, error.outcome) == ("bulkhead-full", "bulkhead", "throttled")
        assert error.message.startswith("Tool 'work' was not executed: the limit of calls in flight")
        assert "bulkhead.max-concurrent-calls" in error.message
        assert "bulkhead.max-wait" in error.message
        assert "it has" not in error.message, "nothing is said about the tool"


@pytest.mark.costly
async def test_a_machine_that_is_too_busy_for_a_second_costs_waiting_and_no_call() -> None:
    """64 calls at once of 0.2 s are 320 a second, and 500 arrive."""
    loop = asyncio.get_running_loop()
    async with serving(work), serving(work), dispatching(catalog(work={})) as dispatcher, asyncio.TaskGroup() as group:
        began, calls = loop.time(), []
        while (elapsed := loop.time() - began) < 4:
            seconds = 0.2 if 1 <= elapsed < 2.2 else 0.02
            calls.append(group.create_task(dispatcher.execute("work", {"seconds": seconds})))
            await asyncio.sleep(0.002)
    assert Counter(call.result().outcome for call in calls) == {"success": len(calls)}


FOREVER = 1e9
TWO_INSTANCES = ("one", "two")


def now() -> float:
    return asyncio.get_running_loop().time()


def working_for(seconds: float) -> Callable[[Any], Any]:
    """A tool that answers after so many seconds."""

    return lambda _: asyncio.sleep(seconds, "done")


@contextlib.asynccontextmanager
async def instances(
    work: Callable[[Any], Any], *names: str, **keys: Any
) -> AsyncIterator[tuple[Dispatcher, FaultyTransport, dict[str, FaultyTransport]]]:
    """A dispatcher that knows these instances, its connection, and the connection of each instance."""
    async with contextlib.AsyncExitStack() as stack:
        connections: dict[str, FaultyTransport] = {}
        for name in names:
            connection = connections[name] = FaultyTransport(MemoryTransport(BROKER))
            await connection.start()
            stack.push_async_callback(connection.close)
            await stack.enter_async_context(
                serving(work, broker=connection, request_queue=REQUESTS, response_queue=RESPONSES, instance=name)
            )
        own = FaultyTransport(MemoryTransport(BROKER))
        tool = catalog(work={key.replace("_", "-"): value for key, value in keys.items()})
        dispatcher = await stack.enter_async_context(dispatching(tool, transport=own))
        yield dispatcher, own, connections


async def load(dispatcher: Dispatcher, rate: float, seconds: float) -> list[tuple[float, CallResult]]:
    """Calls at this rate for so long: when each began, and its result."""
    ended: list[tuple[float, CallResult]] = []

    async def one() -> None:
        began = now()
        ended.append((began, await dispatcher.execute("work")))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(round(rate * seconds)):
            tasks.create_task(one())
            await asyncio.sleep(1 / rate)
    return ended


def errors(results: list[CallResult]) -> Counter[str]:
    return Counter("" if result.error is None else result.error.type for result in results)


async def test_a_call_that_waits_for_an_instance_says_that_the_broker_was_lost() -> None:
    async with instances(working_for(0.01), "one") as (dispatcher, connection, _):
        calls = [asyncio.create_task(dispatcher.execute("work", timeout=3)) for _ in range(20)]
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)  # the others wait for further instances
        connection.disconnect(FOREVER)
        assert errors(await asyncio.gather(*calls)) == {"": 4, "disconnected": 16}


async def test_a_call_without_time_for_the_instances_to_come_back_says_that_the_broker_was_lost() -> None:
    async with instances(working_for(0.01), "one") as (dispatcher, connection, others):
        await dispatcher.call("work")
        others["one"].disconnect(FOREVER)
        await advance(15)  # the instance is given up
        connection.disconnect(1)
        results = await asyncio.gather(*(dispatcher.execute("work", timeout=3) for _ in range(20)))
        assert errors(results) == {"disconnected": 20}
        assert "no instance has been heard since" in str(results[-1].error)


@pytest.mark.costly
async def test_after_an_outage_of_a_minute_calls_succeed_at_once() -> None:
    async with instances(working_for(0.01), *TWO_INSTANCES) as (dispatcher, connection, _):
        transitions: list[Event] = []
        assert (await dispatcher.execute("work")).ok
        dispatcher.on_event(transitions.append)
        began, seconds = now(), 60.0
        connection.disconnect(seconds)
        ended = await load(dispatcher, 20, seconds + 10)
        during = [result for at, result in ended if at < began + seconds - 1]
        after = [result for at, result in ended if at >= began + seconds]
        assert errors(during) == {"disconnected": len(during)}
        # No call waits for its whole deadline.
        assert max(result.duration for result in during) <= RECONNECT_WAIT_S + 0.01
        assert all(result.attempts == 0 for result in during)
        assert errors(after) == {"": len(after)}
        assert transitions == []


async def test_requests_whose_answers_an_outage_kept_away_are_no_failures_of_the_tool() -> None:
    async with instances(working_for(1.0), *TWO_INSTANCES) as (dispatcher, connection, _):
        transitions: list[Event] = []
        assert (await dispatcher.execute("work")).ok
        dispatcher.on_event(transitions.append)
        calls = [asyncio.create_task(dispatcher.execute("work", timeout=3)) for _ in range(40)]
        await advance(0.5)
        connection.disconnect(10)
        assert errors([await call for call in calls]) == {"timeout": 40}
        assert {str(result.error.origin) for call in calls if (result := call.result()).error} == {"local"}
        await advance(10)
        assert errors(await asyncio.gather(*(dispatcher.execute("work") for _ in range(40)))) == {"": 40}
        assert [view.failures for view in dispatcher.instances("lab")] == [0, 0]
        assert transitions == []


@pytest.mark.parametrize("policy", [{"rate-limit": {"rate": "1/s", "burst": 1, "max-wait": 0}}, {"bulkhead": 1}])
async def test_while_the_broker_is_away_no_other_guard_is_asked(policy: dict[str, Any]) -> None:
    async with instances(working_for(0.01), "one", policy=policy) as (dispatcher, connection, _):
        assert (await dispatcher.execute("work")).ok
        await advance(5)
        connection.disconnect(RECONNECT_WAIT_S + 1)
        results = await asyncio.gather(*(dispatcher.execute("work") for _ in range(20)))
        assert errors(results) == {"disconnected": 20}
        assert all(result.error is not None and not result.error.may_have_run for result in results)  # type: ignore[attr-defined]
        await advance(5)
        assert (await dispatcher.execute("work")).ok


async def test_a_connection_that_is_back_within_ten_seconds_costs_no_call() -> None:
    async with instances(working_for(0.01), "one") as (dispatcher, connection, _):
        assert (await dispatcher.execute("work")).ok
        connection.disconnect(RECONNECT_WAIT_S - 0.1)
        assert errors(await asyncio.gather(*(dispatcher.execute("work") for _ in range(20)))) == {"": 20}


@pytest.mark.parametrize("names", [TWO_INSTANCES, ("one",)])
async def test_all_that_an_instance_had_when_it_died_is_one_failure(names: tuple[str, ...]) -> None:
    """20 of the 40 requests, or all of them, end in the same moment."""
    async with instances(working_for(1.0), *names, policy={"retry": 1}) as (dispatcher, _, connections):
        transitions: list[Event] = []
        for _ in names:  # a new instance gets one request at a time
            assert (await dispatcher.execute("work")).ok
        dispatcher.on_event(transitions.append)
        calls = [asyncio.create_task(dispatcher.execute("work")) for _ in range(40)]
        await advance(0.5)
        connections["one"].disconnect(FOREVER)
        lost = 40 // len(names)
        assert errors([await call for call in calls]) == Counter({"instance-lost": lost, "": 40 - lost})
        assert dispatcher.breaker("work").state is State.CLOSED
        assert [event for event in transitions if type(event).__name__ == "CircuitChanged"] == []


async def test_calls_with_a_key_wait_until_it_is_known_whether_their_instance_is_gone() -> None:
    async with instances(working_for(0.01), *TWO_INSTANCES, policy={"retry": 1}) as (dispatcher, _, connections):
        for _ in range(4):
            assert (await dispatcher.execute("work")).ok
        connections["one"].disconnect(FOREVER)
        at_both = [asyncio.create_task(dispatcher.execute("work")) for _ in range(2)]
        await advance(0.5)  # until it is suspected, and not yet given up
        assert [call.done() for call in at_both].count(False) == 1
        keyed = (dispatcher.execute("work", idempotency_key=f"key-{number}") for number in range(12))
        assert errors(await asyncio.gather(*keyed)) == {"": 12}
        assert errors(await asyncio.gather(*at_both)) == {"": 1, "instance-lost": 1}


async def test_an_instance_that_answers_nothing_closes_no_tool_while_another_answers() -> None:
    policy = {"attempt-timeout": 0.5, "retry": 1, "outlier-detection": None}
    async with instances(working_for(0.01), *TWO_INSTANCES, policy=policy) as (dispatcher, _, connections):
        assert errors(await asyncio.gather(*(dispatcher.execute("work") for _ in range(4)))) == {"": 4}
        connections["one"].disconnect(FOREVER)
        for _ in range(10):  # in bursts: the ten that time out do so in a row
            await asyncio.gather(*(dispatcher.execute("work") for _ in range(20)))
        assert dispatcher.breaker("work").state is State.CLOSED
        assert errors(await asyncio.gather(*(dispatcher.execute("work") for _ in range(20))))["circuit-open"] == 0


async def test_a_tool_that_nearly_always_fails_is_left_alone_although_now_and_then_an_instance_answers() -> None:
    """Each answer of one instance must not excuse what all the others fail meanwhile."""
    calls = 0

    async def nearly_still(_arguments: Any) -> str:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0.01 if calls % 10 == 0 else 60)
        return "done"

    policy = {"attempt-timeout": 0.5, "retry": 1, "outlier-detection": None}
    async with instances(nearly_still, *"abcdefgh", policy=policy) as (dispatcher, _, _):
        await advance(1)
        for _ in range(60):
            await dispatcher.execute("work")
        assert dispatcher.breaker("work").state is State.OPEN


@pytest.mark.parametrize("names", [TWO_INSTANCES, ("one",)])
async def test_failures_of_all_instances_are_those_of_the_tool(names: tuple[str, ...]) -> None:
    policy = {"attempt-timeout": 0.5, "retry": 1}
    async with instances(working_for(0.01), *names, policy=policy) as (dispatcher, _, connections):
        assert errors(await asyncio.gather(*(dispatcher.execute("work") for _ in range(4)))) == {"": 4}
        await advance(SPREAD_S)  # until then the others would wait for further instances
        for connection in connections.values():
            connection.disconnect(FOREVER)
        await asyncio.gather(*(dispatcher.execute("work") for _ in range(20 * len(names))))
        assert dispatcher.breaker("work").state is State.OPEN


async def test_the_failures_of_the_only_instance_left_are_those_of_the_tool() -> None:
    policy = {"attempt-timeout": 0.5, "retry": 1}
    async with instances(working_for(0.01), "one", policy=policy) as (dispatcher, _, connections):
        async with serving(working_for(0.01), instance="two"):
            await advance(2)
            assert errors(await asyncio.gather(*(dispatcher.execute("work") for _ in range(4)))) == {"": 4}
            assert len(dispatcher.instances("lab")) == 2
        await advance(2)
        connections["one"].disconnect(FOREVER)
        await asyncio.gather(*(dispatcher.execute("work") for _ in range(20)))
        assert dispatcher.breaker("work").state is State.OPEN


async def test_a_stream_that_an_outage_cut_short_is_no_failure_of_the_tool() -> None:
    async with instances(working_for(1.0), *TWO_INSTANCES) as (dispatcher, connection, _):
        assert (await dispatcher.execute("work")).ok
        streams = [asyncio.create_task(read(dispatcher.stream("work", timeout=3), [])) for _ in range(20)]
        await advance(0.5)
        connection.disconnect(10)
        ended = await asyncio.gather(*streams, return_exceptions=True)
        assert {(type(error), getattr(error, "origin", "")) for error in ended} == {(CallTimeoutError, Origin.LOCAL)}
        assert dispatcher.breaker("work").state is State.CLOSED


@pytest.mark.pulsar
async def test_calls_succeed_as_soon_as_a_genuine_broker_answers_again(pulsar_endpoint: Endpoint) -> None:
    """The broker hangs for some seconds: its connections stay open, which is the outage that is harder to notice."""
    topic = unique_topic()
    tool = catalog_of(topic, "work", guarded=True, **{"read-only": True})
    async with (
        LossyProxy.before(pulsar_endpoint.service_url) as broker,
        dispatch.ToolServer(Echo(), broker.url, service=topic),
        dispatch.connect(broker.url, tool) as dispatcher,
    ):
        assert (await dispatcher.execute("work")).ok
        transitions: list[Event] = []
        dispatcher.on_event(transitions.append)
        calling = asyncio.create_task(load(dispatcher, 50, 9))
        await asyncio.sleep(1)
        broker.process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(4)
            assert not dispatcher.is_connected
        finally:
            broker.process.send_signal(signal.SIGCONT)
        back = now()
        ended = await calling
    first = min(began for began, result in ended if result.ok and began > back - 1)
    assert first - back <= 3, "within 1 s, and within 3 s on a busy machine"
    after = [result for began, result in ended if began >= first]
    assert sum(result.ok for result in after) >= 0.99 * len(after)
    assert [
        each for each in transitions if isinstance(each, CircuitChanged) or getattr(each, "change", "") == "ejected"
    ] == []
