"""``python -m benchmarks.peers``: speed of dispatch and of its peers, in one rotated run."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.broker import provide_broker
from benchmarks.harness.environment import load
from benchmarks.harness.plan import DEFAULT, QUICK, Suite
from benchmarks.harness.processes import BenchmarkError, say
from benchmarks.harness.report import report
from benchmarks.harness.runner import Driver, rounds_of
from benchmarks.peers import system
from benchmarks.peers.servers import SERVERS
from benchmarks.peers.suites import SUITES, TARGETS
from benchmarks.suites.definitions import chosen
from benchmarks.suites.target_ratios import find
from dispatch.devtools.localbroker import LocalBrokerError

RESULTS = Path(__file__).resolve().parents[1] / "results"
ROUNDS = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Run. Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round of short measurements: figures to look at")
    parser.add_argument("--rounds", type=int, default=None, help=f"rotated rounds (default {ROUNDS})")
    parser.add_argument("--seconds", type=float, help="length of one measurement")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="a suite, or suite/contender")
    parser.add_argument("--json", type=Path, help="the JSON file (default: benchmarks/results/peers-DATE.json)")
    options = parser.parse_args(arguments)
    try:
        suites = chosen(options.only, SUITES, SUITES)
    except ValueError as error:
        parser.error(str(error))
    settings = rounds_of(
        QUICK if options.quick else DEFAULT, options.rounds or (None if options.quick else ROUNDS), options.seconds
    )
    path = options.json or RESULTS / f"peers-{time.strftime('%Y%m%d-%H%M%S')}.json"
    load_before = load()
    try:
        with contextlib.ExitStack() as stack:
            servers = {name: stack.enter_context(SERVERS[kind]()) for name, kind in _servers(suites).items()}
            endpoint = stack.enter_context(provide_broker(report=say))
            results = Driver(endpoint, suites, settings, say, load_before=load_before, servers=servers).run()
    except (BenchmarkError, LocalBrokerError) as error:
        say(f"the run failed: {error}")
        return 1
    targets = [find(ratio, results) for ratio in TARGETS]
    print(report(results, targets, []), flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results.as_dict(targets), indent=1, ensure_ascii=False) + "\n")
    say(f"written: {path}")
    return 0


def _servers(suites: Sequence[Suite]) -> dict[str, str]:
    """Return the kind of server of each system that has one beside the broker."""
    systems = {contender.system for suite in suites for contender in suite.contenders if contender.system}
    kinds = {name: system.load(name).SERVER for name in sorted(systems)}
    return {name: kind for name, kind in kinds.items() if kind in SERVERS}


if __name__ == "__main__":
    sys.exit(main())
