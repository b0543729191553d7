"""Calls of the counting tool in mixed sizes: what the call of a number asks for, and its only right answer."""

from __future__ import annotations

from bisect import bisect
from itertools import accumulate
from typing import Any

from tests.helpers.counting_service import answer

KINDS: tuple[tuple[int, dict[str, Any]], ...] = (
    (8_000, {"size": 120}),
    (1_170, {"size": 1_000}),
    (500, {"size": 10_000}),
    (50, {"size": 100_000}),
    (4, {"size": 1_000_000}),
    (50, {"size": 120, "padding": 10_000}),
    (5, {"size": 120, "padding": 100_000}),
    (1, {"size": 120, "padding": 1_000_000}),
    (200, {"size": 200, "chunks": 10}),
    (20, {"size": 10_000, "chunks": 10}),
)
"""Weights, and sizes in bytes of the reply (of each chunk of it) and of padding in the request."""
_BOUNDS = list(accumulate(weight for weight, _ in KINDS))


def arguments_of(number: int) -> dict[str, Any]:
    """Return the arguments of the call of this number: always the same ones."""
    # A multiplicative hash: a generator for each number would cost a tenth of a call.
    kind = KINDS[bisect(_BOUNDS, (number * 2_654_435_761 >> 7) % _BOUNDS[-1])]
    arguments = {"n": number, **kind[1]}
    if "padding" in arguments:
        arguments["padding"] = "x" * arguments["padding"]
    return arguments


def is_right(text: str, arguments: dict[str, Any]) -> bool:
    """Whether ``text`` is the whole answer to these arguments."""
    if "chunks" in arguments:
        return text == "".join(answer(index, arguments["size"]) for index in range(arguments["chunks"]))
    return text == answer(arguments["n"], arguments["size"])
