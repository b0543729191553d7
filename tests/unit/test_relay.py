"""``dispatch.relay`` on the embedded broker: which tool, which user, which answer; what it refuses."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import REGISTRY

from dispatch import CallResult, Catalog, CatalogError, Outcome, ToolError, TransportError
from dispatch.catalog import Item
from dispatch.cli.base import Settings
from dispatch.cli.relay import _reload, notify_systemd
from dispatch.messaging.wire import Property
from dispatch.relay import MAX_RETRY_S, McpToolConfig, Relay, RelayConfig, RelayError
from dispatch.routing.instance import DISCOVERY_S, GONE_S
from dispatch.transports import Message
from dispatch.transports.memory import MemoryTransport
from tests.helpers.clock import idle
from tests.helpers.config_service import ConfigStore, config_service
from tests.helpers.dispatcher_and_service import BROKER, REQUESTS, RESPONSES, UNGUARDED, Peer, Service, serving
from tests.helpers.internals import transport_of

INSTANCE, ANSWERS = f"{REQUESTS}-1", f"{RESPONSES}-1"
"""Topics of the one instance."""


def service(**keys: Any) -> dict[str, Any]:
    instance = {"id": "lab-1", "request-queue": INSTANCE, "response-queue": ANSWERS}
    return {
        "id": "lab",
        "request-queue": REQUESTS,
        "response-queue": RESPONSES,
        "config-params": [{"name": "style"}],
        "instances": [instance],
        "policy": UNGUARDED,
        **keys,
    }


def tool(name: str, **keys: Any) -> dict[str, Any]:
    return {"type": "tool-service", "name": name, "description": name, "service": "lab", **keys}


def catalog(*tools: Mapping[str, Any], **keys: Any) -> Catalog:
    return Catalog.of([service(**keys)], tools or [tool("pun", style="pun"), tool("dry", style="dry")])


def lab(handler: Any) -> contextlib.AbstractAsyncContextManager[object]:
    """The one instance."""
    return serving(handler, request_queue=INSTANCE, response_queue=ANSWERS)


@contextlib.asynccontextmanager
async def relaying(tools: Catalog | None = None, **config: Any) -> AsyncIterator[Relay]:
    async with Relay(RelayConfig(broker=BROKER, **config), tools or catalog()) as relay:
        yield relay


def request(config: object = None, arguments: object = None, **more: Any) -> bytes:
    """A request as TrustGraph's client writes it."""
    return json.dumps({"config": json.dumps(config or {}), "arguments": json.dumps(arguments or {}), **more}).encode()


async def answer_of(caller: Peer) -> tuple[str, dict[str, Any]]:
    """The id and the body of the next reply."""
    message: Message = await caller.arrived.get()
    return message.properties()[Property.ID], json.loads(message.data())


def reply(text: str) -> dict[str, Any]:
    """The body of a whole reply."""
    return {"error": None, "response": text, "end_of_stream": True}


async def ask(caller: Peer, payload: bytes, **properties: str) -> dict[str, Any]:
    await caller.ask(payload, id="7", **properties)
    id, body = await answer_of(caller)
    assert id == "7"
    return body


@pytest.mark.parametrize(
    ("config", "label"),
    [
        ({"style": "pun"}, "pun"),
        ({"style": "dry"}, "dry"),
        ({"style": "limerick"}, "service:lab"),
        ({}, "service:lab"),
        ({"style": 1}, "one"),
        ({"style": 1.0}, "service:lab"),
        ({"style": True}, "service:lab"),
        ({"style": {"a": [1], "b": 2}}, "nested"),
        ({"style": "twice"}, "service:lab"),
    ],
    ids=str,
)
async def test_the_tool_is_the_one_with_the_same_config(config: dict[str, Any], label: str) -> None:
    tools = catalog(
        tool("pun", style="pun"),
        tool("dry", style="dry"),
        tool("one", style=1),
        tool("nested", style={"b": 2, "a": [1]}),
        tool("twice", style="twice"),
        tool("twice-again", style="twice"),
    )
    done = Service(lambda _: "done")
    labels = []
    async with lab(done), relaying(tools) as relay, Peer.as_caller() as caller:
        forward = relay.forward

        async def record(tool: Any, *others: Any) -> Any:
            labels.append(tool.meter_label)
            return await forward(tool, *others)

        relay.forward = record  # type: ignore[method-assign] # to see what it identified
        assert await ask(caller, request(config, {"n": 1})) == reply("done")
    assert labels == [label]
    assert done.requests == [(config, {"n": 1}, "default-user")]


@pytest.mark.parametrize(
    ("payload", "properties", "user"),
    [({"user": "ada"}, {"user": "bob"}, "ada"), ({}, {"user": "bob"}, "bob"), ({}, {}, "default-user")],
)
async def test_the_user_is_that_of_the_payload_else_of_the_property(
    payload: dict[str, str], properties: dict[str, str], user: str
) -> None:
    done = Service(lambda _: "done")
    async with lab(done), relaying(), Peer.as_caller() as caller:
        await ask(caller, request({"style": "pun"}, **payload), **properties)
    assert [user for _, _, user in done.requests] == [user]


