"""Services that fall ill, as their callers see them."""

from __future__ import annotations

import asyncio
import random

import pytest

from dispatch.devtools.demo.fault_schedule import Ledger, Rates, Search, Translator


async def test_a_translator_is_right_and_slow_when_it_is_told_to_be() -> None:
    clock = asyncio.get_running_loop().time
    service = Translator(random.Random(1))
    began = clock()
    assert await service.invoke({}, {"word": "cat"}) == "gato"
    assert clock() - began <= Translator.QUICK_S[1]
    service.slow = True
    began = clock()
    assert await service.invoke({}, {"word": "dog"}) == "(no word for 'dog')"
    assert clock() - began == pytest.approx(Translator.SLOW_S)


async def test_rates_hang_until_somebody_stops_them() -> None:
    service = Rates()
    assert await service.invoke({}, {"pair": "EUR/USD"}) == "1.08"
    assert await Ledger().invoke({}, {"pair": "EUR/USD"}) == "1.08 (yesterday)"
    service.hangs = True
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3600):
            await service.invoke({}, {"pair": "EUR/USD"})


async def test_a_search_finds_pages() -> None:
    assert await Search().invoke({}, {"query": "news"}) == "28 pages"
