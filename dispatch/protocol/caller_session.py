"""The caller's end of a session: a dispatcher."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from dispatch.protocol.delivery.packet_sender import Packets
from dispatch.protocol.delivery.path import Frames
from dispatch.protocol.delivery.receive_window import ReceiveWindow
from dispatch.protocol.delivery.send_queue import LargePayload
from dispatch.protocol.events import (
    ChunkReceived,
    EndReceived,
    Event,
    Failure,
    PeerConflict,
    PeerDraining,
    ReplyReceived,
    RequestFailed,
    RequestRefused,
    SessionOpened,
)
from dispatch.protocol.request import OutgoingRequest
from dispatch.protocol.session import Session
from dispatch.protocol.settings import Settings
from dispatch.protocol.unmatched_replies import UnmatchedReplies
from dispatch.protocol.wire.frames import (
    CANCEL,
    CREDIT,
    FEATURES,
    FROM,
    HELLO,
    PATHS,
    PING,
    REQUEST,
    STREAM_CREDIT,
    UNNUMBERED,
    VERSION,
    Accept,
    Chunk,
    End,
    Goaway,
    Packet,
    Refused,
    Reply,
    Reset,
)
from dispatch.protocol.wire.handshake import MAX_NAME_CHARS, derive_address, derive_proof

EXPIRY_STEP_S = 0.016
"""Seconds between two searches for requests past their deadlines while a thousand wait: each search visits all of them."""


class CallerSession(Session):
    """Sends requests and receives their replies.

    Args:
        id, settings, receive_window, now: see :class:`Session`.
        name, incarnation, secret: of this process.
        inboxes: own, one for each path.
        peer_inbox: of the callee.

    Attributes:
        waiting: requests without a final event, by their numbers.
        next_stream: the number of the next request.
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
    ) -> None:
        super().__init__(id, settings, receive_window, now, [peer_inbox])
        self.waiting: dict[int, OutgoingRequest] = {}
        self.unmatched = UnmatchedReplies()
        self._name = name
        self._incarnation = incarnation
        self._secret = secret
        self._inboxes = list(inboxes)
        self.next_stream = 0
        self._earliest = math.inf  # no request has an earlier deadline
        self._pinged_at = self._hello_at = now
        self._hello_interval = 2 * settings.first_rtt
        self._doubted_until = math.inf
        self._refuted = 0
        self._has_stream_credit = False
        self._sender.queue.on_request_cut = self._on_request_cut
        self._handlers |= {Reply: self._on_reply, Chunk: self._on_chunk, End: self._on_end}
        self._handlers |= {Refused: self._on_refused, Goaway: self._on_goaway}

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
        hello = (HELLO, [VERSION], FEATURES, *about, *windows)
        return [(0, self._sender.encode(0, UNNUMBERED, now, 0, [hello]))]  # to HELLO_ADDRESS: there is no other yet

    def receive(self, packet: Packet, now: float) -> list[Event]:
        if packet.number < 0 and packet.frames and type(packet.frames[0]) is Reset:
            self._on_reset(packet.frames[0], now)  # no sign of life of the session
            return []
        events = super().receive(packet, now)
        if self.unmatched and self.is_at_rest:
            self.unmatched.clear()  # CANCEL has arrived: no reply to these follows
        return events

    def _on_packet(self, packet: Packet, now: float, events: list[Event]) -> None:
        if not self.is_open:
            for frame in packet.frames:
                if type(frame) is Accept:
                    self._on_accept(frame, events, now)
                    return
        elif self._doubted_until != math.inf:
            # The peer is alive: another process of its name has answered the probe.
            self._doubted_until = math.inf
            self._refuted += 1
            if self._refuted == self.settings.conflict_after:
                events.append(PeerConflict())

    def _on_accept(self, frame: Accept, events: list[Event], now: float) -> None:
        if len(frame.name) > MAX_NAME_CHARS or len(frame.incarnation) > MAX_NAME_CHARS or len(frame.nonce) > 64:
            return
        if frame.proof != derive_proof(self._secret, self.id, frame.nonce, frame.name, frame.incarnation):
            return
        if frame.version != VERSION:
            events += self._finish(Failure.VERSION)
            return
        self.is_open = True
        self._sender.peer_address = derive_address(self._secret, self.id, frame.nonce)
        self.peer_name, self.peer_incarnation = frame.name, frame.incarnation
        self._has_stream_credit = bool(frame.features & STREAM_CREDIT)
        self._sender.data_limit = max(self._sender.data_limit, frame.data_window)
        self._pinged_at = now
        self._add_control(PING)  # the callee's session opens with the first packet to its address
        events.append(SessionOpened())

    def _on_reset(self, frame: Reset, now: float) -> None:
        """The peer may have restarted: believed unless a packet of the session arrives soon."""
        if self.is_open and frame.address == self.peer_address and self._doubted_until == math.inf:
            patience = self.settings.reset_timeouts * self._sender.paths[0].probe_timeout
            self._doubted_until = now + max(patience, self.settings.reset_grace)
            self._add_control(PING)  # without FROM: only a process that knows the session answers

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
        stream = request.stream = self.next_stream
        self.next_stream = stream + 1
        if not self.waiting:
            self._receive_window.add(self)
        self.waiting[stream] = request
        deadline = request.deadline
        if deadline < self._earliest:
            self._earliest = deadline
        if run_until is not None:
            deadline = run_until
        limit = max(1, self._sender.clock(deadline)) if deadline < math.inf else 0
        request.large = self._sender.queue.add((REQUEST, stream, limit, target, headers, payload), len(payload))
        return True

    def _on_request_cut(self, payload: LargePayload) -> None:
        request = self.waiting.get(payload.stream)
        if request is not None:
            request.large = payload

    def cancel(self, request: OutgoingRequest) -> bool:
        """Give up ``request``: it gets no further event. Return whether the tool may have run, or may still run; False is
        certain."""
        if self.is_closed or self.waiting.get(request.stream) is not request:
            return True
        del self.waiting[request.stream]
        return self._abandon(request)

    def _abandon(self, request: OutgoingRequest) -> bool:
        stream, may_have_run = request.stream, self._may_have_run(request)
        if request.large is not None:
            self._sender.queue.withdraw_large(stream)
        elif not may_have_run:
            self._sender.queue.withdraw_request(stream)
        self._reassembly.drop(stream)
        self._add_control(CANCEL, stream)  # also fills the number of a request that never leaves
        self.unmatched.record_given_up(stream)
        self._release(request)
        return may_have_run

    def _may_have_run(self, request: OutgoingRequest) -> bool:
        if request.large is not None:
            return request.large.is_packed
        return request.stream <= self._sender.queue.packed_requests

    def _release(self, request: OutgoingRequest) -> None:
        request.ahead = request.end = request.large = None
        if not self.waiting:
            self._earliest = math.inf
            self._receive_window.discard(self)

    def add_paths(self, inboxes: Sequence[str]) -> None:
        """Tell the callee all inboxes of this process, the first one included: large replies use the others."""
        self._inboxes = list(inboxes)
        self._add_control(PATHS, self._inboxes)

    # -- replies ------------------------------------------------------------------------------------------------

    def consume_chunks(self, request: OutgoingRequest, size: int) -> bool:
        """Record that the application has read chunks of ``size`` bytes, the payload and :data:`CHUNK_BYTES` of each: the
        callee may send as many more. Return whether the callee is to learn of it, in steps of a quarter of the window."""
        request.read_bytes += size
        window = self.settings.stream_window
        if 4 * (request.read_bytes - request.credited_bytes) < window or not self._has_stream_credit:
            return False
        if self.waiting.get(request.stream) is not request or request.end is not None:
            return False
        request.credited_bytes = request.read_bytes
        self._add_control(CREDIT, request.stream, request.read_bytes + window)
        return True

    def _on_reply(self, frame: Reply, events: list[Event], _packet: Packet, _now: float) -> None:
        request = self.waiting.pop(frame.stream, None)
        if request is None:
            self.unmatched.record_frame(frame)
            return
        if len(frame.payload) > request.max_reply_bytes:
            events.append(RequestFailed(request, Failure.TOO_LARGE, True))
        else:
            events.append(ReplyReceived(request, frame.status, frame.payload, frame.trace))
        if not self.waiting or request.ahead is not None:
            self._release(request)

    def _on_chunk(self, frame: Chunk, events: list[Event], packet: Packet, now: float) -> None:
        request = self.waiting.get(frame.stream)
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

    def _on_end(self, frame: End, events: list[Event], _packet: Packet, _now: float) -> None:
        request = self.waiting.get(frame.stream)
        if request is None:
            self.unmatched.record_frame(frame)
            return
        if request.chunks < frame.chunks:
            request.end = frame
            return
        del self.waiting[frame.stream]
        events.append(EndReceived(request, frame.status, frame.payload, frame.trace))
        self._release(request)

    def _on_refused(self, frame: Refused, events: list[Event], _packet: Packet, _now: float) -> None:
        request = self.waiting.pop(frame.stream, None)
        if request is None:
            self.unmatched.record_frame(frame)
            return
        self._reassembly.drop(frame.stream)
        self._sender.queue.drop_large(frame.stream)
        retry_after = frame.retry_after_ms / 1000.0 if frame.retry_after_ms >= 0 else None
        events.append(RequestRefused(request, frame.reason, retry_after, frame.message, frame.trace))
        self._release(request)

    def _fail(self, request: OutgoingRequest, reason: Failure, events: list[Event]) -> None:
        del self.waiting[request.stream]
        events.append(RequestFailed(request, reason, self._abandon(request)))

    def _largest_payload(self, stream: int) -> int | None:
        request = self.waiting.get(stream)
        return None if request is None else request.max_reply_bytes

    def _on_too_large(self, stream: int, events: list[Event]) -> None:
        self._fail_waiting(stream, Failure.TOO_LARGE, events)

    def _on_excess(self, stream: int, events: list[Event]) -> None:
        self._fail_waiting(stream, Failure.VIOLATION, events)

    def _fail_waiting(self, stream: int, reason: Failure, events: list[Event]) -> None:
        request = self.waiting.get(stream)
        if request is not None:
            self._fail(request, reason, events)

    def _on_goaway(self, frame: Goaway, events: list[Event], _packet: Packet, _now: float) -> None:
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
        return super().resume(now)

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
            if request.deadline <= now:
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
        self._add_control(PING)

    def _probe_frames(self) -> Frames:
        return [(FROM, self.id, self._inboxes[0], self._secret)]

    # -- the end ------------------------------------------------------------------------------------------------

    @property
    def is_at_rest(self) -> bool:
        return not self.waiting and super().is_at_rest

    def memory(self) -> int:
        return super().memory() + len(self.waiting) + len(self.unmatched)

    def _finish_requests(self, reason: Failure, events: list[Event]) -> None:
        for request in self.waiting.values():
            events.append(RequestFailed(request, reason, self._may_have_run(request)))
            request.ahead = request.end = request.large = None
        self.waiting.clear()
        self.unmatched.clear()
        self._earliest = self._doubted_until = math.inf
