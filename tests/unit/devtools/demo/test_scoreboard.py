"""Counting."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.devtools.demo.world import SNIPPET_CHARS, Scoreboard, nearest_rank, snippet
from dispatch.errors import Outcome, ToolError


def test_a_call_counts_once_however_it_ends() -> None:
    board = Scoreboard()
    for _ in range(3):
        board.record_start("work")
    assert (board.calls, board.in_flight) == (3, 3)
    board.record_success("work", "done", 0.5)
    board.record_failure("work", ToolError("broken", "It broke."))
    board.record_cancellation("work")
    score = board.tools["work"]
    assert (score.calls, score.ok, score.errors, score.in_flight) == (3, 1, 2, 0)
    assert board.outcomes[Outcome.SUCCESS] == board.outcomes[Outcome.TOOL_ERROR] == 1
    assert board.outcomes[Outcome.CANCELLED] == 1
    assert board.examples[Outcome.TOOL_ERROR].message == "It broke."
    assert score.outcomes == {Outcome.SUCCESS: 1, Outcome.TOOL_ERROR: 1, Outcome.CANCELLED: 1}


def test_it_is_known_which_tool_was_called_last() -> None:
    board = Scoreboard()
    for tool in ("one", "other", "one"):
        board.record_start(tool)
    assert board.tools["one"].latest > board.tools["other"].latest


def test_users_are_counted_once_they_are_tracked() -> None:
    board = Scoreboard()
    assert board.users == {}
    board.track_users(("ann", "bob"))
    board.users["ann"].rejected += 1
    assert {name: score.as_dict() for name, score in board.users.items()} == {
        "ann": {"admitted": 0, "rejected": 1},
        "bob": {"admitted": 0, "rejected": 0},
    }


def test_the_first_error_of_an_outcome_is_its_example() -> None:
    board = Scoreboard()
    for message in ("first", "second"):
        board.record_start("work")
        board.record_failure("work", ToolError("broken", message))
    assert board.examples[Outcome.TOOL_ERROR].message == "first"


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([], 0.5, None),
        ([3.0], 0.95, 3.0),
        ([1.0, 2.0], 0.5, 1.0),
        ([4.0, 1.0, 3.0, 2.0], 0.5, 2.0),
        ([float(n) for n in range(1, 101)], 0.95, 95.0),
        ([float(n) for n in range(1, 101)], 1.0, 100.0),
    ],
)
def test_nearest_rank(values: list[float], share: float, expected: float | None) -> None:
    assert nearest_rank(deque(values), share) == expected


@given(st.lists(st.floats(0, 10), min_size=1), st.sampled_from([0.5, 0.95, 1.0]))
def test_at_least_that_share_does_not_exceed_it(values: list[float], share: float) -> None:
    found = nearest_rank(deque(values), share)
    assert found is not None
    assert sum(value <= found for value in values) >= share * len(values)


def test_a_snippet_is_one_short_line() -> None:
    assert snippet(" a\n\tb ") == "a b"
    assert snippet("x" * 100) == "x" * (SNIPPET_CHARS - 1) + "…"
