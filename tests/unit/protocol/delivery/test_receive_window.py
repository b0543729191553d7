"""The window of one receiver, divided among its senders."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dispatch.protocol.delivery import ReceiveWindow
from dispatch.protocol.settings import Settings

SETTINGS = Settings(window=48_000, senders_at_full_window=4, least_window=2_400)


class Peer:
    def __init__(self) -> None:
        self.is_window_due = False


def window_with(count: int) -> tuple[ReceiveWindow, list[Peer]]:
    window, peers = ReceiveWindow(SETTINGS), [Peer() for _ in range(count)]
    for peer in peers:
        window.add(peer)
    return window, peers


def test_a_few_senders_have_the_whole_window_each() -> None:
    assert window_with(0)[0].share == 48_000
    assert window_with(4)[0].share == 48_000


def test_more_senders_divide_the_windows_of_these() -> None:
    assert window_with(5)[0].share == 38_400
    assert window_with(7)[0].share == 27_428
    assert window_with(8)[0].share == 24_000


def test_the_share_has_a_least_size() -> None:
    assert window_with(80)[0].share == 2_400
    assert window_with(1_000)[0].share == 2_400


def test_a_sender_counts_once() -> None:
    window, peers = window_with(4)
    window.add(peers[0])
    assert window.senders == 4
    assert window.share == 48_000


def test_senders_that_have_ended_return_their_share() -> None:
    window, peers = window_with(6)
    window.discard(peers[0])
    window.discard(peers[0])
    assert window.senders == 5
    window.discard(peers[1])
    assert window.share == 48_000


def test_every_sender_learns_at_once_of_half_the_share() -> None:
    window, peers = window_with(7)
    assert window.due == []
    window.add(peer := Peer())
    assert window.due == [*peers, peer]
    assert all(each.is_window_due for each in window.due)


def test_a_sender_is_due_once() -> None:
    window, _ = window_with(8)
    for _ in range(8):
        window.add(Peer())
    assert window.senders == 16
    assert len(window.due) == len(set(window.due)) == 16


def test_a_slightly_smaller_share_can_wait() -> None:
    window, peers = window_with(5)
    window.due.clear()
    for peer in peers:
        peer.is_window_due = False
    window.add(Peer())
    assert window.share == 32_000
    assert window.due == []


def test_a_share_that_grew_and_shrinks_again_is_due_again() -> None:
    window, peers = window_with(8)
    for _ in range(4):
        window.discard(peers.pop())
    window.due.clear()
    for peer in peers:
        peer.is_window_due = False
    for _ in range(4):
        window.add(Peer())
    assert len(window.due) == 8


def test_a_peer_that_sends_without_being_asked_counts_for_a_while() -> None:
    window, peers = window_with(0)[0], [Peer() for _ in range(6)]
    for at, peer in enumerate(peers):
        window.record(peer, 100.0 + at, recent=10.0)
    assert window.senders == 6
    window.record(peers[5], 112.5, recent=10.0)
    assert window.senders == 3
    assert window.share == 48_000


def test_the_share_follows_peers_that_send_without_being_asked() -> None:
    window, peers = ReceiveWindow(SETTINGS), [Peer() for _ in range(6)]
    for peer in peers:
        window.record(peer, 100.0, recent=10.0)
    assert window.share == 32_000
    window.record(peers[0], 110.0, recent=10.0)
    assert window.senders == 6, "exactly as long ago as counts"
    window.record(peers[0], 110.1, recent=10.0)
    assert window.senders == 1
    assert window.share == 48_000


def test_a_known_sender_does_not_divide_the_window_again() -> None:
    """Each division visits all senders when the share has halved."""
    window, peers = ReceiveWindow(SETTINGS), [Peer() for _ in range(6)]
    for peer in peers:
        window.record(peer, 100.0, recent=10.0)
    window.share = 0
    window.record(peers[0], 100.1, recent=10.0)
    assert window.share == 0


def test_a_peer_that_sends_again_counts_anew() -> None:
    window, first, second = ReceiveWindow(SETTINGS), Peer(), Peer()
    window.record(first, 100.0, recent=10.0)
    window.record(second, 101.0, recent=10.0)
    window.record(first, 105.0, recent=10.0)
    window.record(first, 112.0, recent=10.0)
    assert window.senders == 1


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=100))
def test_the_share_is_always_that_of_the_senders(steps: list[tuple[bool, int]]) -> None:
    window, peers, model = ReceiveWindow(SETTINGS), [Peer() for _ in range(31)], set()
    for is_added, index in steps:
        (window.add if is_added else window.discard)(peers[index])
        (model.add if is_added else model.discard)(index)
        assert window.senders == len(model)
        assert window.share == (48_000 if len(model) <= 4 else max(4 * 48_000 // len(model), 2_400))
