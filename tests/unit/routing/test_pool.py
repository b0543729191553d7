"""Which of a service's instances gets the next request, of those that there are.
Which instances get the requests of a tool that requires a version.
Calls in flight, and their end.
Who holds which idempotency key: claims, and claims that are undone.
The instances that a dispatcher knows, and which of them may receive the next request.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any, cast

import pytest

from dispatch.calls.guards import ToolGuards, create_rate_limiter
from dispatch.catalog.versions import parse_range
from dispatch.errors import Outcome
from dispatch.policy import Balancing, Breaker, Policy
from dispatch.resilience.breaker import State
from dispatch.resilience.instances import EjectionRules
from dispatch.routing import instance
from dispatch.routing.instance import (
    IN_PROCESS,
    SHARED,
    Channel,
    Holder,
    InFlight,
    Instances,
    KeyHolders,
    SessionInstance,
    SharedTopic,
)
from dispatch.routing.pool import MAX_RANGES, InstancePool
from tests.helpers.clock import idle
from tests.helpers.known_instances import arouse_suspicion, known_instance, line_of, occupy


class Correlation:
    """The plain exchange, without requests."""

    @staticmethod
    def find_requests(_topic: object) -> list[Any]:
        return []


class Way:
    """A channel, as far as a fleet looks at it."""

    had_instances = False
    is_served = True
    request_queue = ""

    def __init__(self, *names: str) -> None:
        self.instances = Instances[SessionInstance]()
        self.shared = SharedTopic("topic", cast(Any, None), "replies", cast(Any, Correlation))
        self.connection = IN_PROCESS
        self.requests = InFlight()
        self.greeted = 0
        self.turns = 0
        self.hello_at = 0.0
        for name in names:
            self.add(name)

    def add(self, name: str, life: str = "1") -> SessionInstance:
        made = known_instance(name, life)
        self.instances.add(made)
        return made

    def remove(self, name: str) -> None:
        assert self.instances.remove(self.instances.get(name))

    def greet(self) -> None:
        self.greeted += 1

    def can_send(self, _now: float, *, needs_instance: bool, repeatable: bool) -> bool:
        return not needs_instance or self.instances.has_ready

    def next_turn(self) -> None:
        self.turns += 1


class Stand:
    """A fleet over some ways, and one tool's guards."""

    def __init__(self, *ways: tuple[str, float, Way], **policy: Any) -> None:
        self.now = 0.0
        settings = Policy(**{"breaker": Breaker(consecutive_failures=3), **policy})
        self.guards = self.tool(settings)
        self.pool = InstancePool(
            [(name, weight, None, cast(Channel, way)) for name, weight, way in ways],
            balancing=settings.balancing,
            outlier_detection=settings.outlier_detection,
            clock=lambda: self.now,
            randomness=random.Random(1).random,
        )

    def replace(self, *ways: tuple[str, float, Way]) -> None:
        self.pool.replace_channels([(name, weight, None, cast(Channel, way)) for name, weight, way in ways])

    def tool(self, policy: Policy) -> ToolGuards:
        return ToolGuards(
            Policy(breaker=policy.breaker, bulkhead=None),
            repeatable=True,
            clock=lambda: self.now,
            randomness=random.Random(2).random,
            rates=create_rate_limiter,
        )

    def next(
        self, *tried: str, outcome: Outcome = Outcome.SUCCESS, guards: ToolGuards | None = None, **how: Any
    ) -> str:
        place = self.pool.pick(guards or self.guards, tried, **how)
        place.release(outcome, retry_after=None, in_flight=None, slowness=None, outpaced=False)
        return place.pick.instance

    def many(self, count: int, **how: Any) -> Counter[str]:
        return Counter(self.next(**how) for _ in range(count))


def test_where_nobody_is_known_it_goes_to_the_services_topic() -> None:
    way = Way()
    stand = Stand((SHARED, 1, way))
    place = stand.pool.pick(stand.guards)
    assert (place.channel, place.instance, place.probe) == (way, way.shared, None)
    assert (way.greeted, stand.pool.known) == (1, 0)


