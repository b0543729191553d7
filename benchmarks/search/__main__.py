"""Search MetaTool's tools: recall beside BM25 and WordLlama alone, latency, and the costs of the index.

``python -m benchmarks.search --data FOLDER``; no broker, two minutes. What is learned is cross-validated: by queries,
by tools among seen ones, and by catalogue.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from benchmarks.harness.programs import Programme, positive, write_figures
from benchmarks.search.cost import SizedSearch, measure_index, measure_load, percentile, search_sizes
from benchmarks.search.dataset import DataError, Dataset, add_data_option, load_dataset
from benchmarks.search.recall import CUTS, SEED, SPLITS, Evaluation, Recall
from dispatch.search.wordllama_embedder import WordLlamaEmbedder

SIZES = (199, 1_000, 10_000)
QUERIES = 1_000
LOADED_TOOLS = 1_000


def show_recall(contender: str, recall: Recall) -> str:
    """One line: recall@1/3/5/10 and MRR."""
    shares = " ".join(f"{recall.at(cut):8.3f}" for cut in CUTS)
    return f"  {contender:28} {shares} {recall.mean_reciprocal_rank:8.3f}"


def report_recall(evaluation: Evaluation) -> dict[str, Any]:
    """Print and return recall by split and contender."""
    figures: dict[str, Any] = {}
    for title, validate in SPLITS.items():
        print(f"{title}\n  {'':28} " + " ".join(f"{f'@{cut}':>8}" for cut in CUTS) + f" {'MRR':>8}")
        figures[title] = {}
        for contender, recall in validate(evaluation).items():
            print(show_recall(contender, recall), flush=True)
            figures[title][contender] = describe_recall(recall)
    return figures


def describe_recall(recall: Recall) -> dict[str, float]:
    """The figures of a recall by name."""
    return {**{f"recall@{cut}": recall.at(cut) for cut in CUTS}, "mrr": recall.mean_reciprocal_rank}


def report_sizes(evaluation: Evaluation, sizes: Sequence[int], count: int) -> list[dict[str, Any]]:
    """Print and return recall and latency by the size of the catalogue, for queries that are not in the training."""
    order = np.random.default_rng(SEED).permutation(len(evaluation.answers))
    queries, train = order[:count].tolist(), order[count:]
    query_map = evaluation.learn(train, range(len(evaluation.tools)))
    print(f"\nDispatcher.find, {len(queries)} queries not seen in training, MetaTool's and synthetic tools")
    print(
        f"  {'':28} "
        + " ".join(f"{f'@{cut}':>8}" for cut in CUTS)
        + f" {'MRR':>8} {'p50 ms':>8} {'p95 ms':>8} {'p95 CPU':>8}"
    )
    found = asyncio.run(search_sizes(evaluation, sizes, queries, query_map))
    for each in found:
        line = show_recall(f"{each.tools:,} tools, {each.contender}", each.recall)
        print(
            f"{line} {percentile(each.durations, 0.5):8.2f} {percentile(each.durations, 0.95):8.2f} "
            f"{percentile(each.cpu, 0.95):8.2f}"
        )
    return [describe_size(each) for each in found]


def describe_size(each: SizedSearch) -> dict[str, Any]:
    """The figures of one contender in a catalogue of one size."""
    return {
        "contender": each.contender,
        "tools": each.tools,
        **describe_recall(each.recall),
        "p50_ms": percentile(each.durations, 0.5),
        "p95_ms": percentile(each.durations, 0.95),
        "p95_cpu_ms": percentile(each.cpu, 0.95),
    }


def report_costs(data: Dataset, sizes: Sequence[int]) -> dict[str, Any]:
    """Print and return the costs of the index."""
    print("\nindex             build ms  longest turn of the loop ms  one changed tool ms  at most (goal 5); CPU time")
    costs = [asyncio.run(measure_index(data, size)) for size in sizes]
    for each in costs:
        turn, change = f"{each.blocked:28.1f}", f"{each.change:20.2f} {each.longest_change:8.2f}"
        print(f"  {each.tools:7,} tools {each.build:10.0f} {turn} {change}")
    loaded = measure_load(LOADED_TOOLS)
    print(
        f"\nload of WordLlama {loaded['load_ms']:.0f} ms of CPU time (goal 500); with {LOADED_TOOLS:,} tools "
        f"{loaded['memory_mib']:.0f} MiB (goal 150), the whole process {loaded['process_mib']:.0f} MiB"
    )
    return {"index": [asdict(each) for each in costs], "load": loaded}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run. Returns the exit code: 0 done, whatever the figures; 2 no data, or the results cannot be written."""
    programme = Programme("benchmarks.search", __doc__)
    add_data_option(programme)
    programme.add_argument(
        "--sizes", type=positive, nargs="+", default=SIZES, metavar="N", help="tools of each catalogue"
    )
    programme.add_number("--queries", QUERIES, "of which the latency is measured")
    programme.add_argument(
        "--only", choices=("recall", "sizes", "costs"), action="append", help="one part; repeat for others"
    )
    options = programme.begin(arguments)
    try:
        data = load_dataset(options.data)
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    parts = options.only or ("recall", "sizes", "costs")
    print(
        f"{len(data.queries):,} queries of {len(data.tools)} tools (MetaTool; recall@5 goal 0.80, p95 goal 5 ms at 1,000)\n"
    )
    evaluation = Evaluation(data, WordLlamaEmbedder())
    figures: dict[str, Any] = {}
    if "recall" in parts:
        figures["recall"] = report_recall(evaluation)
    if "sizes" in parts:
        figures["sizes"] = report_sizes(evaluation, options.sizes, min(options.queries, len(data.queries) - 1))
    if "costs" in parts:
        figures["costs"] = report_costs(data, options.sizes)
    write_figures(options.json, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
