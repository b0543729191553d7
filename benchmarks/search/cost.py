"""Costs of searches through ``Dispatcher.find``: latency by the size of the catalogue, changes, load, memory."""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.search.dataset import Dataset
from benchmarks.search.distractors import make_distractors
from benchmarks.search.recall import BM25, DISPATCH, WORDLLAMA, Array, Evaluation, Recall
from dispatch.catalog import Catalog, ServiceDescriptor, ToolDescriptor
from dispatch.dispatcher import Dispatcher
from dispatch.search import ToolSearch
from dispatch.search.index import describe_tool
from dispatch.search.wordllama_embedder import WordLlamaEmbedder
from dispatch.transports.memory import MemoryTransport

SERVICE = ServiceDescriptor("metatool", "non-persistent://tg/request/m", "non-persistent://tg/response/m")
LIMIT = 10
WARM_UP = 50
"""Searches before those that are measured."""
CHANGES = 50
LOADS = 5


@dataclass
class SizedSearch:
    """Searches of one contender in a catalogue of one size: milliseconds of each, and of CPU time, which the load of other
    processes hardly changes."""

    contender: str
    tools: int
    recall: Recall = field(default_factory=Recall)
    durations: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


@dataclass
class IndexCosts:
    """Costs of one index in ms: its first build, and in CPU time the longest turn of the loop and a changed tool."""

    tools: int
    build: float
    blocked: float
    change: float
    longest_change: float


def percentile(durations: Sequence[float], share: float) -> float:
    """Return the duration that ``share`` of them do not exceed."""
    return sorted(durations)[min(len(durations) - 1, int(share * len(durations)))]


def fill_catalogue(data: Dataset, size: int) -> Catalog:
    """Return MetaTool's tools with synthetic ones, ``size`` together."""
    return Catalog([SERVICE], [*data.tools, *make_distractors(max(0, size - len(data.tools)))])


async def search_sizes(
    evaluation: Evaluation, sizes: Sequence[int], queries: Sequence[int], query_map: Array
) -> list[SizedSearch]:
    """Search ``queries`` in catalogues of each size, with a map that is not learned from them."""
    found = []
    for size in sizes:
        catalog = fill_catalogue(evaluation.data, size)
        async with Dispatcher(MemoryTransport("memory://search"), catalog) as dispatcher:
            for contender, embedder in ((BM25, None), (DISPATCH, WordLlamaEmbedder(query_map))):
                dispatcher.search.use_embedder(embedder)
                await dispatcher.search.refresh()
                found.append(await _search(contender, dispatcher, evaluation.data, queries))
        found.append(_search_bare(catalog, evaluation.data, queries))
    return found


async def _search(contender: str, dispatcher: Dispatcher, data: Dataset, queries: Sequence[int]) -> SizedSearch:
    sized = SizedSearch(contender, len(dispatcher.catalog.tools))
    for query in queries[:WARM_UP]:
        await dispatcher.find(data.queries[query], LIMIT)
    for query in queries:
        started, cpu = time.perf_counter(), time.process_time()
        found = await dispatcher.find(data.queries[query], LIMIT)
        sized.durations.append((time.perf_counter() - started) * 1e3)
        sized.cpu.append((time.process_time() - cpu) * 1e3)
        names = [each.name for each in found if each.score > 0]
        _add_rank(sized.recall, names, data.tools[data.answers[query]].name)
    return sized


def _search_bare(catalog: Catalog, data: Dataset, queries: Sequence[int]) -> SizedSearch:
    """WordLlama's vectors in a matrix, as a program without dispatch would search."""
    embedder = WordLlamaEmbedder()
    tools = list(catalog.tools.values())
    matrix = embedder.encode([describe_tool(tool) for tool in tools])
    sized = SizedSearch(WORDLLAMA, len(tools))
    for query in queries:
        started, cpu = time.perf_counter(), time.process_time()
        scores = matrix @ embedder.encode([data.queries[query]])[0]
        best = np.argsort(-scores)[:LIMIT].tolist()
        sized.durations.append((time.perf_counter() - started) * 1e3)
        sized.cpu.append((time.process_time() - cpu) * 1e3)
        _add_rank(sized.recall, [tools[row].name for row in best], data.tools[data.answers[query]].name)
    return sized


def _add_rank(recall: Recall, names: Sequence[str], answer: str) -> None:
    recall.ranks.append(names.index(answer) if answer in names else float("inf"))


async def measure_index(data: Dataset, size: int) -> IndexCosts:
    """Build the index of ``size`` tools, then change one tool at a time."""
    embedder = WordLlamaEmbedder()
    catalogs = [fill_catalogue(data, size)]
    search = ToolSearch(lambda: catalogs[0], lambda: embedder)
    blocked = asyncio.ensure_future(_measure_blocked())
    started = time.perf_counter()
    await search.refresh()
    build = time.perf_counter() - started
    blocked.cancel()
    tools = list(catalogs[0].tools.values())
    changes = []
    for number in range(CHANGES):
        place = number * len(tools) // CHANGES
        tools[place] = ToolDescriptor(tools[place].name, f"{tools[place].description} Edition {number}.", "metatool")
        catalogs[0] = Catalog([SERVICE], tools)
        started = time.process_time()
        await search.refresh()
        changes.append((time.process_time() - started) * 1e3)
    await search.close()
    (longest,) = await asyncio.gather(blocked)
    return IndexCosts(size, build * 1e3, longest * 1e3, statistics.median(changes), max(changes))


async def _measure_blocked() -> float:
    """Return the longest CPU time of one turn of the event loop, once cancelled."""
    longest, last = 0.0, time.thread_time()
    try:
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            longest, last = max(longest, now - last), now
    except asyncio.CancelledError:
        return longest


LOAD = """
import asyncio, json, os, sys, time
import dispatch
from dispatch.dispatcher import Dispatcher
from dispatch.transports.memory import MemoryTransport

from benchmarks.search.distractors import make_distractors
from benchmarks.workers.proc import read_memory
from dispatch.catalog import Catalog, ServiceDescriptor
service = ServiceDescriptor("metatool", "non-persistent://tg/request/m", "non-persistent://tg/response/m")
catalog = Catalog([service], make_distractors(int(sys.argv[1])))
before = read_memory(os.getpid())
started = time.process_time()
from dispatch.search.wordllama_embedder import WordLlamaEmbedder
embedder = WordLlamaEmbedder()
load = time.process_time() - started

async def search():
    async with Dispatcher(MemoryTransport("memory://load"), catalog) as dispatcher:
        dispatcher.search.use_embedder(embedder)
        await dispatcher.search.refresh()
        found = await dispatcher.find("export an invoice")
        assert "similar meaning" in found[0].why
asyncio.run(search())
after = read_memory(os.getpid())
print(json.dumps({"load_ms": load * 1e3, "memory_mib": after - before, "process_mib": after}))
"""


def measure_load(size: int) -> dict[str, float]:
    """Load the embedder and index ``size`` tools in fresh processes; the least of each figure."""
    runs = []
    for _ in range(LOADS):
        done = subprocess.run([sys.executable, "-c", LOAD, str(size)], capture_output=True, text=True, check=True)
        runs.append(json.loads(done.stdout))
    return {key: min(run[key] for run in runs) for key in runs[0]}
