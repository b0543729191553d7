"""``dispatch doctor``: check everything that a call needs."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import json
import math
import os
import re
import secrets
import socket
import sys
import textwrap
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from dispatch.catalog import Catalog, CatalogError, ServiceDescriptor, TopicName
from dispatch.cli.base import (
    CliError,
    Exit,
    Rows,
    Settings,
    align_columns,
    colorize,
    console,
    format_count,
    is_servers_file,
    is_terminal,
    make_printable,
    print_json,
    print_out,
    print_result,
    run_async,
    with_settings,
)
from dispatch.cli.sources import load_catalog
from dispatch.dispatcher import Dispatcher
from dispatch.errors import DispatchError, ErrorType, TransportError
from dispatch.messaging.plain import Correlator
from dispatch.messaging.sessions import SessionExchange
from dispatch.messaging.wire import REQUEST_NAMESPACE, RESPONSE_NAMESPACE, service_queues
from dispatch.protocol import is_packet
from dispatch.protocol.frames import MalformedPacketError, Packet, decode_packet
from dispatch.routing.channels import Channels
from dispatch.routing.instance import SessionInstance, TopicChannel
from dispatch.server import ToolServer
from dispatch.transports import Security, Transport, open_transport
from dispatch.transports.errors import describe_without_call
from dispatch.transports.pulsar.handshake import endpoints

if TYPE_CHECKING:
    from dispatch.devtools.localbroker import Admin, AdminError
    from dispatch.devtools.lossprobe import Measurement, Plan

T = TypeVar("T")
_loss_option = partial(typer.Option, rich_help_panel="Loss")
_STYLES = {"ok": "green", "failed": "red", "warning": "yellow", "skipped": "dim"}


@with_settings("broker", "catalog", "token_file", "trust_certs")
def doctor(
    settings: Settings,
    admin: str | None = None,
    fix: bool = False,
    loss: Annotated[bool, _loss_option()] = False,
    sizes: Annotated[str | None, _loss_option()] = None,
    in_flight: Annotated[str | None, _loss_option()] = None,
    calls: Annotated[int | None, _loss_option(min=1)] = None,
    packet: str | None = None,
    json: bool = False,
) -> None:
    """Check everything that a call needs: connection, token, tenants and namespaces, a round trip, services.

    Each line is ok or failed, with the command that fixes it. The exit code is 1 if a check failed. The namespaces are those
    of the catalogue's topics; without a catalogue TrustGraph's four (tg/request, tg/response, tg/flow, tg/notify).

    [bold]dispatch doctor --catalog tools/[/bold] also checks that services consume their request topics, and opens a session
    with each instance: its round-trip time, window and requests in execution. No tool is executed.

    [bold]dispatch doctor --fix[/bold] creates missing tenants and namespaces.

    [bold]dispatch doctor --loss[/bold] measures how many calls lose their messages on this broker, without sessions (a plain
    pulsar-client) and with sessions (dispatch), on topics of its own, and gives advice. It loads the broker for about a
    minute; Ctrl-C shows the results so far. The exit code is 1 if calls with sessions were lost.

    [bold]dispatch doctor --loss --sizes 10k,100k --in-flight 16,64[/bold] measures your own sizes and load.

    [bold]dispatch doctor --loss --sizes 100k --in-flight 64 --calls 10000 --json[/bold] finds rarer losses.

    [bold]dispatch doctor --packet 9a01…[/bold] decodes a packet between a dispatcher and an instance, without its secrets.

    Args:
        admin (URL): URL of the broker's admin interface. Default: port 8080 of the broker's host.
        fix: Create missing tenants and namespaces.
        loss: Measure message loss instead: about a minute of load.
        sizes (LIST): Reply sizes, separated by commas; k and M are thousands and millions of bytes. Default:
            120,1k,10k,100k,1M.
        in_flight (LIST): Numbers of concurrent calls, separated by commas. Default: 1,16,64,256.
        calls (N): Calls per size, number in flight and variant. Default: as many as fit into a share of a minute.
        packet (HEX): Decode a packet of a session instead: hexadecimal or base64; -: from stdin. Payloads are shown as
            sizes.
        json: Print everything as one line of JSON.
    """
    from dispatch.devtools.localbroker import Admin

    if packet is not None:
        if fix or loss or admin is not None:
            raise CliError("--packet cannot be combined with --fix, --loss and --admin.", "leave these options out")
        show_packet(packet, json=json)
        return
    if loss:
        if fix or admin is not None:
            raise CliError("--fix and --admin cannot be combined with --loss.", "run 'dispatch doctor --fix' first")
        measure_loss(settings, sizes=sizes, in_flight=in_flight, calls=calls, json=json)
        return
    if sizes is not None or in_flight is not None or calls is not None:
        raise CliError("--sizes, --in-flight and --calls require --loss.", "add --loss")
    broker = settings.require_pulsar_url("dispatch doctor")
    endpoints(broker)  # rejects a wrong URL as wrong usage
    security = settings.security()
    token = security.token() if callable(security.token) else security.token
    certificates = None if security.trust_certs is None else str(security.trust_certs)
    web_url = admin or default_admin_url(broker)
    try:
        interface = Admin(web_url, token, ca_file=certificates)
    except ValueError as error:
        raise CliError(f"{error}.", "change --admin") from None
    results: list[CheckResult] = []
    catalog, first = _load_catalog(settings)
    if first is not None:
        results.append(first)
    checks = DoctorChecks(broker, security, catalog, interface, repair=fix)
    if not json:
        print_out(f"Broker {broker}")
        for result in results:
            _show(result)
    run_async(_collect(checks, results, json))
    failed = sum(result.status == "failed" for result in results)
    warnings = sum(result.status == "warning" for result in results)
    text = "All checks passed."
    if failed:
        text = f"{failed} failed."
    elif warnings:
        text = f"No check failed; {format_count(warnings, 'warning')}."
    checked = [result.as_dict() for result in results]
    print_result({"broker": broker, "admin": web_url, "ok": not failed, "checks": checked}, text, json=json)
    if failed:
        raise typer.Exit(Exit.FAILED)


def _load_catalog(settings: Settings) -> tuple[Catalog | None, CheckResult | None]:
    folders = [path for path in settings.catalog_folders if not is_servers_file(path)]
    if not folders:
        return None, None
    where = ", ".join(folders)
    try:
        catalog = load_catalog(settings)
    except CatalogError as error:
        errors = sum(problem.severity == "error" for problem in error.problems)
        return None, CheckResult(
            "catalogue", "failed", f"{where}: {format_count(errors, 'mistake')}", f"dispatch check {' '.join(folders)}"
        )
    return catalog, CheckResult(
        "catalogue",
        "ok",
        f"{where}: {format_count(len(catalog.services), 'service')}, {format_count(len(catalog.tools), 'tool')}",
    )


async def _collect(checks: DoctorChecks, results: list[CheckResult], json: bool) -> None:
    has_spinner = not json and is_terminal(sys.stderr) and is_terminal(sys.stdout)
    # A broker that does not reply takes seconds.
    with console(sys.stdout).status("checking") if has_spinner else contextlib.nullcontext():
        async with contextlib.aclosing(checks.run_checks()) as found:
            async for result in found:
                results.append(result)
                if not json:
                    _show(result)


def _show(result: CheckResult) -> None:
    status = colorize(f"{result.status:8}", _STYLES[result.status], sys.stdout)
    print_out(f"{status} {result.name}: {make_printable(result.detail)}")
    if result.fix:
        print_out(f"         fix: {make_printable(result.fix)}")


def default_admin_url(broker: str) -> str:
    """Return the admin URL of the local broker if ``broker`` is that one; else port 8080 of the first host."""
    from dispatch.devtools.localbroker import DEFAULT_WEB_PORT, status

    local = status()
    broker_endpoints = endpoints(broker)
    if local is not None and set(broker_endpoints) <= {
        (host, port) for _, port in endpoints(local.service_url) for host in _LOOPBACK
    }:
        return local.web_url
    host = broker_endpoints[0][0]
    return f"http://{f'[{host}]' if ':' in host else host}:{DEFAULT_WEB_PORT}"


_LOOPBACK = ("127.0.0.1", "localhost", "::1")

# CheckResult: what one check of the doctor found.


Status = Literal["ok", "failed", "warning", "skipped"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check.

    Attributes:
        name: subject of the check.
        status: ``warning`` and ``skipped`` are not failures.
        detail: what was found.
        fix: the command that fixes it; ``""`` if nothing is wrong.
        sessions: what was measured of each session, for programs.
    """

    name: str
    status: Status
    detail: str
    fix: str = ""
    sessions: tuple[Mapping[str, Any], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for ``--json``."""
        found: dict[str, Any] = {"name": self.name, "status": self.status, "detail": self.detail, "fix": self.fix}
        return found | {"sessions": list(self.sessions)} if self.sessions else found


class CheckError(Exception):
    """Ends a check that is not ok.

    Args:
        detail, fix, status: as of :class:`CheckResult`.
    """

    def __init__(self, detail: str, fix: str = "", status: Status = "failed") -> None:
        super().__init__(detail)
        self.fix = fix
        self.status: Status = status


async def run_check(name: str, check: Awaitable[str]) -> CheckResult:
    """Return the result of a check, which returns what was found, or raises an error."""
    try:
        return CheckResult(name, "ok", await check)
    except CheckError as error:
        return CheckResult(name, error.status, str(error), error.fix)
    except TransportError as error:
        return CheckResult(name, "failed", describe_without_call(error), _FOLLOW_MESSAGE)


# Sessions with the instances of services: opened, measured and ended, as a dispatcher does it; no tool is executed.


ANSWERS_S = 1.0
"""Seconds in which instances answer: a hello is sent three times in the first tenth of a second."""
PROBES = 5
"""Probes of each session. A new session knows the round-trip time of its handshake only, in which topics are opened."""
PROBE_EVERY_S = 0.05


async def check_sessions(
    broker: str, security: Security, services: Sequence[ServiceDescriptor]
) -> AsyncIterator[CheckResult]:
    """Open a session with each instance of ``services``, and yield what was found for each service."""
    transport = open_transport(broker, security=security)
    try:
        await transport.start()
        async for result in _check_services(transport, services):
            yield result
    except TransportError as error:
        yield CheckResult("sessions", "failed", describe_without_call(error), _FOLLOW_MESSAGE)
    finally:
        await transport.close()


async def _check_services(transport: Transport, services: Sequence[ServiceDescriptor]) -> AsyncIterator[CheckResult]:
    exchange = Correlator()
    sessions = SessionExchange(exchange.replies)
    channels = Channels(transport, exchange, sessions, f"doctor-{secrets.token_hex(6)}")
    try:
        for service in services:
            try:
                channel = await channels.open(service.request_queue, service.response_queue)
                assert isinstance(channel, TopicChannel)  # services of a broker have topics
                yield await _check_service(channel, service)
            except TransportError as error:
                yield CheckResult(f"sessions of {service.id}", "failed", describe_without_call(error), _FOLLOW_MESSAGE)
    finally:
        exchange.close()
        sessions.close()
        await channels.close()


async def _check_service(channel: TopicChannel, service: ServiceDescriptor) -> CheckResult:
    name = f"sessions of {service.id}"
    if channel.endpoint is None:
        return CheckResult(name, "skipped", "persistent topics have the plain exchange")
    await asyncio.sleep(ANSWERS_S)
    for _ in range(PROBES):
        for instance in channel.instances:
            instance.session.probe()
            instance.endpoint.wake(instance.session)
        await asyncio.sleep(PROBE_EVERY_S)
    measured = sorted(map(_measure_session, channel.instances), key=lambda each: str(each["instance"]))
    if not measured:
        return CheckResult(
            name,
            "skipped",
            "no instance of ToolService answers: none is running, or all are third-party ones, which have no sessions",
        )
    return CheckResult(name, "ok", "; ".join(map(_describe_session, measured)), sessions=tuple(measured))


def _measure_session(instance: SessionInstance) -> dict[str, Any]:
    """Return what a session has measured: its smoothed round-trip time, the requests that the instance executes, the bytes
    without an acknowledgement that it allows, the connections on which it receives packets, packets sent and lost."""
    session = instance.session
    return {
        "instance": instance.name,
        "incarnation": instance.incarnation,
        "rtt_ms": round(session.rtt * 1000.0, 3),
        "running": session.peer_load,
        "window": session.window,
        "paths": len(session.peer_inboxes),
        "packets": session.statistics.packets_sent,
        "retransmissions": session.statistics.retransmissions,
    }


def _describe_session(measured: Mapping[str, Any]) -> str:
    count = measured["retransmissions"]
    lost = f", {format_count(count, 'packet')} lost" if count else ""
    return (
        f"{measured['instance']} answers in {measured['rtt_ms']:.1f} ms, executes "
        f"{format_count(measured['running'], 'request')}, window {measured['window']:,} bytes, "
        f"{format_count(measured['paths'], 'path')}{lost}"
    )


# Check of a token's expiry by the JWT claim ``exp``, without verification of the signature.


SOON_S = 7 * 86_400.0
"""Remaining validity in seconds below which the check warns."""
_FIX = "export DISPATCH_TOKEN=… with a new token (or --token-file FILE), and restart processes that use the old one"


def parse_claims(token: str) -> dict[str, Any] | None:
    """Decode the claims of a JWT without verification; None: not a JWT."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    body = parts[1]
    try:
        claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    except (binascii.Error, ValueError):  # ValueError: not UTF-8 or not JSON
        return None
    return claims if isinstance(claims, dict) else None


def check_token_expiry(token: str, now: float) -> CheckResult:
    """Check the expiry of a token.

    Args:
        now: Unix time in seconds.
    """
    claims = parse_claims(token)
    if claims is None:
        return CheckResult("token", "skipped", "not a JWT: only the broker knows its expiry")
    subject = claims.get("sub")
    whose = f"the token of '{subject:.100}'" if isinstance(subject, str) else "the token"
    expiry = claims.get("exp")
    if expiry is None:
        return CheckResult("token", "ok", f"{whose} does not expire")
    try:
        at = datetime.fromtimestamp(float(expiry), UTC)
    except (TypeError, ValueError, OverflowError, OSError):
        return CheckResult("token", "warning", f"{whose} has an invalid expiry ('exp': {expiry!r:.100})", _FIX)
    when = f"{at:%Y-%m-%d %H:%M:%S} UTC"
    remaining = float(expiry) - now
    if remaining <= 0:
        return CheckResult("token", "failed", f"{whose} has EXPIRED, {_format_span(-remaining)} ago ({when})", _FIX)
    detail = f"{whose} expires in {_format_span(remaining)} ({when})"
    return CheckResult("token", "warning", detail, _FIX) if remaining < SOON_S else CheckResult("token", "ok", detail)


def _format_span(seconds: float) -> str:
    for size, unit in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if seconds >= size:
            count = math.floor(seconds / size)
            return f"{count:,} {unit}{'s' if count > 1 else ''}"
    return "less than a minute"


# A round trip through a broker: an echo service, called by a dispatcher in the same process.


ROUND_TRIP_TIMEOUT_S = 10.0
"""Timeout in seconds: a round trip takes a millisecond, but the first one opens topics, 1 to 2 s on a busy broker."""


ROUND_TRIP_BYTES = 64
"""Size of the reply."""


async def measure_round_trip(broker: str, security: Security, requests: str, responses: str) -> float | None:
    """Return the seconds that a call through ``broker`` takes; None if no reply arrived.

    Args:
        broker: the URL.
        security: token and TLS settings.
        requests: the namespace of the request topic.
        responses: the namespace of the response topic.

    Raises:
        TransportError: the topics cannot be opened; the message names the fix.
    """
    from dispatch.devtools.lossprobe import Echo, make_echo_catalog, reply_text

    # Non-persistent topics whatever the catalogue uses: they vanish after the check.
    topic = f"dispatch-doctor-{secrets.token_hex(6)}"
    request_queue, response_queue = f"non-persistent://{requests}/{topic}", f"non-persistent://{responses}/{topic}"
    with contextlib.suppress(TimeoutError):
        async with (
            asyncio.timeout(2 * ROUND_TRIP_TIMEOUT_S),
            ToolServer(Echo(), broker, request_queue=request_queue, response_queue=response_queue, security=security),
            Dispatcher(
                open_transport(broker, security=security), make_echo_catalog(request_queue, response_queue)
            ) as dispatcher,
        ):
            await dispatcher.execute("echo", {"size": 1}, timeout=ROUND_TRIP_TIMEOUT_S)  # opens the topics
            result = await dispatcher.execute("echo", {"size": ROUND_TRIP_BYTES}, timeout=ROUND_TRIP_TIMEOUT_S)
            if result.text == reply_text(ROUND_TRIP_BYTES):
                return result.duration
    return None


# Checks of ``dispatch doctor``: connection, token, namespaces, a round trip, consumers of services, sessions.


TCP_TIMEOUT_S = 3.0

_FOLLOW_MESSAGE = "follow the message"


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
        yield (address := await run_check("connection", self._check_address()))
        if address.status == "failed":
            return
        if self._security.token is not None:
            token = self._security.token
            yield check_token_expiry(token() if callable(token) else token, time.time())
        yield await run_check("admin interface", self._check_admin())
        if self._repair:
            yield await run_check("repair", self._create_missing())
        transport = open_transport(self._broker, security=self._security)
        try:
            yield (handshake := await run_check("handshake", self._check_handshake(transport)))
            if handshake.status == "failed":
                return
            missing_tenants = set()
            for tenant in dict.fromkeys(map(_tenant_of, self._namespaces)) if self._admin_answers else ():
                yield (result := await run_check(f"tenant {tenant}", self._check_tenant(tenant)))
                if result.status == "failed":
                    missing_tenants.add(tenant)
            for namespace in self._namespaces:
                check = self._check_namespace(transport, namespace, _tenant_of(namespace) not in missing_tenants)
                yield (result := await run_check(f"namespace {namespace}", check))
                if result.status == "failed":
                    self._missing.add(namespace)
        finally:
            await transport.close()
        for pair in list_namespace_pairs(self._catalog):
            yield await run_check(f"round trip {' → '.join(pair)}", self._check_round_trip(*pair))
        services = () if self._catalog is None else self._catalog.services.values()
        for service in services:
            yield await run_check(f"service {service.id}", self._check_consumers(service))
        reachable = []
        for service in services:
            try:
                self._require(_namespaces_of(service))
                reachable.append(service)
            except CheckError as error:
                yield CheckResult(f"sessions of {service.id}", error.status, str(error))
        if reachable:
            async for result in check_sessions(self._broker, self._security, reachable):
                yield result

    # -- the connection -----------------------------------------------------------------------------------------

    async def _check_address(self) -> str:
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
            return f"{host}:{port} accepts connections ({duration:.1f} ms)"
        fix = "dispatch broker start (or name your broker: --broker URL)"
        raise CheckError(f"nothing answers at {'; '.join(problems)}", fix)

    async def _check_handshake(self, transport: Transport) -> str:
        started = time.perf_counter()
        try:
            await transport.start()
        except TransportError as error:
            if error.type == ErrorType.UNREACHABLE:
                raise CheckError(
                    f"{self._broker} accepts connections but does not speak the Pulsar protocol",
                    f"use the broker port (6650), not that of the admin interface (8080){_tls_advice(self._broker)}",
                ) from None
            fix = {
                "unauthorized": "export DISPATCH_TOKEN=… (or --token-file FILE)",
                "untrusted": "--trust-certs PEM, with the certificate that signed the broker's",
            }
            raise CheckError(describe_without_call(error), fix.get(error.type, _FOLLOW_MESSAGE)) from None
        duration = (time.perf_counter() - started) * 1000
        how = "with the token" if self._security.token is not None else "without a token"
        return f"Pulsar accepts the connection {how} ({duration:.0f} ms)"

    # -- tenants and namespaces ---------------------------------------------------------------------------------

    async def _ask(self, question: Callable[..., T], *values: Any) -> T | AdminError:
        """Return the answer of the admin interface to a question, or its error."""
        from dispatch.devtools.localbroker import AdminError

        try:
            return await asyncio.to_thread(question, *values)
        except AdminError as error:
            return error

    async def _check_admin(self) -> str:
        answer = await self._ask(self._admin.clusters)
        if isinstance(answer, Exception):
            raise CheckError(
                f"{self._admin.web_url}: {answer.reason}; checks use the broker protocol instead",
                "--admin URL, with a token that has admin permission",
                "failed" if self._repair else "skipped",
            )
        self._admin_answers = True
        return self._admin.web_url

    async def _create_missing(self) -> str:
        from dispatch.devtools.localbroker import create_namespaces

        if not self._admin_answers:
            raise CheckError("creation requires the admin interface", "--admin URL")
        created = await self._ask(create_namespaces, self._admin, self._namespaces)
        if isinstance(created, Exception):
            raise CheckError(str(created), "export DISPATCH_TOKEN=… with the token of a superuser")
        return f"created {', '.join(created)}" if created else "nothing is missing"

    async def _check_tenant(self, tenant: str) -> str:
        answer = await self._ask(self._admin.namespaces, tenant)
        if not isinstance(answer, Exception):
            return "exists"
        if answer.status == 404:
            raise CheckError("does not exist", self._creation_command("tenants", tenant))
        raise CheckError(f"the admin interface gives no information: {answer.reason}", status="skipped")

    async def _check_namespace(self, transport: Transport, namespace: str, has_tenant: bool) -> str:
        creation = self._creation_command("namespaces", namespace)
        if not has_tenant:
            raise CheckError("its tenant does not exist", creation)
        try:
            # A topic with a unique name.
            publisher = await transport.publisher(
                f"non-persistent://{namespace}/dispatch-doctor-{secrets.token_hex(6)}"
            )
            await publisher.close()
        except TransportError as error:
            if error.type != ErrorType.NO_SUCH_NAMESPACE:
                fix = f"use a token whose role has permission for {namespace}"
                raise CheckError(describe_without_call(error), fix) from None
            if not self._admin_answers:
                creation += f" (or its tenant: {self._creation_command('tenants', _tenant_of(namespace))})"
            raise CheckError("does not exist", creation) from None
        return "exists and is accessible"

    def _creation_command(self, kind: str, name: str) -> str:
        command = f"pulsar-admin {kind} create {name}"
        return f"dispatch doctor --fix (or: {command})" if self._admin_answers else command

    # -- calls --------------------------------------------------------------------------------------------------

    def _require(self, namespaces: Iterable[str]) -> None:
        """Check that none of ``namespaces`` is missing.

        Raises:
            CheckError: one is, so that the check is skipped.
        """
        if missing := sorted(self._missing.intersection(namespaces)):
            raise CheckError(f"not possible without {', '.join(missing)}", status="skipped")

    async def _check_round_trip(self, requests: str, responses: str) -> str:
        self._require((requests, responses))
        duration = await measure_round_trip(self._broker, self._security, requests, responses)
        if duration is None:
            raise CheckError(
                "a request to an echo service got no reply",
                "check the broker's log: it accepted the message and did not deliver it",
            )
        return f"a tool called through the broker replied in {duration * 1000:.1f} ms"

    async def _check_consumers(self, service: ServiceDescriptor) -> str:
        if not self._admin_answers:
            raise CheckError("consumers are only visible through the admin interface", "--admin URL", "skipped")
        stats = await self._ask(self._admin.stats, service.request_queue)
        if isinstance(stats, Exception):
            if stats.status != 404:
                raise CheckError(f"the admin interface gives no consumers: {stats.reason}", status="skipped")
            stats = {}
        found = stats.get("subscriptions")
        subscriptions = found.values() if isinstance(found, dict) else ()
        count = sum(len(each.get("consumers") or ()) for each in subscriptions if isinstance(each, dict))
        if not count:
            problem = f"{service.request_queue} has no consumer: calls of its tools will time out"
            raise CheckError(problem, f"dispatch serve MODULE:CLASS {_serve_options(service)}", "warning")
        return f"{count} consuming {service.request_queue}"


def _serve_options(service: ServiceDescriptor) -> str:
    """Return the options of ``dispatch serve`` for this service."""
    topic = service.request_queue.rpartition("/")[2]
    if (service.request_queue, service.response_queue) == service_queues(topic):
        return f"--service {topic}"
    return f"--request-queue {service.request_queue} --response-queue {service.response_queue}"


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


def list_namespace_pairs(catalog: Catalog | None) -> list[tuple[str, str]]:
    """List the pairs of namespaces of request and response topics in ``catalog``; without one, TrustGraph's."""
    if catalog is None:
        return [(REQUEST_NAMESPACE, RESPONSE_NAMESPACE)]
    return list(dict.fromkeys(map(_namespaces_of, catalog.services.values())))


def _tenant_of(namespace: str) -> str:
    return namespace.partition("/")[0]


def _namespaces_of(service: ServiceDescriptor) -> tuple[str, str]:
    return _namespace_of(service.request_queue), _namespace_of(service.response_queue)


def _namespace_of(topic: str) -> str:
    return TopicName.parse(topic).namespace_path


def _describe_error(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no reply within {TCP_TIMEOUT_S:g} s"
    if isinstance(error, OSError) and error.errno is not None and not isinstance(error, socket.gaierror):
        return os.strerror(error.errno)  # asyncio's own text has a tuple in it
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _tls_advice(broker: str) -> str:
    if broker.startswith("pulsar+ssl://"):
        return "; without TLS use pulsar://; with TLS name its certificate with --trust-certs"
    return "; for a TLS port use pulsar+ssl://"


# ``dispatch doctor --packet``: a packet of a session, for people. Payloads are user data: only their sizes are shown.


_SECRET = "hidden"
_SECRETS = frozenset({"secret"})
"""Fields with which a reader of the output could forge packets."""
_TEXTS = frozenset({"message"})
"""Fields with texts of a tool or its service."""


def show_packet(text: str, *, json: bool) -> None:
    """Decode and print a packet.

    Args:
        text: the packet in hexadecimal or base64; ``-``: read from stdin, as such a text or as its bytes.
        json: print one line of JSON instead.

    Raises:
        CliError: the text is no packet.
    """
    try:
        packet = decode_packet(read_bytes(sys.stdin.buffer.read() if text == "-" else text))
    except (MalformedPacketError, ValueError) as error:
        raise CliError(
            f"This is no packet of a session: {error}.", "give its bytes in hexadecimal or base64, beginning with 9a"
        ) from None
    described = describe_packet(packet)
    if json:
        print_json(described)
        return
    print_out(align_columns([(name, str(value)) for name, value in described.items() if name != "frames"]))
    for frame in described["frames"]:
        fields = ", ".join(f"{name} {value}" for name, value in frame.items() if name != "frame")
        print_out(make_printable(f"{frame['frame']}  {fields}".rstrip()))


def read_bytes(given: str | bytes) -> bytes:
    """Return the bytes of a packet that is given as such, in hexadecimal (blanks and colons between are skipped) or base64.

    Raises:
        ValueError: the text is neither.
    """
    if isinstance(given, bytes):
        if is_packet(given):
            return given
        given = given.decode("ascii", "replace")
    try:
        return bytes.fromhex(re.sub(r"[\s:]|0x", "", given))
    except ValueError:
        try:
            return base64.b64decode("".join(given.split()), validate=True)
        except binascii.Error:
            raise ValueError("the text is neither hexadecimal nor base64") from None


def describe_packet(packet: Packet) -> dict[str, Any]:
    """Return the fields of a packet and its frames as plain values, without secrets and user data."""
    header: dict[str, Any] = {name: getattr(packet, name) for name in packet.__struct_fields__ if name != "frames"}
    return header | {"frames": [_describe_frame(frame) for frame in packet.frames]}


def _describe_frame(frame: Any) -> dict[str, Any]:
    described: dict[str, Any] = {"frame": type(frame).__name__.upper()}
    for name in frame.__struct_fields__:
        value = getattr(frame, name)
        if name in _SECRETS:
            value = _SECRET
        elif isinstance(value, bytes | memoryview):
            value = f"{len(value):,} bytes"
        elif name in _TEXTS and isinstance(value, str):
            value = f"{len(value):,} characters"
        elif isinstance(value, dict):
            value = sorted(value)  # the names of headers
        described[name] = value
    return described


# ``dispatch doctor --loss``: message loss of a broker, as a table with advice.


LEGEND = "plain: pulsar-client without sessions · session: dispatch's Dispatcher and ToolServer with sessions"
WIDTH = 120
"""Maximum width of a paragraph: longer lines are hard to read."""

Report = Callable[[str], None]


def measure_loss(
    settings: Settings, *, sizes: str | None, in_flight: str | None, calls: int | None, json: bool
) -> None:
    """Measure and show table and advice; after Ctrl-C those of the runs made so far.

    Args:
        settings: broker, security, and the catalogue whose namespaces are used.
        sizes: as ``--sizes``; None: the default.
        in_flight: as ``--in-flight``; None: the default.
        calls: calls per run; None: as many as fit into a share of a minute.
        json: print one line of JSON instead.

    Raises:
        CliError: the options conflict, or the measurement failed.
        TransportError: the broker is not reachable, rejects the token, or lacks a namespace.
        KeyboardInterrupt: Ctrl-C.
        typer.Exit: with 1 if calls with sessions were lost.
    """
    from dispatch.devtools.lossprobe import (
        DEFAULT_IN_FLIGHT,
        DEFAULT_SIZES,
        PlanError,
        ProbeError,
        give_advice,
        make_plan,
    )

    try:
        plan = make_plan(sizes or DEFAULT_SIZES, in_flight or DEFAULT_IN_FLIGHT, calls)
    except PlanError as error:
        raise CliError(f"{error}.", error.fix) from None
    broker = settings.require_pulsar_url("dispatch doctor --loss")
    endpoints(broker)  # rejects a wrong URL as wrong usage
    security = settings.security()
    # Those of the first service.
    catalog = load_catalog(settings) if settings.catalog_folders else None
    requests, responses = (list_namespace_pairs(catalog) or list_namespace_pairs(None))[0]
    measurements: list[Measurement] = []
    if not json:
        print_out(f"Broker {broker}, namespaces {requests} and {responses}: {_extent(plan)}.")
    interruption: BaseException | None = None
    try:
        run_async(_measure(measurements, plan, broker, security, requests, responses))
    except (KeyboardInterrupt, DispatchError, OSError) as failure:
        interruption = failure
    except ProbeError as failure:
        interruption = CliError(str(failure), "dispatch doctor", Exit.TRANSPORT)
    planned = len(plan.loads)
    is_complete = len(measurements) == planned and measurements[-1].session is not None
    advice = give_advice(measurements, None if is_complete else planned)
    if json:
        print_json(
            {
                "broker": broker,
                "namespaces": {"request": requests, "response": responses},
                "complete": is_complete,
                "measurements": [measurement.as_dict() for measurement in measurements],
                "advice": advice,
            }
        )
    elif measurements:
        _show_losses(measurements, advice, None if is_complete else planned)
    if interruption is not None:
        raise interruption
    if any(measurement.session is not None and measurement.session.lost for measurement in measurements):
        raise typer.Exit(Exit.FAILED)


def _extent(plan: Plan) -> str:
    runs = 2 * len(plan.loads)
    if plan.seconds is None:
        return f"{runs} runs of {format_count(plan.calls or 0, 'call')}"
    return f"{runs} runs of {plan.seconds:.2g} s, about {max(1, round(runs * plan.seconds)):,} s"


async def _measure(
    measurements: list[Measurement], plan: Plan, broker: str, security: Security, requests: str, responses: str
) -> None:
    """Make all runs; ``measurements`` gets each size and number in flight with its first run."""
    from dispatch.devtools.lossprobe import VARIANTS, Measurement, Probe, format_size

    with _progress(2 * len(plan.loads)) as (begin, end):
        begin("connecting")
        async with Probe(broker, security, requests, responses) as probe:
            for size, in_flight in plan.loads:
                measurement = Measurement(size, in_flight)
                # Both variants of a load run in sequence, so that other load on the machine affects both.
                for variant, how in VARIANTS.items():
                    begin(f"{format_size(size)}, {in_flight:,} in flight, {how}")
                    run = await probe.measure(
                        variant, size=size, in_flight=in_flight, calls=plan.calls, seconds=plan.seconds
                    )
                    setattr(measurement, variant, run)
                    if variant == "plain":
                        measurements.append(measurement)
                    end()
            begin("closing")


@contextlib.contextmanager
def _progress(total: int) -> Iterator[tuple[Report, Callable[[], None]]]:
    """Show progress on a terminal's stderr, removed at the end."""
    if not is_terminal(sys.stderr):
        yield (lambda _text: None), (lambda: None)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    with Progress(
        SpinnerColumn(),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
        console=console(sys.stderr),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
        refresh_per_second=5,  # drawing competes with the measurement
    ) as progress:
        task = progress.add_task("", total=total)
        yield (lambda text: progress.update(task, description=text)), (lambda: progress.advance(task))


# -- results ------------------------------------------------------------------------------------------------


def list_losses(measurements: Sequence[Measurement]) -> Rows:
    """Return the rows of the table."""
    from dispatch.devtools.lossprobe import format_share, format_size

    columns = {
        "reply": [format_size(each.size) for each in measurements],
        "in flight": [f"{each.in_flight:,}" for each in measurements],
    }
    colours = {}
    plain, session = [each.plain for each in measurements], [each.session for each in measurements]
    for variant, runs in (("plain", plain), ("session", session)):
        columns[f"{variant}\ncalls"] = [f"{run.calls:,}" if run else "-" for run in runs]
        columns[f"{variant}\nlost"] = [format_share(run.lost, run.calls) if run else "-" for run in runs]
        columns[f"{variant}\ncalls/s"] = [f"{run.rate:,.0f}" if run else "-" for run in runs]
        colours[f"{variant}\nlost"] = ["" if run is None else "red" if run.lost else "green" for run in runs]
    return Rows(columns, has_numbers=True, colours=colours)


def _show_losses(measurements: Sequence[Measurement], advice: Sequence[str], planned: int | None) -> None:
    """Write table and advice to stdout. ``planned``: the number of lines if some are missing."""
    print_out("")
    list_losses(measurements).print()
    print_out("")
    print_out(LEGEND)
    if planned is not None:
        were = "was" if len(measurements) == 1 else "were"
        print_out(f"Only {len(measurements)} of {planned} lines {were} measured, the last perhaps partially.")
    print_out("")
    width = min(console().width, WIDTH) if is_terminal(sys.stdout) else 0
    for line in advice:
        text = f"- {make_printable(line)}"
        print_out(textwrap.fill(text, width, subsequent_indent="  ", break_on_hyphens=False) if width else text)
