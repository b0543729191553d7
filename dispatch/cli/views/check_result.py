"""CheckResult: what one check of the doctor found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "failed", "warning", "skipped"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check.

    Attributes:
        name: subject of the check.
        status: ``warning`` and ``skipped`` are not failures.
        detail: what was found.
        fix: the command that fixes it; ``""`` if nothing is wrong.
    """

    name: str
    status: Status
    detail: str
    fix: str = ""

    def as_dict(self) -> dict[str, str]:
        """Return plain values, for ``--json``."""
        return {"name": self.name, "status": self.status, "detail": self.detail, "fix": self.fix}
