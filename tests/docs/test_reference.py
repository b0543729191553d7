"""The generated reference pages have an entry for everything, and every entry has a description.
Names with hyphens in the sentences of pages exist: policy keys, error types, message properties, states.
docs/reference/wire.md: payloads and topics agree with the code.
Metrics and recording rules in the queries and sentences of pages exist.
Python names and keywords in the sentences of pages exist.
"""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

import dispatch
import dispatch.adapters
import dispatch.calling
import dispatch.mcp.server
import dispatch.results
import dispatch.schemas
import dispatch.search
import dispatch.testing
import dispatch.toolkit
from dispatch.adapters import FRAMEWORKS, Style
from dispatch.catalog import load_directory
from dispatch.catalog.items import SERVICE_KEYS, TOOL_KEYS
from dispatch.cli.app import app
from dispatch.cli.check import plan_of
from dispatch.errors import DispatchError, Outcome
from dispatch.messaging import wire
from dispatch.messaging.wire import ErrorInfo, Reply, encode_reply, encode_request
from dispatch.permissions import Reason
from dispatch.policy import Policy, Slo
from dispatch.protocol import DEFAULT_SETTINGS, frames
from dispatch.protocol.events import Failure
from dispatch.relay import RelayConfig
from dispatch.resilience.breaker import State
from dispatch.telemetry.gauges import REJECTIONS
from dispatch.telemetry.rules import render_rule_files
from dispatch.trustgraph.config import (
    ConfigKey,
    ConfigPush,
    ConfigRequest,
    ConfigResponse,
    ConfigValue,
    WorkspaceChanges,
)
from docs.generators import command_line, constants, dashboards, docstrings, metrics, policy_keys, protocol
from docs.generators.pages import GENERATORS, MARKER, changed
from tests.docs.pages import PAGES, ROOT, page_id, prose

CELLS = re.compile(r"(?<!\\)\|")


def rows(text: str) -> list[list[str]]:
    """The rows of all tables of a text, without heads."""
    found: list[list[str]] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in CELLS.split(line)[1:-1]]
        if cells and set(cells[0]) == {"-"}:
            found.pop()  # the head
        elif cells and line.startswith("| "):
            found.append(cells)
    return found


def test_every_policy_key_that_check_shows_is_described() -> None:
    listed = {row[0].strip("[]`").partition("`")[0] for row in rows(policy_keys.policy_keys())}
    plan = plan_of(load_directory(ROOT / "examples" / "tools"), "tell-joke")
    shown = {part for row in plan.rows for part in row.key.split(".")}
    assert shown - listed == set()


def test_the_tables_of_descriptors_have_every_key() -> None:
    text = (ROOT / "docs" / "reference" / "descriptors.md").read_text(encoding="utf-8")
    service, tool = text.split("## Tool service")[1].split("## Input schema")[0].split("## Tool\n")
    for part, keys in ((service, SERVICE_KEYS), (tool, TOOL_KEYS)):
        listed = [key for row in rows(part) for key in re.findall(r"`([^`]+)`", row[0])]
        assert sorted(listed) == sorted(keys)


def test_every_field_of_a_policy_has_a_description() -> None:
    for kind in {Policy, *(part for _, part in policy_keys.parts())}:
        assert set(docstrings.attributes(kind)) == set(kind.__struct_fields__), kind.__name__


def test_a_field_without_a_description_fails_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    class Undescribed(msgspec.Struct, rename="kebab"):
        first_key: int = 1

    monkeypatch.setattr(policy_keys, "Policy", Undescribed)
    with pytest.raises(KeyError, match="first_key"):
        policy_keys.policy_keys()


def test_every_command_has_a_section() -> None:
    text = command_line.command_line()
    names = {name for name, _ in command_line.commands()}
    groups = {info.name for info in app.registered_groups}
    assert {info.name for info in app.registered_commands} == {
        name.removeprefix("dispatch ") for name in names if name.split()[1] not in groups
    }
    assert set(re.findall(r"^## `(.+)`$", text, re.MULTILINE)) == names
    assert "[bold]" not in text


def test_every_metric_has_labels_and_a_description() -> None:
    listed = {row[0].strip("`"): row for row in rows(metrics.metrics())}
    assert set(listed) == {metrics.exported_name(family) for family, _ in metrics.families()}
    assert "`tool`, `service`, `outcome`" in listed["dispatch_calls_total"]
    assert all(row[-1] for row in listed.values())


