"""A fast third-party service has no more requests than its replies fit into a channel; slow tools are not held up."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch.messaging.flow import (
    LATE_S,
    MAX_REMEMBERED,
    MESSAGE_OVERHEAD,
    PACE_BURST,
    PACE_RATE,
    PERIOD_S,
    STALL_S,
    ReplyWindow,
)
from tests.helpers.run_profile import examples

REPLY = 10_000
FITS = 1 + PACE_BURST // (REPLY + MESSAGE_OVERHEAD)
"""Requests of which the last one goes while the replies of those before it fit into a channel."""


class Service:
    """A caller of a service whose replies the test sends."""

    def __init__(self) -> None:
        self.window = ReplyWindow()
        self.now = 0.0
        self._ids = map(str, itertools.count())

    def ask(self) -> str:
        id = next(self._ids)
        self.window.send(id, self.now)
        return id

    def ask_all(self, most: int = 1_000) -> list[str]:
        """Send requests while they may go."""
        ids: list[str] = []
        while len(ids) < most and self.window.wait(self.now) == 0.0:
            ids.append(self.ask())
        return ids

    def reply(self, id: str, after: float = 0.0, size: int = REPLY) -> None:
        self.now += after
        self.window.receive(id, size, self.now)

    def learn(self, round_trip: float, seconds: float = 2 * PERIOD_S) -> None:
        """Let calls succeed one by one until the sizes and the round trip are known."""
        end = self.now + seconds
        while self.now < end:
            self.reply(self.ask(), round_trip)


@pytest.fixture
def service() -> Service:
    return Service()


def test_all_go_until_a_reply_has_arrived(service: Service) -> None:
    assert len(service.ask_all(10 * MAX_REMEMBERED)) == 10 * MAX_REMEMBERED
    assert service.window.unanswered == MAX_REMEMBERED


def test_replies_of_a_fast_service_fit_into_a_channel(service: Service) -> None:
    service.learn(0.001)
    assert len(service.ask_all()) == FITS


def test_one_goes_whatever_its_size(service: Service) -> None:
    for _ in range(100):
        service.reply(service.ask(), 0.001, size=10**7)
    assert len(service.ask_all()) == 1


def test_a_reply_makes_room_and_tells_who_waits_once(service: Service) -> None:
    service.learn(0.001)
    first, *_ = service.ask_all()
    calls: list[int] = []
    service.window.waiting.add(lambda: calls.append(service.window.unanswered))
    service.reply(first, 0.001)
    assert calls == [FITS - 1]
    assert len(service.ask_all()) == 1
    service.reply("unknown")
    assert calls == [FITS - 1]


def test_an_unanswered_request_counts_for_a_while(service: Service) -> None:
    service.learn(0.001)
    service.ask_all()
    assert service.window.wait(service.now) == pytest.approx(LATE_S)
    service.now += LATE_S / 4
    assert service.window.wait(service.now) == pytest.approx(LATE_S * 3 / 4)
    service.now += LATE_S * 3 / 4
    assert len(service.ask_all()) == FITS


def test_lost_replies_open_nothing(service: Service) -> None:
    service.learn(0.001)
    for _ in range(50):
        assert len(service.ask_all()) == FITS
        service.now += LATE_S


def test_a_stall_opens_nothing(service: Service) -> None:
    service.learn(0.001)
    ids = service.ask_all()[: FITS - 1]
    service.now += 2 * LATE_S
    assert len(service.ask_all()) == FITS
    for id in ids:
        service.reply(id)
    assert service.ask_all(1_000) == []


def test_a_slow_tool_gets_all(service: Service) -> None:
    service.learn(10 * LATE_S, 100 * LATE_S)
    assert len(service.ask_all(5_000)) == 5_000


def test_a_slow_tool_that_answers_some_at_once_gets_all(service: Service) -> None:
    service.learn(0.001)
    for _ in range(20):
        service.reply(service.ask(), 0.001)
        service.reply(service.ask(), 5 * LATE_S)
        service.reply(service.ask(), 5 * LATE_S)
    assert len(service.ask_all(500)) == 500
    service.now += LATE_S
    for _ in range(20):
        service.reply(service.ask(), 0.001)
    assert len(service.ask_all()) == FITS, "it is fast again"


def test_the_round_trip_widens_the_window_from_the_next_period_on(service: Service) -> None:
    round_trip = 0.05
    service.learn(round_trip, PERIOD_S / 2)
    assert service.window.capacity == PACE_BURST
    service.learn(round_trip)
    assert service.window.capacity == pytest.approx(PACE_BURST + PACE_RATE * (round_trip - STALL_S))
    service.reply(service.ask(), 0.001)
    assert service.window.capacity == PACE_BURST


def test_a_shorter_round_trip_is_forgotten(service: Service) -> None:
    service.learn(0.001)
    service.learn(0.05, 3 * PERIOD_S)
    assert service.window.capacity > PACE_BURST


def test_a_withdrawn_request_does_not_count(service: Service) -> None:
    service.learn(0.001)
    ids = service.ask_all()
    service.window.withdraw(ids[0])
    service.window.withdraw("unknown")
    assert len(service.ask_all()) == 1


def test_what_is_remembered_is_bounded(service: Service) -> None:
    service.learn(0.001, 0.01)
    first = service.ask()
    for _ in range(MAX_REMEMBERED):
        service.now += LATE_S
        service.ask_all()
    service.reply(first, size=0)
    assert service.window.wait(service.now) > 0, "its lateness is not known any more"


@settings(max_examples=examples(200))
@given(
    size=st.integers(100, 100_000),
    think_times=st.lists(st.floats(0.0, 0.001), min_size=200, max_size=200),
    stall_at=st.integers(100, 199),
)
def test_a_burst_after_a_stall_fits_into_a_channel(size: int, think_times: list[float], stall_at: int) -> None:
    service = Service()
    for _ in range(200):  # the sizes are known
        service.reply(service.ask(), 0.001, size)
    unanswered: list[str] = []
    for number, think_time in enumerate(think_times):
        unanswered += service.ask_all(64 - len(unanswered))
        if number == stall_at:
            service.now += 0.03  # less than LATE_S for the oldest one
            unanswered += service.ask_all(64 - len(unanswered))
            assert (len(unanswered) - 1) * (size + MESSAGE_OVERHEAD) <= 1.01 * PACE_BURST
        service.reply(unanswered.pop(0), think_time, size)
