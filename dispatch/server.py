"""ToolServer: the life cycle of a tool service on its topics.

A request is answered whatever happens, because on a non-persistent topic silence costs its caller the whole timeout:
overload, draining and expiry are answered at once with a typed refusal, and every exception becomes an error reply.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import ModuleType, NoneType
from typing import TYPE_CHECKING, Any, cast

from dispatch._internal import AsyncContext, check_instance, excerpt, explain_keywords, loop_clock, yield_to_others
from dispatch.admin import Admin, read_admin
from dispatch.announcements import Announce, DescriptorParts
from dispatch.catalog.catalog import load_items
from dispatch.catalog.items import Item
from dispatch.documents import MAX_NAME_CHARS
from dispatch.errors import TransportError
from dispatch.functions import ToolPackage
from dispatch.functions.served import Descriptors, ServedFunctions
from dispatch.messaging.endpoint import ReplyPermission
from dispatch.messaging.wire import (
    MAX_PAYLOAD_BYTES,
    TOOL_SERVICE,
    Feature,
    Property,
    Refusal,
    TopicError,
    TopicName,
    announcement_topic,
    hello_topic,
    instance_topic,
    reply_topic,
    service_queues,
)
from dispatch.protocol import Session, SessionTable
from dispatch.serving.announcer import DescriptorAnnouncer
from dispatch.serving.plain import PlainReplySettings, PlainRequests, ReplyRouter
from dispatch.serving.replies import REASONS, ReplySender
from dispatch.serving.requests import RequestQueue
from dispatch.serving.sessions import SessionRequests
from dispatch.serving.tool_service import RequestHandler, ToolExecutor, read_invoke
from dispatch.telemetry.events import Listeners
from dispatch.telemetry.observers import (
    DEFAULT_TELEMETRY,
    EXPECTED_TELEMETRY,
    NULL_SERVER,
    ServerNames,
    ServerObserver,
    Telemetry,
)
from dispatch.transports import (
    BROKER_VARIABLE,
    PUBLISH_WINDOW,
    Message,
    Mode,
    Publisher,
    Security,
    Subscription,
    Transport,
    open_transport,
)
from dispatch.transports.errors import describe_without_call

if TYPE_CHECKING:
    from dispatch.admin.app import ServiceAdmin

# An instance announces itself: when it starts, to dispatchers that ask, and when it begins to drain.
#
# Dispatchers ask on the hello topic, in the request namespace. The instance answers on their reply topics, and announces
# itself on a topic in the response namespace. A dispatcher believes an announcement once a session with the instance is
# open. Third-party peers never see these topics; a broker drops messages to a non-persistent topic without a consumer.


SAID_AT_S = (0.0, 0.1, 0.5)
"""Seconds after the start at which an instance announces itself: each announcement may be lost."""
LINGER_S = 0.1
"""Seconds for which a draining instance still refuses requests: many times the delay of its announcement."""


class Announcer:
    """Announces one instance, and answers ``hello``.

    Args:
        transport: the service's connection.
        replies: sends the answers.
        request_queue, response_queue: the topics of the service.
        instance: the instance's id.
        incarnation: the name of this run of it.
        has_sessions: whether it accepts sessions; otherwise it answers questions about its descriptors only.
        descriptors: answers these; None: the service is not announced.
    """

    def __init__(
        self,
        transport: Transport,
        replies: ReplyRouter,
        request_queue: str,
        response_queue: str,
        *,
        instance: str,
        incarnation: str,
        has_sessions: bool = True,
        descriptors: DescriptorAnnouncer | None = None,
    ) -> None:
        self._transport = transport
        self._replies = replies
        self._request_queue = request_queue
        self._hello_topic = hello_topic(request_queue)
        self._announcements = announcement_topic(request_queue, response_queue)
        self._here = {
            Property.HERE: request_queue,
            Property.INSTANCE: instance,
            Property.INCARNATION: incarnation,
            Property.FEATURES: Feature.SESSION,
        }
        self._has_sessions = has_sessions
        self._descriptors = descriptors
        self._subscription: Subscription | None = None
        self._publisher: Publisher | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._leaving = False
        self._left_at = 0.0

    async def start(self) -> None:
        """Listen for hellos, and announce the instance.

        Raises:
            TransportError: a topic cannot be opened.
        """
        self._subscription = await self._transport.subscribe(
            self._hello_topic, self._on_hello, mode=Mode.FANOUT, name="dispatch-hello"
        )
        if not self._has_sessions:
            return
        self._publisher = await self._transport.publisher(self._announcements)
        loop = asyncio.get_running_loop()
        self._timers = [loop.call_later(delay, self._say, self._here) for delay in SAID_AT_S]

    def _say(self, properties: Mapping[str, str]) -> None:
        assert self._publisher is not None
        with contextlib.suppress(TransportError):  # dispatchers send hellos, too
            self._publisher.publish(b"", properties, flow=self._announcements, on_failure=_unheard)

    def _on_hello(self, message: Message) -> None:
        properties: Mapping[str, str] = message.properties()
        if properties.get(Property.HELLO) != self._request_queue or not self._replies.own_topic(properties):
            return
        if Property.ID in properties:
            answer = None if self._descriptors is None else self._descriptors.answer(message.data())
            if answer is not None:
                self._replies.send(properties, answer, {Property.ID: properties[Property.ID]})
        elif self._has_sessions and not self._leaving:
            self._replies.send(properties, b"", self._here)

    def leave(self) -> None:
        """Announce to dispatchers that the instance accepts no further requests."""
        if not self._leaving:
            self._leaving = True
            self._left_at = asyncio.get_running_loop().time()
            self._forget_timers()
            if self._publisher is not None:
                self._say({**self._here, Property.REFUSED: Refusal.DRAINING})

    def _forget_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    async def close(self) -> None:
        """Close the topics, :data:`LINGER_S` after :meth:`leave`."""
        self._leaving = True
        self._forget_timers()
        if self._publisher is not None:
            await asyncio.sleep(self._left_at + LINGER_S - asyncio.get_running_loop().time())
        if self._subscription is not None:
            await self._subscription.close()
        if self._publisher is not None:
            await self._publisher.close()


def _unheard(_error: TransportError) -> None:
    """Ignore an announcement that could not be sent: dispatchers send hellos, too."""


logger = logging.getLogger("dispatch.service")

DEFAULT_CONCURRENCY = 64
"""Requests executed at once: a dispatcher's default limit for a tool."""
DEFAULT_QUEUE = 1_024
"""Queued requests; further ones are refused at once. At 64 in parallel the wait is within usual deadlines."""
DEFAULT_DRAIN_S = 30.0
"""Seconds for running requests to finish after SIGTERM: the usual grace period of container platforms."""
FLUSH_S = 2.0
"""Least time, in seconds, for the last replies to be sent: as long as closing a connection waits for receipts."""


