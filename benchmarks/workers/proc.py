"""Processor time and memory of other processes, and of the whole machine, from ``/proc``."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

PROC = Path("/proc")


def read_processor_time(pids: Iterable[int]) -> float | None:
    """Return the processor seconds, user and system, that the processes have used so far; None where they are not known.

    The resolution is that of the kernel's accounting, usually 10 ms.
    """
    ticks = 0
    known = False
    for pid in pids:
        try:
            text = (PROC / str(pid) / "stat").read_text()
        except OSError:  # no /proc, or the process is on another machine or has ended
            return None
        # The name of the program, in parentheses, may contain blanks and parentheses.
        fields = text.rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
        known = True
    return ticks / os.sysconf("SC_CLK_TCK") if known else None


def read_machine_time() -> float | None:
    """Return the processor seconds that all programs of the machine have used so far; None where they are not known."""
    try:
        fields = (PROC / "stat").read_text().partition("\n")[0].split()[1:]
    except OSError:
        return None
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[:8])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def read_memory(pid: int, field: str = "VmRSS") -> float:
    """Return a field of ``/proc/PID/status`` in MiB, by default the resident memory.

    Raises:
        OSError: there is no such process, or no ``/proc``.
    """
    lines = (PROC / str(pid) / "status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024
