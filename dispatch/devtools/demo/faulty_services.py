"""Tool services with faults that the scenarios switch on and off, and services without faults beside them."""

from __future__ import annotations

import asyncio
import random
from typing import Any, Final

from dispatch.serving.tool_service import ToolService

WORDS: Final = {"cat": "gato", "cheese": "queso", "lighthouse": "faro", "kettle": "hervidor"}
RATES: Final = {"EUR/USD": "1.08", "EUR/JPY": "162.40", "GBP/EUR": "1.17"}


class Translator(ToolService):
    """Translates a word in 20 to 50 ms; one instance of several.

    Attributes:
        is_slow: it takes :data:`SLOW_S` instead.
    """

    SLOW_S: Final = 2.0
    NORMAL_S: Final = (0.02, 0.05)

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.is_slow = False

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        await asyncio.sleep(self.SLOW_S if self.is_slow else self._chance.uniform(*self.NORMAL_S))
        word = str(arguments.get("word", ""))
        return WORDS.get(word, f"(no word for {word!r})")


class Rates(ToolService):
    """Returns current exchange rates.

    Attributes:
        is_hanging: it receives requests and never replies.
    """

    def __init__(self) -> None:
        self.is_hanging = False

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        if self.is_hanging:
            await asyncio.Event().wait()  # until the server cancels it at the caller's deadline
        await asyncio.sleep(0.01)
        return _rate(arguments)


class Ledger(ToolService):
    """Returns yesterday's exchange rates: the alternative while the rates service hangs."""

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        return f"{_rate(arguments)} (yesterday)"


class Search(ToolService):
    """Searches pages. Its tool has a rate limit per user."""

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        await asyncio.sleep(0.02)
        return f"{len(str(arguments.get('query', ''))) * 7} pages"


def _rate(arguments: dict[str, Any]) -> str:
    pair = str(arguments.get("pair", ""))
    return RATES.get(pair, f"no rate for {pair}")