DEFAULT_ANNOUNCE = Announce()
NO_KEYS: Mapping[str, Any] = {}


def name_topics(service: str) -> tuple[str, str]:
    """Return the request topic and the response topic of a service of that name.

    Raises:
        TopicError: it is no name of a service.
    """
    requests, responses = service_queues(service)
    try:
        TopicName.parse(requests)
    except TopicError:
        fix = (
            "write a name without blanks and '/', for example 'joke', or give the request-queue and the response-queue"
        )
        raise TopicError(f"'{excerpt(service)}' is no name of a service", fix) from None
    return requests, responses


def check_descriptors(
    service: Mapping[str, Any], keys: Mapping[str, Any], tools: Iterable[Mapping[str, Any]]
) -> Descriptors:
    """Return the descriptors of a service and its tools, checked as a dispatcher reads them.

    Args:
        service: id and topics.
        keys: further ones of the service's descriptor.
        tools: descriptors; ``type`` and ``service`` need not be given.

    Raises:
        CatalogError: one is invalid; it lists every mistake.
    """
    check_instance("descriptor", keys, Mapping, "an object of keys, such as {'version': '1.0.0'}")
    listed = list(tools) if isinstance(tools, Iterable) and not isinstance(tools, str | Mapping) else None
    if listed is None or not all(isinstance(each, Mapping) for each in listed):
        raise TypeError("tools must be a list of descriptors, such as [{'name': 'tell-joke', 'description': '…'}].")
    described = {**service, **keys, **service, "id": keys.get("id", service["id"])}
    defaults = {"type": "tool-service", "service": described["id"]}
    found = Descriptors(described, [{**tool, **defaults} for tool in listed])
    items = [Item("descriptor", "tool-service", "", found.service)]
    items += [Item(f"tools[{number}]", "tool", "", tool) for number, tool in enumerate(found.tools)]
    load_items(items)
    return found


