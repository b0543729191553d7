"""Size of a JSON value: how many values it has, and whether it is nested too deeply for the engine."""

from __future__ import annotations

from typing import Final

MAX_DEPTH: Final = 100
"""Nested objects and lists that are validated. jsonschema-rs 0.60.3 recurses on the stack without a check of its own: with
nested ``anyOf`` the process died at 256 levels on a stack of 512 KiB, as threads of some systems have."""


def count_values(value: object) -> int | None:
    """Return how many values are in ``value``, itself included; None: deeper than :data:`MAX_DEPTH`, or cyclic."""
    level: list[object] = [value]
    count = 0
    for _ in range(MAX_DEPTH + 1):
        count += len(level)
        below: list[object] = []
        for each in level:
            if isinstance(each, dict):
                below += each.values()
            elif isinstance(each, (list, tuple)):
                below += each
        if not below:
            return count
        level = below
    return None
