from __future__ import annotations

import contextlib
import logging
import pickle
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dispatch.catalog import Catalog, CatalogError, Item, Problem, VersionMismatchError, check_items, load_items
from dispatch.catalog.catalog import fingerprint
from dispatch.catalog.items import Unreadable
from dispatch.documents import MAX_PROBLEMS_PER_ITEM, Report
from tests.helpers.catalog_items import (
    JOKE_SERVICE,
    TELL_JOKE,
    assert_problem,
    check,
    only,
    service_item,
    tool_item,
    without,
)


def test_services_and_tools_in_any_order() -> None:
    assert load_items([tool_item(), service_item()]) == load_items([service_item(), tool_item()])


def test_no_items_make_an_empty_catalogue() -> None:
    assert check_items([]) == (Catalog.empty(), [])


def test_several_tools_over_one_service_with_different_config() -> None:
    rag = JOKE_SERVICE | {"id": "custom-rag", "config-params": [{"name": "collection", "required": True}]}
    tool = without(TELL_JOKE, "style") | {"service": "custom-rag"}
    tools = [tool | {"name": f"query-{name}", "collection": name} for name in ("customers", "products")]
    catalog = Catalog.of([rag], tools)
    found = {name: tool.config for name, tool in catalog.tools.items()}
    assert found == {"query-customers": {"collection": "customers"}, "query-products": {"collection": "products"}}


@pytest.mark.parametrize("raw", [None, 3, "x", [], True])
def test_an_item_that_is_not_an_object(raw: object) -> None:
    for kind in ("tool-service", "tool"):
        problem = only(check(Item("f.json", kind, "x", raw)))
        assert (problem.file, problem.key) == ("f.json", "")
        assert "not an object" in problem.problem
        assert "write one object" in problem.fix


def in_crm(item: Item) -> Item:
    return msgspec.structs.replace(item, namespace="crm")


OF_JOKES = TELL_JOKE | {"service": "jokes"}
OLD = TELL_JOKE | {"version": "1.0.0"}
A_TOOL = tool_item(file="a")
OTHER_VERSION = "'1.0.0' differs from the version '2.0.0' in the item's key"
KEY_OF_JOKES = 'write "service": "joke-service": that is the id in the item \'jokes\''


@pytest.mark.parametrize(
    ("items", "key", "problem", "fix"),
    [
        ([Item("f", "tool", "x", '{"type": "tool-service"}')], "", "not an object", "remove the quotes"),
        ([Item("f", "flow", "x", {})], "", "'flow' is not a kind", "tool-service or tool"),
        ([Item("f", "tool", "x", {1, 2})], "", "a set is not a JSON value", ""),
        ([service_item(JOKE_SERVICE | {"version": {1}}, "f")], "version", "a set is not a JSON value", ""),
        ([service_item(file="a"), service_item(file="f")], "id", "'joke-service' is already used by a", "another id"),
        ([service_item(), A_TOOL, tool_item(file="f")], "name", "'tell-joke' is already used by a", "another name"),
        ([service_item(), *[tool_item(file="f")] * 2], "name", "'tell-joke' is already used by f", "another name"),
        (
            [service_item(), tool_item(OLD, "a"), tool_item(OLD, "f")],
            "name",
            "the tool name 'tell-joke' with the version '1.0.0' is already used by a",
            "another name or version",
        ),
        (
            [service_item(), tool_item(TELL_JOKE | {"service": "joke_servcie"}, "f")],
            "service",
            "there is no tool service 'joke_servcie'",
            'write "service": "joke-service"; known services: joke-service',
        ),
        (
            [service_item(), tool_item(TELL_JOKE | {"service": "weather"}, "f")],
            "service",
            "there is no tool service 'weather'",
            "add a tool service with the id 'weather'; known services: joke-service",
        ),
        ([service_item(key="jokes"), tool_item(OF_JOKES, "f")], "service", "", KEY_OF_JOKES),
        ([in_crm(service_item(key="jokes")), in_crm(tool_item(OF_JOKES, "f"))], "service", "", KEY_OF_JOKES),
        ([in_crm(service_item()), tool_item(file="f")], "service", "", ""),
        # A service that has mistakes is not called unknown.
        ([service_item(JOKE_SERVICE | {"version": "x"}, "f"), A_TOOL], "version", "", ""),
        ([service_item(JOKE_SERVICE | {"version": "x"}, "f"), in_crm(A_TOOL)], "version", "", ""),
        ([in_crm(service_item(JOKE_SERVICE | {"version": "x"}, "f")), in_crm(A_TOOL)], "version", "", ""),
        ([in_crm(service_item(JOKE_SERVICE | {"id": "s" * 253}, "f"))], "id", "257 characters", "at most 256"),
        (
            [service_item(), in_crm(tool_item(TELL_JOKE | {"name": "t" * 61}, "f"))],
            "name",
            "65 characters with the namespace 'crm'",
            "at most 64",
        ),
        ([service_item(), tool_item(OLD, "f", "tell-joke@2.0.0")], "version", OTHER_VERSION, "remove 'version'"),
        (
            [service_item(JOKE_SERVICE | {"version": "1.0.0"}, "f", "joke-service@2.0.0")],
            "version",
            OTHER_VERSION,
            "remove 'version'",
        ),
    ],
)
def test_one_mistake_of_items_together(items: list[Item], key: str, problem: str, fix: str) -> None:
    found = only(check(*items))
    assert found.file == "f"
    assert_problem(found, key, problem, fix)


