"""Run scenarios about "at most once" (tests/at_most_once/scenario.py), in a process of their own.

python -m tests.at_most_once.shard --seed 7 --examples 5000        # what one process of test_scenarios.py does
python -m tests.at_most_once.shard --scenario 41030.0.31.206.232   # the one of that code, as a failure names it
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings

from tests.at_most_once.scenario import Scenario, run_scenario, scenarios

TIDY_EVERY = 500
"""Scenarios after which what Hypothesis has left behind is looked through. Each scenario's own garbage is, after each."""
TOLD_EVERY_S = 2.0


def examine(seed: int, examples: int, *, shrink: bool = True, progress: bool = False) -> int:
    """Run ``examples`` different scenarios. Returns how many ran, shrinking included.

    Raises:
        AssertionError: one of them is not as it must be; its notes have the shortest scenario found, and its code.
    """
    told = 0
    said_at = time.monotonic()

    @hypothesis.seed(seed)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    @given(scenario=scenarios())
    def check(scenario: Scenario) -> None:
        nonlocal told, said_at
        if told % TIDY_EVERY == 0:
            gc.unfreeze()
            gc.collect()
        told += 1
        gc.freeze()  # each scenario ends with a collection, which need not look at what was there before
        try:
            run_scenario(scenario)
        except Exception as error:
            error.add_note(
                f"{scenario!r}\nTo see it again: python -m tests.at_most_once.shard --scenario {scenario.code}"
            )
            raise
        if progress and time.monotonic() - said_at >= TOLD_EVERY_S:
            said_at = time.monotonic()
            sys.stderr.write(f"\r{told:,} of {examples:,} scenarios")
            sys.stderr.flush()

    try:
        check()
    finally:
        gc.collect()
        gc.freeze()  # as it was, in a test run (tests/helpers/asyncio_plugin.py)
        if progress:
            sys.stderr.write(f"\r{told:,} scenarios{' ' * 20}\n")
    return told


def main(arguments: list[str] | None = None) -> int:
    """0: all is well. 1: a scenario failed; it is on standard error."""
    parser = argparse.ArgumentParser(prog="python -m tests.at_most_once.shard", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="of the scenarios that are made (default: 0)")
    parser.add_argument("--examples", type=int, default=1_000, help="how many to run (default: 1000)")
    parser.add_argument("--scenario", help="run only the scenario of this code")
    options = parser.parse_args(arguments)

    try:
        with _strict():
            if options.scenario is not None:
                scenario = Scenario.of(options.scenario)
                sys.stdout.write(f"{scenario!r}\n")
                run_scenario(scenario)
                told = 1
            else:
                told = examine(options.seed, options.examples, progress=sys.stderr.isatty())
    except Exception:
        traceback.print_exc()
        return 1
    sys.stdout.write(f"{told:,} scenarios ran: all is well\n")
    return 0


@contextlib.contextmanager
def _strict() -> Iterator[None]:
    """As pytest does it: warnings are errors, and so is what is raised where nobody can catch it. Nothing is logged."""
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
    assert not unraisable, f"errors that nobody could catch: {[each.exc_value for each in unraisable]}"


if __name__ == "__main__":
    sys.exit(main())
