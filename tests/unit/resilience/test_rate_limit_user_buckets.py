"""A bucket for every user in bounded memory: a million invented users cost no more than the bound, and nobody gains a fresh
burst by being forgotten and coming back (a plain LRU hands one out)."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dispatch.resilience.rate_limit import MAX_USERS, NEVER, SCAN_LIMIT, LeakyBucket, UserBuckets
from tests.helpers.run_profile import examples
from tests.helpers.state_machine_settings import machine

BURST = 5.0
PER_SECOND = 2.0


def users(most: int) -> UserBuckets[LeakyBucket]:
    return UserBuckets(lambda empty_at: LeakyBucket(BURST, PER_SECOND, empty_at), most)


def spend(table: UserBuckets[LeakyBucket], user: str, now: float, calls: int = 1) -> int:
    """How many of so many calls the user may make."""
    return sum(table.get(user, now).try_add(1.0, now) for _ in range(calls))


def test_a_user_keeps_his_bucket_and_shares_it_with_nobody() -> None:
    table = users(10)
    assert spend(table, "ann", 100.0, 9) == 5
    assert spend(table, "ben", 100.0, 9) == 5
    assert table.get("ann", 100.0) is table.get("ann", 101.0)
    assert len(table) == 2
    assert table.floor == NEVER


def test_some_thousands_are_remembered_when_nothing_else_is_said() -> None:
    table = UserBuckets(lambda empty_at: LeakyBucket(1.0, 1.0, empty_at))
    for n in range(10_001):
        table.get(str(n), 100.0)
    assert len(table) == MAX_USERS == 10_000


def test_who_owes_nothing_is_forgotten_first_and_costs_nobody_anything() -> None:
    table = users(2)
    spend(table, "ann", 100.0, 5)
    spend(table, "ben", 100.0, 1)
    ann = table.get("ann", 100.0)
    assert spend(table, "col", 100.5, 9) == 5, "ben owes nothing any more"
    assert table.get("ann", 100.5) is ann
    assert len(table) == 2
    assert table.floor <= 100.5


def test_when_all_owe_the_least_debtor_goes_and_a_newcomer_begins_with_his_debt() -> None:
    table = users(3)
    for user, calls in (("ann", 5), ("ben", 2), ("col", 3)):
        spend(table, user, 100.0, calls)
    assert spend(table, "dan", 100.0, 9) == 3
    assert table.floor == 101.0
    assert spend(table, "ben", 100.0, 9) == 2, "he takes the place of col, who owed three"
    assert table.floor == 101.5


def test_the_floor_never_falls_though_a_lesser_debt_is_forgotten_later() -> None:
    table = users(1)
    spend(table, "ann", 100.0, 4)
    table.get("ben", 100.0).give_back(4.0, 100.0, 100.0)
    table.get("col", 100.0)
    assert table.floor == 102.0
    assert spend(table, "ann", 100.0, 9) == 1


def test_whoever_comes_back_has_no_fresh_burst() -> None:
    table = users(4)
    assert spend(table, "ann", 100.0, 9) == 5
    for n in range(100):
        spend(table, f"new{n}", 100.0, 9)
    assert spend(table, "ann", 100.0, 9) == 0
    assert spend(table, "ann", 101.0, 9) <= 2


def test_a_flood_of_invented_users_takes_nothing_from_the_real_ones() -> None:
    """One shared bucket for all that find no room would leave each of them one part in a thousand."""
    table = users(600)
    now, went = 100.0, 0
    for n in range(20_000):
        now += 0.001
        assert spend(table, f"invented{n}", now) == 1
        if n % 500 == 0:
            went += spend(table, "ann", now)
    assert went == 40
    assert table.floor <= now, "1,000 calls a second are fewer than 600 users may make"


def test_a_flood_beyond_all_bounds_is_held_to_what_those_remembered_may_make() -> None:
    table = users(100)
    went = sum(spend(table, f"invented{n}", 100.0 + n / 1000) for n in range(20_000))
    assert went <= 106 * (BURST + PER_SECOND * 20)


def test_the_least_is_sought_on_and_nobody_is_forgotten_before_it_is_found() -> None:
    """Otherwise one who owes an hour, because he happens to be looked at, makes every newcomer pay for it."""
    most = 3 * SCAN_LIMIT
    table = users(most)
    for n in range(most):
        table.get(f"u{n}", 100.0)
    for n in range(most):
        spend(table, f"u{n}", 100.0, 1 if n == 2 * SCAN_LIMIT + 3 else 4)
    table.get("new0", 100.0)
    table.get("new1", 100.0)
    assert len(table) == most + 2
    assert table.floor == NEVER
    assert spend(table, "new1", 100.0, 9) == 5
    table.get("new2", 100.0)
    assert len(table) == most + 3
    table.get("new3", 100.0)
    assert len(table) == most + 3, "new0 owes nothing, and was found"
    assert table.floor == NEVER
    assert "new0" not in table._buckets


def test_who_is_known_to_owe_least_is_found_at_the_first_look() -> None:
    most = 2 * SCAN_LIMIT
    table = users(most)
    for n in range(most):
        spend(table, f"u{n}", 100.0, 1 + n % 3)
    table._order = sorted((table.get(f"u{n}", 100.0).empty_at, n, f"u{n}") for n in range(most))
    table.get("new", 100.0)
    assert (len(table), table.floor) == (most, 100.5)


def test_there_is_a_bound_all_the_same_and_then_the_least_of_those_looked_at_goes() -> None:
    most = 2 * SCAN_LIMIT
    table = users(most)
    for n in range(most):
        table.get(f"u{n}", 100.0)
    for n in range(most):
        spend(table, f"u{n}", 100.0, 3 if n == SCAN_LIMIT - 1 else 1 if n == SCAN_LIMIT else 4)
    for number, size in ((0, most + 1), (1, most + 2)):
        for n in range(most):
            spend(table, f"u{n}", 100.0 + 10 * number, 1 if n == SCAN_LIMIT else 3)
        table._order = [(NEVER, n, f"u{n}") for n in range(most)] + [(1e9, most + n, f"new{n}") for n in range(number)]
        table.get(f"new{number}", 100.0 + 10 * number)
        assert len(table) == size
    for n in range(most):
        spend(table, f"u{n}", 120.0, 2 if n == SCAN_LIMIT - 1 else 1 if n == SCAN_LIMIT else 4)
    table._order = [(NEVER, n, f"u{n}") for n in range(most)] + [(1e9, most + n, f"new{n}") for n in range(2)]
    table.get("new2", 120.0)
    assert len(table) == most + 2
    assert table.floor == 121.0, "u15 owes the least of the sixteen; u16, who owes less, was not looked at"
    assert sorted(user for _, _, user in table._order) == sorted(table._buckets)


@pytest.mark.costly
def test_a_million_users_cost_no_more_than_the_bound() -> None:
    table = users(1000)
    tracemalloc.start()
    try:
        for n in range(2_000):
            spend(table, f"user{n}", 100.0 + n / 1e5)
        before = tracemalloc.get_traced_memory()[0]
        for n in range(2_000, 12_000):
            spend(table, f"user{n}", 100.0 + n / 1e5)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(table) == 1000 + 1000 // SCAN_LIMIT
    assert len(table._order) == len(table)
    assert grown < 13_000, "10,000 more users took nothing"


@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from([0.0, 0.0, 0.1, 1.0])), max_size=60),
    st.integers(1, 4),
)
@hypothesis_settings(max_examples=examples(80))
def test_no_user_gets_more_than_burst_and_rate_however_few_are_remembered(
    steps: list[tuple[str, float]], most: int
) -> None:
    table = users(most)
    now = 100.0
    went: dict[str, list[float]] = {}
    for user, pause in steps:
        now += pause
        if spend(table, user, now):
            went.setdefault(user, []).append(now)
        assert len(table) <= most
    for times in went.values():
        for first, begin in enumerate(times):
            for last, end in enumerate(times[first:], first):
                assert last - first + 1 <= BURST + PER_SECOND * (end - begin) + 1e-6


class Machine(RuleBasedStateMachine):
    """Against unbounded memory: nobody ever has more room than if everybody were remembered for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.table = users(3)
        self.ideal: dict[str, LeakyBucket] = {}
        self.now = 100.0
        self.open: list[tuple[str, LeakyBucket, float]] = []

    @rule(seconds=st.sampled_from([0.1, 0.5, 2.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(user=st.sampled_from("abcdef"))
    def call(self, user: str) -> None:
        ideal = self.ideal.setdefault(user, LeakyBucket(BURST, PER_SECOND))
        bucket = self.table.get(user, self.now)
        if bucket.try_add(1.0, self.now):
            assert ideal.try_add(1.0, self.now)
            self.open.append((user, bucket, self.now))

    @rule(which=st.integers(0, 100))
    def give_back(self, which: int) -> None:
        if self.open:
            user, bucket, at = self.open.pop(which % len(self.open))
            bucket.give_back(1.0, at, self.now)
            # What the ideal one would take back is never less.
            ideal = self.ideal[user]
            ideal._level, ideal._last_check = max(0.0, ideal.level(self.now) - 1.0), self.now

    @invariant()
    def bounded(self) -> None:
        assert len(self.table) <= 3
        assert len(self.table._order) == len(self.table)


TestMachine = Machine.TestCase
TestMachine.settings = machine(30, 40)
