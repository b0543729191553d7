"""TrustGraph's published agent and dispatch read the same tools, config values and arguments from a configuration."""

from __future__ import annotations

import contextlib
import json
import logging
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from trustgraph.agent.react.service import Processor
from trustgraph.agent.react.tools import ToolServiceImpl

import dispatch
from dispatch.catalog import Item, ServiceDescriptor, ToolDescriptor
from dispatch.catalog.descriptors import ARGUMENT_TYPES
from dispatch.catalog.loader import read_services, read_tools
from dispatch.documents import thaw
from dispatch.messaging.wire import TopicName
from dispatch.trustgraph.config import read_config_item
from tests.helpers.config_service import ConfigStore
from tests.helpers.run_profile import examples

Config = Mapping[str, Mapping[str, str]]
"""Texts by type and key, as TrustGraph's agent receives them."""

PARAMS = ["style", "collection", "limit", "category", "author", "name"]
VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.text(max_size=4)
    | st.lists(st.integers(-(2**63), 2**64 - 1), max_size=2)
)
WORDS = st.sampled_from(["", "a", "Ein Wörterbuch", "knows cats"])
FLAGS = st.booleans() | st.sampled_from([0, 1, "yes"])


class KnownTool(NamedTuple):
    """The values that a client of the tool needs."""

    description: str
    request_queue: str
    response_queue: str
    config: dict[str, Any]
    arguments: list[tuple[str, str, str]]


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    """Both sides log each refused item: thousands of lines."""
    loggers = [logging.getLogger(name) for name in ("trustgraph.agent.react.service", "dispatch.catalog")]
    for logger in loggers:
        logger.disabled = True
    yield
    for logger in loggers:
        logger.disabled = False