async def test_a_third_party_instance_gets_plain_requests_and_answers_on_its_own_topic() -> None:
    async with Peer.as_service(INSTANCE) as instance, relaying(), Peer.as_caller() as caller:
        await caller.ask(request({"style": "pun"}, {"topic": "cats"}), id="7")
        forwarded, properties = await instance.request()
        assert (forwarded.config, forwarded.arguments) == ({"style": "pun"}, {"topic": "cats"})
        assert forwarded.user == "default-user"
        assert properties[Property.ID] != "7"
        assert properties[Property.VIA] == REQUESTS
        await instance.answer(properties, "why", topic=ANSWERS)
        assert await answer_of(caller) == ("7", {"error": None, "response": "why", "end_of_stream": True})


async def test_a_third_party_instance_that_answers_gets_every_request(caplog: pytest.LogCaptureFixture) -> None:
    """More than may be unanswered on a topic on which nothing has answered; also while others are lost."""

    async def answer(instance: Peer, number: int) -> None:
        for _ in range(number):
            _, properties = await instance.request()
            await instance.answer(properties, "why", topic=ANSWERS)

    async def receive(caller: Peer, number: int) -> list[str]:
        return [(await answer_of(caller))[1]["response"] for _ in range(number)]

    async with Peer.as_service(INSTANCE) as instance, relaying() as relay, Peer.as_caller() as caller:
        await caller.ask(request({"style": "pun"}), id="first")
        await answer(instance, 1)
        assert await receive(caller, 1) == ["why"]
        for number in range(40):
            await caller.ask(request({"style": "pun"}), id=f"lost-{number}")
        for _ in range(40):
            await instance.request()
        await asyncio.sleep(5)
        for number in range(40):
            await caller.ask(request({"style": "pun"}), id=str(number))
        await answer(instance, 40)
        assert await receive(caller, 40) == ["why"] * 40
        assert relay.dispatcher.pending_requests == 40
        assert caplog.messages == []


@pytest.mark.costly
async def test_a_third_party_instance_that_hangs_keeps_no_place_of_the_bulkhead() -> None:
    """Its requests are no streams, as long as no first chunk of them has arrived."""
    names = ("lab-1", "lab-2")
    topics = {f"non-persistent://tg/request/{name}": f"non-persistent://tg/response/{name}" for name in names}
    instances = [
        {"id": name, "request-queue": requests, "response-queue": replies}
        for name, (requests, replies) in zip(names, topics.items(), strict=True)
    ]
    is_hanging = asyncio.Event()

    async def answer(instance: Peer, name: str, topic: str) -> None:
        while True:
            _, properties = await instance.request()
            if not (is_hanging.is_set() and name == "lab-1"):
                await instance.answer(properties, "why", topic=topic)

    async with contextlib.AsyncExitStack() as stack:
        for name, (requests, replies) in zip(names, topics.items(), strict=True):
            answering = answer(await stack.enter_async_context(Peer.as_service(requests)), name, replies)
            stack.callback(asyncio.create_task(answering).cancel)
        await stack.enter_async_context(relaying(catalog(instances=instances, policy={"timeout": 600})))
        caller = await stack.enter_async_context(Peer.as_caller())
        for number in range(1_200):
            if number == 400:
                is_hanging.set()
            await caller.ask(request({"style": "pun"}), id=str(number))
            await asyncio.sleep(0.01)
        await asyncio.sleep(1)
        bodies = [(await answer_of(caller))[1] for _ in range(caller.arrived.qsize())]
    assert [body["error"] for body in bodies if body["error"] is not None] == []
    assert 1_200 - len(bodies) <= 128, "only what was sent before the instance was ejected waits"


@pytest.mark.costly
async def test_the_topic_of_a_killed_instance_gets_no_request_while_another_one_is_there() -> None:
    names = ("lab-1", "lab-2")
    topics = {f"non-persistent://tg/request/{name}": f"non-persistent://tg/response/{name}" for name in names}
    instances, servers = [], []
    async with contextlib.AsyncExitStack() as stack:
        for name, (requests, replies) in zip(names, topics.items(), strict=True):
            instances.append({"id": name, "request-queue": requests, "response-queue": replies})
            server = serving(lambda _: "why", request_queue=requests, response_queue=replies, instance=name)
            servers.append(await stack.enter_async_context(server))
        await stack.enter_async_context(relaying(catalog(instances=instances)))
        caller = await stack.enter_async_context(Peer.as_caller())
        await ask(caller, request({"style": "pun"}))
        servers[0]._transport.cut()  # type: ignore[attr-defined] # as a kill of its process does
        for number in range(1_000):
            await caller.ask(request({"style": "pun"}), id=str(number))
            await asyncio.sleep(0.01)
        await asyncio.sleep(1)
        bodies = [(await answer_of(caller))[1] for _ in range(caller.arrived.qsize())]
    errors = [body["error"]["type"] for body in bodies if body["error"] is not None]
    assert set(errors) <= {"instance-lost"}, "those that it had"
    assert len(bodies) == 1_000


