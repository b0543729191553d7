"""How often a tool, or a user, may call: a rate, what may come at once, and who may wait for how long."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import msgspec

from dispatch.policy.validation import PolicyError, check_seconds

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
"""What a rate can be counted over, in seconds."""
MAX_PER_SECOND = 1_000_000.0
"""No more calls a second than this pass through one process: a limit above it limits nothing."""
MAX_BURST = 1_000_000.0
MAX_RATE_QUEUE = 10_000
"""Calls that can wait for one tool's rate, at most: each is a task that waits, and each refusal looks at their costs."""
MAX_WEIGHT = 1_000.0
"""The largest weight; the smallest is one by this."""
MAX_WEIGHTS = 10_000

_TEXT = re.compile(r"([0-9]+(?:\.[0-9]+)?)/([smhd])", re.ASCII)
_EXAMPLE = 'write a number and s, m, h or d, for instance "100/s", "10/m" or "0.5/s"'
_OBJECT = 'write "100/s" or {"rate": "100/s", "burst": 20}'


class Rate(msgspec.Struct, frozen=True, rename="kebab"):
    """How often calls may be made. In a descriptor ``"100/s"``, or an object with these keys. ``str(rate)`` is the same
    text, or the same object as JSON, and :func:`parse_rate` reads it back.

    In any time of ``t`` seconds at most ``burst + rate * t`` calls are let through: a leaky bucket (Turner 1986).

    Attributes:
        rate: calls by second, minute, hour or day: ``100/s``, ``10/m``, ``1000/h``, ``0.5/s``. No default: only whoever runs
            the service knows.
        burst: calls that may come at once after a quiet time; at least 1. None: the number in ``rate``, as in aiolimiter and
            resilience4j, because "10/m" is read as ten a minute whenever in it they come. 1 spaces them evenly.
        queue: calls that may wait when there is no room, over all users. 128: at 100 calls a second it
            is as long as the longest wait. A user alone gets half of it and more users share evenly, so that there is
            always a place for the next one. 0: nobody waits, every call too many is refused at once. At most 10,000.
        max_wait: seconds that a call may wait, never beyond its deadline. A call that would have to wait for longer is
            refused at once. 1, as for the bulkhead: whoever waits for longer is better told when to come back.
        weights: users' shares of the rate when more calls come than may go; who is not named has weight 1. From 0.001 to
            1000, for at most 10,000 users. Empty: all are alike.
    """

    rate: str
    burst: float | None = None
    queue: int = 128
    max_wait: float = 1.0
    weights: Mapping[str, float] | tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        calls, unit = _parsed(self.rate)
        msgspec.structs.force_setattr(self, "rate", f"{_plain(calls)}/{unit}")
        if self.burst is None:
            if calls > MAX_BURST:
                raise PolicyError("rate.burst", "it is missing, and the rate's own number is too large", _burst_fix())
        elif not _is_number(self.burst) or not 1 <= self.burst <= MAX_BURST:
            raise PolicyError("rate.burst", f"{self.burst!r} is not a number from 1", _burst_fix())
        if isinstance(self.queue, bool) or not isinstance(self.queue, int) or not 0 <= self.queue <= MAX_RATE_QUEUE:
            raise PolicyError(
                "rate.queue",
                f"{self.queue!r} is not a whole number from 0 to {MAX_RATE_QUEUE}",
                "give for instance 128, or 0 to refuse at once what is too much",
            )
        check_seconds(self.max_wait, "rate.max-wait")
        msgspec.structs.force_setattr(self, "weights", _weights(self.weights))

    @property
    def per_second(self) -> float:
        """Calls a second."""
        calls, unit = _parsed(self.rate)
        return calls / UNITS[unit]

    @property
    def capacity(self) -> float:
        """``burst``, or what stands for it: the number in ``rate``, but room for one call."""
        return max(1.0, _parsed(self.rate)[0]) if self.burst is None else float(self.burst)

    def __str__(self) -> str:
        document = self.as_document()
        return document if isinstance(document, str) else msgspec.json.encode(document).decode()

    def as_document(self) -> str | dict[str, Any]:
        """What a descriptor says for this: the rate's text, or an object of what differs from the defaults."""
        document = {
            key: getattr(self, field)
            for field, key, default in zip(
                self.__struct_fields__[1:], self.__struct_encode_fields__[1:], self.__struct_defaults__, strict=True
            )
            if getattr(self, field) != default
        }
        if not document:
            return self.rate
        if self.weights:
            document["weights"] = dict(self.weights)
        return {"rate": self.rate, **document}


