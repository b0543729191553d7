"""TrustGraph's published ``DynamicToolService`` as a process of its own, which counts how often it does each number:
one byte a number, in the file that ``COUNTS`` names, written before it answers."""

from __future__ import annotations

import mmap
import os
from typing import Any

from trustgraph.base import DynamicToolService

from tests.helpers.counting_service import answer


class Counting(DynamicToolService):
    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        with open(os.environ["COUNTS"], "r+b") as file:
            self._counts = mmap.mmap(file.fileno(), 0)

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any]) -> str:
        number = arguments["n"]
        self._counts[number] = min(255, self._counts[number] + 1)
        return answer(number, 8)


if __name__ == "__main__":
    Counting.launch("counting", __doc__ or "")
