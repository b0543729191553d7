"""Packets of unknown sessions: counted, without effect, and answered with RESET where they are probes."""

from __future__ import annotations

import pytest

from dispatch.protocol import Settings
from dispatch.protocol.frames import ACCEPT, CLOSE, FROM, PING, REQUEST, RESET, VERSION, Packet, Reset, decode_packet
from tests.helpers.handwritten_packets import packet, receive
from tests.helpers.session_pair import DISPATCHER, INSTANCE, Pair


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
