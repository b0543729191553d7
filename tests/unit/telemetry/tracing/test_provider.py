"""The tracer is looked up once a second while no SDK is set up, and not for every request."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NoOpTracerProvider, Tracer

from dispatch.telemetry import tracing as service_spans
from dispatch.telemetry.observers import NULL_SERVED_REQUEST, ServerNames, Telemetry
from dispatch.telemetry.tracing import TRACER_CHECK_S, ServiceTracing, find_tracer


class _Request:
    """A request without a trace context."""

    id = "id"
    headers: Mapping[str, str] = {}
    reply_topic = "responses"


REQUEST = _Request()


def test_a_tracer_of_the_settings_provider_is_found_unless_it_is_a_no_op() -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    assert find_tracer(Telemetry(tracer_provider=provider)) is not None
    assert find_tracer(Telemetry(tracer_provider=NoOpTracerProvider())) is None
    assert find_tracer(Telemetry(tracer_provider=provider, traces="propagation-only")) is None
    assert find_tracer(Telemetry()) is None, "this process has no global provider"


async def test_a_service_checks_once_a_second_for_an_sdk_until_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    checks, is_set_up = [], False
    provider = TracerProvider(shutdown_on_exit=False)

    def check(settings: Telemetry) -> Tracer | None:
        checks.append(settings)
        return find_tracer(Telemetry(tracer_provider=provider)) if is_set_up else None

    monkeypatch.setattr(service_spans, "find_tracer", check)
    tracing = ServiceTracing(Telemetry(), ServerNames("s", "i", "t", "r-{dispatcher}", "responses"))
    now = 1_000.0
    for _ in range(50):
        assert tracing.start_request(REQUEST, now, NULL_SERVED_REQUEST) is NULL_SERVED_REQUEST
    assert len(checks) == 1
    is_set_up = True
    assert tracing.start_request(REQUEST, now + TRACER_CHECK_S / 2, NULL_SERVED_REQUEST) is NULL_SERVED_REQUEST
    for _ in range(3):
        request = tracing.start_request(REQUEST, now + TRACER_CHECK_S, NULL_SERVED_REQUEST)
        assert request is not NULL_SERVED_REQUEST
        request.on_end()
    assert len(checks) == 2, "no further check once there is an SDK"
