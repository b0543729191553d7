"""How long state machines go on: shortly in every run, and for as many stories as ``DISPATCH_MACHINE_EXAMPLES`` says."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

EXAMPLES = int(os.environ.get("DISPATCH_MACHINE_EXAMPLES", "0"))


def machine(examples: int, steps: int) -> settings:
    """Settings of a state machine.

    Args:
        examples: stories in an ordinary run.
        steps: of each story.
    """
    if not EXAMPLES:
        return settings(max_examples=examples, stateful_step_count=steps, deadline=None)
    return settings(
        max_examples=EXAMPLES, stateful_step_count=steps, deadline=None, suppress_health_check=list(HealthCheck)
    )
