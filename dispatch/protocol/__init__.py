"""The session protocol between a dispatcher and an instance of a tool service: sans-I/O.

Numbered packets carry frames; acknowledgements, loss detection by gaps and flow control make every request and reply arrive
once over topics that drop messages. Nothing here knows asyncio, a socket, a clock or a source of randomness: the caller
passes the time and random bytes in, hands over what arrived (:meth:`SessionTable.receive_packet`), handles the returned
events, and publishes what :meth:`Session.packets_to_send` returns. docs/explanation/delivery.md explains the protocol.
"""

from __future__ import annotations

from dispatch.protocol.events import OutgoingRequest
from dispatch.protocol.frames import Status, is_packet
from dispatch.protocol.session import CalleeSession, CallerSession, Session
from dispatch.protocol.settings import DEFAULT_SETTINGS, Settings
from dispatch.protocol.table import SessionTable

__all__ = [
    "DEFAULT_SETTINGS",
    "CalleeSession",
    "CallerSession",
    "OutgoingRequest",
    "Session",
    "SessionTable",
    "Settings",
    "Status",
    "is_packet",
]
