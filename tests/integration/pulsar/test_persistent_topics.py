"""Persistent topics on a genuine broker: for requests, answers or both; and calls whose service is killed."""

from __future__ import annotations

import asyncio
import mmap
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pulsar
import pytest

import dispatch
from benchmarks.harness.broker import Endpoint
from dispatch.transports import DurableMessage, Message, Mode
from dispatch.transports.pulsar.transport import PulsarTransport
from tests.helpers.catalogs import catalog_of, queues_of, unique_topic
from tests.helpers.counting_service import Counting, Counts, answer, counting_process
from tests.helpers.internals import transport_of

pytestmark = pytest.mark.pulsar

KINDS = ("non-persistent", "persistent")
KEPT = "persistent"
TIMEOUT_S = 60.0


async def until(reached: Callable[[], Any]) -> None:
    """Wait for what another process does."""
    async with asyncio.timeout(30):
        while not reached():  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(0.002)


@contextmanager
def instance(url: str, topic: str, counts: Counts, name: str, answers: str = KEPT) -> Iterator[Any]:
    with counting_process(url, ",".join(queues_of(topic, KEPT, answers)), counts, instance=name) as process:
        yield process


@asynccontextmanager
async def here(url: str, topic: str, counts: Counts, **options: Any) -> AsyncIterator[dispatch.ToolServer]:
    """An instance in this process."""
    request_queue, response_queue = queues_of(topic, KEPT)
    with counts.path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        async with dispatch.ToolServer(
            Counting(memory), url, request_queue=request_queue, response_queue=response_queue, **options
        ) as server:
            yield server


@pytest.mark.parametrize("requests", KINDS)
@pytest.mark.parametrize("answers", KINDS)
async def test_large_answers_all_arrive_and_each_call_runs_once(
    pulsar_endpoint: Endpoint, tmp_path: Path, requests: str, answers: str
) -> None:
    total, size = 192, 100_000  # of 64 callers, three each
    counts = Counts(tmp_path / "counts", total)
    url, topic = pulsar_endpoint.service_url, unique_topic("kept")
    numbers = iter(range(total))
    problems: list[str] = []
    with counting_process(url, ",".join(queues_of(topic, requests, answers)), counts):
        async with dispatch.connect(url, catalog_of(topic, scheme=requests, answers=answers)) as dispatcher:

            async def caller() -> None:
                for number in numbers:
                    result = await dispatcher.execute("echo", {"n": number, "size": size}, timeout=TIMEOUT_S)
                    if result.text != answer(number, size):
                        problems.append(f"{number}: {result.error}")

            await asyncio.gather(*(caller() for _ in range(64)))
            assert problems == []
            assert dispatcher.pending_requests == 0
    assert Counter(counts.all()) == {1: total}


@pytest.mark.parametrize(
    ("why", "answers"), [("read-only", "persistent"), ("idempotent", "non-persistent"), ("key", "persistent")]
)
async def test_a_repeatable_call_whose_instance_is_killed_is_answered_by_another(
    pulsar_endpoint: Endpoint, tmp_path: Path, why: str, answers: str
) -> None:
    calls = 8
    counts = Counts(tmp_path / "counts", calls)
    url, topic = pulsar_endpoint.service_url, unique_topic("kept")
    declared = {} if why == "key" else {why: True}
    with instance(url, topic, counts, "first", answers) as first:
        async with dispatch.connect(url, catalog_of(topic, scheme=KEPT, answers=answers, **declared)) as dispatcher:
            waiting = [
                asyncio.create_task(
                    dispatcher.execute(
                        "echo",
                        {"n": number, "seconds_at_first": TIMEOUT_S},  # until it is killed
                        timeout=TIMEOUT_S,
                        idempotency_key=f"{topic}-{number}" if why == "key" else None,
                    )
                )
                for number in range(calls)
            ]
            await until(lambda: set(counts.all()) == {1})
            with instance(url, topic, counts, "second", answers):
                first.kill()
                results = await asyncio.gather(*waiting)
    assert [(result.text, result.instance) for result in results] == [
        (answer(number, 1), "second") for number in range(calls)
    ]
    assert set(counts.all()) == {2}


async def test_any_other_call_ends_by_its_deadline_and_never_runs_again(
    pulsar_endpoint: Endpoint, tmp_path: Path
) -> None:
    """Killed in the very moment in which it begins: by then it is acknowledged, not a tenth of a second later."""
    lives = 3
    counts = Counts(tmp_path / "counts", lives + 1)
    url, topic = pulsar_endpoint.service_url, unique_topic("kept")
    async with dispatch.connect(url, catalog_of(topic, scheme=KEPT)) as dispatcher:
        results = []
        for number in range(lives):
            with instance(url, topic, counts, f"life-{number}") as process:
                call = asyncio.create_task(dispatcher.execute("echo", {"n": number, "seconds": 60}, timeout=3))
                await until(lambda number=number: counts[number] == 1)
                process.kill()
                results.append(call)
        with instance(url, topic, counts, "last"):
            assert (await dispatcher.execute("echo", {"n": lives}, timeout=TIMEOUT_S)).instance == "last"
            for result in await asyncio.gather(*results):
                assert isinstance(result.error, dispatch.CallTimeoutError)
                assert "may have been executed" in result.error.message
                assert not result.error.retryable
    assert set(counts.all()) == {1}


