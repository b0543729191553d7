"""Tasks that wait for what sessions still have to send: streams for room, a closing process for the last acknowledgement."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from dispatch.protocol import Session

WRITABLE_BYTES = 1_000_000
"""Unsent bytes of a session from which streams wait: one fragment of a large payload."""


class SendWaiters:
    """The waiting tasks of one endpoint, which reports what it has sent."""

    def __init__(self) -> None:
        self._writers: dict[Session, list[asyncio.Future[None]]] = {}
        self._flushes: list[asyncio.Future[None]] = []

    def __len__(self) -> int:
        return len(self._writers) + len(self._flushes)

    async def writable(self, session: Session) -> None:
        """Wait while ``session`` has many unsent bytes."""
        if not session.is_closed and session.queued_bytes > WRITABLE_BYTES:
            writer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._writers.setdefault(session, []).append(writer)
            await writer

    async def at_rest(self, sessions: Iterable[Session]) -> None:
        """Wait until the peers have acknowledged everything, or the endpoint closes."""
        if not _are_at_rest(sessions):
            flush: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._flushes.append(flush)
            await flush

    def release(self, session: Session) -> None:
        """Let the streams of ``session`` continue if it has sent enough, or has ended."""
        if session.is_closed or session.queued_bytes <= WRITABLE_BYTES:
            _wake(self._writers.pop(session, ()))

    def release_at_rest(self, sessions: Iterable[Session]) -> None:
        """Let those continue that wait for acknowledgements, if all ``sessions`` are at rest."""
        if self._flushes and _are_at_rest(sessions):
            flushes, self._flushes = self._flushes, []
            _wake(flushes)

    def close(self) -> None:
        """Let all continue."""
        for writers in self._writers.values():
            _wake(writers)
        _wake(self._flushes)
        self._writers.clear()
        self._flushes.clear()


def _are_at_rest(sessions: Iterable[Session]) -> bool:
    return all(session.is_at_rest for session in sessions)


def _wake(waiters: Iterable[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
