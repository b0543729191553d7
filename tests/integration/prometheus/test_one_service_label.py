"""The service of the tutorial and an agent, as two processes on a broker: a genuine Prometheus scrapes both, and every panel
has data for the service under the id of the descriptor, which the service learns from the agent."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.harness.broker import Endpoint
from dashboards.dashboard_json import interpolate, iter_panels, list_queries, load_dashboards
from tests.docs.pages import ROOT, blocks
from tests.helpers.cli_processes import started
from tests.helpers.prometheus_server import SCRAPE_S, Prometheus, until
from tests.helpers.python_processes import running

pytestmark = [pytest.mark.pulsar, pytest.mark.prometheus]

AGENT = """
import asyncio, sys

import dispatch

async def main(url, catalog):
    async with dispatch.connect(url, catalog, admin="127.0.0.1:0") as agent:
        print("Admin:", agent.admin_url, flush=True)
        while True:
            await agent.execute("tell-joke", {"topic": "cats"}, user="alice", timeout=20)
            await asyncio.sleep(0.05)

asyncio.run(main(*sys.argv[1:]))
"""
WITHOUT_DATA = {
    "Calls by version",
    "Circuit breakers not closed, by tool",
    "Failures by version",
    "Last reload",
    "Quota used",
    "Queue wait",
    "Refused by policy, by user",
    "Shares of the fleet's limits",
    "Time to first chunk",
}
"""Panels on what does not happen here: versions, streams, queues, refusals, a fleet, a change of the catalogue."""


def list_services(url: str) -> set[str]:
    """Return the values of the label ``service`` in an exposition."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as response:
        families = text_string_to_metric_families(response.read().decode())
    return {sample.labels["service"] for each in families for sample in each.samples if "service" in sample.labels}


def find_empty_panels(prometheus: Prometheus, began: float, service: str) -> set[str]:
    """Return the titles of panels of which a query has no series for ``service``."""
    found = set()
    for uid, dashboard in load_dashboards().items():
        selected = {"service": service, **({"tool": "tell-joke"} if uid == "dispatch-tool" else {})}
        for panel in iter_panels(dashboard):
            for query in list_queries(panel):
                expression = interpolate(query["expr"], dashboard, selected, f"{4 * SCRAPE_S}s")
                if not any(values for _, values in prometheus.query_range(expression, began, time.time())):
                    found.add(panel["title"])
    return found


def write_tutorial(folder: Path, name: str) -> None:
    """Write the first files of the tutorial, with the topics of ``name``."""
    for each in blocks(ROOT / "docs" / "tutorial" / "first-call.md"):
        if each.file is not None and not (path := folder / each.file).exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(each.code.replace('/joke"', f'/{name}"'))


async def test_a_dispatcher_and_a_service_as_processes_give_it_one_name(
    pulsar_endpoint: Endpoint, tmp_path: Path
) -> None:
    url, name = pulsar_endpoint.service_url, f"joke-{secrets.token_hex(4)}"
    id = "joke-service"
    write_tutorial(tmp_path, name)
    (tmp_path / "agent.py").write_text(AGENT)
    serve = ("serve", f"{tmp_path / 'joke.py'}:Joke", "--service", name, "--broker", url, "--admin", "127.0.0.1:0")
    agent = (str(tmp_path / "agent.py"), url, str(tmp_path / "tools"))
    with started(*serve) as service, running(*agent, ready="Admin: ") as program:
        await asyncio.to_thread(service.err.wait_for, "Ctrl-C")
        urls = [read_admin(service.err.text()), read_admin(program.text())]

        def has(*expected: set[str]) -> Callable[[], bool]:
            return lambda: [list_services(each) for each in urls] == list(expected)

        await until(has({id}, {id, "_OTHER"}), "one id in both", lambda: [list_services(each) for each in urls])
        began = time.time()
        with Prometheus([int(each.rpartition(":")[2]) for each in urls], tmp_path / "prometheus") as prometheus:
            empty: set[str] = set()

            def is_shown() -> bool:
                empty.clear()
                empty.update(find_empty_panels(prometheus, began, id))
                return empty == WITHOUT_DATA

            await until(is_shown, "data on every panel", lambda: empty ^ WITHOUT_DATA)
            assert prometheus.list_label_values("service", '{__name__=~"dispatch_.+"}') == ["_OTHER", id]


def read_admin(text: str) -> str:
    """Return the URL of the admin endpoint in what a process has written."""
    found = re.search(r"Admin: (http://\S+)", text)
    assert found is not None, text
    return found[1]
