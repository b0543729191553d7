"""Tool search over a live catalogue, as ``dispatcher.search``."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from dispatch._internal.clock import yield_to_others
from dispatch.calls.finished_call import FinishedCall
from dispatch.catalog import Catalog, ToolDescriptor
from dispatch.search.embedder import Embedder
from dispatch.search.live_index import LiveIndex, VectorUnavailableError
from dispatch.search.tool_index import Match
from dispatch.search.tool_text import MAX_CHARS, describe_context, weigh_query
from dispatch.search.use_counter import UseCounter

if TYPE_CHECKING:
    import dispatch.dispatcher.tool

logger = logging.getLogger("dispatch.search")

DEFAULT_LIMIT: Final = 5
"""Tools that a search returns: as many as models choose from reliably, and recall@5 is what the benchmark measures."""

SHOWN_TERMS: Final = 3
"""Common terms that ``why`` names."""

VISIBILITY_BATCH: Final = 50
"""Tools whose permissions are checked at once."""

SelectVisible = Callable[[Sequence[ToolDescriptor]], Awaitable[Sequence[ToolDescriptor]]]


class Found(NamedTuple):
    """A tool that a search has found.

    Attributes:
        name: of the tool.
        score: in [0, 1], comparable within one search; 0: the tool does not match.
        why: what matches, and why the search was only lexical or found nothing.
        tool: handle on the tool, for the user of the search.
    """

    name: str
    score: float
    why: str
    tool: dispatch.dispatcher.tool.Tool  # the whole name: the documentation has another Tool


class RankedTool(NamedTuple):
    """The descriptor of a tool that was found; ``score`` and ``why`` as of :class:`Found`."""

    descriptor: ToolDescriptor
    score: float
    why: str


def load_default_embedder() -> Embedder:
    """Load WordLlama. Raises ImportError without the extra ``search``."""
    from dispatch.search.wordllama_embedder import WordLlamaEmbedder

    return WordLlamaEmbedder()


async def see_all(tools: Sequence[ToolDescriptor]) -> Sequence[ToolDescriptor]:
    """Let the user see all tools."""
    return tools


class ToolSearch:
    """Finds tools of a catalogue by what they do. The first search builds the index; it follows the catalogue from then on.

    Args:
        catalog: returns the catalogue in force.
        load_embedder: loads the embedder when the first search needs it, in a thread. None: lexical search only.
    """

    def __init__(
        self, catalog: Callable[[], Catalog], load_embedder: Callable[[], Embedder] | None = load_default_embedder
    ) -> None:
        self._live = LiveIndex(catalog, load_embedder)
        self._uses = UseCounter()

    def use_embedder(self, embedder: Embedder | None) -> None:
        """Search with another embedder; None: by terms only. All tools are embedded again in the background; until then
        searches use the former embedder. Call it on the event loop."""
        self._live.use_embedder(None if embedder is None else lambda: embedder)

    def request_update(self) -> None:
        """Bring the index to the catalogue in force, in the background."""
        self._live.request_update()

    async def refresh(self) -> None:
        """Wait until all tools of the catalogue are indexed, and embedded unless the embedder fails. A process that calls it
        at its start has no lexical searches in its first second."""
        await self._live.wait_until_current()

    async def close(self) -> None:
        """End the background task. Idempotent."""
        await self._live.close()

    def record_call(self, call: FinishedCall) -> None:
        """Count a call: tools that no query matches are ordered by use."""
        self._uses.record_call(call.tool)

    async def rank(
        self,
        query: str,
        tools: Mapping[str, ToolDescriptor],
        limit: int = DEFAULT_LIMIT,
        *,
        context: object = None,
        select_visible: SelectVisible = see_all,
    ) -> list[RankedTool]:
        """Return the tools that fit a query best. If none matches: the most used ones, with score 0.

        Args:
            query: what a tool should do, in words.
            tools: by name, to choose from.
            limit: of the result, 1 or more.
            context: a text, or an action with ``name`` and ``description``: decides between tools that fit alike.
            select_visible: returns those of some tools that the user may call.

        Raises:
            TypeError: ``query`` is no text.
            ValueError: ``limit`` is below 1.
        """
        await yield_to_others()
        if not isinstance(query, str):
            raise TypeError(f"the query must be a text, not {type(query).__name__}")
        if limit < 1:
            raise ValueError(f"limit must be at least 1, not {limit}")
        query, shown_context = query[:MAX_CHARS], describe_context(context)[:MAX_CHARS]
        await self._live.prepare()
        terms = weigh_query(query, shown_context)
        matches, problem = await self._match(query, shown_context, terms)
        found: list[RankedTool] = []
        candidates = (match for match in matches if match.name in tools)
        while len(found) < limit and (batch := list(islice(candidates, VISIBILITY_BATCH))):
            visible = {tool.name for tool in await select_visible([tools[match.name] for match in batch])}
            for match in [match for match in batch if match.name in visible][: limit - len(found)]:
                found.append(RankedTool(tools[match.name], match.score, self._explain(match, terms, problem)))
        return found or await self._list_by_use(tools, limit, select_visible, problem)

    async def _match(self, query: str, context: str, terms: Mapping[str, float]) -> tuple[Iterator[Match], str]:
        """The matches, best first, and why they are only lexical; empty: they are not."""
        index = self._live.index
        if not terms:
            return iter(()), ""
        try:
            vector, vectors = await self._live.embed_query(query, context)
            return index.rank(terms, vector, vectors), ""
        except VectorUnavailableError as reason:
            return index.rank(terms), str(reason)
        except ValueError as error:
            logger.warning("a query was searched by its words alone: %s", error)
            return index.rank(terms), "the embedder gave a vector of other dimensions"

    def _explain(self, match: Match, terms: Mapping[str, float], problem: str) -> str:
        common = self._live.index.find_common_terms(match.name, terms)[:SHOWN_TERMS]
        parts = [] if match.similarity is None else [f"similar meaning ({match.similarity:.2f})"]
        parts += [f"common words: {', '.join(common)}"] if common else []
        return "; ".join([*parts, f"searched by words only: {problem}"] if problem else parts)

    async def _list_by_use(
        self, tools: Mapping[str, ToolDescriptor], limit: int, select_visible: SelectVisible, problem: str
    ) -> list[RankedTool]:
        count = self._uses.count_calls
        ordered = iter(sorted(tools.values(), key=lambda tool: -count(tool.name)))
        visible: list[ToolDescriptor] = []
        while len(visible) < limit and (batch := list(islice(ordered, VISIBILITY_BATCH))):
            visible += await select_visible(batch)
        why = "no tool matches the query: listed by use"
        why += f"; searched by words only: {problem}" if problem else ""
        return [RankedTool(tool, 0.0, f"{why} (calls: {count(tool.name)})") for tool in visible[:limit]]
