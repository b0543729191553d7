"""Chooses what executes an attempt: this process, or an instance of the tool's service."""

from __future__ import annotations

from collections.abc import Awaitable

from dispatch.calls.call_state import Attempt, Call
from dispatch.calls.invokers.instance_invoker import InstanceInvoker
from dispatch.calls.invokers.local_invoker import LocalInvoker


class ToolInvoker:
    """Invokes local tools in this process, and all others at instances (:class:`~dispatch.calls.attempt.Invoker`).

    Args:
        instances, local: the invokers.
    """

    def __init__(self, instances: InstanceInvoker, local: LocalInvoker) -> None:
        self._instances = instances
        self._local = local

    @property
    def is_connected(self) -> bool:
        """Whether the broker is in reach."""
        return self._instances.is_connected

    async def await_connection(self, call: Call) -> None:
        """Wait for the broker, briefly. A local tool needs none.

        Raises:
            TransportError: it is out of reach.
        """
        if not call.tool.is_local:
            await self._instances.await_connection(call)

    def invoke(self, attempt: Attempt) -> Awaitable[None]:
        """See :meth:`~dispatch.calls.attempt.Invoker.invoke`. perf: no coroutine of its own."""
        return (self._local if attempt.call.tool.is_local else self._instances).invoke(attempt)

    def attribute_failure(self, attempt: Attempt) -> None:
        """See :meth:`~dispatch.calls.attempt.Invoker.attribute_failure`."""
        (self._local if attempt.call.tool.is_local else self._instances).attribute_failure(attempt)

    def has_untried(self, call: Call) -> bool:
        """See :meth:`~dispatch.calls.attempt.Invoker.has_untried`."""
        return (self._local if call.tool.is_local else self._instances).has_untried(call)
