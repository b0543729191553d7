"""Calls that are executed more than once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.workers.execution_counter import BLOCK, ExecutionCounter


@given(st.lists(st.integers(0, 30) | st.integers(0, 3 * BLOCK), max_size=60))
def test_every_execution_but_the_first_of_a_call_counts(numbers: list[int]) -> None:
    counter = ExecutionCounter()
    for number in numbers:
        counter.record(number)
    assert counter.repeated == len(numbers) - len(set(numbers))
