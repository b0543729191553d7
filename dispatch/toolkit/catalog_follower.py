"""The tools of a dispatcher's live catalogue as tools of a toolkit."""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING, Final

from dispatch.dispatcher import tool as dispatch_tool
from dispatch.errors import ErrorType, RejectedError
from dispatch.telemetry.events import CatalogChanged, Event
from dispatch.toolkit.tool import Tool, ToolType

if TYPE_CHECKING:
    from dispatch.catalog import ToolDescriptor
    from dispatch.dispatcher import Dispatcher
    from dispatch.toolkit.toolkit import Toolkit

logger = logging.getLogger("dispatch.toolkit")

MAX_WITHDRAWN: Final = 10_000
"""Removed tools whose edges are retained: names that come and go use bounded memory."""


class CatalogFollower:
    """Adds the tools of the catalogue to a toolkit, under their names as ids, and follows every change.

    A tool that leaves the catalogue leaves the toolkit; its edges are retained and come back with it. The listener at the
    dispatcher does not keep the toolkit alive.
    """

    def __init__(self, toolkit: Toolkit, dispatcher: Dispatcher) -> None:
        self._toolkit = toolkit
        self._dispatcher = dispatcher
        self._known: dict[str, ToolDescriptor] = {}
        self._withdrawn: dict[str, list[tuple[str, float]]] = {}
        """Vertices that point to a removed tool, with their scores."""
        for id, properties in toolkit.vertices_data():
            data = properties["data"]
            if (
                isinstance(data, Tool)
                and data.tool_type is ToolType.DISPATCH_TOOL
                and id not in dispatcher.catalog.tools
            ):
                self._withdraw(id)
        self.update()
        reference = weakref.ref(self)

        def on_event(event: Event) -> None:
            follower = reference()
            if follower is None:
                unsubscribe()
            elif isinstance(event, CatalogChanged) and event.ok:
                follower.update()

        unsubscribe = dispatcher.on_event(on_event)
        self._unsubscribe = unsubscribe

    def close(self) -> None:
        """Follow no further changes."""
        self._unsubscribe()

    def has_tool(self, id: str) -> bool:
        """Return whether the vertex is a tool of the catalogue."""
        return id in self._known

    def update(self) -> None:
        """Make the toolkit's tools those of the catalogue in force."""
        tools = self._dispatcher.catalog.tools
        for name in [name for name in self._known if name not in tools]:
            del self._known[name]
            self._withdraw(name)
        for name, descriptor in tools.items():
            if self._known.get(name) is descriptor:
                continue
            if self._toolkit.has_vertex(name) and not self._toolkit.is_tool(name):
                logger.warning(
                    "tool %r of the catalogue is not in the toolkit: another vertex has its name as id", name
                )
                continue
            self._known[name] = descriptor
            self._toolkit.add_vertex(name, data=self.bind_tool(name, ""))
            for id, score in self._withdrawn.pop(name, ()):
                if self._toolkit.has_vertex(id):
                    self._toolkit.add_edge(id, name)
                    self._toolkit.set_score(id, name, score)

    def bind_tool(self, id: str, user: str) -> Tool:
        """Return the tool, called on behalf of ``user``."""
        handle = dispatch_tool.Tool(self._dispatcher, self._known[id], user)
        return Tool(id, handle.description, handle.invoke, ToolType.DISPATCH_TOOL, id=id)

    def is_visible(self, id: str, user: str) -> bool:
        """Return whether ``user`` may call the tool; True for a vertex that is no tool of the catalogue.

        Raises:
            RejectedError: ``permissions-unavailable``: the permissions of ``user`` are not cached.
        """
        if id not in self._known:
            return True
        try:
            self._dispatcher.tool(id, user=user)
        except RejectedError as error:
            if error.type == ErrorType.PERMISSIONS_UNAVAILABLE:
                raise
            return False
        return True

    def _withdraw(self, name: str) -> None:
        toolkit = self._toolkit
        if not toolkit.has_vertex(name):
            return
        while len(self._withdrawn) >= MAX_WITHDRAWN:
            del self._withdrawn[next(iter(self._withdrawn))]
        self._withdrawn[name] = [(id, toolkit.get_score(id, name)) for id in toolkit.predecessors(name)]
        toolkit.remove_vertex(name)
