"""The SQLite file of evidence, which several processes share."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from dispatch.toolkit.learning.evidence import UNUSED_WEIGHT, Evidence
from dispatch.toolkit.learning.evidence_table import MAX_EDGES

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
        max_edges: beyond it the weakest rows are deleted.

    Raises:
        ValueError: the file is a database of another application, or of a newer version.
        OSError: the folder does not exist, or the file cannot be read.
    """

    def __init__(self, path: Path, half_life: float, *, max_edges: int = MAX_EDGES) -> None:
        check_header(path)
        self.path = path
        self._half_life = half_life
        self._max_edges = max_edges
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
                self._write(connection, added, resets, now)

        self._run(run)

    def read(self, on_changes: Callable[[list[Change]], object]) -> None:
        """Read what all processes, this one included, have changed in the file since the last call; after the file was
        opened, all rows. A broken file is moved aside, and reported in the log.

        Args:
            on_changes: called with each 200 changes.

        Raises:
            sqlite3.Error, OSError, ValueError: the file cannot be read; see :meth:`write`.
        """
        self._run(lambda connection: self._read(connection, on_changes))

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

    def _write(
        self, connection: sqlite3.Connection, added: Mapping[Edge, Evidence], resets: Sequence[Edge] | None, now: float
    ) -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("UPDATE changes SET number = number + 1")
        ((number,),) = connection.execute("SELECT number FROM changes")
        if resets is None:
            connection.execute(RESET, (now, number))
        else:
            connection.executemany(f"{RESET} WHERE source = ? AND target = ?", [(now, number, u, v) for u, v in resets])
        connection.executemany(ADD, [(u, v, *each, now, number) for (u, v), each in added.items() if _is_text(u + v)])
        ((count,),) = connection.execute("SELECT count(*) FROM evidence")
        if count > self._max_edges:
            # Some more than needed: the next transactions need not evict again.
            connection.execute(EVICT, (now, count - self._max_edges * 15 // 16))

    def _read(self, connection: sqlite3.Connection, on_changes: Callable[[list[Change]], object]) -> None:
        cursor = connection.execute(
            "SELECT source, target, success, tool_error, unused, time, change FROM evidence WHERE change > ?",
            (self._seen,),
        )
        seen = self._seen
        # In small parts: 100,000 rows at a time cause full garbage collections, each of which stops all threads for 0.1 s.
        while rows := cursor.fetchmany(PART):
            seen = max(seen, *(row[6] for row in rows))
            on_changes([Change(row[0], row[1], Evidence(*row[2:5]), row[5]) for row in rows if _is_valid(row)])
            time.sleep(0)  # other threads first
        self._seen = seen

    def _connect(self) -> sqlite3.Connection:
        if self._connection is not None:
            if _find_inode(self.path) == self._inode:
                return self._connection
            logger.warning("the file of learned scores %s was deleted or replaced; it is opened again", self.path)
            self.close()
        with self._lock():
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
        with self._lock():
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

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        """Exclude other processes that open or move the file."""
        with open(f"{self.path}.lock", "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


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


def _is_text(id: str) -> bool:
    """Return whether SQLite can store an id: not with half of a surrogate pair."""
    try:
        id.encode()
    except UnicodeEncodeError:
        return False
    return True