@pytest.mark.parametrize("declared", [{}, {"read-only": True}])
async def test_a_call_waits_for_a_service_that_is_not_there_yet(
    pulsar_endpoint: Endpoint, tmp_path: Path, declared: dict[str, Any]
) -> None:
    counts = Counts(tmp_path / "counts", 2)
    url, topic = pulsar_endpoint.service_url, unique_topic("kept")
    async with dispatch.connect(url, catalog_of(topic, scheme=KEPT, **declared)) as dispatcher:
        async with here(url, topic, counts):
            assert (await dispatcher.execute("echo", {"n": 0}, timeout=TIMEOUT_S)).ok
        # There is a subscription now: what is sent from now on is kept for it.
        call = asyncio.create_task(dispatcher.execute("echo", {"n": 1}, timeout=TIMEOUT_S))
        await until(lambda: dispatcher.pending_requests == 1)
        await transport_of(dispatcher).flush()
        async with here(url, topic, counts):
            assert (await call).text == answer(1, 1)
    assert set(counts.all()) == {1}


async def test_what_comes_again_after_its_callers_time_is_not_run(pulsar_endpoint: Endpoint, tmp_path: Path) -> None:
    """Its time began when it was published, not when it came here."""
    counts = Counts(tmp_path / "counts", 2)
    url, topic = pulsar_endpoint.service_url, unique_topic("kept")
    async with dispatch.connect(url, catalog_of(topic, scheme=KEPT, **{"read-only": True})) as dispatcher:
        with instance(url, topic, counts, "first") as first:
            # It stands still beyond the deadline, as a machine does that swaps, so that it neither answers nor stops.
            call = asyncio.create_task(dispatcher.execute("echo", {"n": 0, "seconds": 60}, timeout=1.5))
            await until(lambda: counts[0] == 1)
            first.send_signal(signal.SIGSTOP)
            assert isinstance((await call).error, dispatch.CallTimeoutError)
            async with here(url, topic, counts) as second:
                assert second.requests == 0
                first.kill()
                await until(lambda: second.requests)
                assert second.refused["expired"] == 1
                assert (await dispatcher.execute("echo", {"n": 1}, timeout=TIMEOUT_S)).ok
    assert set(counts.all()) == {1}


async def test_an_instance_that_leaves_finishes_what_runs_and_leaves_the_rest_to_others(
    pulsar_endpoint: Endpoint, tmp_path: Path
) -> None:
    calls = 40
    counts = Counts(tmp_path / "counts", calls)
    url, topic = pulsar_endpoint.service_url, unique_topic("kept")
    async with (
        dispatch.connect(url, catalog_of(topic, scheme=KEPT, **{"read-only": True})) as dispatcher,
        here(url, topic, counts, instance="first", concurrency=4) as first,
    ):
        waiting = [
            asyncio.create_task(dispatcher.execute("echo", {"n": number, "seconds": 0.5}, timeout=TIMEOUT_S))
            for number in range(calls)
        ]
        await until(lambda: first.queued == calls - 4)
        async with here(url, topic, counts, instance="second") as second:
            await first.drain()
            by = Counter(result.instance for result in await asyncio.gather(*waiting))
            assert by == {"first": 4, "second": calls - 4}
            assert (first.refused["draining"], second.requests) == (0, calls - 4)
    assert set(counts.all()) == {1}


async def test_what_is_answered_while_the_connection_is_away_comes_when_it_is_back(pulsar_endpoint: Endpoint) -> None:
    """A reply topic is read on from where it was; a new reader would begin with what comes after it."""
    topic, got, all_here = f"persistent://tg/response/{unique_topic()}", list[bytes](), asyncio.Event()

    def handler(message: Message) -> None:
        got.append(message.data())
        if len(got) in (1, 50):
            all_here.set()

    here, there = PulsarTransport(pulsar_endpoint.service_url), PulsarTransport(pulsar_endpoint.service_url)
    await here.start()
    await there.start()
    try:
        await here.subscribe(topic, handler, mode=Mode.FANOUT, name="test")
        publisher = await there.publisher(topic)
        publisher.publish(b"0", {}, flow="", on_failure=lambda error: None)
        async with asyncio.timeout(30):
            await all_here.wait()
            all_here.clear()
            await here._supervisor.close()  # as if the broker had gone: it is replaced in a second
            for number in range(1, 50):
                publisher.publish(b"%d" % number, {}, flow="", on_failure=lambda error: None)
            await all_here.wait()
        assert got == [b"%d" % number for number in range(50)]
        assert here.reconnects == 1
    finally:
        await here.close()
        await there.close()


async def test_a_message_of_a_batch_is_settled_when_all_of_the_batch_are_acknowledged(
    pulsar_endpoint: Endpoint,
) -> None:
    """The broker redelivers a batch as a whole: a message of it that runs once must wait for those that may run again."""
    topic = f"persistent://tg/request/{unique_topic()}"
    arrived: dict[bytes, DurableMessage] = {}
    settled: list[bytes] = []

    def handler(message: Message) -> None:
        assert isinstance(message, DurableMessage)
        data = message.data()
        arrived[data] = message
        if data in (b"once", b"alone"):
            message.settle(lambda: settled.append(data))
        else:
            message.keep()

    transport = PulsarTransport(pulsar_endpoint.service_url)
    client = pulsar.Client(pulsar_endpoint.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    await transport.start()
    try:
        await transport.subscribe(topic, handler, mode=Mode.SHARED, name="batched")
        producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=100)
        for data in (b"again", b"once", b"too"):
            producer.send_async(data, lambda *_: None)
        producer.flush()
        producer.send(b"alone")
        await until(lambda: settled)
        await asyncio.sleep(0.3)
        assert settled == [b"alone"]
        arrived[b"again"].acknowledge()
        arrived[b"again"].acknowledge()
        await asyncio.sleep(0.3)
        assert settled == [b"alone"]
        arrived[b"too"].acknowledge()
        await until(lambda: len(settled) > 1)
        assert settled == [b"alone", b"once"]
    finally:
        client.close()
        await transport.close()
