"""The configuration of a relay: every mistake at once, the example with every option, and the plan of ``dispatch check``."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dispatch import Catalog
from dispatch.cli import main
from dispatch.cli.base import Settings
from dispatch.cli.relay import load_config
from dispatch.relay import Relay, RelayConfig, RelayError, describe_mcp_tool, plan_services

pytestmark = pytest.mark.usefixtures("own_logging")
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
JOKE = "non-persistent://tg/request/joke"
ANSWERS = "non-persistent://tg/response/joke"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The example, without TrustGraph's configuration."""
    shutil.copytree(EXAMPLES / "relay", tmp_path / "relay")
    raw = json.loads((EXAMPLES / "relay.json").read_text())
    del raw["workspace"]
    write(tmp_path / "relay.json", raw)
    return tmp_path


def write(path: Path, raw: object) -> Path:
    path.write_text(json.dumps(raw))
    return path


def change(path: Path, **keys: Any) -> None:
    write(path, json.loads(path.read_text()) | keys)


def test_the_example_has_every_option() -> None:
    raw = json.loads((EXAMPLES / "relay.json").read_text())
    assert set(raw) == set(RelayConfig.__struct_encode_fields__)
    config = RelayConfig.load(EXAMPLES / "relay.json")
    assert config.catalog == (str(EXAMPLES / "relay" / "tools"),)
    assert config.policy == str(EXAMPLES / "relay" / "policy.json")
    assert [source.id for source in config.list_sources()] == [f"folder:{config.catalog[0]}", "trustgraph", "mcp-time"]
    defaults = RelayConfig()
    shown = {key: getattr(config, key) for key in ("default_user", "concurrency", "max_queue", "max_payload_bytes")}
    assert shown == {key: getattr(defaults, key) for key in shown}
    assert config.drain_timeout == defaults.drain_timeout


def test_every_mistake_is_reported_at_once(folder: Path) -> None:
    change(folder / "relay" / "policy.json", timeot=1)
    change(folder / "relay" / "grants.json", users=[])
    change(folder / "relay" / "tools" / "tool" / "tell-joke.json", service="no-service", name=7)
    with pytest.raises(RelayError) as caught:
        RelayConfig.load(folder / "relay.json")
    files = {Path(problem.file).name for problem in caught.value.problems}
    assert files == {"policy.json", "grants.json", "tell-joke.json"}
    assert str(caught.value).startswith("The relay cannot be configured: ")


@pytest.mark.wall_clock  # a folder is watched
async def test_a_warning_of_a_folder_is_logged_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    change(folder / "relay" / "tools" / "tool-service" / "joke-service.json", polcy={})
    (folder / "relay" / "tools" / "tool").rename(folder / "relay" / "tools" / "tools")
    write(folder / "relay.json", {"broker": "memory://relay", "catalog": ["relay/tools"]})
    async with Relay(RelayConfig.load(folder / "relay.json")) as relay:
        assert [service.id for service in relay.services] == ["joke-service"]
    assert caplog.text.count("there is no tool/ in this folder") == 1
    assert caplog.text.count("polcy: ") == 1


@pytest.mark.parametrize(
    ("raw", "key", "problem"),
    [
        ({"catalog": ["relay/tools"], "brokr": "x"}, "brokr", "an unknown key"),
        ({"catalog": "tools"}, "catalog", "'catalog' is a text, not a list"),
        ({"catalog": ["relay/tools"], "concurrency": 0}, "concurrency", "'concurrency' is a number, not a whole"),
        ({"catalog": ["relay/tools"], "drain-timeout": -1}, "drain-timeout", "not a number of seconds, 0 or more"),
        ({"catalog": ["relay/tools"], "mcp-tool": {"processr": "x"}}, "mcp-tool.processr", "an unknown key"),
        ({"catalog": ["relay/tools"], "fleet": "No name"}, "fleet", "No name"),
        ({"catalog": ["relay/tools"], "services": ["no"]}, "no", "there is no such service"),
        ({"catalog": ["relay/tools"], "services": ["jok-service"]}, "jok-service", "write 'joke-service', add"),
        ({}, "catalog", "there are no tools"),
        ([], "", "is a list, not an object"),
    ],
)
def test_a_mistake_has_its_key(folder: Path, raw: object, key: str, problem: str) -> None:
    with pytest.raises(RelayError) as caught:
        RelayConfig.load(write(folder / "relay.json", raw))
    (found,) = caught.value.problems
    assert found.key == key
    assert problem in str(found)


def test_every_mistake_is_listed(folder: Path) -> None:
    """Those of the file's own keys, and those of what its other keys name; a key that is missing for a mistake is none."""
    (folder / "policy.json").write_text('{"retry": 0}')

    def keys(**raw: object) -> list[str]:
        with pytest.raises(RelayError) as caught:
            RelayConfig.load(write(folder / "relay.json", {"services": ["no"], **raw}))
        return sorted(each.key for each in caught.value.problems)

    odd = {"concurrency": 0, "drain": 3, "x.y": 1, "policy": "policy.json"}
    found = keys(catalog=["relay/tools"], **odd)
    assert found == ["['x.y']", "concurrency", "drain", "no", "retry.max-attempts"]
    assert keys(catalogue=["relay/tools"]) == ["catalogue"]
    assert keys(catalog=["relay/tools", 7], **{"mcp-tool": {"workspce": "x"}}) == ["catalog[1]", "mcp-tool.workspce"]


