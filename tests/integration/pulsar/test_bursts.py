"""Thousands of calls at once over non-persistent topics of a Pulsar broker, which loses messages that arrive in bursts."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest

import dispatch
from benchmarks.harness.broker import Endpoint
from dispatch.messaging.request import Disposition
from tests.helpers.catalogs import catalog_of, unique_topic
from tests.helpers.echo_service import Echo, echo_process
from tests.helpers.run_profile import by_profile

pytestmark = pytest.mark.pulsar

OWN = (Disposition.MATCHED, Disposition.DUPLICATE)
"""What can become of the replies to one's own requests that all succeeded."""

MANY = 4096
BURSTS = by_profile(short=2, long=10)


@pytest.mark.long
async def test_bursts_of_4096_calls_lose_none_and_slow_calls_run_side_by_side(pulsar_endpoint: Endpoint) -> None:
    topic = unique_topic()
    with echo_process(pulsar_endpoint.service_url, topic, MANY):
        async with dispatch.connect(pulsar_endpoint.service_url, catalog_of(topic)) as dispatcher:
            for burst in range(BURSTS):
                texts = [f"{burst}-{number}" for number in range(MANY)]
                results = await asyncio.gather(
                    *(dispatcher.execute("echo", {"text": text}, timeout=20) for text in texts)
                )
                assert Counter(str(r.outcome) for r in results) == {"success": MANY}
                assert [r.text for r in results] == texts
            assert dispatcher.pending_requests == 0
            replies = dispatcher.reply_counts()
            assert replies[Disposition.MATCHED] == BURSTS * MANY
            # On a busy machine a few packets are sent again although they have arrived, each with about 200 replies.
            assert replies[Disposition.DUPLICATE] <= 0.05 * BURSTS * MANY
            del replies[Disposition.MATCHED], replies[Disposition.DUPLICATE]
            assert not any(replies.values())
            # The window is over publishes, not over calls: 4,096 calls of 2 s end together.
            started = time.monotonic()
            results = await asyncio.gather(*(dispatcher.execute("echo", {"sleep": 2}, timeout=20) for _ in range(MANY)))
            took = time.monotonic() - started
    assert Counter(str(r.outcome) for r in results) == {"success": MANY}
    # Not a benchmark: one after the other, or 64 at a time, they would take 128 s and more.
    assert took < 20


async def test_16_dispatchers_each_see_their_own_replies_only(pulsar_endpoint: Endpoint) -> None:
    topic, url = unique_topic(), pulsar_endpoint.service_url
    async with dispatch.ToolServer(Echo(), url, service=topic):
        dispatchers = [dispatch.connect(url, catalog_of(topic)) for _ in range(16)]
        try:
            for dispatcher in dispatchers:
                await dispatcher.start()
            texts = await asyncio.gather(
                *(
                    dispatcher.call("echo", {"text": f"{number}-{call}"}, timeout=20)
                    for number, dispatcher in enumerate(dispatchers)
                    for call in range(25)
                )
            )
            assert texts == [f"{number}-{call}" for number in range(16) for call in range(25)]
            for dispatcher in dispatchers:
                counted = dispatcher.reply_counts()
                assert counted[Disposition.MATCHED] == 25
                # On a busy machine an answer may have been asked for, and come twice; nobody else's ever comes.
                strangers = {each: count for each, count in counted.items() if count and each not in OWN}
                assert strangers == {}, "another dispatcher's replies arrived here"
        finally:
            for dispatcher in dispatchers:
                await dispatcher.close()
