"""Draw the dashboards as pictures. By default a load with injected faults runs and a local Prometheus scrapes it;
``--demo`` draws the overview of ``dispatch demo``; ``--prometheus http://127.0.0.1:9090`` draws the data of that server."""

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

from dashboards.dashboard_json import Json, interpolate, iter_panels, list_queries, load_dashboards
from dashboards.plots import PanelData, plot_dashboard
from dashboards.prometheus_api import PrometheusApi
from dashboards.variables import OVERVIEW
from dispatch import Telemetry
from dispatch.devtools.localbroker import find_free_ports
from tests.helpers.failing_calls import TOOLS, Troubled
from tests.helpers.metrics_port import expose_metrics
from tests.helpers.prometheus_binaries import PrometheusMissing
from tests.helpers.prometheus_server import Prometheus, until

IMAGES = Path(__file__).parents[1] / "docs" / "images"
SECONDS = 90.0
SCRAPE_S = 2
MAX_STEPS = 300
"""Maximum number of points of a line."""
TOOL = "forecast"
"""The tool whose dashboard is drawn. A panel without data for it shows another tool, named in the title."""
SAMPLE = 0.05


async def run(seconds: float, folder: Path) -> None:
    """Run the load with faults for ``seconds`` and draw the dashboards into ``folder``."""
    telemetry = Telemetry(registry=CollectorRegistry(), tracer_provider=TracerProvider(), sample=SAMPLE)
    with (
        expose_metrics(telemetry) as port,
        tempfile.TemporaryDirectory(prefix="dispatch-prometheus-") as data,
        Prometheus([port], Path(data), every=SCRAPE_S) as prometheus,
    ):
        async with Troubled(telemetry, seconds * 0.9):
            await until(prometheus.is_scraping, "a first scrape")
            start = time.time()
            await asyncio.sleep(seconds)
            end = time.time()
        _draw(prometheus, [TOOL, *(tool for tool in TOOLS if tool != TOOL)], SCRAPE_S, folder, start, end)


def draw_demo(seconds: float, folder: Path) -> None:
    """Run ``dispatch demo`` for ``seconds`` and draw the overview into ``folder`` as ``demo.png``.

    Raises:
        LookupError: the demo failed.
    """
    (port,) = find_free_ports(1)
    command = [sys.executable, "-m", "dispatch", "demo", "--seconds", f"{seconds:g}", "--admin", f"127.0.0.1:{port}"]
    with (
        tempfile.TemporaryDirectory(prefix="dispatch-prometheus-") as data,
        Prometheus([port], Path(data), every=SCRAPE_S) as prometheus,
    ):
        start = time.time()
        process = subprocess.run([*command, "--json"], stdout=subprocess.DEVNULL, check=False)
        end = time.time()
        if process.returncode:
            raise LookupError(f"the demo failed with exit code {process.returncode}")
        _draw(prometheus, [""], SCRAPE_S, folder, start, end, {OVERVIEW: "demo.png"})


def draw_prometheus(url: str, tool: str | None, minutes: float, folder: Path) -> None:
    """Draw the last ``minutes`` of the Prometheus at ``url``.

    Raises:
        OSError: the server is not reachable.
        LookupError: it has no calls, or none of ``tool``.
    """
    prometheus = PrometheusApi(url.rstrip("/"))
    tools = prometheus.list_label_values("tool", "dispatch_calls_total")
    if not tools or (tool is not None and tool not in tools):
        raise LookupError(
            f"{url} has no calls{'' if tool is None else f' of {tool!r}'}; tools with calls: {', '.join(tools) or 'none'}"
        )
    others = [each for each in tools if each != tool]
    every = prometheus.get_scrape_interval()
    end = time.time()
    _draw(prometheus, others if tool is None else [tool, *others], every, folder, end - 60 * minutes, end)


