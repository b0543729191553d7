"""``python -m benchmarks.faults``: the same faults for dispatch and its peers, under one load."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from benchmarks.faults.faults import FAULTS, Fault
from benchmarks.faults.outcomes import Outcome
from benchmarks.faults.play import Play, choose_seed, meet
from benchmarks.faults.report import table
from benchmarks.faults.systems import SYSTEMS
from benchmarks.harness.environment import load as load_average
from benchmarks.harness.processes import BenchmarkError, say
from benchmarks.peers.system import load
from dispatch.devtools.localbroker import LocalBrokerError

RESULTS = Path(__file__).resolve().parents[1] / "results" / "faults"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run. Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="[FAULT][/SYSTEM]",
        help=f"again for others; faults: {', '.join(each.name for each in FAULTS)}; systems: {', '.join(SYSTEMS)}",
    )
    parser.add_argument("--seed", type=int, help="of the times of the calls (default: another in each run)")
    parser.add_argument("--jobs", type=int, default=2, help="systems that are played on side by side (default 2)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of records and journals")
    options = parser.parse_args(arguments)
    try:
        cases = chosen(options.only)
    except ValueError as error:
        parser.error(str(error))
    options.out.mkdir(parents=True, exist_ok=True)
    seed = choose_seed() if options.seed is None else options.seed
    began, machine = time.strftime("%Y-%m-%d"), {"processors": os.cpu_count(), "load_before": load_average()}
    outcomes: list[Outcome] = []
    failed = False
    by_system = {name: [fault for system, fault in cases if system == name] for name, _ in cases}
    with ThreadPoolExecutor(options.jobs) as pool:
        playing = {name: pool.submit(run_system, name, faults, seed, options.out) for name, faults in by_system.items()}
    for name, played in playing.items():
        try:
            outcomes += played.result()
        except (BenchmarkError, LocalBrokerError) as error:
            failed = True
            say(f"{name}: {error}")
    path = options.out / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    run = {"date": began, "seed": seed, "machine": machine, "outcomes": [asdict(each) for each in outcomes]}
    path.write_text(json.dumps(run, indent=1) + "\n")
    print(table(outcomes))
    say(f"written: {path}")
    return int(failed)


def run_system(system: str, faults: Sequence[Fault], seed: int, folder: Path) -> list[Outcome]:
    """Play the faults on one system, each with processes of its own; a case that fails is left out."""
    compared = SYSTEMS[system]
    kind = load(compared.module).SERVER
    outcomes = []
    with meet(kind, say) as meeting:
        for fault in faults:
            if fault.needs_server and meeting.server is None:
                continue
            say(f"{fault.name}/{system}, about {fault.seconds + 3:.0f} s")
            try:
                outcome = Play(fault, system, compared, meeting, seed, folder).run()
            except BenchmarkError as error:
                say(f"{fault.name}/{system} failed: {error}")
                continue
            outcomes.append(outcome)
    return outcomes


def chosen(names: Sequence[str]) -> list[tuple[str, Fault]]:
    """Return systems and faults by the names of the command line; none: all.

    Raises:
        ValueError: there is no such fault or system.
    """
    known = {each.name: each for each in FAULTS}
    cases = []
    for name in names or known:
        fault, _, system = name.partition("/")
        if (fault and fault not in known) or (system and system not in SYSTEMS):
            raise ValueError(f"there is no '{name}'; faults: {', '.join(known)}; systems: {', '.join(SYSTEMS)}")
        faults = [known[fault]] if fault else FAULTS
        cases += [(each, one) for each in ([system] if system else SYSTEMS) for one in faults]
    return list(dict.fromkeys(cases))


if __name__ == "__main__":
    sys.exit(main())
