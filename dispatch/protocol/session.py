"""What both ends of a session have in common: receiving, timers and the end. Pure.

``send_*`` methods of the two roles queue frames; :meth:`Session.packets_to_send`, called once at the end of a turn of the
event loop, packs everything that is due into as few packets as possible. Nothing is delayed to gather more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from dispatch.protocol import frames
from dispatch.protocol.delivery import (
    Frames,
    LargePayload,
    Packets,
    PacketSender,
    Reassembly,
    ReceiveWindow,
    SeenNumbers,
)
from dispatch.protocol.events import (
    ChunkReceived,
    EndReceived,
    Event,
    Failure,
    OutgoingRequest,
    PeerConflict,
    PeerDraining,
    PeerRecovered,
    PeerSuspected,
    ReplyReceived,
    RequestCancelled,
    RequestDeclined,
    RequestFailed,
    RequestReceived,
    RequestRefused,
    SessionClosed,
    SessionOpened,
)
from dispatch.protocol.settings import SessionStatistics, Settings

_MOST_DATA = 1 << 62
"""Payload bytes of a session that can be counted: the number fits into a frame."""
Handler = Callable[[Any, list[Event], frames.Packet, float], None]


class Session:
    """One end of a session. Use :class:`CallerSession` or :class:`CalleeSession`.

    Args:
        id: the address of the peer's packets.
        settings: constants.
        receive_window: of this process, shared by its sessions.
        now: the time in seconds, as all times here.
        peer_inboxes: topics of the peer, one for each path.

    Attributes:
        peer_name, peer_incarnation: of the peer, from the handshake.
        is_open: the handshake has ended; requests can travel.
        is_closed: the session has ended.
        is_suspended: the connection is known to be down.
        end_reason: why it has ended; None: it has not.
        end_error: of an inbox that cannot be opened (:attr:`Failure.BROKER_REFUSED`).
        is_peer_draining: the peer accepts no further requests.
        is_urgent: an acknowledgement should leave before the events are handled.
        is_window_due: see :class:`~dispatch.protocol.delivery.WindowedSession`.
        peer_load: requests that the peer executes.
        heard_at: when the last packet arrived.
        is_suspect: the peer has not acknowledged several probes, or nothing since an outage; reported by
            :class:`PeerSuspected`.
    """

    def __init__(
        self, id: int, settings: Settings, receive_window: ReceiveWindow, now: float, peer_inboxes: list[str]
    ) -> None:
        self.id = id
        self.settings = settings
        self.peer_name = ""
        self.peer_incarnation = ""
        self.is_open = False
        self.is_closed = False
        self.is_suspended = False
        self.end_reason: Failure | None = None
        self.end_error: Exception | None = None
        self.is_peer_draining = False
        self.is_urgent = False
        self.is_window_due = False
        self.peer_load = 0
        self.heard_at = now
        self.is_suspect = False
        self._excused_at = -math.inf
        self._receive_window = receive_window
        self._counts = SessionStatistics()
        self._sender = PacketSender(settings, receive_window, self._counts, now)
        self._reassembly = Reassembly(settings)
        self.peer_inboxes = peer_inboxes
        self._data_received = 0
        self._data_granted = settings.data_window
        self._held = 0
        self._farewell: Packets = []
        self._handlers: dict[type, Handler] = {
            frames.Ack: self._on_ack,
            frames.Cont: self._on_cont,
            frames.Window: self._on_window,
            frames.Close: self._on_close,
        }

    # -- state --------------------------------------------------------------------------------------------------

    @property
    def peer_inboxes(self) -> list[str]:
        """Topics of the peer, one for each path."""
        return self._peer_inboxes

    @peer_inboxes.setter
    def peer_inboxes(self, inboxes: list[str]) -> None:
        self._peer_inboxes = inboxes
        self._sender.usable_paths = len(inboxes)
        self._sender.path(len(inboxes) - 1)

    @property
    def peer_address(self) -> int:
        """The address of own packets; 0: not known."""
        return self._sender.peer_address

    @property
    def load(self) -> int:
        """Requests that this process executes; the peer learns of it with each packet."""
        return self._sender.load

    @load.setter
    def load(self, load: int) -> None:
        self._sender.load = load

    @property
    def statistics(self) -> SessionStatistics:
        """Counters since the start."""
        self._counts.retransmissions = sum(path.retransmissions for path in self._sender.paths)
        return self._counts

    @property
    def rtt(self) -> float:
        """Smoothed round-trip time of the first path in seconds; 0.0 before the first sample."""
        return self._sender.paths[0].rtt

    @property
    def in_flight_bytes(self) -> int:
        """Bytes without an acknowledgement, over all paths."""
        return sum(path.in_flight for path in self._sender.paths)

    @property
    def window(self) -> int:
        """Bytes without an acknowledgement that the peer allows on each path."""
        return self._sender.peer_window

    @property
    def queued_bytes(self) -> int:
        """Payload bytes that wait to be sent."""
        return self._sender.queue.bytes

    @property
    def is_batch_due(self) -> bool:
        """Whether a batch should leave before the end of the turn: the peer has received everything that was sent."""
        sender = self._sender
        return len(sender.queue.small) >= sender.early_frames and not sender.paths[0].in_flight

    @property
    def silent_since(self) -> float:
        """When the silence of a peer began that has something to acknowledge; ``math.inf``: it has nothing."""
        return max(self.heard_at, self._asked_at)

    @property
    def _asked_at(self) -> float:
        """Since when the peer has something to acknowledge, and could."""
        asked_at = min(path.unacknowledged_since for path in self._sender.paths)
        return max(asked_at, self._excused_at)

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing waits, is in flight or incomplete."""
        sender = self._sender
        return not (
            len(sender.queue)
            or sender.lost
            or len(self._reassembly)
            or any(path.has_unacknowledged for path in sender.paths)
        )

    # -- sending ------------------------------------------------------------------------------------------------

    def has_due(self, now: float) -> bool:
        """Whether :meth:`packets_to_send` may return a packet."""
        return not self.is_open or self.is_window_due or self._sender.has_due(now)

    def packets_to_send(self, now: float) -> Packets:
        """Return the packets that are due, each with the index of the peer's inbox that it goes to. Call it once at the end
        of a turn of the event loop, after :meth:`handle_timer`, and when :attr:`is_urgent`."""
        if self.is_closed:
            farewell, self._farewell = self._farewell, []
            return farewell
        if not self.is_open:
            return []
        self.is_urgent = False
        sender = self._sender
        packets = sender.pack(now, self._probe_frames() if sender.probing else [], is_window_due=self.is_window_due)
        self.is_window_due = False
        return packets

    def _add_control(self, *frame: Any) -> None:
        self._sender.queue.control.append(frame)

    def _probe_frames(self) -> Frames:
        """Return further frames of a probe."""
        return []

    # -- timers -------------------------------------------------------------------------------------------------

    def next_timer(self) -> float:
        """Return when :meth:`handle_timer` is to be called; ``math.inf``: never."""
        if self.is_closed:
            return math.inf
        at = self.next_deadline()
        if self.is_suspended:
            return at
        has_unacknowledged = False
        for path in self._sender.paths:
            if path.ack_at < at:
                at = path.ack_at
            if path.has_unacknowledged:
                has_unacknowledged = True
                probe_at = path.probe_at
                if probe_at < at:
                    at = probe_at
        return at if has_unacknowledged else min(at, self._silence_ends_at())

    def handle_timer(self, now: float) -> list[Event]:
        """Do what is due, and return the events; :meth:`packets_to_send` follows."""
        events: list[Event] = []
        if self.is_closed:
            return events
        self._expire(now, events)
        if self.is_suspended:
            return events
        settings, has_unacknowledged, probing = self.settings, False, self._sender.probing
        for path in self._sender.paths:
            if path.has_unacknowledged:
                has_unacknowledged = True
                if path.probe_at <= now and path not in probing:
                    if now - path.probe_at >= settings.late_timer:
                        self.excuse_silence(now)
                    probing.append(path)
                    if path.probes + 1 >= settings.suspect_after:
                        self._suspect_peer(events)
        if has_unacknowledged:
            if self.is_suspect and (
                now - self.silent_since >= self._longest_silence() or now - self._asked_at >= settings.max_blocked
            ):
                events += self._finish(Failure.SILENT)
        elif self._silence_ends_at() <= now:
            self._on_silence(now, events)
        return events

    def next_deadline(self) -> float:
        """Return when the first request is past its deadline; ``math.inf``: never. It is, also while nothing can be sent."""
        return math.inf

    def _expire(self, now: float, events: list[Event]) -> None:
        """Fail what is past its deadline."""

    def excuse_silence(self, now: float) -> None:
        """Count the silence of the peer from now on: no packet could arrive, or be processed, before."""
        self._excused_at = now

    def _longest_silence(self) -> float:
        """Return the seconds without a packet after which a suspected peer is given up."""
        raise NotImplementedError

    def _silence_ends_at(self) -> float:
        """Return when :meth:`_on_silence` is due if no packet arrives and none is unacknowledged."""
        raise NotImplementedError

    def _on_silence(self, now: float, events: list[Event]) -> None:
        raise NotImplementedError

    def suspend(self) -> None:
        """The connection is known to be down: nothing is probed or given up. Deadlines still pass."""
        self.is_suspended = True

    def resume(self, now: float) -> list[Event]:
        """The connection is up again: the peer gets time to answer. Return the events."""
        if self.is_suspended:
            self.is_suspended = False
            self.heard_at = self._excused_at = now
            for path in self._sender.paths:
                path.postpone_probe(now)
        return []

    def _suspect_peer(self, events: list[Event]) -> None:
        if not self.is_suspect:
            self.is_suspect = True
            events.append(PeerSuspected())

    def _update_suspicion(self, events: list[Event]) -> None:
        """End the suspicion of a suspected peer that has acknowledged a packet on every path that it was probed on."""
        most = self.settings.suspect_after
        if all(path.probes < most for path in self._sender.paths):
            self.is_suspect = False
            events.append(PeerRecovered())

    # -- receiving ----------------------------------------------------------------------------------------------

    def receive(self, packet: frames.Packet, now: float) -> list[Event]:
        """Process a packet for this session (:meth:`SessionTable.receive_packet`)."""
        events: list[Event] = []
        if self.is_closed:
            return events
        self._on_packet(packet, now, events)
        if not self.is_open:
            return events
        self._counts.packets_received += 1
        self.heard_at = now
        self.peer_load = packet.load
        sender, window = self._sender, packet.window
        if window > 0 and window != sender.peer_window:
            window = min(window, self.settings.window)
            if window != sender.peer_window:
                sender.set_peer_window(window)
        if packet.number >= 0 and not self._record_number(packet, now):
            return events
        handlers = self._handlers
        for frame in packet.frames:
            handler = handlers.get(type(frame))
            if handler is not None:
                handler(frame, events, packet, now)
                if self.is_closed:
                    return events
        self._grant()  # after the requests in the packet, which are not released yet
        return events

    def _on_packet(self, packet: frames.Packet, now: float, events: list[Event]) -> None:
        """Process what concerns the handshake."""

    def _record_number(self, packet: frames.Packet, now: float) -> bool:
        """Return whether the packet is new."""
        paths, index = self._sender.paths, packet.path
        path = paths[index] if index < len(paths) else self._sender.path(index)
        received = path.received
        is_in_order = packet.number == received.largest + 1
        if not received.add(packet.number):
            self._counts.duplicates += 1
            path.ack_at = now
            return False
        path.largest_at = now
        if not is_in_order or packet.flags & frames.ACK_NOW:
            path.ack_at = now
            self.is_urgent = True
        elif path.ack_at == math.inf:
            path.ack_at = now + self.settings.ack_delay
        if packet.data > self._data_received:
            self._data_received = min(packet.data, _MOST_DATA)
        return True

    def _on_ack(self, frame: frames.Ack, events: list[Event], _packet: frames.Packet, now: float) -> None:
        sender = self._sender
        if 0 <= frame.path < len(sender.paths):
            sender.paths[frame.path].record_ack(frame, now, sender.lost)
            if sender.fragments:
                sender.record_delivered_fragments()
            if self.is_suspect:
                self._update_suspicion(events)

    def _on_window(self, frame: frames.Window, _events: list[Event], _packet: frames.Packet, _now: float) -> None:
        self._sender.data_limit = max(self._sender.data_limit, frame.data)

    def _on_close(self, frame: frames.Close, events: list[Event], _packet: frames.Packet, _now: float) -> None:
        try:
            reason = Failure(frame.reason)
        except ValueError:
            reason = Failure.CLOSED
        events += self._finish(reason)

    def _on_cont(self, frame: frames.Cont, events: list[Event], packet: frames.Packet, now: float) -> None:
        reassembly = self._reassembly
        if reassembly.is_new(frame.message):
            most = self._largest_payload(frame.number)
            if most is None:
                reassembly.ignore(frame.message)
                return
            if frame.total > most:
                reassembly.ignore(frame.message)
                self._refuse_payload(frame.number, events, is_too_large=True)
                return
        if not reassembly.fits(frame):
            reassembly.ignore(frame.message)
            self._refuse_payload(frame.number, events, is_too_large=False)
            return
        whole = reassembly.add(frame)
        if whole is not None and (handler := self._handlers.get(type(whole))) is not None:
            handler(whole, events, packet, now)

    def _largest_payload(self, number: int) -> int | None:
        """Return the largest payload that is accepted for the request ``number``; None: none is."""
        raise NotImplementedError

    def _refuse_payload(self, number: int, events: list[Event], *, is_too_large: bool) -> None:
        """Accept no payload for the request ``number``: it exceeds what :meth:`_largest_payload` says, or the peer has begun
        more payloads than may be incomplete at once."""
        raise NotImplementedError

    def _grant(self) -> None:
        """Allow the peer further bytes, in steps of a quarter of the window."""
        window = self.settings.data_window
        granted = self._data_received + window - self._held
        if 4 * (granted - self._data_granted) >= window:
            self._data_granted = granted
            self._add_control(frames.WINDOW, granted)

    # -- the end ------------------------------------------------------------------------------------------------

    def close(self, now: float, reason: Failure = Failure.CLOSED) -> list[Event]:
        """End the session. The peer learns of it from one last packet."""
        if self.is_closed:
            return []
        farewell = []
        if self.is_open:
            farewell = [(0, self._sender.encode(0, frames.UNNUMBERED, now, 0, [(frames.CLOSE, reason.value)]))]
        events = self._finish(reason)
        self._farewell = farewell
        return events

    def _finish(self, reason: Failure) -> list[Event]:
        """End the session, and release everything."""
        if self.is_closed:
            return []
        self.is_closed = True
        self.end_reason = reason
        events: list[Event] = []
        self._finish_requests(reason, events)
        events.append(SessionClosed(reason))
        self._receive_window.discard(self)
        self._sender.clear()
        self._reassembly.clear()
        return events

    def _finish_requests(self, reason: Failure, events: list[Event]) -> None:
        raise NotImplementedError


