"""Persistent topics, on the embedded broker: kept until answered where the tool may be repeated, else run at most once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from dispatch import CallTimeoutError, Catalog, Dispatcher, ToolServer, TransportError
from dispatch.messaging.request import Disposition
from dispatch.messaging.wire import Property, Request, encode_request
from dispatch.serving.replies import InboundRequest
from dispatch.serving.tool_service import RequestHandler
from dispatch.transports import Message, Mode, OnFailure, OnReceipt
from dispatch.transports.base import MAX_RELEASES, RELEASED_S, PublishedTicket
from dispatch.transports.memory import MemoryPublisher, MemoryTransport
from tests.helpers.clock import advance, idle, start_task
from tests.helpers.dispatcher_and_service import BROKER, Peer, catalog, dispatching, read, serving
from tests.helpers.fakes import lost
from tests.helpers.internals import transport_of
from tests.helpers.session import from_peer

KEPT_REQUESTS, KEPT_RESPONSES = "persistent://tg/request/lab", "persistent://tg/response/lab"
REPEATABLE = {"read-only": True}
Tool = Callable[[dict[str, Any]], Any]


def kept(*, requests: bool = True, answers: bool = True, **tool: Any) -> Catalog:
    queues = {}
    if requests:
        queues["request-queue"] = KEPT_REQUESTS
    if answers:
        queues["response-queue"] = KEPT_RESPONSES
    return catalog(service=queues, work=tool)


def keeping(work: Tool, name: str, *, answers: bool = True, **options: Any) -> Any:
    queues = {"request_queue": KEPT_REQUESTS, **({"response_queue": KEPT_RESPONSES} if answers else {})}
    return serving(work, instance=name, service="lab", **queues, **options)


class Runs:
    """A tool that counts, and answers when it may."""

    def __init__(self) -> None:
        self.begun: list[Any] = []
        self.go = asyncio.Event()

    async def __call__(self, arguments: dict[str, Any]) -> str:
        self.begun.append(arguments.get("n"))
        await self.go.wait()
        return "done"


def unacknowledged(server: ToolServer) -> int:
    return len(server._plain.durable)


def cut(server: ToolServer) -> None:
    """What a kill -9 does to its connection; what it still does nobody hears of."""
    server._transport.cut()


async def witness() -> MemoryTransport:
    """An embedded broker is gone with its last connection; this one is."""
    transport = MemoryTransport(BROKER)
    await transport.start()
    return transport


@pytest.mark.parametrize("requests", [False, True])
@pytest.mark.parametrize("answers", [False, True])
@pytest.mark.parametrize("tool", [{}, REPEATABLE])
async def test_every_combination_answers_calls_and_streams(requests: bool, answers: bool, tool: dict[str, Any]) -> None:
    ran: list[int] = []

    def work(arguments: dict[str, Any]) -> Any:
        ran.append(arguments["n"])
        return chunks() if arguments["n"] % 2 else "x" * 100_000

    async def chunks() -> AsyncIterator[str]:
        for number in range(50):
            yield str(number)

    queues = {"request_queue": KEPT_REQUESTS} if requests else {}
    if answers:
        queues["response_queue"] = KEPT_RESPONSES
    async with (
        serving(work, **queues) as server,
        dispatching(kept(requests=requests, answers=answers, **tool)) as dispatcher,
    ):
        texts = await asyncio.gather(*(dispatcher.call("work", {"n": n}) for n in range(64)))
        streamed: list[str] = []
        await read(dispatcher.stream("work", {"n": 65}), streamed)
        whole = [str(number) for number in range(50)]
        assert texts == ["".join(whole) if n % 2 else "x" * 100_000 for n in range(64)]
        assert streamed == whole
        assert sorted(ran) == [*range(64), 65]
        await advance(1)
        assert unacknowledged(server) == 0
        assert set(dispatcher.reply_counts().values()) == {0, 32 + 33 * 51}


@pytest.mark.parametrize("answers", [False, True])
@pytest.mark.parametrize("key", [None, "order-7"])
async def test_a_repeatable_request_of_an_instance_that_dies_goes_to_another(answers: bool, key: str | None) -> None:
    first, second = Runs(), Runs()
    second.go.set()
    tool = {} if key else REPEATABLE
    async with dispatching(kept(answers=answers, **tool)) as dispatcher, keeping(first, "a", answers=answers) as one:
        call = await start_task(dispatcher.execute("work", {"n": 1}, idempotency_key=key))
        assert (first.begun, unacknowledged(one)) == ([1], 1)
        async with keeping(second, "b", answers=answers) as two:
            await idle()
            assert second.begun == []
            cut(one)
            result = await call
            assert (result.text, result.instance, second.begun) == ("done", "b", [1])
            await idle()
            assert unacknowledged(two) == 0


async def test_any_other_is_acknowledged_before_it_runs_and_nobody_else_runs_it() -> None:
    first, second = Runs(), Runs()
    async with dispatching(kept()) as dispatcher, keeping(first, "a") as one:
        call = await start_task(dispatcher.execute("work", {"n": 1}, timeout=5))
        assert (first.begun, unacknowledged(one)) == ([1], 0)
        async with keeping(second, "b"):
            cut(one)
            result = await call
            assert isinstance(result.error, CallTimeoutError)
            assert "may have been executed" in result.error.message
            assert (result.error.retryable, second.begun) == (False, [])


async def test_its_answer_acknowledges_it_and_so_does_an_error_or_a_refusal() -> None:
    def work(arguments: dict[str, Any]) -> str:
        return {"good": "answer"}[arguments["n"]]

    second = Runs()
    async with dispatching(kept(**REPEATABLE)) as dispatcher, keeping(work, "a") as one:
        assert (await dispatcher.execute("work", {"n": "good"})).ok
        assert not (await dispatcher.execute("work", {"n": "bad"})).ok
        publisher = await transport_of(dispatcher).publisher(KEPT_REQUESTS)
        properties = {"id": "x-1", "reply-to": KEPT_RESPONSES, "repeatable": "1"}
        publisher.publish(b"no request", properties, flow="", on_failure=lambda error: None)
        await idle()
        assert (one.refused["invalid-request"], unacknowledged(one)) == (1, 0)
        cut(one)
        async with keeping(second, "b"):
            await idle()
            assert second.begun == []


async def test_what_comes_again_after_its_callers_time_is_refused() -> None:
    """From its arrival at the second instance its time would begin anew."""
    first, second = Runs(), Runs()
    async with dispatching(kept(**REPEATABLE)) as dispatcher, keeping(first, "a") as one:
        # A first call teaches the second instance's clock nothing: it sees only the one that comes again, from before.
        call = await start_task(dispatcher.execute("work", {"n": 1}, timeout=5), 4)
        cut(one)
        await advance(2)
        assert isinstance((await call).error, CallTimeoutError)
        async with keeping(second, "b") as two:
            await idle()
            assert (second.begun, two.refused["expired"], unacknowledged(two)) == ([], 1, 0)


async def test_what_comes_again_in_time_gets_what_is_left_of_it() -> None:
    first, second = Runs(), Runs()
    async with dispatching(kept(**REPEATABLE)) as dispatcher, keeping(first, "a") as one:
        call = await start_task(dispatcher.execute("work", {"n": 1}, timeout=5), 3)
        cut(one)
        async with keeping(second, "b") as two:
            await advance(1.9)
            assert two.running == 1
            await advance(0.2)
            assert (second.begun, two.running, two.refused["stopped"]) == ([1], 0, 1)
            assert isinstance((await call).error, CallTimeoutError)


async def test_a_request_that_comes_twice_runs_once_and_is_answered() -> None:
    """A producer that sends again after a reconnection makes two messages of one."""
    tool = Runs()
    async with dispatching(kept(**REPEATABLE)) as dispatcher, keeping(tool, "a") as server:
        publisher = await transport_of(dispatcher).publisher(KEPT_REQUESTS)
        replies: list[Message] = []
        await transport_of(dispatcher).subscribe(KEPT_RESPONSES, replies.append, mode=Mode.FANOUT, name="x")

        def again(repeatable: bool, number: int) -> None:
            properties = from_peer(number, KEPT_RESPONSES)
            if repeatable:
                properties[Property.REPEATABLE] = "1"
            publisher.publish(
                encode_request("{}", f'{{"n": {number}}}'), properties, flow="", on_failure=lambda error: None
            )

        for number, repeatable in ((1, True), (2, False)):
            for _ in range(20):
                again(repeatable, number)
        await idle()
        assert (tool.begun, server.repeats) == ([1, 2], 38)
        assert unacknowledged(server) == 1
        tool.go.set()
        await idle()
        again(True, 1)
        again(False, 2)
        await idle()
        assert (tool.begun, unacknowledged(server)) == ([1, 2], 0)
        second = Runs()
        cut(server)
        async with keeping(second, "b"):
            await idle()
            assert second.begun == [], "each copy was acknowledged"
        assert {message.data() for message in replies} == {replies[0].data()}


async def test_an_answer_that_comes_twice_is_given_once() -> None:
    async with Peer.as_caller(KEPT_REQUESTS) as peer, dispatching(kept(**REPEATABLE)) as dispatcher:
        call = asyncio.create_task(dispatcher.execute("work"))
        _, properties = await peer.request()
        assert properties[Property.REPEATABLE] == "1"
        for instance in ("a", "b"):
            await peer.answer(properties, f"of {instance}", instance=instance)
        result = await call
        await idle()
        assert (result.text, result.chunks) == ("of a", 1)
        assert dispatcher.reply_counts()[Disposition.DUPLICATE] == 1


async def test_only_where_it_helps_a_request_says_that_it_may_be_repeated() -> None:
    async with Peer.as_caller(KEPT_REQUESTS) as peer, dispatching(kept()) as dispatcher:
        call = asyncio.create_task(dispatcher.execute("work", timeout=1))
        _, properties = await peer.request()
        assert Property.REPEATABLE not in properties
        await call
    async with Peer.as_service() as peer, dispatching(kept(requests=False, answers=False, **REPEATABLE)) as dispatcher:
        call = asyncio.create_task(dispatcher.execute("work", timeout=1))
        _, properties = await peer.request()
        assert Property.REPEATABLE not in properties
        await call


async def chunk(peer: Peer, properties: dict[str, str], number: int, instance: str, *, end: bool = False) -> None:
    text = "" if end else f"{instance}{number}"
    await peer.answer(properties, text, end=end, chunk=str(number), instance=instance)


async def test_chunks_of_two_instances_make_no_answer() -> None:
    async with Peer.as_caller(KEPT_REQUESTS) as peer, dispatching(kept(**REPEATABLE)) as dispatcher:
        call = asyncio.create_task(dispatcher.execute("work"))
        _, properties = await peer.request()
        for number in (0, 1, 3):
            await chunk(peer, properties, number, "a")
        for number in (0, 1):
            await chunk(peer, properties, number, "b")
        await chunk(peer, properties, 2, "a")  # it was on its way
        await chunk(peer, properties, 2, "b", end=True)
        assert (await call).text == "b0b1"


async def test_a_stream_that_has_begun_does_not_go_on_with_anothers_chunks() -> None:
    async with Peer.as_caller(KEPT_REQUESTS) as peer, dispatching(kept(**REPEATABLE)) as dispatcher:
        got: list[str] = []
        reading = asyncio.create_task(read(dispatcher.stream("work"), got))
        _, properties = await peer.request()
        await chunk(peer, properties, 0, "a")
        await idle()
        await chunk(peer, properties, 0, "b")
        await chunk(peer, properties, 1, "b", end=True)
        with pytest.raises(TransportError, match="executed more than once") as caught:
            await reading
        assert (caught.value.type, caught.value.retryable, got) == ("instance-lost", True, ["a0"])


async def test_a_stream_of_which_nothing_was_given_is_the_others() -> None:
    async with Peer.as_caller(KEPT_REQUESTS) as peer, dispatching(kept(**REPEATABLE)) as dispatcher:
        got: list[str] = []
        reading = asyncio.create_task(read(dispatcher.stream("work"), got))
        _, properties = await peer.request()
        await chunk(peer, properties, 1, "a")
        await chunk(peer, properties, 0, "b")
        await chunk(peer, properties, 1, "b", end=True)
        await reading
        assert got == ["b0"]


async def calling(dispatcher: Dispatcher, count: int) -> list[asyncio.Task[Any]]:
    calls = [asyncio.create_task(dispatcher.execute("work", {"n": n})) for n in range(count)]
    await idle()
    return calls


async def test_who_drains_finishes_what_runs_and_leaves_what_waits_to_others() -> None:
    first, second = Runs(), Runs()
    second.go.set()
    async with dispatching(kept(**REPEATABLE)) as dispatcher, keeping(first, "a", concurrency=2) as one:
        calls = await calling(dispatcher, 6)
        draining = asyncio.create_task(one.drain())
        async with keeping(second, "b"):
            await idle()
            assert second.begun == [2, 3, 4, 5]
            first.go.set()
            await draining
            results = [await call for call in calls]
            assert [result.instance for result in results] == ["a", "a", "b", "b", "b", "b"]
            assert (first.begun, one.refused["draining"]) == ([0, 1], 0)


async def test_who_drains_refuses_what_waits_where_nobody_else_can_have_it() -> None:
    first = Runs()
    async with dispatching(kept()) as dispatcher, keeping(first, "a", concurrency=2) as one:
        calls = await calling(dispatcher, 6)
        draining = await start_task(one.drain())
        first.go.set()
        await draining
        results = [await call for call in calls]
        assert [result.ok for result in results] == [True, True, False, False, False, False]
        assert {result.error.type for result in results[2:]} == {"draining"}
        assert all(result.error.retryable for result in results[2:]), "it did not run"


async def test_who_stops_at_once_leaves_all_to_others() -> None:
    first, second = Runs(), Runs()
    second.go.set()
    async with dispatching(kept(**REPEATABLE)) as dispatcher, keeping(first, "a", concurrency=2) as one:
        calls = await calling(dispatcher, 4)
        await one.close()
        async with keeping(second, "b"):
            assert {(await call).instance for call in calls} == {"b"}
    assert (first.begun, sorted(second.begun)) == ([0, 1], [0, 1, 2, 3])


async def test_an_answer_that_waits_for_credit_keeps_its_request() -> None:
    """What was answered, but has not left, would be lost with the instance."""
    broker = await witness()
    caller = await broker.publisher(KEPT_REQUESTS)
    second = Runs()
    async with keeping(lambda arguments: "x" * 48_000, "a", answers=False) as one:
        for number in range(1, 4):
            properties = from_peer(number)
            properties[Property.REPEATABLE] = "1"
            caller.publish(encode_request("{}", "{}"), properties, flow="", on_failure=lambda error: None)
        await idle()
        assert (one.running, unacknowledged(one)) == (0, 2), "nobody acknowledges, and two of them wait"
        cut(one)
        async with keeping(second, "b", answers=False):
            await idle()
            assert len(second.begun) == 2
    await broker.close()


class UnsureTransport(MemoryTransport):
    """A connection on which no reply arrives; a test confirms them or lets them fail."""

    def __init__(self) -> None:
        super().__init__(BROKER)
        self.replies: list[tuple[OnFailure, OnReceipt]] = []

    async def publisher(self, topic: str) -> MemoryPublisher:
        return _UnsurePublisher(self, topic) if "/response/" in topic else await super().publisher(topic)


class _UnsurePublisher(MemoryPublisher):
    def publish(
        self, *args: Any, on_failure: OnFailure, on_receipt: OnReceipt | None = None, **_: Any
    ) -> PublishedTicket:
        assert on_receipt is not None
        assert isinstance(self._transport, UnsureTransport)
        self._transport.replies.append((on_failure, on_receipt))
        return PublishedTicket(on_failure)


@contextlib.asynccontextmanager
async def unsure(work: Tool) -> AsyncIterator[tuple[ToolServer, UnsureTransport]]:
    """An instance with such a connection."""
    transport = UnsureTransport()
    await transport.start()
    async with keeping(work, "a", broker=transport) as server:
        yield server, transport
    await transport.close()


async def three_chunks(_arguments: dict[str, Any]) -> AsyncIterator[str]:
    for number in range(3):
        yield str(number)


@pytest.mark.parametrize(("work", "messages"), [(lambda _: "done", 1), (three_chunks, 4)])
async def test_a_request_waits_for_the_receipts_of_its_whole_reply(work: Tool, messages: int) -> None:
    second = Runs()
    async with dispatching(kept(**REPEATABLE)) as dispatcher, unsure(work) as (one, transport):
        call = await start_task(dispatcher.execute("work"))
        assert (one.running, len(transport.replies)) == (0, messages)
        for _, on_receipt in transport.replies:
            assert unacknowledged(one) == 1
            on_receipt()
        assert unacknowledged(one) == 0
        cut(one)
        async with keeping(second, "b"):
            await idle()
            assert second.begun == []
        call.cancel()


async def test_a_request_goes_to_another_if_instance_or_broker_die_before_its_reply_is_confirmed() -> None:
    async with dispatching(kept(**REPEATABLE)) as dispatcher, unsure(lambda _: "lost") as (one, transport):
        call = await start_task(dispatcher.execute("work"))
        assert (one.running, len(transport.replies)) == (0, 1)
        cut(one)
        async with keeping(lambda _: "done", "b"):
            assert (await call).text == "done"


class Repeatable(RequestHandler):
    """Declares every request repeatable, as a relay does where its catalogue does."""

    def __init__(self) -> None:
        self.runs = 0

    async def invoke_request(self, request: Request, work: InboundRequest) -> str:
        self.runs += 1
        return "done"

    def is_repeatable(self, work: InboundRequest) -> bool:
        return True


@pytest.mark.parametrize("is_dispatchers", [True, False])
async def test_a_request_whose_reply_fails_comes_again_within_bounds(is_dispatchers: bool) -> None:
    """A third-party caller's is executed again, as behind a relay; of a dispatcher's the stored reply is sent again."""
    handler, transport = Repeatable(), UnsureTransport()
    await transport.start()
    caller = await transport.publisher(KEPT_REQUESTS)
    async with ToolServer(
        handler, transport, service="lab", request_queue=KEPT_REQUESTS, response_queue=KEPT_RESPONSES
    ) as server:
        properties = from_peer(1, KEPT_RESPONSES) if is_dispatchers else {Property.ID: "1"}
        caller.publish(encode_request("{}", "{}"), properties, flow="", on_failure=lambda error: None)
        await idle()
        for number in range(MAX_RELEASES + 1):
            assert len(transport.replies) == number + 1
            on_failure, on_receipt = transport.replies[-1]
            on_failure(lost(sent=True))
            on_receipt()
            await advance(0.9 * RELEASED_S)
            assert len(transport.replies) == number + 1
            await advance(0.2 * RELEASED_S)
        assert len(transport.replies) == MAX_RELEASES + 1
        assert handler.runs == (1 if is_dispatchers else MAX_RELEASES + 1)
        assert server.counts()["lost_replies"] == MAX_RELEASES + 1
        second = Runs()
        cut(server)
        async with keeping(second, "b"):
            await idle()
            assert second.begun == []
    await transport.close()


async def test_those_of_others_callers_run_as_they_come() -> None:
    """Nothing of ours is in them: they are acknowledged as they come."""
    tool = Runs()
    broker = await witness()
    publisher = await broker.publisher(KEPT_REQUESTS)
    async with keeping(tool, "a") as server:
        publisher.publish(encode_request("{}", "{}"), {"id": "b7"}, flow="", on_failure=lambda error: None)
        await idle()
        assert (tool.begun, unacknowledged(server)) == ([None], 0)
    await broker.close()
