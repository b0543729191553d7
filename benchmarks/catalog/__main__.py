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

from benchmarks.catalog.activations import describe_activations, measure_activations
from benchmarks.catalog.folder import CALL_S, describe_figures, measure_folders
from benchmarks.catalog.large_catalog import describe_large_catalog, measure_large_catalog
from benchmarks.harness.environment import load
from benchmarks.micro.rounds import positive, writable

PARTS = ("tools", "activations", "folder")


def activations(text: str) -> int:
    """Parse a number of activations: each quarter of them is measured."""
    value = positive(text)
    if value < 4:
        raise argparse.ArgumentTypeError(f"4 at least, not {text}")
    return value


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(prog="python -m benchmarks.catalog", description=__doc__)
    made.add_argument("--only", choices=PARTS, action="append", help="measure this part only; repeat it to add others")
    made.add_argument("--tools", type=positive, default=10_000, metavar="N", help="of the catalogue (default 10,000)")
    made.add_argument("--rounds", type=positive, default=5, metavar="N", help="with those tools (default 5)")
    made.add_argument(
        "--activations", type=activations, default=10_000, metavar="N", help="one after the other (default 10,000)"
    )
    made.add_argument("--edits", type=positive, default=1_000, metavar="N", help="edits of folders (default 1,000)")
    made.add_argument("--callers", type=positive, default=64, metavar="N", help="calls in flight (default 64)")
    made.add_argument(
        "--call",
        type=float,
        default=CALL_S,
        metavar="S",
        help=f"of each (default {CALL_S:g}); 0: callers without a pause",
    )
    made.add_argument("--seed", type=int, default=None, help="of the edits (default: a new one each time)")
    made.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run. Returns the exit code: 0 done, whatever the figures; 2 the results cannot be written."""
    options = parser().parse_args(arguments)
    if not writable(options.json):
        return 2
    print(f"load before: {load()}", file=sys.stderr)
    parts = options.only or PARTS
    written: dict[str, object] = {}
    if "tools" in parts:
        large = asyncio.run(measure_large_catalog(options.tools, options.rounds))
        print(describe_large_catalog(large), end="\n\n", flush=True)
        written["tools"] = asdict(large)
    if "activations" in parts:
        activated = measure_activations(options.activations)
        print(describe_activations(activated), end="\n\n", flush=True)
        written["activations"] = asdict(activated)
    if "folder" in parts:
        seed = random.randrange(10**6) if options.seed is None else options.seed
        edited = asyncio.run(measure_folders(options.edits, options.callers, seed, options.call))
        print(describe_figures(edited), flush=True)
        written["folder"] = asdict(edited)
    if options.json is not None:
        options.json.write_text(json.dumps(written, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
