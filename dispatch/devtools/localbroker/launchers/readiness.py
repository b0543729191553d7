"""Waiting until a broker that was just started answers, or has died."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from dispatch.devtools.localbroker.admin import Admin
from dispatch.devtools.localbroker.errors import LocalBrokerError, Report, quiet

#: Seconds until a start counts as failed. It takes 7 to 10 on two idle cores, and 26 were seen on two that had five
#: processes to run. A broker that dies is noticed at once, so a long limit costs nothing.
READY_TIMEOUT = 120.0

_LOOK_INTERVAL = 0.1  # seconds
_PROGRESS_INTERVAL = 5.0  # seconds
_TAIL = 64 * 1024  # bytes of a log that are looked at
_EXCERPT = 12  # lines
_TELLING = (" ERROR ", "Caused by:", "Error:", "Exception in")


def wait_ready(
    admin: Admin,
    ended: Callable[[float], bool],
    *,
    logs: list[Path],
    timeout: float = READY_TIMEOUT,
    report: Report = quiet,
    clock: Callable[[], float] = time.monotonic,
) -> float:
    """Wait until the broker is ready; returns the seconds it took.

    Args:
        admin: its admin interface.
        ended: waits up to so many seconds for the broker's end, and says whether it has ended.
        logs: where the reason will be found if it ends.
        timeout: seconds.
        report: takes the progress.
        clock: monotonic seconds.

    Raises:
        LocalBrokerError: it ended, or was not ready in time; the last lines of the logs are in the text.
    """
    start = clock()
    next_report = start + _PROGRESS_INTERVAL
    while not admin.ready():
        if ended(_LOOK_INTERVAL):
            raise LocalBrokerError(f"the broker ended while it started:\n{excerpt(logs)}")
        now = clock()
        if now - start > timeout:
            raise LocalBrokerError(f"the broker was not ready within {timeout:g} s:\n{excerpt(logs)}")
        if now >= next_report:
            report(f"still starting: {now - start:.0f} s so far")
            next_report = now + _PROGRESS_INTERVAL
    return clock() - start


def excerpt(logs: list[Path]) -> str:
    """The last lines that say what went wrong, or just the last lines, of each log that has any."""
    parts = []
    for log in logs:
        lines = tail(log)
        telling = [line for line in lines if any(word in line for word in _TELLING)]
        shown = (telling or lines)[-_EXCERPT:]
        if shown:
            parts.append(f"--- {log}\n" + "\n".join(line[:300] for line in shown))
    return "\n".join(parts) or "(it logged nothing)"


def tail(log: Path) -> list[str]:
    """The lines in the last 64 KiB of a file; none if it is not there."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            return file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return []
