"""``python -m structure``: the structure report; ``python -m structure walk``: the files that one call goes through."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any

from structure import walk as walking
from structure.report import PROSE, Figure, find_private_words, measure_structure
from structure.vocabulary import VOCABULARY, Hit, count_by_package

SHOWN = 12
"""Findings of one figure that are printed without ``--all``."""

DESCRIPTION = f"""\
Structure report of dispatch/, from its source alone (nothing is run but the policy classes, for their keys).

top level        modules beside the packages
layers           layers of structure/layers.py that have modules; tests/test_imports.py enforces the table
import cycles    groups of modules (packages) that import each other in a loop, also by imports inside functions. Packages:
                 the entries of the table, and below each the members of one folder, a sub-package as one of them.
                 Imports under TYPE_CHECKING are counted apart
policy keys      a policy's keys, those of each part once, and short forms
banned verbs     functions whose whole name is a verb or participle that says nothing (style), also as _name
conditionals     tests of an object of telemetry (is None, is not None, truth) in dispatcher/, calls/, routing/,
                 resilience/ and trustgraph/
private words    words of structure/vocabulary.py in comments, texts and Markdown of {", ".join(PROSE)}
"""


@dataclass(frozen=True)
class Options:
    """The command line."""

    command: str
    json: bool
    check: bool
    all: bool
    words: bool


def main(arguments: list[str] | None = None) -> int:
    """Print the report or the trace; return the exit code."""
    options = parse_options(arguments)
    if options.command == "walk":
        return print_walk(options)
    if options.words:
        print("\n".join(f"{hit.path}:{hit.line} {hit.term}: {hit.text}" for hit in find_private_words()))
        return 0
    figures = measure_structure()
    if options.check:
        return check_limits(figures)
    words = find_private_words()
    if options.json:
        print(json.dumps(report_values(figures, words), indent=2, ensure_ascii=False))
    else:
        print(describe_figures(figures, most=None if options.all else SHOWN))
        print()
        print(describe_words(words))
    return 0


def check_limits(figures: list[Figure]) -> int:
    """Print each figure above an enforced limit; return 1 if there is one. Name limits that could be enforced."""
    code = 0
    for figure in figures:
        if figure.limit is None:
            continue
        if figure.exceeds and figure.limit.is_enforced:
            code = 1
            print(
                f"error: {figure.title}: {figure.value}, {limit_text(figure)}",
                *figure.found,
                sep="\n  ",
                file=sys.stderr,
            )
        elif not figure.exceeds and not figure.limit.is_enforced:
            print(
                f"{figure.title}: {figure.value}; limit {figure.limit.most} holds and can be enforced (structure/report.py)"
            )
    return code


def parse_options(arguments: list[str] | None) -> Options:
    """Read the command line; ``--help`` describes what is counted."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true", help="print JSON")
    common.add_argument(
        "--check", action="store_true", help="print only the limits that are exceeded; exit code 1 if one is enforced"
    )
    raw: dict[str, Any] = {"formatter_class": argparse.RawDescriptionHelpFormatter, "parents": [common]}
    parser = argparse.ArgumentParser(prog="python -m structure", description=DESCRIPTION, **raw)
    parser.add_argument("--all", action="store_true", help=f"print every finding, not only {SHOWN} of each figure")
    parser.add_argument("--words", action="store_true", help="print only the private words, each with its place")
    commands = parser.add_subparsers(dest="command", metavar="walk")
    commands.add_parser("walk", help="trace one call through the files", description=walking.COUNTING, **raw)
    found = parser.parse_args(arguments)
    return Options(found.command or "report", found.json, found.check, found.all, found.words)


def print_walk(options: Options) -> int:
    """Trace one call and print it."""
    walk = walking.walk_call()
    if options.json:
        lists = {"chain": walk.chain, "pipeline": walk.pipeline, "all": walk.visits}
        visits = {name: [visit._asdict() for visit in each] for name, each in lists.items()}
        print(json.dumps({"figures": walking.figures_of(walk), "visits": visits}, indent=2))
    else:
        print(walking.describe(walk))
    return 1 if options.check and walk.exceeds else 0


def limit_text(figure: Figure) -> str:
    """The limit of a figure, in words; empty if it has none."""
    if figure.limit is None:
        return ""
    return f"limit {figure.limit.most}" + ("" if figure.limit.is_enforced else ", not enforced")


def describe_figures(figures: list[Figure], most: int | None) -> str:
    """Each figure on a line, with at most ``most`` findings below it."""
    lines = []
    for figure in figures:
        mark = "!" if figure.exceeds else " "
        limit = f"  ({limit_text(figure)})" if figure.limit else ""
        lines.append(f"{mark} {figure.value:>6}  {figure.title}{limit}")
        lines += [f"            {each}" for each in figure.found[:most]]
        if most is not None and len(figure.found) > most:
            lines.append(f"            … {len(figure.found) - most} more (--all)")
    return "\n".join(lines)


def describe_words(words: list[Hit]) -> str:
    """Private words by package, and by term with the standard term."""
    terms = Counter(hit.term for hit in words)
    lines = [f"  {len(words):>6}  private words in comments, texts and documents (--words names each)"]
    for folder, counts in count_by_package(words).items():
        commonest = ", ".join(f"{term} {count}" for term, count in counts.most_common(4))
        lines.append(f"  {counts.total():>10}  {folder:24}{commonest}")
    lines.append("")
    lines += [f"  {terms[term.name]:>10}  {term.name:24}→ {term.instead}" for term in VOCABULARY]
    return "\n".join(lines)


def report_values(figures: list[Figure], words: list[Hit]) -> dict[str, Any]:
    """The report as plain values."""
    return {
        "figures": {
            figure.key: {
                "title": figure.title,
                "value": figure.value,
                "limit": figure.limit.most if figure.limit else None,
                "is_enforced": bool(figure.limit and figure.limit.is_enforced),
                "found": figure.found,
            }
            for figure in figures
        },
        "private_words": {folder: dict(counts) for folder, counts in count_by_package(words).items()},
    }


if __name__ == "__main__":
    sys.exit(main())
