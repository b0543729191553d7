"""A wall clock of this process that steps, as by a wrong time server. Import it before anything that keeps ``time.time``."""

from __future__ import annotations

import atexit
import signal
import time

HOUR = 3_600.0
_real_s, _real_ns = time.time, time.time_ns
_offset = 0.0


def step(seconds: float) -> None:
    """Move the wall clock of this process; the monotonic clock stays."""
    global _offset
    _offset += seconds


def step_on_signals() -> None:
    """SIGUSR1 moves it an hour ahead, SIGUSR2 an hour back."""
    for number, seconds in {signal.SIGUSR1: HOUR, signal.SIGUSR2: -HOUR}.items():
        signal.signal(number, lambda _number, _frame, seconds=seconds: step(seconds))
        # Python gives handled signals their default at its end: a late one would kill a process that ends well.
        atexit.register(signal.signal, number, signal.SIG_IGN)


time.time = lambda: _real_s() + _offset
time.time_ns = lambda: _real_ns() + int(_offset * 1e9)
