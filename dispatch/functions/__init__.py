"""Python functions as tools: the values that they are provided with, their execution, and the sources :class:`Functions` and
:class:`ToolPackage`."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import inspect
import logging
import pkgutil
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import FunctionType, ModuleType
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar

from dispatch._internal import describe_type as describe_value_type
from dispatch._internal import excerpt, explain_keywords, find_near_names, read_text, run_in_thread, type_name
from dispatch.calls.local import CallContext, LocalInstance, RefusedCallError
from dispatch.catalog.catalog import check_items
from dispatch.catalog.descriptors import CatalogError
from dispatch.catalog.items import MAX_MODEL_NAME_CHARS, MODEL_NAME, Item, OnChange, Refused
from dispatch.documents import Problem, Report
from dispatch.errors import DispatchError, ErrorType, InvalidArgumentsError, RejectedError, ThrottledError
from dispatch.functions.schema import (
    NO_DECLARATION,
    Arguments,
    describe_type,
    find_declaration,
    find_definition,
    find_injected_type,
    find_name,
    is_declared,
    iterate_members,
    read_docstring,
    read_parameters,
    unwrap,
)
from dispatch.messaging.wire import Refusal, local_queue, local_reply_queue, write_result
from dispatch.routing.instance import Instances
from dispatch.serving.tool_service import RefusedRequestError, ToolExecutor

T = TypeVar("T")

# Values that are injected into parameters of functions, by the type of the parameter.


class Providers:
    """What :meth:`dispatch.Dispatcher.provide` was given.

    Args:
        parent: provides types that have no provider here.
    """

    def __init__(self, parent: Providers | None = None) -> None:
        self._parent = parent
        self._providers: dict[type, Callable[[], Any]] = {}

    def add(self, type: type, provider: Any) -> None:
        """Provide parameters of ``type``; a second provider of a type replaces the first.

        Raises:
            TypeError: ``type`` is no class, or ``provider`` neither its instance nor a function that returns one.
        """
        if not isinstance(type, _CLASS):
            raise TypeError(f"provide() needs a class, not {type!r:.80}. Fix: write provide(Database, database).")
        is_generator = inspect.isgeneratorfunction(provider) or inspect.isasyncgenfunction(provider)
        if is_generator and type.__module__ != "collections.abc":
            raise TypeError(
                f"the provider of {type.__name__} is a generator, and what follows its 'yield' would never run. "
                "Fix: write 'return' in its place."
            )
        if _is_instance(provider, type):
            self._providers[type] = lambda: provider
        elif callable(provider):
            self._providers[type] = provider
        else:
            raise TypeError(
                f"the provider of {type.__name__} is {provider!r:.80}, neither an instance of it nor a function. "
                f"Fix: write provide({type.__name__}, instance) or provide({type.__name__}, create_instance)."
            )

    def __contains__(self, type: object) -> bool:
        return type in self._providers or (self._parent is not None and type in self._parent)

    def get(self, type: type) -> Any:
        """Return the value for a parameter of ``type``: the instance, or what the function returns.

        Raises:
            LookupError: there is no provider.
        """
        create = self._providers.get(type)
        if create is None:
            if self._parent is not None and type in self._parent:
                return self._parent.get(type)
            raise LookupError(
                f"no provider of {type.__name__}. Fix: call dispatcher.provide({type.__name__}, …) before the start."
            )
        return create()

    def copy(self) -> Providers:
        """Return a copy, which later changes do not affect."""
        copied = Providers(self._parent)
        copied.restore(self)
        return copied

    def restore(self, saved: Providers) -> None:
        """Provide what ``saved`` does, a copy."""
        self._providers = dict(saved._providers)


MODULE_PROVIDERS: Final = Providers()
"""What :func:`dispatch.provide` was given, for the whole process."""


def provide(type: type[T], provider: T | Callable[[], T]) -> None:
    """Provide parameters with the annotation ``type`` to the functions that this process serves, and to those of its
    dispatchers that have no provider of their own (:meth:`dispatch.Dispatcher.provide`). Call it in the module of the
    functions; a second provider of a type replaces the first.

    Args:
        type: the annotation, also within ``X | None`` and ``Annotated``.
        provider: an instance; or a function without parameters that returns one, called for each call of a tool.

    Raises:
        TypeError: ``type`` is no class, or ``provider`` neither its instance nor a function.
    """
    MODULE_PROVIDERS.add(type, provider)


def _is_instance(value: object, cls: type) -> bool:
    try:
        return isinstance(value, cls)
    except TypeError:  # a protocol that cannot be checked
        return not inspect.isroutine(value) and not isinstance(value, type)


_CLASS = type

# A function as a tool: its descriptor, its arguments and its injected parameters.


FunctionKind = Literal["async", "stream", "thread"]
"""How a function is called: awaited, iterated, or called in a thread."""

CONFIG_PARAM: Final = "tool"
"""Config param of services of functions: the key of the function that a tool calls."""

IsProvided = Callable[[Any], bool]
"""Returns whether values of a type are injected."""


class FunctionTool:
    """A function as a tool.

    Args:
        function: any callable.
        is_provided: decides which parameters are injected; None: unknown yet, so that types that JSON cannot express are
            no errors.
        namespace: prefix of its name, see :class:`~dispatch.catalog.items.Item`.

    Attributes:
        function: that is called.
        name: of the tool, without the namespace.
        full_name: with the namespace.
        description: its docstring.
        version: its version; None: it declares none.
        origin: module and qualified name, for messages.
        key: ``NAME`` or ``NAME@VERSION``, unique in its source.
        kind: how it is called.
        arguments: that the model gives.
        injected: types of injected parameters by name.
        report: problems.
    """

    def __init__(self, function: Callable[..., Any], is_provided: IsProvided | None, namespace: str = "") -> None:
        below = find_definition(function)
        self.function = function
        self.origin = describe_function(function)
        self._declaration = find_declaration(function) or NO_DECLARATION
        self.name: str = self._declaration.name or find_name(function)
        self.full_name = f"{namespace}-{self.name}" if namespace else self.name
        docstring = read_docstring(getattr(below, "__doc__", None))
        self.description = docstring.description
        self.version = self._declaration.version
        self.key = self.name if self.version is None else f"{self.name}@{self.version}"
        self.report = Report(self.origin)
        self.kind: FunctionKind = self._read_kind()
        self._check_name()
        self.injected: dict[str, Any] = {}
        given = []
        for parameter in read_parameters(function, self.report):
            injected = None if is_provided is None else find_injected_type(parameter.annotation, is_provided)
            if injected is None:
                given.append(parameter)
            else:
                self.injected[parameter.name] = injected
                if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
                    self.report.add_error(
                        parameter.name, "an injected parameter is passed by name", "remove the '/' behind it"
                    )
        self.arguments = Arguments(given, docstring.parameters, self.report)
        if is_provided is not None:
            self._report_unprovided()

    def describe(self, service: str) -> dict[str, Any]:
        """Return the tool's descriptor; ``service``: id of its service."""
        return {
            "type": "tool-service",
            "name": self.name,
            "description": self.description,
            "service": service,
            CONFIG_PARAM: self.key,
            "input-schema": self.arguments.schema,
            **self._declaration.describe(),
        }

    def _read_kind(self) -> FunctionKind:
        call = self.function if inspect.isroutine(self.function) else unwrap(self.function)
        if inspect.isasyncgenfunction(call):
            return "stream"
        if inspect.isgeneratorfunction(call):
            self.report.add_error(
                "", "a generator is no tool", "write 'async def' for a stream of texts, or return a list"
            )
        return "async" if inspect.iscoroutinefunction(call) else "thread"

    def _check_name(self) -> None:
        if not MODEL_NAME.fullmatch(self.full_name):
            self.report.add_error(
                "",
                f"models refuse the name '{excerpt(self.full_name)}'",
                f"give it a name with @dispatch.tool(name=…): at most {MAX_MODEL_NAME_CHARS} letters A to Z, digits, "
                "'-' and '_'",
            )

    def _report_unprovided(self) -> None:
        for name, (annotation, error) in self.arguments.unsupported.items():
            shown = excerpt(describe_type(error.type))
            reason = f" ({excerpt(error.reason, 200)})" if error.reason else ""
            problem = f"the type '{shown}' is neither provided nor a type of JSON values{reason}"
            fix = (
                f"call dispatch.provide({shown}, …) in its module, or dispatcher.provide({shown}, …) before the dispatcher "
                "starts; or annotate a type such as str or a dataclass"
            )
            if error.type not in iterate_members(annotation):  # values inside of others are not injected
                whole = excerpt(describe_type(annotation))
                problem = f"the type '{whole}' has '{shown}', which is no type of JSON values{reason}"
                fix = "use types that JSON can express, such as str, int, list[str], a dataclass or a TypedDict"
            self.report.add_error(name, problem, fix)


