"""One path: packet numbers, acknowledgements, loss detection, probes, and the round-trip time."""

from __future__ import annotations

import math
from collections import deque

import pytest

from dispatch.protocol.delivery import Cargo, Path
from dispatch.protocol.frames import ACK, CANCEL, Ack
from dispatch.protocol.settings import Settings

SETTINGS = Settings(
    ack_delay=0.002, timer_granularity=0.002, first_rtt=0.05, max_probe_interval=0.5, probe_copies=2, max_ack_ranges=3
)


class Sender:
    """A path that has sent packets ``0 … count - 1``, one each ``interval`` seconds from 100.0 on."""

    def __init__(self, count: int = 0, interval: float = 0.0) -> None:
        self.path = Path(0, SETTINGS)
        self.cargoes = [Cargo([(CANCEL, number)], 100) for number in range(count)]
        for number, cargo in enumerate(self.cargoes):
            assert self.path.record_sent(cargo, 400, [], 100.0 + number * interval) == number
        self.lost: deque[Cargo] = deque()

    def ack(self, *ranges: int, now: float = 100.1, delay_us: int = 0) -> bool:
        return self.path.record_ack(Ack(0, delay_us, list(ranges)), now, self.lost)


def test_an_acknowledged_packet_is_delivered() -> None:
    sender = Sender(3)
    assert sender.path.in_flight == 1_200
    assert sender.path.has_unacknowledged
    assert sender.ack(0, 2)
    assert [cargo.is_delivered for cargo in sender.cargoes] == [True] * 3
    assert sender.path.in_flight == 0
    assert not sender.path.has_unacknowledged
    assert not sender.lost


def test_a_gap_is_a_loss_at_once() -> None:
    sender = Sender(6)
    assert sender.ack(4, 4, 1, 2)
    assert [cargo.frames[0][1] for cargo in sender.lost] == [0, 3]
    assert sender.path.retransmissions == 2
    assert sender.path.in_flight == 400
    assert sender.path.unacknowledged == 1


def test_packets_above_the_largest_number_stay_in_flight() -> None:
    sender = Sender(3)
    assert sender.ack(0, 0)
    assert sender.path.unacknowledged == 2
    assert not sender.lost


def test_a_second_acknowledgement_has_no_news() -> None:
    sender = Sender(2)
    assert sender.ack(0, 0)
    assert not sender.ack(0, 0)
    assert sender.path.in_flight == 400


def test_a_cargo_that_was_delivered_in_another_packet_is_not_lost() -> None:
    sender = Sender(1)
    assert sender.path.record_sent(sender.cargoes[0], 400, [], 100.0) == 1
    assert sender.ack(1, 1)
    assert not sender.lost
    assert sender.path.retransmissions == 1, "its first packet was lost all the same"


def test_a_cargo_is_not_lost_while_another_copy_is_in_flight() -> None:
    sender = Sender(1)
    between = Cargo([], 1)
    sender.path.record_sent(between, 400, [], 100.0)
    sender.path.record_sent(sender.cargoes[0], 400, [], 100.0)
    assert sender.ack(1, 1)
    assert not sender.lost
    later = Cargo([], 1)
    sender.path.record_sent(later, 400, [], 100.0)
    assert sender.ack(3, 3, 1, 1)
    assert list(sender.lost) == sender.cargoes


def test_ranges_of_one_number_each() -> None:
    sender = Sender(7)
    assert sender.ack(5, 5, 3, 3, 1, 1)
    assert [cargo.frames[0][1] for cargo in sender.lost] == [0, 2, 4]
    assert [cargo.is_delivered for cargo in sender.cargoes] == [False, True, False, True, False, True, False]


@pytest.mark.parametrize("ranges", [(), (0,), (0, 1, 2), (0, 3), (0, 2**62), (-2, -1)])
def test_an_acknowledgement_of_packets_that_were_not_sent_changes_nothing(ranges: tuple[int, ...]) -> None:
    sender = Sender(3)
    assert not sender.ack(*ranges)
    assert sender.path.in_flight == 1_200
    assert not sender.lost


def test_an_acknowledgement_of_lost_packets_alone_is_no_news() -> None:
    """A peer may list any numbers; what it does not list below its largest one is lost."""
    sender = Sender(1)
    sender.path.record_sent(Cargo([], 1), 400, [], 100.0)
    sender.path.record_sent(Cargo([], 1), 400, [], 100.0)
    assert sender.ack(1, 1)
    sender.path.record_probe(100.0)
    sender.path.probes = 3
    assert not sender.ack(9, 2)
    assert sender.path.probes == 3


def test_a_new_path() -> None:
    path = Path(3, SETTINGS)
    assert (path.index, path.rtt, path.probes, path.in_flight, path.retransmissions) == (3, 0.0, 0, 0, 0)
    assert path.ack_at == math.inf
    assert not Cargo([], 1).is_delivered


def test_without_packets_an_acknowledgement_changes_nothing() -> None:
    assert not Sender().ack(0, 0)


