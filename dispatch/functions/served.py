"""Functions as a tool service on the broker: their descriptors, and the execution of requests."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import msgspec

from dispatch._internal import describe_type, loop_clock
from dispatch.calls.local import CallContext
from dispatch.catalog.catalog import check_items
from dispatch.catalog.descriptors import ARGUMENT_TYPES, CatalogError, list_types
from dispatch.catalog.items import Item
from dispatch.documents import Problem
from dispatch.functions import (
    CONFIG_PARAM,
    MODULE_PROVIDERS,
    FunctionExecutor,
    FunctionSource,
    FunctionTool,
    check_names,
    list_functions,
)
from dispatch.functions.schema import is_declared
from dispatch.messaging.wire import Property, Refusal, Request, whole_number
from dispatch.serving.replies import InboundRequest
from dispatch.serving.tool_service import RefusedRequestError, ToolExecutor


class Descriptors(NamedTuple):
    """The descriptors of a service and its tools, as JSON values.

    Attributes:
        service: of the service.
        tools: of its tools; empty for a service that is not made of functions.
    """

    service: dict[str, Any]
    tools: list[dict[str, Any]]


class ServedCall(msgspec.Struct, eq=False):
    """One request for a function (:class:`~dispatch.functions.FunctionCall`)."""

    arguments: dict[str, Any]
    config: dict[str, Any]
    user: str
    work: InboundRequest
    threads: ToolExecutor

    @property
    def tool(self) -> str:
        """Name of the tool."""
        return str(self.config.get(CONFIG_PARAM))

    @property
    def concurrency(self) -> int:
        """Threads of its function at most: as many as the server runs requests."""
        return self.threads.max_threads

    @property
    def occupied(self) -> asyncio.Future[Any] | None:
        """Done when the thread returns that outlives the request; the request keeps its slot until then."""
        return None if self.work.task is None else self.threads.abandoned.get(self.work.task)

    @occupied.setter
    def occupied(self, returned: asyncio.Future[Any] | None) -> None:
        if returned is not None and self.work.task is not None:
            self.threads.hold_slot(self.work.task, returned)

    @property
    def context(self) -> CallContext:
        """The call as its function may read it."""
        headers = self.work.headers
        traceparent = self.work.observer.traceparent or headers.get("traceparent", "")
        return CallContext(
            tool=self.tool,
            user=self.user,
            call_id=self.work.id,
            attempt=whole_number(headers, Property.ATTEMPT) or 1,
            deadline=self.work.deadline,
            clock=loop_clock(),
            trace_id=traceparent[3:35],
            traceparent=traceparent,
        )


class ServedFunctions:
    """Functions that are served as one tool service.

    Args:
        functions: modules, :class:`~dispatch.Functions`, :class:`~dispatch.ToolPackage` and functions. Of a module those
            declared with :func:`dispatch.tool`; all public ones if it declares none.
        service: id, ``request-queue`` and ``response-queue`` of the service.
        threads: of the server. A thread of a function that outlives its request is entered there.

    Attributes:
        descriptors: of the service and the tools.

    Raises:
        CatalogError: a function cannot be a tool; it lists every mistake with function, parameter and fix.
        TypeError: one of ``functions`` is none of the above.
    """

    def __init__(self, functions: Iterable[object], service: dict[str, Any], threads: ToolExecutor) -> None:
        self._service = {**service, "config-params": [{"name": CONFIG_PARAM, "required": True}]}
        self._threads = threads
        self._executor = FunctionExecutor()
        self.replace(functions)

    def replace(self, functions: Iterable[object]) -> None:
        """Execute ``functions`` from now on. Calls in flight go on.

        Raises:
            CatalogError, TypeError: as the constructor. The former functions stay.
        """
        found, problems = read_served_functions(functions)
        if not found and not problems:
            fix = "define one with a docstring, and declare it with @dispatch.tool"
            problems = [Problem(self._service["id"], "", "there are no functions to serve", fix)]
        read = list(check_names(found))
        for tool in read:
            if not tool.description.strip():
                tool.report.add_error(
                    "",
                    "the function has no docstring, by which models choose tools",
                    'write in it when to use the tool, such as """Price of a product in euros."""',
                )
            problems += tool.report.problems
        versions = Counter(tool.full_name for tool in read)
        tools: dict[str, FunctionTool] = {}
        described = []
        items = [Item("service", "tool-service", self._service["id"], self._service)]
        for tool in read:
            if tool.report.has_errors:
                continue
            name = tool.full_name
            key = name if versions[name] == 1 else f"{name}@{tool.version}"
            tools[key] = tool
            tools.setdefault(name, tool)  # for callers that know of no second version yet
            own = {"name": name, CONFIG_PARAM: key, "arguments": list_arguments(tool.arguments.schema)}
            raw = {**tool.describe(self._service["id"]), **own}
            described.append(raw)
            items.append(Item(tool.origin, "tool", key, raw))
        problems += [each for each in check_items(items)[1] if each.severity == "error"]
        if any(each.severity == "error" for each in problems):
            raise CatalogError(problems)
        # Plain JSON values: the declarations of functions have tuples, and callers may change what they get.
        written = msgspec.json.encode(Descriptors(self._service, described))
        self.descriptors = msgspec.json.decode(written, type=Descriptors)
        self._executor.replace_tools(tools)

    def invoke(self, request: Request, work: InboundRequest) -> Awaitable[str | AsyncIterator[str]]:
        """Execute the function that ``request`` names (:data:`~dispatch.serving.tool_service.Invoke`).

        Raises:
            RefusedRequestError: the function was not called: unknown, invalid arguments, or no free thread.
            Exception: of the function.
        """
        call = ServedCall(request.arguments, request.config, request.user, work, self._threads)
        if not request.is_finite:
            problem = "its arguments have NaN or an infinite number, which JSON does not have"
            message = f"Tool '{call.tool}' was not executed: {problem}. Correct the arguments."
            raise RefusedRequestError(Refusal.INVALID_ARGUMENTS, message)
        return self._executor.execute(call)  # perf: not awaited here, which would cost one more coroutine

    def close(self) -> None:
        """End idle threads now, and the others when their functions return."""
        self._executor.release_threads()


def list_arguments(schema: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the arguments in an input schema as TrustGraph's agents read them. A value of several types, which they cannot
    describe, has the first one; any value is a text."""
    return [
        {
            "name": name,
            "type": next((each for each in list_types(argument, schema) if each in ARGUMENT_TYPES), "string"),
            "description": argument.get("description", ""),
            "required": name in schema["required"],
        }
        for name, argument in schema["properties"].items()
    ]


