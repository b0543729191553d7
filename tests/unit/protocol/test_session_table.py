"""The session table: which session a packet belongs to, what it knows of peers, and how a session ends."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from dispatch.protocol import SessionTable, Settings
from dispatch.protocol.events import Failure, RequestFailed, SessionClosed
from dispatch.protocol.frames import CLOSE, PATHS, PING, VERSION, Hello, decode_packet, encode_packet
from dispatch.protocol.settings import fit_settings
from tests.helpers.handwritten_packets import hello, packet, receive
from tests.helpers.session_pair import DISPATCHER, INSTANCE, Pair

# -- packets of a session ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [-1, 4, 2**63])
def test_a_packet_on_a_path_that_does_not_exist_is_malformed(pair: Pair, path: int) -> None:
    for count in (1, 2):
        assert not pair.tables[INSTANCE].receive_packet(packet(pair.callee.id, (PING,), path=path), pair.now)
        assert pair.tables[INSTANCE].malformed == count


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


def test_a_first_packet_that_ends_the_session_leaves_none() -> None:
    pair = Pair()
    table = pair.tables[INSTANCE]
    receive(pair, INSTANCE, hello(pair))
    assert receive(pair, INSTANCE, packet(pair.callee.id, (CLOSE, "closed"))) == [SessionClosed(Failure.CLOSED)]
    assert not table.sessions
    assert table.ended.reasons == {"closed": 1}


def test_a_caller_keeps_its_first_inbox(pair: Pair) -> None:
    """The table knows callers by it: a session that ends under another one would never be released."""
    inboxes = [f"{DISPATCHER}-1", DISPATCHER]
    pair.tables[INSTANCE].receive_packet(packet(pair.callee.id, (PATHS, inboxes), number=50), pair.now)
    assert pair.callee.peer_inboxes == [DISPATCHER]
    inboxes.reverse()
    pair.tables[INSTANCE].receive_packet(packet(pair.callee.id, (PATHS, inboxes), number=51), pair.now)
    assert pair.callee.peer_inboxes == [DISPATCHER, f"{DISPATCHER}-1"]


def test_a_further_inbox_is_told_to_every_callee(pair: Pair) -> None:
    pair.tables[DISPATCHER].replace_inboxes([DISPATCHER, f"{DISPATCHER}-1"])
    pair.exchange()
    assert pair.callee.peer_inboxes == [DISPATCHER, f"{DISPATCHER}-1"]
    assert pair.tables[DISPATCHER].inboxes == [DISPATCHER, f"{DISPATCHER}-1"]


def test_a_peer_that_claims_to_have_sent_more_than_can_be_counted(pair: Pair) -> None:
    """Its number would not fit into the WINDOW frame that answers it."""
    pair.tables[INSTANCE].receive_packet(packet(pair.callee.id, (PING,), number=50, data=2**64 - 1), pair.now)
    pair.exchange()
    assert pair.callee.is_open


def test_the_peers_windows_and_loads(pair: Pair) -> None:
    pair.callee.load = 7
    pair.ask()
    pair.advance(0.1)
    assert pair.caller.peer_load == 7
    receive(pair, DISPATCHER, encode_packet((VERSION, pair.caller.id, 0, 90, 0, 0, 0, 0, 5_000), [(PING,)]))
    assert pair.caller.window == 5_000
    receive(pair, DISPATCHER, encode_packet((VERSION, pair.caller.id, 0, 91, 0, 0, 0, 0, 10**9), [(PING,)]))
    assert pair.caller.window == 48_000
    receive(pair, DISPATCHER, encode_packet((VERSION, pair.caller.id, 0, 92, 0, 0, 0, 0, 0), [(PING,)]))
    assert pair.caller.window == 48_000
    receive(pair, DISPATCHER, encode_packet((VERSION, pair.caller.id, 0, 93, 0, 0, 0, 0, 1), [(PING,)]))
    assert pair.caller.window == 1


# -- new sessions -----------------------------------------------------------------------------------------------


def caller_table(max_message_bytes: Callable[[], int] | None = None) -> SessionTable:
    return SessionTable("d", "1", ["d"], random_bytes=random.Random(1).randbytes, max_message_bytes=max_message_bytes)


def test_sessions_that_are_added_and_removed_are_counted() -> None:
    table = caller_table()
    assert table.changes == 0
    first, _ = table.connect("i1", 0.0), table.connect("i2", 0.0)
    assert table.changes == 2
    table.forget(first)
    table.forget(first)
    assert table.changes == 3
    table.connect("i3", 0.0)
    assert table.changes == 4


def test_the_packets_of_new_sessions_fit_the_limit_of_the_broker() -> None:
    limit = 100_000
    table = caller_table(max_message_bytes=lambda: limit)
    first = table.connect("i1", 0.0)
    limit = 50_000
    second = table.connect("i2", 0.0)
    sizes = [session.settings for session in (first, second)]
    assert sizes == [fit_settings(Settings(), 100_000), fit_settings(Settings(), 50_000)]
    assert caller_table().connect("i", 0.0).settings == Settings()


def test_a_process_without_a_secret_names_none() -> None:
    ((_, data),) = caller_table().connect("i", 0.0).packets_to_send(0.0)
    (frame,) = decode_packet(data).frames
    assert isinstance(frame, Hello)
    assert frame.secret == ""


def test_a_new_session_of_a_caller_replaces_the_older_one() -> None:
    pair = Pair(Settings())
    pair.exchange()
    former = pair.callee
    pair.tables[DISPATCHER].connect(INSTANCE, pair.now)
    pair.exchange()
    assert former.is_closed
    assert pair.events[INSTANCE] == [SessionClosed(Failure.REPLACED)]
    assert len(pair.tables[INSTANCE].sessions) == 1


def test_the_address_of_an_instance_differs_for_each_run_and_caller() -> None:
    addresses = set()
    for seed in range(5):
        pair = Pair()
        pair.tables[INSTANCE] = pair.create_instance("i1", seed, Settings())
        pair.exchange()
        addresses.add(pair.callee.id)
    assert len(addresses) == 5


# -- the end ----------------------------------------------------------------------------------------------------


def test_the_peer_of_a_session_that_ends_learns_of_it(pair: Pair) -> None:
    request = pair.ask()
    pair.tables[INSTANCE].end(pair.callee, pair.now)
    pair.take(DISPATCHER)
    pair.exchange()
    failed = RequestFailed(request, Failure.CLOSED, True)
    assert pair.take(DISPATCHER) == [failed, SessionClosed(Failure.CLOSED)]
    assert not pair.tables[DISPATCHER].sessions
    assert not pair.tables[INSTANCE].sessions


def test_a_session_that_ends_before_the_handshake_sends_nothing() -> None:
    pair = Pair()
    table = pair.tables[DISPATCHER]
    assert table.end(pair.caller, pair.now) == [SessionClosed(Failure.CLOSED)]
    assert not table.outbox
    assert not table.sessions
    assert table.ended.handshakes == 1


def test_an_ended_session_is_counted_once(pair: Pair) -> None:
    table, session = pair.tables[INSTANCE], pair.callee
    received = session.statistics.packets_received
    table.end(session, pair.now)
    table.forget(session)
    assert table.ended.reasons == {"closed": 1}
    assert not table._by_inbox
    assert table.ended.statistics.packets_received == received > 0


def test_a_close_with_an_unknown_reason(pair: Pair) -> None:
    assert receive(pair, DISPATCHER, packet(pair.caller.id, (CLOSE, "later version"), number=60)) == [
        SessionClosed(Failure.CLOSED)
    ]
    assert not pair.tables[DISPATCHER].sessions


def test_a_close_has_its_reason(pair: Pair) -> None:
    closed = receive(pair, DISPATCHER, packet(pair.caller.id, (CLOSE, "evicted"), number=60))
    assert closed == [SessionClosed(Failure.EVICTED)]
