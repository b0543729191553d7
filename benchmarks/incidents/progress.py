"""Progress on stderr: each step, and a line every few seconds for as long as a step takes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType

from benchmarks.harness.processes import say

FIRST_S = 2.0
EVERY_S = 10.0


class Progress:
    """Reports the current step. A context manager: leaving it ends the thread that reports.

    Args:
        write: takes one line.
        every: seconds between two lines about the same step.
    """

    def __init__(self, write: Callable[[str], None] | None = None, every: float = EVERY_S) -> None:
        self._write = write or say
        self._every = every
        self._step: tuple[str, float] | None = None
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._report, name="progress", daemon=True)

    def step(self, text: str, seconds: float | None = None) -> None:
        """Begin a step; ``seconds``: how long it is expected to take."""
        with self._lock:
            self._step = (text, time.monotonic())
            self._write(text if seconds is None or seconds < FIRST_S else f"{text} (about {seconds:.0f} s)")

    def line(self, text: str) -> None:
        """Write a line that is no step of its own."""
        with self._lock:
            self._write(text)

    def _report(self) -> None:
        while not self._stop.wait(self._every):
            with self._lock:
                if self._step is not None:
                    text, began = self._step
                    elapsed = time.monotonic() - began
                    if elapsed >= self._every:
                        self._write(f"  … {elapsed:.0f} s: {text}")

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
