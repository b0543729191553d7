"""Report of ``make mutation``: mutants by module, and survivors that docs/explanation/mutation.md does not explain.

    python -m tests.helpers.mutation_report [names of mutants, with *]

Ends with 1 when a mutant that is not explained there survived, or was not run.
"""

from __future__ import annotations

import fnmatch
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

DOCS = Path("docs/explanation/mutation.md")
CAUGHT = ("killed", "timeout", "segfault")


class Mutation(NamedTuple):
    """What tells a mutation, whatever its number: numbers change with every change of their function."""

    module: str
    function: str
    new: str
    """The line as it was changed to, without its indentation and comment; empty: a line is gone."""


class Mutant(NamedTuple):
    """A mutant, and what became of it."""

    name: str
    status: str
    mutation: Mutation
    diff: str


def explained(text: str) -> set[Mutation]:
    """The mutations that a page explains: rows of a table below a heading with the module's path, whose first cell names the
    function and whose second one says in backticks what the line was and what it is now."""
    found, module = set(), ""
    for line in text.splitlines():
        if heading := re.fullmatch(r"#+ `(.+?)\.py`", line):
            module = heading[1].replace("/", ".")
        elif module and line.startswith("| `"):
            function, change = re.split(r"(?<!\\)\|", line)[1:3]
            new = re.findall(r"(`+) ?(.+?) ?\1", change)[-1][1].replace(r"\|", "|")
            found.add(Mutation(module, function.strip(" `"), new))
    return found


def mutation(name: str, diff: str) -> Mutation:
    """What the mutant of that name and diff changes."""
    module, _, mangled = name.rpartition(".")
    function = mangled.rpartition("__mutmut_")[0].removeprefix("x_").removeprefix("xǁ").replace("ǁ", ".")
    new = [line[1:] for line in diff.splitlines() if line.startswith("+") and not line.startswith("+++")]
    return Mutation(module, function, re.sub(r"  #.*", "", new[0]).strip() if new else "")


def mutants(names: Sequence[str]) -> Iterator[Mutant]:
    """Those of the last run. Only of those that were not caught the diff is read."""
    # Not installed but with the extra "mutation".
    from mutmut.mutation.data import SourceFileMutationData
    from mutmut.mutation.diff_apply import get_diff_for_mutant
    from mutmut.stats import status_by_exit_code
    from mutmut.utils.file_utils import walk_mutatable_files

    for path in sorted(walk_mutatable_files()):
        data = SourceFileMutationData(path=path)
        data.load()
        for name, exit_code in data.exit_code_by_key.items():
            if names and not any(fnmatch.fnmatch(name, each) for each in names):
                continue
            status = status_by_exit_code[exit_code]
            diff = "" if status in CAUGHT else get_diff_for_mutant(name, path=path)
            yield Mutant(name, status, mutation(name, diff), diff)


def summary(found: Sequence[Mutant], known: set[Mutation]) -> tuple[list[str], list[Mutant]]:
    """A table, and what is open: neither caught nor explained."""
    rows = [f"{'module':32}{'mutants':>9}{'killed':>9}{'timeout':>9}{'explained':>11}{'open':>6}"]
    everything: Counter[str] = Counter()
    open_ones = []
    for module in sorted({each.mutation.module for each in found}):
        count: Counter[str] = Counter()
        for each in (each for each in found if each.mutation.module == module):
            caught = each.status in CAUGHT
            if not caught and each.mutation not in known:
                open_ones.append(each)
            count["mutants"] += 1
            count["timeout" if caught and each.status != "killed" else "killed" if caught else "survived"] += 1
        count["open"] = sum(each.mutation.module == module for each in open_ones)
        rows.append(_row(module, count))
        everything += count
    rows.append(_row("all", everything))
    return rows, open_ones


def _row(title: str, count: Counter[str]) -> str:
    explained_ones = count["survived"] - count["open"]
    figures = f"{count['mutants']:9}{count['killed']:9}{count['timeout']:9}{explained_ones:11}{count['open']:6}"
    return f"{title:32}{figures}"


def main(arguments: Sequence[str]) -> int:
    names = [each for each in arguments if each.startswith("dispatch")]
    rows, open_ones = summary(list(mutants(names)), explained(DOCS.read_text("utf-8")))
    for each in open_ones:
        print(f"\n{each.name}: {each.status}\n{each.diff}")  # noqa: T201 - what it is for
    print("\n" + "\n".join(rows))  # noqa: T201
    return 1 if open_ones else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
