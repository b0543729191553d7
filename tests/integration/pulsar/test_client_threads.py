"""pulsar-client's threads keep their Python thread state, and a process that has used them ends as any other."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from typing import Any

import pulsar
import pytest

import dispatch
from benchmarks.harness.broker import Endpoint
from dispatch.transports.pulsar import transport
from dispatch.transports.pulsar.client import keep_thread_state
from tests.helpers.catalogs import catalog_of, unique_topic
from tests.helpers.echo_service import Echo
from tests.helpers.python_processes import REPO

pytestmark = pytest.mark.pulsar

MANY = 50


@pytest.mark.parametrize("keep", [True, False])
def test_a_thread_remembers_only_what_its_kept_state_holds(pulsar_endpoint: Endpoint, keep: bool) -> None:
    """Without it, each callback has a state of its own: when that ends, this workaround can go."""
    local = threading.local()
    seen: queue.Queue[int] = queue.Queue()

    def listener(_consumer: Any, _message: Any) -> None:
        if keep:
            keep_thread_state()
        local.callbacks = getattr(local, "callbacks", 0) + 1
        seen.put(local.callbacks)

    client = pulsar.Client(
        pulsar_endpoint.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), connection_timeout_ms=5000
    )
    try:
        topic = f"non-persistent://tg/request/{unique_topic('threads')}"
        client.subscribe(topic, "threads", message_listener=listener)
        producer = client.create_producer(topic)
        counts = []
        for _ in range(MANY):  # one at a time: none is lost
            producer.send(b"")
            counts.append(seen.get(timeout=20))
    finally:
        client.close()
    assert counts == (list(range(1, MANY + 1)) if keep else [1] * MANY)


async def test_the_transports_callbacks_keep_it(pulsar_endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    local = threading.local()
    callbacks: list[int] = []

    def counting() -> None:
        keep_thread_state()
        local.callbacks = getattr(local, "callbacks", 0) + 1
        callbacks.append(local.callbacks)

    monkeypatch.setattr(transport, "keep_thread_state", counting)  # of messages
    monkeypatch.setattr(transport, "keep_thread_state", counting)  # of receipts
    topic = unique_topic()
    async with (
        dispatch.ToolServer(Echo(), pulsar_endpoint.service_url, service=topic),
        dispatch.connect(pulsar_endpoint.service_url, catalog_of(topic)) as dispatcher,
    ):
        for number in range(MANY):
            assert await dispatcher.call("echo", {"text": str(number)}, timeout=20) == str(number)
    assert len(callbacks) >= 4 * MANY, "on both sides a receipt and a message a call"
    assert max(callbacks) >= MANY
    assert callbacks.count(1) <= 6, "a thread for receipts and one for messages, on each side"


ENDINGS = {
    "closed": "await dispatcher.close()",
    "forgotten": "pass",
    "failed": "raise SystemExit(7)",
    "under load": "[asyncio.create_task(dispatcher.call('echo', timeout=5)) for _ in range(500)]; await asyncio.sleep(0)",
}

SCRIPT = """
import asyncio, sys
import dispatch
from tests.helpers.catalogs import catalog_of
from tests.helpers.echo_service import Echo

async def main():
    url, topic = sys.argv[1:]
    server = dispatch.ToolServer(Echo(), url, service=topic)
    await server.start()
    dispatcher = dispatch.connect(url, catalog_of(topic))
    await dispatcher.start()
    await asyncio.gather(*(dispatcher.call("echo", timeout=20) for _ in range(200)))
    print("called", flush=True)
    {ending}

asyncio.run(main())
"""


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_process_ends_however_it_ends(pulsar_endpoint: Endpoint, ending: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(ending=ENDINGS[ending]), pulsar_endpoint.service_url, unique_topic()],
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.stdout == "called\n", ended.stderr
    assert ended.returncode == (7 if ending == "failed" else 0), ended.stderr
    assert "Fatal" not in ended.stderr
    assert "Traceback" not in ended.stderr
