"""Costs side by side: the order of contenders, and the summary of the figures."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from benchmarks.harness.statistics import Spread
from benchmarks.micro import rounds
from benchmarks.micro.guard_stacks import Absent, Call, Stack
from benchmarks.micro.rounds import Costs, cost_table, left_out, measure, promised, writable


@pytest.fixture(autouse=True)
def freezes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the objects of other tests collectable."""
    monkeypatch.setattr(rounds.gc, "freeze", lambda: None)


async def test_contenders_take_turns_at_being_first_and_each_block_is_kept() -> None:
    made: list[str] = []

    def stack(name: str) -> Stack:
        @asynccontextmanager
        async def make() -> AsyncIterator[Call]:
            async def call() -> object:
                made.append(name)
                return "done"

            yield call

        return Stack(name, name, make)

    @asynccontextmanager
    async def absent() -> AsyncIterator[Call]:
        raise Absent("some-package")
        yield

    found = Costs()
    await measure([stack("a"), Stack("b", "b", absent), stack("c")], rounds=2, blocks=3, found=found, block=2)
    a, c = ["a"] * 2, ["c"] * 2
    turns = [a + c, c + a, a + c]
    assert made == [*"ac", *(name for first in (turns, [*turns[1:], c + a]) for turn in first for name in turn)]
    assert found.absent == {"b": "some-package"}
    kept = {name: {at: len(blocks) for at, blocks in of.items()} for name, of in found.blocks.items()}
    assert kept == {"a": {0: 3, 1: 3}, "c": {0: 3, 1: 3}}
    for name, of in found.blocks.items():
        assert found.costs[name] == {at: min(blocks) for at, blocks in of.items()}
    assert (
        left_out(found, "pip install it")
        == "Not installed: some-package; skipped: b. Install them with: pip install it"
    )


async def test_a_cost_is_processor_time_for_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    clock: Iterator[int] = iter((1_000_000, 1_900_000))
    monkeypatch.setattr(rounds.time, "process_time_ns", lambda: next(clock))
    calls = 0

    async def call() -> object:
        nonlocal calls
        calls += 1
        return "done"

    assert await rounds.cost(call, 300) == 3.0
    assert calls == 300


def test_a_difference_is_of_neighbours_and_of_rounds_that_have_both() -> None:
    found = Costs(
        blocks={
            # The machine gets slower and slower; one block was interrupted.
            "more": {0: [11.0, 22.0, 93.0], 1: [15.0, 25.0, 35.0], 2: [1.0]},
            "less": {0: [10.0, 20.0, 30.0], 1: [10.0, 20.0, 30.0]},
        }
    )
    assert found.difference("more", "less") == Spread(3.5, 2.0, 5.0)
    assert found.difference("more", "absent") is None
    assert found.difference("absent", "less") is None


def test_tables() -> None:
    found = Costs({"a": {0: 1.0, 1: 3.0}})
    stacks = [Stack(name, f"the {name}", lambda: pytest.fail("not opened")) for name in "ab"]
    assert [line.split() for line in cost_table(found, stacks).splitlines()[2:]] == [
        ["a", "the", "a", "2.00", "(1.00", "…", "3.00)"],
        ["b", "the", "b", "-"],
    ]
    assert left_out(found, "") == ""
    assert promised(Spread(2.0, 1.0, 3.0), None) == ("2.00 (1.00 … 3.00)", "", "")
    assert promised(Spread(2.0, 2.0, 2.0), 2.0) == ("2.00", "≤ 2", "ok")
    assert promised(Spread(2.01, 1.0, 3.0), 2.0)[1:] == ("≤ 2", "MISSED")


def test_an_unwritable_result_file_is_reported_before_measuring(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert writable(None)
    assert writable(tmp_path / "new" / "figures.json")
    assert (tmp_path / "new" / "figures.json").exists()
    assert not writable(tmp_path / "new" / "figures.json" / "figures.json")
    assert "--json" in capsys.readouterr().err
