"""Reliable delivery of frames: packet numbers, acknowledgements, loss detection, flow control, fragments."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Protocol

import msgspec

from dispatch.protocol.frames import (
    ACK,
    ACK_NOW,
    CANCEL,
    CONT,
    FRAME_BYTES,
    PACKET_BYTES,
    PING,
    REFUSED,
    REQUEST,
    TRACE_BYTES,
    UNNUMBERED,
    VERSION,
    Ack,
    Cont,
    Payload,
    decode_payload_frame,
    encode,
    encode_packet,
)
from dispatch.protocol.settings import SessionStatistics, Settings

# Numbers that have arrived: of packets, as ranges for acknowledgements; of requests, each once.


class ReceivedPackets:
    """The packet numbers of one path that have arrived, as ascending ranges ``[low, high]``.

    Args:
        most: ranges that are remembered. A number below the oldest one counts as a duplicate; its sender learns from the
            acknowledgement that it has not arrived, and sends its frames again.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._floor = 0
        self.ranges: list[list[int]] = []

    def add(self, number: int) -> bool:
        """Add ``number``. Return False for a duplicate."""
        ranges = self.ranges
        if not ranges:
            if number < self._floor:
                return False
            ranges.append([number, number])
            return True
        last = ranges[-1]
        if number == last[1] + 1:
            last[1] = number
            return True
        if number > last[1]:
            ranges.append([number, number])
            if len(ranges) > self._most:
                self._floor = ranges.pop(0)[1] + 1
            return True
        return self._insert(number)

    def _insert(self, number: int) -> bool:
        """Add a number below the highest one."""
        if number < self._floor:
            return False
        ranges = self.ranges
        at = len(ranges) - 1
        while at >= 0 and number < ranges[at][0]:
            at -= 1
        if at >= 0 and number <= ranges[at][1]:
            return False
        if at >= 0 and ranges[at][1] == number - 1:
            ranges[at][1] = number
        else:
            at += 1
            ranges.insert(at, [number, number])
        if ranges[at + 1][0] == number + 1:  # there is a higher range
            ranges[at][1] = ranges.pop(at + 1)[1]
        if len(ranges) > self._most:
            self._floor = ranges.pop(0)[1] + 1
        return True

    @property
    def largest(self) -> int:
        """The highest number; -1: none has arrived."""
        return self.ranges[-1][1] if self.ranges else -1

    def newest_first(self) -> list[int]:
        """Return the ranges as an acknowledgement has them: ``[low, high, low, high …]``."""
        flat: list[int] = []
        for low, high in reversed(self.ranges):
            flat += (low, high)
        return flat

    def forget(self, below: int) -> None:
        """Drop the numbers below ``below``: the sender knows of them. The highest one stays."""
        if below <= self._floor:
            return
        self._floor = below
        ranges = self.ranges
        while len(ranges) > 1 and ranges[0][1] < below:
            ranges.pop(0)
        if ranges and ranges[0][0] < below:
            ranges[0][0] = min(below, ranges[0][1])

    def clear(self) -> None:
        """Drop all numbers."""
        self.ranges.clear()


class SeenNumbers:
    """Numbers that have been seen: all below a floor, and a set above it, empty without gaps."""

    def __init__(self) -> None:
        self.floor = 0
        self.above: set[int] = set()

    def __contains__(self, number: int) -> bool:
        return number < self.floor or number in self.above

    def add(self, number: int) -> bool:
        """Add ``number``. Return False if it was there."""
        if number == self.floor:
            self.floor = number + 1
            above = self.above
            while above and self.floor in above:
                above.discard(self.floor)
                self.floor += 1
            return True
        if number < self.floor or number in self.above:
            return False
        self.above.add(number)
        return True


# Reassembly of large payloads from their fragments.


_LEAST_PIECE = 256
"""Bytes of a fragment on average, at least: the number of fragments that are retained is bounded by it."""


class PartialPayload(msgspec.Struct, eq=False):
    """A payload of which fragments are missing; ``size`` of its ``total`` bytes are there."""

    number: int
    total: int
    head: bytes | None = None
    pieces: dict[int, memoryview] = {}
    size: int = 0


