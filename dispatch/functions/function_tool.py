"""A function as a tool: its descriptor, its arguments and its injected parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final, Literal

from dispatch._internal.suggestions import excerpt
from dispatch.catalog.errors import Report
from dispatch.catalog.readers.field_validation import MAX_MODEL_NAME_CHARS
from dispatch.functions.arguments import Arguments
from dispatch.functions.decorator import NO_DECLARATION, find_declaration
from dispatch.functions.docstrings import read_docstring
from dispatch.functions.json_types import describe_type
from dispatch.functions.signature import find_injected_type, read_parameters, unwrap

FunctionKind = Literal["async", "stream", "thread"]
"""How a function is called: awaited, iterated, or called in a thread."""

CONFIG_PARAM: Final = "function"
"""Config param of services of functions: the key of the function that a tool calls."""

IsProvided = Callable[[Any], bool]
"""Returns whether values of a type are injected."""


class FunctionTool:
    """A function as a tool.

    Args:
        function: any callable.
        is_provided: decides which parameters are injected; None: unknown yet, so that types that JSON cannot express are
            no errors.
        namespace: prefix of its name, see :class:`~dispatch.catalog.readers.item.Item`.

    Attributes:
        function: that is called.
        origin: module and qualified name, for messages.
        key: ``NAME`` or ``NAME@VERSION``, unique in its source.
        kind: how it is called.
        arguments: that the model gives.
        injected: types of injected parameters by name.
        report: problems.
    """

    def __init__(self, function: Callable[..., Any], is_provided: IsProvided | None, namespace: str = "") -> None:
        below = inspect.unwrap(unwrap(function))
        self.function = function
        self.origin = describe_function(function)
        self._declaration = find_declaration(function) or NO_DECLARATION
        self._name: str = self._declaration.name or str(getattr(below, "__name__", ""))
        self._docstring = read_docstring(getattr(below, "__doc__", None))
        version = self._declaration.version
        self.key = self._name if version is None else f"{self._name}@{version}"
        self.report = Report(self.origin)
        self.kind: FunctionKind = self._read_kind()
        self._check_name(namespace)
        self.injected: dict[str, Any] = {}
        given = []
        for parameter in read_parameters(function, self.report):
            injected = None if is_provided is None else find_injected_type(parameter.annotation, is_provided)
            if injected is None:
                given.append(parameter)
            else:
                self.injected[parameter.name] = injected
                if parameter.by_position:
                    self.report.add_error(
                        parameter.name, "an injected parameter is passed by name", "remove the '/' behind it"
                    )
        self.arguments = Arguments(given, self._docstring.parameters, self.report)
        if is_provided is not None:
            self._report_unprovided()

    def describe(self, service: str) -> dict[str, Any]:
        """Return the tool's descriptor; ``service``: id of its service."""
        return {
            "type": "tool-service",
            "name": self._name,
            "description": self._docstring.description,
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

    def _check_name(self, namespace: str) -> None:
        name = f"{namespace}-{self._name}" if namespace else self._name
        is_refused = not name.isascii() or not name.replace("-", "_").replace("_", "a").isalnum()
        if is_refused or len(name) > MAX_MODEL_NAME_CHARS:
            self.report.add_error(
                "",
                f"models refuse the name '{excerpt(name)}'",
                f"give it a name with @dispatch.tool(name=…): at most {MAX_MODEL_NAME_CHARS} letters A to Z, digits, "
                "'-' and '_'",
            )

    def _report_unprovided(self) -> None:
        for name, type in self.arguments.unsupported.items():
            shown = excerpt(describe_type(type))
            self.report.add_error(
                name,
                f"the type '{shown}' is neither provided nor a type of JSON values",
                f"call dispatcher.provide({shown}, …) before the dispatcher starts, or annotate a type such as str or a "
                "dataclass",
            )


def describe_function(function: Any) -> str:
    """Return module and qualified name of a function, for messages."""
    below = inspect.unwrap(unwrap(function))
    module, name = getattr(below, "__module__", None), getattr(below, "__qualname__", None)
    return f"{module}.{name}" if module and name else excerpt(repr(function))
