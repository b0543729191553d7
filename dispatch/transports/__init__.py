"""Transports: the interface to a broker, and its two implementations, the embedded broker and Pulsar."""

from __future__ import annotations

import os

from dispatch._internal import check_instance
from dispatch.transports.base import (
    AnswerLate,
    DurableMessage,
    Handler,
    Message,
    Mode,
    OnFailure,
    Publisher,
    Security,
    Subscription,
    Ticket,
    TopicPublisher,
    Transport,
)

__all__ = [
    "DEFAULT_BROKER",
    "AnswerLate",
    "DurableMessage",
    "Handler",
    "Message",
    "Mode",
    "OnFailure",
    "Publisher",
    "Security",
    "Subscription",
    "Ticket",
    "TopicPublisher",
    "Transport",
    "default_broker",
    "open_transport",
]

DEFAULT_BROKER = "pulsar://localhost:6650"


def default_broker() -> str:
    """Return ``DISPATCH_BROKER``, else the address of a broker on this machine."""
    return os.environ.get("DISPATCH_BROKER") or DEFAULT_BROKER


def open_transport(url: str | None, *, security: Security | None = None, publish_window: int = 64) -> Transport:
    """Return the transport for ``url``, not yet started: ``memory://[NAME]``, ``pulsar://HOST:PORT`` or ``pulsar+ssl://HOST:PORT``;
    None: :func:`default_broker`.

    Args:
        security: token and TLS settings; None: from the environment (:meth:`Security.from_environment`).
        publish_window: publishes in flight to the broker at once; further ones are queued.

    Raises:
        TransportError: the scheme of the address is not supported, or it is no text.
    """
    if url is None:
        url = default_broker()
    if not isinstance(url, str):
        from dispatch.transports.errors import no_address

        raise no_address(url)
    if security is not None:
        check_instance("security", security, Security, "a dispatch.Security, such as dispatch.Security(token=…)")
    if url.startswith("memory://"):
        from dispatch.transports.memory import MemoryTransport

        return MemoryTransport(url)
    from dispatch.transports.pulsar.handshake import endpoints

    endpoints(url)
    from dispatch.transports.pulsar.transport import PulsarTransport

    return PulsarTransport(url, security=security, publish_window=publish_window)