class Reassembly:
    """The incomplete payloads of one session.

    Attributes:
        size: bytes that are retained.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._partials: dict[int, PartialPayload] = {}
        self._done = SeenNumbers()
        self.size = 0

    def __len__(self) -> int:
        return len(self._partials) + len(self._done.above)

    def is_new(self, message: int) -> bool:
        """Return whether no fragment of ``message`` has arrived."""
        return message not in self._partials and message not in self._done

    def ignore(self, message: int) -> None:
        """Drop later fragments of ``message``."""
        self._done.add(message)

    def fits(self, frame: Cont) -> bool:
        """Return whether the payload that ``frame`` belongs to may be incomplete beside the others. One alone may have any
        size, and one of a single fragment is never incomplete."""
        settings, partial = self._settings, self._partials.get(frame.message)
        if partial is None and frame.message in self._done:
            return True  # a late copy: nothing is retained of it
        others = self.size - (0 if partial is None else partial.size)
        return (
            frame.total > 0
            and (partial is not None or len(self._partials) < settings.max_partials)
            and (
                not others
                or len(frame.piece) == frame.total
                or self.size + len(frame.piece) <= settings.max_partial_bytes
            )
            and len(self._done.above) <= settings.max_gaps
        )

    def add(self, frame: Cont) -> Payload | None:
        """Add a fragment. Return the frame with its whole payload when it is complete."""
        message, partial = frame.message, self._partials.get(frame.message)
        if partial is None:
            if message in self._done:
                return None
            partial = self._partials[message] = PartialPayload(frame.number, frame.total)
        if frame.offset in partial.pieces or not 0 <= frame.offset <= partial.total - len(frame.piece):
            return None
        if len(partial.pieces) > partial.total // _LEAST_PIECE + 16:
            return None
        partial.pieces[frame.offset] = frame.piece
        partial.size += len(frame.piece)
        self.size += len(frame.piece)
        if frame.head is not None:
            partial.head = frame.head
        return self._join(message, partial) if partial.size >= partial.total else None

    def _join(self, message: int, partial: PartialPayload) -> Payload | None:
        self._remove(message)
        whole = None if partial.head is None else decode_payload_frame(partial.head)
        # Fragments that overlap have more bytes than the payload.
        if whole is None or whole.number != partial.number or partial.size != partial.total:
            return None
        pieces = partial.pieces
        whole.payload = b"".join(pieces[at] for at in sorted(pieces))
        return whole

    def _remove(self, message: int) -> None:
        self.size -= self._partials.pop(message).size
        self._done.add(message)

    def drop(self, number: int) -> None:
        """Drop the incomplete payloads of the request ``number``, and their later fragments."""
        for message in [message for message, each in self._partials.items() if each.number == number]:
            self._remove(message)

    def clear(self) -> None:
        """Drop everything."""
        self._partials.clear()
        self._done = SeenNumbers()
        self.size = 0


# The window of one receiver, divided among its senders. Many senders share the receiver's channel at the broker.


class WindowedSession(Protocol):
    """A session that tells its peer the peer's part of the window."""

    is_window_due: bool
    """The peer must learn of a smaller part at once."""


