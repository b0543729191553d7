"""Serving a tool service: requests in, answers out, within bounds.

A request is answered whatever happens, because on a non-persistent topic silence costs its caller the whole timeout:
overload, draining and expiry are answered at once with a typed refusal, and every exception becomes an error reply.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from dispatch._internal.clock import loop_clock
from dispatch.errors import TransportError
from dispatch.messaging.wire.codec import Request
from dispatch.messaging.wire.fragments import MAX_PAYLOAD_BYTES
from dispatch.messaging.wire.properties import REPLY_ONLY, Property, Refusal, is_oversized, whole_number
from dispatch.messaging.wire.sessions import is_sender
from dispatch.messaging.wire.topic_name import TopicName
from dispatch.messaging.wire.topics import instance_topic, reply_topic
from dispatch.serving.announcer import Announcer
from dispatch.serving.deduplication.deduplication import Deduplicator
from dispatch.serving.deduplication.idempotency_keys import MAX_DUPLICATES, Keyed
from dispatch.serving.durable_requests import DurableRequests
from dispatch.serving.inbound_request import DEALT_WITH, InboundRequest
from dispatch.serving.reply_destinations import ReplyRouter
from dispatch.serving.reply_sender import REASONS, ReplySender
from dispatch.serving.request_runner import RequestRunner
from dispatch.serving.tool_executor import ToolExecutor
from dispatch.serving.tool_service import read_invoke
from dispatch.telemetry.logs import log_exception
from dispatch.telemetry.settings import DEFAULT_TELEMETRY, Telemetry
from dispatch.transports import DurableMessage, Message, Mode, Security, Subscription, Transport, open_transport

logger = logging.getLogger("dispatch.service")

DEFAULT_CONCURRENCY = 64
"""Requests run at once: as many as a dispatcher has in flight for a tool by default."""
DEFAULT_QUEUE = 1_024
"""Requests that wait for a place; the next is refused at once. At 64 at a time a wait that anyone would still sit out."""
DEFAULT_DRAIN_S = 30.0
"""How long what runs may take to finish after SIGTERM: what container platforms grant."""
FLUSH_S = 2.0
"""How long the last answers may take to leave: as long as closing a connection waits for its receipts."""


class ToolServer:
    """Runs a tool service on its topics. ``async with ToolServer(...)``, or :func:`serve` to run until told to stop.

    Args:
        service: a :class:`ToolService`, or anything with an ``invoke`` it could have.
        broker: ``pulsar://…``, ``pulsar+ssl://…``, ``memory://…``, or a started transport (then left open).
        topic: TrustGraph's short name; ``joke`` means ``non-persistent://tg/request/joke`` and ``…/response/joke``.
        request_queue: whole topic name to listen on, instead of ``topic``.
        response_queue: whole topic name to answer on, instead of ``topic``.
        id: the service's id; servers of one id on one topic share its requests. Default: the topic's last part.
        instance: this server's own id, on every reply. Default: the id and 8 random hex digits.
        concurrency: requests run at once; also the threads of synchronous tools. A thread that outlives its request keeps
            its place until the tool returns (:attr:`abandoned_threads`).
        max_queued: requests that may wait for a place; beyond it they are refused at once.
        reply_namespaces: namespaces (``tenant/namespace``) where ``reply-to`` topics are answered, besides the
            response queue's own.
        drain_timeout: seconds that running requests may take once :meth:`drain` began.
        max_payload: bytes of the largest request that is taken in parts, and of all that are not complete; and of the
            largest answer that is sent in parts. So many may be held for each request that runs.
        security: token and TLS settings; None: from the environment.
        publish_window: publishes in flight to the broker at once; further ones are queued.
        telemetry: what is counted and traced.
    """

    def __init__(
        self,
        service: object,
        broker: str | Transport,
        *,
        topic: str | None = None,
        request_queue: str | None = None,
        response_queue: str | None = None,
        id: str | None = None,
        instance: str | None = None,
        concurrency: int = DEFAULT_CONCURRENCY,
        max_queued: int = DEFAULT_QUEUE,
        reply_namespaces: Iterable[str] = (),
        drain_timeout: float = DEFAULT_DRAIN_S,
        max_payload: int = MAX_PAYLOAD_BYTES,
        security: Security | None = None,
        publish_window: int = 64,
        telemetry: Telemetry = DEFAULT_TELEMETRY,
    ) -> None:
        if topic is not None:
            request_queue = request_queue or f"non-persistent://tg/request/{topic}"
            response_queue = response_queue or f"non-persistent://tg/response/{topic}"
        if request_queue is None or response_queue is None:
            raise TypeError("say where to listen: topic='joke', or request_queue= and response_queue=")
        if concurrency < 1:
            raise ValueError(f"concurrency must be 1 at least, not {concurrency}")
        if max_payload < 1:
            raise ValueError(f"max_payload must be 1 at least, not {max_payload}")
        if max_queued < 0:
            raise ValueError(f"max_queued must be 0 or more, not {max_queued}")
        self.request_queue = request_queue
        self.response_queue = response_queue
        self.id = id or request_queue.rpartition("/")[2]
        self.instance = instance or f"{self.id}-{os.urandom(4).hex()}"
        self.incarnation = os.urandom(8).hex()
        """The random name of this run of the instance: a request that is meant for another one is not run."""
        self.concurrency = concurrency
        self._threads = ToolExecutor(concurrency, name=f"dispatch-tool-{self.id}")
        self._invoke = read_invoke(service, self._threads.run)
        self.max_queued = max_queued
        self._reply_namespaces = tuple(reply_namespaces)
        self.drain_timeout = drain_timeout
        self.max_payload = max_payload
        self._owns_transport = isinstance(broker, str)
        self._transport: Transport = (
            open_transport(broker, security=security, publish_window=publish_window)
            if isinstance(broker, str)
            else broker
        )
        self._telemetry = telemetry
        self._runner: RequestRunner | None = None
        self._subscription: Subscription | None = None
        self._replies: ReplyRouter | None = None
        self._presence: Announcer | None = None
        self._recall: Deduplicator | None = None
        self._answers: ReplySender | None = None
        self._tasks: set[asyncio.Task[Keyed | None]] = set()
        self._waiting: set[asyncio.Task[None]] = set()  # for the answer of the first request with their idempotency key
        self._queue: deque[InboundRequest] = deque()
        self._works: dict[str, InboundRequest] = {}  # those that a dispatcher of ours asked for, until they end
        self._kept = DurableRequests(self._out)
        self._now: Callable[[], float] = time.monotonic  # the loop's, as soon as there is one
        self._durable = False  # its requests are kept by the broker
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()
        self.requests = 0
        """Requests that arrived, whatever became of them; questions about them are :attr:`repeats`."""
        self.malformed = 0
        """Messages without a usable id: nobody could be answered."""
        self.cancelled = 0
        """Requests that were stopped, because their callers said that they wait no more."""
        self.refused = dict.fromkeys(REASONS, 0)
        """Refusals by reason."""

    @property
    def running(self) -> int:
        """Requests being run."""
        return len(self._tasks.difference(self._threads.abandoned))

    @property
    def abandoned_threads(self) -> int:
        """Threads of synchronous tools that run on although their request has ended (its deadline passed, or its caller
        left). Each keeps its place among ``concurrency`` until the tool returns."""
        return len(self._threads.abandoned)

    @property
    def repeats(self) -> int:
        """Requests that came again, because their answer was asked for."""
        return 0 if self._recall is None else self._recall.repeats

    @property
    def queued(self) -> int:
        """Requests waiting for a place."""
        return len(self._queue)

    def counts(self) -> Mapping[str, int]:
        """Since the start, for metrics."""
        return {
            "requests": self.requests,
            "malformed": self.malformed + (0 if self._replies is None else self._replies.forged),
            "cancelled": self.cancelled,
            "repeats": self.repeats,
            "lost_answers": 0 if self._replies is None else self._replies.lost,
        }

    async def start(self) -> None:
        """Connect and listen.

        Raises:
            TransportError: the broker is out of reach, or refuses; the message names the fix.
        """
        self._now = loop_clock()
        self._durable = self.request_queue.startswith("persistent://")
        try:
            if self._owns_transport:
                await self._transport.start()
            self._replies = ReplyRouter(
                self._transport,
                self.response_queue,
                self._reply_namespaces,
                control=instance_topic(self.request_queue, self.instance),
                on_request=self._on_own_message,
            )
            self._recall = Deduplicator(self._replies, self.incarnation, self.max_payload)
            self._answers = ReplySender(
                self._replies,
                self._recall,
                self.refused,
                id=self.id,
                instance=self.instance,
                in_flight=lambda: len(self._tasks),
                limit=lambda: self._transport.max_message_bytes,
                max_payload=self.max_payload,
            )
            runner = self._runner = RequestRunner(
                self._invoke,
                self._answers,
                self._recall,
                self._kept,
                self._refuse,
                id=self.id,
                now=self._now,
                content=self._telemetry.content,
            )
            runner.tracing = self._telemetry.service_tracing(
                service=self.id,
                instance=self.instance,
                topic=self.request_queue,
                replies=reply_topic(self.response_queue, "{dispatcher}"),
                responses=self.response_queue,
            )
            try:
                await self._replies.start()
            except TransportError as error:
                # The instance's own topic lies in the namespace of the request topic, which is the one that was given.
                error.message = error.message.replace(self._replies.control, self.request_queue)
                error.args = (error.message,)
                raise
            self._subscription = await self._transport.subscribe(
                self.request_queue, self._on_message, mode=Mode.SHARED, name=f"{self.id}-request"
            )
            if not (TopicName.parse(self.request_queue).persistent or TopicName.parse(self.response_queue).persistent):
                await self._be_present(self._replies)
        except BaseException:
            if self._owns_transport:
                await self._transport.close()
            raise
        metrics = self._telemetry.service_metrics()
        if metrics is not None:
            runner.durations = metrics.add(self)
        logger.info("%s serves %s, answers on %s", self.instance, self.request_queue, self.response_queue)

    async def _be_present(self, replies: ReplyRouter) -> None:
        self._presence = Announcer(
            self._transport,
            replies,
            self.request_queue,
            self.response_queue,
            instance=self.instance,
            incarnation=self.incarnation,
            on_other=self._memory.meet,
        )
        try:
            await self._presence.start()
        except TransportError as error:
            # Not every broker lets us open topics that nobody has made. Requests come over the service's topic then.
            logger.warning(
                "%s cannot be found by name, lost answers cannot be asked for: %s", self.instance, error.message
            )

    async def drain(self) -> None:
        """Take no more: finish what runs, refuse the rest, for ``drain_timeout`` seconds at most."""
        self._draining = True
        if self._presence is not None:
            self._presence.leave()
        self._kept.close()
        self._queue = deque(work for work in self._queue if not self._kept.leave(work))
        if self.drain_timeout > 0:
            self._kept.finish()
        if self._subscription is not None:
            await self._subscription.close()
        incomplete = [] if self._recall is None else self._recall.gathering.leave()
        for work in (*incomplete, *self._queue):
            self._refuse(work, Refusal.DRAINING)
        self._queue.clear()
        for task in self._threads.abandoned:
            task.cancel()  # it only holds a place
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.drain_timeout):
                await self._idle.wait()
        cut_off = [*self._tasks, *self._waiting]
        for task in cut_off:
            task.cancel()
        if cut_off:
            await asyncio.wait(cut_off)
        if self._replies is not None:
            # Bounded: while the broker is away answers cannot leave, and a process that was told to end must end.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_S):
                    await self._replies.flush()

    async def close(self) -> None:
        """Stop at once: what runs is cancelled, its callers are told. The connection is closed even if this is cancelled."""
        self._draining = True
        self.drain_timeout = 0.0
        async with contextlib.AsyncExitStack() as stack:
            if self._owns_transport:
                stack.push_async_callback(self._transport.close)
            if self._replies is not None:
                stack.push_async_callback(self._replies.close)
            if self._presence is not None:
                stack.push_async_callback(self._presence.close)
            stack.callback(self._forget)
            await self.drain()

    def _forget(self) -> None:
        """End what needs no waiting."""
        metrics = self._telemetry.service_metrics()
        if metrics is not None and self._runner is not None and self._runner.durations is not None:
            metrics.remove(self)
        self._kept.end()
        self._threads.close()

    async def __aenter__(self) -> ToolServer:
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    # -- a request ----------------------------------------------------------------------------------------------

    def _on_own_message(self, message: Message, properties: Mapping[str, str]) -> None:
        """A message on the instance's own topic, from the dispatcher that it names."""
        if Property.CHALLENGE not in properties:
            self._receive(message, properties)
        elif self._presence is not None:
            self._presence.on_challenge(properties)

    def _on_message(self, message: Message) -> None:
        properties: Mapping[str, str] = {}
        with contextlib.suppress(Exception):  # whatever a peer's message makes the client raise
            properties = message.properties()
        self._receive(message, properties)

    def _receive(self, message: Message, properties: Mapping[str, str]) -> None:
        id = properties.get(Property.ID, "")
        if not REPLY_ONLY.isdisjoint(properties):
            self.malformed += 1
            logger.warning("a reply arrived on %s, where requests are expected: it is ignored", self.request_queue)
            return
        if not id or is_oversized(id):
            self.requests += 1
            self.malformed += 1
            logger.warning("a request without a usable property 'id' on %s: nobody can be answered", self.request_queue)
            return
        remaining = whole_number(properties, Property.REMAINING_MS)
        now = self._now()
        kept = message if self._durable and isinstance(message, DurableMessage) else None
        if remaining is not None and kept is not None:
            remaining = self._kept.remaining(id, remaining, kept, now)
        work = InboundRequest(id, properties, None if remaining is None else now + remaining / 1000, message)
        if kept is None:
            self._take(work)
        else:
            self._kept.take(work, kept, self._take)

    def _take(self, work: InboundRequest) -> bool:
        """Run, queue or refuse ``work``. False: it was here before, or is no request."""
        if Property.CANCEL in work.properties:
            if not is_sender(work.properties.get(Property.SESSION), work.id):
                return False
            if Property.GOODBYE in work.properties:
                self._memory.leave(work.id)
            else:
                self._cancel(work.id)
            return False
        refusal = self._memory.look(work)
        if refusal == DEALT_WITH:
            return False
        self.requests += 1
        if refusal is not None:
            self._refuse(work, refusal, work.problem)
            return True
        if work.entry is not None:
            self._works[work.id] = work
        if Property.ACK in work.properties:
            self._says.taken(work)
        if self._draining:
            self._refuse(work, Refusal.DRAINING)
        elif self._late(work):
            self._refuse(work, Refusal.EXPIRED)
        elif len(self._tasks) < self.concurrency:
            self._begin(work)
        elif len(self._queue) < self.max_queued and not self._is_stuck:
            self._queue.append(work)
        else:
            self._refuse(work, Refusal.OVERLOADED)
        return True

    def _cancel(self, id: str) -> None:
        """Nobody waits for the request ``id`` any more."""
        work = self._works.get(id)
        # Others may wait for what runs under an idempotency key.
        if work is None or work.abandoned or work.keyed is not None:
            return
        work.abandoned = True
        self.cancelled += 1
        if work.task is not None:
            work.task.cancel()

    def _late(self, work: InboundRequest) -> bool:
        return work.deadline is not None and self._now() >= work.deadline

    def _begin(self, work: InboundRequest) -> None:
        task = work.task = asyncio.get_running_loop().create_task(self._run(work))
        self._tasks.add(task)
        self._idle.clear()
        task.add_done_callback(partial(self._ended, work))

    def _ended(self, ended: InboundRequest, task: asyncio.Task[Keyed | None]) -> None:
        self._tasks.discard(task)
        first = None if task.cancelled() or task.exception() is not None else task.result()
        if first is None or not self._wait_for(ended, first):
            self._conclude(ended, task)
        while len(self._tasks) < self.concurrency and (work := self._next_queued()) is not None:
            self._begin(work)
        if not self._tasks and not self._waiting:
            self._idle.set()

    def _wait_for(self, work: InboundRequest, first: Keyed) -> bool:
        """Let ``work`` wait for the answer of ``first``, outside of the places of those that run. False: it does not."""
        if work.abandoned:
            return False
        if len(self._waiting) >= MAX_DUPLICATES:
            self._refuse(work, Refusal.OVERLOADED, f"{MAX_DUPLICATES} requests with known idempotency keys wait.")
            return False
        assert self._runner is not None  # it found the first one
        task = work.task = asyncio.get_running_loop().create_task(self._runner.answer_duplicate(work, first))
        self._waiting.add(task)
        task.add_done_callback(partial(self._waited, work))
        return True

    def _waited(self, work: InboundRequest, task: asyncio.Task[None]) -> None:
        self._waiting.discard(task)
        self._conclude(work, task)
        if not self._tasks and not self._waiting:
            self._idle.set()

    def _conclude(self, work: InboundRequest, task: asyncio.Task[Any]) -> None:
        """``task``, the last one of ``work``, has ended."""
        self._works.pop(work.id, None)
        self._memory.ended(work)
        self._kept.ended(work)
        if not task.cancelled() and (error := task.exception()) is not None:
            text = "a request ended without an answer"
            log_exception(logger, logging.ERROR, text, error, content=self._telemetry.content)

    def _next_queued(self) -> InboundRequest | None:
        """The next request that waits for a place and whose caller still waits for it."""
        while self._queue:
            work = self._queue.popleft()
            if work.abandoned:
                self._works.pop(work.id, None)
                self._memory.ended(work)
            elif self._late(work):
                self._refuse(work, Refusal.EXPIRED)
            else:
                return work
        return None

    async def _run(self, work: InboundRequest) -> Keyed | None:
        assert self._runner is not None  # as below
        request = self._runner.read(work)
        if not isinstance(request, Request):
            return request
        try:
            await self._runner.run(work, request)
            return None
        finally:
            if self._threads.abandoned:
                await self._hold_place(work)

    async def _hold_place(self, work: InboundRequest) -> None:
        """Keep the request's place until the thread of its tool has returned, should that outlive the request."""
        returned = None if work.task is None else self._threads.abandoned.get(work.task)
        if returned is None or self._draining:
            return
        if self._is_stuck:
            while (waiting := self._next_queued()) is not None:
                self._refuse(waiting, Refusal.OVERLOADED)
        await returned

    @property
    def _is_stuck(self) -> bool:
        """Is every place held by an abandoned thread? Then it cannot be known when one becomes free."""
        return self.abandoned_threads >= self.concurrency

    async def _out(self, work: InboundRequest) -> None:
        assert self._replies is not None  # as below
        await self._replies.writable(work.properties)

    @property
    def _memory(self) -> Deduplicator:
        assert self._recall is not None  # set by start, before any request can arrive
        return self._recall

    @property
    def _says(self) -> ReplySender:
        assert self._answers is not None  # as above
        return self._answers

    def _refuse(self, work: InboundRequest, reason: str, detail: str = "") -> None:
        if reason == Refusal.OVERLOADED and not detail:
            detail = f"{self.id} runs {self.concurrency} requests and {self.max_queued} wait."
            if self._is_stuck:
                detail = (
                    f"All {self.concurrency} places of {self.id} are held by threads that run on after their deadline."
                )
        self._works.pop(work.id, None)
        self._says.refuse(work, reason, detail)
        self._kept.ended(work)


async def serve(service: object, broker: str | Transport, **options: Any) -> None:
    """Serve until SIGTERM (then drain: finish what runs, refuse the rest) or until cancelled (then stop at once).

    Takes the arguments of :class:`ToolServer`.

    Raises:
        TransportError: the broker is out of reach, or refuses; the message names the fix.
    """
    server = ToolServer(service, broker, **options)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    await server.start()
    catches = threading.current_thread() is threading.main_thread()
    try:
        if catches:
            loop.add_signal_handler(signal.SIGTERM, stop.set)
        await stop.wait()
        logger.info("%s drains: %d running, %d queued", server.instance, server.running, server.queued)
        await server.drain()
    finally:
        if catches:
            loop.remove_signal_handler(signal.SIGTERM)
        with contextlib.suppress(TransportError):
            await server.close()