def test_without_any_service_none_is_listed_as_known() -> None:
    assert only(check(tool_item())).fix == "add a tool service with the id 'joke-service'"


def test_a_service_whose_id_is_not_known_may_be_the_one_that_is_meant() -> None:
    unknown: list[object] = [without(JOKE_SERVICE, "id"), [], Unreadable()]
    for raw in unknown:
        assert all(problem.key != "service" for problem in check_items([service_item(raw, key=""), tool_item()])[1])


def test_another_service_with_mistakes_hides_no_unknown_one() -> None:
    service = service_item(JOKE_SERVICE | {"version": "x"}, key="")
    problems = check(service, tool_item(TELL_JOKE | {"service": "weather"}))
    assert [problem.key for problem in problems] == ["version", "service"]


def test_a_service_that_could_not_be_read_is_not_called_unknown() -> None:
    catalog, problems = check_items([service_item(Unreadable()), tool_item()])
    assert catalog is None  # a part of the tools is not the catalogue
    assert problems == []  # its source has said what is wrong


def test_a_tool_that_could_not_be_read_keeps_the_rest_from_loading() -> None:
    assert check_items([service_item(), tool_item(Unreadable())]) == (None, [])


@pytest.mark.parametrize(
    "tool_type", ["knowledge-query", "text-completion", "mcp-tool", "prompt", "structured-query", ""]
)
def test_tools_of_other_types_are_ignored(tool_type: str) -> None:
    other = tool_item({"type": tool_type, "name": 1, "mcp-tool": "x"}, "tool/o.json", "o")
    items = [service_item(), tool_item(), other]
    assert not check(*items)
    note = only(check(*items, severity="info"))
    assert (note.file, note.key) == ("tool/o.json", "type")
    assert "not dispatch's" in note.problem
    assert '"type": "tool-service"' in note.fix
    assert list(load_items(items).tools) == ["tell-joke"]


def test_errors_of_all_items_are_listed_services_first() -> None:
    problems = check(
        tool_item(TELL_JOKE | {"tags": 1}, "tool/a.json"),
        tool_item(TELL_JOKE | {"name": "other", "author": 1}, "tool/b.json"),
        service_item(JOKE_SERVICE | {"version": 1}, "tool-service/s.json"),
    )
    found = [(problem.file, problem.key) for problem in problems]
    assert found == [("tool-service/s.json", "version"), ("tool/a.json", "tags"), ("tool/b.json", "author")]


def test_loading_is_atomic() -> None:
    with pytest.raises(CatalogError) as raised:
        load_items([service_item(), tool_item(), tool_item(TELL_JOKE | {"name": "b", "tags": 1}, "tool/b.json")])
    assert [problem.key for problem in raised.value.problems] == ["tags"]
    assert str(raised.value).startswith("The tools cannot be loaded: 1 mistake.\n")
    assert 'tool/b.json: tags: \'tags\' is a number, not a list. Fix: write "tags": ["fun"].' in str(raised.value)


