"""A scrape of ``metrics_app()`` held the event loop for 860 to 1,763 ms at 1,000 tools. The text is built on another
thread, in pieces of a bounded number of series, and the thread sleeps after each so that the loop gets the interpreter lock.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from dispatch.telemetry.exposition import HISTOGRAMS, VALUES, TextFamily, render_metrics
from dispatch.telemetry.observers import DURATION_BUCKETS
from tests.helpers.dispatcher_and_service import catalog, serving
from tests.helpers.telemetry_capture import Board, telling
from tests.unit.telemetry.metrics.test_exposition import OPEN_METRICS, asked

TOOLS = 300


class Waiting:
    """A collector that ends only when the event loop goes on meanwhile."""

    def __init__(self) -> None:
        self.loop_ran = threading.Event()

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("loop_ran", "Whether it did.", float(self.loop_ran.wait(5)))


async def test_the_loop_runs_while_the_metrics_are_built() -> None:
    board, waiting = Board(), Waiting()
    board.registry.register(waiting)
    async with serving(lambda _: "done"), telling(board.telemetry()) as dispatcher:
        await dispatcher.call("work")
        asyncio.get_running_loop().call_soon(waiting.loop_ran.set)
        _, _, body = await asked(dispatcher.metrics_app(), OPEN_METRICS)
    assert "\nloop_ran 1.0\n" in body
    assert 'dispatch_calls_total{outcome="success",tool="work"} 1.0\n' in body


async def test_the_text_is_built_in_pieces_of_bounded_size() -> None:
    board = Board()
    telemetry, tools = board.telemetry(), catalog(**{f"tool-{number}": {} for number in range(TOOLS)})
    async with serving(lambda _: "done"), telling(telemetry, tools) as dispatcher:
        for name in tools.tools:
            await dispatcher.call(name)
        families = [family for family in board.registry.collect() if isinstance(family, TextFamily)]
        sizes = [piece.count("\n") for family in families for piece in family.text(open_metrics=True)]
        pauses: list[None] = []
        _, body = render_metrics(board.registry, OPEN_METRICS, "", pause=lambda: pauses.append(None))
    assert body.count(b"\n") > 80 * TOOLS
    assert max(sizes) <= max(VALUES, HISTOGRAMS * (len(DURATION_BUCKETS) + 3))
    assert len(pauses) == len(sizes) + 1, "one after each piece, and one after what others have registered"
