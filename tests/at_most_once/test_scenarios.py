"""At-most-once execution, a reply whenever there is a way, and nothing left behind: checked by random scenarios.

``make test`` runs 260 scenarios in two processes, the same each time; ``make test-long`` 10,000 (in CI the same each time,
elsewhere others in each run). ``DISPATCH_ONCE_EXAMPLES`` sets another number, ``DISPATCH_ONCE_SEED`` the first seed.
"""

from __future__ import annotations

import contextlib
import json
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
from tests.at_most_once.scenario import BOUNDS, KINDS, PLANS, REFUSALS, Scenario, scenarios
from tests.helpers.run_profile import IN_CI, by_profile

EXAMPLES = int(os.environ.get("DISPATCH_ONCE_EXAMPLES", by_profile(short=260, long=10_000)))
SEED = int(
    os.environ.get(
        "DISPATCH_ONCE_SEED", 1 if IN_CI else by_profile(short=1, long=random.SystemRandom().randrange(2**32))
    )
)
MIN_SHARDS = 2
"""Fixed, not the number of processors: the scenarios of a seed are the same on every machine."""
MAX_SHARD = 5_000
"""Scenarios of one process: Hypothesis keeps in memory which ones it has tried."""
ROOT = Path(__file__).parents[2]
EXPECTED = {
    *(f"{way} {fault}" for way in ("out", "in") for fault in ("drop", "duplicate", "reorder", "delay")),
    *KINDS,
    *(f"small {name}" for name in BOUNDS),
    *(type for types in REFUSALS.values() for type in types),
    "answered", "read", "left", "answered by key", "cancelled by its caller",
    "instance-lost", "instance-restarted", "draining", "timeout", "closed", "ValueError", "no-instance",
}  # fmt: skip
"""Events that must occur in the scenarios of a run: a run without them has checked less than it claims."""
RARE = {"reply-evicted", "draining"}
"""One in 400 scenarios or fewer: 260 have some, or none after a change of the constants that Hypothesis draws from."""
OFTEN_ENOUGH = 4_000
"""Scenarios from which on the rare events must occur, too."""


class ScenarioError(Exception):
    """A process found a scenario that fails; the text is its standard error."""


class Shards:
    """Processes that run scenarios side by side, each with a seed of its own."""

    def __init__(self, count: int, examples: int) -> None:
        self._count = count
        self._examples = examples
        self._processes: list[subprocess.Popen[str]] = []

    def _run_shard(self, seed: int) -> Counter[str]:
        options = ["--seed", str(seed), "--examples", str(self._examples), "--json"]
        command = [sys.executable, "-m", "tests.at_most_once.shard", *options]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            self._processes.append(process)
            output, errors = process.communicate()
        if process.returncode:
            raise ScenarioError(f"with DISPATCH_ONCE_SEED={SEED}:\n{errors}")
        return Counter(json.loads(output))

    def run(self, workers: int) -> Iterator[Counter[str]]:
        """Yield the events of each process as it ends; closing the iterator ends them all."""
        pool = ThreadPoolExecutor(workers)
        try:
            for shard in as_completed([pool.submit(self._run_shard, SEED + number) for number in range(self._count)]):
                yield shard.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in self._processes:
                process.kill()
            pool.shutdown()


@pytest.mark.slow
@pytest.mark.long
def test_whatever_happens_nothing_runs_twice_and_nothing_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    workers = os.cpu_count() or 1
    count = max(MIN_SHARDS, -(-EXAMPLES // MAX_SHARD))
    seen: Counter[str] = Counter()
    with contextlib.closing(Shards(count, -(-EXAMPLES // count)).run(workers)) as shards:
        for events in shards:
            seen.update(events)
            if count > MIN_SHARDS:
                with capsys.disabled():
                    sys.stdout.write(
                        f"\n[once] {seen['scenarios']:,} of {EXAMPLES:,} scenarios, seed {SEED}: none failed"
                    )
                    sys.stdout.flush()
    assert seen["scenarios"] >= EXAMPLES
    expected = EXPECTED if seen["scenarios"] >= OFTEN_ENOUGH else EXPECTED - RARE
    assert expected - seen.keys() == set()


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
        assert shard.main(["--seed", "3", "--examples", "3000"]) == 1
    printed = capsys.readouterr().err
    assert "AssertionError: somebody crashed" in printed
    code = f"0.0.0.{KINDS.index('crash') * 32}"
    assert f"<scenario {code}: calm; crash 0>" in printed
    assert f"python -m tests.at_most_once.shard --scenario {code}" in printed


def test_one_scenario_runs_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert shard.main(["--scenario", "7.1.0.3.40"]) == 0
    assert capsys.readouterr().out == "<scenario 7.1.0.3.40: loses; call 3, call 8>\n1 scenarios ran: none failed\n"
