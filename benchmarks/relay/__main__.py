"""A call through ``dispatch relay`` beside a direct one: ``python -m benchmarks.relay``. A broker, two minutes.

Client and service are those of TrustGraph, as published, or the least that speaks their wire (``bare``), which shows the
cost of the relay itself. Direct and relayed calls alternate within each round, and the ratios are formed there. The
forwarder is the least that can stand in the relay's place: it passes bytes on, unread, without dispatch.

``--stops N`` measures something else: calls at a rate, N of N + 1 relays stopped one after the other, and what each part of
the way has received.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.harness.broker import Endpoint, provide_broker
from benchmarks.harness.processes import ROOT, Child, say, start
from benchmarks.harness.programs import Programme, picture, write_figures
from benchmarks.harness.report import aligned
from benchmarks.workers.channel import Spec
from benchmarks.workers.proc import read_memory

PEERS: Final = {"bare": ("decoding_listener", "echo_service"), "published": ("trustgraph_client", "trustgraph_service")}
"""Workers: the client and the service."""
MOST_TIMES: Final = 2.2
"""Target: p50 at one in flight, as a multiple of that of a direct call."""
LEAST_RATE: Final = 0.45
"""Target: calls per second at 64 in flight, as a share of those of direct calls."""
MOST_US: Final = 400.0
"""Target: processor time of the relay for a call, in microseconds."""
IN_FLIGHT: Final = 64
UNLIMITED: Final = {"bulkhead": None, "breaker": None, "timeout": 20, "attempt-timeout": 10}
"""Policy of the relays that are stopped: those that stay are to have no reason to refuse a call."""


def spec_of(url: str, topic: str) -> Spec:
    """Return the spec of a process on these topics."""
    return Spec(url, None, topic, f"non-persistent://tg/request/{topic}", f"non-persistent://tg/response/{topic}", 20.0)


@contextlib.contextmanager
def relaying(
    url: str, public: Spec, instance: Spec, policy: Mapping[str, Any] = {}, processor: int | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Run a relay from the public topic to the instance's; ``processor``: on this one alone."""
    service = {
        "id": "echo",
        "request-queue": public.request,
        "response-queue": public.response,
        "instances": [{"id": "one", "request-queue": instance.request, "response-queue": instance.response}],
        "policy": policy,
    }
    tool = {"type": "tool-service", "name": "echo", "description": "Echoes.", "service": "echo", "read-only": True}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = {
            "tools/tool-service/echo.json": service,
            "tools/tool/echo.json": tool,
            "relay.json": {"broker": url, "catalog": ["tools"]},
        }
        for path, raw in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(json.dumps(raw))
        command = [sys.executable, "-m", "dispatch", "relay", "--config", str(folder / "relay.json"), "--json"]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        if processor is not None:
            os.sched_setaffinity(process.pid, {processor})  # before it has further threads
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if '"ready"' in line:
                    break
            yield process
        finally:
            if process.returncode is None:
                process.terminate()
                process.communicate()


def measure(client: Child, level: int, seconds: float, relay: int) -> dict[str, Any]:
    """Return the figures of a load."""
    command = {"level": level, "seconds": seconds, "ramp": 0.5, "watched": {"relay": [relay]}}
    return client.ask(command, seconds + 60)


