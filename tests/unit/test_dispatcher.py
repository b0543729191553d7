"""A call's way, from a tool's name to its answer: what travels, and how it can end.
The caller's own mistakes: each is a clear error that names the fix, and nothing is sent.
A dispatcher's life: connecting, opening channels while calls wait, closing under calls, a broker that comes and goes.
Running a coroutine on the loop of another thread, which may stop at any time.
Streams through the dispatcher: in order, in time, and nothing left when a reader goes.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import dispatch
from dispatch import Catalog, CatalogError, Dispatcher, Outcome, Policy, RejectedError, ToolServiceClient
from dispatch.dispatcher import run_on_loop
from dispatch.errors import CallTimeoutError, InvalidArgumentsError, ThrottledError, ToolError, TransportError
from dispatch.messaging.wire import MAX_MESSAGE_BYTES, MAX_PROPERTY_BYTES, derive_key
from dispatch.protocol.frames import CHUNK_BYTES
from dispatch.transports.memory import MemoryTransport
from tests.helpers.clock import START, advance, idle
from tests.helpers.dispatcher_and_service import (
    BROKER,
    RESPONSES,
    UNGUARDED,
    Peer,
    Service,
    catalog,
    dispatching,
    read,
    serving,
    stand,
    tool_of,
    topics_of,
)
from tests.helpers.fakes import lost
from tests.helpers.internals import correlator_of
from tests.helpers.malformed_messages import MALFORMED_PAYLOADS

pytestmark = pytest.mark.usefixtures("strangers")


def now() -> float:
    return asyncio.get_running_loop().time()


# -- success --------------------------------------------------------------------------------------------------------
async def test_a_call_returns_the_answer() -> None:
    service = Service(lambda arguments: f"about {arguments.get('topic')}")
    async with stand(service) as (dispatcher, _):
        assert await dispatcher.call("work", {"topic": "cats"}, user="alice", timeout=5) == "about cats"
        assert await dispatcher.call("work") == "about None"
    # Without arguments and user: empty ones.
    assert service.requests == [({}, {"topic": "cats"}, "alice"), ({}, {}, "")]


async def test_a_result_tells_all_about_the_call() -> None:
    async with stand(lambda _: asyncio.sleep(2, "done"), instance="one") as (dispatcher, _):
        result = await dispatcher.execute("work")
        assert result.ok
        assert (result.tool, result.outcome, result.text, result.error) == ("work", Outcome.SUCCESS, "done", None)
        assert (result.attempts, result.chunks, result.instance) == (1, 1, "one")
        assert result.duration == pytest.approx(2, abs=0.01)
        assert result.request_id
        assert (await dispatcher.execute("work")).request_id != result.request_id


async def test_two_tools_share_a_service_with_their_own_config() -> None:
    tools = catalog(
        service={"config-params": [{"name": "collection", "required": True}]},
        customers={"collection": "c"},
        products={"collection": "p"},
    )
    service = Service(lambda _: "done")
    async with stand(service, tools) as (dispatcher, _):
        for tool in ("customers", "products", "customers"):
            await dispatcher.call(tool)
    assert [config for config, _, _ in service.requests] == [{"collection": c} for c in "cpc"]


async def test_a_streamed_answer_is_put_together() -> None:
    async with Peer.as_service() as peer, dispatching() as dispatcher:
        call = asyncio.create_task(dispatcher.execute("work"))
        _, properties = await peer.request()
        for text, end in (("Once", False), (" upon", False), ("", True)):
            await peer.answer(properties, text, end=end)
        result = await call
        assert (result.text, result.chunks) == ("Once upon", 3)


async def test_a_service_that_knows_nothing_of_reply_topics_is_understood() -> None:
    async with Peer.as_service() as peer, dispatching() as dispatcher:
        call = asyncio.create_task(dispatcher.call("work"))
        _, properties = await peer.request()
        await peer.answer(properties, "done", topic=RESPONSES)
        assert await call == "done"


# -- the wire -------------------------------------------------------------------------------------------------------
async def sent(dispatching_: Any = None, **options: Any) -> dict[str, str]:
    """The properties of one request."""
    async with Peer.as_service() as peer, dispatching(**(dispatching_ or {})) as dispatcher:
        call = asyncio.create_task(dispatcher.call("work", **options))
        _, properties = await peer.request()
        await peer.answer(properties, "done")
        await call
        return properties


async def test_a_request_has_just_these_properties() -> None:
    properties = await sent({"client_id": "one"})
    assert properties.keys() == {"id", "reply-to", "session", "remaining-ms", "largest"}
    key = derive_key(properties["session"])
    assert properties["reply-to"] == f"non-persistent://tg/response/dispatch-reply-{key}-one"
    assert properties["id"].startswith(f"{key}.1-")


async def test_an_idempotency_key_travels() -> None:
    assert (await sent(idempotency_key="order-17"))["idempotency-key"] == "order-17"


@pytest.mark.parametrize(
    ("options", "policy", "remaining"),
    [
        ({}, {}, 30_000),
        ({"timeout": 5}, {}, 5_000),
        ({"timeout": 0.25}, {}, 250),
        ({"timeout": 0.0001}, {}, 1),
        ({}, {"timeout": 7}, 7_000),
        ({"timeout": 5}, {"timeout": 7}, 5_000),
        ({}, {"timeout": 7, "attempt-timeout": 2}, 2_000),
        ({"timeout": 1}, {"timeout": 7, "attempt-timeout": 2}, 1_000),
    ],
)
async def test_the_time_left_travels(options: dict[str, Any], policy: dict[str, Any], remaining: int) -> None:
    properties = await sent({"tools": catalog(work={"policy": policy})}, **options)
    assert int(properties["remaining-ms"]) in (remaining, remaining - 1)


async def test_a_payload_is_what_trustgraph_reads() -> None:
    async with Peer.as_service() as peer, dispatching() as dispatcher:
        call = asyncio.create_task(dispatcher.call("work", {"städte": ["Köln", 2.5, None, True]}, user="älice"))
        message = await peer.arrived.get()
        arguments = r'"{\"städte\":[\"Köln\",2.5,null,true]}"'
        assert message.data() == f'{{"user":"älice","config":"{{}}","arguments":{arguments}}}'.encode()
        await peer.answer(message.properties())
        await call


# -- time -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "policy", "after", "clock"),
    [
        ({}, {}, 30, "call"),
        ({"timeout": 5}, {}, 5, "call"),
        ({}, {"timeout": 7}, 7, "call"),
        ({}, {"timeout": 7, "attempt-timeout": 2}, 2, "attempt"),
        ({"timeout": 1}, {"timeout": 7, "attempt-timeout": 2}, 1, "call"),
    ],
)
async def test_a_call_that_nobody_answers_ends_to_the_moment_and_names_its_clock(
    options: dict[str, Any], policy: dict[str, Any], after: float, clock: str
) -> None:
    async with Peer.as_service(), dispatching(catalog(work={"policy": policy})) as dispatcher:
        result = await dispatcher.execute("work", **options)
        error = result.error
        assert isinstance(error, CallTimeoutError)
        assert (error.limit_name, error.retryable, result.outcome) == (clock, False, Outcome.TIMEOUT)
        assert f"within {after} s" in error.message
        assert "Check its effect before you call it again" in error.message
        assert now() == pytest.approx(START + after, abs=0.01)
        assert result.duration == pytest.approx(after, abs=0.01)
        assert dispatcher.pending_requests == 0


@pytest.mark.parametrize("declared", ["read-only", "idempotent"])
async def test_a_timeout_of_a_tool_that_may_be_repeated_says_so(declared: str) -> None:
    async with Peer.as_service(), dispatching(catalog(work={declared: True})) as dispatcher:
        with pytest.raises(CallTimeoutError) as caught:
            await dispatcher.call("work")
        assert caught.value.retryable
        assert "a repeat does no harm" in caught.value.message


async def test_an_answer_after_the_timeout_is_nobodys() -> None:
    async with Peer.as_service() as peer, dispatching() as dispatcher:
        first = asyncio.create_task(dispatcher.execute("work", timeout=1))
        _, properties = await peer.request()
        assert (await first).outcome is Outcome.TIMEOUT
        second = asyncio.create_task(dispatcher.call("work"))
        _, later = await peer.request()
        await peer.answer(properties, "for the first")
        await peer.answer(later, "for the second")
        assert await second == "for the second"
        assert dispatcher.reply_counts()["late"] == 1


async def test_policies_go_from_default_to_service_to_tool_to_call() -> None:
    tools = catalog(service={"policy": {"timeout": 8}}, plain={}, quick={"policy": {"timeout": 4}})
    async with Peer.as_service(), dispatching(tools, policy=Policy(timeout=16, stream_idle_timeout=2)) as dispatcher:
        for tool, options, seconds in (("plain", {}, 8), ("quick", {}, 4), ("quick", {"timeout": 2}, 2)):
            assert (await dispatcher.execute(tool, **options)).duration == pytest.approx(seconds, abs=0.01)


async def test_what_is_cancelled_raises_that_and_leaves_nothing() -> None:
    async with Peer.as_service() as peer, dispatching() as dispatcher:
        calls = [asyncio.create_task(dispatcher.execute("work")) for _ in range(20)]
        await advance(1)
        assert dispatcher.pending_requests == 20
        for call in calls:
            call.cancel()
        assert all(isinstance(r, asyncio.CancelledError) for r in await asyncio.gather(*calls, return_exceptions=True))
        assert dispatcher.pending_requests == 0
        _, properties = await peer.request()
        await peer.answer(properties, "too late")
        await idle()
        assert dispatcher.reply_counts()["late"] == 1


# -- strange services -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("payload", MALFORMED_PAYLOADS)
async def test_rubbish_for_an_answer_is_a_typed_error_at_once(payload: bytes) -> None:
    async with Peer.as_service() as peer, dispatching() as dispatcher:
        call = asyncio.create_task(dispatcher.execute("work"))
        _, properties = await peer.request()
        await peer.answer(properties, payload=payload)
        result = await call
        error = result.error
        assert isinstance(error, TransportError)
        assert (error.type, error.may_have_run, error.retryable) == ("malformed-reply", True, False)
        assert "no valid reply" in error.message
        assert "Check its effect before you call it again" in error.message
        assert result.attempts == 1
        assert now() == START, "not a timeout"
        assert dispatcher.pending_requests == 0


async def test_rubbish_in_a_stream_is_a_typed_error_at_once() -> None:
    async with Peer.as_service() as peer, dispatching() as dispatcher:
        chunks = dispatcher.stream("work")
        first = asyncio.create_task(anext(chunks))
        _, properties = await peer.request()
        await peer.answer(properties, "fine", end=False)
        assert await first == "fine"
        await peer.answer(properties, payload=b"<html>")
        with pytest.raises(TransportError, match="no valid reply"):
            await anext(chunks)
        assert now() == START


async def test_an_error_in_any_dialect_keeps_its_type_and_message() -> None:
    answers = {
        b'{"error": {"type": "Odd", "message": "no"}, "response": ""}': ("Odd", "no"),
        b'{"error": "it broke"}': ("tool-error", "it broke"),
        b'{"error": {"message": "no type"}, "later-field": 1}': ("tool-error", "no type"),
    }
    async with Peer.as_service() as peer, dispatching() as dispatcher:
        for payload, expected in answers.items():
            call = asyncio.create_task(dispatcher.execute("work"))
            _, properties = await peer.request()
            await peer.answer(properties, payload=payload)
            error = (await call).error
            assert isinstance(error, ToolError)
            assert (error.type, error.message) == expected


async def test_an_answer_larger_than_the_policy_allows_is_cut_off() -> None:
    async with stand(lambda _: "x" * 100, catalog(work={"policy": {"max-response-bytes": 99}})) as (dispatcher, _):
        with pytest.raises(TransportError, match="'max-response-bytes'") as caught:
            await dispatcher.call("work")
        assert caught.value.type == "response-limit-exceeded"


# -- many -----------------------------------------------------------------------------------------------------------
async def test_sixteen_dispatchers_on_one_service_each_see_their_own_replies_only() -> None:
    async def scene(number: int) -> None:
        async with dispatching(client_id=f"d{number}") as dispatcher:
            await all_ready.wait()
            answers = await asyncio.gather(*(dispatcher.call("work", {"n": [number, n]}) for n in range(25)))
            assert answers == [f"[{number}, {n}]" for n in range(25)]
            await all_done.wait()
            replies = dispatcher.reply_counts()
            assert replies["matched"] == sum(replies.values()) == 25, "nobody else's reply came here"

    all_ready, all_done = asyncio.Barrier(16), asyncio.Barrier(16)
    async with stand(lambda arguments: arguments["n"]):
        await asyncio.gather(*(scene(number) for number in range(16)))


async def mistake(*args: Any, **options: Any) -> InvalidArgumentsError:
    """The error of a call that must not reach its service; as a value, raised, and of a stream."""
    async with Peer.as_service() as peer, dispatching() as dispatcher:
        result = await dispatcher.execute("work", *args, **options)
        error = result.error
        assert isinstance(error, InvalidArgumentsError)
        assert (result.outcome, result.attempts, result.request_id) == (Outcome.INVALID_ARGUMENTS, 0, "")
        assert not error.retryable
        with pytest.raises(InvalidArgumentsError) as caught:
            await dispatcher.call("work", *args, **options)
        assert caught.value.message == error.message
        with pytest.raises(InvalidArgumentsError) as caught:
            async for _ in dispatcher.stream("work", *args, **options):
                pass
        assert caught.value.message == error.message
        await idle()
        assert peer.arrived.empty()
        assert now() == START
        return error


@pytest.mark.parametrize("arguments", [None, "topic=cats", ["cats"], 5, {1: 2}, {"a": object()}, {"a": math.nan}])
async def test_arguments_that_are_no_object_of_json_values(arguments: Any) -> None:
    error = await mistake(arguments)
    assert error.type == "invalid-arguments"
    assert error.message.startswith("Tool 'work' was not executed: arguments ")
    assert "Tool 'work' was not executed: " in error.message


async def test_a_payload_over_the_brokers_limit_without_an_instance_that_accepts_fragments() -> None:
    async with Peer.as_service() as peer, dispatching() as dispatcher:
        result = await dispatcher.execute("work", {"data": "x" * MAX_MESSAGE_BYTES})
        error = result.error
        assert isinstance(error, InvalidArgumentsError)
        assert (error.type, error.retryable, result.request_id) == ("request-too-large", False, "")
        assert f"the limit is {MAX_MESSAGE_BYTES:,}" in error.message
        assert "Send less" in error.message
        assert peer.arrived.empty()


async def test_a_payload_of_just_the_limit_passes() -> None:
    service = Service(lambda arguments: str(len(arguments["data"])))
    room = MAX_MESSAGE_BYTES - len('{"user":"","config":"{}","arguments":"{\\"data\\":\\"\\"}"}')
    async with stand(service, policy=Policy(max_request_bytes=MAX_MESSAGE_BYTES)) as (dispatcher, _):
        assert await dispatcher.call("work", {"data": "x" * room}) == str(room)
        with pytest.raises(InvalidArgumentsError):
            await dispatcher.call("work", {"data": "x" * (room + 1)})


@pytest.mark.parametrize("timeout", [0, -1, math.nan, math.inf, "5", True, 10**400, 8 * 24 * 3600, [5]])
async def test_a_timeout_that_cannot_be(timeout: Any) -> None:
    error = await mistake(timeout=timeout)
    assert error.type == "invalid-timeout"
    assert "Give seconds" in error.message


@pytest.mark.parametrize("user", [None, 5, ["alice"], "\ud800"])
async def test_a_user_that_is_no_text(user: Any) -> None:
    assert (await mistake(user=user)).type == "invalid-arguments"


@pytest.mark.parametrize("key", [5, b"key", "x" * (MAX_PROPERTY_BYTES + 1), "ü" * MAX_PROPERTY_BYTES, "\ud800"])
async def test_an_idempotency_key_that_cannot_travel(key: Any) -> None:
    assert (await mistake(idempotency_key=key)).type == "invalid-arguments"


async def test_an_unknown_tool_is_told_with_its_near_names() -> None:
    tools = catalog(**{"tell-joke": {}, "tell-story": {}, "calculate": {}})
    async with Peer.as_service() as peer, dispatching(tools) as dispatcher:
        result = await dispatcher.execute("tell_jokes")
        error = result.error
        assert isinstance(error, RejectedError)
        assert (result.tool, result.outcome, result.attempts) == ("tell_jokes", Outcome.REJECTED, 0)
        assert (error.type, error.rejected_by, error.retryable) == ("unknown-tool", "catalog", False)
        assert error.alternatives[0] == "tell-joke"
        assert "calculate" not in error.alternatives
        assert "tell-joke" in error.message
        for attempt in (dispatcher.call("tell_jokes"), anext(dispatcher.stream("tell_jokes"))):
            with pytest.raises(RejectedError, match="tell-joke"):
                await attempt
        with pytest.raises(RejectedError, match="tell-joke"):
            dispatcher.tool("tell_jokes")
        assert peer.arrived.empty()


async def test_an_unknown_service_is_told_with_its_near_names() -> None:
    async with dispatching() as dispatcher:
        with pytest.raises(RejectedError, match="lab") as caught:
            ToolServiceClient(dispatcher, service="labs")
        assert (caught.value.type, caught.value.alternatives) == ("unknown-service", ("lab",))


EXAMPLES = Path(__file__).parents[2] / "examples" / "tools"


class SlowTransport(MemoryTransport):
    """Opens topics only when it is let; fails first, if told to."""

    def __init__(self) -> None:
        super().__init__(BROKER)
        self.gate = asyncio.Event()
        self.failures: list[Exception] = []
        self.subscribed: list[str] = []
        self.published: list[str] = []

    async def subscribe(self, topic: str, *args: Any, **options: Any) -> Any:
        await self.gate.wait()
        self.subscribed.append(topic)
        if self.failures:
            raise self.failures.pop()
        return await super().subscribe(topic, *args, **options)

    async def publisher(self, topic: str) -> Any:
        await self.gate.wait()
        self.published.append(topic)
        return await super().publisher(topic)


# -- connecting -----------------------------------------------------------------------------------------------------
def test_connect_is_the_dispatcher_with_an_address_or_a_transport() -> None:
    assert dispatch.connect is Dispatcher
    assert type(Dispatcher("memory://")._transport) is MemoryTransport
    transport = MemoryTransport(BROKER)
    assert Dispatcher(transport)._transport is transport


@pytest.mark.parametrize("options", [{"security": dispatch.Security(token="t")}, {"publish_window": 8}])
def test_settings_of_a_connection_beside_a_transport_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(
        TypeError, match=r"^security and publish_window belong to an address; give them to the transport"
    ):
        Dispatcher(MemoryTransport(BROKER), **options)


async def test_connect_takes_a_folder_a_catalogue_or_nothing() -> None:
    assert "tell-joke" in dispatch.connect("memory://", catalog=EXAMPLES).catalog.tools
    assert "tell-joke" in dispatch.connect("memory://", str(EXAMPLES)).catalog.tools
    tools = catalog()
    assert dispatch.connect("memory://", tools).catalog == tools
    assert dispatch.connect("memory://").catalog == Catalog.empty()


async def test_connect_tells_at_once_what_is_wrong_with_its_arguments(tmp_path: Path) -> None:
    (tmp_path / "tool").mkdir()
    (tmp_path / "tool" / "odd.json").write_text("{")
    with pytest.raises(CatalogError, match=r"odd\.json"):
        dispatch.connect("memory://", tmp_path)
    with pytest.raises(TransportError, match="pulsar://"):
        dispatch.connect("carrier-pigeon://coop")


async def test_a_call_before_the_start_says_how_to_start() -> None:
    dispatcher = dispatch.connect("memory://", catalog())
    with pytest.raises(RuntimeError, match="async with"):
        await dispatcher.call("work")
    with pytest.raises(RuntimeError, match="async with"):
        await anext(dispatcher.stream("work"))


@pytest.mark.parametrize("name", [["work"], {"work": 1}, {"work"}, None, 3])
async def test_a_name_that_is_no_text_is_named(name: Any) -> None:
    """A list has no hash: its lookup would end with Python's own text."""
    async with stand(Service(lambda _: "done")) as (dispatcher, _):

        async def stream() -> None:
            async with contextlib.aclosing(dispatcher.stream(name)) as chunks:
                await anext(chunks)

        catalog, registry = dispatcher.catalog, dispatcher.registry
        uses: dict[str, list[Callable[[], Any]]] = {
            "tool must be the name of a tool, such as 'tell-joke'": [
                lambda: dispatcher.call(name),
                lambda: dispatcher.call(name, version="^1"),
                lambda: dispatcher.call(name, user=name),
                lambda: dispatcher.execute(name),
                lambda: dispatcher.execute(name, version="^1"),
                stream,
                lambda: dispatcher.tool(name),
                lambda: dispatcher.tool(name, version="^1"),
                lambda: dispatcher.breaker(name),
                lambda: registry.get(name),
                lambda: catalog.tool(name),
                lambda: catalog.versions(name),
                lambda: catalog.service_of(name),
                lambda: catalog.source_of(name),
            ],
            "service must be the id of a service, such as 'joke-service'": [
                lambda: dispatcher.instances(name),
                lambda: ToolServiceClient(dispatcher, service=name),
                lambda: catalog.service(name),
                lambda: catalog.service_versions(name),
            ],
            "id must be the id of a source, such as 'tools'": [
                lambda: registry.source(name),
                lambda: registry.refresh(name),
                lambda: registry.remove_source(name),
            ],
            "name must be the name of a tool, such as 'tell-joke'": [lambda: registry.approve(name, "f")],
            "user must be the name of a user, or an empty text": [
                lambda: dispatcher.tools(user=name),
                lambda: dispatcher.tool("work", user=name),
                lambda: dispatcher.find("work", user=name),
            ],
        }
        for problem, group in uses.items():
            for number, use in enumerate(group):
                text = ""
                try:
                    found = use()
                    if asyncio.iscoroutine(found):
                        await found
                except TypeError as error:
                    text = str(error)
                assert text.startswith(problem), (problem, number)
        with pytest.raises(CatalogError, match="is not a kind"):
            await registry.put(name, {"name": "other"})
        with pytest.raises(LookupError, match="was not put"):
            await registry.remove("tool", name)
        with pytest.raises(RejectedError, match="no tool 'gone'"):
            await dispatcher.call("gone", user=name)


