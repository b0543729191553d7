"""When answers are asked for: learnt from those that came by themselves, under load too."""

from __future__ import annotations

import asyncio
from typing import Any

from dispatch import ToolService
from tests.helpers.dispatcher_and_service import dispatching, serving

FAST_S, SLOW_S = 0.001, 0.12


class Varying(ToolService):
    """Takes as long as it is told."""

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        await asyncio.sleep(arguments["seconds"])
        return "done"


async def test_a_tool_that_becomes_slower_is_not_asked_for_ever() -> None:
    """A question that came too early must not hide how long the answer took, or every later call is asked about too."""
    async with serving(Varying()) as server, dispatching() as dispatcher:
        for _ in range(50):
            await dispatcher.call("work", {"seconds": FAST_S})
        assert server.repeats == 0
        for _ in range(20):
            assert (await dispatcher.execute("work", {"seconds": SLOW_S})).ok
        learning = server.repeats
        assert 0 < learning < 20
        results = [await dispatcher.execute("work", {"seconds": SLOW_S}) for _ in range(50)]
        assert [result.transmissions for result in results] == [1] * 50
        assert server.repeats == learning
