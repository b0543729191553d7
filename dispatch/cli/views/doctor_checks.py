"""What ``dispatch doctor`` looks at, one after the other: connection, namespaces, a real round trip, listeners."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from dispatch.catalog import Catalog, ServiceDescriptor, TopicName
from dispatch.cli.commands.round_trip import call_ourselves
from dispatch.errors import ErrorType, TransportError
from dispatch.transports import Security, Transport, open_transport
from dispatch.transports.pulsar.service_url import endpoints

if TYPE_CHECKING:
    from dispatch.devtools.localbroker import Admin

Status = Literal["ok", "failed", "warning", "skipped"]

TCP_TIMEOUT_S = 3.0

_AS_SAID = "mend what the message names"
_USUAL_PAIR = ("tg/request", "tg/response")


@dataclass(frozen=True, slots=True)
class Finding:
    """What one look found.

    Attributes:
        name: what was looked at.
        status: ``warning`` and ``skipped`` do not make the whole a failure.
        detail: what is there, or what is wrong.
        fix: the command that mends it; ``""`` when there is nothing to mend.
    """

    name: str
    status: Status
    detail: str
    fix: str = ""

    def as_dict(self) -> dict[str, str]:
        """As plain values, for ``--json``."""
        return {"name": self.name, "status": self.status, "detail": self.detail, "fix": self.fix}


class Diagnosis:
    """Looks at one broker.

    Args:
        broker: its URL.
        security: token and TLS settings.
        catalog: whose namespaces and services to look at; None: TrustGraph's namespaces.
        admin: its admin interface; it may be out of reach: then the broker itself is asked as far as it can tell.
        repair: make the tenants and namespaces that are missing.
    """

    def __init__(
        self, broker: str, security: Security, catalog: Catalog | None, admin: Admin, *, repair: bool = False
    ) -> None:
        self._broker = broker
        self._security = security
        self._catalog = catalog if catalog is not None and catalog.services else None
        self._admin = admin
        self._repair = repair
        self._namespaces = namespaces_of(self._catalog)
        self._admin_answers = False
        self._missing: set[str] = set()

    async def findings(self) -> AsyncGenerator[Finding, None]:
        """Each finding as soon as it is there. What cannot work after a failure is skipped."""
        address = await self._address()
        yield address
        if address.status == "failed":
            return
        if self._security.token is not None:
            yield self._token(self._security.token)
        admin = await self._ask_admin()
        yield admin
        if self._repair:
            yield await self._make_missing()
        transport = open_transport(self._broker, security=self._security)
        try:
            handshake = await self._handshake(transport)
            yield handshake
            if handshake.status == "failed":
                return
            async for finding in self._look_at_namespaces(transport):
                yield finding
        finally:
            await transport.close()
        for pair in self._pairs():
            yield await self._round_trip(*pair)
        if self._catalog is not None:
            for service in self._catalog.services.values():
                yield await self._listeners(service)

    # -- the connection -----------------------------------------------------------------------------------------

    async def _address(self) -> Finding:
        problems = []
        for host, port in endpoints(self._broker):
            started = time.perf_counter()
            try:
                async with asyncio.timeout(TCP_TIMEOUT_S):
                    _, writer = await asyncio.open_connection(host, port)
            except (OSError, TimeoutError) as error:
                problems.append(f"{host}:{port}: {_why(error)}")
                continue
            took = (time.perf_counter() - started) * 1000
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            return Finding("connection", "ok", f"{host}:{port} accepts connections ({took:.1f} ms)")
        return Finding(
            "connection",
            "failed",
            f"nothing answers at {'; '.join(problems)}",
            "dispatch broker start (or give the address of yours: --broker URL)",
        )

    async def _handshake(self, transport: Transport) -> Finding:
        started = time.perf_counter()
        try:
            await transport.start()
        except TransportError as error:
            if error.type == ErrorType.UNREACHABLE:
                return Finding(
                    "handshake",
                    "failed",
                    f"something listens at {self._broker}, but does not answer as Pulsar does",
                    f"use the broker's own port (6650; the admin interface's 8080 is another){_tls_advice(self._broker)}",
                )
            fix = {
                "unauthorized": "export DISPATCH_TOKEN=… (or --token-file FILE)",
                "untrusted": "--trust-certs PEM, with the certificate that signed the broker's",
            }
            return Finding("handshake", "failed", error.message, fix.get(error.type, _AS_SAID))
        took = (time.perf_counter() - started) * 1000
        who = "with our token" if self._security.token is not None else "without a token"
        return Finding("handshake", "ok", f"Pulsar lets us in {who} ({took:.0f} ms)")

    @staticmethod
    def _token(token: str | Callable[[], str]) -> Finding:
        from dispatch.cli.token_expiry import token_expiry

        return token_expiry(token() if callable(token) else token, time.time())

    # -- tenants and namespaces ---------------------------------------------------------------------------------

    async def _ask_admin(self) -> Finding:
        from dispatch.devtools.localbroker import AdminError

        try:
            await asyncio.to_thread(self._admin.clusters)
        except AdminError as error:
            return Finding(
                "admin interface",
                "failed" if self._repair else "skipped",
                f"{self._admin.web_url}: {error.reason}; the broker itself is asked instead",
                "--admin URL or DISPATCH_ADMIN, with a token that may use it",
            )
        self._admin_answers = True
        return Finding("admin interface", "ok", self._admin.web_url)

    async def _make_missing(self) -> Finding:
        from dispatch.devtools.localbroker import AdminError, prepare

        if not self._admin_answers:
            return Finding(
                "repair", "failed", "nothing can be made without the admin interface", "--admin URL or DISPATCH_ADMIN"
            )
        try:
            made = await asyncio.to_thread(prepare, self._admin, self._namespaces)
        except AdminError as error:
            return Finding("repair", "failed", str(error), "export DISPATCH_TOKEN=… with the token of a super user")
        return Finding("repair", "ok", f"made {', '.join(made)}" if made else "nothing was missing")

    async def _look_at_namespaces(self, transport: Transport) -> AsyncIterator[Finding]:
        tenants_gone = set()
        if self._admin_answers:
            for tenant in dict.fromkeys(name.partition("/")[0] for name in self._namespaces):
                finding = await self._tenant(tenant)
                if finding.status == "failed":
                    tenants_gone.add(tenant)
                yield finding
        for namespace in self._namespaces:
            if namespace.partition("/")[0] in tenants_gone:
                self._missing.add(namespace)
                yield Finding(
                    f"namespace {namespace}",
                    "failed",
                    "its tenant does not exist",
                    self._fix(f"namespaces {namespace}"),
                )
            else:
                yield await self._namespace(transport, namespace)

    async def _tenant(self, tenant: str) -> Finding:
        from dispatch.devtools.localbroker import AdminError

        name = f"tenant {tenant}"
        try:
            await asyncio.to_thread(self._admin.namespaces, tenant)
        except AdminError as error:
            if error.status == 404:
                return Finding(name, "failed", "does not exist", self._fix(f"tenants {tenant}"))
            return Finding(name, "skipped", f"the admin interface does not tell: {error.reason}")
        return Finding(name, "ok", "exists")

    async def _namespace(self, transport: Transport, namespace: str) -> Finding:
        name = f"namespace {namespace}"
        try:
            await _touch(transport, namespace)
        except TransportError as error:
            self._missing.add(namespace)
            if error.type == ErrorType.NO_SUCH_NAMESPACE:
                also = (
                    ""
                    if self._admin_answers
                    else f" (or its tenant: {self._fix('tenants ' + namespace.split('/')[0])})"
                )
                return Finding(name, "failed", "does not exist", self._fix(f"namespaces {namespace}") + also)
            return Finding(name, "failed", error.message, f"give a token whose role may use {namespace}")
        return Finding(name, "ok", "exists, and we may use it")

    def _fix(self, what: str) -> str:
        kind, name = what.split()
        if self._admin_answers:
            return f"dispatch doctor --fix (or: pulsar-admin {kind} create {name})"
        return f"pulsar-admin {kind} create {name}"

    # -- calls --------------------------------------------------------------------------------------------------

    def _pairs(self) -> list[tuple[str, str]]:
        """The pairs of namespaces that requests and responses travel through."""
        if self._catalog is None:
            return [_USUAL_PAIR]
        return list(
            dict.fromkeys(
                (_namespace_of(service.request_queue), _namespace_of(service.response_queue))
                for service in self._catalog.services.values()
            )
        )

    async def _round_trip(self, requests: str, responses: str) -> Finding:
        name = f"round trip {requests} → {responses}"
        missing = sorted({requests, responses} & self._missing)
        if missing:
            return Finding(name, "skipped", f"not possible without {', '.join(missing)}")
        try:
            took = await call_ourselves(self._broker, self._security, requests, responses)
        except TransportError as error:
            return Finding(name, "failed", error.message, _AS_SAID)
        if took is None:
            return Finding(
                name,
                "failed",
                "a request we sent to ourselves was not answered",
                "look at the broker's log: it took the message and delivered nothing",
            )
        return Finding(name, "ok", f"a tool called through the broker answered in {took * 1000:.1f} ms")

    async def _listeners(self, service: ServiceDescriptor) -> Finding:
        from dispatch.devtools.localbroker import AdminError

        name = f"service {service.id}"
        if not self._admin_answers:
            return Finding(name, "skipped", "only the admin interface tells who listens", "--admin URL")
        try:
            stats = await asyncio.to_thread(self._admin.stats, service.request_queue)
        except AdminError as error:
            if error.status != 404:
                return Finding(name, "skipped", f"the admin interface does not tell who listens: {error.reason}")
            stats = {}
        count = sum(len(s.get("consumers") or ()) for s in _subscriptions(stats))
        if count:
            return Finding(name, "ok", f"{count} listening on {service.request_queue}")
        return Finding(
            name,
            "warning",
            f"nobody listens on {service.request_queue}: calls of its tools will time out",
            f"dispatch serve MODULE:CLASS {_where(service)}",
        )


def _where(service: ServiceDescriptor) -> str:
    """The options of ``dispatch serve`` for this service."""
    topic = service.request_queue.rpartition("/")[2]
    usual = (f"non-persistent://tg/request/{topic}", f"non-persistent://tg/response/{topic}")
    if (service.request_queue, service.response_queue) == usual:
        return f"--service {topic}"
    return f"--request-queue {service.request_queue} --response-queue {service.response_queue}"


async def _touch(transport: Transport, namespace: str) -> None:
    """Open a topic that nobody else uses, and let go of it."""
    publisher = await transport.publisher(f"non-persistent://{namespace}/dispatch-doctor-{secrets.token_hex(6)}")
    await publisher.close()


def namespaces_of(catalog: Catalog | None) -> list[str]:
    """The namespaces of every topic in ``catalog``; without one, TrustGraph's four."""
    from dispatch.devtools.localbroker import DEFAULT_NAMESPACES

    if catalog is None:
        return list(DEFAULT_NAMESPACES)
    topics: list[str] = []
    for service in catalog.services.values():
        topics += [service.request_queue, service.response_queue]
        for instance in service.instances:
            topics += [instance.request_queue, instance.response_queue]
    return list(dict.fromkeys(map(_namespace_of, topics)))


def _namespace_of(topic: str) -> str:
    return TopicName.parse(topic).namespace_path


def _subscriptions(stats: dict[str, Any]) -> Iterable[dict[str, Any]]:
    found = stats.get("subscriptions")
    return [s for s in found.values() if isinstance(s, dict)] if isinstance(found, dict) else []


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {TCP_TIMEOUT_S:g} s"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _tls_advice(broker: str) -> str:
    if broker.startswith("pulsar+ssl://"):
        return "; if it has no TLS, write pulsar://; if it has, give its certificate with --trust-certs"
    return "; if that port is for TLS, write pulsar+ssl://"