async def test_streams_that_have_begun_keep_no_request_from_a_third_party_instance() -> None:
    policy = UNGUARDED | {"stream-idle-timeout": 200}
    async with (
        Peer.as_service(INSTANCE) as instance,
        relaying(catalog(policy=policy)) as relay,
        Peer.as_caller() as caller,
    ):
        begun = []
        for number in range(40):
            await caller.ask(request({"style": "pun"}), id=str(number))
            _, properties = await instance.request()
            await instance.answer(properties, "Why", end=False, topic=ANSWERS)
            begun.append(properties)
            await answer_of(caller)
        await asyncio.sleep(GONE_S + 1)
        await caller.ask(request({"style": "pun"}), id="7")
        _, properties = await instance.request()
        for each in (properties, *begun):
            await instance.answer(each, "why", topic=ANSWERS)
        await idle()
        ((_, pool),) = relay.dispatcher._running.pool_registry.all()
        assert [channel.streams for channel in pool.channels] == [0]


async def test_a_stream_passes_chunk_by_chunk() -> None:
    async with Peer.as_service(INSTANCE) as instance, relaying(), Peer.as_caller() as caller:
        await caller.ask(request({"style": "pun"}), id="7")
        _, properties = await instance.request()
        for text in ("Why", " did"):
            await instance.answer(properties, text, end=False, topic=ANSWERS)
            assert await answer_of(caller) == ("7", {"error": None, "response": text, "end_of_stream": False})
        await instance.answer(properties, " it?", topic=ANSWERS)
        assert await answer_of(caller) == ("7", {"error": None, "response": " it?", "end_of_stream": False})
        assert await answer_of(caller) == ("7", {"error": None, "response": "", "end_of_stream": True})


async def test_a_stream_has_the_limit_of_a_call_until_its_first_chunk_and_then_that_of_streams() -> None:
    policy = UNGUARDED | {"timeout": 5, "stream-timeout": 60, "stream-idle-timeout": 20}
    async with Peer.as_service(INSTANCE) as instance, relaying(catalog(policy=policy)), Peer.as_caller() as caller:
        await caller.ask(request({"style": "pun"}), id="1")
        await instance.request()
        assert (await answer_of(caller))[1]["error"]["type"] == "timeout"
        await caller.ask(request({"style": "pun"}), id="2")
        _, properties = await instance.request()
        await instance.answer(properties, "Why", end=False, topic=ANSWERS)
        assert (await answer_of(caller))[1]["response"] == "Why"
        await asyncio.sleep(15)
        await instance.answer(properties, " did", end=False, topic=ANSWERS)
        assert (await answer_of(caller))[1]["response"] == " did"
        assert (await answer_of(caller))[1]["error"]["type"] == "idle-timeout"


async def test_a_whole_reply_in_parts_is_one_message() -> None:
    async with Peer.as_service(INSTANCE) as instance, relaying(), Peer.as_caller() as caller:
        await caller.ask(request({"style": "pun"}), id="7")
        _, properties = await instance.request()
        await instance.answer(properties, "Why", end=False, topic=ANSWERS, chunk="0", more="1")
        await idle()
        assert caller.arrived.empty()
        await instance.answer(properties, " not?", topic=ANSWERS, chunk="1")
        assert await answer_of(caller) == ("7", {"error": None, "response": "Why not?", "end_of_stream": True})
        await idle()
        assert caller.arrived.empty()


async def test_only_a_stream_has_a_first_chunk() -> None:
    async def stream() -> AsyncIterator[str]:
        yield "a"
        await asyncio.sleep(1)
        yield "b"

    def count_first_chunks() -> float:
        return REGISTRY.get_sample_value("dispatch_first_chunk_seconds_count", {"tool": "pun", "service": "lab"}) or 0.0

    before = count_first_chunks()
    replies = iter(["whole", stream()])
    async with lab(lambda _: next(replies)), relaying() as relay, Peer.as_caller() as caller:
        assert (await ask(caller, request({"style": "pun"})))["response"] == "whole"
        assert count_first_chunks() == before, "a whole reply takes the path of a call"
        assert (await ask(caller, request({"style": "pun"})))["response"] == "a"
        assert count_first_chunks() == before + 1
        guards = relay.dispatcher._running.guards_of(relay.dispatcher._live.resolver.fixed["pun"])
        assert guards.calls.count == 1, "the call goes on until the stream ends"
        assert [(await answer_of(caller))[1]["response"] for _ in range(2)] == ["b", ""]
        await idle()
        assert guards.calls.count == 0


async def test_an_empty_reply_is_one_message() -> None:
    async with Peer.as_service(INSTANCE) as instance, relaying(), Peer.as_caller() as caller:
        await caller.ask(request({"style": "pun"}), id="7")
        _, properties = await instance.request()
        await instance.answer(properties, "", topic=ANSWERS)
        assert await answer_of(caller) == ("7", {"error": None, "response": "", "end_of_stream": True})
        await idle()
        assert caller.arrived.empty()