async def test_starting_twice_is_a_mistake() -> None:
    async with dispatching() as dispatcher:
        with pytest.raises(RuntimeError, match="started already"):
            await dispatcher.start()
        for listen in (dispatcher.on_event, dispatcher.on_call):
            with pytest.raises(TypeError, match="must be a function, not a str"):
                listen("print")  # type: ignore[operator]
        with pytest.raises(TypeError, match="drain must be a number of seconds, not a str"):
            await dispatcher.close(drain="x")  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="was closed; connect a new one"):
        await dispatcher.start()


async def test_a_start_that_fails_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    transport = MemoryTransport(BROKER)
    closed: list[bool] = []

    async def start() -> None:
        raise lost(sent=False)

    async def close() -> None:
        closed.append(True)

    monkeypatch.setattr(transport, "start", start)
    monkeypatch.setattr(transport, "close", close)
    with pytest.raises(TransportError):
        async with Dispatcher(transport, catalog()):
            pass
    assert closed == [True]


async def test_closing_is_idempotent_and_allowed_before_the_start() -> None:
    dispatcher = dispatch.connect("memory://", catalog())
    await dispatcher.close()
    await dispatcher.start()
    await dispatcher.close()
    await dispatcher.close()


async def test_dispatchers_have_names_of_their_own() -> None:
    names = {dispatch.connect("memory://").client_id for _ in range(100)}
    assert len(names) == 100
    assert dispatch.connect("memory://", client_id="mine").client_id == "mine"


