"""``dispatch.Functions``: functions of the program as a source of the catalogue."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from dispatch._internal.arguments import explain_keywords
from dispatch.catalog.catalog import check_items
from dispatch.catalog.errors import CatalogError, Problem
from dispatch.catalog.readers.item import Refused
from dispatch.catalog.sources.base import OnChange
from dispatch.functions.function_source import FunctionSource


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
            if not callable(function):
                raise TypeError(
                    f"{function!r:.80} is no function. Fix: write Functions(add, find); for a package ToolPackage('shop')."
                )
        self._functions = functions
        items, _ = self._describe(functions, None)
        refused = [problem for item in items if isinstance(item.raw, Refused) for problem in item.raw.problems]
        problems = refused or [each for each in check_items(items)[1] if each.severity == "error"]
        if problems:
            raise CatalogError(problems)

    async def _find_functions(self) -> tuple[Iterable[Callable[..., Any]], Iterable[Problem]]:
        return self._functions, ()
