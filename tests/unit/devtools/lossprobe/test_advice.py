"""What to do, in plain words: never more than was measured."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dispatch.devtools.lossprobe import Cell, advice
from dispatch.devtools.lossprobe.advice import safe_in_flight, where
from tests.unit.devtools.lossprobe.result_builders import grids, run, runs


def test_a_plain_client_lost_some_and_ours_none() -> None:
    cells = [
        Cell(1_000, 64, run(2_000), run(2_000)),
        Cell(10_000, 16, run(2_000), run(2_000)),
        Cell(10_000, 64, run(2_000, 3), run(2_000)),
        Cell(100_000, 16, run(1_000, 12), run(1_000)),
        Cell(100_000, 64, run(1_000, 41, 50), run(1_000, 0, 80)),
    ]
    first, ours, persistent, until_then, speed = advice(cells)
    assert first == (
        "At 100 kB and 64 in flight your broker dropped 4.1 % of a plain client's answers (41 of 1,000) and none of ours "
        "(0 of 1,000); the smallest answers it dropped were of 10 kB and 64 in flight. Each costs a plain client its whole "
        "timeout."
    )
    assert ours.startswith("Use ToolServer on the service side (dispatch serve MODULE:CLASS)")
    assert ours.endswith("none of 8,000 calls was lost.")
    assert "response_queue=persistent://" in persistent
    assert "16 at 10 kB." in until_then
    assert "At 100 kB it lost some at every number in flight" in until_then
    assert "1.0 (at 1 kB and 64 in flight) to 1.6 times (at 100 kB and 64 in flight)" in speed


def test_ours_lost_some_too() -> None:
    said = advice([Cell(1_000_000, 256, run(400, 80), run(400, 2))])
    assert "dropped 20 % of a plain client's answers (80 of 400) and 0.50 % of ours (2 of 400)." in said[0]
    assert not any(line.startswith("Use ToolServer") for line in said)
    (ours,) = [line for line in said if line.startswith("Ours lost")]
    assert ours.startswith(
        "Ours lost 2 of 400 calls (0.50 %) in spite of credit, most at 1 MB and 256 in flight (2 of 400)."
    )
    assert "Measure again" in ours
    assert "persistent://" in ours
    assert "'dispatch doctor --loss --json'" in ours


def test_nothing_was_lost_anywhere() -> None:
    first, speed = advice([Cell(120, 1, run(5_000), run(4_000)), Cell(120, 64, run(5_000), None)])
    assert first.startswith(
        "Nothing was lost: none of a plain client's 10,000 calls and none of our 4,000, at any size"
    )
    assert "measure again while your broker" in first
    assert speed.startswith("With credit there were 1.0 times a plain client's answers a second.")


def test_interrupted_before_ours_was_measured_nothing_is_said_of_it() -> None:
    said = advice([Cell(100_000, 64, run(1_000, 41), None)])
    assert "of ours" not in " ".join(said)
    assert "none of" not in " ".join(said)


def test_nothing_was_measured() -> None:
    assert advice([]) == ["Nothing was measured."]


def test_failures_are_told_apart_from_losses() -> None:
    said = advice([Cell(1_000_000, 1, run(50, 0, 100, MessageTooBig=40), run(50, 0, 100, overloaded=2))])
    assert said[0].startswith("Nothing was lost")
    assert "40 of a plain client's calls failed with MessageTooBig, the first at 1 MB and 1 in flight" in said[1]
    assert "maxMessageSize" in said[1]
    assert "2 of our calls failed with overloaded" in said[2]
    assert "maxMessageSize" not in said[2]


@given(grids(runs() | st.none(), runs() | st.none()))
def test_it_says_that_something_was_lost_exactly_if_it_was(cells: list[Cell]) -> None:
    said = " ".join(advice(cells))
    plain = [cell for cell in cells if cell.plain is not None and cell.plain.lost]
    ours = [cell for cell in cells if cell.credit is not None and cell.credit.lost]
    measured = any(cell.plain is not None or cell.credit is not None for cell in cells)
    assert ("your broker dropped" in said) == ("response_queue=persistent://" in said) == bool(plain)
    assert ("Ours lost" in said) == bool(ours)
    assert ("Nothing was lost" in said) == (measured and not plain and not ours)
    if ours:
        assert "Use ToolServer" not in said
    if plain:
        worst = max(plain, key=lambda cell: cell.plain.share if cell.plain is not None else 0)
        assert worst.plain is not None
        assert any(
            f"At {where(cell)} your broker dropped" in said
            for cell in plain
            if cell.plain is not None and cell.plain.share == worst.plain.share
        )


@given(grids(runs(most_lost=2) | st.none(), st.none()))
def test_what_it_calls_safe_lost_nothing_nor_did_less(cells: list[Cell]) -> None:
    for size in {cell.size for cell in cells}:
        measured = [(cell.in_flight, cell.plain.lost) for cell in cells if cell.size == size and cell.plain is not None]
        safe = safe_in_flight(cells, size)
        if safe is None:
            assert not measured or measured[0][1] > 0
        else:
            assert safe in {in_flight for in_flight, _ in measured}
            assert all(lost == 0 for in_flight, lost in measured if in_flight <= safe)
            beyond = [lost for in_flight, lost in measured if in_flight > safe]
            assert not beyond or beyond[0] > 0
