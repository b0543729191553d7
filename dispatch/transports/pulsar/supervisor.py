"""Reconnection: supervises a client of pulsar-client with its publishers and subscriptions, and replaces it when it is lost.

pulsar-client reconnects by itself, but its backoff can take many seconds, and it sends pending messages long after their
callers have timed out. A connection that is not back within a second is replaced, within milliseconds of a broker's reply.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Container, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from dispatch._internal import cancel_and_wait, wait_set
from dispatch.errors import ErrorType, TransportError
from dispatch.transports.base import RECONNECT_WAIT_S, ConnectionListener, Security
from dispatch.transports.errors import closed, describe_refusal, slow_to_open, unreachable
from dispatch.transports.pulsar.client import DEAF, OPERATION_TIMEOUT_S, PulsarClient, abandon, close_opened
from dispatch.transports.pulsar.handshake import TIMEOUT_S, broker_urls, find_broker, shake_hands

# Backoff for topics that cannot be opened. Pure; the clock is passed in.
#
# A topic whose namespace was deleted, or whose permissions were revoked, must not keep the rest of its connection down.


FIRST_RETRY_S = 0.5
LAST_RETRY_S = 30.0
"""Seconds between attempts: doubled from the first to the last while the broker refuses. If the broker does not reply in
time (it has just started, for example), the next attempt follows after the first delay, because each attempt takes seconds
already and the state of the topic is unknown."""

T = TypeVar("T")


class _Wait(msgspec.Struct, eq=False):
    since: float
    error: TransportError
    due: float
    delay: float = FIRST_RETRY_S


class ReopenBackoff(Generic[T]):
    """The handles that could not be opened, with the time of their next attempt.

    Args:
        transient: error types that a broker's failure causes until another one has taken over.

    Attributes:
        waits: of each handle. perf: each packet asks whether there are any.
    """

    def __init__(self, transient: Container[str] = (ErrorType.UNREACHABLE,)) -> None:
        self._transient = transient
        self.waits: dict[T, _Wait] = {}

    def __len__(self) -> int:
        return len(self.waits)

    def __contains__(self, handle: object) -> bool:
        return handle in self.waits

    def error(self, handle: T, now: float) -> TransportError | None:
        """Return why ``handle`` cannot be opened. None: it is not in backoff, or another broker may take over."""
        wait = self.waits.get(handle)
        if wait is None or (wait.error.type in self._transient and now - wait.since < RECONNECT_WAIT_S):
            return None
        return wait.error

    def record_failure(self, handle: T, error: TransportError, now: float) -> bool:
        """Record a failed attempt. Return whether it is the first in a row."""
        wait = self.waits.get(handle)
        if wait is None:
            self.waits[handle] = _Wait(now, error, now + FIRST_RETRY_S)
            return True
        is_taken_over = error.type in self._transient and now - wait.since < RECONNECT_WAIT_S
        is_brief = is_taken_over or error.type == ErrorType.UNREACHABLE
        wait.delay = FIRST_RETRY_S if is_brief else min(2 * wait.delay, LAST_RETRY_S)
        wait.due = now + wait.delay
        wait.error = error
        return False

    def forget(self, handle: T) -> bool:
        """Remove ``handle``, which is open or closed for good. Return whether it was in backoff."""
        return self.waits.pop(handle, None) is not None

    def due(self, now: float) -> list[T]:
        """Return the handles whose next attempt is due."""
        return [handle for handle, wait in self.waits.items() if wait.due <= now]


logger = logging.getLogger("dispatch.transport")

POLL_S = 0.25
"""Seconds between two checks of the connections."""
GRACE_S = 1.0
"""Seconds for pulsar-client to reconnect by itself (a topic that moves to another broker takes milliseconds)."""
LOST_S = 15.0
"""Seconds for which a topic without a connection is remembered: longer than a peer is given to answer."""
SILENT_S = 0.5
"""Seconds without a receipt of a publish before a handshake probes the broker, or without a reply of the owner of a topic
before it counts as lost: both take milliseconds."""
HUNG_S = 2.0
"""Seconds without a receipt or a reply before the brokers of a list are probed: the owner of the topic may hang."""
DEAF_AFTER = 5
"""Questions in a row without a reply, each 5 s, after which a subscription is opened again, though all brokers of the list
reply: longer than a topic takes to move to another owner."""
VERIFICATIONS = 4
"""Subscriptions of which it is asked at a time whether the broker still delivers to them, in each poll: 16 a second."""
VERIFY_S = 1.0
"""Seconds from a topic without a connection to the question whether the broker still delivers to each subscription."""
OPEN_S = 15.0
"""Seconds to open a topic of a broker that replies to handshakes: one that has just started, on a busy machine, opens its
first topic later than pulsar-client waits (5 s)."""
RELINK_PAUSE_S = 0.25
"""Seconds between new clients while a broker replies but opens no topic: with the poll, 0.5 s until the next one."""
PROBE_TIMEOUT_S = 1.0
"""Timeout in seconds of a handshake with a broker that was lost: a starting broker accepts connections some time before it
replies on them."""


class TopicHandle(Protocol):
    """A publisher or a subscription."""

    @property
    def topic(self) -> str: ...

    raw: Any
    """Its producer or consumer on the current client, or on a previous one."""
    link: PulsarClient | None
    """The client of the last opening."""

    async def open(self, link: PulsarClient, generation: int) -> Any:
        """Open its topic on ``link``.

        Raises:
            TransportError: it cannot be opened.
        """


class SupervisedConnection(Protocol):
    """The owner of the handles."""

    def handles(self) -> list[TopicHandle]:
        """Return all handles that should be open."""

    def is_open(self, handle: TopicHandle) -> bool:
        """Return whether ``handle`` is still one of them."""

    def find_unacknowledged(self) -> object | None:
        """Return a publish without a receipt, or a number of receipts while another one is due: equal until a receipt
        arrives. None if none is due."""

    def find_stuck(self) -> object | None:
        """Return the same for each topic alone: the publish without a receipt, although other topics have some."""

    def find_silent_topics(self, before: float) -> Iterable[str]:
        """Return the topics with a packet sent ``before`` that has no receipt."""

    def subscriptions(self) -> Iterable[TopicHandle]:
        """Return those of the handles that are subscriptions."""

    def exclusive_subscriptions(self) -> Iterable[TopicHandle]:
        """Return the exclusive subscriptions: all of non-persistent topics but those that services share."""

    async def release_on_demand(self, lost: Iterable[TopicHandle]) -> None:
        """Close those of ``lost`` that the next message opens again, without publishes in flight: they are no handles until
        then, so that topics of processes that have ended are not created again."""

    @property
    def is_limit_stale(self) -> bool:
        """Whether the broker's ``maxMessageSize`` has become lower since the last handshake."""
        ...

    def on_handshake(self, limit: int | None) -> None:
        """A handshake has succeeded; ``limit`` is the broker's ``maxMessageSize`` in bytes, None if it sent none."""

    def on_client_replaced(self) -> None:
        """The client was closed: publishes in flight on it get no receipt any more."""

    def on_reconnect(self) -> None:
        """The broker is in reach again."""

    def release_held(self) -> None:
        """Send what is held for topics that are connected again, and fail it for those that cannot be opened."""


