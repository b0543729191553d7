"""Cost of a call of a Python function with all guards: ``python -m benchmarks.functions``.

No broker, half a minute; beside it a tool service on the embedded transport, in the same process. Method of measurement:
:mod:`benchmarks.micro.rounds`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from typing import Final

from benchmarks.functions.function_stacks import STACKS
from benchmarks.harness.environment import load
from benchmarks.micro.rounds import (
    Costs,
    Difference,
    add_options,
    cost_table,
    difference_table,
    measure,
    writable,
)

LIMIT_US: Final = 80.0
"""Target of the cost of a call of an async function with all guards, at most."""
DIFFERENCES: Final = (
    Difference("guards, deadline, metrics and execution", "function", "bare", LIMIT_US),
    Difference("check of the arguments by the schema", "function", "unchecked"),
    Difference("a thread", "thread", "function"),
    Difference("a tool service instead", "service", "function"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run. Returns the exit code: 0 done, whatever the figures; 2 the results cannot be written."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.functions", description=__doc__)
    add_options(parser, blocks=20)
    options = parser.parse_args(arguments)
    if not writable(options.json):
        return 2
    costs = Costs()
    print(f"load before: {load()}", file=sys.stderr)
    if not options.no_costs:
        asyncio.run(measure(STACKS, options.rounds, options.blocks, costs))
    parts = (
        cost_table(costs, STACKS),
        difference_table(costs, DIFFERENCES),
    )
    print("\n\n".join(part for part in parts if part), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps({"costs_us": costs.costs_us()}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
