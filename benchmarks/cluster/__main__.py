"""``python -m benchmarks.cluster``: faults of the brokers of a cluster, under load. All of them: about eight minutes, and
the table of docs/explanation/cluster.md is written."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version

from benchmarks.cluster.faults import FAULTS, SETTINGS, Finding, loaded, measure
from benchmarks.cluster.load import KINDS
from benchmarks.harness.processes import ROOT
from benchmarks.harness.programs import write_page
from dispatch.devtools.localbroker import VERSION
from dispatch.devtools.localcluster import LocalCluster

PAGE = ROOT / "docs" / "explanation" / "cluster.md"


def render(findings: Sequence[Finding]) -> str:
    """Return the Markdown of the findings."""
    lines = [
        f"One run on {datetime.now(UTC):%Y-%m-%d}: Pulsar {VERSION}, pulsar-client {version('pulsar-client')}; load, three "
        f"brokers, a bookie and ZooKeeper on {os.cpu_count()} shared processors, load average {os.getloadavg()[2]:.0f}.",
        "",
        "| fault | calls | lost in sessions | run twice | repeatable calls failed: sessions, plain, persistent "
        "| others failed | sessions back after | slowest call elsewhere | topics moved |",
        "|" + "---|" * 9,
    ]
    for each in findings:
        shares = ", ".join(f"{100 * each.failed_share(kind):.2g} %" for kind in KINDS)
        others = ", ".join(str(sum(n for how, n in each.failed_once.items() if how.startswith(kind))) for kind in KINDS)
        back = "-" if each.back_after is None else f"{each.back_after:.1f} s"
        elsewhere = f"{each.slowest_elsewhere:.2f} s, {each.failed_elsewhere} failed" if each.elsewhere else "-"
        lines.append(
            f"| {each.fault} | {each.calls:,} | {each.lost} | {each.twice} | {shares} | {others} | {back} | {elsewhere} "
            f"| {each.moved} |"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print each finding, and write the page if all faults were measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description=__doc__)
    known = ", ".join(map(repr, FAULTS))
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=f"these only, and no page: {known}")
    faults = parser.parse_args(arguments).faults
    if unknown := [each for each in faults if each not in FAULTS]:
        parser.error(f"there is no fault {unknown[0]!r}; there are {known}")
    findings = []
    with LocalCluster.start(settings=SETTINGS, report=_report) as cluster, loaded(cluster.service_url) as load:
        for fault in faults or FAULTS:
            findings.append(measure(cluster, load, fault))
            _report(json.dumps(dataclasses.asdict(findings[-1])))
    table = render(findings)
    _report(table)
    if not faults:
        write_page(PAGE, table)


def _report(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
