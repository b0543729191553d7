"""What a server process writes to stderr, in the log: lines of bounded length at a bounded rate."""

from __future__ import annotations

import logging
from typing import Final

from dispatch._internal.permit import Clock
from dispatch._internal.suggestions import excerpt

MAX_LINE_CHARS: Final = 1_000
MAX_BURST: Final = 100
"""Lines that may be written at once."""
LINES_PER_S: Final = 20.0
"""Lines per second after a burst: a server that logs each request stays readable, and one that loops fills no disk."""


class StderrLog:
    """Writes the bytes of a server's stderr to the log.

    Args:
        logger: receives each line at the level INFO.
        server: name, in front of each line.
        clock: seconds.
    """

    def __init__(self, logger: logging.Logger, server: str, clock: Clock) -> None:
        self._logger = logger
        self._server = server
        self._clock = clock
        self._rest = b""
        self._permits = float(MAX_BURST)
        self._filled_at = clock()
        self._dropped = 0

    def feed(self, data: bytes) -> None:
        """Write the complete lines in ``data``, and in what came before it."""
        *lines, rest = (self._rest + data).split(b"\n")
        # Four bytes a character at most; more of a line is not needed.
        self._rest = rest[: 4 * MAX_LINE_CHARS + 1]
        for line in lines:
            self._write(line)

    def close(self) -> None:
        """Write the last line, and the number of lines that were dropped."""
        if self._rest:
            self._write(self._rest)
            self._rest = b""
        self._report_dropped()

    def _write(self, line: bytes) -> None:
        now = self._clock()
        self._permits = min(MAX_BURST, self._permits + (now - self._filled_at) * LINES_PER_S)
        self._filled_at = now
        text = line.decode("utf-8", "replace").rstrip()
        if not text:
            return
        if self._permits < 1:
            self._dropped += 1
            return
        self._report_dropped()
        self._permits -= 1
        self._logger.info("%s: %s", self._server, excerpt(text, MAX_LINE_CHARS))

    def _report_dropped(self) -> None:
        if self._dropped:
            self._logger.info("%s: … %d lines are left out", self._server, self._dropped)
            self._dropped = 0
