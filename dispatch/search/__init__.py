"""Tool search: find the few tools of a large catalogue that answer a query.

Here are the index of the catalogue in force, updated one tool at a time, its queries, and the embedder's thread.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar, runtime_checkable

from dispatch._internal import (
    ErrorBoundary,
    cancel_and_wait,
    check_function,
    check_instance,
    scalar_text,
    type_name,
    unwrap,
    yield_to_others,
)
from dispatch.calls.call import FinishedCall
from dispatch.catalog import Catalog, ToolDescriptor
from dispatch.search.index import (
    CONTEXT_WEIGHT,
    MAX_CHARS,
    Match,
    ToolIndex,
    describe_context,
    describe_tool,
    weigh_query,
    weigh_terms,
)
from dispatch.serving.tool_service import ToolExecutor
from dispatch.telemetry.events import format_traceback

if TYPE_CHECKING:
    from dispatch.search.vector_index import VectorIndex

__all__ = ["Embedder", "QueryEmbedder", "ToolSearch"]

logger = logging.getLogger("dispatch.search")

BATCH: Final = 20
"""Tools whose terms are indexed in one turn of the event loop: about 2 ms. As many may change before a search waits for
nothing: a search applies so few changes itself."""

EMBEDDED_BATCH: Final = 32
"""Tools that are embedded in one call of the embedder; between two calls queries have their turn."""

QUERY_TIMEOUT_S: Final = 0.05
"""Seconds that a search waits for the vector of its query; then it is lexical."""

EMBEDDING_TURN_S: Final = 0.005
"""Seconds that a search leaves the processor to the thread that embeds the first tools: as long as the interpreter lets a
thread run that others wait for (``sys.getswitchinterval``). In a loop of searches it would get none for most of the time."""

RETRY_S: Final = 10.0
"""Seconds after a failure of the embedder until a search has it called again for the tools."""

EXTRA_MISSING: Final = "the extra 'search' is not installed"
NOT_READY: Final = "the tools are not embedded yet"
TOO_SLOW: Final = f"the embedder takes more than {QUERY_TIMEOUT_S * 1000:.0f} ms"


class VectorUnavailableError(Exception):
    """The vector of a query is not available; the text says why."""


@dataclass(slots=True)
class _Embedded:
    """The vectors of one embedder, and the tools that have one."""

    thread: EmbedderThread
    vectors: VectorIndex
    tools: dict[str, ToolDescriptor] = field(default_factory=dict)


def _describe_failure(error: Exception) -> str:
    return f"the embedder failed with {type_name(unwrap(error))}"


def _load(load_embedder: Callable[[], Embedder]) -> Embedder:
    import dispatch.search.vector_index  # noqa: F401 - numpy takes 100 ms to import: not on the event loop

    return load_embedder()


# How often each tool was called: the order of tools where a query matches none.


MAX_TOOLS: Final = 10_000
"""Tools that are counted; beyond that the half with the fewest calls is dropped, so that names that come and go use bounded
memory."""


class UseCounter(Counter[str]):
    """Calls by tool."""

    def record_call(self, tool: str) -> None:
        """Count a call of ``tool``."""
        if tool not in self and len(self) >= MAX_TOOLS:
            most_used = self.most_common(MAX_TOOLS // 2)
            self.clear()
            self.update(dict(most_used))
        self[tool] += 1


# Tool search over a live catalogue, as ``dispatcher.search``.


DEFAULT_LIMIT: Final = 5
"""Tools that a search returns: as many as models choose from reliably, and recall@5 is what the benchmark measures."""

SHOWN_TERMS: Final = 3
"""Common terms that ``why`` names."""

VISIBILITY_BATCH: Final = 50
"""Tools whose permissions are checked at once."""

SelectVisible = Callable[[Sequence[ToolDescriptor]], Awaitable[Sequence[ToolDescriptor]]]


class RankedTool(NamedTuple):
    """A tool that a search has found; ``score`` and ``why`` as of :class:`dispatch.Found`."""

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
        self._catalog = catalog
        self._thread = None if load_embedder is None else EmbedderThread(load_embedder)
        """Of the embedder; None: lexical search only."""
        self._index = ToolIndex()
        self._uses = UseCounter()
        self._unfit: VectorIndex | None = None
        """Vectors with other dimensions than a query's, which were reported."""
        self._indexed: dict[str, ToolDescriptor] = {}
        self._target: Catalog | None = None
        """The catalogue that the terms are brought to."""
        self._is_indexed = asyncio.Event()
        """The terms of a whole catalogue are in the index."""
        self._active: _Embedded | None = None
        self._staged: _Embedded | None = None
        """Becomes active when all tools are embedded."""
        self._problem = NOT_READY
        self._retry_at = 0.0
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    def use_embedder(self, embedder: Embedder | None) -> None:
        """Search with another embedder; None: by terms only. All tools are embedded again in the background; until then
        searches use the former embedder. Call it on the event loop.

        Raises:
            TypeError: it is no embedder, or a coroutine function encodes.
        """
        if embedder is not None:
            check_instance("embedder", embedder, Embedder, "an object with id and encode(texts)")
            check_function("encode of the embedder", embedder.encode, "write 'def encode'; it runs in a thread")
        self._thread = None if embedder is None else EmbedderThread(lambda: embedder)
        self._retry_at = 0.0
        if embedder is None:
            self._drop(self._active)
            self._active = None
        self._problem = NOT_READY
        if self._is_indexed.is_set():
            self.request_update()

    def request_update(self) -> None:
        """Bring the index to the catalogue in force, in the background."""
        if not self._is_closed and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._update(), name="dispatch-search")

    async def refresh(self) -> None:
        """Wait until all tools of the catalogue are indexed, and embedded unless the embedder fails. A process that calls it
        at its start has no lexical searches in its first second."""
        self.request_update()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def close(self) -> None:
        """End the background task. Searches go on with the index as it is. Idempotent."""
        self._is_closed = True
        await cancel_and_wait([self._task])
        self._is_indexed.set()  # a task that was cancelled before its first step has not done it

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
            TypeError: ``query`` is no text, or ``limit`` no whole number.
            ValueError: ``limit`` is below 1.
        """
        await yield_to_others()
        if not isinstance(query, str):
            raise TypeError(f"the query must be a text, not {type(query).__name__}")
        check_instance("limit", limit, int, "a whole number")
        if limit < 1:
            raise ValueError(f"limit must be at least 1, not {limit}")
        query, shown_context = query[:MAX_CHARS], describe_context(context)[:MAX_CHARS]
        await self._prepare()
        terms = weigh_query(query, shown_context)
        matches, problem = await self._match(query, shown_context, terms)

        async def select(matches: Iterator[Match]) -> list[RankedTool]:
            found: list[RankedTool] = []
            candidates = (match for match in matches if match.name in tools)
            while len(found) < limit and (batch := list(islice(candidates, VISIBILITY_BATCH))):
                visible = {tool.name for tool in await select_visible([tools[match.name] for match in batch])}
                for match in [match for match in batch if match.name in visible][: limit - len(found)]:
                    found.append(RankedTool(tools[match.name], match.score, self._explain(match, terms, problem)))
            return found

        found, counted = await select(matches), terms
        # The rare words may be those of tools that the user may not call: then the common ones decide.
        while not found and (counted := self._index.drop_counted(counted)):
            found = await select(self._index.rank(counted))
        return found or await self._list_by_use(tools, limit, select_visible, problem)

    async def _match(self, query: str, context: str, terms: Mapping[str, float]) -> tuple[Iterator[Match], str]:
        """The matches, best first, and why they are only lexical; empty: they are not."""
        if not terms:
            return iter(()), ""
        try:
            vector, vectors = await self._embed_query(query, context)
            return self._index.rank(terms, vector, vectors), ""
        except VectorUnavailableError as reason:
            return self._index.rank(terms), str(reason)
        except ValueError as error:
            if vectors is not self._unfit:
                self._unfit = vectors
                logger.warning("queries are searched by their words alone: %s", error)
            return self._index.rank(terms), "the embedder gave a vector of other dimensions"

    def _explain(self, match: Match, terms: Mapping[str, float], problem: str) -> str:
        common = self._index.find_common_terms(match.name, terms)[:SHOWN_TERMS]
        parts = [] if match.similarity is None else [f"similar meaning ({match.similarity:.2f})"]
        parts += [f"common words: {', '.join(common)}"] if common else []
        return "; ".join([*parts, f"searched by words only: {problem}"] if problem else parts)

    async def _list_by_use(
        self, tools: Mapping[str, ToolDescriptor], limit: int, select_visible: SelectVisible, problem: str
    ) -> list[RankedTool]:
        uses = self._uses
        ordered = iter(sorted(tools.values(), key=lambda tool: -uses[tool.name]))
        visible: list[ToolDescriptor] = []
        while len(visible) < limit and (batch := list(islice(ordered, VISIBILITY_BATCH))):
            visible += await select_visible(batch)
        why = "no tool matches the query: listed by use"
        why += f"; searched by words only: {problem}" if problem else ""
        return [RankedTool(tool, 0.0, f"{why} (calls: {uses[tool.name]})") for tool in visible[:limit]]

    async def _prepare(self) -> None:
        """Bring the index to the catalogue in force before a search: few changes at once, many in the background. Waits only
        for the terms of the first catalogue."""
        catalog = self._catalog()
        if not self._is_indexed.is_set() and not self._is_closed:
            self.request_update()
            await self._is_indexed.wait()
        elif self._target is not catalog:
            if len(list(self._find_changes(catalog))) <= BATCH:
                for _ in self._index_terms(catalog):
                    pass
            self.request_update()

    async def _embed_query(self, query: str, context: str) -> tuple[Any, VectorIndex]:
        """Return the vector of a query, and the vectors that it is comparable with.

        Raises:
            VectorUnavailableError: there is none; the text says why.
        """
        active = self._active
        if self._thread is None:
            raise VectorUnavailableError("no embedder is set")
        is_due = self._retry_at <= asyncio.get_running_loop().time()
        if active is None or (is_due and self._retry_at > 0):
            self.request_update()
        if active is None:
            if is_due:
                await asyncio.sleep(EMBEDDING_TURN_S)
            raise VectorUnavailableError(self._problem)
        texts = [query, context] if context else [query]
        try:
            async with asyncio.timeout(QUERY_TIMEOUT_S):
                with ErrorBoundary():
                    if active.thread.id != active.vectors.embedder_id:
                        self.request_update()
                        raise VectorUnavailableError(NOT_READY)
                    rows = await active.thread.encode_queries(texts)
                    return active.vectors.mix_rows(rows, (1.0, CONTEXT_WEIGHT)), active.vectors
        except VectorUnavailableError:
            raise
        except TimeoutError:
            raise VectorUnavailableError(TOO_SLOW) from None
        except Exception as error:  # of an embedder, which may be any program
            raise VectorUnavailableError(_describe_failure(error)) from error

    # -- updates ------------------------------------------------------------------------------------------------

    async def _update(self) -> None:
        try:
            catalog = thread = None
            while catalog is not self._catalog() or thread is not self._thread:
                catalog, thread = self._catalog(), self._thread
                if self._target is not catalog:
                    for _ in self._index_terms(catalog):
                        await asyncio.sleep(0)
                if self._target is catalog:
                    self._is_indexed.set()
                    await self._embed_tools()
        except Exception:
            self._target = None  # the next update begins again
            logger.exception("the index of tools could not be updated")
        finally:
            self._is_indexed.set()  # searches do not wait for an index that fails

    def _find_changes(self, catalog: Catalog) -> Iterator[tuple[str, ToolDescriptor | None]]:
        """Each tool that differs from the index, with None for a removed one."""
        tools, indexed = catalog.tools, self._indexed
        common = 0
        for name, tool in tools.items():
            known = indexed.get(name)
            common += known is not None
            if known is not tool and known != tool:
                yield name, tool
        if common < len(indexed):
            yield from ((name, None) for name in indexed if name not in tools)

    def _index_terms(self, catalog: Catalog) -> Iterator[None]:
        """Bring the terms to ``catalog``, in steps; ends early if another catalogue became the target meanwhile."""
        self._target = catalog
        for number, (name, tool) in enumerate(list(self._find_changes(catalog)), start=1):
            if tool is None:
                del self._indexed[name]
                self._index.remove(name)
                for each in (self._active, self._staged):
                    if each is not None:
                        each.tools.pop(name, None)
            else:
                self._indexed[name] = tool
                self._index.add(name, weigh_terms(tool))
            if number % BATCH == 0:
                yield
                if self._target is not catalog:
                    return

    async def _embed_tools(self) -> None:
        thread = self._thread
        if thread is None or asyncio.get_running_loop().time() < self._retry_at:
            return
        try:
            with ErrorBoundary():
                await thread.load()
                if thread is not self._thread:  # the embedder was replaced meanwhile
                    return
                embedded = self._select_vectors(thread)
                await self._embed_pending(embedded)
        except ImportError:
            self._report_problem(EXTRA_MISSING, retry_s=float("inf"))
            logger.info("tools are searched by their words alone, since %s", EXTRA_MISSING)
        except Exception as error:  # of an embedder, which may be any program
            self._report_problem(_describe_failure(error), retry_s=RETRY_S)
            traceback = scalar_text(format_traceback(unwrap(error), content=True))
            logger.warning("tools are searched by their words alone: the embedder failed\n%s", traceback)
        else:
            self._retry_at = 0.0
            if self._thread is embedded.thread and embedded is self._staged:
                self._drop(self._active)
                self._active, self._staged = embedded, None

    def _report_problem(self, problem: str, *, retry_s: float) -> None:
        self._problem, self._retry_at = problem, asyncio.get_running_loop().time() + retry_s
        self._drop(self._staged)
        self._staged = None

    def _select_vectors(self, thread: EmbedderThread) -> _Embedded:
        """The vectors of the embedder: those in use, those that are being made, or new ones."""
        from dispatch.search.vector_index import VectorIndex  # needs numpy

        for each in (self._active, self._staged):
            if each is not None and each.vectors.embedder_id == thread.id:
                each.thread = thread
                return each
        self._drop(self._staged)
        self._staged = _Embedded(thread, VectorIndex(thread.id))
        self._index.vectors.append(self._staged.vectors)
        return self._staged

    async def _embed_pending(self, embedded: _Embedded) -> None:
        pending = [name for name, tool in self._indexed.items() if embedded.tools.get(name) is not tool]
        for start in range(0, len(pending), EMBEDDED_BATCH):
            batch = {
                name: self._indexed[name] for name in pending[start : start + EMBEDDED_BATCH] if name in self._indexed
            }
            rows = await embedded.thread.encode([describe_tool(tool) for tool in batch.values()])
            if self._thread is not embedded.thread:  # the embedder was replaced meanwhile
                return
            for (name, tool), row in zip(batch.items(), rows, strict=True):
                if self._indexed.get(name) is tool:
                    self._index.set_vector(name, row, embedded.vectors)
                    embedded.tools[name] = tool

    def _drop(self, embedded: _Embedded | None) -> None:
        if embedded is not None:
            self._index.vectors.remove(embedded.vectors)


# An embedder, and the thread that runs it beside the event loop.


@runtime_checkable
class Embedder(Protocol):
    """A model that gives texts vectors, near each other where the texts mean the same.

    Its methods run in one thread of the search, never on the event loop.
    """

    @property
    def id(self) -> str:
        """Identity of the model: vectors of the same id are comparable. Another id rebuilds the index."""

    def encode(self, texts: Sequence[str]) -> Any:
        """Return an array of shape (number of texts, dimensions): a row for each text, of any length but 0."""


@runtime_checkable
class QueryEmbedder(Embedder, Protocol):
    """An embedder that gives queries other vectors than the texts of tools."""

    def encode_queries(self, texts: Sequence[str]) -> Any:
        """Return the array of :meth:`Embedder.encode` for queries."""


T = TypeVar("T")


class EmbedderThread:
    """A daemon thread that loads an embedder and calls its methods, one at a time: an embedder that never returns blocks
    neither the event loop nor the exit of the process. The thread ends with this object.

    Args:
        load_embedder: called by :meth:`load`.
    """

    def __init__(self, load_embedder: Callable[[], Embedder]) -> None:
        self._load_embedder = load_embedder
        self._embedder: Embedder | None = None
        self._threads = ToolExecutor(1, "dispatch-search")
        weakref.finalize(self, self._threads.close)

    @property
    def id(self) -> str:
        """The present id of the embedder."""
        assert self._embedder is not None  # it is loaded
        return self._embedder.id

    async def load(self) -> None:
        """Load the embedder, unless it is loaded. Raises what loading raises."""
        if self._embedder is None:
            self._embedder = await self._run(partial(_load, self._load_embedder))

    async def encode(self, texts: Sequence[str]) -> Any:
        """Return the vectors of tools; see :meth:`Embedder.encode`. Raises what the embedder raises."""
        assert self._embedder is not None
        return await self._run(partial(_encode, self._embedder.encode, texts))

    async def encode_queries(self, texts: Sequence[str]) -> Any:
        """Return the vectors of queries; see :meth:`QueryEmbedder.encode_queries`. Raises what the embedder raises."""
        assert self._embedder is not None
        embedder = self._embedder
        encode = embedder.encode_queries if isinstance(embedder, QueryEmbedder) else embedder.encode
        return await self._run(partial(_encode, encode, texts))

    def _run(self, function: Callable[[], T]) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(self._threads, function)


def _encode(encode: Callable[[Sequence[str]], Any], texts: Sequence[str]) -> Any:
    rows = encode(texts)
    if len(rows) != len(texts):
        raise ValueError(f"the embedder returned {len(rows)} rows for {len(texts)} texts")
    return rows
