"""The demonstration's table and lines."""

from __future__ import annotations

import io

from rich.console import Console

from dispatch.cli.demo_view import live_view, plain_line, rows
from dispatch.demo import Demo
from dispatch.outcome import ToolError


async def test_rows_lines_and_the_live_view_show_the_counts_of_the_moment() -> None:
    demo = Demo("memory://view", 10)
    board = demo.board
    for _ in range(3):
        board.begin("tell-joke")
    board.succeed("tell-joke", "ha\n[red]ha[/red]", 0.0125)
    board.fail("tell-joke", ToolError("no-joke", "…"))
    assert rows(board) == [("tell-joke", "3", "1", "1", "1", "12.5", "12.5", "✗ no-joke")]
    assert plain_line(demo).split() == ["0%", "3", "calls", "1", "ok", "1", "errors", "1", "in", "flight", "connecting"]
    file = io.StringIO()
    Console(file=file, width=120).print(live_view(demo))
    assert "tell-joke" in file.getvalue()
    assert "connecting" in file.getvalue()


async def test_an_answers_text_is_never_taken_for_markup() -> None:
    demo = Demo("memory://view", 10)
    demo.board.begin("tell-joke")
    demo.board.succeed("tell-joke", "[bold]ha", 0.01)
    file = io.StringIO()
    Console(file=file, width=120).print(live_view(demo))
    assert "[bold]ha" in file.getvalue()
