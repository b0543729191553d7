"""WordLlama: from its wheel alone, without network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dispatch.search.embedding import Embedder, QueryEmbedder
from dispatch.search.wordllama_embedder import WordLlamaEmbedder

OFFLINE = """
import logging, socket, sys

def refuse(*args, **kwargs):
    raise AssertionError("a socket was opened")

socket.socket.connect = socket.socket.connect_ex = socket.create_connection = socket.getaddrinfo = refuse
from dispatch.search.wordllama_embedder import WordLlamaEmbedder
print(WordLlamaEmbedder().encode(["a", "b c"]).shape, logging.getLogger().handlers)
"""


@pytest.fixture(scope="module")
def embedder() -> WordLlamaEmbedder:
    return WordLlamaEmbedder()


def test_it_loads_without_network_and_without_a_cache(tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", OFFLINE], env=environment, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout.strip(), done.stderr, done.returncode) == ("(2, 256) []", "", 0)
    assert list(tmp_path.iterdir()) == []


def test_it_is_an_embedder(embedder: WordLlamaEmbedder) -> None:
    assert isinstance(embedder, Embedder)
    assert isinstance(embedder, QueryEmbedder)
    assert embedder.id == "wordllama-0.4.0.post1-l2_supercat-256"


def test_texts_that_mean_the_same_are_near(embedder: WordLlamaEmbedder) -> None:
    weather, forecast, recipe = embedder.encode(["the weather tomorrow", "rain and sun forecast", "how to cook pasta"])
    assert weather @ forecast > weather @ recipe
    (query,) = embedder.encode_queries(["Will it rain tomorrow?"])
    assert query @ forecast > query @ recipe


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
