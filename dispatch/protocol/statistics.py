"""Counters of one session since it began, and their sums over sessions that have ended."""

from __future__ import annotations

import msgspec


class SessionStatistics(msgspec.Struct):
    """Numbers of packets and frames; ``bytes_sent`` of packets.

    Attributes:
        frames_sent: in numbered packets, without acknowledgements, retransmissions and probes.
        retransmissions: packets that were lost, and whose frames were sent again, by a probe too.
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

    def add(self, other: SessionStatistics) -> None:
        """Add the counters of another session."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class EndedSessions:
    """What is known of sessions that have ended.

    Attributes:
        statistics: sums.
        reasons: numbers of the sessions that were open, by the reasons of their ends.
        handshakes: sessions that ended before they were open.
    """

    __slots__ = ("handshakes", "reasons", "statistics")

    def __init__(self) -> None:
        self.statistics = SessionStatistics()
        self.reasons: dict[str, int] = {}
        self.handshakes = 0

    def add(self, statistics: SessionStatistics, reason: str, *, was_open: bool) -> None:
        """Count a session."""
        self.statistics.add(statistics)
        if was_open:
            self.reasons[reason] = self.reasons.get(reason, 0) + 1
        else:
            self.handshakes += 1
