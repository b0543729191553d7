"""The evidence of all edges in memory, bounded, with exponential decay."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Mapping
from typing import Final

from dispatch.toolkit.learning.evidence import Evidence

MAX_EDGES: Final = 100_000
MAX_BYTES: Final = 64 * 1024 * 1024
EDGE_BYTES: Final = 200
"""Memory of an edge without its ids: a place in each column, in two lists and in one dictionary."""
SOURCE_BYTES: Final = 200
"""Memory of the dictionary of a vertex that has edges."""
SAMPLE: Final = 64
"""Edges that an eviction compares: the evicted one is among the weakest 2 % on average, and the cost of an eviction (30
µs) does not depend on the number of edges."""
MAX_EXPONENT: Final = 500.0
"""Half-lives after which all counts are divided, long before the range of floating-point numbers (1,023) is exhausted."""
_NO_PLACES: Final[Mapping[str, int]] = {}


class EvidenceTable:
    """Decayed numbers of observations of edges.

    Forward decay: an observation is stored as 2^((its time minus epoch) / half-life), so that a decay of all edges is one
    factor at the time of reading, and the order of the weights never changes with time. Not safe for threads.

    Args:
        half_life: seconds.
        now: present time in seconds, for the epoch.
        max_edges: beyond it the weakest edges are evicted.
        max_bytes: beyond it, too; an estimate that is above the true size.

    Attributes:
        success: column of numbers of successes, each divided by :meth:`decay`; see :meth:`find_places`.
        weight: likewise, of the weights of all observations.
    """

    def __init__(self, half_life: float, now: float, *, max_edges: int = MAX_EDGES, max_bytes: int = MAX_BYTES) -> None:
        self._half_life = half_life
        self._epoch = now
        self._max_edges = max_edges
        self._max_bytes = max_bytes
        self._evictions = 0
        self._bytes = 0
        self._places: dict[str, dict[str, int]] = {}
        self._sources: list[str] = []
        self._targets: list[str] = []
        self.success = array("d")
        self._tool_error = array("d")
        self._unused = array("d")
        self.weight = array("d")

    def __len__(self) -> int:
        return len(self._sources)

    @property
    def size(self) -> int:
        """Estimated memory in bytes."""
        return self._bytes

    def add(self, u: str, v: str, evidence: Evidence, now: float) -> None:
        """Add observations of the time ``now``."""
        if (now - self._epoch) / self._half_life > MAX_EXPONENT:
            self._move_epoch(now)
        place = self._find_place(u, v)
        self._add_at(self._create(u, v) if place is None else place, evidence.multiply(1 / self.decay(now)))

    def replace(self, u: str, v: str, evidence: Evidence, now: float) -> None:
        """Set the evidence of an edge, as of the time ``now``."""
        self.remove(u, v)
        self.add(u, v, evidence, now)

    def get(self, u: str, v: str, now: float) -> Evidence | None:
        """Return the evidence of an edge, decayed until ``now``; None: without observations."""
        place = self._find_place(u, v)
        return None if place is None else self._read(place).multiply(self.decay(now))

    def read_all(self, now: float) -> Iterator[tuple[str, str, Evidence]]:
        """Yield every edge with its evidence, decayed until ``now``. Meanwhile nothing may be added or removed."""
        decay = self.decay(now)
        for place, (u, v) in enumerate(zip(self._sources, self._targets, strict=True)):
            yield u, v, self._read(place).multiply(decay)

    def decay(self, now: float) -> float:
        """Return the factor from stored to decayed numbers."""
        # The bound concerns clocks that are set back or forward by years, and reading long after the last addition.
        exponent = (now - self._epoch) / self._half_life
        return float(2.0 ** -min(max(exponent, -2 * MAX_EXPONENT), 2 * MAX_EXPONENT))

    def find_places(self, u: str) -> Mapping[str, int]:
        """Return the places of the edges from ``u`` in the columns, by target; to be read, not changed."""
        return self._places.get(u, _NO_PLACES)

    def remove(self, u: str, v: str) -> None:
        """Forget an edge; an unknown one is ignored."""
        place = self._find_place(u, v)
        if place is not None:
            self._remove_at(place)

    def clear(self) -> None:
        """Forget all edges."""
        self._places.clear()
        self._sources.clear()
        self._targets.clear()
        for column in self._columns():
            del column[:]
        self._bytes = 0

    def _columns(self) -> tuple[array[float], ...]:
        return self.success, self._tool_error, self._unused, self.weight

    def _find_place(self, u: str, v: str) -> int | None:
        places = self._places.get(u)
        return None if places is None else places.get(v)

    def _read(self, place: int) -> Evidence:
        return Evidence(self.success[place], self._tool_error[place], self._unused[place])

    def _add_at(self, place: int, evidence: Evidence) -> None:
        self.success[place] += evidence.success
        self._tool_error[place] += evidence.tool_error
        self._unused[place] += evidence.unused
        self.weight[place] += evidence.weight

    def _create(self, u: str, v: str) -> int:
        size = EDGE_BYTES + sys.getsizeof(v) + SOURCE_BYTES + sys.getsizeof(u)
        while self._sources and (len(self) >= self._max_edges or self._bytes + size > self._max_bytes):
            self._evict()
        places = self._places.get(u)
        if places is None:
            places = self._places[u] = {}
            self._bytes += SOURCE_BYTES + sys.getsizeof(u)
        places[v] = len(self)
        self._bytes += EDGE_BYTES + sys.getsizeof(v)
        self._sources.append(u)
        self._targets.append(v)
        for column in self._columns():
            column.append(0.0)
        return places[v]

    def _evict(self) -> None:
        """Remove the weakest edge of a sample that is spread over the table; each sample is another one."""
        count = len(self)
        stride = max(count // SAMPLE, 1)
        self._remove_at(min(range(self._evictions % stride, count, stride), key=self.weight.__getitem__))
        self._evictions += 1

    def _remove_at(self, place: int) -> None:
        """Remove an edge; the last one moves to its place."""
        u, v = self._sources[place], self._targets[place]
        last_u, last_v = self._sources[-1], self._targets[-1]
        self._places[last_u][last_v] = place
        for ids in (self._sources, self._targets):
            ids[place] = ids[-1]
            ids.pop()
        for column in self._columns():
            column[place] = column[-1]
            column.pop()
        places = self._places[u]
        del places[v]
        self._bytes -= EDGE_BYTES + sys.getsizeof(v)
        if not places:
            del self._places[u]
            self._bytes -= SOURCE_BYTES + sys.getsizeof(u)

    def _move_epoch(self, now: float) -> None:
        decay = self.decay(now)
        for column in self._columns():
            column[:] = array("d", [value * decay for value in column])
        self._epoch = now
