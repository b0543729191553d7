"""Advice, which never claims more than was measured."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dispatch.devtools.lossprobe import Measurement, describe_load, find_safe_in_flight, give_advice
from tests.unit.devtools.lossprobe.result_builders import grids, run, runs


def test_a_plain_client_lost_some_and_ours_none() -> None:
    cells = [
        Measurement(1_000, 64, run(2_000), run(2_000)),
        Measurement(10_000, 16, run(2_000), run(2_000)),
        Measurement(10_000, 64, run(2_000, 3), run(2_000)),
        Measurement(100_000, 16, run(1_000, 12), run(1_000)),
        Measurement(100_000, 64, run(1_000, 41, 50), run(1_000, 0, 80)),
    ]
    first, ours, persistent, until_then, speed = give_advice(cells)
    assert first == (
        "At 100 kB and 64 in flight your broker dropped 4.1 % of a plain client's replies (41 of 1,000) and none with "
        "sessions (0 of 1,000); the smallest replies it dropped were of 10 kB and 64 in flight. Each lost reply costs a "
        "plain client its whole timeout."
    )
    assert ours.startswith("Use ToolServer for the service (dispatch serve MODULE:CLASS)")
    assert ours.endswith("none of 8,000 calls was lost.")
    assert "response_queue=persistent://" in persistent
    assert "16 at 10 kB." in until_then
    assert "At 100 kB it lost some at every measured number in flight" in until_then
    assert "1.0 (at 1 kB and 64 in flight) to 1.6 times (at 100 kB and 64 in flight)" in speed


def test_ours_lost_some_too() -> None:
    lines = give_advice([Measurement(1_000_000, 256, run(400, 80), run(400, 2))])
    assert "dropped 20 % of a plain client's replies (80 of 400) and 0.50 % with sessions (2 of 400)." in lines[0]
    assert not any(line.startswith("Use ToolServer") for line in lines)
    (ours,) = [line for line in lines if line.startswith("With sessions, 2 of")]
    assert ours.startswith(
        "With sessions, 2 of 400 calls were lost (0.50 %), most at 1 MB and 256 in flight (2 of 400)."
    )
    assert "Measure again" in ours
    assert "persistent://" in ours
    assert "'dispatch doctor --loss --json'" in ours


def test_nothing_was_lost_anywhere() -> None:
    first, speed = give_advice([Measurement(120, 1, run(5_000), run(4_000)), Measurement(120, 64, run(5_000), None)])
    assert first.startswith(
        "Nothing was lost: none of a plain client's 10,000 calls and none of 4,000 with sessions, at any measured size"
    )
    assert "measure again while your broker" in first
    assert speed.startswith("With sessions, throughput was 1.0 times that of a plain client.")


def test_interrupted_before_ours_was_measured_nothing_is_said_of_it() -> None:
    lines = give_advice([Measurement(100_000, 64, run(1_000, 41), None)])
    assert "with sessions" not in " ".join(lines)
    assert "none of" not in " ".join(lines)


def test_nothing_was_measured() -> None:
    assert give_advice([]) == ["Nothing was measured."]


def test_failures_are_told_apart_from_losses() -> None:
    lines = give_advice([Measurement(1_000_000, 1, run(50, 0, 100, MessageTooBig=40), run(50, 0, 100, overloaded=2))])
    assert lines[0].startswith("Nothing was lost")
    assert "40 of a plain client's calls failed with MessageTooBig, first at 1 MB and 1 in flight" in lines[1]
    assert "maxMessageSize" in lines[1]
    assert "2 of dispatch's calls failed with overloaded" in lines[2]
    assert "maxMessageSize" not in lines[2]


@given(grids(runs() | st.none(), runs() | st.none()))
def test_it_says_that_something_was_lost_exactly_if_it_was(cells: list[Measurement]) -> None:
    lines = " ".join(give_advice(cells))
    plain = [cell for cell in cells if cell.plain is not None and cell.plain.lost]
    ours = [cell for cell in cells if cell.session is not None and cell.session.lost]
    measured = any(cell.plain is not None or cell.session is not None for cell in cells)
    assert ("your broker dropped" in lines) == ("response_queue=persistent://" in lines) == bool(plain)
    assert ("calls were lost (" in lines) == bool(ours)
    assert ("Nothing was lost" in lines) == (measured and not plain and not ours)
    if ours:
        assert "Use ToolServer" not in lines
    if plain:
        worst = max(plain, key=lambda cell: cell.plain.share if cell.plain is not None else 0)
        assert worst.plain is not None
        assert any(
            f"At {describe_load(cell)} your broker dropped" in lines
            for cell in plain
            if cell.plain is not None and cell.plain.share == worst.plain.share
        )


@given(grids(runs(most_lost=2) | st.none(), st.none()))
def test_what_it_calls_safe_lost_nothing_nor_did_less(cells: list[Measurement]) -> None:
    for size in {cell.size for cell in cells}:
        measured = [(cell.in_flight, cell.plain.lost) for cell in cells if cell.size == size and cell.plain is not None]
        safe = find_safe_in_flight(cells, size)
        if safe is None:
            assert not measured or measured[0][1] > 0
        else:
            assert safe in {in_flight for in_flight, _ in measured}
            assert all(lost == 0 for in_flight, lost in measured if in_flight <= safe)
            beyond = [lost for in_flight, lost in measured if in_flight > safe]
            assert not beyond or beyond[0] > 0
