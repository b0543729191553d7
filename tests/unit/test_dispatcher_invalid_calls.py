"""The caller's own mistakes: each is a clear error that names the fix, and nothing is sent."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from dispatch import Outcome, Policy, ToolServiceClient
from dispatch.errors import InvalidArgumentsError, RejectedError
from dispatch.messaging.wire import MAX_MESSAGE_BYTES, MAX_PROPERTY_BYTES
from tests.helpers.clock import START, idle
from tests.helpers.dispatcher_and_service import Peer, Service, catalog, dispatching, stand

pytestmark = pytest.mark.usefixtures("strangers")


def now() -> float:
    return asyncio.get_running_loop().time()


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