def check_inboxes(inboxes: Sequence[str], most: int, longest: int) -> bool:
    """Return whether the peer's list of inboxes is usable."""
    return 0 < len(inboxes) <= most and all(0 < len(inbox) <= longest for inbox in inboxes)


# Replies to requests that have ended: late ones, and repeated ones. Pure.


MAX_GIVEN_UP = 1_024
"""Requests that were given up and are remembered, until their session is at rest."""


class UnmatchedReplies(msgspec.Struct, eq=False):
    """Counts the frames of a session's replies that no request waits for.

    Attributes:
        late: their requests were given up.
        repeated: their requests were answered already: a packet was sent again.
        given_up: their numbers, the oldest first.
    """

    late: int = 0
    repeated: int = 0
    given_up: dict[int, None] = {}

    def record_given_up(self, number: int) -> None:
        """Record that a request was given up; the oldest one is forgotten if there are too many."""
        if len(self.given_up) >= MAX_GIVEN_UP:
            del self.given_up[next(iter(self.given_up))]
        self.given_up[number] = None

    def record_frame(self, frame: frames.Reply | frames.Chunk | frames.End | frames.Refused) -> None:
        """Count a frame. All but a chunk are the last one of their requests."""
        if frame.number not in self.given_up:
            self.repeated += 1
            return
        self.late += 1
        if type(frame) is not frames.Chunk:
            del self.given_up[frame.number]


