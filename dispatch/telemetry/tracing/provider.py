"""The tracer of the OpenTelemetry SDK, which may be set up after the dispatcher or the service."""

from __future__ import annotations

from typing import Final

from opentelemetry import trace
from opentelemetry.trace import NoOpTracerProvider, ProxyTracerProvider, Tracer

from dispatch._internal.version import __version__
from dispatch.telemetry.names import SCHEMA_URL
from dispatch.telemetry.settings import Telemetry

TRACER_CHECK_S: Final = 1.0
"""Seconds between two checks for a provider: while there is none, a check reads the environment, which takes 3 µs."""


def find_tracer(settings: Telemetry) -> Tracer | None:
    """Return a tracer of the settings' provider or of the global one; None: no SDK is set up, or spans are off."""
    if settings.traces != "native":
        return None
    provider = settings.tracer_provider or trace.get_tracer_provider()
    if isinstance(provider, (ProxyTracerProvider, NoOpTracerProvider)):
        return None
    return provider.get_tracer("dispatch", __version__, SCHEMA_URL)
