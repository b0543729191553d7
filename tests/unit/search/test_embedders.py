"""Calls of an embedder in a thread.
WordLlama: from its wheel alone, without network.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dispatch.search.search import Embedder, EmbedderThread, QueryEmbedder
from dispatch.search.wordllama_embedder import WordLlamaEmbedder
from tests.unit.search.embedders import FailingEmbedder, HangingEmbedder, WordEmbedder, fail_to_import, load


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
    thread = await loaded(WordEmbedder())
    await thread.encode(["rain"])
    worker = thread._thread
    assert worker is not None
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
