"""The toolkit service: adds actions, tools and groups, and recommends."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import pytest

from dispatch.toolkit import (
    Action,
    FunctionCallResult,
    FunctionCallStatus,
    Tool,
    Toolkit,
    ToolkitService,
    ToolkitWarning,
    ToolType,
)
from tests.unit.toolkit.samples import Group, action, four_actions, query, tool


def test_two_services_share_nothing() -> None:
    one, two = ToolkitService(), ToolkitService()
    one.add_action(action(1), [], [])
    assert two.get_toolkit().vertices() == []
    assert ToolkitService(one.get_toolkit()).get_action("action 1") == action(1)


def test_adding_an_existing_action_or_tool_adds_no_vertex() -> None:
    service = four_actions()
    service.add_action(action(1), next_actions=[], prev_actions=[])
    service.add_tool(tool(1), [(action(1), 0.3)])
    assert service.get_toolkit().vertices_count() == 8
    assert service.get_toolkit().get_score("action 1", "tool 1") == 0.3


def test_next_and_previous_actions_that_are_unknown_are_ignored() -> None:
    service = ToolkitService()
    service.add_action(action(1), next_actions=[(action(2), 0.5)], prev_actions=[(action(3), 0.5)])
    assert service.get_toolkit().edges() == []
    assert service.get_toolkit().vertices() == ["action 1"]


def test_a_tool_that_no_known_action_calls_is_refused_with_warnings_and_no_print() -> None:
    service = four_actions()
    output = io.StringIO()
    with contextlib.redirect_stdout(output), pytest.warns(ToolkitWarning) as warned:
        service.add_tool(tool(9), [(action(9), 0.5)])
    assert [str(each.message).split(":")[0] for each in warned] == [
        "Action 'Action 9' (action 9) of tool 'tool_9' is ignored",
        "Tool 'tool_9' is not added",
    ]
    assert {each.filename for each in warned} == {__file__}
    assert output.getvalue() == ""
    assert not service.get_toolkit().has_vertex("tool 9")


def test_a_known_tool_is_not_removed_by_adding_it_to_an_unknown_action() -> None:
    service = four_actions()
    with pytest.warns(ToolkitWarning, match="is ignored"):
        service.add_tool(tool(1), [(action(9), 0.5)])
    assert service.get_toolkit().has_vertex("tool 1")


@pytest.mark.parametrize("score", [-1, 2, float("nan")])
def test_a_wrong_score_adds_nothing(score: float) -> None:
    service = four_actions()
    with pytest.raises(ValueError, match=r"not in \[0, 1\]"):
        service.add_tool(tool(9), [(action(1), score)])
    with pytest.raises(ValueError, match=r"not in \[0, 1\]"):
        service.add_action(action(9), [(action(1), score)], [])
    with pytest.raises(ValueError, match=r"not in \[0, 1\]"):
        service.add_tool_group(Group("g", "x"), [(action(1), score)])
    assert service.get_toolkit().vertices_count() == 8


def test_get_action() -> None:
    service = four_actions()
    assert service.get_action("action 2") == action(2)
    with pytest.raises(ValueError, match="Action action 9 not found in the toolkit graph"):
        service.get_action("action 9")


def names_of(service: ToolkitService, group: str) -> list[str]:
    toolkit = service.get_toolkit()
    found = [toolkit.get_tool(id) for id in toolkit.successors(group)]
    return sorted(each.name for each in found if each is not None)


async def test_a_group_is_added_while_an_event_loop_runs() -> None:
    service = four_actions()
    service.add_tool_group(Group("g", "search", "count"), [(action(1), 0.95)])
    toolkit = service.get_toolkit()
    assert names_of(service, "group g") == ["count", "search"]
    assert toolkit.vertices_count() == 8 + 1 + 2
    assert len(toolkit.edges()) == 9 + 2 + 2
    assert all(toolkit.get_score("action 1", id) == 0.95 for id in toolkit.successors("group g"))


@pytest.mark.parametrize("caller", [1, 2])
def test_adding_a_group_again_refreshes_it_whichever_action_calls_it(caller: int) -> None:
    service = four_actions()
    service.add_tool_group(Group("g", "old", "same"), [(action(1), 0.9)])
    toolkit = service.get_toolkit()
    same = next(id for id in toolkit.successors("group g") if toolkit.get_tool(id).name == "same")  # type: ignore[union-attr] # it is a tool
    service.add_tool_group(Group("g", "same", "new"), [(action(caller), 0.7)])
    assert names_of(service, "group g") == ["new", "same"]
    assert toolkit.vertices_count() == 8 + 1 + 2
    assert toolkit.get_score("action 1", same) == (0.7 if caller == 1 else 0.9)
    assert same in toolkit.successors(f"action {caller}")


def test_a_group_without_known_actions_or_tools_is_not_added() -> None:
    service = four_actions()
    with pytest.warns(ToolkitWarning, match="'Action 9'"), pytest.warns(ToolkitWarning, match="Group 'g' is not added"):
        service.add_tool_group(Group("g", "x"), [(action(9), 0.9)])
    with pytest.warns(ToolkitWarning, match="Group 'g' lists no tools"):
        service.add_tool_group(Group("g"), [(action(1), 0.9)])
    assert service.get_toolkit().vertices_count() == 8


def test_a_group_whose_listing_fails_stays_as_it_is() -> None:
    class Broken(Group):
        async def list_tools(self) -> list[Tool]:
            raise ConnectionError("no server")

    service = four_actions()
    service.add_tool_group(Group("g", "x"), [(action(1), 0.9)])
    with pytest.raises(ConnectionError, match="no server"):
        service.add_tool_group(Broken("g"), [(action(1), 0.9)])
    assert names_of(service, "group g") == ["x"]


def test_a_tool_of_two_groups_stays_in_the_other_one() -> None:
    class Shared(Group):
        async def list_tools(self) -> list[Tool]:
            return [Tool(name, "", query, id=name) for name in self.names]

    service = four_actions()
    service.add_tool_group(Shared("g", "a", "b"), [(action(1), 0.9)])
    service.add_tool_group(Shared("h", "a"), [(action(1), 0.9)])
    service.add_tool_group(Shared("g", "b"), [(action(1), 0.9)])
    assert names_of(service, "group h") == ["a"]
    assert names_of(service, "group g") == ["b"]


class Catalogued:
    """As :class:`dispatch.BoundTool`."""

    name, description = "tell-joke", "Tells a joke."

    async def invoke(self, **arguments: Any) -> str:
        return f"joke about {arguments['topic']}"


async def test_a_tool_of_a_dispatcher_is_accepted_and_has_its_name_as_id() -> None:
    service = four_actions()
    service.add_tool(Catalogued(), [(action(1), 0.9)])
    service.add_tool(Catalogued(), [(action(2), 0.9)])
    found = service.get_toolkit().get_tool("tell-joke")
    assert found is not None
    assert (found.name, found.description, found.tool_type) == ("tell-joke", "Tells a joke.", ToolType.DISPATCH_TOOL)
    assert await found.function(topic="cats") == "joke about cats"
    assert service.get_toolkit().predecessors("tell-joke") == ["action 1", "action 2"]
    other = Toolkit()
    other.add_vertex("j", data=Catalogued())
    assert other.get_tool("j").id == "j"  # type: ignore[union-attr] # it is a tool


@pytest.mark.parametrize(
    ("starts", "threshold", "hops", "vertices", "edges"),
    [
        ([1], 0.5, 0, {"action 1", "tool 1"}, 1),
        ([1], 0.5, 1, {"action 1", "action 2", "action 3", "tool 1", "tool 2", "tool 3"}, 6),
        ([1], 0.7, 2, {*(f"action {n}" for n in range(1, 5)), *(f"tool {n}" for n in range(1, 5))}, 8),
        ([1, 3], 0.6, 1, {*(f"action {n}" for n in range(1, 5)), *(f"tool {n}" for n in range(1, 5))}, 9),
        ([1], 0.85, 2, {"action 1", "tool 1"}, 1),
        ([9], 0.5, 2, set(), 0),
        ([4], 0.0, 9, {"action 4", "tool 4"}, 1),
    ],
)
def test_recommend_subgraph(starts: list[int], threshold: float, hops: int, vertices: set[str], edges: int) -> None:
    service = four_actions()
    found = service.recommend_subgraph([action(number) for number in starts], threshold, hops)
    assert set(found.vertices()) == vertices
    assert len(found.edges()) == edges
    assert all(found.get_score(u, v) >= threshold for u, v in found.edges())


def test_the_worked_example() -> None:
    service, one, two, three = ToolkitService(), action(1), action(2), action(3)
    for each in (two, three):
        service.add_action(each, [], [])
    service.add_action(one, [(two, 0.8), (three, 0.5)], [])
    service.add_tool(tool(1), [(one, 0.9)])
    service.add_tool(tool(2), [(two, 0.6)])
    service.add_tool(tool(3), [(two, 0.59)])
    tools, actions = service.recommend_tools_actions([one], threshold=0.6, hops=1)
    assert [each.name for each in actions] == ["Action 1", "Action 2"]
    assert [each.name for each in tools] == ["tool_1", "tool_2"]
    assert all(service.get_toolkit().has_vertex(each.id) for each in [*tools, *actions])


def test_groups_are_never_recommended_but_their_tools_are() -> None:
    service = four_actions()
    service.add_tool_group(Group("g", "search"), [(action(1), 0.9)])
    tools, actions = service.recommend_tools_actions([action(1)])
    assert sorted(each.name for each in tools) == ["search", "tool_1"]
    assert actions == [action(1)]
    assert not service.recommend_subgraph([action(1)]).has_vertex("group g")


def test_a_recommendation_shares_nothing_with_the_toolkit() -> None:
    service = four_actions()
    found = service.recommend_subgraph([action(1)], hops=2)
    found.set_score("action 1", "action 2", 0.0)
    found.remove_vertex("action 1")
    assert service.get_toolkit().get_score("action 1", "action 2") == 0.8
    assert service.get_toolkit().vertices_count() == 8


@pytest.mark.parametrize(("threshold", "hops"), [(float("nan"), 0), (0.5, -1)])
def test_a_recommendation_without_sense_is_refused(threshold: float, hops: int) -> None:
    with pytest.raises(ValueError, match="give hops ≥ 0 and a number"):
        four_actions().recommend_subgraph([action(1)], threshold, hops)


def test_a_cycle_of_actions_ends() -> None:
    service = four_actions()
    service.add_action(action(4), next_actions=[(action(1), 1.0)], prev_actions=[])
    assert service.recommend_subgraph([action(1)], hops=1_000).vertices_count() == 8


def test_the_result_of_an_unreadable_call() -> None:
    result = FunctionCallResult.error("no JSON")
    assert result == FunctionCallResult("", {}, "", "no JSON", FunctionCallStatus.FAILED)
    assert FunctionCallResult("add", {"a": 1}, "sum", "3").status is FunctionCallStatus.SUCCEEDED


def test_an_action_copies_its_tools() -> None:
    original = Action("a", "A", "", ["b"], [tool(1)])
    copied = original.copy()
    copied.next_action_ids.append("c")
    assert (original.next_action_ids, copied.tools[0].id) == (["b"], "tool 1")
