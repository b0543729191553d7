"""The executor of synchronous tools: a bounded pool of daemon threads.

A thread cannot be stopped. One whose request has ended (deadline, cancellation) is *abandoned*: it is counted until its tool
returns, and, being a daemon, does not keep the process from exiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, ParamSpec, TypeVar, cast

from dispatch._internal.user_code import hold

P = ParamSpec("P")
T = TypeVar("T")

Task = asyncio.Task[Any]


class _Call:
    """A function call of :meth:`ToolExecutor.run`, with the future of its thread."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self.future: Future[Any] = Future()

    def __call__(self) -> Any:
        return self._function()


class ToolExecutor(Executor):
    """Runs synchronous tools in threads of its own.

    ``concurrent.futures.ThreadPoolExecutor`` does not fit: its threads are joined when the interpreter exits, so that one
    tool that hangs keeps the process alive.

    Args:
        max_threads: threads at most. Each is started when a call finds no idle thread, and kept for the next call.
        name: prefix of the threads' names.
        idle_s: seconds after which an idle thread ends; None: never.

    Attributes:
        max_threads: may be changed; a lower number ends no thread.
    """

    def __init__(self, max_threads: int, name: str, *, idle_s: float | None = None) -> None:
        self.max_threads = max_threads
        self._name = name
        self._idle_s = idle_s
        self._changed = threading.Condition()
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._threads = 0
        self._idle = 0
        self._closed = False
        self.abandoned: dict[Task, asyncio.Future[Future[Any]]] = {}
        """Tasks whose thread still runs although they were cancelled, with what completes when it returns."""

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``function`` in a thread, in a copy of the current context, and return its result. Raises what the function
        raises, as :func:`~dispatch._internal.user_code.hold` returns it.

        When the awaiting task is cancelled meanwhile, its thread is entered in :attr:`abandoned`.
        """
        loop = asyncio.get_running_loop()
        call = _Call(partial(contextvars.copy_context().run, partial(function, *args, **kwargs)))
        try:
            return cast(T, await loop.run_in_executor(self, call))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and not call.future.cancel() and not call.future.done():
                self._abandon(task, call.future, loop)
            raise

    def _abandon(self, task: Task, future: Future[Any], loop: asyncio.AbstractEventLoop) -> None:
        returned: asyncio.Future[Future[Any]] = loop.create_future()

        def on_return() -> None:
            del self.abandoned[task]
            if not returned.done():
                returned.set_result(future)

        def in_thread(_: Future[Any]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(on_return)

        self.abandoned[task] = returned
        future.add_done_callback(in_thread)

    def submit(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Call ``function(*args, **kwargs)`` in a thread.

        Raises:
            RuntimeError: the executor is shut down, or the system starts no more threads.
        """
        future: Future[T] = function.future if isinstance(function, _Call) else Future()
        with self._changed:
            if self._closed:
                raise RuntimeError("the tool server is closed: no tool can be started")
            self._calls.append((future, partial(function, *args, **kwargs)))
            if self._idle >= len(self._calls):
                self._changed.notify()
            elif self._threads < self.max_threads:
                self._start_thread()
        return future

    def _start_thread(self) -> None:
        self._threads += 1
        thread = threading.Thread(target=self._work, name=f"{self._name}-{self._threads}", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            self._threads -= 1
            self._calls.pop()
            raise

    def _work(self) -> None:
        while (call := self._next_call()) is not None:
            future, function = call
            if future.set_running_or_notify_cancel():
                try:
                    result = function()
                except BaseException as raised:
                    future.set_exception(hold(raised))
                else:
                    future.set_result(result)
                    del result
            del call, future, function  # an idle thread keeps no arguments and results alive

    def _next_call(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        with self._changed:
            while not self._calls:
                if self._closed:
                    self._threads -= 1
                    return None
                self._idle += 1
                is_notified = self._changed.wait(self._idle_s)
                self._idle -= 1
                # A call that came while the wait ended finds this thread still among the idle ones.
                if not is_notified and not self._calls:
                    self._threads -= 1
                    return None
            return self._calls.popleft()

    def close(self) -> None:
        """End idle threads now, and the others when their tools return. Does not wait for them."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
