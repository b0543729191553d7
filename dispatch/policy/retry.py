"""When a call is tried once more, and when a second try runs beside a slow first one: the settings.

In a descriptor: ``"retry": {"attempts": 3, "cap": 5}``, or just the number of attempts, ``"retry": 3``; null: off.
``"hedge": {"after": "p95"}``, or just the moment, ``"hedge": "p95"`` or ``"hedge": 0.2``; null: off.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from dispatch.policy.validation import PolicyError, check_seconds, laid_over

MAX_ATTEMPTS = 10
"""More is a slip: whoever failed ten times will fail again."""
MAX_FLOOR = 1_000.0
MIN_PERCENT, MAX_PERCENT = 50.0, 99.9
"""Earlier than half of the answers, or later than all but one in a thousand, helps nobody."""


_PERCENTILE = re.compile(r"p(\d{2}(?:\.\d{1,3})?)", re.ASCII)


def check_percentile(text: str, key: str) -> float:
    """The share that a percentile such as ``p95`` names: 0.95.

    Raises:
        PolicyError: it names none, or one out of range.
    """
    match = _PERCENTILE.fullmatch(text)
    if match is None or not MIN_PERCENT <= float(match[1]) <= MAX_PERCENT:
        raise PolicyError(key, f"{text!r} is not a percentile from p50 to p99.9", 'give "p95", or seconds as a number')
    return float(match[1]) / 100


def _check_number(value: object, key: str, least: float, most: float, fix: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PolicyError(key, f"{value!r} is not a number", fix)
    if not least <= value <= most:  # false for what is not a number, too
        raise PolicyError(key, f"{value!r} is not from {least:g} to {most:g}", fix)


class Retry(msgspec.Struct, frozen=True, rename="kebab"):
    """How often, how soon and how many of all calls are tried once more. What *may* be repeated is no setting: see
    :mod:`dispatch.policy.repeat_safety`.

    Attributes:
        attempts: of one call, the first one included; 1: never again. 3: more seldom help and load a service in trouble
            (Google's SRE book, ch. 21). At most 10.
        base: seconds; the wait before the second attempt is random between 0 and this, and twice as long with each further
            one ("full jitter"). 0.05 s: as in the AWS SDKs' retry mode 2.1.
        cap: seconds that the doubling ends at. 2 s: an agent waits. At least ``base``.
        budget_ratio: retries and hedges together may be this share of the tool's calls, over the last 10 s, 0 to 1. 0.2: as
            in Envoy, Finagle and failsafe-go; when everything fails, a service gets a fifth more than its load, not thrice.
        budget_floor: retries and hedges a second that are always allowed, so that a tool that is seldom called can be
            tried again. 3: as in Envoy and failsafe-go.
        errors: types of the tool's own errors after which another attempt can succeed. Empty: an error that the tool
            itself answered is its answer.
    """

    attempts: int = 3
    base: float = 0.05
    cap: float = 2.0
    budget_ratio: float = 0.2
    budget_floor: float = 3.0
    errors: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        attempts = self.attempts
        if isinstance(attempts, bool) or not isinstance(attempts, int) or not 1 <= attempts <= MAX_ATTEMPTS:
            raise PolicyError(
                "retry.attempts",
                f"{attempts!r} is not a whole number from 1 to {MAX_ATTEMPTS}",
                "give 3, or 1 for never again",
            )
        check_seconds(self.base, "retry.base")
        check_seconds(self.cap, "retry.cap")
        if self.cap < self.base:
            raise PolicyError(
                "retry.cap",
                f"{self.cap!r} is less than 'base' ({self.base!r})",
                "give the longest wait, for instance 2",
            )
        _check_number(self.budget_ratio, "retry.budget-ratio", 0.0, 1.0, "give the share of calls, for instance 0.2")
        _check_number(self.budget_floor, "retry.budget-floor", 0.0, MAX_FLOOR, "give retries a second, for instance 3")
        errors = self.errors
        if not isinstance(errors, tuple) or not all(isinstance(each, str) and each for each in errors):
            raise PolicyError(
                "retry.errors", f"{errors!r} is not a list of error types", 'give their names, for instance ["busy"]'
            )


class Hedge(msgspec.Struct, frozen=True, rename="kebab"):
    """A second attempt beside a first one that is slow, at another instance; the first answer counts. One extra at most.
    Off unless set: it costs load, and is only for tools declared read-only or idempotent.

    Attributes:
        after: when the second one starts: seconds, or a percentile of how long the tool takes, learnt as it is called:
            ``"p50"`` to ``"p99.9"``. ``"p95"``: one call in twenty is hedged at most, and the tail is gone ("The Tail at
            Scale", Dean and Barroso 2013).
        load: hedges may be this share of the tool's calls, over the last 10 s, above 0 and up to 1; they count against the
            budget of :class:`Retry` as well. 0.05: what ``"p95"`` comes to; for seconds, the bound when all is slow.
    """

    after: float | str = "p95"
    load: float = 0.05

    def __post_init__(self) -> None:
        if isinstance(self.after, str):
            check_percentile(self.after, "hedge.after")
        else:
            check_seconds(self.after, "hedge.after")
        _check_number(self.load, "hedge.load", 0.0, 1.0, "give the share of calls, for instance 0.05")
        if self.load == 0:
            raise PolicyError("hedge.load", "0 allows no hedge", "leave 'hedge' out, or give for instance 0.05")

    @property
    def quantile(self) -> float | None:
        """The share of answers that come sooner (0.95 for ``"p95"``); None when ``after`` is in seconds."""
        return check_percentile(self.after, "hedge.after") if isinstance(self.after, str) else None


DEFAULT_RETRY = Retry()


def parse_retry(raw: object, base: Retry = DEFAULT_RETRY) -> Retry | None:
    """The settings that a descriptor's ``retry`` describes, laid over ``base``; None: off.

    Raises:
        PolicyError: neither a number of attempts nor an object, an unknown key, or a value that cannot be.
    """
    if raw is None:
        return None
    if isinstance(raw, int) and not isinstance(raw, bool):
        raw = {"attempts": raw}
    if not isinstance(raw, Mapping):
        raise PolicyError(
            "retry",
            f"{raw!r} is neither a number of attempts nor an object",
            'write 3, {"attempts": 3}, or null for never',
        )
    if isinstance(raw.get("errors"), list):
        raw = {**raw, "errors": tuple(raw["errors"])}
    return laid_over(base, raw, "retry")


def parse_hedge(raw: object, base: Hedge | None = None) -> Hedge | None:
    """The settings that a descriptor's ``hedge`` describes, laid over ``base``; None: off.

    Raises:
        PolicyError: neither a moment nor an object, an unknown key, or a value that cannot be.
    """
    if raw is None:
        return None
    if isinstance(raw, str | int | float) and not isinstance(raw, bool):
        raw = {"after": raw}
    if not isinstance(raw, Mapping):
        raise PolicyError(
            "hedge",
            f"{raw!r} is neither a moment nor an object",
            'write "p95", seconds, {"after": "p95"}, or null for off',
        )
    return laid_over(Hedge() if base is None else base, raw, "hedge")
