"""Notifications that the list of tools has changed, in both generations of the protocol."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Final

from mcp.server import ServerRequestContext
from mcp.server.context import CallNext, HandlerResult
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged

from dispatch.telemetry.events import CatalogChanged, Event

if TYPE_CHECKING:
    from dispatch.dispatcher import Dispatcher

COALESCE_S: Final = 0.25
"""Seconds from a change to the notification of all changes meanwhile: a client fetches the whole list for each one."""


class ListChanges:
    """Notifies clients: those of 2026-07-28 by ``subscriptions/listen``, those of the handshake on their session.

    Args:
        dispatcher: whose tools and permissions change.

    Attributes:
        listen: the handler of ``subscriptions/listen``.
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._bus = InMemorySubscriptionBus()
        self.listen = ListenHandler(self._bus)
        self._version = 0
        self._changed = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._publishing: set[asyncio.Task[None]] = set()
        self._watchers = 0
        self._remove: tuple[Callable[[], object], ...] = ()

    @contextlib.asynccontextmanager
    async def watch(self) -> AsyncIterator[None]:
        """Notify clients of changes inside the context; it may be entered several times, once for each transport."""
        loop = asyncio.get_running_loop()
        if self._watchers == 0:
            self._remove = (
                self._dispatcher.on_event(self._on_event),
                # The file of the permissions is read in a thread.
                self._dispatcher._authorizer.subscribe(lambda: loop.call_soon_threadsafe(self.schedule)),
            )
        self._watchers += 1
        try:
            yield
        finally:
            self._watchers -= 1
            if self._watchers == 0:
                self._stop()

    def _stop(self) -> None:
        for remove in self._remove:
            remove()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.listen.close()

    def _on_event(self, event: Event) -> None:
        if isinstance(event, CatalogChanged) and event.added_count + event.changed_count + event.removed_count:
            self.schedule()

    def schedule(self) -> None:
        """Notify the clients soon, once for all changes until then."""
        if self._timer is None and self._watchers:
            self._timer = asyncio.get_running_loop().call_later(COALESCE_S, self._publish)

    def _publish(self) -> None:
        self._timer = None
        self._version += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        task = asyncio.ensure_future(self._bus.publish(ToolsListChanged()))
        self._publishing.add(task)
        task.add_done_callback(self._publishing.discard)

    async def follow_session(self, ctx: ServerRequestContext[Any], call_next: CallNext) -> HandlerResult:
        """Middleware of the SDK: after the handshake of a session, notify its client until the SDK cancels the handler, at
        the end of the session. It is outside of the span of the notification, which ends at once."""
        result = await call_next(ctx)
        if ctx.method == "notifications/initialized":
            seen = self._version
            while True:
                while self._version == seen:
                    await self._changed.wait()
                seen = self._version
                await ctx.session.send_tool_list_changed()
        return result
