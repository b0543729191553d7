"""Counters of one session since it began."""

from __future__ import annotations

import msgspec


class SessionStatistics(msgspec.Struct):
    """Numbers of packets and frames; ``bytes_sent`` of packets.

    Attributes:
        retransmissions: frames that were packed again because their packet was lost, counted by packets.
        probes: packets that were sent because no acknowledgement arrived.
        duplicates: packets that had arrived before.
    """

    packets_sent: int = 0
    packets_received: int = 0
    frames_sent: int = 0
    bytes_sent: int = 0
    retransmissions: int = 0
    probes: int = 0
    duplicates: int = 0
