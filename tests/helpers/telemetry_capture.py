"""A dispatcher whose metrics and spans the test reads: a registry and a tracer provider of its own."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from prometheus_client import CollectorRegistry

from dispatch import Dispatcher, Telemetry
from dispatch.catalog.merge import CatalogLike
from dispatch.transports.memory import MemoryTransport
from tests.helpers.dispatcher_and_service import BROKER, catalog


class Board:
    """A registry, read as a scrape reads it."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = CollectorRegistry() if registry is None else registry

    def telemetry(self, **settings: Any) -> Telemetry:
        """Reports here; without spans, unless ``settings`` say more."""
        return Telemetry(**{"registry": self.registry, "traces": "off", **settings})

    def read(self) -> dict[str, float]:
        """Every sample of ours. ``calls_total work success`` is ``dispatch_calls_total{tool="work",outcome="success"}``: the
        service of a tool is left out."""
        found: dict[str, float] = {}
        for family in self.registry.collect():
            for sample in family.samples:
                if sample.name.startswith("dispatch_"):
                    labels = [
                        value
                        for name, value in sample.labels.items()
                        if name != "service" or "tool" not in sample.labels
                    ]
                    key = " ".join((sample.name.removeprefix("dispatch_"), *labels))
                    assert key not in found, f"twice: {key}"
                    found[key] = sample.value
        return found

    def __getitem__(self, key: str) -> float:
        return self.read()[key]

    def counted(self) -> dict[str, float]:
        """What has been counted at all: counters, and how often histograms were told something. What a service
        has to say is left out, which comes when it likes (see :meth:`replies`), and so are packets."""
        return {
            key: value
            for key, value in self.read().items()
            if value
            and key.partition(" ")[0].endswith(("_total", "_count"))
            and not key.startswith(("replies_total", "session", "catalog_reloads"))
        }

    def replies(self, service: str = "lab") -> dict[str, float]:
        """Replies of a service, by disposition; those of which there are some."""
        start = f"replies_total {service} "
        return {key.removeprefix(start): n for key, n in self.read().items() if n and key.startswith(start)}

    def of(self, label: str) -> list[str]:
        """The series of a tool, a service or an instance: those that have it among their labels."""
        return [key for key in self.read() if label in key.split(" ")[1:]]


class Spans(SpanProcessor):
    """Every span, begun and ended."""

    def __init__(self) -> None:
        self.begun: list[Span] = []
        self.ended: list[ReadableSpan] = []
        self.provider = TracerProvider()
        self.provider.add_span_processor(self)

    def on_start(self, span: Span, parent_context: Any = None) -> None:
        self.begun.append(span)

    def on_end(self, span: ReadableSpan) -> None:
        self.ended.append(span)

    def shutdown(self) -> None: ...

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True

    def telemetry(self, **settings: Any) -> Telemetry:
        """Spans come here; no metrics, unless ``settings`` say more."""
        return Telemetry(**{"tracer_provider": self.provider, "metrics": False, **settings})

    @property
    def open(self) -> list[str]:
        """Names of those that have not ended, or have ended twice."""
        ends = [each.context.span_id for each in self.ended if each.context is not None]
        return [each.name for each in self.begun if ends.count(each.get_span_context().span_id) != 1]

    def named(self, start: str) -> list[ReadableSpan]:
        """Those that have ended and whose names begin so, in the order of their beginning."""
        return sorted(
            (each for each in self.ended if each.name.startswith(start)), key=lambda each: each.start_time or 0
        )

    def one(self, start: str) -> ReadableSpan:
        """The only one of that beginning."""
        (span,) = self.named(start)
        return span

    def tree(self) -> list[str]:
        """The spans as a person would draw them: an indented line each, children in the order of their beginning; with
        ``error.type``, where there is one."""
        return list(self._below(None))

    def _below(self, parent: int | None, depth: int = 0) -> Iterator[str]:
        known = {each.get_span_context().span_id for each in self.begun}
        for span in self.begun:
            above = None if span.parent is None or span.parent.span_id not in known else span.parent.span_id
            if above == parent:
                error = (span.attributes or {}).get("error.type")
                yield "  " * depth + span.name + (f" !{error}" if error else "")
                yield from self._below(span.get_span_context().span_id, depth + 1)


def short(tree: list[str]) -> list[str]:
    """A tree with the stand's topics in a word."""
    return [
        line.replace("non-persistent://tg/request/lab", "REQUESTS")
        .replace("non-persistent://tg/response/dispatch-reply-{dispatcher}", "REPLIES")
        .replace("non-persistent://tg/response/lab", "RESPONSES")
        for line in tree
    ]


@contextlib.asynccontextmanager
async def telling(
    telemetry: Telemetry, tools: CatalogLike | None = None, *, broker: str = BROKER, **options: Any
) -> AsyncIterator[Dispatcher]:
    """A started dispatcher on the stand's broker that tells what ``telemetry`` says."""
    async with Dispatcher(MemoryTransport(broker), tools or catalog(), telemetry=telemetry, **options) as dispatcher:
        yield dispatcher
