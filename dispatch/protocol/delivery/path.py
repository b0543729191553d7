"""One path between two peers: packet numbers, acknowledgements, loss detection by gaps, and probes. Pure.

The order of packets is preserved on a path. So a gap in an acknowledgement is a loss, at once (RFC 9002 waits for three
later packets); reordering only wastes packets. State is kept for each packet, and none for each call.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

from dispatch.protocol.delivery.numbers import ReceivedPackets
from dispatch.protocol.settings import Settings
from dispatch.protocol.wire.frames import ACK, Ack

Frames = list[tuple[Any, ...]]


class Cargo:
    """The frames of a packet, which a retransmission repeats in a packet of another number.

    Attributes:
        size: estimated bytes.
        copies: packets with these frames whose fate is unknown.
        is_delivered: one of them was acknowledged.
    """

    __slots__ = ("copies", "frames", "is_delivered", "size")

    def __init__(self, frames: Frames, size: int) -> None:
        self.frames = frames
        self.size = size
        self.copies = 0
        self.is_delivered = False


class SentPacket:
    """A packet without an acknowledgement. ``acks``: the paths that it acknowledged, and up to which number."""

    __slots__ = ("acks", "cargo", "number", "sent_at", "size")

    def __init__(self, number: int, sent_at: float, size: int, cargo: Cargo, acks: list[tuple[Path, int]]) -> None:
        self.number = number
        self.sent_at = sent_at
        self.size = size
        self.cargo = cargo
        self.acks = acks


class Path:
    """Both directions of one path.

    Args:
        index: of the path.
        settings: of the session.

    Attributes:
        next_number: of the next packet.
        in_flight: bytes without an acknowledgement.
        received: packets that have arrived.
        ack_at: when an acknowledgement is due; ``math.inf``: none is.
        largest_at: when the newest packet arrived.
        rtt: smoothed round-trip time in seconds; 0.0 before the first sample.
        probes: sent since the last acknowledgement.
        retransmissions: packets that were lost since the start. Their frames were sent again, perhaps in a probe before.
    """

    __slots__ = (
        "_deviation",
        "_probed_at",
        "_sent",
        "_settings",
        "ack_at",
        "in_flight",
        "index",
        "largest_at",
        "next_number",
        "probes",
        "received",
        "retransmissions",
        "rtt",
    )

    def __init__(self, index: int, settings: Settings) -> None:
        self.index = index
        self._settings = settings
        self.next_number = 0
        self._sent: deque[SentPacket] = deque()
        self.in_flight = 0
        self.received = ReceivedPackets(settings.max_ack_ranges)
        self.ack_at = math.inf
        self.largest_at = 0.0
        self.rtt = 0.0
        self._deviation = 0.0
        self.probes = 0
        self._probed_at = -math.inf
        self.retransmissions = 0

    # -- sending ------------------------------------------------------------------------------------------------

    @property
    def has_unacknowledged(self) -> bool:
        """Whether a packet has no acknowledgement."""
        return bool(self._sent)

    @property
    def unacknowledged_since(self) -> float:
        """When the oldest packet without an acknowledgement was sent; ``math.inf``: there is none."""
        return self._sent[0].sent_at if self._sent else math.inf

    @property
    def unacknowledged(self) -> int:
        """Packets without an acknowledgement."""
        return len(self._sent)

    def record_sent(self, cargo: Cargo, size: int, acks: list[tuple[Path, int]], now: float) -> int:
        """Record that ``cargo`` leaves in a packet of ``size`` bytes. Return its number."""
        number = self.next_number
        self.next_number = number + 1
        self.in_flight += size
        cargo.copies += 1
        self._sent.append(SentPacket(number, now, size, cargo, acks))
        return number

    def record_ack(self, ack: Ack, now: float, lost: deque[Cargo]) -> bool:
        """Resolve every packet up to the largest acknowledged one: it is delivered, or lost and added to ``lost``.

        Returns:
            Whether a packet was acknowledged for the first time.
        """
        sent, ranges = self._sent, ack.ranges
        if not sent or len(ranges) < 2 or len(ranges) % 2:
            return False
        largest = ranges[1]
        if largest < sent[0].number or largest >= self.next_number:
            return False
        at, has_news = len(ranges) - 2, False
        while sent and sent[0].number <= largest:
            packet = sent.popleft()
            number, cargo = packet.number, packet.cargo
            cargo.copies -= 1
            self.in_flight -= packet.size
            while at > 0 and number > ranges[at + 1]:
                at -= 2
            if ranges[at] <= number <= ranges[at + 1]:
                has_news = True
                cargo.is_delivered = True
                for path, heard in packet.acks:
                    path.received.forget(heard)
                if number == largest:
                    delay = min(max(ack.delay_us, 0) / 1e6, self._settings.ack_delay)
                    self._record_rtt(now - packet.sent_at - delay)
                continue
            self.retransmissions += 1
            if not cargo.is_delivered and not cargo.copies:
                lost.append(cargo)
        if has_news:
            self.probes = 0
        return has_news

    def _record_rtt(self, rtt: float) -> None:
        """Smooth the round-trip time as RFC 6298 does."""
        rtt = max(rtt, 1e-5)
        if not self.rtt:
            self.rtt, self._deviation = rtt, rtt / 2
            return
        self._deviation += (abs(self.rtt - rtt) - self._deviation) / 4
        self.rtt += (rtt - self.rtt) / 8

    @property
    def probe_timeout(self) -> float:
        """Seconds without an acknowledgement until the first probe."""
        settings = self._settings
        if not self.rtt:
            return 2 * settings.first_rtt
        timeout = self.rtt + max(4 * self._deviation, settings.timer_granularity) + settings.ack_delay
        return min(timeout, settings.max_probe_timeout)

    @property
    def probe_at(self) -> float:
        """When the next probe is due; ``math.inf`` without an unacknowledged packet."""
        if not self._sent:
            return math.inf
        settings = self._settings
        # Counted from the oldest packet, not from the last one as in RFC 9002: otherwise each further packet would put off
        # the discovery that the peer is gone. The exponent is bounded: the interval reaches its limit long before.
        # Where packets are lost and late, patience alone is not enough: frequent probes get through.
        timeout, longest = self.probe_timeout, settings.max_probe_interval
        wait = min(timeout * 2.0 ** min(self.probes, 16), max(longest, min(timeout, 2 * longest)))
        return max(self._sent[0].sent_at, self._probed_at) + wait

    def record_probe(self, now: float) -> Cargo | None:
        """Record that a probe is sent. Return the oldest cargo that is not known to have arrived; None: there is none."""
        self.probes += 1
        self._probed_at = now
        return next((packet.cargo for packet in self._sent if not packet.cargo.is_delivered), None)

    def postpone_probe(self, now: float) -> None:
        """Begin to wait for acknowledgements anew: the connection was down."""
        self.probes = 0
        self._probed_at = now

    # -- receiving ----------------------------------------------------------------------------------------------

    def pop_ack(self, now: float) -> tuple[Any, ...]:
        """Return the acknowledgement frame that is due."""
        self.ack_at = math.inf
        return (ACK, self.index, int((now - self.largest_at) * 1e6), self.received.newest_first())

    def clear(self) -> None:
        """Release everything: the session has ended."""
        self._sent.clear()
        self.in_flight = 0
        self.received.clear()
        self.ack_at = math.inf
