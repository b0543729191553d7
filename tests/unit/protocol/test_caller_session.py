"""The caller's end of a session: what the routing of requests asks of it."""

from __future__ import annotations

import pytest

from dispatch.protocol import Settings
from dispatch.protocol.events import Failure, RequestDelivered, RequestReceived, SessionClosed
from tests.unit.protocol.test_exchange import DISPATCHER, INSTANCE, Pair


@pytest.fixture
def pair() -> Pair:
    pair = Pair()
    pair.exchange()
    pair.advance(0.1)
    pair.take(DISPATCHER)
    return pair


def delivered(pair: Pair) -> int:
    return sum(isinstance(event, RequestDelivered) for event in pair.take(DISPATCHER))


def test_the_delivery_of_a_request_is_reported_once_where_it_was_asked_for(pair: Pair) -> None:
    pair.ask()
    pair.advance(0.1)
    assert delivered(pair) == 0
    pair.caller.reports_delivery = True
    pair.ask()
    pair.advance(0.1)
    assert delivered(pair) == 1
    pair.ask()
    pair.advance(0.1)
    assert delivered(pair) == 0


def test_a_request_that_is_lost_is_not_reported_before_it_has_arrived(pair: Pair) -> None:
    pair.caller.reports_delivery = True
    pair.lose = lambda inbox, _packet: inbox == INSTANCE
    pair.ask()
    pair.advance(1.0)
    assert delivered(pair) == 0
    pair.lose = lambda _inbox, _packet: False
    pair.advance(1.0)
    assert delivered(pair) == 1
    assert sum(isinstance(event, RequestReceived) for event in pair.take(INSTANCE)) == 1


def test_a_probe_finds_out_at_once_that_the_instance_has_restarted(pair: Pair) -> None:
    pair.tables[INSTANCE] = pair.instance("i2", 3, Settings())
    pair.advance(5.0)
    assert pair.take(DISPATCHER) == [], "nothing is due on an idle session"
    pair.caller.probe()
    pair.exchange()
    pair.advance(0.2)
    assert pair.take(DISPATCHER) == [SessionClosed(Failure.RESTARTED)]


def test_a_probe_leaves_a_session_with_a_living_instance_as_it_was(pair: Pair) -> None:
    for _ in range(5):
        pair.caller.probe()
        pair.caller.probe()
        pair.exchange()
        pair.advance(0.1)
    assert pair.take(DISPATCHER) == []
    assert not pair.caller.is_suspect
    assert pair.caller.statistics.probes == 5 * pair.caller.settings.probe_copies
