"""The command line of the benchmarks: suites, settings and result files."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.harness.broker import provide_broker
from benchmarks.harness.environment import load
from benchmarks.harness.plan import DEFAULT, QUICK, Settings, Suite, estimated_seconds
from benchmarks.harness.plots import draw, draw_systems
from benchmarks.harness.processes import ROOT, BenchmarkError, say, terminated
from benchmarks.harness.report import report
from benchmarks.harness.results import Results
from benchmarks.harness.runner import Driver, Products, rounds_of
from benchmarks.suites.definitions import QUICK_SUITES, SUITES, SYSTEMS, chosen, without_former
from benchmarks.suites.former_release import COMMIT, export_former_release
from benchmarks.suites.target_ratios import FOR_THE_RECORD, TARGETS, find
from dispatch.devtools.localbroker import LocalBrokerError

Draw = Callable[[Results, Path], None]
RESULTS = Path(__file__).resolve().parents[1] / "results"
NEEDED = {
    "matplotlib": "matplotlib",
    "trustgraph": "trustgraph-base",
    "pulsar": "pulsar-client",
    "opentelemetry.sdk": "opentelemetry-sdk",
}

EPILOG = """\
examples:
  python -m benchmarks                            everything, under half an hour
  python -m benchmarks --quick                    one short round of the most important suites, under three minutes:
                                                  figures to look at, not to quote
  python -m benchmarks --only clients/dispatch    one contender (again with --only: another beside it)
  PULSAR_URL=pulsar://HOST:6650 python -m benchmarks       on your own broker (PULSAR_ADMIN_URL, PULSAR_TOKEN too)

suites: """


def parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure dispatch against the bare pulsar-client, TrustGraph's own client and service, and the release "
        "before, in one run on one genuine Pulsar broker, which is started for it. Tables go to stdout, progress to "
        "stderr, JSON and PNG to files. The ground rules are in benchmarks/README.md.",
        epilog=EPILOG + "; ".join(f"{s.name} ({', '.join(c.name for c in s.contenders)})" for s in SUITES),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--quick", action="store_true", help="one round of short measurements, under three minutes")
    made.add_argument("--rounds", type=_positive_int, metavar="N", help=f"rotated rounds (default {DEFAULT.rounds})")
    made.add_argument(
        "--seconds",
        type=_positive_float,
        metavar="S",
        help=f"length of one measurement (default {DEFAULT.seconds:g}, with --quick {QUICK.seconds:g})",
    )
    made.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="a suite, or suite/contender; may be given more than once",
    )
    made.add_argument(
        "--out", type=Path, default=RESULTS, metavar="DIR", help="folder for the results (default benchmarks/results)"
    )
    made.add_argument(
        "--code", type=Path, metavar="DIR", help="the checkout whose dispatch is measured (default: this one)"
    )
    made.add_argument(
        "--before",
        type=Path,
        metavar="DIR",
        help=f"the checkout of the release before (default: commit {COMMIT} of this repository)",
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="the JSON file (default: in --out, named by the date)")
    made.add_argument("--png", type=Path, metavar="FILE", help="the plot (default: in --out, named by the date)")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmarks. Return the exit code: 0 for every ratio, 1 failed, 2 not started, 130 Ctrl-C."""
    options = parser().parse_args(arguments)
    try:
        suites = chosen(options.only, QUICK_SUITES if options.quick else SUITES)
    except ValueError as error:
        parser().error(str(error))  # exits with 2
    settings = rounds_of(QUICK if options.quick else DEFAULT, options.rounds, options.seconds)
    missing = [package for module, package in NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing:
        say(f"missing: {', '.join(missing)}; install them with: pip install -e '.[bench]'")
        return 2
    stamp = time.strftime("%Y%m%d-%H%M%S")
    json_path: Path = options.json or options.out / f"{stamp}.json"
    png_path: Path = options.png or options.out / f"{stamp}.png"
    former = options.before or export_former_release(ROOT, RESULTS / "releases")
    if former is None:
        say(f"commit {COMMIT} is not in this clone: the release before is not measured (git fetch --unshallow)")
        suites = without_former(suites)
    products = Products(*(None if folder is None else folder.resolve() for folder in (options.code, former)))
    pictures = _pictures(suites, png_path)
    paths = [json_path, *pictures]
    try:
        for path in paths:  # before the run: an unwritable path would lose a quarter of an hour
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab"):
                pass
    except OSError as error:
        say(f"the results cannot be written: {error}; choose another place with --out, --json or --png")
        return 2
    # SIGTERM must raise, so that the broker and the worker processes are stopped.
    before = signal.signal(signal.SIGTERM, terminated)
    written = False
    try:
        results = _run(suites, settings, products)
        _publish(results, json_path, pictures)
        written = True
    except (BenchmarkError, LocalBrokerError, OSError) as error:
        say(f"the run failed: {error}")
        return 1
    except KeyboardInterrupt:
        say("Interrupted; nothing was written.")
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)
        if not written:
            for path in paths:
                if path.is_file() and path.stat().st_size == 0:
                    path.unlink()
    return 0


def _run(suites: Sequence[Suite], settings: Settings, products: Products) -> Results:
    load_before = load()
    if load_before is not None and load_before > 0.25 * (os.cpu_count() or 1):
        say(f"this machine is busy (load {load_before:g}): figures will be low and scattered")
    seconds = estimated_seconds(suites, settings)
    what = ", ".join(suite.name for suite in suites)
    say(f"{settings.rounds} round(s) of {what}: about {seconds:.0f} s, besides a broker's start")
    with provide_broker(report=say) as endpoint:
        return Driver(endpoint, suites, settings, say, load_before=load_before, products=products).run()


def _pictures(suites: Sequence[Suite], png_path: Path) -> dict[Path, Draw]:
    """Return the plot of each path: the systems have a plot of their own beside other suites."""
    names = {suite.name for suite in SYSTEMS}
    drawn: dict[Path, Draw] = {}
    if any(suite.name not in names for suite in suites):
        drawn[png_path] = draw
    if any(suite.name in names for suite in suites):
        drawn[png_path.with_stem(f"{png_path.stem}-systems") if drawn else png_path] = draw_systems
    return drawn


def _publish(results: Results, json_path: Path, pictures: Mapping[Path, Draw]) -> None:
    targets = [find(ratio, results) for ratio in TARGETS]
    record = [find(ratio, results) for ratio in FOR_THE_RECORD]
    print(report(results, targets, record), flush=True)
    everything = results.as_dict([*targets, *record])
    json_path.write_text(json.dumps(everything, indent=1, ensure_ascii=False) + "\n")
    for path, drawn in pictures.items():
        drawn(results, path)
    say(f"written: {', '.join(map(str, [json_path, *pictures]))}")


def _positive_int(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"1 at least, not {text}")
    return value


def _positive_float(text: str) -> float:
    value = float(text)
    if not 0 < value <= 600:
        raise argparse.ArgumentTypeError(f"above 0 and at most 600 seconds, not {text}")
    return value
