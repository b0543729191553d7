"""Log output on stderr: warnings, and with ``--verbose`` everything."""

from __future__ import annotations

import logging

from dispatch.cli.output import make_printable, print_err


class StderrHandler(logging.Handler):
    """Writes to the current ``sys.stderr``, which a live display may have replaced."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print_err(make_printable(self.format(record)))
        except Exception:
            self.handleError(record)


def show_logs(verbose: bool, level: int = logging.WARNING) -> None:
    """Show log records of dispatch from ``level`` on; with ``verbose`` all records, with logger names."""
    logger = logging.getLogger("dispatch")
    for handler in list(logger.handlers):
        if isinstance(handler, StderrHandler):
            logger.removeHandler(handler)
    handler = StderrHandler()
    pattern = "%(asctime)s %(levelname)s %(name)s: %(message)s" if verbose else "%(levelname)s: %(message)s"
    handler.setFormatter(logging.Formatter(pattern))
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if verbose else level)
