"""The pace as bookkeeping: never too much in any time, never a wait that need not be, whatever the sizes and the clock."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.messaging.flow import GRAIN_S, PACE_BURST, PACE_RATE, Pace
from tests.helpers.bounded_channel import HIGH_WATER

RATES = st.floats(1e3, 1e10)
BURSTS = st.integers(1, 100_000)
SEEDS = st.integers(0, 2**32)
START = 1_000.0


class Run:
    """A sender that sends as soon as it may, on a clock of its own, and a broker whose receipts take their time.

    Args:
        receipts: receipts are told; how late, the randomness says.
    """

    def __init__(self, pace: Pace, rng: random.Random, *, receipts: bool) -> None:
        self.pace = pace
        self.rng = rng
        self.receipts = receipts
        self.now = START
        self.out: list[tuple[float, int]] = []
        self.sent: list[tuple[float, int]] = []

    def _deal(self, until: float) -> None:
        """Let the receipts come that are due."""
        self.out.sort()
        while self.out and self.out[0][0] <= until:
            when, size = self.out.pop(0)
            self.now = max(self.now, when)
            self.pace.receipt(size, self.now)

    def send(self, size: int) -> None:
        while (wait := self.pace.wait(self.now)) != 0.0:
            before = self.now
            due = min((when for when, _ in self.out), default=float("inf"))
            if wait is None or due < self.now + wait:
                assert self.out, "it waits for a receipt that nobody owes"
                self._deal(due)
                assert self.out == [] or self.now >= before
            else:
                self.now += wait
        self.sent.append((self.now, size))
        if self.receipts and self.rng.random() < 0.7:
            self.pace.hold(size)
            self.out.append((self.now + self.rng.random() ** 4 * 0.1, size))
        else:
            self.pace.send(size, self.now)

    def idle(self, seconds: float) -> None:
        self._deal(self.now + seconds)
        self.now = max(self.now, self.now + seconds)


def sizes(rng: random.Random) -> list[int]:
    """From one byte to a megabyte, small ones as often as large ones."""
    return [max(1, int(1e6 ** rng.random())) for _ in range(60)]


def worst_excess(sent: list[tuple[float, int]], pace: Pace) -> float:
    """By how many bytes the worst window, without its last message, is over the burst and what its time allows."""
    worst = float("-inf")
    for first, (start, _) in enumerate(sent):
        total = 0
        for when, size in sent[first:]:
            worst = max(worst, total - pace.burst - pace.rate * (when - start))
            total += size
    return worst


def sloppiness(pace: Pace, sent: list[tuple[float, int]]) -> float:
    """What the grain and the arithmetic may add, in bytes: 1e-12 s is what a clock at 1,000 s can tell apart, tenfold."""
    return pace.rate * (GRAIN_S + len(sent) * 1e-12) + 1e-3


@given(RATES, BURSTS, SEEDS, st.booleans())
def test_in_no_time_more_goes_than_the_burst_and_the_rate(rate: float, burst: int, seed: int, receipts: bool) -> None:
    pace = Pace(rate, burst)
    run = Run(pace, random.Random(seed), receipts=receipts)
    for size in sizes(run.rng):
        run.send(size)
        if run.rng.random() < 0.2:
            run.idle(run.rng.random() ** 4 * 10)
    assert worst_excess(run.sent, pace) <= sloppiness(pace, run.sent)


@given(RATES, BURSTS, SEEDS)
def test_nothing_waits_longer_than_it_must(rate: float, burst: int, seed: int) -> None:
    """By the definition: a message waits exactly until those that are not wholly through are the burst at most."""
    pace = Pace(rate, burst)
    rng = random.Random(seed)
    now = free = START  # our own account, kept the plain way: a line of messages, one after the other
    line: list[tuple[float, int]] = []
    for size in sizes(rng):
        wait = pace.wait(now)
        assert wait is not None
        instants = [now, *sorted(end for end, _ in line if end > now)]
        must = next(at for at in instants if sum(n for end, n in line if end > at + GRAIN_S) <= burst) - now
        assert wait == pytest.approx(must, rel=1e-6, abs=2 * GRAIN_S)
        now += wait
        pace.send(size, now)
        free = max(free, now) + size / rate
        line.append((free, size))
        if rng.random() < 0.3:
            now += rng.random() ** 3 * 10 * burst / rate


@given(RATES, BURSTS, st.integers(1, 1_000_000), st.floats(0, 1e6))
def test_while_the_clock_stands_still_only_the_burst_goes(rate: float, burst: int, size: int, now: float) -> None:
    """And the wait that it asks for is enough, once time goes on."""
    pace = Pace(rate, burst)
    total = 0
    while pace.wait(now) == 0.0 and total <= 3_000_000 + burst:
        pace.send(size, now)
        total += size
        if total / size > 200:
            break
    wait = pace.wait(now)
    assert wait is not None
    if wait > 0:
        assert total > burst
        assert pace.wait(now) == wait, "asking changes nothing"
        if wait > 10 * GRAIN_S:
            assert pace.wait(now + wait / 2) != 0.0, "and no more than enough"
        assert pace.wait(now + wait + GRAIN_S) == 0.0


def test_a_clock_that_stands_still_lets_exactly_the_burst_and_one_more_message_pass() -> None:
    pace = Pace(rate=1_000, burst=10)
    for _ in range(3):
        assert pace.wait(5.0) == 0.0
        pace.send(5, 5.0)
    for _ in range(1_000):
        assert pace.wait(5.0) == pytest.approx(0.005)


def test_a_clock_that_goes_back_gives_nothing_away() -> None:
    pace = Pace(rate=1_000, burst=10)
    pace.send(1_000, 50.0)
    assert pace.wait(40.0) == pytest.approx(11.0)
    pace.send(1_000, 40.0)
    assert pace.wait(51.5) == pytest.approx(0.5)
    assert pace.wait(52.0) == 0.0


def test_after_a_long_rest_there_is_no_more_than_the_burst() -> None:
    pace = Pace(rate=1_000, burst=10)
    pace.send(1, 0.0)
    pace.send(11, 1e6)
    assert pace.wait(1e6) == pytest.approx(0.011)


@given(RATES, SEEDS)
def test_a_channel_as_fast_as_the_pace_is_always_writable(rate: float, seed: int) -> None:
    """A channel counts a message until its last byte has left, however little of it is still there."""
    run = Run(Pace(rate), random.Random(seed), receipts=False)
    for size in sizes(run.rng):
        run.send(size)
    through: list[tuple[float, int]] = []
    for when, size in run.sent:
        assert sum(n for end, n in through if end > when + 10 * GRAIN_S) <= PACE_BURST < HIGH_WATER
        through.append((max(when, through[-1][0] if through else when) + size / rate, size))


@given(BURSTS, st.integers(1, 1_000_000), st.floats(0.001, 100))
def test_what_is_not_receipted_counts_in_full_however_long_it_takes(burst: int, size: int, late: float) -> None:
    pace = Pace(rate=1e6, burst=burst)
    pace.hold(size)
    expected = 0.0 if size <= burst else None
    assert pace.wait(0.0) == expected
    assert pace.wait(late) == expected, "no time makes up for a receipt"
    pace.receipt(size, late)
    assert pace.wait(late) == pytest.approx(size / 1e6 if size > burst else 0.0, abs=2 * GRAIN_S)
    assert pace.unreceipted == 0


def test_what_was_sent_and_what_is_not_receipted_count_together() -> None:
    pace = Pace(rate=1_000, burst=10)
    pace.send(8, 0.0)
    assert pace.wait(0.0) == 0.0
    pace.hold(7)
    assert pace.wait(0.0) == pytest.approx(0.008)
    pace.withdraw(7)
    assert pace.wait(0.0) == 0.0


def test_a_withdrawn_message_costs_nothing_and_a_receipt_too_many_gives_nothing() -> None:
    pace = Pace(rate=1_000, burst=10)
    pace.hold(100)
    assert pace.wait(0.0) is None
    pace.withdraw(100)
    pace.withdraw(100)
    assert pace.wait(0.0) == 0.0
    pace.hold(11)
    assert pace.wait(0.0) is None


def test_a_message_that_is_taken_back_costs_nothing() -> None:
    pace = Pace(rate=1_000, burst=10)
    first, last = pace.send(100, 5.0), pace.send(100, 5.0)
    assert pace.wait(5.0) == pytest.approx(0.2)
    pace.take_back(100, last)
    assert pace.wait(5.0) == pytest.approx(0.1)
    pace.take_back(100, last)
    assert pace.wait(5.0) == pytest.approx(0.1), "once only"
    second = pace.send(100, 5.0)
    assert second == last
    pace.take_back(100, first)
    assert pace.wait(5.0) == pytest.approx(0.2), "the time of what was sent after it stays"
    assert pace.wait(5.2) == 0.0
    pace.take_back(100, second)
    assert pace.wait(5.2) == 0.0


def test_the_defaults_leave_the_channel_writable_and_small_answers_alone() -> None:
    pace = Pace()
    assert (pace.rate, pace.burst) == (PACE_RATE, PACE_BURST)
    assert PACE_BURST < HIGH_WATER
    for number in range(10_000):  # 10,000 answers a second of 700 bytes, more than one process sends
        now = number / 10_000
        assert pace.wait(now) == 0.0
        pace.send(700, now)
    for _ in range(64):  # and 64 at once
        assert pace.wait(5.0) == 0.0
        pace.send(700, 5.0)


@pytest.mark.parametrize(("rate", "burst"), [(0, 1), (-1, 1), (1, 0), (1, -1), (float("nan"), 1), (1, float("nan"))])
def test_a_pace_of_nothing_is_refused(rate: float, burst: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        Pace(rate, burst)