def check_names(tools: Iterable[FunctionTool]) -> Iterator[FunctionTool]:
    """Yield the tools; in the report of each is whether an earlier one has its name."""
    origins: dict[tuple[str, str | None], str] = {}
    for tool in tools:
        name = (tool.full_name, tool.version)
        if name in origins:
            tool.report.add_error(
                "",
                f"{origins[name]} has the name '{excerpt(tool.key)}' already",
                "give one of them another name with @dispatch.tool(name=…), or its own version",
            )
        elif not tool.report.has_errors:
            origins[name] = tool.origin
        yield tool


def describe_function(function: Any) -> str:
    """Return module and qualified name of a function, for messages."""
    below = find_definition(function)
    module, name = getattr(below, "__module__", None), getattr(below, "__qualname__", None)
    return f"{module}.{name}" if module and name else excerpt(repr(function))


# The executor of functions: converts arguments, injects values, and calls each function in its way.


MAX_THREADS: Final = 64
"""Threads of a function whose tool has no bulkhead: the default of ``bulkhead.max-concurrent-calls``."""
IDLE_S: Final = 10.0
"""Seconds after which an idle thread ends: as many as a pause between two turns of an agent."""


class FunctionCall(Protocol):
    """What the executor needs of a call: a :class:`~dispatch.calls.local.LocalCall`, or a request at a service."""

    arguments: dict[str, Any]
    config: dict[str, Any]
    occupied: asyncio.Future[Any] | None

    @property
    def tool(self) -> str:
        """Name of the tool."""

    @property
    def concurrency(self) -> int | None:
        """Threads of its function at most; None: :data:`MAX_THREADS`."""

    @property
    def context(self) -> CallContext:
        """For a parameter with this type."""


