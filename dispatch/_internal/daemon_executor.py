"""Threads for calls of pulsar-client that block, and that now and then never return."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

T = TypeVar("T")


class DaemonThreads(Executor):
    """A new thread for each call. Unlike a pool's, none is waited for when the interpreter ends, and one that never comes
    back takes no other's place.

    The calls are rare (a topic is opened or closed), so that making a thread (some 50 µs) costs nothing. Whoever submits
    bounds their number.

    Args:
        name: of the threads.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Call ``fn(*args, **kwargs)`` in a thread of its own."""
        future: Future[T] = Future()
        threading.Thread(target=_call, args=(future, fn, args, kwargs), name=self._name, daemon=True).start()
        return future


def _call(future: Future[T], fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = fn(*args, **kwargs)
    except BaseException as error:  # whoever waits is told, as with any executor
        future.set_exception(error)
    else:
        future.set_result(result)
