"""Retry settings: attempts of one call, the backoff between them, and the retry budget.

In a descriptor: ``"retry": {"max-attempts": 3, "max-backoff": 5}``, or the number of attempts alone, ``"retry": 3``; null:
off.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dispatch._internal.arguments import NamedFields
from dispatch.policy.validation import PolicyError, check_seconds, merge_keys

MAX_ATTEMPTS = 10
"""More is a slip: a call that failed ten times fails again."""


class Retry(msgspec.Struct, metaclass=NamedFields, frozen=True, rename="kebab"):
    """Number, time and share of repeated attempts. Which calls may be repeated is no setting: see
    :mod:`dispatch.policy.repeat_safety`.

    Attributes:
        max_attempts: Attempts of one call, the first one included; 1: no retry; at most 10. Default 3: more attempts rarely
            succeed and add load to a service in trouble (Google's SRE book, ch. 21).
        initial_backoff: Seconds; the wait before the second attempt is random between 0 and this, and its bound doubles with
            each further one ("full jitter"). Default 0.05: as in the AWS SDKs' retry mode 2.1.
        max_backoff: Seconds at which the doubling ends; at least ``initial_backoff``. Default 2: an agent waits.
        budget_ratio: Retries and hedges together, as a share of the tool's calls of the last 10 s, 0 to 1; three a second
            are always allowed. Default 0.2: as in Envoy, Finagle and failsafe-go; when everything fails, a service receives
            a fifth more than its load, not three times its load.
        retryable_errors: Types of the tool's own errors after which another attempt can succeed. Default none: an error that
            the tool answered is its answer.
    """

    max_attempts: int = 3
    initial_backoff: float = 0.05
    max_backoff: float = 2.0
    budget_ratio: float = 0.2
    retryable_errors: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        attempts = self.max_attempts
        if isinstance(attempts, bool) or not isinstance(attempts, int) or not 1 <= attempts <= MAX_ATTEMPTS:
            raise PolicyError(
                "retry.max-attempts",
                f"{attempts!r} is not a whole number from 1 to {MAX_ATTEMPTS}",
                "give 3, or 1 for no retry",
            )
        check_seconds(self.initial_backoff, "retry.initial-backoff")
        check_seconds(self.max_backoff, "retry.max-backoff")
        if self.max_backoff < self.initial_backoff:
            raise PolicyError(
                "retry.max-backoff",
                f"{self.max_backoff!r} is less than 'initial-backoff' ({self.initial_backoff!r})",
                "give the longest wait, for instance 2",
            )
        ratio = self.budget_ratio
        fix = "give the share of calls, for instance 0.2"
        if isinstance(ratio, bool) or not isinstance(ratio, int | float):
            raise PolicyError("retry.budget-ratio", f"{ratio!r} is not a number", fix)
        if not 0 <= ratio <= 1:  # false for NaN, too
            raise PolicyError("retry.budget-ratio", f"{ratio!r} is not from 0 to 1", fix)
        errors = self.retryable_errors
        if not isinstance(errors, tuple) or not all(isinstance(each, str) and each for each in errors):
            raise PolicyError(
                "retry.retryable-errors",
                f"{errors!r} is not a list of error types",
                'give their names, for instance ["busy"]',
            )


DEFAULT_RETRY = Retry()


def parse_retry(raw: object, base: Retry = DEFAULT_RETRY) -> Retry | None:
    """Parse a descriptor's ``retry``, laid over ``base``: a number of attempts, or an object; None: off.

    Raises:
        PolicyError: neither a number nor an object, an unknown key, or an invalid value.
    """
    if raw is None:
        return None
    if isinstance(raw, int) and not isinstance(raw, bool):
        raw = {"max-attempts": raw}
    if not isinstance(raw, Mapping):
        raise PolicyError(
            "retry",
            f"{raw!r} is neither a number of attempts nor an object",
            'write 3, {"max-attempts": 3}, or null for no retry',
        )
    if isinstance(raw.get("retryable-errors"), list):
        raw = {**raw, "retryable-errors": tuple(raw["retryable-errors"])}
    return merge_keys(base, raw, "retry")
