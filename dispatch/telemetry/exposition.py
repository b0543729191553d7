"""Exposition of the metrics as an ASGI application.

The text is rendered on a thread, in pieces of some tenths of a millisecond. The thread sleeps after each piece: a computing
thread releases the interpreter lock only every 5 ms, and the event loop would wait that long.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import re
import threading
import time
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from functools import lru_cache, partial
from itertools import accumulate, islice
from types import SimpleNamespace
from typing import Any, ClassVar, Generic, Self, TypeVar
from urllib.parse import parse_qs
from weakref import WeakKeyDictionary

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    Exemplar,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    Sample,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from dispatch._internal import encode_text, run_in_thread, scalar_text
from dispatch.telemetry.observers import Telemetry

# Metric families that write their own exposition text.
#
# prometheus-client builds a ``Sample`` with a dictionary of labels for each line of a scrape and formats the labels again:
# 5 to 8 µs a line, 0.5 to 0.9 s for 1,000 tools. These families format all lines of a histogram's series with one template.


VALUES, HISTOGRAMS = 256, 32
"""Series of one piece of text: 0.2 to 0.4 ms of work, after which other threads may run."""

Labels = tuple[str, ...]
Values = Iterable[tuple[Labels, float]]
"""Label values and the value of each series."""


class TextFamily(Metric):
    """A metric family whose samples are built only when ``samples`` is read. :meth:`text` does without them.

    Args:
        name: of the metric, without a suffix.
        help: description.
        type: ``counter``, ``gauge`` or ``histogram``.
        labels: label names.

    Attributes:
        piece: series of one piece of text.
    """

    piece: ClassVar[int]

    def __init__(self, name: str, help: str, type: str, labels: Sequence[str]) -> None:
        super().__init__(name, help, type)
        self._label_names = tuple(labels)
        self._sorted = sorted(range(len(labels)), key=labels.__getitem__)  # as prometheus-client writes them

    @property
    def samples(self) -> list[Sample]:
        """The samples, built now."""
        return self._build().samples

    @samples.setter
    def samples(self, _none: list[Sample]) -> None:
        """The base class sets an empty list."""

    def _build(self) -> Metric:
        raise NotImplementedError

    def _lines(self, open_metrics: bool) -> Iterator[str]:
        raise NotImplementedError

    def text(self, open_metrics: bool) -> Iterator[str]:
        """Yield the family's lines in pieces of at most ``piece`` series.

        Args:
            open_metrics: write OpenMetrics, with exemplars; otherwise Prometheus' text format.
        """
        name, help = self.name, self.documentation.replace("\\", r"\\").replace("\n", r"\n")
        if open_metrics:
            help = help.replace('"', r"\"")
        elif self.type == "counter":
            name += "_total"
        yield f"# HELP {name} {help}\n# TYPE {name} {self.type}\n"
        lines = self._lines(open_metrics)
        while piece := "".join(islice(lines, self.piece)):
            yield piece


class ValueFamily(TextFamily):
    """A counter's or a gauge's family.

    Args:
        name, help, labels: see :class:`TextFamily`.
        type: ``counter`` or ``gauge``.
        values: returns the values; called once for each scrape.
    """

    piece = VALUES

    def __init__(self, name: str, help: str, type: str, labels: Sequence[str], values: Callable[[], Values]) -> None:
        super().__init__(name, help, type, labels)
        self._values = values

    def _build(self) -> Metric:
        kind = CounterMetricFamily if self.type == "counter" else GaugeMetricFamily
        family = kind(self.name, self.documentation, labels=self._label_names)
        for labels, value in self._values():
            family.add_metric(labels, value)
        return family

    def _lines(self, open_metrics: bool) -> Iterator[str]:
        template = self.name + ("_total" if self.type == "counter" else "")
        order = self._sorted
        if order:
            template += "{" + ",".join(f'{self._label_names[at]}="%s"' for at in order) + "}"
        template += " %s\n"
        for labels, value in self._values():
            yield template % (*[escape(labels[at]) for at in order], number(value))


Timed = tuple[Labels, Sequence[int], float, Sequence[Exemplar | None]]
"""A histogram's series: label values, the count of each bucket (not cumulative), the sum, the exemplar of each bucket."""


