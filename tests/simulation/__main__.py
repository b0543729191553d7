"""Run stories: ``python -m tests.simulation --seed 17`` (one), ``--stories 1000`` (from seed 0 or ``--seed`` on)."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.simulation.story import run_story


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--stories", type=int, default=1, help="number of stories (default: 1)")
    options = parser.parse_args()
    started_at = time.perf_counter()
    counts: Counter[str] = Counter()
    for seed in range(options.seed, options.seed + options.stories):
        counts.update(run_story(seed))
    for event, count in sorted(counts.items()):
        sys.stdout.write(f"{count:>12,}  {event}\n")
    sys.stdout.write(f"{time.perf_counter() - started_at:.1f} s\n")


if __name__ == "__main__":
    main()
