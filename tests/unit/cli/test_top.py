"""``dispatch top``, ``tail``, ``calls`` and ``calls show`` on the admin endpoint of a running demo, as processes and on a
terminal."""

from __future__ import annotations

import json
import signal
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.helpers.cli_processes import WAIT_S, started
from tests.unit.cli.conftest import Run

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("top")]  # one demo for all


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The admin endpoint of a demo that runs."""
    # It lasts for 170 s. Its first scenario waits for 6 s: a share of that.
    with started("demo", "--seconds", "200", "--admin", "127.0.0.1:0") as demo:
        demo.err.wait_for("Admin: ")
        address = demo.err.text().split("Admin: ")[1].split()[0]
        demo.out.wait_for("An unknown tool")
        wait_for(lambda: read(f"{address}/api/calls?failed=1"))
        yield address


def read(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


def wait_for(condition: Any) -> None:
    limit = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.05)


def state_of(url: str, tool: str) -> str:
    return next(str(each["state"]) for each in read(f"{url}/api/circuits") if each["tool"] == tool)


def test_the_metrics_of_a_demo_that_runs_can_be_scraped(url: str) -> None:
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    with urllib.request.urlopen(urllib.request.Request(f"{url}/metrics", headers=accept), timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        text = answer.read().decode()
    assert 'dispatch_calls_total{outcome="success",' in text
    assert 'dispatch_service_requests_total{service="' in text
    assert text.endswith("# EOF\n")


def test_top_prints_the_screen_into_a_pipe_and_its_values_as_json(run: Run, url: str) -> None:
    end = run("top", url, code=0)
    for text in ("1 dispatcher, 0 services", "calls/s", "tell-joke", "joke-service", "joke-1", "alice"):
        assert text in end.out, text
    assert "\x1b" not in end.out
    assert max(map(len, end.out.splitlines())) <= 140
    values = run("top", url.removeprefix("http://"), "--json").json
    assert {"processes", "tools", "instances", "circuits", "users", "sessions", "calls", "events"} <= set(values)
    assert [row["name"] for row in values["tools"]][:2] == ["tell-joke", "calculate"]
    assert values["processes"][0]["state"] == "ready"


def test_calls_are_listed_and_one_is_a_timeline(run: Run, url: str) -> None:
    end = run("calls", url, "--failed", "--limit", "5")
    assert "AT ID OUTCOME MS TOOL USER INSTANCE TRIES RAN ERROR" in " ".join(end.out.split())
    (call,) = run("calls", url, "--failed", "--limit", "1", "--json").json["calls"]
    shown = run("calls", "show", call["id"], url).out
    assert f"call {call['id']}  {call['tool']}" in shown
    assert call["outcome"] in shown
    assert run("calls", "show", call["id"], url, "--json").json[0]["trail"] is not None
    for row in run("calls", url, "--tool", "tell-joke", "--user", "alice", "--json").json["calls"]:
        assert (row["tool"], row["user"]) == ("tell-joke", "alice")
    assert run("calls", url, "--slower-than", "3000").out == "No call matches.\n"
    assert "No process knows the call 'no-such-call'" in run.refused("calls", "show", "no-such-call", url, code=1)


def test_a_tool_that_no_process_has_is_named_with_a_near_one(run: Run, url: str) -> None:
    end = run("calls", url, "--tool", "tell-jok")
    assert (end.code, end.out) == (0, "No call matches.\n")
    assert "Warning: No process has a tool 'tell-jok': did you mean 'tell-joke'?" in end.err
    assert run("calls", url, "--tool", "tell-joke", "--slower-than", "3000").err == ""
    with started("tail", url, "--tool", "tell-jok") as program:
        program.err.wait_for("did you mean 'tell-joke'?")
        program.err.wait_for("No call matches yet. Calls are printed as they end, until Ctrl-C.")
        program.interrupt()
        program.assert_interrupted()


def test_tail_writes_each_call_once_until_ctrl_c(url: str) -> None:
    with started("tail", url, "--tool", "tell-joke", "-n", "2", "--json") as program:
        program.out.wait_for('"tell-joke"', times=6)
        program.interrupt()
        program.assert_interrupted()
    calls = [json.loads(line) for line in program.out.text().splitlines()]
    assert {call["tool"] for call in calls} == {"tell-joke"}
    ids = [call["id"] for call in calls]
    assert len(set(ids)) == len(ids) >= 6


def test_an_operator_opens_a_circuit_and_a_call_by_keys(url: str) -> None:
    with started("top", url, "--every", "0.2", terminal=True, keyboard=True) as program:
        program.out.wait_for("tell-joke")
        program.press("/print-label\r")
        program.out.wait_for("filter 'print-label'")
        program.press("o")
        program.out.wait_for("Open the circuit of 'print-label' in 1 process for 5 min")
        program.press("\r")  # no reason, no action
        program.press("wrong labels\r")
        program.out.wait_for("Done: open the circuit of 'print-label', until")
        assert state_of(url, "print-label") == "forced-open"
        actions = [event for event in read(f"{url}/api/events") if event["event"] == "action"]
        assert (actions[0]["reason"], actions[0]["action"]) == ("wrong labels", "open")
        program.press("r")
        program.out.wait_for("Reset the circuit of 'print-label'")
        program.press("again good\r")
        wait_for(lambda: state_of(url, "print-label") == "closed")
        program.press("6f\x1b[B\r")
        program.out.wait_for("began ")
        program.press("q")
        assert program.wait() == 0
    assert program.mode_after == program.mode_before
    assert "Traceback" not in program.out.text() + program.err.text()


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_the_terminal_is_restored_however_it_ends(url: str, end: signal.Signals) -> None:
    with started("top", url, "--every", "0.2", terminal=True, keyboard=True) as program:
        program.out.wait_for("tell-joke")
        program.press("/te")  # in the middle of typing
        program.out.wait_for("Filter: te")
        program.process.send_signal(end)
        assert program.wait() == (130 if end is signal.SIGINT else -signal.SIGTERM)
    out = program.out.text()
    assert program.mode_after == program.mode_before
    for on, off in (("\x1b[?1049h", "\x1b[?1049l"), ("\x1b[?25l", "\x1b[?25h")):
        assert 0 <= out.rindex(on) < out.rindex(off)
    assert "Traceback" not in out + program.err.text()


@pytest.mark.process
def test_unreachable_processes_are_named(run: Run) -> None:
    assert "http://127.0.0.1:1 does not answer: Connection refused" in run("top", "127.0.0.1:1", code=1).out
    for command in (("calls",), ("tail",), ("calls", "show", "1")):
        err = run.refused(*command, "127.0.0.1:1", code=1)
        assert "http://127.0.0.1:1 does not answer" in err
        assert "start one with connect(admin=…) or --admin HOST:PORT" in err
    assert "is no address of an admin endpoint" in run.refused("top", "ftp://x")


def test_help_teaches(run: Run) -> None:
    for command in ("top", "tail", "calls"):
        assert f"dispatch {command} 9464" in run(command, "--help", code=0).out
