"""A packet sender whose packets are decoded."""

from __future__ import annotations

from dispatch.protocol.delivery import PacketSender, ReceiveWindow
from dispatch.protocol.frames import REPLY, Ack, Cont, Packet, decode_packet
from dispatch.protocol.settings import SessionStatistics, Settings

NOW = 1_000.0
SETTINGS = Settings(window=10_000, packet_bytes=5_000, large_bytes=1_000, fragment_bytes=2_000)


class Sender:
    """A packet sender with statistics, to a peer that allows any number of bytes."""

    def __init__(self, settings: Settings = SETTINGS, paths: int = 1) -> None:
        self.statistics = SessionStatistics()
        self.sender = PacketSender(settings, ReceiveWindow(settings), self.statistics, NOW)
        self.sender.peer_address = 77
        self.sender.data_limit = 10**9
        if paths > 1:
            self.sender.usable_paths = paths
            self.sender.path(paths - 1)
        self.raw: list[bytes] = []

    def add(self, *sizes: int) -> None:
        """Queue replies of these sizes."""
        for stream, size in enumerate(sizes):
            self.sender.queue.add((REPLY, stream, 0, bytes(size)), size)

    def pack(self, now: float = NOW) -> list[Packet]:
        packed = self.sender.pack(now, [])
        self.raw = [data for _, data in packed]
        packets = [decode_packet(data) for data in self.raw]
        assert [index for index, _ in packed] == [packet.path for packet in packets]
        return packets

    def ack(self, path: int, *ranges: int) -> None:
        self.sender.paths[path].record_ack(Ack(path, 0, list(ranges)), NOW + 0.01, self.sender.lost)


def kinds(packet: Packet) -> list[str]:
    return [type(frame).__name__ for frame in packet.frames]


def sizes(packets: list[Packet]) -> list[int]:
    """Return the payload bytes of each packet."""
    return [
        sum(len(frame.piece if isinstance(frame, Cont) else frame.payload) for frame in each.frames) for each in packets
    ]  # type: ignore[union-attr]  # payload frames only
