"""What both ends of a session have in common."""

from __future__ import annotations

import pytest

from dispatch.protocol import Session, Settings
from dispatch.protocol.events import (
    Failure,
    ReplyReceived,
    RequestDeclined,
    RequestFailed,
    RequestReceived,
    RequestRefused,
    SessionClosed,
)
from dispatch.protocol.frames import Reset, decode_packet
from dispatch.protocol.session import check_inboxes
from tests.helpers.session_pair import DISPATCHER, INSTANCE, Pair


def flags(session: Session) -> dict[str, object]:
    """Return the flags of ``session`` that are not false."""
    values = {name: getattr(session, name) for name in dir(session) if name.startswith("is_")}
    return {name: value for name, value in values.items() if value is not False}


def test_a_new_session_knows_nothing_of_its_peer() -> None:
    caller = Pair().caller
    assert flags(caller) == {"is_at_rest": True}
    assert (caller.peer_name, caller.peer_incarnation, caller.peer_address, caller.peer_load) == ("", "", 0, 0)
    assert (caller.end_reason, caller.end_error) == (None, None)


def test_an_open_session_at_rest_has_no_other_state() -> None:
    pair = Pair()
    pair.advance(1.0)
    for session in (pair.caller, pair.callee):
        assert flags(session) == {"is_at_rest": True, "is_open": True}


@pytest.mark.parametrize(
    ("inboxes", "is_usable"),
    [([], False), (["a"], True), (["a", "bcd"], True), (["a", ""], False), (["abcd"], False), (["a", "b", "c"], False)],
)
def test_usable_inboxes_have_names_and_are_not_too_many(inboxes: list[str], is_usable: bool) -> None:
    assert check_inboxes(inboxes, most=2, longest=3) is is_usable


@pytest.mark.parametrize("size", [5_000, 50_000])
def test_nothing_is_retained_of_a_reply_that_is_too_large(size: int) -> None:
    """Neither of one fragment nor of many."""
    pair = Pair(Settings(large_bytes=1_000, fragment_bytes=10_000))
    pair.exchange()
    pair.take(DISPATCHER)
    request = pair.ask(max_reply_bytes=4_000)
    pair.callee.send_reply(request.number, bytes(size))
    pair.exchange()
    assert pair.take(DISPATCHER) == [RequestFailed(request, Failure.TOO_LARGE, True)]
    later = pair.ask()
    pair.callee.send_reply(later.number, bytes(5_000))
    pair.exchange()
    assert pair.take(DISPATCHER) == [ReplyReceived(later, 0, bytes(5_000))]
    pair.advance(1.0)
    assert pair.caller.is_at_rest
    assert pair.callee.is_at_rest


@pytest.mark.parametrize("size", [5_000, 50_000])
def test_nothing_is_retained_of_a_request_that_is_too_large(size: int) -> None:
    pair = Pair(Settings(large_bytes=1_000, fragment_bytes=10_000, max_payload_bytes=4_000))
    pair.exchange()
    pair.ask(bytes(size))
    assert pair.take(INSTANCE) == [RequestDeclined(0, "request-too-large")]
    later = pair.ask(bytes(3_000))
    assert [type(event) for event in pair.take(INSTANCE)] == [RequestReceived]
    pair.callee.send_reply(later.number, b"")
    pair.advance(1.0)
    assert [event.reason for event in pair.take(DISPATCHER) if isinstance(event, RequestRefused)] == [
        "request-too-large"
    ]
    assert pair.caller.is_at_rest
    assert pair.callee.is_at_rest


def test_a_suspended_session_has_no_timer_but_deadlines() -> None:
    """Otherwise the timer would fire again and again until the connection is back."""
    pair = Pair()
    pair.exchange()
    pair.tables[INSTANCE] = pair.create_instance("i2", 3, Settings())
    request = pair.ask(deadline=pair.now + 40.0)
    pair.advance(0.2)
    frames = [frame for _, packet in pair.packets for frame in decode_packet(packet).frames]
    assert Reset(pair.caller.peer_address, "i2") in frames, "the answer to a probe"
    pair.caller.suspend()
    pair.now += 30.0
    assert pair.caller.next_timer() == request.deadline
    assert pair.caller.handle_timer(pair.now) == []
    pair.now += 11.0
    assert pair.caller.handle_timer(pair.now) == [RequestFailed(request, Failure.DEADLINE, True)]
    pair.caller.resume(pair.now)
    pair.advance(1.0)
    assert pair.take(DISPATCHER)[-1] == SessionClosed(Failure.RESTARTED)
