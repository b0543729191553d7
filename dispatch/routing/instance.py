"""What executes the requests of a service, and how it is reached: instances and channels."""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import count
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from dispatch._internal import remember
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


SHARED = "(shared)"
"""The name of a service's own topic among its instances: names of instances have no parentheses."""


class Instance(Protocol):
    """What a request can be sent to: a process that serves the tool, the topic that such processes share, or what executes
    the tool in this process.

    Attributes:
        name: unique among the instances of its service.
        incarnation: of the process; ``""``: it does not restart.
        version: that it declares itself; None: the catalogue's.
        topic: of its requests; ``""``: there is none.
        is_named: it is one executor, rather than any consumer of a topic.
        has_key_memory: it executes a request with an idempotency key once.
        is_loss_counted: a request failed because this incarnation ended: further failures for that reason count as the
            same one.
        next_request_id: the id of the next request, as the instance names it, too; ``""``: any.
        is_suspect: it can probably not be reached: others are preferred.
    """

    name: str
    incarnation: str
    topic: str
    is_named: bool
    has_key_memory: bool
    is_loss_counted: bool

    @property
    def version(self) -> str | None: ...
    @property
    def next_request_id(self) -> str: ...
    @property
    def is_suspect(self) -> bool: ...

    def send(self, request: Request, attempt: Any) -> None:
        """Send ``request``, which may be settled at once. ``attempt`` is the one that it belongs to."""

    def find_requests(self) -> Iterable[Request]:
        """Return the requests that wait for its replies."""


def suspend_places(instance: Instance) -> None:
    """Let other calls have the places of the requests at an instance that cannot be reached, or is not well."""
    for request in instance.find_requests():
        if request.place is not None:
            request.place.suspend()


def resume_places(instance: Instance) -> None:
    """Count the requests at an instance again."""
    for request in instance.find_requests():
        if request.place is not None:
            request.place.resume()


class SessionInstance:
    """One service instance, and the session with it (:class:`Instance`).

    Args:
        session: open; it has the instance's name and incarnation.
        endpoint: sends the packets of the session.
        topic: of the instance alone.
        exchange: the requests in sessions.

    """

    is_named = has_key_memory = True
    version = None

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
        """See :class:`Instance`."""
        return f"{self._request_prefix}{self.session.next_number}"

    def send(self, request: Request, _attempt: object = None) -> None:
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

    def find_requests(self) -> Iterable[Request]:
        """See :class:`Instance`."""
        return [each for each in self.session.waiting.values() if isinstance(each, Request)]

    @property
    def in_flight(self) -> int:
        """Pending requests of this dispatcher."""
        return len(self.session.waiting)

    @property
    def is_suspect(self) -> bool:
        """Whether the instance has not acknowledged several probes: others are preferred."""
        return self.session.is_suspect


class SharedTopic:
    """The topic that all instances of a service consume, for the plain exchange (:class:`Instance`).

    Args:
        topic: the request topic.
        publisher: to it.
        reply_topic: the dispatcher's own.
        exchange: the plain exchange.
    """

    name = SHARED
    incarnation = next_request_id = ""
    version = None
    is_named = has_key_memory = is_suspect = is_loss_counted = False

    def __init__(self, topic: str, publisher: Publisher, reply_topic: str, exchange: Correlator) -> None:
        self.topic = topic
        self._publisher = publisher
        self._reply_topic = reply_topic
        self._exchange = exchange

    def send(self, request: Request, _attempt: object = None) -> None:
        """Publish ``request``; it may be settled at once."""
        exchange = self._exchange
        deadline = request.deadline
        if request.run_until is not None:
            # An execution with a key goes on when its attempt ends: the next attempt gets its reply. A stream may be longer
            # than the limit of its first chunk, and an attempt than its own.
            deadline = request.run_until
        properties = {
            Property.ID: request.id,
            Property.REPLY_TO: self._reply_topic,
            Property.SECRET: exchange.identity.secret,
            Property.REMAINING_MS: str(max(1, int((deadline - exchange.now()) * 1000))),
            Property.LARGEST: str(request.max_reply_bytes),
            **request.properties,
        }
        if request.key is not None:
            properties[Property.IDEMPOTENCY_KEY] = request.key
        if request.attempt > 1:
            properties[Property.ATTEMPT] = str(request.attempt)
        if request.is_redeliverable:
            properties[Property.REPEATABLE] = "1"
        exchange.send(request, self._publisher, properties, self)

    def find_requests(self) -> Iterable[Request]:
        """See :class:`Instance`."""
        return self._exchange.find_requests(self)


