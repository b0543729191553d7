"""The load: ``python -m benchmarks.cluster.load``, a process with instances of all services, or with a dispatcher.

It uses dispatch's public names only, so that it runs with the package of any release. The first line of stdin is the spec,
whose ``role`` is ``service`` or ``caller``; commands follow.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any

import pulsar

import dispatch
from benchmarks.workers.channel import Channel
from benchmarks.workers.pacing import Pacer, is_certainly_not_executed
from dispatch.transports import open_transport

KINDS = {"session": 4, "plain": 3, "persistent": 3}
"""Services of each kind: sessions; third-party services; persistent topics. Each has a repeatable tool and another one."""
TIMEOUT_S = 20.0
"""Timeout of a call: longer than every fault, so that a call without an answer is lost."""
WAIT_S = 25.0
RIGHT = "right"

Row = tuple[int, float, float, str, bool]
"""Number, beginning, end, how the call ended, and whether its error says that it was not executed."""


def services() -> list[dict[str, str]]:
    """Return the descriptors of all services; the kind is the first part of the id."""
    found = []
    for kind, count in KINDS.items():
        for number in range(1, count + 1):
            name = f"{kind}-{number}"
            queues = [f"non-persistent://tg/{where}/{name}" for where in ("request", "response")]
            if kind == "persistent":
                queues[0] = f"persistent://tg/flow/{name}"
            found.append({"id": name, "request-queue": queues[0], "response-queue": queues[1]})
    return found


def tools() -> list[dict[str, Any]]:
    """Return the descriptors of all tools: two of each service, of which the first is repeatable."""
    return [
        {
            "type": "tool-service",
            "name": f"{service['id']}-{'read' if repeatable else 'write'}",
            "description": "Returns the number of the call.",
            "service": service["id"],
            "read-only": repeatable,
        }
        for service in services()
        for repeatable in (True, False)
    ]


class Journal(dispatch.ToolService):
    """A tool that returns the number of the call, and records it."""

    def __init__(self) -> None:
        self.executed: list[int] = []

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        return self.execute(arguments)

    def execute(self, arguments: dict[str, Any]) -> str:
        self.executed.append(arguments["call"])
        return f"answer {arguments['call']}"


@contextlib.asynccontextmanager
async def serve_instance(url: str, name: str, journal: Journal) -> AsyncIterator[None]:
    """Serve every service over one connection of dispatch, and the third-party ones over one of pulsar-client."""
    async with contextlib.AsyncExitStack() as stack:
        connection = open_transport(url)
        await connection.start()
        stack.push_async_callback(connection.close)
        for service in services():
            if not service["id"].startswith("plain"):
                server = dispatch.ToolServer(
                    journal,
                    connection,
                    request_queue=service["request-queue"],
                    response_queue=service["response-queue"],
                    instance=f"{service['id']}-{name}",
                )
                await stack.enter_async_context(server)
        await asyncio.to_thread(stack.enter_context, serve_third_party(url, journal))
        yield


@contextlib.contextmanager
def serve_third_party(url: str, journal: Journal) -> Iterator[None]:
    """Serve the plain services as a program without dispatch would."""
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        for service in services():
            if service["id"].startswith("plain"):
                producer = client.create_producer(service["response-queue"], batching_enabled=False)

                def answer(consumer: Any, message: Any, producer: Any = producer) -> None:
                    consumer.acknowledge(message)
                    text = journal.execute(json.loads(json.loads(message.data())["arguments"]))
                    reply = {"error": None, "response": text, "end_of_stream": True}
                    properties = {"id": message.properties()["id"]}
                    producer.send_async(json.dumps(reply).encode(), lambda *_: None, properties=properties)

                client.subscribe(
                    service["request-queue"],
                    f"{service['id']}-request",
                    pulsar.ConsumerType.Shared,
                    message_listener=answer,
                )
        yield
    finally:
        client.close()


class Caller:
    """Calls all tools in turn at a fixed rate; numbers of calls are ``first``, ``first + step``, …"""

    def __init__(self, dispatcher: dispatch.Dispatcher, first: int, step: int) -> None:
        self._dispatcher = dispatcher
        self._number, self._step = first, step
        self._tools = [tool["name"] for tool in tools()]
        self._pacer = Pacer(self._make_next)
        self._rows: list[Row] = []

    async def reach(self) -> None:
        """Call each tool until it answers."""
        for _ in range(len(self._tools)):
            end = time.monotonic() + WAIT_S
            while not (await self._call(self._number, record=False)).ok and time.monotonic() < end:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.1)
            self._number += self._step

    def begin(self, rate: float) -> None:
        """Make ``rate`` calls a second, whether or not earlier ones have ended."""
        self._pacer.begin(lambda: 1 / rate)

    def _make_next(self) -> Coroutine[Any, Any, object]:
        number, self._number = self._number, self._number + self._step
        return self._call(number)

    async def _call(self, number: int, *, record: bool = True) -> dispatch.CallResult:
        began = time.monotonic()
        tool = self._tools[number // self._step % len(self._tools)]
        result = await self._dispatcher.execute(tool, {"call": number}, timeout=TIMEOUT_S)
        if record:
            error = result.error
            how = error.type if error is not None else RIGHT if result.text == f"answer {number}" else "wrong"
            certain = error is not None and is_certainly_not_executed(error)
            self._rows.append((number, began, time.monotonic(), str(how), certain))
        return result

    async def end(self) -> list[Row]:
        """Stop, wait for the calls in flight, and return the rows since the last time."""
        await self._pacer.end(WAIT_S)
        rows, self._rows = self._rows, []
        return rows


async def _service(channel: Channel, spec: dict[str, Any]) -> None:
    journal = Journal()
    async with contextlib.AsyncExitStack() as stack:
        for name in spec["instances"]:
            for attempts_left in range(
                9, -1, -1
            ):  # a busy machine may take longer to assign topics than pulsar-client waits
                try:
                    await stack.enter_async_context(serve_instance(spec["url"], name, journal))
                    break
                except (dispatch.DispatchError, pulsar.PulsarException):
                    if not attempts_left:
                        raise
        channel.ready()
        async for _ in channel.commands():
            executed, journal.executed = journal.executed, []
            channel.say({"executed": executed})


async def _caller(channel: Channel, spec: dict[str, Any]) -> None:
    catalog = dispatch.Catalog.of(services(), tools())
    async with dispatch.connect(spec["url"], catalog, client_id=f"caller{spec['first']}") as dispatcher:
        caller = Caller(dispatcher, spec["first"], spec["step"])
        await caller.reach()
        channel.ready()
        async for command in channel.commands():
            if "rate" in command:
                caller.begin(command["rate"])
                channel.say({})
            else:
                channel.say({"rows": await caller.end()})


async def _main() -> None:
    channel = Channel()
    spec = channel.first()
    await {"service": _service, "caller": _caller}[spec["role"]](channel, spec)


if __name__ == "__main__":
    asyncio.run(_main())
