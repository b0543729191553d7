"""The table of a run."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.faults.outcomes import Outcome
from benchmarks.harness.report import aligned, number

HEADER = (
    *("fault", "system", "calls", "right", "failed", "not run", "untrue", "executed", "hung", "twice", "repeated"),
    *("wait s", "p99 ms", "right again s", "CPU µs", "MiB", "failures"),
)


def table(outcomes: Sequence[Outcome]) -> str:
    """Return a row for each case."""
    rows = [list(HEADER)]
    for each in sorted(outcomes, key=lambda outcome: outcome.fault):
        kinds = ", ".join(f"{kind} {count}" for kind, count in list(each.kinds.items())[:3])
        stopped = f"{each.stopped} of {each.cancelled} stopped" if each.cancelled else ""
        numbers = (each.failed_wait_s, each.p99_ms, each.back_s, each.cpu_us, each.memory_mib)
        counts = (each.calls, each.right, each.failed, each.refused, each.untrue, each.executed)
        rows.append(
            [
                each.fault,
                each.system,
                *map(str, (*counts, each.hung, each.twice, each.repeated)),
                *("-" if value is None else number(value) for value in numbers),
                "; ".join(filter(None, (kinds, stopped))),
            ]
        )
    return aligned(rows, left=(0, 1, len(HEADER) - 1))
