"""A peer whose packets a test writes by hand, in a session with a genuine caller or callee."""

from __future__ import annotations

from typing import Any

from dispatch.protocol import OutgoingRequest, Settings
from dispatch.protocol.frames import VERSION, decode_packet, encode_packet
from tests.helpers.session_pair import DISPATCHER, INSTANCE, Pair


class HandWritten:
    """The peer of ``session``, the end ``of`` a pair: a test writes its packets by hand, and each has the next number."""

    def __init__(self, settings: Settings | None = None, of: str = DISPATCHER) -> None:
        self.pair = Pair(settings)
        self.pair.exchange()
        self.pair.take(DISPATCHER)
        self.session = self.pair.callee if of == INSTANCE else self.pair.caller
        self._table = self.pair.tables[of]
        self._number = 50

    def send(self, *frames: tuple[Any, ...], number: int | None = None, clock: int = 0, data: int = 0) -> list[Any]:
        self._number += 1
        number = self._number if number is None else number
        packet = encode_packet((VERSION, self.session.id, 0, number, clock, 0, 0, data, 48_000), list(frames))
        received = self._table.receive_packet(packet, self.pair.now)
        return [event for _, events in received for event in events]

    def frames(self) -> list[Any]:
        """Return the frames that the session sends."""
        sent = self.session.packets_to_send(self.pair.now)
        return [frame for _, packet in sent for frame in decode_packet(packet).frames]

    def ask(self, payload: bytes = b"{}", **options: Any) -> OutgoingRequest:
        request = OutgoingRequest(**options)
        assert self.session.send_request(request, "tool", payload, None, self.pair.now)
        return request
