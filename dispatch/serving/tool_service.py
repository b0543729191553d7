"""ToolService: the base class of tool services.

    class Joke(dispatch.ToolService):
        async def invoke(self, config, arguments, user=""):
            return f"Why do {arguments['topic']} …"

    await dispatch.serve(Joke(), "pulsar://localhost:6650", service="joke")

``invoke`` may also be written in TrustGraph's two ways, ``invoke(self, user, config, arguments)`` (the specification) and
``invoke(self, config, arguments)`` (the published package 2.11.1). The signature is checked when the instance is created.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor, Future
from functools import partial
from types import ModuleType
from typing import Any, ParamSpec, TypeVar, cast

from dispatch._internal import describe_type, fulfil
from dispatch.messaging.wire import TOOL_SERVICE, Dialect, Request
from dispatch.serving.replies import InboundRequest

_KNOWN = ("user", "config", "arguments")
_BY_COUNT = {2: ("config", "arguments"), 3: _KNOWN}
_WAYS = (
    "write one of: async def invoke(self, config, arguments, user=''), "
    "async def invoke(self, user, config, arguments), async def invoke(self, config, arguments)"
)

Invoke = Callable[[Request, InboundRequest], Awaitable[Any]]
"""Runs the tool; the result is a value, or an async iterator: a stream."""
RunInThread = Callable[[Callable[[Request], Any], Request], Awaitable[Any]]
"""Calls a function with a request in a thread."""


class RefusedRequestError(Exception):
    """A tool does not accept a request, and has not been executed.

    Args:
        reason: one of :class:`~dispatch.messaging.wire.Refusal`.
        message: for the caller.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class RequestHandler(ABC):
    """Executes the requests of a server where it needs more of them than their contents, as a relay does.

    Attributes:
        dialect: of requests and replies.
        subscription: name of the subscription that the servers of the topic share; ``""``: made of the service's name.
    """

    dialect: Dialect = TOOL_SERVICE
    subscription = ""

    @abstractmethod
    async def invoke_request(self, request: Request, work: InboundRequest) -> Any:
        """Execute a request: see :data:`Invoke`."""

    @abstractmethod
    def is_repeatable(self, work: InboundRequest) -> bool:
        """Return whether a request on a persistent topic, which is not decoded yet, may be executed again."""


