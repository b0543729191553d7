"""Learn the linear map of queries that ``WordLlamaEmbedder`` applies: ``python -m benchmarks.search.query_map``.

The map M (256 by 256) maximizes the likelihood of the tools that answer, softmax(TEMPERATURE · q M dᵀ) over all tools, with
a penalty on its distance from the identity. Each tool has the same weight, however many queries it answers. Full batches of
Adam from the identity; nothing is drawn at random.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.search.dataset import DataError, add_data_option, load_dataset
from dispatch.search.index import describe_tool
from dispatch.search.wordllama_embedder import QUERY_MAP, WordLlamaEmbedder

Array = NDArray[np.float32]

TEMPERATURE = 30.0
"""Chosen with the penalty among 10 to 60: lower ones lose on tools not seen in training, for the same gain on tools seen."""
PENALTY = 0.12
"""Chosen among 0.02 to 1: smaller ones gain on queries of the tools of the training, and lose on other tools."""
STEPS = 60
STEP_SIZE = 0.004


def learn_query_map(queries: Array, tools: Array, answers: Sequence[int]) -> Array:
    """Return the map.

    Args:
        queries: unit vectors, a row for each.
        tools: unit vectors of the tools to choose from, a row for each.
        answers: index of the row of the tool that answers each query.
    """
    chosen = np.asarray(answers)
    weights = 1 / np.bincount(chosen, minlength=len(tools))[chosen]
    weights = (weights / weights.sum()).astype(np.float32)[:, None]
    identity = np.eye(queries.shape[1], dtype=np.float32)
    change = np.zeros_like(identity)
    mean, square = np.zeros_like(identity), np.zeros_like(identity)
    for step in range(STEPS):
        scores = TEMPERATURE * (queries @ (identity + change) @ tools.T)
        errors = np.exp(scores - scores.max(axis=1, keepdims=True))
        errors /= errors.sum(axis=1, keepdims=True)
        errors[np.arange(len(chosen)), chosen] -= 1
        gradient = TEMPERATURE * queries.T @ ((errors * weights) @ tools) + PENALTY * change
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.99 * square + 0.01 * gradient * gradient
        direction = mean / (1 - 0.9 ** (step + 1)) / (np.sqrt(square / (1 - 0.99 ** (step + 1))) + 1e-8)
        change -= STEP_SIZE * (1 - step / STEPS) * direction
    return identity + change


def main(arguments: Sequence[str] | None = None) -> int:
    """Learn from all queries and write the map into the package. Returns the exit code; 2: there is no data."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search.query_map", description=__doc__)
    add_data_option(parser)
    options = parser.parse_args(arguments)
    try:
        data = load_dataset(options.data)
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    embedder = WordLlamaEmbedder()
    tools = embedder.encode([describe_tool(tool) for tool in data.tools])
    learned = learn_query_map(embedder.encode(data.queries), tools, data.answers)
    np.save(QUERY_MAP, learned.astype(np.float16))
    print(f"{QUERY_MAP}: {len(data.queries)} queries of {len(data.tools)} tools")
    return 0


if __name__ == "__main__":
    sys.exit(main())
