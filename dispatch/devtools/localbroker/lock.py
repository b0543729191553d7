"""One process at a time: an advisory lock on a file."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dispatch.devtools.localbroker.errors import Report, quiet


@contextmanager
def exclusive(path: Path, *, waiting: str = "", report: Report = quiet) -> Iterator[None]:
    """Hold the lock on `path` (made if missing, never deleted: deleting it would let two in).

    Waits as long as somebody else holds it, after one line of `waiting` to `report`. The kernel frees it when its holder
    ends, however that happens.
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
def exclusive_now(path: Path) -> Iterator[bool]:
    """The same without waiting: False in the body if somebody else holds it."""
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
