"""A tool as agent frameworks want it: a name, a description, a schema, and something to await."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from dispatch.catalog import ToolDescriptor

if TYPE_CHECKING:
    from dispatch.dispatcher import Dispatcher


class Tool:
    """A handle on one tool of a dispatcher. Made by :meth:`Dispatcher.tool`.

    Attributes:
        name: what a model calls it by.
        description: what a model chooses by.
        user: on whose behalf it is called.
    """

    __slots__ = ("_descriptor", "_dispatcher", "description", "name", "user")

    def __init__(self, dispatcher: Dispatcher, descriptor: ToolDescriptor, user: str = "") -> None:
        self._dispatcher = dispatcher
        self._descriptor = descriptor
        self.name = descriptor.name
        self.description = descriptor.description
        self.user = user

    async def invoke(self, /, **arguments: Any) -> str:
        """Call it with named arguments and return its answer.

        Raises:
            DispatchError: as :meth:`Dispatcher.call`.
        """
        return await self._dispatcher.call(self.name, arguments, user=self.user)

    def stream(self, /, **arguments: Any) -> AsyncGenerator[str, None]:
        """Call it and give the chunks of its answer as they come."""
        return self._dispatcher.stream(self.name, arguments, user=self.user)

    @property
    def parameters(self) -> dict[str, Any]:
        """The arguments as a JSON Schema object, the form that model APIs take."""
        properties = {a.name: {"type": a.type, "description": a.description} for a in self._descriptor.arguments}
        # TrustGraph's descriptors do not say what is required: then everything is.
        required = [a.name for a in self._descriptor.arguments if a.required is not False]
        return {"type": "object", "properties": properties, "required": required}

    def __repr__(self) -> str:
        return f"Tool({self.name!r})"
