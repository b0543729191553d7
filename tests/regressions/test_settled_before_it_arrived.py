"""A request on the topic that all instances share may arrive after later requests on the topic of an instance. Its caller
got ``reply-evicted``, because one of these had told the instance that all earlier requests have ended."""

from __future__ import annotations

import asyncio

from dispatch.messaging.wire.properties import Property
from dispatch.routing.instance import SETTLED_EVERY
from dispatch.testing import Faults, FaultyTransport
from dispatch.transports.memory import MemoryTransport
from tests.helpers.clock import advance
from tests.helpers.dispatcher_and_service import BROKER, REQUESTS, dispatching, serving


async def test_a_request_that_is_overtaken_is_executed() -> None:
    slow = Faults(latency=1.0, direction="out", topics=REQUESTS)
    async with dispatching(transport=FaultyTransport(MemoryTransport(BROKER), slow)) as dispatcher:
        first = asyncio.create_task(dispatcher.execute("work"))
        while not dispatcher.pending_requests:
            await advance(0.01)  # no instance is known: it goes to the shared topic
        async with serving(lambda _: "done", instance="i"):
            while not any(view.id == "i" for view in dispatcher.instances("lab")):
                await advance(0.01)
            later = [await dispatcher.execute("work") for _ in range(2 * SETTLED_EVERY)]
            assert {result.instance for result in later} == {"i"}
            assert not first.done()
            assert (await first).ok, (await first).error
            (channel,) = dispatcher._running.routes._open.values()
            assert channel.unaddressed == 0
            (instance,) = channel.instances
            settled = [instance.settled(f"0-{number:x}") for number in range(1_000, 1_000 + SETTLED_EVERY)]
            assert settled[-1] is not None, f"{Property.SETTLED} is sent again"
