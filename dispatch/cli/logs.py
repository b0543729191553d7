"""The log on stderr: warnings always, everything with ``--verbose``."""

from __future__ import annotations

import logging

from dispatch.cli.output import printable, say


class StderrHandler(logging.Handler):
    """Writes to the stderr of the moment, so that a live display which has put its own there is not torn."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            say(printable(self.format(record)))
        except Exception:
            self.handleError(record)


def show_logs(verbose: bool, level: int = logging.WARNING) -> None:
    """Show the records of dispatch's own loggers from ``level`` on; with ``verbose`` all of them, with their names."""
    logger = logging.getLogger("dispatch")
    for handler in list(logger.handlers):
        if isinstance(handler, StderrHandler):
            logger.removeHandler(handler)
    handler = StderrHandler()
    pattern = "%(asctime)s %(levelname)s %(name)s: %(message)s" if verbose else "%(levelname)s: %(message)s"
    handler.setFormatter(logging.Formatter(pattern))
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if verbose else level)
