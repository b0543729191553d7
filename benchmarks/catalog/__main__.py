"""Benchmarks of the live catalogue, on the embedded broker: ``python -m benchmarks.catalog``."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict

from benchmarks.catalog.activations import describe_activations, measure_activations
from benchmarks.catalog.folder import CALL_S, describe_figures, measure_folders
from benchmarks.catalog.large_catalog import describe_large_catalog, measure_large_catalog
from benchmarks.harness.programs import Programme, positive, write_figures

PARTS = ("tools", "activations", "folder")


def activations(text: str) -> int:
    """Parse a number of activations: each quarter of them is measured."""
    value = positive(text)
    if value < 4:
        raise argparse.ArgumentTypeError(f"4 at least, not {text}")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """Run. Returns the exit code: 0 done, whatever the figures; 2 the results cannot be written."""
    programme = Programme("benchmarks.catalog", __doc__)
    programme.add_argument(
        "--only", choices=PARTS, action="append", help="measure this part only; repeat it to add others"
    )
    programme.add_number("--tools", 10_000, "of the catalogue")
    programme.add_number("--rounds", 5, "with those tools")
    programme.add_argument(
        "--activations", type=activations, default=10_000, metavar="N", help="one after the other (default 10,000)"
    )
    programme.add_number("--edits", 1_000, "edits of folders")
    programme.add_number("--callers", 64, "calls in flight")
    said = f"of each (default {CALL_S:g}); 0: callers without a pause"
    programme.add_argument("--call", type=float, default=CALL_S, metavar="S", help=said)
    programme.add_argument("--seed", type=int, default=None, help="of the edits (default: a new one each time)")
    options = programme.begin(arguments)
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
    write_figures(options.json, written)
    return 0


if __name__ == "__main__":
    sys.exit(main())
