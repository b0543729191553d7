"""The shape of versions (SemVer 2.0.0) and of version ranges. What satisfies a range is not decided here."""

from __future__ import annotations

import re
from typing import Final

_NUMBER: Final = r"(?:0|[1-9]\d*)"
_LABEL: Final = rf"(?:{_NUMBER}|\d*[a-zA-Z-][0-9a-zA-Z-]*)"
_TAIL: Final = rf"(?:-{_LABEL}(?:\.{_LABEL})*)?(?:\+[0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*)?"
_VERSION: Final = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}{_TAIL}", re.ASCII)

_PARTIAL: Final = rf"{_NUMBER}(?:\.(?:{_NUMBER}|[xX*])){{0,2}}"
_OPERATOR: Final = r"(?:>=|<=|>|<|==|=|!=|~=|\^|~)"
_COMPARATOR: Final = re.compile(rf"{_OPERATOR}?v?(?:{_PARTIAL}|{_NUMBER}\.{_NUMBER}\.{_NUMBER}{_TAIL})|[xX*]", re.ASCII)
_OPERATOR_BLANKS: Final = re.compile(r"([<>=!~^])\s+")
_MAX_CHARS: Final = 200

VERSION_EXAMPLE: Final = "1.4.0"
RANGE_EXAMPLE: Final = ">=1.4.0, <2"


def is_version(text: str) -> bool:
    """Is it a SemVer version: ``1.4.0``, ``2.0.0-rc.1+build.5``?"""
    return len(text) <= _MAX_CHARS and _VERSION.fullmatch(text) is not None


def is_version_range(text: str) -> bool:
    """Is it a range: comparators such as ``>=1.4.0``, ``<2``, ``^1.4``, ``~1.4.2``, ``1.x``, joined by commas or blanks
    (all of them must hold), such groups joined by ``||`` (one of them must)?"""
    if len(text) > _MAX_CHARS:
        return False
    return all(_is_group(group) for group in text.split("||"))


def _is_group(text: str) -> bool:
    comparators = _OPERATOR_BLANKS.sub(r"\1", text.strip()).replace(",", " ").split()
    return bool(comparators) and all(_COMPARATOR.fullmatch(comparator) for comparator in comparators)
