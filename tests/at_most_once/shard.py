"""Run random scenarios of at-most-once execution (tests/at_most_once/scenario.py), in a process of their own.

python -m tests.at_most_once.shard --seed 7 --examples 5000        # what one process of test_scenarios.py does
python -m tests.at_most_once.shard --scenario 41030.0.31.206.232   # the one of that code, as a failure names it
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import logging
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings

from tests.at_most_once.scenario import FOCUSES, Scenario, run_scenario, scenarios

PINNED = (
    # Two callers wait while a third dispatcher joins an instance that remembers two: the reply of an evicted dispatcher.
    "0.0.96.512.0.0.0.512",
    # The only session is evicted before the second attempt of a call that was refused; the first hello after that is lost.
    "153.1.26.512.0.0.0.192.512",
    # An instance ends in good order, and its connection right after it: its endpoint must not wait for another one.
    "0.0.0.0.480.513.480",
    # A short call whose request never leaves: its instance is replaced.
    "0.4.0.289.174.468.195.289",
)
"""Codes of scenarios that run first, every time: they need so many events in one order that thousands of random ones
may miss them. A scenario that finds a defect belongs here, in its shortest form."""
TIDY_EVERY = 500
"""Scenarios between two full garbage collections. Each scenario ends with a collection of its own objects only."""
REPORT_EVERY_S = 2.0


def examine(seed: int, examples: int, *, shrink: bool = True, progress: bool = False) -> Counter[str]:
    """Run the pinned scenarios, and at least ``examples`` different random ones, as many of each focus.

    Returns:
        How often each event occurred in them; ``scenarios`` counts the scenarios themselves, those of shrinking included.

    Raises:
        AssertionError: one of them is not as it must be; its notes have the shortest scenario found, and its code.
    """
    seen: Counter[str] = Counter()
    reported_at = time.monotonic()

    def run_one(scenario: Scenario) -> None:
        seen["scenarios"] += 1
        try:
            seen.update(run_scenario(scenario))
        except Exception as error:
            error.add_note(f"{scenario!r}\nTo repeat it: python -m tests.at_most_once.shard --scenario {scenario.code}")
            raise

    @settings(
        max_examples=-(-examples // len(FOCUSES)),
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    def check(scenario: Scenario) -> None:
        nonlocal reported_at
        if seen["scenarios"] % TIDY_EVERY == 0:
            gc.unfreeze()
            gc.collect()
        gc.freeze()  # each scenario ends with a garbage collection: exclude the objects that exist already
        run_one(scenario)
        if progress and time.monotonic() - reported_at >= REPORT_EVERY_S:
            reported_at = time.monotonic()
            sys.stderr.write(f"\r{seen['scenarios']:,} of {examples:,} scenarios")
            sys.stderr.flush()

    try:
        for code in PINNED:
            run_one(Scenario.of(code))
        for focus in range(len(FOCUSES)):
            hypothesis.seed(seed)(given(scenario=scenarios(focus))(check))()
    finally:
        gc.collect()
        gc.freeze()  # as it was, in a test run (tests/helpers/asyncio_plugin.py)
        if progress:
            sys.stderr.write(f"\r{seen['scenarios']:,} scenarios{' ' * 20}\n")
    return seen


def main(arguments: list[str] | None = None) -> int:
    """Return the exit code. 0: no scenario failed. 1: one failed, and standard error shows it."""
    parser = argparse.ArgumentParser(prog="python -m tests.at_most_once.shard", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="seed of the random scenarios (default: 0)")
    parser.add_argument("--examples", type=int, default=1_000, help="number of random scenarios (default: 1000)")
    parser.add_argument("--scenario", help="run only the scenario of this code")
    parser.add_argument("--json", action="store_true", help="print the number of each event as JSON")
    options = parser.parse_args(arguments)

    try:
        with _strict():
            if options.scenario is not None:
                scenario = Scenario.of(options.scenario)
                sys.stdout.write(f"{scenario!r}\n")
                seen = Counter(run_scenario(scenario), scenarios=1)
            else:
                seen = examine(options.seed, options.examples, progress=sys.stderr.isatty())
    except Exception:
        traceback.print_exc()
        return 1
    result = json.dumps(seen) if options.json else f"{seen['scenarios']:,} scenarios ran: none failed"
    sys.stdout.write(f"{result}\n")
    return 0


@contextlib.contextmanager
def _strict() -> Iterator[None]:
    """Make warnings and unraisable exceptions errors, as pytest does, and switch logging off."""
    unraisable: list[Any] = []
    former_hook, former_level = sys.unraisablehook, logging.root.manager.disable
    sys.unraisablehook = unraisable.append
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            yield
            gc.collect()
    finally:
        sys.unraisablehook = former_hook
        logging.disable(former_level)
    assert not unraisable, f"unraisable exceptions: {[each.exc_value for each in unraisable]}"


if __name__ == "__main__":
    sys.exit(main())
