"""The configuration of MCP servers: the common form, the keys of dispatch, and every mistake by name."""

from __future__ import annotations

from typing import Any

import pytest

from dispatch.mcp.conversion import Configuration, ServerSettings, read_configuration

ENVIRONMENT = {"TOKEN": "secret", "HOME": "/home/ada", "EMPTY": "", "FORM": "${env:TOKEN}"}


def read(raw: object) -> Configuration:
    found = read_configuration(raw, "mcp.json", ENVIRONMENT)
    assert isinstance(found, Configuration)
    return found


def read_one(entry: dict[str, Any]) -> ServerSettings:
    found = read({"mcpServers": {"one": entry}})
    assert found.invalid == ()
    (settings,) = found.servers
    return settings


def test_a_command() -> None:
    entry = {"command": "npx", "args": ["-y", "files", "${HOME}/x"], "env": {"KEY": "${TOKEN}"}, "cwd": "${HOME}"}
    settings = read_one(entry)
    assert (settings.command, settings.args, settings.cwd) == ("npx", ("-y", "files", "/home/ada/x"), "/home/ada")
    assert settings.env == {"KEY": "secret"}
    assert (settings.is_trusted, settings.only, settings.prefix, settings.on_change) == (False, None, None, "apply")


def test_addresses() -> None:
    settings = read_one({"type": "http", "url": "https://host/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}})
    assert (settings.urls, settings.headers) == (("https://host/mcp",), {"Authorization": "Bearer secret"})
    several = read_one({"url": ["https://one/mcp", "https://two/mcp", "https://one/mcp"]})
    assert several.urls == ("https://one/mcp", "https://two/mcp")


def test_the_keys_of_dispatch() -> None:
    entry = {"command": "x", "trusted": True, "only": ["a.b"], "prefix": "always", "policy": {"timeout": 5}}
    settings = read_one({**entry, "permissions": ["files:read"], "on-change": "hold"})
    assert (settings.is_trusted, settings.only, settings.prefix) == (True, ("a.b",), "always")
    assert (settings.policy, settings.permissions, settings.on_change) == ({"timeout": 5}, ("files:read",), "hold")


def test_an_empty_list_of_tools_uses_none() -> None:
    assert read_one({"command": "x", "only": []}).only == ()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[("${TOKEN}-${TOKEN}", "secret-secret"), ("$TOKEN ${", "$TOKEN ${"), ("{TOKEN} $$", "{TOKEN} $$")],
        *[("${NONE:-x}", "x"), ("${EMPTY:-x}", "x"), ("${NONE:-}x", "x"), ("${FORM}", "${env:TOKEN}")],
    ],
)
def test_variables(text: str, value: str) -> None:
    assert read_one({"command": text}).command == value


def test_servers_without_the_outer_object_and_disabled_ones() -> None:
    found = read({"one": {"command": "x"}, "two": {"command": "y", "disabled": True}})
    assert [each.name for each in found.servers] == ["one"]


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (3, "one: the entry is a number, not an object"),
        ({}, "one: command: neither 'command' nor 'url' is given. Fix: add"),
        ({"comand": "x"}, "neither 'command' nor 'url' is given. Fix: rename 'comand' to 'command', or add"),
        ({"ulr": "https://host"}, "neither 'command' nor 'url' is given. Fix: rename 'ulr' to 'url', or add"),
        ({"command": "x", "url": "https://host"}, "one: url: both 'command' and 'url' are given"),
        ({"command": 3}, "one: command: 'command' is a number, not a text"),
        ({"command": "x", "args": "-y"}, "one: args: 'args' is not a list of texts"),
        ({"command": "x", "env": {"A": 1}}, "one: env.A: a number, not a text"),
        ({"command": "${NONE}"}, "one: command: the environment variable 'NONE' is not set"),
        ({"url": "host/mcp"}, "one: url: an address does not begin with http:// or https://"),
        ({"url": "http://host:secret/mcp"}, "one: url: an address has no valid host or port"),
        ({"url": ["https://host", "http://[host]/"]}, "one: url: an address has no valid host or port"),
        ({"url": "http://user:secret/@host:1/mcp"}, "(a user or password in it must be percent-encoded)"),
        ({"url": "https:///mcp"}, "one: url: an address has no host"),
        ({"url": ["https://host", 3]}, "one: url: 'url' is not a list of texts"),
        ({"type": "sse", "url": "https://host"}, "one: type: the transport 'sse' was withdrawn"),
        ({"type": "carrier-pigeon", "url": "https://host"}, "one: type: the transport 'carrier-pigeon' is unknown"),
        ({"type": "stdio", "url": "https://host"}, "one: type: 'stdio' needs 'command'"),
        ({"command": "x", "prefix": "sometimes"}, "one: prefix: 'sometimes' is unknown"),
        ({"command": "x", "on-change": "ask"}, "one: on-change: 'ask' is unknown"),
        ({"command": "x", "trusted": "yes"}, "one: trusted: 'trusted' is a text, not true or false"),
        ({"command": "x", "policy": {"timeout": -1}}, "policy.timeout"),
        ({"command": "x", "permissions": []}, "one: permissions: the list is empty"),
        ({"command": "x", "only": [""]}, "one: only[0]: an empty text"),
    ],
)
def test_mistakes(entry: object, problem: str) -> None:
    found = read({"mcpServers": {"one": entry, "other": {"command": "x"}}})
    assert [each.name for each in found.servers] == ["other"]
    (invalid,) = found.invalid
    assert invalid.name == "one"
    assert problem in str(invalid.problems[0])
    assert "secret" not in str(invalid.problems[0])


