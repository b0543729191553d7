"""The Pulsar client's own log lines, through ``logging`` (logger ``dispatch.pulsar``), quietly.

The C++ client accepts a Python logger, but calls it from its own threads, which can lock up the interpreter
(apache/pulsar-client-python issue 116; apache/pulsar issue 11847). It therefore writes to a pipe, which a thread of this
module reads. Its logger is global to the process: the first client sets it, and all others use the same pipe.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import threading
from typing import Any

import pulsar

logger = logging.getLogger("dispatch.pulsar")
logger.addHandler(logging.NullHandler())

_LINE = re.compile(r"^\S+ \S+ (?P<level>[A-Z]+)\s+\[\d+\] (?P<text>.*)$")
_LEVELS = {"WARN": logging.DEBUG, "ERROR": logging.INFO, "FATAL": logging.ERROR, "INFO": logging.DEBUG}
# One level lower than the client's: failures reach the caller as typed errors, and while a broker restarts the client's
# attempts to reconnect would fill the log.

_PIPE_BYTES = 1 << 20
_MAX_LINE = 2_000
_lock = threading.Lock()
_sink: Any = None


def client_logger() -> Any:
    """The ``logger`` argument for ``pulsar.Client``."""
    global _sink
    with _lock:
        if _sink is None:
            _sink = _open_pipe()
        return _sink


def _open_pipe() -> Any:
    if not os.path.isdir("/dev/fd"):
        return pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    reading, writing = os.pipe()
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):  # an unprivileged process may be refused the size; the default does too
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    thread = threading.Thread(target=_forward, args=(reading,), name="dispatch-pulsar-logs", daemon=True)
    thread.start()
    return pulsar.FileLogger(pulsar.LoggerLevel.Warn, f"/dev/fd/{writing}")


def _forward(fd: int) -> None:
    with open(fd, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            text = line.rstrip("\n")[:_MAX_LINE]
            match = _LINE.match(text)
            if match is None:
                logger.debug("%s", text)
            else:
                logger.log(_LEVELS.get(match["level"], logging.DEBUG), "%s", match["text"])
