"""States of circuits, read from the metrics endpoint of a running dispatcher."""

from __future__ import annotations

import asyncio
import http.server
import threading
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry

import dispatch
from dispatch.cli.base import CliError, Exit
from dispatch.cli.tools import read_circuits
from tests.helpers.followed_config import SERVICE, TOOL
from tests.helpers.metrics_port import expose_metrics

CATALOG = dispatch.Catalog.of([SERVICE], [TOOL, TOOL | {"name": "sing"}])


@pytest.mark.costly
async def test_the_circuits_of_two_dispatchers() -> None:
    telemetry = dispatch.Telemetry(registry=CollectorRegistry())
    with expose_metrics(telemetry) as port:
        url = f"http://127.0.0.1:{port}/metrics"
        async with (
            dispatch.connect("memory://circuits", CATALOG, telemetry=telemetry) as one,
            dispatch.connect("memory://circuits", CATALOG, telemetry=telemetry) as two,
        ):
            for dispatcher in (one, two):
                for tool in ("tell-joke", "sing"):
                    dispatcher.breaker(tool)
            one.breaker("tell-joke").force_open()
            found = await asyncio.to_thread(read_circuits, [url])
            assert found == {"tell-joke": "1 of 2 forced-open", "sing": "closed"}
            two.breaker("tell-joke").force_open()
            assert (await asyncio.to_thread(read_circuits, [url]))["tell-joke"] == "forced-open"
            assert (await asyncio.to_thread(read_circuits, [url, url]))["tell-joke"] == "forced-open"


@pytest.fixture
def page() -> Iterator[str]:
    """The URL of a page that has no metrics."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>{")

        def log_message(self, *_arguments: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_a_page_without_metrics(page: str) -> None:
    with pytest.raises(CliError, match="is not the text of metrics") as raised:
        read_circuits([page])
    assert raised.value.code is Exit.TRANSPORT


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/metrics", "http://127.0.0.1:99999/", "http:///"])
def test_an_endpoint_that_is_not_there(url: str) -> None:
    with pytest.raises(CliError, match="cannot be read") as raised:
        read_circuits([url])
    assert raised.value.code is Exit.TRANSPORT


def test_only_http_is_read() -> None:
    with pytest.raises(CliError, match="is no URL of a metrics endpoint") as raised:
        read_circuits(["file:///etc/passwd"])
    assert raised.value.code is Exit.USAGE
