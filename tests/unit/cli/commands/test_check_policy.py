"""``dispatch check``: the plan of each tool."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dispatch.cli.check import GUARDS
from dispatch.policy import Policy
from tests.unit.cli.conftest import Run, write_catalog

REQUESTS = (
    "round-robin over known instances, each by its name; if none is known after 1 s, on one topic shared by replicas: "
    "the broker distributes the requests"
)


def policy_file(**keys: Any) -> str:
    Path("mine.json").write_text(json.dumps({key.replace("_", "-"): value for key, value in keys.items()}))
    return "mine.json"


@pytest.fixture
def tools(tmp_path: Path) -> str:
    """A tool that may run once, with a policy of its own and one of its service."""
    folder = write_catalog(tmp_path / "tools", policy={"timeout": 5, "rate-limit": "10/s"})
    service = folder / "tool-service" / "joke-service.json"
    service.write_text(json.dumps(json.loads(service.read_text()) | {"policy": {"retry": 2, "timeout": 9}}))
    return str(folder)


def test_by_default_a_short_block_a_tool_and_the_defaults_once(run: Run, tools: str) -> None:
    end = run("check", tools, "--policy", policy_file(hedging="p95", breaker={"open-duration": 3}, timeout=20))
    assert (end.code, end.err) == (0, "")
    assert end.out.splitlines() == [
        f"{tools}: 1 service, 1 tool, no mistakes.",
        "",
        "tell-joke (joke-service)",
        "  guards        retry, breaker, bulkhead, rate-limit, balancing, outlier-detection",
        "  retries       up to 2 attempts, but a call without an idempotency key is repeated only where the tool was "
        "certainly not executed, because the tool is neither read-only nor idempotent",
        f"  requests      {REQUESTS}",
        "  from user     breaker.open-duration 3",
        "  from service  retry.max-attempts 2",
        "  from tool     timeout 5, rate-limit.rate 10/s",
        "  no effect     hedging p95 (user): off: neither read-only nor idempotent",
        "",
        "All else is default: timeout 30 s, 3 attempts, breaker, bulkhead 64, balancing round-robin; off: rate-limit, "
        "user-rate-limit, shared-user-rate-limit, quota, hedging, slo, single-flight. Times are in seconds, sizes in "
        "bytes, shares from 0 to 1.",
        "Every value and its source: --tool NAME, or --plan full.",
    ]


def test_durations_that_may_be_milliseconds_are_warnings(run: Run, tmp_path: Path) -> None:
    tools = str(
        write_catalog(tmp_path / "tools", policy={"timeout": 30000, "rate-limit": {"rate": "10/s", "max-wait": 5000}})
    )
    end = run(
        "check", tools, "--policy", policy_file(breaker={"max-open-duration": 7200}, stream_timeout=3600), "--json"
    )
    assert end.code == 0
    found = {each["key"]: (each["severity"], each["problem"], each["fix"]) for each in end.json["problems"]}
    meant = "times are in seconds: write {} if milliseconds are meant"
    assert found == {
        "policy.timeout": ("warning", "30000 s are 8.33 hours", meant.format("30")),
        "policy.rate-limit.max-wait": ("warning", "5000 s are 1.39 hours", meant.format("5")),
        "breaker.max-open-duration": ("warning", "7200 s are 2 hours", meant.format("7.2")),
    }


@pytest.mark.parametrize("how", [("--plan", "full"), ("--tool", "tell-joke")])
def test_in_full_every_value_has_its_source(run: Run, tools: str, how: tuple[str, str]) -> None:
    end = run("check", tools, *how)
    lines = [line.split() for line in end.out.splitlines()]
    for words in (
        ["deadline", "timeout", "5", "tool"],
        ["stream-timeout", "300", "default"],
        ["retry", "max-attempts", "2", "service"],
        ["hedging", "off", "default"],
        ["rate-limit", "rate", "10/s", "tool"],
        ["burst", "10", "default"],
        ["priorities", '["interactive",', '"batch"]', "default"],
        ["single-flight", "false", "default"],
    ):
        assert words in lines
    assert {words[0] for words in lines if words} >= set(GUARDS)
    assert end.out.endswith("Times are in seconds, sizes in bytes, shares from 0 to 1.\n")


def test_what_a_tool_promises_is_said_in_words(run: Run, tools: str) -> None:
    mine = policy_file(slo={"availability": 0.995, "latency": 2})
    promise = "99.5 % of calls are good; 95 % of successes within 2 s, measured at 2.56 s"
    assert f"\n  promise       {promise}\n" in run("check", tools, "--policy", mine).out
    assert f"\n  promise   {promise}\n" in run("check", tools, "--policy", mine, "--plan", "full").out
    assert run("check", tools, "--policy", mine, "--json").json["plan"][0]["promise"] == promise
    assert "  promise  " not in run("check", tools).out
    assert run("check", tools, "--json").json["plan"][0]["promise"] is None


def test_one_tool_alone(run: Run, tools: str) -> None:
    other = json.loads((Path(tools) / "tool" / "tell-joke.json").read_text()) | {"name": "sing"}
    (Path(tools) / "tool" / "sing.json").write_text(json.dumps(other))
    assert "sing (joke-service)" in run("check", tools).out
    assert "sing (" not in run("check", tools, "--tool", "tell-joke").out
    assert [plan["tool"] for plan in run("check", tools, "--tool", "sing", "--json").json["plan"]] == ["sing"]


def test_a_tool_that_is_not_there_is_told_with_the_near_one(run: Run, tools: str) -> None:
    end = run("check", tools, "--tool", "tel-joke")
    assert end.code == 2
    assert "no tool 'tel-joke'. Did you mean 'tell-joke'?" in end.err


def test_json_has_every_value_of_every_tool(run: Run, tools: str) -> None:
    (plan,) = run("check", tools, "--policy", policy_file(hedging="p95"), "--json").json["plan"]
    assert {key: plan[key] for key in ("tool", "service", "requests")} == {
        "tool": "tell-joke",
        "service": "joke-service",
        "requests": REQUESTS,
    }
    assert plan["guards"] == ["retry", "breaker", "bulkhead", "rate-limit", "balancing", "outlier-detection"]
    rows = {row.pop("key"): row for row in plan["rows"]}
    assert rows["timeout"] == {"guard": "deadline", "value": 5, "source": "tool", "without_effect": None}
    assert rows["hedging"]["without_effect"] == "off: neither read-only nor idempotent"
    assert {key.partition(".")[0] for key in rows} == set(Policy.__struct_encode_fields__)
    assert run("check", tools, "--plan", "none", "--json").json["plan"] is None


def test_the_policy_may_come_from_the_environment(run: Run, tools: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPATCH_POLICY", policy_file(max_response_bytes=1000))
    assert "from user     max-response-bytes 1000" in run("check", tools).out


def test_mistakes_in_the_policy_are_told_beside_the_others(run: Run, tools: str) -> None:
    end = run("check", tools, "--policy", policy_file(timeout=0, hedging="p20"), "--json")
    assert end.code == 1
    assert end.json["ok"] is False
    assert end.json["plan"] is None
    assert end.json["tools"] == 1
    assert {(problem["file"], problem["key"]) for problem in end.json["problems"]} == {
        ("mine.json", "timeout"),
        ("mine.json", "hedging"),
    }
    text = run("check", tools, "--policy", "mine.json")
    assert text.code == 1
    assert "error: mine.json: timeout: 0 is out of range\n  fix: give seconds above 0" in text.out
    assert text.out.endswith("1 service, 1 tool, 2 errors.\n")


def test_a_policy_that_goes_with_one_tool_and_not_with_another(run: Run, tools: str) -> None:
    """Each is right by itself; together they are not."""
    for name in ("sing", "shout"):
        other = json.loads((Path(tools) / "tool" / "tell-joke.json").read_text())
        other |= {"name": name, "policy": {"retry": {"max-backoff": 0.5}}}
        (Path(tools) / "tool" / f"{name}.json").write_text(json.dumps(other))
    end = run("check", tools, "--policy", policy_file(retry={"initial-backoff": 1, "max-backoff": 3}))
    assert end.code == 1
    assert (
        "error: mine.json: retry.max-backoff: 0.5 is less than 'initial-backoff' (1), together with the policy of shout, "
        "sing\n"
        "  fix: give the longest wait, for instance 2\n"
    ) in end.out
    assert "tell-joke (joke-service)" in end.out


def test_an_empty_catalogue_has_no_plan(run: Run, tmp_path: Path) -> None:
    (tmp_path / "tools" / "tool").mkdir(parents=True)
    (tmp_path / "tools" / "tool-service").mkdir()
    end = run("check", "tools")
    assert end.code == 0
    assert end.out.endswith("0 services, 0 tools, 1 warning.\n")