class HistogramFamily(TextFamily):
    """A histogram's family.

    Args:
        name, help, labels: see :class:`TextFamily`.
        bounds: the upper bounds of its buckets as texts, ``+Inf`` last.
        series: returns the series; called once for each scrape.
    """

    piece = HISTOGRAMS

    def __init__(
        self, name: str, help: str, labels: Sequence[str], bounds: Sequence[str], series: Callable[[], Iterable[Timed]]
    ) -> None:
        super().__init__(name, help, "histogram", labels)
        self._bounds = bounds
        self._series = series

    def _build(self) -> Metric:
        family = HistogramMetricFamily(self.name, self.documentation, labels=self._label_names)
        for labels, counts, total, exemplars in self._series():
            rows = zip(self._bounds, accumulate(counts), exemplars, strict=True)
            buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = [
                (bound, count) if exemplar is None else (bound, count, exemplar) for bound, count, exemplar in rows
            ]
            family.add_metric(labels, buckets, total)
        return family

    def _lines(self, open_metrics: bool) -> Iterator[str]:
        name = self.name
        # Formatted twice: with the labels of a series, then with its numbers.
        lines = [f'{name}_bucket{{%(before)sle="{bound}"%(after)s}} %%s\n' for bound in self._bounds]
        ends = f"{name}_count%(labels)s %%s\n{name}_sum%(labels)s %%s\n"
        whole = "".join(lines) + ends
        named = [(self._label_names[at], at) for at in self._sorted]
        for values, counts, total, exemplars in self._series():
            template = whole
            if open_metrics and any(exemplars):
                pointed = [
                    line if exemplar is None else line.replace("\n", f"{_exemplar(exemplar)}\n")
                    for line, exemplar in zip(lines, exemplars, strict=True)
                ]
                template = "".join(pointed) + ends
            pairs = [(label, f'{label}="{escape(values[at])}"'.replace("%", "%%")) for label, at in named]
            labels = {
                "before": "".join([f"{pair}," for label, pair in pairs if label < "le"]),
                "after": "".join([f",{pair}" for label, pair in pairs if label > "le"]),
                "labels": "{" + ",".join([pair for _, pair in pairs]) + "}" if pairs else "",
            }
            cumulative = [number(count) for count in accumulate(counts)]
            yield template % labels % (*cumulative, cumulative[-1], number(total))


def _exemplar(exemplar: Exemplar) -> str:
    """Return the text of an exemplar, escaped for two rounds of formatting."""
    labels = ",".join(f'{name}="{escape(value)}"' for name, value in sorted(exemplar.labels.items()))
    time = "" if exemplar.timestamp is None else f" {exemplar.timestamp}"
    return f" # {{{labels}}} {number(exemplar.value)}{time}".replace("%", "%%%%")


@lru_cache(maxsize=8_192)
def escape(value: str) -> str:
    """Return a label's value as both formats write it."""
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def number(value: float) -> str:
    """Return a sample's value as both formats write it."""
    if type(value) is int and -1_000_000 < value < 1_000_000:
        return f"{value}.0"
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]


logger = logging.getLogger("dispatch.telemetry")

MULTIPROCESS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""The environment variable that sets prometheus-client's multiprocess mode."""
PAUSE_S = 0.0003
"""Seconds that the thread sleeps after each piece: long enough for a waiting thread to acquire the interpreter lock."""
GZIP_LEVEL = 6
GZIP = 16 + zlib.MAX_WBITS
"""``wbits`` with which zlib writes gzip's format."""

Headers = list[tuple[str, str]]


def registry_of(telemetry: Telemetry) -> CollectorRegistry:
    """Return the registry of the metrics. The first call warns if prometheus-client runs in its multiprocess mode."""
    _warn_of_multiprocess_mode()
    return REGISTRY if telemetry.registry is None else telemetry.registry


