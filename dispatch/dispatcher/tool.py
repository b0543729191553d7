"""A tool for agent frameworks: name, description, schema and coroutine."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any

from dispatch.catalog import ToolDescriptor
from dispatch.catalog.frozen_json import thaw
from dispatch.result import CallResult
from dispatch.results.read_result_tool import ReadResultTool

if TYPE_CHECKING:
    from dispatch.dispatcher.dispatcher import Dispatcher

NO_ARGUMENTS: Mapping[str, Any] = {}


class Tool:
    """A handle on one tool of a dispatcher, from :meth:`Dispatcher.tool`.

    Attributes:
        name: name for the model.
        description: text by which the model chooses the tool.
        user: the user on whose behalf the tool is called.
        version: range of versions that are called; None: see :meth:`Dispatcher.call`.
    """

    __slots__ = ("_descriptor", "_dispatcher", "description", "name", "user", "version")

    def __init__(
        self, dispatcher: Dispatcher, descriptor: ToolDescriptor, user: str = "", version: str | None = None
    ) -> None:
        self._dispatcher = dispatcher
        self._descriptor = descriptor
        self.name = descriptor.name
        self.description = descriptor.description
        self.user = user
        self.version = version

    async def invoke(self, /, **arguments: Any) -> str:
        """Call the tool with named arguments and return its result.

        Raises:
            DispatchError: as :meth:`Dispatcher.call`.
        """
        return await self._dispatcher.call(self.name, arguments, user=self.user, version=self.version)

    async def execute(
        self,
        arguments: Mapping[str, Any] = NO_ARGUMENTS,
        *,
        by_model: bool = False,
        timeout: float | None = None,
        idempotency_key: str | None = None,
        context: Any = None,
    ) -> CallResult:
        """Call the tool and return every outcome as a value; see :meth:`Dispatcher.execute`."""
        return await self._dispatcher.execute(
            self.name,
            arguments,
            user=self.user,
            timeout=timeout,
            idempotency_key=idempotency_key,
            version=self.version,
            by_model=by_model,
            context=context,
        )

    def format_result(self, result: CallResult) -> dict[str, Any]:
        """Return a result of this tool as content for a model (:meth:`dispatch.results.ResultFormatter.format`): validated
        against the tool's ``output-schema``, and cut as the policy's ``max-result-chars`` says. The whole text of a cut
        result is in :attr:`Dispatcher.results`."""
        return self._dispatcher._format_result(self, result)

    @property
    def result_reader(self) -> ReadResultTool:
        """The tool ``read_result``, by which a model reads the rest of the results of this handle's user."""
        return self._dispatcher.results.tool(self.user)

    def stream(self, /, **arguments: Any) -> AsyncGenerator[str, None]:
        """Call the tool and yield the chunks of its result as they arrive."""
        return self._dispatcher.stream(self.name, arguments, user=self.user, version=self.version)

    @property
    def read_only(self) -> bool:
        """The tool is declared to change nothing."""
        return self._descriptor.read_only

    @property
    def destructive(self) -> bool | None:
        """The tool is declared to destroy something (true) or not (false); None: not declared."""
        return self._descriptor.destructive

    @property
    def descriptor(self) -> ToolDescriptor:
        """The tool's descriptor."""
        return self._descriptor

    @property
    def parameters(self) -> dict[str, Any]:
        """The arguments as a JSON Schema object, as model APIs expect them: a copy of the descriptor's ``input-schema``, or
        a schema of its ``arguments``."""
        schema: dict[str, Any] = thaw(self._descriptor.parameters)
        return schema

    def __repr__(self) -> str:
        return f"Tool({self.name!r})"
