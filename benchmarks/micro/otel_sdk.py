"""A genuine OpenTelemetry SDK whose spans go nowhere: what is to be measured is what it costs to make them. It may not be
installed: it comes with an extra.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchmarks.micro.guard_stacks import Absent

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
else:
    SpanExporter = object

INSTALL = "pip install 'tool-dispatch[otel]'"


class Dropping(SpanExporter):
    """An exporter that takes spans and throws them away.

    Attributes:
        spans: so many came.
    """

    def __init__(self) -> None:
        self.spans = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """As if a backend took everything at once."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        self.spans += len(spans)
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Nothing is open."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing waits."""
        return True


def there() -> None:
    """Look whether it is installed.

    Raises:
        Absent: it is not.
    """
    if importlib.util.find_spec("opentelemetry.sdk") is None:
        raise Absent("opentelemetry-sdk")


def recording() -> TracerProvider:
    """Records every span, and hands it to a processor that does nothing: export is not counted.

    Raises:
        Absent: the SDK is not installed.
    """
    there()
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON

    made = TracerProvider(sampler=ALWAYS_ON)
    made.add_span_processor(SpanProcessor())
    return made


def refusing() -> TracerProvider:
    """Its own sampler takes no span.

    Raises:
        Absent: the SDK is not installed.
    """
    there()
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

    return TracerProvider(sampler=ALWAYS_OFF)


def exporting(exporter: Dropping) -> TracerProvider:
    """As in production: spans are taken in batches, on a thread of their own. Shut it down afterwards.

    Raises:
        Absent: the SDK is not installed.
    """
    there()
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON

    made = TracerProvider(sampler=ALWAYS_ON)
    made.add_span_processor(BatchSpanProcessor(exporter))
    return made