# -- channels ---------------------------------------------------------------------------------------------------------
async def test_calls_that_come_together_open_their_route_once_and_nothing_leaves_before_both_ends_listen() -> None:
    transport = SlowTransport()
    async with serving(lambda _: "done") as server, dispatching(transport=transport, client_id="one") as dispatcher:
        calls = [asyncio.create_task(dispatcher.call("work")) for _ in range(20)]
        await idle()
        assert dispatcher.pending_requests == 0
        transport.gate.set()
        assert await asyncio.gather(*calls) == ["done"] * 20
        assert await dispatcher.call("work") == "done"
        assert transport.subscribed == [
            "non-persistent://tg/response/lab",
            f"non-persistent://tg/response/dispatch-reply-{correlator_of(dispatcher).identity.key}-one",
            "non-persistent://tg/response/dispatch-announce-lab",
        ]
        own = f"non-persistent://tg/request/dispatch-instance-3-lab-{server.instance}"
        hello = "non-persistent://tg/request/dispatch-hello-lab"
        assert transport.published == ["non-persistent://tg/request/lab", hello, own]


async def test_instances_of_two_services_may_have_the_same_name() -> None:
    services = [{"id": name, **topics_of(name)} for name in ("lab", "other")]
    both = Catalog.of(services, [tool_of("lab", "work"), tool_of("other", "play")])
    async with (
        serving(lambda _: "worked", instance="one"),
        serving(lambda _: "played", at=topics_of("other"), instance="one"),
        dispatching(both) as dispatcher,
    ):
        for _ in range(5):
            assert await dispatcher.call("work") == "worked"
            assert await dispatcher.call("play") == "played"


