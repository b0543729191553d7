"""An executor for blocking calls that may never return: of pulsar-client, and on network file systems."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

from dispatch._internal.user_code import hold

T = TypeVar("T")


class DaemonThreads(Executor):
    """Runs each call in a new daemon thread. Unlike those of a pool, the threads do not delay the exit of the interpreter,
    and a call that never returns blocks no other call.

    The calls are rare (a topic is opened or closed, a folder has changed), so that the start of a thread (some 50 µs) does
    not matter. Callers bound the number of calls.

    Args:
        name: name of the threads.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Call ``fn(*args, **kwargs)`` in a new thread."""
        future: Future[T] = Future()
        threading.Thread(target=_call, args=(future, fn, args, kwargs), name=self._name, daemon=True).start()
        return future


def _call(future: Future[T], fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = fn(*args, **kwargs)
    except BaseException as raised:  # reported through the future, as by any executor
        future.set_exception(hold(raised))
    else:
        future.set_result(result)
