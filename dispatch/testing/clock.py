"""An event loop on virtual time: when no callback is ready, its clock jumps to the next timer. A long sleep takes no time.

A test that would hang on a real loop fails at once: with nothing ready, no timer and no running thread, the loop raises
:class:`DeadlockError`, which names what each task waits for. Virtual time stands still while a thread of the loop's executor
runs. Only the loop's clock is virtual, not ``time.monotonic()``; the loop does not wait for events from outside (other
processes, servers).
"""

from __future__ import annotations

import asyncio
import functools
import gc
import selectors
import traceback
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from dispatch._internal import describe_type

P = ParamSpec("P")
T = TypeVar("T")

MAX_VIRTUAL_S = 30 * 86_400.0
"""Virtual seconds after which a test fails: a timer is set again and again."""
MAX_THREAD_S = 30.0
"""Seconds of wall time that a thread of a test may run."""
START = 1_000.0
"""First reading of the clock, in seconds: not 0, so that a test fails if code mistakes a time for a duration."""
CLEANUP_TURNS = 10
"""Turns of the loop after a test, without any time passing, in which its remaining tasks may end."""


class DeadlockError(AssertionError):
    """The loop waits for something that cannot happen any more."""


class _Selector(selectors.DefaultSelector):
    loop: VirtualClockLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        events = super().select(0)
        if events or (timeout is not None and timeout <= 0):
            return events
        loop = self.loop
        if loop.wake_idle():
            return []
        if loop.threads and not loop.threads_may_hang:
            events = super().select(MAX_THREAD_S)
            if not events:
                raise DeadlockError(f"a thread was still running after {MAX_THREAD_S} s of wall time")
            return events
        if timeout is None:
            raise DeadlockError("no callback is ready and no timer is set: what the tasks await cannot happen")
        loop.jump(timeout)
        return []


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """An event loop on virtual time; also a loop factory: ``asyncio.Runner(loop_factory=VirtualClockLoop)``.

    Attributes:
        threads: number of running threads of the executor.
        threads_may_hang: let virtual time pass although threads run.
    """

    def __init__(self) -> None:
        self._now = START
        self.threads = 0
        self.threads_may_hang = False
        self._idle: list[asyncio.Future[None]] = []
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self._now

    def jump(self, seconds: float) -> None:
        """Advance the clock at once; timers that are due then run on the loop's next turn."""
        self._now += seconds
        if self._now > START + MAX_VIRTUAL_S:
            raise DeadlockError(f"the test has not ended after {MAX_VIRTUAL_S / 86_400:.0f} days of virtual time")

    def wake_idle(self) -> bool:
        """Wake the tasks that wait until nothing is ready. Return False if there are none."""
        waiters, self._idle = self._idle, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        return bool(waiters)

    def when_idle(self) -> asyncio.Future[None]:
        """Return a future that is done when nothing is ready any more, before time passes."""
        waiter = self.create_future()
        self._idle.append(waiter)
        return waiter

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        future = super().run_in_executor(executor, func, *args)
        self.threads += 1
        future.add_done_callback(self._on_thread_end)
        return future

    def _on_thread_end(self, _future: asyncio.Future[Any]) -> None:
        self.threads -= 1

    def list_timers(self) -> list[asyncio.TimerHandle]:
        """Return the timers that are set and not cancelled."""
        return [handle for handle in self._scheduled if not handle.cancelled()]  # type: ignore[attr-defined]


def virtual_loop() -> VirtualClockLoop:
    """Return the running loop.

    Raises:
        RuntimeError: the running loop is not virtual.
    """
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualClockLoop):
        raise RuntimeError("this needs the virtual clock: decorate the test with @virtual_time, or use run(main)")
    return loop


async def idle() -> None:
    """Wait until no callback is ready. No time passes.

    Raises:
        RuntimeError: the running loop is not virtual.
    """
    await virtual_loop().when_idle()


