"""The instances of a service that a dispatcher knows by name: those with an open session."""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import NamedTuple

from dispatch.errors import TransportError
from dispatch.messaging.endpoint import Endpoint
from dispatch.messaging.plain import Correlator
from dispatch.messaging.request import Request
from dispatch.messaging.sessions import SessionExchange
from dispatch.messaging.wire import Property
from dispatch.protocol.session import CallerSession
from dispatch.transports import Publisher, TopicPublisher

MAX_INSTANCES = 256
"""Known instances of one service at most; further ones receive requests from the shared topic only."""


class Instance:
    """One service instance, and the session with it (:class:`~dispatch.messaging.request.Executor`).

    Args:
        session: open; it has the instance's name and incarnation.
        endpoint: sends the packets of the session.
        topic: of the instance alone.
        exchange: the requests in sessions.

    Attributes:
        is_loss_counted: a request failed because this incarnation ended: further failures for that reason count as the
            same one.
    """

    __slots__ = (
        "_exchange",
        "_request_prefix",
        "endpoint",
        "incarnation",
        "is_loss_counted",
        "name",
        "session",
        "topic",
    )

    def __init__(self, session: CallerSession, endpoint: Endpoint, topic: str, exchange: SessionExchange) -> None:
        self._exchange = exchange
        self.session = session
        self.endpoint = endpoint
        self.topic = topic
        self.name = session.peer_name
        self.incarnation = session.peer_incarnation
        self.is_loss_counted = False
        self._request_prefix = f"{session.id:016x}-"

    @property
    def next_request_id(self) -> str:
        """The id of the next request, as the instance names it, too."""
        return f"{self._request_prefix}{self.session.next_stream}"

    def send(self, request: Request) -> None:
        """Send ``request`` at the end of this turn of the loop; it may be settled at once."""
        if self._exchange.send(request, self.session, self):
            self.endpoint.wake(self.session)

    def cancel(self, request: Request) -> bool:
        """See :class:`~dispatch.messaging.request.Executor`."""
        may_have_run = self.session.cancel(request)
        self.endpoint.wake(self.session)
        return may_have_run

    def on_settled(self, _request: Request) -> None:
        """See :class:`~dispatch.messaging.request.Executor`."""
        self._exchange.pending -= 1

    def on_read(self, request: Request, size: int) -> None:
        """Let the instance send as many bytes of chunks as were read."""
        if self.session.consume_chunks(request, size):
            self.endpoint.wake(self.session)

    @property
    def in_flight(self) -> int:
        """Pending requests of this dispatcher."""
        return len(self.session.waiting)

    @property
    def is_suspect(self) -> bool:
        """Whether the instance has not acknowledged several probes: others are preferred."""
        return self.session.is_suspect


class Instances:
    """The known instances of one service.

    Attributes:
        version: incremented with each change.
    """

    def __init__(self) -> None:
        self._known: dict[str, Instance] = {}
        self.version = 0

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[Instance]:
        return iter(tuple(self._known.values()))

    @property
    def has_ready(self) -> bool:
        """Whether an instance can be reached, as far as is known."""
        for each in self._known.values():  # noqa: SIM110 # perf: no generator; each request asks, and most end at the first
            if not each.session.is_suspect:
                return True
        return False

    def get(self, name: str) -> Instance | None:
        """Return the instance with this name; None if unknown."""
        return self._known.get(name)

    def add(self, instance: Instance) -> Instance | None:
        """Add ``instance`` and return its previous incarnation, if that was known."""
        former = self._known.pop(instance.name, None)
        self._known[instance.name] = instance
        self.version += 1
        return former

    def remove(self, instance: Instance) -> bool:
        """Remove ``instance``. Return whether it was known."""
        if self._known.get(instance.name) is not instance:
            return False
        del self._known[instance.name]
        self.version += 1
        return True


# The number of calls or requests in flight, and their end.


class InFlight:
    """Counts calls or requests in flight. A reentrant context manager.

    Attributes:
        count: number in flight.
    """

    __slots__ = ("_callbacks", "count")

    def __init__(self) -> None:
        self.count = 0
        self._callbacks: list[Callable[[], object]] = []

    def __enter__(self) -> None:
        self.count += 1

    def end(self, *_exc: object) -> None:
        """Count the end of one."""
        self.count -= 1
        if not self.count and self._callbacks:
            callbacks, self._callbacks = self._callbacks, []
            for callback in callbacks:
                callback()

    __exit__ = end

    def await_idle(self, callback: Callable[[], object]) -> bool:
        """Return False if nothing is in flight. Otherwise return True, and call ``callback`` once when nothing is."""
        if not self.count:
            return False
        self._callbacks.append(callback)
        return True

    async def wait_idle(self) -> None:
        """Wait until nothing is in flight."""
        while self.count:
            idle = asyncio.Event()
            self._callbacks.append(idle.set)
            await idle.wait()