async def test_services_of_one_namespace_share_the_reply_topic() -> None:
    tools = Catalog.of([{"id": id, **topics_of(id)} for id in "ab"], [tool_of(id, f"use-{id}") for id in "ab"])
    transport = SlowTransport()
    transport.gate.set()
    a, b = (Peer.as_service(topics_of(id)["request-queue"]) for id in "ab")
    async with a, b, dispatching(tools, transport=transport, client_id="one") as dispatcher:
        results = await asyncio.gather(*(dispatcher.execute(f"use-{id}", timeout=1) for id in "ab"))
        assert [result.outcome for result in results] == [Outcome.TIMEOUT] * 2
        assert sorted(transport.subscribed) == [
            "non-persistent://tg/response/a",
            "non-persistent://tg/response/b",
            "non-persistent://tg/response/dispatch-announce-a",
            "non-persistent://tg/response/dispatch-announce-b",
            f"non-persistent://tg/response/dispatch-reply-{correlator_of(dispatcher).identity.key}-one",
        ]


async def test_a_caller_that_leaves_takes_nothing_from_those_who_wait_with_it() -> None:
    transport = SlowTransport()
    async with serving(lambda _: "done"), dispatching(transport=transport) as dispatcher:
        first, second = (asyncio.create_task(dispatcher.call("work")) for _ in range(2))
        await idle()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        transport.gate.set()
        assert await second == "done"