class ToolServer(AsyncContext):
    """Runs a tool service on its topics. ``async with ToolServer(...)``, or :func:`serve` to run until SIGTERM.

    Args:
        implementation: a :class:`ToolService`, or any object with an ``invoke`` of one of its forms.
        broker: ``pulsar://…``, ``pulsar+ssl://…``, ``memory://…``, or a started transport or server, whose connection is
            shared and not closed; default: the value of ``DISPATCH_BROKER``, else ``pulsar://localhost:6650``.
        functions: instead of ``implementation``: a module, :class:`~dispatch.Functions`, :class:`~dispatch.ToolPackage`, a
            function, or a list of these, served as one service. Of a module those declared with :func:`dispatch.tool`; all
            public ones if it declares none. :attr:`descriptors` are generated.
        service: the service's name: ``joke`` listens on ``non-persistent://tg/request/joke`` and replies on
            ``non-persistent://tg/response/joke``, as in TrustGraph. Servers of one name on one topic share its requests.
            Default: the last part of ``request_queue``, or the name of the module or package of ``functions``.
        request_queue: whole name of the request topic, instead of the one from ``service``.
        response_queue: whole name of the response topic, instead of the one from ``service``.
        instance: this server's own id, on every reply. Default: the service's name and 8 random hex digits.
        concurrency: requests executed at once; also the number of threads for synchronous tools. A thread that outlives its
            request occupies its slot until the tool returns (:attr:`abandoned_threads`).
        max_queue: requests queued beyond ``concurrency``; further ones are refused at once with ``overloaded``.
        reply_namespaces: namespaces (``tenant/namespace``) in which ``reply-to`` topics are accepted, besides that of the
            response topic.
        drain_timeout: seconds that running requests get to finish after :meth:`drain`, and their replies to arrive.
        max_payload_bytes: largest request and largest reply of a dispatcher.
        security: token and TLS settings; None: from the environment.
        publish_window: publishes in flight to the broker at once; further ones are queued.
        telemetry: settings of metrics, traces and logs.
        tools: descriptors of the tools of ``implementation``, as in the files of a catalogue. A service with tools announces
            itself: dispatchers with :class:`~dispatch.Announced` call them without a catalogue.
        descriptor: further keys of the service's descriptor: ``version``, ``policy``, ``permissions``, ``config-params``,
            and ``id``, which is ``service`` by default. Metrics and traces name the service by its id, as dispatchers do.
        announce: topic, keys and labels of the announcements; None: the service is not announced.
        admin: address of the admin endpoint, ``HOST:PORT``, or its settings; None: there is none.

    Raises:
        TypeError: neither ``service`` nor both topics are given, or ``implementation`` has no usable ``invoke``.
        CatalogError: one of ``functions`` or ``tools`` cannot be a tool; it lists every mistake with its place and fix.
        ValueError: a limit is out of range, or the descriptors are too large to be announced.
    """

    _ENTERED = "dispatch.ToolServer(…)"

    @explain_keywords
    def __init__(
        self,
        implementation: object = None,
        broker: str | Transport | ToolServer = BROKER_VARIABLE,
        *,
        functions: object = None,
        service: str | None = None,
        request_queue: str | None = None,
        response_queue: str | None = None,
        instance: str | None = None,
        concurrency: int = DEFAULT_CONCURRENCY,
        max_queue: int = DEFAULT_QUEUE,
        reply_namespaces: Iterable[str] = (),
        drain_timeout: float = DEFAULT_DRAIN_S,
        max_payload_bytes: int = MAX_PAYLOAD_BYTES,
        security: Security | None = None,
        publish_window: int = PUBLISH_WINDOW,
        telemetry: Telemetry = DEFAULT_TELEMETRY,
        tools: Iterable[Mapping[str, Any]] = (),
        descriptor: Mapping[str, Any] = NO_KEYS,
        announce: Announce | None = DEFAULT_ANNOUNCE,
        admin: Admin | str | None = None,
    ) -> None:
        if (implementation is None) is (functions is None):
            what = "a tool service is missing" if functions is None else "a tool service and functions are two services"
            raise TypeError(f"{what}; write ToolServer(Joke()), or ToolServer(functions=[price, order])")
        if isinstance(implementation, str):
            raise TypeError(
                "a text is no tool service; the service comes before the broker: ToolServer(Joke(), 'pulsar://…')"
            )
        if isinstance(implementation, list | tuple):
            raise TypeError("a list is no tool service; functions are given as ToolServer(functions=[price, order], …)")
        given = functions if isinstance(functions, list | tuple) else [functions]
        if service is None and request_queue is None and functions is not None:
            service = _name_functions(given)
        if service is not None:
            requests, responses = name_topics(service)
            request_queue, response_queue = request_queue or requests, response_queue or responses
        if request_queue is None or response_queue is None:
            raise TypeError("no topics: give service='joke', or request_queue= and response_queue=")
        numbers = {
            "concurrency": (concurrency, 1),
            "max_payload_bytes": (max_payload_bytes, 1),
            "max_queue": (max_queue, 0),
        }
        for name, (number, least) in numbers.items():
            check_instance(name, number, int, "a whole number")
            if number < least:
                raise ValueError(f"{name} must be at least {least}, not {number}")
        check_instance("drain_timeout", drain_timeout, (int, float), "a number of seconds")
        if not 0 <= drain_timeout < math.inf:  # NaN, too
            raise ValueError(f"drain_timeout must be a number of seconds, at least 0, not {drain_timeout}")
        check_instance(
            "admin", admin, (Admin, str, NoneType), "an address such as '127.0.0.1:9464', or dispatch.Admin(…)"
        )
        check_instance("telemetry", telemetry, Telemetry, EXPECTED_TELEMETRY)
        self.request_queue = request_queue
        self.response_queue = response_queue
        self.service = service or request_queue.rpartition("/")[2]
        self.service_id = self.service
        """The id of the service's descriptor: its name in metrics and traces. Without one it is that by which the first
        dispatcher calls the service in a session, and ``service`` until then."""
        self.instance = instance or f"{self.service}-{os.urandom(4).hex()}"
        self.incarnation = os.urandom(8).hex()
        """The random name of this run of the instance; requests for another incarnation are refused."""
        self.concurrency = concurrency
        self._threads = ToolExecutor(concurrency, name=f"dispatch-tool-{self.service}")
        self._described = {"id": self.service, "request-queue": request_queue, "response-queue": response_queue}
        self._functions: ServedFunctions | None = None
        self._on_descriptors: Listeners[Descriptors] = Listeners("a listener of descriptors", content=telemetry.content)
        self._given: Descriptors | None = None
        self._handler = implementation if isinstance(implementation, RequestHandler) else None
        self._dialect = TOOL_SERVICE if self._handler is None else self._handler.dialect
        if functions is None:
            self._invoke = read_invoke(implementation, self._threads.run)
            self._given = check_descriptors(self._described, descriptor, tools)
            self.service_id = self._given.service["id"]
        elif tools or descriptor:
            raise TypeError("the descriptors of functions are generated. Fix: leave out tools and descriptor.")
        else:
            self._functions = ServedFunctions(given, self._described, self._threads)
            self._invoke = self._functions.invoke
        self._has_id = self._given is None or "id" in descriptor or bool(self._given.tools)
        self.max_queue = max_queue
        self._reply_namespaces = tuple(reply_namespaces)
        self.drain_timeout = drain_timeout
        self.max_payload_bytes = max_payload_bytes
        if isinstance(broker, ToolServer):
            broker = broker._transport
        self._owns_transport = isinstance(broker, (str, type)) or not hasattr(broker, "subscribe")
        self._transport = cast(Transport, broker)
        self._parts = contextlib.AsyncExitStack()
        """Closes what was opened, the last one first."""
        if self._owns_transport:
            self._transport = open_transport(cast(str, broker), security=security, publish_window=publish_window)
            self._parts.push_async_callback(self._transport.close)
        self._telemetry = telemetry
        self._observer: ServerObserver = NULL_SERVER
        self._queue: RequestQueue | None = None
        self._subscription: Subscription | None = None
        self._router: ReplyRouter | None = None
        self._plain: PlainRequests | None = None
        self._sessions: SessionRequests | None = None
        self._announcer: Announcer | None = None
        check_instance("announce", announce or DEFAULT_ANNOUNCE, Announce, "dispatch.Announce(…), or None")
        self.announce = announce
        if announce is not None:
            DescriptorParts(*self.descriptors)  # one that is too large is refused here
        self._descriptor_announcer: DescriptorAnnouncer | None = None
        self._started_at = 0.0
        self._is_started = False
        self._admin_settings = read_admin(admin)
        self._admin: ServiceAdmin | None = None
        self.refused = dict.fromkeys(REASONS, 0)
        """Refusals by reason."""

    @property
    def descriptors(self) -> Descriptors:
        """The descriptors of the service and its tools: ``(service, tools)``, as JSON values. Those of served functions are
        generated."""
        if self._functions is not None:
            return self._functions.descriptors
        assert self._given is not None  # one of both is there
        return self._given

    def on_descriptors_changed(self, listener: Callable[[Descriptors], object]) -> Callable[[], None]:
        """Call ``listener`` with :attr:`descriptors` whenever :meth:`replace_functions` has changed them. It must not block;
        an exception that it raises is logged. Returns a function that removes the listener."""
        return self._on_descriptors.subscribe(listener)

    def replace_functions(self, functions: Iterable[object]) -> None:
        """Serve ``functions``, as in the constructor, instead of the former ones. Calls in flight go on.

        Raises:
            CatalogError: one of them cannot be a tool. The former functions stay.
            TypeError: the server serves no functions.
        """
        if self._functions is None:
            raise TypeError("the server serves no functions. Fix: create it with functions=[…].")
        former = self._functions.descriptors
        self._functions.replace(functions)
        if self._functions.descriptors != former:
            self._on_descriptors.publish(self._functions.descriptors)

    @property
    def running(self) -> int:
        """Requests being run."""
        return 0 if self._queue is None else self._queue.running

    @property
    def abandoned_threads(self) -> int:
        """Threads of synchronous tools whose request has ended (deadline or cancellation). Each occupies one of
        ``concurrency`` slots until the tool returns."""
        return len(self._threads.abandoned)

    @property
    def repeats(self) -> int:
        """Copies of requests, which are not executed again."""
        return 0 if self._plain is None else self._plain.repeats

    @property
    def malformed(self) -> int:
        """Messages that are not requests, which cannot be answered; and packets that belong to no session: late, or
        forged."""
        packets = 0 if self._sessions is None else self._sessions.malformed
        return packets + (0 if self._plain is None else self._plain.malformed)

    @property
    def session_table(self) -> SessionTable | None:
        """Sessions of dispatchers; None: it has none, or is not started."""
        return None if self._sessions is None else self._sessions.table

    @property
    def queued(self) -> int:
        """Queued requests."""
        return 0 if self._queue is None else self._queue.queued

    @property
    def requests(self) -> int:
        """Requests that arrived, without copies (:attr:`repeats`)."""
        return 0 if self._queue is None else self._queue.requests

    @property
    def errors(self) -> int:
        """Requests whose tool raised an error."""
        return 0 if self._queue is None else self._queue.errors

    @property
    def is_draining(self) -> bool:
        """Whether requests are refused, because the server drains or is closed."""
        return self._queue is not None and self._queue.is_draining

    @property
    def is_connected(self) -> bool:
        """Whether the broker is in reach, and the server listens."""
        return self._queue is not None and self._transport.connected

    @property
    def admin_url(self) -> str | None:
        """URL of the admin endpoint and its console; None: there is none."""
        return None if self._admin is None else self._admin.url

    @property
    def broker_url(self) -> str:
        """URL of the broker."""
        return self._transport.url

    @property
    def cancelled(self) -> int:
        """Requests stopped by a cancellation of their callers."""
        return 0 if self._queue is None else self._queue.cancelled

    def counts(self) -> Mapping[str, int]:
        """Return the counters since the start."""
        return {
            "requests": self.requests,
            "malformed": self.malformed,
            "cancelled": self.cancelled,
            "repeats": self.repeats,
            "lost_replies": 0 if self._router is None else self._router.lost,
        }

    async def start(self) -> None:
        """Connect and listen.

        Raises:
            TransportError: the broker is out of reach, or refuses; the message names the fix.
            RuntimeError: started already, or closed.
        """
        await yield_to_others()
        if self._is_started:
            state = "was closed; create a new one" if self.is_draining else "is started already"
            raise RuntimeError(f"this server {state}")
        try:
            if self._admin_settings is not None:
                from dispatch.admin.app import ServiceAdmin  # perf: imports starlette

                self._admin = ServiceAdmin(self._admin_settings, [self], self._telemetry, self._transport)
                self._parts.push_async_callback(self._admin.close)
            if self._owns_transport:
                await self._transport.start()
            await self._listen()
            if self._admin is not None:
                self._admin.announce_beside_tools()
        except BaseException:
            if self._owns_transport:
                await self._transport.close()
            if self._admin is not None:
                await self._admin.close()
            raise
        self._observer.attach(self)
        self._started_at = loop_clock()()
        self._is_started = True
        logger.info("%s serves %s, replies on %s", self.instance, self.request_queue, self.response_queue)

    async def _listen(self) -> None:
        router = self._router = ReplyRouter(self._transport, self.response_queue, self._reply_namespaces)
        replies = reply_topic(self.response_queue, "{dispatcher}")
        if self._telemetry.metrics or self._telemetry.traces != "off":
            from dispatch.telemetry.reporting import TelemetryServerObserver  # perf: imports prometheus-client

            names = ServerNames(self.service_id, self.instance, self.request_queue, replies, self.response_queue)
            self._observer = TelemetryServerObserver(self._telemetry, names)
        self._parts.callback(self._observer.close)  # after the sessions, whose ends are counted
        sender = ReplySender(self.refused, id=self.service)
        queue = self._queue = RequestQueue(
            self._invoke,
            self._threads,
            sender,
            self._observer,
            id=self.service,
            concurrency=self.concurrency,
            max_queue=self.max_queue,
            content=self._telemetry.content,
            decode=self._dialect.decode_request,
        )
        channel = PlainReplySettings(
            router,
            instance=self.instance,
            load=lambda: queue.occupied,
            limit=lambda: self._transport.max_message_bytes,
            max_payload_bytes=self.max_payload_bytes,
            encode=self._dialect.encode_reply,
        )
        handler = self._handler
        is_repeatable = None if handler is None else handler.is_repeatable
        self._plain = PlainRequests(queue, sender, channel, self.request_queue, is_repeatable)
        self._parts.push_async_callback(router.close)
        await router.start()
        has_sessions = self._dialect is TOOL_SERVICE and not (
            TopicName.parse(self.request_queue).persistent or TopicName.parse(self.response_queue).persistent
        )
        if has_sessions:
            await self._accept_sessions(queue)
        self._subscription = await self._transport.subscribe(
            self.request_queue,
            self._plain.receive_message,
            mode=Mode.SHARED,
            name=(handler and handler.subscription) or f"{self.service}-request",
        )
        if self.announce is not None and self.descriptors.tools:
            self._descriptor_announcer = self._create_descriptor_announcer(self.announce)
        if has_sessions or self._descriptor_announcer is not None:
            await self._announce(router, has_sessions=has_sessions)
        if self._descriptor_announcer is not None:
            self._parts.push_async_callback(self._descriptor_announcer.close)
            await self._descriptor_announcer.start()

    def _learn_id(self, service: str) -> None:
        """Have the id by which a dispatcher calls the service, unless it has one."""
        if not self._has_id and 0 < len(service) <= MAX_NAME_CHARS and service.isprintable():
            self._has_id = True
            self.service_id = service
            self._observer.rename(service)

    def _create_descriptor_announcer(self, settings: Announce) -> DescriptorAnnouncer:
        announcer = DescriptorAnnouncer(
            self._transport,
            settings,
            lambda: self.descriptors,
            instance=self.instance,
            incarnation=self.incarnation,
            stats=self._load,
        )
        self.on_descriptors_changed(lambda _: announcer.update())
        return announcer

    def _load(self) -> Mapping[str, Any]:
        """Return the load and the counters that ``dispatch stats`` shows."""
        queue = self._queue
        assert queue is not None  # it is announced when it is started
        return {
            "running": self.running,
            "queued": self.queued,
            "concurrency": self.concurrency,
            "requests": self.requests,
            "errors": queue.errors,
            "refused": sum(self.refused.values()),
            "age": round(loop_clock()() - self._started_at, 1),
        }

    async def _accept_sessions(self, queue: RequestQueue) -> None:
        inbox = instance_topic(self.request_queue, self.instance)
        self._sessions = SessionRequests(
            queue,
            self._transport,
            inbox,
            service=self.request_queue,
            instance=self.instance,
            incarnation=self.incarnation,
            may_reply_to=ReplyPermission(self.response_queue, self._reply_namespaces),
            on_named=self._learn_id,
            max_payload_bytes=self.max_payload_bytes,
        )
        self._parts.push_async_callback(self._sessions.close)
        try:
            await self._sessions.start()
        except TransportError as error:
            # The inbox is in the namespace of the request topic, which the user has configured.
            error.message = error.message.replace(inbox, self.request_queue)
            error.args = (error.message,)
            raise

    async def _announce(self, router: ReplyRouter, *, has_sessions: bool) -> None:
        self._announcer = Announcer(
            self._transport,
            router,
            self.request_queue,
            self.response_queue,
            instance=self.instance,
            incarnation=self.incarnation,
            has_sessions=has_sessions,
            descriptors=self._descriptor_announcer,
        )
        self._parts.push_async_callback(self._announcer.close)
        try:
            await self._announcer.start()
        except TransportError as error:
            # Some brokers refuse topics that do not exist. Requests arrive on the service's topic then.
            logger.warning(
                "%s cannot be discovered, so that its requests have no session: %s",
                self.instance,
                describe_without_call(error),
            )

    async def stop_consuming(self) -> None:
        """Refuse requests from now on, and close the subscription to the request topic; running requests go on."""
        if self._descriptor_announcer is not None:
            self._descriptor_announcer.leave()
        if self._announcer is not None:
            self._announcer.leave()
        if self._plain is not None:
            self._plain.durable.stop_accepting()
        if self._queue is not None:
            self._queue.stop_accepting()
        if self._sessions is not None:
            self._sessions.drain()
        if self._plain is not None and self.drain_timeout > 0:
            self._plain.durable.finish()
        if self._subscription is not None:
            await self._subscription.close()

    async def drain(self) -> None:
        """Finish running requests and refuse all others, for at most ``drain_timeout`` seconds, within which the replies
        arrive, too."""
        ends = loop_clock()() + self.drain_timeout
        owed = [] if self._sessions is None else self._sessions.find_owed()
        await self.stop_consuming()
        if self._queue is not None:
            self._queue.refuse_queued()
            await self._queue.finish(self.drain_timeout)
        # Bounded: while the broker is out of reach no reply can be sent, and the process must end; soon, if no caller waits.
        # A caller that has died without waiting for a reply acknowledges nothing, either.
        if not await self._flush(FLUSH_S) and owed:
            await self._flush(ends - loop_clock()(), owed)
        await yield_to_others()  # only now: what is above happens also if the close is cancelled

    async def _flush(self, seconds: float, sessions: Collection[Session] | None = None) -> bool:
        """Wait until what was sent has arrived, in ``sessions`` (None: in all). Return whether it has in that time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                if self._sessions is not None:
                    await self._sessions.flush(sessions)
                if self._router is not None:
                    await self._router.flush()
                return True
        return False

    async def close(self) -> None:
        """Stop at once: cancel running requests, inform their callers, and close the connection, even if this is
        cancelled."""
        self.drain_timeout = 0.0
        async with self._parts as parts:
            parts.callback(self._release)
            await self.drain()

    def _release(self) -> None:
        """Release what needs no await."""
        self._threads.close()
        if self._functions is not None:
            self._functions.close()

    async def __aenter__(self) -> ToolServer:
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()


def _name_functions(functions: Sequence[object]) -> str | None:
    """Return the name of the module or package, if that is all of ``functions``; None: they have no common name."""
    if len(functions) == 1:
        (only,) = functions
        name = only.package if isinstance(only, ToolPackage) else getattr(only, "__name__", None)
        if isinstance(only, ToolPackage | ModuleType) and isinstance(name, str):
            return name.rpartition(".")[2]
    return None


async def serve(
    implementation: object = None, broker: str | Transport | ToolServer = BROKER_VARIABLE, **options: Any
) -> None:
    """Serve until SIGTERM (then drain: finish what runs, refuse the rest) or until cancelled (then stop at once).

    Takes the arguments of :class:`ToolServer`; or a list of servers, each started after those before it, whose connection it
    may share.

    Raises:
        TransportError: the broker is out of reach, or refuses; the message names the fix.
    """
    several = isinstance(implementation, list | tuple) and all(isinstance(each, ToolServer) for each in implementation)
    servers = cast(Sequence[ToolServer], implementation) if several else [ToolServer(implementation, broker, **options)]
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as stack:
        for server in servers:
            await server.start()
            stack.push_async_callback(_close, server)
        if threading.current_thread() is threading.main_thread():
            loop.add_signal_handler(signal.SIGTERM, stop.set)
            stack.callback(loop.remove_signal_handler, signal.SIGTERM)
        await stop.wait()
        for server in servers:
            logger.info("%s drains: %d running, %d queued", server.instance, server.running, server.queued)
        await asyncio.gather(*(server.drain() for server in servers))


async def _close(server: ToolServer) -> None:
    with contextlib.suppress(TransportError):
        await server.close()