class ReceiveWindow:
    """Divides :attr:`Settings.window` among the peers that may be sending.

    Attributes:
        share: unacknowledged bytes that each sender may have on each path.
        due: sessions whose peers must learn of a smaller share.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._senders: dict[WindowedSession, float] = {}
        self._told = settings.window
        self.share = settings.window
        self.due: list[WindowedSession] = []

    @property
    def senders(self) -> int:
        """Number of peers that may be sending."""
        return len(self._senders)

    def add(self, session: WindowedSession) -> None:
        """The peer of ``session`` may send from now on."""
        if session not in self._senders:
            self._senders[session] = 0.0
            self._divide()

    def discard(self, session: WindowedSession) -> None:
        """It has nothing to send any more."""
        if self._senders.pop(session, None) is not None:
            self._divide()

    def record(self, session: WindowedSession, now: float, recent: float) -> None:
        """The peer of ``session`` sends without being asked: it counts for ``recent`` seconds."""
        senders = self._senders
        is_new = session not in senders
        senders.pop(session, None)
        senders[session] = now  # at the end: oldest first
        gone = False
        while (oldest := next(iter(senders))) is not session and senders[oldest] < now - recent:
            del senders[oldest]
            gone = True
        if is_new or gone:
            self._divide()

    def _divide(self) -> None:
        settings, windows = self._settings, self._settings.senders_at_full_window
        if len(self._senders) <= windows and self.share == self._told == settings.window:
            return  # perf: as with each call that is alone
        self.share = max(settings.window * windows // max(len(self._senders), windows), settings.least_window)
        if 2 * self.share <= self._told:
            for session in self._senders:
                if not session.is_window_due:
                    session.is_window_due = True
                    self.due.append(session)
            self._told = self.share
        elif self.share > self._told:
            self._told = self.share


# One path between two peers: packet numbers, acknowledgements, loss detection by gaps, and probes. Pure.
#
# The order of packets is preserved on a path. So a gap in an acknowledgement is a loss, at once (RFC 9002 waits for three
# later packets); reordering only wastes packets. State is kept for each packet, and none for each call.


Frames = list[tuple[Any, ...]]


class Cargo(msgspec.Struct, eq=False):
    """The frames of a packet, which a retransmission repeats in a packet of another number.

    Attributes:
        size: estimated bytes.
        copies: packets with these frames whose fate is unknown.
        is_delivered: one of them was acknowledged.
    """

    frames: Frames
    size: int
    copies: int = 0
    is_delivered: bool = False


class SentPacket(msgspec.Struct, eq=False):
    """A packet without an acknowledgement. ``acks``: the paths that it acknowledged, and up to which number."""

    number: int
    sent_at: float
    size: int
    cargo: Cargo
    acks: list[tuple[Path, int]]


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
        probe_timeout: seconds without an acknowledgement until the first probe.
        probes: sent since the last acknowledgement.
        retransmissions: packets that were lost since the start. Their frames were sent again, perhaps in a probe before.
    """

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
        self.probe_timeout = 2 * settings.first_rtt
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
        else:
            self._deviation += (abs(self.rtt - rtt) - self._deviation) / 4
            self.rtt += (rtt - self.rtt) / 8
        settings = self._settings
        timeout = self.rtt + max(4 * self._deviation, settings.timer_granularity) + settings.ack_delay
        self.probe_timeout = min(timeout, settings.max_probe_timeout)

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


# Frames that wait to be sent: control frames first, then small ones in order, and large payloads in fragments, in turns.


_LEAST_FRAGMENT = 512
"""Bytes of a fragment at least: smaller ones cost more than they carry."""


_WITHDRAWALS = (CANCEL, REFUSED)
"""Frames that let a receiver drop what it has of the payloads of a request."""


def frame_size(frame: tuple[Any, ...]) -> int:
    """Return the estimated bytes of a frame: those of its payload, of the trace context behind it, and a constant."""
    payload, size = frame[-1], FRAME_BYTES
    if type(payload) is dict:
        payload, size = frame[-2], FRAME_BYTES + TRACE_BYTES
    return size + (len(payload) if type(payload) is bytes else 0)


class LargePayload:
    """A payload that travels in fragments.

    Attributes:
        number: of the request that its frame is about.
        head: its frame without the payload.
        message: its number among the large payloads of the session; -1 before its first fragment.
        offset: of the next fragment.
        undelivered: bytes that the receiver has not acknowledged.
        is_withdrawn: the receiver is told to drop what it has.
    """

    __slots__ = ("head", "is_withdrawn", "message", "number", "offset", "undelivered", "view")

    def __init__(self, frame: tuple[Any, ...]) -> None:
        self.number: int = frame[1]
        at = -2 if type(frame[-1]) is dict else -1
        self.head = encode((*frame[:at], b"", *frame[at:][1:]))
        self.view = memoryview(frame[at])
        self.message = -1
        self.offset = 0
        self.undelivered = len(self.view)
        self.is_withdrawn = False

    @property
    def is_packed(self) -> bool:
        """Whether the last fragment was packed: the receiver may have the whole payload."""
        return self.offset >= len(self.view)