# The caller's end of a session: a dispatcher.


EXPIRY_STEP_S = 0.016
"""Seconds between two searches for requests past their deadlines while a thousand wait: each search visits all of them."""


class CallerSession(Session):
    """Sends requests and receives their replies.

    Args:
        id, settings, receive_window, now: see :class:`Session`.
        name, incarnation, secret: of this process.
        inboxes: own, one for each path.
        peer_inbox: of the callee.
        service: its id.

    Attributes:
        waiting: requests without a final event, by their numbers.
        next_number: the number of the next request.
        unmatched: replies that arrived after their requests had ended.
    """

    def __init__(
        self,
        id: int,
        settings: Settings,
        receive_window: ReceiveWindow,
        now: float,
        *,
        name: str,
        incarnation: str,
        secret: str,
        inboxes: Sequence[str],
        peer_inbox: str,
        service: str,
    ) -> None:
        super().__init__(id, settings, receive_window, now, [peer_inbox])
        self.waiting: dict[int, OutgoingRequest] = {}
        self.unmatched = UnmatchedReplies()
        self._name = name
        self._incarnation = incarnation
        self._secret = secret
        self._inboxes = list(inboxes)
        self._service = service
        self.next_number = 0
        self._earliest = math.inf  # no request has an earlier deadline
        self._pinged_at = self._hello_at = now
        self._hello_interval = 2 * settings.first_rtt
        self._doubted_until = math.inf
        self._refuted = 0
        self._has_stream_credit = False
        self._sender.queue.on_request_cut = self._on_request_cut
        self._handlers |= {frames.Reply: self._on_reply, frames.Chunk: self._on_chunk, frames.End: self._on_end}
        self._handlers |= {frames.Refused: self._on_refused, frames.Goaway: self._on_goaway}

    def packets_to_send(self, now: float) -> Packets:
        if self._doubted_until <= now:
            return []  # the session is about to end: what has not left surely does not run
        if self.is_open or self.is_closed or self._hello_at > now:
            return super().packets_to_send(now)
        settings = self.settings
        self._hello_at = now + self._hello_interval
        self._hello_interval = min(2 * self._hello_interval, 2 * settings.max_probe_interval)
        windows = settings.data_window, settings.stream_window
        about = self._name, self._incarnation, self.id, self._secret, self._inboxes
        hello = (frames.HELLO, [frames.VERSION], frames.FEATURES, *about, *windows, self._service)
        return [
            (0, self._sender.encode(0, frames.UNNUMBERED, now, 0, [hello]))
        ]  # to HELLO_ADDRESS: there is no other yet

    def receive(self, packet: frames.Packet, now: float) -> list[Event]:
        if packet.number < 0 and packet.frames and type(packet.frames[0]) is frames.Reset:
            self._on_reset(packet.frames[0], now)  # no sign of life of the session
            return []
        events = super().receive(packet, now)
        if self.unmatched.given_up and self.is_at_rest:
            self.unmatched.given_up.clear()  # CANCEL has arrived: no reply to these follows
        return events

    def _on_packet(self, packet: frames.Packet, now: float, events: list[Event]) -> None:
        if not self.is_open:
            for frame in packet.frames:
                if type(frame) is frames.Accept:
                    self._on_accept(frame, events, now)
                    return
        elif self._doubted_until != math.inf:
            # The peer is alive: another process of its name has answered the probe.
            self._doubted_until = math.inf
            self._refuted += 1
            if self._refuted == self.settings.conflict_after:
                events.append(PeerConflict())

    def _on_accept(self, frame: frames.Accept, events: list[Event], now: float) -> None:
        if (
            len(frame.name) > frames.MAX_NAME_CHARS
            or len(frame.incarnation) > frames.MAX_NAME_CHARS
            or len(frame.nonce) > 64
        ):
            return
        if frame.proof != frames.derive_proof(self._secret, self.id, frame.nonce, frame.name, frame.incarnation):
            return
        if frame.version != frames.VERSION:
            events += self._finish(Failure.VERSION)
            return
        self.is_open = True
        self._sender.peer_address = frames.derive_address(self._secret, self.id, frame.nonce)
        self.peer_name, self.peer_incarnation = frame.name, frame.incarnation
        self._has_stream_credit = bool(frame.features & frames.STREAM_CREDIT)
        self._sender.data_limit = max(self._sender.data_limit, frame.data_window)
        self._pinged_at = now
        self._add_control(frames.PING)  # the callee's session opens with the first packet to its address
        events.append(SessionOpened())

    def _on_reset(self, frame: frames.Reset, now: float) -> None:
        """The peer may have restarted: believed unless a packet of the session arrives soon."""
        if self.is_open and frame.address == self.peer_address and self._doubted_until == math.inf:
            patience = self.settings.reset_timeouts * self._sender.paths[0].probe_timeout
            self._doubted_until = now + max(patience, self.settings.reset_grace)
            self._add_control(frames.PING)  # without FROM: only a process that knows the session answers

    def probe(self) -> None:
        """Have the peer prove that it is alive; a process that does not know the session answers with RESET."""
        if self.is_open:
            self._sender.request_probe()

    # -- requests -----------------------------------------------------------------------------------------------

    def send_request(
        self,
        request: OutgoingRequest,
        target: str,
        payload: bytes,
        headers: Mapping[str, str] | None,
        now: float,
        *,
        run_until: float | None = None,
    ) -> bool:
        """Queue a request. Before the session is open it waits for that. Return False if the session has ended.

        Args:
            target: the tool.
            payload: at most :attr:`Settings.max_payload_bytes`.
            headers: None: none.
            run_until: the deadline for the callee, where it is later than the request's own.
        """
        if self.is_closed:
            return False
        number = request.number = self.next_number
        self.next_number = number + 1
        if not self.waiting:
            self._receive_window.add(self)
        self.waiting[number] = request
        deadline = request.deadline
        if deadline < self._earliest:
            self._earliest = deadline
        if run_until is not None:
            deadline = run_until
        sender = self._sender
        limit = max(1, int((deadline - sender.began) * 1000.0)) if deadline < math.inf else 0
        large = sender.queue.add((frames.REQUEST, number, limit, target, headers, payload), len(payload))
        if large is not None:
            request.large = large
        return True

    def _on_request_cut(self, payload: LargePayload) -> None:
        request = self.waiting.get(payload.number)
        if request is not None:
            request.large = payload

    def cancel(self, request: OutgoingRequest) -> bool:
        """Give up ``request``: it gets no further event. Return whether the tool may have run, or may still run; False is
        certain."""
        if self.is_closed or self.waiting.get(request.number) is not request:
            return True
        del self.waiting[request.number]
        return self._abandon(request)

    def _abandon(self, request: OutgoingRequest) -> bool:
        number, may_have_run = request.number, self._may_have_run(request)
        if request.large is not None:
            self._sender.queue.withdraw_large(number)
        elif not may_have_run:
            self._sender.queue.withdraw_request(number)
        self._reassembly.drop(number)
        self._add_control(frames.CANCEL, number)  # also fills the number of a request that never leaves
        self.unmatched.record_given_up(number)
        self._release(request)
        return may_have_run

    def _may_have_run(self, request: OutgoingRequest) -> bool:
        if request.large is not None:
            return request.large.is_packed
        return request.number <= self._sender.queue.packed_requests

    def _release(self, request: OutgoingRequest) -> None:
        request.ahead = request.end = request.large = None
        if not self.waiting:
            self._earliest = math.inf
            self._receive_window.discard(self)

    def add_paths(self, inboxes: Sequence[str]) -> None:
        """Tell the callee all inboxes of this process, the first one included: large replies use the others."""
        self._inboxes = list(inboxes)
        self._add_control(frames.PATHS, self._inboxes)

    # -- replies ------------------------------------------------------------------------------------------------

    def consume_chunks(self, request: OutgoingRequest, size: int) -> bool:
        """Record that the application has read chunks of ``size`` bytes, the payload and :data:`CHUNK_BYTES` of each: the
        callee may send as many more. Return whether the callee is to learn of it, in steps of a quarter of the window."""
        request.read_bytes += size
        window = self.settings.stream_window
        if 4 * (request.read_bytes - request.credited_bytes) < window or not self._has_stream_credit:
            return False
        if self.waiting.get(request.number) is not request or request.end is not None:
            return False
        request.credited_bytes = request.read_bytes
        self._add_control(frames.CREDIT, request.number, request.read_bytes + window)
        return True

    def _on_reply(self, frame: frames.Reply, events: list[Event], _packet: frames.Packet, _now: float) -> None:
        request = self.waiting.pop(frame.number, None)
        if request is None:
            self.unmatched.record_frame(frame)
            return
        if len(frame.payload) > request.max_reply_bytes:
            events.append(RequestFailed(request, Failure.TOO_LARGE, True))
        else:
            events.append(ReplyReceived(request, frame.status, frame.payload, frame.trace))
        if not self.waiting or request.ahead is not None:
            self._release(request)

    def _on_chunk(self, frame: frames.Chunk, events: list[Event], packet: frames.Packet, now: float) -> None:
        request = self.waiting.get(frame.number)
        if request is None:
            self.unmatched.record_frame(frame)
            return
        index, ahead = frame.index, request.ahead
        if index < request.chunks or (ahead is not None and index in ahead):
            return
        request.reply_bytes += len(frame.payload)
        if request.reply_bytes > request.max_reply_bytes:
            self._fail(request, Failure.TOO_LARGE, events)
            return
        if index > request.chunks:
            if ahead is None:
                ahead = request.ahead = {}
            ahead[index] = frame.payload
            if len(ahead) > self.settings.max_chunks_ahead:
                self._fail(request, Failure.VIOLATION, events)
            return
        request.chunks += 1
        events.append(ChunkReceived(request, frame.payload))
        while ahead and request.chunks in ahead:
            events.append(ChunkReceived(request, ahead.pop(request.chunks)))
            request.chunks += 1
        if request.end is not None:
            self._on_end(request.end, events, packet, now)

    def _on_end(self, frame: frames.End, events: list[Event], _packet: frames.Packet, _now: float) -> None:
        request = self.waiting.get(frame.number)
        if request is None:
            self.unmatched.record_frame(frame)
            return
        if request.chunks < frame.chunks:
            request.end = frame
            return
        del self.waiting[frame.number]
        events.append(EndReceived(request, frame.status, frame.payload, frame.trace))
        self._release(request)

    def _on_refused(self, frame: frames.Refused, events: list[Event], _packet: frames.Packet, _now: float) -> None:
        request = self.waiting.pop(frame.number, None)
        if request is None:
            self.unmatched.record_frame(frame)
            return
        self._reassembly.drop(frame.number)
        self._sender.queue.drop_large(frame.number)
        retry_after = frame.retry_after_ms / 1000.0 if frame.retry_after_ms >= 0 else None
        events.append(RequestRefused(request, frame.reason, retry_after, frame.message, frame.trace))
        self._release(request)

    def _fail(self, request: OutgoingRequest, reason: Failure, events: list[Event]) -> None:
        del self.waiting[request.number]
        events.append(RequestFailed(request, reason, self._abandon(request)))

    def _largest_payload(self, number: int) -> int | None:
        request = self.waiting.get(number)
        return None if request is None else request.max_reply_bytes

    def _refuse_payload(self, number: int, events: list[Event], *, is_too_large: bool) -> None:
        request = self.waiting.get(number)
        if request is not None:
            self._fail(request, Failure.TOO_LARGE if is_too_large else Failure.VIOLATION, events)

    def _on_goaway(self, frame: frames.Goaway, events: list[Event], _packet: frames.Packet, _now: float) -> None:
        if not self.is_peer_draining:
            self.is_peer_draining = True
            events.append(PeerDraining(frame.reason))

    # -- timers -------------------------------------------------------------------------------------------------

    def next_timer(self) -> float:
        if not (self.is_suspended or self.is_open or self.is_closed):
            return min(self._hello_at, self._earliest)
        return super().next_timer() if self.is_suspended else min(super().next_timer(), self._doubted_until)

    def handle_timer(self, now: float) -> list[Event]:
        if self._doubted_until <= now and not self.is_suspended:
            return self._finish(Failure.RESTARTED)
        if not self.is_open and not self.is_closed and not self.is_suspended:
            events: list[Event] = []
            self._expire(now, events)
            if now - self.heard_at >= self.settings.half_open:
                events += self._finish(Failure.SILENT)
            return events
        return super().handle_timer(now)

    def resume(self, now: float) -> list[Event]:
        if self.is_suspended:
            # A callee that has heard nothing for so long has ended the session. What waits may still be answered.
            is_long = self.is_open and now - self.heard_at >= self.settings.idle
            is_forgotten = is_long and not any(map(self._may_have_run, self.waiting.values()))
            self._pinged_at = self._hello_at = now
            self._doubted_until = now if is_forgotten else math.inf
            events = super().resume(now)
            if self.is_open and not is_forgotten:
                # It may have ended meanwhile: further requests wait for its acknowledgement, or go elsewhere.
                self._suspect_peer(events)
                self._add_control(frames.PING)
            return events
        return []

    def next_deadline(self) -> float:
        return self._earliest

    def _expire(self, now: float, events: list[Event]) -> None:
        if self._earliest > now:
            return
        over, earliest = [], math.inf
        for request in self.waiting.values():
            if request.deadline <= now and self.is_suspect and request.last_deadline > now:
                # Its retry elsewhere might block that instance, too; and if this one is dead, the session ends soon.
                request.deadline = request.last_deadline
            if request.is_over(now):
                over.append(request)
            elif request.deadline < earliest:
                earliest = request.deadline
        self._earliest = max(earliest, now + EXPIRY_STEP_S * min(1.0, len(self.waiting) / 1000))
        for request in over:
            self._fail(request, Failure.DEADLINE, events)

    def _longest_silence(self) -> float:
        settings = self.settings
        return max(settings.give_up, settings.least_probe_timeouts * self._sender.paths[0].probe_timeout)

    def _silence_ends_at(self) -> float:
        wait = self.settings.keepalive if self.waiting else self.settings.idle / 3
        return max(self.heard_at, self._pinged_at) + wait

    def _on_silence(self, now: float, _events: list[Event]) -> None:
        self._pinged_at = now
        self._add_control(frames.PING)

    def _probe_frames(self) -> Frames:
        return [(frames.FROM, self.id, self._inboxes[0], self._secret)]

    # -- the end ------------------------------------------------------------------------------------------------

    @property
    def is_at_rest(self) -> bool:
        return not self.waiting and super().is_at_rest

    def _finish_requests(self, reason: Failure, events: list[Event]) -> None:
        for request in self.waiting.values():
            events.append(RequestFailed(request, reason, self._may_have_run(request)))
            request.ahead = request.end = request.large = None
        self.waiting.clear()
        self.unmatched.given_up.clear()
        self._earliest = self._doubted_until = math.inf


