"""Mistakes in descriptors: one value for each, and one error that carries them all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

Severity = Literal["error", "warning", "info"]

MAX_PROBLEMS_PER_ITEM: Final = 100
"""Problems kept for one descriptor. A megabyte of rubbish could else bring a hundred thousand of them."""


class Problem(msgspec.Struct, frozen=True):
    """One thing to mend in a descriptor.

    Attributes:
        file: where it stands: a path, or ``tools[2]`` for a descriptor that came as a Python value.
        key: the way to the value inside it, such as ``arguments[1].type``; ``""`` for the file as a whole.
        problem: what is wrong.
        fix: what to do about it.
        severity: an ``error`` keeps the whole catalogue from loading, a ``warning`` is probably a mistake, an
            ``info`` is only worth knowing.
    """

    file: str
    key: str
    problem: str
    fix: str
    severity: Severity = "error"

    def __str__(self) -> str:
        where = f"{self.file}: {self.key}" if self.key else self.file
        return f"{where}: {self.problem}. Fix: {self.fix}."


class CatalogError(ValueError):
    """The descriptors do not make a catalogue. ``problems`` has everything that was found, warnings and notes too;
    ``str()`` lists each error and each warning with its file, key and fix."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(problems)
        errors = [problem for problem in self.problems if problem.severity == "error"]
        warnings = [problem for problem in self.problems if problem.severity == "warning"]
        count = f"{len(errors)} mistake{'' if len(errors) == 1 else 's'}"
        lines = [f"The tools cannot be loaded: {count}."]
        lines += [f"  {problem}" for problem in errors]
        lines += [f"  Warning: {problem}" for problem in warnings]
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[type[CatalogError], tuple[tuple[Problem, ...]]]:
        return type(self), (self.problems,)


class Report:
    """Collects the problems of one descriptor while it is read. ``failed`` says whether an error was among them."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.failed = False
        self._problems: list[Problem] = []
        self._wrong_keys: set[str] = set()
        self._left_out = 0

    def error(self, key: str, problem: str, fix: str) -> None:
        """Something that keeps the catalogue from loading. Of one key only the first error is kept: a value that
        cannot be read would else be called missing as well."""
        self.failed = True
        if key and key in self._wrong_keys:
            return
        self._wrong_keys.add(key)
        self._add(Problem(self.file, key, problem, fix, "error"))

    def warning(self, key: str, problem: str, fix: str) -> None:
        """Something that loads, and is probably not what was meant."""
        self._add(Problem(self.file, key, problem, fix, "warning"))

    def info(self, key: str, problem: str, fix: str) -> None:
        """Something worth knowing."""
        self._add(Problem(self.file, key, problem, fix, "info"))

    @property
    def problems(self) -> list[Problem]:
        """What was found, in the order of finding; beyond the limit a last line counts the rest."""
        if not self._left_out:
            return list(self._problems)
        rest = Problem(
            self.file,
            "",
            f"{self._left_out:,} more problems are not listed",
            "mend the ones above, then check again",
            "error" if self.failed else "warning",
        )
        return [*self._problems, rest]

    def _add(self, problem: Problem) -> None:
        if len(self._problems) < MAX_PROBLEMS_PER_ITEM:
            self._problems.append(problem)
        else:
            self._left_out += 1