def test_a_file_that_is_missing_or_no_json_is_a_mistake(folder: Path) -> None:
    (folder / "relay.json").write_text("{")
    for name in ("relay.json", "no.json"):
        with pytest.raises(RelayError, match="1 mistake"):
            RelayConfig.load(folder / name)


def catalog(*instances: Mapping[str, Any], tools: int = 1) -> Catalog:
    service = {"id": "joke", "request-queue": JOKE, "response-queue": ANSWERS, "instances": instances}
    tool = {"type": "tool-service", "description": "Tells.", "service": "joke"}
    return Catalog.of([service], [{**tool, "name": f"tell-{number}"} for number in range(tools)])


ONE = {"id": "one", "request-queue": f"{JOKE}-1", "response-queue": f"{ANSWERS}-1"}


def test_a_service_is_planned_with_its_tools() -> None:
    (service,), problems = plan_services(catalog(ONE))
    assert (service.request_queue, service.instances, problems) == (JOKE, {"one": f"{JOKE}-1"}, [])
    assert list(service.tools.values()) == ["tell-0"]
    (service,), _ = plan_services(catalog(ONE, tools=2))
    assert service.tools == {}, "two tools have the same config"


def test_a_service_without_instances_is_not_relayed_and_refused_if_it_is_named() -> None:
    assert plan_services(catalog()) == ([], [])
    planned, (problem,) = plan_services(catalog(), ["joke"])
    assert planned == []
    assert problem.problem == f"its requests would go to {JOKE}, on which the relay listens"


def test_an_instance_on_a_public_topic_is_refused() -> None:
    planned, (problem,) = plan_services(catalog(ONE, {"id": "two", "request-queue": JOKE}))
    assert planned == []
    assert "on which the relay listens" in problem.problem


@pytest.mark.parametrize("wanted", [[], ["joke", "pun"]], ids=str)
@pytest.mark.parametrize(
    ("topic", "instance", "problem"),
    [
        (JOKE, f"{JOKE}-2", f"the services 'joke' and 'pun' have the same public topic {JOKE}, "),
        (f"{JOKE}-pun", JOKE, f"requests of the service 'pun' would go to {JOKE}, on which the relay listens for "),
    ],
    ids=["one public topic", "a public topic as an instance"],
)
def test_two_services_in_each_others_way_are_refused(
    wanted: list[str], topic: str, instance: str, problem: str
) -> None:
    joke = {"id": "joke", "request-queue": JOKE, "response-queue": ANSWERS, "instances": [ONE]}
    own = {"id": "one", "request-queue": instance, "response-queue": f"{ANSWERS}-2"}
    pun = {"id": "pun", "request-queue": topic, "response-queue": ANSWERS, "instances": [own]}
    far = {"id": "far", "request-queue": f"{JOKE}-far", "response-queue": ANSWERS, "instances": [ONE | {"id": "far"}]}
    planned, (found,) = plan_services(Catalog.of([joke, pun, far], []), wanted and [*wanted, "far"])
    assert [service.id for service in planned] == ["far"]
    assert (found.file, found.severity) == ("tool-service/pun", "error")
    assert found.problem.startswith(problem)


def test_an_instance_that_replies_on_the_public_topic_is_a_warning() -> None:
    planned, (problem,) = plan_services(catalog({"id": "one", "request-queue": f"{JOKE}-1"}))
    assert len(planned) == 1
    assert problem.severity == "warning"


def test_a_tool_is_described_as_an_mcp_tool() -> None:
    tool = RelayConfig.load(EXAMPLES / "relay.json")
    live = Catalog.of(
        [json.loads((EXAMPLES / "relay/tools/tool-service/joke-service.json").read_text())],
        [json.loads((EXAMPLES / "relay/tools/tool/tell-joke.json").read_text())],
    )
    assert tool.services == ("joke-service",)
    assert describe_mcp_tool(live.tools["tell-joke"]) == {
        "type": "mcp-tool",
        "name": "tell-joke",
        "description": "Tell a joke on a given topic",
        "mcp-tool": "tell-joke",
        "arguments": [{"name": "topic", "type": "string", "description": "What the joke is about"}],
        "group": ["default"],
        "applicable-states": ["*"],
    }


def test_check_shows_the_plan(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--relay", str(folder / "relay.json"), "--plan", "none"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "",
        "joke-service",
        f"  listens   {JOKE}",
        "            non-persistent: requests that a relay holds when it dies are lost",
        f"  replies   {ANSWERS}",
        f"  forwards  {JOKE}-1 (joke-1)",
        f"  forwards  {JOKE}-2 (joke-2)",
        "  tools     tell-joke; else service:joke-service",
        "",
        "mcp-tool",
        "  serves its flows in all workspaces with the tools of the catalogue",
    ]
    assert main(["check", "--relay", str(folder / "relay.json"), "--json"]) == 0
    (relayed,) = json.loads(capsys.readouterr().out)["relay"]
    assert (relayed["id"], relayed["tools"]) == ("joke-service", ["tell-joke"])


