"""A toolkit over the live catalogue of a dispatcher."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest

from dispatch import Dispatcher, Grants, RejectedError
from dispatch.toolkit import Action, Tool, Toolkit, ToolkitService, ToolType
from dispatch.transports.memory import MemoryTransport
from tests.helpers.dispatcher_and_service import BROKER, catalog, serving
from tests.unit.toolkit.samples import action


def start_dispatcher(grants: Any = None, **tools: Any) -> Dispatcher:
    return Dispatcher(MemoryTransport(BROKER), catalog(**(tools or {"joke": {}, "poem": {}})), grants=grants)


async def test_the_tools_of_the_catalogue_are_tools_of_the_graph() -> None:
    async with serving(lambda arguments: f"about {arguments['topic']}"), start_dispatcher() as dispatcher:
        toolkit = Toolkit.of(dispatcher)
        assert sorted(toolkit.vertices()) == ["joke", "poem"]
        service = ToolkitService(toolkit)
        service.add_action(action(1), [], [])
        service.add_tool(dispatcher.tool("joke"), [(action(1), 0.9)])
        service.add_tool(dispatcher.tool("poem"), [(action(1), 0.2)])
        (joke,), _ = service.recommend_tools_actions([action(1)])
        assert (joke.name, joke.description, joke.tool_type) == ("joke", "Does joke.", ToolType.DISPATCH_TOOL)
        assert await joke.function(topic="cats") == "about cats"


async def test_the_toolkit_follows_changes_and_keeps_edges_of_a_tool_that_comes_back() -> None:
    async with start_dispatcher() as dispatcher:
        toolkit = Toolkit.of(dispatcher)
        service = ToolkitService(toolkit)
        service.add_action(action(1), [], [])
        service.add_tool(dispatcher.tool("joke"), [(action(1), 0.7)])
        await dispatcher.reload(catalog(poem={"description": "Writes verses."}, song={}))
        assert sorted(toolkit.vertices()) == ["action 1", "poem", "song"]
        poem = toolkit.get_tool("poem")
        assert poem is not None
        assert poem.description == "Writes verses."
        await dispatcher.reload(catalog(joke={}))
        assert sorted(toolkit.vertices()) == ["action 1", "joke"]
        assert toolkit.get_score("action 1", "joke") == 0.7
        assert toolkit.edges() == [("action 1", "joke")]


async def test_a_tool_of_the_catalogue_remains_when_its_only_action_is_removed() -> None:
    async with start_dispatcher() as dispatcher:
        service = ToolkitService(Toolkit.of(dispatcher))
        service.add_action(action(1), [], [])
        service.add_tool(dispatcher.tool("joke"), [(action(1), 0.7)])
        service.remove_action("action 1")
        assert sorted(service.get_toolkit().vertices()) == ["joke", "poem"]


async def test_a_recommendation_has_only_tools_that_the_user_may_call() -> None:
    grants = Grants.of({"users": {"alice": ["tools:*"]}})
    tools = {"joke": {"permissions": ["tools:joke"]}, "poem": {}}
    async with serving(lambda _arguments: "ha"), start_dispatcher(grants, **tools) as dispatcher:
        service = ToolkitService(Toolkit.of(dispatcher))
        service.add_action(action(1), [], [])
        for name in tools:
            service.add_tool(dispatcher.tool(name, user="alice"), [(action(1), 1.0)])

        def names_for(user: str) -> list[str]:
            found, _ = service.recommend_tools_actions([action(1)], user=user)
            return sorted(each.name for each in found)

        assert names_for("alice") == ["joke", "poem"]
        assert names_for("bob") == names_for("") == ["poem"]
        found, _ = service.recommend_tools_actions([action(1)], user="alice")
        joke = next(each for each in found if each.name == "joke")
        assert await joke.function() == "ha"  # called as alice
        bare = service.get_toolkit().get_tool("joke")
        assert bare is not None
        with pytest.raises(RejectedError, match="permission"):
            await bare.function()


async def test_permissions_that_are_not_cached_are_an_error_and_not_a_shorter_list() -> None:
    async def ask(user: str) -> list[str]:
        return ["tools:joke"] if user == "alice" else []

    async with start_dispatcher(ask, joke={"permissions": ["tools:joke"]}) as dispatcher:
        service = ToolkitService(Toolkit.of(dispatcher))
        service.add_action(action(1), [], [])
        toolkit = service.get_toolkit()
        toolkit.add_edge("action 1", "joke")
        with pytest.raises(RejectedError) as caught:
            service.recommend_tools_actions([action(1)], user="alice")
        assert caught.value.type == "permissions-unavailable"
        await dispatcher.tools(user="alice")
        tools, _ = service.recommend_tools_actions([action(1)], user="alice")
        assert [each.name for each in tools] == ["joke"]


async def test_a_file_names_tools_of_the_catalogue(tmp_path: Path) -> None:
    async with serving(lambda _arguments: "ha"), start_dispatcher() as dispatcher:
        service = ToolkitService(Toolkit.of(dispatcher))
        service.add_action(action(1), [], [])
        service.add_tool(dispatcher.tool("joke"), [(action(1), 0.4)])
        service.get_toolkit().save(tmp_path / "t.yml")
        loaded = Toolkit.load(tmp_path / "t.yml")
        joke = loaded.get_tool("joke")
        assert joke is not None
        with pytest.raises(RuntimeError, match="does not follow a dispatcher"):
            joke.function()
        await dispatcher.reload(catalog(joke={}))
        loaded.follow(dispatcher)
        assert loaded.get_tool("poem") is None  # in the file, and no longer in the catalogue
        assert loaded.get_score("action 1", "joke") == 0.4
        joke = loaded.get_tool("joke")
        assert joke is not None
        assert await joke.function() == "ha"


async def test_a_toolkit_is_freed_and_its_listener_removed() -> None:
    async with start_dispatcher() as dispatcher:
        listeners = len(dispatcher._events)
        reference = weakref.ref(Toolkit.of(dispatcher))
        gc.collect()
        assert reference() is None
        await dispatcher.reload(catalog(song={}))
        assert len(dispatcher._events) == listeners


async def test_another_dispatcher_replaces_the_first_one() -> None:
    async with start_dispatcher() as one, start_dispatcher(song={}) as two:
        toolkit = Toolkit.of(one).follow(two)
        assert toolkit.vertices() == ["song"]
        await one.reload(catalog(opera={}))
        assert toolkit.vertices() == ["song"]


async def test_a_vertex_of_another_kind_with_the_name_of_a_tool_stays(caplog: pytest.LogCaptureFixture) -> None:
    toolkit = Toolkit()
    toolkit.add_vertex("joke", data=Action("joke", "Joke", ""))
    toolkit.add_vertex("other", data=Tool("other", "", print, id="other"))
    async with start_dispatcher() as dispatcher:
        toolkit.follow(dispatcher)
    assert toolkit.get_action("joke") is not None
    assert sorted(toolkit.vertices()) == ["joke", "other", "poem"]
    assert "tool 'joke' of the catalogue is not in the toolkit" in caplog.text
