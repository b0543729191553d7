"""The broker is killed (-9) and restarted, or cannot be reached, under load: calls end in time, and succeed again later;
requests that were sent in a session are answered later, and executed once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pulsar
import pytest

import dispatch
from benchmarks.harness.broker import Endpoint
from dispatch.devtools.localbroker import Admin, LocalBroker, create_namespaces, find_free_ports
from tests.helpers.call_records import End
from tests.helpers.catalogs import catalog_of, unique_topic
from tests.helpers.cli_processes import started
from tests.helpers.echo_service import echo_process
from tests.helpers.fault_lab import FaultLab
from tests.helpers.lossy_proxy import LossyProxy

pytestmark = pytest.mark.pulsar
TIMEOUT = 3.0
CALLS = 6_000


@dataclass
class Ended:
    began: float
    ended: float
    result: dispatch.CallResult


class Load:
    """Callers that call again and again."""

    def __init__(self, dispatcher: dispatch.Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._stop = False
        self.ended: list[Ended] = []
        self.success = asyncio.Event()

    async def _caller(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._stop:
            began = loop.time()
            result = await self._dispatcher.execute("echo", {"sleep": 0.005}, timeout=TIMEOUT)
            self.ended.append(Ended(began, loop.time(), result))
            if result.ok:
                self.success.set()

    @asynccontextmanager
    async def running(self, callers: int) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self._caller()) for _ in range(callers)]
        try:
            yield
        finally:
            self._stop = True
            await asyncio.gather(*tasks)


def first_lookup(url: str) -> None:
    """Wait until a broker that has just started serves topics: its first lookup takes seconds on a busy machine."""
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        client.create_reader(f"non-persistent://tg/response/{unique_topic()}", pulsar.MessageId.latest)
    finally:
        client.close()


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    """A broker that the tests of this module kill."""
    with LocalBroker.start() as broker:
        create_namespaces(Admin(broker.web_url))
        yield broker


async def test_a_killed_broker_costs_calls_their_deadline_and_no_more(broker: LocalBroker) -> None:
    loop = asyncio.get_running_loop()
    topic = unique_topic()
    serve = ("serve", "examples/calculator_service.py", "--service", unique_topic(), "--json")
    changes: list[dispatch.Event] = []
    with echo_process(broker.service_url, topic, 256), started(*serve, DISPATCH_BROKER=broker.service_url) as served:
        await asyncio.to_thread(served.out.wait_for, "ready")
        async with dispatch.connect(broker.service_url, catalog_of(topic)) as dispatcher:
            dispatcher.on_event(changes.append)
            load = Load(dispatcher)
            async with load.running(32):
                await load.success.wait()
                await asyncio.to_thread(broker.kill)
                killed = loop.time()
                await asyncio.to_thread(broker.restart)
                await asyncio.to_thread(first_lookup, broker.service_url)
                ready = loop.time()
                load.success.clear()
                async with asyncio.timeout(30):
                    await load.success.wait()
            assert dispatcher.pending_requests == 0
        await asyncio.to_thread(served.out.wait_for, "broker-back")
    broker_changes = [each for each in changes if isinstance(each, dispatch.BrokerChanged)]
    # A broker that starts on a busy machine may be lost once more: by the dispatcher, and by the service.
    assert [each.connected for each in broker_changes] in ([False, True], [False, True] * 2)
    assert broker_changes[1].seconds == pytest.approx(broker_changes[1].at - broker_changes[0].at, abs=1)
    events = [json.loads(line)["event"] for line in served.out.text().splitlines()]
    outages = events.count("broker-lost")
    assert outages in (1, 2)
    assert [each for each in events if each != "idle"] == ["ready", *["broker-lost", "broker-back"] * outages]
    said = [line for line in served.err.text().splitlines() if "onnect" in line]
    assert [re.sub(r"[\d.]+ s$", "N s", line.partition("WARNING: ")[2]) for line in said] == [
        f"connection to {broker.service_url} lost",
        f"connected to {broker.service_url} again after N s",
    ] * outages
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", line) for line in said)
    failed = [e for e in load.ended if not e.result.ok]
    assert failed, "the broker was away for seconds: some calls must have failed"
    for call in failed:
        error = call.result.error
        assert isinstance(error, dispatch.CallTimeoutError | dispatch.TransportError), error
        assert isinstance(error, dispatch.CallTimeoutError) or error.type in (
            "disconnected",
            "connection-lost",
            "send-failed",
            "send-timeout",  # it waited behind others when the broker was killed
        )
        assert error.type != "send-timeout" or not error.may_have_run
    # By its deadline: what is beyond it is the loop's own delay.
    assert max(e.ended - e.began for e in load.ended) < TIMEOUT + 1
    first = min(e.began for e in load.ended if e.result.ok and e.ended > killed + 0.5)
    assert first - ready <= 3, "calls should succeed within 3 s of the broker being ready"


@pytest.mark.slow
def test_calls_in_flight_survive_a_killed_broker(broker: LocalBroker, tmp_path: Path) -> None:
    with FaultLab(broker.service_url, tmp_path, CALLS) as lab:
        lab.start_instance()
        lab.start_dispatchers()
        lab.wait_executed(CALLS // 4)
        with lab.broker_away():
            broker.kill()
            broker.restart()
            first_lookup(broker.service_url)
        ready = time.monotonic()
        lab.wait_done()
        ends = lab.check()
        answered = [each for each in lab.record_file.records if each.end == End.ANSWERED]
        first = min(each.finished for each in answered if each.finished > ready)
        sys.stdout.write(f"\n{dict(ends)}, first answer {first - ready:.2f} s after the broker was back\n")
        assert max(each.finished for each in answered) > ready


async def test_a_call_that_could_not_leave_says_so_and_never_runs_later(pulsar_endpoint: Endpoint) -> None:
    """A request that waits for a connection is withdrawn when its call ends: it must not reach the service later."""
    (port,) = find_free_ports(1)
    url, topic, ran = f"pulsar://127.0.0.1:{port}", unique_topic(), []

    class Remember(dispatch.ToolService):
        async def invoke(self, config: dict, arguments: dict, user: str = "") -> str:
            ran.append(arguments["text"])
            return "done"

    with contextlib.ExitStack() as proxy:
        proxy.enter_context(LossyProxy.before(pulsar_endpoint.service_url, port=port))
        async with (
            dispatch.connect(url, catalog_of(topic)) as dispatcher,
            dispatch.ToolServer(Remember(), url, service=topic),
        ):
            assert await dispatcher.call("echo", {"text": "before"}) == "done"
            proxy.close()  # both lose their connections, and nothing listens at the address of the broker
            while dispatcher.is_connected:  # noqa: ASYNC110 - a state of the transport, without an event
                await asyncio.sleep(0)
            result = await dispatcher.execute("echo", {"text": "lost"}, timeout=0.5)
            assert isinstance(result.error, dispatch.TransportError)
            assert (result.error.type, result.error.may_have_run, result.error.retryable) == (
                "disconnected",
                False,
                True,
            )
            proxy.enter_context(LossyProxy.before(pulsar_endpoint.service_url, port=port))
            async with asyncio.timeout(30):
                while not (await dispatcher.execute("echo", {"text": "after"}, timeout=1)).ok:
                    pass
    assert ran[0] == "before"
    assert set(ran[1:]) == {"after"}
