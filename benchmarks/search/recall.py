"""Recall of searches: contenders that learn nothing, and cross-validated ones that learn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from benchmarks.search.dataset import Dataset
from benchmarks.search.query_map import learn_query_map
from dispatch.search.index import ToolIndex, describe_tool, weigh_query, weigh_terms
from dispatch.search.vector_index import VectorIndex
from dispatch.search.wordllama_embedder import WordLlamaEmbedder

Array = NDArray[np.float32]

CUTS = (1, 3, 5, 10)
FOLDS = 5
SEED = 7
WITHOUT_MAP = "dispatch, nothing learned"
DISPATCH = "dispatch"
BM25 = "BM25"
WORDLLAMA = "WordLlama alone"
CONTENDERS = (BM25, WORDLLAMA, WITHOUT_MAP, DISPATCH)


@dataclass
class Recall:
    """Ranks of the tools that answer, from 0; a tool that is not found has an infinite one."""

    ranks: list[float] = field(default_factory=list)

    def at(self, cut: int) -> float:
        """Share of the queries whose tool is among the first ``cut``."""
        return sum(rank < cut for rank in self.ranks) / len(self.ranks)

    @property
    def mean_reciprocal_rank(self) -> float:
        return sum(1 / (1 + rank) for rank in self.ranks) / len(self.ranks)


class Evaluation:
    """Searches of the dataset's queries among its tools. Texts are split and embedded once."""

    def __init__(self, data: Dataset, embedder: WordLlamaEmbedder) -> None:
        self.data = data
        self.answers = np.array(data.answers)
        self.query_terms = [weigh_query(query) for query in data.queries]
        self.queries: Array = embedder.encode(data.queries)
        self.tools: Array = embedder.encode([describe_tool(tool) for tool in data.tools])

    def rank(self, contender: str, queries: Iterable[int], tools: Sequence[int], query_map: Array | None) -> Recall:
        """Search each of ``queries`` among ``tools``."""
        index = ToolIndex()
        vectors = VectorIndex("benchmark")
        for tool in tools:
            index.add(str(tool), {} if contender == WORDLLAMA else weigh_terms(self.data.tools[tool]))
            index.set_vector(str(tool), self.tools[tool], vectors)
        recall = Recall()
        for query in queries:
            vector = self.queries[query] if query_map is None else self.queries[query] @ query_map
            answer = str(self.answers[query])
            matches = index.rank(self.query_terms[query], None if contender == BM25 else vector, vectors)
            names = [match.name for match in matches]
            recall.ranks.append(names.index(answer) if answer in names else float("inf"))
        return recall

    def learn(self, queries: NDArray[np.int64], tools: Sequence[int]) -> Array:
        """Learn the query map from ``queries``, which ``tools`` answer."""
        rows = {tool: row for row, tool in enumerate(tools)}
        answers = [rows[answer] for answer in self.answers[queries].tolist()]
        return learn_query_map(self.queries[queries], self.tools[list(tools)], answers)

    def validate(
        self, folds: Iterator[tuple[NDArray[np.int64], Sequence[int], NDArray[np.int64], Sequence[int]]]
    ) -> dict[str, Recall]:
        """Learn from a part and search with the rest: each fold has the queries and tools of the training, and those of the
        search. All contenders search the same."""
        found = {contender: Recall() for contender in CONTENDERS}
        for train, known, test, candidates in folds:
            query_map = self.learn(train, known)
            for contender, recall in found.items():
                used = query_map if contender == DISPATCH else None
                recall.ranks += self.rank(contender, test.tolist(), candidates, used).ranks
        return found

    def split_by_query(self) -> Iterator[tuple[NDArray[np.int64], Sequence[int], NDArray[np.int64], Sequence[int]]]:
        """Queries not seen in training, all tools seen."""
        fold = np.random.default_rng(SEED).permutation(len(self.answers)) % FOLDS
        everything = range(len(self.tools))
        for number in range(FOLDS):
            yield np.nonzero(fold != number)[0], everything, np.nonzero(fold == number)[0], everything

    def split_by_tool(self) -> Iterator[tuple[NDArray[np.int64], Sequence[int], NDArray[np.int64], Sequence[int]]]:
        """The tool that answers was not seen in training; the other tools of the catalogue were."""
        fold = np.random.default_rng(SEED).permutation(len(self.tools)) % FOLDS
        of_query = fold[self.answers]
        for number in range(FOLDS):
            known = np.nonzero(fold != number)[0].tolist()
            test = np.nonzero(of_query == number)[0]
            yield np.nonzero(of_query != number)[0], known, test, range(len(self.tools))

    def split_catalogue(self) -> Iterator[tuple[NDArray[np.int64], Sequence[int], NDArray[np.int64], Sequence[int]]]:
        """No tool of the catalogue was seen in training: learn on one half of the tools, search among the other."""
        generator = np.random.default_rng(SEED)
        for _ in range(2):
            half = generator.permutation(len(self.tools)) % 2
            of_query = half[self.answers]
            for number in (0, 1):
                yield (
                    np.nonzero(of_query != number)[0],
                    np.nonzero(half != number)[0].tolist(),
                    np.nonzero(of_query == number)[0],
                    np.nonzero(half == number)[0].tolist(),
                )


SPLITS: dict[str, Callable[[Evaluation], dict[str, Recall]]] = {
    "queries not seen in training": lambda each: each.validate(each.split_by_query()),
    "tools not seen in training (among tools that were)": lambda each: each.validate(each.split_by_tool()),
    "catalogue not seen in training (half of the tools)": lambda each: each.validate(each.split_catalogue()),
}