def test_every_panel_of_every_dashboard_is_listed_with_its_picture() -> None:
    text = dashboards.dashboards()
    for path in dashboards.FOLDER.glob("*.json"):
        dashboard = json.loads(path.read_text(encoding="utf-8"))
        panels = [each for panel in dashboard["panels"] for each in (panel, *panel.get("panels", ()))]
        section = text.partition(f"## {dashboard['title']}\n")[2].partition("\n## ")[0]
        assert re.findall(r"^- \*\*(.+?)\*\*: .+", section, re.MULTILINE) == [
            panel["title"] for panel in panels if panel["type"] != "row"
        ]
        (picture,) = re.findall(r"!\[.+\]\(\.\./(.+)\)", section)
        assert (ROOT / "docs" / picture).exists()


def test_every_error_class_and_outcome_is_listed() -> None:
    classes = {row[0].strip("`"): row for row in rows(constants.exceptions())}
    public = {getattr(dispatch, name) for name in dispatch.__all__}
    errors = {each for each in public if isinstance(each, type) and issubclass(each, DispatchError)} - {DispatchError}
    assert set(classes) == {each.__name__ for each in errors}
    assert {row[0].strip("`") for row in rows(constants.outcomes())} == {str(each) for each in Outcome}


def test_every_message_property_is_listed_and_described() -> None:
    listed = {row[0].strip("`"): row[1] for row in rows(constants.message_properties())}
    assert set(listed) == {value for name, value in vars(wire.Property).items() if name.isupper()}
    assert all(listed.values())


def test_every_frame_is_listed_with_its_number_and_every_constant_with_its_value() -> None:
    listed = {row[1]: int(row[0]) for row in rows(protocol.frames())}
    assert listed == {name: getattr(frames, name) for name in listed}
    assert sorted(listed.values()) == list(range(frames.CREDIT + 1))
    assert all(row[3] for row in rows(protocol.frames()))
    values = {row[0].strip("`"): row[1] for row in rows(protocol.settings())}
    assert {name: float(value.replace(",", "")) for name, value in values.items()} == {
        name: getattr(DEFAULT_SETTINGS, name) for name in DEFAULT_SETTINGS.__struct_fields__
    }
    assert all(len(row[2]) > 20 for row in rows(protocol.settings()))
    assert {row[0].strip("`") for row in rows(protocol.failures())} == {str(each) for each in Failure}
    page = (ROOT / "docs" / "reference" / "protocol.md").read_text(encoding="utf-8")
    assert f"`{frames.PACKET_START:02x}`" in page


def test_a_packet_has_the_elements_that_are_listed() -> None:
    listed = [row[1].strip("`") for row in rows(protocol.packet())]
    packet = frames.decode_packet(frames.encode_packet((frames.VERSION, *range(1, 9)), []))
    assert [getattr(packet, name) for name in listed] == [frames.VERSION, *range(1, 9), []]


def test_the_api_has_every_public_name_once() -> None:
    entries: list[str] = []
    for page in (ROOT / "docs" / "reference" / "api").glob("*.rst"):
        text = page.read_text(encoding="utf-8")
        (module,) = re.findall(r"^\.\. currentmodule:: ([\w.]+)$", text, re.MULTILINE) or ("",)
        entries.extend(f"{module}.{name}" for name in re.findall(r"^\.\. auto\w+:: (\w+)$", text, re.MULTILINE))
    packages = (
        dispatch,
        dispatch.adapters,
        dispatch.calling,
        dispatch.mcp,
        dispatch.results,
        dispatch.schemas,
        dispatch.search,
        dispatch.testing,
        dispatch.toolkit,
    )
    public = [f"{package.__name__}.{name}" for package in packages for name in package.__all__]
    assert sorted(entries) == sorted(name for name in public if name != "dispatch.__version__")


def test_every_generator_has_a_page_which_has_its_text() -> None:
    names = [name for page in PAGES for name in MARKER.findall(page.read_text(encoding="utf-8"))]
    assert sorted(names) == sorted(GENERATORS)
    assert [str(page.relative_to(ROOT)) for page in changed()] == [], "the code has changed; write them with: make docs"


