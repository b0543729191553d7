"""Where broker, catalogue, policy and token come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatch.cli.base import CliError, Settings
from dispatch.policy import DEFAULT_POLICY
from dispatch.transports import DEFAULT_BROKER
from tests.unit.cli.conftest import Run, write_catalog


def test_broker_from_the_option_then_the_environment_then_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings().broker_url == DEFAULT_BROKER
    monkeypatch.setenv("DISPATCH_BROKER", "pulsar://environment:1")
    assert Settings().broker_url == "pulsar://environment:1"
    assert Settings(broker="pulsar://option:1").broker_url == "pulsar://option:1"


def test_options_count_before_and_after_the_command_and_after_wins(run: Run, tmp_path: Path) -> None:
    one, two = write_catalog(tmp_path / "one"), write_catalog(tmp_path / "two", name="sing")
    assert [tool["name"] for tool in run("--catalog", str(one), "tools", "--json").json] == ["tell-joke"]
    assert [tool["name"] for tool in run("tools", "--json", "--catalog", str(two)).json] == ["sing"]
    both = run("--catalog", str(one), "tools", "--json", "--catalog", str(two))
    assert [tool["name"] for tool in both.json] == ["sing"]


def test_catalogue_from_the_environment_or_the_folder_tools(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    none = run("check")
    assert none.code == 2
    assert "--catalog DIR or DISPATCH_CATALOG" in none.err
    none = run("--broker", "memory://", "tools")  # of announced services
    assert none.code == 2
    assert "memory:// is the embedded broker of a single process" in none.err
    write_catalog(tmp_path / "tools")
    assert run("tools", "--json").json[0]["name"] == "tell-joke"
    monkeypatch.setenv("DISPATCH_CATALOG", str(write_catalog(tmp_path / "other", name="sing")))
    assert run("tools", "--json").json[0]["name"] == "sing"


def test_a_catalogue_with_mistakes_is_told_with_file_and_fix(run: Run, tmp_path: Path) -> None:
    write_catalog(tmp_path / "tools", service="joke-servise")
    end = run("tools")
    assert end.code == 2
    assert "tell-joke.json: service: there is no tool service 'joke-servise'" in end.err
    assert 'Fix: write "service": "joke-service"' in end.err


def test_the_policy_from_the_option_then_the_environment_then_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Settings().load_policy() == DEFAULT_POLICY
    (tmp_path / "one.json").write_text('{"timeout": 1, "retry": 2}')
    (tmp_path / "two.json").write_text('{"timeout": 2}')
    monkeypatch.setenv("DISPATCH_POLICY", "one.json")
    policy = Settings().load_policy()
    assert (policy.timeout, policy.retry.max_attempts) == (1, 2)
    assert Settings(policy="two.json").load_policy() == DEFAULT_POLICY.merged({"timeout": 2})


def test_a_policy_with_mistakes_is_told_with_who_named_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one.json").write_text('{"timeout": -1, "retry": {"max-attempts": 0}}')
    monkeypatch.setenv("DISPATCH_POLICY", "one.json")
    with pytest.raises(CliError) as told:
        Settings().load_policy()
    assert told.value.message == (
        "The policy file of DISPATCH_POLICY is invalid: 2 mistakes.\n"
        "  one.json: retry.max-attempts: 0 is not a whole number from 1 to 10. Fix: give 3, or 1 for no retry.\n"
        "  one.json: timeout: -1 is out of range. Fix: give seconds above 0 and at most 604800 (a week)."
    )
    with pytest.raises(CliError, match="file of --policy"):
        Settings(policy="one.json").load_policy()


def test_token_from_file_is_read_again_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    monkeypatch.setenv("DISPATCH_TOKEN", "of the environment")
    assert Settings().security().token == "of the environment"
    token = Settings(token_file=str(file)).security().token
    assert callable(token)
    assert token() == "first"
    file.write_text("second\n")
    assert token() == "second"


@pytest.mark.parametrize("option", ["token_file", "trust_certs"])
def test_a_file_that_is_not_there_is_told_before_anything_connects(option: str) -> None:
    with pytest.raises(CliError, match="'nowhere' cannot be read: No such file") as told:
        Settings(**{option: "nowhere"}).security()
    assert told.value.fix == f"change --{option.replace('_', '-')}"


def test_the_same_for_files_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPATCH_TOKEN_FILE", "nowhere")
    with pytest.raises(CliError, match="cannot be read") as told:
        Settings().security()
    assert told.value.fix == "change DISPATCH_TOKEN_FILE"


def test_an_empty_token_file_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("\n")
    with pytest.raises(CliError, match="is empty"):
        Settings(token_file=str(tmp_path / "token")).security()


@pytest.mark.parametrize("command", [("call", "tell-joke"), ("serve", "jokes:Joke", "--service", "joke"), ("doctor",)])
def test_the_embedded_broker_is_of_no_use_to_a_command_alone(run: Run, command: tuple[str, ...]) -> None:
    end = run(*command, "--broker", "memory://")
    assert end.code == 2
    assert "memory:// is the embedded broker of a single process" in end.err
    assert "dispatch broker start" in end.err
    assert "dispatch demo" in end.err
