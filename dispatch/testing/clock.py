"""An event loop on virtual time: when nothing is ready, its clock jumps to the next timer. Thirty seconds take no time.

A test that hangs on a real loop fails at once here, because a loop with nothing ready, no timer and no thread at work can
never go on: :class:`DeadlockError` names what every task was waiting for. Time stands still while a thread of the loop's
executor works. Only the loop's clock is virtual: ``time.monotonic()`` goes on as ever, and what comes from outside (another
process, a server elsewhere) comes too late, because nobody waits for it.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import selectors
import traceback
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

MAX_VIRTUAL_S = 30 * 86_400.0
"""A test that needs more virtual time than this is stuck on a timer that is set again and again."""
MAX_THREAD_S = 30.0
"""Wall time that a thread of a test may take."""
START = 1_000.0
"""The clock's first reading: not 0, so that nobody takes a time for a duration."""
TURNS = 10
"""Turns of the loop, without any time passing, in which what a test has let go of may end."""


class DeadlockError(AssertionError):
    """Nothing can ever happen on this loop any more."""


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
                raise DeadlockError(f"a thread was still at work after {MAX_THREAD_S} s of wall time")
            return events
        if timeout is None:
            raise DeadlockError("nothing is ready and no timer is set: whatever is awaited will never come")
        loop.jump(timeout)
        return []


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """See the module. A loop factory too, for others that run coroutines: ``asyncio.Runner(loop_factory=VirtualClockLoop)``.

    Attributes:
        threads: how many threads of the executor are at work.
        threads_may_hang: lets time pass although one is (it stands still otherwise).
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
        """Let time pass at once; what is due then is called on the loop's next turn."""
        self._now += seconds
        if self._now > START + MAX_VIRTUAL_S:
            raise DeadlockError(f"the test has not ended after {MAX_VIRTUAL_S / 86_400:.0f} days of virtual time")

    def wake_idle(self) -> bool:
        """Nothing is ready: tell who waits for that. False: nobody does."""
        waiters, self._idle = self._idle, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        return bool(waiters)

    def when_idle(self) -> asyncio.Future[None]:
        """Done when nothing is ready any more, before time passes."""
        waiter = self.create_future()
        self._idle.append(waiter)
        return waiter

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        future = super().run_in_executor(executor, func, *args)
        self.threads += 1
        future.add_done_callback(self._thread_ended)
        return future

    def _thread_ended(self, _future: asyncio.Future[Any]) -> None:
        self.threads -= 1

    def timers(self) -> list[asyncio.TimerHandle]:
        """Timers that are set and not cancelled."""
        return [handle for handle in self._scheduled if not handle.cancelled()]  # type: ignore[attr-defined]


def virtual_loop() -> VirtualClockLoop:
    """The running loop.

    Raises:
        RuntimeError: it is a real one.
    """
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualClockLoop):
        raise RuntimeError("this needs the virtual clock: decorate the test with @virtual_time, or use run(main)")
    return loop


async def idle() -> None:
    """Wait until everything that can happen now has happened. No time passes.

    Raises:
        RuntimeError: the loop is a real one.
    """
    await virtual_loop().when_idle()


async def advance(seconds: float) -> None:
    """Let virtual time pass, and everything that is due in it happen.

    Raises:
        RuntimeError: the loop is a real one.
    """
    virtual_loop()
    await asyncio.sleep(seconds)
    await idle()


def virtual_time(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Decorator. Makes a plain function of an ``async def``: it runs on virtual time (:func:`run`), in any test runner."""

    @functools.wraps(function)
    def on_virtual_time(*args: P.args, **kwargs: P.kwargs) -> T:
        __tracebackhide__ = True
        return run(lambda: function(*args, **kwargs))

    return on_virtual_time


def run(
    main: Callable[[], Coroutine[Any, Any, T]], *, loop: asyncio.AbstractEventLoop | None = None, strict: bool = True
) -> T:
    """Run ``main()`` to its end, on virtual time unless ``loop`` is given, and let nothing be left behind.

    Args:
        main: makes the coroutine.
        loop: a new loop; closed at the end.
        strict: what is left behind is a failure. False: it is cancelled, and nothing said.

    Raises:
        AssertionError: tasks or timers are left, or an exception was never looked at.
        DeadlockError: the loop can never go on, whether strict or not.
    """
    loop = VirtualClockLoop() if loop is None else loop
    problems: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: problems.append(context))
    try:
        result = _run(loop, main, strict)
    finally:
        _end(loop)
    gc.collect()  # what nobody looked at is reported when it is collected
    if problems and strict:
        told = "\n".join(f"{p['message']}: {p.get('exception')!r}" for p in problems)
        raise AssertionError(f"the loop reported:\n{told}") from problems[0].get("exception")
    return result


def _run(loop: asyncio.AbstractEventLoop, main: Callable[[], Coroutine[Any, Any, T]], strict: bool) -> T:
    task = loop.create_task(main(), name="the test itself")
    try:
        result = loop.run_until_complete(task)
    except DeadlockError as error:
        raise DeadlockError(f"{error}\n{_described(asyncio.all_tasks(loop))}") from None
    for _ in range(TURNS):
        if not asyncio.all_tasks(loop):
            break
        loop.run_until_complete(_turn())
    left = asyncio.all_tasks(loop)
    if left and strict:
        raise AssertionError(f"tasks are left:\n{_described(left)}")
    timers = loop.timers() if isinstance(loop, VirtualClockLoop) else []
    if timers and strict:
        raise AssertionError(f"timers are left: {timers}")
    return result


async def _turn() -> None:
    await asyncio.sleep(0)


def _end(loop: asyncio.AbstractEventLoop) -> None:
    try:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            try:
                loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            except DeadlockError:
                return  # it will not even be cancelled; the test has failed already
        loop.run_until_complete(loop.shutdown_asyncgens())
        if isinstance(loop, VirtualClockLoop):
            loop.threads += 1  # the one that ends the others
            loop.threads_may_hang = False
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()


def _described(tasks: set[asyncio.Task[Any]]) -> str:
    lines = []
    for task in tasks:
        frames = task.get_stack(limit=1)
        where = "".join(traceback.format_stack(frames[-1], limit=1)).strip() if frames else "(not started)"
        lines.append(f"  {task.get_name()}: {where}")
    return "\n".join(lines)
