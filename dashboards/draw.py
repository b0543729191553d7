"""Draw the dashboards as pictures, from calls in trouble and a genuine Prometheus that scrapes them for a while; with
``--demo`` the overview alone, from ``dispatch demo``; with ``--prometheus http://127.0.0.1:9090`` from what that one has.
A developer's tool, which the wheel does not have."""

from __future__ import annotations

import argparse
import asyncio
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path

from opentelemetry.sdk.trace import TracerProvider
from PIL import Image
from prometheus_client import CollectorRegistry

from dashboards.asking import Asked
from dashboards.figures import Shown, figure
from dashboards.reading import Json, filled, load, panels, queries
from dashboards.variables import OVERVIEW
from dispatch import Telemetry
from dispatch.devtools.localbroker import free_ports
from dispatch.telemetry.metrics.exposition import served
from tests.helpers.failing_calls import TOOLS, Troubled
from tests.helpers.prometheus_binaries import PrometheusMissing
from tests.helpers.prometheus_server import Prometheus, until

IMAGES = Path(__file__).parents[1] / "docs" / "images"
SECONDS = 90.0
SCRAPE_S = 2
MOST_STEPS = 300
"""Points of a line."""
TOOL = "forecast"
"""The tool whose dashboard is drawn; what it has nothing to show of is drawn of another one, which is named."""
SAMPLE = 0.05


async def run(seconds: float, folder: Path) -> None:
    """Have trouble for so long, and draw it into ``folder``."""
    telemetry = Telemetry(registry=CollectorRegistry(), tracer_provider=TracerProvider(), sample=SAMPLE)
    with (
        served(telemetry, 0) as port,
        tempfile.TemporaryDirectory(prefix="dispatch-prometheus-") as data,
        Prometheus([port], Path(data), every=SCRAPE_S) as prometheus,
    ):
        async with Troubled(telemetry, seconds * 0.9):
            await until(prometheus.scrapes, "a first scrape")
            start = time.time()
            await asyncio.sleep(seconds)
            end = time.time()
        _draw(prometheus, [TOOL, *(tool for tool in TOOLS if tool != TOOL)], SCRAPE_S, folder, start, end)


def of_the_demo(seconds: float, folder: Path) -> None:
    """Run ``dispatch demo`` for so long, and draw the overview into ``folder``, as ``demo.png``.

    Raises:
        LookupError: the demo did not go as planned.
    """
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "dispatch", "demo", "--seconds", f"{seconds:g}", "--metrics-port", str(port)]
    with (
        tempfile.TemporaryDirectory(prefix="dispatch-prometheus-") as data,
        Prometheus([port], Path(data), every=SCRAPE_S) as prometheus,
    ):
        start = time.time()
        ended = subprocess.run([*command, "--json"], stdout=subprocess.DEVNULL, check=False)
        end = time.time()
        if ended.returncode:
            raise LookupError(f"the demo ended with exit code {ended.returncode}")
        _draw(prometheus, [""], SCRAPE_S, folder, start, end, {OVERVIEW: "demo.png"})


def of_another(url: str, tool: str | None, minutes: float, folder: Path) -> None:
    """Draw what the Prometheus at ``url`` has of the last so many minutes.

    Raises:
        OSError: it is not there.
        LookupError: it has nothing of dispatch, or not of that tool.
    """
    prometheus = Asked(url.rstrip("/"))
    tools = prometheus.label_values("tool", "dispatch_calls_total")
    if not tools or (tool is not None and tool not in tools):
        raise LookupError(
            f"{url} has no calls{'' if tool is None else f' of {tool!r}'}; it knows of: {', '.join(tools) or 'no tool'}"
        )
    others = [each for each in tools if each != tool]
    every = prometheus.interval()
    end = time.time()
    _draw(prometheus, others if tool is None else [tool, *others], every, folder, end - 60 * minutes, end)


def _draw(
    prometheus: Asked,
    tools: Sequence[str],
    every: float,
    folder: Path,
    start: float,
    end: float,
    files: Mapping[str, str] | None = None,
) -> None:
    """``files``: names of the pictures by uid, of the dashboards to draw; all of them by default."""
    folder.mkdir(parents=True, exist_ok=True)
    dashboards = load()
    for uid, file in (files or {uid: f"dashboards-{uid.removeprefix('dispatch-')}.png" for uid in dashboards}).items():
        dashboard = dashboards[uid]
        shown = {
            each["id"]: _shown(prometheus, dashboard, each, tools, every, start, end) for each in panels(dashboard)
        }
        path = folder / file
        drawn = BytesIO()
        figure(dashboard, shown, start, end).savefig(drawn)
        # With a palette: a third of its size.
        palette = (
            Image.open(drawn).convert("RGB").quantize(255, Image.Quantize.MAXCOVERAGE)
        )  # keeps small areas' colours
        palette.save(path, optimize=True)
        sys.stdout.write(f"{path}\n")


def _shown(
    prometheus: Asked, dashboard: Json, panel: Json, tools: Sequence[str], every: float, start: float, end: float
) -> Shown:
    first = None
    for tool in tools:
        shown = _of_tool(prometheus, dashboard, panel, tool, every, start, end)
        if shown.anything:
            shown.note = tool if first is not None else ""
            return shown
        first = first or shown
    assert first is not None
    return first


def _of_tool(
    prometheus: Asked, dashboard: Json, panel: Json, tool: str, every: float, start: float, end: float
) -> Shown:
    picked = {"tool": tool} if dashboard["uid"] == "dispatch-tool" else {}
    interval = 4 * every
    asked = [(query, filled(query["expr"], dashboard, picked, f"{interval:g}s")) for query in queries(panel)]
    points = [
        (float(each["timestamp"]), float(each["value"]))
        for query, expr in asked
        if query.get("exemplar")
        for each in prometheus.exemplars(expr, start, end)
    ]
    bars = panel["fieldConfig"]["defaults"].get("custom", {}).get("drawStyle") == "bars"
    step = (
        interval if bars else max(every, (end - start) / MOST_STEPS)
    )  # a bar is what happened since the one before it
    return Shown([prometheus.over(expr, start, end, step) for _, expr in asked], points)


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code: 1 when there is nothing to draw from."""
    parser = argparse.ArgumentParser(prog="python -m dashboards.draw", description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"of trouble, or of the demo; {SECONDS:g}")
    parser.add_argument("--demo", action="store_true", help="draw the demo's overview (demo.png), instead")
    parser.add_argument("--prometheus", metavar="URL", help="draw what this one has, instead")
    parser.add_argument("--minutes", type=float, default=10.0, help="of that; 10")
    parser.add_argument("--tool", metavar="NAME", help="whose dashboard is drawn of that; the first one's")
    parser.add_argument(
        "--folder", type=Path, help="for the pictures; docs/images, or dashboards-drawn with --prometheus"
    )
    given = parser.parse_args(arguments)
    logging.getLogger("dispatch").setLevel(logging.CRITICAL)  # the trouble is on purpose
    try:
        if given.prometheus is not None:
            of_another(given.prometheus, given.tool, given.minutes, given.folder or Path("dashboards-drawn"))
        elif given.demo:
            of_the_demo(given.seconds, given.folder or IMAGES)
        else:
            asyncio.run(run(given.seconds, given.folder or IMAGES))
    except OSError as error:
        sys.stderr.write(f"{given.prometheus} does not answer: {error}\n")
        return 1
    except (PrometheusMissing, LookupError) as missing:
        sys.stderr.write(f"{missing}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
