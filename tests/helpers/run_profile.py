"""The profile of a test run: the short one of ``make test``, or the long one of ``make test-long``.

A test with a long form is the same test with larger sizes. :func:`by_profile` and :func:`examples` return them while the
module of the test is imported: tests/conftest.py has loaded the profile by then.
"""

from __future__ import annotations

import os
from typing import NoReturn

import pytest
from hypothesis import HealthCheck, Phase, settings

IN_CI = os.environ.get("CI", "").lower() in ("1", "true", "yes")
LONG_FACTOR = 10
"""Examples of a property test in the long profile, for each one in the short profile."""

_is_long = False


def skip_outside_ci(reason: str) -> NoReturn:
    """Skip the test, for lack of a program; in CI it fails: a skip would hide a gap."""
    if IN_CI:
        pytest.fail(reason)
    pytest.skip(reason)


def load_profile(*, is_long: bool, keep_hypothesis: bool) -> None:
    """Select the sizes of this run.

    Args:
        is_long: the long profile.
        keep_hypothesis: a Hypothesis profile was chosen on the command line: leave it in force.
    """
    global _is_long
    _is_long = is_long
    if not keep_hypothesis:
        settings.load_profile("long" if is_long else "short")


def is_long_profile() -> bool:
    return _is_long


def by_profile(*, short: int, long: int) -> int:
    """Return the size that belongs to the profile of this run."""
    return long if _is_long else short


def examples(short: int) -> int:
    """Return the number of examples of a property test; ``short`` is the number in the short profile."""
    return by_profile(short=short, long=short * LONG_FACTOR)


def _register_hypothesis_profiles() -> None:
    # No deadline and no check for slow generation: a busy machine must not fail a property test.
    # CI runs the same examples each time, so that a failure belongs to the change; other runs draw new ones.
    settings.register_profile(
        "short", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=IN_CI, max_examples=40
    )
    short = settings.get_profile("short")
    settings.register_profile("long", parent=short, max_examples=short.max_examples * LONG_FACTOR)
    # `make test-fast` runs half of the examples.
    settings.register_profile("fast", parent=short, max_examples=short.max_examples // 2)
    # `make mutation` runs the same few examples for every mutant, without shrinking: a verdict needs no minimal example.
    settings.register_profile(
        "mutation", parent=short, derandomize=True, max_examples=25, phases=[Phase.explicit, Phase.generate]
    )


_register_hypothesis_profiles()