def read_served_functions(given: Iterable[object]) -> tuple[list[FunctionTool], list[Problem]]:
    """Return the tools in modules, sources and functions (see :class:`ServedFunctions`), and a problem for each part that
    cannot be read.

    Raises:
        TypeError: one of ``given`` is none of these.
    """

    def read(function: Callable[..., Any], namespace: str = "") -> FunctionTool:
        return FunctionTool(function, lambda type: type is CallContext or type in MODULE_PROVIDERS, namespace)

    found: list[FunctionTool] = []
    problems: list[Problem] = []
    for each in given:
        if isinstance(each, ModuleType):
            found += map(read, _select_functions(each))
        elif isinstance(each, FunctionSource):
            functions, unread = each.find_functions()
            found += [read(function, each.namespace) for function in functions]
            problems += unread
        elif callable(each) and not isinstance(each, type):
            found.append(read(each))
        else:
            fix = "give functions, a module, Functions(…) or ToolPackage(…)"
            if hasattr(each, "invoke"):
                fix = "a tool service is given alone: ToolServer(Joke(), …)"
            raise TypeError(f"{describe_type(each)} has no functions to serve. Fix: {fix}.")
    return found, problems


def _select_functions(module: ModuleType) -> Iterator[Callable[..., Any]]:
    listed = [value for _, value in list_functions(module)]
    has_declared = any(map(is_declared, listed))
    return (value for value in listed if is_declared(value) or not has_declared)
