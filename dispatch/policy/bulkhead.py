"""Bulkhead settings: calls of a tool in flight, and how long a call may wait for a permit.

In a descriptor: ``"bulkhead": {"max-concurrent-calls": 16, "max-wait": 0.5}``, or the number of calls alone,
``"bulkhead": 16``; null: off.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dispatch._internal.arguments import NamedFields
from dispatch.policy.validation import PolicyError, check_seconds, merge_keys

MAX_CONCURRENT_CALLS = 10_000
"""Calls of one tool in flight. More than this was never seen to help: a larger number is a slip, or limits nothing."""
MAX_PRIORITIES = 8


def _check_priorities(value: object) -> None:
    if (
        not isinstance(value, tuple)
        or not all(isinstance(name, str) and name for name in value)
        or len(set(value)) != len(value)
        or not 1 <= len(value) <= MAX_PRIORITIES
    ):
        raise PolicyError(
            "bulkhead.priorities",
            f"{value!r} is not a list of 1 to {MAX_PRIORITIES} different names",
            'write ["interactive", "batch"], the most urgent first',
        )


class Bulkhead(msgspec.Struct, metaclass=NamedFields, frozen=True, rename="kebab"):
    """Limit of a tool's calls in flight, and of the time that a call waits for a permit.

    A bare number means ``max_concurrent_calls``: ``"bulkhead": 16``. The queue is bounded by waiting time, not by a small
    count; its length (10,000) and its overload rule (CoDel, on a standing queue) are constants of
    :mod:`dispatch.resilience.bulkhead.bulkhead`.

    Attributes:
        max_concurrent_calls: Calls of the tool in flight. Default 64: as many messages as one connection publishes without
            loss at the broker (the publish window); by Little's law 640 calls a second of 0.1 s each.
        max_wait: Seconds that a call waits for a permit, never beyond its deadline; 0: a call that gets none at once
            is rejected. None: as long as the call can still end by its deadline, at the durations seen. Default None: a
            burst on a tool that takes seconds can be answered, like one on a fast tool.
        priorities: Names of priority classes, the most urgent first; a call that names none has the first. Default
            interactive before batch: a person waits for an interactive call.
    """

    max_concurrent_calls: int = 64
    max_wait: float | None = None
    priorities: tuple[str, ...] = ("interactive", "batch")

    def __post_init__(self) -> None:
        calls = self.max_concurrent_calls
        if isinstance(calls, bool) or not isinstance(calls, int) or not 1 <= calls <= MAX_CONCURRENT_CALLS:
            raise PolicyError(
                "bulkhead.max-concurrent-calls",
                f"{calls!r} is not a whole number from 1 to {MAX_CONCURRENT_CALLS}",
                "give a whole number ≥ 1, for instance 64",
            )
        if self.max_wait is not None:
            check_seconds(self.max_wait, "bulkhead.max-wait", allow_zero=True)
        _check_priorities(self.priorities)


def parse_bulkhead(raw: object, base: Bulkhead | None = None) -> Bulkhead | None:
    """Parse a descriptor's ``bulkhead``, laid over ``base``: a number of calls, or an object; None: off.

    Raises:
        PolicyError: neither a number nor an object, an unknown key, or an invalid value.
    """
    if raw is None or isinstance(raw, Bulkhead):
        return raw
    if isinstance(raw, int | float) and not isinstance(raw, bool):
        raw = {"max-concurrent-calls": raw}
    if not isinstance(raw, Mapping):
        raise PolicyError(
            "bulkhead",
            f"{raw!r} is neither a number nor an object",
            'write 16, {"max-concurrent-calls": 16, "max-wait": 0.5}, or null for off',
        )
    changes = {key: tuple(value) if isinstance(value, list) else value for key, value in raw.items()}
    return merge_keys(Bulkhead() if base is None else base, changes, "bulkhead")
