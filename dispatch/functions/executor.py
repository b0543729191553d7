"""The executor of functions: converts arguments, injects values, and calls each function in its way."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from dispatch._internal.suggestions import excerpt
from dispatch.calls.invokers.call_context import CallContext
from dispatch.calls.invokers.local_executor import LocalCall, RefusedCallError
from dispatch.errors import ErrorType, InvalidArgumentsError, RejectedError, ThrottledError
from dispatch.functions.function_tool import CONFIG_PARAM, FunctionTool
from dispatch.functions.json_types import encode_custom
from dispatch.functions.providers import Providers
from dispatch.messaging.wire.codec import check_result_text, result_text
from dispatch.serving.tool_executor import ToolExecutor

MAX_THREADS: Final = 64
"""Threads of a function whose tool has no bulkhead: the default of ``bulkhead.max-concurrent-calls``."""
IDLE_S: Final = 10.0
"""Seconds after which an idle thread ends: as many as a pause between two turns of an agent."""


class FunctionExecutor:
    """Executes the functions of one source (:class:`~dispatch.calls.invokers.local_executor.LocalExecutor`).

    Each synchronous function has threads of its own, as many as its bulkhead admits calls: a function that hangs occupies no
    thread of another one.

    Args:
        request_queue: of the service.
    """

    def __init__(self, request_queue: str) -> None:
        self.request_queue = request_queue
        self.providers = Providers()
        self._tools: Mapping[str, FunctionTool] = {}
        self._threads: dict[str, ToolExecutor] = {}
        self._released: list[ToolExecutor] = []

    @property
    def abandoned_threads(self) -> int:
        """Threads whose calls have ended (deadline, cancellation) while their functions still run."""
        return sum(len(each.abandoned) for each in (*self._threads.values(), *self._released))

    def replace_tools(self, tools: Mapping[str, FunctionTool]) -> None:
        """Execute ``tools``, by their keys. Calls in flight go on."""
        self._tools = tools
        self._threads = {key: threads for key, threads in self._threads.items() if key in tools or threads.abandoned}

    def release_threads(self) -> None:
        """End idle threads now, and the others when their functions return. Later calls start threads of their own."""
        for threads in self._threads.values():
            threads.close()
        self._released = [each for each in (*self._released, *self._threads.values()) if each.abandoned]
        self._threads = {}

    async def execute(self, call: LocalCall) -> str | AsyncIterator[str]:
        """Call the function of the tool.

        Raises:
            RefusedCallError: the function was not called: unknown, invalid arguments, or no free thread.
            Exception: of the function.
        """
        key = call.config.get(CONFIG_PARAM)
        tool = self._tools.get(key) if isinstance(key, str) else None
        if tool is None:
            raise RefusedCallError(_error_from_unknown(call.tool, key))
        try:
            positional, named = tool.arguments.convert(call.tool, call.arguments)
        except InvalidArgumentsError as error:
            raise RefusedCallError(error) from None
        for name, type in tool.injected.items():
            named[name] = call.context if type is CallContext else await self._provide(type)
        if tool.kind == "thread":
            result = await self._run_in_thread(tool, call, positional, named)
        else:
            result = tool.function(*positional, **named)
        while inspect.isawaitable(result):
            result = await result
        return _write_chunks(result) if isinstance(result, AsyncIterator) else write_result(result)

    async def _provide(self, type: Any) -> Any:
        value = self.providers.get(type)
        return await value if inspect.isawaitable(value) and not isinstance(value, type) else value

    async def _run_in_thread(
        self, tool: FunctionTool, call: LocalCall, positional: list[Any], named: dict[str, Any]
    ) -> Any:
        threads = self._threads.get(tool.key)
        limit = call.concurrency or MAX_THREADS
        if threads is None:
            threads = self._threads[tool.key] = ToolExecutor(limit, f"dispatch-{tool.key}", idle_s=IDLE_S)
        threads.max_threads = limit
        if len(threads.abandoned) >= limit:
            raise RefusedCallError(_error_from_threads(call.tool, limit))
        try:
            return await threads.run(partial(tool.function, *positional, **named))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            call.occupied = None if task is None else threads.abandoned.get(task)
            raise


def write_result(result: Any) -> str:
    """Return the result of a function as text: a text unchanged, any other value as JSON.

    Raises:
        ToolError: ``invalid-result``: it has half of a surrogate pair, or a number that JSON does not have.
        TypeError: JSON cannot express it.
    """
    is_text = isinstance(result, str)
    text = result_text(result if is_text else msgspec.to_builtins(result, str_keys=True, enc_hook=encode_custom))
    check_result_text(text)
    return text


async def _write_chunks(chunks: AsyncIterator[Any]) -> AsyncIterator[str]:
    async with contextlib.AsyncExitStack() as stack:
        if hasattr(chunks, "aclose"):
            stack.push_async_callback(chunks.aclose)
        async for chunk in chunks:
            yield write_result(chunk)


def _error_from_unknown(tool: str, key: object) -> RejectedError:
    return RejectedError(
        ErrorType.UNKNOWN_TOOL,
        f"Tool '{tool}' was not executed: its source has no function '{excerpt(str(key))}'. Use another tool, or correct "
        f"'{CONFIG_PARAM}' in its descriptor.",
        rejected_by="catalog",
    )


def _error_from_threads(tool: str, limit: int) -> ThrottledError:
    return ThrottledError(
        ErrorType.BULKHEAD_FULL,
        f"Tool '{tool}' was not executed: all {limit} threads of its function still run calls whose deadlines have passed. "
        "Use another tool, and make the function return in time.",
        rejected_by="bulkhead",
    )
