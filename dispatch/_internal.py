"""Helpers without domain knowledge: clock, timers, threads, permits, suggestions, texts."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import difflib
import functools
import inspect
import json
import math
import os
import re
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from types import NoneType, TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NamedTuple, NoReturn, ParamSpec, TypeGuard, TypeVar

import msgspec

# The running event loop: its clock, without overhead, and a turn for its other tasks.


def loop_clock(loop: asyncio.AbstractEventLoop | None = None) -> Callable[[], float]:
    """Return the clock of ``loop``, or of the running one, in seconds. perf: a call reads it some ten times, and the
    ``time`` method of asyncio's own loops is Python code that calls ``time.monotonic``, at several times its cost; for those
    loops the function itself is returned.

    Raises:
        RuntimeError: no loop is running.
    """
    if loop is None:
        loop = asyncio.get_running_loop()
    return time.monotonic if type(loop).time is asyncio.BaseEventLoop.time else loop.time


OTHER_LOOP: Final = (
    "this dispatcher was started on another event loop and works on that one only; create one for each event loop "
    "(every asyncio.run() has a loop of its own). close() works on any loop."
)


async def yield_to_others() -> None:
    """Let the event loop run its other tasks once.

    Every public coroutine waits at least once, also one that has all it needs and one that fails at once: a caller that
    repeats it without a pause would leave no time to the loop, and so none to the work that it may be waiting for, such as
    the call that closes a circuit again, or the embedding of tools.
    """
    await asyncio.sleep(0)


async def wait_set(event: asyncio.Event, timeout: float | None) -> bool:
    """Wait until ``event`` is set, for ``timeout`` seconds at most (None: as long as it takes); return whether it is."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout):
            await event.wait()
    return event.is_set()


# Cancels tasks without hiding the cancellation of the caller.


async def cancel_and_wait(tasks: Iterable[asyncio.Task[Any] | None]) -> None:
    """Cancel ``tasks`` (None: no task) and wait until they have ended. Their exceptions are dropped.

    ``await task`` under ``suppress(CancelledError)`` would also suppress a cancellation of the caller, which is raised here.
    """
    pending = [task for task in tasks if task is not None]
    for task in pending:
        task.cancel()
        task.add_done_callback(retrieve_error)
    if pending:
        await asyncio.wait(pending)


T = TypeVar("T")


async def wait_shared(future: asyncio.Future[T]) -> T:
    """Return the result of a future for which others may wait, too: the cancellation of one caller does not cancel it.

    With ``asyncio.shield``, Python 3.14 would log each error of the future once for every caller that was cancelled before.
    """
    if not future.done():
        await asyncio.wait((future,))
    return future.result()


def retrieve_error(task: asyncio.Future[Any]) -> None:
    """Retrieve the error of a task or future that nothing awaits: asyncio logs errors that are never retrieved."""
    if not task.cancelled():
        task.exception()


# The border to user code: tools, factories, hooks, callbacks, listeners, sources, embedders, clients.
#
# User code may raise anything: SystemExit ends the event loop if it leaves a task, CancelledError cancels the caller,
# GeneratorExit closes the coroutines that await it, a future cannot hold StopIteration, and every attribute of an exception,
# as ``str()`` of it, may raise again: so its class is asked by :func:`is_kind`, its text read by :func:`read_text`, and its
# fields by :func:`read_field`. Every place that runs user code holds what it raises in one of three ways:
#
# - ``with ErrorBoundary():`` around an ``await`` of user code, inside ``try … except Exception``;
# - ``except BaseException as raised: … hold(raised)`` around a function call, which a cancellation cannot interrupt;
# - ``except BaseException as raised:`` with :func:`ends_task`, in a task that runs nothing but one tool.


MAX_ERROR_CHARS: Final = 64 * 1024
"""Longest text of an error of user code in characters; a longer one is truncated."""

_NAME_OF_TYPE: Final = type.__dict__["__name__"].__get__


class UserCodeError(RuntimeError):
    """Holds what user code raised and what is no ``Exception``, such as SystemExit: it can be raised and stored as one.

    Attributes:
        raised: by the user code.
    """

    def __init__(self, raised: BaseException) -> None:
        text = read_text(raised)
        super().__init__(f"{type_name(raised)}: {text}" if text else type_name(raised))
        self.raised = raised


