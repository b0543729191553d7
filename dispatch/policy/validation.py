"""Validation of policy values, and the error for an invalid one."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

Part = TypeVar("Part", bound=msgspec.Struct)


class PolicyError(ValueError):
    """An invalid policy value: its ``key``, the ``problem`` and the ``fix``."""

    def __init__(self, key: str, problem: str, fix: str) -> None:
        super().__init__(f"policy key '{key}': {problem}; {fix}")
        self.key = key
        self.problem = problem
        self.fix = fix


MAX_SECONDS = 7 * 24 * 3600.0
"""Largest time: a week. A larger value is nearly always a mistake of units (milliseconds)."""


def check_seconds(value: object, key: str = "timeout", *, allow_zero: bool = False) -> float:
    """Return ``value`` as a time in seconds, above 0 (``allow_zero``: 0 or more) and at most a week.

    Raises:
        PolicyError: it is no such time.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise PolicyError(key, f"{value!r} is not a number", "give seconds, for instance 10 or 0.5")
    if allow_zero and value == 0:
        return 0.0
    if not 0 < value <= MAX_SECONDS:  # false for NaN and infinity, too
        raise PolicyError(
            key,
            f"{value!r} is out of range",
            f"give seconds {'from' if allow_zero else 'above'} 0 and at most 604800 (a week)",
        )
    return float(value)


def check_count(value: object, key: str, most: int) -> None:
    """Check that ``value`` is a whole number from 1 to ``most``.

    Raises:
        PolicyError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise PolicyError(
            key, f"{value!r} is not a whole number from 1 to {most}", f"give a whole number ≥ 1 and ≤ {most}"
        )


def check_flag(value: object, key: str) -> None:
    """Check that ``value`` is true or false.

    Raises:
        PolicyError: it is neither.
    """
    if not isinstance(value, bool):
        raise PolicyError(key, f"{value!r} is not true or false", "give true or false")


def merge_keys(base: Part, raw: Mapping[Any, Any], part: str = "") -> Part:
    """Return ``base`` with the values of ``raw``, whose keys are spelt as in a descriptor. ``part``: prefix of the keys in
    errors.

    Raises:
        PolicyError: a key is unknown, or a value is invalid.
    """
    known = base.__struct_encode_fields__
    fields = dict(zip(known, base.__struct_fields__, strict=True))
    changes: dict[str, Any] = {}
    for key, value in raw.items():
        if key not in fields:
            near = difflib.get_close_matches(str(key), known, 1)
            hint = f"did you mean '{near[0]}'? " if near else ""
            where = f"{part}.{key}" if part else str(key)
            raise PolicyError(where, "unknown key", f"{hint}known keys: {', '.join(known)}")
        changes[fields[key]] = value
    return msgspec.structs.replace(base, **changes) if changes else base