def compare(url: str, peers: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure direct and relayed calls of one pair of peers; return the ratios and the figures of all rounds."""
    client_module, service_module = PEERS[peers]
    topic = f"relay-{secrets.token_hex(4)}"
    # Apart: a client must not get the replies to the relay, which the plain one does not expect.
    alone, public, instance, bare, behind = (
        spec_of(url, f"{topic}{suffix}") for suffix in ("-alone", "", "-1", "-bare", "-2")
    )
    rounds = []
    with contextlib.ExitStack() as stack:
        for spec in (alone, instance, behind):
            start(service_module, stack).begin(asdict(spec))
        relay = stack.enter_context(relaying(url, public, instance, processor=options.processor)).pid
        forwarder = start("forwarder", stack)
        if options.processor is not None:
            os.sched_setaffinity(forwarder.pid, {options.processor})
        forwarder.begin(asdict(replace(bare, more=((behind.request, behind.response),))))
        ways = {"direct": (alone, relay), "relayed": (public, relay), "forwarded": (bare, forwarder.pid)}
        clients = {name: start(client_module, stack) for name in ways}
        for name, (spec, _) in ways.items():
            clients[name].begin(asdict(spec))
        for _ in range(options.rounds):
            rounds.append(
                {
                    f"{name} {level}": measure(clients[name], level, options.seconds, pid)
                    for level in (1, IN_FLIGHT)
                    for name, (_, pid) in ways.items()
                }
            )
        memory = []
        calls = 0
        while peers == "bare" and calls < options.calls:
            calls += measure(clients["relayed"], IN_FLIGHT, options.seconds * 2, relay)["answered"]
            memory.append((calls, read_memory(relay) * 2**20))
            say(f"{calls:,} calls: {memory[-1][1] / 1e6:.1f} MB")
    return {name: summarize(rounds, name) for name in ("relayed", "forwarded")} | {"rounds": rounds, "memory": memory}


def summarize(rounds: Sequence[Mapping[str, Any]], way: str) -> dict[str, Any]:
    """Return the ratios of one way to direct calls: medians over the rounds."""
    one, many = f"{way} 1", f"{way} {IN_FLIGHT}"
    return {
        "times": statistics.median(each[one]["p50_ms"] / each["direct 1"]["p50_ms"] for each in rounds),
        "rate": statistics.median(each[many]["counted"] / each[f"direct {IN_FLIGHT}"]["counted"] for each in rounds),
        "cost_us": statistics.median(each[many]["cpu_s"]["relay"] * 1e6 / each[many]["cpu_counted"] for each in rounds),
        "per_second": statistics.median(each[many]["counted"] / each[many]["seconds"] for each in rounds),
        "lost": sum(each[name]["lost"] for each in rounds for name in (one, many)),
    }


def measure_stops(endpoint: Endpoint, options: argparse.Namespace) -> dict[str, int]:
    """Stop relays one after the other under load. Return the number of messages in each part of the way: counters of the
    broker, and of the relays and the client."""
    url, topic = endpoint.service_url, f"relay-{secrets.token_hex(4)}"
    public, instance = (spec_of(url, f"{topic}{suffix}") for suffix in ("", "-1"))
    received = 0
    with contextlib.ExitStack() as stack:
        start("echo_service", stack).begin(asdict(instance))
        relays = [stack.enter_context(relaying(url, public, instance, UNLIMITED)) for _ in range(options.stops + 1)]
        client = start("decoding_listener", stack)
        client.begin(asdict(public))
        seconds = (options.stops + 1) * options.seconds
        client.send({"level": options.rate, "seconds": seconds, "ramp": 0.0, "mode": "open"})
        for relay in relays:
            if relay is not relays[-1]:
                time.sleep(options.seconds)
            else:
                figures = client.wait_for_answer(seconds + 60)
                requests, replies = (endpoint.admin().stats(each) for each in (public.request, public.response))
            relay.terminate()
            (count,) = re.findall(r"Stopped\. ([\d,]+) request", relay.communicate()[0])
            received += int(count.replace(",", ""))
    handed = [sum(each["msgOutCounter"] for each in found["subscriptions"].values()) for found in (requests, replies)]
    return {
        "requests published": requests["msgInCounter"],
        "handed to relays": handed[0],
        "received by relays": received,
        "replies published": replies["msgInCounter"],
        "handed to the client": handed[1],
        "lost calls": figures["lost"],
    }


def draw(memory: Sequence[tuple[int, float]], path: Path) -> None:
    """Draw the relay's memory over its calls."""
    calls, sizes = zip(*memory, strict=True)
    with picture(path, size=(7, 3.2), dpi=150) as (_, ((axes,),)):
        axes.plot([count / 1e3 for count in calls], [size / 1e6 for size in sizes], color="#0072B2")
        axes.set(xlabel="thousand calls", ylabel="resident memory of the relay, MB", ylim=(0, max(sizes) * 1.2e-6))
        axes.grid(alpha=0.3)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run. Returns the exit code: 0 done, whatever the figures."""
    programme = Programme("benchmarks.relay", __doc__)
    programme.add_number("--rounds", 5, "rounds, of which the median counts")
    programme.add_argument("--seconds", type=float, default=3.0, help="duration of one measurement")
    programme.add_argument("--only", choices=PEERS, help="measure one pair of peers")
    programme.add_argument("--calls", type=int, default=0, help="calls over which the relay's memory is measured")
    programme.add_argument("--plot", type=Path, help="file of the plot of the memory")
    programme.add_argument(
        "--processor", type=int, help="number of the processor on which the relay runs; default: all"
    )
    programme.add_argument("--stops", type=int, default=0, metavar="N", help="stop N relays under load instead")
    programme.add_number("--rate", 600, "calls per second while relays are stopped")
    options = programme.begin(arguments)
    with provide_broker() as endpoint:
        if options.stops:
            stops = measure_stops(endpoint, options)
            print(aligned([("", "messages"), *((name, f"{count:,}") for name, count in stops.items())]))
            write_figures(options.json, stops)
            return 0
        found = {
            peers: compare(endpoint.service_url, peers, options) for peers in PEERS if options.only in (None, peers)
        }
    rows = [
        ("client and service", "way", "p50 at one", f"calls/s at {IN_FLIGHT}", "", "processor time of a call", "lost")
    ]
    for peers, each in found.items():
        for way in ("relayed", "forwarded"):
            figures = each[way]
            rows.append(
                (
                    peers,
                    way,
                    f"{figures['times']:.2f} times",
                    f"{figures['rate']:.2f} times",
                    f"{figures['per_second']:,.0f}",
                    f"{figures['cost_us']:,.0f} µs",
                    f"{figures['lost']}",
                )
            )
    target = f"≤ {MOST_TIMES} times", f"≥ {LEAST_RATE} times", "", f"≤ {MOST_US:.0f} µs", ""
    print(aligned([*rows, ("target", "", *target)]), flush=True)
    for memory in filter(None, (each["memory"] for each in found.values())):
        (first, least), (calls, size) = memory[0], memory[-1]
        print(f"memory: {least / 1e6:.1f} MB after {first:,} calls, {size / 1e6:.1f} MB after {calls:,}")
        if options.plot is not None:
            draw(memory, options.plot)
    write_figures(options.json, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
