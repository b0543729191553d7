"""The handshake of an instance: which HELLO creates a session, and what a HELLO cannot change."""

from __future__ import annotations

import pytest

from dispatch.protocol import Settings
from dispatch.protocol.events import Failure, SessionClosed
from dispatch.protocol.frames import HELLO, PING, STREAM_CREDIT, VERSION, Accept, Packet, decode_packet
from tests.helpers.handwritten_packets import hello, packet, receive
from tests.helpers.session_pair import DISPATCHER, INSTANCE, Pair


@pytest.mark.parametrize(
    "changes",
    [
        {"id": 0}, {"id": -5}, {"id": 2**63}, {"secret": ""}, {"secret": "x" * 65}, {"secret": "é" * 33},
        {"name": "n" * 513}, {"incarnation": "n" * 513}, {"inboxes": []}, {"inboxes": [""]}, {"inboxes": [DISPATCHER] * 5},
        {"inboxes": ["d" * 513]}, {"inboxes": ["elsewhere"]}, {"inboxes": [DISPATCHER, "elsewhere"]}, {"secret": "guessed"},
    ],
    ids=lambda changes: next(iter(changes)),
)  # fmt: skip
def test_an_unusable_hello_is_counted_and_creates_nothing(changes: dict[str, object]) -> None:
    pair = Pair()
    table = pair.tables[INSTANCE]
    assert not receive(pair, INSTANCE, hello(pair, **changes))
    assert table.refused_hellos == 1
    assert not table.sessions
    assert not table.outbox


def test_each_refused_hello_is_counted() -> None:
    pair = Pair()
    for _ in range(3):
        receive(pair, INSTANCE, hello(pair, id=0))
    assert pair.tables[INSTANCE].refused_hellos == 3


def test_a_secret_has_up_to_64_bytes_and_at_least_one() -> None:
    pair = Pair()
    table = pair.tables[INSTANCE]
    table._may_reply_to = lambda _inbox, _secret: True
    receive(pair, INSTANCE, hello(pair, secret=""))
    receive(pair, INSTANCE, hello(pair, secret="x" * 65))
    assert (table.refused_hellos, len(table.sessions)) == (2, 0)
    receive(pair, INSTANCE, hello(pair, secret="x" * 64))
    assert (table.refused_hellos, len(table.sessions)) == (2, 1)


@pytest.mark.parametrize(("versions", "version"), [([VERSION], VERSION), ([9, VERSION], VERSION), ([9], 0), ([], 0)])
def test_accept_names_the_common_version(versions: list[int], version: int) -> None:
    pair = Pair()
    receive(pair, INSTANCE, hello(pair, versions=versions, features=7))
    ((_, data),) = pair.tables[INSTANCE].outbox
    accept = decode_packet(data)
    assert accept == Packet(VERSION, 77, 0, -1, 0, 0, 0, 0, Settings().window, accept.frames)
    (frame,) = accept.frames
    assert isinstance(frame, Accept)
    assert (frame.version, frame.features, frame.name, frame.incarnation) == (version, STREAM_CREDIT, INSTANCE, "i1")


def test_limits_of_a_usable_hello() -> None:
    pair = Pair()
    table = pair.tables[INSTANCE]
    inboxes = [DISPATCHER, f"{DISPATCHER}-1", f"{DISPATCHER}-2", f"{DISPATCHER}-{'3' * (511 - len(DISPATCHER))}"]
    receive(pair, INSTANCE, hello(pair, id=2**63 - 1, name="n" * 512, incarnation="n" * 512, inboxes=inboxes))
    receive(pair, INSTANCE, hello(pair, id=1))
    assert table.refused_hellos == 0
    assert len(table.sessions) == 2


def test_a_caller_only_process_accepts_no_session(pair: Pair) -> None:
    assert not receive(pair, DISPATCHER, hello(pair))
    assert pair.tables[DISPATCHER].refused_hellos == 1


def test_a_repeated_hello_gets_the_same_answer() -> None:
    pair = Pair()
    table = pair.tables[INSTANCE]
    for _ in range(3):
        receive(pair, INSTANCE, hello(pair))
    assert len(table.sessions) == 1
    assert len({accept for _, accept in table.outbox}) == 1
    assert {inbox for inbox, _ in table.outbox} == {DISPATCHER}


def test_a_late_copy_of_hello_closes_nothing(pair: Pair) -> None:
    open_session = pair.callee
    (copy,) = {data for inbox, data in pair.packets if inbox == INSTANCE and decode_packet(data).to == 0}
    assert not receive(pair, INSTANCE, copy)
    assert list(pair.tables[INSTANCE].sessions.values()) == [open_session], "it belongs to the open session"
    assert not receive(pair, INSTANCE, hello(pair, id=78))  # of an earlier session
    assert not open_session.is_closed
    pair.now += 11.0
    open_session.heard_at = pair.now
    half_open = next(each for each in pair.tables[INSTANCE].sessions.values() if each is not open_session)
    assert half_open.handle_timer(pair.now) == [SessionClosed(Failure.IDLE)]


def test_a_hello_under_the_name_of_another_caller_replaces_nothing(pair: Pair) -> None:
    """An agent that may call tools has a secret of its own, and with it other inboxes."""
    table, victim = pair.tables[INSTANCE], pair.callee
    table._may_reply_to = lambda inbox, secret: inbox.startswith(secret)
    receive(pair, INSTANCE, hello(pair, name=DISPATCHER, secret="agent", inboxes=["agent-inbox"]))
    session = next(each for each in table.sessions.values() if each is not victim)
    receive(pair, INSTANCE, packet(session.id, (PING,)))
    assert session.is_open
    assert not victim.is_closed


HELLO_FIELDS = ("versions", "features", "name", "incarnation", "id", "secret", "inboxes", "data_window")


def test_a_hello_to_another_address_is_no_hello() -> None:
    pair = Pair()
    data = decode_packet(hello(pair))
    assert not receive(pair, INSTANCE, packet(5, (HELLO, *(getattr(data.frames[0], name) for name in HELLO_FIELDS))))
    assert pair.tables[INSTANCE].unknown == 1
    assert not pair.tables[INSTANCE].sessions