def _draw(
    prometheus: PrometheusApi,
    tools: Sequence[str],
    every: float,
    folder: Path,
    start: float,
    end: float,
    files: Mapping[str, str] | None = None,
) -> None:
    """Draw dashboards. ``files``: file names by uid of the dashboards to draw; default: all."""
    folder.mkdir(parents=True, exist_ok=True)
    dashboards = load_dashboards()
    for uid, file in (files or {uid: f"dashboards-{uid.removeprefix('dispatch-')}.png" for uid in dashboards}).items():
        dashboard = dashboards[uid]
        shown = {
            each["id"]: _query_first_tool_with_data(prometheus, dashboard, each, tools, every, start, end)
            for each in iter_panels(dashboard)
        }
        path = folder / file
        drawn = BytesIO()
        plot_dashboard(dashboard, shown, start, end).savefig(drawn)
        # A palette reduces the file to a third.
        palette = (
            Image.open(drawn).convert("RGB").quantize(255, Image.Quantize.MAXCOVERAGE)
        )  # preserves the colours of small areas
        palette.save(path, optimize=True)
        sys.stdout.write(f"{path}\n")


def _query_first_tool_with_data(
    prometheus: PrometheusApi,
    dashboard: Json,
    panel: Json,
    tools: Sequence[str],
    every: float,
    start: float,
    end: float,
) -> PanelData:
    first = None
    for tool in tools:
        shown = _query_panel(prometheus, dashboard, panel, tool, every, start, end)
        if shown.has_values:
            shown.note = tool if first is not None else ""
            return shown
        first = first or shown
    assert first is not None
    return first


def _query_panel(
    prometheus: PrometheusApi, dashboard: Json, panel: Json, tool: str, every: float, start: float, end: float
) -> PanelData:
    selected = {"tool": tool} if dashboard["uid"] == "dispatch-tool" else {}
    interval = 4 * every
    asked = [
        (query, interpolate(query["expr"], dashboard, selected, f"{interval:g}s")) for query in list_queries(panel)
    ]
    points = [
        (float(each["timestamp"]), float(each["value"]))
        for query, expr in asked
        if query.get("exemplar")
        for each in prometheus.query_exemplars(expr, start, end)
    ]
    bars = panel["fieldConfig"]["defaults"].get("custom", {}).get("drawStyle") == "bars"
    step = interval if bars else max(every, (end - start) / MAX_STEPS)  # a bar counts the events since the previous bar
    return PanelData([prometheus.query_range(expr, start, end, step) for _, expr in asked], points)


def main(arguments: list[str] | None = None) -> int:
    """Parse arguments and draw. Returns the exit code: 1 when there is no data to draw."""
    parser = argparse.ArgumentParser(prog="python -m dashboards.draw", description=__doc__)
    parser.add_argument(
        "--seconds",
        type=float,
        default=SECONDS,
        help=f"duration of the load or the demo in seconds; default {SECONDS:g}",
    )
    parser.add_argument("--demo", action="store_true", help="draw the overview of the demo (demo.png) instead")
    parser.add_argument("--prometheus", metavar="URL", help="draw the data of this Prometheus instead")
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="the last minutes of that Prometheus to draw; default 10"
    )
    parser.add_argument(
        "--tool", metavar="NAME", help="tool whose dashboard is drawn from that Prometheus; default: the first"
    )
    parser.add_argument(
        "--folder", type=Path, help="output folder; default docs/images, with --prometheus dashboards-drawn"
    )
    given = parser.parse_args(arguments)
    logging.getLogger("dispatch").setLevel(logging.CRITICAL)  # faults are injected
    try:
        if given.prometheus is not None:
            draw_prometheus(given.prometheus, given.tool, given.minutes, given.folder or Path("dashboards-drawn"))
        elif given.demo:
            draw_demo(given.seconds, given.folder or IMAGES)
        else:
            asyncio.run(run(given.seconds, given.folder or IMAGES))
    except OSError as error:
        sys.stderr.write(f"{given.prometheus} is not reachable: {error}\n")
        return 1
    except (PrometheusMissing, LookupError) as missing:
        sys.stderr.write(f"{missing}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
