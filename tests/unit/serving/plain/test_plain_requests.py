"""Requests that are none: counted or answered, and the next one is served."""

from __future__ import annotations

import asyncio

import pytest

from dispatch.errors import InvalidArgumentsError
from dispatch.messaging.wire import MAX_PROPERTY_BYTES, Refusal, decode_reply
from tests.helpers.clock import idle
from tests.helpers.dispatcher_and_service import Peer, Service, dispatching, serving, stand


@pytest.mark.parametrize(
    "properties", [{}, {"id": ""}, {"id": "x" * (MAX_PROPERTY_BYTES + 1)}], ids=["none", "empty", "oversized"]
)
async def test_a_request_without_a_usable_id_is_counted_and_the_next_is_served(properties: dict[str, str]) -> None:
    service = Service(lambda _: "done")
    async with stand(service) as (dispatcher, server), Peer.as_caller() as caller:
        await caller.ask(b"{}", **properties)
        await idle()
        assert (server.malformed, server.requests) == (1, 1)
        assert not service.requests
        assert caller.arrived.empty()
        assert await dispatcher.call("work") == "done"


async def test_an_id_of_just_the_limit_is_served() -> None:
    async with serving(lambda _: "done"), Peer.as_caller() as caller:
        await caller.ask(b"{}", id="x" * MAX_PROPERTY_BYTES)
        assert decode_reply((await caller.arrived.get()).data()).response == "done"


class Unreadable:
    """A message as a broken client library may hand it over."""

    def __init__(self, breaks: str) -> None:
        self.breaks = breaks

    def properties(self) -> dict[str, str]:
        if self.breaks == "properties":
            raise RuntimeError("cannot be read")
        return {"id": "1"} if self.breaks == "data" else {"id": 5}  # type: ignore[dict-item]

    def data(self) -> bytes:
        raise RuntimeError("cannot be read")


async def test_a_message_that_raises_costs_nothing_but_itself() -> None:
    async with stand(lambda _: "done") as (dispatcher, server), Peer.as_caller() as caller:
        for breaks in ("properties", "data"):
            assert server._plain is not None
            server._plain.receive_message(Unreadable(breaks))
        answer = await caller.arrived.get()
        assert answer.properties()["refused"] == Refusal.INVALID_REQUEST, "its caller is told"
        assert (server.malformed, server.refused[Refusal.INVALID_REQUEST]) == (1, 1)
        assert await dispatcher.call("work") == "done"


@pytest.mark.parametrize("payload", [b"", b"\xff", b"[]", b'{"config": "[1]"}', b'{"arguments": "SECRET"}'])
async def test_an_unreadable_request_is_answered_as_the_callers_mistake(payload: bytes) -> None:
    service = Service(lambda _: "done")
    async with serving(service) as server, Peer.as_caller() as caller:
        await caller.ask(payload, id="1")
        message = await caller.arrived.get()
        assert message.properties()["refused"] == Refusal.INVALID_REQUEST
        error = decode_reply(message.data()).error
        assert error is not None
        assert error.type == "invalid-request"
        assert "SECRET" not in error.message
        assert server.refused[Refusal.INVALID_REQUEST] == 1
        assert not service.requests


async def test_the_caller_of_an_unreadable_request_gets_a_typed_error() -> None:
    async with Peer.as_service() as peer, dispatching() as dispatcher:
        call = asyncio.create_task(dispatcher.execute("work"))
        _, properties = await peer.request()
        await peer.answer(properties, error=("invalid-request", "no JSON"), refused=Refusal.INVALID_REQUEST)
        error = (await call).error
        assert isinstance(error, InvalidArgumentsError)
        assert "no JSON" in error.message
