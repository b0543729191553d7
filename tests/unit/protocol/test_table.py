"""The session table: which session a packet belongs to, what it knows of peers, and how a session ends.
The handshake of an instance: which HELLO creates a session, and what a HELLO cannot change.
Limits of the session table: half-open and open sessions, and the window that the callers share.
Packets of unknown sessions: counted, without effect, and answered with RESET where they are probes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from dispatch.protocol import CalleeSession, SessionTable, Settings
from dispatch.protocol.events import Failure, RequestFailed, SessionClosed
from dispatch.protocol.frames import (
    ACCEPT,
    CLOSE,
    FROM,
    HELLO,
    PATHS,
    PING,
    REQUEST,
    RESET,
    STREAM_CREDIT,
    VERSION,
    Accept,
    Close,
    Hello,
    Packet,
    Reset,
    decode_packet,
    encode_packet,
)
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


def test_a_callee_learns_its_id_when_a_session_is_open() -> None:
    """HELLO alone proves nothing. Callers of former versions say no id, and further elements are ignored."""
    pair, names = Pair(), list[str]()
    settings: dict[str, Any] = {"random_bytes": random.Random(2).randbytes, "may_reply_to": lambda *_: True}
    table = pair.tables[INSTANCE] = SessionTable(INSTANCE, "i1", [INSTANCE], on_named=names.append, **settings)
    caller = pair.tables[DISPATCHER].connect(INSTANCE, pair.now, "joke-service")
    for _, data in caller.packets_to_send(pair.now):
        table.receive_packet(data, pair.now)
    assert names == []
    pair.exchange()
    assert sorted(names) == ["", "joke-service"]
    receive(pair, INSTANCE, hello(pair, id=78, stream_window=1, service="s", later=1))
    receive(pair, INSTANCE, hello(pair, id=79))
    assert [each.service for each in table.sessions.values() if isinstance(each, CalleeSession)][-2:] == ["s", ""]


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
    found = receive(pair, DISPATCHER, packet(pair.caller.id, (CLOSE, "later version"), number=60))
    assert found == [SessionClosed(Failure.CLOSED)]
    assert not pair.tables[DISPATCHER].sessions


def test_a_close_has_its_reason(pair: Pair) -> None:
    closed = receive(pair, DISPATCHER, packet(pair.caller.id, (CLOSE, "evicted"), number=60))
    assert closed == [SessionClosed(Failure.EVICTED)]


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
        found.append(table.sessions[id])
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


def test_requests_for_a_former_incarnation_never_run(pair: Pair) -> None:
    request = pair.ask()
    former = [data for inbox, data in pair.packets if inbox == INSTANCE]
    pair.tables[INSTANCE] = restarted = pair.create_instance("i2", 99, Settings())
    for data in former:
        assert not receive(pair, INSTANCE, data)
    assert request.number == 0
    assert restarted.unknown >= 1


def test_packets_that_agents_can_read_are_useless_towards_instances(pair: Pair) -> None:
    pair.ask()
    pair.callee.send_reply(0, b"x")
    pair.exchange()
    table, sessions = pair.tables[INSTANCE], set(pair.tables[INSTANCE].sessions)
    captured = [data for inbox, data in pair.packets if inbox == DISPATCHER]
    for count, data in enumerate(captured, 1):
        assert not receive(pair, INSTANCE, data)
        assert table.unknown == count
    assert set(table.sessions) == sessions


@pytest.mark.parametrize(
    "frame",
    [
        (RESET, 5, "run"),
        (ACCEPT, 1, 0, "i", "run", bytes(16), bytes(16), 1),
        (CLOSE, "closed"),
        (REQUEST, 0, 0, "t", None, b""),
    ],
    ids=["RESET", "ACCEPT", "CLOSE", "REQUEST"],
)
@pytest.mark.parametrize("to", [0, 12345])
def test_other_frames_to_an_unknown_address_are_counted(pair: Pair, frame: tuple[object, ...], to: int) -> None:
    table = pair.tables[INSTANCE]
    assert not receive(pair, INSTANCE, packet(to, frame))
    assert table.unknown == 1
    assert len(table.sessions) == 1
    assert not table.outbox


# -- RESET ------------------------------------------------------------------------------------------------------
def probe(to: int = 5, id: int = 7, inbox: str = DISPATCHER, secret: str = "s") -> bytes:
    return packet(to, (PING,), (FROM, id, inbox, secret))


def test_a_probe_of_an_unknown_session_is_answered_with_reset() -> None:
    pair = Pair()
    table = pair.tables[INSTANCE]
    assert not receive(pair, INSTANCE, probe())
    ((inbox, data),) = table.outbox
    assert inbox == DISPATCHER
    assert decode_packet(data) == Packet(VERSION, 7, 0, -1, 0, 0, 0, 0, 0, [Reset(5, "i1")])
    assert table.unknown == 1


@pytest.mark.parametrize(
    "data",
    [
        probe(to=0),
        probe(id=0),
        probe(id=-1),
        probe(id=2**63),
        probe(inbox="elsewhere"),
        probe(secret="guessed"),
        probe(inbox="d" * 513),
    ],
    ids=["to a HELLO", "no id", "negative id", "long id", "another namespace", "another secret", "long inbox"],
)
def test_a_probe_that_names_no_usable_inbox_is_not_answered(data: bytes) -> None:
    pair = Pair()
    assert not receive(pair, INSTANCE, data)
    assert not pair.tables[INSTANCE].outbox
    assert pair.tables[INSTANCE].unknown == 1


def test_limits_of_a_usable_probe() -> None:
    pair = Pair()
    inbox = DISPATCHER + "-" * (512 - len(DISPATCHER))
    for data in (probe(id=1), probe(id=2**63 - 1), probe(inbox=inbox)):
        receive(pair, INSTANCE, data)
    assert len(pair.tables[INSTANCE].outbox) == 3


def test_a_packet_is_answered_with_one_reset() -> None:
    pair = Pair()
    frames = [(FROM, 7, DISPATCHER, "s")] * 10
    receive(pair, INSTANCE, packet(5, *frames))
    assert len(pair.tables[INSTANCE].outbox) == 1


def test_resets_are_bounded() -> None:
    pair = Pair(Settings(max_resets=3))
    for number in range(10):
        receive(pair, INSTANCE, probe(id=number + 1))
    assert len(pair.tables[INSTANCE].outbox) == 3
