"""What is measured: sizes of answers, each with numbers of calls in flight, and how many calls."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

from dispatch.messaging.wire.codec import MAX_MESSAGE_BYTES

DEFAULT_SIZES = "120,1k,10k,100k,1M"
DEFAULT_IN_FLIGHT = "1,16,64,256"
WHOLE_S = 60.0
"""About how long the whole may take: as long as somebody still watches."""
LEAST_RUN_S, MOST_RUN_S = 0.5, 5.0
"""How long one run lasts at least and at most, however many there are: below that are too few calls, and beyond it the share
of lost ones changes little."""

MAX_SIZE = MAX_MESSAGE_BYTES - 1_000
"""Bytes: an answer and what is around it must fit into one message."""
MAX_IN_FLIGHT = 1_024
"""As many as a ToolServer lets wait; it refuses more."""
MAX_AT_ONCE = 256 * 1024 * 1024
"""Bytes of answers under way at once: a service keeps that many for a caller, and drops more."""
MAX_CALLS = 1_000_000

_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?(|k|M)B?", re.IGNORECASE | re.ASCII)
_UNITS = {"": 1, "k": 1_000, "m": 1_000_000}


class PlanError(ValueError):
    """What was asked for cannot be measured. ``fix`` says what can."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(problem)
        self.fix = fix


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure.

    Attributes:
        sizes: bytes of an answer, ascending.
        in_flight: calls at once, ascending.
        calls: calls of each run; None: as many as go into ``seconds``.
        seconds: how long each run begins new calls; None: until all ``calls`` are made.
    """

    sizes: tuple[int, ...]
    in_flight: tuple[int, ...]
    calls: int | None
    seconds: float | None

    @property
    def cells(self) -> list[tuple[int, int]]:
        """Each size with each number in flight; each is run twice, without credit and with it."""
        return [(size, in_flight) for size in self.sizes for in_flight in self.in_flight]


def make_plan(sizes: str = DEFAULT_SIZES, in_flight: str = DEFAULT_IN_FLIGHT, calls: int | None = None) -> Plan:
    """The plan that the options describe.

    Args:
        sizes: answer sizes, separated by commas: ``120``, ``10k``, ``1.5MB``; k and M are thousands and millions.
        in_flight: numbers of calls at once, separated by commas.
        calls: calls of each run; None: what goes into a share of a minute.

    Raises:
        PlanError: no such sizes or numbers, or too much at once.
    """
    wanted_sizes = _each(sizes, "--sizes", parse_size, "sizes as in 120,10k,1.5MB")
    wanted_in_flight = _each(in_flight, "--in-flight", _parse_in_flight, "numbers as in 1,16,64")
    most = max(wanted_in_flight)
    if max(wanted_sizes) * most > MAX_AT_ONCE:
        raise PlanError(
            f"{most:,} answers of {size_text(max(wanted_sizes))} at once are more than {MAX_AT_ONCE:,} bytes, the most that "
            "a service keeps for a caller",
            "give smaller --sizes or fewer --in-flight (several measurements with different ones are fine)",
        )
    if calls is not None and not most <= calls <= MAX_CALLS:
        raise PlanError(
            f"--calls {calls:,} does not go with {most:,} in flight",
            f"give {most:,} to {MAX_CALLS:,}, or fewer --in-flight",
        )
    plan = Plan(wanted_sizes, wanted_in_flight, calls, None)
    if calls is not None:
        return plan
    share = WHOLE_S / (2 * len(plan.cells))
    return Plan(wanted_sizes, wanted_in_flight, None, min(max(share, LEAST_RUN_S), MOST_RUN_S))


def parse_size(text: str) -> int:
    """Bytes.

    Raises:
        ValueError: no size, or one that does not fit into a message.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"'{text}' is no size")
    size = Decimal(match[1]) * _UNITS[match[2].lower()]
    if size != int(size) or not 1 <= size <= MAX_SIZE:
        raise ValueError(f"'{text}' is not a whole number of bytes from 1 to {MAX_SIZE:,}")
    return int(size)


def size_text(size: int) -> str:
    """``size`` bytes for a person, exactly: ``120 B``, ``1.5 kB``, ``1 MB``."""
    for unit, factor in (("MB", 1_000_000), ("kB", 1_000)):
        if size >= factor:
            number = f"{Decimal(size) / factor:f}"
            return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"
    return f"{size} B"


def _parse_in_flight(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 1 <= int(text) <= MAX_IN_FLIGHT):
        raise ValueError(f"'{text}' is not a whole number from 1 to {MAX_IN_FLIGHT:,}")
    return int(text)


def _each(text: str, option: str, parse: Callable[[str], int], example: str) -> tuple[int, ...]:
    try:
        return tuple(sorted({parse(part.strip()) for part in text.split(",")}))
    except ValueError as error:
        raise PlanError(f"{option} {text}: {error}", f"give {example}") from None
