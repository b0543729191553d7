"""What both ends of a session have in common: receiving, timers and the end. Pure.

``send_*`` methods of the two roles queue frames; :meth:`Session.packets_to_send`, called once at the end of a turn of the
event loop, packs everything that is due into as few packets as possible. Nothing is delayed to gather more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from dispatch.protocol.delivery.packet_sender import Packets, PacketSender
from dispatch.protocol.delivery.path import Frames
from dispatch.protocol.delivery.reassembly import Reassembly
from dispatch.protocol.delivery.receive_window import ReceiveWindow
from dispatch.protocol.events import Event, Failure, PeerRecovered, PeerSuspected, SessionClosed
from dispatch.protocol.settings import Settings
from dispatch.protocol.statistics import SessionStatistics
from dispatch.protocol.wire.frames import ACK_NOW, CLOSE, UNNUMBERED, WINDOW, Ack, Close, Cont, Packet, Ping, Window

_MOST_DATA = 1 << 62
"""Payload bytes of a session that can be counted: the number fits into a frame."""
Handler = Callable[[Any, list[Event], Packet, float], None]


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
        peer_load: requests that the peer executes.
        heard_at: when the last packet arrived.
        is_suspect: the peer has not acknowledged several probes; reported by :class:`PeerSuspected`.
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
            Ack: self._on_ack,
            Cont: self._on_cont,
            Window: self._on_window,
            Ping: self._on_ping,
            Close: self._on_close,
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
    def is_window_due(self) -> bool:
        """See :class:`~dispatch.protocol.delivery.receive_window.WindowedSession`."""
        return self._sender.is_window_due

    @is_window_due.setter
    def is_window_due(self, is_due: bool) -> None:
        self._sender.is_window_due = is_due

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
        return sender.queue.small_frames >= self.settings.early_frames and not sender.paths[0].in_flight

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

    def memory(self) -> int:
        """Return the number of objects that are retained for requests and packets."""
        sender = self._sender
        paths = sum(path.unacknowledged + len(path.received.ranges) for path in sender.paths)
        return len(sender.queue) + len(sender.lost) + len(self._reassembly) + paths

    # -- sending ------------------------------------------------------------------------------------------------

    def packets_to_send(self, now: float) -> Packets:
        """Return the packets that are due, each with the index of the peer's inbox that it goes to. Call it once at the end
        of a turn of the event loop, after :meth:`handle_timer`, and when :attr:`is_urgent`."""
        if self.is_closed:
            farewell, self._farewell = self._farewell, []
            return farewell
        if not self.is_open:
            return []
        self.is_urgent = False
        return self._sender.pack(now, self._probe_frames())

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
                    if path.probes + 1 >= settings.suspect_after and not self.is_suspect:
                        self.is_suspect = True
                        events.append(PeerSuspected())
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
        events: list[Event] = []
        if self.is_suspended:
            self.is_suspended = False
            self.heard_at = self._excused_at = now
            for path in self._sender.paths:
                path.postpone_probe(now)
            self._update_suspicion(events)
        return events

    def _update_suspicion(self, events: list[Event]) -> None:
        """End the suspicion of a peer that has acknowledged a packet on every path that it was probed on."""
        most = self.settings.suspect_after
        if self.is_suspect and all(path.probes < most for path in self._sender.paths):
            self.is_suspect = False
            events.append(PeerRecovered())

    # -- receiving ----------------------------------------------------------------------------------------------

    def receive(self, packet: Packet, now: float) -> list[Event]:
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
        if packet.window > 0:
            self._sender.peer_window = min(packet.window, self.settings.window)
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

    def _on_packet(self, packet: Packet, now: float, events: list[Event]) -> None:
        """Process what concerns the handshake."""

    def _record_number(self, packet: Packet, now: float) -> bool:
        """Return whether the packet is new."""
        path = self._sender.path(packet.path)
        received = path.received
        is_in_order = packet.number == received.largest + 1
        if not received.add(packet.number):
            self._counts.duplicates += 1
            path.ack_at = now
            return False
        path.largest_at = now
        if not is_in_order or packet.flags & ACK_NOW:
            path.ack_at = now
            self.is_urgent = True
        elif path.ack_at == math.inf:
            path.ack_at = now + self.settings.ack_delay
        if packet.data > self._data_received:
            self._data_received = min(packet.data, _MOST_DATA)
        return True

    def _on_ack(self, frame: Ack, events: list[Event], _packet: Packet, now: float) -> None:
        sender = self._sender
        if 0 <= frame.path < len(sender.paths):
            sender.paths[frame.path].record_ack(frame, now, sender.lost)
            sender.record_delivered_fragments()
            if self.is_suspect:
                self._update_suspicion(events)

    def _on_window(self, frame: Window, _events: list[Event], _packet: Packet, _now: float) -> None:
        self._sender.data_limit = max(self._sender.data_limit, frame.data)

    def _on_ping(self, _frame: Ping, _events: list[Event], _packet: Packet, _now: float) -> None:
        """Do nothing: its packet is acknowledged."""

    def _on_close(self, frame: Close, events: list[Event], _packet: Packet, _now: float) -> None:
        try:
            reason = Failure(frame.reason)
        except ValueError:
            reason = Failure.CLOSED
        events += self._finish(reason)

    def _on_cont(self, frame: Cont, events: list[Event], packet: Packet, now: float) -> None:
        reassembly = self._reassembly
        if reassembly.is_new(frame.message):
            most = self._largest_payload(frame.stream)
            if most is None:
                reassembly.ignore(frame.message)
                return
            if frame.total > most:
                reassembly.ignore(frame.message)
                self._on_too_large(frame.stream, events)
                return
        if not reassembly.fits(frame):
            reassembly.ignore(frame.message)
            self._on_excess(frame.stream, events)
            return
        whole = reassembly.add(frame)
        if whole is not None and (handler := self._handlers.get(type(whole))) is not None:
            handler(whole, events, packet, now)

    def _largest_payload(self, stream: int) -> int | None:
        """Return the largest payload that is accepted for ``stream``; None: none is."""
        raise NotImplementedError

    def _on_too_large(self, stream: int, events: list[Event]) -> None:
        """A payload for ``stream`` exceeds what :meth:`_largest_payload` says."""
        raise NotImplementedError

    def _on_excess(self, stream: int, events: list[Event]) -> None:
        """The peer has begun more payloads than may be incomplete at once, the last one for ``stream``."""
        raise NotImplementedError

    def _grant(self) -> None:
        """Allow the peer further bytes, in steps of a quarter of the window."""
        window = self.settings.data_window
        granted = self._data_received + window - self._held
        if 4 * (granted - self._data_granted) >= window:
            self._data_granted = granted
            self._add_control(WINDOW, granted)

    # -- the end ------------------------------------------------------------------------------------------------

    def close(self, now: float, reason: Failure = Failure.CLOSED) -> list[Event]:
        """End the session. The peer learns of it from one last packet."""
        if self.is_closed:
            return []
        farewell = []
        if self.is_open:
            farewell = [(0, self._sender.encode(0, UNNUMBERED, now, 0, [(CLOSE, reason.value)]))]
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
