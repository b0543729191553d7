"""The channel between a process and the driver: JSON, one value per line, the spec first."""

from __future__ import annotations

import asyncio
import faulthandler
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from benchmarks.workers.load import Load, measure, reach

ARGUMENTS = {"topic": "cats"}
"""Arguments of every call, unless calls are counted."""

Report = Callable[[], dict[str, int]]
"""Returns a service's counters since its start."""


@dataclass(frozen=True)
class Spec:
    """Spec of a process.

    Attributes:
        url: the broker.
        token: the token for the broker; None: no authentication.
        topic: the short name of the topics.
        request: the whole name of the topic with the requests.
        response: the same for the answers.
        timeout: seconds a call waits for its answer.
        answer: characters of an answer.
        large_answer: characters of the answers of the callers beside the measured ones.
        drop: share of the messages that are lost on their way to client and service each.
        is_counting: calls are numbered, and the service counts those that it executes more than once.
        instances: instances of the service in one process.
        more: further pairs of topics, of requests and their answers, for a service that serves several.
        system: the compared system of :mod:`benchmarks.peers` that the processes belong to.
        port: a free port, for systems without a broker.
    """

    url: str
    token: str | None
    topic: str
    request: str
    response: str
    timeout: float
    answer: int = 120
    large_answer: int = 0
    drop: float = 0.0
    is_counting: bool = False
    instances: int = 1
    more: tuple[tuple[str, str], ...] = ()
    system: str = ""
    port: int = 0

    @property
    def text(self) -> str:
        """The response of the service, which the client expects."""
        return "x" * self.answer

    @property
    def large_text(self) -> str:
        """The large response, beside the other."""
        return "y" * self.large_answer


class Channel:
    """This process's end of the channel. It owns stdout; output of libraries is redirected to stderr."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        faulthandler.register(signal.SIGUSR1)  # the driver asks a process that does not end where it is

    def read(self) -> dict[str, Any] | None:
        """Read the next command; None at the end of stdin."""
        line = sys.stdin.readline()
        return json.loads(line) if line else None

    def first(self) -> dict[str, Any]:
        """Read the first line, the spec. Without one the driver has ended, and so does this process."""
        values = self.read()
        if values is None:
            raise SystemExit(0)
        return values

    def spec(self) -> Spec:
        """The first line."""
        return Spec(**self.first())

    async def commands(self) -> AsyncIterator[dict[str, Any]]:
        """Read the next commands, until the end of stdin."""
        while (command := await asyncio.to_thread(self.read)) is not None:
            yield command

    def say(self, answer: dict[str, Any]) -> None:
        """Answer a command."""
        self._out.write(json.dumps(answer) + "\n")
        self._out.flush()

    def ready(self) -> None:
        """The answer to the spec."""
        self.say({"ready": True})


def run_client(connect: Callable[[Spec], AbstractAsyncContextManager[Load]]) -> None:
    """Run a client: connect, then measure by command."""
    asyncio.run(_client(Channel(), connect))


async def _client(channel: Channel, connect: Callable[[Spec], AbstractAsyncContextManager[Load]]) -> None:
    spec = channel.spec()
    async with connect(spec) as load:
        await reach(load)
        channel.ready()
        async for command in channel.commands():
            channel.say(await measure(load, **command))


def run_service(serve: Callable[[Spec], AbstractAsyncContextManager[Report | None]]) -> None:
    """Run a service: start, then report by command until stdin closes."""
    asyncio.run(_service(Channel(), serve))


async def _service(channel: Channel, serve: Callable[[Spec], AbstractAsyncContextManager[Report | None]]) -> None:
    async with serve(channel.spec()) as report:
        channel.ready()
        async for _ in channel.commands():
            channel.say(report() if report is not None else {})
