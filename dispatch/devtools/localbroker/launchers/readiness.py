"""Waiting for a starting broker to become ready, or to end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from dispatch.devtools.localbroker.admin import Admin
from dispatch.devtools.localbroker.errors import LocalBrokerError, Report, ignore_progress

#: Seconds until a start counts as failed. It takes 7 to 10 s on two idle cores; 26 s were seen on two cores with five
#: busy processes. A broker that ends is noticed immediately, so a long limit costs nothing.
READY_TIMEOUT = 120.0

_POLL_INTERVAL = 0.1  # seconds
_PROGRESS_INTERVAL = 5.0  # seconds
_TAIL = 64 * 1024  # bytes of a log that are read
_EXCERPT = 12  # lines
_ERROR_MARKERS = (" ERROR ", "Caused by:", "Error:", "Exception in")


def wait_until_ready(
    admin: Admin,
    wait_for_end: Callable[[float], bool],
    *,
    logs: list[Path],
    timeout: float = READY_TIMEOUT,
    report: Report = ignore_progress,
    clock: Callable[[], float] = time.monotonic,
) -> float:
    """Wait until the broker is ready; return the seconds it took.

    Args:
        admin: admin interface of the broker.
        wait_for_end: waits up to the given seconds for the broker's end, and returns whether it has ended.
        logs: logs that explain a failure.
        timeout: seconds.
        report: receives progress lines.
        clock: monotonic seconds.

    Raises:
        LocalBrokerError: the broker ended or was not ready in time; the message contains the last lines of the logs.
    """
    start = clock()
    next_report = start + _PROGRESS_INTERVAL
    while not admin.is_ready():
        if wait_for_end(_POLL_INTERVAL):
            raise LocalBrokerError(f"the broker ended during its start:\n{extract_errors(logs)}")
        now = clock()
        if now - start > timeout:
            raise LocalBrokerError(f"the broker was not ready within {timeout:g} s:\n{extract_errors(logs)}")
        if now >= next_report:
            report(f"still starting: {now - start:.0f} s so far")
            next_report = now + _PROGRESS_INTERVAL
    return clock() - start


def extract_errors(logs: list[Path]) -> str:
    """Extract the last error lines of each log, or its last lines if it has no errors."""
    parts = []
    for log in logs:
        lines = read_tail(log)
        errors = [line for line in lines if any(word in line for word in _ERROR_MARKERS)]
        shown = (errors or lines)[-_EXCERPT:]
        if shown:
            parts.append(f"--- {log}\n" + "\n".join(line[:300] for line in shown))
    return "\n".join(parts) or "(no log output)"


def read_tail(log: Path) -> list[str]:
    """Read the lines in the last 64 KiB of a file; empty if it does not exist."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            return file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return []
