"""TrustGraph's face over our path: both dialects, and every call that is neither.
Announced tools in TrustGraph's configuration, on the embedded broker.
The broker as sources see it: correlation, repetition, failures and the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

import dispatch
from dispatch import RejectedError, ToolServiceClient
from dispatch.errors import CallTimeoutError, InvalidArgumentsError, ToolError, TransportError
from dispatch.messaging.wire import MAX_MESSAGE_BYTES
from dispatch.server import ToolServer
from dispatch.transports import Message, Mode
from dispatch.transports.memory import MemoryTransport
from dispatch.trustgraph.client import DEFAULT_TIMEOUT_S
from dispatch.trustgraph.config import ConfigBroker
from dispatch.trustgraph.mirror import Mirror
from tests.helpers.announcing import service, tool
from tests.helpers.clock import START, idle
from tests.helpers.config_service import ConfigService, ConfigStore, config_service
from tests.helpers.dispatcher_and_service import Peer, Service, dispatching, stand
from tests.helpers.followed_config import URL

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
        assert asyncio.get_running_loop().time() == pytest.approx(START + seconds, abs=0.01)


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
        for call in (
            client_of(dispatcher).call(config, arguments),
            client_of(dispatcher).call_streaming(config, arguments, print),
        ):
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
        assert asyncio.get_running_loop().time() == pytest.approx(START + 2.5, abs=0.01)
        await idle()
        assert dispatcher.pending_requests == 0


async def test_a_silence_may_last_as_long_as_the_limit() -> None:
    async def slow(_: Any) -> str:
        await asyncio.sleep(500)
        return "done"

    async with stand(slow) as (dispatcher, _):
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
    async with (
        configuration() as (store, _),
        mirroring(store),
        serving("shop", descriptor={"version": "1.10.0"}),
        ToolServer(
            Echo(),
            URL,
            request_queue="request:tg:old",
            response_queue="response:tg:old",
            tools=[tool()],
            descriptor={"id": "shop", "version": "1.9.0"},
        ),
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
        loop = asyncio.get_running_loop()
        started = loop.time()
        await broker.request(REQUEST, RESPONSE, b"", timeout=5, resend_after=1)
        assert loop.time() - started == pytest.approx(3, abs=0.01)  # after 1 s, and 2 s later
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
        waiting = asyncio.create_task(broker.request(REQUEST, RESPONSE, b"", timeout=5))
        await idle()
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