async def fail(_: Any) -> str:
    raise ToolError("no-topic", "Give a topic.")


async def test_errors_of_the_tool_and_of_guards_have_a_type_and_a_text() -> None:
    policy = UNGUARDED | {"rate-limit": {"rate": "1/h", "max-wait": 0}}
    async with lab(fail), relaying(catalog(policy=policy)), Peer.as_caller() as caller:
        first = await ask(caller, request({"style": "pun"}))
        assert first["error"] == {"type": "no-topic", "message": "Give a topic."}
        second = await ask(caller, request({"style": "pun"}))
        assert second["error"]["type"] == "rate-limited"
        assert "was not executed" in second["error"]["message"]
        assert second["end_of_stream"] is True


@pytest.mark.parametrize("guard", [{"single-flight": True}, {"hedging": 0.5}], ids=str)
async def test_calls_that_are_shared_or_hedged_have_whole_replies(guard: dict[str, Any]) -> None:
    tools = catalog(tool("pun", style="pun", **{"read-only": True, "policy": {"retry": 2, **guard}}))

    async def stream(_: Any = None) -> AsyncIterator[str]:
        yield "a"
        yield "b"

    async with lab(lambda _: stream()), relaying(tools), Peer.as_caller() as caller:
        assert await ask(caller, request({"style": "pun"})) == reply("ab")


async def test_a_request_that_has_passed_the_topic_is_refused() -> None:
    """Two relays that forward to each other: the request comes back once."""
    other, other_answers = "non-persistent://tg/request/other", "non-persistent://tg/response/other"
    here = [{"id": "x", "request-queue": other, "response-queue": other_answers}]
    there = [{"id": "x", "request-queue": REQUESTS, "response-queue": RESPONSES}]
    back = Catalog.of([{"id": "back", "request-queue": other, "response-queue": other_answers, "instances": there}])
    async with relaying(catalog(instances=here)) as first, relaying(back) as second, Peer.as_caller() as caller:
        await caller.ask(request({"style": "pun"}), id="7")
        while (answer := await answer_of(caller))[0] != "7":
            """The answers to the other relay are on the same topic."""
        error = answer[1]["error"]
        assert error["type"] == "relay-loop"
        assert REQUESTS in error["message"]
        assert (first.servers[0].requests, second.servers[0].requests) == (2, 1)


@pytest.mark.parametrize(
    ("payload", "type"),
    [
        (b"{", "invalid-request"),
        (b"\xff\x00", "invalid-request"),
        (json.dumps({"config": "no", "arguments": "{}"}).encode(), "invalid-request"),
        (json.dumps({"config": "{}", "arguments": '{"n": NaN}'}).encode(), "invalid-arguments"),
        (request({"style": "pun"}, {"text": "x" * 1_000}), "request-too-large"),
    ],
    ids=["no JSON", "no text", "no object", "NaN", "too large"],
)
async def test_a_request_that_cannot_be_forwarded_is_answered_and_ends_nothing(payload: bytes, type: str) -> None:
    done = Service(lambda _: "done")
    async with lab(done), relaying(catalog(policy=UNGUARDED | {"max-request-bytes": 500})), Peer.as_caller() as caller:
        error = (await ask(caller, payload))["error"]
        assert error["type"] == type
        assert "was not executed: " in error["message"]
        assert (await ask(caller, request({"style": "pun"})))["response"] == "done"
    assert len(done.requests) == 1


async def test_a_request_above_the_brokers_limit_is_answered_and_holds_up_no_other() -> None:
    """As a broker accepts it whose limit is higher than that of a message of dispatch, which has room for properties."""
    async with Peer.as_service(INSTANCE) as instance, relaying() as relay, Peer.as_caller() as caller:
        transport_of(relay.dispatcher).max_message_bytes = 2_000  # type: ignore[misc] # of the embedded broker
        began = asyncio.get_running_loop().time()
        await caller.ask(request({"style": "pun"}, {"text": "x" * 3_000}), id="large")
        await caller.ask(request({"style": "pun"}), id="small")
        _, properties = await instance.request()
        await instance.answer(properties, "why", topic=ANSWERS)
        replies = dict([await answer_of(caller) for _ in range(2)])
        assert replies["small"] == {"error": None, "response": "why", "end_of_stream": True}
        error = replies["large"]["error"]
        assert error["type"] == "request-too-large"
        assert error["message"].startswith("Tool 'pun' was not executed: its request would have 3,0")
        assert asyncio.get_running_loop().time() - began <= DISCOVERY_S


async def test_requests_without_an_id_are_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    done = Service(lambda _: "done")
    async with lab(done), relaying() as relay, Peer.as_caller() as caller:
        for _ in range(100):
            await caller.ask(request({"style": "pun"}))
        assert (await ask(caller, request({"style": "pun"})))["response"] == "done"
        assert relay.servers[0].malformed == 100
    assert caplog.messages == [f"messages on {REQUESTS} have no usable property 'id': they are ignored (1 so far)"]


