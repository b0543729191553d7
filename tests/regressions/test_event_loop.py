"""A caller that tried again at once while its topic could not be used kept the event loop for itself: the task that opens
the topic again never ran, and the outage never ended. A call that fails without being sent gives the event loop a turn.
A scrape of ``metrics_app()`` held the event loop for 860 to 1,763 ms at 1,000 tools. The text is built on another
thread, in pieces of a bounded number of series, and the thread sleeps after each so that the loop gets the interpreter lock.
A loop of searches kept the event loop for itself: none of them waited for anything, so that the tools were never embedded
and every search remained one by words. Each public coroutine gives other tasks a turn, however little it has to do.
A dispatcher that was used from a second event loop hung, or failed with errors of asyncio, and could not be closed
there. Every use is one clear error, and ``close()`` works.
``close(drain=…)`` that a timeout or a cancellation cut short left the connection open, and one of two concurrent closers
waited for its whole drain. Closing closes the connection in any case, and all closers end with the last call.
A publisher that was closed while the receipts of its messages were under way reported them as failed, and pulsar-client
wrote a line for each. Closing a publisher waits for its receipts: nothing fails and nothing is logged.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pulsar
import pytest
from prometheus_client.core import GaugeMetricFamily, Metric

import dispatch
from benchmarks.harness.broker import Endpoint
from dispatch import adapters
from dispatch.calling import call_function
from dispatch.errors import TransportError
from dispatch.search import EMBEDDING_TURN_S
from dispatch.telemetry.exposition import HISTOGRAMS, VALUES, TextFamily, render_metrics
from dispatch.telemetry.observers import DURATION_BUCKETS
from dispatch.toolkit import ToolPackage
from dispatch.transports.memory import MemoryPublisher, MemoryTransport
from dispatch.transports.pulsar.client import client_logger
from dispatch.transports.pulsar.transport import PulsarTransport
from tests.helpers.catalogs import catalog_of, unique_topic
from tests.helpers.clock import advance, idle, virtual_loop
from tests.helpers.dispatcher_and_service import BROKER, UNGUARDED, catalog, dispatching, serving
from tests.helpers.echo_service import Echo
from tests.helpers.telemetry_capture import Board, telling
from tests.regressions.test_file_descriptors_leak import open_files_and_threads, settled, without_garbage_collection
from tests.unit.calling.test_calls import LocalTool
from tests.unit.calling.test_calls import call as tool_call
from tests.unit.search.embedders import WordEmbedder
from tests.unit.telemetry.test_exposition import OPEN_METRICS, asked

PERSISTENT = "persistent://tg/request/lab"
"""The plain exchange: a session queues what cannot be sent."""


class Publisher(MemoryPublisher):
    def publish(self, *args: object, **named: object) -> object:  # type: ignore[override]
        if isinstance(self._transport, Unusable) and self._transport.is_unusable:
            raise TransportError("unreachable", "The topic is being opened again.", may_have_run=False)
        return super().publish(*args, **named)  # type: ignore[arg-type]


class Unusable(MemoryTransport):
    """Its topics cannot be used until a task of its own has run."""

    is_unusable = False

    async def publisher(self, topic: str) -> MemoryPublisher:
        return Publisher(self, topic)

    async def open_again(self) -> None:
        await asyncio.sleep(0)
        self.is_unusable = False


async def execute(dispatcher: dispatch.Dispatcher) -> bool:
    return (await dispatcher.execute("work", timeout=60)).ok


async def stream(dispatcher: dispatch.Dispatcher) -> bool:
    try:
        return [chunk async for chunk in dispatcher.stream("work", timeout=60)] == ["done"]
    except TransportError:
        return False


@pytest.mark.parametrize("is_answered", [execute, stream])
async def test_a_topic_is_opened_again_beside_calls_that_fail_at_once(
    is_answered: Callable[[dispatch.Dispatcher], Awaitable[bool]],
) -> None:
    transport = Unusable(BROKER)
    tools, policy = catalog(service={"request-queue": PERSISTENT}), dispatch.Policy(**UNGUARDED)
    async with (
        serving(lambda _: "done", request_queue=PERSISTENT),
        dispatching(tools, transport=transport, policy=policy) as dispatcher,
    ):
        assert await is_answered(dispatcher)
        transport.is_unusable = True
        opening = asyncio.create_task(transport.open_again())
        for calls in range(1_000):
            if await is_answered(dispatcher):
                assert calls > 0
                break
        else:
            pytest.fail("the task that opens the topic again did not run during 1,000 calls")
        await opening


TOOLS = 300


class Waiting:
    """A collector that ends only when the event loop goes on meanwhile."""

    def __init__(self) -> None:
        self.loop_ran = threading.Event()

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("loop_ran", "Whether it did.", float(self.loop_ran.wait(5)))


async def test_the_loop_runs_while_the_metrics_are_built() -> None:
    board, waiting = Board(), Waiting()
    board.registry.register(waiting)
    async with serving(lambda _: "done"), telling(board.telemetry()) as dispatcher:
        await dispatcher.call("work")
        asyncio.get_running_loop().call_soon(waiting.loop_ran.set)
        _, _, body = await asked(dispatcher.metrics_app(), OPEN_METRICS)
    assert "\nloop_ran 1.0\n" in body
    assert 'dispatch_calls_total{outcome="success",service="lab",tool="work"} 1.0\n' in body


@pytest.mark.costly
async def test_the_text_is_built_in_pieces_of_bounded_size() -> None:
    board = Board()
    telemetry, tools = board.telemetry(), catalog(**{f"tool-{number}": {} for number in range(TOOLS)})
    async with serving(lambda _: "done"), telling(telemetry, tools) as dispatcher:
        for name in tools.tools:
            await dispatcher.call(name)
        families = [family for family in board.registry.collect() if isinstance(family, TextFamily)]
        sizes = [piece.count("\n") for family in families for piece in family.text(open_metrics=True)]
        pauses: list[None] = []
        _, body = render_metrics(board.registry, OPEN_METRICS, "", pause=lambda: pauses.append(None))
    assert body.count(b"\n") > 80 * TOOLS
    assert max(sizes) <= max(VALUES, HISTOGRAMS * (len(DURATION_BUCKETS) + 3))
    assert len(pauses) == len(sizes) + 1, "one after each piece, and one after what others have registered"


REPEATS = 100
DESCRIPTOR = {"type": "tool-service", "name": "other", "description": "Does other work.", "service": "lab"}


async def count_turns(call: Callable[[], Awaitable[object]]) -> int:
    """Return how often another task ran during so many calls in a row."""
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(take_turns())
    try:
        for _ in range(REPEATS):
            # What is refused at once leaves time to others, too.
            with contextlib.suppress(LookupError, ValueError, RuntimeError):
                await call()
    finally:
        other.cancel()
    return turns


Calls = Callable[[dispatch.Dispatcher], Awaitable[object]]
CALLS: dict[str, Calls] = {
    "find": lambda d: d.find("work"),
    "find without a match": lambda d: d.find("zzz"),
    "find in a category": lambda d: d.find("work", category="none"),
    "tools": lambda d: d.tools(),
    "tools by a query": lambda d: d.tools(find="work"),
    "search.rank": lambda d: d.search.rank("work", {}),
    "search.refresh": lambda d: d.search.refresh(),
    "call of an unknown tool": lambda d: d.call("none"),
    "execute of an unknown tool": lambda d: d.execute("none"),
    "stream of an unknown tool": lambda d: anext(d.stream("none")),
    "call with an open circuit": lambda d: with_open_circuit(d).call("work"),
    "execute with an open circuit": lambda d: with_open_circuit(d).execute("work"),
    "stream with an open circuit": lambda d: anext(with_open_circuit(d).stream("work")),
    "start": lambda d: d.start(),
    "reload": lambda d: d.reload(),
    "registry.refresh": lambda d: d.registry.refresh(d.registry.sources()[0].id),
    "registry.refresh of an unknown source": lambda d: d.registry.refresh("none"),
    "registry.remove_source": lambda d: d.registry.remove_source("none"),
    "registry.remove": lambda d: d.registry.remove("tool", "none"),
    "registry.approve": lambda d: d.registry.approve("none", "none"),
    "result_reader": lambda d: d.results.tool("").invoke("none"),
    "answer of result_reader": lambda d: d.results.tool("").answer({}),
    "call_function without a call": lambda _: call_function([], "no call"),
    "call_function of an unknown tool": lambda _: call_function([LocalTool("one", str)], tool_call("none")),
    "call_function of a function": lambda _: call_function([LocalTool("one", str)], tool_call("one")),
    "adapters.execute of no call": lambda d: adapters.execute(d, {}, style="openai-chat"),
    "adapters.execute of another style": lambda d: adapters.execute(d, {}, style="none"),
    "adapters.execute of an unreadable call": lambda d: adapters.execute(d, UNREADABLE, style="openai-chat"),
    "adapters.execute of read_result": lambda d: adapters.execute(d, {"name": "read_result"}, style="mcp"),
    "adapters.specs": lambda d: adapters.specs(d, style="mcp"),
    "client of a removed service": lambda d: remove_service(d).call({}, {}),
}
RUNNING_ONLY = (
    *("start", "call of an unknown tool", "execute of an unknown tool", "stream of an unknown tool"),
    *("call with an open circuit", "execute with an open circuit", "stream with an open circuit"),
    *("adapters.execute of read_result", "client of a removed service"),
)
UNREADABLE = {"id": "1", "type": "function", "function": {"name": "work", "arguments": "{"}}


def with_open_circuit(dispatcher: dispatch.Dispatcher) -> dispatch.Dispatcher:
    dispatcher.breaker("work").force_open()
    return dispatcher


def remove_service(dispatcher: dispatch.Dispatcher) -> dispatch.ToolServiceClient:
    client = dispatch.ToolServiceClient(dispatcher, service="lab")
    client._service = "removed"
    return client


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("is_started", [True, False])
async def test_coroutines_of_a_dispatcher_yield(call: Calls, is_started: bool) -> None:
    if is_started:
        async with serving(lambda _: "done"), dispatching(catalog()) as dispatcher:
            dispatcher.search.use_embedder(None)
            assert await count_turns(lambda: call(dispatcher)) >= REPEATS
    elif call not in map(CALLS.get, RUNNING_ONLY):
        dispatcher = dispatch.connect(BROKER, catalog())
        dispatcher.search.use_embedder(None)
        assert await count_turns(lambda: call(dispatcher)) >= REPEATS


async def test_putting_a_tool_before_the_start_yields() -> None:
    dispatcher = dispatch.connect(BROKER, catalog())
    assert await count_turns(lambda: dispatcher.registry.put("tool", DESCRIPTOR)) >= REPEATS


async def test_coroutines_of_a_server_and_of_a_toolkit_yield() -> None:
    async with serving(lambda _: "done") as server:
        await server.drain()
        assert await count_turns(server.drain) >= REPEATS
        await server.close()
        assert await count_turns(server.close) >= REPEATS
    assert await count_turns(ToolPackage("json").list_tools) >= REPEATS


async def test_tools_are_embedded_beside_searches_without_a_pause() -> None:
    async with serving(lambda _: "done"), dispatching(catalog(rain={})) as dispatcher:
        dispatcher.search.use_embedder(WordEmbedder())
        for _ in range(30_000):
            if "similar meaning" in (await dispatcher.find("forecast of rain"))[0].why:
                break
        else:
            pytest.fail("the tools were not embedded during 30,000 searches")


class SlowEmbedder(WordEmbedder):
    """Waits for the interpreter lock at each step, as every library does that releases it while it computes."""

    encode_queries = WordEmbedder.encode

    def encode(self, texts: Sequence[str]) -> Any:
        for _ in range(20):
            time.sleep(0.01)
        return super().encode(texts)


@pytest.mark.wall_clock
async def test_a_loop_of_searches_leaves_the_processor_to_the_first_embedding() -> None:
    async with serving(lambda _: "done"), dispatching(catalog(rain={})) as dispatcher:
        dispatcher.search.use_embedder(SlowEmbedder())
        began, searches = time.monotonic(), 0
        while "words only" in (await dispatcher.find("rain"))[0].why:
            searches += 1
            assert time.monotonic() < began + 20
        assert 0 < searches <= (time.monotonic() - began) / EMBEDDING_TURN_S + 1


Use = Callable[[dispatch.Dispatcher], Awaitable[Any]]


async def streamed(dispatcher: dispatch.Dispatcher) -> list[str]:
    return [chunk async for chunk in dispatcher.stream("work")]


USES: dict[str, Use] = {
    "call": lambda dispatcher: dispatcher.call("work"),
    "execute": lambda dispatcher: dispatcher.execute("work"),
    "stream": streamed,
    "tool": lambda dispatcher: dispatcher.tool("work").invoke(),
    "client": lambda dispatcher: dispatch.ToolServiceClient(dispatcher, service="lab").call({}, {}),
    "tools": lambda dispatcher: dispatcher.tools(),
    "find": lambda dispatcher: dispatcher.find("work"),
    "reload": lambda dispatcher: dispatcher.reload(catalog()),
    "put": lambda dispatcher: dispatcher.registry.put("tool-service", {"id": "more"}),
    "remove": lambda dispatcher: dispatcher.registry.remove("tool", "work"),
    "refresh": lambda dispatcher: dispatcher.registry.refresh(dispatcher.registry.sources()[0].id),
    "add": lambda dispatcher: dispatcher.registry.add_source(dispatch.Functions(len, id="more")),
    "remove-source": lambda dispatcher: dispatcher.registry.remove_source(dispatcher.registry.sources()[0].id),
}


def made() -> dispatch.Dispatcher:
    return dispatch.Dispatcher(MemoryTransport(BROKER), catalog(), policy=dispatch.Policy(timeout=5))


async def begin(dispatcher: dispatch.Dispatcher) -> None:
    async with serving(lambda _: "done"):
        await dispatcher.start()
        assert await dispatcher.call("work") == "done"


async def misuse(dispatcher: dispatch.Dispatcher, use: Use) -> None:
    with pytest.raises(RuntimeError, match="was started on another event loop"):
        await asyncio.wait_for(use(dispatcher), 5)


async def close_twice(dispatcher: dispatch.Dispatcher) -> None:
    await asyncio.wait_for(dispatcher.close(drain=1), 5)
    await dispatcher.close()


@pytest.mark.parametrize("use", USES)
def test_after_the_first_loop_has_ended(use: str) -> None:
    dispatcher = made()
    asyncio.run(begin(dispatcher))
    asyncio.run(misuse(dispatcher, USES[use]))
    assert dispatcher.is_connected
    asyncio.run(close_twice(dispatcher))
    assert not dispatcher.is_connected


def run_in_child(work: Coroutine[Any, Any, None]) -> int:
    """Fork a child that runs ``work`` on a loop of its own, and exits with 1 where that raises; return its id."""
    child = os.fork()
    if not child:
        code = 1
        try:
            asyncio.run(work)
            code = 0
        finally:
            os._exit(code)
    work.close()
    return child


def wait_for_child(child: int) -> int:
    """Return the exit code of a child."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_in_a_child_that_was_forked_from_the_loop() -> None:
    dispatcher = made()

    async def fork() -> int:
        await begin(dispatcher)
        child = run_in_child(misuse(dispatcher, USES["call"]))
        await dispatcher.close()
        return child

    assert wait_for_child(asyncio.run(fork())) == 0


