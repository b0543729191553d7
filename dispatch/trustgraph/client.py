"""TrustGraph's client over a dispatcher."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from dispatch._internal.arguments import explain_keywords
from dispatch.calls.call_state import CallOptions
from dispatch.trustgraph.dialects import DEFAULT_TIMEOUT_S, bind_values, call_back, encode_config

if TYPE_CHECKING:
    from dispatch.dispatcher import Dispatcher


class ToolServiceClient:
    """TrustGraph's ``ToolServiceClient`` over a dispatcher: the same calls, in both dialects.

        await client.call({"style": "pun"}, {"topic": "cats"}, timeout=600)      # the published package 2.11.1
        await client.call("alice", {"style": "pun"}, {"topic": "cats"})          # the specification

    Args:
        dispatcher: a started dispatcher.
        service: id of a tool service in its catalogue.

    Raises:
        RejectedError: there is no such service.
    """

    @explain_keywords
    def __init__(self, dispatcher: Dispatcher, *, service: str) -> None:
        self._dispatcher = dispatcher
        self._service = service
        dispatcher._resolve_service(service)

    async def call(self, *values: Any, timeout: float = DEFAULT_TIMEOUT_S, **named: Any) -> str:
        """``call(config, arguments, timeout=600)`` or ``call(user, config, arguments, timeout=600)``.

        Returns:
            The reply; the chunks of a stream are joined.

        Raises:
            DispatchError: a ``RuntimeError``, as TrustGraph's client raises, with type, message and advice;
                ``RejectedError`` when a reload has removed the service.
            TypeError: neither dialect.
        """
        given = bind_values(("config", "arguments", "timeout"), values, named | {"timeout": timeout})
        result = await self._dispatcher._running_calls.perform(
            self._dispatcher._resolve_service(self._service),
            given["arguments"] or {},
            CallOptions(user=given["user"], timeout=given["timeout"], config=encode_config(given["config"])),
        )
        if result.error is not None:
            raise result.error
        return result.text

    async def call_streaming(self, *values: Any, timeout: float = DEFAULT_TIMEOUT_S, **named: Any) -> str:
        """``call_streaming([user,] config, arguments, callback, timeout=600)``: ``callback`` gets each chunk.

        Returns:
            All chunks, joined.

        Raises:
            DispatchError, TypeError: as :meth:`call`.
        """
        given = bind_values(("config", "arguments", "callback", "timeout"), values, named | {"timeout": timeout})
        chunks: list[str] = []
        timeout = given["timeout"]  # TrustGraph's client has no other limit
        stream = self._dispatcher._running_calls.stream(
            self._dispatcher._resolve_service(self._service),
            given["arguments"] or {},
            CallOptions(
                user=given["user"], timeout=timeout, idle_timeout=timeout, config=encode_config(given["config"])
            ),
        )
        async with contextlib.aclosing(stream):  # a callback that raises must not leave it open
            async for chunk in stream:
                chunks.append(chunk)
                await call_back(given["callback"], chunk)
        return "".join(chunks)
