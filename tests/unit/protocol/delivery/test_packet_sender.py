"""Which frames leave next, on which path, and how many bytes a window allows."""

from __future__ import annotations

from typing import Any

import pytest

from dispatch.protocol.delivery.packet_sender import PacketSender
from dispatch.protocol.delivery.path import Cargo
from dispatch.protocol.delivery.receive_window import ReceiveWindow
from dispatch.protocol.settings import Settings
from dispatch.protocol.statistics import SessionStatistics
from dispatch.protocol.wire.frames import (
    ACK_NOW,
    CANCEL,
    FRAME_BYTES,
    PACKET_BYTES,
    REPLY,
    VERSION,
    Ack,
    Cancel,
    Cont,
    Packet,
    Ping,
    Reply,
    decode_packet,
)

NOW = 1_000.0
SETTINGS = Settings(window=10_000, packet_bytes=5_000, large_bytes=1_000, fragment_bytes=2_000)


class Sender:
    def __init__(self, settings: Settings = SETTINGS, paths: int = 1) -> None:
        self.statistics = SessionStatistics()
        self.sender = PacketSender(settings, ReceiveWindow(settings), self.statistics, NOW)
        self.sender.peer_address = 77
        self.sender.data_limit = 10**9
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


def test_everything_due_leaves_in_one_packet() -> None:
    sender = Sender()
    sender.add(10, 20, 30)
    sender.sender.queue.control.append((CANCEL, 9))
    sender.sender.load = 4
    (packet,) = sender.pack(NOW + 1.5)
    assert packet.frames == [Cancel(9), *(Reply(stream, 0, bytes(size)) for stream, size in enumerate((10, 20, 30)))]
    header = (packet.version, packet.to, packet.path, packet.number, packet.clock, packet.flags, packet.load)
    assert header == (VERSION, 77, 0, 0, 1_500, 0, 4)
    assert packet.data == 60 + 3 * FRAME_BYTES
    assert packet.window == SETTINGS.window
    assert sender.pack() == []
    assert sender.sender.paths[0].in_flight == 60 + 4 * FRAME_BYTES + PACKET_BYTES


def test_statistics() -> None:
    sender = Sender()
    sender.add(10, 20, 4_000)
    sender.pack()
    statistics = sender.statistics
    assert statistics.packets_sent == len(sender.raw) == 1
    assert statistics.bytes_sent == len(sender.raw[0])
    assert statistics.frames_sent == 4
    sender.add(10)
    sender.pack()
    assert (statistics.packets_sent, statistics.frames_sent) == (2, 5)


def test_numbers_count_for_each_path() -> None:
    sender = Sender(paths=3)
    sender.add(4_000, 4_000, 10)
    assert sorted((packet.path, packet.number) for packet in sender.pack()) == [(0, 0), (1, 0), (2, 0)]
    sender.add(10)
    assert [(packet.path, packet.number) for packet in sender.pack()] == [(0, 1)]


def test_a_whole_window_ends_with_a_packet_of_any_size() -> None:
    sender = Sender()
    sender.add(*[900] * 30)
    packets = sender.pack()
    assert sizes(packets) == [4_500, 4_500, 4_500]
    assert sender.sender.paths[0].in_flight >= SETTINGS.window
    assert sender.pack() == []
    sender.ack(0, 0, 0)
    assert sizes(sender.pack()) == [4_500]