# The callee's end of a session: an instance of a tool service.


Trace = Mapping[str, str] | None
"""The trace context of a reply, as ``traceparent`` and ``tracestate``; None, or empty: it has none."""
SENDING_S = 1.0
"""Seconds after a packet for which its sender counts as one that shares the receive window."""


class CalleeSession(Session):
    """Receives requests and sends their replies. Open with the first packet to its address.

    Args:
        hello: of the caller.
        nonce: random.
        may_reply_to: whether an inbox belongs to the holder of a secret.
        settings, receive_window, now: see :class:`Session`.

    Attributes:
        nonce: as given.
        service: id that the caller calls by.
        running: requests without a complete reply, by their numbers: the index of the next chunk.
        is_draining: further requests are refused.
    """

    def __init__(
        self,
        hello: frames.Hello,
        nonce: bytes,
        may_reply_to: Callable[[str, str], bool],
        settings: Settings,
        receive_window: ReceiveWindow,
        now: float,
    ) -> None:
        address = frames.derive_address(hello.secret, hello.id, nonce)
        super().__init__(address, settings, receive_window, now, hello.inboxes)
        self.nonce = nonce
        self.service = hello.service
        self._sender.peer_address = hello.id
        self.peer_name, self.peer_incarnation = hello.name, hello.incarnation
        self._secret = hello.secret
        self._may_reply_to = may_reply_to
        self._sender.data_limit = hello.data_window
        self._stream_window = hello.stream_window if hello.features & frames.STREAM_CREDIT else math.inf
        self._credits: dict[int, list[float]] = {}
        """Of streams with chunks: the bytes sent so far, and the limit that the caller has granted."""
        self._seen = SeenNumbers()
        self.running: dict[int, int] = {}
        self.is_draining = False
        self._handlers |= {frames.Request: self._on_request, frames.Cancel: self._on_cancel}
        self._handlers |= {frames.Paths: self._on_paths, frames.Credit: self._on_credit}

    @property
    def caller(self) -> tuple[int, str]:
        """The caller's id and secret, from HELLO."""
        return self.peer_address, self._secret

    # -- replies ------------------------------------------------------------------------------------------------

    def send_reply(self, number: int, payload: bytes, status: int = frames.Status.TEXT, trace: Trace = None) -> bool:
        """Send the complete reply to a request, with the trace context of its span. Return False if its caller no longer
        waits."""
        if self._end_request(number) is None:
            return False
        frame: tuple[Any, ...] = (frames.REPLY, number, status, payload)
        size = len(payload)
        if trace:
            frame, size = (*frame, dict(trace)), size + frames.TRACE_BYTES
        self._sender.queue.add(frame, size)
        return True

    def send_chunk(self, number: int, payload: bytes) -> bool:
        """Send the next chunk of a streamed reply, which should wait for :meth:`has_credit`. Return as
        :meth:`send_reply`."""
        index = self.running.get(number)
        if index is None:
            return False
        self.running[number] = index + 1
        credit = self._credits.get(number)
        if credit is None:
            credit = self._credits[number] = [0, self._stream_window]
        credit[0] += len(payload) + frames.CHUNK_BYTES
        self._sender.queue.add((frames.CHUNK, number, index, payload), len(payload))
        return True

    def has_credit(self, number: int) -> bool:
        """Return whether the next chunk of the request ``number`` may be sent. After its end nothing is waited for."""
        credit = self._credits.get(number)
        if credit is None:
            return self._stream_window > 0 or number not in self.running
        return credit[0] < credit[1]

    def _end_request(self, number: int) -> int | None:
        """Forget a request. Return the index of its next chunk; None: it does not run."""
        self._credits.pop(number, None)
        return self.running.pop(number, None)

    def send_end(
        self, number: int, payload: bytes = b"", status: int = frames.Status.TEXT, trace: Trace = None
    ) -> bool:
        """End a streamed reply, as :meth:`send_reply`."""
        index = self._end_request(number)
        if index is None:
            return False
        frame: tuple[Any, ...] = (frames.END, number, index, status, payload)
        size = len(payload)
        if trace:
            frame, size = (*frame, dict(trace)), size + frames.TRACE_BYTES
        self._sender.queue.add(frame, size)
        return True

    def refuse(
        self, number: int, reason: str, retry_after: float | None = None, message: str = "", trace: Trace = None
    ) -> bool:
        """Answer that the tool is not executed, or not to its end. Return as :meth:`send_reply`.

        Args:
            number: of the request.
            reason: a word for programs.
            retry_after: seconds until a retry makes sense; None: unknown.
            message: a sentence for callers; empty: the one of the reason.
            trace: as of :meth:`send_reply`.
        """
        if self._end_request(number) is None:
            return False
        self._sender.queue.withdraw_large(number)
        wait = -1 if retry_after is None else int(retry_after * 1000.0)
        self._add_control(frames.REFUSED, number, reason, wait, message, *((dict(trace),) if trace else ()))
        return True

    def drain(self, reason: str = "draining") -> None:
        """Tell the caller to send further requests elsewhere; those that arrive all the same are refused."""
        if not self.is_draining:
            self.is_draining = True
            self._add_control(frames.GOAWAY, reason)

    def consume(self, size: int) -> None:
        """Record that the application has released ``size`` bytes of received requests: the caller may send as many."""
        self._held -= size
        self._grant()

    # -- requests -----------------------------------------------------------------------------------------------

    def _on_packet(self, packet: frames.Packet, now: float, events: list[Event]) -> None:
        self.is_open = True
        if packet.data > self._data_received:
            self._receive_window.record(self, now, SENDING_S)

    def _on_request(self, frame: frames.Request, events: list[Event], packet: frames.Packet, now: float) -> None:
        number = frame.number
        if not self._seen.add(number):
            return
        if len(self._seen.above) > self.settings.max_gaps:
            events += self._finish(Failure.VIOLATION)
            return
        self.running[number] = 0
        if self.is_draining:
            self._decline(number, "draining", events)
            return
        deadline = now + (frame.deadline - packet.clock) / 1000.0 if frame.deadline else math.inf
        if deadline <= now:
            self._decline(number, "expired", events)
            return
        self._held += len(frame.payload)
        events.append(RequestReceived(number, deadline, frame.target, frame.headers, frame.payload))

    def _on_cancel(self, frame: frames.Cancel, events: list[Event], _packet: frames.Packet, _now: float) -> None:
        number = frame.number
        self._reassembly.drop(number)
        self._sender.queue.drop_large(number)
        if self._seen.add(number):
            if len(self._seen.above) > self.settings.max_gaps:
                events += self._finish(Failure.VIOLATION)
        elif self._end_request(number) is not None:
            events.append(RequestCancelled(number))

    def _on_credit(self, frame: frames.Credit, _events: list[Event], _packet: frames.Packet, _now: float) -> None:
        if frame.number in self.running:
            credit = self._credits.setdefault(frame.number, [0, self._stream_window])
            credit[1] = max(credit[1], frame.data)

    def _on_paths(self, frame: frames.Paths, _events: list[Event], _packet: frames.Packet, _now: float) -> None:
        inboxes = frame.inboxes
        if (
            check_inboxes(inboxes, self.settings.max_paths, frames.MAX_NAME_CHARS)
            and len(inboxes) >= len(self.peer_inboxes)  # packets may be in flight on all of them
            and inboxes[0] == self.peer_inboxes[0]  # by which the table knows the caller
            and all(self._may_reply_to(inbox, self._secret) for inbox in inboxes)
        ):
            self.peer_inboxes = list(inboxes)

    def _largest_payload(self, number: int) -> int | None:
        return None if number in self._seen else self.settings.max_payload_bytes

    def _refuse_payload(self, number: int, events: list[Event], *, is_too_large: bool) -> None:
        self._reassembly.drop(number)
        if self._seen.add(number):
            self.running[number] = 0
            self._decline(number, "request-too-large" if is_too_large else "overloaded", events)

    def _decline(self, number: int, reason: str, events: list[Event]) -> None:
        self.refuse(number, reason)
        events.append(RequestDeclined(number, reason))

    def alive_packet(self) -> bytes:
        """Return a packet that shows the caller that this process runs. Changes nothing: any thread may call it."""
        header = (frames.VERSION, self.peer_address, 0, frames.UNNUMBERED, 0, 0, self.load, 0, 0)
        return frames.encode_packet(header, [(frames.ALIVE,)])

    # -- timers and the end -------------------------------------------------------------------------------------

    def _longest_silence(self) -> float:
        return self.settings.callee_give_up

    def _silence_ends_at(self) -> float:
        return self.heard_at + (self.settings.idle if self.is_open else self.settings.half_open)

    def _on_silence(self, now: float, events: list[Event]) -> None:
        events += self._finish(Failure.IDLE)

    @property
    def is_at_rest(self) -> bool:
        return not self.running and not self._seen.above and super().is_at_rest

    def _finish_requests(self, reason: Failure, events: list[Event]) -> None:
        events.extend(RequestCancelled(number) for number in self.running)
        self.running.clear()
        self._credits.clear()
        self._seen = SeenNumbers()


# The state of a session in one word, for metrics and people.


class SessionState(StrEnum):
    """One state at a time: the first of these that applies."""

    HALF_OPEN = "half-open"
    """The handshake has not ended."""
    SUSPENDED = "suspended"
    """The connection to the broker is down: nothing is given up meanwhile."""
    SUSPECT = "suspect"
    """The peer has not acknowledged several probes."""
    DRAINING = "draining"
    """The callee accepts no further requests, and finishes the others."""
    OPEN = "open"
    """Requests and replies travel."""


def find_state(session: Session) -> SessionState:
    """Return the state of a session that has not ended."""
    if not session.is_open:
        return SessionState.HALF_OPEN
    if session.is_suspended:
        return SessionState.SUSPENDED
    if session.is_suspect:
        return SessionState.SUSPECT
    if session.is_peer_draining or (isinstance(session, CalleeSession) and session.is_draining):
        return SessionState.DRAINING
    return SessionState.OPEN
