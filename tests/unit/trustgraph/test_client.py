"""TrustGraph's face over our path: both dialects, and every call that is neither.
Announced tools in TrustGraph's configuration, on the embedded broker.
The broker as sources see it: correlation, repetition, failures and the end.
A dispatcher that follows TrustGraph's configuration, on the embedded broker.
Our path around TrustGraph's own client: one deadline and typed errors, whatever the client itself does.
The guards around a client of TrustGraph's, which knows nothing of them.
Permissions around TrustGraph's own client: a refused call does not reach it and charges no guard.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

import dispatch
from dispatch import (
    Annotations,
    Grants,
    Policy,
    PolicyError,
    RejectedError,
    Telemetry,
    ThrottledError,
    ToolServiceClient,
)
from dispatch.catalog.items import SourceStatus
from dispatch.errors import CallTimeoutError, InvalidArgumentsError, ToolError, TransportError
from dispatch.messaging.wire import MAX_MESSAGE_BYTES
from dispatch.policy import Retry
from dispatch.resilience.breaker import State
from dispatch.resilience.bulkhead import QueueLimits
from dispatch.server import ToolServer
from dispatch.transports import Message, Mode
from dispatch.transports.memory import MemoryTransport
from dispatch.trustgraph.client import CLEANUP_S, DEFAULT_TIMEOUT_S
from dispatch.trustgraph.config import ConfigBroker, Mirror
from tests.helpers.announcing import service, tool
from tests.helpers.clock import START, advance, cancel_task, idle, now, run, start_task
from tests.helpers.config_service import ConfigService, ConfigStore, config_service
from tests.helpers.dispatcher_and_service import Peer, Service, dispatching, stand
from tests.helpers.followed_config import SERVICE, TOOL, URL, settle
from tests.helpers.run_profile import examples

CONFIG, ARGUMENTS = {"style": "pun"}, {"topic": "cats"}


def client_of(dispatcher: Any) -> ToolServiceClient:
    return ToolServiceClient(dispatcher, service="lab")


@pytest.mark.parametrize(
    ("values", "named", "expected"),
    [
        ((CONFIG, ARGUMENTS), {}, (CONFIG, ARGUMENTS, "")),
        ((CONFIG, ARGUMENTS), {"timeout": 5}, (CONFIG, ARGUMENTS, "")),
        ((CONFIG, ARGUMENTS, 5), {}, (CONFIG, ARGUMENTS, "")),
        (("alice", CONFIG, ARGUMENTS), {}, (CONFIG, ARGUMENTS, "alice")),
        (("alice", CONFIG, ARGUMENTS, 5), {}, (CONFIG, ARGUMENTS, "alice")),
        (("alice", CONFIG, ARGUMENTS), {"timeout": 5}, (CONFIG, ARGUMENTS, "alice")),
        (("", CONFIG, ARGUMENTS), {}, (CONFIG, ARGUMENTS, "")),
        ((), {"config": CONFIG, "arguments": ARGUMENTS}, (CONFIG, ARGUMENTS, "")),
        ((), {"user": "alice", "config": CONFIG, "arguments": ARGUMENTS}, (CONFIG, ARGUMENTS, "alice")),
        ((CONFIG,), {"arguments": ARGUMENTS, "user": "alice"}, (CONFIG, ARGUMENTS, "alice")),
        (("alice",), {"config": CONFIG, "arguments": ARGUMENTS}, (CONFIG, ARGUMENTS, "alice")),
        ((None, None), {}, ({}, {}, "")),
        (({}, {}), {}, ({}, {}, "")),
    ],
)
async def test_both_dialects_by_position_and_by_name(
    values: tuple[Any, ...], named: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    service = Service(lambda _: "ha")
    async with stand(service) as (dispatcher, _):
        client = client_of(dispatcher)
        assert await client.call(*values, **named) == "ha"
        got: list[str] = []
        streaming = {key: value for key, value in named.items() if key != "timeout"}
        leading = values[:-1] if values and values[-1] == 5 else values
        assert await client.call_streaming(*leading, **streaming, callback=got.append) == "ha"
        assert got == ["ha"]
    assert service.requests == [expected] * 2


@pytest.mark.parametrize(
    ("values", "named", "problem"),
    [
        ((), {}, "'config' is missing"),
        ((CONFIG,), {}, "'arguments' is missing"),
        (("alice", CONFIG), {}, "'arguments' is missing"),
        ((CONFIG, ARGUMENTS, 5, 6), {}, "at most 3 values"),
        ((CONFIG, ARGUMENTS), {"config": {}}, "'config' is given twice"),
        (("alice", CONFIG, ARGUMENTS), {"user": "bob"}, "'user' is given twice"),
        ((CONFIG, ARGUMENTS), {"tiemout": 5}, "'tiemout' is not known"),
        ((CONFIG, ARGUMENTS), {"user": 5}, "user must be a text, not int"),
    ],
)
async def test_a_call_in_neither_dialect_is_a_clear_type_error(
    values: tuple[Any, ...], named: dict[str, Any], problem: str
) -> None:
    async with Peer.as_service() as peer, dispatching() as dispatcher:
        with pytest.raises(TypeError, match=problem):
            await client_of(dispatcher).call(*values, **named)
        assert peer.arrived.empty()


async def test_a_stream_needs_its_callback() -> None:
    async with dispatching() as dispatcher:
        with pytest.raises(TypeError, match=r"'callback' is missing; write \(\[user,\] config, arguments, callback"):
            await client_of(dispatcher).call_streaming(CONFIG, ARGUMENTS)


async def test_a_service_must_be_there() -> None:
    async with dispatching() as dispatcher:
        with pytest.raises(RejectedError, match="Call 'lab' if you meant that"):
            ToolServiceClient(dispatcher, service="lap")


@pytest.mark.usefixtures("strangers")
async def test_the_default_limit_is_trustgraphs() -> None:
    assert DEFAULT_TIMEOUT_S == 600.0
    async with Peer.as_service() as peer, dispatching() as dispatcher:
        call = asyncio.create_task(client_of(dispatcher).call(CONFIG, ARGUMENTS))
        message = await peer.arrived.get()
        assert int(message.properties()["remaining-ms"]) in (600_000, 599_999)
        assert json.loads(message.data()) == {"user": "", "config": '{"style":"pun"}', "arguments": '{"topic":"cats"}'}
        with pytest.raises(CallTimeoutError, match=r"No reply arrived within 600 s, and no instance .*; tool 'lab'"):
            await call


@pytest.mark.parametrize(("values", "seconds"), [((), 4), ((3,), 3)])
async def test_a_limit_is_kept_whichever_way_it_is_given(values: tuple[Any, ...], seconds: float) -> None:
    async with Peer.as_service(), dispatching() as dispatcher:
        with pytest.raises(TimeoutError):  # as code written for TrustGraph's client may catch it
            await client_of(dispatcher).call(CONFIG, ARGUMENTS, *values, **({} if values else {"timeout": 4}))
        assert now() == pytest.approx(START + seconds, abs=0.01)


async def test_a_tools_error_is_the_runtime_error_trustgraph_raises_and_has_its_type() -> None:
    def work(_: Any) -> None:
        raise KeyError("topic")

    async with stand(work) as (dispatcher, _):
        client = client_of(dispatcher)
        with pytest.raises(RuntimeError, match=r"^KeyError: 'topic'$") as caught:
            await client.call(CONFIG, ARGUMENTS)
        assert isinstance(caught.value, ToolError)
        assert caught.value.type == "KeyError"
        with pytest.raises(RuntimeError, match=r"^KeyError: 'topic'$"):
            await client.call_streaming(CONFIG, ARGUMENTS, print)


@pytest.mark.parametrize(
    ("config", "arguments", "type"),
    [
        ([1], ARGUMENTS, "invalid-config"),
        ({"a": object()}, ARGUMENTS, "invalid-config"),
        (CONFIG, ["cats"], "invalid-arguments"),
        (CONFIG, {"a": object()}, "invalid-arguments"),
        (CONFIG, {"a": "x" * MAX_MESSAGE_BYTES}, "request-too-large"),
    ],
)
async def test_values_that_cannot_travel_are_told_before_anything_is_sent(
    config: Any, arguments: Any, type: str
) -> None:
    async with Peer.as_service() as peer, dispatching() as dispatcher:
        client = client_of(dispatcher)
        for call in (client.call(config, arguments), client.call_streaming(config, arguments, print)):
            with pytest.raises(InvalidArgumentsError) as caught:
                await call
            assert caught.value.type == type
        assert peer.arrived.empty()


# -- streams --------------------------------------------------------------------------------------------------------
def story(_: Any) -> AsyncIterator[str]:
    async def stream() -> AsyncIterator[str]:
        for index in range(4):
            await asyncio.sleep(1)
            yield f"<{index}>"

    return stream()


@pytest.mark.parametrize("awaited", [True, False])
async def test_each_chunk_is_told_as_it_comes_to_either_kind_of_callback(awaited: bool) -> None:
    seen: list[tuple[int, str]] = []

    def note(chunk: str) -> None:
        seen.append((round(asyncio.get_running_loop().time() - START), chunk))

    async def note_later(chunk: str) -> None:
        await asyncio.sleep(0)
        note(chunk)

    async with stand(story) as (dispatcher, _):
        text = await client_of(dispatcher).call_streaming("alice", CONFIG, ARGUMENTS, note_later if awaited else note)
    assert text == "<0><1><2><3>"
    assert seen == [(second + 1, f"<{second}>") for second in range(4)]


async def test_a_callback_that_fails_ends_the_stream_and_leaves_nothing() -> None:
    def fails(chunk: str) -> None:
        raise ZeroDivisionError(chunk)

    async with stand(story) as (dispatcher, _):
        with pytest.raises(ZeroDivisionError, match="<0>") as caught:
            await client_of(dispatcher).call_streaming(CONFIG, ARGUMENTS, fails)
        assert dispatcher.pending_requests == 0, caught


async def test_a_streams_limit_is_one_for_everything() -> None:
    got: list[str] = []
    async with stand(story) as (dispatcher, _):
        with pytest.raises(CallTimeoutError):
            await client_of(dispatcher).call_streaming(CONFIG, ARGUMENTS, got.append, timeout=2.5)
        assert got == ["<0>", "<1>"]
        assert now() == pytest.approx(START + 2.5, abs=0.01)
        await idle()
        assert dispatcher.pending_requests == 0


async def test_a_silence_may_last_as_long_as_the_limit() -> None:
    async with stand(lambda _: asyncio.sleep(500, "done")) as (dispatcher, _):
        assert await client_of(dispatcher).call_streaming(CONFIG, ARGUMENTS, print) == "done"


class Echo(dispatch.ToolService):
    """Answers with its arguments."""

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        return json.dumps(arguments)


def serving(name: str, *tools: dict[str, Any], **options: Any) -> ToolServer:
    return ToolServer(Echo(), URL, service=name, tools=tools or [tool(service=name)], **options)


@contextlib.asynccontextmanager
async def mirroring(store: ConfigStore) -> AsyncIterator[list[tuple[Any, Any]]]:
    transport = MemoryTransport(URL)
    await transport.start()
    broker = ConfigBroker(transport, "mirror")
    announced, config = dispatch.Announced(), dispatch.TrustGraphConfig()
    announced.connect(broker)
    config.connect(broker)
    changes: list[tuple[Any, Any]] = []
    task = asyncio.create_task(Mirror(announced, config, lambda *each: changes.append(each)).follow())
    try:
        await asyncio.sleep(2)
        yield changes
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await announced.close()
        await config.close()
        await broker.close()
        await transport.close()


@contextlib.asynccontextmanager
async def configuration() -> AsyncIterator[tuple[ConfigStore, ConfigService]]:
    store = ConfigStore()
    async with config_service(URL, store) as running:
        yield store, running


def kept(store: ConfigStore) -> set[str]:
    """Return the services and tools of a store."""
    return {f"{kind}/{key}" for _, kind, key in store.texts if kind != "dispatch-mirror"}


async def test_announced_tools_are_written_and_removed_when_their_service_is_gone() -> None:
    async with (
        configuration() as (store, _),
        mirroring(store) as changes,
        dispatch.connect(URL, dispatch.TrustGraphConfig()) as agent,
    ):
        async with serving("shop"):
            await asyncio.sleep(2)
            assert kept(store) == {"tool-service/shop", "tool/price"}
            assert changes[-1] == ([("tool-service", "shop"), ("tool", "price")], [])
            assert await agent.call("price", {"product": "lamp"}) == '{"product": "lamp"}'
        await asyncio.sleep(30)
        assert kept(store) == {"tool-service/shop", "tool/price"}
        await asyncio.sleep(35)
        assert kept(store) == set()
        assert changes[-1] == ([], [("tool", "price"), ("tool-service", "shop")])


async def test_items_of_others_stay_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    async with configuration() as (store, _):
        store.write("tool-service", "own", service("own"))
        store.write("tool", "price", tool(service="own", description="Own"))
        async with mirroring(store), serving("shop", tool(), tool("order")):
            await asyncio.sleep(2)
            assert kept(store) == {"tool-service/own", "tool/price", "tool-service/shop", "tool/order"}
            assert json.loads(store.texts["default", "tool", "price"])["description"] == "Own"
        assert "tool/price is not mirrored: the configuration has another item of that name" in caplog.text


async def test_a_restarted_mirror_removes_what_it_has_written() -> None:
    async with configuration() as (store, _):
        async with mirroring(store), serving("shop"):
            await asyncio.sleep(2)
        assert kept(store) == {"tool-service/shop", "tool/price"}
        async with mirroring(store), serving("bank", tool("balance", service="bank")):
            await asyncio.sleep(2)
            assert kept(store) == {"tool-service/bank", "tool/balance"}


async def test_the_highest_version_is_written_under_its_name() -> None:
    old = {"request_queue": "request:tg:old", "response_queue": "response:tg:old"}
    async with (
        configuration() as (store, _),
        mirroring(store),
        serving("shop", descriptor={"version": "1.10.0"}),
        ToolServer(Echo(), URL, tools=[tool()], descriptor={"id": "shop", "version": "1.9.0"}, **old),
    ):
        await asyncio.sleep(2)
        assert kept(store) == {"tool-service/shop", "tool/price"}
        assert json.loads(store.texts["default", "tool", "price"])["version"] == "1.10.0"


async def test_it_catches_up_when_the_config_service_returns(caplog: pytest.LogCaptureFixture) -> None:
    async with configuration() as (store, running), mirroring(store), serving("shop"):
        await asyncio.sleep(2)
        await running.stop()
        async with serving("bank", tool("balance", service="bank")):
            await asyncio.sleep(10)
            await running.start()
            await asyncio.sleep(40)
            assert kept(store) == {"tool-service/shop", "tool/price", "tool-service/bank", "tool/balance"}
    assert "the mirror is behind, and tries again in" in caplog.text
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


REQUEST, RESPONSE = "non-persistent://tg/request/lab", "non-persistent://tg/response/lab"


class EchoConfigBroker:
    """Answers each request with its payload, unless it is among the first ``lost`` ones."""

    def __init__(self, lost: int = 0) -> None:
        self.ids: list[str] = []
        self._lost = lost

    async def start(self, transport: MemoryTransport) -> None:
        publisher = await transport.publisher(RESPONSE)

        def on_request(message: Message) -> None:
            self.ids.append(message.properties()["id"])
            if len(self.ids) > self._lost:
                for id in ("other", self.ids[-1], self.ids[-1]):
                    publisher.publish(message.data() + id[:5].encode(), {"id": id}, flow="", on_failure=print)

        await transport.subscribe(REQUEST, on_request, mode=Mode.SHARED, name="echo")


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[tuple[MemoryTransport, ConfigBroker]]:
    transport = MemoryTransport("memory://")
    await transport.start()
    broker = ConfigBroker(transport, "d1")
    try:
        yield transport, broker
        assert transport.handler_errors == 0
    finally:
        await broker.close()
        await transport.close()


async def test_each_request_gets_its_own_response() -> None:
    async with connected() as (transport, broker):
        echo = EchoConfigBroker()
        await echo.start(transport)
        responses = await asyncio.gather(
            *(broker.request(REQUEST, RESPONSE, b"%d-" % i, timeout=1) for i in range(100))
        )
        assert [response.partition(b"-")[0] for response in responses] == [b"%d" % i for i in range(100)]
        assert [response.partition(b"-")[2].decode() for response in responses] == [id[:5] for id in echo.ids]
        assert len(set(echo.ids)) == 100


async def test_a_request_is_sent_again_with_the_same_id() -> None:
    async with connected() as (transport, broker):
        echo = EchoConfigBroker(lost=2)
        await echo.start(transport)
        began = now()
        await broker.request(REQUEST, RESPONSE, b"", timeout=5, resend_after=1)
        assert now() - began == pytest.approx(3, abs=0.01)  # after 1 s, and 2 s later
        assert len(set(echo.ids)) == 1


async def test_without_a_response_the_request_times_out() -> None:
    async with connected() as (transport, broker):
        echo = EchoConfigBroker(lost=100)
        await echo.start(transport)
        with pytest.raises(TimeoutError):
            await broker.request(REQUEST, RESPONSE, b"", timeout=5)
        assert len(echo.ids) == 1


async def test_a_failure_to_send_is_raised() -> None:
    async with connected() as (transport, broker):
        await EchoConfigBroker(lost=1).start(transport)
        waiting = await start_task(broker.request(REQUEST, RESPONSE, b"", timeout=5))
        await broker.close()
        with pytest.raises(TransportError):
            await waiting
        with pytest.raises(TransportError):
            await broker.request(REQUEST, RESPONSE, b"", timeout=5)
        with pytest.raises(TransportError):
            await broker.subscribe(RESPONSE, print)


async def test_notifications_until_the_subscription_is_closed() -> None:
    async with connected() as (transport, broker):
        received: list[bytes] = []
        subscription = await broker.subscribe(RESPONSE, received.append)
        publisher = await transport.publisher(RESPONSE)
        publisher.publish(b"1", {}, flow="", on_failure=print)
        await idle()
        await subscription.close()
        await subscription.close()
        publisher.publish(b"2", {}, flow="", on_failure=print)
        await idle()
        assert received == [b"1"]


async def test_topics_are_opened_once_and_closed_at_the_end() -> None:
    async with connected() as (transport, broker):
        await EchoConfigBroker().start(transport)
        await asyncio.gather(*(broker.request(REQUEST, RESPONSE, b"", timeout=1) for _ in range(10)))
        await broker.subscribe(RESPONSE, print)
        assert len(transport._subscriptions) == 3  # the echo, the responses, the notifications
        await broker.close()
        assert len(transport._subscriptions) == 1


class Joke(dispatch.ToolService):
    """Answers with the config and the arguments."""

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        return f"{config.get('style', 'plain')} joke about {arguments['topic']}"


class Live(NamedTuple):
    service: ConfigService
    store: ConfigStore
    source: dispatch.TrustGraphConfig
    dispatcher: dispatch.Dispatcher

    @property
    def tools(self) -> list[str]:
        return sorted(self.dispatcher.catalog.tools)

    @property
    def status(self) -> SourceStatus:
        return next(each for each in self.dispatcher.registry.sources() if each.id == "trustgraph")


@contextlib.asynccontextmanager
async def live(*others: Any, is_running: bool = True) -> AsyncIterator[Live]:
    store = ConfigStore()
    store.write("tool-service", "joke-service", SERVICE | {"config-params": ["style"]})
    store.write("tool", "tell-joke", TOOL)
    source = dispatch.TrustGraphConfig(randomness=lambda: 0.5)
    async with contextlib.AsyncExitStack() as stack:
        service = await stack.enter_async_context(config_service(URL, store))
        if not is_running:
            await service.stop()
        await stack.enter_async_context(dispatch.ToolServer(Joke(), URL, service="joke"))
        dispatcher = dispatch.Dispatcher(MemoryTransport(URL), [*others, source], randomness=lambda: 0.5)
        yield Live(service, store, source, await stack.enter_async_context(dispatcher))


async def activation() -> None:
    """Wait until a change is in force."""
    await asyncio.sleep(0.2)
    await settle()


async def test_a_tool_that_is_put_can_be_called_and_one_that_is_removed_cannot() -> None:
    async with live() as each:
        await each.source.put("tool", TOOL | {"name": "tell-pun", "style": "pun"})
        await activation()
        assert await each.dispatcher.call("tell-pun", {"topic": "cats"}) == "pun joke about cats"
        assert await each.dispatcher.call("tell-joke", {"topic": "cats"}) == "plain joke about cats"
        await each.source.remove("tool", "tell-pun")
        await activation()
        with pytest.raises(dispatch.RejectedError, match="tell-pun"):
            await each.dispatcher.call("tell-pun", {"topic": "cats"})
        assert each.dispatcher.registry.source("trustgraph") is each.source


async def test_an_invalid_item_keeps_its_last_valid_version() -> None:
    async with live() as each:
        each.store.write("tool", "tell-joke", "{")
        each.store.write("tool", "another", TOOL | {"name": "another", "service": "unknown"})
        each.store.write("tool", "third", TOOL | {"name": "third"})
        each.service.push({"tool": ["default"]})
        await activation()
        assert each.tools == ["tell-joke", "third"]
        assert (each.status.state, each.status.refused) == ("ok", 2)
        each.store.write("tool", "tell-joke", TOOL | {"description": "Mended"})
        each.service.push({"tool": ["default"]})
        await activation()
        assert each.dispatcher.catalog.tools["tell-joke"].description == "Mended"
        assert each.status.refused == 1


async def test_tools_of_other_types_have_an_owner() -> None:
    async with live() as each:
        await each.source.put("tool", {"type": "mcp-tool", "name": "weather", "mcp-tool": "w"}, key="w")
        await activation()
        assert each.tools == ["tell-joke"]
        other = each.dispatcher.registry.others["weather"]
        assert (other.type, other.source, other.origin) == ("mcp-tool", "trustgraph", "trustgraph:default/tool/w")


async def test_without_an_answer_the_items_of_other_sources_are_there() -> None:
    code = dispatch.Catalog.of([SERVICE | {"id": "own"}], [TOOL | {"name": "own-joke", "service": "own"}])
    async with live(code, is_running=False) as each:
        assert each.tools == ["own-joke"]
        assert (each.status.state, each.status.items) == ("failed", 0)
        await asyncio.sleep(20)
        assert "did not answer 'getvalues'" in each.status.problem
        await each.service.start()  # it announces itself
        await activation()
        assert each.tools == ["own-joke", "tell-joke"]
        assert (each.status.state, each.status.problem) == ("ok", "")
        await each.service.stop()
        await asyncio.sleep(60)
        assert (each.status.state, each.tools) == ("stale", ["own-joke", "tell-joke"])


async def test_attempts_to_reach_the_service_are_up_to_thirty_seconds_apart() -> None:
    async with live() as each:
        each.service.is_silent = True
        each.service.ids.clear()
        # The poll after 30 s; each attempt has 5 s, then 0.5 s, 1 s, 2 s … 30 s until the next.
        await asyncio.sleep(200)
        assert 9 <= len(set(each.service.ids)) <= 11


async def test_reload_with_the_same_source_and_removal_leave_one_and_no_subscription() -> None:
    async with live() as each:
        transport = each.dispatcher._transport
        assert isinstance(transport, MemoryTransport)

        def notified() -> int:
            return sum(open.topic == each.source.topics.notification for open in transport._subscriptions)

        await each.dispatcher.reload([each.source])
        assert notified() == 1
        another = dispatch.TrustGraphConfig()
        await each.dispatcher.reload([another])
        await activation()
        assert (notified(), each.tools) == (1, ["tell-joke"])
        await each.dispatcher.registry.remove_source("trustgraph")
        assert (notified(), each.tools) == (0, [])


SERVICES_OF = {"t1": "a", "t2": "a", "t3": "b"}
STEPS = st.one_of(
    st.tuples(st.just("write"), st.sampled_from(["a", "b", "t1", "t2", "t3"]), st.booleans()),
    st.tuples(st.just("remove"), st.sampled_from(["a", "b", "t1", "t2", "t3"]), st.booleans()),
    st.tuples(st.just("wait"), st.sampled_from([0.0, 0.04, 0.3, 7.0, 40.0]), st.just(True)),
    st.tuples(st.just("silent"), st.booleans(), st.just(True)),
    st.tuples(st.just("refuse"), st.booleans(), st.just(True)),
    st.tuples(st.just("copies"), st.integers(1, 3), st.just(True)),
    st.tuples(st.just("restart"), st.none(), st.booleans()),
)


async def perform(each: Live, step: tuple[str, Any, bool], number: int) -> None:
    """Perform a step; with false as its last value the notification is lost."""
    action, value, is_announced = step
    service, store = each.service, each.store
    kind = "tool" if value in SERVICES_OF else "tool-service"
    match action:
        case "write" if kind == "tool":
            tool = {"name": value, "service": SERVICES_OF[value], "description": str(number)}
            store.write(kind, value, TOOL | tool)
        case "write":
            store.write(kind, value, SERVICE)
        case "remove":
            store.texts.pop(("default", kind, value), None)
            store.version += 1
        case "wait":
            await asyncio.sleep(value)
        case "silent":
            service.is_silent = value
        case "refuse":
            service.refusal = {"type": "config-error", "message": "refused"} if value else None
        case "copies":
            service.copies = value
        case "restart":
            store.texts.clear()
            store.version = 0
    if action in ("write", "remove") and is_announced:
        service.push({kind: ["default"]})
    elif action == "restart" and is_announced:
        service.push({})


@pytest.mark.costly
@settings(max_examples=examples(60))
@given(steps=st.lists(STEPS, min_size=1, max_size=25))
def test_the_configuration_is_in_force_whatever_happened_before(steps: list[tuple[str, Any, bool]]) -> None:
    async def scenario() -> None:
        async with live() as each:
            for number, step in enumerate(steps):
                await perform(each, step, number)
            each.service.is_silent, each.service.refusal = False, None
            await asyncio.sleep(80)  # a poll, or the longest wait of the registry after a failure
            expected = {
                raw["name"]: raw["description"]
                for (_, kind, _), text in each.store.texts.items()
                if kind == "tool"
                for raw in [json.loads(text)]
                if ("default", "tool-service", raw["service"]) in each.store.texts
            }
            assert {name: tool.description for name, tool in each.dispatcher.catalog.tools.items()} == expected
            assert each.status.state == "ok"

    run(scenario)


CONFIG, ARGUMENTS = {"style": "pun"}, {"topic": "cats"}


class Published:
    """As in the published package 2.11.1. ``work`` decides what happens."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.calls: list[tuple[Any, ...]] = []

    async def call(self, config: Any, arguments: Any, timeout: float = 600) -> Any:
        self.calls.append((config, arguments, timeout))
        return await self.work()

    async def call_streaming(self, config: Any, arguments: Any, callback: Any, timeout: float = 600) -> Any:
        self.calls.append((config, arguments, timeout))
        for chunk in ("Once", " upon"):
            await callback(chunk)
        return await self.work()