@functools.cache
def _warn_of_multiprocess_mode() -> None:
    """Log a warning, once in a process. dispatch's series are updated without locks, in memory: prometheus-client's files,
    which a worker reads for all of them, have none of them."""
    if MULTIPROCESS_VARIABLE in os.environ:
        logger.warning(
            "%s is set, but the metrics of dispatch are not in its files: serve those of each worker on a port of its own "
            "(docs/how-to/observe.md, Several workers)",
            MULTIPROCESS_VARIABLE,
        )


def render_metrics(
    registry: CollectorRegistry,
    accept: str,
    accept_encoding: str,
    names: Sequence[str] = (),
    *,
    pause: Callable[[], None] = lambda: time.sleep(PAUSE_S),
) -> tuple[Headers, bytes]:
    """Render the metrics as text. Takes up to seconds: do not call it on an event loop's thread.

    Args:
        registry: of the metrics.
        accept, accept_encoding: headers of the request. A client that accepts OpenMetrics, as Prometheus does, gets that
            format with exemplars; others get Prometheus' text format.
        names: only samples of these names; empty: all.
        pause: called after each piece of some tenths of a millisecond.

    Returns:
        The headers and the body of the response.
    """
    try:
        encoder, content_type = choose_encoder(accept)
    except TypeError:  # of prometheus-client, for a version that is no number
        encoder, content_type = choose_encoder("")
    open_metrics = content_type.startswith("application/openmetrics-text")
    headers = [("Content-Type", content_type)]
    families: Iterable[Metric] = (registry.restricted_registry(names) if names else registry).collect()
    plain = "escaping=dots" not in content_type  # which writes an underscore as two

    def pieces() -> Iterator[bytes]:
        others: list[Metric] = []
        for family in families:
            if plain and isinstance(family, TextFamily):
                yield from (encode_text(piece) for piece in family.text(open_metrics))
            else:
                others.append(family)
        yield encoder(SimpleNamespace(collect=lambda: others))  # as of a registry; ends with OpenMetrics' end mark

    zipped = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, GZIP) if accepts_gzip(accept_encoding) else None
    body = []
    for piece in pieces():
        body.append(piece if zipped is None else zipped.compress(piece))
        pause()
    if zipped is not None:
        headers.append(("Content-Encoding", "gzip"))
        body.append(zipped.flush())
    return headers, b"".join(body)


def accepts_gzip(accept_encoding: str) -> bool:
    """Return whether a client accepts gzip by its ``Accept-Encoding`` (RFC 9110, section 12.5.3): a weight of 0 refuses."""
    weights: dict[str, str] = {}
    for each in accept_encoding.lower().split(","):
        coding, _, weight = each.partition(";")
        weights[coding.strip()] = "".join(weight.split())
    return re.fullmatch(r"q=0(\.0*)?", weights.get("gzip", weights.get("*", "q=0"))) is None


def metrics_app(telemetry: Telemetry) -> Any:
    """Return an ASGI application that answers GET with the metrics, at every path. It renders them on a thread of its own:
    the event loop does not wait for it, and no shared executor delays a scrape."""
    registry = registry_of(telemetry)

    async def app(
        scope: MutableMapping[str, Any], receive: Callable[[], Any], send: Callable[[MutableMapping[str, Any]], Any]
    ) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"the metrics are served over HTTP only, not over '{scope['type']}'")
        if scope["method"] not in ("GET", "HEAD"):
            await send({"type": "http.response.start", "status": 405, "headers": [(b"allow", b"GET, HEAD")]})
            await send({"type": "http.response.body", "body": b"Read the metrics with GET.\n"})
            return
        fields: Mapping[str, str] = _negotiation_headers(scope["headers"])
        names = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("name[]", ())
        headers, body = await run_in_thread(
            partial(render_metrics, registry, fields["accept"], fields["accept-encoding"], names)
        )
        request = await receive()
        if request["type"] == "http.request":
            start = {
                "type": "http.response.start",
                "status": 200,
                "headers": [(name.encode(), value.encode()) for name, value in headers],
            }
            await send(start)
            await send({"type": "http.response.body", "body": body})

    return app


