"""Staying connected: looks after a client of pulsar-client and what is open on it, and replaces it when it is lost.

pulsar-client mends a connection by itself, but its backoff can take many seconds, and what it holds it sends long after
whoever wanted it has gone. So what is not back within a second is made anew: in milliseconds, once a broker answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from dispatch._internal.cancellation import cancel_and_wait
from dispatch.errors import ErrorType, TransportError
from dispatch.transports.base import RECONNECT_WAIT_S
from dispatch.transports.errors import closed, unreachable
from dispatch.transports.pulsar.client import OPERATION_TIMEOUT_S, PulsarClient, close_opened
from dispatch.transports.pulsar.handshake import shake_hands
from dispatch.transports.pulsar.reopen_backoff import ReopenBackoff
from dispatch.transports.security import Security

logger = logging.getLogger("dispatch.transport")

POLL_S = 0.25
"""How often the connections are looked at."""
GRACE_S = 1.0
"""How long pulsar-client may mend a connection by itself (a topic that moves to another broker takes milliseconds)."""
SILENT_S = 0.5
"""How long a publish may go without its receipt before the broker is asked for a handshake: a receipt takes milliseconds."""
RELINK_PAUSE_S = 0.25
"""Between new clients, when a broker answers but lets nothing be opened: with the poll, 0.5 s until the next one."""
PROBE_TIMEOUT_S = 1.0
"""How long a broker may take to answer while we wait for it to come back: one that starts accepts connections for some
time before it answers on them."""


class TopicHandle(Protocol):
    """A publisher or a subscription."""

    @property
    def topic(self) -> str: ...

    raw: Any
    """What is open for it on the present client, or on a former one."""

    async def open(self, link: PulsarClient, generation: int) -> Any:
        """Open its topic on ``link``.

        Raises:
            TransportError: it cannot be opened.
        """
        ...


class SupervisedConnection(Protocol):
    """Who has handles."""

    def handles(self) -> list[TopicHandle]:
        """All that should be open."""
        ...

    def is_open(self, handle: TopicHandle) -> bool:
        """Is ``handle`` one of them still?"""
        ...

    def unacknowledged(self) -> object | None:
        """A publish that has no receipt yet: the same one until it has. None: there is none."""
        ...

    def on_handshake(self, limit: int | None) -> None:
        """A broker answers; ``limit`` is its ``maxMessageSize`` in bytes, if it said so."""
        ...

    def on_client_replaced(self) -> None:
        """The client was closed for good: of what was under way nothing more will be heard."""
        ...

    def on_reconnect(self) -> None:
        """The broker is in reach again."""
        ...


class ConnectionSupervisor:
    """The client of one connection, in its lives.

    Args:
        url, security: where to, and as whom.
        owner: its handles are opened again on each new client.
    """

    def __init__(self, url: str, security: Security, owner: SupervisedConnection) -> None:
        self.url = url
        self._security = security
        self._owner = owner
        self._link: PulsarClient | None = None
        self._task: asyncio.Task[None] | None = None
        self._retrying: asyncio.Task[None] | None = None
        self._up = asyncio.Event()
        self._lost: dict[TopicHandle, float] = {}
        """What is lost while the rest is not, and since when."""
        self._ended = False
        self._unacknowledged: object | None = None
        self._unacknowledged_since = 0.0
        self._silent = False
        self.down_since: float | None = None
        """When the broker went out of reach; None: it is in reach."""
        self.back_at = -math.inf
        """When the broker was last in reach again; before any: it always was."""
        self.generation = 0
        """The number of the client."""
        self.backoff: ReopenBackoff[TopicHandle] = ReopenBackoff()
        """What cannot be opened at present, while the rest can."""

    async def start(self) -> None:
        """Connect.

        Raises:
            TransportError: no broker answers, or it refuses us.
        """
        self._owner.on_handshake(await shake_hands(self.url, self._security))
        self._link = PulsarClient(self.url, self._security)
        self._task = asyncio.create_task(self._supervise(), name="dispatch-pulsar-supervisor")

    @property
    def started(self) -> bool:
        """There is a client."""
        return self._link is not None

    def cancel(self) -> None:
        """Look after it no longer."""
        if self._task is not None:
            self._task.cancel()

    def abandon(self) -> None:
        """Open nothing any more. The event loop of the tasks has ended, and they with it."""
        self._ended = True

    async def end(self) -> None:
        """The same, and let whoever waits for a connection know."""
        self._ended = True
        self._up.set()
        await cancel_and_wait((self._task, self._retrying))

    async def close(self) -> None:
        """Close the client."""
        if self._link is not None:
            await self._link.close()

    def close_now(self) -> None:
        """See :meth:`PulsarClient.close_now`."""
        if self._link is not None:
            self._link.close_now()

    async def open(self, make: Callable[[PulsarClient, int], Awaitable[Any]]) -> Any:
        """What ``make`` opens on the present client, or on its successor when that is replaced meanwhile.

        Raises:
            TransportError: closed, out of reach, or it cannot be opened.
        """
        while True:
            if self._ended or self._link is None:
                raise closed()
            if self.down_since is not None:
                raise unreachable(self.url)
            generation = self.generation
            try:
                opened = await make(self._link, generation)
            except TransportError:
                if generation == self.generation:
                    raise
                if self.down_since is not None:  # the new client is being made: seconds, or it fails
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(OPERATION_TIMEOUT_S):
                            await self._up.wait()
                continue
            if generation == self.generation and not self._ended:
                return opened
            await close_opened(opened)

    async def await_connection(self, deadline: float) -> bool:
        """See :class:`dispatch.transports.base.Transport`."""
        await asyncio.sleep(0)  # a caller that calls again at once must not keep the loop from the supervisor
        if self.down_since is not None and not self._ended:
            ends = min(deadline, self.down_since + RECONNECT_WAIT_S)
            if ends > asyncio.get_running_loop().time():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(ends):
                        await self._up.wait()
        return self.down_since is None and not self._ended

    def was_disconnected_since(self, instant: float) -> bool:
        """See :class:`dispatch.transports.base.Transport`. A broker that hangs is not known to be out of reach at once, but
        acknowledges nothing meanwhile."""
        if self.down_since is not None or self.back_at >= instant:
            return True
        return self._silent_for(asyncio.get_running_loop().time()) >= SILENT_S

    def _silent_for(self, now: float) -> float:
        """Seconds for which a publish was seen to have no receipt."""
        publish = self._owner.unacknowledged()
        if publish is None or publish is not self._unacknowledged:
            self._unacknowledged, self._unacknowledged_since = publish, now
        return now - self._unacknowledged_since

    async def _is_silent(self) -> bool:
        """Does the broker answer nothing, while its connections are open? pulsar-client notices that after 30 to 60 s. Once
        it is known, only a handshake proves the contrary: pulsar-client fails what has no receipt after 10 s."""
        if not self._silent and self._silent_for(asyncio.get_running_loop().time()) < SILENT_S:
            return False
        try:
            self._owner.on_handshake(await shake_hands(self.url, self._security, PROBE_TIMEOUT_S))
        except Exception as error:  # whatever it is: the supervisor must go on
            logger.debug("no answer: %s: %s", type(error).__name__, error)
            self._silent = True
            return True
        self._silent = False
        self._unacknowledged = None  # slow, and not gone: its receipt gets another SILENT_S
        return False

    async def _supervise(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(POLL_S)
            handles = [handle for handle in self._owner.handles() if handle not in self.backoff]
            lost = [handle for handle in handles if not handle.raw.is_connected()]
            silent = not lost and await self._is_silent()
            if not lost and not silent and self.down_since is not None:
                self._back()
            if self.down_since is None and not silent and (not lost or len(lost) < len(handles)):
                self._mend(lost, loop.time())  # the broker is there: the rest need not notice
                continue
            self._lost.clear()
            if self.down_since is None:
                self.down_since = self._unacknowledged_since if silent else loop.time()
                self._up.clear()
                logger.info("connection to %s lost", self.url)
            if lost and loop.time() - self.down_since >= GRACE_S:
                try:
                    self._owner.on_handshake(await shake_hands(self.url, self._security, PROBE_TIMEOUT_S))
                except Exception as error:  # whatever it is: without a supervisor the connection would never come back
                    logger.debug("not back yet: %s: %s", type(error).__name__, error)
                    continue
                try:
                    await self._relink()
                except Exception as error:  # as above
                    logger.debug("nothing can be opened yet: %s: %s", type(error).__name__, error)
                    await asyncio.sleep(RELINK_PAUSE_S)

    def _back(self) -> None:
        self.down_since = None
        self.back_at = asyncio.get_running_loop().time()
        self._up.set()
        logger.info("connected to %s again", self.url)
        self._owner.on_reconnect()

    async def _relink(self) -> None:
        await self.close()
        self._owner.on_client_replaced()
        self.generation += 1
        self._link = PulsarClient(self.url, self._security)
        handles = self._owner.handles()
        errors = await asyncio.gather(*(self._reopen(handle) for handle in handles))
        if all(errors) and any(error is not None and error.type == ErrorType.UNREACHABLE for error in errors):
            raise unreachable(self.url)  # that is no topic's fault
        for handle, error in zip(handles, errors, strict=True):
            self._set_aside(handle, error)
        self._back()

    async def _reopen(self, handle: TopicHandle) -> TransportError | None:
        """Open the topic of ``handle`` on the present client. Returns why it cannot be opened."""
        assert self._link is not None
        generation = self.generation
        try:
            raw = await handle.open(self._link, generation)
        except TransportError as error:
            return error if generation == self.generation else None
        if generation != self.generation or not self._owner.is_open(handle):
            await close_opened(raw)  # of a former client, or closed meanwhile: it would take messages nobody ever gets
            return None
        handle.raw = raw
        return None

    def _set_aside(self, handle: TopicHandle, error: TransportError | None, *, first: bool = False) -> None:
        if error is None or not self._owner.is_open(handle):
            if self.backoff.forget(handle):
                logger.info("%s is open again", handle.topic)
        elif self.backoff.failed(handle, error, asyncio.get_running_loop().time()) or first:
            logger.warning("%s cannot be opened and is set aside: %s", handle.topic, error.message)

    def _mend(self, lost: list[TopicHandle], now: float) -> None:
        """Open again what was lost alone and did not come back by itself, and try what is set aside."""
        self._lost = {handle: self._lost.get(handle, now) for handle in lost}
        if self._retrying is not None and not self._retrying.done():
            return
        gone = [handle for handle, since in self._lost.items() if now - since >= GRACE_S]
        due = self.backoff.due(now)
        if gone or due:
            self._retrying = asyncio.create_task(self._again(gone, due), name="dispatch-pulsar-retry")

    async def _again(self, gone: list[TopicHandle], due: list[TopicHandle]) -> None:
        generation, now = self.generation, asyncio.get_running_loop().time()
        for handle in gone:  # nothing more is given to what is closed now
            self.backoff.failed(handle, unreachable(self.url), now)
        await asyncio.gather(*(close_opened(handle.raw) for handle in gone))
        handles = [*gone, *due]
        errors = await asyncio.gather(*(self._reopen(handle) for handle in handles))
        if generation == self.generation:
            for handle, error in zip(handles, errors, strict=True):
                self._set_aside(handle, error, first=handle in gone)
