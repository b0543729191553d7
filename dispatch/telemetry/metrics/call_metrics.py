"""Counters and histograms that a call writes to: plain numbers, of which families are made when a scrape reads them.
prometheus-client's own take a lock and four function calls for each number, which is more than a call may cost here; and
they come with the times at which their series were created, as many series again as there are counters.

An increment is one load, one addition and one store, between which the interpreter lock does not change hands: threads may
share these. What is shared between processes (prometheus-client's multi-process mode) they are not part of.
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

from dispatch.telemetry.metrics.text_family import HistogramFamily, Timed, ValueFamily, Values, number

C = TypeVar("C", "Count", "Timing")


class Count:
    """One series of a counter."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def inc(self, amount: float = 1) -> None:
        """So many more, at least 0."""
        self.value += amount


class Timing:
    """One series of a histogram. ``value`` is as a counter of what it has timed has it.

    Args:
        bounds: upper ones of its buckets, but for the last, which has none.
    """

    __slots__ = ("_bounds", "_numbers", "exemplars")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        # The count of each bucket, and the sum. An array has the numbers themselves side by side, a list an object for each.
        self._numbers = array("d", bytes(8 * (len(bounds) + 2)))
        self.exemplars: list[Exemplar | None] = [None] * (len(bounds) + 1)

    @property
    def counts(self) -> list[int]:
        """How many there were in each bucket."""
        return [*map(int, self._numbers[:-1])]

    @property
    def sum(self) -> float:
        """The sum of all of them."""
        return self._numbers[-1]

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(self.counts)

    value = count

    def observe(self, amount: float, exemplar: dict[str, str] | None = None) -> None:
        """One more.

        Args:
            amount: how long it took.
            exemplar: what its bucket points with, up to the next one.
        """
        at = bisect_left(self._bounds, amount)
        numbers = self._numbers
        numbers[at] += 1.0
        numbers[-1] += amount
        if exemplar is not None:
            self.exemplars[at] = Exemplar(exemplar, amount, time.time())


class _Lean(Collector, Generic[C]):
    """A family.

    Args:
        name: without a suffix.
        help: for who reads it.
        labels: their names.
        registry: where it is scraped.
    """

    def __init__(self, name: str, help: str, labels: Sequence[str], *, registry: CollectorRegistry) -> None:
        self._name = name
        self._help = help
        self._labels = tuple(labels)
        self._series: dict[tuple[str, ...], C] = {}
        self._lock = threading.Lock()
        registry.register(self)

    def _new(self) -> C:
        raise NotImplementedError

    def _family(self, series: Callable[[], Sequence[tuple[tuple[str, ...], C]]]) -> Metric:
        """The family of what ``series`` gives, whenever it is read."""
        raise NotImplementedError

    def labels(self, *values: str) -> C:
        """The series with these values of its labels: made when it is first asked for. Hold on to it."""
        if len(values) != len(self._labels):
            raise ValueError(f"{self._name} has the labels {self._labels}: {values} are not one for each")
        with self._lock:
            found = self._series.get(values)
            if found is None:
                found = self._series[values] = self._new()
            return found

    def remove_by_labels(self, wanted: Mapping[str, str]) -> None:
        """Forget the series that have all these values."""
        at = [(self._labels.index(name), value) for name, value in wanted.items()]
        with self._lock:
            for values in [values for values in self._series if all(values[i] == value for i, value in at)]:
                del self._series[values]

    def describe(self) -> Iterable[Metric]:
        """The family without its series."""
        return [self._family(lambda: ())]

    def collect(self) -> Iterator[Metric]:
        """The family, as it is when it is read."""
        yield self._family(self._all)

    def _all(self) -> Sequence[tuple[tuple[str, ...], C]]:
        with self._lock:
            return list(self._series.items())


class LeanCounter(_Lean[Count]):
    """A counter."""

    def _new(self) -> Count:
        return Count()

    def counts(self, timing: Timing, *values: str) -> None:
        """The series with these values of its labels is how many ``timing`` has: nobody need count them again."""
        with self._lock:
            self._series[values] = timing  # type: ignore[assignment] # that has a value, too

    def _family(self, series: Callable[[], Sequence[tuple[tuple[str, ...], Count]]]) -> Metric:
        def values() -> Values:
            return ((labels, one.value) for labels, one in series())

        return ValueFamily(self._name, self._help, "counter", self._labels, values)


class LeanHistogram(_Lean[Timing]):
    """A histogram.

    Args:
        name, help, labels, registry: as for every family.
        buckets: upper bounds, ascending; above the last one is one more.
    """

    def __init__(
        self, name: str, help: str, labels: Sequence[str], *, buckets: Sequence[float], registry: CollectorRegistry
    ) -> None:
        self._bounds = tuple(buckets)
        # Written as everybody's: queries compare texts.
        self._names = [number(float(each)) for each in (*buckets, math.inf)]
        super().__init__(name, help, labels, registry=registry)

    def _new(self) -> Timing:
        return Timing(self._bounds)

    def _family(self, series: Callable[[], Sequence[tuple[tuple[str, ...], Timing]]]) -> Metric:
        def timed() -> Iterable[Timed]:
            return ((labels, one.counts, one.sum, one.exemplars) for labels, one in series())

        return HistogramFamily(self._name, self._help, self._labels, self._names, timed)
