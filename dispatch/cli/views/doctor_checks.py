"""Checks of ``dispatch doctor``: connection, token, namespaces, a round trip, consumers of services, sessions."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, Any

from dispatch.catalog import Catalog, ServiceDescriptor, TopicName
from dispatch.cli.round_trip import measure_round_trip
from dispatch.cli.views.check_result import CheckResult
from dispatch.cli.views.doctor_sessions import check_sessions
from dispatch.cli.views.token_expiry import check_token_expiry
from dispatch.errors import ErrorType, TransportError
from dispatch.messaging.wire.topics import REQUEST_NAMESPACE, RESPONSE_NAMESPACE, service_queues
from dispatch.transports import Security, Transport, open_transport
from dispatch.transports.pulsar.service_url import endpoints

if TYPE_CHECKING:
    from dispatch.devtools.localbroker import Admin


TCP_TIMEOUT_S = 3.0

_FOLLOW_MESSAGE = "follow the message"
_DEFAULT_PAIR = (REQUEST_NAMESPACE, RESPONSE_NAMESPACE)


class DoctorChecks:
    """Checks of one broker.

    Args:
        broker: URL of the broker.
        security: token and TLS settings.
        catalog: catalogue whose namespaces and services are checked; None: TrustGraph's namespaces.
        admin: admin interface; if it is not reachable, checks use the broker protocol where possible.
        repair: create missing tenants and namespaces.
    """

    def __init__(
        self, broker: str, security: Security, catalog: Catalog | None, admin: Admin, *, repair: bool = False
    ) -> None:
        self._broker = broker
        self._security = security
        self._catalog = catalog if catalog is not None and catalog.services else None
        self._admin = admin
        self._repair = repair
        self._namespaces = list_namespaces(self._catalog)
        self._admin_answers = False
        self._missing: set[str] = set()

    async def run_checks(self) -> AsyncGenerator[CheckResult, None]:
        """Yield each result as soon as it is known. Checks that cannot succeed after a failure are skipped."""
        address = await self._check_address()
        yield address
        if address.status == "failed":
            return
        if self._security.token is not None:
            yield self._check_token(self._security.token)
        admin = await self._check_admin()
        yield admin
        if self._repair:
            yield await self._create_missing()
        transport = open_transport(self._broker, security=self._security)
        try:
            handshake = await self._check_handshake(transport)
            yield handshake
            if handshake.status == "failed":
                return
            async for result in self._check_namespaces(transport):
                yield result
        finally:
            await transport.close()
        for pair in self._list_namespace_pairs():
            yield await self._check_round_trip(*pair)
        if self._catalog is not None:
            services = list(self._catalog.services.values())
            for service in services:
                yield await self._check_consumers(service)
            reachable = [service for service in services if not self._find_missing(service)]
            for service in services:
                if missing := self._find_missing(service):
                    yield CheckResult(
                        f"sessions of {service.id}", "skipped", f"not possible without {', '.join(missing)}"
                    )
            if reachable:
                async for result in check_sessions(self._broker, self._security, reachable):
                    yield result

    # -- the connection -----------------------------------------------------------------------------------------

    async def _check_address(self) -> CheckResult:
        problems = []
        for host, port in endpoints(self._broker):
            started = time.perf_counter()
            try:
                async with asyncio.timeout(TCP_TIMEOUT_S):
                    _, writer = await asyncio.open_connection(host, port)
            except (OSError, TimeoutError) as error:
                problems.append(f"{host}:{port}: {_describe_error(error)}")
                continue
            duration = (time.perf_counter() - started) * 1000
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            return CheckResult("connection", "ok", f"{host}:{port} accepts connections ({duration:.1f} ms)")
        return CheckResult(
            "connection",
            "failed",
            f"nothing answers at {'; '.join(problems)}",
            "dispatch broker start (or name your broker: --broker URL)",
        )

    async def _check_handshake(self, transport: Transport) -> CheckResult:
        started = time.perf_counter()
        try:
            await transport.start()
        except TransportError as error:
            if error.type == ErrorType.UNREACHABLE:
                return CheckResult(
                    "handshake",
                    "failed",
                    f"{self._broker} accepts connections but does not speak the Pulsar protocol",
                    f"use the broker port (6650), not that of the admin interface (8080){_tls_advice(self._broker)}",
                )
            fix = {
                "unauthorized": "export DISPATCH_TOKEN=… (or --token-file FILE)",
                "untrusted": "--trust-certs PEM, with the certificate that signed the broker's",
            }
            return CheckResult("handshake", "failed", error.message, fix.get(error.type, _FOLLOW_MESSAGE))
        duration = (time.perf_counter() - started) * 1000
        how = "with the token" if self._security.token is not None else "without a token"
        return CheckResult("handshake", "ok", f"Pulsar accepts the connection {how} ({duration:.0f} ms)")

    @staticmethod
    def _check_token(token: str | Callable[[], str]) -> CheckResult:
        return check_token_expiry(token() if callable(token) else token, time.time())

    # -- tenants and namespaces ---------------------------------------------------------------------------------

    async def _check_admin(self) -> CheckResult:
        from dispatch.devtools.localbroker import AdminError

        try:
            await asyncio.to_thread(self._admin.clusters)
        except AdminError as error:
            return CheckResult(
                "admin interface",
                "failed" if self._repair else "skipped",
                f"{self._admin.web_url}: {error.reason}; checks use the broker protocol instead",
                "--admin URL or DISPATCH_ADMIN, with a token that has admin permission",
            )
        self._admin_answers = True
        return CheckResult("admin interface", "ok", self._admin.web_url)

    async def _create_missing(self) -> CheckResult:
        from dispatch.devtools.localbroker import AdminError, create_namespaces

        if not self._admin_answers:
            return CheckResult(
                "repair", "failed", "creation requires the admin interface", "--admin URL or DISPATCH_ADMIN"
            )
        try:
            created = await asyncio.to_thread(create_namespaces, self._admin, self._namespaces)
        except AdminError as error:
            return CheckResult("repair", "failed", str(error), "export DISPATCH_TOKEN=… with the token of a superuser")
        return CheckResult("repair", "ok", f"created {', '.join(created)}" if created else "nothing is missing")

    async def _check_namespaces(self, transport: Transport) -> AsyncIterator[CheckResult]:
        missing_tenants = set()
        if self._admin_answers:
            for tenant in dict.fromkeys(name.partition("/")[0] for name in self._namespaces):
                result = await self._check_tenant(tenant)
                if result.status == "failed":
                    missing_tenants.add(tenant)
                yield result
        for namespace in self._namespaces:
            if namespace.partition("/")[0] in missing_tenants:
                self._missing.add(namespace)
                yield CheckResult(
                    f"namespace {namespace}",
                    "failed",
                    "its tenant does not exist",
                    self._creation_command(f"namespaces {namespace}"),
                )
            else:
                yield await self._check_namespace(transport, namespace)

    async def _check_tenant(self, tenant: str) -> CheckResult:
        from dispatch.devtools.localbroker import AdminError

        name = f"tenant {tenant}"
        try:
            await asyncio.to_thread(self._admin.namespaces, tenant)
        except AdminError as error:
            if error.status == 404:
                return CheckResult(name, "failed", "does not exist", self._creation_command(f"tenants {tenant}"))
            return CheckResult(name, "skipped", f"the admin interface gives no information: {error.reason}")
        return CheckResult(name, "ok", "exists")

    async def _check_namespace(self, transport: Transport, namespace: str) -> CheckResult:
        name = f"namespace {namespace}"
        try:
            await _open_topic(transport, namespace)
        except TransportError as error:
            self._missing.add(namespace)
            if error.type == ErrorType.NO_SUCH_NAMESPACE:
                also = (
                    ""
                    if self._admin_answers
                    else f" (or its tenant: {self._creation_command('tenants ' + namespace.split('/')[0])})"
                )
                return CheckResult(
                    name, "failed", "does not exist", self._creation_command(f"namespaces {namespace}") + also
                )
            return CheckResult(name, "failed", error.message, f"use a token whose role has permission for {namespace}")
        return CheckResult(name, "ok", "exists and is accessible")

    def _creation_command(self, what: str) -> str:
        kind, name = what.split()
        if self._admin_answers:
            return f"dispatch doctor --fix (or: pulsar-admin {kind} create {name})"
        return f"pulsar-admin {kind} create {name}"

    # -- calls --------------------------------------------------------------------------------------------------

    def _list_namespace_pairs(self) -> list[tuple[str, str]]:
        """List the pairs of namespaces of request and response topics."""
        if self._catalog is None:
            return [_DEFAULT_PAIR]
        return list(
            dict.fromkeys(
                (_namespace_of(service.request_queue), _namespace_of(service.response_queue))
                for service in self._catalog.services.values()
            )
        )

    async def _check_round_trip(self, requests: str, responses: str) -> CheckResult:
        name = f"round trip {requests} → {responses}"
        missing = sorted({requests, responses} & self._missing)
        if missing:
            return CheckResult(name, "skipped", f"not possible without {', '.join(missing)}")
        try:
            duration = await measure_round_trip(self._broker, self._security, requests, responses)
        except TransportError as error:
            return CheckResult(name, "failed", error.message, _FOLLOW_MESSAGE)
        if duration is None:
            return CheckResult(
                name,
                "failed",
                "a request to an echo service got no reply",
                "check the broker's log: it accepted the message and did not deliver it",
            )
        return CheckResult(name, "ok", f"a tool called through the broker replied in {duration * 1000:.1f} ms")

    def _find_missing(self, service: ServiceDescriptor) -> list[str]:
        return sorted({_namespace_of(service.request_queue), _namespace_of(service.response_queue)} & self._missing)

    async def _check_consumers(self, service: ServiceDescriptor) -> CheckResult:
        from dispatch.devtools.localbroker import AdminError

        name = f"service {service.id}"
        if not self._admin_answers:
            return CheckResult(name, "skipped", "consumers are only visible through the admin interface", "--admin URL")
        try:
            stats = await asyncio.to_thread(self._admin.stats, service.request_queue)
        except AdminError as error:
            if error.status != 404:
                return CheckResult(name, "skipped", f"the admin interface gives no consumers: {error.reason}")
            stats = {}
        count = sum(len(s.get("consumers") or ()) for s in _subscriptions(stats))
        if count:
            return CheckResult(name, "ok", f"{count} consuming {service.request_queue}")
        return CheckResult(
            name,
            "warning",
            f"{service.request_queue} has no consumer: calls of its tools will time out",
            f"dispatch serve MODULE:CLASS {_serve_options(service)}",
        )


def _serve_options(service: ServiceDescriptor) -> str:
    """Return the options of ``dispatch serve`` for this service."""
    topic = service.request_queue.rpartition("/")[2]
    if (service.request_queue, service.response_queue) == service_queues(topic):
        return f"--service {topic}"
    return f"--request-queue {service.request_queue} --response-queue {service.response_queue}"


async def _open_topic(transport: Transport, namespace: str) -> None:
    """Open a topic with a unique name and close it."""
    publisher = await transport.publisher(f"non-persistent://{namespace}/dispatch-doctor-{secrets.token_hex(6)}")
    await publisher.close()


def list_namespaces(catalog: Catalog | None) -> list[str]:
    """List the namespaces of every topic in ``catalog``; without one, TrustGraph's four."""
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


def _describe_error(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no reply within {TCP_TIMEOUT_S:g} s"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _tls_advice(broker: str) -> str:
    if broker.startswith("pulsar+ssl://"):
        return "; without TLS use pulsar://; with TLS name its certificate with --trust-certs"
    return "; for a TLS port use pulsar+ssl://"
