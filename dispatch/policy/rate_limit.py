"""Rate limits of tools and users: a rate, a burst, the longest wait, and the users' weights."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import msgspec

from dispatch._internal.arguments import NamedFields
from dispatch._internal.utf8 import scalar_value
from dispatch.policy.validation import PolicyError, check_seconds

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
"""Seconds of each unit of time of a rate."""
MAX_PER_SECOND = 1_000_000.0
"""Calls per second; one process never reaches more, so that a higher limit has no effect."""
MAX_BURST = 1_000_000.0
MAX_WEIGHT = 1_000.0
"""The largest weight; the smallest is one by this."""
MAX_WEIGHTS = 10_000

_TEXT = re.compile(r"([0-9]+(?:\.[0-9]+)?)/([smhd])", re.ASCII)
_EXAMPLE = 'write a number and s, m, h or d, for instance "100/s", "10/m" or "0.5/s"'
_OBJECT = 'write "100/s" or {"rate": "100/s", "burst": 20}'


class RateLimit(msgspec.Struct, metaclass=NamedFields, frozen=True, rename="kebab"):
    """A rate limit. In a descriptor ``"100/s"``, or an object with these keys. ``str(limit)`` is the same text, or the same
    object as JSON; :func:`parse_rate_limit` accepts both.

    A leaky bucket (Turner 1986): in ``t`` seconds it admits at most ``burst + rate * t`` calls.

    Attributes:
        rate: Calls per second, minute, hour or day: ``100/s``, ``10/m``, ``1000/h``, ``0.5/s``. No default: only the
            operator of the service knows its capacity.
        burst: Calls that are admitted at once after an idle time; at least 1. None: the number in ``rate``. Default None, as
            in aiolimiter and resilience4j: "10/m" is understood as ten calls at any time within a minute. 1 spaces the calls
            evenly.
        max_wait: Seconds that a call waits, never beyond its deadline; 0: a call above the rate is rejected at once. A call
            that would have to wait for longer is rejected at once, with the time after which it can be repeated. Default 1:
            a caller that would wait for longer does better to call again later.
        weights: Shares of the rate by user while more calls wait than the rate admits; a user without an entry has weight 1.
            From 0.001 to 1000, for at most 10,000 users. Default empty: all users have equal shares.
    """

    rate: str
    burst: float | None = None
    max_wait: float = 1.0
    weights: Mapping[str, float] | tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        calls, unit = _parsed(self.rate)
        msgspec.structs.force_setattr(self, "rate", f"{_plain(calls)}/{unit}")
        if self.burst is None:
            if calls > MAX_BURST:
                raise PolicyError(
                    "rate-limit.burst", "it is missing, and the number in 'rate' is too large for it", _burst_fix()
                )
        elif not _is_number(self.burst) or not 1 <= self.burst <= MAX_BURST:
            raise PolicyError("rate-limit.burst", f"{self.burst!r} is not a number from 1", _burst_fix())
        check_seconds(self.max_wait, "rate-limit.max-wait", allow_zero=True)
        msgspec.structs.force_setattr(self, "weights", _weights(self.weights))

    @property
    def per_second(self) -> float:
        """Calls per second."""
        calls, unit = _parsed(self.rate)
        return calls / UNITS[unit]

    @property
    def capacity(self) -> float:
        """``burst``, or if that is None the number in ``rate``, at least 1."""
        return max(1.0, _parsed(self.rate)[0]) if self.burst is None else float(self.burst)

    def __str__(self) -> str:
        document = self.as_document()
        return document if isinstance(document, str) else msgspec.json.encode(scalar_value(document)).decode()

    def as_document(self) -> str | dict[str, Any]:
        """The value for a descriptor: the text of the rate, or an object of the keys that differ from their defaults."""
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


def parse_rate_limit(raw: object, key: str = "rate-limit") -> RateLimit:
    """Parse a rate limit.

    Args:
        raw: text such as ``100/s``, an object with the keys of :class:`RateLimit`, such an object as JSON text, or a
            :class:`RateLimit`.
        key: the policy key that has the value, for errors, such as ``rate-limit``.

    Raises:
        PolicyError: the value is not valid; the error's ``key`` begins with ``key``.
    """
    if isinstance(raw, RateLimit):
        return raw
    try:
        if isinstance(raw, str) and raw.startswith("{"):
            try:
                raw = msgspec.json.decode(raw)
            except msgspec.DecodeError as error:
                raise PolicyError("rate-limit", f"it is not a JSON object ({error})", _OBJECT) from None
        if isinstance(raw, str):
            return RateLimit(raw)
        if isinstance(raw, Mapping):
            return RateLimit(**_fields(raw))
        raise PolicyError("rate-limit", f"{raw!r} is neither text nor an object", _OBJECT)
    except PolicyError as error:
        if key == "rate-limit":
            raise
        raise PolicyError(key + error.key.removeprefix("rate-limit"), error.problem, error.fix) from None


def _fields(raw: Mapping[Any, Any]) -> dict[str, Any]:
    fields = dict(zip(RateLimit.__struct_encode_fields__, RateLimit.__struct_fields__, strict=True))
    for each in raw:
        if each not in fields:
            raise PolicyError(f"rate-limit.{each}", "unknown key", f"known keys: {', '.join(fields)}")
    if "rate" not in raw:
        raise PolicyError("rate-limit.rate", "it is missing", _EXAMPLE)
    return {fields[each]: value for each, value in raw.items()}


def _parsed(text: object) -> tuple[float, str]:
    found = _TEXT.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise PolicyError("rate-limit", f"{text!r} is not a rate", _EXAMPLE)
    calls = float(found[1])
    if not 0 < calls / UNITS[found[2]] <= MAX_PER_SECOND:
        raise PolicyError(
            "rate-limit",
            f"{text!r} is out of range",
            "give more than 0 and at most 1000000 a second; for no limit, omit the key",
        )
    return calls, found[2]


def _plain(number: float) -> str:
    """Format a number as :data:`_TEXT` accepts it: no exponent, no trailing point."""
    if number == int(number):
        return str(int(number))
    return format(Decimal(repr(number)), "f")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _burst_fix() -> str:
    return "give the calls that are admitted at once, from 1 (evenly spaced) to 1000000"


def _weights(raw: object) -> tuple[tuple[str, float], ...]:
    """Return sorted pairs, so that limits with the same weights are equal and have the same hash."""
    try:
        pairs = dict(raw)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        raise PolicyError("rate-limit.weights", f"{raw!r} is not an object", 'write {"batch": 0.5, "ann": 4}') from None
    if len(pairs) > MAX_WEIGHTS:
        raise PolicyError(
            "rate-limit.weights", f"{len(pairs)} are too many", f"give at most {MAX_WEIGHTS}; the rest have 1"
        )
    for user, weight in pairs.items():
        if not isinstance(user, str):
            raise PolicyError("rate-limit.weights", f"{user!r} is not a user's name", "give names as text")
        if not _is_number(weight) or not 1 / MAX_WEIGHT <= weight <= MAX_WEIGHT:
            raise PolicyError(
                "rate-limit.weights",
                f"{weight!r} for {user!r} is not a number from 0.001 to 1000",
                "give 1 for an even share",
            )
    return tuple(sorted((user, float(weight)) for user, weight in pairs.items()))
