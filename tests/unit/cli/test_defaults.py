"""Defaults that an option shares with the library: the value is the library's, and the help says the same one."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import click
import pytest
import typer

from dispatch.announcements import DEFAULT_TOPIC
from dispatch.cli.app import app
from dispatch.devtools.demo import DEFAULT_SECONDS
from dispatch.devtools.localbroker import DEFAULT_NAMESPACES, DEFAULT_PORT, DEFAULT_WEB_PORT
from dispatch.devtools.lossprobe import DEFAULT_IN_FLIGHT, DEFAULT_SIZES
from dispatch.mcp.server import MAX_LISTED, McpServer
from dispatch.messaging.wire import REQUEST_NAMESPACE, RESPONSE_NAMESPACE, service_queues
from dispatch.policy import DEFAULT_POLICY
from dispatch.search import ToolSearch
from dispatch.server import ToolServer
from dispatch.toolkit import ToolkitService
from dispatch.transports import DEFAULT_BROKER
from dispatch.transports.pulsar.handshake import endpoints
from dispatch.trustgraph.config import DEFAULT_WORKSPACE


def option(path: str) -> click.Option:
    """The option of a command, as in ``serve --max-queue``."""
    *names, flag = path.split()
    command: Any = typer.main.get_command(app)
    for name in names:
        command = command.commands[name]
    return next(each for each in command.params if flag in each.opts)


def default_of(function: Any, parameter: str) -> Any:
    return inspect.signature(function).parameters[parameter].default


@pytest.mark.parametrize(
    ("path", "default"),
    [
        ("serve --concurrency", default_of(ToolServer, "concurrency")),
        ("serve --max-queue", default_of(ToolServer, "max_queue")),
        ("serve --max-payload-bytes", default_of(ToolServer, "max_payload_bytes")),
        ("serve --drain-timeout", default_of(ToolServer, "drain_timeout")),
        ("find --limit", default_of(ToolSearch.rank, "limit")),
        ("mcp --search", default_of(McpServer, "search")),
    ],
)
def test_the_default_of_an_option_is_that_of_the_library(path: str, default: object) -> None:
    assert option(path).default == default


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("call --timeout", f"{DEFAULT_POLICY.timeout:g} s; a stream {DEFAULT_POLICY.stream_timeout:g} s"),
        ("call --broker", f"else {DEFAULT_BROKER}."),
        ("call --announced", f"else {DEFAULT_TOPIC}."),
        ("tools --workspace", f"Default: {DEFAULT_WORKSPACE}."),
        ("serve --service", "'joke' consumes {} and replies on {}.".format(*service_queues("joke"))),
        ("demo --seconds", f"Default: {DEFAULT_SECONDS:g}."),
        ("doctor --sizes", f"Default: {DEFAULT_SIZES}."),
        ("doctor --in-flight", f"Default: {DEFAULT_IN_FLIGHT}."),
        ("doctor --admin", f"port {DEFAULT_WEB_PORT} of"),
        ("mcp --search", f"above {MAX_LISTED} tools"),
        ("toolkit recommend --threshold", f"Default: {default_of(ToolkitService.recommend_subgraph, 'threshold')}."),
        ("toolkit recommend --hops", f"Default: {default_of(ToolkitService.recommend_subgraph, 'hops')}."),
    ],
)
def test_help_names_the_default_of_the_library(path: str, text: str) -> None:
    """The command passes nothing on if the option is not given: the library's packages are imported only then."""
    found = option(path)
    assert text in (found.help or "")
    assert found.default in (None, False, "auto")


def test_every_option_and_argument_has_a_help() -> None:
    """The help is in docstrings, by name: a misspelt name would drop it."""

    def walk(command: Any) -> Iterator[Any]:
        yield from command.params
        for each in getattr(command, "commands", {}).values():
            yield from walk(each)

    assert [each.name for each in walk(typer.main.get_command(app)) if not each.help] == []


def test_the_local_broker_has_the_ports_and_namespaces_that_commands_use() -> None:
    """It imports nothing of the rest of the library, so that these are written there again."""
    assert DEFAULT_NAMESPACES[:2] == (REQUEST_NAMESPACE, RESPONSE_NAMESPACE)
    assert endpoints(DEFAULT_BROKER) == [("localhost", DEFAULT_PORT)]
    assert option("broker start --port").show_default == str(DEFAULT_PORT)
    assert option("broker start --web-port").show_default == str(DEFAULT_WEB_PORT)
