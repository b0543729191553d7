"""The packet sender's choice of a path: small frames, large payloads, and shares of a divided window."""

from __future__ import annotations

import pytest

from dispatch.protocol.delivery import Cargo
from dispatch.protocol.frames import CANCEL, FRAME_BYTES, Cancel
from tests.helpers.packet_sender_harness import SETTINGS, Sender, kinds


def test_small_and_large_payloads_share_a_single_path() -> None:
    sender = Sender()
    sender.add(10, 3_000)
    (packet,) = sender.pack()
    assert kinds(packet) == ["Reply", "Cont", "Cont"]


@pytest.mark.parametrize("paths", [2, 3])
def test_large_payloads_leave_the_first_of_several_paths_to_small_frames(paths: int) -> None:
    sender = Sender(paths=paths)
    sender.add(10, 2_000, 2_000, 2_000)
    packets = sender.pack()
    assert [(packet.path, kinds(packet)) for packet in packets] == [
        (0, ["Reply"]),
        (1 + 77 % (paths - 1), ["Cont", "Cont", "Cont"]),
    ]


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
    sender.sender.peer_window = 2_000
    sender.add(2_500, 10_000)
    packets = sender.pack()
    assert {packet.path for packet in packets} == {1 + 77 % 3}
    assert 5_000 < sender.sender.paths[1 + 77 % 3].in_flight <= 6_000 + FRAME_BYTES
    sender.ack(1 + 77 % 3, 0, packets[-1].number)
    assert {packet.path for packet in sender.pack()} == {1 + 77 % 3}


def test_one_path_never_has_more_than_the_whole_window_in_divided_parts() -> None:
    sender = Sender(paths=4)
    sender.sender.peer_window = SETTINGS.window - 1
    sender.add(30_000)
    sender.pack()
    assert SETTINGS.window - 1_500 < sender.sender.paths[1 + 77 % 3].in_flight <= SETTINGS.window + FRAME_BYTES


def test_small_frames_have_the_plain_share_on_the_first_path() -> None:
    sender = Sender(paths=4)
    sender.sender.peer_window = 2_000
    sender.add(*[300] * 20)
    assert sender.pack()[0].path == 0
    assert sender.sender.paths[0].in_flight <= 2_000


def test_large_payloads_wait_while_the_paths_for_them_are_full() -> None:
    sender = Sender(paths=3)
    sender.add(50_000)
    assert {packet.path for packet in sender.pack()} == {1, 2}
    assert sender.sender.queue.has_large
    assert sender.pack() == []


def test_control_frames_leave_with_a_fragment_while_the_first_path_is_full() -> None:
    sender = Sender(paths=2)
    sender.add(*[900] * 15)
    sender.pack()
    sender.add(2_000)
    sender.sender.queue.control.append((CANCEL, 1))
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
    sender.sender.lost.append(Cargo([(CANCEL, 1)], SETTINGS.packet_bytes + 1))
    sender.sender.lost.append(Cargo([(CANCEL, 2)], SETTINGS.packet_bytes))
    assert [(packet.path, packet.frames) for packet in sender.pack()] == [(1, [Cancel(1)]), (0, [Cancel(2)])]
