"""One ranking of terms and vectors.
The texts of tools that searches compare with queries.
Calls by tool, in bounded memory.
The inverted index: BM25 scores, one entry at a time.
Vectors by slot, one at a time.
Terms of texts in any script.
Calls of an embedder in a thread.
WordLlama: from its wheel alone, without network.
"""

from __future__ import annotations

import asyncio
import math
import os
import subprocess
import sys
import threading
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.catalog import ToolDescriptor
from dispatch.catalog.descriptors import Argument
from dispatch.search import MAX_TOOLS, Embedder, EmbedderThread, QueryEmbedder, UseCounter
from dispatch.search.index import (
    ARGUMENT_WEIGHT,
    CONTEXT_WEIGHT,
    LEAST_SIMILARITY,
    MAX_CHARS,
    MAX_POSTINGS,
    NAME_WEIGHT,
    BM25Index,
    Match,
    ToolIndex,
    describe_context,
    describe_tool,
    list_terms,
    split_terms,
    strip_plural,
    weigh_query,
    weigh_terms,
)
from dispatch.search.vector_index import VectorIndex, to_unit_rows
from dispatch.search.wordllama_embedder import WordLlamaEmbedder
from tests.helpers.word_llama import needs_word_llama
from tests.unit.search.embedders import FailingEmbedder, HangingEmbedder, WordEmbedder, fail_to_import, load

