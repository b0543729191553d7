"""A dispatcher and a tool service on one embedded broker, and a peer whose every answer the test writes by hand."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from dispatch import Catalog, Dispatcher, InstanceChanged, Policy, ToolServer, ToolService
from dispatch.errors import TransportError
from dispatch.messaging.wire import ErrorInfo, Property, Reply, Request, decode_request, encode_reply
from dispatch.transports import Message, Mode, Publisher, Subscription, Transport
from dispatch.transports.memory import MemoryTransport

REQUESTS = "non-persistent://tg/request/lab"
RESPONSES = "non-persistent://tg/response/lab"
BROKER = "memory://stand"
UNGUARDED: dict[str, Any] = {"retry": 1, "breaker": None, "bulkhead": None}
"""Settings of a policy under which every call goes, once: for what is about the exchange alone."""


def topics_of(name: str, scheme: str = "non-persistent") -> dict[str, str]:
    """Return the topics of a service or an instance, as its descriptor names them."""
    return {f"{kind}-queue": f"{scheme}://tg/{kind}/{name}" for kind in ("request", "response")}


def tool_of(service: str, name: str, **keys: Any) -> dict[str, Any]:
    """Return the descriptor of a tool of ``service``, with these further keys."""
    return {"type": "tool-service", "name": name, "description": f"Does {name}.", "service": service} | keys


def catalog(*, service: Mapping[str, Any] | None = None, **tools: Mapping[str, Any]) -> Catalog:
    """One service ``lab`` with the given further keys, and its tools: ``work``, unless others are named."""
    lab = {"id": "lab", "request-queue": REQUESTS, "response-queue": RESPONSES, **(service or {})}
    return Catalog.of([lab], [tool_of("lab", name, **keys) for name, keys in (tools or {"work": {}}).items()])


class Service(ToolService):
    """A service out of one function."""

    def __init__(self, work: Callable[..., Any]) -> None:
        self._work = work
        self.requests: list[tuple[dict[str, Any], dict[str, Any], str]] = []

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> Any:
        self.requests.append((config, arguments, user))
        result = self._work(arguments)
        return await result if asyncio.iscoroutine(result) else result


class Gate:
    """Work that waits until it is let go, and counts."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.begun: list[Any] = []
        self.running = self.most = self.cancelled = 0

    async def __call__(self, arguments: dict[str, Any]) -> str:
        self.begun.append(arguments.get("n"))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        return f"done {arguments['n']}" if "n" in arguments else "done"


@contextlib.asynccontextmanager
async def dispatching(
    tools: Catalog | None = None,
    *,
    transport: Transport | None = None,
    policy: Policy | None = None,
    client_id: str | None = None,
) -> AsyncIterator[Dispatcher]:
    """A started dispatcher on the stand's broker."""
    transport = MemoryTransport(BROKER) if transport is None else transport
    async with Dispatcher(transport, tools or catalog(), policy=policy or Policy(), client_id=client_id) as dispatcher:
        yield dispatcher


@contextlib.asynccontextmanager
async def serving(
    work: Callable[..., Any] | ToolService, *, at: Mapping[str, Any] | None = None, **options: Any
) -> AsyncIterator[ToolServer]:
    """A started tool server on the stand's broker; ``at``: a descriptor with its topics, those of ``lab`` by default."""
    service = work if isinstance(work, ToolService) else Service(work)
    at = at or {"request-queue": REQUESTS, "response-queue": RESPONSES}
    queues = {"request_queue": at["request-queue"], "response_queue": at["response-queue"]}
    async with ToolServer(service, **{"broker": BROKER, **queues, **options}) as server:
        yield server


@contextlib.asynccontextmanager
async def stand(
    work: Callable[..., Any] | ToolService,
    tools: Catalog | None = None,
    *,
    policy: Policy | None = None,
    **options: Any,
) -> AsyncIterator[tuple[Dispatcher, ToolServer]]:
    """Both."""
    async with serving(work, **options) as server, dispatching(tools, policy=policy) as dispatcher:
        yield dispatcher, server


def follow_instances(dispatcher: Dispatcher) -> list[InstanceChanged]:
    """Return the changes of instances, as they come."""
    changes: list[InstanceChanged] = []
    dispatcher.on_event(lambda event: changes.append(event) if isinstance(event, InstanceChanged) else None)
    return changes


async def read(chunks: AsyncIterator[str], into: list[str]) -> None:
    """Read a stream to its end, or to its error; ``into`` has what came."""
    async for chunk in chunks:
        into.append(chunk)


class Peer:
    """A tool service, or a caller, made by hand on the stand's broker. Use :meth:`as_service` or :meth:`as_caller`."""

    def __init__(self) -> None:
        self.transport = MemoryTransport(BROKER)
        self.arrived: asyncio.Queue[Message] = asyncio.Queue()
        self._publishers: dict[str, Publisher] = {}
        self._subscription: Subscription | None = None

    @classmethod
    @contextlib.asynccontextmanager
    async def as_service(cls, topic: str = REQUESTS) -> AsyncIterator[Peer]:
        """It receives requests on ``topic`` (:meth:`request`) and answers by hand (:meth:`answer`)."""
        async with cls._listening(topic) as peer:
            yield peer

    @classmethod
    @contextlib.asynccontextmanager
    async def as_caller(cls, topic: str = RESPONSES) -> AsyncIterator[Peer]:
        """It sends requests (:meth:`ask`) and receives what comes on ``topic``."""
        async with cls._listening(topic) as peer:
            yield peer

    @classmethod
    @contextlib.asynccontextmanager
    async def _listening(cls, topic: str) -> AsyncIterator[Peer]:
        peer = cls()
        await peer.transport.start()
        try:
            await peer.transport.subscribe(topic, peer.arrived.put_nowait, mode=Mode.FANOUT, name="peer")
            yield peer
        finally:
            await peer.transport.close()

    async def send(self, topic: str, payload: bytes, properties: Mapping[str, str]) -> None:
        publisher = await self.transport.publisher(topic)
        publisher.publish(payload, properties, flow="peer", on_failure=_no_failure)

    async def request(self) -> tuple[Request, dict[str, str]]:
        """The next request, with its properties."""
        message = await self.arrived.get()
        return decode_request(message.data()), message.properties()

    async def answer(
        self,
        properties: Mapping[str, str],
        text: str = "",
        *,
        error: tuple[str, str] | None = None,
        end: bool = True,
        topic: str | None = None,
        payload: bytes | None = None,
        **more: str,
    ) -> None:
        """Answer the request that had ``properties``, on its ``reply-to`` unless ``topic`` is given."""
        named = {Property.ID: properties[Property.ID]} | {key.replace("_", "-"): value for key, value in more.items()}
        if payload is None:
            payload = encode_reply(Reply(None if error is None else ErrorInfo(*error), text, end))
        await self.send(topic or properties[Property.REPLY_TO], payload, named)

    async def ask(self, payload: bytes, **properties: str) -> None:
        """Send a request with exactly these properties (``_`` for ``-``)."""
        await self.send(REQUESTS, payload, {key.replace("_", "-"): value for key, value in properties.items()})


def _no_failure(error: TransportError) -> None:
    raise AssertionError("the embedded broker takes everything of this size") from error
