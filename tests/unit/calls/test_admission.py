"""Goal G8: callers that are cancelled and time out at random moments leave nothing in any guard.

Guards against a bulkhead that is down from four places to none after a few cancelled waiters (aioresilience), one that keeps
places of those who left the line (hyx), and a limiter that keeps entries of callers who are gone.
Places in the bulkhead that threads have after the end of their calls.
Guards of tools that are removed and return, in virtual time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from dispatch import Catalog, Dispatcher
from dispatch._internal import RETENTION_S, Rejection
from dispatch.calls.attempt import OCCUPIED_AFTER_S, Admission
from dispatch.calls.guards import GuardKey, GuardRegistry, ToolGuards, create_rate_limiter
from dispatch.errors import Outcome
from dispatch.policy import Bulkhead, Policy, RateLimit
from dispatch.resilience.aio import user_buckets
from dispatch.resilience.breaker import BreakerRules, State
from dispatch.resilience.bulkhead import QueueLimits
from dispatch.resilience.rate_limit import LeakyBucket, RatePermit, UserBuckets, Waiter
from dispatch.telemetry.observers import DispatcherObserver
from tests.helpers.clock import advance, virtual_loop
from tests.helpers.dispatcher_and_service import catalog, dispatching, serving

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
                    refused = await admission.wait(deadline, None)
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


async def test_cancelled_callers_leave_no_permit_no_waiter_and_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timers and tasks that are left fail any test here (tests/helpers/clock.py)."""
    monkeypatch.setattr("dispatch.resilience.bulkhead.QUEUE_LIMITS", QueueLimits(max_length=6))
    crowd = Crowd(0)
    await crowd.come(CALLS)
    guards = crowd.guards
    assert guards.bulkhead is not None
    assert guards.rates is not None
    assert guards.breaker is not None
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
    assert guards.bulkhead is not None
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
    assert guards.bulkhead is not None
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


class Registry:
    """A registry over a catalogue that is a dictionary. A key is the name of a tool, or ``NAME@VERSION``."""

    def __init__(self, **policies: Policy) -> None:
        self.policies: dict[str, Policy] = policies
        self.released: list[str] = []
        observer = DispatcherObserver()
        observer.release_tool = self.released.append  # type: ignore[method-assign] # records the labels
        observer.release_version = lambda *of: self.released.append("@".join(of))  # type: ignore[method-assign] # likewise
        self.registry = GuardRegistry(asyncio.get_running_loop().time, random.random, observer, find=self._find)

    def _find(self, key: GuardKey) -> tuple[Policy, bool, str] | None:
        _, name, version = key
        policy = self.policies.get(name if version is None else f"{name}@{version}")
        return None if policy is None else (policy, False, "")

    def guards_of(self, key: str, policy: Policy | None = None) -> ToolGuards:
        name, _, version = key.partition("@")
        return self.registry.of((True, name, version or None), policy or self.policies[key], repeatable=False)

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
        assert tools.released == ["a"]
        assert tools.registry.calls_in_flight == 1
    assert tools.released == ["a", "b"]
    assert tools.registry.all() == []
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
            waiting = asyncio.create_task(tools.registry.wait_idle())
            await advance(1)
        await advance(1)
        assert not waiting.done()
    await waiting
    tools.registry.close()


# -- versions -------------------------------------------------------------------------------------------------------
ONE, TWO = "a@1.0.0", "a@2.0.0"


LIMITED = Policy(rate_limit=RateLimit("5/s", burst=5, max_wait=0))


def admitted(guards: ToolGuards, calls: int) -> int:
    """How many of some calls the rate limit of ``guards`` admits now."""
    assert guards.rates is not None
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
    assert tools.released == [TWO]
    assert tools.registry.all() == [one]
    tools.remove(ONE)
    await advance(RETENTION_S)
    assert tools.released == [TWO, ONE, "a"]
    assert tools.registry.owners == []


async def test_calls_that_wait_are_counted_once_for_all_versions() -> None:
    patient = Policy(rate_limit=RateLimit("1/s", burst=1, max_wait=60))
    tools = Registry(**{ONE: patient, TWO: patient})
    one, two = tools.guards_of(ONE), tools.guards_of(TWO)
    assert one.rates is not None
    deadline = asyncio.get_running_loop().time() + 60
    answers = [guards.rates.admit("alice", deadline) for guards in (one, two, one) if guards.rates is not None]
    assert [isinstance(answer, Waiter) for answer in answers] == [False, True, True]
    assert tools.registry.waiting == {("a", ""): 2}
    assert one.waiting == 2
    tools.registry.close()
    assert tools.registry.waiting == {("a", ""): 0}


# -- through the dispatcher -------------------------------------------------------------------------------------------
async def recreate(dispatcher: Dispatcher, tools: Catalog, wait: Callable[[], float]) -> None:
    """Delete all tools and create them again."""
    await dispatcher.reload(Catalog.empty())
    await advance(wait())
    await dispatcher.reload(tools)
    await advance(wait())


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
            rejected = (await dispatcher.execute("work")).error
            assert rejected is not None
            assert rejected.rejected_by == "bulkhead"
        gate.set()
        assert all(result.ok for result in await asyncio.gather(*calls))
        breaker.force_open()
        await recreate(dispatcher, tools, lambda: 1.0)
        assert dispatcher.breaker("work").state is State.FORCED_OPEN
        again = dispatcher._running.guards_of(dispatcher._live.resolver.tool("work"))
        assert (again, again.budget, again.durations) == (guards, budget, durations)