NAME = re.compile(r'"?[a-z]+(?:-[a-z]+)+"?')
OTHERS = {
    *("pulsar-client", "prometheus-client", "opentelemetry-api", "jsonschema-rs", "trustgraph-flow"),  # packages
    *("tool-service", "request-queue", "response-queue", "config-params", "output-schema", "read-only"),  # descriptors
    *("input-schema", "applicable-states"),  # descriptors
    *("mcp-tool", "on-change"),  # a type of TrustGraph's tools, a key of mcp.json
    *("dispatch-overview", "dispatch-tool", "dispatch-instances"),  # uids of dashboards
    *("call-off", "rejected-call"),  # rows of `python -m benchmarks.micro.guards`
    *("forged-agent", "forged-open", "short-lived", "ours-defaults"),  # scenarios and contenders
    *("item-refused", "item-shadowed", "change-held", "broker-lost", "broker-back"),  # kinds of events
    *(name.replace("_", "-") for name in FRAMEWORKS),  # extras
    *Style,  # forms of the APIs of models
    "dispatch-quota",  # a subscription
    "getkeys-all-ws",  # an operation of TrustGraph's config service
    "injected-fault",  # the type of a fault's tool error
    "stream-idle",
    "stream-reader",  # values of `CallTimeoutError.limit_name`
}


def known() -> set[str]:
    """The names of the generated reference, and those of :data:`OTHERS`."""
    reference = "\n".join(make() for name, make in GENERATORS.items() if name != "changelog")
    return (
        {name.strip('"`') for name in re.findall(r"`[^`\n]+`", reference)}
        | {str(state) for state in State}
        | OTHERS
        | {*RelayConfig.__struct_encode_fields__}
        | {*get_args(Reason), *REJECTIONS}
    )


@pytest.fixture(scope="module")
def names() -> set[str]:
    return known()


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "changelog.md"], ids=page_id)
def test_the_names_with_hyphens_of_a_page_exist(page: Path, names: set[str]) -> None:
    written = {code.strip('"') for code in re.findall(r"`([^`\n]+)`", prose(page)) if NAME.fullmatch(code)}
    assert written - names == set()


PAGE = (ROOT / "docs" / "reference" / "wire.md").read_text(encoding="utf-8")
REQUESTS, RESPONSES = "non-persistent://tg/request/joke", "non-persistent://tg/response/joke"


def test_the_topics_are_those_that_the_code_names() -> None:
    named = {
        wire.hello_topic(REQUESTS),
        wire.instance_topic(REQUESTS, "joke-1"),
        wire.announcement_topic(REQUESTS, RESPONSES),
        wire.reply_topic(RESPONSES, "KEY-agent"),
    }
    values = {"<service>": "joke", "<n>": "4", "<instance>": "joke-1", "<key>": "KEY", "<name>": "agent"}
    shown = set()
    for name, namespace in re.findall(r"^\| `(dispatch-\S+)` \| (request|response) \|", PAGE, re.MULTILINE):
        for placeholder, value in values.items():
            name = name.replace(placeholder, value)
        shown.add(f"non-persistent://tg/{namespace}/{name}")
    assert shown == named


def test_the_payloads_have_the_fields_that_the_code_writes() -> None:
    request, reply = re.findall(r"^\| (?:request|reply) \| `(.+?)`", PAGE, re.MULTILINE)
    assert set(json.loads(encode_request("{}", "{}", "alice"))) == set(re.findall(r'"(\w+)"', request))
    assert set(json.loads(encode_reply(Reply(response="x", end_of_stream=True)))) <= set(re.findall(r'"(\w+)"', reply))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("config request", ConfigRequest(keys=(ConfigKey(),))),
        ("config response", ConfigResponse(error=ErrorInfo())),
        ("config value", ConfigValue()),
        ("config notification", ConfigPush(workspace_changes=WorkspaceChanges())),
    ],
)
def test_messages_of_the_config_service_have_the_fields_that_the_code_writes(row: str, message: msgspec.Struct) -> None:
    (shown,) = re.findall(rf"^\| {row} \| `(.+?)`", PAGE, re.MULTILINE)
    assert re.findall(r'"(\w+)"', shown) == re.findall(r'"(\w+)":', msgspec.json.encode(message).decode())


