"""All scenarios, in the order in which they run."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.incidents.scenario import Scenario
from benchmarks.incidents.scenarios import (
    clock_skew,
    connects,
    forged_messages,
    instances,
    outages,
    restarts,
    scrapes,
    short_lived,
)

ALL: tuple[Scenario, ...] = (
    connects.SCENARIO,
    restarts.SCENARIO,
    forged_messages.AGENT,
    forged_messages.OPEN,
    clock_skew.SCENARIO,
    outages.KILLED,
    outages.PAUSED,
    short_lived.SCENARIO,
    *instances.SCENARIOS,
    scrapes.SCENARIO,
)


def chosen(names: Iterable[str]) -> tuple[Scenario, ...]:
    """The scenarios of these names in the order of :data:`ALL`; all of them if there are no names.

    Raises:
        ValueError: there is no such scenario; the text has the names that there are.
    """
    wanted = set(names)
    unknown = wanted - {each.name for each in ALL}
    if unknown:
        raise ValueError(
            f"there is no scenario {', '.join(sorted(unknown))}; choose from: {', '.join(each.name for each in ALL)}"
        )
    return tuple(each for each in ALL if not wanted or each.name in wanted)
