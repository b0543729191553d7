"""The packet sender: which frames leave next, in which packet, with acknowledgements and probes.
The packet sender's choice of a path: small frames, large payloads, and shares of a divided window.
Flow control of the packet sender: how many bytes a whole or a divided window and the peer's memory allow.
One path: packet numbers, acknowledgements, loss detection, probes, and the round-trip time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from dispatch.protocol import frames
from dispatch.protocol.delivery import Cargo, PacketSender, Path, ReceiveWindow
from dispatch.protocol.frames import Ack, Cancel, Cont, Reply
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
            self.sender.queue.add((frames.REPLY, stream, 0, bytes(size)), size)

    def pack(self, now: float = NOW, *, is_window_due: bool = False) -> list[frames.Packet]:
        packed = self.sender.pack(now, [], is_window_due=is_window_due)
        self.raw = [data for _, data in packed]
        packets = [frames.decode_packet(data) for data in self.raw]
        assert [index for index, _ in packed] == [packet.path for packet in packets]
        return packets

    def ack(self, path: int, *ranges: int) -> None:
        self.sender.paths[path].record_ack(Ack(path, 0, list(ranges)), NOW + 0.01, self.sender.lost)


def kinds(packet: frames.Packet) -> list[str]:
    return [type(frame).__name__ for frame in packet.frames]


def sizes(packets: list[frames.Packet]) -> list[int]:
    """Return the payload bytes of each packet."""
    return [
        sum(len(frame.piece if isinstance(frame, Cont) else frame.payload) for frame in each.frames) for each in packets
    ]  # type: ignore[union-attr]  # payload frames only


@pytest.fixture
def sender() -> Sender:
    return Sender()


def test_everything_due_leaves_in_one_packet(sender: Sender) -> None:
    sender.add(10, 20, 30)
    sender.sender.queue.control += [(frames.CANCEL, 8), (frames.CANCEL, 9)]
    sender.sender.load = 4
    (packet,) = sender.pack(NOW + 1.5)
    replies = [Reply(stream, 0, bytes(size)) for stream, size in enumerate((10, 20, 30))]
    assert packet.frames == [Cancel(8), Cancel(9), *replies]
    header = (packet.version, packet.to, packet.path, packet.number, packet.clock, packet.flags, packet.load)
    assert header == (frames.VERSION, 77, 0, 0, 1_500, 0, 4)
    assert (packet.data, packet.window) == (60 + 3 * frames.FRAME_BYTES, SETTINGS.window)
    assert sender.pack() == []
    assert sender.sender.paths[0].in_flight == 60 + 5 * frames.FRAME_BYTES + frames.PACKET_BYTES


def test_statistics(sender: Sender) -> None:
    sender.add(10, 20, 4_000)
    sender.pack()
    statistics = sender.statistics
    assert statistics.packets_sent == len(sender.raw) == 1
    assert (statistics.bytes_sent, statistics.frames_sent) == (len(sender.raw[0]), 4)
    first = len(sender.raw[0])
    sender.add(10)
    sender.sender.queue.control.append((frames.CANCEL, 9))
    sender.pack()
    assert (statistics.packets_sent, statistics.frames_sent) == (2, 6)
    assert statistics.bytes_sent == first + len(sender.raw[0])


def test_the_clock_is_in_milliseconds_since_the_start() -> None:
    sender: Any = Sender().sender
    packets = [
        frames.decode_packet(sender.encode(0, frames.UNNUMBERED, NOW + seconds, 0, []))
        for seconds in (0.0, 0.0015, 2.0)
    ]
    assert [packet.clock for packet in packets] == [0, 1, 2_000]


def test_numbers_count_for_each_path() -> None:
    sender = Sender(paths=3)
    sender.add(4_000, 4_000, 10)
    assert sorted((packet.path, packet.number) for packet in sender.pack()) == [(0, 0), (1, 0), (2, 0)]
    sender.add(10)
    assert [(packet.path, packet.number) for packet in sender.pack()] == [(0, 1)]


def test_lost_frames_leave_before_fresh_ones_and_are_not_counted_again(sender: Sender) -> None:
    sender.add(100)
    sender.pack()
    sender.sender.queue.control.append((frames.CANCEL, 1))
    sender.pack()
    sender.ack(0, 1, 1)
    sender.sender.data_limit = 0
    sender.add(50)
    (packet,) = sender.pack()
    assert sizes([packet]) == [100]
    assert (packet.number, packet.data) == (2, 100 + frames.FRAME_BYTES)


def test_a_lost_cargo_that_was_delivered_meanwhile_is_not_sent(sender: Sender) -> None:
    for is_delivered in (True, False, True):
        cargo = Cargo([(frames.CANCEL, int(is_delivered))], 10)
        cargo.is_delivered = is_delivered
        sender.sender.lost.append(cargo)
    assert [packet.frames for packet in sender.pack()] == [[Cancel(0)]]
    assert not sender.sender.lost


def test_a_packet_full_of_small_frames_has_no_fragment(sender: Sender) -> None:
    sender.add(*[1_000 - frames.FRAME_BYTES] * 5, 2_000)
    first, second = sender.pack()
    assert (kinds(first), kinds(second)) == (["Reply"] * 5, ["Cont"])


@pytest.mark.parametrize(
    ("queue", "is_due"),
    [
        (lambda sender: None, False),
        (lambda sender: sender.queue.control.append((frames.CANCEL, 1)), True),
        (lambda sender: sender.queue.add((frames.REPLY, 0, 0, b"x"), 1), True),
        (lambda sender: sender.queue.add((frames.REPLY, 0, 0, bytes(2_000)), 2_000), True),
        (lambda sender: sender.lost.append(Cargo([(frames.CANCEL, 1)], 10)), True),
        (lambda sender: sender.request_probe(), True),
        (lambda sender: setattr(sender.paths[1], "ack_at", NOW), True),
        (lambda sender: setattr(sender.paths[1], "ack_at", NOW + 0.001), False),
    ],
    ids=["nothing", "control", "small", "large", "lost", "probe", "acknowledgement", "later acknowledgement"],
)
def test_a_packet_is_due_for_each_kind_of_frame(queue: Callable[[PacketSender], object], is_due: bool) -> None:
    sender = Sender(paths=2)
    queue(sender.sender)
    assert sender.sender.has_due(NOW) is is_due
    assert bool(sender.pack()) is is_due


def test_after_a_packet_with_one_small_frame_the_next_one_is_early(sender: Sender) -> None:
    assert sender.sender.early_frames == SETTINGS.early_frames
    sender.add(10)
    sender.pack()
    assert sender.sender.early_frames == 1
    sender.add(10, 20)
    sender.pack()
    assert sender.sender.early_frames == SETTINGS.early_frames


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


def test_an_acknowledgement_alone_waits_until_it_is_due_and_has_no_number(sender: Sender) -> None:
    sender.sender.paths[0].received.add(0)
    sender.sender.paths[0].ack_at = NOW + 0.002
    assert sender.pack(NOW + 0.001) == []
    (packet,) = sender.pack(NOW + 0.002)
    assert (packet.number, packet.path, packet.flags, kinds(packet)) == (-1, 0, 0, ["Ack"])
    assert sender.sender.paths[0].in_flight == 0
    assert sender.pack(NOW + 1.0) == []


# -- probes -----------------------------------------------------------------------------------------------------------
def test_a_probe_repeats_the_oldest_packet_whatever_the_window_allows(sender: Sender) -> None:
    sender.add(*[900] * 15)
    first = sender.pack()[0]
    sender.sender.probing.append(sender.sender.paths[0])
    packed = sender.sender.pack(NOW, [(frames.CANCEL, 5)])
    probes = [frames.decode_packet(data) for _, data in packed]
    assert [packet.frames for packet in probes] == [[Cancel(5), *first.frames]] * 2
    assert [(packet.number, packet.flags) for packet in probes] == [(3, frames.ACK_NOW), (4, frames.ACK_NOW)]
    assert (sender.statistics.probes, sender.sender.paths[0].probes) == (2, 1)
    assert sender.pack() == []


@pytest.mark.parametrize(
    ("probe_bytes", "repeated"), [(2_500 + frames.FRAME_BYTES, True), (2_499 + frames.FRAME_BYTES, False)]
)
def test_a_probe_of_a_large_packet_is_a_ping_whose_acknowledgement_shows_the_loss(
    probe_bytes: int, repeated: bool
) -> None:
    sender = Sender(Settings(window=10_000, large_bytes=1_000, fragment_bytes=4_000, probe_bytes=probe_bytes))
    sender.add(2_500)
    (large,) = sender.pack()
    sender.sender.request_probe()
    probes = sender.pack(NOW + 1.0)
    assert [packet.frames for packet in probes] == [large.frames if repeated else [frames.Ping()]] * 2
    sender.ack(0, 1, 2)
    assert [packet.frames for packet in sender.pack(NOW + 1.1)] == ([] if repeated else [large.frames])


def test_a_probe_without_a_packet_in_flight_is_a_ping(sender: Sender) -> None:
    sender.sender.request_probe()
    sender.sender.request_probe()
    assert [packet.frames for packet in sender.pack(NOW + 5.0)] == [[frames.Ping()], [frames.Ping()]]
    assert sender.sender.paths[0].in_flight == 2 * (frames.FRAME_BYTES + frames.PACKET_BYTES)
    assert sender.sender.paths[0].probe_at > NOW + 5.0
    sender.sender.request_probe()
    sender.pack(NOW + 6.0)
    assert sender.statistics.probes == 4


def test_small_and_large_payloads_share_a_single_path(sender: Sender) -> None:
    sender.add(10, 3_000)
    (packet,) = sender.pack()
    assert kinds(packet) == ["Reply", "Cont", "Cont"]


@pytest.mark.parametrize("paths", [2, 3])
def test_large_payloads_leave_the_first_of_several_paths_to_small_frames(paths: int) -> None:
    sender = Sender(paths=paths)
    sender.add(10, 2_000, 2_000, 2_000)
    packets = sender.pack()
    found = [(packet.path, kinds(packet)) for packet in packets]
    assert found == [(0, ["Reply"]), (1 + 77 % (paths - 1), ["Cont", "Cont", "Cont"])]


def test_large_payloads_use_the_path_with_the_fewest_bytes_in_flight() -> None:
    sender = Sender(paths=3)
    sender.add(*[4_000] * 4)
    assert [packet.path for packet in sender.pack()] == [2, 1, 2]
    sender.ack(1, 0, 0)
    sender.add(1_500)
    assert [packet.path for packet in sender.pack()] == [1]


def test_sessions_send_their_first_large_payloads_on_different_paths() -> None:
    first = []
    for peer_address in range(6):
        sender = Sender(paths=4)
        sender.sender.peer_address = peer_address
        sender.add(1_500)
        first += [packet.path for packet in sender.pack()]
    assert first == [1, 2, 3, 1, 2, 3]


def test_sessions_that_share_the_window_use_one_path_for_large_payloads_with_the_shares_of_all() -> None:
    sender = Sender(paths=4)
    sender.sender.set_peer_window(2_000)
    sender.add(2_500, 10_000)
    packets = sender.pack()
    assert {packet.path for packet in packets} == {1 + 77 % 3}
    assert 5_000 < sender.sender.paths[1 + 77 % 3].in_flight <= 6_000 + frames.FRAME_BYTES
    sender.ack(1 + 77 % 3, 0, packets[-1].number)
    assert {packet.path for packet in sender.pack()} == {1 + 77 % 3}


def test_one_path_never_has_more_than_the_whole_window_in_divided_parts() -> None:
    sender = Sender(paths=4)
    sender.sender.set_peer_window(SETTINGS.window - 1)
    sender.add(30_000)
    sender.pack()
    assert SETTINGS.window - 1_500 < sender.sender.paths[1 + 77 % 3].in_flight <= SETTINGS.window + frames.FRAME_BYTES


def test_small_frames_have_the_plain_share_on_the_first_path() -> None:
    sender = Sender(paths=4)
    sender.sender.set_peer_window(2_000)
    sender.add(*[300] * 20)
    assert sender.pack()[0].path == 0
    assert sender.sender.paths[0].in_flight <= 2_000


def test_large_payloads_wait_while_the_paths_for_them_are_full() -> None:
    sender = Sender(paths=3)
    sender.add(50_000)
    assert {packet.path for packet in sender.pack()} == {1, 2}
    assert sender.sender.queue.large
    assert sender.pack() == []


def test_control_frames_leave_with_a_fragment_while_the_first_path_is_full() -> None:
    sender = Sender(paths=2)
    sender.add(*[900] * 15)
    sender.pack()
    sender.add(2_000)
    sender.sender.queue.control.append((frames.CANCEL, 1))
    (packet,) = sender.pack()
    assert (packet.path, kinds(packet)) == (1, ["Cancel", "Cont"])


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
    sender.sender.lost.append(Cargo([(frames.CANCEL, 1)], SETTINGS.packet_bytes + 1))
    sender.sender.lost.append(Cargo([(frames.CANCEL, 2)], SETTINGS.packet_bytes))
    assert [(packet.path, packet.frames) for packet in sender.pack()] == [(1, [Cancel(1)]), (0, [Cancel(2)])]


# -- a whole window ---------------------------------------------------------------------------------------------------
def test_a_whole_window_ends_with_a_packet_of_any_size(sender: Sender) -> None:
    sender.add(*[900] * 30)
    assert sizes(sender.pack()) == [4_500, 4_500, 4_500]
    assert sender.sender.paths[0].in_flight >= SETTINGS.window
    assert sender.pack() == []
    sender.ack(0, 0, 0)
    assert sizes(sender.pack()) == [4_500]


def test_a_window_that_is_exactly_full_has_no_room() -> None:
    sender = Sender(Settings(window=10_000, large_bytes=20_000))
    sender.add(10_000 - frames.FRAME_BYTES - frames.PACKET_BYTES)
    sender.pack()
    assert sender.sender.paths[0].in_flight == 10_000
    sender.add(10)
    assert sender.pack() == []


def test_a_small_frame_above_a_whole_window_travels_in_one_packet() -> None:
    sender = Sender(Settings())
    sender.add(60_000)
    assert [kinds(packet) for packet in sender.pack()] == [["Reply"]]


def test_an_acknowledgement_is_asked_for_from_half_the_window_on() -> None:
    sender = Sender()
    flags = []
    for _ in range(4):
        sender.add(1_000 - frames.FRAME_BYTES + 250)
        flags += [packet.flags for packet in sender.pack()]
    assert flags == [0, 0, 0, frames.ACK_NOW]
    sender = Sender()
    sender.add(*[5_000 // 10 - frames.FRAME_BYTES] * 9, 5_000 // 10 - frames.FRAME_BYTES - frames.PACKET_BYTES)
    assert sender.pack()[0].flags == frames.ACK_NOW, "exactly half"


def test_a_smaller_window_is_told_at_once_in_a_packet_that_is_due_anyway_or_one_of_its_own(sender: Sender) -> None:
    (packet,) = sender.pack(is_window_due=True)
    assert (packet.number, packet.path, packet.flags, packet.frames) == (-1, 0, 0, [])
    sender.add(10)
    assert [kinds(packet) for packet in sender.pack(is_window_due=True)] == [["Reply"]]
    assert sender.pack() == []


# -- a divided window -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("excess", "kind"), [(0, "Reply"), (1, "Cont")])
def test_a_small_frame_above_a_divided_window_travels_in_fragments(excess: int, kind: str) -> None:
    sender = Sender(Settings(window=10_000, large_bytes=5_000))
    sender.sender.set_peer_window(4_000)
    sender.add(4_000 - frames.PACKET_BYTES - frames.FRAME_BYTES + excess)
    assert kinds(sender.pack()[0]) == [kind]
    assert sender.sender.paths[0].in_flight <= 4_000 + frames.FRAME_BYTES


@pytest.mark.parametrize(("room", "packets"), [(1_023, 0), (1_024, 1)])
def test_a_divided_window_is_used_down_to_1024_bytes(room: int, packets: int, sender: Sender) -> None:
    sender.sender.set_peer_window(4_000)
    first = 4_000 - 2 * frames.PACKET_BYTES - room
    sender.add(*[500 - frames.FRAME_BYTES] * (first // 500), first % 500 - frames.FRAME_BYTES)
    sender.pack()
    assert sender.sender.paths[0].in_flight + frames.PACKET_BYTES + room == 4_000
    sender.add(10)
    assert len(sender.pack()) == packets


@pytest.mark.parametrize("window", [2_400, 4_000, 9_999])
def test_a_divided_window_is_kept_to(window: int, sender: Sender) -> None:
    """Other processes send to the same receiver at the same time."""
    sender.sender.set_peer_window(window)
    sender.add(900, 900, 900, 5_000, 900, 4_000)
    sent = 0
    for _ in range(30):
        packets = sender.pack()
        sent += sum(sizes(packets))
        # The last fragment has at least 512 bytes.
        assert sender.sender.paths[0].in_flight <= window + 512 + 2 * frames.FRAME_BYTES
        for packet in packets:
            sender.ack(0, packet.number, packet.number)
        if not packets:
            break
    assert sent == 12_600


def test_a_small_share_of_a_window_still_makes_progress(sender: Sender) -> None:
    sender.sender.set_peer_window(100)
    sender.add(5_000)
    assert sizes(sender.pack()) == [512]
    assert sender.pack() == []


def test_a_remainder_of_a_divided_window_is_not_used_for_tiny_packets(sender: Sender) -> None:
    sender.sender.set_peer_window(2_400)
    sender.add(500)
    sender.pack()
    assert 2_400 - sender.sender.paths[0].in_flight - frames.PACKET_BYTES > 1_024
    sender.add(300)
    sender.pack()
    assert 0 < 2_400 - sender.sender.paths[0].in_flight - frames.PACKET_BYTES < 1_024
    sender.add(10)
    assert sender.pack() == []
    sender.ack(0, 0, 1)
    assert sizes(sender.pack()) == [10]


ROOM = Settings(window=10_000, large_bytes=1_000, fragment_bytes=2_000, packet_bytes=2_000, max_partial_bytes=20_000)
"""Payloads of 10,000 bytes may have begun at once in a whole window."""


@pytest.mark.parametrize(("window", "begun"), [(5_000, 5_000), (10_000, 10_000), (20_000, 10_000)])
def test_payloads_begin_as_far_as_the_peers_window_is_not_divided(window: int, begun: int) -> None:
    sender = Sender(ROOM)
    sender.sender.set_peer_window(window)
    sender.add(*[2_500] * 8)
    assert sender.sender.queue.begun_bytes == begun


def test_a_payload_makes_room_for_the_next_one_when_all_its_fragments_have_arrived() -> None:
    sender = Sender(ROOM)
    sender.add(4_000, 9_000)
    assert len(sender.pack()) == 2
    sender.add(10)
    sender.pack()
    assert len(sender.sender.fragments) == 2, "no fragment is in the last packet"
    for number in range(2):
        assert not sender.sender.queue.large
        sender.ack(0, number, number)
        sender.sender.record_delivered_fragments()
    assert sender.sender.queue.large
    assert sender.sender.fragments == []


# -- the peer's memory ------------------------------------------------------------------------------------------------
def test_the_peers_memory_stops_payloads_but_not_control_frames(sender: Sender) -> None:
    sender.sender.data_limit = 100 + frames.FRAME_BYTES
    sender.add(100)
    assert len(sender.pack()) == 1
    sender.add(10, 5_000)
    assert sender.pack() == []
    sender.sender.queue.control.append((frames.CANCEL, 1))
    (packet,) = sender.pack()
    assert packet.frames == [Cancel(1)]
    sender.sender.data_limit = 10_000
    assert sum(sizes(sender.pack())) == 5_010


def test_no_payload_leaves_before_the_peer_has_allowed_bytes() -> None:
    sender = PacketSender(SETTINGS, ReceiveWindow(SETTINGS), SessionStatistics(), NOW)
    sender.queue.add((frames.REPLY, 0, 0, b""), 0)
    assert sender.pack(NOW, []) == []


SETTINGS_PATH = Settings(
    ack_delay=0.002, timer_granularity=0.002, first_rtt=0.05, max_probe_interval=0.5, probe_copies=2, max_ack_ranges=3
)


class PathSender:
    """A path that has sent packets ``0 … count - 1``, one each ``interval`` seconds from 100.0 on."""

    def __init__(self, count: int = 0, interval: float = 0.0) -> None:
        self.path = Path(0, SETTINGS_PATH)
        self.cargoes = [Cargo([(frames.CANCEL, number)], 100) for number in range(count)]
        for number, cargo in enumerate(self.cargoes):
            assert self.path.record_sent(cargo, 400, [], 100.0 + number * interval) == number
        self.lost: deque[Cargo] = deque()

    def ack(self, *ranges: int, now: float = 100.1, delay_us: int = 0) -> bool:
        return self.path.record_ack(Ack(0, delay_us, list(ranges)), now, self.lost)


def test_an_acknowledged_packet_is_delivered() -> None:
    sender = PathSender(3)
    assert sender.path.in_flight == 1_200
    assert sender.path.has_unacknowledged
    assert sender.ack(0, 2)
    assert [cargo.is_delivered for cargo in sender.cargoes] == [True] * 3
    assert sender.path.in_flight == 0
    assert not sender.path.has_unacknowledged
    assert not sender.lost


def test_a_gap_is_a_loss_at_once() -> None:
    sender = PathSender(6)
    assert sender.ack(4, 4, 1, 2)
    assert [cargo.frames[0][1] for cargo in sender.lost] == [0, 3]
    assert (sender.path.retransmissions, sender.path.in_flight) == (2, 400)
    assert sender.path.unacknowledged == 1


def test_packets_above_the_largest_number_stay_in_flight() -> None:
    sender = PathSender(3)
    assert sender.ack(0, 0)
    assert sender.path.unacknowledged == 2
    assert not sender.lost


def test_a_second_acknowledgement_has_no_news() -> None:
    sender = PathSender(2)
    assert sender.ack(0, 0)
    assert not sender.ack(0, 0)
    assert sender.path.in_flight == 400


def test_a_cargo_that_was_delivered_in_another_packet_is_not_lost() -> None:
    sender = PathSender(1)
    assert sender.path.record_sent(sender.cargoes[0], 400, [], 100.0) == 1
    assert sender.ack(1, 1)
    assert not sender.lost
    assert sender.path.retransmissions == 1, "its first packet was lost all the same"


def test_a_cargo_is_not_lost_while_another_copy_is_in_flight() -> None:
    sender = PathSender(1)
    sender.path.record_sent(Cargo([], 1), 400, [], 100.0)
    sender.path.record_sent(sender.cargoes[0], 400, [], 100.0)
    assert sender.ack(1, 1)
    assert not sender.lost
    sender.path.record_sent(Cargo([], 1), 400, [], 100.0)
    assert sender.ack(3, 3, 1, 1)
    assert list(sender.lost) == sender.cargoes


def test_ranges_of_one_number_each() -> None:
    sender = PathSender(7)
    assert sender.ack(5, 5, 3, 3, 1, 1)
    assert [cargo.frames[0][1] for cargo in sender.lost] == [0, 2, 4]
    assert [cargo.is_delivered for cargo in sender.cargoes] == [False, True, False, True, False, True, False]


@pytest.mark.parametrize("ranges", [(), (0,), (0, 1, 2), (0, 3), (0, 2**62), (-2, -1)])
def test_an_acknowledgement_of_packets_that_were_not_sent_changes_nothing(ranges: tuple[int, ...]) -> None:
    sender = PathSender(3)
    assert not sender.ack(*ranges)
    assert sender.path.in_flight == 1_200
    assert not sender.lost


def test_an_acknowledgement_of_lost_packets_alone_is_no_news() -> None:
    """A peer may list any numbers; what it does not list below its largest one is lost."""
    sender = PathSender(1)
    sender.path.record_sent(Cargo([], 1), 400, [], 100.0)
    sender.path.record_sent(Cargo([], 1), 400, [], 100.0)
    assert sender.ack(1, 1)
    sender.path.record_probe(100.0)
    sender.path.probes = 3
    assert not sender.ack(9, 2)
    assert sender.path.probes == 3


def test_a_new_path() -> None:
    path = Path(3, SETTINGS_PATH)
    assert (path.index, path.rtt, path.probes, path.in_flight, path.retransmissions) == (3, 0.0, 0, 0, 0)
    assert path.ack_at == math.inf
    assert not Cargo([], 1).is_delivered


def test_without_packets_an_acknowledgement_changes_nothing() -> None:
    assert not PathSender().ack(0, 0)


def test_an_acknowledged_acknowledgement_is_not_repeated() -> None:
    sender = PathSender()
    other = Path(1, SETTINGS_PATH)
    for number in (0, 1, 3):
        other.received.add(number)
    sender.path.record_sent(Cargo([], 1), 400, [(other, 3)], 100.0)
    assert sender.ack(0, 0)
    assert other.received.ranges == [[3, 3]]


def test_the_first_sample_of_the_round_trip_time() -> None:
    sender = PathSender(1)
    sender.ack(0, 0, now=100.1)
    assert sender.path.rtt == pytest.approx(0.1)
    assert sender.path.probe_timeout == pytest.approx(0.1 + 4 * 0.05 + 0.002)


def test_the_round_trip_time_is_smoothed() -> None:
    sender = PathSender(2)
    sender.ack(0, 0, now=100.1)
    sender.ack(1, 1, now=100.26)
    assert sender.path.rtt == pytest.approx(0.1 + 0.16 / 8)
    assert sender.path.probe_timeout == pytest.approx(0.12 + 4 * (0.05 + (0.16 - 0.05) / 4) + 0.002)


def test_only_the_largest_packet_is_a_sample() -> None:
    sender = PathSender(2, interval=0.05)
    sender.ack(0, 1, now=100.15)
    assert sender.path.rtt == pytest.approx(0.1)


def test_the_acknowledgement_delay_is_subtracted_up_to_its_limit() -> None:
    sender = PathSender(1)
    sender.ack(0, 0, now=100.1, delay_us=1_500)
    assert sender.path.rtt == pytest.approx(0.0985)
    sender = PathSender(1)
    sender.ack(0, 0, now=100.1, delay_us=10**9)
    assert sender.path.rtt == pytest.approx(0.098)
    sender = PathSender(1)
    sender.ack(0, 0, now=100.1, delay_us=-(10**9))
    assert sender.path.rtt == pytest.approx(0.1)


def test_the_round_trip_time_is_positive() -> None:
    sender = PathSender(1)
    sender.ack(0, 0, now=100.0)
    assert sender.path.rtt == 1e-5


def test_a_steady_round_trip_time_keeps_the_least_variation() -> None:
    sender = PathSender(200)
    for number in range(200):
        sender.ack(number, number, now=100.1)
    assert sender.path.probe_timeout == pytest.approx(0.1 + 0.002 + 0.002)


def test_without_a_packet_in_flight_there_is_no_probe() -> None:
    assert PathSender().path.probe_at == math.inf
    assert PathSender().path.record_probe(100.0) is None


def test_probe_intervals_double_up_to_their_limit() -> None:
    sender = PathSender(1)
    now, intervals = 100.0, []
    for _ in range(5):
        intervals.append(sender.path.probe_at - now)
        now = sender.path.probe_at
        assert sender.path.record_probe(now) is sender.cargoes[0]
        sender.path.record_sent(sender.cargoes[0], 400, [], now)
    assert intervals == pytest.approx([0.1, 0.2, 0.4, 0.5, 0.5])
    sender.path.probes = 10_000
    assert sender.path.probe_at == pytest.approx(now + 0.5)


def test_a_probe_repeats_the_oldest_cargo_that_has_not_arrived() -> None:
    sender = PathSender(2)
    sender.path.record_sent(sender.cargoes[0], 400, [], 100.0)
    sender.cargoes[0].is_delivered = True
    assert sender.path.record_probe(100.0) is sender.cargoes[1]


def test_an_acknowledgement_ends_the_backoff_of_probes() -> None:
    sender = PathSender(2)
    sender.path.record_probe(100.0)
    sender.path.record_probe(100.0)
    assert sender.path.probes == 2
    sender.ack(0, 0, now=100.4)
    assert sender.path.probes == 0


def test_further_packets_do_not_put_off_a_probe() -> None:
    """A busy sender finds out as soon as an idle one that its peer is gone."""
    sender = PathSender(1)
    due = sender.path.probe_at
    for number in range(1, 50):
        sender.path.record_sent(Cargo([], 1), 400, [], 100.0 + number / 1000)
    assert sender.path.probe_at == due


def test_a_postponed_probe_waits_anew() -> None:
    sender = PathSender(1)
    sender.path.record_probe(100.0)
    sender.path.postpone_probe(200.0)
    assert sender.path.probe_at == pytest.approx(200.1)


def test_the_acknowledgement_frame() -> None:
    path = Path(2, SETTINGS_PATH)
    path.received.add(0)
    path.received.add(4)
    path.largest_at, path.ack_at = 100.0, 100.002
    kind, index, delay_us, ranges = path.pop_ack(100.0015)
    assert (kind, index, ranges) == (frames.ACK, 2, [4, 4, 0, 0])
    assert delay_us in (1_499, 1_500)
    assert path.ack_at == math.inf


def test_clearing_releases_everything_path() -> None:
    sender = PathSender(2)
    sender.path.received.add(0)
    sender.path.ack_at = 100.0
    sender.path.clear()
    assert not sender.path.has_unacknowledged
    assert (sender.path.in_flight, sender.path.received.ranges, sender.path.ack_at) == (0, [], math.inf)
