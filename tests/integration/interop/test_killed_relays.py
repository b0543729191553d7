"""Three relays between published clients and the published ``DynamicToolService``; again and again one of them is killed or
stopped, and another one started."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
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

CALLS = int(os.environ.get("DISPATCH_RELAY_CALLS", by_profile(short=400, long=8_000))) // 2
"""On each of the two topics."""
IN_FLIGHT = 16
RELAYS, INSTANCES = 3, 2
KILL_EVERY_S = by_profile(short=1, long=4)
SLACK_S = 1.0
"""A call that is lost began at most so long before a relay ended; or after it, while the broker learned of it."""
Span = tuple[float, float]
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
    """Three relays.

    Attributes:
        kills: when one was killed, as a span without length.
        stops: when one was stopped, and when its process had ended.
    """

    def __init__(self, config: Path) -> None:
        self._arguments = ("relay", "--config", str(config))
        self._environment = {key: value for key, value in environment().items() if key == "PYTHONPATH"}
        self._stack = contextlib.ExitStack()
        self._running: list[Program] = []
        self._stopping: list[asyncio.Task[int]] = []
        self.kills: list[Span] = []
        self.stops: list[Span] = []

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
            ended, now = random.choice(ready), time.monotonic()
            ended.process.send_signal(how)
            if how is signal.SIGKILL:
                self.kills.append((now, now))
            else:
                self._stopping.append(asyncio.create_task(self._await_end(ended, now)))
            self._running.remove(ended)
            self._start()

    async def _await_end(self, stopped: Program, since: float) -> int:
        code = await asyncio.to_thread(stopped.wait)
        self.stops.append((since, time.monotonic()))
        return code

    async def await_stopped(self) -> list[int]:
        """Return the exit codes of the relays that were stopped."""
        return await asyncio.gather(*self._stopping)


class Calls:
    """The calls on one topic: the even ones may be repeated.

    Attributes:
        answered: number of calls with the right answer.
        wrong: answers that are not the right ones.
        lost: when the calls without an answer began.
    """

    def __init__(self, topic: str, first: int, read_timeout: float) -> None:
        self._topic = topic
        self._numbers = iter(range(first, first + CALLS))
        self._read_timeout = read_timeout
        self.answered = 0
        self.wrong: dict[int, str] = {}
        self.lost: dict[int, float] = {}

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
                self.lost[number] = began
            except RuntimeError as error:
                self.wrong[number] = str(error)
            else:
                if text == answer(number, 8):
                    self.answered += 1
                else:
                    self.wrong[number] = text

    def list_lost_outside(self, spans: list[Span]) -> list[int]:
        """Return the lost calls that began in none of ``spans``."""
        return [
            number
            for number, began in self.lost.items()
            if not any(first - SLACK_S <= began <= last + SLACK_S for first, last in spans)
        ]

    def describe(self, counts: bytes) -> str:
        repeatable = sum(number % 2 == 0 for number in self.lost)
        twice = sum(count > 1 for count in counts[1::2])
        return (
            f"{CALLS:,} calls, {self.answered:,} answered, {len(self.wrong)} wrong, {len(self.lost)} lost "
            f"({repeatable} repeatable), {twice} that are not repeatable ran twice"
        )


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
        codes = await relays.await_stopped()
    done, beside_kills = counts.all(), non_persistent.list_lost_outside(relays.kills)
    sys.stdout.write(f"\n{len(relays.kills)} relays killed, {len(codes)} stopped\n")
    sys.stdout.write(f"non-persistent: {non_persistent.describe(done[:CALLS])}, {len(beside_kills)} lost at a stop\n")
    sys.stdout.write(f"persistent: {persistent.describe(done[CALLS:])}\n")
    assert set(codes) <= {0}
    assert (non_persistent.wrong, persistent.wrong) == ({}, {})
    assert relays.kills
    assert len(non_persistent.lost) <= IN_FLIGHT * len(relays.kills)
    # pulsar-client discards what the broker sends to a consumer while it closes (docs/how-to/relay.md).
    assert non_persistent.list_lost_outside(relays.kills + relays.stops) == []
    assert len(beside_kills) <= len(relays.stops)
    assert [number for number in persistent.lost if number % 2 == 0] == []
    assert max(done[1::2]) <= 1
