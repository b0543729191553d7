"""Pools of services, in virtual time: retained after a removal, dropped after the last call, and found again.
Instances of a pool that are added, removed and replaced while calls are in flight, in virtual time.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from dispatch import Catalog, Dispatcher, Policy
from dispatch._internal import RETENTION_S
from dispatch.calls.resolution import ToolResolver
from dispatch.errors import Outcome, TransportError
from dispatch.routing.pool import AGAIN_S, InstancePool
from tests.helpers.clock import advance, idle
from tests.helpers.counted_transport import CountedTransport
from tests.helpers.dispatcher_and_service import (
    REQUESTS,
    UNGUARDED,
    catalog,
    dispatching,
    follow_instances,
    serving,
    topics_of,
)
from tests.helpers.run_profile import by_profile
from tests.helpers.telemetry_capture import Board, telling


def instance(name: str, *, weight: float = 1.0, number: int = 0) -> dict[str, Any]:
    """An instance of the catalogue; ``number``: of its topics."""
    return {"id": name, "weight": weight, **topics_of(f"lab-{name}-{number}")}


def listed(*instances: str | dict[str, Any], **policy: Any) -> Catalog:
    """A catalogue of the service with these instances; without any: its own topics. ``policy``: of the service; without slow
    start, so that shares are exact."""
    topics = [instance(each) if isinstance(each, str) else each for each in instances]
    keys = {"instances": topics} if topics else {}
    return catalog(service={**keys, "policy": {"outlier-detection": None, **policy}})


def server(name: str, work: Any = None, *, number: int = 0) -> Any:
    return serving(work or (lambda _: name), at=instance(name, number=number), instance=name)


@contextlib.asynccontextmanager
async def serving_all(*names: str) -> AsyncIterator[None]:
    async with contextlib.AsyncExitStack() as stack:
        for name in names:
            await stack.enter_async_context(server(name))
        yield


async def answers(dispatcher: Dispatcher, count: int) -> Mapping[str, int]:
    return Counter([await dispatcher.call("work") for _ in range(count)])


def pool_of(dispatcher: Dispatcher) -> InstancePool:
    (pool,) = dispatcher._running.pool_registry.of_service("lab")
    return pool


def pools_in(dispatcher: Dispatcher) -> int:
    return len(dispatcher._running.pool_registry._entries)


def request_topics(transport: CountedTransport) -> set[str]:
    """The instances whose request topic is open."""
    opened = (topic for kind, topic in transport.left_open if kind == "publisher")
    return {topic.removeprefix(f"{REQUESTS}-") for topic in opened if topic.startswith(f"{REQUESTS}-")}


@pytest.fixture
def transport() -> CountedTransport:
    return CountedTransport()


async def test_the_pool_of_a_removed_service_is_retained_for_a_time(transport: CountedTransport) -> None:
    async with serving_all("a", "b"), dispatching(listed("a"), transport=transport) as dispatcher:
        assert await answers(dispatcher, 1) == {"a": 1}
        pool = pool_of(dispatcher)
        await dispatcher.reload(Catalog.empty())
        assert dispatcher._running.pool_registry.all() == []
        await advance(RETENTION_S - 0.001)
        assert request_topics(transport) == {"a-0"}
        await dispatcher.reload(listed("a", "b"))  # it returns, with one more instance
        await advance(1)
        assert pool_of(dispatcher) is pool
        assert await answers(dispatcher, 4) == {"a": 2, "b": 2}
        await advance(RETENTION_S)
        assert pool_of(dispatcher) is pool
        await dispatcher.reload(Catalog.empty())
        await advance(RETENTION_S + 1)
        assert (pools_in(dispatcher), transport.left_open) == (0, {})
        await dispatcher.reload(listed("a"))
        assert await answers(dispatcher, 1) == {"a": 1}
        assert pool_of(dispatcher) is not pool


async def test_the_pool_of_a_removed_service_is_retained_until_its_last_call_has_ended() -> None:
    """The call waits for the backoff of its retry when the time is over: it has no request in flight then."""
    transport, requests = CountedTransport(), list[Any]()

    async def work(arguments: dict[str, Any]) -> str:
        requests.append(arguments)
        await asyncio.sleep(60 if len(requests) == 1 else 0)
        return "done"

    policy = {"retry": {"initial-backoff": 200, "max-backoff": 200}, "timeout": 600, "attempt-timeout": 1}
    tools = catalog(service={"instances": [instance("a")], "policy": policy}, work={"idempotent": True})
    async with server("a", work), Dispatcher(transport, tools, randomness=lambda: 0.9) as dispatcher:
        call = asyncio.create_task(dispatcher.execute("work"))
        await advance(0.5)
        await dispatcher.reload(Catalog.empty())
        await advance(100)
        assert (len(requests), dispatcher.pending_requests, call.done()) == (1, 0, False)
        assert request_topics(transport) == {"a-0"}
        assert (await call).ok
        assert len(requests) == 2
        await advance(RETENTION_S + 1)
        assert (pools_in(dispatcher), transport.left_open) == (0, {})


async def test_a_call_that_began_before_the_removal_of_its_service_opens_a_pool_that_is_dropped() -> None:
    """Its tool was resolved before, and no call had opened the topics, or they have been closed since."""
    transport = CountedTransport()
    async with serving_all("a"), dispatching(listed("a"), transport=transport) as dispatcher:
        tool = dispatcher._live.resolver.tool("work")
        await dispatcher.reload(Catalog.empty())
        assert (await dispatcher._running_calls.perform(tool, {})).text == "a"
        assert dispatcher._running.pool_registry.all() == []
        assert dispatcher.reply_counts()["matched"] == 1
        await advance(RETENTION_S + 1)
        assert (pools_in(dispatcher), transport.left_open) == (0, {})
        assert dispatcher._running.guard_registry.all() == []


async def test_series_of_a_service_stay_while_the_catalogue_has_it() -> None:
    def moved(number: int) -> Catalog:
        return catalog(service={**topics_of(f"lab-a-{number}"), "policy": {}})

    board = Board()
    async with server("a"), telling(board.telemetry(), moved(0)) as dispatcher:
        assert await answers(dispatcher, 3) == {"a": 3}
        await dispatcher.reload(moved(1))  # and no call opens the pool of the new topics
        await advance(RETENTION_S)
        assert pools_in(dispatcher) == 0
        assert board.replies() == {"matched": 3}
        await dispatcher.reload(Catalog.empty())
        assert board.of("lab") == []


async def test_a_shared_call_keeps_the_pool_with_which_it_began() -> None:
    gate = asyncio.Event()

    async def wait(_: dict[str, Any]) -> str:
        await gate.wait()
        return "done"

    def moved(number: int) -> Catalog:
        work = {"read-only": True, "policy": {"single-flight": True, "timeout": 600}}
        return catalog(service=topics_of(f"lab-a-{number}"), work=work)

    transport = CountedTransport()
    async with server("a", wait), dispatching(moved(0), transport=transport) as dispatcher:
        first = asyncio.create_task(dispatcher.execute("work"))
        await advance(1)
        await dispatcher.reload(moved(1))
        other = asyncio.create_task(dispatcher.execute("work"))  # shares the request of the first one
        await advance(1)
        first.cancel()
        await advance(2 * RETENTION_S)
        assert request_topics(transport) == {"a-0"}
        gate.set()
        assert (await other).ok
        await advance(1)
        assert request_topics(transport) == set()


@pytest.mark.parametrize("own", [False, True])
async def test_a_tool_with_balancing_settings_of_its_own_has_a_pool_of_its_own(own: bool) -> None:
    settings = {"policy": {"balancing": "least-request"}} if own else {}
    with_own, without = catalog(work=settings, other={}), catalog(work={}, other={})
    async with serving(lambda _: "done"), dispatching(with_own) as dispatcher:
        for tool in ("work", "other"):
            await dispatcher.call(tool)
        assert pools_in(dispatcher) == 1 + own
        await dispatcher.reload(without)
        for tool in ("work", "other"):
            await dispatcher.call(tool)
        await advance(RETENTION_S)
        assert pools_in(dispatcher) == 1
        await dispatcher.reload(catalog(other={}))
        await advance(RETENTION_S)
        assert pools_in(dispatcher) == 1
        assert await dispatcher.call("other") == "done"


async def test_an_instance_is_added_to_and_removed_from_the_same_pool() -> None:
    transport = CountedTransport()
    async with serving_all("a", "b", "c"), dispatching(listed("a", "b"), transport=transport) as dispatcher:
        changes = follow_instances(dispatcher)
        assert await answers(dispatcher, 4) == {"a": 2, "b": 2}
        pool = pool_of(dispatcher)
        await dispatcher.reload(listed("a", "b", "c"))
        await advance(1)  # its topics are opened before a call needs them
        assert request_topics(transport) == {"a-0", "b-0", "c-0"}
        assert await answers(dispatcher, 6) == {"a": 2, "b": 2, "c": 2}
        await dispatcher.reload(listed("c", "b"))
        assert await answers(dispatcher, 4) == {"b": 2, "c": 2}
        await advance(1)
        assert request_topics(transport) == {"b-0", "c-0"}
        assert pool_of(dispatcher) is pool
        found = [(each.instance, each.change) for each in changes]
        assert found == [("a", "joined"), ("b", "joined"), ("c", "joined"), ("a", "left")]


async def test_what_is_known_of_the_other_instances_stays() -> None:
    policy = {**UNGUARDED, "timeout": 1, "outlier-detection": {"consecutive-failures": 2, "base-ejection-time": 300}}
    late = server("a", lambda _: asyncio.sleep(60, "late"))
    async with serving_all("b", "c"), late, dispatching(listed("a", "b", **policy)) as dispatcher:
        results = [await dispatcher.execute("work") for _ in range(4)]
        assert Counter(result.outcome for result in results) == {Outcome.SUCCESS: 2, Outcome.TIMEOUT: 2}
        for tools in (listed("a", "b", "c", **policy), listed("a", "c", **policy), listed("b", "a", "c", **policy)):
            await dispatcher.reload(tools)
            await advance(1)
            assert "a" not in await answers(dispatcher, 6)
            assert {view.id: view.state for view in dispatcher.instances("lab")}["a"] == "ejected"


async def test_a_removed_instance_gets_no_request_and_its_topics_close_after_its_last_one() -> None:
    transport, gate, requests = CountedTransport(), asyncio.Event(), list[Any]()

    async def wait(arguments: dict[str, Any]) -> str:
        requests.append(arguments)
        await gate.wait()
        return "a"

    async with server("a", wait), serving_all("b"), dispatching(listed("a"), transport=transport) as dispatcher:
        calls = [asyncio.create_task(dispatcher.execute("work", timeout=600)) for _ in range(3)]
        await advance(1)
        await dispatcher.reload(listed("b"))
        assert await answers(dispatcher, 3) == {"b": 3}
        await advance(2 * RETENTION_S)
        assert request_topics(transport) == {"a-0", "b-0"}
        gate.set()
        assert [result.text for result in await asyncio.gather(*calls)] == ["a"] * 3
        await advance(1)
        assert request_topics(transport) == {"b-0"}
        assert len(requests) == 3


async def test_a_dispatcher_is_closed_while_a_removed_instance_runs_a_request(transport: CountedTransport) -> None:
    late = server("a", lambda _: asyncio.sleep(600, "late"))
    async with late, serving_all("b"), dispatching(listed("a"), transport=transport) as dispatcher:
        calls = [asyncio.create_task(dispatcher.execute("work", timeout=600)) for _ in range(3)]
        await advance(1)
        await dispatcher.reload(listed("b"))
        assert await answers(dispatcher, 1) == {"b": 1}
        await dispatcher.close()
        assert {result.outcome for result in await asyncio.gather(*calls)} == {Outcome.TRANSPORT}
        await advance(1)
        assert transport.left_open == {}


async def test_no_call_fails_when_all_instances_are_replaced(transport: CountedTransport) -> None:
    async with serving_all("a", "b"), dispatching(listed("a"), transport=transport) as dispatcher:
        assert await answers(dispatcher, 1) == {"a": 1}
        transport.slow = 2.0
        await dispatcher.reload(listed("b"))
        call = asyncio.create_task(dispatcher.execute("work"))
        await advance(1)
        assert not call.done()  # it waits for the topics of the new instance: the removed one gets no request
        # Attempts that have the pool already use its former channel.
        assert [channel.request_queue for channel in pool_of(dispatcher).channels] == [f"{REQUESTS}-a-0"]
        assert (await call).text == "b"


async def test_a_call_waits_for_the_latest_of_several_replacements(transport: CountedTransport) -> None:
    async with serving_all("a", "b", "c"), dispatching(listed("a"), transport=transport) as dispatcher:
        transport.slow = 2.0
        call = asyncio.create_task(dispatcher.execute("work"))
        await advance(1)
        await dispatcher.reload(listed("b"))
        await advance(1.5)
        await dispatcher.reload(listed("c"))
        assert (await call).text == "c"
        await advance(10)
        assert request_topics(transport) == {"c-0"}


async def test_calls_fail_while_the_topics_of_all_new_instances_are_refused() -> None:
    class Refusing(CountedTransport):
        is_refusing = True

        async def publisher(self, topic: str) -> Any:
            if self.is_refusing and topic.startswith(f"{REQUESTS}-b"):
                raise TransportError("unauthorized", "not for you", may_have_run=False)
            return await super().publisher(topic)

    transport = Refusing()
    async with serving_all("a", "b"), dispatching(listed("a"), transport=transport) as dispatcher:
        assert await answers(dispatcher, 1) == {"a": 1}
        await dispatcher.reload(listed("b"))
        for _ in range(2):
            result = await dispatcher.execute("work")
            assert (result.outcome, result.attempts) == (Outcome.TRANSPORT, 0)
        transport.is_refusing = False
        assert await answers(dispatcher, 2) == {"b": 2}
        await dispatcher.reload(listed("a", instance("b", number=1)))
        transport.is_refusing = True
        assert await answers(dispatcher, 2) == {"a": 2}
        async with server("b", number=1):
            await advance(AGAIN_S)
            transport.is_refusing = False
            assert await dispatcher.call("work") == "a"  # which opens the missing topics
            await idle()
            await advance(1)
            assert await answers(dispatcher, 4) == {"a": 2, "b": 2}
        assert request_topics(transport) == {"a-0", "b-1"}


async def test_a_channel_that_was_closed_before_its_opener_resumes_is_opened_again(transport: CountedTransport) -> None:
    async with serving_all("a", "b"), dispatching(listed("a"), transport=transport) as dispatcher:
        runtime, loop = dispatcher._running, asyncio.get_running_loop()
        with_a, with_b = (ToolResolver(listed(name), Policy()) for name in "ab")
        pools, owner = runtime.pool_registry, (False, "lab")
        transport.slow = 1.0
        call = asyncio.create_task(dispatcher.execute("work"))
        await advance(0.5)
        (opening,) = runtime.channels._opening.values()
        # The callbacks of the opening run in this order, all of them before the call resumes.
        opening.add_done_callback(lambda _: pools.renew(with_b, [owner]))
        opening.add_done_callback(lambda _: loop.call_soon(pools.renew, with_a, [owner]))
        result = await call
        assert result.ok, result.error
        await advance(5)
        assert await answers(dispatcher, 2) == {"a": 2}
        assert request_topics(transport) == {"a-0"}


async def test_other_weights_and_topics_of_an_instance_apply(transport: CountedTransport) -> None:
    policy = {"balancing": "weighted"}
    async with (
        serving_all("a", "b"),
        server("a", lambda _: "moved", number=1),
        dispatching(listed("a", "b", **policy), transport=transport) as dispatcher,
    ):
        assert await answers(dispatcher, 4) == {"a": 2, "b": 2}
        pool = pool_of(dispatcher)
        await dispatcher.reload(listed(instance("a", weight=3.0), "b", **policy))
        assert await answers(dispatcher, 8) == {"a": 6, "b": 2}
        await dispatcher.reload(listed(instance("a", number=1), "b", **policy))
        await advance(1)
        assert await answers(dispatcher, 4) == {"moved": 2, "b": 2}
        assert request_topics(transport) == {"a-1", "b-0"}
        assert pool_of(dispatcher) is pool


async def test_a_service_changes_between_listed_instances_and_its_own_topics(transport: CountedTransport) -> None:
    async with (
        serving_all("a", "b"),
        serving(lambda _: "shared", instance="s"),
        dispatching(listed(), transport=transport) as dispatcher,
    ):
        assert await answers(dispatcher, 2) == {"shared": 2}
        pool = pool_of(dispatcher)
        for _ in range(3):
            await dispatcher.reload(listed("a", "b"))
            assert await answers(dispatcher, 4) == {"a": 2, "b": 2}
            await dispatcher.reload(listed())
            assert await answers(dispatcher, 2) == {"shared": 2}
        assert pool_of(dispatcher) is pool
        await advance(1)
        assert request_topics(transport) == set()


@pytest.mark.long
async def test_no_call_fails_and_no_state_is_lost_while_instances_come_and_go_under_load() -> None:
    names = [f"i{number}" for number in range(8)]
    drawn, failed, calls = random.Random(7), list[Any](), 0

    async def work(_: dict[str, Any]) -> str:
        await asyncio.sleep(drawn.uniform(0.001, 0.3))
        return "done"

    transport = CountedTransport()
    async with contextlib.AsyncExitStack() as stack:
        for name in names:
            await stack.enter_async_context(server(name, work))
        await stack.enter_async_context(serving(work, instance="s"))
        dispatcher = await stack.enter_async_context(dispatching(listed(*names), transport=transport))
        is_over = False

        async def call() -> None:
            nonlocal calls
            while not is_over:
                result = await dispatcher.execute("work")
                calls += 1
                if not result.ok:
                    failed.append(result)

        callers = [asyncio.create_task(call()) for _ in range(64)]
        await advance(1)
        pool, breaker = pool_of(dispatcher), dispatcher.breaker("work")
        chosen = names
        for _ in range(by_profile(short=60, long=1_000)):
            chosen = drawn.sample(names, drawn.randrange(len(names)))
            await dispatcher.reload(listed(*(instance(name, weight=drawn.choice([1.0, 2.0])) for name in chosen)))
            transport.slow = drawn.choice([0.0, 0.0, 0.05])
            await advance(drawn.uniform(0.0, 0.2))
        is_over = True
        await asyncio.gather(*callers)
        assert failed == []
        assert calls > 1_000
        assert (pool_of(dispatcher), dispatcher.breaker("work")) == (pool, breaker)
        await advance(1)
        assert request_topics(transport) == {f"{name}-0" for name in chosen}
        assert pools_in(dispatcher) == 1