def test_who_comes_is_used_and_who_goes_is_not() -> None:
    way = Way()
    stand = Stand((SHARED, 1, way))
    assert stand.many(3) == {SHARED: 3}
    way.add("a")
    way.add("b")
    assert stand.many(4) == {"a": 2, "b": 2}
    assert stand.pool.known == 2
    way.remove("a")
    assert stand.many(4) == {"b": 4}
    way.remove("b")
    assert stand.many(2) == {SHARED: 2}


def test_the_topic_of_a_service_whose_last_instance_has_left_is_in_no_slow_start() -> None:
    way = Way("a")
    stand = Stand((SHARED, 1, way))
    assert {each.id: each.state for each in stand.pool.instances()} == {"a": "warming"}
    way.remove("a")
    assert {each.id: each.state for each in stand.pool.instances()} == {SHARED: "up"}
    assert {each.id: each.state for each in stand.pool.glimpse()} == {SHARED: "up"}


def test_instances_with_topics_of_their_own_are_used_in_turn_known_by_name_or_not() -> None:
    ways = {name: Way() for name in ("x", "y", "z")}
    stand = Stand(*((name, 1.0, ways[name]) for name in "xy"))
    assert stand.many(6) == {"x": 3, "y": 3}
    ways["y"].add("y1")
    ways["y"].add("y2")
    assert stand.many(6) == {"x": 2, "y1": 2, "y2": 2}
    stand.replace(*((name, 1.0, way) for name, way in ways.items()))
    assert stand.many(4) == {"x": 1, "y1": 1, "y2": 1, "z": 1}
    assert len(stand.pool.channels) == 3


def test_instances_are_added_and_removed_and_keep_what_is_known_of_them() -> None:
    ways = {name: Way() for name in ("x", "y", "z")}
    rules = EjectionRules(consecutive_failures=2, slow_start_window=None)
    stand = Stand(*((name, 1.0, ways[name]) for name in "xy"), outlier_detection=rules)
    in_flight = [stand.pool.pick(stand.guards) for _ in range(2)]
    assert {each.pick.instance for each in in_flight if each is not None} == {"x", "y"}
    for _ in range(2):
        stand.next("y", outcome=Outcome.TIMEOUT)  # x is ejected
    assert stand.many(3) == {"y": 3}
    stand.replace(("x", 1.0, ways["x"]), ("z", 1.0, ways["z"]))
    assert stand.many(3) == {"z": 3}
    stand.replace(*((name, 2.0 if name == "y" else 1.0, way) for name, way in ways.items()))
    assert stand.many(4) == {"y": 2, "z": 2}
    found = {view.id: (view.state, view.in_flight, view.weight) for view in stand.pool.instances()}
    assert found == {"x": ("ejected", 1, 1.0), "y": ("up", 1, 2.0), "z": ("up", 0, 1.0)}
    for each in in_flight:
        each.release(Outcome.SUCCESS, retry_after=None, in_flight=None, slowness=None, outpaced=False)
    assert [way.requests.count for way in ways.values()] == [0, 0, 0]


def test_calls_that_wait_for_an_instance_check_again_when_instances_change() -> None:
    ways = {name: Way() for name in ("x", "y")}
    Stand(("x", 1.0, ways["x"])).replace(("y", 1.0, ways["y"]))
    assert (ways["x"].turns, ways["y"].turns) == (1, 0)


def test_weights_are_those_of_the_topics() -> None:
    assert Stand(("x", 3.0, Way()), ("y", 1.0, Way()), balancing="weighted").many(8) == {"x": 6, "y": 2}


def test_other_balancing_settings_apply_from_the_next_request_on() -> None:
    stand = Stand(("x", 3.0, Way("a")), ("y", 1.0, Way("b")))
    assert stand.many(8) == {"a": 4, "b": 4}
    stand.pool.configure(Balancing("weighted"), EjectionRules())
    assert stand.many(8) == {"a": 6, "b": 2}


def test_another_attempt_goes_to_another_instance_while_there_is_one() -> None:
    stand = Stand((SHARED, 1, Way("a", "b", "c")))
    assert {stand.next("a", "b") for _ in range(9)} == {"c"}
    assert {stand.next("a", "b", "c") for _ in range(9)} == {"a", "b", "c"}


