"""Evidence of a toolkit's edges: the score that it implies, and its storage, which several processes may share."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sqlite3
import sys
import threading
import time
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from dispatch._internal import scalar_text
from dispatch.documents import lock_folder

PRIOR_STRENGTH: Final = 4.0
"""Pseudo-observations of a written score: after as many observations, written and observed rates count the same. From 2 to
16 the recall is about the same (``make bench-learning``); a small value learns sooner after a change."""
UNUSED_WEIGHT: Final = 0.1
"""Weight of an observation ``unused``, others weigh 1: an edge falls below the threshold 0.5 when it is used less than once
in eleven recommendations. 0.03 gives the same recall, 1 much less (``make bench-learning``): tools that are used equally
often would all fall below the threshold."""


class Observation(StrEnum):
    """The result of one use of an edge."""

    SUCCESS = "success"
    """The tool was called and succeeded, or the action followed."""
    TOOL_ERROR = "tool-error"
    """The tool was called and reported an error."""
    UNUSED = "unused"
    """The tool or action was recommended, and not used before the next recommendation."""


class Evidence(NamedTuple):
    """Decayed numbers of observations of one edge: an observation counts half after one half-life."""

    success: float = 0.0
    tool_error: float = 0.0
    unused: float = 0.0

    @property
    def weight(self) -> float:
        """All observations, each with its weight."""
        return self.success + self.tool_error + UNUSED_WEIGHT * self.unused

    def multiply(self, factor: float) -> Evidence:
        """Return the evidence after a decay by ``factor``."""
        return Evidence(self.success * factor, self.tool_error * factor, self.unused * factor)

    def add(self, other: Evidence) -> Evidence:
        """Return both together; they are of the same time."""
        return Evidence(self.success + other.success, self.tool_error + other.tool_error, self.unused + other.unused)


ONE: Final = {
    Observation.SUCCESS: Evidence(success=1.0),
    Observation.TOOL_ERROR: Evidence(tool_error=1.0),
    Observation.UNUSED: Evidence(unused=1.0),
}
"""A single observation of each kind."""


def compute_score(written: float, success: float, weight: float) -> float:
    """Return the posterior mean of a beta distribution whose prior has the mean ``written`` and :data:`PRIOR_STRENGTH`.

    Args:
        written: score in [0, 1].
        success: decayed number of successes.
        weight: of all observations; at least ``success``.
    """
    score = (PRIOR_STRENGTH * written + success) / (PRIOR_STRENGTH + weight)
    return score if score <= 1.0 else 1.0  # rounding


# The evidence of all edges in memory, bounded, with exponential decay.


MAX_EDGES = 100_000
"""Edges in memory, and rows in the file, beyond which the weakest ones are evicted."""
MAX_BYTES = 64 * 1024 * 1024
"""Of memory, beyond which the weakest edges are evicted; an estimate that is above the true size."""
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

    Attributes:
        success: column of numbers of successes, each divided by :meth:`decay`; see :meth:`find_places`.
        weight: likewise, of the weights of all observations.
        size: estimated memory in bytes.
    """

    def __init__(self, half_life: float, now: float) -> None:
        self._half_life = half_life
        self._epoch = now
        self._evictions = 0
        self.size = 0
        self._places: dict[str, dict[str, int]] = {}
        self._sources: list[str] = []
        self._targets: list[str] = []
        self.success = array("d")
        self._tool_error = array("d")
        self._unused = array("d")
        self.weight = array("d")

    def __len__(self) -> int:
        return len(self._sources)

    def add(self, u: str, v: str, evidence: Evidence, now: float) -> None:
        """Add observations of the time ``now``."""
        if (now - self._epoch) / self._half_life > MAX_EXPONENT:
            self._move_epoch(now)
        place = self.find_places(u).get(v)
        if place is None:
            place = self._create(u, v)
        stored = evidence.multiply(1 / self.decay(now))
        self.success[place] += stored.success
        self._tool_error[place] += stored.tool_error
        self._unused[place] += stored.unused
        self.weight[place] += stored.weight

    def replace(self, u: str, v: str, evidence: Evidence, now: float) -> None:
        """Set the evidence of an edge, as of the time ``now``."""
        self.remove(u, v)
        self.add(u, v, evidence, now)

    def get(self, u: str, v: str, now: float) -> Evidence | None:
        """Return the evidence of an edge, decayed until ``now``; None: without observations."""
        place = self.find_places(u).get(v)
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
        place = self.find_places(u).get(v)
        if place is not None:
            self._remove_at(place)

    def clear(self) -> None:
        """Forget all edges."""
        self._places.clear()
        self._sources.clear()
        self._targets.clear()
        for column in self._columns():
            del column[:]
        self.size = 0

    def _columns(self) -> tuple[array[float], ...]:
        return self.success, self._tool_error, self._unused, self.weight

    def _read(self, place: int) -> Evidence:
        return Evidence(self.success[place], self._tool_error[place], self._unused[place])

    def _create(self, u: str, v: str) -> int:
        size = EDGE_BYTES + sys.getsizeof(v) + SOURCE_BYTES + sys.getsizeof(u)
        while self._sources and (len(self) >= MAX_EDGES or self.size + size > MAX_BYTES):
            self._evict()
        places = self._places.get(u)
        if places is None:
            places = self._places[u] = {}
            self.size += SOURCE_BYTES + sys.getsizeof(u)
        places[v] = len(self)
        self.size += EDGE_BYTES + sys.getsizeof(v)
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
        self.size -= EDGE_BYTES + sys.getsizeof(v)
        if not places:
            del self._places[u]
            self.size -= SOURCE_BYTES + sys.getsizeof(u)

    def _move_epoch(self, now: float) -> None:
        decay = self.decay(now)
        for column in self._columns():
            column[:] = array("d", [value * decay for value in column])
        self._epoch = now


