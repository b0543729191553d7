"""Hypothesis settings of state machines: how many runs, and steps in each."""

from __future__ import annotations

import os

from hypothesis import settings

from tests.helpers.run_profile import by_profile

LONG_EXAMPLES = 600
"""Runs of each state machine in the long profile."""
EXAMPLES = int(os.environ.get("DISPATCH_MACHINE_EXAMPLES", "0"))
"""Runs of each state machine in either profile; 0: as many as the profile says."""


def machine(examples: int, steps: int) -> settings:
    """Return the settings of a state machine.

    Args:
        examples: runs in the short profile.
        steps: of each run, at most.
    """
    count = EXAMPLES or by_profile(short=examples, long=LONG_EXAMPLES)
    return settings(max_examples=count, stateful_step_count=steps, deadline=None)
