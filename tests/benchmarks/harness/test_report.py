"""The tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.harness.plan import Contender, Suite
from benchmarks.harness.report import aligned, number, ratio_table, report, shown, suite_table
from benchmarks.harness.statistics import Spread
from benchmarks.suites.definitions import CLIENTS
from benchmarks.suites.target_ratios import TARGETS, Found, Ratio, find
from tests.benchmarks.harness.result_builders import measurement, results

SMALL = Suite(
    "clients", "Clients", (Contender("bare", "bare", "x"), Contender("dispatch", "ours", "y")), levels=(1, 64)
)


@pytest.mark.parametrize(
    ("value", "text"),
    [(12_345.6, "12,346"), (100.0, "100"), (42.44, "42.4"), (1.256, "1.26"), (0.0404, "0.040"), (0.0, "0.000")],
)
def test_numbers_show_what_counts(value: float, text: str) -> None:
    assert number(value) == text


def test_a_spread_shows_its_ends_where_it_has_some() -> None:
    assert shown(Spread(2.0, 1.0, 3.5)) == "2.00 (1.00 … 3.50)"
    assert shown(Spread(2.0, 2.0, 2.0)) == "2.00"
    assert shown(None) == "-"


def test_columns_are_aligned_and_lines_end_without_blanks() -> None:
    assert aligned([("a", "1", ""), ("long", "234", "x")]) == "a       1\nlong  234  x"
    assert aligned([("a", "b"), ("cc", "dd")], left=(0, 1)) == "a   b\ncc  dd"


def test_a_suite_as_a_table() -> None:
    run = results(
        measurement("bare", 1),
        measurement("bare", 64, calls_per_second=12_000.0, calls=24_000, lost=17, repeated=2),
        measurement(
            "dispatch",
            1,
            p50_ms=None,
            p99_ms=None,
            p999_ms=None,
            cpu_us_per_call=None,
            calls_per_second=0.0,
            lost=3,
            calls=3,
        ),
        suites=(SMALL,),
    )
    assert suite_table(SMALL, run).splitlines() == [
        "Clients",
        "      in flight  p50 ms  p99 ms  p99.9 ms  calls/s        CPU µs/call                            lost",
        "bare          1    1.00    2.00      3.00    1,000  100 + 50.0 + 25.0                               0",
        "             64    1.00    2.00      3.00   12,000  100 + 50.0 + 25.0  17 of 24,000, 2 executed again",
        "ours          1       -       -         -    0.000    - + 50.0 + 25.0                          3 of 3",
        "             64       -       -         -        -          - + - + -                               0",
    ]


def test_retransmissions_are_shown_beside_the_losses() -> None:
    run = results(measurement("bare", 1, repeated=0, retransmitted=0.0123), suites=(SMALL,))
    assert suite_table(SMALL, run).splitlines()[2].endswith("  0, 0 executed again, 1.2 % retransmitted")


def test_the_levels_of_an_open_load_are_rates() -> None:
    suite = replace(SMALL, mode="open", levels=(5_000,))
    table = suite_table(suite, results(measurement("bare", 5_000), suites=(suite,))).splitlines()
    assert "calls/s offered" in table[1]
    assert table[2].startswith("bare            5,000")


def test_targets_with_their_verdict() -> None:
    def found(limit: float | None, met: bool | None, spread: Spread | None, bound: str = "at most") -> Found:
        return Found(Ratio("what", "clients", "dispatch", "bare", "p50_ms", 1, limit, bound), {}, spread, met)  # type: ignore[arg-type] # one of the two

    one = Spread(0.5, 0.5, 0.5)
    lines = ratio_table(
        "Title",
        [
            found(0.6, True, one),
            found(0.9, False, one, "at least"),
            found(2.0, None, None),
            found(None, None, Spread(0.5, 0.4, 0.6)),
        ],
    ).splitlines()
    assert lines == [
        "Title",
        "what                  0.500  ≤ 0.6  ok",
        "what                  0.500  ≥ 0.9  MISSED",
        "what                      -    ≤ 2  not measured",
        "what  0.500 (0.400 … 0.600)",
    ]
    assert ratio_table("Title", []) == ""


def test_the_report_says_what_it_was_made_with_and_ends_with_the_targets() -> None:
    run = results(measurement("bare"), measurement("dispatch"))
    text = report(run, [find(ratio, run) for ratio in TARGETS], [])
    assert text.startswith("2025-01-02T03:04:05+00:00 · 2 processors (Some Processor), 4.0 GiB")
    assert "pulsar-client 3.13.0" in text
    assert "Pulsar 4.0.6" in text
    assert CLIENTS.title in text
    assert "For the record" not in text
    assert "other programs during the measurements: 0.100" in text
    targets = text.splitlines()[-len(TARGETS) :]
    assert targets[0].startswith("120 B, 1 in flight: p50, of the bare pair ")
    verdicts = {ratio.text: line.split()[-1] for ratio, line in zip(TARGETS, targets, strict=True)}
    assert verdicts.pop("p50 at 1 in flight, of the bare client") == "ok"
    assert set(verdicts.values()) == {"measured"}
    assert "\x1b" not in text
