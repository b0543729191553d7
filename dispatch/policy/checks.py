"""What values of a policy can be, and the error that says what is wrong with one."""

from __future__ import annotations


class PolicyError(ValueError):
    """A policy value that cannot be. ``key`` is where, ``problem`` what, ``fix`` how to mend it."""

    def __init__(self, key: str, problem: str, fix: str) -> None:
        super().__init__(f"policy key '{key}': {problem}; {fix}")
        self.key = key
        self.problem = problem
        self.fix = fix


MAX_SECONDS = 7 * 24 * 3600.0
"""The longest time that may be asked for: a week. Longer is a slip of units (milliseconds) far more often than meant."""


def check_seconds(value: object, key: str = "timeout") -> float:
    """``value`` as a time in seconds, above 0 and at most a week.

    Raises:
        PolicyError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PolicyError(key, f"{value!r} is not a number", "give seconds, for instance 10 or 0.5")
    if not 0 < value <= MAX_SECONDS:  # false for what is not finite, too
        raise PolicyError(key, f"{value!r} is out of range", "give seconds above 0 and at most 604800 (a week)")
    return float(value)
