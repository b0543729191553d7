"""Limits of the session table: half-open and open sessions, and the window that the callers share."""

from __future__ import annotations

from dispatch.protocol import CalleeSession, Settings
from dispatch.protocol.events import Failure, SessionClosed
from dispatch.protocol.frames import PING, REQUEST, Close, decode_packet
from tests.helpers.handwritten_packets import hello, packet, receive
from tests.helpers.session_pair import DISPATCHER, INSTANCE, Pair

# -- half-open sessions -----------------------------------------------------------------------------------------


def test_the_oldest_half_open_session_gives_way() -> None:
    pair = Pair(Settings(max_half_open=3))
    table = pair.tables[INSTANCE]
    for number in range(1, 4):
        receive(pair, INSTANCE, hello(pair, id=number))
    first = next(iter(table.sessions))
    assert receive(pair, INSTANCE, hello(pair, id=4)) == [SessionClosed(Failure.IDLE)]
    assert first not in table.sessions
    assert len(table.sessions) == 3


def test_old_half_open_sessions_end_with_the_next_hello() -> None:
    pair = Pair(Settings(half_open=10.0))
    receive(pair, INSTANCE, hello(pair, id=1))
    pair.now += 9.9
    assert receive(pair, INSTANCE, hello(pair, id=2)) == []
    pair.now += 0.1
    assert receive(pair, INSTANCE, hello(pair, id=3)) == [SessionClosed(Failure.IDLE)]
    assert len(pair.tables[INSTANCE].sessions) == 2


# -- open sessions ----------------------------------------------------------------------------------------------


def open_sessions(pair: Pair, count: int) -> list[CalleeSession]:
    """Open sessions of so many callers, a second apart."""
    table, found = pair.tables[INSTANCE], []
    for number in range(1, count + 1):
        before = set(table.sessions)
        receive(pair, INSTANCE, hello(pair, id=number, inboxes=[f"{DISPATCHER}-{number}"]))
        ((id),) = set(table.sessions) - before
        receive(pair, INSTANCE, packet(id, (PING,)))
        session = table.sessions[id]
        assert isinstance(session, CalleeSession)
        found.append(session)
        pair.now += 1.0
    return found


def test_the_session_that_was_idle_longest_gives_way() -> None:
    pair = Pair(Settings(max_sessions=3))
    first, second, _ = open_sessions(pair, 3)
    receive(pair, INSTANCE, packet(first.id, (PING,), number=1))
    assert receive(pair, INSTANCE, hello(pair, id=9)) == [SessionClosed(Failure.EVICTED)]
    assert second.is_closed
    closes = [decode_packet(data).frames for inbox, data in pair.tables[INSTANCE].outbox if inbox == f"{DISPATCHER}-2"]
    assert [Close("evicted")] in closes, "its caller learns of it"


def test_half_open_sessions_make_no_open_one_give_way() -> None:
    pair = Pair(Settings(max_sessions=3))
    open_sessions(pair, 2)
    for id in (7, 8, 9):
        assert receive(pair, INSTANCE, hello(pair, id=id)) == []


def test_a_session_that_runs_a_request_does_not_give_way() -> None:
    pair = Pair(Settings(max_sessions=2))
    first, second = open_sessions(pair, 2)
    receive(pair, INSTANCE, packet(first.id, (REQUEST, 0, 0, "t", None, b""), number=1))
    receive(pair, INSTANCE, hello(pair, id=9))
    assert second.is_closed
    assert not first.is_closed
    receive(pair, INSTANCE, hello(pair, id=10))
    assert not first.is_closed


# -- the window of the process ----------------------------------------------------------------------------------


def test_a_caller_shares_the_window_for_a_second_after_it_has_sent_payloads() -> None:
    pair = Pair()
    window = pair.tables[INSTANCE].receive_window
    first, second = open_sessions(pair, 2)
    assert window.senders == 0
    receive(pair, INSTANCE, packet(first.id, (PING,), number=1, data=1))
    pair.now += 1.0
    receive(pair, INSTANCE, packet(second.id, (PING,), number=1, data=1))
    assert window.senders == 2
    pair.now += 0.1
    receive(pair, INSTANCE, packet(second.id, (PING,), number=2, data=1))
    assert window.senders == 2, "it has sent no further ones"
    receive(pair, INSTANCE, packet(second.id, (PING,), number=3, data=2))
    assert window.senders == 1
    first.close(pair.now)
    assert window.senders == 1
    second.close(pair.now)
    assert window.senders == 0
