"""Benchmarks of the live catalogue, on the embedded broker: ``python -m benchmarks.catalog``."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.catalog.folder import describe_figures, measure_folders
from benchmarks.harness.environment import load
from benchmarks.micro.rounds import positive, writable


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(prog="python -m benchmarks.catalog", description=__doc__)
    made.add_argument("--edits", type=positive, default=1_000, metavar="N", help="edits of folders (default 1,000)")
    made.add_argument("--callers", type=positive, default=64, metavar="N", help="calls in flight (default 64)")
    made.add_argument("--seed", type=int, default=None, help="of the edits (default: a new one each time)")
    made.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run. Returns the exit code: 0 done, whatever the figures; 2 the results cannot be written."""
    options = parser().parse_args(arguments)
    if not writable(options.json):
        return 2
    print(f"load before: {load()}", file=sys.stderr)
    seed = random.randrange(10**6) if options.seed is None else options.seed
    figures = asyncio.run(measure_folders(options.edits, options.callers, seed))
    print(describe_figures(figures), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps({"folder": asdict(figures)}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
