"""The border to user code: tools, factories, hooks, callbacks, listeners, sources, embedders, clients.

User code may raise anything: SystemExit ends the event loop if it leaves a task, CancelledError cancels the caller,
GeneratorExit closes the coroutines that await it, a future cannot hold StopIteration, and ``str()`` of an exception may
raise again. Every place that runs user code holds what it raises in one of three ways:

- ``with ErrorBoundary():`` around an ``await`` of user code, inside ``try … except Exception``;
- ``except BaseException as raised: … hold(raised)`` around a function call, which a cancellation cannot interrupt;
- ``except BaseException as raised:`` with :func:`ends_task`, in a task that runs nothing but one tool.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Final

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
    if isinstance(raised, StopIteration):
        held = RuntimeError("the function raised StopIteration")  # as Python has it for coroutines
        held.__cause__ = raised
        return held
    return raised if isinstance(raised, Exception) else UserCodeError(raised)


def unwrap(raised: BaseException) -> BaseException:
    """Return what user code raised itself."""
    return raised.raised if isinstance(raised, UserCodeError) else raised


def ends_task(raised: BaseException, task: asyncio.Task[Any] | None) -> bool:
    """Return whether ``raised`` is the cancellation of ``task``, whose code asks, or closes its coroutine from outside. A
    CancelledError or GeneratorExit that user code raises by itself is neither.

    Args:
        raised: the exception.
        task: None: the code runs in no task.
    """
    if isinstance(raised, asyncio.CancelledError):
        return task is None or task.cancelling() > 0
    return isinstance(raised, GeneratorExit) and (task is None or running_task() is not task)


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
