"""The sessions of one server, and which one gets the next call."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from mcp import types

from dispatch._internal.clock import loop_clock
from dispatch.balancing.balancer import Balancer, Pick
from dispatch.calls.invokers.local_executor import FailedCallError, RefusedCallError
from dispatch.errors import Outcome
from dispatch.mcp.client.session import McpSession
from dispatch.policy import Policy


class UnsentCallError(Exception):
    """A session cannot be used, and the server did not receive the call."""


class SessionPool:
    """The sessions of one server: one, or one for each of its addresses.

    Args:
        sessions: at least one.
        policy: its balancing and outlier detection.
    """

    def __init__(self, sessions: Sequence[McpSession], policy: Policy) -> None:
        self._sessions = {session.name: session for session in sessions}
        self._only = sessions[0] if len(sessions) == 1 else None
        self._policy = policy
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
    def tools(self) -> tuple[types.Tool, ...] | None:
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
