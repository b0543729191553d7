"""The base of sources whose tools are Python functions."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Any

from dispatch._internal.suggestions import excerpt
from dispatch.calls.invokers.call_context import CallContext
from dispatch.calls.resolution.local_queues import local_queue, local_reply_queue
from dispatch.catalog.errors import Problem
from dispatch.catalog.readers.item import Item, Refused
from dispatch.catalog.sources.background import run_in_thread
from dispatch.catalog.sources.base import OnChange
from dispatch.functions.executor import FunctionExecutor
from dispatch.functions.function_tool import CONFIG_PARAM, FunctionTool, IsProvided
from dispatch.functions.providers import Providers

_log = logging.getLogger("dispatch.catalog")


class FunctionSource(ABC):
    """A source of functions, one local service. Each function that cannot be a tool is refused, and the others are tools.

    Args:
        id: unique among the sources of a dispatcher; also the id of its service.
        namespace: prefix of its names: ``crm`` makes ``find`` into ``crm-find``.
        on_change: ``apply``, or ``hold``: a changed definition waits for its approval.

    Attributes:
        executor: of its functions.
    """

    def __init__(self, id: str, namespace: str = "", on_change: OnChange = "apply") -> None:
        self.id = id
        self.namespace = namespace
        self.on_change: OnChange = on_change
        self.executor = FunctionExecutor(local_queue(id, "function"))
        self._is_in_use = False
        self._former: dict[tuple[str, str], Item] = {}
        service = {
            "id": id,
            "request-queue": local_queue(id, "function"),
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
        self._is_in_use = False
        self.executor.release_threads()

    async def discover(self) -> Sequence[Item]:
        """Return the service and an item for each function.

        Raises:
            CatalogError: the functions cannot be found.
        """
        functions, problems = await self._find_functions()
        # In a thread: 1,000 functions take 0.3 s.
        items, tools = await run_in_thread(lambda: self._describe(functions, self._is_provided))
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
    async def _find_functions(self) -> tuple[Iterable[Callable[..., Any]], Iterable[Problem]]:
        """Return the functions, and a problem for each part that cannot be read."""

    def _is_provided(self, annotation: Any) -> bool:
        return isinstance(annotation, type) and (annotation is CallContext or annotation in self.executor.providers)

    def _describe(
        self, functions: Iterable[Callable[..., Any]], is_provided: IsProvided | None
    ) -> tuple[list[Item], dict[str, FunctionTool]]:
        """Return the items of the service and of ``functions``, and the valid tools by their keys."""
        tools: dict[str, FunctionTool] = {}
        items = [self._service]
        for function in functions:
            tool = FunctionTool(function, is_provided, self.namespace)
            report = tool.report
            if tool.key in tools:
                report.add_error(
                    "",
                    f"{tools[tool.key].origin} has the name '{excerpt(tool.key)}' already",
                    "give one of them another name with @dispatch.tool(name=…), or its own version",
                )
            if report.has_errors:
                items.append(Item(tool.origin, "tool", "", Refused(tuple(report.problems)), self.namespace))
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