class Branching(MemoryTransport):
    """Remembers its further connections."""

    def __init__(self) -> None:
        super().__init__(BROKER)
        self.further: list[MemoryTransport] = []

    def another(self) -> MemoryTransport:
        self.further.append(MemoryTransport(BROKER))
        return self.further[-1]


@pytest.mark.costly
def test_further_connections_are_closed_after_the_first_loop_has_ended() -> None:
    transport = Branching()
    dispatcher = dispatch.Dispatcher(transport, catalog(), policy=dispatch.Policy(timeout=20))

    async def call_many() -> None:
        async with serving(lambda _: "x" * 400_000):
            await dispatcher.start()
            for _ in range(12):
                results = await asyncio.gather(*(dispatcher.execute("work") for _ in range(8)))
                assert all(result.ok for result in results)

    asyncio.run(call_many())
    assert transport.further
    assert all(each.connected for each in transport.further)
    asyncio.run(close_twice(dispatcher))
    assert not any(each.connected for each in transport.further)


@contextmanager
def loop_in_a_thread() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


@pytest.mark.parametrize("use", USES)
def test_while_the_first_loop_runs_in_another_thread(use: str) -> None:
    dispatcher = made()
    with loop_in_a_thread() as loop:
        asyncio.run_coroutine_threadsafe(begin(dispatcher), loop).result(10)
        asyncio.run(misuse(dispatcher, USES[use]))
        asyncio.run(close_twice(dispatcher))
        assert not dispatcher.is_connected