_REFUSALS: Final = {
    ErrorType.INVALID_ARGUMENTS: Refusal.INVALID_ARGUMENTS,
    ErrorType.UNKNOWN_TOOL: Refusal.UNKNOWN_TOOL,
    ErrorType.BULKHEAD_FULL: Refusal.OVERLOADED,
}


class RefusedFunctionError(RefusedCallError, RefusedRequestError):
    """A function was not called, in this process or at a service.

    Args:
        error: that the caller gets.
    """

    def __init__(self, error: DispatchError) -> None:
        RefusedRequestError.__init__(self, _REFUSALS[ErrorType(error.type)], error.message)
        self.error = error
        self.elsewhere = False


class FunctionExecutor:
    """Executes the functions of one source.

    Each synchronous function has threads of its own, as many as its bulkhead admits calls: a function that hangs occupies no
    thread of another one.
    """

    def __init__(self) -> None:
        self.providers = MODULE_PROVIDERS
        self._tools: Mapping[str, FunctionTool] = {}
        self._threads: dict[str, ToolExecutor] = {}
        self._released: list[ToolExecutor] = []

    @property
    def abandoned_threads(self) -> int:
        """Threads whose calls have ended (deadline, cancellation) while their functions still run."""
        return sum(len(each.abandoned) for each in (*self._threads.values(), *self._released))

    def replace_tools(self, tools: Mapping[str, FunctionTool]) -> None:
        """Execute ``tools``, by their keys. Calls in flight go on."""
        self._tools = tools
        self._threads = {key: threads for key, threads in self._threads.items() if key in tools or threads.abandoned}

    def release_threads(self) -> None:
        """End idle threads now, and the others when their functions return. Later calls start threads of their own."""
        for threads in self._threads.values():
            threads.close()
        self._released = [each for each in (*self._released, *self._threads.values()) if each.abandoned]
        self._threads = {}

    async def execute(self, call: FunctionCall) -> str | AsyncIterator[str]:
        """Call the function of the tool.

        Raises:
            RefusedCallError: the function was not called: unknown, invalid arguments, or no free thread.
            Exception: of the function.
        """
        key = call.config.get(CONFIG_PARAM)
        tool = self._tools.get(key) if isinstance(key, str) else None
        if tool is None:
            shown = f"its source has no function '{excerpt(str(key))}'"
            if CONFIG_PARAM not in call.config:
                shown = f"the request has no config value '{CONFIG_PARAM}', which names one of its functions"
            raise RefusedFunctionError(_error_from_unknown(call.tool, shown))
        try:
            positional, named = tool.arguments.convert(call.tool, call.arguments)
        except InvalidArgumentsError as error:
            raise RefusedFunctionError(error) from None
        if tool.injected:
            await self._inject(tool, call, named)
        if tool.kind == "thread":
            result = await self._run_in_thread(tool, call, positional, named)
        else:
            result = tool.function(*positional, **named)
            if tool.kind == "async":
                result = await result
        if type(result) is str:  # perf: the checks below would take a third of the time of a call
            if result.isascii():
                return result
        else:
            while inspect.isawaitable(result):
                result = await result
            if isinstance(result, AsyncIterator):
                return _write_chunks(result, call.tool)
        return write_result(result, call.tool)

    async def _inject(self, tool: FunctionTool, call: FunctionCall, named: dict[str, Any]) -> None:
        for name, type in tool.injected.items():
            value = call.context if type is CallContext else self.providers.get(type)
            named[name] = await value if inspect.isawaitable(value) and not isinstance(value, type) else value

    async def _run_in_thread(
        self, tool: FunctionTool, call: FunctionCall, positional: list[Any], named: dict[str, Any]
    ) -> Any:
        threads = self._threads.get(tool.key)
        limit = call.concurrency or MAX_THREADS
        if threads is None:
            threads = self._threads[tool.key] = ToolExecutor(limit, f"dispatch-{tool.key}", idle_s=IDLE_S)
        threads.max_threads = limit
        if len(threads.abandoned) >= limit:
            raise RefusedFunctionError(_error_from_threads(call.tool, limit))
        try:
            return await threads.run(partial(tool.function, *positional, **named))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            call.occupied = None if task is None else threads.abandoned.get(task)
            raise