async def test_a_route_that_does_not_open_costs_the_calls_time_and_no_more() -> None:
    transport = SlowTransport()
    async with serving(lambda _: "done"), dispatching(transport=transport) as dispatcher:
        result = await dispatcher.execute("work", timeout=5)
        error = result.error
        assert isinstance(error, TransportError)
        assert (error.type, error.may_have_run, error.retryable, result.attempts) == ("unreachable", False, True, 0)
        assert "not executed" in error.message
        assert result.duration == pytest.approx(5, abs=0.01)
        with pytest.raises(TransportError, match="not executed"):
            await anext(dispatcher.stream("work", timeout=5))
        transport.gate.set()
        assert await dispatcher.call("work", timeout=5) == "done", "what was being opened is used"


async def test_an_opening_that_fails_after_everybody_left_troubles_nobody() -> None:
    transport = SlowTransport()
    transport.failures = [lost(sent=False)]
    async with serving(lambda _: "done"), dispatching(transport=transport) as dispatcher:
        assert (await dispatcher.execute("work", timeout=5)).outcome is Outcome.TRANSPORT
        transport.gate.set()
        await idle()  # an exception that nobody looks at would fail the test
        assert await dispatcher.call("work") == "done"


@pytest.mark.parametrize("failure", [lost(sent=False), RuntimeError("not planned")])
async def test_a_route_that_could_not_be_opened_is_opened_by_the_next_call(failure: Exception) -> None:
    transport = SlowTransport()
    transport.gate.set()
    transport.failures = [failure]
    async with serving(lambda _: "done"), dispatching(transport=transport, policy=Policy(**UNGUARDED)) as dispatcher:
        if isinstance(failure, TransportError):
            results = await asyncio.gather(*(dispatcher.execute("work") for _ in range(3)))
            assert [result.error for result in results] == [failure] * 3
        else:
            with pytest.raises(RuntimeError, match="not planned"):
                await dispatcher.execute("work")
        assert await dispatcher.call("work") == "done"


