"""Whether somebody listens: asked now and then while nobody does, and not with every request."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NoOpTracerProvider, Tracer

from dispatch.telemetry.served_request_observer import NULL_SERVED_REQUEST
from dispatch.telemetry.settings import Telemetry
from dispatch.telemetry.tracing import service_spans as serving
from dispatch.telemetry.tracing.provider import LOOK_S, listening
from dispatch.telemetry.tracing.service_spans import ServiceTracing


def test_the_settings_provider_is_listened_to_if_it_is_one() -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    assert listening(Telemetry(tracer_provider=provider)) is not None
    assert listening(Telemetry(tracer_provider=NoOpTracerProvider())) is None
    assert listening(Telemetry(tracer_provider=provider, traces="propagation-only")) is None
    assert listening(Telemetry()) is None, "nobody has set one up in this process"


def test_a_service_looks_once_a_second_until_somebody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, there = [], False
    provider = TracerProvider(shutdown_on_exit=False)

    def look(settings: Telemetry) -> Tracer | None:
        looks.append(settings)
        return listening(Telemetry(tracer_provider=provider)) if there else None

    monkeypatch.setattr(serving, "listening", look)
    tracing = ServiceTracing(
        Telemetry(),
        service="s",
        instance="i",
        topic="t",
        replies="r-{dispatcher}",
        responses="responses",
        reply_topic=lambda properties: "responses",
    )
    now = 1_000.0
    for _ in range(50):
        assert tracing.start_request("id", {}, now, NULL_SERVED_REQUEST) is NULL_SERVED_REQUEST
    assert len(looks) == 1
    there = True
    assert tracing.start_request("id", {}, now + LOOK_S / 2, NULL_SERVED_REQUEST) is NULL_SERVED_REQUEST
    for _ in range(3):
        request = tracing.start_request("id", {}, now + LOOK_S, NULL_SERVED_REQUEST)
        assert request is not NULL_SERVED_REQUEST
        request.on_end()
    assert len(looks) == 2, "whoever listens is not looked for any more"
