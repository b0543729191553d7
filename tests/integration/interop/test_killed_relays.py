"""Three relays between published clients and the published ``DynamicToolService``, one of them killed and started again and
again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.cli_processes import Program, environment, started
from tests.helpers.counting_service import Counts, answer
from tests.helpers.python_processes import running
from tests.helpers.run_profile import by_profile
from tests.integration.interop.peers import request_topic, response_topic, their_client

pytestmark = pytest.mark.pulsar

CALLS = by_profile(short=600, long=100_000)
IN_FLIGHT = 32
RELAYS = 3
INSTANCES = 2
KILL_EVERY_S = 1.5
RECOVERS_S = 1.0
"""A message may be given to a relay while the broker learns that it was killed."""
Lost = dict[int, tuple[float, float]]
READ, WRITE = {"kind": "read"}, {"kind": "write"}


def write_config(folder: Path, url: str, public: str, instances: list[str]) -> Path:
    service = {
        "id": "counting",
        "request-queue": request_topic(public),
        "response-queue": response_topic(public),
        "config-params": [{"name": "kind"}],
        "instances": [
            {"id": each, "request-queue": request_topic(each), "response-queue": response_topic(each)}
            for each in instances
        ],
        "policy": {"timeout": 20, "attempt-timeout": 5, "breaker": None, "bulkhead": None},
    }
    common = {"type": "tool-service", "description": "Counts.", "service": "counting"}
    files: dict[str, Any] = {
        "tools/tool-service/counting.json": service,
        "tools/tool/read.json": {**common, "name": "read", "read-only": True, **READ},
        "tools/tool/write.json": {**common, "name": "write", **WRITE},
        "relay.json": {"broker": url, "catalog": ["tools"]},
    }
    for name, raw in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(raw))
    return folder / "relay.json"


@contextlib.contextmanager
def services(url: str, topics: list[str], counts: Counts, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("COUNTS", str(counts.path))
    with contextlib.ExitStack() as stack:
        for topic in topics:
            options = ("--topic", topic, "--id", topic, "--pulsar-host", url, "--no-metrics", "--no-loki-enabled")
            module = "tests.integration.interop.trustgraph_counting_service"
            stack.enter_context(running("-m", module, *options, ready=f"Tool service {topic} started"))
        yield


class Relays:
    """Three relays. ``killed_at``: when one was killed."""

    def __init__(self, config: Path) -> None:
        self._arguments = ("relay", "--config", str(config))
        self._stack = contextlib.ExitStack()
        self.running: list[Program] = []
        self.killed_at: list[float] = []

    def __enter__(self) -> Relays:
        for _ in range(RELAYS):
            self._start()
        for each in self.running:
            each.err.wait_for("Relaying")
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stack.close()

    def _start(self) -> None:
        self.running.append(self._stack.enter_context(started(*self._arguments, **_ENVIRONMENT)))

    async def kill_again_and_again(self) -> None:
        while True:
            await asyncio.sleep(KILL_EVERY_S * random.uniform(0.5, 1.5))
            ready = [each for each in self.running if "Relaying" in each.err.text()]
            if len(ready) < RELAYS - 1:
                continue
            victim = random.choice(ready)
            victim.process.kill()
            self.killed_at.append(time.monotonic())
            self.running.remove(victim)
            self._start()


_ENVIRONMENT = {key: value for key, value in environment().items() if key == "PYTHONPATH"}


async def call_all(url: str, public: str, config_of: Any, timeout: float) -> tuple[dict[int, str], Lost]:
    """Make all calls; return the answers, and when the calls without one began and ended."""
    numbers = iter(range(CALLS))
    answers: dict[int, str] = {}
    lost: Lost = {}
    async with their_client(url, public) as client:

        async def caller() -> None:
            for number in numbers:
                began = time.monotonic()
                try:
                    answers[number] = await client.call(config_of(number), {"n": number}, timeout=timeout)
                except (TimeoutError, RuntimeError) as error:
                    lost[number] = began, time.monotonic()
                    if isinstance(error, RuntimeError):
                        answers[number] = f"error: {error}"

        await asyncio.gather(*(caller() for _ in range(IN_FLIGHT)))
    return answers, lost


async def test_non_persistent_only_what_a_killed_relay_holds_is_lost(
    url: str, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = Counts(tmp_path / "counts", CALLS)
    instances = [f"{topic}-{number}" for number in range(INSTANCES)]
    config = write_config(tmp_path, url, topic, instances)
    with services(url, instances, counts, monkeypatch), Relays(config) as relays:
        killing = asyncio.create_task(relays.kill_again_and_again())
        answers, lost = await call_all(url, topic, lambda n: (READ, WRITE)[n % 2], 30.0)
        killing.cancel()
    assert {n: text for n, text in answers.items() if text != answer(n, 8)} == {}
    assert relays.killed_at
    unexplained = [
        n for n, (began, ended) in lost.items() if not any(began - RECOVERS_S <= at <= ended for at in relays.killed_at)
    ]
    assert unexplained == []
    assert len(lost) <= IN_FLIGHT * len(relays.killed_at)
    assert max(counts[n] for n in range(1, CALLS, 2)) <= 1


async def test_persistent_every_repeatable_call_is_answered_and_no_other_runs_twice(
    url: str, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = Counts(tmp_path / "counts", CALLS)
    instances = [f"{topic}-{number}" for number in range(INSTANCES)]
    public = f"persistent://tg/request/{topic}"
    config = write_config(tmp_path, url, public, instances)
    with services(url, instances, counts, monkeypatch), Relays(config) as relays:
        killing = asyncio.create_task(relays.kill_again_and_again())
        answers, lost = await call_all(url, public, lambda n: (READ, WRITE)[n % 2], 30.0)
        killing.cancel()
    assert {n: text for n, text in answers.items() if text != answer(n, 8)} == {}
    assert relays.killed_at
    assert [n for n in lost if n % 2 == 0] == []
    assert max(counts[n] for n in range(1, CALLS, 2)) <= 1
