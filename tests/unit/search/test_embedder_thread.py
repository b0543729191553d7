"""Calls of an embedder in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from dispatch.search.embedding import EmbedderThread
from tests.unit.search.embedders import FailingEmbedder, HangingEmbedder, WordEmbedder, fail_to_import, load

pytestmark = pytest.mark.wall_clock  # a thread works in the real time


async def loaded(embedder: WordEmbedder) -> EmbedderThread:
    thread = EmbedderThread(load(embedder))
    await thread.load()
    return thread


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


async def test_errors_of_loading_are_raised() -> None:
    thread = EmbedderThread(fail_to_import)
    for _ in range(2):
        with pytest.raises(ImportError):
            await thread.load()


@pytest.mark.parametrize(("error", "raised"), [(OSError("x"), OSError), (KeyboardInterrupt(), RuntimeError)])
async def test_errors_of_an_embedder_are_raised(error: BaseException, raised: type[Exception]) -> None:
    thread = await loaded(FailingEmbedder(error))
    with pytest.raises(raised):
        await thread.encode(["rain"])


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


async def test_a_wrong_number_of_rows_is_rejected() -> None:
    class Useless(WordEmbedder):
        def encode(self, texts: Sequence[str]) -> Any:
            return []

    with pytest.raises(ValueError, match="0 rows for 1 text"):
        await (await loaded(Useless())).encode(["rain"])