def test_an_acknowledgement_is_asked_for_from_half_the_window_on() -> None:
    sender = Sender()
    flags = []
    for _ in range(4):
        sender.add(1_000 - FRAME_BYTES + 250)
        flags += [packet.flags for packet in sender.pack()]
    assert flags == [0, 0, 0, ACK_NOW]
    sender = Sender()
    sender.add(*[5_000 // 10 - FRAME_BYTES] * 9, 5_000 // 10 - FRAME_BYTES - PACKET_BYTES)
    assert sender.pack()[0].flags == ACK_NOW, "exactly half"


def test_the_peers_memory_stops_payloads_but_not_control_frames() -> None:
    sender = Sender()
    sender.sender.data_limit = 100
    sender.add(100)
    assert len(sender.pack()) == 1
    sender.add(10, 5_000)
    assert sender.pack() == []
    sender.sender.queue.control.append((CANCEL, 1))
    (packet,) = sender.pack()
    assert packet.frames == [Cancel(1)]
    sender.sender.data_limit = 10_000
    assert sum(sizes(sender.pack())) == 5_010


def test_lost_frames_leave_before_fresh_ones_and_are_not_counted_again() -> None:
    sender = Sender()
    sender.add(100)
    sender.pack()
    sender.sender.queue.control.append((CANCEL, 1))
    sender.pack()
    sender.ack(0, 1, 1)
    sender.sender.data_limit = 0
    sender.add(50)
    (packet,) = sender.pack()
    assert sizes([packet]) == [100]
    assert (packet.number, packet.data) == (2, 100 + FRAME_BYTES)


def test_a_lost_cargo_that_was_delivered_meanwhile_is_not_sent() -> None:
    sender = Sender()
    for is_delivered in (True, False, True):
        cargo = Cargo([(CANCEL, int(is_delivered))], 10)
        cargo.is_delivered = is_delivered
        sender.sender.lost.append(cargo)
    assert [packet.frames for packet in sender.pack()] == [[Cancel(0)]]
    assert not sender.sender.lost


def test_acknowledgements_travel_with_any_packet() -> None:
    sender = Sender(paths=2)
    for path in sender.sender.paths:
        path.received.add(3)
        path.ack_at = NOW + 0.002
    sender.add(10)
    (packet,) = sender.pack()
    assert kinds(packet) == ["Ack", "Ack", "Reply"]
    assert [(frame.path, frame.ranges) for frame in packet.frames[:2]] == [(0, [3, 3]), (1, [3, 3])]  # type: ignore[union-attr]  # ACKs
    assert sender.pack(NOW + 1.0) == []
    sender.ack(0, 0, 0)
    sender.sender.paths[0].received.add(4)
    sender.sender.paths[0].received.add(9)
    sender.sender.paths[0].ack_at = NOW
    (packet,) = sender.pack()
    assert packet.frames == [Ack(0, packet.frames[0].delay_us, [9, 9, 3, 4])]  # type: ignore[union-attr]  # an ACK


def test_an_acknowledgement_alone_waits_until_it_is_due_and_has_no_number() -> None:
    sender = Sender()
    sender.sender.paths[0].received.add(0)
    sender.sender.paths[0].ack_at = NOW + 0.002
    assert sender.pack(NOW + 0.001) == []
    (packet,) = sender.pack(NOW + 0.002)
    assert (packet.number, packet.path, packet.flags, kinds(packet)) == (-1, 0, 0, ["Ack"])
    assert sender.sender.paths[0].in_flight == 0
    assert sender.pack(NOW + 1.0) == []


def test_a_smaller_window_is_told_at_once_and_once() -> None:
    sender = Sender()
    sender.sender.is_window_due = True
    (packet,) = sender.pack()
    assert (packet.number, packet.path, packet.flags, packet.frames) == (-1, 0, 0, [])
    assert sender.pack() == []
    sender.sender.is_window_due = True
    sender.add(10)
    assert [kinds(packet) for packet in sender.pack()] == [["Reply"]]
    assert sender.pack() == []


def test_small_and_large_payloads_share_a_single_path() -> None:
    sender = Sender()
    sender.add(10, 3_000)
    (packet,) = sender.pack()
    assert kinds(packet) == ["Reply", "Cont", "Cont"]


def test_large_payloads_leave_the_first_of_several_paths_to_small_frames() -> None:
    sender = Sender(paths=3)
    sender.add(10, 2_000, 2_000, 2_000)
    packets = sender.pack()
    assert [(packet.path, kinds(packet)) for packet in packets] == [
        (0, ["Reply"]),
        (1, ["Cont", "Cont", "Cont"]),
    ]


def test_large_payloads_use_the_path_with_the_fewest_bytes_in_flight() -> None:
    sender = Sender(paths=3)
    sender.add(*[4_000] * 4)
    assert [packet.path for packet in sender.pack()] == [1, 2, 1]
    sender.ack(2, 0, 0)
    sender.add(1_500)
    assert [packet.path for packet in sender.pack()] == [2]


def test_small_frames_use_other_paths_while_the_first_is_full_and_no_large_payload_waits() -> None:
    sender = Sender(paths=2)
    sender.add(*[900] * 30)
    assert [packet.path for packet in sender.pack()] == [0, 0, 0, 1, 1, 1]
    sender = Sender(paths=2)
    sender.add(*[900] * 15)
    assert [packet.path for packet in sender.pack()] == [0, 0, 0]
    sender.add(10, 2_000)
    assert [(packet.path, kinds(packet)) for packet in sender.pack()] == [(1, ["Cont"]), (1, ["Reply"])]


def test_lost_fragments_are_sent_again_on_a_path_for_large_payloads() -> None:
    sender = Sender(paths=2)
    sender.sender.lost.append(Cargo([(CANCEL, 1)], SETTINGS.packet_bytes + 1))
    sender.sender.lost.append(Cargo([(CANCEL, 2)], SETTINGS.packet_bytes))
    assert [(packet.path, packet.frames) for packet in sender.pack()] == [(1, [Cancel(1)]), (0, [Cancel(2)])]


@pytest.mark.parametrize("window", [2_400, 4_000, 9_999])
def test_a_divided_window_is_kept_to(window: int) -> None:
    """Other processes send to the same receiver at the same time."""
    sender = Sender()
    sender.sender.peer_window = window
    sender.add(900, 900, 900, 5_000, 900, 4_000)
    sent = 0
    for _ in range(30):
        packets = sender.pack()
        sent += sum(sizes(packets))
        # The last fragment has at least 512 bytes.
        assert sender.sender.paths[0].in_flight <= window + 512 + 2 * FRAME_BYTES
        for packet in packets:
            sender.ack(0, packet.number, packet.number)
        if not packets:
            break
    assert sent == 12_600


def test_a_small_share_of_a_window_still_makes_progress() -> None:
    sender = Sender()
    sender.sender.peer_window = 100
    sender.add(5_000)
    assert sizes(sender.pack()) == [512]
    assert sender.pack() == []


def test_a_remainder_of_a_divided_window_is_not_used_for_tiny_packets() -> None:
    sender = Sender()
    sender.sender.peer_window = 2_400
    sender.add(500)
    sender.pack()
    assert 2_400 - sender.sender.paths[0].in_flight - PACKET_BYTES > 1_024
    sender.add(300)
    sender.pack()
    assert 0 < 2_400 - sender.sender.paths[0].in_flight - PACKET_BYTES < 1_024
    sender.add(10)
    assert sender.pack() == []
    sender.ack(0, 0, 1)
    assert sizes(sender.pack()) == [10]


def test_a_probe_repeats_the_oldest_packet_whatever_the_window_allows() -> None:
    sender = Sender()
    sender.add(*[900] * 15)
    first = sender.pack()[0]
    sender.sender.probing.append(sender.sender.paths[0])
    packed = sender.sender.pack(NOW, [(CANCEL, 5)])
    probes = [decode_packet(data) for _, data in packed]
    assert [packet.frames for packet in probes] == [[Cancel(5), *first.frames]] * 2
    assert [(packet.number, packet.flags) for packet in probes] == [(3, ACK_NOW), (4, ACK_NOW)]
    assert sender.statistics.probes == 2
    assert sender.sender.paths[0].probes == 1
    assert sender.pack() == []


def test_a_probe_without_a_packet_in_flight_is_a_ping() -> None:
    sender = Sender()
    sender.sender.request_probe()
    sender.sender.request_probe()
    packets = sender.pack(NOW + 5.0)
    assert [packet.frames for packet in packets] == [[Ping()], [Ping()]]
    assert sender.sender.paths[0].in_flight == 2 * (FRAME_BYTES + PACKET_BYTES)
    assert sender.sender.paths[0].probe_at > NOW + 5.0
    sender.sender.request_probe()
    sender.pack(NOW + 6.0)
    assert sender.statistics.probes == 4


def test_clearing_releases_everything() -> None:
    sender = Sender(paths=2)
    sender.add(10, 2_000)
    sender.pack()
    sender.add(10, 2_000)
    sender.sender.lost.append(Cargo([], 1))
    sender.sender.request_probe()
    sender.sender.clear()
    assert sender.pack() == []
    assert not any(path.has_unacknowledged for path in sender.sender.paths)
    assert len(sender.sender.queue) == 0


def test_the_clock_is_in_milliseconds_since_the_start() -> None:
    sender: Any = Sender().sender
    assert [sender.clock(NOW + seconds) for seconds in (0.0, 0.0015, 2.0)] == [0, 1, 2_000]