class OwnClient:
    """A client of TrustGraph's."""

    async def call(self, config: object, arguments: object, timeout: float = 1) -> str:
        return "done"


def wrapped() -> dispatch.WrappedClient:
    return dispatch.wrap(OwnClient(), tool="work", policy={"rate-limit": {"rate": "1/h", "burst": 2, "max-wait": 0}})


def test_the_limits_of_a_wrapped_client_are_not_reset_by_another_loop() -> None:
    client = wrapped()
    with loop_in_a_thread() as loop:

        def call() -> str:
            return asyncio.run_coroutine_threadsafe(client.call({}, {}), loop).result(10)

        assert call() == "done"
        with pytest.raises(RuntimeError, match="is used on another event loop, which still runs"):
            asyncio.run(client.call({}, {}))
        assert call() == "done"
        with pytest.raises(dispatch.ThrottledError):
            call()
    assert asyncio.run(client.call({}, {})) == "done", "that loop has ended"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_wrapped_client_in_a_child_that_was_forked_from_the_loop() -> None:
    client = wrapped()

    async def call() -> None:
        assert await client.call({}, {}) == "done"

    async def fork() -> int:
        await client.call({}, {})
        return run_in_child(call())

    assert wait_for_child(asyncio.run(fork())) == 0


@pytest.mark.pulsar
@pytest.mark.parametrize("scheme", ["non-persistent", "persistent"])
def test_closing_on_a_second_loop_ends_the_genuine_connection(pulsar_endpoint: Endpoint, scheme: str) -> None:
    url, topic = pulsar_endpoint.service_url, unique_topic("loops")
    request_queue, response_queue = f"{scheme}://tg/request/{topic}", f"{scheme}://tg/response/{topic}"

    async def begin_on_pulsar(dispatcher: dispatch.Dispatcher) -> None:
        async with dispatch.ToolServer(Echo(), url, request_queue=request_queue, response_queue=response_queue):
            await dispatcher.start()
            assert await dispatcher.call("echo", {"text": "hello"}, timeout=30) == "hello"

    def once() -> None:
        dispatcher = dispatch.connect(url, catalog_of(topic, scheme=scheme))
        asyncio.run(begin_on_pulsar(dispatcher))
        asyncio.run(close_twice(dispatcher))
        assert not dispatcher.is_connected

    async def grown(before: tuple[int, int]) -> tuple[int, int]:
        return await settled(before)

    once()  # what is opened once in a process is open by now
    with without_garbage_collection():
        before = open_files_and_threads()
        once()
        assert max(asyncio.run(grown(before))) <= 3