class ErrorBoundary:
    """A context in which a task awaits user code: whatever is raised inside leaves it as an ``Exception``. Only the
    cancellation of the task passes, and the end of its coroutine."""

    __slots__ = ("_task",)

    def __enter__(self) -> None:
        self._task = running_task()

    def __exit__(
        self, _type: type[BaseException] | None, raised: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if raised is not None and not ends_task(raised, self._task):
            held = hold(raised)
            if held is not raised:
                raise held from raised


def hold(raised: BaseException) -> Exception:
    """Return what user code raised as an exception that a future can hold and that ends neither a task nor the loop."""
    if is_kind(raised, StopIteration):
        held = RuntimeError("the function raised StopIteration")  # as Python has it for coroutines
        held.__cause__ = raised
        return held
    return raised if is_kind(raised, Exception) else UserCodeError(raised)


def unwrap(raised: BaseException) -> BaseException:
    """Return what user code raised itself."""
    return raised.raised if is_kind(raised, UserCodeError) else raised


def is_kind(value: object, kind: type[T]) -> TypeGuard[T]:
    """Return whether the class of ``value`` is ``kind`` or derived from it. Unlike ``isinstance``, it does not read the
    ``__class__`` of ``value``, which may raise, or lie."""
    return issubclass(type(value), kind)


def read_field(raised: BaseException, name: str) -> Any:
    """Return the field ``name`` of an exception, such as ``__traceback__``, whatever properties its class has."""
    return BaseException.__dict__[name].__get__(raised)


def ends_task(raised: BaseException, task: asyncio.Task[Any] | None) -> bool:
    """Return whether ``raised`` is the cancellation of ``task``, whose code asks, or closes its coroutine from outside. A
    CancelledError or GeneratorExit that user code raises by itself is neither.

    Args:
        raised: the exception.
        task: None: the code runs in no task.
    """
    if is_kind(raised, asyncio.CancelledError):
        return task is None or task.cancelling() > 0
    return is_kind(raised, GeneratorExit) and (task is None or running_task() is not task)


def running_task() -> asyncio.Task[Any] | None:
    """Return the task that runs in this thread; None: there is none."""
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop is running
        return None


def type_name(value: object) -> str:
    """Return the name of the class of ``value``, whatever its metaclass does."""
    name: str = _NAME_OF_TYPE(type(value))
    return name


def read_text(value: object) -> str:
    """Return ``str(value)``, truncated to :data:`MAX_ERROR_CHARS`; never raises."""
    try:
        return str(value)[:MAX_ERROR_CHARS]
    except BaseException:  # its own __str__ raises
        return f"(the text of a {type_name(value)} cannot be read)"


# An executor for blocking calls that may never return: of pulsar-client, and on network file systems.


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
        call = functools.partial(fn, *args, **kwargs)
        threading.Thread(target=fulfil, args=(future, call), name=self._name, daemon=True).start()
        return future


def fulfil(future: Future[T], function: Callable[[], T]) -> None:
    """Call ``function`` and set its result, or what it raises, unless the future was cancelled."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function()
    except BaseException as raised:  # reported through the future, as by any executor
        future.set_exception(hold(raised))
    else:
        future.set_result(result)


# Work in threads that progresses beside an event loop that is never idle.
#
# A thread needs the interpreter lock again after each system call and at its begin. An event loop that is saturated by
# callers lends that lock for the moment of each ``select``, too short for another thread, and so often that the wait after
# which a thread may demand it (``sys.getswitchinterval()``, 5 ms) always begins anew: a reading of a folder, hundreds of
# system calls, takes seconds instead of milliseconds, and a thread that waits for changes hears of one seconds later.
# Therefore the loop pauses briefly while such a thread is there.


class PauseTimes(NamedTuple):
    """How often and how long an event loop pauses.

    Attributes:
        interval: seconds between two pauses. After less than half of it in processor time there is no pause: an event loop
            that was idle in between has left the lock to others anyway.
        share: seconds of pauses for each second of the event loop's processor time.
        limit: seconds after which there are no more pauses.
    """

    interval: float
    share: float
    limit: float


WORK: Final = PauseTimes(interval=0.001, share=0.25, limit=10.0)
"""While work is done: as often as a saturated event loop turns. Work that takes longer than the limit waits for something
else, such as a network file system that does not answer."""
WATCH: Final = PauseTimes(interval=0.05, share=0.01, limit=math.inf)
"""While a thread waits for changes and looks every 50 ms: it needs the lock for three or four moments until it has reported
one."""
MAX_PAUSE_S: Final = 0.005
"""Seconds of one pause, at most: as long as a thread may hold the interpreter lock while the event loop waits for it."""

IDLE_INTERVALS: Final = 4
"""Intervals until the next check of an event loop that was idle: the check itself wakes it up, and the processor."""

_threads = DaemonThreads("dispatch-work")


async def run_in_thread(function: Callable[[], T], executor: Executor = _threads, pauses: PauseTimes = WORK) -> T:
    """Return the result of ``function``, called in a thread of ``executor`` while the event loop makes ``pauses``.

    The default is a daemon thread: the exit of the interpreter waits for the threads of ``asyncio.to_thread``, and a network
    file system may never answer.
    """
    loop = asyncio.get_running_loop()
    work = loop.run_in_executor(executor, function)
    with _pauses.setdefault(loop, {}).setdefault(pauses, _Pauses(loop, pauses)):
        return await work


class _Pauses:
    """Pauses of one event loop, in the context of threads that need the interpreter lock."""

    def __init__(self, loop: asyncio.AbstractEventLoop, times: PauseTimes) -> None:
        self._loop = weakref.ref(loop)
        self._times = times
        self._works = 0
        self._ends_at = 0.0
        self._wait = times.interval
        """Seconds from the last check to the next one."""
        self._paused_at = 0.0
        """Processor time of the event loop's thread at the last check."""
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        self._works += 1
        self._ends_at = time.monotonic() + self._times.limit
        if self._timer is None:
            self._paused_at = time.thread_time()
            self._wait = self._times.interval
            self._schedule()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._works -= 1
        if not self._works and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        loop = self._loop()
        assert loop is not None  # it runs
        self._timer = loop.call_later(self._wait, self._pause)

    def _pause(self) -> None:
        self._timer = None
        busy = time.thread_time() - self._paused_at
        if busy >= self._wait / 2:
            time.sleep(min(busy * self._times.share, MAX_PAUSE_S))
            self._wait = self._times.interval
        else:
            self._wait = IDLE_INTERVALS * self._times.interval
        self._paused_at = time.thread_time()
        if time.monotonic() < self._ends_at:
            self._schedule()


_pauses: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[PauseTimes, _Pauses]] = weakref.WeakKeyDictionary()


