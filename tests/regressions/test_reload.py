"""A client that was made before ``reload`` applied its former policy to all later calls; each reload of other topics left
publishers, subscriptions and a pool open, and counted instances twice. Now the catalogue in force decides, and what only
former ones use is closed as soon as the calls that began with them have ended.
A reload between the decision to open a missing instance's topics and the task that opens them made that task fail with a
KeyError; and the times of the next tries were kept for services that were gone. Neither is so any more.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

import dispatch
from dispatch import Catalog, Dispatcher, InstanceChanged, ThrottledError, ToolServiceClient
from dispatch._internal import RETENTION_S
from dispatch.catalog.catalog import compare
from dispatch.errors import TransportError
from dispatch.messaging.endpoint import UNUSED_S
from dispatch.routing.pool import AGAIN_S
from dispatch.transports.memory import MemoryPublisher, MemoryTransport
from tests.helpers.clock import advance
from tests.helpers.counted_transport import CountedTransport
from tests.helpers.dispatcher_and_service import BROKER, Peer, catalog, dispatching, serving
from tests.helpers.telemetry_capture import Board, telling

NAMESPACES = "non-persistent://tg/request", "non-persistent://tg/response"


def services(*names: str, **tool: Any) -> Catalog:
    """A service with a tool for each name; ``name@n`` is served on topics of version ``n``."""
    made = []
    for each in names:
        name, _, version = each.partition("@")
        request, response = (f"{namespace}/{name}{version}" for namespace in NAMESPACES)
        made.append({"id": name, "request-queue": request, "response-queue": response})
    tools = [
        {"type": "tool-service", "name": each["id"], "description": "", "service": each["id"], **tool} for each in made
    ]
    return Catalog.of(made, tools)


@contextlib.asynccontextmanager
async def servers(*names: str, work: Any = lambda _: "done") -> AsyncIterator[None]:
    async with contextlib.AsyncExitStack() as stack:
        for each in names:
            name = each.replace("@", "")
            request, response = (f"{namespace}/{name}" for namespace in NAMESPACES)
            options = {"request_queue": request, "response_queue": response, "instance": f"{name}-i"}
            await stack.enter_async_context(serving(work, **options))
        yield


async def opened_by(tools: Catalog, *names: str) -> dict[tuple[str, str], int]:
    """What a dispatcher that never had another catalogue has open after a call of each tool."""
    transport = CountedTransport()
    async with dispatching(tools, transport=transport, client_id="d") as dispatcher:
        for name in names:
            assert (await dispatcher.execute(name)).ok
        return dict(transport.left_open)


# -- the policy in force ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("also_the_tool", [False, True])
async def test_a_client_made_before_a_reload_keeps_to_the_new_policy(also_the_tool: bool) -> None:
    rate = {"rate": "2/m", "burst": 2, "max-wait": 0}
    async with serving(lambda _: "done"), dispatching(catalog()) as dispatcher:
        client = ToolServiceClient(dispatcher, service="lab")
        await client.call("alice", {}, {})
        await dispatcher.reload(catalog(service={"policy": {"user-rate-limit": rate}}))
        other = ToolServiceClient(dispatcher, service="lab")
        passed = 0
        for number in range(80):
            with contextlib.suppress(ThrottledError):
                await (other if also_the_tool and number % 2 else client).call("alice", {}, {})
                passed += 1
        assert passed <= 3


async def test_a_call_that_began_before_a_reload_does_not_undo_it() -> None:
    """Its retry used to bring the former settings of the balancer and of the guards back."""
    tools = {"idempotent": True, "policy": {"attempt-timeout": 1, "retry": {"initial-backoff": 0.01}}}
    async with Peer.as_service() as peer, dispatching(catalog(work=tools)) as dispatcher:
        call = asyncio.create_task(dispatcher.execute("work", timeout=10))
        await peer.request()
        await dispatcher.reload(
            catalog(service={"policy": {"outlier-detection": {"consecutive-failures": 77}}}, work=tools)
        )
        _, properties = await peer.request()
        await peer.answer(properties, "done")
        assert (await call).ok
        (pool,) = dispatcher._running.pool_registry.of_service("lab")
        assert pool.balancer._detector.settings.consecutive_failures == 77


# -- what is open -----------------------------------------------------------------------------------------------------
async def test_reloads_leave_nothing_open() -> None:
    names = [f"a@{number}" for number in range(20)]
    transport = CountedTransport()
    async with servers(*names, "b"):
        async with dispatching(services(names[0], "b"), transport=transport, client_id="d") as dispatcher:
            for name in names:
                await dispatcher.reload(services(name, "b"))
                for tool in "ab":
                    assert (await dispatcher.execute(tool)).ok
            await asyncio.sleep(RETENTION_S + 2 * UNUSED_S)
            assert transport.left_open == await opened_by(services(names[-1], "b"), "a", "b")
            await dispatcher.reload(Catalog.empty())
            await asyncio.sleep(RETENTION_S + 2 * UNUSED_S)
            assert transport.left_open == {}
        assert transport.left_open == {}


async def test_calls_that_began_before_a_reload_end_as_they_began() -> None:
    gate = asyncio.Event()

    async def wait(_: dict[str, Any]) -> str:
        await gate.wait()
        return "done"

    transport = CountedTransport()
    async with (
        servers("a@1", work=wait),
        servers("a@2"),
        dispatching(services("a@1"), transport=transport, client_id="d") as dispatcher,
    ):
        calls = [asyncio.create_task(dispatcher.execute("a", timeout=300)) for _ in range(3)]
        await asyncio.sleep(1)
        await dispatcher.reload(services("a@2"))
        assert (await dispatcher.execute("a")).ok
        await asyncio.sleep(RETENTION_S + 2 * UNUSED_S)
        assert any(topic.endswith("/a1") for _, topic in transport.left_open)
        gate.set()
        assert all(result.ok for result in await asyncio.gather(*calls))
        await asyncio.sleep(2 * UNUSED_S)
        assert transport.left_open == await opened_by(services("a@2"), "a")


async def test_a_call_that_began_before_a_reload_is_repeated_where_it_began() -> None:
    tool = {"idempotent": True, "policy": {"attempt-timeout": 1, "retry": {"initial-backoff": 0.01}}}
    transport = CountedTransport()
    request = f"{NAMESPACES[0]}/a1"
    async with (
        Peer._listening(request) as peer,
        dispatching(services("a@1", **tool), transport=transport) as dispatcher,
    ):
        call = asyncio.create_task(dispatcher.execute("a", timeout=10))
        await peer.request()
        await dispatcher.reload(Catalog.empty())
        await asyncio.sleep(0.5)
        _, properties = await peer.request()
        await peer.answer(properties, "done")
        assert (await call).text == "done"
        await asyncio.sleep(RETENTION_S)
        assert transport.left_open == {}


async def test_a_catalogue_that_comes_back_finds_its_pool() -> None:
    gate = asyncio.Event()

    async def wait(arguments: dict[str, Any]) -> str:
        if arguments:
            await gate.wait()
        return "done"

    async with servers("a@1", "a@2", work=wait), dispatching(services("a@1")) as dispatcher:
        call = asyncio.create_task(dispatcher.execute("a", {"wait": 1}))
        await asyncio.sleep(1)
        (before,) = dispatcher._running.pool_registry.of_service("a")
        await dispatcher.reload(services("a@2"))
        assert (await dispatcher.execute("a")).ok
        await dispatcher.reload(services("a@1"))
        assert dispatcher._running.pool_registry.of_service("a") == [before]
        gate.set()
        assert (await call).ok
        await asyncio.sleep(1)
        result = await dispatcher.execute("a")
        assert result.ok
        assert result.duration == 0.0


async def test_topics_that_are_needed_again_while_they_are_being_closed_are_opened_after_that() -> None:
    transport = CountedTransport()  # it refuses a second subscription of one name
    async with servers("a"), dispatching(services("a"), transport=transport, client_id="d") as dispatcher:
        assert (await dispatcher.execute("a")).ok
        for _ in range(3):
            await dispatcher.reload(Catalog.empty())
            await asyncio.sleep(0.001)
            await dispatcher.reload(services("a"))
            assert (await dispatcher.execute("a")).ok
        await asyncio.sleep(1)
        assert transport.left_open == await opened_by(services("a"), "a")


async def test_topics_that_services_share_are_closed_with_the_last_of_them() -> None:
    """Both have one response topic, and a policy with further connections for large answers."""
    shared = f"{NAMESPACES[1]}/shared"

    def tools(*names: str) -> Catalog:
        made = [{"id": name, "request-queue": f"{NAMESPACES[0]}/{name}", "response-queue": shared} for name in names]
        policy = {"bulkhead": 200}
        named = [
            {"type": "tool-service", "name": name, "description": "", "service": name, "policy": policy}
            for name in names
        ]
        return Catalog.of(made, named)

    def large(_: dict[str, Any]) -> str:
        return "x" * 40_000

    transport = CountedTransport()
    async with contextlib.AsyncExitStack() as stack:
        for name in "ab":
            options = {"request_queue": f"{NAMESPACES[0]}/{name}", "response_queue": shared}
            await stack.enter_async_context(serving(large, **options))
        dispatcher = await stack.enter_async_context(dispatching(tools("a", "b"), transport=transport, client_id="d"))
        for name in "ab":
            for _ in range(3):
                results = await asyncio.gather(*(dispatcher.execute(name) for _ in range(150)))
                assert all(result.ok for result in results)
        assert sum("dispatch-reply-" in topic for _, topic in transport.left_open) > 1
        await dispatcher.reload(tools("b"))
        await asyncio.sleep(RETENTION_S + 2 * UNUSED_S)
        assert ("subscription", shared) in transport.left_open
        assert ("publisher", f"{NAMESPACES[0]}/a") not in transport.left_open
        assert (await dispatcher.execute("b")).ok
        await dispatcher.reload(Catalog.empty())
        await asyncio.sleep(RETENTION_S + 2 * UNUSED_S)
        assert transport.left_open == {}
        await dispatcher.reload(tools("a"))
        assert (await dispatcher.execute("a")).ok


@pytest.mark.parametrize("then", ["ends", "is closed"])
async def test_topics_that_are_being_opened_during_a_reload_are_closed_too(then: str) -> None:
    transport = CountedTransport()
    async with servers("a"):
        dispatcher = Dispatcher(transport, services("a"))
        await dispatcher.start()
        transport.slow = 1.0
        call = asyncio.create_task(dispatcher.execute("a"))
        await asyncio.sleep(0.5)
        await dispatcher.reload(Catalog.empty())
        if then == "ends":
            assert (await call).ok
            await asyncio.sleep(RETENTION_S + 5)
            assert transport.left_open == {}
        await dispatcher.close()
        assert (await call).ok == (then == "ends")


# -- what is known ----------------------------------------------------------------------------------------------------
async def test_what_is_known_of_services_that_stay_stays() -> None:
    transport = CountedTransport()
    async with servers("a", "b"), dispatching(services("a", "b"), transport=transport) as dispatcher:
        for tool in "ab":
            assert (await dispatcher.execute(tool)).ok
        breaker, before = dispatcher.breaker("b"), dispatcher.instances("b")
        await dispatcher.reload(services("b"))
        await asyncio.sleep(1)
        assert dispatcher.breaker("b") is breaker
        assert [view.id for view in dispatcher.instances("b")] == [view.id for view in before] == ["b-i"]
        opened = dict(transport.left_open)
        assert (await dispatcher.execute("b")).duration == 0.0
        assert transport.left_open == opened


async def test_instances_are_counted_once() -> None:
    board = Board()
    async with servers("a@1", "a@2"), telling(board.telemetry(), services("a@1")) as dispatcher:
        joined: list[tuple[str, str]] = []
        dispatcher.on_event(
            lambda event: joined.append((event.instance, event.change)) if isinstance(event, InstanceChanged) else None
        )
        assert (await dispatcher.execute("a")).ok
        await dispatcher.reload(services("a@2"))
        assert (await dispatcher.execute("a")).ok
        counted = {name: value for name, value in board.read().items() if name.startswith("instances ")}
        assert sum(counted.values()) == 1
        assert joined == [("a1-i", "joined"), ("a1-i", "left"), ("a2-i", "joined")]


RELOADS = 20


class Refusing(MemoryTransport):
    """Refuses the topics of the instance ``missing``."""

    async def publisher(self, topic: str) -> MemoryPublisher:
        if "missing" in topic:
            raise TransportError("unauthorized", "not for you", may_have_run=False)
        return await super().publisher(topic)


def topics(name: str, number: int = 0) -> dict[str, str]:
    return {
        "id": name,
        "request-queue": f"non-persistent://tg/request/lab-{name}-{number}",
        "response-queue": f"non-persistent://tg/response/lab-{name}-{number}",
    }


def with_a_missing_instance(number: int = 0) -> Catalog:
    return catalog(service={"instances": [topics("there"), topics("missing", number)]})


def another() -> Catalog:
    return Catalog.of(
        [
            {
                "id": "other",
                "request-queue": topics("o")["request-queue"],
                "response-queue": topics("o")["response-queue"],
            }
        ],
        [],
    )


def served() -> Any:
    there = topics("there")
    return serving(
        lambda _: "done", request_queue=there["request-queue"], response_queue=there["response-queue"], instance="there"
    )


async def test_a_reload_before_the_missing_topics_are_tried_again() -> None:
    async with served(), dispatching(with_a_missing_instance(), transport=Refusing(BROKER)) as dispatcher:
        assert await dispatcher.call("work") == "done"
        await advance(AGAIN_S)
        call = asyncio.create_task(dispatcher.execute("work"))  # decides to try again
        resolver = dispatcher._live.resolver.renewed(another(), dispatcher._live.policy)
        asyncio.get_running_loop().call_soon(
            dispatcher._running.renew, resolver, compare(dispatcher.catalog, another())
        )
        assert (await call).ok
        await advance(1)  # an exception that nobody retrieved would fail this test


async def test_times_of_the_next_tries_are_dropped_with_their_services() -> None:
    async with served(), dispatching(with_a_missing_instance(), transport=Refusing(BROKER)) as dispatcher:
        for number in range(RELOADS):
            await dispatcher.reload(with_a_missing_instance(number))
            assert await dispatcher.call("work") == "done"
            await advance(AGAIN_S)
        assert retained(dispatcher) == 1
        await dispatcher.reload(another())
        await advance(RETENTION_S)
        assert retained(dispatcher) == 0


def retained(dispatcher: dispatch.Dispatcher) -> int:
    return len(dispatcher._running.pool_registry._entries)