# -- closing --------------------------------------------------------------------------------------------------------
async def test_closing_ends_calls_and_streams_with_a_typed_error() -> None:
    async with Peer.as_service():
        async with dispatching() as dispatcher:
            calls = [asyncio.create_task(dispatcher.execute("work")) for _ in range(3)]
            chunk = asyncio.ensure_future(anext(dispatcher.stream("work")))
            await idle()
            assert dispatcher.pending_requests == 4
        for result in await asyncio.gather(*calls):
            error = result.error
            assert isinstance(error, TransportError)
            assert (error.type, error.retryable) == ("closed", False)
        with pytest.raises(TransportError, match="closed"):
            await chunk
        assert dispatcher.pending_requests == 0
        assert asyncio.get_running_loop().time() == START


async def test_closing_gives_back_what_was_opened_before_the_connection_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []

    async def publisher_closed(publisher: Any) -> None:
        log.append(publisher.topic)

    transport = MemoryTransport(BROKER)
    close = transport.close

    async def transport_closed() -> None:
        log.append("the connection")
        assert not transport._subscriptions
        await close()

    monkeypatch.setattr("dispatch.transports.memory.MemoryPublisher.close", publisher_closed)
    monkeypatch.setattr(transport, "close", transport_closed)
    async with dispatching(transport=transport) as dispatcher:
        await dispatcher.execute("work", timeout=1)
    assert log == [
        "non-persistent://tg/request/lab",
        "non-persistent://tg/request/dispatch-hello-lab",
        "the connection",
    ]


async def test_closing_while_a_route_opens_is_a_typed_error_and_not_a_cancellation() -> None:
    transport = SlowTransport()
    async with dispatching(transport=transport) as dispatcher:
        calls = [asyncio.create_task(dispatcher.execute("work")) for _ in range(3)]
        await idle()
        closing = asyncio.create_task(dispatcher.close())
        transport.gate.set()  # what is being subscribed is let go in order
        await closing
        for result in await asyncio.gather(*calls):
            error = result.error
            assert isinstance(error, TransportError)
            assert (error.type, error.may_have_run) == ("closed", False)


async def test_a_call_that_is_cancelled_while_its_route_opens_is_cancelled_even_if_that_closes_too() -> None:
    transport = SlowTransport()
    async with dispatching(transport=transport) as dispatcher:
        call = asyncio.create_task(dispatcher.execute("work"))
        await idle()
        transport.gate.set()
        call.cancel()
        await dispatcher.close()
        with pytest.raises(asyncio.CancelledError):
            await call


async def test_a_call_after_the_end_says_so() -> None:
    async with stand(lambda _: "done") as (dispatcher, _):
        assert await dispatcher.call("work") == "done"
        await dispatcher.close()
        error = (await dispatcher.execute("work")).error
        assert isinstance(error, TransportError)
        assert (error.type, error.may_have_run) == ("closed", False)


async def test_a_publisher_that_refuses_is_a_typed_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Peer.as_service(), dispatching() as dispatcher:
        with pytest.raises(CallTimeoutError):
            await dispatcher.call("work", timeout=1)

        def refuse(*_args: Any, **_options: Any) -> Any:
            raise TransportError(
                "publish-queue-full", "10,000 messages wait already; slow down.", may_have_run=False, retry_after=1.0
            )

        monkeypatch.setattr("dispatch.transports.memory.MemoryPublisher.publish", refuse)
        result = await dispatcher.execute("work")
        error = result.error
        assert isinstance(error, TransportError)
        assert (error.type, error.retryable, error.retry_after) == ("publish-queue-full", True, 1.0)
        assert dispatcher.pending_requests == 0


