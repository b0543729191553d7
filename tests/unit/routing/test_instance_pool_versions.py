"""Which instances get the requests of a tool that requires a version."""

from __future__ import annotations

from collections import Counter
from typing import cast

from dispatch.catalog.versions import parse_range
from dispatch.policy import Policy
from dispatch.resilience.breaker import State
from dispatch.routing.instance import SHARED, Channel
from dispatch.routing.pool import MAX_RANGES
from tests.unit.routing.test_instance_pool import Stand, Way

TWO = parse_range("^2")
VERSIONS = {"old": "1.4.0", "new": "2.0.0", "newer": "2.1.0", "unknown": None}


def stand(*names: str, **policy: object) -> tuple[Stand, dict[str, Way]]:
    ways = {name: Way() for name in names}
    made = Stand(*((name, 1.0, way) for name, way in ways.items()), **policy)
    made.pool.replace_channels([(name, 1.0, cast(Channel, way)) for name, way in ways.items()], VERSIONS)
    return made, ways


def test_only_instances_in_the_range_are_picked() -> None:
    pool, _ = stand("old", "new", "newer", "unknown")
    assert pool.many(6, requires=TWO) == {"new": 3, "newer": 3}
    assert set(pool.many(8)) == {"old", "new", "newer", "unknown"}
    assert pool.pool.versions == ("2.1.0", "2.0.0", "1.4.0")


def test_instances_that_announced_themselves_have_the_version_of_their_topic() -> None:
    pool, ways = stand("old", "new")
    ways["old"].add("a")
    ways["new"].add("b")
    ways["new"].add("c")
    assert pool.many(4, requires=TWO) == {"b": 2, "c": 2}
    ways["new"].remove("b")
    assert pool.many(4, requires=TWO) == {"c": 4}


def test_without_an_instance_in_the_range_none_is_picked() -> None:
    pool, _ = stand("old", "unknown")
    assert pool.pool.pick(pool.guards, requires=TWO) is None
    assert pool.pool.pick(pool.guards) is not None
    alone, _ = stand("old")
    assert alone.pool.pick(alone.guards, requires=TWO) is None, "not even the only one"


def test_a_sick_instance_in_the_range_is_picked_rather_than_one_outside_it() -> None:
    pool, _ = stand("old", "new")
    breaker = pool.guards.breaker_of("new")
    assert breaker is not None
    breaker.force_open()
    assert breaker.state is State.FORCED_OPEN
    assert pool.many(3, requires=TWO) == {"new": 3}


def test_a_retry_stays_in_the_range() -> None:
    pool, _ = stand("old", "new", "newer")
    assert pool.next("new", requires=TWO) == "newer"
    assert pool.next("new", "newer", requires=TWO) in ("new", "newer")


def test_a_large_request_goes_to_an_instance_in_the_range() -> None:
    pool, ways = stand("old", "new")
    for name in ("old", "new"):
        ways[name].add(f"{name}-1")
    ways["new"].add("new-2")
    assert pool.many(4, requires=TWO, is_large=True) == {"new-1": 2, "new-2": 2}


def test_keys_are_spread_over_the_instances_in_the_range() -> None:
    pool, ways = stand("old", "new")
    for name in ("old", "new"):
        for number in range(3):
            ways[name].add(f"{name}-{number}")
    found = Counter(pool.next(requires=TWO, key=f"key-{number}") for number in range(60))
    assert set(found) == {"new-0", "new-1", "new-2"}


def test_versions_that_change_apply_from_the_next_request_on() -> None:
    pool, ways = stand("old", "new")
    assert pool.many(2, requires=TWO) == {"new": 2}
    channels = [(name, 1.0, cast(Channel, way)) for name, way in ways.items()]
    pool.pool.replace_channels(channels, {"old": "2.5.0", "new": "3.0.0"})
    assert pool.many(2, requires=TWO) == {"old": 2}


def test_the_ranges_of_tools_use_bounded_memory() -> None:
    pool, _ = stand("old", "new")
    for patch in range(2 * MAX_RANGES):
        pool.pool.select_versions(parse_range(f">=1.0.{patch}"))
    assert len(pool.pool._in_range) <= MAX_RANGES


def test_the_shared_topic_has_the_version_of_the_service() -> None:
    way = Way()
    shared = Stand((SHARED, 1.0, way), breaker=Policy().breaker)
    shared.pool.replace_channels([(SHARED, 1.0, cast(Channel, way))], {SHARED: "2.0.0"})
    assert shared.many(2, requires=TWO) == {SHARED: 2}
    assert shared.pool.pick(shared.guards, requires=parse_range("^3")) is None