class SendQueue:
    """The queue of one session.

    Attributes:
        begun_bytes: payloads of several fragments that have begun and are incomplete at the receiver, as far as is known.
        control: frames without a payload, which flow control does not delay.
        small: frames with a payload, in order. perf: a list rather than a property, as ``large``: each packet asks.
        large: payloads of which fragments wait.
        packed_requests: the highest number of a small request that was packed; -1: none.
        on_request_cut: called with a small request that travels in fragments all the same.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.control: Frames = []
        self.small: Frames = []
        self._small_bytes = 0
        self.large: deque[LargePayload] = deque()
        self._waiting: deque[LargePayload] = deque()
        self._begun: list[LargePayload] = []
        """Those of ``begun_bytes``."""
        self.begun_bytes = 0
        self._share = 1.0
        self._messages = 0
        self.packed_requests = -1
        self.on_request_cut: Callable[[LargePayload], object] = lambda _payload: None

    @property
    def bytes(self) -> int:
        """Payload bytes that wait."""
        size = self._small_bytes
        if self.large or self._waiting:
            size += sum(len(each.view) - each.offset for each in (*self.large, *self._waiting))
        return size

    def __len__(self) -> int:
        return len(self.control) + len(self.small) + len(self.large) + len(self._waiting)

    def add(self, frame: tuple[Any, ...], size: int) -> LargePayload | None:
        """Add a frame whose last element is its payload; ``size`` of it and of a trace context behind it. Return it if it
        travels in fragments."""
        if size > self._settings.large_bytes:
            return self._add_large(frame)
        self.small.append(frame)
        self._small_bytes += size + FRAME_BYTES
        return None

    def _add_large(self, frame: tuple[Any, ...]) -> LargePayload:
        large = LargePayload(frame)
        self._waiting.append(large)
        self._begin_waiting()
        return large

    def divide_room(self, share: float) -> None:
        """Set the part of what a receiver retains of incomplete payloads that this sender may use. Below 1.0, the window has
        no room for whole fragments: every large payload is incomplete for a while."""
        self._share = share
        self._waiting.extendleft([each for each in reversed(self.large) if each not in self._begun])
        self.large = deque(each for each in self.large if each in self._begun)
        self._begin_waiting()

    def _begin_waiting(self) -> None:
        """Begin payloads that wait, in order, while the receiver has room for what is incomplete; one may always begin.
        Those of one fragment pass larger ones that have to wait for that."""
        settings, waiting, share = self._settings, self._waiting, self._share
        most = settings.max_partial_bytes / 2 * share
        blocked: list[LargePayload] = []
        while waiting and len(self.large) < settings.large_at_once:
            large = waiting.popleft()
            size = len(large.view)
            if share < 1.0 or size > settings.fragment_bytes:
                if blocked or (self.begun_bytes and self.begun_bytes + size > most):
                    blocked.append(large)
                    continue
                self._begun.append(large)
                self.begun_bytes += size
            self.large.append(large)
        waiting.extendleft(reversed(blocked))

    def record_delivered(self, frames: Frames) -> None:
        """Record that the receiver has acknowledged ``frames``: it has fragments, or has dropped them."""
        for frame in frames:
            for large in self._begun:
                if frame[0] == CONT:
                    if large.message == frame[1]:
                        large.undelivered -= len(frame[-1])
                elif large.is_withdrawn and frame[0] in _WITHDRAWALS and large.number == frame[1]:
                    large.undelivered = 0
        self._set_begun([each for each in self._begun if each.undelivered])

    def _set_begun(self, begun: list[LargePayload]) -> None:
        self._begun = begun
        self.begun_bytes = sum(len(each.view) for each in begun)
        self._begin_waiting()

    # -- packing ------------------------------------------------------------------------------------------------

    def pop_small(self, room: int) -> Cargo:
        """Remove small frames of about ``room`` bytes; at least one."""
        frames, size = self.small, self._small_bytes
        if size <= room:
            self.small, self._small_bytes = [], 0
        else:
            count = size = 0
            for frame in frames:
                length = frame_size(frame)
                if count and size + length > room:
                    break
                count += 1
                size += length
            frames = self.small[:count]
            del self.small[:count]
            self._small_bytes -= size
        self._record_requests(frames)
        return Cargo(frames, size)

    def _record_requests(self, frames: Frames) -> None:
        for frame in reversed(frames):
            if frame[0] == REQUEST:
                self.packed_requests = frame[1]
                return

    def cut_oversized(self, room: int) -> None:
        """Let small frames of more than ``room`` bytes at the front travel in fragments."""
        while self.small and frame_size(self.small[0]) > max(room, _LEAST_FRAGMENT):
            frame = self.small.pop(0)
            self._small_bytes -= frame_size(frame)
            large = self._add_large(frame)
            if frame[0] == REQUEST:
                self.on_request_cut(large)

    def pop_fragment(self, room: int) -> tuple[tuple[Any, ...], int]:
        """Remove the next fragment, of at most ``room`` bytes. Return its frame and its size."""
        large = self.large.popleft()
        if large.message < 0:
            large.message = self._messages
            self._messages += 1
        start = large.offset
        piece = large.view[start : start + min(max(room, _LEAST_FRAGMENT), self._settings.fragment_bytes)]
        large.offset = start + len(piece)
        head = None if start else large.head
        frame = (CONT, large.message, start, len(large.view), large.number, head, piece)
        if not large.is_packed:
            self.large.append(large)
        else:
            self._begin_waiting()
        return frame, len(piece) + FRAME_BYTES

    # -- withdrawal ---------------------------------------------------------------------------------------------

    def withdraw_request(self, number: int) -> None:
        """Remove a small request that was not packed."""
        for at, frame in enumerate(self.small):
            if frame[0] == REQUEST and frame[1] == number:
                self._small_bytes -= frame_size(frame)
                del self.small[at]
                return

    @property
    def has_withdrawn(self) -> bool:
        """Whether the receiver is to learn that it may drop a part of a payload."""
        return any(each.is_withdrawn for each in self._begun)

    def withdraw_large(self, number: int) -> None:
        """Remove the large payloads of the request ``number``. A frame follows; by it the receiver drops its part."""
        for large in self._begun:
            if large.number == number and large.message >= 0:
                large.is_withdrawn = True
        self._drop(number)

    def drop_large(self, number: int) -> None:
        """Remove the large payloads of the request ``number``, of which the receiver accepts nothing more."""
        self._drop(number)
        self._set_begun([each for each in self._begun if each.number != number])

    def _drop(self, number: int) -> None:
        self._waiting = deque(each for each in self._waiting if each.number != number)
        self.large = deque(each for each in self.large if each.number != number)
        self._set_begun([each for each in self._begun if each.is_withdrawn or each.number != number])

    def clear(self) -> None:
        """Remove everything."""
        self.control.clear()
        self.small.clear()
        self._small_bytes = 0
        self.large.clear()
        self._waiting.clear()
        self._begun.clear()
        self.begun_bytes = 0


# Packing: which frames leave next, on which path, in packets as large as the windows allow. Pure.


Packets = list[tuple[int, bytes]]
"""Packets, each with the index of the peer's inbox that it goes to."""