async def _write_chunks(chunks: AsyncIterator[Any], tool: str) -> AsyncIterator[str]:
    async with contextlib.AsyncExitStack() as stack:
        if hasattr(chunks, "aclose"):
            stack.push_async_callback(chunks.aclose)
        async for chunk in chunks:
            yield write_result(chunk, tool)


def _error_from_unknown(tool: str, problem: str) -> RejectedError:
    return RejectedError(
        ErrorType.UNKNOWN_TOOL,
        f"Tool '{tool}' was not executed: {problem}. Use another tool, or correct '{CONFIG_PARAM}' in its descriptor.",
        rejected_by="catalog",
    )


def _error_from_threads(tool: str, limit: int) -> ThrottledError:
    return ThrottledError(
        ErrorType.BULKHEAD_FULL,
        f"Tool '{tool}' was not executed: all {limit} threads of its function still run calls whose deadlines have passed. "
        "Use another tool, and make the function return in time.",
        rejected_by="bulkhead",
    )


_log = logging.getLogger("dispatch.catalog")


class FunctionSource(ABC):
    """A source of functions, one local service. Each function that cannot be a tool is refused, and the others are tools.

    Args:
        id: unique among the sources of a dispatcher; also the id of its service.
        namespace: prefix of its names: ``crm`` makes ``find`` into ``crm-find``.
        on_change: ``apply``, or ``hold``: a changed definition waits for its approval.

    Attributes:
        executor: of its functions.
        request_queue: of its service.
        instances: the executor, as the only instance of the service.
    """

    def __init__(self, id: str, namespace: str = "", on_change: OnChange = "apply") -> None:
        self.id = id
        self.namespace = namespace
        self.on_change: OnChange = on_change
        self.executor = FunctionExecutor()
        self.request_queue = local_queue(id, "function")
        self.instances = Instances(LocalInstance(self.executor.execute))
        self._is_in_use = False
        self._former: dict[tuple[str, str], Item] = {}
        service = {
            "id": id,
            "request-queue": self.request_queue,
            "response-queue": local_reply_queue(id, "function"),
            "config-params": [{"name": CONFIG_PARAM, "required": True}],
        }
        self._service = Item(id, "tool-service", id, service, namespace)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    @property
    def abandoned_threads(self) -> int:
        """Threads whose calls have ended (deadline, cancellation) while their functions still run."""
        return self.executor.abandoned_threads

    def use_providers(self, providers: Providers) -> None:
        """Inject values of ``providers``. The dispatcher calls this before it reads the source.

        Raises:
            RuntimeError: another dispatcher uses the source.
        """
        if self._is_in_use and providers is not self.executor.providers:
            raise RuntimeError(
                f"another dispatcher uses the source '{self.id}'. Fix: create a {type(self).__name__} for each dispatcher."
            )
        self._is_in_use = True
        self.executor.providers = providers

    async def close(self) -> None:
        """Release the source, so that another dispatcher may use it. Calls in flight go on; idle threads end."""
        self.abandon()

    def abandon(self) -> None:
        """Do the same without an event loop."""
        self._is_in_use = False
        self.executor.release_threads()

    async def discover(self) -> Sequence[Item]:
        """Return the service and an item for each function.

        Raises:
            CatalogError: the functions cannot be found.
        """
        # In a thread: 1,000 functions take 0.3 s, the imports of a large package seconds.
        items, tools, problems = await run_in_thread(self._read)
        refused = [Item(each.file, "tool", "", Refused((each,)), self.namespace) for each in problems]
        found = [self._reuse(item) for item in (*items, *refused)]
        for item in found:
            is_new = self._former.get((item.origin, item.key)) is not item
            if is_new and item.kind == "tool" and not _is_described(item):
                _log.warning(
                    "%s has no docstring, by which models choose tools. Write in it when to use it.", item.origin
                )
        self._former = {(item.origin, item.key): item for item in found}
        self.executor.replace_tools(tools)
        return found

    async def changes(self) -> AsyncGenerator[None, None]:
        """Yield nothing: functions are read again by ``dispatcher.registry.refresh(id)`` only."""
        await asyncio.get_running_loop().create_future()
        yield

    @abstractmethod
    def find_functions(self) -> tuple[Iterable[Callable[..., Any]], Iterable[Problem]]:
        """Return the functions, and a problem for each part that cannot be read."""

    def _read(self) -> tuple[list[Item], dict[str, FunctionTool], Iterable[Problem]]:
        functions, problems = self.find_functions()
        return *self._describe(functions, self._is_provided), problems

    def _is_provided(self, annotation: Any) -> bool:
        return isinstance(annotation, type) and (annotation is CallContext or annotation in self.executor.providers)

    def _describe(
        self, functions: Iterable[Callable[..., Any]], is_provided: IsProvided | None
    ) -> tuple[list[Item], dict[str, FunctionTool]]:
        """Return the items of the service and of ``functions``, and the valid tools by their keys."""
        tools: dict[str, FunctionTool] = {}
        items = [self._service]
        for tool in check_names(FunctionTool(each, is_provided, self.namespace) for each in functions):
            if tool.report.has_errors:
                refused = Refused(tuple(tool.report.problems), tool.full_name)
                items.append(Item(tool.origin, "tool", "", refused, self.namespace))
            else:
                tools[tool.key] = tool
                items.append(Item(tool.origin, "tool", tool.key, tool.describe(self.id), self.namespace))
        return items, tools

    def _reuse(self, item: Item) -> Item:
        """Return the former item if it is the same: it is not read again."""
        former = self._former.get((item.origin, item.key))
        return former if former is not None and repr(former) == repr(item) else item