# Suggestions for misspelt names, and safe display of names in messages.


_SEPARATORS: Final = re.compile(r"[-_.\s]+")
_MAX_COMPARED_CHARS: Final = 100
_MAX_COMPARED_NAMES: Final = 500
"""Names that are compared with a misspelt one. A comparison costs 20 µs on the caller's event loop: at most 10 ms in all."""


def find_near_names(name: str, known: Iterable[str], limit: int = 3) -> tuple[str, ...]:
    """Return up to ``limit`` of the ``known`` names that are similar to ``name``, best first.

    Names that differ only in case or in ``-``, ``_``, ``.`` and blanks precede those with a similar spelling.
    """
    wanted = _plain(name[:_MAX_COMPARED_CHARS])
    by_plain: dict[str, list[str]] = {}
    for candidate in known:
        by_plain.setdefault(_plain(candidate[:_MAX_COMPARED_CHARS]), []).append(candidate)
    found = list(by_plain.get(wanted, ()))
    if len(found) < limit:
        others = _comparable(wanted, [plain for plain in by_plain if plain != wanted])
        for plain in difflib.get_close_matches(wanted, others, n=limit):
            found += by_plain[plain]
    return tuple(found[:limit])


def _comparable(wanted: str, candidates: list[str]) -> list[str]:
    if len(candidates) <= _MAX_COMPARED_NAMES:
        return candidates
    # In a large catalogue only names that share a word or the first letters are compared.
    words = set(wanted.split("-"))
    likely = [plain for plain in candidates if plain[:2] == wanted[:2] or not words.isdisjoint(plain.split("-"))]
    return likely[:_MAX_COMPARED_NAMES]


