"""Learned scores of a toolkit, in virtual time.
Which observations follow from recommendations and calls.
A learner that observes the calls of a dispatcher.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch import Dispatcher, Outcome, ToolError
from dispatch.toolkit import Action, Learner, Observation, Tool, Toolkit, ToolkitService, ToolkitWarning
from dispatch.toolkit.evidence import ONE, Evidence
from dispatch.toolkit.learning import (
    MAX_PAUSE,
    MAX_USERS,
    Interactions,
    Observed,
    Recommendation,
    describe_recommendation,
    observe_call,
)
from dispatch.transports.memory import MemoryTransport
from tests.helpers.dispatcher_and_service import BROKER, catalog, serving
from tests.unit.toolkit.samples import action, four_actions, query, tool

DAY = 86_400.0


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def service() -> ToolkitService:
    """One action with three tools at 0.6, and a next action with a tool of its own."""
    service = ToolkitService()
    service.add_action(action(1), [], [])
    service.add_action(action(2), [], [(action(1), 0.6)])
    for number in (1, 2, 3):
        service.add_tool(tool(number), [(action(1), 0.6)])
    service.add_tool(tool(4), [(action(2), 0.6)])
    return service


def learn(service: ToolkitService, clock: Clock, store: Path | None = None) -> Learner:
    return service.get_toolkit().learn(clock=clock, store=store)


def names(service: ToolkitService, threshold: float = 0.5, hops: int = 0) -> list[str]:
    tools, _ = service.recommend_tools_actions([action(1)], threshold, hops)
    return sorted(each.name for each in tools)


def test_a_recommendation_has_learned_scores_and_the_toolkit_the_written_ones(
    service: ToolkitService, clock: Clock
) -> None:
    learner = learn(service, clock)
    learner.record("action 1", "tool 1", Observation.SUCCESS, 8)
    learner.record("action 1", "tool 2", "tool-error", 8)
    found = service.recommend_subgraph([action(1)], 0.0)
    assert found.get_score("action 1", "tool 1") == pytest.approx((4 * 0.6 + 8) / 12)
    assert found.get_score("action 1", "tool 2") == pytest.approx(4 * 0.6 / 12)
    assert found.get_score("action 1", "tool 3") == 0.6
    assert service.get_toolkit().get_score("action 1", "tool 1") == 0.6
    assert names(service) == ["tool_1", "tool_3"]


def test_next_edges_are_followed_by_learned_scores(service: ToolkitService, clock: Clock) -> None:
    learner = learn(service, clock)
    assert "tool_4" in names(service, hops=1)
    learner.record("action 1", "action 2", Observation.UNUSED, 100)
    assert "tool_4" not in names(service, hops=1)


def test_evidence_decays_until_the_written_score_is_back(service: ToolkitService, clock: Clock) -> None:
    learner = learn(service, clock)
    learner.record("action 1", "tool 1", "tool-error", 8)
    assert names(service) == ["tool_2", "tool_3"]
    clock.now = 30 * DAY
    assert learner.why("action 1", "tool 1").evidence.tool_error == pytest.approx(4)
    assert names(service) == ["tool_2", "tool_3"]
    clock.now = 120 * DAY
    assert names(service) == ["tool_1", "tool_2", "tool_3"]
    clock.now = 2000 * DAY
    assert learner.get_score("action 1", "tool 1") == pytest.approx(0.6)


def test_a_new_written_score_is_used_at_once(service: ToolkitService, clock: Clock) -> None:
    learner = learn(service, clock)
    learner.record("action 1", "tool 1", Observation.SUCCESS)
    assert "tool_1" in names(service)
    service.get_toolkit().set_score("action 1", "tool 1", 0.0)
    assert "tool_1" not in names(service)
    service.get_toolkit().remove_edge("action 1", "tool 1")
    assert "tool_1" not in names(service, 0.0)


@given(
    st.lists(
        st.tuples(st.sampled_from(Observation), st.floats(0.01, 1e6), st.floats(0, 400 * DAY)), min_size=1, max_size=30
    ),
    st.floats(0, 1),
)
def test_recommended_scores_are_those_that_why_explains(
    events: list[tuple[Observation, float, float]], written: float
) -> None:
    clock, service = Clock(), ToolkitService()
    service.add_action(action(1), [], [])
    service.add_tool(tool(1), [(action(1), written)])
    learner = learn(service, clock)
    for observation, count, pause in events:
        learner.record("action 1", "tool 1", observation, count)
        clock.now += pause
        found = service.recommend_subgraph([action(1)], 0.0).get_score("action 1", "tool 1")
        assert 0 <= found <= 1
        # Computed scores are used again for a thousandth of a half-life.
        assert found == pytest.approx(learner.why("action 1", "tool 1").score, abs=1e-3)


def test_why_states_the_reasons(service: ToolkitService, clock: Clock) -> None:
    learner = learn(service, clock)
    learner.record("action 1", "tool 1", Observation.SUCCESS, 6)
    learner.record("action 1", "tool 1", Observation.UNUSED, 20)
    learner.record("action 1", "tool 4", Observation.SUCCESS)
    assert str(learner.why("action 1", "tool 1")) == (
        "action 1 → tool 1: 0.70 = written 0.60 (counts as 4 observations), 6.0 successes, 0.0 tool errors, 20.0 unused "
        "(each counts 0.1); half-life 30 days"
    )
    missing = learner.why("action 1", "tool 4")
    assert (missing.has_edge, missing.written, missing.score) == (False, 0.0, 0.2)
    assert [each.target for each in learner.list_scores()] == ["tool 1", "tool 4"]


def test_reset_of_one_edge_of_an_action_and_of_everything(service: ToolkitService, clock: Clock) -> None:
    learner = learn(service, clock)
    for u, v in (("action 1", "tool 1"), ("action 1", "tool 2"), ("action 2", "tool 4")):
        learner.record(u, v, "tool-error", 100)
    assert names(service) == ["tool_3"]
    learner.reset("action 1", "tool 1")
    assert names(service) == ["tool_1", "tool_3"]
    learner.reset("action 1")
    assert names(service) == ["tool_1", "tool_2", "tool_3"]
    assert len(learner.list_scores()) == 1
    learner.reset()
    assert learner.list_scores() == []
    with pytest.raises(ValueError, match="Give u as well"):
        learner.reset(v="tool 1")


def test_a_frozen_learner_keeps_its_scores(service: ToolkitService, clock: Clock) -> None:
    learner = learn(service, clock)
    learner.record("action 1", "tool 1", "tool-error", 8)
    before = learner.get_score("action 1", "tool 1")
    learner.freeze()
    learner.record("action 1", "tool 1", Observation.SUCCESS, 100)
    clock.now = 300 * DAY
    assert learner.get_score("action 1", "tool 1") == before
    assert names(service) == ["tool_2", "tool_3"]
    learner.unfreeze()
    assert learner.get_score("action 1", "tool 1") > before
    assert names(service) == ["tool_1", "tool_2", "tool_3"]


def test_recommendations_and_calls_are_observed(service: ToolkitService, clock: Clock) -> None:
    learner = learn(service, clock)
    for _ in range(10):
        service.recommend_subgraph([action(1)], hops=1)
        learner.record_call("tool 1", Observation.SUCCESS)
        learner.record_call("tool 2", Observation.TOOL_ERROR)
        service.recommend_subgraph([action(2)])
        learner.record_call("tool 4", Observation.SUCCESS)
    evidence = {(each.source, each.target): each.evidence for each in learner.list_scores()}
    assert evidence == {
        ("action 1", "tool 1"): (10, 0, 0),
        ("action 1", "tool 2"): (0, 10, 0),
        # At (4 · 0.6 + 0) / (4 + 9 · 0.1) it is below the threshold and no longer recommended.
        ("action 1", "tool 3"): (0, 0, 9),
        ("action 1", "action 2"): (10, 0, 0),
        ("action 2", "tool 4"): (10, 0, 0),
        # Each round begins again, which is a step without a Next edge.
        ("action 2", "action 1"): (9, 0, 0),
    }
    assert names(service) == ["tool_1"]


def test_calls_without_a_recommendation_and_of_unknown_tools_are_not_recorded(
    service: ToolkitService, clock: Clock
) -> None:
    learner = learn(service, clock)
    learner.record_call("tool 1", Observation.SUCCESS)
    service.recommend_subgraph([action(1)])
    learner.record_call("unknown", Observation.SUCCESS)
    learner.record_call("action 2", Observation.SUCCESS)
    assert learner.list_scores() == []


def test_a_recommendation_for_unknown_actions_is_no_step(service: ToolkitService, clock: Clock) -> None:
    learner = learn(service, clock)
    service.recommend_subgraph([action(1)], hops=1)
    service.recommend_subgraph([action(7)])
    assert learner.list_scores() == []
    learner.record_call("tool 1", Observation.SUCCESS)
    assert [(each.source, each.target) for each in learner.list_scores()] == [("action 1", "tool 1")]


def test_the_end_of_an_interaction_shows_its_unused_tools_and_is_no_step(service: ToolkitService, clock: Clock) -> None:
    learner = learn(service, clock)
    learner.end_interaction()
    service.recommend_subgraph([action(2)])
    learner.end_interaction()
    service.recommend_subgraph([action(1)])
    assert [(each.source, each.target) for each in learner.list_scores()] == [("action 2", "tool 4")]


def test_evidence_is_kept_across_restarts(service: ToolkitService, clock: Clock, tmp_path: Path) -> None:
    learner = learn(service, clock, tmp_path / "learned.db")
    learner.record("action 1", "tool 1", "tool-error", 8)
    assert names(service) == ["tool_2", "tool_3"]
    learner.close()
    again = learn(service, clock, tmp_path / "learned.db")
    again.flush()
    assert names(service) == ["tool_2", "tool_3"]
    again.close()


def test_a_second_learner_replaces_the_first(service: ToolkitService, clock: Clock) -> None:
    first = learn(service, clock)
    first.record("action 1", "tool 1", "tool-error", 8)
    second = learn(service, clock)
    assert service.get_toolkit().learner is second
    assert names(service) == ["tool_1", "tool_2", "tool_3"]


@pytest.mark.parametrize("days", [0, -1, float("nan")])
def test_a_half_life_is_positive(days: float) -> None:
    with pytest.raises(ValueError, match="is not a positive number"):
        Toolkit().learn(half_life_days=days)


@pytest.mark.parametrize("count", [0, -1, 1_000_001, float("nan"), float("inf")])
def test_a_count_is_positive_and_bounded(service: ToolkitService, clock: Clock, count: float) -> None:
    with pytest.raises(ValueError, match="is not in"):
        learn(service, clock).record("action 1", "tool 1", Observation.SUCCESS, count)


def test_update_action_learns_from_called_tools(service: ToolkitService) -> None:
    for _ in range(30):
        found = service.update_action("Action 1", [tool(1)])
        assert found.id == "action 1"
    learner = service.get_toolkit().learner
    success, _, unused = learner.why("action 1", "tool 2").evidence
    assert (round(success), round(unused)) == (0, 30)
    assert round(learner.why("action 1", "tool 1").evidence.success) == 30
    assert names(service) == ["tool_1"]


def test_update_action_uses_the_recommendation_of_its_context(service: ToolkitService, clock: Clock) -> None:
    learner = learn(service, clock)
    service.recommend_subgraph([action(1)], hops=1)
    learner.record_call("tool 1", Observation.SUCCESS)
    found = service.update_action("The user wants something else entirely.", [tool(1), tool(3)])
    assert found.id == "action 1"
    service.recommend_subgraph([action(2)])
    evidence = {(each.source, each.target): each.evidence for each in learner.list_scores()}
    assert evidence == {
        ("action 1", "tool 1"): (1, 0, 0),
        ("action 1", "tool 2"): (0, 0, 1),
        ("action 1", "tool 3"): (1, 0, 0),
        ("action 1", "action 2"): (1, 0, 0),
    }


def test_update_action_finds_an_action_by_its_description() -> None:
    service = ToolkitService()
    for id, name, description in (
        ("a", "searchOrders", "Find out what the customer ordered."),
        ("b", "Reply", "Write to the customer."),
        ("c", "退款", "把钱退给客户"),
    ):
        service.add_action(Action(id, name, description), [], [])
    for text, expected in (
        ("c", "c"),
        ("Reply", "b"),
        ("which orders?", "a"),
        ("write a letter", "b"),
        ("钱退给他", "c"),
    ):
        found = service.update_action(text, [])
        assert found.id == expected
        learner = service.get_toolkit().learner
        learner.close()
        service.get_toolkit().learn()  # no recommendation of this context
    service.remove_action("b")
    with pytest.warns(ToolkitWarning, match="Give the id or name"):
        assert service.update_action("letter", []) is None


def test_tune_writes_learned_scores_and_learning_starts_again_at_them(
    service: ToolkitService, clock: Clock, tmp_path: Path
) -> None:
    toolkit = service.get_toolkit()
    assert service.tune() == []
    learner = learn(service, clock)
    learner.record("action 1", "tool 1", Observation.SUCCESS, 12)
    learner.record("action 1", "tool 2", Observation.SUCCESS, 0.5)
    learner.record("action 1", "tool 4", Observation.SUCCESS, 12)
    learner.record("action 1", "gone", Observation.SUCCESS, 12)
    before = names(service), learner.get_score("action 1", "tool 1")
    assert [each.target for each in service.tune()] == ["tool 1"]
    assert (names(service), learner.get_score("action 1", "tool 1")) == before
    assert toolkit.get_score("action 1", "tool 1") == before[1] == pytest.approx(0.9)
    assert not learner.why("action 1", "tool 1").evidence.weight
    assert [each.target for each in service.tune(add_edges_from=0.7)] == ["tool 4"]
    assert toolkit.get_score("action 1", "tool 4") == 0.75
    assert "tool_4" in names(service)
    assert [each.target for each in service.tune(add_edges_from=0.7)] == []


def test_tuned_scores_are_saved(clock: Clock, tmp_path: Path) -> None:
    (tmp_path / "toolkit.yml").write_text(
        "tools:\n  - {name: query, module_path: tests.unit.toolkit.samples}\nactions:\n  - {name: Ask, tools: [query]}\n"
    )
    toolkit = Toolkit.load(tmp_path / "toolkit.yml")
    toolkit.learn(clock=clock).record("Ask", "query", "tool-error", 4)
    toolkit.save(tmp_path / "written.yml")
    assert Toolkit.load(tmp_path / "written.yml").get_score("Ask", "query") == 1.0
    ToolkitService(toolkit).tune()
    toolkit.save(tmp_path / "tuned.yml")
    assert Toolkit.load(tmp_path / "tuned.yml").get_score("Ask", "query") == 0.5


def test_a_toolkit_without_evidence_recommends_the_same(clock: Clock) -> None:
    plain, learning = four_actions(), four_actions()
    learn(learning, clock)
    for hops in range(4):
        for threshold in (0.0, 0.65, 0.8):
            results = [each.recommend_subgraph([action(1)], threshold, hops) for each in (plain, learning)]
            assert results[0].to_json_str() == results[1].to_json_str()


def test_a_tool_without_an_id_is_found_by_the_object(clock: Clock) -> None:
    service = ToolkitService()
    service.add_action(action(1), [], [])
    own = Tool("own", "", query)
    service.add_tool(own, [(action(1), 0.6)])
    service.update_action("action 1", [own])
    learner = service.get_toolkit().learner
    assert learner.get_score("action 1", own.id) == pytest.approx((2.4 + 1) / 5)


EDGES = {"read": ["search", "open", "write"], "write": ["save", "read"], "other": []}


def recommend(
    *actions: str, found: Iterable[str] = ("read", "write"), user: str = "", time: float = 0.0
) -> Recommendation:
    return describe_recommendation(actions, set(found), EDGES, user, time)


def names_of(observed: list[Observed]) -> list[tuple[str, str, Observation]]:
    kinds: dict[Evidence, Observation] = {evidence: kind for kind, evidence in ONE.items()}
    return sorted((u, v, kinds[evidence]) for (u, v), evidence in observed)


def in_new_context(function: Callable[[], Any]) -> Any:
    return contextvars.Context().run(function)


@pytest.fixture
def interactions() -> Interactions:
    return Interactions()


def test_another_action_than_the_recommended_one(interactions: Interactions) -> None:
    interactions.begin(recommend("read"))
    assert names_of(interactions.begin(recommend("other", found=["other"]))) == [
        ("read", "open", Observation.UNUSED),
        ("read", "other", Observation.SUCCESS),
        ("read", "search", Observation.UNUSED),
        ("read", "write", Observation.UNUSED),
    ]


def test_the_same_recommendation_twice_is_no_evidence_and_a_repeated_step_is(interactions: Interactions) -> None:
    first, second = recommend("read"), recommend("read")
    interactions.begin(first)
    assert interactions.begin(second) == []
    observe_call(second, "open", {"read"}, Observation.SUCCESS)
    assert names_of(interactions.begin(recommend("read"))) == [("read", "search", Observation.UNUSED)]


def test_an_action_that_the_agent_has_not_left_has_no_unused_next_action(interactions: Interactions) -> None:
    first = recommend("read", "write")
    interactions.begin(first)
    observe_call(first, "save", {"write"}, None)
    assert names_of(interactions.begin(recommend("write"))) == [
        ("read", "open", Observation.UNUSED),
        ("read", "search", Observation.UNUSED),
        ("read", "write", Observation.SUCCESS),
    ]


def test_a_forgotten_recommendation_has_no_next_action(interactions: Interactions) -> None:
    first = recommend("read", user="alice")
    interactions.begin(first)
    interactions.forget(first)
    assert interactions.find("alice", 0.0) is None
    assert interactions.begin(recommend("write", user="alice")) == []
    interactions.forget(first)
    assert interactions.find("alice", 0.0) is not None


def test_a_call_belongs_to_the_given_actions_then_to_reached_ones_then_to_a_new_edge() -> None:
    found = recommend("read")
    success = Observation.SUCCESS
    assert names_of(observe_call(found, "search", {"read", "write", "far"}, success)) == [("read", "search", success)]
    assert names_of(observe_call(found, "save", {"write", "far"}, success)) == [("write", "save", success)]
    assert names_of(observe_call(found, "rare", {"far"}, success)) == [("read", "rare", success)]
    two = recommend("read", "write")
    found = names_of(observe_call(two, "rare", set(), success))
    assert found == [("read", "rare", success), ("write", "rare", success)]


def test_a_recommendation_is_closed_once(interactions: Interactions) -> None:
    first = recommend("read")
    interactions.begin(first)
    assert len(interactions.close(first)) == 2
    assert interactions.close(first) == []
    assert names_of(interactions.begin(recommend("write"))) == [("read", "write", Observation.SUCCESS)]


def test_after_a_long_pause_another_interaction_begins(interactions: Interactions) -> None:
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


def test_two_toolkits_in_one_context_do_not_meet() -> None:
    one, two = Interactions(), Interactions()
    first, second = recommend("read"), recommend("write")
    one.begin(first)
    two.begin(second)
    assert one.find("", 0.0) is first
    assert two.find("", 0.0) is second


def test_users_are_bounded(interactions: Interactions) -> None:
    for number in range(MAX_USERS + 10):
        interactions.begin(recommend("read", user=f"user {number}"))
    assert len(interactions._users) == MAX_USERS
    assert in_new_context(lambda: interactions.find("user 9", 0.0)) is None
    assert in_new_context(lambda: interactions.find("user 10", 0.0)) is not None


CALLED = st.tuples(st.sampled_from(["read", "write", "other"]), st.sets(st.sampled_from(["search", "open", "save"])))


@given(st.lists(CALLED, max_size=20))
def test_each_recommended_tool_is_either_used_or_unused_once(steps: list[tuple[str, set[str]]]) -> None:
    interactions = Interactions()
    expected: list[tuple[str, str, Observation]] = []
    observed: list[Observed] = []
    previous: tuple[str, set[str]] | None = None
    for step, calls in steps:
        current = recommend(step, found=["read", "write", "other"])
        observed += interactions.begin(current)
        if previous is not None and (previous[1] or previous[0] != step):
            offered = {"read": ["search", "open"], "write": ["save"], "other": []}[previous[0]]
            expected += [(previous[0], tool, Observation.UNUSED) for tool in offered if tool not in previous[1]]
        for called in calls:
            observe_call(current, called, {step}, None)
        previous = (step, calls)
    unused = [
        one for one in names_of(observed) if one[2] is Observation.UNUSED and one[1] in ("search", "open", "save")
    ]
    assert unused == sorted(expected)


ARGUMENTS = {"topic": "cats"}


def answer(arguments: dict[str, Any]) -> str:
    if arguments["topic"] == "fail":
        raise ToolError("no-joke", "there is none")
    return "funny"


def start() -> tuple[Dispatcher, ToolkitService, Learner]:
    dispatcher = Dispatcher(MemoryTransport(BROKER), catalog(joke={}, poem={}, song={"policy": {"rate-limit": "1/h"}}))
    service = ToolkitService(Toolkit.of(dispatcher))
    service.add_action(action(1), [], [])
    service.add_action(action(2), [], [(action(1), 1.0)])
    for name in ("joke", "poem", "song"):
        service.add_tool(dispatcher.tool(name), [(action(1), 0.6)])
    return dispatcher, service, service.get_toolkit().learn(dispatcher)


def read_evidence(learner: Learner) -> dict[str, tuple[int, int, int]]:
    return {
        each.target: (round(each.evidence.success), round(each.evidence.tool_error), round(each.evidence.unused))
        for each in learner.list_scores()
    }


async def test_calls_are_uses_of_the_last_recommendation() -> None:
    dispatcher, service, learner = start()
    async with serving(answer), dispatcher:
        service.recommend_subgraph([action(1)])
        assert (await dispatcher.execute("joke", ARGUMENTS)).outcome is Outcome.SUCCESS
        assert (await dispatcher.execute("poem", {"topic": "fail"})).outcome is Outcome.TOOL_ERROR
        service.recommend_subgraph([action(2)])
        evidence = {"joke": (1, 0, 0), "poem": (0, 1, 0), "song": (0, 0, 1), "action 2": (1, 0, 0)}
        assert read_evidence(learner) == evidence
        service.recommend_subgraph([action(1)])
        for _ in range(3):
            result = await dispatcher.execute("song", ARGUMENTS)
        assert result.outcome is Outcome.THROTTLED, "the tool was chosen, and did not fail"
        service.recommend_subgraph([action(2)])
        assert read_evidence(learner)["song"] == (1, 0, 1)


async def test_functions_of_recommended_tools_streams_and_child_tasks_are_observed() -> None:
    dispatcher, service, learner = start()
    async with serving(answer), dispatcher:
        tools, _ = service.recommend_tools_actions([action(1)], user="alice")
        await asyncio.gather(*(tool.function(**ARGUMENTS) for tool in tools))
        async for _chunk in dispatcher.stream("joke", ARGUMENTS, user="alice"):
            pass
        assert read_evidence(learner) == {"joke": (2, 0, 0), "poem": (1, 0, 0), "song": (1, 0, 0)}


async def test_concurrent_agents_do_not_mix() -> None:
    dispatcher, service, learner = start()
    both = asyncio.Barrier(2)

    async def work(state: int, tool: str) -> None:
        service.recommend_subgraph([action(state)])
        await both.wait()
        await dispatcher.call(tool, ARGUMENTS)

    async with serving(answer), dispatcher:
        service.add_tool(dispatcher.tool("joke"), [(action(2), 0.6)])
        await asyncio.gather(work(1, "poem"), work(2, "joke"))
        assert {(each.source, each.target) for each in learner.list_scores()} == {
            ("action 1", "poem"),
            ("action 2", "joke"),
        }


async def test_a_call_in_an_unrelated_task_is_assigned_by_its_user() -> None:
    dispatcher, service, learner = start()
    async with serving(answer), dispatcher:
        await asyncio.create_task(_recommend(service, "alice"))
        await asyncio.create_task(dispatcher.execute("joke", ARGUMENTS, user="alice"))
        await asyncio.create_task(dispatcher.execute("poem", ARGUMENTS, user="bob"))
        await asyncio.create_task(dispatcher.execute("poem", ARGUMENTS))
        assert read_evidence(learner) == {"joke": (1, 0, 0)}


async def _recommend(service: ToolkitService, user: str) -> None:
    service.recommend_subgraph([action(1)], user=user)


async def test_a_closed_learner_and_an_abandoned_toolkit_observe_nothing() -> None:
    dispatcher, service, learner = start()
    async with serving(answer), dispatcher:
        service.recommend_subgraph([action(1)])
        learner.close()
        await dispatcher.call("joke", ARGUMENTS)
        assert learner.list_scores() == []
        service.get_toolkit().learn(dispatcher)
        del service, learner
        gc.collect()
        await dispatcher.call("joke", ARGUMENTS)
        assert dispatcher._on_call.current == ()
