"""The callee's end of a session: an instance of a tool service."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from dispatch.protocol.delivery.numbers import SeenNumbers
from dispatch.protocol.delivery.receive_window import ReceiveWindow
from dispatch.protocol.events import Event, Failure, RequestCancelled, RequestDeclined, RequestReceived
from dispatch.protocol.session import Session, check_inboxes
from dispatch.protocol.settings import Settings
from dispatch.protocol.wire.frames import (
    ALIVE,
    CHUNK,
    CHUNK_BYTES,
    END,
    GOAWAY,
    REFUSED,
    REPLY,
    STREAM_CREDIT,
    TRACE_BYTES,
    UNNUMBERED,
    VERSION,
    Cancel,
    Credit,
    Hello,
    Packet,
    Paths,
    Request,
    Status,
    encode_packet,
)
from dispatch.protocol.wire.handshake import MAX_NAME_CHARS, derive_address

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
        running: requests without a complete reply, by their numbers: the index of the next chunk.
        is_draining: further requests are refused.
    """

    def __init__(
        self,
        hello: Hello,
        nonce: bytes,
        may_reply_to: Callable[[str, str], bool],
        settings: Settings,
        receive_window: ReceiveWindow,
        now: float,
    ) -> None:
        address = derive_address(hello.secret, hello.id, nonce)
        super().__init__(address, settings, receive_window, now, hello.inboxes)
        self.nonce = nonce
        self._sender.peer_address = hello.id
        self.peer_name, self.peer_incarnation = hello.name, hello.incarnation
        self._secret = hello.secret
        self._may_reply_to = may_reply_to
        self._sender.data_limit = hello.data_window
        self._stream_window = hello.stream_window if hello.features & STREAM_CREDIT else math.inf
        self._credits: dict[int, list[float]] = {}
        """Of streams with chunks: the bytes sent so far, and the limit that the caller has granted."""
        self._seen = SeenNumbers()
        self.running: dict[int, int] = {}
        self.is_draining = False
        self._handlers |= {Request: self._on_request, Cancel: self._on_cancel, Paths: self._on_paths}
        self._handlers[Credit] = self._on_credit

    @property
    def caller(self) -> tuple[int, str]:
        """The caller's id and secret, from HELLO."""
        return self.peer_address, self._secret

    # -- replies ------------------------------------------------------------------------------------------------

    def send_reply(self, stream: int, payload: bytes, status: int = Status.TEXT, trace: Trace = None) -> bool:
        """Send the complete reply to a request, with the trace context of its span. Return False if its caller no longer
        waits."""
        if self._end_request(stream) is None:
            return False
        if trace:
            self._sender.queue.add((REPLY, stream, status, payload, dict(trace)), len(payload) + TRACE_BYTES)
        else:
            self._sender.queue.add((REPLY, stream, status, payload), len(payload))
        return True

    def send_chunk(self, stream: int, payload: bytes) -> bool:
        """Send the next chunk of a streamed reply, which should wait for :meth:`has_credit`. Return as
        :meth:`send_reply`."""
        index = self.running.get(stream)
        if index is None:
            return False
        self.running[stream] = index + 1
        credit = self._credits.get(stream) or self._create_credit(stream)
        credit[0] += len(payload) + CHUNK_BYTES
        self._sender.queue.add((CHUNK, stream, index, payload), len(payload))
        return True

    def has_credit(self, stream: int) -> bool:
        """Return whether the next chunk of ``stream`` may be sent. A stream that has ended has nothing to wait for."""
        credit = self._credits.get(stream)
        if credit is None:
            return self._stream_window > 0 or stream not in self.running
        return credit[0] < credit[1]

    def _create_credit(self, stream: int) -> list[float]:
        credit = self._credits[stream] = [0, self._stream_window]
        return credit

    def _end_request(self, stream: int) -> int | None:
        """Forget a request. Return the index of its next chunk; None: it does not run."""
        self._credits.pop(stream, None)
        return self.running.pop(stream, None)

    def send_end(self, stream: int, payload: bytes = b"", status: int = Status.TEXT, trace: Trace = None) -> bool:
        """End a streamed reply, as :meth:`send_reply`."""
        index = self._end_request(stream)
        if index is None:
            return False
        if trace:
            self._sender.queue.add((END, stream, index, status, payload, dict(trace)), len(payload) + TRACE_BYTES)
        else:
            self._sender.queue.add((END, stream, index, status, payload), len(payload))
        return True

    def refuse(
        self, stream: int, reason: str, retry_after: float | None = None, message: str = "", trace: Trace = None
    ) -> bool:
        """Answer that the tool is not executed, or not to its end. Return as :meth:`send_reply`.

        Args:
            stream: the request.
            reason: a word for programs.
            retry_after: seconds until a retry makes sense; None: unknown.
            message: a sentence for callers; empty: the one of the reason.
            trace: as of :meth:`send_reply`.
        """
        if self._end_request(stream) is None:
            return False
        self._sender.queue.withdraw_large(stream)
        wait = -1 if retry_after is None else int(retry_after * 1000.0)
        self._add_control(REFUSED, stream, reason, wait, message, *((dict(trace),) if trace else ()))
        return True

    def drain(self, reason: str = "draining") -> None:
        """Tell the caller to send further requests elsewhere; those that arrive all the same are refused."""
        if not self.is_draining:
            self.is_draining = True
            self._add_control(GOAWAY, reason)

    def consume(self, size: int) -> None:
        """Record that the application has released ``size`` bytes of received requests: the caller may send as many."""
        self._held -= size
        self._grant()

    # -- requests -----------------------------------------------------------------------------------------------

    def _on_packet(self, packet: Packet, now: float, events: list[Event]) -> None:
        self.is_open = True
        if packet.data > self._data_received:
            self._receive_window.record(self, now, SENDING_S)

    def _on_request(self, frame: Request, events: list[Event], packet: Packet, now: float) -> None:
        stream = frame.stream
        if not self._seen.add(stream):
            return
        if len(self._seen.above) > self.settings.max_gaps:
            events += self._finish(Failure.VIOLATION)
            return
        self.running[stream] = 0
        if self.is_draining:
            self._decline(stream, "draining", events)
            return
        deadline = now + (frame.deadline - packet.clock) / 1000.0 if frame.deadline else math.inf
        if deadline <= now:
            self._decline(stream, "expired", events)
            return
        self._held += len(frame.payload)
        events.append(RequestReceived(stream, deadline, frame.target, frame.headers, frame.payload))

    def _on_cancel(self, frame: Cancel, events: list[Event], _packet: Packet, _now: float) -> None:
        stream = frame.stream
        self._reassembly.drop(stream)
        self._sender.queue.drop_large(stream)
        if self._seen.add(stream):
            if len(self._seen.above) > self.settings.max_gaps:
                events += self._finish(Failure.VIOLATION)
        elif self._end_request(stream) is not None:
            events.append(RequestCancelled(stream))

    def _on_credit(self, frame: Credit, _events: list[Event], _packet: Packet, _now: float) -> None:
        if frame.stream in self.running:
            credit = self._credits.get(frame.stream) or self._create_credit(frame.stream)
            credit[1] = max(credit[1], frame.data)

    def _on_paths(self, frame: Paths, _events: list[Event], _packet: Packet, _now: float) -> None:
        inboxes = frame.inboxes
        if (
            check_inboxes(inboxes, self.settings.max_paths, MAX_NAME_CHARS)
            and len(inboxes) >= len(self.peer_inboxes)  # packets may be in flight on all of them
            and inboxes[0] == self.peer_inboxes[0]  # by which the table knows the caller
            and all(self._may_reply_to(inbox, self._secret) for inbox in inboxes)
        ):
            self.peer_inboxes = list(inboxes)

    def _largest_payload(self, stream: int) -> int | None:
        return None if stream in self._seen else self.settings.max_payload_bytes

    def _on_too_large(self, stream: int, events: list[Event]) -> None:
        self._refuse_payload(stream, "request-too-large", events)

    def _on_excess(self, stream: int, events: list[Event]) -> None:
        self._refuse_payload(stream, "overloaded", events)

    def _refuse_payload(self, stream: int, reason: str, events: list[Event]) -> None:
        self._reassembly.drop(stream)
        if self._seen.add(stream):
            self.running[stream] = 0
            self._decline(stream, reason, events)

    def _decline(self, stream: int, reason: str, events: list[Event]) -> None:
        self.refuse(stream, reason)
        events.append(RequestDeclined(stream, reason))

    def alive_packet(self) -> bytes:
        """Return a packet that shows the caller that this process runs. Changes nothing: any thread may call it."""
        header = (VERSION, self.peer_address, 0, UNNUMBERED, 0, 0, self.load, 0, 0)
        return encode_packet(header, [(ALIVE,)])

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

    def memory(self) -> int:
        return super().memory() + len(self.running) + len(self._seen.above)

    def _finish_requests(self, reason: Failure, events: list[Event]) -> None:
        events.extend(RequestCancelled(stream) for stream in self.running)
        self.running.clear()
        self._credits.clear()
        self._seen = SeenNumbers()