def test_warnings_are_logged_when_the_catalogue_loads(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "dispatch.catalog"):
        load_items([service_item(JOKE_SERVICE | {"colour": "red"}), tool_item({"type": "prompt"}, "p.json")])
    found = [record.getMessage() for record in caplog.records]
    assert found == ["tool-service/joke-service.json: colour: an unknown key, which is ignored. Fix: remove it."]


OPTIONAL = [
    "instances",
    "version",
    "policy",
    "requires",
    "permissions",
    "tags",
    "read-only",
    "destructive",
    "output-schema",
    "category",
    "rollout",
    "group",
    "state",
    "applicable-states",
    "input-schema",
]
KEYS = st.sampled_from([*JOKE_SERVICE, *TELL_JOKE, *OPTIONAL, "weight", "timeout", "required"])
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=8)
    | st.sampled_from(
        [
            "tool-service",
            "joke-service",
            "string",
            "request:tg:a",
            "persistent://a/b/c",
            "1.0.0",
            "style",
            "^1",
            "object",
        ]
    ),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(KEYS | st.text(st.characters(), max_size=4), inner, max_size=8)
    ),
    max_leaves=25,
)
RAW = (
    VALUES
    | st.dictionaries(KEYS, VALUES).map(lambda d: JOKE_SERVICE | d)
    | st.dictionaries(KEYS, VALUES).map(lambda d: TELL_JOKE | d)
)


@pytest.mark.costly
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no failure
@given(
    st.lists(
        st.builds(
            Item,
            st.sampled_from(["a.json", "b.json"]),
            st.sampled_from(["tool-service", "tool", "x"]),
            st.text(max_size=5) | st.sampled_from(["a@1.0.0", "a@2.0.0-rc.1"]),
            RAW,
            st.sampled_from(["", "crm"]),
        ),
        max_size=5,
    )
)
def test_the_loader_never_raises_whatever_an_item_holds(items: list[Item]) -> None:
    catalog, problems = check_items(items)
    assert (catalog is None) == any(problem.severity == "error" for problem in problems)
    for problem in problems:
        assert problem.file
        assert problem.problem
        assert problem.fix
        assert str(problem).isprintable()
    if catalog is not None:
        for tool in catalog.iterate_tools():
            assert tool.service in catalog.services
            assert tool in catalog.versions(tool.name)
            with contextlib.suppress(VersionMismatchError):
                assert len(fingerprint(tool, catalog.service_of(tool))) == 64
        assert pickle.loads(pickle.dumps(catalog)) == catalog


def test_the_error_shows_every_error_and_warning_and_keeps_the_notes() -> None:
    problems = [
        Problem("a.json", "x", "one", "correct one", "warning"),
        Problem("b.json", "", "two", "correct two"),
        Problem("c.json", "z", "three", "correct three"),
        Problem("d.json", "n", "note", "nothing", "info"),
    ]
    error = CatalogError(problems)
    assert pickle.loads(pickle.dumps(error)).problems == error.problems
    lines = str(error).splitlines()
    assert lines[0] == "The tools cannot be loaded: 2 mistakes."
    assert [line.strip() for line in lines[1:]] == [
        "b.json: two. Fix: correct two.",
        "c.json: z: three. Fix: correct three.",
        "Warning: a.json: x: one. Fix: correct one.",
    ]
    assert error.problems == tuple(problems)
    assert isinstance(error, ValueError)


def test_of_one_key_only_the_first_error_is_kept() -> None:
    report = Report("a.json")
    report.add_error("weight", "no JSON number", "x")
    report.add_error("weight", "missing", "y")
    report.add_warning("weight", "odd", "z")
    assert [problem.problem for problem in report.problems] == ["no JSON number", "odd"]


def test_problems_beyond_the_limit_are_counted() -> None:
    report = Report("a.json")
    for index in range(MAX_PROBLEMS_PER_ITEM):
        report.add_warning(f"w{index}", "odd", "x")
    report.add_error("e", "wrong", "y")
    report.add_error("f", "wrong", "y")
    *kept, rest = report.problems
    assert len(kept) == MAX_PROBLEMS_PER_ITEM
    assert rest.problem == "2 more problems are not listed"
    assert rest.severity == "error"  # the errors among them must not get lost