WORK_S = 5.0


async def work(_arguments: dict[str, Any]) -> str:
    await asyncio.sleep(WORK_S)
    return "done"


async def cancelled(closing: Awaitable[None]) -> None:
    task = asyncio.ensure_future(closing)
    await advance(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def timed_out(closing: Awaitable[None]) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await closing


@pytest.mark.parametrize("cut_short", [cancelled, timed_out])
async def test_a_drain_that_is_cut_short_closes_the_connection(
    cut_short: Callable[[Awaitable[None]], Awaitable[None]],
) -> None:
    async with serving(work):
        dispatcher = dispatch.Dispatcher(MemoryTransport(BROKER), catalog())
        await dispatcher.start()
        call = asyncio.create_task(dispatcher.execute("work"))
        await idle()
        began = virtual_loop().time()
        await cut_short(dispatcher.close(drain=30))
        assert virtual_loop().time() - began == pytest.approx(1)
        assert not dispatcher.is_connected
        result = await call
        assert isinstance(result.error, dispatch.TransportError)
        assert result.error.type == "closed"


async def test_two_concurrent_closers_both_end_with_the_last_call() -> None:
    async with serving(work), dispatching() as dispatcher:
        call = asyncio.create_task(dispatcher.execute("work"))
        await idle()
        began = virtual_loop().time()
        await asyncio.gather(dispatcher.close(drain=30), dispatcher.close(drain=30))
        assert (await call).ok
        assert virtual_loop().time() - began < WORK_S + 1


TOPICS, MESSAGES = 8, 50


LOGGER = "dispatch.pulsar"


async def last_line(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """Make pulsar-client write a line and wait for it: the lines before it have come by then."""
    topic = f"non-persistent://tg/response/refused-{uuid.uuid4().hex}"
    client = pulsar.Client(url, logger=client_logger())

    def refused() -> None:
        client.subscribe(topic, "exclusive")
        with pytest.raises(pulsar.PulsarException):
            client.subscribe(topic, "exclusive")

    try:
        await asyncio.to_thread(refused)
    finally:
        await asyncio.to_thread(client.close)
    async with asyncio.timeout(20):
        while not any(topic in record.getMessage() for record in caplog.records):  # noqa: ASYNC110 - a thread reads it
            await asyncio.sleep(0.01)


@pytest.mark.pulsar
@pytest.mark.parametrize("scheme", ["non-persistent", "persistent"])
async def test_closing_publishers_under_load_fails_nothing_and_logs_nothing(
    pulsar_endpoint: Endpoint, caplog: pytest.LogCaptureFixture, scheme: str
) -> None:
    caplog.set_level(logging.DEBUG, LOGGER)
    failures: list[TransportError] = []
    transport = PulsarTransport(pulsar_endpoint.service_url, publish_window=TOPICS * MESSAGES)
    await transport.start()
    try:
        for _ in range(3):
            topics = [f"{scheme}://tg/response/closed-{uuid.uuid4().hex}" for _ in range(TOPICS)]
            publishers = await asyncio.gather(*(transport.publisher(topic) for topic in topics))
            for publisher in publishers:
                for _ in range(MESSAGES):
                    publisher.publish(b"x" * 1_000, {}, flow="a", on_failure=failures.append)
            await asyncio.gather(*(publisher.close() for publisher in publishers))
    finally:
        await transport.close()
    await last_line(pulsar_endpoint.service_url, caplog)
    lines = [each.getMessage() for each in caplog.records if each.name == LOGGER and "SendReceipt" in each.getMessage()]
    assert (len(failures), lines) == (0, [])