def test_check_shows_the_plan_of_the_sources_that_can_be_read(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a relay does, which follows a source that is out of reach at its start."""
    change(folder / "relay.json", workspace="default", services=["joke-service", "from-trustgraph"])
    assert main(["check", "--relay", str(folder / "relay.json"), "--broker", "pulsar://127.0.0.1:1"]) == 1
    shown = capsys.readouterr().out
    assert "no Pulsar broker replies at pulsar://127.0.0.1:1" in shown
    assert f"forwards  {JOKE}-1 (joke-1)" in shown
    assert "there is no such service" not in shown


def test_a_folder_of_relayed_services_needs_no_tools(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    service = {
        "id": "joke",
        "request-queue": JOKE,
        "response-queue": ANSWERS,
        "instances": [{"id": "joke-1", "request-queue": f"{JOKE}-1", "response-queue": f"{ANSWERS}-1"}],
    }
    (tmp_path / "tools" / "tool-service").mkdir(parents=True)
    write(tmp_path / "tools" / "tool-service" / "joke.json", service)
    config = write(tmp_path / "relay.json", {"catalog": ["tools"]})
    assert main(["check", "--relay", str(config)]) == 0
    assert "there is no tool/" not in capsys.readouterr().out
    assert "there is no tool/" not in caplog.text
    del service["instances"]
    write(tmp_path / "tools" / "tool-service" / "joke.json", service)
    assert main(["check", "--relay", str(config)]) == 0
    assert "there is no tool/ in this folder" in capsys.readouterr().out


@pytest.mark.parametrize("missing", ["starlette", "jinja2"])
@pytest.mark.parametrize("command", ["relay --config relay.json", "serve shop.py", "demo --seconds 5", "mcp"])
def test_an_admin_endpoint_without_its_extra_is_told_at_once(
    folder: Path, command: str, missing: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "shop.py").write_text('def price() -> int:\n    """Price."""\n    return 1\n')
    monkeypatch.chdir(folder)
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, "dispatch.admin.app", raising=False)
    assert main([*command.split(), "--admin", "127.0.0.1:0"]) == 2
    end = capsys.readouterr()
    fix = "Install what it needs: pip install 'tool-dispatch[http]'"
    assert f"Error: The admin endpoint needs {missing}. {fix}" in end.err
    assert "unexpectedly" not in end.err
    assert end.out == ""


def test_check_and_relay_report_the_mistakes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(folder / "relay.json", concurrency=0)
    assert main(["check", "--relay", str(folder / "relay.json")]) == 1
    shown = capsys.readouterr().out
    assert main(["relay", "--config", str(folder / "relay.json")]) == 2
    mistake = "concurrency: 'concurrency' is a number, not a whole number above 0"
    assert mistake in shown
    assert mistake in capsys.readouterr().err
    assert 'write "concurrency": 1024' in shown


@pytest.mark.parametrize(
    ("option", "variable", "file", "expected"),
    [
        ("pulsar://option:1", "pulsar://variable:1", "pulsar://file:1", "pulsar://option:1"),
        (None, " PULSAR://variable:1\n", "pulsar://file:1", "pulsar://variable:1"),
        (None, "", "pulsar://file:1", "pulsar://file:1"),
        (None, "", None, "pulsar://localhost:6650"),
    ],
)
def test_the_broker_of_the_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch, option: str | None, variable: str, file: str | None, expected: str
) -> None:
    """As of every other command: the option, the environment, and only then what a file says."""
    monkeypatch.setenv("DISPATCH_BROKER", variable)
    raw = {"catalog": ["relay/tools"]} | ({} if file is None else {"broker": file})
    write(folder / "relay.json", raw)
    assert load_config(str(folder / "relay.json"), Settings(broker=option)).broker == expected


def test_the_embedded_broker_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["relay", "--config", str(folder / "relay.json"), "--broker", "memory://"]) == 2
    assert "embedded broker" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--as", "tool", "tell-joke", "--trustgraph"], "--as tool is no type of a tool that can be written"),
        (["--as", "mcp-tool", "tell-joke"], "belongs to TrustGraph's configuration"),
        (["--as", "mcp-tool", "--trustgraph"], "No tool is given"),
        (["--as", "mcp-tool", "tell-joke", "x.json", "--trustgraph"], "fix: leave x.json out, or leave out --as"),
        (["--as", "mcp-tool", "tell-joke", "--stdin", "--trustgraph"], "fix: leave --stdin out, or leave out --as"),
        (["--as", "mcp-tool", "tell-jok", "--trustgraph"], "Did you mean 'tell-joke'?"),
    ],
)
def test_a_tool_that_cannot_be_put_as_an_mcp_tool(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["put", *words, "--catalog", str(EXAMPLES / "relay" / "tools")]) == 2
    assert problem in capsys.readouterr().err
