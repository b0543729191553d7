from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.calls.resolution import BUCKETS, Rollout, hash_bucket

SHARES = st.integers(0, 10_000).map(lambda parts: parts / 100)


def buckets_of(shares: dict[str, float]) -> dict[str | None, set[int]]:
    rollout = Rollout(shares)
    found: dict[str | None, set[int]] = {version: set() for version in (None, *shares)}
    for bucket in range(BUCKETS):
        found[rollout.version_of(bucket)].add(bucket)
    return found


@pytest.mark.parametrize(
    "shares",
    [
        {},
        {"2.0.0": 5},
        {"2.0.0": 0},
        {"2.0.0": 100},
        {"2.0.0": 0.01},
        {"2.0.0": 99.99},
        {"2.0.0": 5, "1.5.0": 20},
        {"2.0.0": 50, "1.5.0": 50},
        {"1.0.0": 10, "2.0.0": 20, "3.0.0": 30, "10.0.0": 40},
    ],
)
def test_each_version_has_its_share(shares: dict[str, float]) -> None:
    found = buckets_of(shares)
    for version, share in shares.items():
        assert len(found[version]) == round(share * BUCKETS / 100)
    assert len(found[None]) == BUCKETS - sum(round(share * BUCKETS / 100) for share in shares.values())


@given(SHARES, SHARES)
def test_a_raised_share_only_adds_buckets(one: float, other: float) -> None:
    lower, higher = sorted((one, other))
    assert buckets_of({"2.0.0": lower})["2.0.0"] <= buckets_of({"2.0.0": higher})["2.0.0"]


@given(st.floats(0, 50), st.floats(0, 50), st.floats(0, 50), st.booleans())
def test_two_shares_change_independently(fixed: float, one: float, other: float, is_higher_fixed: bool) -> None:
    constant, changed = ("2.0.0", "1.0.0") if is_higher_fixed else ("1.0.0", "2.0.0")
    before, after = buckets_of({constant: fixed, changed: one}), buckets_of({constant: fixed, changed: other})
    assert before[constant] == after[constant]


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=6))
def test_rounding_costs_a_version_few_buckets(parts: list[int]) -> None:
    shares = {f"{index}.0.0": 100 * part / max(sum(parts), 1) for index, part in enumerate(parts)}
    found = buckets_of(shares)
    for version, share in shares.items():
        assert abs(len(found[version]) - share * BUCKETS / 100) <= len(parts)


def test_the_order_of_the_shares_changes_nothing() -> None:
    assert buckets_of({"2.0.0": 5, "10.0.0": 7}) == buckets_of({"10.0.0": 7, "2.0.0": 5})


def test_users_are_spread_evenly_and_differently_for_each_tool() -> None:
    users = [f"user-{number}" for number in range(20_000)]
    counts = Counter(hash_bucket("tell-joke", user) * 20 // BUCKETS for user in users)
    assert len(counts) == 20
    assert all(880 <= count <= 1120 for count in counts.values())  # 1,000, standard deviation 31
    both = sum(hash_bucket("tell-joke", user) < 500 and hash_bucket("find", user) < 500 for user in users)
    assert both < 100  # 50 ± 7 if independent, 1,000 if the same


def test_the_bucket_of_a_user_is_the_same_in_every_process() -> None:
    assert hash_bucket("tell-joke", "alice") == 4716
    assert hash_bucket("tell-joke", "\ud800") != hash_bucket("tell-joke", "alice"), "any text is a user"
