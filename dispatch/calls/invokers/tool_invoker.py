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

    def is_ready(self, call: Call) -> bool:
        """See :meth:`~dispatch.calls.attempt.Invoker.is_ready`. A local tool needs nothing."""
        return call.tool.is_local or self._instances.is_ready(call)

    async def await_ready(self, call: Call) -> None:
        """See :meth:`~dispatch.calls.attempt.Invoker.await_ready`."""
        await self._instances.await_ready(call)

    def invoke(self, attempt: Attempt) -> Awaitable[None]:
        """See :meth:`~dispatch.calls.attempt.Invoker.invoke`. perf: no coroutine of its own."""
        return (self._local if attempt.call.tool.is_local else self._instances).invoke(attempt)

    def attribute_failure(self, attempt: Attempt) -> None:
        """See :meth:`~dispatch.calls.attempt.Invoker.attribute_failure`."""
        (self._local if attempt.call.tool.is_local else self._instances).attribute_failure(attempt)

    def has_untried(self, call: Call) -> bool:
        """See :meth:`~dispatch.calls.attempt.Invoker.has_untried`."""
        return (self._local if call.tool.is_local else self._instances).has_untried(call)
