"""Exposition of metrics: OpenMetrics with exemplars, or Prometheus' text."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import REGISTRY
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as plain

import dispatch
from dispatch import Telemetry
from dispatch.telemetry import exposition
from dispatch.telemetry.exposition import MULTIPROCESS_VARIABLE, registry_of
from dispatch.telemetry.observers import SILENT
from tests.helpers.dispatcher_and_service import serving
from tests.helpers.telemetry_capture import Board, Spans, telling

OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


async def asked(app: Any, accept: str | None, path: str = "/metrics") -> tuple[int, str, str]:
    """Status, content type and body of an ASGI application's answer."""
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "query_string": b"",
        "headers": [] if accept is None else [(b"accept", accept.encode())],
    }
    await app(scope, receive, send)
    headers = {bytes(key).lower(): bytes(value).decode() for key, value in sent[0]["headers"]}
    body = b"".join(message.get("body", b"") for message in sent[1:])
    return sent[0]["status"], headers[b"content-type"], body.decode()


@pytest.mark.parametrize("is_set", [True, False])
async def test_one_warning_in_the_multiprocess_mode(
    is_set: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if is_set:
        monkeypatch.setenv(MULTIPROCESS_VARIABLE, "/tmp/metrics")
    else:
        monkeypatch.delenv(MULTIPROCESS_VARIABLE, raising=False)
    exposition._warn_of_multiprocess_mode.cache_clear()
    board = Board()
    for _ in range(3):
        telemetry = Telemetry(registry=board.registry, traces="off")
        async with serving(lambda _: "done", telemetry=telemetry), telling(telemetry) as dispatcher:
            assert await dispatcher.call("work") == "done"
    exposition._warn_of_multiprocess_mode.cache_clear()
    found = [record.getMessage() for record in caplog.records if MULTIPROCESS_VARIABLE in record.getMessage()]
    assert len(found) == int(is_set)
    assert all("a port of its own" in text for text in found)


async def test_openmetrics_for_clients_that_accept_it() -> None:
    board, spans = Board(), Spans()
    telemetry = Telemetry(registry=board.registry, tracer_provider=spans.provider)
    async with serving(lambda _: "done", telemetry=SILENT), telling(telemetry) as dispatcher:
        await dispatcher.call("work")
        status, kind, body = await asked(dispatcher.metrics_app(), OPEN_METRICS)
        assert (status, kind.partition(";")[0]) == (200, "application/openmetrics-text")
        families = {family.name: family for family in open_metrics(body)}
        assert families["dispatch_calls"].type == "counter"
        assert families["dispatch_call_duration_seconds"].type == "histogram"
        assert all(family.documentation for name, family in families.items() if name.startswith("dispatch_"))
        (found,) = [each.exemplar for each in families["dispatch_call_duration_seconds"].samples if each.exemplar]
        context = spans.one("execute_tool").context
        assert found.labels == {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}


async def test_prometheus_text_for_other_clients() -> None:
    board = Board()
    async with serving(lambda _: "done"), telling(board.telemetry()) as dispatcher:
        await dispatcher.call("work")
        for accept in (None, "text/plain", "*/*"):
            status, kind, body = await asked(dispatcher.metrics_app(), accept, path="/anywhere")
            assert (status, kind.partition(";")[0]) == (200, "text/plain")
            assert "dispatch_calls" in {family.name for family in plain(body)}


async def test_a_dispatcher_that_was_not_started_has_metrics_to_mount() -> None:
    board = Board()
    dispatcher = dispatch.connect("memory://nobody", telemetry=board.telemetry())
    assert (await asked(dispatcher.metrics_app(), None))[0] == 200


def test_the_default_registry_is_prometheus_clients() -> None:
    assert registry_of(Telemetry()) is REGISTRY
    board = Board()
    assert registry_of(board.telemetry()) is board.registry
