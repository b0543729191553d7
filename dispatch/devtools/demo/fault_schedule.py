"""Services that fall ill when the story wants it, and their well neighbours. Nobody tells the dispatcher."""

from __future__ import annotations

import asyncio
import random
from typing import Any, Final

from dispatch.serving.tool_service import ToolService

WORDS: Final = {"cat": "gato", "cheese": "queso", "lighthouse": "faro", "kettle": "hervidor"}
RATES: Final = {"EUR/USD": "1.08", "EUR/JPY": "162.40", "GBP/EUR": "1.17"}


class Translator(ToolService):
    """Translates a word, in a few hundredths of a second; one instance of several.

    Attributes:
        slow: it takes :data:`SLOW_S` instead.
    """

    SLOW_S: Final = 2.0
    QUICK_S: Final = (0.02, 0.05)

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.slow = False

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        await asyncio.sleep(self.SLOW_S if self.slow else self._chance.uniform(*self.QUICK_S))
        word = str(arguments.get("word", ""))
        return WORDS.get(word, f"(no word for {word!r})")


class Rates(ToolService):
    """Knows what one currency costs in another.

    Attributes:
        hangs: it takes requests and answers none of them.
    """

    def __init__(self) -> None:
        self.hangs = False

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        if self.hangs:
            await asyncio.Event().wait()  # until the server stops it, because its caller's time is over
        await asyncio.sleep(0.01)
        return _rate(arguments)


class Ledger(ToolService):
    """Knows what it was yesterday: the tool to use while the other one is of no use."""

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        return f"{_rate(arguments)} (yesterday)"


class Search(ToolService):
    """Finds pages. Each search costs its owner money, so that its tool has a rate for each user."""

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        await asyncio.sleep(0.02)
        return f"{len(str(arguments.get('query', ''))) * 7} pages"


def _rate(arguments: dict[str, Any]) -> str:
    pair = str(arguments.get("pair", ""))
    return RATES.get(pair, f"no rate for {pair}")