InstanceT = TypeVar("InstanceT", bound=Instance)

_changes = count(1)


class Instances(Generic[InstanceT]):
    """The known instances of one service.

    Attributes:
        version: another number after each change, larger than any before.
        shares: factors of the weights of instances, by name, where they are not 1; 0: no calls while there are others.
        on_renew: called by :meth:`renew`.
    """

    def __init__(self, *instances: InstanceT) -> None:
        self._known: dict[str, InstanceT] = {each.name: each for each in instances}
        self.shares: Mapping[str, float] = {}
        self.version = next(_changes)
        self.on_renew: Callable[[], object] = lambda: None

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[InstanceT]:
        return iter(tuple(self._known.values()))

    @property
    def has_ready(self) -> bool:
        """Whether an instance can be reached, as far as is known."""
        for each in self._known.values():  # noqa: SIM110 # perf: no generator; each request asks, and most end at the first
            if not each.is_suspect:
                return True
        return False

    def get(self, name: str) -> InstanceT | None:
        """Return the instance with this name; None if unknown."""
        return self._known.get(name)

    def add(self, instance: InstanceT) -> InstanceT | None:
        """Add ``instance`` and return its previous incarnation, if that was known."""
        former = self._known.pop(instance.name, None)
        self._known[instance.name] = instance
        self.version = next(_changes)
        return former

    def share(self, shares: Mapping[str, float]) -> None:
        """Replace the shares."""
        self.shares = shares
        self.version = next(_changes)

    def renew(self) -> None:
        """The version of an instance has changed, or whether it can be reached."""
        self.version = next(_changes)
        self.on_renew()

    def remove(self, instance: InstanceT) -> bool:
        """Remove ``instance``. Return whether it was known."""
        if self._known.get(instance.name) is not instance:
            return False
        del self._known[instance.name]
        self.version = next(_changes)
        return True


# The number of calls or requests in flight, and their end.


class InFlight:
    """Counts calls or requests in flight. A reentrant context manager.

    Attributes:
        count: number in flight.
    """

    def __init__(self) -> None:
        self.count = 0
        self._callbacks: list[Callable[[], object]] = []

    def __enter__(self) -> None:
        self.count += 1

    def __exit__(self, *_exc: object) -> None:
        self.count -= 1
        if not self.count:
            self.on_idle()

    def on_idle(self) -> None:
        """Nothing is in flight any more. perf: what counts by itself calls it where ``count`` is 0 again."""
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

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

MAX_FIRST = 4
"""Requests at once while further instances may be about to announce themselves: a few calls at once do not wait."""
MAX_UNANSWERED = 32
"""Requests on the shared topic before its first answer: half of the default bulkhead. Further calls wait: there may be no
service, and an instance that announces itself later finds places for their calls."""


class Connection(Protocol):
    """The properties of a :class:`~dispatch.transports.Transport` that matter to calls over it."""

    @property
    def url(self) -> str: ...
    @property
    def connected(self) -> bool: ...
    @property
    def max_message_bytes(self) -> float: ...
    async def await_connection(self, deadline: float) -> bool: ...
    def was_disconnected_since(self, instant: float, topics: Collection[str] = ()) -> bool: ...
    def has_subscriber(self, topic: str) -> bool: ...


class _InProcess:
    """The connection with what this process executes itself."""

    url, connected, max_message_bytes = "", True, math.inf

    async def await_connection(self, _deadline: float) -> bool:
        return True

    def was_disconnected_since(self, _instant: float, _topics: Collection[str] = ()) -> bool:
        return False

    def has_subscriber(self, _topic: str) -> bool:
        return True


IN_PROCESS: Connection = _InProcess()


