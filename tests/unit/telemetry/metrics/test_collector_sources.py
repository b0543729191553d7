"""The gauges of sources are read from the registry at the scrape, and disappear with their source."""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatch import ChangeHeld, Event, ItemRefused, SourceChanged
from tests.helpers.clock import advance
from tests.helpers.dispatcher_and_service import catalog
from tests.helpers.run_profile import by_profile
from tests.helpers.telemetry_capture import Board, telling
from tests.helpers.troubled_source import CHANGED, INVALID, SERVICE, SOUND, TOOL, TroubledSource

ACTIVATIONS = by_profile(short=100, long=2_000)
UP, TOOLS, REFUSED, HELD = (f"catalog_{name} desk" for name in ("source_up", "tools", "refused_items", "held_changes"))


def read(board: Board) -> dict[str, float]:
    return {key: value for key, value in board.read().items() if key in (UP, TOOLS, REFUSED, HELD)}


async def test_the_gauges_of_a_source_follow_it(tmp_path: Path) -> None:
    board, source = Board(), TroubledSource()
    async with telling(board.telemetry(), source, approvals=tmp_path / "approved.json") as dispatcher:
        events: list[Event] = []
        dispatcher.on_event(events.append)
        assert read(board) == {UP: 1, TOOLS: 1, REFUSED: 0, HELD: 0}

        source.deliver(SOUND[0], CHANGED, INVALID)
        await advance(1)
        assert read(board) == {UP: 1, TOOLS: 1, REFUSED: 1, HELD: 1}

        source.fail()
        await advance(1)
        assert read(board) == {UP: 0, TOOLS: 1, REFUSED: 1, HELD: 1}, "its last items are in force"

        source.deliver(*SOUND)
        await advance(1)
        assert read(board) == {UP: 1, TOOLS: 1, REFUSED: 0, HELD: 0}

        assert [type(event) for event in events] == [ItemRefused, ChangeHeld, SourceChanged, SourceChanged]
        await dispatcher.registry.remove_source("desk")
        assert board.of("desk") == []


async def test_a_source_that_has_never_answered_is_down(tmp_path: Path) -> None:
    board, source = Board(), TroubledSource()
    source.fail()
    async with telling(board.telemetry(), source, approvals=tmp_path / "approved.json"):
        assert read(board) == {UP: 0, TOOLS: 0, REFUSED: 0, HELD: 0}
        source.deliver(*SOUND)
        await advance(1)
        assert read(board) == {UP: 1, TOOLS: 1, REFUSED: 0, HELD: 0}


async def test_of_two_dispatchers_one_that_fails_counts(tmp_path: Path) -> None:
    board, sources = Board(), (TroubledSource(), TroubledSource())
    async with (
        telling(board.telemetry(), sources[0], approvals=tmp_path / "a.json"),
        telling(board.telemetry(), sources[1], approvals=tmp_path / "b.json"),
    ):
        assert (board[UP], board[TOOLS]) == (1, 2)
        sources[0].fail()
        await advance(1)
        assert (board[UP], board[TOOLS]) == (0, 2)


async def test_what_is_shadowed_from_the_start_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    line = "item of code-2 shadowed: 'one' (code-2) is not in force, because code (code) precedes it"

    def count_lines() -> int:
        return [record.getMessage() for record in caplog.records].count(line)

    async with telling(Board().telemetry(), [catalog(one={}), catalog(one={})]) as dispatcher:
        assert count_lines() == 1
        await dispatcher.registry.put("tool-service", SERVICE)  # another activation
        assert count_lines() == 1


@pytest.mark.long
async def test_series_stay_the_same_over_many_activations() -> None:
    board = Board()
    async with telling(board.telemetry(), catalog(one={})) as dispatcher:
        await dispatcher.registry.put("tool-service", SERVICE)
        await dispatcher.registry.put("tool", TOOL)
        series = set(board.read())
        for turn in range(ACTIVATIONS):
            await dispatcher.registry.put("tool", {**TOOL, "description": f"Stamps form {turn}."})
            if turn % 10 == 0:
                source = TroubledSource(f"desk-{turn}", on_change="apply")
                await dispatcher.registry.add_source(source)
                await dispatcher.registry.remove_source(source.id)
        assert set(board.read()) == series
