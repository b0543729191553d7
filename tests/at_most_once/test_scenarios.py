"""At most once, an answer whenever there is a way, and nothing left: whatever happens. Thousands of random scenarios, in
parallel processes.

``DISPATCH_ONCE_EXAMPLES`` says how many (10,000 in CI, 2,000 elsewhere), ``DISPATCH_ONCE_SEED`` which: the same in CI, so
that a change is judged by what it changes; others each time elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from unittest import mock

import hypothesis
import pytest

from tests.at_most_once import shard
from tests.at_most_once.scenario import BOUNDS, KINDS, PLANS, REFUSALS, Scenario, run_scenario, scenarios
from tests.helpers.run_profile import IN_CI

EXAMPLES = int(os.environ.get("DISPATCH_ONCE_EXAMPLES", "10000" if IN_CI else "2000"))
SEED = int(os.environ.get("DISPATCH_ONCE_SEED", 1 if IN_CI else random.SystemRandom().randrange(2**32)))
MAX_SHARD = 5_000
"""Scenarios of one process: Hypothesis keeps in memory which ones it has tried."""
ROOT = Path(__file__).parents[2]
SEEN = {
    *(f"{way} {fault}" for way in ("out", "in") for fault in ("drop", "duplicate", "reorder", "delay")),
    *KINDS,
    *(f"small {name}" for name in BOUNDS),
    *(type for types in REFUSALS.values() for type in types),
    "answered", "read", "left", "answered by key", "cancelled by its caller",
    "instance-lost", "instance-restarted", "draining", "timeout", "closed", "ValueError", "send-timeout",
}  # fmt: skip
"""What must have been seen in so many scenarios."""


class Shards:
    """Processes that run scenarios side by side."""

    def __init__(self, count: int, examples: int) -> None:
        self._count = count
        self._examples = examples
        self._processes: list[subprocess.Popen[str]] = []

    def _run_shard(self, seed: int) -> str:
        options = ["--seed", str(seed), "--examples", str(self._examples)]
        command = [sys.executable, "-m", "tests.at_most_once.shard", *options]
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        with subprocess.Popen(command, cwd=ROOT, stdout=nothing, stderr=pipe, text=True) as process:
            self._processes.append(process)
            _, complaint = process.communicate()
        return complaint if process.returncode else ""

    def run(self, workers: int) -> Iterator[str]:
        """What each complains of, as they end. Whoever stops listening ends them all."""
        pool = ThreadPoolExecutor(workers)
        try:
            for future in as_completed([pool.submit(self._run_shard, SEED + number) for number in range(self._count)]):
                yield future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in self._processes:
                process.kill()
            pool.shutdown()


@pytest.mark.long
def test_whatever_happens_nothing_runs_twice_and_nothing_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    workers = os.cpu_count() or 1
    count = max(workers, -(-EXAMPLES // MAX_SHARD))
    examples = -(-EXAMPLES // count)
    with contextlib.closing(Shards(count, examples).run(workers)) as complaints:
        for number, complaint in enumerate(complaints, 1):
            assert not complaint, f"with DISPATCH_ONCE_SEED={SEED}:\n{complaint}"
            if count > workers:
                with capsys.disabled():
                    sys.stdout.write(
                        f"\n[once] {number * examples:,} of {EXAMPLES:,} scenarios, seed {SEED}: all is well"
                    )
                    sys.stdout.flush()


@pytest.mark.long
def test_everything_that_is_to_happen_happens() -> None:
    seen: Counter[str] = Counter()

    def see(scenario: Scenario) -> Counter[str]:
        counts = run_scenario(scenario)
        seen.update(counts)
        return counts

    with mock.patch.object(shard, "run_scenario", see):
        assert shard.examine(seed=1, examples=1_000) == 1_000
    assert SEEN - seen.keys() == set()


@hypothesis.given(scenarios())
def test_the_code_of_a_scenario_is_the_whole_scenario(scenario: Scenario) -> None:
    assert Scenario.of(scenario.code) == scenario
    assert list(PLANS)[scenario.plan] in repr(scenario)
    assert scenario.code in repr(scenario)


def test_a_failure_is_printed_with_the_shortest_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    def fail_on_crash(scenario: Scenario) -> Counter[str]:
        assert not any(step // 32 == KINDS.index("crash") for step in scenario.steps), "somebody crashed"
        return Counter()

    with mock.patch.object(shard, "run_scenario", fail_on_crash):
        assert shard.main(["--seed", "3", "--examples", "500"]) == 1
    printed = capsys.readouterr().err
    assert "AssertionError: somebody crashed" in printed
    code = f"0.0.0.{KINDS.index('crash') * 32}"
    assert f"<scenario {code}: calm; crash 0>" in printed
    assert f"python -m tests.at_most_once.shard --scenario {code}" in printed


def test_one_scenario_runs_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert shard.main(["--scenario", "7.1.0.3.40"]) == 0
    assert capsys.readouterr().out == "<scenario 7.1.0.3.40: loses; call 3, call 8>\n1 scenarios ran: all is well\n"
