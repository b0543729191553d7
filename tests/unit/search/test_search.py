"""Searches over a catalogue that changes, and every way in which they become lexical."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from dispatch import search as live_index_module
from dispatch.calls.call import FinishedCall
from dispatch.catalog import Catalog, ServiceDescriptor, ToolDescriptor
from dispatch.errors import Outcome
from dispatch.results import CallResult
from dispatch.search import Embedder, ToolSearch
from dispatch.search import index as index_module
from tests.unit.search.embedders import FailingEmbedder, HangingEmbedder, WordEmbedder, fail_to_import, load

pytestmark = pytest.mark.wall_clock  # an embedder runs in a thread

SERVICE = ServiceDescriptor("service", "non-persistent://tg/request/s", "non-persistent://tg/response/s")
TEXTS = {"weather_forecast": "Rain and sun of tomorrow", "pasta_recipes": "How to cook pasta"}
TEXTS["train_times"] = "Departures of a train"
LEXICAL = "common words: cook; searched by words only: "


def make_catalog(**descriptions: str) -> Catalog:
    return Catalog([SERVICE], [ToolDescriptor(name, text, "service") for name, text in descriptions.items()])


@pytest.fixture(autouse=True)
def patience(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine must not make a search lexical, except where the test is about the timeout."""
    if "takes_long" not in request.node.name:
        monkeypatch.setattr(live_index_module, "QUERY_TIMEOUT_S", 20.0)


class Searched:
    """A search over a catalogue that the test replaces."""

    def __init__(self, load_embedder: Callable[[], Embedder] | None, **descriptions: str) -> None:
        self.catalog = make_catalog(**(descriptions or TEXTS))
        self.search = ToolSearch(lambda: self.catalog, load_embedder)

    async def find(self, query: str, limit: int = 5, context: object = None) -> list[tuple[str, str]]:
        found = await self.search.rank(query, self.catalog.tools, limit, context=context)
        return [(each.descriptor.name, each.why) for each in found]

    async def becomes_semantic(self) -> bool:
        for _ in range(500):
            if "similar meaning" in (await self.find("cook"))[0][1]:
                return True
            await asyncio.sleep(0.01)
        return False

    async def find_names(self, query: str, limit: int = 5) -> list[str]:
        return [name for name, _ in await self.find(query, limit)]


async def test_meaning_finds_a_tool_without_a_common_word() -> None:
    searched = Searched(load(WordEmbedder()))
    await searched.search.refresh()
    (found,) = await searched.find("a journey", limit=1)
    assert found == ("train_times", "similar meaning (1.00); common words: a")
    await searched.search.close()


async def test_the_first_search_is_lexical_until_the_tools_are_embedded() -> None:
    searched = Searched(load(WordEmbedder()))
    ((name, why),) = await searched.find("cook")
    assert (name, why) == ("pasta_recipes", f"{LEXICAL}the tools are not embedded yet")
    await searched.search.refresh()
    assert [why for _, why in await searched.find("cook")] == ["similar meaning (0.45); common words: cook"]
    await searched.search.close()


