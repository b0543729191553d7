"""What goes to a terminal, and what into a pipe."""

from __future__ import annotations

import io

import pytest

from dispatch.cli.base import colorize, console, make_printable


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colours_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert colorize("text", "red", Terminal()) == "\x1b[31mtext\x1b[0m"
    assert colorize("text", "red", io.StringIO()) == "text"
    monkeypatch.setenv("NO_COLOR", "1")
    assert colorize("text", "red", Terminal()) == "text"
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert colorize("text", "red", Terminal()) == "text"


@pytest.mark.parametrize(
    ("stream", "no_color", "coloured"), [(Terminal, False, True), (Terminal, True, False), (io.StringIO, False, False)]
)
def test_so_do_tables(
    monkeypatch: pytest.MonkeyPatch, stream: type[io.StringIO], no_color: bool, coloured: bool
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    target = stream()
    console(target).print("text", style="red")
    assert ("\x1b[31m" in target.getvalue()) is coloured


def test_what_a_terminal_would_act_on_is_shown_instead() -> None:
    assert make_printable("a\x1b[2Jb\n\tc\u202e") == "a\\x1b[2Jb\n\tc\\u202e"
    assert make_printable("grüße 猫") == "grüße 猫"
    assert make_printable("abcdef", limit=4) == "abc…"
