"""Tasks that wait for what sessions still have to send: streams for room and credit, a closing process for the last
acknowledgement."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial

from dispatch.protocol import CalleeSession, Session

WRITABLE_BYTES = 1_000_000
"""Unsent bytes of a session from which streams wait: one fragment of a large payload."""
CHUNKS_PER_TURN = 256
"""Chunks after which other tasks run: a tool that never waits would send a whole window of them before, in 100 ms."""


class SendWaiters:
    """The waiting tasks of one endpoint, which reports what it has sent."""

    def __init__(self) -> None:
        self._writers: dict[Session, dict[asyncio.Future[None], Callable[[], bool]]] = {}
        """With what says whether their streams have credit."""
        self._flushes: list[asyncio.Future[None]] = []
        self._chunks = 0
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._writers) + len(self._flushes)

    async def writable(self, session: CalleeSession, stream: int) -> None:
        """Wait while ``session`` has many unsent bytes, or the reader of ``stream`` is a window behind it."""
        self._chunks += 1
        if self._chunks >= CHUNKS_PER_TURN:
            self._chunks = 0
            await asyncio.sleep(0)
        while not (self._is_closed or (_has_room(session) and session.has_credit(stream))):
            writer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            writers = self._writers.setdefault(session, {})
            writers[writer] = partial(session.has_credit, stream)
            try:
                await writer
            finally:
                writers.pop(writer, None)
                if not writers and self._writers.get(session) is writers:
                    del self._writers[session]

    async def at_rest(self, sessions: Iterable[Session]) -> None:
        """Wait until the peers have acknowledged everything, or the endpoint closes."""
        if not _are_at_rest(sessions):
            flush: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._flushes.append(flush)
            await flush

    def release(self, session: Session) -> None:
        """Let the streams of ``session`` continue that have credit, if it has sent enough; all of them if it has ended."""
        writers = self._writers.get(session)
        if writers is not None and _has_room(session):
            _wake([writer for writer, has_credit in writers.items() if has_credit()])

    def release_at_rest(self, sessions: Iterable[Session]) -> None:
        """Let those continue that wait for acknowledgements, if all ``sessions`` are at rest."""
        if self._flushes and _are_at_rest(sessions):
            flushes, self._flushes = self._flushes, []
            _wake(flushes)

    def close(self) -> None:
        """Let all continue."""
        self._is_closed = True
        for writers in self._writers.values():
            _wake(writers)
        _wake(self._flushes)
        self._writers.clear()
        self._flushes.clear()


def _has_room(session: Session) -> bool:
    return session.is_closed or session.queued_bytes <= WRITABLE_BYTES


def _are_at_rest(sessions: Iterable[Session]) -> bool:
    return all(session.is_at_rest for session in sessions)


def _wake(waiters: Iterable[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