def test_unknown_keys_are_probable_mistakes() -> None:
    found = read({"one": {"command": "x", "trustd": True, "autoApprove": []}, "two": {"url": "https://x", "args": []}})
    assert [str(each) for each in found.warnings] == [
        "mcp.json: one: trustd: an unknown key, which is ignored. "
        "Fix: rename it to 'trusted' if you meant that, or remove it.",
        "mcp.json: two: args: a server with 'url' has no 'args'. Fix: remove it.",
    ]


@pytest.mark.parametrize("raw", [3, [], {"mcpServers": []}])
def test_no_servers_at_all(raw: object) -> None:
    found = read_configuration(raw, "mcp.json", {})
    assert isinstance(found, list)
    assert "mcpServers" in str(found[0])


@pytest.mark.parametrize(
    "text",
    [
        *("${env:TOKEN}", "${input:token}", "${TOKEN-x}", "${TOKEN:=x}", "${TOKEN:?x}", "${}", "${ TOKEN}x", "${TOKEN"),
        *("${1}", "${NONE:-${TOKEN}}", "${TOKEN} ${env:TOKEN}", "${TO-KEN}"),
    ],
)
def test_forms_of_variables_of_other_programs_are_mistakes(text: str) -> None:
    for entry, key in (
        ({"command": "x", "args": ["-y", text]}, "args[1]"),
        ({"command": "x", "env": {"KEY": text}}, "env.KEY"),
        ({"url": text}, "url"),
        ({"url": "https://host", "headers": {"Authorization": f"Bearer {text}"}}, "headers.Authorization"),
    ):
        (invalid,) = read({"one": entry}).invalid
        assert str(invalid.problems[0]).startswith(f"mcp.json: one: {key}: '${{")
        assert "${NAME}" in str(invalid.problems[0])
        assert "secret" not in str(invalid.problems)


@pytest.mark.parametrize("blanks", ["\n", "\r\n", " ", "\t\n"])
def test_blanks_around_a_secret_from_a_file_are_removed(blanks: str) -> None:
    entry = {"url": "${URL}", "headers": {"Authorization": "Bearer ${TOKEN}", "X-Key": "${TOKEN}"}}
    environment = {"TOKEN": f"secret{blanks}", "URL": f"https://host/mcp{blanks}"}
    found = read_configuration({"one": entry}, "mcp.json", environment)
    assert isinstance(found, Configuration)
    (settings,) = found.servers
    assert settings.headers == {"Authorization": "Bearer secret", "X-Key": "secret"}
    assert settings.urls == ("https://host/mcp",)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("X-Key", f"secret{each}secret") for each in ("\n", "\r\n", "\0", "\x7f", "ü", "…", "\ud83d")],
        *[(name, "secret") for name in ("", "X Key", "X-Key:", "X-Key\n", "Größe")],
    ],
)
def test_a_header_that_cannot_be_sent_is_named_without_its_value(name: str, value: str) -> None:
    entry = {"url": "https://host/mcp", "headers": {"Accept-Language": "de", name: "${VALUE}"}}
    found = read_configuration({"one": entry}, "mcp.json", {"VALUE": value})
    assert isinstance(found, Configuration)
    (invalid,) = found.invalid
    (problem,) = invalid.problems
    assert "headers" in problem.key
    assert name.strip() in problem.key or not name.isprintable()
    assert "secret" not in str(problem)


@pytest.mark.parametrize("name", ["Authorization: Bearer secret", "bearer secret", "X-Key=secret"])
@pytest.mark.parametrize("value", ["", 7])
def test_a_secret_in_the_name_of_a_header_is_not_repeated(name: str, value: object) -> None:
    found = read_configuration({"one": {"url": "https://host/mcp", "headers": {name: value}}}, "mcp.json", {})
    assert isinstance(found, Configuration)
    assert "secret" not in str(found.invalid[0].problems)


@pytest.mark.parametrize("key", ["mcpServer", "servers", "mcp_servers"])
def test_servers_under_another_key_are_told_the_right_one(key: str) -> None:
    found = read_configuration({key: {"weather": {"command": "python"}}}, "mcp.json", ENVIRONMENT)
    assert isinstance(found, list)
    (problem,) = found
    assert str(problem) == f"mcp.json: {key}: an unknown key. Fix: rename it to 'mcpServers'."


def test_a_file_without_servers_is_a_warning() -> None:
    found = read({"mcpServers": {}})
    (warning,) = found.warnings
    assert (warning.severity, warning.problem) == ("warning", "there are no servers")
    assert read({"mcpServers": {"one": {"command": "x", "disabled": True}}}).warnings == ()