METRIC = re.compile(r"\b(?:[a-z_]+:)?dispatch_[a-z_]+(?::[a-z_0-9]+)?\b")
OTHER_NAMES = ("dispatch_broker",)
"""A fixture of pytest."""
OTHER_QUERIES = re.compile(
    r"dispatch_(?:tool|new|reason|call_id|outcome|error_type|trace_id|seconds|user|decision|permission)"
)
"""Attributes of log records."""


def known_queries() -> set[str]:
    names = {metrics.exported_name(family) for family, _ in metrics.families()}
    names |= {f"{name}_{suffix}" for name in names for suffix in ("bucket", "count", "sum")}
    rules = "\n".join(render_rule_files({"tool": Slo(availability=0.99, latency=1.0)}).values())
    return names | set(re.findall(r"record: '?\"?([\w:]+)", rules))


def unknown(text: str) -> set[str]:
    named = {name for name in METRIC.findall(text) if not OTHER_QUERIES.fullmatch(name) and name not in OTHER_NAMES}
    return named - known_queries()


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_the_metrics_of_a_page_exist(page: Path) -> None:
    assert unknown(page.read_text(encoding="utf-8")) == set()


def test_a_metric_that_does_not_exist_is_noticed() -> None:
    text = "`dispatch_coffee_total` and tool_slo:dispatch_coffee:ratio_rate1h, `dispatch_calls_total`"
    assert unknown(text) == {"dispatch_coffee_total", "tool_slo:dispatch_coffee:ratio_rate1h"}


CALL = re.compile(r"^(?:dispatch\.)?(\w+)\(.*\)$")
METHOD_CALL = re.compile(r"^(?:await )?(?:dispatcher|Dispatcher)\.(?!py\b)(\w+)")
MEMBER = re.compile(r"^(?:dispatch\.)?([A-Z]\w+)\.([a-z_]\w*)")
PYTHON_NAME = re.compile(r"^dispatch\.([A-Z]\w+)$")


def public(name: str) -> Any:
    return getattr(dispatch, name, getattr(dispatch.testing, name, None))


def members(kind: Any) -> set[str]:
    """The attributes of a class: those of its body and its annotations, and those that its methods set."""
    source = inspect.getsource(kind)
    return {*dir(kind), *re.findall(r"self\.(\w+)", source), *re.findall(r"^    (\w+):", source, re.MULTILINE)}


def parameters(called: Any) -> set[str]:
    if inspect.isclass(called) and issubclass(called, msgspec.Struct):
        return set(called.__struct_fields__)  # the signature needs names that are imported for type checkers only
    return set(inspect.signature(called).parameters)


def unknown_names(code: str) -> str | None:
    """Return the mistake in a piece of inline code; None if every name is known."""
    if (found := PYTHON_NAME.match(code)) and public(found[1]) is None:
        return f"no {found[1]} in dispatch"
    if (found := METHOD_CALL.match(code)) and found[1] not in members(dispatch.Dispatcher):
        return f"Dispatcher has no {found[1]}"
    if (
        (found := MEMBER.match(code))
        and inspect.isclass(public(found[1]))
        and found[2] not in members(public(found[1]))
    ):
        return f"{found[1]} has no {found[2]}"
    if (found := CALL.match(code)) and callable(public(found[1])):
        own = re.sub(r"(?<=.)\([^()]*\)", "", code[code.index("(") + 1 : -1])  # without those of nested calls
        for keyword in re.findall(r"(?:^|\s)(\w+)=", own):
            if keyword not in parameters(public(found[1])):
                return f"{found[1]} has no parameter {keyword}"
    return None


@pytest.mark.costly
@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_the_names_of_a_page_exist(page: Path) -> None:
    codes = re.findall(r"`([^`\n]+)`", prose(page))
    assert [f"`{code}`: {problem}" for code in codes if (problem := unknown_names(code))] == []


@pytest.mark.parametrize(
    "code",
    [
        "dispatch.Kettle",
        "ToolServer(kettle=1)",
        "dispatcher.boil()",
        "ToolServer.kettle",
        "dispatch.serve(Joke(), broker, kettle=1)",
    ],
)
def test_a_name_that_does_not_exist_is_noticed(code: str) -> None:
    assert unknown_names(code)