class Channel:
    """How the instances of one service are reached: this one without topics, because this process has them.

    Args:
        instances: that are known by name.

    Attributes:
        request_queue: the topic that all instances share; ``""``: there is none.
        connection: over which they are reached.
        shared: that topic as an instance; None: there is none.
        requests: in flight; the channel is closed after the last one.
        joined_at: when the last instance became known.
        met_at: when the first instance became known, while none was.
        streams: those in flight over the shared topic that have begun.
        refused_since: when the shared topic's requests began to be refused, without an answer since; infinite: they are not.
        hello, hello_at, had_instances, asked_since, answered_at, is_known, is_served: see :class:`TopicChannel`.
    """

    is_known = is_served = True

    def __init__(self, instances: Instances[Any], request_queue: str = "", connection: Connection = IN_PROCESS) -> None:
        self.request_queue = request_queue
        self.topics: tuple[str, ...] = ()
        """Topics of requests and replies."""
        self.connection = connection
        self.instances = instances
        self.shared: SharedTopic | None = None
        self.requests = InFlight()
        self.streams = 0
        self.refused_since = math.inf
        self.joined_at = self.met_at = -math.inf
        self.hello: Publisher | None = None
        self.hello_at = math.inf
        self.had_instances = False
        self.asked_since = self.answered_at = -math.inf
        self._turns: dict[asyncio.Future[None], None] = {}
        instances.on_renew = self.next_turn

    @property
    def opening_error(self) -> TransportError | None:
        """Why the channel cannot be opened at present; None: it is open."""
        return None

    def can_send(self, _now: float, *, needs_instance: bool, repeatable: bool) -> bool:
        """Return whether a request can be sent now."""
        return self.instances.has_ready

    def greet(self) -> None:
        """Ask for instances: that is due."""

    def seek_instances(self) -> None:
        """A call waits for an instance."""

    def watch_missing(self) -> None:
        """A request was sent to the shared topic."""

    def record_reply(self, instance: str | None, now: float) -> None:
        """Something has replied over the shared topic; ``instance``: its name, None if it is a third party's."""

    def retire(self, instance: Any) -> None:
        """``instance`` accepts nothing new."""

    def replace_instances(self, instances: Instances[Any]) -> None:
        """Use other instances from now on: another source has the service."""
        self.instances = instances
        instances.on_renew = self.next_turn
        self.next_turn()

    @property
    def waiting(self) -> int:
        """Calls that wait for an instance."""
        return len(self._turns)

    def create_turn(self) -> asyncio.Future[None]:
        """Return a future that is done at the next change of what can be reached. :meth:`leave` ends the wait."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns[turn] = None
        return turn

    def leave(self, turn: asyncio.Future[None]) -> None:
        """Wait no longer."""
        self._turns.pop(turn, None)

    def next_turn(self) -> None:
        """Let waiting calls check again."""
        turns, self._turns = self._turns, {}
        for turn in turns:
            if not turn.done():
                turn.set_result(None)

    def close(self) -> None:
        """Let waiting calls check again."""
        self.next_turn()


class Seeker(Protocol):
    """Finds the instances that serve a topic (:class:`~dispatch.routing.discovery.Discovery`)."""

    def seek(self, channel: TopicChannel) -> None: ...
    def send_due_hello(self, channel: TopicChannel) -> None: ...
    def watch_missing(self, channel: TopicChannel) -> None: ...
    def retire(self, instance: SessionInstance) -> None: ...


class TopicChannel(Channel):
    """Request publisher, reply topic and known instances of one service over one pair of topics.

    Args:
        request_queue: the topic that all instances share.
        publisher: to it, for the plain exchange.
        reply_topic: the dispatcher's own.
        endpoint: of the sessions with instances, whose packets arrive on ``reply_topic``; None on persistent topics, which
            have the plain exchange only.
        exchange: the plain exchange.
        discovery: finds its instances.
        connection: with the broker.
        service: id of the service that the channel was opened for.

    Attributes:
        topic: the publisher to the request topic itself, which knows why it cannot be opened; None: not known.
        hello: publisher to the topic on which instances receive hellos; None if there is none.
        hello_at: when the next hello is due.
        had_instances: an instance has been known.
        asked_since: when the channel began to look for instances: when it was opened, or its last instance was lost.
        gathers_until: instances have just announced themselves, and their handshakes are under way: calls wait for these, so
            that the first instance does not get all of them.
        spreads_until: further instances may be about to announce themselves: :data:`MAX_FIRST` at once meanwhile.
        replied_at: when anything last replied over the shared topic.
        answered_at: when a third-party service last answered over the shared topic.
        is_missing_reported: the log says that no instance has announced itself.
        timers: by their purpose, one of each; :meth:`close` cancels them.
    """

    instances: Instances[SessionInstance]
    shared: SharedTopic

    def __init__(
        self,
        request_queue: str,
        publisher: Publisher,
        reply_topic: str,
        endpoint: Endpoint | None,
        exchange: Correlator,
        discovery: Seeker,
        connection: Connection = IN_PROCESS,
        asked_since: float = -math.inf,
        service: str = "",
    ) -> None:
        super().__init__(Instances[SessionInstance](), request_queue, connection)
        self.service = service
        self.topics = (request_queue, reply_topic)
        self.shared = SharedTopic(request_queue, publisher, reply_topic, exchange)
        self.publisher = publisher
        self.reply_topic = reply_topic
        self.topic: TopicPublisher | None = None
        self._discovery = discovery
        self.endpoint = endpoint
        self.hello_at = 0.0
        self.asked_since = asked_since
        self.gathers_until = self.spreads_until = 0.0
        self.replied_at = -math.inf
        self.is_missing_reported = False
        self.timers: dict[str, asyncio.TimerHandle] = {}

    @property
    def is_known(self) -> bool:  # type: ignore[override] # a channel without topics always is
        """Whether an instance has announced itself, or a third-party service has answered, at any time."""
        return self.hello is None or self.had_instances or self.answered_at > -math.inf

    @property
    def is_served(self) -> bool:  # type: ignore[override] # likewise
        """Whether an instance has announced itself, or anything has replied, at any time."""
        return self.had_instances or self.replied_at > -math.inf

    @property
    def opening_error(self) -> TransportError | None:
        """Why the request topic cannot be opened at present; None: it is open."""
        return None if self.topic is None else self.topic.opening_error

    def can_send(self, now: float, *, needs_instance: bool, repeatable: bool) -> bool:
        """Return whether a request can be sent now.

        While no instance can be reached, calls wait. An instance of dispatch's own that is not known yet would not get what
        is sent to the shared topic meanwhile, and a suspected one might never get it. Only where third-party services may
        listen is a request sent to the shared topic after some time.

        Args:
            needs_instance: the request may not be sent to the shared topic.
            repeatable: it does no harm there: an instance that announces itself later gets it, too.
        """
        if now < self.gathers_until or (now < self.spreads_until and self.requests.count >= MAX_FIRST):
            return False
        if self.instances.has_ready:
            return True
        if len(self.instances):
            return False
        if self.topic is not None and not self.topic.is_connected:
            return False  # a request would wait there, with a permit
        if self.hello is None or (now < self.answered_at + GONE_S and not needs_instance):
            return True
        if needs_instance or (self.had_instances and now < self.asked_since + GONE_S):
            return False
        if self.requests.count - self.streams >= MAX_UNANSWERED:
            return False
        return now >= self.asked_since + (HELLO_WAIT_S if repeatable else DISCOVERY_S)

    def greet(self) -> None:
        """Ask for instances: that is due."""
        self._discovery.send_due_hello(self)

    def seek_instances(self) -> None:
        """Ask for instances, because a call waits for one."""
        self._discovery.seek(self)
        self._discovery.watch_missing(self)

    def watch_missing(self) -> None:
        """Report it if nothing answers a request that was sent to the shared topic."""
        self._discovery.watch_missing(self)

    def retire(self, instance: SessionInstance) -> None:
        """Send nothing new to ``instance``, which is draining."""
        self._discovery.retire(instance)

    def record_reply(self, instance: str | None, now: float) -> None:
        """See :class:`Channel`."""
        self.replied_at = now
        if instance is not None:
            return
        is_first, self.answered_at = self.answered_at == -math.inf, now
        if is_first:
            self.next_turn()

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
        super().close()


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

    def claim(self, user: str, key: str, holder: Holder) -> Callable[[], None]:
        """Record that a request with ``key`` goes to ``holder`` now. Return a function that restores the previous holder,
        because the request was not executed; it keeps a holder that another request has set since."""
        former = self.put(user, key, holder)

        def undo() -> None:
            if self.get(user, key) is holder:
                self.put(user, key, former)

        return undo

    def put(self, user: str, key: str, holder: Holder | None) -> Holder | None:
        """Set or remove the holder of ``key``. Return the previous one."""
        former = self._holders.pop((user, key), None)
        if holder is not None:
            remember(self._holders, (user, key), holder, MAX_KEYS)
        return former
