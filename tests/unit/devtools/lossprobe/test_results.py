"""Results of a measurement, and the format of a share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.devtools.lossprobe import ProbeResults, RunResult, Variant, count_lost_calls, format_share, make_plan
from tests.unit.devtools.lossprobe.result_builders import run


def test_cells_come_in_the_plans_order_with_what_there_is() -> None:
    findings = ProbeResults(make_plan("1k,120", "1,4"))
    assert (findings.measurements, findings.is_complete) == ([], False)
    findings.add(1_000, 1, Variant.PLAIN, run(10))
    findings.add(120, 1, Variant.SESSION, run(20))
    first, second = findings.measurements
    assert (first.size, first.plain, first.session) == (120, None, run(20))
    assert (second.size, second.plain, second.session) == (1_000, run(10), None)
    for size, in_flight in findings.plan.loads:
        for side in Variant:
            assert not findings.is_complete
            findings.add(size, in_flight, side, run(5))
    assert findings.is_complete


def test_a_run_counts_each_call_once() -> None:
    found = RunResult(calls=100, lost=4, seconds=2.0, errors={"MessageTooBig": 6})
    assert (found.answered, found.share, found.rate) == (90, 0.04, 45.0)
    assert found.as_dict() == {
        "calls": 100,
        "lost": 4,
        "lost_share": 0.04,
        "calls_per_second": 45.0,
        "seconds": 2.0,
        "errors": {"MessageTooBig": 6},
    }


def test_nothing_measured_has_no_rate() -> None:
    assert (RunResult(0, 0, 0.0).share, RunResult(0, 0, 0.0).rate) == (0.0, 0.0)


def test_lost_calls_over_what_there_is() -> None:
    assert count_lost_calls([run(10, 2), None, run(5)]) == (2, 15)
    assert count_lost_calls([]) == (0, 0)


@pytest.mark.parametrize(
    ("lost", "calls", "text"),
    [
        (0, 1_000, "0 %"),
        (41, 1_000, "4.1 %"),
        (1, 200, "0.50 %"),
        (1, 1_500, "0.067 %"),
        (1, 1_000_000, "< 0.01 %"),
        (199, 2_000, "10 %"),
        (999, 1_000, "> 99 %"),
        (5, 5, "100 %"),
    ],
)
def test_shares_have_two_figures(lost: int, calls: int, text: str) -> None:
    assert format_share(lost, calls) == text


@given(st.integers(1, 10**6).flatmap(lambda calls: st.tuples(st.integers(0, calls), st.just(calls))))
def test_a_share_never_says_none_or_all_when_it_was_not(counts: tuple[int, int]) -> None:
    lost, calls = counts
    text = format_share(lost, calls)
    assert (text == "0 %") == (lost == 0)
    assert (text == "100 %") == (lost == calls)
    if text[0] not in "<>":
        assert float(text.removesuffix(" %")) == pytest.approx(100 * lost / calls, rel=0.06)