async def test_a_service_that_comes_later_is_found() -> None:
    async with Peer.as_service(), dispatching() as dispatcher:
        with pytest.raises(CallTimeoutError):
            await dispatcher.call("work", timeout=1)
        async with serving(lambda _: "done"):
            assert await dispatcher.call("work", timeout=1) == "done"
        await advance(1)
        with pytest.raises(CallTimeoutError):
            await dispatcher.call("work", timeout=1)


async def test_a_call_that_begins_while_it_closes_ends_at_once() -> None:
    async with stand(lambda _arguments: "done") as (dispatcher, _):
        await dispatcher.call("work")
        beginning = asyncio.create_task(dispatcher.execute("work"))
        await dispatcher.close()
        result = await beginning
    assert (result.error.type, result.error.outcome) == ("closed", Outcome.TRANSPORT)
    assert result.duration < 1


class OtherLoop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self.loop.run_forever()
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()

    def __enter__(self) -> asyncio.AbstractEventLoop:
        self.thread.start()
        return self.loop

    def __exit__(self, *_exc: object) -> None:
        with contextlib.suppress(RuntimeError):  # closed
            self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)


@pytest.mark.wall_clock
async def test_the_coroutine_runs_on_the_other_loop() -> None:
    seen: list[asyncio.AbstractEventLoop] = []

    async def note() -> None:
        seen.append(asyncio.get_running_loop())

    with OtherLoop() as loop:
        assert await run_on_loop(loop, note)
        assert seen == [loop]


@pytest.mark.wall_clock
async def test_its_error_is_raised_here() -> None:
    async def fail() -> None:
        raise ValueError("broken")

    with OtherLoop() as loop, pytest.raises(ValueError, match="broken"):
        await run_on_loop(loop, fail)


@pytest.mark.wall_clock
async def test_a_loop_that_does_not_run_is_reported_and_nothing_is_begun() -> None:
    loop = asyncio.new_event_loop()
    begun: list[bool] = []

    async def note() -> None:
        begun.append(True)

    assert not await run_on_loop(loop, note)
    assert not begun
    loop.close()


@pytest.mark.wall_clock
async def test_a_loop_that_stops_meanwhile_is_reported() -> None:
    async def stop() -> None:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(3600)

    with OtherLoop() as loop:
        assert not await run_on_loop(loop, stop)


def story(count: int, gap: float = 0.0) -> Any:
    async def stream() -> AsyncIterator[str]:
        for index in range(count):
            if gap:
                await asyncio.sleep(gap)
            yield f"<{index}>"

    return lambda _: stream()


async def test_chunks_come_as_they_are_made() -> None:
    async with stand(story(5, gap=1)) as (dispatcher, _):
        seen = [(round(now() - START), chunk) async for chunk in dispatcher.stream("work")]
    assert seen == [(second + 1, f"<{second}>") for second in range(5)]


@pytest.mark.costly
async def test_a_long_stream_arrives_whole() -> None:
    async with stand(story(5_000)) as (dispatcher, _):
        assert [chunk async for chunk in dispatcher.stream("work")] == [f"<{n}>" for n in range(5_000)]


async def test_a_plain_answer_is_a_stream_of_one() -> None:
    async with stand(lambda _: "done") as (dispatcher, _):
        assert [chunk async for chunk in dispatcher.stream("work")] == ["done"]


async def test_a_stream_asked_for_as_a_call_is_put_together() -> None:
    async with stand(story(3)) as (dispatcher, _):
        assert await dispatcher.call("work") == "<0><1><2>"


async def test_the_time_left_travels_with_a_stream() -> None:
    for options, policy, remaining in (
        ({}, {}, 300_000),
        ({}, {"stream-timeout": 9}, 9_000),
        ({"timeout": 5}, {}, 5_000),
    ):
        async with Peer.as_service() as peer, dispatching(catalog(work={"policy": policy})) as dispatcher:
            chunks = dispatcher.stream("work", idempotency_key="k", **options)
            first = asyncio.create_task(anext(chunks))
            _, properties = await peer.request()
            assert properties.keys() == {"id", "reply-to", "session", "remaining-ms", "largest", "idempotency-key"}
            assert int(properties["remaining-ms"]) in (remaining, remaining - 1)
            await peer.answer(properties, "x", end=False)
            assert await first == "x"
            await chunks.aclose()


@pytest.mark.parametrize(
    ("options", "policy", "after", "clock"),
    [
        ({}, {}, 30, "stream-idle"),
        ({"idle_timeout": 5}, {}, 5, "stream-idle"),
        ({}, {"stream-idle-timeout": 7}, 7, "stream-idle"),
        ({"idle_timeout": 3}, {"stream-idle-timeout": 7}, 3, "stream-idle"),
        ({"timeout": 4}, {}, 4, "stream"),
        ({}, {"stream-timeout": 6}, 6, "stream"),
        ({"timeout": 2}, {"stream-timeout": 6}, 2, "stream"),
    ],
)
async def test_a_stream_that_says_nothing_ends_to_the_moment_and_names_its_clock(
    options: dict[str, Any], policy: dict[str, Any], after: float, clock: str
) -> None:
    async with Peer.as_service(), dispatching(catalog(work={"policy": policy})) as dispatcher:
        with pytest.raises(CallTimeoutError) as caught:
            await anext(dispatcher.stream("work", **options))
        assert caught.value.limit_name == clock
        assert f"{after} s" in caught.value.message
        assert now() == pytest.approx(START + after, abs=0.01)
        assert dispatcher.pending_requests == 0