def parse_rate(raw: object, key: str = "rate") -> Rate:
    """The rate that ``raw`` describes: text such as ``100/s``, an object with the keys of :class:`Rate`, such an object as
    JSON text, or a :class:`Rate`.

    Args:
        raw: what a descriptor says.
        key: where it says so, for errors: ``rate`` or ``user-rate``.

    Raises:
        PolicyError: it describes none; its ``key`` begins with ``key``.
    """
    if isinstance(raw, Rate):
        return raw
    try:
        if isinstance(raw, str) and raw.startswith("{"):
            try:
                raw = msgspec.json.decode(raw)
            except msgspec.DecodeError as error:
                raise PolicyError("rate", f"it is no JSON object ({error})", _OBJECT) from None
        if isinstance(raw, str):
            return Rate(raw)
        if isinstance(raw, Mapping):
            return Rate(**_fields(raw))
        raise PolicyError("rate", f"{raw!r} is neither text nor an object", _OBJECT)
    except PolicyError as error:
        if key == "rate":
            raise
        raise PolicyError(key + error.key.removeprefix("rate"), error.problem, error.fix) from None


def _fields(raw: Mapping[Any, Any]) -> dict[str, Any]:
    fields = dict(zip(Rate.__struct_encode_fields__, Rate.__struct_fields__, strict=True))
    for each in raw:
        if each not in fields:
            raise PolicyError(f"rate.{each}", "unknown key", f"known keys: {', '.join(fields)}")
    if "rate" not in raw:
        raise PolicyError("rate.rate", "it is missing", _EXAMPLE)
    return {fields[each]: value for each, value in raw.items()}


def _parsed(text: object) -> tuple[float, str]:
    found = _TEXT.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise PolicyError("rate", f"{text!r} is not a rate", _EXAMPLE)
    calls = float(found[1])
    if not 0 < calls / UNITS[found[2]] <= MAX_PER_SECOND:
        raise PolicyError(
            "rate",
            f"{text!r} is out of range",
            "give more than 0 and at most 1000000 a second; to limit nothing, leave it out",
        )
    return calls, found[2]


def _plain(number: float) -> str:
    """As the pattern reads it: no exponent, no needless point."""
    if number == int(number):
        return str(int(number))
    return format(Decimal(repr(number)), "f")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _burst_fix() -> str:
    return "give calls that may come at once, from 1 (evenly spaced) to 1000000"


def _weights(raw: object) -> tuple[tuple[str, float], ...]:
    """Sorted pairs: a value that can be hashed and compared, whatever the order it was written in."""
    try:
        pairs = dict(raw)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        raise PolicyError("rate.weights", f"{raw!r} is not an object", 'write {"batch": 0.5, "ann": 4}') from None
    if len(pairs) > MAX_WEIGHTS:
        raise PolicyError("rate.weights", f"{len(pairs)} are too many", f"give at most {MAX_WEIGHTS}; the rest have 1")
    for user, weight in pairs.items():
        if not isinstance(user, str):
            raise PolicyError("rate.weights", f"{user!r} is not a user's name", "give names as text")
        if not _is_number(weight) or not 1 / MAX_WEIGHT <= weight <= MAX_WEIGHT:
            raise PolicyError(
                "rate.weights",
                f"{weight!r} for {user!r} is not a number from 0.001 to 1000",
                "give 1 for an even share",
            )
    return tuple(sorted((user, float(weight)) for user, weight in pairs.items()))