def _plain(name: str) -> str:
    # perf: an unknown name is compared with every known one; the regular expression costs four times as much.
    plain = name.casefold().replace("_", "-").replace(".", "-").replace(" ", "-")
    return _SEPARATORS.sub("-", plain) if "--" in plain or not plain.isprintable() else plain


def join_names(names: Sequence[str], limit: int = 20) -> str:
    """Return the first ``limit`` names as one text, and the number of the others."""
    shown = ", ".join(excerpt(name) for name in names[:limit])
    return f"{shown} and {len(names) - limit:,} more" if len(names) > limit else shown


def join_alternatives(names: Sequence[str]) -> str:
    """Return ``'a'``, or ``'a' or 'b'``, or ``'a', 'b' or 'c'``."""
    quoted = [quote_excerpt(name) for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"


def excerpt(text: str, limit: int = 80) -> str:
    """Return ``text`` for a message: at most ``limit`` characters, all of them printable."""
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    return cut if cut.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in cut)


def quote_excerpt(text: str, limit: int = 80) -> str:
    """Return :func:`excerpt` in quotes, in those that the text does not have. Unlike in ``repr``, which would escape the
    escapes of the excerpt, a line break is ``\\n``."""
    shown = excerpt(text, limit)
    quote = '"' if "'" in shown and '"' not in shown else "'"
    return f"{quote}{shown}{quote}"


def write_json(value: object) -> str:
    """Return ``value`` as JSON for a message, with letters of all languages as they are and everything printable."""
    return excerpt(json.dumps(value, ensure_ascii=False), 1_000)


def first_sentence(text: str) -> str:
    """Shorten a peer's or a library's text to its first sentence, for use inside a sentence."""
    return text.split(". ")[0].rstrip(". \n")


# Types of all guards: a guard returns a permit or a rejection at once. A permit has a method ``finish``, which reports the
# outcome of the attempt to the guard; only the first call counts.


Clock = Callable[[], float]
"""Returns seconds on a monotonic clock."""
Randomness = Callable[[], float]
"""Returns a random number, uniform over [0, 1), as :meth:`random.Random.random`."""


class Rejection(msgspec.Struct, frozen=True):
    """A guard's rejection of an attempt. A value, not an exception: it retains no frames.

    Attributes:
        by: the guard: ``breaker``, ``rate-limit``, ``bulkhead`` …
        reason: a word for metrics and errors: ``open``, ``probing``, ``queue-full``, ``too-late`` …
        retry_after: seconds after which an attempt may be admitted; None: unknown.
    """

    by: str
    reason: str
    retry_after: float | None = None


# Retention of removed things: each is dropped after a time, once nothing uses it, unless it returns meanwhile.


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def remember(known: OrderedDict[K, V], key: K, value: V, limit: int) -> None:
    """Set a value; of more than ``limit``, the one that was set longest ago is dropped."""
    known[key] = value
    known.move_to_end(key)
    if len(known) > limit:
        known.popitem(last=False)


RETENTION_S = 60.0
"""Seconds that the state of a removed tool is retained at least. A tool that an operator or a deployment deletes and creates
again returns within seconds; without retention that would reset its rate limits, bulkhead and breaker."""
MAX_RETAINED = 10_000
"""Removed things at most; beyond that the oldest expires early, so that names that come and go use bounded memory."""
BATCH = 100
"""Things dropped in one turn of the event loop: some milliseconds."""


