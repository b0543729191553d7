"""With and without ``user``: the specification's dialect and the published package's, both ways, as bytes on the wire."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import dispatch
from tests.integration.interop import raw_peer
from tests.integration.interop.conftest import TheirService
from tests.integration.interop.peers import TIMEOUT_S, catalog, their_client
from tests.integration.interop.tool_behaviour import PREFIX

pytestmark = pytest.mark.pulsar


def shown(user: str, config: dict[str, Any], arguments: dict[str, Any]) -> str:
    return f"{user or 'nobody'}: {json.dumps([config, arguments], ensure_ascii=False)}"


class Ours(dispatch.ToolService):
    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        return shown(user, config, arguments)


class Specification(dispatch.ToolService):
    async def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> str:  # type: ignore[override] # the other dialect
        return shown(user, config, arguments)


class Published(dispatch.ToolService):
    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any]) -> str:  # type: ignore[override] # the other dialect
        return shown("", config, arguments)


SERVICES = {"ours": Ours, "the specification's": Specification, "the published package's": Published}
CONFIG, ARGUMENTS = {"style": "pun"}, {"topic": "cats 🐈"}
USER = "Älice 🦊"


@pytest.fixture(params=list(SERVICES), ids=lambda name: f"invoke as {name}")
def signature(request: pytest.FixtureRequest) -> type[dispatch.ToolService]:
    return SERVICES[request.param]


def user_seen(signature: type[dispatch.ToolService], user: str) -> str:
    return "" if signature is Published else user


async def test_a_request_by_hand(url: str, topic: str, signature: type[dispatch.ToolService]) -> None:
    body = {"config": json.dumps(CONFIG), "arguments": json.dumps(ARGUMENTS)}
    async with dispatch.ToolServer(signature(), url, service=topic), raw_peer.caller(url, topic) as caller:
        for number, user in enumerate((USER, "", None)):
            await caller.send(body | ({} if user is None else {"user": user}), id=f"request-{number}")
            arrived = await caller.receive()
            assert arrived.body == {
                "error": None,
                "response": shown(user_seen(signature, user or ""), CONFIG, ARGUMENTS),
                "end_of_stream": True,
            }
            assert arrived.properties["id"] == f"request-{number}"


async def test_a_request_by_hand_that_fails(url: str, topic: str) -> None:
    class Failing(dispatch.ToolService):
        async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
            raise dispatch.ToolError("no-such-customer", f"{user} asked for nobody")

    async with dispatch.ToolServer(Failing(), url, service=topic), raw_peer.caller(url, topic) as caller:
        await caller.send({"user": "alice", "config": "", "arguments": ""}, id="request-1")
        arrived = await caller.receive()
    assert arrived.body == {
        "error": {"type": "no-such-customer", "message": "alice asked for nobody"},
        "response": "",
        "end_of_stream": True,
    }


async def test_a_request_by_hand_to_their_service(url: str, their_service: TheirService) -> None:
    """The published package ignores the user that the specification's request has."""
    body = {"user": USER, "config": json.dumps(PREFIX), "arguments": json.dumps({"join": "text"})}
    async with raw_peer.caller(url, their_service.topic) as caller:
        await caller.send(body, id="request-1")
        arrived = await caller.receive()
    assert (arrived.body["response"], arrived.properties["id"]) == ("customers|text", "request-1")


async def test_their_client_names_no_user(url: str, topic: str, signature: type[dispatch.ToolService]) -> None:
    async with dispatch.ToolServer(signature(), url, service=topic), their_client(url, topic) as theirs:
        for client in (theirs, dispatch.wrap(theirs, tool="peer")):
            assert await client.call(CONFIG, ARGUMENTS, timeout=TIMEOUT_S) == shown("", CONFIG, ARGUMENTS)


async def test_our_client_in_both_dialects(url: str, topic: str, signature: type[dispatch.ToolService]) -> None:
    async with (
        dispatch.ToolServer(signature(), url, service=topic),
        dispatch.connect(url, catalog(topic)) as dispatcher,
    ):
        client = dispatch.ToolServiceClient(dispatcher, service="peer")
        alice = shown(user_seen(signature, USER), CONFIG, ARGUMENTS)
        assert await client.call(CONFIG, ARGUMENTS, timeout=TIMEOUT_S) == shown("", CONFIG, ARGUMENTS)
        assert await client.call(USER, CONFIG, ARGUMENTS, timeout=TIMEOUT_S) == alice
        assert await client.call(user=USER, config=CONFIG, arguments=ARGUMENTS) == alice
        pieces: list[str] = []
        assert await client.call_streaming(USER, CONFIG, ARGUMENTS, pieces.append, timeout=TIMEOUT_S) == alice
        assert pieces == [alice]


async def test_our_client_names_a_user_to_their_service(url: str, their_service: TheirService) -> None:
    async with dispatch.connect(url, catalog(their_service.topic)) as dispatcher:
        client = dispatch.ToolServiceClient(dispatcher, service="peer")
        assert await client.call(USER, PREFIX, {"join": "text"}, timeout=TIMEOUT_S) == "customers|text"


async def test_a_wrapped_client_of_theirs_takes_the_user_and_keeps_it(url: str, their_service: TheirService) -> None:
    """TrustGraph's client has nowhere to put a user: the call works all the same."""
    async with their_client(url, their_service.topic) as theirs:
        client = dispatch.wrap(theirs, tool="peer")
        assert await client.call(USER, PREFIX, {"join": "text"}, timeout=TIMEOUT_S) == "customers|text"


async def test_our_request_as_a_service_by_hand_sees_it_and_its_error_keeps_its_type(url: str, topic: str) -> None:
    """Exactly the specification's fields, with JSON in JSON; and an answer on the response topic is enough for us."""
    async with raw_peer.service(url, topic) as service, dispatch.connect(url, catalog(topic)) as dispatcher:
        client = dispatch.ToolServiceClient(dispatcher, service="peer")
        for user in (USER, ""):
            call = asyncio.create_task(client.call(user, CONFIG, ARGUMENTS, timeout=TIMEOUT_S))
            body, properties = await service.receive()
            # As today's TrustGraph answers; and with fields that only tomorrow's will know.
            await service.send({"response": "by ", "end_of_stream": False}, id=properties["id"])
            await service.send(
                {"error": None, "response": "hand", "end_of_stream": True, "tokens": {"in": 3}}, id=properties["id"]
            )
            assert await call == "by hand"
            assert set(body) == {"user", "config", "arguments"}
            assert body["user"] == user
            assert (json.loads(body["config"]), json.loads(body["arguments"])) == (CONFIG, ARGUMENTS)
        call = asyncio.create_task(client.call(CONFIG, ARGUMENTS, timeout=TIMEOUT_S))
        request = await service.receive()
        error = {"type": "no-such-customer", "message": "nobody is called 42"}
        await service.send({"error": error, "response": "", "end_of_stream": True}, id=request.properties["id"])
        with pytest.raises(dispatch.ToolError, match=r"^nobody is called 42$") as caught:
            await call
    assert caught.value.type == "no-such-customer"
