"""A call's way, from a tool's name to its answer: what travels, and how it can end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dispatch import Outcome, Policy
from dispatch.errors import CallTimeoutError, ToolError, TransportError
from dispatch.messaging.wire import decode_request, derive_key
from tests.helpers.clock import START, advance, idle
from tests.helpers.dispatcher_and_service import RESPONSES, Peer, Service, catalog, dispatching, stand
from tests.helpers.malformed_messages import MALFORMED_PAYLOADS

pytestmark = pytest.mark.usefixtures("strangers")


def now() -> float:
    return asyncio.get_running_loop().time()


# -- success --------------------------------------------------------------------------------------------------------


async def test_a_call_returns_the_answer() -> None:
    service = Service(lambda arguments: f"about {arguments['topic']}")
    async with stand(service) as (dispatcher, _):
        assert await dispatcher.call("work", {"topic": "cats"}, user="alice", timeout=5) == "about cats"
        assert service.requests == [({}, {"topic": "cats"}, "alice")]


async def test_a_result_tells_all_about_the_call() -> None:
    async def work(_: Any) -> str:
        await asyncio.sleep(2)
        return "done"

    async with stand(work, instance="one") as (dispatcher, _):
        result = await dispatcher.execute("work")
        assert result.ok
        assert (result.tool, result.outcome, result.text, result.error) == ("work", Outcome.SUCCESS, "done", None)
        assert (result.attempts, result.chunks, result.instance) == (1, 1, "one")
        assert result.duration == pytest.approx(2, abs=0.01)
        assert result.request_id
        assert (await dispatcher.execute("work")).request_id != result.request_id


async def test_a_call_without_arguments_and_user_sends_empty_ones() -> None:
    service = Service(lambda _: "done")
    async with stand(service) as (dispatcher, _):
        await dispatcher.call("work")
    assert service.requests == [({}, {}, "")]


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
        call = asyncio.create_task(dispatcher.call("work", {"städte": ["Köln"]}, user="älice"))
        message = await peer.arrived.get()
        assert message.data() == '{"user":"älice","config":"{}","arguments":"{\\"städte\\":[\\"Köln\\"]}"}'.encode()
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
            result = await dispatcher.execute(tool, **options)
            assert result.duration == pytest.approx(seconds, abs=0.01)


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


async def test_what_a_request_says_can_be_decoded_as_it_was() -> None:
    arguments = {"nested": {"list": [1, 2.5, None, True, "🎭"]}, "": "empty key"}
    async with Peer.as_service() as peer, dispatching() as dispatcher:
        call = asyncio.create_task(dispatcher.call("work", arguments))
        message = await peer.arrived.get()
        assert decode_request(message.data()).arguments == arguments
        await peer.answer(message.properties())
        await call
