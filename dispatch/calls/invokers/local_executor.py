"""The interface of what executes tools in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Protocol

import msgspec

from dispatch.calls.invokers.call_context import CallContext
from dispatch.errors import DispatchError, TransportError
from dispatch.result import ResultContent


class LocalCall(msgspec.Struct, eq=False):
    """One attempt of a call, for its executor.

    Attributes:
        tool: name of the tool in the catalogue.
        arguments: JSON values, a copy for this attempt.
        config: values of the tool's config params.
        context: of the call.
        concurrency: the limit of the tool's bulkhead; None: it has none.
        occupied: set by the executor before it raises ``CancelledError`` while a thread still executes the tool: the call
            keeps its place in the bulkhead until this future is done.
    """

    tool: str
    arguments: dict[str, Any]
    config: dict[str, Any]
    context: CallContext
    concurrency: int | None = None
    occupied: asyncio.Future[Any] | None = None


class LocalResult(msgspec.Struct, frozen=True):
    """A result with more than a text.

    Attributes:
        text: that a model reads.
        content: everything in the result; None: nothing but the text.
        instance: id of what executed the tool; ``""``: it has none.
    """

    text: str
    content: ResultContent | None = None
    instance: str = ""


class LocalExecutor(Protocol):
    """Executes the tools of one local service. It has no timeouts, retries or limits of its own: the call path has."""

    @property
    def request_queue(self) -> str:
        """The request topic of the service (:func:`~dispatch.calls.resolution.local_queues.local_queue`)."""

    async def execute(self, call: LocalCall) -> str | LocalResult | AsyncIterator[str]:
        """Execute the tool. It runs in a task of its own, which is cancelled at the deadline.

        Returns:
            The result as text, or with content; or the chunks of a stream.

        Raises:
            RefusedCallError: the tool was not executed.
            FailedCallError: the connection to the tool failed; it may have been executed.
            Exception: the tool's own error; its type and message reach the caller.
        """


class RefusedCallError(Exception):
    """An executor refuses a call; the tool was not executed.

    Args:
        error: that the caller gets.
    """

    def __init__(self, error: DispatchError) -> None:
        super().__init__(error.message)
        self.error = error


class FailedCallError(Exception):
    """The connection of an executor to its tool failed during a call; the tool may have been executed.

    Args:
        error: that the caller gets.
    """

    def __init__(self, error: TransportError) -> None:
        super().__init__(error.message)
        self.error = error
