"""``dispatch demo``: what it shows, to a person and to a program."""

from __future__ import annotations

import json
import re

import pytest

from tests.cli.conftest import Run
from tests.cli.processes import ended, started

OUTCOMES = (
    "success",
    "tool_error",
    "invalid_arguments",
    "throttled",
    "timeout",
    "transport",
    "abandoned",
    "rejected",
)


def test_into_a_pipe_it_writes_lines_of_progress_and_the_summary() -> None:
    code, out, err = ended("demo", "--seconds", "1.5")
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    assert out.startswith("Agents call tools on memory://demo-")
    assert re.search(r"^ +\d+%  +[\d,]+ calls  +[\d,]+ ok ", out, re.MULTILINE)
    for outcome in OUTCOMES:
        assert re.search(rf"^  {outcome} +[1-9]", out, re.MULTILINE), outcome
    assert "tell-jokes · unknown-tool: There is no tool 'tell-jokes'. Did you mean 'tell-joke'" in out
    assert re.search(r"tell-story answers in a stream: \d+ chunks in \d+ answers", out)
    assert "left waiting: 0" in out
    for command in ("dispatch broker start", "dispatch doctor", "make test"):
        assert command in out


def test_json_is_the_summary_and_nothing_else(run: Run) -> None:
    end = run("demo", "--seconds", "1", "--json")
    assert (end.code, end.err) == (0, "")
    assert end.json["surprises"] == []
    assert set(end.json["outcomes"]) == set(OUTCOMES)
    assert end.json["tools"]["tell-story"]["chunks"] > 10


def test_on_a_terminal_it_is_a_live_table_and_the_cursor_comes_back() -> None:
    code, out, err = ended("demo", "--seconds", "1", terminal=True)
    assert (code, err) == (0, "")
    assert "\x1b[?25l" in out
    assert out.rindex("\x1b[?25h") > out.rindex("\x1b[?25l")
    assert "p95 ms" in out
    assert "How the calls ended" in out


def test_without_colour_where_nobody_wants_it() -> None:
    code, out, _ = ended("demo", "--seconds", "1", terminal=True, NO_COLOR="1")
    assert code == 0
    assert not re.search(r"\x1b\[[0-9;]*3[1-7]m", out)


@pytest.mark.parametrize("terminal", [False, True])
def test_ctrl_c_ends_it_and_the_cursor_comes_back(terminal: bool) -> None:
    with started("demo", "--seconds", "60", terminal=terminal) as program:
        program.out.wait_for("tell-jokes" if terminal else "a name slightly wrong")
        program.interrupt()
        program.assert_interrupted()
        assert "How the calls ended" not in program.out.text()
        if terminal:
            assert program.out.text().rindex("\x1b[?25h") > program.out.text().rindex("\x1b[?25l")


def test_a_broker_in_the_environment_is_not_looked_at(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPATCH_BROKER", "pulsar://127.0.0.1:1")
    assert run("demo", "--seconds", "1", "--json").json["broker"].startswith("memory://")


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_broker_that_is_not_there(run: Run, more: tuple[str, ...]) -> None:
    end = run("demo", "--broker", "pulsar://127.0.0.1:1", *more)
    assert end.code == 4
    assert "No Pulsar broker answers at pulsar://127.0.0.1:1" in end.err


def test_what_was_not_planned_is_told_and_is_a_failure(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from dispatch.demo import run as module
    from dispatch.outcome import Outcome

    monkeypatch.setattr(module, "EXPECTED", {Outcome.TIMEOUT: 7})
    end = run("demo", "--seconds", "1", "--json")
    assert end.code == 1
    assert json.loads(end.out)["surprises"] == ["timeout: 1 instead of 7"]
    assert "Unexpected: timeout: 1 instead of 7" in end.err
