"""Flow control of the packet sender: how many bytes a whole or a divided window and the peer's memory allow."""

from __future__ import annotations

import pytest

from dispatch.protocol.delivery import PacketSender, ReceiveWindow
from dispatch.protocol.frames import ACK_NOW, CANCEL, FRAME_BYTES, PACKET_BYTES, REPLY, Cancel
from dispatch.protocol.settings import SessionStatistics, Settings
from tests.helpers.packet_sender_harness import NOW, SETTINGS, Sender, kinds, sizes

# -- a whole window ---------------------------------------------------------------------------------------------------


def test_a_whole_window_ends_with_a_packet_of_any_size() -> None:
    sender = Sender()
    sender.add(*[900] * 30)
    packets = sender.pack()
    assert sizes(packets) == [4_500, 4_500, 4_500]
    assert sender.sender.paths[0].in_flight >= SETTINGS.window
    assert sender.pack() == []
    sender.ack(0, 0, 0)
    assert sizes(sender.pack()) == [4_500]


def test_a_window_that_is_exactly_full_has_no_room() -> None:
    sender = Sender(Settings(window=10_000, large_bytes=20_000))
    sender.add(10_000 - FRAME_BYTES - PACKET_BYTES)
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
        sender.add(1_000 - FRAME_BYTES + 250)
        flags += [packet.flags for packet in sender.pack()]
    assert flags == [0, 0, 0, ACK_NOW]
    sender = Sender()
    sender.add(*[5_000 // 10 - FRAME_BYTES] * 9, 5_000 // 10 - FRAME_BYTES - PACKET_BYTES)
    assert sender.pack()[0].flags == ACK_NOW, "exactly half"


def test_a_smaller_window_is_told_at_once_and_once() -> None:
    sender = Sender()
    sender.sender.is_window_due = True
    (packet,) = sender.pack()
    assert (packet.number, packet.path, packet.flags, packet.frames) == (-1, 0, 0, [])
    assert sender.sender.is_window_due is False
    assert sender.pack() == []
    sender.sender.is_window_due = True
    sender.add(10)
    assert [kinds(packet) for packet in sender.pack()] == [["Reply"]]
    assert sender.pack() == []


# -- a divided window -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("excess", "kind"), [(0, "Reply"), (1, "Cont")])
def test_a_small_frame_above_a_divided_window_travels_in_fragments(excess: int, kind: str) -> None:
    sender = Sender(Settings(window=10_000, large_bytes=5_000))
    sender.sender.peer_window = 4_000
    sender.add(4_000 - PACKET_BYTES - FRAME_BYTES + excess)
    assert kinds(sender.pack()[0]) == [kind]
    assert sender.sender.paths[0].in_flight <= 4_000 + FRAME_BYTES


@pytest.mark.parametrize(("room", "packets"), [(1_023, 0), (1_024, 1)])
def test_a_divided_window_is_used_down_to_1024_bytes(room: int, packets: int) -> None:
    sender = Sender()
    sender.sender.peer_window = 4_000
    first = 4_000 - 2 * PACKET_BYTES - room
    sender.add(*[500 - FRAME_BYTES] * (first // 500), first % 500 - FRAME_BYTES)
    sender.pack()
    assert sender.sender.paths[0].in_flight + PACKET_BYTES + room == 4_000
    sender.add(10)
    assert len(sender.pack()) == packets


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


# -- the peer's memory ------------------------------------------------------------------------------------------------


def test_the_peers_memory_stops_payloads_but_not_control_frames() -> None:
    sender = Sender()
    sender.sender.data_limit = 100 + FRAME_BYTES
    sender.add(100)
    assert len(sender.pack()) == 1
    sender.add(10, 5_000)
    assert sender.pack() == []
    sender.sender.queue.control.append((CANCEL, 1))
    (packet,) = sender.pack()
    assert packet.frames == [Cancel(1)]
    sender.sender.data_limit = 10_000
    assert sum(sizes(sender.pack())) == 5_010


def test_no_payload_leaves_before_the_peer_has_allowed_bytes() -> None:
    sender = PacketSender(SETTINGS, ReceiveWindow(SETTINGS), SessionStatistics(), NOW)
    sender.queue.add((REPLY, 0, 0, b""), 0)
    assert sender.pack(NOW, []) == []