class Retention(Generic[K]):
    """Retains the state of removed things by key, on the running event loop. One timer serves all.

    Args:
        drop: drops the state of a key. It is called once, :data:`RETENTION_S` after :meth:`add`, when the thing is not in
            use.
        await_idle: receives a key and a callback: returns False if the thing is not in use; otherwise returns True and calls
            the callback once when that use has ended.
    """

    def __init__(self, drop: Callable[[K], object], await_idle: Callable[[K, Callable[[], object]], bool]) -> None:
        self._drop = drop
        self._await_idle = await_idle
        self._due: dict[K, float] = {}
        """When each key expires, the earliest first: all have the same retention."""
        self._busy: dict[K, object] = {}
        """Expired keys that are in use, each with a token of its wait: the callback of an earlier wait has no effect."""
        self._timer: asyncio.TimerHandle | None = None

    def __contains__(self, key: object) -> bool:
        return key in self._due or key in self._busy

    def __len__(self) -> int:
        return len(self._due) + len(self._busy)

    def add(self, key: K) -> None:
        """Retain ``key``, which was removed now. Does nothing for a retained one."""
        if key in self:
            return
        loop = asyncio.get_running_loop()
        self._due[key] = loop.time() + RETENTION_S
        if len(self._due) > MAX_RETAINED:
            self._expire(next(iter(self._due)))
        if self._timer is None:
            self._set_timer(loop)

    def restore(self, key: K) -> bool:
        """Stop the retention of ``key``, which is in use again. Return whether it was retained."""
        is_due = self._due.pop(key, None) is not None
        return self._busy.pop(key, None) is not None or is_due

    def close(self) -> None:
        """Cancel the timer: nothing is dropped any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due.clear()
        self._busy.clear()

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        first = next(iter(self._due.values()), None)
        self._timer = None if first is None else loop.call_at(first, self._expire_due, loop)

    def _expire_due(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        # A timer may fire early, by the resolution of the loop's clock; it is set again then.
        for key in [key for _, (key, due) in zip(range(BATCH), self._due.items(), strict=False) if due <= now]:
            self._expire(key)
        self._set_timer(loop)

    def _expire(self, key: K) -> None:
        del self._due[key]
        token = self._busy[key] = object()

        def on_idle() -> None:
            if self._busy.get(key) is token:
                self._expire_idle(key)

        if not self._await_idle(key, on_idle):
            self._expire_idle(key)

    def _expire_idle(self, key: K) -> None:
        del self._busy[key]
        self._drop(key)


# Deadlines of many things: one timer for all of them.


GRANULARITY_S = 0.005
"""Seconds between two checks at least, because each reads the deadlines of all things."""
GRANULARITY_OF_EACH_S = 1e-6
"""The same for each of the things: a check takes less than a tenth of the time, however many there are."""


class EarliestTimer:
    """A timer of the running event loop for the earliest of many times: it costs one comparison to add a later one.

    Args:
        on_time: called at the time with the time on the loop's clock, which is never before the one that was set: a timer
            may fire early, by the resolution of the clock.
    """

    __slots__ = ("_at", "_loop", "_now", "_on_time", "_timer")

    def __init__(self, on_time: Callable[[float], object]) -> None:
        self._on_time = on_time
        self._loop = asyncio.get_running_loop()
        self._now = loop_clock()
        self._timer: asyncio.TimerHandle | None = None
        self._at = math.inf

    def watch(self, at: float) -> None:
        """Call at ``at``, unless a call at an earlier time is due anyway; infinite: never."""
        if at < self._at:
            self.close()
            self._at = at
            self._timer = self._loop.call_at(at, self._fire)

    def _fire(self) -> None:
        now = max(self._at, self._now())
        self._timer, self._at = None, math.inf
        self._on_time(now)

    def close(self) -> None:
        """Cancel the timer, which may be set again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._at = None, math.inf


class DeadlineTimer(EarliestTimer, Generic[T]):
    """Calls ``on_deadline`` for each thing whose deadline has passed, at the deadline, or after :data:`GRANULARITY_S` where
    another one has just passed.

    The timer is set for a lower bound of all deadlines (:meth:`watch` each one that is added): almost all things end long
    before their deadline.

    Args:
        things: those with a deadline.
        deadline_of: the deadline of one, on the loop's clock; infinite: none.
        on_deadline: removes the thing, or changes its deadline.
    """

    def __init__(
        self, things: Collection[T], deadline_of: Callable[[T], float], on_deadline: Callable[[T], object]
    ) -> None:
        super().__init__(self._check)
        self._things = things
        self._deadline_of = deadline_of
        self._on_deadline = on_deadline

    def _check(self, now: float) -> None:
        deadline_of = self._deadline_of
        for thing in sorted((each for each in self._things if deadline_of(each) <= now), key=deadline_of):
            if deadline_of(thing) <= now:  # the end of an earlier one may have changed it
                self._on_deadline(thing)
        earliest = min(map(deadline_of, self._things), default=math.inf)
        if earliest < math.inf:
            self.watch(max(earliest, now + GRANULARITY_S + len(self._things) * GRANULARITY_OF_EACH_S))


# Explanations of wrong arguments of the public interface: a misspelt keyword, a class in place of an instance, a value of
# another type.