def optional(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects that have any of these fields."""
    return st.fixed_dictionaries({}, optional=fields)


def queues(kind: str) -> st.SearchStrategy[str]:
    return st.sampled_from([f"{kind}:tg:joke", f"non-persistent://tg/{kind}/joke", f"persistent://acme/{kind}/joke"])


SERVICES = st.builds(
    lambda required, others: required | others,
    st.fixed_dictionaries({"request-queue": queues("request"), "response-queue": queues("response")}),
    optional(
        id=st.sampled_from(["a", "b", "elsewhere"]),
        **{
            "config-params": st.lists(
                st.sampled_from(PARAMS)
                | st.builds(
                    lambda name, others: {"name": name} | others, st.sampled_from(PARAMS), optional(required=FLAGS)
                ),
                max_size=4,
            )
        },
    ),
)
ARGUMENTS = st.lists(
    st.builds(
        lambda name, others: {"name": name} | others,
        st.sampled_from(["topic", "question", "from", "größe"]),
        optional(type=st.sampled_from([*ARGUMENT_TYPES, "int", "date"]) | st.none(), description=WORDS | st.none()),
    ),
    max_size=3,
    unique_by=lambda argument: argument["name"],
)
NAMES = st.lists(st.sampled_from(["x", "y", "*"]), max_size=2)
GROUPS = optional(group=NAMES, state=st.sampled_from(["x", "y"]), **{"applicable-states": NAMES})
TOOLS = st.builds(
    lambda service, values, groups, others: {"type": "tool-service", "service": service} | values | groups | others,
    st.sampled_from(["a", "b"]),
    st.fixed_dictionaries({}, optional={name: VALUES for name in PARAMS if name not in ("name", "category", "author")})
    | st.fixed_dictionaries({}, optional=dict.fromkeys(PARAMS[:-1], WORDS)),
    GROUPS,
    optional(description=WORDS, arguments=ARGUMENTS),
)
OTHER_TOOLS = st.builds(
    lambda fields, arguments: fields | arguments,
    st.sampled_from(
        [
            {"type": "knowledge-query", "collection": "cats"},
            {"type": "text-completion"},
            {"type": "structured-query"},
            {"type": "row-embeddings-query", "schema-name": "cats", "limit": 3},
            {"type": "mcp-tool", "mcp-tool": "weather"},
            {"type": "prompt", "template": "poem"},
        ]
    ),
    optional(description=WORDS, arguments=ARGUMENTS),
)
VALID_SERVICE = {"request-queue": "request:tg:joke", "response-queue": "response:tg:joke"}
BROKEN_SERVICES = st.sampled_from(
    ["{", "[]", {}, {"request-queue": "request:tg:a"}, {"response-queue": "response:tg:a"}]
)
BROKEN_TOOLS = st.one_of(
    st.sampled_from(["{", "[]", {}, {"type": "unknown"}, {"type": "tool-service"}]),
    st.builds(lambda tool, service: tool | {"service": service}, TOOLS, st.sampled_from(["", None, "unknown"])),
    st.builds(
        lambda tool, flaw: tool | flaw,
        TOOLS,
        st.sampled_from([{"group": "x"}, {"group": [1]}, {"state": 1}, {"applicable-states": "x"}]),
    ),
)


def configs(services: st.SearchStrategy[Any], tools: st.SearchStrategy[Any]) -> st.SearchStrategy[Config]:
    """Configurations with up to two services and four tools, whose names differ from their keys."""
    return st.builds(
        lambda services, tools: {
            "tool-service": {key: as_text(raw) for key, raw in services.items()},
            "tool": {key: as_text(raw, name=f"{key}-name") for key, raw in tools.items()},
        },
        st.fixed_dictionaries({"a": services, "b": services}),
        st.dictionaries(st.sampled_from(["1", "2", "3", "4"]), tools, min_size=1, max_size=4),
    )


def as_text(raw: Any, **fields: str) -> str:
    return raw if isinstance(raw, str) else json.dumps(raw | fields)


def load_published(config: Config) -> dict[str, Any] | None:
    """Return the tools that TrustGraph's agent makes of a configuration; None: it refuses all of them."""
    agent = types.SimpleNamespace(config_key="agent", agents={})
    loading = Processor.on_tools_config(agent, "default", config, 1)
    with contextlib.suppress(StopIteration):  # it awaits nothing
        loading.send(None)
    return agent.agents["default"].tools if agent.agents else None


def load(config: Config) -> tuple[dict[str, tuple[ToolDescriptor, ServiceDescriptor]], set[str]]:
    """Return the tools that dispatch reads item by item, and the names of those of other types."""
    items = [
        read_config_item("trustgraph", "default", kind, key, text)
        for kind in ("tool-service", "tool")
        for key, text in config[kind].items()
    ]
    return load_items(items)


def load_items(items: Iterable[Item]) -> tuple[dict[str, tuple[ToolDescriptor, ServiceDescriptor]], set[str]]:
    """As :func:`load`."""
    items = list(items)
    read = read_services(items)
    services = {each.service.id: (each.service,) for each in read.in_force if each.service is not None}
    reading = read_tools(items, services, read.unavailable)
    tools = {each.tool.name: each.tool for each in reading.in_force if each.tool is not None}
    return {name: (tool, services[tool.service][0]) for name, tool in tools.items()}, {
        each.name for each in reading.others
    }


def of_published(tool: Any) -> KnownTool:
    values = tool.implementation.keywords
    return KnownTool(
        tool.description or "",
        str(TopicName.parse(values["request_queue"])),
        str(TopicName.parse(values["response_queue"])),
        values["config_values"],
        [(each.name, as_known_type(each.type), each.description or "") for each in tool.arguments],
    )


def as_known_type(given: str | None) -> str:
    """Return the type that dispatch reads: it is a hint for the model, and TrustGraph's agent checks none."""
    return given if given in ARGUMENT_TYPES else {"int": "integer"}.get(given or "", "string")


def of_dispatch(tool: ToolDescriptor, service: ServiceDescriptor) -> KnownTool:
    return KnownTool(
        tool.description,
        service.request_queue,
        service.response_queue,
        thaw(tool.config),
        [(each.name, each.type, each.description) for each in tool.arguments],
    )


def is_of_service(tool: Any) -> bool:
    return getattr(tool.implementation, "func", None) is ToolServiceImpl


@pytest.mark.costly
@settings(max_examples=examples(80))
@given(config=configs(SERVICES, TOOLS | OTHER_TOOLS))
def test_a_configuration_that_the_agent_loads(config: Config) -> None:
    published = load_published(config)
    if published is None:  # a required config param is missing
        event("refused by the agent")
        return
    tools, others = load(config)
    assert {name: of_dispatch(*tool) for name, tool in tools.items()} == {
        name: of_published(tool) for name, tool in published.items() if is_of_service(tool)
    }
    assert others == {name for name, tool in published.items() if not is_of_service(tool)}


@pytest.mark.costly
@given(tools=st.dictionaries(st.text("abc", min_size=1, max_size=2), TOOLS, min_size=2), names=st.data())
def test_of_several_tools_with_one_name_the_last_one_is_known(tools: dict[str, Any], names: st.DataObject) -> None:
    store = ConfigStore()
    for service in ("a", "b"):
        store.write("tool-service", service, VALID_SERVICE)
    for key in sorted(tools):  # the order of TrustGraph's store
        store.write("tool", key, tools[key] | {"name": names.draw(st.sampled_from(["x", "y"]))})
    values = {
        ("default", kind): {key: text for (_, of, key), text in store.texts.items() if of == kind}
        for kind in ("tool", "tool-service")
    }
    published = load_published({kind: texts for (_, kind), texts in values.items()})
    assert published is not None
    items = dispatch.TrustGraphConfig()._read(values, {}).values()
    known, _ = load_items(item for _, item in items)
    assert {name: of_dispatch(*tool) for name, tool in known.items()} == {
        name: of_published(tool) for name, tool in published.items()
    }


@pytest.mark.costly
@settings(max_examples=examples(80))
@given(config=configs(SERVICES | BROKEN_SERVICES, TOOLS | BROKEN_TOOLS))
def test_an_invalid_item_is_refused_alone(config: Config) -> None:
    """The agent refuses all tools for one that is invalid; dispatch refuses exactly the items that the agent refuses when
    each tool is there alone, with its service."""
    tools, _ = load(config)
    expected = {}
    for key, text in config["tool"].items():
        services = {id: config["tool-service"][id] for id in ("a", "b") if f'"service": "{id}"' in text}
        alone = load_published({"tool-service": services, "tool": {key: text}})
        expected |= {name: of_published(tool) for name, tool in (alone or {}).items() if is_of_service(tool)}
    assert {name: of_dispatch(*tool) for name, tool in tools.items()} == expected
