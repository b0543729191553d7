"""All scenarios, in the order in which they run."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.incidents import burst, clock, connects, forged, kills, outages, restarts, scrapes
from benchmarks.incidents.scenario import Scenario

ALL: tuple[Scenario, ...] = (
    connects.SCENARIO,
    restarts.SCENARIO,
    forged.AGENT,
    forged.OPEN,
    clock.SCENARIO,
    outages.KILLED,
    outages.PAUSED,
    kills.SCENARIO,
    scrapes.SCENARIO,
    burst.SCENARIO,
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
