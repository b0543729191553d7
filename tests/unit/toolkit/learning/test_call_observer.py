"""A learner that observes the calls of a dispatcher."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from dispatch import Dispatcher, DispatchError, Outcome, ToolError
from dispatch.toolkit import Learner, Toolkit, ToolkitService
from dispatch.transports.memory import MemoryTransport
from tests.helpers.dispatcher_and_service import BROKER, catalog, serving
from tests.unit.toolkit.samples import action

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
        assert read_evidence(learner) == {
            "joke": (1, 0, 0),
            "poem": (0, 1, 0),
            "song": (0, 0, 1),
            "action 2": (1, 0, 0),
        }


async def test_a_rejected_call_is_no_evidence() -> None:
    dispatcher, service, learner = start()
    async with serving(answer), dispatcher:
        service.recommend_subgraph([action(1)])
        for _ in range(3):
            result = await dispatcher.execute("song", ARGUMENTS)
        assert result.outcome is Outcome.THROTTLED
        service.recommend_subgraph([action(2)])
        assert read_evidence(learner)["song"] == (1, 0, 0)


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


async def test_learned_scores_change_what_is_recommended() -> None:
    dispatcher, service, _ = start()
    async with serving(answer), dispatcher:
        for _ in range(40):
            service.recommend_subgraph([action(1)])
            await dispatcher.call("joke", ARGUMENTS)
            with pytest.raises(DispatchError):
                await dispatcher.call("poem", {"topic": "fail"})
        tools, _ = service.recommend_tools_actions([action(1)])
        assert [tool.name for tool in tools] == ["joke"]