def test_only_instances_with_a_session_are_picked_for_a_large_request() -> None:
    ways = {"x": Way(), "y": Way("b", "c")}
    stand = Stand(*((name, 1.0, way) for name, way in ways.items()))
    assert set(stand.many(9)) == {"x", "b", "c"}
    assert {stand.next(is_large=True, key=f"key-{n}") for n in range(30)} == {"b", "c"}
    assert stand.many(10, is_large=True) == {"b": 5, "c": 5}
    assert {stand.next("b", is_large=True) for _ in range(5)} == {"c"}
    assert {stand.next("b", "c", is_large=True) for _ in range(5)} == {"b", "c"}


def test_large_requests_are_balanced_by_health() -> None:
    ways = {"x": Way(), "y": Way("b", "c")}
    stand = Stand(
        *((name, 1.0, way) for name, way in ways.items()),
        outlier_detection=EjectionRules(consecutive_failures=2, success_rate_stdev_factor=None),
        breaker=None,
    )
    while {view.id: view.state for view in stand.pool.instances()}["b"] != "ejected":
        place = stand.pool.pick(stand.guards, is_large=True)
        place.pick.finish(Outcome.TRANSPORT if place.pick.instance == "b" else Outcome.SUCCESS)
    assert stand.many(9, is_large=True) == {"c": 9}
    ways["y"].remove("c")
    assert stand.many(9, is_large=True) == {"b": 9}, "rather an ejected one than one that cannot serve it"
    ways["y"].remove("b")
    assert set(stand.many(4, is_large=True)) == {"x", "y"}, "it is refused, with the reason"


def test_a_key_stays_with_its_instance_and_keys_are_spread() -> None:
    way = Way("a", "b", "c")
    stand = Stand((SHARED, 1, way))
    where = {key: stand.next(key=key) for key in map(str, range(300))}
    assert all(stand.next(key=key) == name for key, name in where.items())
    assert min(Counter(where.values()).values()) > 60
    way.remove("b")
    moved = [key for key, name in where.items() if stand.next(key=key) != name]
    assert {where[key] for key in moved} == {"b"}, "only what was there had to move"


def test_a_key_goes_home_even_if_home_is_not_well() -> None:
    stand = Stand((SHARED, 1, Way("a", "b")))
    home = stand.next(key="key")
    for _ in range(20):
        assert stand.next(key="key", outcome=Outcome.TRANSPORT) == home


def test_where_nobody_is_known_a_key_goes_anywhere() -> None:
    assert Stand((SHARED, 1, Way())).next(key="key") == SHARED


def test_a_suspect_gets_nothing_new_as_long_as_there_are_others() -> None:
    way = Way("a", "b")
    stand = Stand((SHARED, 1, way))
    for name, expected in (("a", {"b"}), ("b", {"a", "b"})):
        arouse_suspicion(way.instances.get(name))
        assert set(stand.many(9)) == expected


def test_a_tool_that_fails_at_one_instance_is_called_at_the_others() -> None:
    rules = EjectionRules(consecutive_failures=None, success_rate_stdev_factor=None)
    stand = Stand((SHARED, 1, Way("a", "b")), outlier_detection=rules)
    failing, fine = stand.guards, stand.tool(Policy())
    for _ in range(20):
        name = stand.next(outcome=Outcome.SUCCESS)
        if name == "a":
            failing.breaker_of("a").force_open()
            break
    assert stand.many(9) == {"b": 9}
    assert set(stand.many(9, guards=fine)) == {"a", "b"}, "another tool's breaker says nothing about this one"
    failing.breaker_of("b").force_open()
    assert set(stand.many(9)) == {"a", "b"}, "somebody has to be asked"


def test_the_breaker_of_an_only_instance_is_the_tools() -> None:
    stand = Stand((SHARED, 1, Way("a")))
    assert stand.pool.pick(stand.guards).probe is None