async def test_without_the_extra_a_search_is_lexical(caplog: pytest.LogCaptureFixture) -> None:
    searched = Searched(fail_to_import)
    await searched.search.refresh()
    found = await searched.find("cook", limit=1)
    assert found == [("pasta_recipes", f"{LEXICAL}the extra 'search' is not installed")]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    await searched.search.close()


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(1)])
async def test_an_embedder_that_fails_for_a_query(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    embedder = FailingEmbedder(error)
    embedder.fails = False
    searched = Searched(load(embedder))
    await searched.search.refresh()
    embedder.fails = True
    ((name, why),) = await searched.find("cook")
    assert name == "pasta_recipes"
    assert "searched by words only: the embedder failed with" in why
    embedder.fails = False
    assert "similar meaning" in (await searched.find("cook"))[0][1]
    await searched.search.close()


async def test_an_embedder_that_fails_for_the_tools_is_called_again_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(live_index_module, "RETRY_S", 0.01)
    embedder = FailingEmbedder(OSError("x"))
    searched = Searched(load(embedder))
    await searched.search.refresh()
    assert "the embedder failed with OSError" in (await searched.find("cook"))[0][1]
    assert "the embedder failed" in caplog.text
    embedder.fails = False
    assert await searched.becomes_semantic()
    await searched.search.close()


async def test_an_embedder_that_takes_long_delays_no_search() -> None:
    embedder = HangingEmbedder()
    searched = Searched(load(embedder))
    await searched.search.refresh()
    for _ in range(3):
        started = asyncio.get_running_loop().time()
        ((name, why),) = await searched.find("cook")
        assert name == "pasta_recipes"
        assert why == "common words: cook; searched by words only: the embedder takes more than 50 ms"
        assert asyncio.get_running_loop().time() - started < 5
    assert embedder.waiting == 1
    embedder.released.set()
    assert await searched.becomes_semantic()
    await searched.search.close()


@pytest.mark.parametrize("rows", [[[1.0, 2.0]], [["x"] * 6], [], [[float("nan")] * 6]])
async def test_an_embedder_with_useless_vectors_of_queries(rows: list[list[object]]) -> None:
    class Useless(WordEmbedder):
        def encode_queries(self, texts: Sequence[str]) -> object:
            return rows

    searched = Searched(load(Useless()))
    await searched.search.refresh()
    ((name, why),) = await searched.find("cook")
    assert name == "pasta_recipes"
    assert "searched by words only: the embedder" in why
    await searched.search.close()


async def test_nothing_found_is_the_list_by_use() -> None:
    searched = Searched(load(WordEmbedder()))
    await searched.search.refresh()
    for tool in ("pasta_recipes", "train_times", "pasta_recipes"):
        searched.search.record_call(FinishedCall(tool, "", CallResult(tool, Outcome.SUCCESS, text="")))
    for query in ("", "  ", "?!", "xyzzy"):
        found = await searched.search.rank(query, searched.catalog.tools, 2)
        assert [(each.descriptor.name, each.score) for each in found] == [("pasta_recipes", 0.0), ("train_times", 0.0)]
        assert found[0].why == "no tool matches the query: listed by use (calls: 2)"
    await searched.search.close()


async def test_a_search_follows_the_catalogue_one_tool_at_a_time() -> None:
    embedder = WordEmbedder()
    searched = Searched(load(embedder))
    await searched.search.refresh()
    before = len(embedder.encoded)
    tools = {name: text for name, text in TEXTS.items() if name != "pasta_recipes"}
    searched.catalog = make_catalog(**tools, book_shop="Buy a book")
    assert await searched.find_names("book") == ["book_shop"]
    assert await searched.find_names("cook pasta", limit=1) != ["pasta_recipes"]
    await searched.search.refresh()
    assert [text for text in embedder.encoded[before:] if "Buy" in text] == ["book shop Buy a book"]
    assert not [text for text in embedder.encoded[before:] if "Departures" in text]
    assert "similar meaning" in (await searched.find("book"))[0][1]
    await searched.search.close()


async def test_many_changes_are_indexed_in_the_background() -> None:
    searched = Searched(load(WordEmbedder()))
    await searched.search.refresh()
    many = {f"tool_{number}": f"Number {number}" for number in range(500)}
    searched.catalog = make_catalog(**many)
    assert len(await searched.find("tool_400")) == 5  # the list by use: none of the former tools is a candidate
    await searched.search.refresh()
    assert (await searched.find_names("tool_400"))[0] == "tool_400"
    await searched.search.close()


async def test_catalogues_that_replace_each_other_while_they_are_indexed() -> None:
    searched = Searched(load(WordEmbedder()))
    await searched.search.refresh()
    for generation in range(5):
        searched.catalog = make_catalog(**{f"tool_{number}": f"g{generation}" for number in range(200)})
        await searched.find("g0")
        await asyncio.sleep(0)
    await searched.search.refresh()
    assert len(await searched.find_names("g4", limit=500)) == 200
    assert [why for _, why in await searched.find("g3", limit=1)] == [
        "no tool matches the query: listed by use (calls: 0)"
    ]
    await searched.search.close()


async def test_another_embedder_embeds_all_tools_again_in_the_background() -> None:
    first, second = WordEmbedder("first"), WordEmbedder("second")
    searched = Searched(load(first))
    await searched.search.refresh()
    searched.search.use_embedder(second)
    assert "similar meaning" in (await searched.find("cook"))[0][1]
    assert first.encoded[-1] == "cook"
    await searched.search.refresh()
    assert "similar meaning" in (await searched.find("cook"))[0][1]
    assert second.encoded[-1] == "cook"
    assert len(second.encoded) == len(TEXTS) + 1
    await searched.search.close()


async def test_an_embedder_with_another_id_embeds_all_tools_again() -> None:
    embedder = WordEmbedder("first")
    searched = Searched(load(embedder))
    await searched.search.refresh()
    embedder.id = "second"
    assert "the tools are not embedded yet" in (await searched.find("cook"))[0][1]
    await searched.search.refresh()
    assert "similar meaning" in (await searched.find("cook"))[0][1]
    assert len([text for text in embedder.encoded if "Departures" in text]) == 2
    await searched.search.close()


async def test_an_embedder_of_the_same_id_needs_no_tool_again() -> None:
    searched = Searched(load(WordEmbedder("same")))
    await searched.search.refresh()
    other = WordEmbedder("same")
    searched.search.use_embedder(other)
    await searched.search.refresh()
    assert "similar meaning" in (await searched.find("cook"))[0][1]
    assert other.encoded == ["cook"]
    await searched.search.close()


async def test_without_embedder_terms_decide() -> None:
    searched = Searched(None)
    (found,) = await searched.find("cook")
    assert found == ("pasta_recipes", "common words: cook; searched by words only: no embedder is set")
    searched.search.use_embedder(WordEmbedder())
    await searched.search.refresh()
    assert "similar meaning" in (await searched.find("cook"))[0][1]
    searched.search.use_embedder(None)
    assert "no embedder is set" in (await searched.find("cook"))[0][1]
    await searched.search.close()


async def test_a_context_decides_between_tools_that_fit_alike() -> None:
    searched = Searched(load(WordEmbedder()), book_train="Book now", book_pasta="Book now")
    await searched.search.refresh()
    for context, name in (("a journey", "book_train"), ({"name": "pasta", "description": "recipe"}, "book_pasta")):
        found = await searched.find("book", limit=1, context=context)
        assert found[0][0] == name
    await searched.search.close()


async def test_only_visible_tools_are_found() -> None:
    searched = Searched(load(WordEmbedder()), **{f"cook_{number}": "cook" for number in range(200)})
    await searched.search.refresh()

    async def select_visible(tools: Sequence[ToolDescriptor]) -> Sequence[ToolDescriptor]:
        return [tool for tool in tools if tool.name in ("cook_150", "cook_3")]

    for query in ("cook", "xyzzy"):
        found = await searched.search.rank(query, searched.catalog.tools, 5, select_visible=select_visible)
        assert sorted(each.descriptor.name for each in found) == ["cook_150", "cook_3"]
    await searched.search.close()


async def test_common_words_decide_where_the_rare_ones_are_those_of_hidden_tools(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(index_module, "MAX_POSTINGS", 10)
    texts = {f"read_{number}": "read an order" for number in range(20)}
    searched = Searched(None, list_refunds="refunds of an order", **texts, weather="rain")

    async def hide_refunds(tools: Sequence[ToolDescriptor]) -> Sequence[ToolDescriptor]:
        return [tool for tool in tools if tool.name != "list_refunds"]

    query = "refunds of this order"
    (found,) = await searched.search.rank(query, searched.catalog.tools, 1)
    assert found.descriptor.name == "list_refunds"
    (found,) = await searched.search.rank(query, searched.catalog.tools, 1, select_visible=hide_refunds)
    assert (found.descriptor.name, found.score > 0) == ("read_0", True)
    assert found.why.startswith("common words: order")
    await searched.search.close()


async def test_a_closed_search_answers_with_the_index_as_it_is() -> None:
    searched = Searched(load(WordEmbedder()))
    await searched.search.close()
    assert await searched.find_names("cook") == ["pasta_recipes"]
    await searched.search.close()


async def test_close_during_the_first_search() -> None:
    searched = Searched(load(WordEmbedder()), **{f"tool_{number}": "cook" for number in range(2_000)})
    task = asyncio.ensure_future(searched.find("cook"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await searched.search.close()
    async with asyncio.timeout(5):
        assert len(await task) == 5


class UnfitEmbedder(WordEmbedder):
    """Gives queries vectors of other dimensions than tools."""

    def encode_queries(self, texts: Sequence[str]) -> Any:
        return [[1.0] for _ in texts]


async def test_vectors_that_do_not_fit_are_reported_once_for_each_embedder(caplog: pytest.LogCaptureFixture) -> None:
    searched = Searched(load(UnfitEmbedder()))
    for number in (1, 2):
        await searched.search.refresh()
        for _ in range(5):
            assert "other dimensions" in (await searched.find("cook"))[0][1]
        assert caplog.text.count("queries are searched by their words alone") == number
        searched.search.use_embedder(UnfitEmbedder("another"))
    await searched.search.close()


async def test_an_empty_catalogue_has_no_tools() -> None:
    empty = Catalog.empty()
    search = ToolSearch(lambda: empty, load(WordEmbedder()))
    assert await search.rank("cook", {}) == []
    await search.close()


@pytest.mark.parametrize(
    ("query", "limit", "error"), [("a", 0, ValueError), (None, 5, TypeError), (b"a", 5, TypeError)]
)
async def test_wrong_arguments_are_rejected(query: str, limit: int, error: type[Exception]) -> None:
    search = ToolSearch(Catalog.empty, None)
    with pytest.raises(error):
        await search.rank(query, {}, limit)


async def test_lone_surrogates_and_long_queries_are_searched() -> None:
    searched = Searched(load(WordEmbedder()))
    await searched.search.refresh()
    assert len(await searched.find("\ud800")) == 3
    assert (await searched.find_names("cook " * 100_000))[0] == "pasta_recipes"
    await searched.search.close()