async def test_a_reply_acknowledges_no_other_request_with_the_same_id() -> None:
    kept = "persistent://tg/request/lab"
    tools = catalog(tool("pun", style="pun", **{"read-only": True}), **{"request-queue": kept})
    async with Peer.as_service(INSTANCE) as instance, relaying(tools) as killed, Peer.as_caller() as caller:
        for number in (1, 2):
            await caller.send(kept, request({"style": "pun"}, {"n": number}), {Property.ID: "7"})
        (_, first), (second, _) = await instance.request(), await instance.request()
        await instance.answer(first, "why", topic=ANSWERS)
        assert (await answer_of(caller))[1]["response"] == "why"
        killed.dispatcher._transport.cut()  # type: ignore[attr-defined] # as a kill of its process does
        async with relaying(tools):
            again, _ = await instance.request()
            assert again.arguments == second.arguments
            await idle()
            assert instance.arrived.empty()


async def test_a_relay_that_drains_finishes_what_it_has() -> None:
    async with Peer.as_service(INSTANCE) as instance, relaying() as relay, Peer.as_caller() as caller:
        await caller.ask(request({"style": "pun"}), id="7")
        _, properties = await instance.request()
        draining = asyncio.create_task(relay.drain())
        await asyncio.sleep(1)
        assert not draining.done()
        await instance.answer(properties, "why", topic=ANSWERS)
        await draining
        assert (await answer_of(caller))[1]["response"] == "why"


async def test_a_relay_that_closes_answers_the_calls_of_a_service_that_it_no_longer_relays() -> None:
    async with Peer.as_service(INSTANCE) as instance, Peer.as_caller() as caller:
        async with relaying() as relay:
            await caller.ask(request({"style": "pun"}), id="7")
            await instance.request()
            await relay.dispatcher.reload(Catalog.empty())
            await asyncio.sleep(1)
            assert relay.services == []
        assert (await answer_of(caller))[1]["error"]["type"] == "cancelled"


async def test_what_needs_a_restart_is_refused_at_a_reload() -> None:
    async with relaying() as relay:
        with pytest.raises(RelayError, match=r"broker: cannot change .* Fix: restart the relay"):
            await relay.reload(RelayConfig(broker="pulsar://elsewhere:6650"))
        assert relay.config.broker == BROKER


async def test_changes_of_the_catalogue_are_followed() -> None:
    changes: list[str] = []
    async with (
        lab(Service(lambda _: "done")),
        Relay(RelayConfig(broker=BROKER), Catalog.empty(), on_change=changes.append) as relay,
        Peer.as_caller() as caller,
    ):
        assert relay.services == []
        await relay.dispatcher.registry.put("tool-service", service())
        await asyncio.sleep(1)
        assert (await ask(caller, request({"style": "pun"})))["response"] == "done"
        await relay.dispatcher.registry.put("tool", tool("pun", style="pun"))
        await asyncio.sleep(1)
        assert list(relay.services[0].tools.values()) == ["pun"]
        further = {"id": "lab-2", "request-queue": f"{INSTANCE}-2", "response-queue": f"{ANSWERS}-2"}
        raw = service()
        await relay.dispatcher.registry.put("tool-service", raw | {"instances": [*raw["instances"], further]})
        await asyncio.sleep(1)
        assert list(relay.services[0].instances) == ["lab-1", "lab-2"]
        await relay.dispatcher.registry.remove("tool", "pun")
        await relay.dispatcher.registry.remove("tool-service", "lab")
        await asyncio.sleep(1)
        assert relay.services == []
    assert changes == [
        f"lab: {REQUESTS} is forwarded to lab-1.",
        f"lab: {REQUESTS} is forwarded to lab-1, lab-2.",
        "lab: no longer relayed.",
    ]


class Descriptors:
    """A source of services that the test edits."""

    id = "edited"

    def __init__(self, *services: dict[str, Any], is_atomic: bool = False) -> None:
        self.is_atomic = is_atomic
        self.services = list(services)
        self.changed = asyncio.Event()

    async def discover(self) -> list[Item]:
        return [Item(f"{each['id']}.json", "tool-service", each["id"], dict(each)) for each in self.services]

    async def changes(self) -> AsyncIterator[None]:
        while True:
            await self.changed.wait()
            self.changed.clear()
            yield

    async def edit(self, *services: dict[str, Any]) -> None:
        self.services = list(services)
        self.changed.set()
        await asyncio.sleep(2)


def public(id: str, topic: str, instance: str = INSTANCE) -> dict[str, Any]:
    """A service with a public topic."""
    instances = [{"id": f"{id}-1", "request-queue": instance, "response-queue": ANSWERS}]
    return service(id=id, instances=instances, **{"request-queue": topic})


OTHER = f"{REQUESTS}-other"


