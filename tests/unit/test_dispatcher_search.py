"""Searches of a dispatcher: what the user may call, in the catalogue in force."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dispatch import Dispatcher, Found, Grants, RejectedError, search
from dispatch.transports.memory import MemoryTransport
from tests.helpers.dispatcher_and_service import BROKER, catalog, serving
from tests.unit.search.embedders import WordEmbedder

pytestmark = pytest.mark.wall_clock  # an embedder runs in a thread

GRANTS = Grants.of({"users": {"alice": ["tools:*"]}})
TOOLS: dict[str, dict[str, Any]] = {
    "pasta": {"description": "How to cook", "permissions": ["tools:pasta"], "category": "food", "tags": ["home"]},
    "soup": {"description": "How to cook soup", "category": "food"},
    "trains": {"description": "Departures of a train", "tags": ["travel", "home"]},
}


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine must not make a search lexical."""
    monkeypatch.setattr(search, "QUERY_TIMEOUT_S", 20.0)


@contextlib.asynccontextmanager
async def searching(**tools: dict[str, Any]) -> AsyncIterator[Dispatcher]:
    async with Dispatcher(MemoryTransport(BROKER), catalog(**(tools or TOOLS)), grants=GRANTS) as dispatcher:
        dispatcher.search.use_embedder(WordEmbedder())
        await dispatcher.search.refresh()
        yield dispatcher


def names(found: list[Found]) -> list[str]:
    return [each.name for each in found]


async def test_a_user_finds_what_the_user_may_call() -> None:
    async with searching() as dispatcher:
        assert sorted(names(await dispatcher.find("recipe", user="alice"))) == ["pasta", "soup"]
        assert names(await dispatcher.find("recipe", user="bob")) == ["soup"]
        assert names(await dispatcher.find("recipe")) == ["soup"]


async def test_what_is_found_can_be_called() -> None:
    async with serving(lambda _: "done"), searching() as dispatcher:
        (found,) = await dispatcher.find("recipe", limit=1, user="alice", category="food", tags_any=["home"])
        assert (found.name, found.tool.name, found.tool.user) == ("pasta", "pasta", "alice")
        assert 0 < found.score <= 1
        assert "similar meaning" in found.why
        assert await found.tool.invoke() == "done"


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"category": "food"}, ["soup"]),
        ({"tags_any": "travel"}, ["trains"]),
        ({"tags_any": ["home"], "category": "food"}, []),
        ({"category": "none"}, []),
    ],
)
async def test_filters_restrict_a_search(filters: dict[str, Any], expected: list[str]) -> None:
    async with searching() as dispatcher:
        assert names(await dispatcher.find("recipe", **filters)) == expected


async def test_tools_with_a_query() -> None:
    async with searching() as dispatcher:
        tools = await dispatcher.tools(find="recipe", user="alice")
        assert sorted((tool.name, tool.user) for tool in tools) == [("pasta", "alice"), ("soup", "alice")]
        found = [tool.name for tool in await dispatcher.tools(find="recipe", user="alice", tags_any=["home"])]
        assert found == ["pasta"]
        assert [tool.name for tool in await dispatcher.tools(find="recipe", category="food")] == ["soup"]


async def test_a_search_follows_the_catalogue() -> None:
    async with searching() as dispatcher:
        await dispatcher.reload(catalog(books={"description": "Buy a book"}, trains=TOOLS["trains"]))
        assert names(await dispatcher.find("book", limit=1)) == ["books"]
        await dispatcher.search.refresh()
        assert names(await dispatcher.find("journey")) == ["trains"]


async def test_a_change_of_the_catalogue_is_embedded_without_a_search() -> None:
    embedder = WordEmbedder()
    async with searching() as dispatcher:
        dispatcher.search.use_embedder(embedder)
        await dispatcher.search.refresh()
        embedder.encoded.clear()
        await dispatcher.reload(catalog(**TOOLS, books={"description": "Buy a book"}))
        for _ in range(500):
            if embedder.encoded:
                break
            await asyncio.sleep(0.01)
        assert embedder.encoded == ["books Buy a book"]


async def test_what_is_no_embedder_is_refused_at_once() -> None:
    class Late:
        id = "late"

        async def encode(self, texts: list[str]) -> list[list[float]]:
            return [[1.0] for _ in texts]

    async with searching() as dispatcher:
        for wrong in ("all-MiniLM-L6-v2", object(), Late()):
            with pytest.raises(TypeError, match="embedder must be"):
                dispatcher.search.use_embedder(wrong)  # type: ignore[arg-type]
        assert "similar meaning" in (await dispatcher.find("recipe"))[0].why


async def test_calls_order_the_tools_that_no_query_matches() -> None:
    async with serving(lambda _: "done"), searching() as dispatcher:
        await dispatcher.call("trains")
        found = await dispatcher.find("xyzzy", user="alice")
        assert names(found) == ["trains", "pasta", "soup"]
        assert found[0].why == "no tool matches the query: listed by use (calls: 1)"
        assert names(await dispatcher.find("xyzzy", limit=2)) == ["trains", "soup"]


async def test_unknown_permissions_are_reported() -> None:
    def fail(user: str) -> list[str]:
        raise OSError("no directory")

    async with Dispatcher(MemoryTransport(BROKER), catalog(**TOOLS), grants=fail) as dispatcher:
        with pytest.raises(RejectedError, match="permissions"):
            await dispatcher.find("cook", user="alice")


async def test_a_search_before_the_start_and_after_the_end() -> None:
    dispatcher = Dispatcher(MemoryTransport(BROKER), catalog(**TOOLS))
    assert names(await dispatcher.find("train")) == ["trains"]
    async with dispatcher:
        assert names(await dispatcher.find("train")) == ["trains"]
    assert names(await dispatcher.find("train")) == ["trains"]


@pytest.mark.parametrize("limit", [0, -1])
async def test_a_limit_below_one_is_rejected(limit: int) -> None:
    async with searching() as dispatcher:
        with pytest.raises(ValueError, match="limit"):
            await dispatcher.find("cook", limit)