async def advance(seconds: float) -> None:
    """Let ``seconds`` of virtual time pass, and run everything that is due by then.

    Raises:
        RuntimeError: the running loop is not virtual.
    """
    virtual_loop()
    await asyncio.sleep(seconds)
    await idle()


def virtual_time(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Decorate an ``async def`` test: it becomes a plain function that runs on virtual time, in any test runner."""

    @functools.wraps(function)
    def on_virtual_time(*args: P.args, **kwargs: P.kwargs) -> T:
        __tracebackhide__ = True
        return run(lambda: function(*args, **kwargs))

    return on_virtual_time


def run(
    main: Callable[[], Coroutine[Any, Any, T]], *, loop: asyncio.AbstractEventLoop | None = None, strict: bool = True
) -> T:
    """Run ``main()`` on virtual time, unless ``loop`` is given, and check that it leaves no tasks, timers or errors behind.

    Args:
        main: returns the coroutine.
        loop: a new loop; it is closed at the end.
        strict: fail if anything remains. False: cancel remaining tasks silently.

    Raises:
        AssertionError: tasks or timers remain, or an exception was never retrieved.
        DeadlockError: the loop waits for something that cannot happen, ``strict`` or not.
        TypeError: ``main`` is no coroutine function.
    """
    loop = VirtualClockLoop() if loop is None else loop
    problems: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: problems.append(context))
    try:
        result = _run(loop, main, strict)
    finally:
        _close_loop(loop)
    gc.collect()  # exceptions that were never retrieved are reported when their tasks are collected
    if problems and strict:
        reports = "\n".join(f"{p['message']}: {p.get('exception')!r}" for p in problems)
        raise AssertionError(f"the loop reported:\n{reports}") from problems[0].get("exception")
    return result


def _run(loop: asyncio.AbstractEventLoop, main: Callable[[], Coroutine[Any, Any, T]], strict: bool) -> T:
    if not callable(main):
        raise TypeError(f"main must be a coroutine function, as in run(main), not {describe_type(main)}.")
    coroutine = main()
    if not asyncio.iscoroutine(coroutine):
        raise TypeError(
            f"the test returned {describe_type(coroutine)}, not a coroutine. Fix: write it with 'async def'."
        )
    task = loop.create_task(coroutine, name="the test itself")
    try:
        result = loop.run_until_complete(task)
    except DeadlockError as error:
        raise DeadlockError(f"{error}\n{_describe_tasks(asyncio.all_tasks(loop))}") from None
    for _ in range(CLEANUP_TURNS):
        if not asyncio.all_tasks(loop):
            break
        loop.run_until_complete(_turn())
    remaining = asyncio.all_tasks(loop)
    if remaining and strict:
        raise AssertionError(f"tasks are left:\n{_describe_tasks(remaining)}")
    timers = loop.list_timers() if isinstance(loop, VirtualClockLoop) else []
    if timers and strict:
        raise AssertionError(f"timers are left: {timers}")
    return result


async def _turn() -> None:
    await asyncio.sleep(0)


def _close_loop(loop: asyncio.AbstractEventLoop) -> None:
    try:
        remaining = asyncio.all_tasks(loop)
        for task in remaining:
            task.cancel()
        if remaining:
            try:
                loop.run_until_complete(asyncio.gather(*remaining, return_exceptions=True))
            except DeadlockError:
                return  # a task ignores its cancellation; the test has failed already
        loop.run_until_complete(loop.shutdown_asyncgens())
        if isinstance(loop, VirtualClockLoop):
            loop.threads += 1  # the thread that shuts the executor down
            loop.threads_may_hang = False
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()


def _describe_tasks(tasks: set[asyncio.Task[Any]]) -> str:
    lines = []
    for task in tasks:
        frames = task.get_stack(limit=1)
        where = "".join(traceback.format_stack(frames[-1], limit=1)).strip() if frames else "(not started)"
        lines.append(f"  {task.get_name()}: {where}")
    return "\n".join(lines)