def _is_described(item: Item) -> bool:
    """Return whether the tool has a description, or is refused for other reasons."""
    return not isinstance(item.raw, dict) or bool(item.raw["description"].strip())


# ``dispatch.Functions``: functions of the program as a source of the catalogue.


class Functions(FunctionSource):
    """Functions of the program as tools: ``connect(url, catalog=[dispatch.Functions(add, shop.find)])``.

    A function may be a ``def``, which runs in a thread, an ``async def``, or an asynchronous generator, which is a stream;
    also a method of an object, or any object with ``__call__``. Its docstring is the description, its signature the schema.
    What it returns is text, or becomes JSON; what it raises is the tool's own error.

    Args:
        functions: the functions, plain ones or decorated with :func:`dispatch.tool`.
        id: unique among the sources of a dispatcher.
        namespace: prefix of the names of the tools: ``crm`` makes ``find`` into ``crm-find``.
        on_change: ``apply``, or ``hold``: a changed definition waits for its approval.

    Raises:
        CatalogError: a function cannot be a tool; it lists every mistake with function, parameter and fix. Parameters of
            types that JSON cannot express are checked at the dispatcher's start: their values may be provided until then.
        TypeError: one is not callable.
    """

    @explain_keywords
    def __init__(
        self, *functions: Callable[..., Any], id: str = "functions", namespace: str = "", on_change: OnChange = "apply"
    ) -> None:
        super().__init__(id, namespace, on_change)
        for function in functions:
            if not callable(function) or isinstance(function, type):
                kind = function if isinstance(function, type) else type(function)
                fix = "write Functions(add, find)"
                methods = [name for name, value in vars(kind).items() if inspect.isfunction(value)]
                shown = [f"{kind.__name__.lower()}.{name}" for name in methods if not name.startswith("_")]
                if "__call__" in methods:
                    fix = f"give an object of it: Functions({kind.__name__}())"
                elif shown:
                    owner = "its methods" if kind is not function else "methods of an object of it"
                    fix = f"give {owner}: Functions({', '.join(shown[:3])})"
                elif isinstance(function, list | tuple | set):
                    fix = "write a star before it: Functions(*functions)"
                elif isinstance(function, ModuleType | str):
                    fix = f"for a package or module write ToolPackage({getattr(function, '__name__', function)!r:.80})"
                raise TypeError(f"{describe_value_type(function)} is no function. Fix: {fix}.")
        self._functions = functions
        items, _ = self._describe(functions, None)
        problems = [problem for item in items if isinstance(item.raw, Refused) for problem in item.raw.problems]
        valid = [item for item in items if not isinstance(item.raw, Refused)]
        problems += [each for each in check_items(valid)[1] if each.severity == "error"]
        if problems:
            raise CatalogError(problems)

    def find_functions(self) -> tuple[Iterable[Callable[..., Any]], Iterable[Problem]]:
        return self._functions, ()