_LEAST_ROOM = 1_024
"""Bytes left in a divided window below which nothing is sent until an acknowledgement."""


class PacketSender:
    """The sending part of a session.

    Args:
        settings: constants.
        receive_window: of this process; its share is told in each packet.
        statistics: counted here.
        now: when the session began.

    Attributes:
        began: when the session did: 0 on the clock that packets tell.
        queue: frames to be sent.
        paths: their state, also of those on which packets only arrive.
        usable_paths: paths on which own packets can travel.
        lost: cargoes to be sent again.
        probing: paths that send a probe next.
        fragments: cargoes with fragments, or with frames that withdraw them, that are not known to have arrived.
        peer_window: unacknowledged bytes that the peer allows on each path.
        peer_address: see :class:`~dispatch.protocol.session.Session`; likewise ``load``.
        data: payload bytes sent, without retransmissions.
        data_limit: how many the peer accepts since the start.
        early_frames: small frames that an idle peer gets at once, as in the settings; one after a packet with one frame,
            because one call at a time has nothing to be gathered with.
    """

    def __init__(
        self, settings: Settings, receive_window: ReceiveWindow, statistics: SessionStatistics, now: float
    ) -> None:
        self._settings = settings
        self._receive_window = receive_window
        self._statistics = statistics
        self.began = now
        self.queue = SendQueue(settings)
        self.paths = [Path(0, settings)]
        self.usable_paths = 1
        self.lost: deque[Cargo] = deque()
        self.probing: list[Path] = []
        self.fragments: list[Cargo] = []
        self.peer_address = 0
        self.peer_window = settings.window
        self.data = 0
        self.data_limit = 0
        self.load = 0
        self.early_frames = settings.early_frames

    def set_peer_window(self, window: int) -> None:
        """Set :attr:`peer_window`."""
        # The peer has many senders: what it retains of their incomplete payloads is divided like its window.
        self.peer_window = window
        self.queue.divide_room(min(1.0, window / self._settings.window))

    def path(self, index: int) -> Path:
        """Return the state of a path, created if necessary."""
        while index >= len(self.paths):
            self.paths.append(Path(len(self.paths), self._settings))
        return self.paths[index]

    def has_due(self, now: float) -> bool:
        """Whether :meth:`pack` may return a packet. perf: most turns of the loop end with nothing to send."""
        queue = self.queue
        if queue.control or queue.small or queue.large or self.lost or self.probing:
            return True
        for path in self.paths:  # noqa: SIM110 # perf: no generator
            if path.ack_at <= now:
                return True
        return False

    def pack(self, now: float, probe_frames: Frames, *, is_window_due: bool = False) -> Packets:
        """Return the packets that are due.

        Args:
            now: the time.
            probe_frames: further frames of a probe.
            is_window_due: a packet is due in any case: it tells a smaller share.
        """
        packets: Packets = []
        if self.probing:
            for path in self.probing:
                self._pack_probe(path, now, probe_frames, packets)
            self.probing.clear()
        queue = self.queue
        while queue.control or queue.small or queue.large or self.lost:
            packed = self._next_cargo()
            if packed is None:
                break
            self._pack(*packed, now, packets)
        acks = [path.pop_ack(now) for path in self.paths if path.ack_at <= now]
        if acks or (is_window_due and not packets):
            packets.append((0, self.encode(0, UNNUMBERED, now, 0, acks)))
        return packets

    def request_probe(self) -> None:
        """Send a probe on the first path with the next packets."""
        if self.paths[0] not in self.probing:
            self.probing.append(self.paths[0])

    def _next_cargo(self) -> tuple[Path, Cargo] | None:
        """Return what is sent next, and on which path; None: nothing can be sent now."""
        lost, queue = self.lost, self.queue
        while lost and lost[0].is_delivered:
            lost.popleft()
        if lost:
            path = self._open_path(is_large=lost[0].size > self._settings.packet_bytes)
            if path is not None:
                return path, lost.popleft()
        is_allowed = self.data < self.data_limit
        if is_allowed and self.peer_window < self._settings.window:
            queue.cut_oversized(self.peer_window - PACKET_BYTES)
        has_small = bool(queue.control or (is_allowed and queue.small))
        has_large = is_allowed and bool(queue.large)
        path = self._open_path() if has_small else None
        if path is not None:
            has_large = has_large and self.usable_paths < 2
        elif has_small or has_large:
            # Large payloads have the other paths. Small frames may use them, too, while no large one waits.
            path = self._open_path(is_large=True)
            has_small = has_small and not has_large
        if path is None:
            return None
        cargo = self._load(path, small=is_allowed and has_small, large=has_large)
        self.data += cargo.size
        if queue.control:
            self._statistics.frames_sent += len(queue.control)
            cargo.frames = queue.control + cargo.frames
            cargo.size += FRAME_BYTES * len(queue.control)
            queue.control = []
        if cargo.frames[-1][0] == CONT or (queue.begun_bytes and queue.has_withdrawn):
            self.fragments.append(cargo)
        return path, cargo

    def _open_path(self, *, is_large: bool = False) -> Path | None:
        """Return a path with room in its window; large payloads have all but the first one where there are several."""
        if not is_large or self.usable_paths < 2:
            path = self.paths[0]
            return path if self._room(path) else None
        # Sessions begin with different paths: otherwise all of them would send their first payloads on the same one. They
        # keep to it while they share the window: the same bytes in fewer packets.
        first = 1 + self.peer_address % (self.usable_paths - 1)
        if self.peer_window < self._settings.window:
            return self.paths[first] if self._room(self.paths[first]) else None
        usable = self.paths[first : self.usable_paths] + self.paths[1:first]
        return min([path for path in usable if self._room(path)], key=attrgetter("in_flight"), default=None)

    def _window(self, path: Path) -> int:
        """Return the unacknowledged bytes that ``path`` may have. One for large payloads has the shares of all of these."""
        if not path.index:
            return self.peer_window
        return min(self.peer_window * (self.usable_paths - 1), self._settings.window)

    def _room(self, path: Path) -> int:
        """Return the bytes that a packet may have. The last packet in a whole window has any size; a divided one is kept to,
        because other processes send at the same time."""
        window, in_flight = self._window(path) if path.index else self.peer_window, path.in_flight
        if in_flight >= window:
            return 0
        if self.peer_window >= self._settings.window:
            return self._settings.packet_bytes
        room = window - in_flight - PACKET_BYTES
        return room if room >= _LEAST_ROOM else 0 if in_flight else max(room, 1)

    def _load(self, path: Path, *, small: bool, large: bool) -> Cargo:
        """Take fresh frames from the queue."""
        queue, room = self.queue, self._room(path)
        is_whole = self.peer_window >= self._settings.window
        if small and queue.small:
            cargo = queue.pop_small(room)
            self.early_frames = 1 if len(cargo.frames) == 1 else self._settings.early_frames
        else:
            cargo = Cargo([], 0)
        while large and queue.large and cargo.size < room:
            frame, size = queue.pop_fragment(self._settings.fragment_bytes if is_whole else room - cargo.size)
            cargo.frames.append(frame)
            cargo.size += size
        self._statistics.frames_sent += len(cargo.frames)
        return cargo

    def record_delivered_fragments(self) -> None:
        """Let further large payloads begin for those that have arrived whole, as acknowledgements say."""
        for cargo in self.fragments:
            if cargo.is_delivered:
                self.queue.record_delivered(cargo.frames)
        self.fragments = [cargo for cargo in self.fragments if not cargo.is_delivered]

    def _pack(self, path: Path, cargo: Cargo, now: float, packets: Packets) -> None:
        acks: list[tuple[Path, int]] = []
        frames: Frames = []
        for each in self.paths:
            if each.ack_at != math.inf:
                acks.append((each, each.received.largest))
                frames.append(each.pop_ack(now))
        number = path.record_sent(cargo, cargo.size + PACKET_BYTES, acks, now)
        flags = ACK_NOW if 2 * path.in_flight >= self._window(path) else 0
        frames += cargo.frames
        packets.append((path.index, self.encode(path.index, number, now, flags, frames)))

    def _pack_probe(self, path: Path, now: float, probe_frames: Frames, packets: Packets) -> None:
        """Send copies of the oldest cargo, whatever the window allows. In place of a large one send PINGs, whose
        acknowledgement shows whether it is lost: a slow receiver has it already."""
        settings, oldest = self._settings, path.record_probe(now)
        if oldest is None or oldest.size > settings.probe_bytes:
            oldest = Cargo([(PING,)], FRAME_BYTES)
        for _ in range(settings.probe_copies):
            self._statistics.probes += 1
            number = path.record_sent(oldest, oldest.size + PACKET_BYTES, [], now)
            frames = [*probe_frames, *oldest.frames]
            packets.append((path.index, self.encode(path.index, number, now, ACK_NOW, frames)))

    def encode(self, path: int, number: int, now: float, flags: int, frames: list[tuple[Any, ...]]) -> bytes:
        """Encode and count a packet."""
        window, load, statistics = self._receive_window.share, self.load, self._statistics
        clock = int((now - self.began) * 1000.0)
        header = (VERSION, self.peer_address, path, number, clock, flags, load, self.data, window)
        packet = encode_packet(header, frames)
        statistics.packets_sent += 1
        statistics.bytes_sent += len(packet)
        return packet

    def clear(self) -> None:
        """Release everything: the session has ended."""
        self.queue.clear()
        self.lost.clear()
        self.probing.clear()
        self.fragments.clear()
        for path in self.paths:
            path.clear()
