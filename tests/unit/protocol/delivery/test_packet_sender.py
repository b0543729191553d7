"""The packet sender: which frames leave next, in which packet, with acknowledgements and probes."""

from __future__ import annotations

from typing import Any

import pytest

from dispatch.protocol.delivery import Cargo
from dispatch.protocol.frames import (
    ACK_NOW,
    CANCEL,
    FRAME_BYTES,
    PACKET_BYTES,
    VERSION,
    Ack,
    Cancel,
    Ping,
    Reply,
    decode_packet,
)
from dispatch.protocol.settings import Settings
from tests.helpers.packet_sender_harness import NOW, SETTINGS, Sender, kinds, sizes


def test_everything_due_leaves_in_one_packet() -> None:
    sender = Sender()
    sender.add(10, 20, 30)
    sender.sender.queue.control += [(CANCEL, 8), (CANCEL, 9)]
    sender.sender.load = 4
    (packet,) = sender.pack(NOW + 1.5)
    replies = [Reply(stream, 0, bytes(size)) for stream, size in enumerate((10, 20, 30))]
    assert packet.frames == [Cancel(8), Cancel(9), *replies]
    header = (packet.version, packet.to, packet.path, packet.number, packet.clock, packet.flags, packet.load)
    assert header == (VERSION, 77, 0, 0, 1_500, 0, 4)
    assert packet.data == 60 + 3 * FRAME_BYTES
    assert packet.window == SETTINGS.window
    assert sender.pack() == []
    assert sender.sender.paths[0].in_flight == 60 + 5 * FRAME_BYTES + PACKET_BYTES


def test_statistics() -> None:
    sender = Sender()
    sender.add(10, 20, 4_000)
    sender.pack()
    statistics = sender.statistics
    assert statistics.packets_sent == len(sender.raw) == 1
    assert statistics.bytes_sent == len(sender.raw[0])
    assert statistics.frames_sent == 4
    first = len(sender.raw[0])
    sender.add(10)
    sender.sender.queue.control.append((CANCEL, 9))
    sender.pack()
    assert (statistics.packets_sent, statistics.frames_sent) == (2, 6)
    assert statistics.bytes_sent == first + len(sender.raw[0])


def test_the_clock_is_in_milliseconds_since_the_start() -> None:
    sender: Any = Sender().sender
    assert [sender.clock(NOW + seconds) for seconds in (0.0, 0.0015, 2.0)] == [0, 1, 2_000]


def test_numbers_count_for_each_path() -> None:
    sender = Sender(paths=3)
    sender.add(4_000, 4_000, 10)
    assert sorted((packet.path, packet.number) for packet in sender.pack()) == [(0, 0), (1, 0), (2, 0)]
    sender.add(10)
    assert [(packet.path, packet.number) for packet in sender.pack()] == [(0, 1)]


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


def test_a_packet_full_of_small_frames_has_no_fragment() -> None:
    sender = Sender()
    sender.add(*[1_000 - FRAME_BYTES] * 5, 2_000)
    first, second = sender.pack()
    assert (kinds(first), kinds(second)) == (["Reply"] * 5, ["Cont"])


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


# -- acknowledgements -------------------------------------------------------------------------------------------------


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


# -- probes -----------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(("probe_bytes", "repeated"), [(2_500 + FRAME_BYTES, True), (2_499 + FRAME_BYTES, False)])
def test_a_probe_of_a_large_packet_is_a_ping_whose_acknowledgement_shows_the_loss(
    probe_bytes: int, repeated: bool
) -> None:
    sender = Sender(Settings(window=10_000, large_bytes=1_000, fragment_bytes=4_000, probe_bytes=probe_bytes))
    sender.add(2_500)
    (large,) = sender.pack()
    sender.sender.request_probe()
    probes = sender.pack(NOW + 1.0)
    assert [packet.frames for packet in probes] == [large.frames if repeated else [Ping()]] * 2
    sender.ack(0, 1, 2)
    resent = sender.pack(NOW + 1.1)
    assert [packet.frames for packet in resent] == ([] if repeated else [large.frames])


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
