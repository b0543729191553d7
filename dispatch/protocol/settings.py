"""The constants of the protocol, each with its reason. Tests override single ones. A program sets one of them,
``max_payload_bytes`` of a :class:`dispatch.ToolServer`; :func:`fit_settings` reduces sizes to the broker's limit."""

from __future__ import annotations

import msgspec


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes in bytes, times in seconds. Figures: Pulsar 4.0.6, two processors shared by broker and both peers."""

    window: int = 48_000
    """Unacknowledged bytes on one path, over all senders towards one receiver: a broker drops a non-persistent message while
    more than 65,536 bytes wait in the receiver's channel. Of 790,000 packets none was retransmitted."""
    senders_at_full_window: int = 3
    """Senders towards one receiver up to which each has the whole window; more senders divide that many windows. Replies of
    100 kB of 20 instances in two processes, at once: 970 calls/s if they divide 3 windows, 1,010 for 4, 1,110 for 5; 0.4,
    0.8 and 0.9 % of the packets were lost. With a whole window each, 1,000 calls/s and more than 5 %."""
    least_window: int = 2_400
    """The smallest part of the window: a twentieth. A smaller one would send more packets than bytes."""
    packet_bytes: int = 256_000
    """Small frames in one packet. 64 calls with replies of 10 kB: 8,000 calls/s at 40 kB, 20,000 at 256 kB; larger packets
    cost more when one is lost."""
    early_frames: int = 32
    """Small frames that leave before the end of the event loop's turn while the peer has nothing to do: both ends then work
    at the same time. 64 in flight: 39,700 calls/s, without it 30,500, with 16 frames 30,300 (each packet costs both ends
    100 µs)."""
    large_bytes: int = 64_000
    """Payloads above this size travel in fragments, so that small frames pass them."""
    fragment_bytes: int = 1_000_000
    """Bytes of a fragment. 1 MB replies: 256 kB 290 to 410 a second, 1 MB 550 to 680."""
    large_at_once: int = 8
    """Large payloads that are sent in turns; further ones wait. Turns over 256 payloads finish none of them in time."""
    max_payload_bytes: int = 64 * 1024 * 1024
    """Largest request or reply."""
    max_partial_bytes: int = 128 * 1024 * 1024
    """Fragments of incomplete payloads that one session retains, beside one payload of any size. A sender begins payloads of
    half as many bytes at once, or of its part of that where the receiver's window is divided, or one; further ones wait. A
    payload of one fragment never waits for that."""
    max_partials: int = 1_024
    """Incomplete payloads of one session. A sender has few: a payload is incomplete while a fragment of it is on its way."""
    data_window: int = 16_000_000
    """Bytes of requests that a peer may send before the application has released earlier ones: bounds the memory of queued
    requests."""
    stream_window: int = 2_000_000
    """Bytes of chunks of one stream that a peer may send before the application has read earlier ones; then its tool
    waits. Without a window 1 MB chunks travel at 540 a second, with 2 MB at 390 to 450, with 1 MB at 340; smaller chunks
    lose less than a tenth."""
    max_paths: int = 4
    """Connections on which one receiver takes packets. Replies of 100 kB at 64 in flight: 2 paths +45 to 90 %, 8 no more
    than 4. The first one carries no large payloads while there are others: small calls beside 8 of 1 MB have a p50 of 5
    instead of 7 ms."""
    ack_delay: float = 0.002
    """Longest delay of an acknowledgement. 5 ms gives the same throughput and a p99.9 of 37 instead of 20 ms at 5 % loss."""
    timer_granularity: float = 0.002
    """Least variation of the round-trip time in a probe timeout (RFC 9002's ``kGranularity``)."""
    first_rtt: float = 0.05
    """Round-trip time before the first measurement."""
    probe_copies: int = 2
    """Copies of the oldest packet that a probe sends. Two: p99.9 at 5 % loss 12 ms; one: 20 ms."""
    probe_bytes: int = 16_000
    """Largest packet that a probe repeats. Repeating one of 100 kB costs more than the round trip that it saves: 5 % lost,
    4,000 calls/s with a PING in its place, 3,200 with the copies."""
    max_probe_interval: float = 0.25
    """Longest time between two probes, twice as long where a probe timeout is; their intervals double. A quarter of
    :attr:`give_up`: the last probes decide."""
    max_probe_timeout: float = 2.5
    """Longest probe timeout. An acknowledgement that came late because the peer was blocked, or the connection down, counts
    as a long path: without a limit, one of 60 s put off the discovery of a dead peer by 12 minutes."""
    suspect_after: int = 2
    """Probes without an acknowledgement after which a peer is avoided."""
    give_up: float = 1.0
    """Seconds without a packet of the callee, which had something to acknowledge, after which its caller ends the session.
    Short, because a callee answers probes with ALIVE while its event loop is blocked: only a process that is gone or frozen
    is silent."""
    least_probe_timeouts: int = 4
    """Probe timeouts that this takes at least: a round trip may be long."""
    callee_give_up: float = 13.0
    """The same for a callee. A caller is silent whose event loop is blocked, or whose packets wait at a broker that hangs:
    longer than the 10 s for which calls wait for a broker. With 10 s, a caller took its instance for restarted then."""
    max_blocked: float = 600.0
    """Seconds without an acknowledgement after which a session ends although the peer shows that it runs: bounds the probes
    that are remembered."""
    late_timer: float = 0.25
    """Seconds after which a timer is late: this process did not run, and packets of the peer may have arrived meanwhile."""
    keepalive: float = 0.5
    """Seconds without a packet after which a caller with requests in flight sends a PING."""
    idle: float = 30.0
    """Seconds without a packet after which a callee ends a session. A caller sends a PING every third of it."""
    reset_grace: float = 0.05
    """Least time for a packet of the peer to refute a RESET. Another process of the same name sends one, too."""
    reset_timeouts: int = 3
    """Probe timeouts for it, at least: the question or its answer may be lost. Of 99 simulated pairs of processes with one
    name, most of them with losses, 12 lost a session after 1 timeout, 5 after 3, 4 after 6."""
    conflict_after: int = 2
    """Refuted RESETs that show a second process of the same name. The first one may be refuted by a packet that was on
    its way when the peer ended."""
    half_open: float = 10.0
    """Seconds for the caller's first packet after ACCEPT."""
    max_half_open: int = 1_024
    """Sessions without it; the oldest gives way."""
    max_sessions: int = 4_096
    """Sessions of a callee; the one that was idle longest, and runs nothing, gives way."""
    max_ack_ranges: int = 32
    """Ranges of packet numbers in one acknowledgement, and remembered for each path."""
    max_gaps: int = 65_536
    """Requests that arrived before an earlier one. More end the session: no peer that follows the protocol has so many."""
    max_chunks_ahead: int = 32_768
    """Chunks of a stream that arrived before an earlier one: more than the stream's window holds, even of empty ones. A
    packet has up to 8,000."""
    max_resets: int = 64
    """RESETs that wait to be sent."""