async def test_a_stream_that_falls_silent_gives_what_came_and_says_how_much() -> None:
    async with Peer.as_service() as peer, dispatching() as dispatcher:
        chunks = dispatcher.stream("work", idle_timeout=5)
        first = asyncio.create_task(anext(chunks))
        _, properties = await peer.request()
        await advance(4)
        await peer.answer(properties, "one", end=False, chunk="0")
        await peer.answer(properties, "three", end=True, chunk="2")
        assert await first == "one"
        with pytest.raises(
            CallTimeoutError, match=r"brought nothing for 5 s after 1 chunk\(s\) \(chunk 1 was lost\)"
        ) as caught:
            await anext(chunks)
        assert caught.value.limit_name == "stream-idle"
        assert now() == pytest.approx(START + 9, abs=0.01)


async def test_a_stream_that_never_ends_is_ended() -> None:
    got: list[str] = []
    async with stand(story(1_000, gap=1)) as (dispatcher, server):
        with pytest.raises(CallTimeoutError, match=r"was not complete within 10\.5 s") as caught:
            await read(dispatcher.stream("work", timeout=10.5), got)
        assert caught.value.limit_name == "stream"
        assert got == [f"<{n}>" for n in range(10)]
        await idle()
        assert server.running == 0


@pytest.mark.parametrize("idle_timeout", [0, -1, "5"])
async def test_an_idle_limit_that_cannot_be_is_told_by_its_name(idle_timeout: Any) -> None:
    async with Peer.as_service() as peer, dispatching() as dispatcher:
        with pytest.raises(InvalidArgumentsError, match="idle-timeout") as caught:
            await anext(dispatcher.stream("work", idle_timeout=idle_timeout))
        assert caught.value.type == "invalid-timeout"
        assert peer.arrived.empty()


async def test_closing_a_stream_leaves_nothing_at_once() -> None:
    async with stand(story(100, gap=1)) as (dispatcher, _):
        async with contextlib.aclosing(dispatcher.stream("work")) as chunks:
            async for _ in chunks:
                break
            assert dispatcher.pending_requests == 1
        assert dispatcher.pending_requests == 0


async def test_leaving_the_loop_leaves_nothing() -> None:
    async with stand(story(100, gap=1)) as (dispatcher, _):
        async for _ in dispatcher.stream("work"):
            break
        await idle()
        assert dispatcher.pending_requests == 0


async def test_cancelling_a_reader_leaves_nothing() -> None:
    async with Peer.as_service(), dispatching() as dispatcher:
        reading = asyncio.create_task(read(dispatcher.stream("work"), []))
        await idle()
        assert dispatcher.pending_requests == 1
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert dispatcher.pending_requests == 0


async def test_a_stream_that_is_never_read_was_never_asked_for() -> None:
    async with Peer.as_service() as peer, dispatching() as dispatcher:
        await dispatcher.stream("work").aclose()
        assert peer.arrived.empty()
        assert dispatcher.pending_requests == 0


async def test_a_reader_that_falls_behind_gets_what_was_kept_and_then_a_clear_error() -> None:
    got: list[str] = []
    async with stand(story(50)) as (dispatcher, _):
        dispatcher._running.exchange._max_buffer = 10 * CHUNK_BYTES
        chunks = dispatcher.stream("work")
        got.append(await anext(chunks))
        await idle()
        with pytest.raises(TransportError, match="stream buffer") as caught:
            await read(chunks, got)
        assert caught.value.type == "response-limit-exceeded"
        assert got == [f"<{n}>" for n in range(len(got))]
        assert len(got) >= 11


async def test_an_error_is_raised_after_what_came_before_it() -> None:
    async def stream() -> AsyncIterator[str]:
        yield "one"
        raise ToolError("no-more", "That is all.")

    got: list[str] = []
    async with stand(lambda _: stream()) as (dispatcher, _):
        with pytest.raises(ToolError, match="That is all") as caught:
            await read(dispatcher.stream("work"), got)
        assert caught.value.type == "no-more"
        assert got == ["one"]


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_dispatcher_that_is_dropped_without_close_says_so(is_closed: bool, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        dispatcher = dispatch.connect("memory://", catalog=[])
        await dispatcher.start()
        if is_closed:
            await dispatcher.close()

    asyncio.run(run())
    gc.collect()
    assert ("dropped without close(), and its tasks with it. Fix: use 'async with" in caplog.text) is not is_closed


async def test_a_refusal_is_raised_as_one() -> None:
    async with Peer.as_service() as peer, dispatching(policy=Policy(**UNGUARDED)) as dispatcher:
        first = asyncio.ensure_future(anext(dispatcher.stream("work")))
        _, properties = await peer.request()
        await peer.answer(properties, error=("overloaded", "full"), refused="overloaded", retry_after_ms="2000")
        with pytest.raises(ThrottledError) as caught:
            await first
        assert caught.value.retry_after == 2.0


async def test_many_streams_at_once_do_not_mix() -> None:
    async def all_of(dispatcher: Any, number: int) -> list[str]:
        return [chunk async for chunk in dispatcher.stream("work", {"n": number})]

    def work(arguments: dict[str, Any]) -> AsyncIterator[str]:
        async def stream() -> AsyncIterator[str]:
            for index in range(10):
                await asyncio.sleep(index % 3)
                yield f"{arguments['n']}:{index}"

        return stream()

    async with stand(work) as (dispatcher, _):
        answers = await asyncio.gather(*(all_of(dispatcher, number) for number in range(50)))
    assert answers == [[f"{number}:{index}" for index in range(10)] for number in range(50)]
