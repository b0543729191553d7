"""Services with injected faults, as their callers see them."""

from __future__ import annotations

import asyncio
import random

import pytest

from dispatch.devtools.demo.world import Ledger, Rates, Search, Translator


async def test_translator_is_slow_while_its_fault_is_on() -> None:
    clock = asyncio.get_running_loop().time
    service = Translator(random.Random(1))
    began = clock()
    assert await service.invoke({}, {"word": "cat"}) == "gato"
    assert clock() - began <= Translator.NORMAL_S[1]
    service.is_slow = True
    began = clock()
    assert await service.invoke({}, {"word": "dog"}) == "(no word for 'dog')"
    assert clock() - began == pytest.approx(Translator.SLOW_S)


async def test_rates_hang_until_they_are_cancelled() -> None:
    service = Rates()
    assert await service.invoke({}, {"pair": "EUR/USD"}) == "1.08"
    assert await Ledger().invoke({}, {"pair": "EUR/USD"}) == "1.08 (yesterday)"
    service.is_hanging = True
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3600):
            await service.invoke({}, {"pair": "EUR/USD"})


async def test_a_search_finds_pages() -> None:
    assert await Search().invoke({}, {"query": "news"}) == "28 pages"
