"""Which session a packet belongs to, the handshake of a callee, and RESET."""

from __future__ import annotations

import pytest

from dispatch.protocol import Settings
from dispatch.protocol.events import Failure, SessionClosed
from dispatch.protocol.wire.frames import PATHS, PING, VERSION, encode_packet
from tests.helpers.session_pair import DISPATCHER, INSTANCE, Pair


def packet(to: int, *frames: tuple[object, ...], path: int = 0, number: int = 0, data: int = 0) -> bytes:
    return encode_packet((VERSION, to, path, number, 0, 0, 0, data, 48_000), list(frames))


@pytest.fixture
def pair() -> Pair:
    pair = Pair()
    pair.exchange()
    return pair


@pytest.mark.parametrize("path", [-1, 4, 2**63])
def test_a_packet_on_a_path_that_does_not_exist_is_malformed(pair: Pair, path: int) -> None:
    assert not pair.tables[INSTANCE].receive_packet(packet(pair.callee.id, (PING,), path=path), pair.now)
    assert pair.tables[INSTANCE].malformed == 1


def test_a_malformed_first_packet_does_not_open_a_session() -> None:
    pair = Pair()
    pair.lose = lambda inbox, _packet: inbox == DISPATCHER
    pair.exchange()
    table = pair.tables[INSTANCE]
    for _ in range(2):
        assert not table.receive_packet(packet(pair.callee.id, (PING,), path=9), pair.now)
    assert not pair.callee.is_open
    table.receive_packet(packet(pair.callee.id, (PING,)), pair.now)
    assert pair.callee.is_open


def test_a_caller_keeps_its_first_inbox(pair: Pair) -> None:
    """The table knows callers by it: a session that ends under another one would never be released."""
    inboxes = [f"{DISPATCHER}-1", DISPATCHER]
    pair.tables[INSTANCE].receive_packet(packet(pair.callee.id, (PATHS, inboxes), number=50), pair.now)
    assert pair.callee.peer_inboxes == [DISPATCHER]
    inboxes.reverse()
    pair.tables[INSTANCE].receive_packet(packet(pair.callee.id, (PATHS, inboxes), number=51), pair.now)
    assert pair.callee.peer_inboxes == [DISPATCHER, f"{DISPATCHER}-1"]


def test_a_peer_that_claims_to_have_sent_more_than_can_be_counted(pair: Pair) -> None:
    """Its number would not fit into the WINDOW frame that answers it."""
    pair.tables[INSTANCE].receive_packet(packet(pair.callee.id, (PING,), number=50, data=2**64 - 1), pair.now)
    pair.exchange()
    assert pair.callee.is_open


def test_a_new_session_of_a_caller_replaces_the_older_one() -> None:
    pair = Pair(Settings())
    pair.exchange()
    former = pair.callee
    pair.tables[DISPATCHER].connect(INSTANCE, pair.now)
    pair.exchange()
    assert former.is_closed
    assert pair.events[INSTANCE] == [SessionClosed(Failure.REPLACED)]
    assert len(pair.tables[INSTANCE].sessions) == 1
