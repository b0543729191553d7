"""The command line of the incidents: scenarios, measured checkouts and result files."""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.environment import load
from benchmarks.harness.processes import ROOT, BenchmarkError, say, terminated
from benchmarks.incidents.figures import Figure
from benchmarks.incidents.lab import Brokers, Lab
from benchmarks.incidents.progress import Progress
from benchmarks.incidents.report import report
from benchmarks.incidents.scenario import Scenario
from benchmarks.incidents.scenarios import ALL, chosen
from dispatch.devtools.localbroker import LocalBrokerError, LocalBrokerUnavailableError

BEFORE, AFTER, ALONE = "before", "after", "measured"
Runs = dict[str, dict[str, list[Figure]]]

EPILOG = """\
examples:
  python -m benchmarks.incidents                        everything on this checkout
  python -m benchmarks.incidents --short                a quick pass: does it run, and roughly what comes out
  python -m benchmarks.incidents --only kill            one scenario (again with --only: another one too)
  python -m benchmarks.incidents --against ../released  this checkout (after) beside another one (before)
  python -m benchmarks.incidents --against old.json     the same beside figures that --json wrote earlier
  python -m benchmarks.incidents --code ../released --json old.json     another checkout alone, for later

The script, its load and the forged messages are always those of this checkout; only the package dispatch is taken from
the other one. Both runs of a scenario follow each other on the same broker. The broker is a genuine Pulsar that is
started for the run, with free ports and data of its own; PULSAR_URL is ignored, because scenarios kill the broker.
Figures of a machine that does other work at the same time scatter: compare orders of magnitude, or run again.

exit codes: 0 done, whatever the figures; 1 a scenario failed; 2 it could not begin; 130 Ctrl-C

scenarios (seconds, seconds with --short):
"""


def parser() -> argparse.ArgumentParser:
    """The options."""
    listing = "\n".join(f"  {s.name:13}{s.seconds:4.0f} {s.short_seconds:4.0f}  {s.title}" for s in ALL)
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.incidents",
        description="Run incidents on a genuine Pulsar broker and measure their cost: leaking connections, forged "
        "messages, broker outages, a scrape of many tools; killed, stopped, blocked, slow and missing instances, bursts, "
        "streams. The tables go to stdout, with the value that is wanted beside each figure, progress to stderr.",
        epilog=EPILOG + listing,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--only", action="append", default=[], metavar="NAME", help="a scenario; may be given repeatedly")
    made.add_argument("--short", action="store_true", help="fewer repetitions and shorter waits: not to be quoted")
    made.add_argument(
        "--against",
        type=Path,
        metavar="PATH",
        help="compare with another checkout, or with a JSON file of an earlier run: its figures are the column 'before'",
    )
    made.add_argument(
        "--code", type=Path, default=ROOT, metavar="DIR", help="the checkout to measure (default: this one)"
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="write the figures as JSON, too")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run. Returns the exit code."""
    options = parser().parse_args(arguments)
    try:
        scenarios = chosen(options.only)
        recorded, products = plan(options.code, options.against)
        if options.json is not None:
            with options.json.open("ab"):
                pass
    except (ValueError, OSError) as error:
        parser().error(str(error))  # exits with 2
    runs: Runs = {**recorded, **{column: {} for column in products}}
    failures: list[str] = []

    def save() -> None:
        if options.json is not None:
            options.json.write_text(json.dumps(as_dict(runs, short=options.short), indent=1, ensure_ascii=False) + "\n")

    before = signal.signal(signal.SIGTERM, terminated)
    status = 0
    try:
        run(scenarios, products, runs, failures, save, short=options.short)
    except LocalBrokerUnavailableError as error:
        say(str(error))
        return 2
    except KeyboardInterrupt:
        say("Interrupted; the table has the scenarios that were complete.")
        status = 130
    finally:
        signal.signal(signal.SIGTERM, before)
        if options.json is not None and options.json.stat().st_size == 0:
            options.json.unlink()
    matrices = {each.name for each in scenarios if each.is_matrix}
    print(report({each.name: each.title for each in scenarios}, runs, matrices), flush=True)
    if options.json is not None and options.json.exists():
        say(f"written: {options.json}")
    for failure in failures:
        say(failure)
    return status or (1 if failures else 0)


def plan(code: Path, against: Path | None) -> tuple[Runs, dict[str, Path]]:
    """The figures that are there already, and the checkouts to measure, by column.

    Raises:
        ValueError: a path is neither a checkout nor a file of figures.
    """
    if against is None:
        return {}, {ALONE: checkout(code)}
    if against.is_file():
        return {BEFORE: read(against)}, {AFTER: checkout(code)}
    return {}, {BEFORE: checkout(against), AFTER: checkout(code)}


def checkout(folder: Path) -> Path:
    """The whole path of a folder with the package ``dispatch``.

    Raises:
        ValueError: it has none.
    """
    if not (folder / "dispatch" / "__init__.py").is_file():
        raise ValueError(f"{folder} is no checkout: there is no package dispatch in it")
    return folder.resolve()


def run(
    scenarios: Sequence[Scenario],
    products: dict[str, Path],
    runs: Runs,
    failures: list[str],
    save: Callable[[], None],
    *,
    short: bool,
) -> None:
    """Measure ``products``. Figures go to ``runs`` and problems to ``failures``; ``save`` is called after each figure.

    Raises:
        LocalBrokerUnavailableError: no broker can be started here.
    """
    seconds = sum(each.short_seconds if short else each.seconds for each in scenarios) * len(products)
    say(f"{len(scenarios)} scenario(s), {len(products)} checkout(s): about {max(1, round(seconds / 60))} min")
    busy = load()
    if busy is not None and busy > 0.25 * (os.cpu_count() or 1):
        say(f"this machine is busy already (load {busy:g}): figures scatter")
    with Progress() as progress, Brokers(progress) as brokers:
        for scenario in scenarios:
            for column, product in products.items():
                progress.line(f"== {scenario.name} ({column})")
                began = time.monotonic()
                lab = Lab(product, short, progress, brokers)
                figures = runs[column][scenario.name] = []
                try:
                    for figure in scenario.run(lab):
                        figures.append(figure)
                        save()
                except LocalBrokerUnavailableError:
                    raise
                except (BenchmarkError, LocalBrokerError, OSError) as error:
                    lab.failures.append(f"failed: {error}")
                    progress.line(lab.failures[-1])
                failures += [f"{scenario.name} ({column}): {failure}" for failure in lab.failures]
                progress.line(f"== {scenario.name} ({column}): {time.monotonic() - began:.0f} s")


def as_dict(runs: Runs, *, short: bool) -> dict[str, Any]:
    """The runs as plain values. The last one is what ``--against FILE`` reads."""
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "short": short,
        "processors": os.cpu_count(),
        "load": load(),
        "runs": {
            column: {name: [figure.as_dict() for figure in figures] for name, figures in scenarios.items()}
            for column, scenarios in runs.items()
        },
    }


def read(path: Path) -> dict[str, list[Figure]]:
    """The last run of a file that ``--json`` wrote.

    Raises:
        ValueError: it is no such file.
    """
    try:
        last = list(json.loads(path.read_text())["runs"].values())[-1]
        return {name: [Figure(**figure) for figure in figures] for name, figures in last.items()}
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"{path} holds no figures of this script: {type(error).__name__}: {error}") from None
