"""Cost of a call of a Python function with all guards: ``python -m benchmarks.functions``.

No broker, half a minute; beside it a tool service on the embedded transport, in the same process. Method of measurement:
:mod:`benchmarks.micro.rounds`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Final

from benchmarks.functions.function_stacks import STACKS
from benchmarks.harness.programs import Programme, write_figures
from benchmarks.micro.rounds import (
    Costs,
    Difference,
    add_options,
    cost_table,
    difference_table,
    measure,
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
    programme = Programme("benchmarks.functions", __doc__)
    add_options(programme, blocks=20)
    options = programme.begin(arguments)
    costs = Costs()
    if not options.no_costs:
        asyncio.run(measure(STACKS, options.rounds, options.blocks, costs))
    print(cost_table(costs, STACKS), difference_table(costs, DIFFERENCES), sep="\n\n", flush=True)
    write_figures(options.json, {"costs_us": costs.costs_us()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