# The SQLite file of evidence, which several processes share.


logger = logging.getLogger("dispatch.toolkit")

Edge = tuple[str, str]

APPLICATION_ID: Final = 0x746F6F6C
FORMAT: Final = 1
"""``user_version`` of the file."""
BUSY_SECONDS: Final = 5.0
"""Wait for a transaction of another process; they take milliseconds."""
BROKEN_CODES: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
MAX_COUNT: Final = 1e15
PART: Final = 200
"""Changes that are passed on at a time: 0.3 ms for which the event loop may wait."""
HEADER: Final = b"SQLite format 3\0"
SCHEMA: Final = f"""
    BEGIN EXCLUSIVE;
    CREATE TABLE IF NOT EXISTS evidence (
        source TEXT NOT NULL, target TEXT NOT NULL,
        success REAL NOT NULL, tool_error REAL NOT NULL, unused REAL NOT NULL,
        time REAL NOT NULL, change INTEGER NOT NULL,
        PRIMARY KEY (source, target)
    ) WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS evidence_change ON evidence (change);
    CREATE TABLE IF NOT EXISTS changes (id INTEGER PRIMARY KEY CHECK (id = 1), number INTEGER NOT NULL);
    INSERT OR IGNORE INTO changes VALUES (1, 0);
    PRAGMA application_id = {APPLICATION_ID};
    PRAGMA user_version = {FORMAT};
    COMMIT;
"""
ADD: Final = """
    INSERT INTO evidence VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (source, target) DO UPDATE SET
        success = success * decay(?6 - time) + excluded.success,
        tool_error = tool_error * decay(?6 - time) + excluded.tool_error,
        unused = unused * decay(?6 - time) + excluded.unused,
        time = ?6, change = ?7
"""
"""Additions commute, so processes may add in any order. A row from a clock that is ahead is treated as present."""
RESET: Final = "UPDATE evidence SET success = 0, tool_error = 0, unused = 0, time = ?, change = ?"
"""Rows remain with zeros, so that other processes read the change."""
EVICT: Final = f"""
    DELETE FROM evidence WHERE (source, target) IN (
        SELECT source, target FROM evidence
        ORDER BY (success + tool_error + {UNUSED_WEIGHT} * unused) * decay(?1 - time) LIMIT ?2
    )
"""


class Change(NamedTuple):
    """The evidence of an edge after a change by any process, as of ``time``."""

    source: str
    target: str
    evidence: Evidence
    time: float


