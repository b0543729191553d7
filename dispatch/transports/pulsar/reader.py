"""A reader of pulsar-client that pushes its messages to a listener.

pulsar-client has reader listeners, but never frees a reader that has one (3.13.0): the reader, its consumer and the listener
refer to each other in C++. Its client then keeps a thread and 6 file descriptors, also after it was closed. A reader without
a listener is freed, so a thread reads its messages here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pulsar

POLL_S = 0.5
"""Longest time the thread stays in pulsar-client, in seconds. A read without a timeout may never return: closing a client
can stop its executor before pulsar-client has called back for a pending read."""
END_S = 2.0
"""Longest time, in seconds, that closing waits for the thread. A thread that is still in pulsar-client when the interpreter
ends aborts the process."""


class ListenedReader:
    """A ``pulsar.Reader`` without a listener, and a thread that calls ``listener(reader, message)`` for each message.

    Args:
        reader: the reader.
        listener: is called on the thread and must not raise.
    """

    def __init__(self, reader: Any, listener: Callable[[Any, Any], None]) -> None:
        self._reader = reader
        self._listener = listener
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._read, name="dispatch-pulsar-reader", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while not self._closed.is_set():
            try:
                message = self._reader.read_next(int(POLL_S * 1000))
            except pulsar.Timeout:
                continue
            except Exception:  # closed, or disconnected
                self._closed.wait(POLL_S)
                continue
            self._listener(self, message)
            del message  # a large message would be retained until the next one

    def is_connected(self) -> bool:
        """Whether messages can arrive."""
        return self._thread.is_alive() and bool(self._reader.is_connected())

    def close(self) -> None:
        """Close the reader and end the thread."""
        self.end()
        try:
            self._reader.close()
        finally:
            self.join()

    def end(self) -> None:
        """Let the thread end: at once when the reader or its client is closed, otherwise within :data:`POLL_S`."""
        self._closed.set()

    def join(self) -> None:
        """Wait for the end of the thread, at most :data:`END_S`."""
        self._thread.join(END_S)
