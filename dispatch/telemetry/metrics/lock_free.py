"""Counters and histograms without locks: plain numbers, of which a scrape builds metric families.

prometheus-client's own counters take a lock and four function calls for each number, which costs more than a call may cost
here, and export a ``_created`` series beside each series. An increment here is one load, one addition and one store, between
which the interpreter lock does not change hands, so that threads may share a series. prometheus-client's multi-process mode
does not include these metrics.
"""

from __future__ import annotations

import math
import threading
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import Exemplar, Metric
from prometheus_client.registry import Collector

from dispatch._internal.utf8 import scalar_text
from dispatch.telemetry.metrics.text_family import HistogramFamily, Timed, ValueFamily, Values, number

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
        registry: the registry to register with.
    """

    def __init__(self, name: str, help: str, labels: Sequence[str], *, registry: CollectorRegistry) -> None:
        self._name = name
        self._help = help
        self._labels = tuple(labels)
        self._series: dict[tuple[str, ...], S] = {}
        self._by_first: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
        """The series by their first label. A removal must not search thousands of series of other tools."""
        self._lock = threading.Lock()
        registry.register(self)

    def _make_series(self) -> S:
        raise NotImplementedError

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
                found = self._make_series()
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

    def _make_series(self) -> CounterSeries:
        return CounterSeries()

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
        self._bounds = tuple(buckets)
        # Formatted as by prometheus-client: queries compare the label `le` as text.
        self._bound_labels = [number(float(each)) for each in (*buckets, math.inf)]
        super().__init__(name, help, labels, registry=registry)

    def _make_series(self) -> HistogramSeries:
        return HistogramSeries(self._bounds)

    def _make_family(self, series: Callable[[], Sequence[tuple[tuple[str, ...], HistogramSeries]]]) -> Metric:
        def read() -> Iterable[Timed]:
            return ((labels, one.counts, one.sum, one.exemplars) for labels, one in series())

        return HistogramFamily(self._name, self._help, self._labels, self._bound_labels, read)
