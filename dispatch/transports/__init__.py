"""Transports: the interface to a broker, and its two implementations, the embedded broker and Pulsar."""

from __future__ import annotations

import os
from typing import Final

from dispatch._internal import check_instance
from dispatch.transports.base import (
    AnswerLate,
    DurableMessage,
    Handler,
    Message,
    Mode,
    OnFailure,
    OnReceipt,
    Publisher,
    Security,
    Subscription,
    Ticket,
    TopicPublisher,
    Transport,
)

__all__ = [
    "BROKER_VARIABLE",
    "DEFAULT_BROKER",
    "PUBLISH_WINDOW",
    "AnswerLate",
    "DurableMessage",
    "Handler",
    "Message",
    "Mode",
    "OnFailure",
    "OnReceipt",
    "Publisher",
    "Security",
    "Subscription",
    "Ticket",
    "TopicPublisher",
    "Transport",
    "default_broker",
    "normalize_address",
    "open_transport",
]

DEFAULT_BROKER: Final = "pulsar://localhost:6650"
BROKER_VARIABLE: Final = "DISPATCH_BROKER"
"""Variable with the address of the broker, and the default address of ``connect()`` and ``ToolServer``. Not None, which a
program passes when its own variable is unset."""


def default_broker(otherwise: str | None = None) -> str:
    """Return the value of ``DISPATCH_BROKER``, else ``otherwise``, else the address of a broker on this machine."""
    return normalize_address(os.environ.get(BROKER_VARIABLE, "")) or otherwise or DEFAULT_BROKER


def normalize_address(url: str) -> str:
    """Return the address of a broker with its scheme in lower case (schemes are case-insensitive), and without blanks and
    line ends around it, which variables from files have."""
    scheme, separator, rest = url.strip().partition("://")
    return f"{scheme.lower()}{separator}{rest}" if separator else scheme


PUBLISH_WINDOW = 64
"""Publishes in flight to the broker at once. Measured: a broker drops messages of larger bursts on non-persistent topics."""


def open_transport(url: str, *, security: Security | None = None, publish_window: int = PUBLISH_WINDOW) -> Transport:
    """Return the transport for ``url``, not yet started: ``memory://[NAME]``, ``pulsar://HOST:PORT`` or ``pulsar+ssl://HOST:PORT``;
    :data:`BROKER_VARIABLE`: :func:`default_broker`.

    Args:
        security: token and TLS settings; None: from the environment (:meth:`Security.from_environment`).
        publish_window: publishes in flight to the broker at once; further ones are queued.

    Raises:
        TransportError: the scheme of the address is not supported, or it is no text.
    """
    if url == BROKER_VARIABLE:
        url = default_broker()
    if not isinstance(url, str):
        from dispatch.transports.errors import no_address

        raise no_address(url)
    url = normalize_address(url)
    if security is not None:
        check_instance("security", security, Security, "a dispatch.Security, such as dispatch.Security(token=…)")
    if url.startswith("memory://"):
        from dispatch.transports.memory import MemoryTransport

        return MemoryTransport(url)
    from dispatch.transports.pulsar.handshake import endpoints

    endpoints(url)
    from dispatch.transports.pulsar.transport import PulsarTransport

    return PulsarTransport(url, security=security, publish_window=publish_window)
