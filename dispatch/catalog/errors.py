"""Problems in descriptors, and the error that lists them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

Severity = Literal["error", "warning", "info"]

MAX_PROBLEMS_PER_ITEM: Final = 100
"""Problems reported for one descriptor: a malformed megabyte could otherwise yield a hundred thousand."""


class Problem(msgspec.Struct, frozen=True):
    """One problem in a descriptor.

    Attributes:
        file: path of the descriptor, or ``tools[2]`` for a Python value.
        key: path of the value inside the descriptor, such as ``arguments[1].type``; ``""``: the whole file.
        problem: description of the problem.
        fix: how to correct it.
        severity: ``error``: the whole catalogue is not loaded; ``warning``: probably a mistake; ``info``: a note.
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
    """The descriptors are invalid. ``problems`` has all problems, with warnings and notes; ``str()`` lists each error and
    each warning with its file, key and fix."""

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
    """Collects the problems of one descriptor while it is read; ``has_errors``: one of them is an error."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.has_errors = False
        self._problems: list[Problem] = []
        self._wrong_keys: set[str] = set()
        self._omitted = 0

    def add_error(self, key: str, problem: str, fix: str) -> None:
        """Add a problem that prevents loading. Only the first error of a key is added: a value that is not readable would
        otherwise be reported as missing, too."""
        self.has_errors = True
        if key and key in self._wrong_keys:
            return
        self._wrong_keys.add(key)
        self._add(Problem(self.file, key, problem, fix, "error"))

    def add_warning(self, key: str, problem: str, fix: str) -> None:
        """Add a problem that does not prevent loading, and is probably a mistake."""
        self._add(Problem(self.file, key, problem, fix, "warning"))

    def add_info(self, key: str, problem: str, fix: str) -> None:
        """Add a note."""
        self._add(Problem(self.file, key, problem, fix, "info"))

    @property
    def problems(self) -> list[Problem]:
        """The problems in the order in which they were added; beyond the limit a last one has the number of the others."""
        if not self._omitted:
            return list(self._problems)
        rest = Problem(
            self.file,
            "",
            f"{self._omitted:,} more problems are not listed",
            "correct the ones above, then check again",
            "error" if self.has_errors else "warning",
        )
        return [*self._problems, rest]

    def _add(self, problem: Problem) -> None:
        if len(self._problems) < MAX_PROBLEMS_PER_ITEM:
            self._problems.append(problem)
        else:
            self._omitted += 1