P = ParamSpec("P")


class NamedFields(msgspec.StructMeta):
    """Metaclass of structs whose constructor explains an unknown keyword argument."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for key in kwargs:
            if key not in self.__struct_fields__:
                _reject_keyword(key, self.__struct_fields__)
        return super().__call__(*args, **kwargs)


_CHECKED: Final[Mapping[str, tuple[type | tuple[type, ...], str]]] = {
    "bool": (bool, "True or False"),
    "str": (str, "a text"),
    "str | None": ((str, NoneType), "a text, or None"),
    "str | os.PathLike[str]": ((str, os.PathLike), "a path"),
    "str | Path": ((str, os.PathLike), "a path"),
    "str | os.PathLike[str] | Mapping[str, Any]": ((str, os.PathLike, Mapping), "a path, or the contents of the file"),
    "Collection[str]": (Collection, "a list of texts"),
    "Iterable[str]": (Iterable, "a list of texts"),
    "Iterable[Mapping[str, Any]]": (Iterable, "a list of descriptors"),
}
"""What an argument must be, by its annotation, and the same for messages."""
_NAMED: Final = {
    "fleet": "the name of a fleet, such as 'shop'",
    "service": "the id of a service, such as 'joke-service'",
    "tool": "the name of a tool, such as 'tell-joke'",
}
"""The same for messages, of arguments with these names."""


def explain_keywords(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function, or the ``__init__`` of a class, so that it explains an unknown keyword argument, and a value of
    another type where its annotation is one of :data:`_CHECKED`.

    perf: it costs a call, so that it is for what is called once, not for each call of a tool.
    """
    parameters = inspect.signature(function).parameters.values()
    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    known = [each.name for each in parameters if each.kind in kinds and each.name not in ("self", "cls")]
    positional = [each.name for each in parameters if each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    checked = {each.name: _CHECKED[each.annotation] for each in parameters if each.annotation in _CHECKED}

    @functools.wraps(function)
    def explained(*args: P.args, **kwargs: P.kwargs) -> T:
        for key in kwargs:
            if key not in known:
                _reject_keyword(key, known)
        for name, value in (*zip(positional, args, strict=False), *kwargs.items()):
            if name in checked:
                kind, what = checked[name]
                check_instance(name, value, kind, _NAMED.get(name, what))
        return function(*args, **kwargs)

    return explained


def _reject_keyword(key: str, known: Iterable[str]) -> NoReturn:
    near = find_near_names(key, known, 1)
    fix = f"did you mean {quote_excerpt(near[0])}?" if near else f"the keywords are {', '.join(known)}."
    raise TypeError(f"Unexpected keyword argument {quote_excerpt(key)}: {fix}")


def as_set(name: str, texts: Iterable[str]) -> frozenset[str]:
    """Return one text, or several, as a set.

    Raises:
        TypeError: the argument ``name`` is neither.
    """
    if isinstance(texts, str):
        return frozenset((texts,))
    check_instance(name, texts, Iterable, "a text, or a list of texts")
    found = frozenset(texts)
    for each in found:
        check_instance(f"each of {name}", each, str, "a text")
    return found


class AsyncContext:
    """Base of a class for ``async with`` alone: the error of ``with`` names it. Python's own does not. The objects are not
    awaitable for the same purpose: frameworks await what can be awaited, such as a fixture's or a factory's result."""

    _ENTERED: ClassVar[str]
    """How an object of the class is entered, as the end of ``async with …:``."""

    if not TYPE_CHECKING:  # a type checker reports the mistake itself

        def __enter__(self) -> NoReturn:
            raise TypeError(f"'with' cannot wait for a connection. Fix: write 'async with {self._ENTERED}:'.")

        def __exit__(self, *_exc: object) -> None: ...


def check_instance(name: str, value: object, kind: type | tuple[type, ...], fix: str) -> None:
    """Check that the argument ``name`` is a ``kind``, or one of several.

    Args:
        fix: what to give, with an example.

    Raises:
        TypeError: it is not.
    """
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be {fix}, not {describe_type(value)}.")


def check_function(name: str, value: object, fix: str) -> None:
    """Check that what dispatch calls is a plain function.

    Args:
        fix: what to write in place of a coroutine function.

    Raises:
        TypeError: it cannot be called, or is a coroutine function.
    """
    if not callable(value):
        raise TypeError(f"{name} must be a function, not {describe_type(value)}.")
    if inspect.iscoroutinefunction(value) or inspect.iscoroutinefunction(type(value).__call__):
        raise TypeError(
            f"{name} must be a plain function, not a coroutine function, which nothing would await. Fix: {fix}."
        )


def describe_type(value: object) -> str:
    """Return what a value is, for a message: ``None``, ``the class Joke``, ``the function tell`` or ``a dict``."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if inspect.isroutine(value):
        return f"the function {value.__name__}"
    kind = type(value).__name__
    if hasattr(builtins, kind) and type(value).__module__ != "builtins":  # numpy.bool, for example
        kind = f"{type(value).__module__}.{kind}"
    return f"{'an' if kind[:1].lower() in 'aeiou' else 'a'} {kind}"


# How to install an optional dependency.


_CHECKOUT: Final = (Path(__file__).parents[1] / "pyproject.toml").is_file()
"""This package is in a checkout of the repository, where a package index may not have its name."""


def install_extra(extra: str) -> str:
    """Return the command that installs the extra ``extra``."""
    command = f"pip install 'tool-dispatch[{extra}]'"
    return f"{command} (in this checkout: pip install -e '.[{extra}]')" if _CHECKOUT else command


def missing_library(what: str, library: str, extra: str) -> ImportError:
    """Return the error where ``what`` needs the library of an extra."""
    return ImportError(f"{what} needs {library}, which is not installed. Install it: {install_extra(extra)}")


# Texts as UTF-8, which cannot express half of a surrogate pair.
#
# Python makes such texts of file names that are not UTF-8 (``os.fsdecode``), of ``"\ud83d"`` in JSON, and of truncated
# emoji. A text that leaves the process, or that something encodes later, passes one of these functions.


def encode_text(text: str) -> bytes:
    """Encode ``text`` as UTF-8, with ``?`` for each half of a surrogate pair. Cannot fail."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="replace")


def scalar_text(text: str) -> str:
    """Return ``text`` with ``?`` for each half of a surrogate pair, so that every encoder accepts it."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="replace").decode()
    return text


def leave_task(task: asyncio.Task[Any] | None) -> None:
    """Let ``asyncio.run`` end although ``task`` ignores its cancellation: it waits for all tasks that it knows."""
    if task is not None:
        asyncio.tasks._unregister_task(task)
        task._log_destroy_pending = False  # type: ignore[attr-defined] # as asyncio.gather does; the log has it already


def is_deeper(value: object, depth: int) -> bool:
    """Return whether a JSON value has more than ``depth`` objects and lists inside each other. One that holds itself has."""
    level: list[Any] = [value] if isinstance(value, (dict, list, tuple)) else []
    while level and depth:
        depth -= 1
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list, tuple))
        ]
        if len(level) > _MANY:  # shared values would double the work with each level
            level = list({id(each): each for each in level}.values())
    return bool(level)


_MANY: Final = 1_000


def scalar_value(value: Any) -> Any:
    """Return a JSON value whose texts, keys included, have passed :func:`scalar_text`. Other values are unchanged."""
    return replace_halves(value)[0]


def replace_halves(value: Any) -> tuple[Any, bool]:
    """Return :func:`scalar_value` of a JSON value, and whether a text of it was changed. Any depth: values of foreign peers
    may have more levels than the stack has frames. An object that holds itself stays one."""
    whole = [value]
    pending: list[Any] = [whole]
    copies: dict[int, Any] = {}
    is_changed = False
    while pending:
        parts = pending.pop()
        for at, each in parts.items() if isinstance(parts, dict) else enumerate(parts):
            if isinstance(each, str):
                parts[at] = scalar_text(each)
                is_changed = is_changed or parts[at] is not each
            elif isinstance(each, (dict, list, tuple)):
                copy = copies.get(id(each))
                if copy is None:
                    copy = list(each)
                    if isinstance(each, dict):
                        copy = {scalar_text(key) if isinstance(key, str) else key: one for key, one in each.items()}
                        is_changed = is_changed or copy.keys() != each.keys()
                    copies[id(each)] = copy
                    pending.append(copy)
                parts[at] = copy
    return whole[0], is_changed
