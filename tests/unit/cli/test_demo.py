"""``dispatch demo``: what it shows, to a person and to a program."""

from __future__ import annotations

import json
import re
import socket

import pytest

from dispatch.devtools.demo import Demo, Scoreboard, Summary
from tests.helpers import clock
from tests.helpers.cli_processes import ended, started
from tests.unit.cli.conftest import Run

LIMIT_S = 90.0
"""For a run to its end: it takes eight seconds, more on a busy machine."""
OUTCOMES = ("success", "tool_error", "invalid_arguments", "throttled", "timeout", "transport", "cancelled", "rejected")
EVENTS = (
    "translate-2: up → ejected for 0.5 s, after 3 consecutive failures",
    "translate-2: ejected → warming",
    "translate-2: warming → up",
    "exchange-rate: closed → open for 0.6 s (consecutive failures)",
    "model reads: “Tool 'exchange-rate' was not executed",
    "exchange-rate: open → half-open (open time over)",
    "exchange-rate: half-open → closed (recovered)",
    "model reads: “Tool 'search-web' was not executed: its rate limit for this user is reached.",
)


@pytest.fixture
def on_virtual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatch.cli.demo.run_async", lambda main: clock.run(lambda: main))


@pytest.mark.costly
@pytest.mark.usefixtures("on_virtual_time")
def test_into_a_pipe_it_writes_what_happens_and_the_summary(run: Run) -> None:
    out = run.clean("demo", "--seconds", "5").out
    assert "\x1b" not in out
    assert out.startswith("Agents call tools on memory://demo-")
    assert "Shortened: ejected 0.5 s (default 30)" in out.splitlines()[0]
    assert re.search(r"^ +\d+%  +[\d,]+ calls  +[\d,]+ ok .* Scenario \d of 4: ", out, re.MULTILINE)
    at = [out.index(text) for text in EVENTS]
    assert at == sorted(at)
    for outcome in OUTCOMES:
        assert re.search(rf"^  {outcome} +[1-9]", out, re.MULTILINE), outcome
    assert "tell-jokes · unknown-tool: No tool was executed: there is no tool 'tell-jokes'. Call 'tell-joke'" in out
    assert re.search(r"alice and dave know no tool by name: [\d,]+ searches", out)
    assert re.search(r"tell-story streams its replies: \d+ chunks in \d+ replies", out)
    assert "pending at the end: 0" in out
    for command in ("dispatch broker start", "dispatch doctor", "make test"):
        assert command in out


@pytest.mark.costly
@pytest.mark.usefixtures("on_virtual_time")
def test_json_is_the_summary_and_nothing_else(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPATCH_BROKER", "pulsar://127.0.0.1:1")  # the demo ignores it
    end = run.clean("demo", "--seconds", "5", "--json")
    assert end.json["deviations"] == []
    assert end.json["broker"].startswith("memory://")
    assert set(end.json["outcomes"]) == set(OUTCOMES)
    assert end.json["tools"]["tell-story"]["chunks"] > 10
    assert end.json["scenarios"][2]["states"] == ["closed", "open", "half-open", "closed"]


COLOUR = re.compile(r"\x1b\[[0-9;]*3[1-7]m")


def test_on_a_terminal_it_is_a_live_view_and_the_cursor_comes_back() -> None:
    code, out, err = ended("demo", "--seconds", "5", terminal=True, limit=LIMIT_S, NO_COLOR="1")
    assert (code, err) == (0, "")
    assert "\x1b[?25l" in out
    assert out.rindex("\x1b[?25h") > out.rindex("\x1b[?25l")
    for text in ("p95 ms", "ejected", "warming", "half-open", "refused", "Outcomes", "Scenarios"):
        assert text in out
    assert not COLOUR.search(out)


def test_ctrl_c_ends_it_and_the_cursor_comes_back() -> None:
    with started("demo", "--seconds", "60", terminal=True) as program:
        program.out.wait_for("Scenario 1 of 4")
        program.interrupt()
        program.assert_interrupted()
        assert "Next steps" not in program.out.text()
        assert COLOUR.search(program.out.text())
        assert program.out.text().rindex("\x1b[?25h") > program.out.text().rindex("\x1b[?25l")


def test_a_broker_that_is_not_there(run: Run) -> None:
    end = run("demo", "--broker", "pulsar://127.0.0.1:1", code=4)
    assert "no Pulsar broker replies at pulsar://127.0.0.1:1" in end.err


def test_too_short_duration_is_rejected(run: Run) -> None:
    assert "--seconds" in run.refused("demo", "--seconds", "4")


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_deviation_is_shown_and_fails(run: Run, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]) -> None:
    async def otherwise(demo: Demo) -> Summary:
        return Summary(demo.broker, 1.0, demo.time_scale.note, Scoreboard(), (), pending=2, replies={})

    monkeypatch.setattr(Demo, "run", otherwise)
    end = run("demo", *more, code=1)
    deviation = "2 requests are still pending"
    if more:
        assert json.loads(end.out)["deviations"] == ["no call succeeded", deviation]
    assert f"Unexpected: {deviation}" in end.err


@pytest.mark.costly
def test_a_port_of_the_admin_endpoint_that_is_taken_is_said(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        end = run("demo", "--seconds", "5", "--admin", f"127.0.0.1:{port}")
    assert end.code != 0
    assert f"127.0.0.1:{port}" in end.err
    assert "(0: any free one)." in end.err
