"""Whether somebody listens to spans: the provider in force, which may be set up after the dispatcher or the service."""

from __future__ import annotations

from typing import Final

from opentelemetry import trace
from opentelemetry.trace import NoOpTracerProvider, ProxyTracerProvider, Tracer

from dispatch._version import __version__
from dispatch.telemetry.names import SCHEMA_URL
from dispatch.telemetry.settings import Telemetry

LOOK_S: Final = 1.0
"""How often it is looked: to ask for the provider reads the environment, 3 µs, as long as there is none."""


def listening(settings: Telemetry) -> Tracer | None:
    """A tracer of the settings' provider, or of the one that is in force everywhere; None: nobody listens."""
    if settings.traces != "native":
        return None
    provider = settings.tracer_provider or trace.get_tracer_provider()
    if isinstance(provider, (ProxyTracerProvider, NoOpTracerProvider)):
        return None
    return provider.get_tracer("dispatch", __version__, SCHEMA_URL)
