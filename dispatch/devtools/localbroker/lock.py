"""Mutual exclusion of processes by an advisory lock on a file."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dispatch.devtools.localbroker.errors import Report, ignore_progress


@contextmanager
def hold_lock(path: Path, *, waiting: str = "", report: Report = ignore_progress) -> Iterator[None]:
    """Hold the lock on `path` inside the context. The file is created if missing and never deleted: a deletion would allow
    two holders.

    While another process holds the lock, it reports `waiting` once and waits. The kernel releases the lock when its holder
    ends.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(waiting or f"waiting for {path}")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Try to hold the lock without waiting; yields False if another process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)
