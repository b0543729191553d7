"""Problems in grants, and the error that lists them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

MAX_PROBLEMS: Final = 100
"""Problems reported for one file."""


class GrantsProblem(msgspec.Struct, frozen=True):
    """One problem in grants.

    Attributes:
        key: path of the value, such as ``users.alice[0]``; ``""``: the whole file.
        problem: description of the problem.
        fix: how to correct it.
    """

    key: str
    problem: str
    fix: str

    def __str__(self) -> str:
        where = f"{self.key}: " if self.key else ""
        return f"{where}{self.problem}. Fix: {self.fix}."


class GrantsError(ValueError):
    """The grants are invalid. ``str()`` lists every problem with its key and fix.

    Attributes:
        file: path of the file; empty: the grants are no file.
        problems: the problems.
    """

    def __init__(self, file: str, problems: Iterable[GrantsProblem]) -> None:
        self.file = file
        self.problems = tuple(problems)
        count = f"{len(self.problems)} mistake{'' if len(self.problems) == 1 else 's'}"
        where = f" of '{file}'" if file else ""
        super().__init__(
            "\n".join([f"The grants{where} cannot be loaded: {count}.", *(f"  {p}" for p in self.problems)])
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.file, self.problems)


class GrantsReport:
    """Collects the problems of grants while they are read, at most :data:`MAX_PROBLEMS`."""

    def __init__(self) -> None:
        self.problems: list[GrantsProblem] = []

    def add(self, key: str, problem: str, fix: str) -> None:
        """Add a problem."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(GrantsProblem(key, problem, fix))
