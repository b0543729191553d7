"""Three relays between published clients and the published ``DynamicToolService``; again and again one of them is killed or
stopped, and another one started."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.cli_processes import Program, environment, started
from tests.helpers.counting_service import Counts, answer
from tests.helpers.python_processes import running
from tests.helpers.run_profile import by_profile
from tests.integration.interop.peers import request_topic, response_topic, their_client

pytestmark = [pytest.mark.pulsar, pytest.mark.long]

CALLS = by_profile(short=200, long=4_000)
"""On each of the two topics."""
IN_FLIGHT = 16
RELAYS, INSTANCES = 3, 2
KILL_EVERY_S = by_profile(short=1, long=4)
SLACK_S = 1.0
"""A message may be given to a relay while the broker learns that it was killed."""
READ, WRITE = {"kind": "read"}, {"kind": "write"}


def write_config(folder: Path, url: str, topics: Mapping[str, str], instances: list[str]) -> Path:
    """Write a relay's configuration: for each of ``topics`` a service with two tools. All have the same instances."""
    files: dict[str, Any] = {"relay.json": {"broker": url, "catalog": ["tools"]}}
    for id, topic in topics.items():
        files[f"tools/tool-service/{id}.json"] = {
            "id": id,
            "request-queue": request_topic(topic),
            "response-queue": response_topic(topic),
            "config-params": [{"name": "kind"}],
            "instances": [
                {"id": each, "request-queue": request_topic(each), "response-queue": response_topic(each)}
                for each in instances
            ],
            "policy": {"timeout": 20, "attempt-timeout": 5, "breaker": None, "bulkhead": None},
        }
        for config, keys in ((READ, {"read-only": True}), (WRITE, {})):
            tool = {"type": "tool-service", "name": f"{id}-{config['kind']}", "description": "Counts.", "service": id}
            files[f"tools/tool/{id}-{config['kind']}.json"] = {**tool, **keys, **config}
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
    """Three relays. ``killed_at``: when one was killed; a relay that is stopped loses nothing."""

    def __init__(self, config: Path) -> None:
        self._arguments = ("relay", "--config", str(config))
        self._environment = {key: value for key, value in environment().items() if key == "PYTHONPATH"}
        self._stack = contextlib.ExitStack()
        self._running: list[Program] = []
        self._stopped: list[Program] = []
        self.killed_at: list[float] = []

    def __enter__(self) -> Relays:
        for _ in range(RELAYS):
            self._start()
        for each in self._running:
            each.err.wait_for("Relaying")
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stack.close()

    def _start(self) -> None:
        self._running.append(self._stack.enter_context(started(*self._arguments, **self._environment)))

    async def end_again_and_again(self) -> None:
        """Kill one, stop the next one, and so on."""
        for how in (signal.SIGKILL, signal.SIGTERM) * CALLS:
            await asyncio.sleep(KILL_EVERY_S * random.uniform(0.5, 1.5))
            while len(ready := [each for each in self._running if "Relaying" in each.err.text()]) < RELAYS - 1:  # noqa: ASYNC110 - a process has no event
                await asyncio.sleep(0.05)
            ended = random.choice(ready)
            ended.process.send_signal(how)
            if how is signal.SIGKILL:
                self.killed_at.append(time.monotonic())
            else:
                self._stopped.append(ended)
            self._running.remove(ended)
            self._start()

    async def await_stopped(self) -> list[int]:
        """Return the exit codes of the relays that were stopped."""
        return [await asyncio.to_thread(each.wait) for each in self._stopped]


class Calls:
    """The calls on one topic: the even ones may be repeated.

    Attributes:
        wrong: answers that are not the right ones.
        lost: when the calls without an answer began and ended.
    """

    def __init__(self, topic: str, first: int, read_timeout: float) -> None:
        self._topic = topic
        self._numbers = iter(range(first, first + CALLS))
        self._read_timeout = read_timeout
        self.wrong: dict[int, str] = {}
        self.lost: dict[int, tuple[float, float]] = {}

    async def make(self, url: str) -> None:
        async with their_client(url, self._topic) as client:
            await asyncio.gather(*(self._call(client) for _ in range(IN_FLIGHT)))

    async def _call(self, client: Any) -> None:
        for number in self._numbers:
            config, timeout = (WRITE, 8.0) if number % 2 else (READ, self._read_timeout)
            began = time.monotonic()
            try:
                text = await client.call(config, {"n": number}, timeout=timeout)
            except TimeoutError:
                self.lost[number] = began, time.monotonic()
            except RuntimeError as error:
                self.wrong[number] = str(error)
            else:
                if text != answer(number, 8):
                    self.wrong[number] = text


async def test_only_what_a_killed_relay_holds_is_lost_and_on_persistent_topics_no_repeatable_call(
    url: str, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = Counts(tmp_path / "counts", 2 * CALLS)
    instances = [f"{topic}-{number}" for number in range(INSTANCES)]
    durable = f"persistent://tg/request/{topic}-durable"
    config = write_config(tmp_path, url, {"volatile": topic, "durable": durable}, instances)
    non_persistent, persistent = Calls(topic, 0, 8.0), Calls(durable, CALLS, 60.0)
    with services(url, instances, counts, monkeypatch), Relays(config) as relays:
        ending = asyncio.create_task(relays.end_again_and_again())
        await asyncio.gather(non_persistent.make(url), persistent.make(url))
        ending.cancel()
        assert set(await relays.await_stopped()) <= {0}
    assert (non_persistent.wrong, persistent.wrong) == ({}, {})
    assert relays.killed_at
    lost = list(non_persistent.lost.values())
    assert [each for each in lost if not any(each[0] - SLACK_S <= at <= each[1] for at in relays.killed_at)] == []
    assert len(lost) <= IN_FLIGHT * len(relays.killed_at)
    assert [number for number in persistent.lost if number % 2 == 0] == []
    assert max(counts.all()[1::2]) <= 1