def test_a_sick_instance_is_ejected_for_all_tools_and_seen_so() -> None:
    rules = EjectionRules(consecutive_failures=2, success_rate_stdev_factor=None)
    stand = Stand((SHARED, 1, Way("a", "b", "c")), outlier_detection=rules)
    guards = stand.tool(Policy(breaker=None))
    for _ in range(30):
        name = stand.next(guards=guards)
        if name == "a":
            stand.pool.pick(guards)
    for _ in range(40):
        place = stand.pool.pick(guards)
        place.pick.finish(Outcome.TRANSPORT if place.pick.instance == "a" else Outcome.SUCCESS)
    assert {view.id: view.state for view in stand.pool.instances()}["a"] == "ejected"
    assert "a" not in stand.many(9, guards=guards)


def test_a_new_life_of_an_instance_is_judged_by_what_it_does_itself() -> None:
    way = Way("a", "b", "c")
    rules = EjectionRules(consecutive_failures=2, success_rate_stdev_factor=None, slow_start_window=None)
    stand = Stand((SHARED, 1, way), outlier_detection=rules, breaker=None)

    def state() -> str:
        return {view.id: view.state for view in stand.pool.instances()}["a"]

    def fail() -> None:
        while state() != "ejected":
            place = stand.pool.pick(stand.guards)
            place.pick.finish(Outcome.TRANSPORT if place.pick.instance == "a" else Outcome.SUCCESS)

    fail()
    way.add("a", "2")
    assert state() == "up"
    fail()
    way.remove("a")
    stand.next()
    way.add("a", "2")
    assert state() == "ejected", "it is the same one, and was away for a moment"
    way.remove("a")
    stand.next()
    way.add("a", "3")
    assert state() == "up"
    stand.pool.balancer.reset_instance("nobody")


def test_rather_one_that_is_ejected_than_one_that_is_not_there() -> None:
    way = Way("a", "b")
    rules = EjectionRules(consecutive_failures=2, success_rate_stdev_factor=None)
    stand = Stand((SHARED, 1, way), outlier_detection=rules, breaker=None)
    while {view.id: view.state for view in stand.pool.instances()}["a"] != "ejected":
        place = stand.pool.pick(stand.guards)
        place.pick.finish(Outcome.TRANSPORT if place.pick.instance == "a" else Outcome.SUCCESS)
    arouse_suspicion(way.instances.get("b"))
    assert stand.many(5) == {"a": 5}


TWO = parse_range("^2")


VERSIONS = {"old": "1.4.0", "new": "2.0.0", "newer": "2.1.0", "unknown": None}


def stand(*names: str, **policy: object) -> tuple[Stand, dict[str, Way]]:
    ways = {name: Way() for name in names}
    made = Stand(*((name, 1.0, way) for name, way in ways.items()), **policy)
    made.pool.replace_channels([(name, 1.0, VERSIONS.get(name), cast(Channel, way)) for name, way in ways.items()])
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


@pytest.mark.costly
def test_without_an_instance_in_the_range_none_is_picked() -> None:
    pool, _ = stand("old", "unknown")
    assert pool.pool.pick(pool.guards, requires=TWO) is None
    assert pool.pool.pick(pool.guards) is not None
    alone, _ = stand("old")
    assert alone.pool.pick(alone.guards, requires=TWO) is None, "not even the only one"


def test_a_sick_instance_in_the_range_is_picked_rather_than_one_outside_it() -> None:
    pool, _ = stand("old", "new")
    breaker = pool.guards.breaker_of("new")
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
    versions = {"old": "2.5.0", "new": "3.0.0"}
    pool.pool.replace_channels([(name, 1.0, versions[name], cast(Channel, way)) for name, way in ways.items()])
    assert pool.many(2, requires=TWO) == {"old": 2}


def test_the_ranges_of_tools_use_bounded_memory() -> None:
    pool, _ = stand("old", "new")
    for patch in range(2 * MAX_RANGES):
        pool.pool.select_versions(parse_range(f">=1.0.{patch}"))
    assert len(pool.pool._in_range) <= MAX_RANGES


def test_the_shared_topic_has_the_version_of_the_service() -> None:
    way = Way()
    shared = Stand((SHARED, 1.0, way), breaker=Policy().breaker)
    shared.pool.replace_channels([(SHARED, 1.0, "2.0.0", cast(Channel, way))])
    assert shared.many(2, requires=TWO) == {SHARED: 2}
    assert shared.pool.pick(shared.guards, requires=parse_range("^3")) is None


