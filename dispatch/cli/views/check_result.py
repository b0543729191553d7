"""CheckResult: what one check of the doctor found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["ok", "failed", "warning", "skipped"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check.

    Attributes:
        name: subject of the check.
        status: ``warning`` and ``skipped`` are not failures.
        detail: what was found.
        fix: the command that fixes it; ``""`` if nothing is wrong.
        sessions: what was measured of each session, for programs.
    """

    name: str
    status: Status
    detail: str
    fix: str = ""
    sessions: tuple[Mapping[str, Any], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for ``--json``."""
        found: dict[str, Any] = {"name": self.name, "status": self.status, "detail": self.detail, "fix": self.fix}
        return found | {"sessions": list(self.sessions)} if self.sessions else found