def _negotiation_headers(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return the header fields that choose the format; a field that was sent several times is one list."""
    found: dict[str, list[str]] = {"accept": [], "accept-encoding": []}
    for name, value in headers:
        found.get(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    return {name: ",".join(values) for name, values in found.items()}


# Counters and histograms without locks: plain numbers, of which a scrape builds metric families.
#
# prometheus-client's own counters take a lock and four function calls for each number, which costs more than a call may
# cost here, and export a ``_created`` series beside each series. An increment here is one load, one addition and one store,
# between which the interpreter lock does not change hands, so that threads may share a series. prometheus-client's
# multi-process mode does not include these metrics.


class PerRegistry:
    """An object of which each registry has one: all dispatchers and servers that report to the registry share it.

    Args:
        registry: the registry to register with.
    """

    _by_registry: WeakKeyDictionary[CollectorRegistry, Any]
    _registry_lock: threading.Lock

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._by_registry = WeakKeyDictionary()
        cls._registry_lock = threading.Lock()

    def __init__(self, registry: CollectorRegistry) -> None:
        raise NotImplementedError

    @classmethod
    def of(cls, registry: CollectorRegistry) -> Self:
        """Return the object of ``registry``; it is created on first use."""
        with cls._registry_lock:
            found: Self | None = cls._by_registry.get(registry)
            if found is None:
                found = cls._by_registry[registry] = cls(registry)
            return found


S = TypeVar("S", "CounterSeries", "HistogramSeries")


class CounterSeries:
    """One series of a counter."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def inc(self, amount: float = 1) -> None:
        """Add ``amount``, which is at least 0."""
        self.value += amount


class HistogramSeries:
    """One series of a histogram. Its ``value`` is the number of observations, as of a :class:`CounterSeries`.

    Args:
        bounds: upper bounds of the buckets, except the last bucket, which has none.
    """

    __slots__ = ("_bounds", "_counts_and_sum", "exemplars")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        # The count of each bucket, then the sum. An array stores the numbers themselves, a list an object for each.
        self._counts_and_sum = array("d", bytes(8 * (len(bounds) + 2)))
        self.exemplars: list[Exemplar | None] = [None] * (len(bounds) + 1)

    @property
    def counts(self) -> list[int]:
        """Observations in each bucket, not cumulative."""
        return [*map(int, self._counts_and_sum[:-1])]

    @property
    def sum(self) -> float:
        """Sum of the observations."""
        return self._counts_and_sum[-1]

    @property
    def count(self) -> int:
        """Number of observations."""
        return sum(self.counts)

    value = count

    def observe(self, amount: float, exemplar: dict[str, str] | None = None) -> None:
        """Record an observation.

        Args:
            amount: the value, in the unit of the metric.
            exemplar: labels of the exemplar of the observation's bucket; replaces the previous one.
        """
        at = bisect_left(self._bounds, amount)
        numbers = self._counts_and_sum
        numbers[at] += 1.0
        numbers[-1] += amount
        if exemplar is not None:
            self.exemplars[at] = Exemplar(exemplar, amount, time.time())


class _LockFreeMetric(Collector, Generic[S]):
    """A metric without locks on the path of an observation.

    Args:
        name: of the metric, without a suffix.
        help: description in the exposition.
        labels: label names.
        create: returns a new series.
        registry: the registry to register with.
    """

    def __init__(
        self, name: str, help: str, labels: Sequence[str], create: Callable[[], S], registry: CollectorRegistry
    ) -> None:
        self._create: Callable[[], S] = create
        self._name = name
        self._help = help
        self._labels = tuple(labels)
        self._series: dict[tuple[str, ...], S] = {}
        self._by_first: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
        """The series by their first label. A removal must not search thousands of series of other tools."""
        self._lock = threading.Lock()
        registry.register(self)

    def _make_family(self, series: Callable[[], Sequence[tuple[tuple[str, ...], S]]]) -> Metric:
        """Return the family; ``series`` is called when the family is read."""
        raise NotImplementedError

    def labels(self, *values: str) -> S:
        """Return the series with these label values, created on first use. The look-up takes a lock: keep the series."""
        if len(values) != len(self._labels):
            raise ValueError(f"{self._name} needs a value for each label of {self._labels}, not {values}")
        values = tuple(map(scalar_text, values))
        with self._lock:
            found = self._series.get(values)
            if found is None:
                found = self._create()
                self._add(values, found)
            return found

    def _add(self, values: tuple[str, ...], series: S) -> None:
        if values not in self._series:
            self._by_first.setdefault(values[:1], []).append(values)
        self._series[values] = series

    def remove_by_labels(self, wanted: Mapping[str, str]) -> None:
        """Remove the series that have all the label values ``wanted``, among them the metric's first label.

        Raises:
            ValueError: the metric has no such label, or the first one is missing.
        """
        at = [(self._labels.index(name), scalar_text(value)) for name, value in wanted.items()]
        if self._labels[0] not in wanted:
            raise ValueError(f"name the first label of {self._name}: {self._labels[0]}")
        first = (scalar_text(wanted[self._labels[0]]),)
        with self._lock:
            remaining = []
            for values in self._by_first.pop(first, ()):
                if all(values[i] == value for i, value in at):
                    del self._series[values]
                else:
                    remaining.append(values)
            if remaining:
                self._by_first[first] = remaining

    def describe(self) -> Iterable[Metric]:
        """Return the family without its series."""
        return [self._make_family(lambda: ())]

    def collect(self) -> Iterator[Metric]:
        """Yield the family with its present series."""
        yield self._make_family(self._list_series)

    def _list_series(self) -> Sequence[tuple[tuple[str, ...], S]]:
        with self._lock:
            return list(self._series.items())


class LockFreeCounter(_LockFreeMetric[CounterSeries]):
    """A counter (:class:`CounterSeries`)."""

    def __init__(self, name: str, help: str, labels: Sequence[str], *, registry: CollectorRegistry) -> None:
        super().__init__(name, help, labels, CounterSeries, registry)

    def mirror(self, histogram: HistogramSeries, *values: str) -> None:
        """Export the number of observations of ``histogram`` as the series with these label values."""
        with self._lock:
            self._add(values, histogram)  # type: ignore[arg-type] # it has a `value`, which is all that is read

    def _make_family(self, series: Callable[[], Sequence[tuple[tuple[str, ...], CounterSeries]]]) -> Metric:
        def values() -> Values:
            return ((labels, one.value) for labels, one in series())

        return ValueFamily(self._name, self._help, "counter", self._labels, values)


class LockFreeHistogram(_LockFreeMetric[HistogramSeries]):
    """A histogram (:class:`HistogramSeries`).

    Args:
        name, help, labels, registry: see :class:`_LockFreeMetric`.
        buckets: upper bounds, ascending; one bucket more has no bound.
    """

    def __init__(
        self, name: str, help: str, labels: Sequence[str], *, buckets: Sequence[float], registry: CollectorRegistry
    ) -> None:
        # Formatted as by prometheus-client: queries compare the label `le` as text.
        self._bound_labels = [number(float(each)) for each in (*buckets, math.inf)]
        super().__init__(name, help, labels, partial(HistogramSeries, tuple(buckets)), registry)

    def _make_family(self, series: Callable[[], Sequence[tuple[tuple[str, ...], HistogramSeries]]]) -> Metric:
        def read() -> Iterable[Timed]:
            return ((labels, one.counts, one.sum, one.exemplars) for labels, one in series())

        return HistogramFamily(self._name, self._help, self._labels, self._bound_labels, read)
