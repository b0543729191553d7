"""The syntax of versions (SemVer 2.0.0)."""

from __future__ import annotations

import re
from typing import Final

_NUMBER: Final = r"(?:0|[1-9]\d*)"
_LABEL: Final = rf"(?:{_NUMBER}|\d*[a-zA-Z-][0-9a-zA-Z-]*)"
_TAIL: Final = rf"(?:-{_LABEL}(?:\.{_LABEL})*)?(?:\+[0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*)?"
_VERSION: Final = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}{_TAIL}", re.ASCII)
_MAX_CHARS: Final = 200

VERSION_EXAMPLE: Final = "1.4.0"


def is_version(text: str) -> bool:
    """Return whether ``text`` is a SemVer version: ``1.4.0``, ``2.0.0-rc.1+build.5``."""
    return len(text) <= _MAX_CHARS and _VERSION.fullmatch(text) is not None