class EvidenceFile:
    """Evidence in SQLite with a write-ahead log. Used by one thread; every method may wait for the disk and for other
    processes.

    Args:
        path: of the file; its folder exists.
        half_life: seconds.

    Raises:
        ValueError: the file is a database of another application, or of a newer version.
        OSError: the folder does not exist, or the file cannot be read.
    """

    def __init__(self, path: Path, half_life: float) -> None:
        check_header(path)
        self.path = path
        self._half_life = half_life
        self._connection: sqlite3.Connection | None = None
        self._inode = 0
        self._seen = 0

    def write(self, added: Mapping[Edge, Evidence], resets: Sequence[Edge] | None, now: float) -> None:
        """Add observations in one transaction. A broken file is moved aside before, and reported in the log.

        Args:
            resets: edges to reset before; None: all edges.

        Raises:
            sqlite3.Error: nothing was written, for example because the disk is full.
            OSError: likewise.
            ValueError: the file was replaced by a database of another application.
        """

        def run(connection: sqlite3.Connection) -> None:
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("UPDATE changes SET number = number + 1")
                ((number,),) = connection.execute("SELECT number FROM changes")
                if resets is None:
                    connection.execute(RESET, (now, number))
                else:
                    edges = [(now, number, u, v) for u, v in resets]
                    connection.executemany(f"{RESET} WHERE source = ? AND target = ?", edges)
                # SQLite stores no id with half of a surrogate pair.
                texts = {edge: each for edge, each in added.items() if all(id == scalar_text(id) for id in edge)}
                rows = [(*edge, *each, now, number) for edge, each in texts.items()]
                connection.executemany(ADD, rows)
                ((count,),) = connection.execute("SELECT count(*) FROM evidence")
                if count > MAX_EDGES:
                    # Some more than needed: the next transactions need not evict again.
                    connection.execute(EVICT, (now, count - MAX_EDGES * 15 // 16))

        self._run(run)

    def read(self, on_changes: Callable[[list[Change]], object]) -> None:
        """Read what all processes, this one included, have changed in the file since the last call; after the file was
        opened, all rows. A broken file is moved aside, and reported in the log.

        Args:
            on_changes: called with each 200 changes.

        Raises:
            sqlite3.Error, OSError, ValueError: the file cannot be read; see :meth:`write`.
        """

        def run(connection: sqlite3.Connection) -> None:
            cursor = connection.execute(
                "SELECT source, target, success, tool_error, unused, time, change FROM evidence WHERE change > ?",
                (self._seen,),
            )
            seen = self._seen
            # In small parts: 100,000 rows at a time cause full garbage collections, each of which stops all threads for
            # 0.1 s.
            while rows := cursor.fetchmany(PART):
                seen = max(seen, *(row[6] for row in rows))
                on_changes([Change(row[0], row[1], Evidence(*row[2:5]), row[5]) for row in rows if _is_valid(row)])
                time.sleep(0)  # other threads first
            self._seen = seen

        self._run(run)

    def _run(self, operation: Callable[[sqlite3.Connection], object]) -> None:
        """Run an operation; after a broken file was moved aside, on an empty one."""
        for attempt in (1, 2):
            try:
                operation(self._connect())
                return
            except sqlite3.DatabaseError as error:
                # Other codes concern the disk or other processes: the file itself may be intact.
                if attempt == 2 or (getattr(error, "sqlite_errorcode", 0) & 0xFF) not in BROKEN_CODES:
                    self.close()
                    raise
                self._move_aside(error)

    def close(self) -> None:
        """Close the file; the next call opens it again and reads all rows."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._seen = 0

    def _connect(self) -> sqlite3.Connection:
        if self._connection is not None:
            if _find_inode(self.path) == self._inode:
                return self._connection
            logger.warning("the file of learned scores %s was deleted or replaced; it is opened again", self.path)
            self.close()
        with lock_folder(self.path.parent):  # other processes may open or move the file
            check_header(self.path)
            # Closed in another thread when the process ends.
            connection = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            self._connection = connection
            self._inode = _find_inode(self.path)
            connection.create_function("decay", 1, self._decay, deterministic=True)
            # Before WAL: the header of the file itself has the identity of its application.
            if connection.execute("PRAGMA user_version").fetchone() != (FORMAT,):
                connection.executescript(SCHEMA)
            connection.execute("PRAGMA journal_mode = WAL")
            # A killed process loses no transaction; a power failure may lose the last ones, and breaks nothing.
            connection.execute("PRAGMA synchronous = NORMAL")
            ((verdict,),) = connection.execute("PRAGMA quick_check(1)")
            if verdict != "ok":
                error = sqlite3.DatabaseError(verdict)
                error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
                raise error
        return connection

    def _decay(self, seconds: float) -> float:
        return float(0.5 ** (max(seconds, 0.0) / self._half_life))

    def _move_aside(self, error: sqlite3.DatabaseError) -> None:
        """Rename the broken file, unless another process has done so."""
        inode = self._inode
        self.close()
        with lock_folder(self.path.parent):
            if _find_inode(self.path) != inode:
                return
            aside = f"{self.path}.broken-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}"
            for suffix in ("-wal", "-shm", ""):
                with contextlib.suppress(FileNotFoundError):
                    os.rename(f"{self.path}{suffix}", f"{aside}{suffix}")
        logger.error(
            "the file of learned scores %s is broken (%s) and was moved to %s; learning starts again",
            *(self.path, error, aside),
        )


def check_header(path: Path) -> None:
    """Check what is known of a file without opening it as a database, in microseconds.

    Raises:
        ValueError: it is a database of another application, or of a newer version.
        OSError: its folder does not exist, or it cannot be read.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(f"The file of learned scores {path} cannot be created. Create its folder first.")
    try:
        with open(path, "rb") as file:
            header = file.read(72)
    except FileNotFoundError:
        return
    if not header.startswith(HEADER) or len(header) < 72:
        return  # empty, or broken
    version, application = int.from_bytes(header[60:64], "big"), int.from_bytes(header[68:72], "big")
    if application != APPLICATION_ID:
        raise ValueError(f"{path} is a database of another application. Give another file for the learned scores.")
    if version > FORMAT:
        raise ValueError(f"{path} has format {version} of learned scores, and {FORMAT} is known. Give another file.")


def _find_inode(path: Path) -> int:
    """Return the inode; 0 without a file."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return 0


def _is_valid(row: tuple[Any, ...]) -> bool:
    """Return whether a row can be evidence: quick_check does not see all damage of a file."""
    return (
        all(isinstance(id, str) for id in row[:2])
        and all(isinstance(number, float) and 0 <= number <= MAX_COUNT for number in row[2:5])
        and isinstance(row[5], float)
    )


# Evidence in memory, exchanged with a file in a thread.


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
        on_changed: Callable[[str | None], object] = lambda _source: None,
    ) -> None:
        self._clock = clock
        self._on_changed = on_changed
        self._table = EvidenceTable(half_life, clock())
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
        self._file = None if path is None else EvidenceFile(path, half_life)
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
                    if len(self._added) > MAX_EDGES:
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