@pytest.mark.parametrize("is_atomic", [False, True], ids=["item by item", "as a whole"])
@pytest.mark.parametrize(
    ("edited", "problem"),
    [
        ([public("lab", REQUESTS, REQUESTS)], f"its requests would go to {REQUESTS}"),
        ([public("lab", REQUESTS), public("new", REQUESTS)], "the services 'lab' and 'new' have the same public topic"),
        ([public("new", REQUESTS), public("lab", REQUESTS)], "the services 'new' and 'lab' have the same public topic"),
        ([public("lab", REQUESTS), public("new", INSTANCE)], f"requests of the service 'lab' would go to {INSTANCE}"),
        ([public("lab", REQUESTS, OTHER), public("new", OTHER)], f"requests of the service 'lab' would go to {OTHER}"),
    ],
    ids=["loop", "public topic", "public topic of a later one", "instance of another", "double edit"],
)
async def test_a_service_keeps_its_configuration_when_an_edit_is_in_its_way(
    edited: list[dict[str, Any]], problem: str, is_atomic: bool, caplog: pytest.LogCaptureFixture
) -> None:
    source = Descriptors(public("lab", REQUESTS), is_atomic=is_atomic)
    done = Service(lambda _: "done")
    async with lab(done), Relay(RelayConfig(broker=BROKER), [source]) as relay, Peer.as_caller() as caller:
        await source.edit(*edited, public("far", f"{REQUESTS}-far", f"{REQUESTS}-far-1"))
        assert problem in caplog.text
        assert (await ask(caller, request({"n": 1})))["response"] == "done"
        assert len(done.requests) == 1
        known = {each.id for each in relay.services}
        assert known == ({"lab"} if is_atomic else {"lab", "far"}), "a neighbour does not wait, unless the source does"
        await source.edit(public("lab", REQUESTS), public("new", f"{REQUESTS}-new"))
        assert {each.id for each in relay.services} == {"lab", "new"}


@pytest.mark.wall_clock  # a folder is watched
async def test_two_services_with_one_public_topic_are_refused_at_the_start_and_at_a_reload(tmp_path: Path) -> None:
    def write(*services: dict[str, Any]) -> None:
        for each in services:
            (tmp_path / "tools" / "tool-service" / f"{each['id']}.json").write_text(json.dumps(each))

    (tmp_path / "tools" / "tool-service").mkdir(parents=True)
    write(public("lab", REQUESTS))
    file = tmp_path / "relay.json"
    file.write_text(json.dumps({"broker": BROKER, "catalog": ["tools"]}))
    async with Relay(RelayConfig.load(file)) as relay:
        write(public("new", REQUESTS))
        with pytest.raises(RelayError, match=r"'lab' and 'new' have the same public topic .* Fix: give each"):
            RelayConfig.load(file)
        # As with a change after the file was read.
        with pytest.raises(CatalogError, match="have the same public topic"):
            await relay.reload(relay.config)
        assert [each.id for each in relay.services] == ["lab"]
    with pytest.raises(RelayError, match="have the same public topic"):
        await Relay(RelayConfig(broker=BROKER, catalog=(str(tmp_path / "tools"),))).start()


async def test_a_topic_that_passes_to_another_service_has_one_consumer_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = Descriptors(public("lab", REQUESTS))
    done = Service(lambda _: "done")
    subscribe = MemoryTransport.subscribe
    async with lab(done), Relay(RelayConfig(broker=BROKER), [source]), Peer.as_caller() as caller:

        async def subscribe_and_ask(self: MemoryTransport, topic: str, *arguments: Any, **options: Any) -> Any:
            subscription = await subscribe(self, topic, *arguments, **options)
            if topic == REQUESTS:  # another consumer of the topic is there
                await caller.ask(request({"n": 1}), id="7")
            return subscription

        monkeypatch.setattr(MemoryTransport, "subscribe", subscribe_and_ask)
        await source.edit(public("new", REQUESTS))
        assert (await answer_of(caller))[1]["response"] == "done"
        assert len(done.requests) == 1


@contextlib.contextmanager
def refusing(topic: str) -> Iterator[set[str]]:
    """Let the broker refuse subscriptions to the topics of the set."""
    refused = {topic}
    subscribe = MemoryTransport.subscribe

    async def subscribe_unless_refused(self: MemoryTransport, topic: str, *arguments: Any, **options: Any) -> Any:
        if topic in refused:
            raise TransportError("topic-refused", f"no permission for {topic}")
        return await subscribe(self, topic, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryTransport, "subscribe", subscribe_unless_refused)
        yield refused


