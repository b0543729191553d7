"""Plan of a measurement: reply sizes, numbers of calls in flight, and the number of calls."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

from dispatch.messaging.wire.codec import MAX_MESSAGE_BYTES

DEFAULT_SIZES = "120,1k,10k,100k,1M"
DEFAULT_IN_FLIGHT = "1,16,64,256"
TOTAL_S = 60.0
"""Target duration of the whole measurement in seconds."""
MIN_RUN_S, MAX_RUN_S = 0.5, 5.0
"""Minimum and maximum seconds per run: a shorter run has too few calls, a longer one hardly changes the share of lost
calls."""

MAX_SIZE = MAX_MESSAGE_BYTES - 1_000
"""Bytes: a reply with its envelope must fit into one message."""
MAX_IN_FLIGHT = 1_024
"""Queue limit of a ToolServer; it rejects more."""
MAX_BYTES_IN_FLIGHT = 256 * 1024 * 1024
"""Bytes of replies in flight: a service buffers that many per caller and drops more."""
MAX_CALLS = 1_000_000

_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?(|k|M)B?", re.IGNORECASE | re.ASCII)
_UNITS = {"": 1, "k": 1_000, "m": 1_000_000}


class PlanError(ValueError):
    """The plan is not valid. ``fix`` names a valid one."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(problem)
        self.fix = fix


@dataclass(frozen=True, slots=True)
class Plan:
    """Runs of a measurement.

    Attributes:
        sizes: reply sizes in bytes, ascending.
        in_flight: numbers of concurrent calls, ascending.
        calls: calls per run; None: as many as fit into ``seconds``.
        seconds: duration in which a run starts calls; None: until ``calls`` were made.
    """

    sizes: tuple[int, ...]
    in_flight: tuple[int, ...]
    calls: int | None
    seconds: float | None

    @property
    def loads(self) -> list[tuple[int, int]]:
        """Return each size with each number in flight; each pair is run without and with sessions."""
        return [(size, in_flight) for size in self.sizes for in_flight in self.in_flight]


def make_plan(sizes: str = DEFAULT_SIZES, in_flight: str = DEFAULT_IN_FLIGHT, calls: int | None = None) -> Plan:
    """Parse the options into a plan.

    Args:
        sizes: reply sizes, separated by commas: ``120``, ``10k``, ``1.5MB``; k and M are thousands and millions.
        in_flight: numbers of concurrent calls, separated by commas.
        calls: calls per run; None: as many as fit into a share of a minute.

    Raises:
        PlanError: a size or number is not valid, or the bytes in flight exceed the limit.
    """
    wanted_sizes = _parse_list(sizes, "--sizes", parse_size, "sizes as in 120,10k,1.5MB")
    wanted_in_flight = _parse_list(in_flight, "--in-flight", _parse_in_flight, "numbers as in 1,16,64")
    most = max(wanted_in_flight)
    if max(wanted_sizes) * most > MAX_BYTES_IN_FLIGHT:
        raise PlanError(
            f"{most:,} replies of {format_size(max(wanted_sizes))} in flight exceed {MAX_BYTES_IN_FLIGHT:,} "
            "bytes, the buffer of a service per caller",
            "use smaller --sizes or --in-flight, or split the measurement",
        )
    if calls is not None and not most <= calls <= MAX_CALLS:
        raise PlanError(
            f"--calls {calls:,} is out of range with {most:,} in flight",
            f"use {most:,} to {MAX_CALLS:,} calls, or smaller --in-flight",
        )
    plan = Plan(wanted_sizes, wanted_in_flight, calls, None)
    if calls is not None:
        return plan
    share = TOTAL_S / (2 * len(plan.loads))
    return Plan(wanted_sizes, wanted_in_flight, None, min(max(share, MIN_RUN_S), MAX_RUN_S))


def parse_size(text: str) -> int:
    """Parse a size in bytes.

    Raises:
        ValueError: not a size, or too large for a message.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"'{text}' is not a size")
    size = Decimal(match[1]) * _UNITS[match[2].lower()]
    if size != int(size) or not 1 <= size <= MAX_SIZE:
        raise ValueError(f"'{text}' is not a whole number of bytes from 1 to {MAX_SIZE:,}")
    return int(size)


def format_size(size: int) -> str:
    """Format a size exactly: ``120 B``, ``1.5 kB``, ``1 MB``."""
    for unit, factor in (("MB", 1_000_000), ("kB", 1_000)):
        if size >= factor:
            number = f"{Decimal(size) / factor:f}"
            return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"
    return f"{size} B"


def _parse_in_flight(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 1 <= int(text) <= MAX_IN_FLIGHT):
        raise ValueError(f"'{text}' is not a whole number from 1 to {MAX_IN_FLIGHT:,}")
    return int(text)


def _parse_list(text: str, option: str, parse: Callable[[str], int], example: str) -> tuple[int, ...]:
    try:
        return tuple(sorted({parse(part.strip()) for part in text.split(",")}))
    except ValueError as error:
        raise PlanError(f"{option} {text}: {error}", f"use {example}") from None