NAMES = st.sampled_from(["a", "b", "c", "d"])
TERMS = st.dictionaries(st.sampled_from("xyz"), st.just(1.0), max_size=3)
VECTORS = st.sampled_from([(1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (-1.0, 0.2)])
CHANGES = st.lists(st.tuples(NAMES, st.none() | st.tuples(TERMS, VECTORS)), max_size=30)


def make_index(**tools: tuple[dict[str, float], tuple[float, float]]) -> ToolIndex:
    index = ToolIndex()
    index.vectors.append(VectorIndex("e"))
    for name, (terms, vector) in tools.items():
        index.add(name, terms)
        index.set_vector(name, vector, index.vectors[0])
    return index


def rank(index: ToolIndex, terms: Iterable[str], vector: tuple[float, float] | None = None) -> list[Match]:
    return list(index.rank(dict.fromkeys(terms, 1.0), vector, index.vectors[0]))


def test_without_vectors_terms_decide() -> None:
    index = make_index(a=({"x": 1.0}, (1.0, 0.0)), b=({"x": 1.0, "y": 1.0}, (0.0, 1.0)), c=({"z": 1.0}, (1.0, 1.0)))
    assert [(match.name, match.similarity) for match in rank(index, ["x", "y"])] == [("b", None), ("a", None)]


def test_terms_that_most_tools_share_count_where_no_rarer_one_does() -> None:
    index = BM25Index[str]()
    for number in range(MAX_POSTINGS + 1):
        index.add(f"read-{number}", {"read": 1.0, "file": 1.0})
        index.add(f"send-{number}", {"send": 1.0, "file": 1.0, str(number): 1.0})
    assert index.score({"file": 1.0, "7": 1.0}).keys() == {"send-7"}
    found = index.score({"send": 1.0, "file": 1.0, "unknown": 1.0})
    assert found["send-7"] > found["read-7"] > 0


def test_vectors_decide_more_than_terms() -> None:
    index = make_index(a=({"x": 1.0}, (0.0, 1.0)), b=({}, (1.0, 0.0)), c=({}, (-1.0, 0.0)))
    first, second = rank(index, ["x"], (1.0, 0.0))
    assert (first.name, first.similarity) == ("b", 1.0)
    assert second.name == "a"
    assert 0 < second.score < first.score <= 1


def test_terms_decide_between_equal_vectors() -> None:
    index = make_index(a=({}, (1.0, 0.0)), b=({"x": 1.0}, (1.0, 0.0)))
    assert [match.name for match in rank(index, ["x"], (1.0, 0.0))] == ["b", "a"]


def test_a_similarity_below_the_least_is_no_match() -> None:
    index = make_index(a=({}, (LEAST_SIMILARITY / 2, 1.0)))
    assert (rank(index, ["x"], (1.0, 0.0))) == []


def test_a_replaced_tool_has_no_vector() -> None:
    index = make_index(a=({}, (1.0, 0.0)))
    index.add("a", {"x": 1.0})
    assert (rank(index, [], (1.0, 0.0))) == []
    assert [match.name for match in rank(index, ["x"], (1.0, 0.0))] == ["a"]


def test_common_terms_are_the_rarest_first() -> None:
    index = make_index(a=({"x": 1.0, "y": 1.0}, (1.0, 0.0)), b=({"x": 1.0}, (1.0, 0.0)))
    assert index.find_common_terms("a", ["x", "z", "y"]) == ("y", "x")
    assert index.find_common_terms("unknown", ["x"]) == ()


@given(CHANGES, st.lists(st.sampled_from("xyz"), max_size=3), VECTORS)
def test_changes_one_at_a_time_give_the_ranking_of_the_result(
    changes: list[tuple[str, tuple[dict[str, float], tuple[float, float]] | None]],
    terms: list[str],
    vector: tuple[float, float],
) -> None:
    index = make_index()
    tools = {}
    for name, tool in changes:
        if tool is None:
            index.remove(name)
            tools.pop(name, None)
        else:
            index.add(name, tool[0])
            index.set_vector(name, tool[1], index.vectors[0])
            tools[name] = tool
        assert len(index) == len(tools)
    for query in (None, vector):
        found = {match.name: round(match.score, 4) for match in rank(index, terms, query)}
        assert found == {match.name: round(match.score, 4) for match in rank(make_index(**tools), terms, query)}
        assert list(found.values()) == sorted(found.values(), reverse=True)
        assert all(0 < score <= 1 for score in found.values())


TOOL = ToolDescriptor(
    "getWeather",
    "Forecasts for cities.",
    "service",
    arguments=(Argument("city", "string", "Name of the city"),),
    category="Travel",
    tags=("climate", "rain"),
)


def test_every_field_has_its_weight() -> None:
    assert weigh_terms(TOOL) == {
        **dict.fromkeys(("get", "weather", "getweather"), NAME_WEIGHT),
        **dict.fromkeys(("forecast", "for", "climate", "rain", "travel"), 1.0),
        "city": 1.0 + 2 * ARGUMENT_WEIGHT,
        **dict.fromkeys(("name", "of", "the"), ARGUMENT_WEIGHT),
    }


def test_arguments_of_an_input_schema_are_indexed() -> None:
    schema = {"type": "object", "properties": {"postcode": {"type": "string", "description": "where"}}}
    assert {"postcode", "where"} <= weigh_terms(ToolDescriptor("a", "b", "service", input_schema=schema)).keys()


def test_the_text_for_embedders() -> None:
    assert describe_tool(TOOL) == "get weather getweather Forecasts for cities. climate rain"


def test_texts_are_bounded() -> None:
    tool = ToolDescriptor("a", "b " * MAX_CHARS, "service")
    assert weigh_terms(tool)["b"] == MAX_CHARS / 2
    assert len(describe_tool(tool)) <= MAX_CHARS + 2
    assert len(list_terms("c " * MAX_CHARS)) == MAX_CHARS / 2


@pytest.mark.parametrize(
    ("term", "singular"),
    [
        *(("papers", "paper"), ("cities", "city"), ("gas", "gas"), ("class", "class"), ("status", "status")),
        *(("analysis", "analysis"), ("ties", "tie"), ("naïves", "naïves"), ("s", "s"), ("", "")),
    ],
)
def test_plurals(term: str, singular: str) -> None:
    assert strip_plural(term) == singular


def test_a_context_weighs_less_than_the_query() -> None:
    assert weigh_query("Book a trip", "trips to cities") == {
        **dict.fromkeys(("book", "a", "trip"), 1.0),
        **dict.fromkeys(("to", "city"), CONTEXT_WEIGHT),
    }


class Action:
    name = "book"
    description = "Book a journey."


@pytest.mark.parametrize(
    ("context", "text"),
    [
        ("plan a trip", "plan a trip"),
        (Action(), "book Book a journey."),
        ({"name": "book", "description": None}, "book"),
        (None, ""),
        (7, ""),
    ],
)
def test_contexts(context: object, text: str) -> None:
    assert describe_context(context) == text


def test_calls_are_counted_by_tool() -> None:
    uses = UseCounter()
    for tool in "aba":
        uses.record_call(tool)
    assert [uses[tool] for tool in "abc"] == [2, 1, 0]


def test_the_least_used_tools_are_dropped() -> None:
    uses = UseCounter()
    for _ in range(2):
        uses.record_call("often")
    for number in range(3 * MAX_TOOLS):
        uses.record_call(f"tool-{number}")
        assert len(uses) <= MAX_TOOLS
    assert uses["often"] == 2
    assert uses[f"tool-{3 * MAX_TOOLS - 1}"] == 1


TERMS_BM25_INDEX = st.dictionaries(st.sampled_from("abcdefgh"), st.sampled_from([1.0, 2.0, 3.0]), max_size=6)
CHANGES_BM25_INDEX = st.lists(st.tuples(st.integers(0, 9), st.none() | TERMS_BM25_INDEX), max_size=40)


def make_index_bm25_index(entries: dict[int, dict[str, float]]) -> BM25Index:
    index = BM25Index()
    for key, terms in entries.items():
        index.add(key, terms)
    return index


def weigh(query: str) -> dict[str, float]:
    return dict.fromkeys(query, 1.0)


def compute_score(entries: dict[int, dict[str, float]], key: int, query: str) -> float:
    """BM25 by its definition (k1 = 1.2, b = 0.75)."""
    average = sum(sum(terms.values()) for terms in entries.values()) / len(entries)
    score = 0.0
    for term in sorted(set(query)):
        weight = entries[key].get(term, 0.0)
        found = sum(term in terms for terms in entries.values())
        if weight:
            inverse = math.log(1 + (len(entries) - found + 0.5) / (found + 0.5))
            length = sum(entries[key].values()) / average
            score += inverse * weight * 2.2 / (weight + 1.2 * (0.25 + 0.75 * length))
    return score


def test_an_empty_index_has_no_scores() -> None:
    assert BM25Index().score({"a": 1.0}) == {}


def test_rare_terms_weigh_more() -> None:
    index = make_index_bm25_index({1: {"a": 1.0, "c": 1.0}, 2: {"b": 1.0, "c": 1.0}, 3: {"a": 1.0, "c": 1.0}})
    assert index.weigh_term("b") > index.weigh_term("a") > index.weigh_term("c") > 0
    assert index.weigh_term("unknown") == 0


def test_terms_of_a_query_have_weights() -> None:
    index = make_index_bm25_index({1: {"a": 1.0}, 2: {"b": 1.0}})
    whole = index.score({"a": 1.0, "b": 1.0})
    assert index.score({"a": 1.0, "b": 0.5}) == pytest.approx({1: whole[1], 2: whole[2] / 2})


def test_short_entries_score_higher() -> None:
    scores = make_index_bm25_index({1: {"a": 1.0}, 2: {"a": 1.0, "b": 1.0, "c": 1.0}}).score({"a": 1.0})
    assert scores[1] > scores[2]


def test_an_entry_without_terms_is_an_entry() -> None:
    index = make_index_bm25_index({1: {}, 2: {"a": 1.0}})
    assert len(index) == 2
    assert index.score({"a": 1.0}).keys() == {2}
    index.remove(2)
    assert index.score({"a": 1.0}) == {}


@given(st.dictionaries(st.integers(0, 9), TERMS_BM25_INDEX, min_size=1), st.text("abcdefgh", max_size=6))
def test_scores_are_those_of_the_definition(entries: dict[int, dict[str, float]], query: str) -> None:
    scores = make_index_bm25_index(entries).score(weigh(query))
    assert scores.keys() == {key for key, terms in entries.items() if set(terms) & set(query)}
    for key, score in scores.items():
        assert score == pytest.approx(compute_score(entries, key, query))


@given(CHANGES_BM25_INDEX, st.text("abcdefgh", max_size=6))
def test_changes_one_at_a_time_give_the_index_of_the_result(
    changes: list[tuple[int, dict[str, float] | None]], query: str
) -> None:
    index = BM25Index()
    entries: dict[int, dict[str, float]] = {}
    for key, terms in changes:
        if terms is None:
            index.remove(key)
            entries.pop(key, None)
        else:
            index.add(key, terms)
            entries[key] = terms
        assert len(index) == len(entries)
    assert index.score(weigh(query)) == pytest.approx(make_index_bm25_index(entries).score(weigh(query)))


VECTORS_VECTOR_INDEX = st.lists(st.sampled_from([-2.0, -1.0, 0.0, 0.5, 3.0]), min_size=3, max_size=3)


def test_scores_are_cosines() -> None:
    index = VectorIndex("e")
    index.set_vector(0, [2.0, 0.0])
    index.set_vector(1_500, [-3.0, 0.0])
    scores = index.score([5.0, 0.0], 3_000)
    assert index.score([5.0, 0.0], 1).tolist() == [1.0]
    assert scores[[0, 1, 1_500, 2_999]].tolist() == [1.0, 0.0, -1.0, 0.0]


@pytest.mark.costly
def test_an_empty_index_scores_zero() -> None:
    assert VectorIndex("e").score([1.0, 2.0], 3).tolist() == [0.0, 0.0, 0.0]


def test_other_dimensions_are_rejected() -> None:
    index = VectorIndex("e")
    index.set_vector(0, [1.0, 2.0])
    with pytest.raises(ValueError, match="3 dimensions"):
        index.set_vector(1, [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="3 dimensions"):
        index.score([1.0, 2.0, 3.0], 1)


@pytest.mark.parametrize("rows", [[["a"]], [[float("nan")]], [[float("inf")]], [1.0], [[1.0], [1.0, 2.0]]])
def test_rows_that_are_no_vectors_are_rejected(rows: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        to_unit_rows(rows)


@given(
    st.lists(st.tuples(st.sampled_from([0, 1, 7, 1_023, 1_024, 2_048]), st.none() | VECTORS_VECTOR_INDEX), max_size=30),
    VECTORS_VECTOR_INDEX,
)
def test_changes_one_at_a_time_give_the_vectors_of_the_result(
    changes: list[tuple[int, list[float] | None]], query: list[float]
) -> None:
    index = VectorIndex("e")
    vectors: dict[int, list[float]] = {}
    for slot, vector in changes:
        if vector is None:
            index.clear_vector(slot)
            vectors.pop(slot, None)
        else:
            index.set_vector(slot, vector)
            vectors[slot] = vector
    scores = index.score(query, 2_100)
    for slot in (0, 1, 2, 7, 1_022, 1_023, 1_024, 1_025, 2_048, 2_099):
        vector = vectors.get(slot, [0.0])
        lengths = np.linalg.norm(vector) * np.linalg.norm(query)
        expected = np.dot(vector, query) / lengths if slot in vectors and lengths else 0.0
        assert scores[slot] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("", []),
        ("  ,.;  ", []),
        ("Get the weather!", ["get", "the", "weather"]),
        ("get_user_name", ["get", "user", "name"]),
        ("_private__name_", ["private", "name"]),
        ("getUserName", ["get", "user", "name", "getusername"]),
        ("YouTube", ["you", "tube", "youtube"]),
        ("HTTPServer2Go", ["http", "server2", "go", "httpserver2go"]),
        ("PDF ocr 2024", ["pdf", "ocr", "2024"]),
        ("a.b/c-d", ["a", "b", "c", "d"]),
        ("天気予報", ["天気", "気予", "予報"]),
        ("猫", ["猫"]),
        ("搜索API文档", ["搜索", "api", "文档"]),
        ("날씨 예보", ["날씨", "예보"]),
        ("ﾃﾞｰﾀ", ["デー", "ータ"]),
        ("ＡＢＣ", ["abc"]),
        ("Straße", ["strasse"]),
        ("ﬁle", ["file"]),
        ("ÉtatCivil", ["état", "civil", "étatcivil"]),
        ("मौसम की जानकारी", ["मौसम", "की", "जानकारी"]),
        ("cafe\u0301", ["café"]),
        ("погодаСегодня", ["погода", "сегодня", "погодасегодня"]),
        ("¿Qué tiempo hará?", ["qué", "tiempo", "hará"]),
    ],
)
def test_terms(text: str, terms: list[str]) -> None:
    assert split_terms(text) == terms


@given(st.text())
def test_terms_are_folded_words(text: str) -> None:
    for term in split_terms(text):
        assert term
        assert "_" not in term
        assert unicodedata.normalize("NFKC", term.casefold()) == term
        assert all(char.isalnum() or unicodedata.category(char)[0] == "M" for char in term)


@given(st.text(), st.text())
def test_terms_of_texts_side_by_side(first: str, second: str) -> None:
    assert split_terms(f"{first} {second}") == split_terms(first) + split_terms(second)


@given(st.text(st.characters(codec="ascii")))
def test_ascii_and_other_texts_are_split_alike(text: str) -> None:
    assert split_terms(f"{text} é") == [*split_terms(text), "é"]


@given(st.text("abcz _-.'"))
def test_case_of_whole_texts_is_ignored(text: str) -> None:
    assert split_terms(text.upper()) == split_terms(text.lower())


async def loaded(embedder: WordEmbedder) -> EmbedderThread:
    thread = EmbedderThread(load(embedder))
    await thread.load()
    return thread


@pytest.mark.wall_clock
async def test_methods_run_in_one_thread_that_is_not_the_loop() -> None:
    class Observing(WordEmbedder):
        threads: set[int]

        def encode(self, texts: Sequence[str]) -> Any:
            self.threads.add(threading.get_ident())
            return super().encode(texts)

    embedder = Observing()
    embedder.threads = set()
    thread = await loaded(embedder)
    assert thread.id == "words"
    rows = await asyncio.gather(*(thread.encode(["rain"]) for _ in range(20)), thread.encode_queries(["rain", "sun"]))
    assert [len(each) for each in rows] == [1] * 20 + [2]
    assert len(embedder.threads) == 1
    assert threading.get_ident() not in embedder.threads


@pytest.mark.wall_clock
async def test_errors_of_loading_are_raised() -> None:
    thread = EmbedderThread(fail_to_import)
    for _ in range(2):
        with pytest.raises(ImportError):
            await thread.load()


@pytest.mark.wall_clock
@pytest.mark.parametrize(("error", "raised"), [(OSError("x"), OSError), (KeyboardInterrupt(), RuntimeError)])
async def test_errors_of_an_embedder_are_raised(error: BaseException, raised: type[Exception]) -> None:
    thread = await loaded(FailingEmbedder(error))
    with pytest.raises(raised):
        await thread.encode(["rain"])


@pytest.mark.wall_clock
async def test_a_caller_that_waits_no_longer_occupies_the_embedder_until_it_returns() -> None:
    embedder = HangingEmbedder()
    thread = await loaded(embedder)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await thread.encode_queries(["rain"])
    assert embedder.waiting == 1
    embedder.released.set()
    assert len(await thread.encode_queries(["rain"])) == 1
    assert embedder.waiting == 2


@pytest.mark.wall_clock
async def test_the_thread_ends_with_its_object() -> None:
    before = threading.enumerate()
    thread = await loaded(WordEmbedder())
    await thread.encode(["rain"])
    started = [each for each in threading.enumerate() if each not in before]
    (worker,) = [each for each in started if each.name.startswith("dispatch-search")]
    del thread
    for _ in range(500):
        if not worker.is_alive():
            break
        await asyncio.sleep(0.01)
    assert not worker.is_alive()


@pytest.mark.wall_clock
async def test_a_wrong_number_of_rows_is_rejected() -> None:
    class Useless(WordEmbedder):
        def encode(self, texts: Sequence[str]) -> Any:
            return []

    with pytest.raises(ValueError, match="0 rows for 1 text"):
        await (await loaded(Useless())).encode(["rain"])


OFFLINE = """
import logging, socket, sys

def refuse(*args, **kwargs):
    raise AssertionError("a socket was opened")

socket.socket.connect = socket.socket.connect_ex = socket.create_connection = socket.getaddrinfo = refuse
from dispatch.search.wordllama_embedder import WordLlamaEmbedder
from tests.helpers.word_llama import needs_word_llama
print(WordLlamaEmbedder().encode(["a", "b c"]).shape, logging.getLogger().handlers)
"""


@pytest.fixture(scope="module")
def embedder() -> WordLlamaEmbedder:
    return WordLlamaEmbedder()


@needs_word_llama
def test_it_loads_without_network_and_without_a_cache(tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", OFFLINE], env=environment, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout.strip(), done.stderr, done.returncode) == ("(2, 256) []", "", 0)
    assert list(tmp_path.iterdir()) == []


@needs_word_llama
def test_it_is_an_embedder(embedder: WordLlamaEmbedder) -> None:
    assert isinstance(embedder, Embedder)
    assert isinstance(embedder, QueryEmbedder)
    assert embedder.id == "wordllama-0.4.0.post1-l2_supercat-256"


@needs_word_llama
def test_texts_that_mean_the_same_are_near(embedder: WordLlamaEmbedder) -> None:
    weather, forecast, recipe = embedder.encode(["the weather tomorrow", "rain and sun forecast", "how to cook pasta"])
    assert weather @ forecast > weather @ recipe
    (query,) = embedder.encode_queries(["Will it rain tomorrow?"])
    assert query @ forecast > query @ recipe


@needs_word_llama
def test_rows_do_not_depend_on_their_neighbours(embedder: WordLlamaEmbedder) -> None:
    texts = ["one", "a much longer text, of several words", "", "天気予報"]
    rows = embedder.encode(texts)
    assert np.linalg.norm(rows, axis=1) == pytest.approx([1, 1, 0, 1], abs=1e-5)
    for text, row in zip(texts, rows, strict=True):
        assert embedder.encode([text])[0] == pytest.approx(row, abs=1e-6)


def test_a_missing_package_is_named_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wordllama", None)
    with pytest.raises(ImportError, match=r"pip install 'tool-dispatch\[search\]'"):
        WordLlamaEmbedder()
