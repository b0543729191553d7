"""``python -m benchmarks.simulation``: failing and overloaded services in virtual time, with three kinds of clients."""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from benchmarks.harness.processes import say
from benchmarks.simulation.plots import draw
from benchmarks.simulation.record import Record
from benchmarks.simulation.report import as_dict, report
from benchmarks.simulation.run import simulate
from benchmarks.simulation.scenarios import ALL, Scenario, find
from benchmarks.simulation.targets import Records

RESULTS = Path(__file__).resolve().parents[1] / "results" / "simulation"
MAX_JOBS = 16
Job = tuple[str, str, int, bool]
"""Scenario, contender, seed, short."""

EPILOG = """\
examples:
  python -m benchmarks.simulation                  everything, under a minute; figures in benchmarks/results/simulation
  python -m benchmarks.simulation --quick          half the load, half the time
  python -m benchmarks.simulation --only herd      one scenario (repeat --only to add others)
  python -m benchmarks.simulation --seed 7         other random calls, work and jitter; the same seed gives the same

contenders:
  unguarded      one request to the next instance, and a timeout of 3 s
  naive          three attempts 0.1 s apart, 1 s each, at an instance drawn at random; a breaker that opens after five
                 consecutive failures, for 5 s, and then admits every call
  ours           dispatch itself: Dispatcher and ToolServer over the embedded broker, on a virtual clock
  ours-defaults  the same with the default open and ejection times

The service of the first two is a plain queue. Calls and durations of work are the same for all.
docs/explanation/resilience.md explains each scenario.

scenarios:
"""


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.simulation",
        description="Simulate failing and overloaded services in virtual time, and compare the outcome of calls. "
        "Tables go to stdout, progress to stderr, a figure for each scenario to --out.",
        epilog=EPILOG + "\n".join(f"  {each.name:15}{each.title}" for each in ALL),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--quick", action="store_true", help="half the load: the figures are too noisy to quote")
    made.add_argument("--seed", type=int, default=1, metavar="N", help="seed of all randomness (default 1)")
    made.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="a scenario; may be given more than once"
    )
    made.add_argument(
        "--out", type=Path, default=RESULTS, metavar="DIR", help="for the PNGs (default benchmarks/results/simulation)"
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="the figures as JSON, too")
    made.add_argument("--no-pictures", action="store_true", help="only the tables")
    made.add_argument(
        "--jobs", type=_jobs, metavar="N", help="processes at a time (default: as many as there are processors)"
    )
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the simulation. Return the exit code: 0 for all figures, 2 if it could not start, 130 after Ctrl-C."""
    options = parser().parse_args(arguments)
    try:
        scenarios = [find(name) for name in dict.fromkeys(options.only)] or list(ALL)
    except KeyError as error:
        parser().error(f"there is no scenario {error}; choose from: {', '.join(each.name for each in ALL)}")
    pictures = not options.no_pictures and any(each.pictured for each in scenarios)
    if pictures and importlib.util.find_spec("matplotlib") is None:
        say("missing: matplotlib; install it with: pip install -e '.[bench]', or leave the pictures out: --no-pictures")
        return 2
    try:  # before the run: an unwritable path would lose a minute
        if pictures:
            options.out.mkdir(parents=True, exist_ok=True)
        if options.json is not None:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            with options.json.open("ab"):
                pass
    except OSError as error:
        say(f"the results cannot be written: {error}; choose another place with --out or --json")
        return 2
    began = time.monotonic()
    try:
        records = play(scenarios, seed=options.seed, short=options.quick, jobs=options.jobs)
        print(report(records), flush=True)
        if options.json is not None:
            found = as_dict(records, seed=options.seed, short=options.quick)
            options.json.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            say(f"written: {options.json}")
        if pictures:
            for scenario in scenarios:
                if scenario.pictured:
                    path = options.out / f"{scenario.name}.png"
                    draw([record for (name, _), record in records.items() if name == scenario.name], path)
                    say(f"written: {path}")
    except KeyboardInterrupt:
        say("Interrupted.")
        return 130
    except OSError as error:
        say(f"the results cannot be written: {error}; choose another place with --out or --json")
        return 2
    say(f"{time.monotonic() - began:.0f} s")
    return 0


def play(scenarios: Sequence[Scenario], *, seed: int, short: bool, jobs: int | None = None) -> Records:
    """Yield the records of all runs of ``scenarios``, in order.

    Args:
        seed: see :func:`benchmarks.simulation.run.simulate`, as ``short``.
        jobs: processes at a time; 1: this one. None: as many as there are processors.
    """
    todo = [(scenario.name, contender, seed, short) for scenario in scenarios for contender in scenario.contenders]
    say(f"{len(todo)} runs of {len(scenarios)} scenario(s), seed {seed}")
    found: dict[tuple[str, str], Record] = {}
    for number, record in enumerate(_played(todo, jobs or min(os.cpu_count() or 1, MAX_JOBS)), 1):
        found[record.scenario, record.contender] = record
        say(f"[{number}/{len(todo)}] {record.scenario}, {record.contender}: {len(record.calls):,} calls")
    return {(name, contender): found[name, contender] for name, contender, _, _ in todo}


def _played(todo: Sequence[Job], jobs: int) -> Iterator[Record]:
    if jobs == 1 or len(todo) == 1:
        yield from map(_one, todo)
        return
    # Spawned, not forked: the calling process may have threads.
    with ProcessPoolExecutor(min(jobs, len(todo)), mp_context=multiprocessing.get_context("spawn")) as pool:
        running = [pool.submit(_one, job) for job in todo]
        try:
            for future in as_completed(running):
                yield future.result()
        finally:
            for future in running:
                future.cancel()


def _one(job: Job) -> Record:
    name, contender, seed, short = job
    logging.getLogger("dispatch").setLevel(logging.CRITICAL)  # failures are expected here
    return simulate(name, contender, seed, short=short)


def _jobs(text: str) -> int:
    value = int(text)
    if not 1 <= value <= MAX_JOBS:
        raise argparse.ArgumentTypeError(f"1 to {MAX_JOBS}, not {text}")
    return value