DEFAULT_SETTINGS = Settings()

PACKET_OVERHEAD = 2_000
"""Bytes of a packet beside its payloads, at most: its header, the acknowledgements of all paths, the frames' own bytes."""


def fit_settings(settings: Settings, max_message_bytes: int) -> Settings:
    """Return ``settings`` with packets that a broker with that limit accepts."""
    # A packet has small frames up to one limit, and then a fragment.
    half = max(512, (max_message_bytes - PACKET_OVERHEAD) // 2)
    return msgspec.structs.replace(
        settings,
        packet_bytes=min(settings.packet_bytes, half),
        fragment_bytes=min(settings.fragment_bytes, half),
        large_bytes=min(settings.large_bytes, half),
    )


# Counters of one session since it began, and their sums over sessions that have ended.


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


class EndedSessions(msgspec.Struct, eq=False):
    """What is known of sessions that have ended.

    Attributes:
        statistics: sums.
        reasons: numbers of the sessions that were open, by the reasons of their ends.
        handshakes: sessions that ended before they were open.
    """

    statistics: SessionStatistics = msgspec.field(default_factory=SessionStatistics)
    reasons: dict[str, int] = {}
    handshakes: int = 0

    def add(self, statistics: SessionStatistics, reason: str, *, was_open: bool) -> None:
        """Count a session."""
        self.statistics.add(statistics)
        if was_open:
            self.reasons[reason] = self.reasons.get(reason, 0) + 1
        else:
            self.handshakes += 1
