"""The benchmark of the call path measures every contender, and its calls pass the guards."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from benchmarks.micro.call_path import BLOCK, DIFFERENCES, IN_FLIGHT, STACKS, main
from benchmarks.micro.guard_stacks import Stack
from benchmarks.micro.rounds import cost


def test_every_contender_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "figures.json"
    assert main(["--rounds", "1", "--blocks", "1", "--json", str(path)]) == 0
    written = json.loads(path.read_text())
    assert written["costs_us"].keys() == {stack.name for stack in STACKS}
    assert all(cost > 0 for costs in written["costs_us"].values() for cost in costs)
    assert written["differences_us"].keys() == {each.text for each in DIFFERENCES}
    assert "the whole path" in capsys.readouterr().out


def test_a_contender_is_profiled(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.micro.call_path.PROFILED", BLOCK)
    assert main(["--profile", "call"]) == 0
    assert "perform" in capsys.readouterr().out


@pytest.mark.parametrize("stack", STACKS, ids=lambda stack: stack.name)
async def test_every_contender_answers(stack: Stack) -> None:
    async with stack.make() as call:
        assert await call() == "done"


async def test_callers_run_side_by_side() -> None:
    running, most = 0, 0

    async def call() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    await cost(call, BLOCK, IN_FLIGHT)
    assert (running, most) == (0, IN_FLIGHT)
