"""Packing: which frames leave next, on which path, in packets as large as the windows allow. Pure."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

from dispatch.protocol.delivery.path import Cargo, Frames, Path
from dispatch.protocol.delivery.receive_window import ReceiveWindow
from dispatch.protocol.delivery.send_queue import SendQueue
from dispatch.protocol.settings import Settings
from dispatch.protocol.statistics import SessionStatistics
from dispatch.protocol.wire.frames import (
    ACK_NOW,
    CONT,
    FRAME_BYTES,
    PACKET_BYTES,
    PING,
    UNNUMBERED,
    VERSION,
    encode_packet,
)

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
        queue: frames to be sent.
        paths: their state, also of those on which packets only arrive.
        usable_paths: paths on which own packets can travel.
        lost: cargoes to be sent again.
        probing: paths that send a probe next.
        peer_address: see :class:`~dispatch.protocol.session.Session`; likewise ``load``.
        data: payload bytes sent, without retransmissions.
        data_limit: how many the peer accepts since the start.
        is_window_due: the peer must learn of a smaller share at once.
    """

    __slots__ = (
        "_began",
        "_fragments",
        "_peer_window",
        "_receive_window",
        "_settings",
        "_statistics",
        "data",
        "data_limit",
        "is_window_due",
        "load",
        "lost",
        "paths",
        "peer_address",
        "probing",
        "queue",
        "usable_paths",
    )

    def __init__(
        self, settings: Settings, receive_window: ReceiveWindow, statistics: SessionStatistics, now: float
    ) -> None:
        self._settings = settings
        self._receive_window = receive_window
        self._statistics = statistics
        self._began = now
        self.queue = SendQueue(settings)
        self.paths = [Path(0, settings)]
        self.usable_paths = 1
        self.lost: deque[Cargo] = deque()
        self.probing: list[Path] = []
        self._fragments: list[Cargo] = []
        """Cargoes with fragments, or with frames that withdraw them, that are not known to have arrived."""
        self.peer_address = 0
        self._peer_window = settings.window
        self.data = 0
        self.data_limit = 0
        self.load = 0
        self.is_window_due = False

    @property
    def peer_window(self) -> int:
        """Unacknowledged bytes that the peer allows on each path."""
        return self._peer_window

    @peer_window.setter
    def peer_window(self, window: int) -> None:
        if window != self._peer_window:
            # The peer has many senders: what it retains of their incomplete payloads is divided like its window.
            self._peer_window = window
            self.queue.divide_room(min(1.0, window / self._settings.window))

    def path(self, index: int) -> Path:
        """Return the state of a path, created if necessary."""
        while index >= len(self.paths):
            self.paths.append(Path(len(self.paths), self._settings))
        return self.paths[index]

    def pack(self, now: float, probe_frames: Frames) -> Packets:
        """Return the packets that are due.

        Args:
            now: the time.
            probe_frames: further frames of a probe.
        """
        packets: Packets = []
        if self.probing:
            for path in self.probing:
                self._pack_probe(path, now, probe_frames, packets)
            self.probing.clear()
        while (packed := self._next_cargo()) is not None:
            self._pack(*packed, now, packets)
        acks = [path.pop_ack(now) for path in self.paths if path.ack_at <= now]
        if acks or (self.is_window_due and not packets):
            packets.append((0, self.encode(0, UNNUMBERED, now, 0, acks)))
        self.is_window_due = False
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
        has_small = bool(queue.control) or (is_allowed and queue.has_small)
        has_large = is_allowed and queue.has_large
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
        if cargo.frames[-1][0] == CONT or queue.has_withdrawn:
            self._fragments.append(cargo)
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
        return min([path for path in usable if self._room(path)], key=_in_flight, default=None)

    def _window(self, path: Path) -> int:
        """Return the unacknowledged bytes that ``path`` may have. One for large payloads has the shares of all of these."""
        if not path.index:
            return self.peer_window
        return min(self.peer_window * (self.usable_paths - 1), self._settings.window)

    def _room(self, path: Path) -> int:
        """Return the bytes that a packet may have. The last packet in a whole window has any size; a divided one is kept to,
        because other processes send at the same time."""
        window, in_flight = self._window(path), path.in_flight
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
        cargo = queue.pop_small(room) if small and queue.has_small else Cargo([], 0)
        while large and queue.has_large and cargo.size < room:
            frame, size = queue.pop_fragment(self._settings.fragment_bytes if is_whole else room - cargo.size)
            cargo.frames.append(frame)
            cargo.size += size
        self._statistics.frames_sent += len(cargo.frames)
        return cargo

    def record_delivered_fragments(self) -> None:
        """Let further large payloads begin for those that have arrived whole, as acknowledgements say."""
        if self._fragments:
            for cargo in self._fragments:
                if cargo.is_delivered:
                    self.queue.record_delivered(cargo.frames)
            self._fragments = [cargo for cargo in self._fragments if not cargo.is_delivered]

    def _pack(self, path: Path, cargo: Cargo, now: float, packets: Packets) -> None:
        acks: list[tuple[Path, int]] = []
        frames: Frames = []
        for each in self.paths:
            if each.ack_at != math.inf:
                acks.append((each, each.received.largest))
                frames.append(each.pop_ack(now))
        number = path.record_sent(cargo, cargo.size + PACKET_BYTES, acks, now)
        flags = ACK_NOW if 2 * path.in_flight >= self._window(path) else 0
        packets.append((path.index, self.encode(path.index, number, now, flags, [*frames, *cargo.frames])))

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
        window, load = self._receive_window.share, self.load
        header = (VERSION, self.peer_address, path, number, self.clock(now), flags, load, self.data, window)
        packet = encode_packet(header, frames)
        self._statistics.packets_sent += 1
        self._statistics.bytes_sent += len(packet)
        return packet

    def clock(self, now: float) -> int:
        """Return the milliseconds since the session began."""
        return int((now - self._began) * 1000.0)

    def clear(self) -> None:
        """Release everything: the session has ended."""
        self.queue.clear()
        self.lost.clear()
        self.probing.clear()
        self._fragments.clear()
        for path in self.paths:
            path.clear()


def _in_flight(path: Path) -> int:
    return path.in_flight