async def test_a_service_that_cannot_be_opened_is_tried_again_and_keeps_no_other_one_from_being_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bad, good, late = (public(id, f"{REQUESTS}-{id}") for id in ("bad", "good", "late"))
    with refusing(bad["request-queue"]) as refused:
        source = Descriptors(bad)
        with pytest.raises(TransportError, match="no permission"):
            await Relay(RelayConfig(broker=BROKER), [source]).start()
        source = Descriptors(bad, good)
        async with Relay(RelayConfig(broker=BROKER), [source]) as relay:
            assert [each.id for each in relay.services] == ["good"]
            assert "bad is not served as configured, and is tried again: no permission" in caplog.text
            await source.edit(bad, good, late)
            assert {each.id for each in relay.services} == {"good", "late"}
            with pytest.raises(CatalogError):
                await relay.reload(msgspec.structs.replace(relay.config, catalog=("no-tools",)))
            refused.clear()
            await asyncio.sleep(MAX_RETRY_S)
            assert {each.id for each in relay.services} == {"bad", "good", "late"}


async def test_a_reload_whose_servers_cannot_be_opened_keeps_the_former_ones_and_is_completed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = Descriptors(public("lab", REQUESTS))
    monkeypatch.setattr(RelayConfig, "list_sources", lambda _: [source])
    done = Service(lambda _: "done")
    async with lab(done), Relay(RelayConfig(broker=BROKER)) as relay, Peer.as_caller() as caller:
        with refusing(REQUESTS):
            await relay.reload(msgspec.structs.replace(relay.config, concurrency=7))
            assert (await ask(caller, request({"n": 1})))["response"] == "done"
            assert [each.concurrency for each in relay.servers] == [1_024]
        await asyncio.sleep(MAX_RETRY_S)
        assert [each.concurrency for each in relay.servers] == [7]
        assert (await ask(caller, request({"n": 1})))["response"] == "done"


def write_config(folder: Path, described: dict[str, Any], **keys: Any) -> Path:
    """Write a relay's configuration, whose catalogue is a folder with one service."""
    (folder / "tools" / "tool-service").mkdir(parents=True)
    (folder / "tools" / "tool-service" / "lab.json").write_text(json.dumps(described))
    (folder / "relay.json").write_text(json.dumps({"catalog": ["tools"], **keys}))
    return folder / "relay.json"