class ToolService:
    """Base class of a tool service. Override :meth:`invoke`.

    Creating an instance raises ``TypeError`` when ``invoke`` is missing or its parameters cannot be understood.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        # Here and not in __init__, which subclasses replace without calling ours.
        service = super().__new__(cls)
        read_invoke(service)
        return service

    def invoke(self, *args: Any, **kwargs: Any) -> Any:
        """Run the tool. Override it as ``async def invoke(self, config, arguments, user="")`` (or in TrustGraph's ways).

        Args:
            config: values the tool's descriptor sets, such as ``{"collection": "customers"}``.
            arguments: from the model, not validated: validation is the service's task.
            user: on whose behalf (``""`` when the caller's dialect has no user).

        Returns:
            A string, any JSON value, or an async iterator of those (write ``yield``): a stream, whose items are
            sent as they come. A plain ``def`` runs in a thread of the server's own executor, which has ``concurrency``
            threads, with a copy of the request's context variables.

        Raises:
            ToolError: the tool's own error: its type and message reach the caller. Any other exception, ``SystemExit``
                and other ``BaseException`` subclasses included, does too, with its class name as the type.
        """
        raise NotImplementedError


def read_invoke(service: object, run_in_thread: RunInThread = asyncio.to_thread) -> Invoke:
    """Return a function that calls ``service.invoke`` in any of its three forms; a plain ``def`` through ``run_in_thread``.

    Raises:
        TypeError: there is no ``invoke``, or its parameters match no form. The message shows the forms.
    """
    if isinstance(service, RequestHandler):
        return service.invoke_request
    if isinstance(service, type):
        raise TypeError(f"{service.__name__} is a class: pass an instance, {service.__name__}(); {_WAYS}")
    if isinstance(service, ModuleType):
        module = service.__name__.rpartition(".")[2]
        raise TypeError(f"a module is no tool service; serve its functions with ToolServer(functions={module}, …)")
    method = getattr(service, "invoke", None)
    name = type(service).__name__
    if callable(service) and method is None:
        function = getattr(service, "__name__", "f")
        raise TypeError(
            f"{describe_type(service)} is no tool service. A dispatcher calls it in its own process with "
            f"connect(…, catalog=dispatch.Functions({function})); to serve it, write ToolServer(functions=[{function}], …)"
        )
    if not callable(method) or getattr(method, "__func__", None) is ToolService.invoke:
        raise TypeError(f"{name} has no invoke method; {_WAYS}")
    positional, keywords = _parameters(name, method)

    def call(request: Request, _work: InboundRequest | None = None) -> Any:
        values = [getattr(request, key) for key in positional]
        return method(*values, **{key: getattr(request, key) for key in keywords}) if keywords else method(*values)

    if inspect.isasyncgenfunction(method):

        async def stream(request: Request, _work: InboundRequest | None = None) -> AsyncIterator[Any]:
            iterator: AsyncIterator[Any] = call(request)
            return iterator

        return stream
    if inspect.isgeneratorfunction(method):
        raise TypeError(f"{name}.invoke is a plain generator; make it a stream with 'async def invoke' and yield")
    if inspect.iscoroutinefunction(method):
        return call

    async def in_thread(request: Request, _work: InboundRequest | None = None) -> Any:
        result = await run_in_thread(call, request)
        return await result if inspect.isawaitable(result) else result

    return in_thread


def _parameters(name: str, method: Callable[..., Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the values that ``method`` accepts by position, and by keyword."""
    try:
        parameters = list(inspect.signature(method).parameters.values())
    except (TypeError, ValueError):
        raise TypeError(f"the parameters of {name}.invoke cannot be read; {_WAYS}") from None
    shown = f"{name}.invoke({', '.join(['self', *map(str, parameters)])})"
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    unknown = [p for p in named if p.name not in _KNOWN and p.default is p.empty]
    positional = [p for p in named if p.kind is not p.KEYWORD_ONLY]
    if not unknown:
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
        taken = _KNOWN if takes_any else tuple(p.name for p in named if p.name in _KNOWN)
        if "arguments" not in taken:
            raise TypeError(f"{shown} takes no 'arguments'; {_WAYS}")
        by_position = tuple(p.name for p in named if p.kind is p.POSITIONAL_ONLY and p.name in _KNOWN)
        return by_position, tuple(key for key in taken if key not in by_position)
    # Any parameter names, as in TrustGraph, which calls by position.
    order = _BY_COUNT.get(len(positional))
    if (
        order is not None
        and len(unknown) == len([p for p in positional if p.name not in _KNOWN])
        and len(positional) == len(named)
        and all(p.name == key or p.name not in _KNOWN for p, key in zip(positional, order, strict=True))
    ):
        return order, ()
    raise TypeError(f"{shown}: cannot tell what '{unknown[0].name}' is meant to be; {_WAYS}")


# The executor of synchronous tools: a bounded pool of daemon threads.
#
# A thread cannot be stopped. One whose request has ended (deadline, cancellation) is *abandoned*: it is counted until its
# tool returns, and, being a daemon, does not keep the process from exiting.


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
        self.abandoned: dict[Task, asyncio.Future[Any]] = {}
        """Tasks whose thread still runs although they were cancelled, with what completes when it returns."""

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``function`` in a thread, in a copy of the current context, and return its result. Raises what the function
        raises, as :func:`~dispatch._internal.hold` returns it.

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

    def hold_slot(self, task: Task, returned: asyncio.Future[Any]) -> None:
        """Enter a thread of another executor in :attr:`abandoned`, until ``returned`` is done."""
        self.abandoned[task] = returned
        returned.add_done_callback(lambda _: self.abandoned.pop(task, None))

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
            fulfil(*call)
            del call  # an idle thread keeps no arguments and results alive

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
