"""Evidence in memory, exchanged with a file in a thread."""

from __future__ import annotations

import atexit
import contextlib
import logging
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from dispatch.toolkit.learning.evidence import Evidence
from dispatch.toolkit.learning.evidence_file import Change, Edge, EvidenceFile
from dispatch.toolkit.learning.evidence_table import MAX_EDGES, EvidenceTable

logger = logging.getLogger("dispatch.toolkit")

EXCHANGE_SECONDS: Final = 0.5
"""Pause between two exchanges with the file: a killed process loses the observations of this time and of one
transaction."""
CLOSE_SECONDS: Final = 5.0
"""How long :meth:`EvidenceStore.close` waits for the last exchange."""


class EvidenceStore:
    """The evidence of all edges, in memory and, given a path, in a file that several processes share. Safe for threads.

    Reading and recording never wait for the disk or for other processes: a thread writes what was recorded and reads what
    other processes recorded, twice a second. While the file cannot be written, observations remain in memory.

    Args:
        path: None: in memory alone.
        half_life: seconds.
        clock: seconds since 1970, because several processes compare them.
        on_changed: called with a vertex when the evidence of its edges has changed, with None when all has; in any thread,
            while the store is locked.

    Raises:
        ValueError: the file is a database of another application.
        OSError: its folder does not exist, or it cannot be read.
    """

    def __init__(
        self,
        path: Path | None,
        half_life: float,
        clock: Callable[[], float],
        *,
        max_edges: int = MAX_EDGES,
        on_changed: Callable[[str | None], object] = lambda _source: None,
    ) -> None:
        self._clock = clock
        self._on_changed = on_changed
        self._table = EvidenceTable(half_life, clock(), max_edges=max_edges)
        self._max_edges = max_edges
        self._lock = threading.Lock()
        self._added: dict[Edge, Evidence] = {}
        """Observations that are not in the file."""
        self._resets: dict[Edge, None] | None = {}
        """Edges that are to be reset in the file; None: all."""
        self._held: list[Change] = []
        """Changes that were read before :meth:`freeze` and are not in the table."""
        self._frozen_at: float | None = None
        self._wake = threading.Event()
        self._is_closed = False
        self._exchanged = threading.Condition()
        self._exchanges = 0
        self._error: Exception | None = None
        self._file = None if path is None else EvidenceFile(path, half_life, max_edges=max_edges)
        self._thread: threading.Thread | None = None
        if self._file is not None:
            # Neither the thread nor atexit keeps an abandoned store alive.
            reference = weakref.ref(self)
            self._close_at_exit = partial(_close, reference)
            self._thread = threading.Thread(
                target=_run_exchanges, args=(reference, self._wake), name="dispatch-learning", daemon=True
            )
            self._thread.start()
            weakref.finalize(self, _abandon, self._wake, self._file, self._close_at_exit).atexit = False
            atexit.register(self._close_at_exit)

    @property
    def now(self) -> float:
        """The present time, or that of :meth:`freeze`."""
        return self._clock() if self._frozen_at is None else self._frozen_at

    def record(self, edges: Iterable[tuple[Edge, Evidence]]) -> None:
        """Add observations of the present; ignored while frozen."""
        if self._frozen_at is not None:
            return
        with self._lock:
            now = self._clock()
            for edge, evidence in edges:
                self._table.add(*edge, evidence, now)
                self._on_changed(edge[0])
                if self._file is not None:
                    known = self._added.get(edge)
                    self._added[edge] = evidence if known is None else known.add(evidence)
                    if len(self._added) > self._max_edges:
                        del self._added[next(iter(self._added))]

    def get(self, u: str, v: str) -> Evidence | None:
        """Return the decayed evidence of an edge; None: without observations."""
        with self._lock:
            return self._table.get(u, v, self.now)

    def read_all(self) -> list[tuple[str, str, Evidence]]:
        """Return every edge with its decayed evidence."""
        with self._lock:
            return list(self._table.read_all(self.now))

    @contextlib.contextmanager
    def reading(self) -> Iterator[EvidenceTable]:
        """Lend the table, unchanged meanwhile, for many reads."""
        with self._lock:
            yield self._table

    def reset(self, edges: Iterable[Edge] | None = None) -> None:
        """Forget the evidence of some edges, or of all, in all processes."""
        with self._lock:
            if edges is None:
                self._table.clear()
                self._added.clear()
                if self._file is not None:
                    self._resets = None
                self._on_changed(None)
                return
            for edge in edges:
                self._table.remove(*edge)
                self._on_changed(edge[0])
                self._added.pop(edge, None)
                if self._resets is not None and self._file is not None:
                    self._resets[edge] = None

    def freeze(self) -> None:
        """Stop learning and decay: scores remain as they are, whatever other processes record."""
        with self._lock:
            if self._frozen_at is None:
                self._frozen_at = self._clock()

    def unfreeze(self) -> None:
        """Learn again; decay, and other processes, catch up."""
        self._frozen_at = None

    def flush(self) -> None:
        """Write everything recorded so far, and read what other processes have written. Waits for the disk.

        Raises:
            sqlite3.Error: the file cannot be written; the observations remain in memory and are written later.
            OSError: likewise.
            ValueError: the file was replaced by a database of another application.
        """
        if self._thread is None or not self._thread.is_alive():
            return
        with self._exchanged:
            # The exchange that is running may have begun before the last observation.
            wanted = self._exchanges + 2
            while self._exchanges < wanted and self._thread.is_alive():
                self._wake.set()
                self._exchanged.wait(0.05)
            if self._error is not None:
                raise self._error

    def close(self) -> None:
        """Write everything recorded and stop the thread; waits at most 5 s. Reading remains possible."""
        self._is_closed = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)
            atexit.unregister(self._close_at_exit)

    def exchange(self) -> None:
        """Exchange once with the file, in the thread."""
        assert self._file is not None
        with self._lock:
            added, resets = self._added, self._resets
            self._added, self._resets = {}, {}
        try:
            if added or resets is None or resets:
                try:
                    self._file.write(added, None if resets is None else list(resets), self._clock())
                except Exception:
                    self._restore(added, resets)
                    raise
            if self._frozen_at is None:
                held, self._held = self._held, []
                self._apply(held)
                self._file.read(self._apply)
        except (sqlite3.Error, OSError, ValueError) as error:
            self._report(error)
        else:
            self._report(None)
        if self._is_closed:
            self._file.close()
        with self._exchanged:
            self._exchanges += 1
            self._exchanged.notify_all()

    def _restore(self, added: dict[Edge, Evidence], resets: dict[Edge, None] | None) -> None:
        with self._lock:
            if self._resets is not None:
                for edge, evidence in added.items():
                    if edge not in self._resets:
                        newer = self._added.get(edge)
                        self._added[edge] = evidence if newer is None else evidence.add(newer)
                self._resets = None if resets is None else {**resets, **self._resets}

    def _apply(self, changes: list[Change]) -> None:
        """Put changes into the table."""
        with self._lock:
            if self._frozen_at is not None:
                self._held += changes
                return
            for u, v, evidence, time in changes:
                if self._resets is None or (u, v) in self._resets:
                    continue  # recorded before the reset
                if evidence.weight:
                    # The clock of another process may be ahead.
                    self._table.replace(u, v, evidence, min(time, self._clock()))
                else:
                    self._table.remove(u, v)
                newer = self._added.get((u, v))
                if newer is not None:
                    self._table.add(u, v, newer, self._clock())
                self._on_changed(u)

    def _report(self, error: Exception | None) -> None:
        """Log the beginning and the end of a failure, not each attempt."""
        if error is not None and self._error is None:
            path = None if self._file is None else self._file.path
            logger.error(
                "the file of learned scores %s cannot be used (%s); observations remain in memory", path, error
            )
        elif error is None and self._error is not None:
            logger.info("the file of learned scores can be used again")
        self._error = error


def _run_exchanges(reference: weakref.ref[EvidenceStore], wake: threading.Event) -> None:
    while True:
        store = reference()
        if store is None:
            return
        is_last = store._is_closed
        store.exchange()
        if is_last:
            return
        if store._is_closed:
            continue
        del store
        wake.wait(EXCHANGE_SECONDS)
        wake.clear()


def _close(reference: weakref.ref[EvidenceStore]) -> None:
    store = reference()
    if store is not None:
        store.close()


def _abandon(wake: threading.Event, file: EvidenceFile, close_at_exit: Callable[[], None]) -> None:
    """End the thread of a store without references; its observations of the last half second are lost."""
    file.close()
    wake.set()
    atexit.unregister(close_at_exit)