class ConnectionSupervisor:
    """Supervises the client of one connection.

    Args:
        url, security: of the broker.
        owner: its handles are reopened on each new client.
    """

    def __init__(self, url: str, security: Security, owner: SupervisedConnection) -> None:
        self.url = url
        self._security = security
        self._owner = owner
        self._link: PulsarClient | None = None
        self._retired: list[PulsarClient] = []
        """Former clients whose broker does not reply to lookups any more, with topics on other brokers."""
        self._closing: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._retrying: dict[asyncio.Task[None], Collection[TopicHandle]] = {}
        self._up = asyncio.Event()
        self._lost: dict[TopicHandle, float] = {}
        """Handles that are lost while others are connected, and since when."""
        self._lost_at: dict[str, float] = {}
        """When topics were last seen without a connection, or a reply of their owner; those of the last seconds."""
        self._asking: dict[TopicHandle, asyncio.Task[None]] = {}
        """Subscriptions whose owners are being asked whether they reply."""
        self._turn: list[TopicHandle] = []
        """All subscriptions; those first that were asked longest ago."""
        self._unanswered: dict[TopicHandle, float] = {}
        """Since when the owners of subscriptions have not replied."""
        self._missed: dict[TopicHandle, int] = {}
        """Replies that are missing in a row."""
        self._unverified: dict[TopicHandle, float] = {}
        """Subscriptions that the broker may have lost when topics moved, and from when on it is asked."""
        self._verifications: dict[TopicHandle, asyncio.Task[None]] = {}
        self._ended = False
        self._unacknowledged: object | None = None
        self._unacknowledged_since = 0.0
        self._silent = False
        self._stuck: object | None = None
        self._stuck_since = 0.0
        self._has_alternatives = len(broker_urls(url)) > 1
        self._broker_url = url
        """The broker of the current client: one of ``url``."""
        self._is_in_doubt = False
        """An opening got no reply of that broker."""
        self.listeners: list[ConnectionListener] = []
        self.down_since: float | None = None
        """When the connection was lost; None while it is up."""
        self.back_at = -math.inf
        """When the connection last came back."""
        self._stalled_at = -math.inf
        """When a receipt was last due for :data:`SILENT_S` of a broker that answers handshakes."""
        self.generation = 0
        """The number of the current client."""
        # A broker that cannot ask the killed owner of a topic says that the client is not authorized (Pulsar 4.0.6).
        transient = (
            (ErrorType.UNREACHABLE, ErrorType.UNAUTHORIZED) if self._has_alternatives else (ErrorType.UNREACHABLE,)
        )
        self.backoff: ReopenBackoff[TopicHandle] = ReopenBackoff(transient)
        """Handles that cannot be opened while others can."""

    async def start(self) -> None:
        """Connect.

        Raises:
            TransportError: no broker replies, or it refuses the connection.
        """
        await self._find_broker(TIMEOUT_S)
        self._link = PulsarClient(self._broker_url, self._security)
        self._task = asyncio.create_task(self._supervise(), name="dispatch-pulsar-supervisor")

    async def _find_broker(self, timeout: float) -> None:
        """Choose the broker of the next client. pulsar-client would use each one of a list in turn, also one that hangs.

        Raises:
            TransportError: no broker replies within ``timeout`` seconds, or it refuses the connection.
        """
        found = await find_broker(self.url, lambda url: shake_hands(url, self._security, timeout))
        self._owner.on_handshake(found.limit)
        if found.url != self._broker_url:
            self._broker_url = found.url
            for host in found.unresolved:
                logger.warning("the name '%s' in %s cannot be resolved: using %s", host, self.url, found.url)

    async def _probe_broker(self) -> None:
        """Shake hands with the broker of the current client.

        Raises:
            TransportError: it does not reply, or refuses the connection.
        """
        self._owner.on_handshake(await shake_hands(self._broker_url, self._security, PROBE_TIMEOUT_S))

    @property
    def started(self) -> bool:
        """Whether a client exists."""
        return self._link is not None

    def abandon(self) -> None:
        """Open no more clients. The event loop of the tasks is closed, so they are not awaited."""
        self._ended = True

    async def end(self) -> None:
        """Stop supervising, and end the wait of callers for a connection."""
        self._ended = True
        self._up.set()
        await cancel_and_wait((self._task, *self._retrying, *self._asking.values(), *self._verifications.values()))

    async def close(self) -> None:
        """Close the client."""
        if self._link is not None:
            self._close_behind(self._link, *self._retired)
        await asyncio.gather(*self._closing)

    def close_now(self) -> None:
        """See :meth:`PulsarClient.close_now`."""
        if self._link is not None:
            for link in (self._link, *self._retired):
                link.close_now()

    def _close_behind(self, *links: PulsarClient) -> None:
        """Close clients without waiting: one with connections to a broker that hangs takes seconds."""
        for link in links:
            task = asyncio.get_running_loop().create_task(link.close(), name="dispatch-pulsar-close")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        self._retired = [link for link in self._retired if link not in links]

    async def open(self, make: Callable[[PulsarClient, int], Awaitable[Any]]) -> Any:
        """Return the result of ``make`` on the current client, or on its successor if it is replaced meanwhile.

        Raises:
            TransportError: closed, out of reach, or it cannot be opened.
        """
        last = asyncio.get_running_loop().time() + OPEN_S - OPERATION_TIMEOUT_S
        while True:
            if self._ended or self._link is None:
                raise closed()
            if self.down_since is not None:
                raise unreachable(self.url)
            generation, link = self.generation, self._link
            try:
                opened = await make(link, generation)
            except TransportError as error:
                if link is self._link:
                    await self._check_busy(error, last)
                    continue
                if self.down_since is not None:  # the new client is being made: seconds, or it fails
                    await wait_set(self._up, OPERATION_TIMEOUT_S)
                continue
            if generation == self.generation and not self._ended:
                return opened
            await close_opened(opened)

    async def _check_busy(self, error: TransportError, last: float) -> None:
        """Return if an opening that failed with ``error`` is to be tried again: the broker replies, it is not later than
        ``last``, and no other broker may take the topic over: what waits for the topic must know soon that it is not sent.

        Raises:
            TransportError: ``error``; or that the broker replies and opens no topic.
        """
        if error.type != ErrorType.UNREACHABLE:
            raise error
        self._is_in_doubt = True
        if self._has_alternatives:
            raise error
        try:
            await self._probe_broker()
        except Exception:  # of any kind: the opening is what failed
            raise error from None
        if asyncio.get_running_loop().time() > last:
            raise slow_to_open(self.url, OPEN_S)
        await asyncio.sleep(POLL_S)

    async def await_connection(self, deadline: float) -> bool:
        """See :class:`dispatch.transports.base.Transport`."""
        if self.down_since is not None and not self._ended:
            remaining = min(deadline, self.down_since + RECONNECT_WAIT_S) - asyncio.get_running_loop().time()
            if remaining > 0:
                await wait_set(self._up, remaining)
        return self.down_since is None and not self._ended

    def was_disconnected_since(self, instant: float, topics: Collection[str] = ()) -> bool:
        """See :class:`dispatch.transports.base.Transport`. A broker that hangs is detected by missing receipts."""
        if self.down_since is not None or self.back_at >= instant:
            return True
        if topics and self._stalled_at >= instant:
            return True  # one late receipt is no outage, but peers were not heard meanwhile
        for topic in topics:
            if self._lost_at.get(topic, -math.inf) >= instant:
                return True
        return self._silent_for(asyncio.get_running_loop().time()) >= SILENT_S

    def replies(self, subscription: TopicHandle) -> bool:
        """Return whether the owner of the topic of ``subscription`` replies, as far as is known; ask it."""
        self._ask(subscription)
        since = self._unanswered.get(subscription, math.inf)
        return asyncio.get_running_loop().time() - since < SILENT_S

    def _ask(self, subscription: TopicHandle) -> None:
        link = subscription.link
        if self._ended or link is None or subscription in self._asking:
            return
        loop = asyncio.get_running_loop()
        self._unanswered.setdefault(subscription, loop.time())
        self._asking[subscription] = loop.create_task(self._await_reply(link, subscription), name="dispatch-pulsar-ask")

    async def _await_reply(self, link: PulsarClient, subscription: TopicHandle) -> None:
        raw = subscription.raw
        try:
            if await link.replies(raw) or raw is not subscription.raw:
                self._unanswered.pop(subscription, None)
                self._missed.pop(subscription, None)
                return
            self._missed[subscription] = self._missed.get(subscription, 0) + 1
            if self._missed[subscription] >= DEAF_AFTER:
                logger.warning("%s: %s", subscription.topic, DEAF)
                abandon(raw)  # the next check finds it without a connection
        finally:
            del self._asking[subscription]

    def _ask_owners(self, connected: Collection[TopicHandle]) -> None:
        """Ask those again that have not replied; and of a list of brokers, the owners of all subscriptions, in turn."""
        for each in list(self._unanswered):
            if each in connected:
                self._ask(each)
            else:
                del self._unanswered[each]
                self._missed.pop(each, None)
        if not self._has_alternatives:
            return
        known = set(self._owner.subscriptions())
        turn = [each for each in self._turn if each in known]
        turn += known.difference(turn)
        # One in each poll: 0.4 % of a processor. One topic of a broker that hangs is enough to find it.
        next_one = next((each for each in turn if each in connected and each not in self._asking), None)
        if next_one is not None:
            turn.remove(next_one)
            turn.append(next_one)
            self._ask(next_one)
        self._turn = turn

    def _verify(self, connected: Collection[TopicHandle], now: float) -> None:
        """Ask the broker, after topics were without a connection, whether it still delivers to each subscription, a few at
        a time: also to those that were connected again between two polls."""
        exclusive = set(self._owner.exclusive_subscriptions())
        self._unverified = {each: due for each, due in self._unverified.items() if each in exclusive}
        if any(now - at < POLL_S for at in self._lost_at.values()):
            self._unverified = dict.fromkeys(exclusive, now + VERIFY_S) | self._unverified
        for each, due in self._unverified.items():
            if len(self._verifications) >= VERIFICATIONS:
                return
            link = each.link
            if due <= now and each in connected and each not in self._verifications and link is not None:
                self._verifications[each] = asyncio.create_task(
                    self._await_verification(link, each), name="dispatch-pulsar-verify"
                )

    async def _await_verification(self, link: PulsarClient, subscription: TopicHandle) -> None:
        raw = subscription.raw
        try:
            is_attached = await link.is_attached(raw)
        finally:
            del self._verifications[subscription]
        if is_attached is None:
            self._unverified[subscription] = asyncio.get_running_loop().time() + VERIFY_S
            return
        self._unverified.pop(subscription, None)
        if not is_attached:
            logger.warning("%s: %s", subscription.topic, DEAF)
            await close_opened(raw)  # the next checks find it without a connection

    def _silent_for(self, now: float) -> float:
        """Return for how many seconds a publish has been without its receipt."""
        publish = self._owner.find_unacknowledged()
        if publish is None or publish != self._unacknowledged:
            if self._unacknowledged is not None and now - self._unacknowledged_since >= SILENT_S:
                self._stalled_at = now
            self._unacknowledged, self._unacknowledged_since = publish, now
        return now - self._unacknowledged_since

    async def _is_silent(self) -> bool:
        """Return whether the broker hangs while its connections are open, which pulsar-client detects after 30 to 60 s.
        After that only a handshake shows that it is back: pulsar-client fails publishes without a receipt after 10 s."""
        if not self._silent and self._silent_for(asyncio.get_running_loop().time()) < SILENT_S:
            return False
        try:
            await self._probe_broker()
        except Exception as error:  # of any kind: supervision must continue
            logger.debug("no answer: %s: %s", type(error).__name__, error)
            self._silent = True
            return True
        self._silent = False
        self._unacknowledged = None  # slow, but alive: its receipt gets another SILENT_S
        self._stalled_at = asyncio.get_running_loop().time()
        return False

    async def _supervise(self) -> None:
        is_reported = False
        while True:
            await asyncio.sleep(POLL_S)
            try:
                await self._check(asyncio.get_running_loop())
            except Exception:  # of any kind: without a supervisor the connection would never come back
                if not is_reported:
                    logger.exception("a check of the connection to %s failed; it is checked again", self.url)
                is_reported = True

    async def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._owner.is_limit_stale:
            with contextlib.suppress(Exception):  # of any kind, as below; the next check asks again
                await self._probe_broker()
        handles = [handle for handle in self._owner.handles() if handle not in self.backoff]
        lost = [handle for handle in handles if not handle.raw.is_connected()]
        self._record_lost(lost, loop.time())
        connected = set(handles).difference(lost)
        self._ask_owners(connected)
        self._verify(connected, loop.time())
        self._owner.release_held()
        if self.down_since is None and (not lost or len(lost) < len(handles)):
            await self._follow_broker(lost)
        silent = not lost and await self._is_silent()
        if handles and not (lost or silent) and self.down_since is not None:
            self._record_reconnect()
        if self.down_since is None and not silent and (not lost or len(lost) < len(handles)):
            self._reopen_lost(lost, loop.time())  # the broker replies: other topics are not affected
            if self._has_alternatives and await self._owner_hangs(loop.time()):
                await self._try_relink()
            return
        self._lost.clear()
        if self.down_since is None:
            self.down_since = self._unacknowledged_since if silent else loop.time()
            self._up.clear()
            logger.warning("connection to %s lost", self.url)
            self._notify(False, 0.0)
        if loop.time() - self.down_since >= GRACE_S:
            await self._owner.release_on_demand(lost)
            if await self._is_back(silent):
                await self._try_relink()

    def _record_lost(self, lost: list[TopicHandle], now: float) -> None:
        if self._lost_at:
            self._lost_at = {topic: at for topic, at in self._lost_at.items() if now - at < LOST_S}
        self._lost_at |= dict.fromkeys(self._owner.find_silent_topics(now - SILENT_S), now)
        for handle in lost:
            self._lost_at[handle.topic] = now
        for handle, since in self._unanswered.items():
            if now - since >= SILENT_S:
                self._lost_at[handle.topic] = now

    def record_reopened(self, topic: str) -> None:
        """A topic was without a connection until now: its peers may not be back there yet."""
        self._lost_at[topic] = asyncio.get_running_loop().time()

    async def _follow_broker(self, lost: Collection[TopicHandle]) -> None:
        """Ask another broker of the list for the owners of topics if that of the current client does not reply any more.
        Topics on further brokers stay connected, on the former client."""
        self._close_behind(
            *(link for link in self._retired if all(it.link is not link for it in self._owner.handles()))
        )
        self._is_in_doubt |= any(handle not in self._lost for handle in lost)
        if not (self._is_in_doubt and self._has_alternatives):
            return
        self._is_in_doubt = False
        try:
            await self._probe_broker()
        except Exception as error:  # of any kind, as below
            logger.debug("%s does not reply: %s: %s", self._broker_url, type(error).__name__, error)
            if await self._is_back(silent=True):
                former, self._link = self._link, PulsarClient(self._broker_url, self._security)
                if former is not None:
                    self._retired.append(former)
                    former.fail_openings(unreachable(self.url))
            else:
                self._is_in_doubt = True

    async def _owner_hangs(self, now: float) -> bool:
        """Return whether the owner of a topic without receipts or replies hangs, which pulsar-client detects after 30 to
        60 s: a broker of the list does not reply. The next client asks one that does."""
        stuck = self._owner.find_stuck()
        if stuck is None or stuck != self._stuck:
            self._stuck, self._stuck_since = stuck, now
        if now - min((self._stuck_since, *self._unanswered.values())) < HUNG_S:
            return False
        self._stuck_since = now + HUNG_S  # another broker takes over meanwhile
        self._unanswered = dict.fromkeys(self._unanswered, now + HUNG_S)
        urls = broker_urls(self.url)
        probes = (shake_hands(url, self._security, TIMEOUT_S) for url in urls)
        replies = await asyncio.gather(*probes, return_exceptions=True)
        silent = [url for url, reply in zip(urls, replies, strict=True) if isinstance(reply, TransportError)]
        if not silent:
            return False
        if self._broker_url in silent and not await self._is_back(silent=True):
            return False
        logger.warning("%s: no reply; all topics are opened again, on their next owners", ", ".join(silent))
        return True

    async def _is_back(self, silent: bool) -> bool:
        """Return whether a broker replies that requires a new client: any, or another one than the current one if that is
        ``silent`` while its connections are open."""
        if silent and not self._has_alternatives:
            return False
        previous = self._broker_url
        try:
            await self._find_broker(PROBE_TIMEOUT_S)
        except Exception as error:  # of any kind: supervision must continue
            logger.debug("not back yet: %s: %s", type(error).__name__, error)
            return False
        return not silent or self._broker_url != previous

    def _record_reconnect(self) -> None:
        self.back_at = asyncio.get_running_loop().time()
        lost_at, self.down_since = self.down_since, None
        self._up.set()
        self._owner.on_reconnect()
        if lost_at is not None:
            logger.warning("connected to %s again after %.1f s", self.url, self.back_at - lost_at)
            self._notify(True, self.back_at - lost_at)

    def _notify(self, is_connected: bool, seconds: float) -> None:
        for listener in self.listeners:
            with contextlib.suppress(Exception):  # supervision must continue
                listener(is_connected, seconds)

    async def _try_relink(self) -> None:
        try:
            await self._relink()
        except Exception as error:  # of any kind: without a supervisor the connection would never come back
            logger.debug("nothing can be opened yet: %s: %s", type(error).__name__, error)
            await asyncio.sleep(RELINK_PAUSE_S)

    async def _relink(self) -> None:
        self.generation += 1
        if self._link is not None:
            self._link.fail_openings(closed())
            self._close_behind(self._link, *self._retired)
        self._owner.on_client_replaced()
        self._silent, self._unacknowledged = False, None
        self._unanswered.clear()
        self._missed.clear()
        self._link = PulsarClient(self._broker_url, self._security)
        handles = self._owner.handles()
        errors = await asyncio.gather(*(self._reopen(handle) for handle in handles))
        if all(errors) and any(error is not None and error.type == ErrorType.UNREACHABLE for error in errors):
            raise unreachable(self.url)  # the connection failed, not a topic
        self._set_aside(handles, errors)
        self._record_reconnect()

    async def _reopen(self, handle: TopicHandle) -> TransportError | None:
        """Open the topic of ``handle`` on the current client. Return the error if it cannot be opened."""
        assert self._link is not None
        generation = self.generation
        try:
            raw = await handle.open(self._link, generation)
        except TransportError as error:
            if generation != self.generation:
                return None
            self._is_in_doubt |= error.type == ErrorType.UNREACHABLE
            return error
        if generation != self.generation or not self._owner.is_open(handle):
            # Of a previous client, or closed meanwhile: it would consume messages without a handler.
            await close_opened(raw)
            return None
        handle.raw = raw
        self._unanswered.pop(handle, None)
        self._missed.pop(handle, None)
        self.record_reopened(handle.topic)
        return None

    def _set_aside(
        self,
        handles: Sequence[TopicHandle],
        errors: Sequence[TransportError | None],
        *,
        again: Container[TopicHandle] = (),
    ) -> None:
        """Retry those of ``handles`` that have an error in the background, and log in one line which are new among them.
        Those in ``again`` are in backoff already, but were open until now."""
        opened, failed = [], []
        for handle, error in zip(handles, errors, strict=True):
            if error is None or not self._owner.is_open(handle):
                if self.backoff.forget(handle):
                    opened.append(handle)
            elif self.backoff.record_failure(handle, error, asyncio.get_running_loop().time()) or handle in again:
                failed.append((handle, error))
        if len(opened) == 1:
            logger.info("%s is open again", opened[0].topic)
        elif opened:
            logger.info("%d topics are open again", len(opened))
        if len(failed) == 1:
            ((handle, error),) = failed
            logger.warning("%s cannot be opened; retrying in the background: %s", handle.topic, error.message)
        elif failed:
            reasons = dict.fromkeys(describe_refusal(error, handle.topic) for handle, error in failed)
            logger.warning(
                "%d topics cannot be opened (%s); retrying in the background. `dispatch doctor` finds the cause.",
                len(failed),
                ", ".join(reasons),
            )

    def _reopen_lost(self, lost: list[TopicHandle], now: float) -> None:
        """Reopen handles that were lost alone and did not reconnect, and those in backoff that are due."""
        self._lost = {handle: self._lost.get(handle, now) for handle in lost}
        retrying = {handle for handles in self._retrying.values() for handle in handles}
        gone = [each for each, since in self._lost.items() if now - since >= GRACE_S and each not in retrying]
        due = [handle for handle in self.backoff.due(now) if handle not in retrying]
        if gone or due:
            task = asyncio.create_task(self._retry(gone, due), name="dispatch-pulsar-retry")
            self._retrying[task] = {*gone, *due}
            task.add_done_callback(self._retrying.pop)

    async def _retry(self, gone: list[TopicHandle], due: list[TopicHandle]) -> None:
        generation, now = self.generation, asyncio.get_running_loop().time()
        await self._owner.release_on_demand(gone)
        gone = [handle for handle in gone if self._owner.is_open(handle)]
        for handle in gone:  # no publish may use a handle that is being closed
            self.backoff.record_failure(handle, unreachable(self.url), now)
        await asyncio.gather(*(close_opened(handle.raw) for handle in gone))
        handles = [*gone, *due]
        errors = await asyncio.gather(*(self._reopen(handle) for handle in handles))
        if generation == self.generation:
            self._set_aside(handles, errors, again=gone)
            self._owner.release_held()
