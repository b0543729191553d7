"""A dispatcher's life: connecting, opening channels while calls wait, closing under calls, a broker that comes and goes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import dispatch
from dispatch import Catalog, CatalogError, Dispatcher, Outcome, Policy
from dispatch.errors import CallTimeoutError, TransportError
from dispatch.transports.memory import MemoryTransport
from tests.helpers.clock import START, advance, idle
from tests.helpers.dispatcher_and_service import (
    BROKER,
    REQUESTS,
    RESPONSES,
    UNGUARDED,
    Peer,
    catalog,
    dispatching,
    serving,
    stand,
)
from tests.helpers.fakes import lost
from tests.helpers.internals import correlator_of

pytestmark = pytest.mark.usefixtures("strangers")

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


async def test_starting_twice_is_a_mistake() -> None:
    async with dispatching() as dispatcher:
        with pytest.raises(RuntimeError, match="started already"):
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
    other = {
        "request_queue": "non-persistent://tg/request/other",
        "response_queue": "non-persistent://tg/response/other",
    }
    both = Catalog.of(
        [
            {"id": "lab", "request-queue": REQUESTS, "response-queue": RESPONSES},
            {"id": "other", **{key.replace("_", "-"): topic for key, topic in other.items()}},
        ],
        [
            {"type": "tool-service", "name": name, "description": "Works.", "service": service}
            for name, service in (("work", "lab"), ("play", "other"))
        ],
    )
    async with (
        serving(lambda _: "worked", instance="one"),
        serving(lambda _: "played", instance="one", **other),
        dispatching(both) as dispatcher,
    ):
        for _ in range(5):
            assert await dispatcher.call("work") == "worked"
            assert await dispatcher.call("play") == "played"


async def test_services_of_one_namespace_share_the_reply_topic() -> None:
    queues = {"request-queue": "non-persistent://tg/request/{}", "response-queue": "non-persistent://tg/response/{}"}
    tools = Catalog.of(
        [{"id": id, **{key: value.format(id) for key, value in queues.items()}} for id in "ab"],
        [{"type": "tool-service", "name": f"use-{id}", "description": "Uses it.", "service": id} for id in "ab"],
    )
    transport = SlowTransport()
    transport.gate.set()
    async with dispatching(tools, transport=transport, client_id="one") as dispatcher:
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
    async with dispatching() as dispatcher:
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
    assert result.error is not None
    assert (result.error.type, result.error.outcome) == ("closed", Outcome.TRANSPORT)
    assert result.duration < 1