class Specified:
    """As in the specification."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.inner = Published(work)
        self.users: list[str] = []

    async def call(self, user: str, config: Any, arguments: Any, timeout: float = 600) -> Any:
        self.users.append(user)
        return await self.inner.call(config, arguments, timeout)

    async def call_streaming(self, user: str, config: Any, arguments: Any, callback: Any, timeout: float = 600) -> Any:
        self.users.append(user)
        return await self.inner.call_streaming(config, arguments, callback, timeout)


async def ha() -> str:
    return "ha"


def failing(error: BaseException) -> Callable[[], Any]:
    async def work() -> None:
        raise error

    return work


WAYS_TO_CALL: list[tuple[tuple[Any, ...], dict[str, Any], str, float]] = [
    ((CONFIG, ARGUMENTS), {}, "", 600),
    ((CONFIG, ARGUMENTS), {"timeout": 5}, "", 5),
    (("alice", CONFIG, ARGUMENTS), {}, "alice", 600),
    ((), {"user": "alice", "config": CONFIG, "arguments": ARGUMENTS, "timeout": 5}, "alice", 5),
]


@pytest.mark.parametrize(("values", "named", "user", "timeout"), WAYS_TO_CALL)
async def test_either_client_is_called_in_its_own_dialect_whichever_we_are_called_in(
    values: tuple[Any, ...], named: dict[str, Any], user: str, timeout: float
) -> None:
    published, specified = Published(ha), Specified(ha)
    assert await dispatch.wrap(published, tool="work").call(*values, **named) == "ha"
    assert await dispatch.wrap(specified, tool="work").call(*values, **named) == "ha"
    assert published.calls == specified.inner.calls == [(CONFIG, ARGUMENTS, timeout)]
    assert specified.users == [user]


@pytest.mark.parametrize("awaited", [True, False])
@pytest.mark.parametrize("cls", [Published, Specified])
async def test_chunks_reach_either_kind_of_callback(cls: type[Any], awaited: bool) -> None:
    got: list[str] = []

    async def later(chunk: str) -> None:
        await asyncio.sleep(0)
        got.append(chunk)

    client = dispatch.wrap(cls(ha), tool="work")
    assert await client.call_streaming("alice", CONFIG, ARGUMENTS, later if awaited else got.append) == "ha"
    assert got == ["Once", " upon"]


async def test_one_limit_covers_whatever_the_client_does() -> None:
    client = dispatch.wrap(Published(lambda: asyncio.sleep(1_000)), tool="work")
    whole = client.call(CONFIG, ARGUMENTS, timeout=5)
    streamed = client.call_streaming(CONFIG, ARGUMENTS, lambda _: None, timeout=5)
    for clock, call in (("call", whole), ("stream", streamed)):
        with pytest.raises(CallTimeoutError, match=r"within 5 s.*; tool 'work' may have been executed") as caught:
            await call
        assert (caught.value.limit_name, caught.value.retryable) == (clock, False)
    assert now() == pytest.approx(START + 10 + 2 * CLEANUP_S, abs=0.01)


@pytest.mark.parametrize(
    ("raised", "cls", "type", "message"),
    [
        (RuntimeError("no such city"), ToolError, "tool-error", "no such city"),
        (TimeoutError(), CallTimeoutError, "timeout", "may have been executed"),
        (ConnectionError("gone"), TransportError, "client-failed", "ConnectionError: gone"),
        (KeyError("x"), TransportError, "client-failed", "KeyError: 'x'"),
    ],
)
async def test_what_the_client_raises_becomes_typed_and_keeps_its_cause(
    raised: Exception, cls: type[Exception], type: str, message: str
) -> None:
    with pytest.raises(cls, match=message) as caught:
        await dispatch.wrap(Published(failing(raised)), tool="work").call(CONFIG, ARGUMENTS)
    assert getattr(caught.value, "type", None) == type
    if cls is not CallTimeoutError:
        assert caught.value.__cause__ is raised


async def test_the_client_may_end_by_its_own_limit_first() -> None:
    async def work() -> str:
        await asyncio.sleep(5)
        raise TimeoutError

    client = dispatch.wrap(Published(work), tool="work")
    with pytest.raises(CallTimeoutError, match="within 5 s"):
        await client.call(CONFIG, ARGUMENTS, timeout=5)
    assert now() == pytest.approx(START + 5, abs=0.01)


class Deaf(Published):
    """Swallows the cancellation by which a limit is kept, as asyncio.wait_for can."""

    async def call_streaming(self, config: Any, arguments: Any, callback: Any, timeout: float = 600) -> Any:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1)
            await callback("chunk")


async def test_a_client_that_swallows_cancellation_is_stopped_all_the_same() -> None:
    got: list[str] = []
    with pytest.raises(CallTimeoutError):
        await dispatch.wrap(Deaf(ha), tool="work").call_streaming(CONFIG, ARGUMENTS, got.append, timeout=5)
    assert got == ["chunk"] * 5


@pytest.mark.parametrize("error", [ZeroDivisionError("mine"), RuntimeError("mine"), TimeoutError("mine")])
async def test_what_the_callback_raises_is_the_callers_own(error: Exception) -> None:
    async def callback(_: str) -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        await dispatch.wrap(Published(ha), tool="work").call_streaming(CONFIG, ARGUMENTS, callback)
    assert caught.value is error


async def test_a_typed_error_stays_as_it_is() -> None:
    given = ThrottledError("quota", "Not before noon.", retry_after=5)
    with pytest.raises(ThrottledError) as caught:
        await dispatch.wrap(Published(failing(given)), tool="work").call(CONFIG, ARGUMENTS)
    assert caught.value is given


async def test_cancellation_stays_cancellation_and_reaches_the_client() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(1_000)
        finally:
            ended.append("ended")

    call = await start_task(dispatch.wrap(Published(work), tool="work").call(CONFIG, ARGUMENTS))
    await cancel_task(call)
    assert ended == ["ended"]


@pytest.mark.parametrize("timeout", [0, -1, "5", float("nan")])
async def test_a_timeout_that_cannot_be_never_reaches_the_client(timeout: Any) -> None:
    client = Published(ha)
    with pytest.raises(InvalidArgumentsError, match="'work' was not executed"):
        await dispatch.wrap(client, tool="work").call(CONFIG, ARGUMENTS, timeout=timeout)
    assert not client.calls


@pytest.mark.parametrize("arguments", [["cats"], "cats", {"a": object()}])
async def test_arguments_that_are_no_object_never_reach_the_client(arguments: Any) -> None:
    client = Published(ha)
    with pytest.raises(InvalidArgumentsError, match=r"'work' was not executed: arguments "):
        await dispatch.wrap(client, tool="work").call(CONFIG, arguments)
    assert not client.calls


async def test_a_call_of_a_wrapped_client_in_neither_dialect_is_a_clear_type_error() -> None:
    with pytest.raises(TypeError, match="'arguments' is missing"):
        await dispatch.wrap(Published(ha), tool="work").call(CONFIG)


class Own(Published):
    """A subclass of a user, with methods and a life cycle of its own."""

    is_open = False

    async def call(self, config: Any, arguments: Any) -> Any:
        return await super().call(config, arguments)

    async def call_streaming(self, config: Any, arguments: Any, callback: Any) -> Any:
        return await super().call_streaming(config, arguments, callback)

    async def stop(self) -> str:
        return "stopped"

    async def __aenter__(self) -> Own:
        self.is_open = True
        return self

    async def __aexit__(self, *_raised: object) -> None:
        self.is_open = False


@pytest.mark.parametrize("result", ["ha", {"joke": "ha"}, ["ha"], None], ids=str)
async def test_a_subclass_is_wrapped_with_its_own_signature_results_and_attributes(result: object) -> None:
    async def work() -> object:
        return result

    client, got = Own(work), list[str]()
    async with dispatch.wrap(client, tool="work") as wrapped:
        assert await wrapped.call(CONFIG, ARGUMENTS, timeout=5) == result
        assert await wrapped.call_streaming(CONFIG, ARGUMENTS, got.append) == result
        assert wrapped.is_open
        assert await wrapped.stop() == "stopped"
    assert (client.is_open, got) == (False, ["Once", " upon"])
    with pytest.raises(AttributeError, match="'Own' object has no attribute 'start'"):
        wrapped.start  # noqa: B018
    with pytest.raises(TypeError, match="a Published is no asynchronous context manager"):
        async with dispatch.wrap(Published(ha), tool="work"):
            raise AssertionError("it must not get here")


def test_a_call_with_other_parameters_cannot_be_wrapped() -> None:
    class Other:
        async def call(self, *, config: Any, arguments: Any) -> str:
            return "ha"

    problem = r"^Other\.call\(.*\) -> 'str' cannot be called with \(config, arguments\): too many"
    with pytest.raises(TypeError, match=problem):
        dispatch.wrap(Other(), tool="work")


def test_what_has_no_call_cannot_be_wrapped() -> None:
    for client in (object(), None, type("Odd", (), {"call": "a text"})()):
        with pytest.raises(TypeError, match="has no method 'call'"):
            dispatch.wrap(client, tool="work")


def test_a_wrapped_client_says_its_tool() -> None:
    assert dispatch.wrap(Published(ha), tool="work").tool == "work"


IDEMPOTENT = Annotations(idempotent=True)


class Client:
    """Does what ``script`` says, call by call; the last thing for ever."""

    def __init__(self, *script: Any) -> None:
        self.script = list(script)
        self.calls = 0
        self.running = 0

    async def call(self, config: Any, arguments: Any, timeout: float = 600) -> str:
        step = self.script[min(self.calls, len(self.script) - 1)]
        self.calls += 1
        self.running += 1
        try:
            if isinstance(step, float):
                await asyncio.sleep(step)
                return "done"
            if isinstance(step, BaseException):
                raise step
            return str(step)
        finally:
            self.running -= 1

    async def call_streaming(self, config: Any, arguments: Any, callback: Any, timeout: float = 600) -> str:
        self.calls += 1
        for step in self.script:
            if isinstance(step, BaseException):
                raise step
            await callback(step)
        return "".join(self.script)


@pytest.mark.usefixtures("exact_breakers")
async def test_a_client_that_fails_is_left_alone_until_it_is_well() -> None:
    client = Client(100.0, 100.0, 100.0, "well")
    policy = Policy(timeout=1, breaker={"consecutive-failures": 3, "half-open-calls": 1})  # type: ignore[arg-type] # as in a descriptor
    wrapped = dispatch.wrap(client, tool="work", policy=policy)
    for _ in range(3):
        with pytest.raises(CallTimeoutError):
            await wrapped.call({}, {})
    assert wrapped.breaker.state is State.OPEN
    began = now()
    with pytest.raises(RejectedError, match="'work' was not executed: its circuit breaker is open") as caught:
        await wrapped.call({}, {})
    assert (now(), client.calls) == (began, 3)
    assert caught.value.retry_after == pytest.approx(5, abs=0.1)
    await advance(5)
    assert await wrapped.call({}, {}) == "well"
    assert wrapped.breaker.state is State.CLOSED


async def test_what_may_have_run_is_repeated_only_where_that_is_declared_harmless() -> None:
    away = ConnectionError("broker away")
    once = Client(away, "done")
    with pytest.raises(TransportError):
        await dispatch.wrap(once, tool="work").call({}, {})
    assert once.calls == 1
    again = Client(away, "done")
    assert await dispatch.wrap(again, tool="work", annotations=IDEMPOTENT).call({}, {}) == "done"
    assert again.calls == 2


async def test_a_tools_own_error_is_told_at_once() -> None:
    client = Client(RuntimeError("no such topic"), "done")
    with pytest.raises(ToolError, match="no such topic") as caught:
        await dispatch.wrap(client, tool="work", annotations=IDEMPOTENT).call({}, {})
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert client.calls == 1


async def test_each_attempt_has_its_time_and_the_call_has_one() -> None:
    client = Client(100.0, "done")
    wrapped = dispatch.wrap(client, tool="work", policy=Policy(timeout=10, attempt_timeout=2), annotations=IDEMPOTENT)
    began = now()
    assert await wrapped.call({}, {}) == "done"
    assert 2 <= now() - began <= 2 + CLEANUP_S + 0.05
    hanging = Client(100.0)
    wrapped = dispatch.wrap(hanging, tool="work", policy=Policy(timeout=5, attempt_timeout=2), annotations=IDEMPOTENT)
    began = now()
    with pytest.raises(CallTimeoutError) as caught:
        await wrapped.call({}, {})
    assert now() - began <= 5 + CLEANUP_S + 0.05
    assert caught.value.retryable
    assert hanging.running == 0


async def test_rates_and_places_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatch.resilience.bulkhead.QUEUE_LIMITS", QueueLimits(max_length=1))
    limited = dispatch.wrap(Client("done"), tool="work", policy=Policy(user_rate_limit={"rate": "1/s", "max-wait": 0}))  # type: ignore[arg-type] # as in a descriptor
    assert await limited.call("ann", {}, {}) == "done"
    with pytest.raises(ThrottledError) as caught:
        await limited.call("ann", {}, {})
    assert (caught.value.type, caught.value.rejected_by) == ("rate-limited", "user-rate-limit")
    assert await limited.call("bob", {}, {}) == "done"
    slow = Client(5.0)
    narrow = dispatch.wrap(slow, tool="work", policy=Policy(bulkhead={"max-concurrent-calls": 1, "max-wait": 9}))  # type: ignore[arg-type] # likewise
    calls = [asyncio.create_task(narrow.call({}, {})) for _ in range(2)]
    await idle()
    with pytest.raises(ThrottledError) as caught:
        await narrow.call({}, {})
    assert caught.value.type == "bulkhead-full"
    assert await asyncio.gather(*calls) == ["done", "done"]


async def test_a_caller_that_leaves_gives_its_place_back_and_counts_as_nothing() -> None:
    slow = Client(5.0)
    policy = Policy(bulkhead={"max-concurrent-calls": 1, "max-wait": 0}, breaker={"consecutive-failures": 1})  # type: ignore[arg-type] # likewise
    wrapped = dispatch.wrap(slow, tool="work", policy=policy)
    for _ in range(3):
        call = await start_task(wrapped.call({}, {}))
        await cancel_task(call)
        await idle()  # until the client has ended
    assert wrapped.breaker.state is State.CLOSED
    assert await wrapped.call({}, {}) == "done"


async def test_a_slow_call_is_hedged() -> None:
    client = Client(50.0, "fast")
    wrapped = dispatch.wrap(client, tool="work", policy=Policy(hedging=0.5), annotations=IDEMPOTENT)
    began = now()
    assert await wrapped.call({}, {}) == "fast"
    assert now() - began == pytest.approx(0.5, abs=0.01)
    assert client.running == 0


async def test_a_stream_is_not_begun_again_once_a_chunk_was_given() -> None:
    chunks: list[str] = []
    client = Client("Once", ConnectionError("broker away"))
    with pytest.raises(TransportError):
        await dispatch.wrap(client, tool="work", annotations=IDEMPOTENT).call_streaming({}, {}, chunks.append)
    assert (chunks, client.calls) == (["Once"], 1)
    silent = Client(ConnectionError("broker away"))
    with pytest.raises(TransportError):
        await dispatch.wrap(silent, tool="work", annotations=IDEMPOTENT).call_streaming({}, {}, chunks.append)
    assert silent.calls == 3


def test_what_must_not_be_repeated_is_refused_when_it_is_wrapped() -> None:
    with pytest.raises(PolicyError, match="hedging"):
        dispatch.wrap(Client("x"), tool="work", policy=Policy(hedging="p95"))


async def test_who_has_no_breaker_is_told_so() -> None:
    wrapped = dispatch.wrap(Client("x"), tool="work", policy=Policy(breaker=None, bulkhead=None, retry=Retry(1)))
    with pytest.raises(ValueError, match="has no breaker"):
        _ = wrapped.breaker
    assert await wrapped.call({}, {}) == "x"


GRANTS = Grants.of({"users": {"alice": ["tools:*"]}})


def wrapped(client: Any, **options: Any) -> dispatch.WrappedClient:
    return dispatch.wrap(client, tool="work", **{"permissions": ["tools:jokes"], "grants": GRANTS, **options})


async def ignore(_chunk: str) -> None:
    pass


async def test_only_a_permitted_user_reaches_the_client() -> None:
    registry, client = CollectorRegistry(), Published(ha)
    guarded = wrapped(client, telemetry=Telemetry(registry=registry))
    assert await guarded.call("alice", CONFIG, ARGUMENTS) == "ha"
    assert await guarded.call(CONFIG, ARGUMENTS, user="alice") == "ha"
    assert await guarded.call_streaming("alice", CONFIG, ARGUMENTS, ignore) == "ha"
    granted = guarded._guards().bulkhead.guard.granted  # type: ignore[union-attr] # the default policy has a bulkhead
    for _ in range(20):
        with pytest.raises(RejectedError) as caught:
            await guarded.call("bob", CONFIG, ARGUMENTS)
        assert (caught.value.type, caught.value.rejected_by) == ("not-permitted", "permissions")
        with pytest.raises(RejectedError, match="a call without a user"):
            await guarded.call_streaming(CONFIG, ARGUMENTS, ignore)
    assert len(client.calls) == 3
    assert guarded._guards().bulkhead.guard.granted == granted  # type: ignore[union-attr] # likewise
    assert str(guarded.breaker.state) == "closed"
    read = registry.get_sample_value
    assert read("dispatch_rejections_total", {"tool": "work", "service": "work", "by": "permissions"}) == 40
    assert read("dispatch_calls_total", {"tool": "work", "service": "work", "outcome": "rejected"}) == 0
    assert read("dispatch_calls_total", {"tool": "work", "service": "work", "outcome": "refused"}) == 40
    assert read("dispatch_inflight_calls", {"tool": "work", "service": "work"}) == 0


async def test_without_grants_a_tool_with_permissions_is_refused_and_one_without_is_not() -> None:
    with pytest.raises(RejectedError, match="no grants"):
        await wrapped(Published(ha), grants=None).call("alice", CONFIG, ARGUMENTS)
    assert await wrapped(Published(ha), grants=None, permissions=()).call(CONFIG, ARGUMENTS) == "ha"


async def test_a_slow_callable_is_limited_by_the_timeout_of_the_call() -> None:
    async def ask(_user: str) -> list[str]:
        await asyncio.sleep(5)
        return ["*"]

    client = Published(ha)
    began = asyncio.get_running_loop().time()
    with pytest.raises(RejectedError) as caught:
        await wrapped(client, grants=ask).call("alice", CONFIG, ARGUMENTS, timeout=0.25)
    assert caught.value.type == "permissions-unavailable"
    assert asyncio.get_running_loop().time() - began == pytest.approx(0.25)
    await asyncio.sleep(1)  # the request ends at its own limit
    assert not client.calls


def test_a_client_may_move_to_another_event_loop() -> None:
    asked: list[str] = []

    async def ask(user: str) -> list[str]:
        asked.append(user)
        return ["*"]

    guarded = wrapped(Published(ha), grants=ask)
    for _ in range(2):
        run(lambda: guarded.call("alice", CONFIG, ARGUMENTS))
    assert asked == ["alice"] * 2


def test_the_watch_of_a_file_ends_with_the_client(tmp_path: Path) -> None:
    file = tmp_path / "grants.json"
    file.write_text(json.dumps({"users": {"alice": ["*"]}}))
    former = set(threading.enumerate())

    def call() -> threading.Thread:
        guarded = wrapped(Published(ha), grants=Grants.load(file))
        assert set(threading.enumerate()) == former, "begins with the first call"
        run(lambda: guarded.call("alice", CONFIG, ARGUMENTS))
        (watch,) = (each for each in threading.enumerate() if each not in former and each.name == "dispatch-grants")
        assert watch.is_alive()
        return watch

    watch = call()
    gc.collect()
    watch.join(10)
    assert not watch.is_alive()


async def test_a_decision_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dispatch.audit")
    await wrapped(Published(ha)).call("alice", CONFIG, ARGUMENTS)
    assert caplog.messages == ["allowed: 'work' for user 'alice' (granted)"]


@pytest.mark.costly
@pytest.mark.parametrize("permissions", ["tools:jokes", ["tools:*"], [""], ["a b"]])
def test_invalid_permissions_are_refused(permissions: Any) -> None:
    with pytest.raises(ValueError, match="permission"):
        wrapped(Published(ha), permissions=permissions)
