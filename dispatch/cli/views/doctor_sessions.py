"""Sessions with the instances of services: opened, measured and ended, as a dispatcher does it; no tool is executed."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass

from dispatch.catalog import ServiceDescriptor
from dispatch.cli.output import format_count
from dispatch.cli.views.check_result import CheckResult
from dispatch.errors import TransportError
from dispatch.messaging.rpc.correlation import Correlator
from dispatch.messaging.rpc.session_exchange import SessionExchange
from dispatch.routing.channel import Channel
from dispatch.routing.channel_registry import Channels
from dispatch.routing.instance import Instance
from dispatch.transports import Security, Transport, open_transport
from dispatch.transports.errors import describe_without_call

ANSWERS_S = 1.0
"""Seconds in which instances answer: a hello is sent three times in the first tenth of a second."""
PROBES = 5
"""Probes of each session. A new session knows the round-trip time of its handshake only, in which topics are opened."""
PROBE_EVERY_S = 0.05


@dataclass(frozen=True, slots=True)
class SessionReport:
    """One session.

    Attributes:
        instance, incarnation: of the peer.
        rtt_ms: smoothed round-trip time, in milliseconds.
        running: requests that the instance executes.
        window: bytes without an acknowledgement that the instance allows.
        paths: connections on which the instance receives packets.
        packets, retransmissions: sent, and lost among them.
    """

    instance: str
    incarnation: str
    rtt_ms: float
    running: int
    window: int
    paths: int
    packets: int
    retransmissions: int

    def describe(self) -> str:
        """Return a text for people."""
        lost = f", {format_count(self.retransmissions, 'packet')} lost" if self.retransmissions else ""
        return (
            f"{self.instance} answers in {self.rtt_ms:.1f} ms, executes {format_count(self.running, 'request')}, "
            f"window {self.window:,} bytes, {format_count(self.paths, 'path')}{lost}"
        )


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
        yield CheckResult("sessions", "failed", describe_without_call(error), "follow the message")
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
                yield await _check_service(channel, service)
            except TransportError as error:
                yield CheckResult(
                    f"sessions of {service.id}", "failed", describe_without_call(error), "follow the message"
                )
    finally:
        exchange.close()
        sessions.close()
        await channels.close()


async def _check_service(channel: Channel, service: ServiceDescriptor) -> CheckResult:
    name = f"sessions of {service.id}"
    if channel.endpoint is None:
        return CheckResult(name, "skipped", "persistent topics have the plain exchange")
    await asyncio.sleep(ANSWERS_S)
    for _ in range(PROBES):
        for instance in channel.instances:
            instance.session.probe()
            instance.endpoint.wake(instance.session)
        await asyncio.sleep(PROBE_EVERY_S)
    reports = sorted((_report(instance) for instance in channel.instances), key=lambda each: each.instance)
    if not reports:
        return CheckResult(
            name,
            "skipped",
            "no instance of ToolService answers: none is running, or all are third-party ones, which have no sessions",
        )
    return CheckResult(
        name, "ok", "; ".join(each.describe() for each in reports), sessions=tuple(asdict(each) for each in reports)
    )


def _report(instance: Instance) -> SessionReport:
    session = instance.session
    counts = session.statistics
    return SessionReport(
        instance=instance.name,
        incarnation=instance.incarnation,
        rtt_ms=round(session.rtt * 1000.0, 3),
        running=session.peer_load,
        window=session.window,
        paths=len(session.peer_inboxes),
        packets=counts.packets_sent,
        retransmissions=counts.retransmissions,
    )
