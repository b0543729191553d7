"""Services that announce themselves, on a genuine broker: ``python -m benchmarks.announcements``.

Seconds from ``here`` of a service that starts to the first reply to a call; processor time and memory of an agent that
follows many services, whose heartbeats another process publishes. The broker is ``PULSAR_URL``, or one of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import resource
import secrets
import sys
import time
import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import dispatch
from benchmarks.harness.broker import provide_broker
from benchmarks.harness.processes import READY_S, Child, say
from benchmarks.harness.programs import Programme, write_figures
from benchmarks.harness.report import aligned
from benchmarks.workers.proc import read_memory
from dispatch.announcements import HERE, AnnouncementWriter, DescriptorParts, InstanceInfo
from dispatch.announcements.table import AnnouncementTable
from dispatch.serving.announcer import HEARTBEAT_S
from dispatch.transports import open_transport

TOOLS: Final = 5
"""Tools of a service, each with the descriptor of a usual one: half a kilobyte."""
MAX_START_S, MAX_SHARE, MAX_MIB = 1.0, 0.05, 64.0


class Shop(dispatch.ToolService):
    """Answers at once."""

    async def invoke(self, config: Mapping[str, Any], arguments: Mapping[str, Any], user: str = "") -> str:
        return "3.5"


def describe(name: str) -> DescriptorParts:
    """Return the descriptors of a service."""
    service = {
        "id": name,
        **{f"{kind}-queue": f"non-persistent://tg/{kind}/{name}" for kind in ("request", "response")},
    }
    arguments = [{"name": f"a{number}", "type": "string", "description": "x" * 60} for number in range(3)]
    tool = {"type": "tool-service", "service": name, "description": "d" * 150, "arguments": arguments}
    return DescriptorParts(service, [{**tool, "name": f"{name}-{number}"} for number in range(TOOLS)])


def writers(services: int, instances: int) -> Iterator[tuple[DescriptorParts, str]]:
    """Yield the descriptors and the name of each instance."""
    for number in range(services):
        parts = describe(f"s{number}")
        for instance in range(instances):
            yield parts, f"s{number}-{instance}"


def fill(table: AnnouncementTable, services: int, instances: int) -> Iterator[bytes]:
    """Let all instances announce and prove themselves. Yield the next heartbeat of each. They stay for a minute: by then
    the process that sends further heartbeats has started, however slow the machine is."""
    for parts, instance in writers(services, instances):
        writer = AnnouncementWriter(InstanceInfo(instance, "1"), {}, ttl=60.0)
        table.receive(writer.write(HERE, parts))
        for inquiry in table.pop_inquiries():
            table.receive_answer(inquiry, writer.write(HERE, parts, part=1))
        yield writer.write(HERE, parts)


async def measure_starts(broker: str, count: int) -> list[float]:
    """Return the seconds from ``here`` to the reply to the first call, of each service."""
    topic = f"non-persistent://tg/notify/benchmark-{secrets.token_hex(4)}"
    found = []
    services = open_transport(broker)
    await services.start()
    try:
        async with dispatch.connect(broker, dispatch.Announced(topic=topic)) as dispatcher:
            for number in range(count):
                name = f"benchmark-{secrets.token_hex(4)}-{number}"
                announce = dispatch.Announce(topic=topic)
                server = dispatch.ToolServer(
                    Shop(), services, service=name, tools=[{"name": name, "description": "d"}], announce=announce
                )
                await server.start()
                began = time.perf_counter()
                while name not in dispatcher.catalog.tools:  # noqa: ASYNC110 - as a caller would look
                    await asyncio.sleep(0.001)
                assert await dispatcher.call(name, {}) == "3.5"
                found.append(time.perf_counter() - began)
                await server.close()
    finally:
        await services.close()
    return found


def measure_table(services: int, instances: int) -> dict[str, float]:
    """Return MiB of the table of announced services, and µs of each heartbeat."""
    gc.collect()
    tracemalloc.start()
    table = AnnouncementTable(dispatch.Trust().within("tg"))
    table.tick(0.0)
    payloads = list(fill(table, services, instances))
    gc.collect()
    size = tracemalloc.get_traced_memory()[0] - sum(map(sys.getsizeof, payloads))
    tracemalloc.stop()
    began = time.process_time()
    for payload in payloads:
        table.receive(payload)
    cost = (time.process_time() - began) / len(payloads)
    assert len(table.services) == services
    return {"mib": size / 2**20, "heartbeat_us": cost * 1e6}


async def publish(broker: str, topic: str, services: int, instances: int) -> None:
    """Send the heartbeats of all instances, evenly, until stdin ends."""
    transport = open_transport(broker)
    await transport.start()
    publisher = await transport.publisher(topic)
    everyone = []
    for parts, instance in writers(services, instances):
        writer = AnnouncementWriter(InstanceInfo(instance, "1"), {})
        writer._sequence = 10
        everyone.append((writer, parts))
    print(json.dumps({"ready": True}), flush=True)
    loop = asyncio.get_running_loop()
    ended = loop.run_in_executor(None, sys.stdin.read)
    began, sent = loop.time(), 0
    while not ended.done():
        due = int((loop.time() - began) * len(everyone) / HEARTBEAT_S)
        for _ in range(min(due - sent, 200)):
            writer, parts = everyone[sent % len(everyone)]
            publisher.publish(writer.write(HERE, parts), {}, flow="", on_failure=lambda error: None)
            sent += 1
        await asyncio.sleep(0.01)
    await transport.close()


async def measure_load(broker: str, services: int, instances: int, seconds: float) -> dict[str, float]:
    """Return the share of a processor, and what is in the catalogue, of an agent that follows these services."""
    topic = f"non-persistent://tg/notify/benchmark-{secrets.token_hex(4)}"
    source = dispatch.Announced(topic=topic)
    telemetry = dispatch.Telemetry(metrics=False, traces="off")
    base = _resident()
    source.table.tick(asyncio.get_running_loop().time())
    for _ in fill(source.table, services, instances):
        pass
    async with dispatch.connect(broker, source, telemetry=telemetry) as dispatcher:
        idle = await _share(seconds / 2)
        command = [sys.executable, "-m", "benchmarks.announcements", "--publish", topic, "--broker", broker]
        child = Child("publisher", [*command, "--services", str(services), "--instances", str(instances)])
        try:
            await asyncio.to_thread(child.wait_for_answer, READY_S)
            await asyncio.sleep(HEARTBEAT_S)
            share = await _share(seconds)
        finally:
            child.kill()
        alive = sum(len(each.instances) for each in source.table.services.values())
        known = len(dispatcher.catalog.tools)
        return {
            "share": share - idle,
            "resident_mib": _resident() - base,
            "instances": alive,
            "tools": known,
        }


async def _share(seconds: float) -> float:
    began, used = time.perf_counter(), time.process_time()
    await asyncio.sleep(seconds)
    return (time.process_time() - used) / (time.perf_counter() - began)


def _resident() -> float:
    """Return MiB of this process."""
    try:
        return read_memory(os.getpid())
    except OSError:  # no /proc
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(arguments: Sequence[str] | None = None) -> int:
    """Run. Returns the exit code: 0 done, whatever the figures; 2 the results cannot be written."""
    programme = Programme("benchmarks.announcements", __doc__)
    programme.add_number("--starts", 200, "services that start")
    programme.add_number("--services", 1_000, "that are followed")
    programme.add_number("--instances", 8, "of each of them")
    programme.add_argument("--seconds", type=float, default=20.0, metavar="S", help="of the load (default 20)")
    programme.add_argument("--broker", default=None, metavar="URL", help="default: PULSAR_URL, else one of its own")
    programme.add_argument("--publish", metavar="TOPIC", help=argparse.SUPPRESS)
    options = programme.begin(arguments)
    if options.publish:
        asyncio.run(publish(options.broker, options.publish, options.services, options.instances))
        return 0
    with contextlib.ExitStack() as stack:
        broker = options.broker or stack.enter_context(provide_broker(report=say)).service_url
        starts = sorted(asyncio.run(measure_starts(broker, options.starts)))
        followed = asyncio.run(measure_load(broker, options.services, options.instances, options.seconds))
    table = measure_table(options.services, options.instances)
    p99 = starts[min(len(starts) - 1, int(len(starts) * 0.99))]
    rows = [
        ("figure", "measured", "bound"),
        (f"first reply after 'here', median of {len(starts)}", f"{starts[len(starts) // 2] * 1e3:.0f} ms", ""),
        ("first reply after 'here', p99", f"{p99 * 1e3:.0f} ms", f"< {MAX_START_S * 1e3:.0f} ms"),
        ("a heartbeat in the table", f"{table['heartbeat_us']:.1f} µs", ""),
        (f"table of {options.services:,} x {options.instances}", f"{table['mib']:.1f} MiB", f"≤ {MAX_MIB:.0f} MiB"),
        ("share of a processor", f"{followed['share'] * 100:.1f} %", f"≤ {MAX_SHARE * 100:.0f} %"),
        ("agent with catalogue", f"{followed['resident_mib']:.1f} MiB", f"≤ {MAX_MIB:.0f} MiB"),
        ("instances known", f"{followed['instances']:,.0f}", f"{options.services * options.instances:,}"),
        ("tools known", f"{followed['tools']:,.0f}", f"{options.services * TOOLS:,}"),
    ]
    print(aligned(rows))
    write_figures(options.json, {"starts_s": starts, "table": table, "load": followed})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
