"""What balancing and health are for, in seeded simulations on virtual time: G13, G14, G15 and F16 of the goals.

Guards against a slow instance that holds up one call in eight for ever, against failing instances that nobody ejects because
there are too few, against the thundering return of one, and against a service with every instance ejected.
"""

from __future__ import annotations

import pytest

from dispatch.balancing.instances import EjectionRules
from dispatch.errors import Outcome
from dispatch.policy import STRATEGIES, Balancing
from tests.helpers.balancing_simulation import MEAN_S, Host, Simulation, farm

FULL = 8 * 4 / MEAN_S
"""Calls a second that eight healthy hosts of four workers could do at the very most."""


def slow_instance(balancing: Balancing, load: float, seed: int = 3) -> tuple[float, float]:
    """One of eight ten times slower: p99 as a multiple of that when all are healthy, and the slow one's share."""
    rate = FULL * load
    settings = {"rate": rate, "seconds": 5000 / rate, "seed": seed}
    healthy = Simulation(farm(8), balancing, **settings).run()
    slow = Simulation(farm(8, c=Host(slower=lambda now: 10.0)), balancing, **settings).run()
    return slow.p99() / healthy.p99(), slow.share("c")


@pytest.mark.parametrize("load", [0.2, 0.6])
@pytest.mark.parametrize(
    "balancing", [Balancing("least-request"), Balancing("least-request", choice_count=8), Balancing("peak-ewma")]
)
def test_a_slow_instance_hardly_matters(balancing: Balancing, load: float) -> None:
    ratio, share = slow_instance(balancing, load)
    assert ratio <= 1.5
    assert share <= 0.03


def test_for_comparison_in_turn_one_call_in_eight_is_slow() -> None:
    ratio, share = slow_instance(Balancing(), 0.05)
    assert ratio > 4
    assert share == pytest.approx(1 / 8, abs=0.001)


@pytest.mark.parametrize("strategy", ["least-request", "peak-ewma"])
def test_an_instance_that_was_slow_is_found_again_when_it_is_not(strategy: str) -> None:
    hosts = farm(4, c=Host(slower=lambda now: 10.0 if now < 20 else 1.0))
    run = Simulation(hosts, Balancing(strategy=strategy), rate=50, seconds=80, seed=4).run()
    assert run.share("c", 5, 20) < 0.03
    assert run.share("c", 60) > 0.15


@pytest.mark.parametrize("count", [2, 3, 8])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_instance_that_fails_every_call_is_out_within_ten_errors_and_retries_hide_them(
    strategy: str, count: int
) -> None:
    hosts = farm(count, b=Host(failing=lambda now: float(now >= 5)))
    rate = 20.0 * count
    run = Simulation(hosts, Balancing(strategy=strategy), rate=rate, seconds=20, seed=6, attempts=3).run()
    when, *change = run.changes[0]
    assert change == ["b", "ejected", "failures"]
    errors = [each for each in run.ended if each.outcome is Outcome.TRANSPORT]
    assert len([each for each in errors if each.at <= when]) <= 10
    assert len(errors) <= 10, "none after that, until it comes back"
    assert when <= 6
    assert run.failed / run.calls <= 0.001
    assert {change[1] for change in run.changes} == {"b"}


@pytest.mark.parametrize("count", [2, 5, 8])
def test_an_instance_that_fails_most_calls_is_out_at_the_next_look_at_success_rates(count: int) -> None:
    hosts = farm(count, b=Host(failing=lambda now: 0.45))
    run = Simulation(
        hosts,
        Balancing(),
        rate=20.0 * count,
        seconds=15,
        seed=2,
        attempts=3,
        outlier_detection=EjectionRules(consecutive_failures=None),
    ).run()
    assert [(change[1], change[3]) for change in run.changes] == [("b", "success-rate")]
    assert run.changes[0][0] == pytest.approx(10, abs=0.2)


@pytest.mark.parametrize("seed", range(3))
def test_healthy_instances_with_a_few_failures_each_are_left_alone(seed: int) -> None:
    hosts = {name: Host(failing=lambda now: 0.02) for name in farm(8)}
    run = Simulation(hosts, Balancing(), rate=100, seconds=60, seed=seed).run()
    assert run.changes == []


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_that_comes_back_has_its_full_share_after_the_ramp_and_nobody_twice_the_mean_before(strategy: str) -> None:
    hosts = farm(8, b=Host(failing=lambda now: float(5 <= now < 20)))
    rules = EjectionRules(base_ejection_time=20, slow_start_window=10)
    run = Simulation(
        hosts, Balancing(strategy=strategy), rate=200, seconds=48, seed=8, outlier_detection=rules, attempts=3
    ).run()
    (ejected, *_), (returned, *back) = run.changes
    assert back == ["b", "returned", "over"]
    assert returned - ejected == pytest.approx(20, abs=0.1)
    for second in range(int(returned), int(returned) + 10):
        shares = [run.share(name, second, second + 1) for name in hosts]
        assert max(shares) <= 2 / 8
        assert run.share("b", second, second + 1) <= (second + 2 - returned) / 10 / 8 + 0.04
    assert run.share("b", returned, returned + 2) < 0.6 / 8
    after = [run.share(name, returned + 10, 48) for name in hosts]
    assert after[1] == pytest.approx(1 / 8, abs=0.03)
    assert run.failed == 0


def test_half_of_all_coming_back_together_does_not_overload_the_others_or_themselves() -> None:
    broken = {name: Host(failing=lambda now: float(5 <= now < 20)) for name in "abcd"}
    run = Simulation(farm(8, **broken), Balancing(), rate=200, seconds=70, seed=9, attempts=3).run()
    assert sum(change[2] == "ejected" for change in run.changes) == 4
    back = [change[0] for change in run.changes if change[2] == "returned"]
    for second in range(int(min(back)), int(max(back)) + 31):
        assert max(run.share(name, second, second + 1) for name in "abcdefgh") <= 2.1 / 8  # 200 calls: chance shows
    assert all(run.share(name, max(back) + 30) == pytest.approx(1 / 8, abs=0.01) for name in "abcdefgh")


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_when_all_fail_half_at_most_is_ejected_and_whoever_recovers_is_found_at_once(strategy: str, count: int) -> None:
    hosts = {
        name: Host(failing=lambda now, up=10 + index: float(now < up))  # one after the other gets well
        for index, name in enumerate(farm(count))
    }
    rules = EjectionRules(slow_start_window=5)
    run = Simulation(
        hosts, Balancing(strategy=strategy), rate=40, seconds=60, seed=10, attempts=3, outlier_detection=rules
    ).run()
    out = 0
    for _, _, change, _ in run.changes:
        out += 1 if change == "ejected" else -1
        assert 0 <= out <= max(count // 2, count >= 3)
    well = [each.at for each in run.ended if each.outcome is Outcome.SUCCESS]
    assert min(well) < 10.5, "the first that is well is found although it may be ejected"
    assert all(each.outcome is Outcome.SUCCESS for each in run.ended if each.at > 10 + count + 5)
    assert all(run.share(name, 50) == pytest.approx(1 / count, abs=0.1) for name in hosts)