# ``dispatch.ToolPackage``: the functions of a package as a source of the catalogue.


class ToolPackage(FunctionSource):
    """The public functions of a package and its subpackages as tools: ``dispatch.ToolPackage("shop.tools")``.

    Public are the functions that a module defines, without those whose names begin with ``_``; with ``__all__`` those in it;
    in any case those decorated with :func:`dispatch.tool`. ``dispatcher.registry.refresh(id)`` finds new modules and
    functions; a module that is imported already is not imported again.

    Args:
        package: name of the package, or of a module.
        only: names of functions or of their tools; empty: all public ones.
        id: unique among the sources of a dispatcher; default: ``package:PACKAGE``.
        namespace: prefix of the names of the tools: ``crm`` makes ``find`` into ``crm-find``.
        on_change: ``apply``, or ``hold``: a changed definition waits for its approval.

    A module that cannot be imported, and a function that cannot be a tool, are refused by name (``dispatcher.registry``, the
    event ``ItemRefused`` and the log); the others are tools.

    Raises:
        CatalogError: there is no such package.
    """

    @explain_keywords
    def __init__(
        self,
        package: str,
        *,
        only: Collection[str] = (),
        id: str | None = None,
        namespace: str = "",
        on_change: OnChange = "apply",
    ) -> None:
        super().__init__(f"package:{package}" if id is None else id, namespace, on_change)
        self.package = package
        self.only = frozenset({only} if isinstance(only, str) else only)
        top = package.split(".")[0]
        if not top or (top not in sys.modules and importlib.util.find_spec(top) is None):
            raise CatalogError([_no_package(package, f"there is no module '{excerpt(top)}'")])

    def find_functions(self) -> tuple[Iterable[Callable[..., Any]], Iterable[Problem]]:
        problems: list[Problem] = []

        def report(module: str, error: BaseException) -> None:
            problem = f"the module cannot be imported ({describe_import_error(error)})"
            fix = "correct the module, or install what it needs, and refresh the source"
            problems.append(Problem(module, "", problem, fix))

        importlib.invalidate_caches()  # modules that were added since the last scan
        try:
            package = importlib.import_module(self.package)
        except BaseException as error:
            raise CatalogError([_no_package(self.package, describe_import_error(error))]) from error
        functions = list(find_functions(package, report))
        known = frozenset[str]().union(*(each.names for each in functions))
        for name in sorted(self.only - known):
            near = find_near_names(name, sorted(known), 1)
            fix = f"write '{near[0]}'" if near else "correct 'only', or define the function"
            problems.append(Problem(self.package, "only", f"the package has no public function '{excerpt(name)}'", fix))
        return [each.function for each in functions if not self.only or each.names & self.only], problems


