"""Which observations follow from recommendations and calls."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dispatch.toolkit.evidence import ONE, Evidence, Observation
from dispatch.toolkit.learning import (
    MAX_PAUSE,
    MAX_USERS,
    Interactions,
    Observed,
    Recommendation,
    describe_recommendation,
    observe_call,
)

EDGES = {"read": ["search", "open", "write"], "write": ["save", "read"], "other": []}


def recommend(
    *actions: str, found: Iterable[str] = ("read", "write"), user: str = "", time: float = 0.0
) -> Recommendation:
    return describe_recommendation(actions, set(found), EDGES, user, time)


def names(observed: list[Observed]) -> list[tuple[str, str, Observation]]:
    kinds: dict[Evidence, Observation] = {evidence: kind for kind, evidence in ONE.items()}
    return sorted((u, v, kinds[evidence]) for (u, v), evidence in observed)


def in_new_context(function: Callable[[], Any]) -> Any:
    return contextvars.Context().run(function)


def test_a_recommendation_is_described_by_its_result() -> None:
    found = recommend("read", "unknown", "read")
    assert found.actions == ("read",)
    assert found.reached == {"write"}
    assert found.tools == {"read": ["search", "open"]}
    assert found.next_actions == {"read": ["write"]}


def test_the_next_recommendation_shows_the_unused_tools_and_the_next_action() -> None:
    interactions = Interactions()
    first = recommend("read")
    assert interactions.begin(first) == []
    assert names(observe_call(first, "search", {"read"}, Observation.SUCCESS)) == [
        ("read", "search", Observation.SUCCESS)
    ]
    assert names(interactions.begin(recommend("write"))) == [
        ("read", "open", Observation.UNUSED),
        ("read", "write", Observation.SUCCESS),
    ]


def test_another_action_than_the_recommended_one() -> None:
    interactions = Interactions()
    interactions.begin(recommend("read"))
    assert names(interactions.begin(recommend("other", found=["other"]))) == [
        ("read", "open", Observation.UNUSED),
        ("read", "other", Observation.SUCCESS),
        ("read", "search", Observation.UNUSED),
        ("read", "write", Observation.UNUSED),
    ]


def test_the_same_recommendation_twice_is_no_evidence_and_a_repeated_step_is() -> None:
    interactions = Interactions()
    first, second = recommend("read"), recommend("read")
    interactions.begin(first)
    assert interactions.begin(second) == []
    observe_call(second, "open", {"read"}, Observation.SUCCESS)
    assert names(interactions.begin(recommend("read"))) == [("read", "search", Observation.UNUSED)]


def test_an_action_that_the_agent_has_not_left_has_no_unused_next_action() -> None:
    interactions = Interactions()
    first = recommend("read", "write")
    interactions.begin(first)
    observe_call(first, "save", {"write"}, None)
    assert names(interactions.begin(recommend("write"))) == [
        ("read", "open", Observation.UNUSED),
        ("read", "search", Observation.UNUSED),
        ("read", "write", Observation.SUCCESS),
    ]


def test_a_forgotten_recommendation_has_no_next_action() -> None:
    interactions = Interactions()
    first = recommend("read", user="alice")
    interactions.begin(first)
    interactions.forget(first)
    assert interactions.find("alice", 0.0) is None
    assert interactions.begin(recommend("write", user="alice")) == []
    interactions.forget(first)
    assert interactions.find("alice", 0.0) is not None


def test_a_call_that_failed_by_a_limit_shows_that_the_tool_was_chosen() -> None:
    interactions = Interactions()
    first = recommend("read")
    interactions.begin(first)
    assert observe_call(first, "search", {"read"}, None) == []
    assert ("read", "search", Observation.UNUSED) not in names(interactions.begin(recommend("write")))


def test_a_call_belongs_to_the_given_actions_then_to_reached_ones_then_to_a_new_edge() -> None:
    found = recommend("read")
    success = Observation.SUCCESS
    assert names(observe_call(found, "search", {"read", "write", "far"}, success)) == [("read", "search", success)]
    assert names(observe_call(found, "save", {"write", "far"}, success)) == [("write", "save", success)]
    assert names(observe_call(found, "rare", {"far"}, success)) == [("read", "rare", success)]
    two = recommend("read", "write")
    assert names(observe_call(two, "rare", set(), success)) == [("read", "rare", success), ("write", "rare", success)]


def test_a_recommendation_is_closed_once() -> None:
    interactions = Interactions()
    first = recommend("read")
    interactions.begin(first)
    assert len(interactions.close(first)) == 2
    assert interactions.close(first) == []
    assert names(interactions.begin(recommend("write"))) == [("read", "write", Observation.SUCCESS)]


def test_after_a_long_pause_another_interaction_begins() -> None:
    interactions = Interactions()
    interactions.begin(recommend("read"))
    assert interactions.find("", MAX_PAUSE) is not None
    assert interactions.find("", MAX_PAUSE + 1) is None
    assert interactions.begin(recommend("write", time=MAX_PAUSE + 1)) == []


async def test_tasks_have_recommendations_of_their_own_and_inherit_those_before_them() -> None:
    interactions = Interactions()
    parent = recommend("read")
    interactions.begin(parent)
    both = asyncio.Barrier(2)

    async def work(action: str) -> tuple[bool, bool]:
        has_inherited = interactions.find("", 0.0) is parent
        own = recommend(action)
        interactions.begin(own)
        await both.wait()
        return has_inherited, interactions.find("", 0.0) is own

    assert await asyncio.gather(work("read"), work("write")) == [(True, True)] * 2
    assert interactions.find("", 0.0) is parent


def test_a_call_in_another_context_belongs_to_the_last_recommendation_to_its_user() -> None:
    interactions = Interactions()
    alice, nameless = recommend("read", user="alice"), recommend("write")
    in_new_context(lambda: interactions.begin(alice))
    in_new_context(lambda: interactions.begin(nameless))
    assert interactions.find("alice", 0.0) is alice
    assert interactions.find("bob", 0.0) is None
    assert interactions.find("", 0.0) is None


def test_a_call_of_another_user_in_the_same_context_does_not_belong_to_a_recommendation() -> None:
    interactions = Interactions()
    interactions.begin(recommend("read", user="alice"))
    assert interactions.find("bob", 0.0) is None


def test_two_toolkits_in_one_context_do_not_meet() -> None:
    one, two = Interactions(), Interactions()
    first, second = recommend("read"), recommend("write")
    one.begin(first)
    two.begin(second)
    assert one.find("", 0.0) is first
    assert two.find("", 0.0) is second


def test_users_are_bounded() -> None:
    interactions = Interactions()
    for number in range(MAX_USERS + 10):
        interactions.begin(recommend("read", user=f"user {number}"))
    assert len(interactions._users) == MAX_USERS
    assert in_new_context(lambda: interactions.find("user 9", 0.0)) is None
    assert in_new_context(lambda: interactions.find("user 10", 0.0)) is not None


@given(
    st.lists(
        st.tuples(st.sampled_from(["read", "write", "other"]), st.sets(st.sampled_from(["search", "open", "save"]))),
        max_size=20,
    )
)
def test_each_recommended_tool_is_either_used_or_unused_once(steps: list[tuple[str, set[str]]]) -> None:
    interactions = Interactions()
    expected: list[tuple[str, str, Observation]] = []
    observed: list[Observed] = []
    previous: tuple[str, set[str]] | None = None
    for action, calls in steps:
        current = recommend(action, found=["read", "write", "other"])
        observed += interactions.begin(current)
        if previous is not None and (previous[1] or previous[0] != action):
            offered = {"read": ["search", "open"], "write": ["save"], "other": []}[previous[0]]
            expected += [(previous[0], tool, Observation.UNUSED) for tool in offered if tool not in previous[1]]
        for tool in calls:
            observe_call(current, tool, {action}, None)
        previous = (action, calls)
    unused = [
        each for each in names(observed) if each[2] is Observation.UNUSED and each[1] in ("search", "open", "save")
    ]
    assert unused == sorted(expected)
