"""``dispatch check``: mistakes.
``dispatch check`` and ``dispatch call`` with grants.
``dispatch check``: the plan of each tool.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dispatch.cli.check import GUARDS
from dispatch.policy import Policy
from tests.unit.cli.conftest import Run, write_catalog


def break_it(folder: Path) -> None:
    """Two mistakes in two files, and one thing that is only odd."""
    service = folder / "tool-service" / "joke-service.json"
    content = json.loads(service.read_text())
    service.write_text(json.dumps(content | {"request-queue": "joke", "versoin": "1.0.0"}))
    (folder / "tool" / "broken.json").write_text("{")


def test_without_mistakes_it_says_what_is_there(run: Run, catalog_folder: Path) -> None:
    end = run.clean("check", str(catalog_folder), "--plan", "none")
    assert end.out == f"{catalog_folder}: 1 service, 1 tool, no mistakes.\n"


def test_every_mistake_with_file_key_and_fix(run: Run, catalog_folder: Path) -> None:
    break_it(catalog_folder)
    end = run("check", str(catalog_folder), code=1)
    assert "joke-service.json: request-queue: 'joke' is no whole topic name\n  fix: write" in end.out
    assert "error: " in end.out
    assert "broken.json" in end.out
    assert end.out.splitlines()[-1].endswith("The catalogue cannot be loaded until the errors are fixed.")


def test_json_has_them_all(run: Run, catalog_folder: Path) -> None:
    break_it(catalog_folder)
    end = run("check", str(catalog_folder), "--json", code=1)
    assert end.json["ok"] is False
    assert end.json["tools"] is None
    assert end.json["plan"] is None
    errors = [problem for problem in end.json["problems"] if problem["severity"] == "error"]
    assert {Path(problem["file"]).name for problem in errors} == {"joke-service.json", "broken.json"}
    assert all(set(problem) == {"source", "file", "key", "problem", "fix", "severity"} for problem in errors)


@pytest.mark.parametrize(("what", "mistakes"), [(["mcp.json"], 1), (["--relay", "relay.json"], 3)])
def test_json_has_the_mistakes_of_the_file_that_names_what_is_read(
    run: Run, tmp_path: Path, what: list[str], mistakes: int
) -> None:
    (tmp_path / "mcp.json").write_text('{"mcpServers": 7}')
    (tmp_path / "relay.json").write_text('{"servces": 3, "drain": "x"}')
    end = run("check", *what, "--json")
    assert (end.code, end.err, end.json["ok"], end.json["tools"]) == (1, "", False, None)
    assert len(end.json["problems"]) == run.clean("check", *what, code=1).out.count("\n  fix: ") == mistakes
    assert {problem["file"] for problem in end.json["problems"]} == {what[-1]}


@pytest.mark.process
def test_mistakes_in_a_file_of_mcp_servers_have_key_and_fix(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text('{"mcpServers": {"one": {"comand": "x"}, "two": {"command": "/nowhere"}}}')
    end = run("check", "mcp.json", code=1)
    text = "error: mcp.json: one: command: neither 'command' nor 'url' is given\n  fix: rename 'comand' to 'command'"
    assert text in end.out
    _, _, two = end.out.partition("error: mcp-two: ")
    assert two.partition("\nmcp-two: ")[0].count("fix") == 1


def test_a_file_of_a_folder_is_no_catalogue(run: Run, catalog_folder: Path) -> None:
    end = run.clean("check", str(catalog_folder / "tool" / "tell-joke.json"), code=1)
    assert "a descriptor of dispatch, not a configuration of MCP servers\n  fix: name the folder" in end.out


def test_warnings_are_shown_and_are_no_failure(run: Run, catalog_folder: Path) -> None:
    (catalog_folder / "tool" / "tell-joke.json").unlink()
    (catalog_folder / "tool").rmdir()
    end = run("check", str(catalog_folder), code=0)
    assert "warning: " in end.out
    assert "1 warning." in end.out


def test_the_folder_may_come_from_where_the_catalogue_does(run: Run, tmp_path: Path) -> None:
    assert run("check").code == 2
    write_catalog(tmp_path / "tools")
    assert run("check").out.startswith("tools: 1 service,")


def test_a_folder_that_is_not_there(run: Run) -> None:
    assert "nowhere: there is no such folder" in run("check", "nowhere", code=1).out


def test_several_sources_with_what_is_shadowed(run: Run, tmp_path: Path) -> None:
    one, two = write_catalog(tmp_path / "one"), write_catalog(tmp_path / "two")
    end = run.clean("check", str(one), str(two), "--plan", "none")
    assert f"{one}: 1 service, 1 tool, no mistakes.\n" in end.out
    assert "warning: " in end.out
    assert f"'tell-joke' is shadowed: the earlier source folder:{one} has it" in end.out
    assert f"{two}: 0 services, 0 tools, 2 warnings.\n" in end.out
    assert end.out.endswith("all sources: 1 service, 1 tool, 2 warnings.\n")
    value = run("check", "--catalog", str(one), "--catalog", str(two), "--json").json
    found = [(source["source"], source["ok"], source["tools"]) for source in value["sources"]]
    assert found == [(f"folder:{one}", True, 1), (f"folder:{two}", True, 0)]
    assert {problem["source"] for problem in value["problems"]} == {f"folder:{two}"}


def test_a_mistake_in_one_of_several_sources(run: Run, tmp_path: Path) -> None:
    one, two = write_catalog(tmp_path / "one"), write_catalog(tmp_path / "two", "other")
    break_it(two)
    value = run("check", str(one), str(two), "--json").json
    assert [source["ok"] for source in value["sources"]] == [True, False]
    assert (value["ok"], value["plan"]) == (False, None)
    assert f"{one}: 1 service, 1 tool, no mistakes.\n" in run("check", str(one), str(two), code=1).out


def test_a_tool_may_use_the_service_of_another_source(run: Run, tmp_path: Path) -> None:
    one, two = write_catalog(tmp_path / "one"), write_catalog(tmp_path / "two", name="sing")
    (two / "tool-service" / "joke-service.json").unlink()
    assert run("check", str(one), str(two), "--plan", "none").code == 0
    assert run("check", str(two), str(one), "--plan", "none").code == 0


@pytest.mark.parametrize(
    ("config", "servers", "expected"),
    [
        ({"broker": "http://x"}, "{}", "relay.json: broker: 'http://x' is not a broker address (http is for Pulsar's"),
        ({"broker": "memory://x"}, "{}", "relay.json: broker: 'memory://x' is not a broker address"),
        ({}, "[", "mcp.json: not JSON:"),
        ({}, '{"mcpServers": 7}', "mcp.json: mcpServers: the servers are a number, not an object"),
        ({}, '{"mcpServers": {"it": {"comand": "x"}}}', "mcp.json: it: command: neither 'command' nor 'url' is given"),
        ([], "{}", "relay.json: the document is a list, not an object\n  fix: write {"),
    ],
)
def test_all_that_a_relay_reads_is_checked(run: Run, tmp_path: Path, config: Any, servers: str, expected: str) -> None:
    write_catalog(tmp_path / "tools")
    (tmp_path / "mcp.json").write_text(servers)
    given = {"catalog": ["tools"], "mcp-servers": "mcp.json", **config} if isinstance(config, dict) else config
    (tmp_path / "relay.json").write_text(json.dumps(given))
    end = run("check", "--relay", "relay.json", "--plan", "none")
    assert (end.code, expected in end.out + end.err) == (1, True), end


def test_a_relay_of_no_services_is_a_warning(run: Run, tmp_path: Path) -> None:
    write_catalog(tmp_path / "tools")
    relay = {"catalog": ["tools"]}
    for config, warnings in ((relay, 1), (relay | {"mcp-tool": {}}, 0)):
        (tmp_path / "relay.json").write_text(json.dumps(config))
        end = run("check", "--relay", "relay.json", "--plan", "none")
        assert (end.code, end.out.count("no service is relayed: none has 'instances'")) == (0, warnings)


def grants_file(raw: Any) -> str:
    Path("grants.json").write_text(raw if isinstance(raw, str) else json.dumps(raw))
    return "grants.json"


@pytest.fixture
def tools(tmp_path: Path) -> str:
    return str(write_catalog(tmp_path / "tools", permissions=["tools:jokes", "tools:fun"]))


def test_tools_with_permissions_are_reported_without_grants(run: Run, tools: str) -> None:
    end = run("check", tools, "--plan", "none")
    assert end.code == 0, "grants may be given in code"
    assert end.out.splitlines()[:2] == [
        "warning: catalogue: permissions: every call of tell-joke is refused: requires permissions without grants",
        "  fix: give --grants FILE, and connect(grants=…) in the agent",
    ]


def test_tools_without_permissions_need_no_grants(run: Run, tmp_path: Path) -> None:
    assert "no mistakes" in run("check", str(write_catalog(tmp_path / "tools"))).out


def test_a_permission_that_no_grant_matches_is_reported(run: Run, tools: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = grants_file({"users": {"alice": ["tools:jokes", "!tools:fun"]}, "groups": {}, "everyone": []})
    found = run("check", tools, "--grants", file, "--json").json
    assert found["ok"]
    seen = [(each["file"], each["severity"], each["problem"]) for each in found["problems"]]
    assert seen == [(file, "warning", "no grant matches the permission 'tools:fun', which tell-joke requires")]
    grants_file({"users": {"alice": ["tools:*"]}})
    monkeypatch.setenv("DISPATCH_GRANTS", file)
    assert run("check", tools, "--json").json["problems"] == []


def test_an_invalid_file_is_an_error_with_key_and_fix(run: Run, tools: str) -> None:
    end = run("check", tools, "--grants", grants_file({"users": {"alice": "tools:jokes"}}), "--plan", "none", code=1)
    assert "error: grants.json: users.alice: a text in place of a list" in end.out
    assert "fix: write a list such as" in end.out
    assert run("check", tools, "--grants", "missing.json").code == 1


@pytest.mark.parametrize("raw", ["{", {"user": {}}])
def test_a_call_does_not_begin_with_invalid_grants(run: Run, tools: str, raw: Any) -> None:
    options = ("--catalog", tools, "--grants", grants_file(raw), "--broker", "pulsar://localhost:1")
    assert "The grants of 'grants.json' cannot be loaded: 1 mistake." in run.refused("call", "tell-joke", *options)


REQUESTS = (
    "round-robin over known instances, each by its name; if none is known after 1 s, on one topic shared by replicas: "
    "the broker distributes the requests"
)


def policy_file(**keys: Any) -> str:
    Path("mine.json").write_text(json.dumps({key.replace("_", "-"): value for key, value in keys.items()}))
    return "mine.json"


@pytest.fixture
def policy_tools(tmp_path: Path) -> str:
    """A tool that may run once, with a policy of its own and one of its service."""
    folder = write_catalog(tmp_path / "tools", policy={"timeout": 5, "rate-limit": "10/s"})
    service = folder / "tool-service" / "joke-service.json"
    service.write_text(json.dumps(json.loads(service.read_text()) | {"policy": {"retry": 2, "timeout": 9}}))
    return str(folder)


def test_by_default_a_short_block_a_tool_and_the_defaults_once(run: Run, policy_tools: str) -> None:
    end = run.clean(
        "check", policy_tools, "--policy", policy_file(hedging="p95", breaker={"open-duration": 3}, timeout=20)
    )
    assert end.out.splitlines() == [
        f"{policy_tools}: 1 service, 1 tool, no mistakes.",
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
    policy = {"timeout": 30000, "rate-limit": {"rate": "10/s", "max-wait": 5000}}
    policy_tools = str(write_catalog(tmp_path / "tools", policy=policy))
    mine = policy_file(breaker={"max-open-duration": 7200}, stream_timeout=3600)
    end = run("check", policy_tools, "--policy", mine, "--json", code=0)
    found = {each["key"]: (each["severity"], each["problem"], each["fix"]) for each in end.json["problems"]}
    meant = "times are in seconds: write {} if milliseconds are meant"
    assert found == {
        "policy.timeout": ("warning", "30000 s are 8.33 hours", meant.format("30")),
        "policy.rate-limit.max-wait": ("warning", "5000 s are 1.39 hours", meant.format("5")),
        "breaker.max-open-duration": ("warning", "7200 s are 2 hours", meant.format("7.2")),
    }


@pytest.mark.parametrize("how", [("--plan", "full"), ("--tool", "tell-joke")])
def test_in_full_every_value_has_its_source(run: Run, policy_tools: str, how: tuple[str, str]) -> None:
    end = run("check", policy_tools, *how)
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


def test_what_a_tool_promises_is_said_in_words(run: Run, policy_tools: str) -> None:
    mine = policy_file(slo={"availability": 0.995, "latency": 2})
    promise = "99.5 % of calls are good; 95 % of successes within 2 s, measured at 2.56 s"
    assert f"\n  promise       {promise}\n" in run("check", policy_tools, "--policy", mine).out
    assert f"\n  promise   {promise}\n" in run("check", policy_tools, "--policy", mine, "--plan", "full").out
    assert run("check", policy_tools, "--policy", mine, "--json").json["plan"][0]["promise"] == promise
    assert "  promise  " not in run("check", policy_tools).out
    assert run("check", policy_tools, "--json").json["plan"][0]["promise"] is None


def test_one_tool_alone(run: Run, policy_tools: str) -> None:
    other = json.loads((Path(policy_tools) / "tool" / "tell-joke.json").read_text()) | {"name": "sing"}
    (Path(policy_tools) / "tool" / "sing.json").write_text(json.dumps(other))
    assert "sing (joke-service)" in run("check", policy_tools).out
    assert "sing (" not in run("check", policy_tools, "--tool", "tell-joke").out
    assert [plan["tool"] for plan in run("check", policy_tools, "--tool", "sing", "--json").json["plan"]] == ["sing"]


def test_a_tool_that_is_not_there_is_told_with_the_near_one(run: Run, policy_tools: str) -> None:
    assert "no tool 'tel-joke'. Did you mean 'tell-joke'?" in run.refused("check", policy_tools, "--tool", "tel-joke")


def test_json_has_every_value_of_every_tool(run: Run, policy_tools: str) -> None:
    (plan,) = run("check", policy_tools, "--policy", policy_file(hedging="p95"), "--json").json["plan"]
    found = {key: plan[key] for key in ("tool", "service", "requests")}
    assert found == {"tool": "tell-joke", "service": "joke-service", "requests": REQUESTS}
    assert plan["guards"] == ["retry", "breaker", "bulkhead", "rate-limit", "balancing", "outlier-detection"]
    rows = {row.pop("key"): row for row in plan["rows"]}
    assert rows["timeout"] == {"guard": "deadline", "value": 5, "source": "tool", "without_effect": None}
    assert rows["hedging"]["without_effect"] == "off: neither read-only nor idempotent"
    assert {key.partition(".")[0] for key in rows} == set(Policy.__struct_encode_fields__)
    assert run("check", policy_tools, "--plan", "none", "--json").json["plan"] is None


def test_the_policy_may_come_from_the_environment(run: Run, policy_tools: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPATCH_POLICY", policy_file(max_response_bytes=1000))
    assert "from user     max-response-bytes 1000" in run("check", policy_tools).out


def test_mistakes_in_the_policy_are_told_beside_the_others(run: Run, policy_tools: str) -> None:
    end = run("check", policy_tools, "--policy", policy_file(timeout=0, hedging="p20"), "--json", code=1)
    assert end.json["ok"] is False
    assert end.json["plan"] is None
    assert end.json["tools"] == 1
    found = {(problem["file"], problem["key"]) for problem in end.json["problems"]}
    assert found == {("mine.json", "timeout"), ("mine.json", "hedging")}
    text = run("check", policy_tools, "--policy", "mine.json", code=1)
    assert "error: mine.json: timeout: 0 is out of range\n  fix: give seconds above 0" in text.out
    assert text.out.endswith("1 service, 1 tool, 2 errors.\n")


def test_a_policy_that_goes_with_one_tool_and_not_with_another(run: Run, policy_tools: str) -> None:
    """Each is right by itself; together they are not."""
    for name in ("sing", "shout"):
        other = json.loads((Path(policy_tools) / "tool" / "tell-joke.json").read_text())
        other |= {"name": name, "policy": {"retry": {"max-backoff": 0.5}}}
        (Path(policy_tools) / "tool" / f"{name}.json").write_text(json.dumps(other))
    end = run("check", policy_tools, "--policy", policy_file(retry={"initial-backoff": 1, "max-backoff": 3}), code=1)
    assert (
        "error: mine.json: retry.max-backoff: 0.5 is less than 'initial-backoff' (1), together with the policy of shout, "
        "sing\n"
        "  fix: give the longest wait, for instance 2\n"
    ) in end.out
    assert "tell-joke (joke-service)" in end.out


def test_an_empty_catalogue_has_no_plan(run: Run, tmp_path: Path) -> None:
    (tmp_path / "tools" / "tool").mkdir(parents=True)
    (tmp_path / "tools" / "tool-service").mkdir()
    assert run("check", "tools", code=0).out.endswith("0 services, 0 tools, 1 warning.\n")
