"""The demonstration's live view, and its lines for a pipe.
The demonstration's summary, for people.
"""

from __future__ import annotations

import asyncio
import io
import re

import pytest
from rich.console import Console

from dispatch.cli.demo import NEXT, format_event, live_view, plain_line, show_summary
from dispatch.cli.screen import wrap_events
from dispatch.devtools.demo import Demo
from dispatch.devtools.demo.scenarios import Event
from dispatch.devtools.demo.world import MIN_SECONDS
from dispatch.errors import Outcome, ToolError
from dispatch.result import CallResult
from tests.helpers.clock import advance
from tests.unit.devtools.demo.scenarios.demo_run import run_demo


def drawn(demo: Demo, width: int = 120, height: int = 40) -> str:
    file = io.StringIO()
    Console(file=file, width=width).print(live_view(demo, width, height))
    return file.getvalue()


async def test_rows_lines_and_the_live_view_show_the_counts_of_the_moment() -> None:
    demo = Demo("memory://view", 10)
    board = demo.board
    for _ in range(3):
        board.record_start("tell-joke")
    board.record_end("tell-joke", CallResult("tell-joke", Outcome.SUCCESS, "ha\n[red]ha[/red]", duration=0.0125))
    board.record_end("tell-joke", CallResult("tell-joke", Outcome.TOOL_ERROR, error=ToolError("no-joke", "…")))
    row = next(line for line in drawn(demo).splitlines() if line.startswith("tell-joke"))
    assert row.split() == ["tell-joke", "3", "1", "1", "12.5", "12.5", "✗", "no-joke"]
    assert plain_line(demo).split() == ["0%", "3", "calls", "1", "ok", "1", "errors", "1", "in", "flight", "connecting"]
    assert "tell-joke" in drawn(demo)
    assert "connecting" in drawn(demo)


async def test_an_answers_text_is_never_taken_for_markup() -> None:
    demo = Demo("memory://view", 10)
    demo.board.record_start("tell-joke")
    demo.board.record_end("tell-joke", CallResult("tell-joke", Outcome.SUCCESS, "[bold]ha", duration=0.01))
    assert "[bold]ha" in drawn(demo)


async def test_view_shows_every_scenario_and_always_fits() -> None:
    demo = Demo("memory://view", MIN_SECONDS)
    running = asyncio.ensure_future(demo.run())
    views: dict[tuple[int, int], list[str]] = {(80, 24): [], (120, 40): []}
    while not running.done():
        await advance(0.1)
        for size, shown in views.items():
            shown.append(drawn(demo, *size))
    await running
    for size, shown in views.items():
        assert_shows_everything(shown, *size)


def assert_shows_everything(views: list[str], width: int, height: int) -> None:
    for view in views:
        lines = view.splitlines()
        assert len(lines) < height, "the cursor stands below it"
        assert max(map(len, lines)) <= width
    screens = "\n".join(views)
    for text in (
        "Scenario 2 of 4: A slow instance",
        "translate-2 ejected 0.",
        "translate-2 warming",
        "exchange-rate open 0.",
        "exchange-rate half-open",
        "11 others     closed",
        "noisy",
        "refused",
        "Shortened: ejected 0.5 s (default 30), slow start 0.5 s (30), open 0.6 s (5)",
        "translate-2: up → ejected",
    ):
        assert text in screens, text
    assert "100%" in views[-1]
    assert bool(re.search(r"and \d+ more", screens)) == (height == 24), "tools are left out where they do not fit"


async def test_a_tiny_terminal_still_has_the_tools_called_last() -> None:
    demo = Demo("memory://view", 10)
    for tool in ("one", "two", "three", "four", "five", "two"):
        demo.board.record_start(tool)
    view = drawn(demo, 80, 8)
    assert len(view.splitlines()) < 8
    assert [name for name in ("one", "two", "three", "four", "five") if f"\n{name} " in view] == ["two", "five"]
    assert "and 3 more" in view


def test_events_are_shown_with_their_time_and_wrapped() -> None:
    events = [Event(1.25, "one two three"), Event(12.0, "four")]
    assert wrap_events(map(format_event, events), 16) == ["  1.2 s  one two", "         three", " 12.0 s  four"]


def test_it_tells_how_calls_ended_what_guards_did_and_what_to_do_next(capsys: pytest.CaptureFixture[str]) -> None:
    summary = run_demo()[1]
    show_summary(summary)
    out = capsys.readouterr().out
    flat = " ".join(out.split())
    for scenario in summary.scenarios:
        assert " ".join(scenario.describe_result().split()) in flat
    assert summary.note in flat
    for outcome, count in summary.board.outcomes.items():
        assert f"{outcome} {count:,}" in flat
    for command, why in NEXT:
        assert f"{command} {why}" in flat
    assert max(len(line) for line in out.splitlines() if "last result" not in line) <= 130
