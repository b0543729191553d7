"""The sessions of one server: which one gets the next call, and the call."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from mcp import MCPError, types
from mcp.types import HEADER_MISMATCH

from dispatch._internal.clock import loop_clock
from dispatch.balancing.balancer import Balancer, Pick
from dispatch.calls.invokers.local_executor import FailedCallError, LocalCall, LocalResult, RefusedCallError
from dispatch.errors import Outcome
from dispatch.mcp.client.callbacks import Callbacks
from dispatch.mcp.client.results import (
    error_from_input_required,
    error_from_invalid_result,
    error_from_mcp_error,
    error_from_missing_session,
    error_from_unreadable_result,
    read_result,
)
from dispatch.mcp.client.session import McpSession
from dispatch.mcp.client.tool_items import TOOL_PARAM
from dispatch.mcp.client.tool_list import ListedTool
from dispatch.mcp.client.transports.replies import TransportFailure
from dispatch.policy import Policy

REOPEN_S: Final = 2.0
"""Seconds that a call waits for a new session with a server that has forgotten the former one."""


class UnsentCallError(Exception):
    """A session cannot be used, and the server did not execute the call."""


class ForgottenSessionError(UnsentCallError):
    """The server does not know the session."""


class SessionPool:
    """The sessions of one server: one, or one for each of its addresses.

    Args:
        sessions: at least one.
        policy: its balancing and outlier detection.
        callbacks: that the sessions have.
    """

    def __init__(self, sessions: Sequence[McpSession], policy: Policy, callbacks: Callbacks) -> None:
        self._sessions = {session.name: session for session in sessions}
        self._only = sessions[0] if len(sessions) == 1 else None
        self._policy = policy
        self._callbacks = callbacks
        self._balancer: Balancer | None = None

    def start(self) -> None:
        """Open all sessions."""
        for session in self._sessions.values():
            session.start()

    async def close(self) -> None:
        """End all sessions."""
        await asyncio.gather(*(session.close() for session in self._sessions.values()))

    async def wait_first(self) -> None:
        """Wait until a session is open, or the first attempt of each one has failed."""
        waits = {asyncio.create_task(session.wait_first()) for session in self._sessions.values()}
        try:
            while waits and not self.is_connected:
                _, waits = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    @property
    def is_connected(self) -> bool:
        """Whether a session is open."""
        return any(session.client is not None for session in self._sessions.values())

    @property
    def tools(self) -> tuple[ListedTool, ...] | None:
        """The tools of the server: those of the first open session, or otherwise of the first one that had any."""
        sessions = sorted(self._sessions.values(), key=lambda session: session.client is None)
        return next((session.tools for session in sessions if session.tools is not None), None)

    @property
    def problem(self) -> str:
        """Why no session is open."""
        return "; ".join(
            f"{each.name}: {each.problem}" if self._only is None else each.problem for each in self._sessions.values()
        )

    @property
    def retry_after(self) -> float:
        """Seconds until the next attempt to connect."""
        return min(session.retry_after for session in self._sessions.values())

    @contextmanager
    def pick(self, tried: Collection[str]) -> Iterator[McpSession | None]:
        """Pick the session of a call, and record how the call ends. None: no session is open, except those ``tried``."""
        names = (name for name, session in self._sessions.items() if session.client is not None)
        capable = frozenset(name for name in names if name not in tried)
        if self._only is not None:
            yield self._only if capable else None
            return
        if self._balancer is None:
            self._balancer = Balancer(
                tuple(self._sessions),
                balancing=self._policy.balancing,
                outlier_detection=self._policy.outlier_detection,
                clock=loop_clock(),
                randomness=random.random,
            )
        pick = self._balancer.pick(frozenset(), capable)
        if not isinstance(pick, Pick):
            yield None
            return
        outcome = Outcome.CANCELLED
        try:
            yield self._sessions[pick.instance]
            outcome = Outcome.SUCCESS
        except (FailedCallError, UnsentCallError):
            outcome = Outcome.TRANSPORT
            raise
        except RefusedCallError:
            outcome = Outcome.INVALID_ARGUMENTS
            raise
        except Exception:  # the tool's own error: the server has answered
            outcome = Outcome.TOOL_ERROR
            raise
        finally:
            pick.finish(outcome)

    async def execute(self, call: LocalCall) -> LocalResult:
        """Call the tool at a server, which has it under the config value :data:`TOOL_PARAM`. Cancelling this cancels the
        call there.

        Raises:
            ToolError: of the tool.
            RefusedCallError: the server is out of reach, or refuses the call.
            FailedCallError: the server ended, or did not answer by the protocol; the tool may have been executed.
        """
        tried: set[str] = set()
        while True:
            try:
                with self.pick(tried) as session:
                    if session is None:
                        if not tried and await self._wait_reopened():
                            continue
                        raise error_from_missing_session(call.tool, self.retry_after)
                    tried.add(session.name)
                    return await self._execute_at(session, call)
            except UnsentCallError:
                continue  # at another address

    async def _wait_reopened(self) -> bool:
        """Wait for the sessions that are being opened again; return whether one is open."""
        sessions = [session for session in self._sessions.values() if session.is_reopening]
        await asyncio.gather(*(session.wait_reopened(REOPEN_S) for session in sessions))
        return bool(sessions) and self.is_connected

    async def _execute_at(self, session: McpSession, call: LocalCall) -> LocalResult:
        try:
            try:
                result = await self._call(session, call)
            except ForgottenSessionError:
                if not await session.wait_reopened(REOPEN_S):
                    raise
                result = await self._call(session, call)
        except MCPError as error:
            if error.code == TransportFailure.INVALID_RESULT:
                raise error_from_invalid_result(call.tool, session.name, error) from None
            raise error_from_mcp_error(error, call.tool, session.name) from None
        except (RuntimeError, ValueError) as error:  # the SDK checks results against the output schema
            raise error_from_unreadable_result(call.tool, session.name, error) from None
        if isinstance(result, types.InputRequiredResult):
            raise error_from_input_required(call.tool, result)
        return read_result(result, session.name)

    async def _call(self, session: McpSession, call: LocalCall) -> types.CallToolResult | types.InputRequiredResult:
        """Return the result.

        Raises:
            UnsentCallError: there is no connection, or the server has forgotten the session.
            MCPError: an error of the server, or of the connection.
        """
        client, name = session.client, call.config[TOOL_PARAM]
        if client is None:
            raise UnsentCallError
        try:
            if self._callbacks.has_any:
                return await client.call_tool(name, call.arguments)
            result = await client.session.call_tool(name, call.arguments, allow_input_required=True)
        except MCPError as error:
            if error.code == TransportFailure.FORGOTTEN:
                raise ForgottenSessionError from None
            if error.code == TransportFailure.NOT_SENT:
                raise UnsentCallError from None
            if error.code != HEADER_MISMATCH:
                raise
            return await client.call_tool(name, call.arguments)  # was not executed; it reads the tool's schema again
        assert isinstance(result, (types.CallToolResult, types.InputRequiredResult))
        return result
