"""Processor time of a service for a call of a served function, and of a hand-written ``ToolService``:
``python -m benchmarks.functions.served``.

On a genuine broker (``PULSAR_URL``, else one of its own); a minute. Each service is a process of
``dispatch serve``; one dispatcher calls them in turn. Ratios are formed within a round.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
from collections.abc import Sequence
from typing import Final

import dispatch
from benchmarks.functions.adder import add
from benchmarks.harness.broker import provide_broker
from benchmarks.harness.plan import rotated
from benchmarks.harness.processes import READY_S, Child, say
from benchmarks.harness.programs import Programme, write_figures
from benchmarks.harness.report import aligned, shown
from benchmarks.harness.statistics import ratios, spread
from benchmarks.workers.proc import read_processor_time

LIMIT: Final = 1.15
"""Target of the ratio, at most."""
IN_FLIGHT: Final = 16
TARGETS: Final = {"function": "benchmarks.functions.adder:add", "service": "benchmarks.functions.adder:Adder"}


async def measure(broker: str, rounds: int, calls: int) -> dict[str, dict[int, float | None]]:
    """Return µs of the service's processor time for a call, by contender and round."""
    costs: dict[str, dict[int, float | None]] = {name: {} for name in TARGETS}
    run = secrets.token_hex(4)
    with contextlib.ExitStack() as processes:
        children = {}
        services, tools = [], []
        for name, target in TARGETS.items():
            service = f"benchmark-{name}-{run}"
            command = [sys.executable, "-m", "dispatch", "--broker", broker, "serve", target]
            children[name] = Child(name, [*command, "--service", service, "--json"])
            processes.callback(children[name].kill)
            described = dispatch.ToolServer(functions=[add], broker="memory://", service=service).descriptors
            services.append(described.service)
            tools.append({**described.tools[0], "name": name})
        for child in children.values():
            await asyncio.to_thread(child.wait_for_answer, READY_S)
        async with dispatch.connect(broker, dispatch.Catalog.of(services, tools)) as dispatcher:
            for name in TARGETS:
                await _call(dispatcher, name, calls)
            for at in range(rounds):
                for name in rotated(list(TARGETS), at):
                    before = read_processor_time([children[name].pid])
                    await _call(dispatcher, name, calls)
                    after = read_processor_time([children[name].pid])
                    costs[name][at] = None if before is None or after is None else (after - before) * 1e6 / calls
    return costs


async def _call(dispatcher: dispatch.Dispatcher, tool: str, calls: int) -> None:
    async def repeat() -> None:
        for _ in range(calls // IN_FLIGHT):
            assert await dispatcher.call(tool, {"a": 1, "b": 2}, user="alice") == "3"

    async with asyncio.TaskGroup() as callers:
        for _ in range(IN_FLIGHT):
            callers.create_task(repeat())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run. Returns the exit code: 0 done, whatever the figures."""
    programme = Programme("benchmarks.functions.served", __doc__)
    programme.add_number("--rounds", 9, "rotated rounds")
    programme.add_number("--calls", 16_000, "of each in a round")
    options = programme.begin(arguments)
    with provide_broker(report=say) as broker:
        costs = asyncio.run(measure(broker.service_url, options.rounds, options.calls))
    ratio = spread(ratios(costs["function"], costs["service"]).values())
    assert ratio is not None
    verdict = "ok" if ratio.median <= LIMIT else "MISSED"
    rows = [
        ("", "µs of the service for a call", ""),
        ("hand-written ToolService", shown(spread(costs["service"].values())), ""),
        ("served function", shown(spread(costs["function"].values())), ""),
        ("ratio, formed within a round", shown(ratio), f"≤ {LIMIT:g} {verdict}"),
    ]
    print(f"{IN_FLIGHT} calls in flight; median (least … greatest) over the rounds\n{aligned(rows)}", flush=True)
    write_figures(options.json, {name: list(each.values()) for name, each in costs.items()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