class PackagedFunction(NamedTuple):
    """A public function of a package.

    Attributes:
        name: in its module.
        tool_name: the one given with :func:`dispatch.tool`, otherwise ``name``.
    """

    name: str
    tool_name: str
    function: Callable[..., Any]

    @property
    def names(self) -> frozenset[str]:
        """Names by which it is selected."""
        return frozenset((self.name, self.tool_name))


def find_functions(package: ModuleType, on_error: Callable[[str, BaseException], object]) -> Iterator[PackagedFunction]:
    """Yield the public functions of a package and of all modules in it (see :class:`ToolPackage`), each once.

    Args:
        on_error: receives the name of each module that cannot be imported, and why.
    """
    seen: set[int] = set()
    waiting = [package]
    while waiting:
        module = waiting.pop(0)
        for name, function in list_functions(module):
            if id(function) not in seen:
                seen.add(id(function))
                declaration = find_declaration(function) or NO_DECLARATION
                yield PackagedFunction(name, declaration.name or name, function)
        for found in pkgutil.iter_modules(getattr(module, "__path__", ()), f"{module.__name__}."):
            if not found.name.rpartition(".")[2].startswith("_"):
                try:
                    waiting.append(importlib.import_module(found.name))
                except BaseException as error:
                    on_error(found.name, error)


def list_functions(module: ModuleType) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the public functions of a module and those declared as tools, with their names in it."""
    exported = getattr(module, "__all__", None)
    for name, value in tuple(vars(module).items()):
        # No attribute of a value is computed: a proxy in a module may raise any exception.
        is_function = issubclass(type(value), FunctionType)
        has_declaration = is_declared(value)
        if not is_function and not has_declaration:
            continue
        is_own = not is_function or value.__module__ == module.__name__
        is_public = not name.startswith("_") if exported is None else name in exported
        if (is_own and (has_declaration or is_public)) or (exported is not None and is_public):
            yield name, value


def describe_import_error(error: BaseException) -> str:
    """Return an error of an import in one line."""
    return excerpt(f"{type_name(error)}: {' '.join(read_text(error).split())}", 200)


def _no_package(package: str, reason: str) -> Problem:
    return Problem(
        excerpt(package) or "package",
        "",
        f"the package cannot be imported ({reason})",
        "correct its name, or put its folder on sys.path",
    )