def test_an_acknowledged_acknowledgement_is_not_repeated() -> None:
    sender = Sender()
    other = Path(1, SETTINGS)
    for number in (0, 1, 3):
        other.received.add(number)
    sender.path.record_sent(Cargo([], 1), 400, [(other, 3)], 100.0)
    assert sender.ack(0, 0)
    assert other.received.ranges == [[3, 3]]


def test_the_first_sample_of_the_round_trip_time() -> None:
    sender = Sender(1)
    sender.ack(0, 0, now=100.1)
    assert sender.path.rtt == pytest.approx(0.1)
    assert sender.path.probe_timeout == pytest.approx(0.1 + 4 * 0.05 + 0.002)


def test_the_round_trip_time_is_smoothed() -> None:
    sender = Sender(2)
    sender.ack(0, 0, now=100.1)
    sender.ack(1, 1, now=100.26)
    assert sender.path.rtt == pytest.approx(0.1 + 0.16 / 8)
    assert sender.path.probe_timeout == pytest.approx(0.12 + 4 * (0.05 + (0.16 - 0.05) / 4) + 0.002)


def test_only_the_largest_packet_is_a_sample() -> None:
    sender = Sender(2, interval=0.05)
    sender.ack(0, 1, now=100.15)
    assert sender.path.rtt == pytest.approx(0.1)


def test_the_acknowledgement_delay_is_subtracted_up_to_its_limit() -> None:
    sender = Sender(1)
    sender.ack(0, 0, now=100.1, delay_us=1_500)
    assert sender.path.rtt == pytest.approx(0.0985)
    sender = Sender(1)
    sender.ack(0, 0, now=100.1, delay_us=10**9)
    assert sender.path.rtt == pytest.approx(0.098)
    sender = Sender(1)
    sender.ack(0, 0, now=100.1, delay_us=-(10**9))
    assert sender.path.rtt == pytest.approx(0.1)


def test_the_round_trip_time_is_positive() -> None:
    sender = Sender(1)
    sender.ack(0, 0, now=100.0)
    assert sender.path.rtt == 1e-5


def test_a_steady_round_trip_time_keeps_the_least_variation() -> None:
    sender = Sender(200)
    for number in range(200):
        sender.ack(number, number, now=100.1)
    assert sender.path.probe_timeout == pytest.approx(0.1 + 0.002 + 0.002)


def test_without_a_packet_in_flight_there_is_no_probe() -> None:
    assert Sender().path.probe_at == math.inf
    assert Sender().path.record_probe(100.0) is None


def test_probe_intervals_double_up_to_their_limit() -> None:
    sender = Sender(1)
    now, intervals = 100.0, []
    for _ in range(5):
        intervals.append(sender.path.probe_at - now)
        now = sender.path.probe_at
        assert sender.path.record_probe(now) is sender.cargoes[0]
        sender.path.record_sent(sender.cargoes[0], 400, [], now)
    assert intervals == pytest.approx([0.1, 0.2, 0.4, 0.5, 0.5])
    sender.path.probes = 10_000
    assert sender.path.probe_at == pytest.approx(now + 0.5)


def test_a_probe_repeats_the_oldest_cargo_that_has_not_arrived() -> None:
    sender = Sender(2)
    sender.path.record_sent(sender.cargoes[0], 400, [], 100.0)
    sender.cargoes[0].is_delivered = True
    assert sender.path.record_probe(100.0) is sender.cargoes[1]


def test_an_acknowledgement_ends_the_backoff_of_probes() -> None:
    sender = Sender(2)
    sender.path.record_probe(100.0)
    sender.path.record_probe(100.0)
    assert sender.path.probes == 2
    sender.ack(0, 0, now=100.4)
    assert sender.path.probes == 0


def test_further_packets_do_not_put_off_a_probe() -> None:
    """A busy sender finds out as soon as an idle one that its peer is gone."""
    sender = Sender(1)
    due = sender.path.probe_at
    for number in range(1, 50):
        sender.path.record_sent(Cargo([], 1), 400, [], 100.0 + number / 1000)
    assert sender.path.probe_at == due


def test_a_postponed_probe_waits_anew() -> None:
    sender = Sender(1)
    sender.path.record_probe(100.0)
    sender.path.postpone_probe(200.0)
    assert sender.path.probe_at == pytest.approx(200.1)


def test_the_acknowledgement_frame() -> None:
    path = Path(2, SETTINGS)
    path.received.add(0)
    path.received.add(4)
    path.largest_at, path.ack_at = 100.0, 100.002
    kind, index, delay_us, ranges = path.pop_ack(100.0015)
    assert (kind, index, ranges) == (ACK, 2, [4, 4, 0, 0])
    assert delay_us in (1_499, 1_500)
    assert path.ack_at == math.inf


def test_clearing_releases_everything() -> None:
    sender = Sender(2)
    sender.path.received.add(0)
    sender.path.ack_at = 100.0
    sender.path.clear()
    assert not sender.path.has_unacknowledged
    assert sender.path.in_flight == 0
    assert sender.path.received.ranges == []
    assert sender.path.ack_at == math.inf