# Channel: what is open to call one service over one pair of topics.


GONE_S = 30.0
"""Seconds without any instance after which a service that had some counts as unknown again: a third-party service may have
taken its place. The default timeout of a call."""
DISCOVERY_S = 1.0
"""Seconds that a call waits for the first instance of an unknown service: four hellos."""
HELLO_WAIT_S = 0.1
"""The same for a repeatable call. Third-party services never announce themselves."""

MAX_UNANSWERED = 32
"""Requests on the shared topic before its first answer: half of the default bulkhead. Further calls wait: there may be no
service, and an instance that announces itself later finds places for their calls."""


class Channel:
    """Request publisher, reply topic and known instances of one service over one pair of topics.

    Args:
        request_queue: the topic that all instances share.
        publisher: to it, for the plain exchange.
        reply_topic: the dispatcher's own.
        endpoint: of the sessions with instances, whose packets arrive on ``reply_topic``; None on persistent topics, which
            have the plain exchange only.
        exchange: the plain exchange.

    Attributes:
        topic: the publisher to the request topic itself, which knows why it cannot be opened; None: not known.
        instances: those with an open session.
        requests: in flight; the topics are closed after the last one.
        hello: publisher to the topic on which instances receive hellos; None if there is none.
        hello_at: when the next hello is due.
        met: set while an instance is known.
        had_instances: an instance has been known.
        met_at: when the first instance became known, while none was.
        joined_at: when the last instance became known.
        asked_since: when the channel began to look for instances: when it was opened, or its last instance was lost.
        gathers_until: instances have just announced themselves, and their handshakes are under way: calls wait for these, so
            that the first instance does not get all of them.
        answered_at: when a third-party service last answered over the shared topic.
        is_missing_reported: the log says that no instance has announced itself.
        timers: by their purpose, one of each; :meth:`close` cancels them.
    """

    __slots__ = (
        "_turns",
        "answered_at",
        "asked_since",
        "endpoint",
        "exchange",
        "gathers_until",
        "had_instances",
        "hello",
        "hello_at",
        "instances",
        "is_missing_reported",
        "joined_at",
        "met",
        "met_at",
        "publisher",
        "reply_topic",
        "request_queue",
        "requests",
        "timers",
        "topic",
    )

    def __init__(
        self,
        request_queue: str,
        publisher: Publisher,
        reply_topic: str,
        endpoint: Endpoint | None,
        exchange: Correlator,
        asked_since: float = -math.inf,
    ) -> None:
        self.request_queue = request_queue
        self.publisher = publisher
        self.reply_topic = reply_topic
        self.topic: TopicPublisher | None = None
        self.endpoint = endpoint
        self.exchange = exchange
        self.instances = Instances()
        self.requests = InFlight()
        self.hello: Publisher | None = None
        self.hello_at = 0.0
        self.met = asyncio.Event()
        self.had_instances = False
        self.met_at = self.joined_at = -math.inf
        self.asked_since = asked_since
        self.gathers_until = 0.0
        self.answered_at = -math.inf
        self.is_missing_reported = False
        self.timers: dict[str, asyncio.TimerHandle] = {}
        self._turns: dict[asyncio.Future[None], None] = {}

    @property
    def is_known(self) -> bool:
        """Whether an instance has announced itself, or a third-party service has answered, at any time."""
        return self.hello is None or self.had_instances or self.answered_at > -math.inf

    @property
    def opening_error(self) -> TransportError | None:
        """Why the request topic cannot be opened at present; None: it is open."""
        return None if self.topic is None else self.topic.opening_error

    @property
    def waiting(self) -> int:
        """Calls that wait for an instance."""
        return len(self._turns)

    def can_send(self, now: float, *, needs_instance: bool, repeatable: bool) -> bool:
        """Return whether a request can be sent now.

        While no instance can be reached, calls wait. An instance of dispatch's own that is not known yet would not get what
        is sent to the shared topic meanwhile, and a suspected one might never get it. Only where third-party services may
        listen is a request sent to the shared topic after some time.

        Args:
            needs_instance: the request may not be sent to the shared topic.
            repeatable: it does no harm there: an instance that announces itself later gets it, too.
        """
        if now < self.gathers_until:
            return False
        if len(self.instances):
            return self.instances.has_ready
        if self.hello is None or (now < self.answered_at + GONE_S and not needs_instance):
            return True
        if needs_instance or (self.had_instances and now < self.asked_since + GONE_S):
            return False
        if self.requests.count >= MAX_UNANSWERED:
            return False
        return now >= self.asked_since + (HELLO_WAIT_S if repeatable else DISCOVERY_S)

    def send(self, request: Request) -> None:
        """Publish ``request`` to the topic that all instances share; it may be settled at once."""
        exchange = self.exchange
        # An execution with a key goes on when its attempt ends: the next attempt gets its reply.
        deadline = request.deadline if request.key is None or request.run_until is None else request.run_until
        properties = {
            Property.ID: request.id,
            Property.REPLY_TO: self.reply_topic,
            Property.SESSION: exchange.session.secret,
            Property.REMAINING_MS: str(max(1, int((deadline - exchange.now()) * 1000))),
            Property.LARGEST: str(request.max_reply_bytes),
            **request.properties,
        }
        if request.key is not None:
            properties[Property.IDEMPOTENCY_KEY] = request.key
        if request.number > 1:
            properties[Property.ATTEMPT] = str(request.number)
        if request.is_redeliverable:
            properties[Property.REPEATABLE] = "1"
        exchange.send(request, self.publisher, properties, self)

    def record_answer(self, now: float) -> None:
        """Record that a third-party service has answered over the shared topic."""
        is_first, self.answered_at = self.answered_at == -math.inf, now
        if is_first:
            self.next_turn()

    def create_turn(self) -> asyncio.Future[None]:
        """Return a future that is done at the next change of what can be reached. :meth:`leave` ends the wait."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns[turn] = None
        return turn

    def leave(self, turn: asyncio.Future[None]) -> None:
        """Wait no longer."""
        self._turns.pop(turn, None)

    def call_later(self, purpose: str, wait: float, callback: Callable[..., object], *arguments: object) -> None:
        """Call ``callback`` in ``wait`` seconds, unless the channel is closed or the timer replaced before."""
        former = self.timers.get(purpose)
        if former is not None:
            former.cancel()
        self.timers[purpose] = asyncio.get_running_loop().call_later(wait, callback, *arguments)

    def close(self) -> None:
        """Cancel the timers, and let waiting calls check again."""
        for timer in self.timers.values():
            timer.cancel()
        self.timers.clear()
        self.next_turn()

    def next_turn(self) -> None:
        """Let waiting calls check again."""
        turns, self._turns = self._turns, {}
        for turn in turns:
            if not turn.done():
                turn.set_result(None)


# Affinity of idempotency keys: each instance remembers its own keys, so a key goes to the instance that may have executed
# it, as long as that instance is known.


MAX_KEYS = 10_000
"""Keys remembered, the latest ones; an instance remembers as many."""


class Holder(NamedTuple):
    """One incarnation of an instance; a later one has no history."""

    name: str
    incarnation: str


class KeyHolders:
    """The holders of the keys of one service. Bounded."""

    def __init__(self) -> None:
        self._holders: OrderedDict[tuple[str, str], Holder] = OrderedDict()

    def __len__(self) -> int:
        return len(self._holders)

    def get(self, user: str, key: str) -> Holder | None:
        """Return the instance that may have executed ``key`` for ``user``; None if unknown."""
        return self._holders.get((user, key))

    def claim(self, user: str, key: str, holder: Holder) -> Claim:
        """Record that a request with ``key`` goes to ``holder`` now."""
        return Claim(self, user, key, self.put(user, key, holder), holder)

    def put(self, user: str, key: str, holder: Holder | None) -> Holder | None:
        """Set or remove the holder of ``key``. Return the previous one."""
        former = self._holders.pop((user, key), None)
        if holder is not None:
            self._holders[user, key] = holder
            if len(self._holders) > MAX_KEYS:
                self._holders.popitem(last=False)
        return former


class Claim:
    """The change of one request to the holders; returned by :meth:`KeyHolders.claim`."""

    __slots__ = ("_former", "_holders", "_key", "_user", "holder")

    def __init__(self, holders: KeyHolders, user: str, key: str, former: Holder | None, holder: Holder) -> None:
        self._holders = holders
        self._user = user
        self._key = key
        self._former = former
        self.holder = holder

    def undo(self) -> None:
        """Restore the previous holder: the request was not executed. Keeps a holder that another request has set since."""
        if self._holders.get(self._user, self._key) is self.holder:
            self._holders.put(self._user, self._key, self._former)