@pytest.mark.parametrize(
    "error",
    [TransportError("broker-unreachable", "no broker"), ValueError("two sources"), RuntimeError("a source")],
    ids=lambda error: type(error).__name__,
)
async def test_a_reload_that_fails_is_reported_and_the_next_one_works(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_config(tmp_path, public("lab", REQUESTS))
    hangup = asyncio.Event()

    async def reload() -> dict[str, Any]:
        hangup.set()
        for _ in range(20):
            if lines := capsys.readouterr().out.splitlines():
                return json.loads(lines[0])  # type: ignore[no-any-return] # an object
            await asyncio.sleep(0.1)
        raise AssertionError("the reload was not reported")

    async with relaying() as relay:
        outcomes = [error, None]

        async def reload_with(_config: RelayConfig) -> None:
            if (outcome := outcomes.pop(0)) is not None:
                raise outcome

        monkeypatch.setattr(relay, "reload", reload_with)
        reloading = asyncio.create_task(_reload(relay, str(file), Settings(broker=BROKER), hangup, json=True))
        failed = await reload()
        assert failed["event"] == "reload-failed"
        assert str(error) in failed["text"]
        assert (await reload())["event"] == "reloaded"
        reloading.cancel()


@pytest.mark.parametrize(("services", "expected"), [([], ""), ([service()], "1 service and ")])
async def test_a_relay_of_flows_says_so(
    services: list[dict[str, Any]], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_config(tmp_path, service(), **{"mcp-tool": {}})
    hangup = asyncio.Event()
    hangup.set()
    async with relaying(Catalog.of(services), mcp_tool=McpToolConfig()) as relay:
        relay.reload = lambda _config: asyncio.sleep(0)  # type: ignore[method-assign] # it stays as it is
        reloading = asyncio.create_task(_reload(relay, str(file), Settings(broker=BROKER), hangup, json=True))
        for _ in range(20):
            if out := capsys.readouterr().out:
                break
            await asyncio.sleep(0.1)
        reloading.cancel()
    assert json.loads(out)["text"] == f"Reloaded: relaying {expected}the flows of mcp-tool."


@pytest.mark.wall_clock
@pytest.mark.costly
async def test_a_service_manager_that_reads_nothing_holds_up_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other,
    ):
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(5)
        other.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        with contextlib.suppress(BlockingIOError):
            while True:
                other.sendto(b"", str(tmp_path / "notify"))
        notifying = asyncio.create_task(notify_systemd("READY=1"))
        await asyncio.sleep(0.1)
        assert not notifying.done()
        await notifying
        assert "systemd is not notified: its socket is full for 1 s" in caplog.text
        notifying = asyncio.create_task(notify_systemd("READY=1"))
        await asyncio.sleep(0.1)
        for _ in range(1_000):  # the messages before it
            if manager.recv(100):
                break
            await asyncio.sleep(0)
        await notifying
        assert len(caplog.records) == 1


# In place of TrustGraph's ``mcp-tool`` processor.


FLOW = {"topics": {"request": "request:tg:mcp-tool:default:one", "response": "response:tg:mcp-tool:default:one"}}
FLOW_REQUESTS, FLOW_RESPONSES = (f"non-persistent://tg/{of}/mcp-tool:default:one" for of in ("request", "response"))


async def call_mcp_tool(caller: Peer, name: str, parameters: object = None, **properties: str) -> dict[str, Any]:
    payload = json.dumps({"name": name, "parameters": json.dumps(parameters or {})}).encode()
    await caller.send(FLOW_REQUESTS, payload, {"id": "7", **properties})
    return (await answer_of(caller))[1]


@contextlib.asynccontextmanager
async def flows_of(store: ConfigStore, tools: Catalog | None = None) -> AsyncIterator[tuple[Relay, Peer, Any]]:
    async with (
        config_service(BROKER, store) as configuration,
        Relay(RelayConfig(broker=BROKER, mcp_tool=McpToolConfig()), tools or catalog()) as relay,
        Peer.as_caller(FLOW_RESPONSES) as caller,
    ):
        await asyncio.sleep(1)
        yield relay, caller, configuration


async def test_the_flows_of_the_mcp_tool_processor_are_served_by_tools_of_the_catalogue() -> None:
    store = ConfigStore()
    store.write("processor:mcp-tool", "one", FLOW)
    done = Service(lambda arguments: arguments["answer"])
    async with lab(done), flows_of(store) as (_, caller, _config):
        assert await call_mcp_tool(caller, "pun", {"answer": "ha"}) == {"error": None, "text": "ha", "object": None}
        # TrustGraph's client reads an empty text as missing, and an object then.
        assert await call_mcp_tool(caller, "dry", {"answer": ""}) == {"error": None, "text": None, "object": '""'}
        unknown = await call_mcp_tool(caller, "no-tool")
        assert unknown["error"]["type"] == "unknown-tool"
        assert (unknown["text"], unknown["object"]) == (None, None)
        broken = await call_mcp_tool(caller, "pun")
        assert broken["error"] == {"type": "KeyError", "message": "KeyError: 'answer'"}
    assert [config for config, _, _ in done.requests] == [{"style": "pun"}, {"style": "dry"}, {"style": "pun"}]


async def test_a_structured_result_is_an_object() -> None:
    store = ConfigStore()
    store.write("processor:mcp-tool", "one", FLOW)
    async with flows_of(store) as (relay, caller, _config):
        result = CallResult("pun", Outcome.SUCCESS, "two", structured_content={"n": 2})

        async def call(*_: object) -> CallResult:
            return result

        relay.call = call  # type: ignore[method-assign] # as a tool of an MCP server answers
        assert await call_mcp_tool(caller, "pun") == {"error": None, "text": None, "object": '{"n":2}'}


async def test_flows_come_and_go() -> None:
    store = ConfigStore()
    async with flows_of(store) as (relay, caller, configuration):
        assert relay.servers[1:] == []
        store.write("processor:mcp-tool", "one", FLOW)
        store.write("processor:mcp-tool", "broken", {"topics": {"request": "nonsense"}})
        configuration.push({"processor:mcp-tool": ["default"]})
        await asyncio.sleep(1)
        assert (await call_mcp_tool(caller, "no-tool"))["error"]["type"] == "unknown-tool"
        del store.texts["default", "processor:mcp-tool", "one"]
        store.version += 1
        configuration.push({"processor:mcp-tool": ["default"]})
        await asyncio.sleep(1)
        assert [server.request_queue for server in relay.servers] == [REQUESTS]


async def test_two_flows_or_a_flow_and_a_service_with_one_topic_are_not_both_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = ConfigStore()
    store.write("processor:mcp-tool", "one", FLOW)
    store.write("processor:mcp-tool", "same", FLOW)
    store.write("processor:mcp-tool", "service", {"topics": {**FLOW["topics"], "request": "request:tg:lab"}})
    done = Service(lambda _: "done")
    async with lab(done), flows_of(store) as (relay, caller, _config):
        assert [server.request_queue for server in relay.servers] == [REQUESTS, FLOW_REQUESTS]
        assert (await call_mcp_tool(caller, "pun"))["text"] == "done"
        await idle()
        assert len(done.requests) == 1
    assert "the flow default/same is not served: it has the same request topic as the flow default/one" in caplog.text
    assert "the flow default/service is not served: it has the same request topic as the service 'lab'" in caplog.text


@pytest.mark.parametrize("payload", [b"{", b"[]", b'{"name": 1}', b'{"name": "pun", "parameters": "no"}'])
async def test_an_unreadable_request_of_a_flow_is_answered(payload: bytes) -> None:
    store = ConfigStore()
    store.write("processor:mcp-tool", "one", FLOW)
    async with flows_of(store) as (_, caller, _config):
        await caller.send(FLOW_REQUESTS, payload, {"id": "7"})
        error = (await answer_of(caller))[1]["error"]
        assert error["type"] == "invalid-request"
        assert error["message"].startswith("The tool was not executed: ")