async def test_every_wait_ends_when_nothing_is_in_flight() -> None:
    calls = InFlight()
    await calls.wait_idle()
    calls.__enter__()
    waiting = [asyncio.create_task(calls.wait_idle()) for _ in range(2)]
    await idle()
    calls.__exit__()
    calls.__enter__()  # the next one, before the waiting tasks run: they wait for that, too
    await idle()
    assert not any(task.done() for task in waiting)
    calls.__exit__()
    await asyncio.gather(*waiting)


async def test_a_cancelled_wait_disturbs_no_other() -> None:
    calls = InFlight()
    with calls:
        waiting = [asyncio.create_task(calls.wait_idle()) for _ in range(2)]
        await idle()
        waiting[0].cancel()
        await idle()
    await waiting[1]
    assert waiting[0].cancelled()


def test_a_callback_is_called_once_at_the_end() -> None:
    calls, ends = InFlight(), []
    assert not calls.await_idle(lambda: ends.append("idle"))
    with calls:
        with calls:
            assert calls.await_idle(lambda: ends.append("first"))
            assert calls.await_idle(lambda: ends.append("second"))
            assert calls.count == 2
        assert ends == []
    assert ends == ["first", "second"]
    with calls:
        pass
    assert ends == ["first", "second"]


A, B = Holder("a", "1"), Holder("b", "1")


def test_a_key_is_held_by_the_last_that_claimed_it_for_that_user() -> None:
    holders = KeyHolders()
    assert holders.get("alice", "k") is None
    holders.claim("alice", "k", A)
    assert holders.get("alice", "k") == A
    assert holders.get("bob", "k") is None
    holders.claim("alice", "k", B)
    assert holders.get("alice", "k") == B
    assert len(holders) == 1


def test_an_undone_claim_leaves_what_was_before() -> None:
    holders = KeyHolders()
    undo_first = holders.claim("alice", "k", A)
    undo_first()
    assert holders.get("alice", "k") is None
    holders.claim("alice", "k", A)
    undo_second = holders.claim("alice", "k", B)
    undo_second()
    undo_second()
    assert holders.get("alice", "k") == A


def test_a_claim_is_not_undone_when_another_request_has_claimed_the_key_since() -> None:
    holders = KeyHolders()
    undo_refused = holders.claim("alice", "k", A)
    holders.claim("alice", "k", Holder("a", "1"))
    undo_refused()
    assert holders.get("alice", "k") == A


def test_the_oldest_keys_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "MAX_KEYS", 3)
    holders = KeyHolders()
    for key in ("one", "two", "three", "one", "four"):
        holders.claim("", key, A)
    assert len(holders) == 3
    assert holders.get("", "two") is None
    assert holders.get("", "one") == A


def known(*names: str) -> Instances[SessionInstance]:
    made = Instances[SessionInstance]()
    for name in names:
        made.add(known_instance(name))
    return made


def test_the_version_changes_when_an_instance_is_added_or_removed() -> None:
    made = known("a")
    before = made.version
    each = known_instance("b")
    made.add(each)
    assert made.version != before
    before = made.version
    assert made.remove(each)
    assert made.version != before
    before = made.version
    assert not made.remove(each)
    assert made.version == before


def test_a_new_incarnation_replaces_the_former_one() -> None:
    made = known("a")
    former = made.get("a")
    again = known_instance("a", incarnation="2")
    assert made.add(again) is former
    assert made.get("a") is again
    assert not made.remove(former)
    assert list(made) == [again]


def test_name_and_incarnation_are_those_that_the_session_has_proved() -> None:
    each = known_instance("a", "life")
    assert (each.name, each.incarnation, each.topic) == ("a", "life", "topic-a")


def test_requests_are_in_flight_until_they_end() -> None:
    busy = known_instance()
    request = occupy(busy)
    assert busy.in_flight == 1
    busy.session.cancel(request)
    assert busy.in_flight == 0


def test_an_instance_that_answers_no_probe_is_suspect_until_it_does() -> None:
    each = known_instance()
    assert not each.is_suspect
    arouse_suspicion(each)
    line_of(each).exchange()
    assert not each.is_suspect
