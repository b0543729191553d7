"""
Catalogues with several versions of one tool or service.
The differences between two catalogues.

The tools that an agent is offered, by group and state, as TrustGraph's agent offers them.
"""

from __future__ import annotations

import gc
import hashlib
import inspect
import pickle
import time
import tracemalloc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given
from trustgraph.agent.tool_filter import filter_tools_by_group_and_state, validate_tool_config

from dispatch.catalog import (
    Catalog,
    CatalogError,
    Item,
    ServiceDescriptor,
    ToolDescriptor,
    UnknownServiceError,
    UnknownToolError,
    VersionMismatchError,
    load_items,
)
from dispatch.catalog.catalog import (
    CatalogChanges,
    ListConditions,
    NameChanges,
    compare,
    fingerprint,
    service_fingerprint,
)
from dispatch.catalog.items import OnChange
from dispatch.catalog.merge import Merger
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
from tests.helpers.dispatcher_and_service import tool_of, topics_of
from tests.helpers.run_profile import by_profile

STORY = JOKE_SERVICE | {
    "id": "story-service",
    "request-queue": "request:tg:story",
    "response-queue": "response:tg:story",
}


@pytest.fixture
def catalog() -> Catalog:
    return Catalog.of(
        [JOKE_SERVICE, STORY],
        [
            TELL_JOKE | {"category": "fun", "tags": ["text", "short"]},
            TELL_JOKE | {"name": "tell-story", "service": "story-service", "category": "fun", "tags": ["text", "long"]},
            TELL_JOKE | {"name": "calculate", "category": "math"},
        ],
    )


def names(tools: tuple[ToolDescriptor, ...]) -> list[str]:
    return [tool.name for tool in tools]


def test_the_service_behind_a_tool(catalog: Catalog) -> None:
    assert catalog.service_of("tell-story").id == "story-service"
    assert catalog.service_of(catalog.tool("calculate")).id == "joke-service"
    with pytest.raises(UnknownToolError):
        catalog.service_of("tel-story")
    with pytest.raises(UnknownServiceError):
        Catalog.empty().service_of(catalog.tool("calculate"))


def test_an_unknown_tool_tells_a_model_what_to_do(catalog: Catalog) -> None:
    with pytest.raises(UnknownToolError) as raised:
        catalog.tool("tel-joke")
    assert str(raised.value) == (
        "There is no tool 'tel-joke'. Did you mean 'tell-joke'? Known tools: tell-joke, tell-story, calculate."
    )
    assert raised.value.name == "tel-joke"
    assert raised.value.near[0] == "tell-joke"
    assert isinstance(raised.value, LookupError)
    with pytest.raises(UnknownToolError) as raised:
        catalog.tool("send-email")
    assert raised.value.near == ()
    assert str(raised.value) == "There is no tool 'send-email'. Known tools: tell-joke, tell-story, calculate."
    with pytest.raises(UnknownToolError, match=r"^There is no tool 'x'\. No tools are loaded\.$"):
        Catalog.empty().tool("x")


@pytest.mark.parametrize("name", ["Tell-Joke", "tell_joke", "TELL JOKE"])
def test_names_that_differ_in_case_or_separators_are_suggested_first(catalog: Catalog, name: str) -> None:
    with pytest.raises(UnknownToolError) as raised:
        catalog.tool(name)
    assert raised.value.near[0] == "tell-joke"


def test_the_message_is_bounded() -> None:
    catalog = Catalog.of([JOKE_SERVICE], [TELL_JOKE | {"name": f"tool-{n}"} for n in range(500)])
    with pytest.raises(UnknownToolError, match="and 480 more") as raised:
        catalog.tool("\x1b" * 100_000)
    assert len(str(raised.value)) < 1_000
    assert str(raised.value).isprintable()


def test_an_unknown_service(catalog: Catalog) -> None:
    with pytest.raises(UnknownServiceError, match=r"no tool service 'joke'\..* Known tool services: joke-service, st"):
        catalog.service("joke")


def test_the_errors_can_be_pickled(catalog: Catalog) -> None:
    for ask in (catalog.tool, catalog.service):
        with pytest.raises(LookupError) as raised:
            ask("joke-servise")
        copy = pickle.loads(pickle.dumps(raised.value))
        assert type(copy) is type(raised.value)
        assert str(copy) == str(raised.value)


def test_an_unknown_condition_is_named(catalog: Catalog) -> None:
    with pytest.raises(TypeError, match=r"^Unexpected keyword argument 'tags': did you mean 'tags_any'\?$"):
        catalog.list(tags="long")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^Unexpected keyword argument 'kind': the keywords are category, tags_any, "):
        catalog.list(kind="fun")  # type: ignore[call-arg]


def test_listing_by_category_tags_and_service(catalog: Catalog) -> None:
    assert names(catalog.list()) == ["tell-joke", "tell-story", "calculate"]
    assert names(catalog.list(category="fun")) == ["tell-joke", "tell-story"]
    assert names(catalog.list(tags_any=["long", "nothing"])) == ["tell-story"]
    assert names(catalog.list(tags_any=iter(["text"]))) == ["tell-joke", "tell-story"]
    assert names(catalog.list(tags_any="long")) == ["tell-story"]
    assert names(catalog.list(groups="default")) == ["tell-joke", "tell-story", "calculate"]
    assert names(catalog.list(groups="d")) == []
    assert names(catalog.list(service="joke-service")) == ["tell-joke", "calculate"]
    assert names(catalog.list(category="fun", tags_any=["short"], service="story-service")) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda c: setattr(c, "tools", {}),
        lambda c: delattr(c, "tools"),
        lambda c: c.tools.clear(),
        lambda c: c.services.pop("joke-service"),
        lambda c: setattr(c, "other", 1),
    ],
)
def test_a_catalogue_is_immutable(catalog: Catalog, change: Callable[[Any], object]) -> None:
    before = list(catalog.tools)
    with pytest.raises((AttributeError, TypeError), match="immutable"):
        change(catalog)
    assert list(catalog.tools) == before


def test_catalogues_of_the_same_content_are_equal(catalog: Catalog) -> None:
    versions = Catalog.of(JOKES, [tool("1.5.0"), tool("1.4.0")])
    for each in (catalog, versions):
        same = pickle.loads(pickle.dumps(each))
        assert same == each
        assert hash(same) == hash(each)
        assert same.versions("tell-joke") == each.versions("tell-joke")
    assert versions != Catalog.of(JOKES, [tool("1.5.0")])
    assert catalog != Catalog.empty()
    assert catalog != "catalog"
    assert repr(catalog) == "<Catalog: 2 services, 3 tools>"


def test_errors_in_python_values_have_their_position() -> None:
    with pytest.raises(CatalogError) as raised:
        Catalog.of([JOKE_SERVICE], [TELL_JOKE, TELL_JOKE | {"name": "b", "arguments": 1}])
    assert [(problem.file, problem.key) for problem in raised.value.problems] == [("tools[1]", "arguments")]


def test_inconsistent_descriptors_are_an_error() -> None:
    service = ServiceDescriptor("s", "non-persistent://a/b/c", "non-persistent://a/b/d")
    tool = ToolDescriptor("t", "does", "s")
    assert Catalog([service], [tool]).service_of("t") is service
    with pytest.raises(ValueError, match="the tool 't' refers to the service 's'"):
        Catalog([], [tool])
    with pytest.raises(ValueError, match="duplicate service id or tool name"):
        Catalog([service, service])
    with pytest.raises(ValueError, match="duplicate service id or tool name"):
        Catalog([service], [tool, tool])


@pytest.fixture(scope="module")
def large() -> Catalog:
    """10,000 tools."""
    return Catalog.of(
        [JOKE_SERVICE],
        [
            TELL_JOKE | {"name": f"tool-{n}", "description": f"Does the work number {n} of many. " * 5, "tags": ["all"]}
            for n in range(10_000)
        ],
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("TELL-JOKE", ["tell-joke"]),
        ("story", ["tell-story"]),
        ("Given Topic", ["tell-joke", "tell-story", "calculate"]),
        ("SHORT", ["tell-joke"]),
        ("straße", []),
        ("", ["tell-joke", "tell-story", "calculate"]),
        ("tell-joke\ntell", []),
    ],
)
def test_listing_by_a_text_in_name_description_or_tags(catalog: Catalog, text: str, found: list[str]) -> None:
    assert names(catalog.list(text=text)) == found


def test_letters_that_are_equal_in_another_case_are_found() -> None:
    catalog = Catalog.of([JOKE_SERVICE], [TELL_JOKE | {"description": "Zeigt die STRASSE"}])
    assert names(catalog.list(text="straße")) == ["tell-joke"]


def test_listing_by_a_permission_of_the_tool_or_of_its_service() -> None:
    catalog = Catalog.of(
        [JOKE_SERVICE, STORY | {"permissions": ["tools:story"]}],
        [
            TELL_JOKE | {"permissions": ["tools:joke", "tools:fun"]},
            TELL_JOKE | {"name": "tell-story", "service": "story-service", "permissions": ["tools:fun"]},
            TELL_JOKE | {"name": "calculate"},
        ],
    )
    assert names(catalog.list(permission="tools:fun")) == ["tell-joke", "tell-story"]
    assert names(catalog.list(permission="tools:story")) == ["tell-story"]
    assert names(catalog.list(permission="tools:*")) == []
    assert catalog.permissions_of(catalog.tool("tell-story")) == ("tools:fun", "tools:story")
    assert catalog.permissions_of(catalog.tool("calculate")) == ()


def test_listing_by_source(catalog: Catalog) -> None:
    assert len(catalog.list(source="code")) == 3
    assert catalog.list(source="directory") == ()


@pytest.mark.costly
def test_listing_10_000_tools_by_text_is_fast(large: Catalog) -> None:
    def seconds() -> float:
        started = time.process_time()
        assert names(large.list(text="NUMBER 777 OF")) == ["tool-777"]
        return time.process_time() - started

    assert min(seconds() for _ in range(10)) < 0.025  # 3 ms, with room for a busy machine


@pytest.mark.long
def test_a_tool_among_10_000_requires_at_most_1_kib_beside_its_raw_descriptor() -> None:
    tools = by_profile(short=2_000, long=10_000)
    raw = [
        TELL_JOKE | {"name": f"tool-{n}", "description": f"Does the work number {n} of many.", "tags": ["all", "fun"]}
        for n in range(tools)
    ]
    items = [service_item(), *(tool_item(one, one["name"], one["name"]) for one in raw)]
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        catalog = load_items(items)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(catalog.tools) == tools
    assert (after - before) / tools <= 1_024


@pytest.mark.costly
def test_descriptors_share_their_empty_values(large: Catalog) -> None:
    one, other = large.tool("tool-1"), large.tool("tool-2")
    for attribute in ("policy", "rollout", "permissions", "groups", "applicable_states"):
        assert getattr(one, attribute) is getattr(other, attribute)
    assert not gc.is_tracked(one)


def test_the_registry_lists_by_the_same_conditions() -> None:
    arguments = [name for name in inspect.signature(Catalog.list).parameters if name != "self"]
    assert arguments == [*ListConditions.__annotations__]


JOKES = [JOKE_SERVICE | {"version": version} for version in ("1.0.0", "2.0.0", "1.5.0")]


def tool(version: str | None, **keys: object) -> dict[str, object]:
    return TELL_JOKE | {key.replace("_", "-"): value for key, value in keys.items()} | {"version": version}


@pytest.fixture
def catalog_versions() -> Catalog:
    other = TELL_JOKE | {"name": "other"}
    return Catalog.of(JOKES, [tool("1.4.0"), tool("2.0.0-rc.1"), other, tool("1.5.0"), tool(None)])


def test_the_default_version_of_each_tool_and_service(catalog_versions: Catalog) -> None:
    found = [(each.name, each.version) for each in catalog_versions.tools.values()]
    assert found == [("tell-joke", "1.5.0"), ("other", None)]
    assert [each.version for each in catalog_versions.services.values()] == ["2.0.0"]
    assert catalog_versions.tool("tell-joke").version == "1.5.0"
    assert catalog_versions.service("joke-service").version == "2.0.0"


def test_all_versions_are_listed_the_highest_first(catalog_versions: Catalog) -> None:
    assert [each.version for each in catalog_versions.versions("tell-joke")] == ["2.0.0-rc.1", "1.5.0", "1.4.0", None]
    assert catalog_versions.versions("other") == (catalog_versions.tool("other"),)
    assert [each.version for each in catalog_versions.service_versions("joke-service")] == ["2.0.0", "1.5.0", "1.0.0"]
    with pytest.raises(UnknownToolError):
        catalog_versions.versions("nothing")
    with pytest.raises(UnknownServiceError):
        catalog_versions.service_versions("nothing")


@pytest.mark.parametrize(("range", "version"), [("*", "1.5.0"), ("~1.4", "1.4.0"), ("2.0.0-rc.1", "2.0.0-rc.1")])
def test_a_range_selects_a_version(catalog_versions: Catalog, range: str, version: str) -> None:
    assert catalog_versions.tool("tell-joke", range).version == version
    assert [each.version for each in catalog_versions.list(version=range)] == [version]


def test_a_range_without_a_version_names_those_that_there_are(catalog_versions: Catalog) -> None:
    with pytest.raises(VersionMismatchError) as raised:
        catalog_versions.tool("tell-joke", "^3")
    found = str(raised.value)
    assert found == "No version of the tool 'tell-joke' satisfies '^3'. Available versions: 2.0.0-rc.1, 1.5.0, 1.4.0."
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
    with pytest.raises(VersionMismatchError, match="It declares no version"):
        catalog_versions.tool("other", "*")
    assert catalog_versions.list(version="^3") == ()


@pytest.mark.parametrize("range", ["newest", "1.2.3.4"])
def test_a_text_that_is_no_range(catalog_versions: Catalog, range: str) -> None:
    with pytest.raises(ValueError, match="is not a version range"):
        catalog_versions.tool("tell-joke", range)
    with pytest.raises(ValueError, match="is not a version range"):
        catalog_versions.list(version=range)


@pytest.mark.parametrize(
    ("requires", "version"), [("^1", "1.5.0"), ("1.0.0", "1.0.0"), (">1", "2.0.0"), (None, "2.0.0")]
)
def test_the_service_of_a_tool_satisfies_its_requires(requires: str | None, version: str) -> None:
    assert Catalog.of(JOKES, [tool("1.0.0", requires=requires)]).service_of("tell-joke").version == version


def test_no_version_of_the_service_satisfies_requires() -> None:
    instance = {"id": "a", "request-queue": "request:tg:a", "version": "1.7.0"}
    service = JOKE_SERVICE | {"version": "1.0.0", "instances": [instance]}
    catalog_versions = Catalog.of([service], [tool(None, requires="^3")])
    with pytest.raises(VersionMismatchError, match=r"tool service 'joke-service' satisfies '\^3'.*: 1.0.0, 1.7.0\.$"):
        catalog_versions.service_of("tell-joke")
    assert catalog_versions.service_or_default(catalog_versions.tool("tell-joke")).version == "1.0.0"
    assert len(catalog_versions.list(permission="none")) == 0


def test_config_params_are_those_of_the_version_of_the_service_that_is_required() -> None:
    services = [JOKE_SERVICE | {"version": "1.0.0"}, JOKE_SERVICE | {"version": "2.0.0", "config-params": []}]
    catalog_versions = Catalog.of(services, [tool("1.0.0", requires="^1"), tool("2.0.0")])
    assert [each.config for each in catalog_versions.versions("tell-joke")] == [{}, {"style": "pun"}]


def test_the_key_of_an_item_has_the_defaults_of_name_and_version() -> None:
    raw = without(TELL_JOKE, "name")
    items = [
        service_item(without(JOKE_SERVICE, "id"), key="joke-service@1.0.0"),
        tool_item(raw, "tool/tell-joke@2.0.0.json", "tell-joke@2.0.0"),
        tool_item(raw, "tool/tell-joke@1.0.0.json", "tell-joke@1.0.0"),
    ]
    catalog_versions = load_items(items)
    assert [each.version for each in catalog_versions.versions("tell-joke")] == ["2.0.0", "1.0.0"]
    assert catalog_versions.service("joke-service").version == "1.0.0"


def test_a_tool_is_offered_once_by_name_and_listed_with_its_source() -> None:
    catalog_versions = Catalog.of(JOKES, [tool("1.0.0"), tool("2.0.0")])
    assert [each.version for each in catalog_versions.list()] == ["2.0.0"]
    services, tools = catalog_versions.services.values(), catalog_versions.versions("tell-joke")
    merged = Catalog(services, tools, source="code", sources={"tell-joke": "trustgraph"})
    assert merged.source_of("tell-joke") == "trustgraph"
    assert catalog_versions.source_of("tell-joke") == "code"
    assert len(merged.list(source="trustgraph")) == 1
    assert merged.list(source="code") == ()


def namespaced(item: Item, namespace: str = "crm") -> Item:
    return msgspec.structs.replace(item, namespace=namespace)


def test_a_namespace_is_the_prefix_of_names_ids_and_services() -> None:
    catalog_versions = load_items([namespaced(service_item()), namespaced(tool_item()), service_item(), tool_item()])
    assert list(catalog_versions.tools) == ["crm-tell-joke", "tell-joke"]
    assert list(catalog_versions.services) == ["crm-joke-service", "joke-service"]
    assert catalog_versions.service_of("crm-tell-joke").id == "crm-joke-service"
    assert catalog_versions.service_of("tell-joke").id == "joke-service"


def test_a_tool_in_a_namespace_may_use_a_service_without_a_prefix() -> None:
    tools = (tool_item(TELL_JOKE | {"name": name}, key=name) for name in ("tell-joke", "t" * 60))
    catalog_versions = load_items([service_item(), *map(namespaced, tools)])
    assert catalog_versions.service_of("crm-tell-joke").id == "joke-service"
    assert catalog_versions.tool("crm-tell-joke").config == {"style": "pun"}


@pytest.mark.parametrize(
    ("service", "requires", "known"),
    [({}, "*", "declares no version"), ({"version": "1.0.0"}, "^2", "has the version 1.0.0")],
)
def test_a_range_that_no_service_satisfies_is_a_warning(service: dict[str, str], requires: str, known: str) -> None:
    items = (service_item(JOKE_SERVICE | service), tool_item(TELL_JOKE | {"requires": requires}))
    warning = only(check(*items, severity="warning"))
    assert_problem(warning, "requires", known)
    assert "each call is rejected" in warning.problem


@pytest.mark.parametrize(
    ("tools", "file", "key", "problem"),
    [
        (
            [tool("1.0.0", rollout={"2.0.0": 5, "1.5.0": 5}), tool("1.5.0")],
            "0.json",
            "rollout['2.0.0']",
            "there is no version 2.0.0 of 'tell-joke'",
        ),
        (
            [tool("3.0.0"), tool("1.0.0", rollout={"2.0.0": 5, "2.1.0": 5}), tool("2.0.0")],
            "1.json",
            "rollout",
            "the default version is 3.0.0",
        ),
    ],
)
def test_a_rollout_without_effect_is_a_warning(
    tools: list[dict[str, object]], file: str, key: str, problem: str
) -> None:
    items = [tool_item(raw, f"{index}.json", f"tell-joke@{raw['version']}") for index, raw in enumerate(tools)]
    warning = only(check(service_item(), *items, severity="warning"))
    assert warning.file == file
    assert_problem(warning, key, problem)


def test_a_rollout_in_force_and_a_range_that_an_instance_satisfies_are_no_warnings() -> None:
    instance = {"id": "a", "request-queue": "request:tg:a", "version": "2.0.0"}
    tools = (tool("1.0.0", rollout={"2.0.0": 5}), tool("2.0.0", requires="^2"))
    items = [tool_item(raw, f"{raw['version']}.json") for raw in tools]
    assert check(service_item(JOKE_SERVICE | {"instances": [instance]}), *items, severity="warning") == []


def merged(*sources: tuple[str, OnChange, list[Item]]) -> Merger:
    merger = Merger()
    for id, on_change, items in sources:
        merger.add_source(id, on_change=on_change)
        merger.set_items(id, items)
    return merger


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_a_merged_tool_uses_the_version_of_the_service_that_it_requires(order: tuple[int, ...]) -> None:
    services = [service_item(JOKES[index], f"{index}.json", f"s{index}") for index in order]
    merger = merged(("a", "apply", services), ("b", "apply", [tool_item(TELL_JOKE | {"requires": "^1"})]))
    catalog_versions = merger.merge().catalog
    assert catalog_versions.service_of("tell-joke").version == "1.5.0"
    assert catalog_versions.source_of("tell-joke") == "b"
    assert len(catalog_versions.list(source="b")) == 1
    assert catalog_versions.list(source="a") == ()


def test_a_service_of_another_version_leaves_the_fingerprint_of_a_tool_unchanged() -> None:
    moved = JOKE_SERVICE | {"version": "3.0.0", "request-queue": "request:tg:moved"}
    tools = [tool_item(TELL_JOKE | {"requires": "^1"})]
    merger = merged(("services", "apply", [service_item(JOKES[0])]), ("tools", "hold", tools))
    merger.merge()
    merger.set_items("services", [service_item(moved, "3.json", "s3"), service_item(JOKES[0])])
    assert merger.merge().reports["tools"].held == ()
    merger.set_items("services", [service_item(JOKES[0] | {"request-queue": "request:tg:moved"})])
    assert [held.name for held in merger.merge().reports["tools"].held] == ["tell-joke"]


def test_an_unchanged_item_of_several_versions_is_the_same_descriptor_after_a_merge() -> None:
    versions = ("1.0.0", "2.0.0", "3.0.0")
    items = [tool_item(tool(version), f"{version}.json", f"tell-joke@{version}") for version in versions]
    merger = merged(("a", "apply", [service_item(), *items]))
    before = merger.merge().catalog
    merger.set_items("a", [service_item(), items[0], items[2]])
    after = merger.merge().catalog
    assert [each.version for each in after.versions("tell-joke")] == ["3.0.0", "1.0.0"]
    assert after.tool("tell-joke") is before.tool("tell-joke")


def test_versions_of_one_name_come_from_one_source() -> None:
    one = [service_item(), tool_item(tool("1.0.0"))]
    other = [tool_item(tool("2.0.0"), "other.json"), tool_item(tool("3.0.0"), "third.json", "third")]
    merger = merged(("a", "apply", one), ("b", "apply", other))
    result = merger.merge()
    assert [each.version for each in result.catalog.versions("tell-joke")] == ["1.0.0"]
    assert [each.name for each in result.reports["b"].shadowed] == ["tell-joke"]
    merger.remove_source("a")
    merger.set_items("b", [service_item(), *other])
    assert [each.version for each in merger.merge().catalog.versions("tell-joke")] == ["3.0.0", "2.0.0"]


def catalog_changes(tools: dict[str, str], **services: Any) -> Catalog:
    """The tools by name with their service, and the services with their policies."""
    return Catalog.of(
        [{"id": id, **topics_of(id), "policy": policy} for id, policy in services.items()],
        [tool_of(service, name) for name, service in tools.items()],
    )


def test_equal_catalogues_have_no_changes() -> None:
    one = catalog_changes({"a": "x"}, x={})
    for other in (one, catalog_changes({"a": "x"}, x={})):
        changes = compare(one, other)
        assert changes == CatalogChanges()
        assert not changes


def test_changes_are_listed_by_kind() -> None:
    former = catalog_changes({"a": "x", "b": "x", "c": "y"}, x={}, y={}, z={})
    new = catalog_changes({"d": "x", "c": "x", "b": "x"}, x={}, y={"retry": 1}, v={})
    changes = compare(former, new)
    assert changes.tools == NameChanges(added=("d",), changed=("c",), removed=("a",))
    assert changes.services == NameChanges(added=("v",), changed=("y",), removed=("z",))
    assert list(changes.tools) == ["d", "c", "a"]
    assert changes


def test_the_tools_of_a_changed_service_have_changed() -> None:
    former = catalog_changes({"a": "x", "b": "y"}, x={}, y={})
    new = catalog_changes({"a": "x", "b": "y"}, x={"retry": 1}, y={})
    assert compare(former, new) == CatalogChanges(NameChanges(changed=("a",)), NameChanges(changed=("x",)))


catalogs = st.builds(
    lambda tools, policies: catalog_changes(tools, **policies),
    st.dictionaries(st.sampled_from("abcd"), st.sampled_from("xy"), max_size=4),
    st.fixed_dictionaries({id: st.sampled_from([{}, {"retry": 1}]) for id in "xy"}),
)


@given(catalogs, catalogs)
def test_every_name_is_listed_once_and_only_if_it_differs(former: Catalog, new: Catalog) -> None:
    changes = compare(former, new)

    def contents(each: Catalog) -> dict[str, Any]:
        return {name: (tool, each.service_of(tool)) for name, tool in each.tools.items()}

    before, after = contents(former), contents(new)
    assert set(changes.tools.added) == after.keys() - before.keys()
    assert set(changes.tools.removed) == before.keys() - after.keys()
    assert set(changes.tools.changed) == {name for name in before.keys() & after.keys() if before[name] != after[name]}
    assert len(list(changes.tools)) == len(set(changes.tools))


INSTANCE = {"id": "a", "request-queue": "request:tg:a", "response-queue": "response:tg:a"}


def tool_print(service: dict[str, Any] = JOKE_SERVICE, **changes: Any) -> str:
    raw = TELL_JOKE | {key.replace("_", "-"): value for key, value in changes.items()}
    catalog = Catalog.of([service], [raw])
    (tool,) = catalog.tools.values()
    return fingerprint(tool, catalog.service_of(tool))


def service_print(**changes: Any) -> str:
    raw = JOKE_SERVICE | {key.replace("_", "-"): value for key, value in changes.items()}
    (service,) = Catalog.of([raw]).services.values()
    return service_fingerprint(service)


def test_it_is_the_hash_of_the_canonical_json() -> None:
    # Written out, because stored approvals must stay valid over releases.
    text = (
        '{"arguments":[{"description":"The topic for the joke","name":"topic","required":null,"type":"string"}],'
        '"config":{"style":"Wörtspiel"},"description":"Tell a joke on a given topic","input-schema":null,'
        '"name":"tell-joke","output-schema":null,"service":{"id":"joke-service",'
        '"request-queue":"non-persistent://tg/request/joke","response-queue":"non-persistent://tg/response/joke"},'
        '"version":null}'
    )
    assert tool_print(style="Wörtspiel") == hashlib.sha256(text.encode()).hexdigest()


def test_the_order_of_keys_and_the_source_of_a_value_do_not_matter() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "number"}}}
    other = {"properties": {"b": {"type": "number"}, "a": {"type": "string"}}, "type": "object"}
    assert tool_print(output_schema=schema) == tool_print(output_schema=other)
    assert tool_print() == tool_print(JOKE_SERVICE | {"request-queue": "request:tg:joke"})


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "tell-jokes"},
        {"description": "Tell a joke on a given topic."},
        {"arguments": []},
        {"arguments": [{"name": "topic", "type": "string", "description": "Another text"}]},
        {"arguments": [{"name": "topic", "type": "string", "description": "The topic for the joke", "required": True}]},
        {"output_schema": {"type": "string"}},
        {"style": "limerick"},
        {"style": None},
        {"version": "1.0.0"},
    ],
)
def test_a_changed_definition_has_another_fingerprint(changes: dict[str, Any]) -> None:
    assert tool_print(**changes) != tool_print()


def test_another_input_schema_has_another_fingerprint() -> None:
    raw = without(TELL_JOKE, "arguments")
    prints = set()
    for schema in ({"type": "object"}, {"type": "object", "properties": {}}):
        catalog = Catalog.of([JOKE_SERVICE], [raw | {"input-schema": schema}])
        prints.add(fingerprint(catalog.tool("tell-joke"), catalog.service("joke-service")))
    assert len(prints) == 2


@pytest.mark.parametrize("key", ["request-queue", "response-queue"])
def test_other_topics_of_the_service_are_another_definition(key: str) -> None:
    assert tool_print(JOKE_SERVICE | {key: "non-persistent://evil/request/joke"}) != tool_print()


@pytest.mark.parametrize(
    "changes",
    [
        {"policy": {"timeout": 5}},
        {"permissions": ["tools:jokes"]},
        {"category": "fun"},
        {"tags": ["fun"]},
        {"author": "us"},
        {"group": ["a"]},
        {"read_only": True},
        {"requires": "*"},
        {"rollout": {"2.0.0": 5}},
    ],
)
def test_keys_of_the_operator_leave_the_fingerprint_unchanged(changes: dict[str, Any]) -> None:
    assert tool_print(JOKE_SERVICE | {"version": "1.0.0"}, **changes) == tool_print()


def test_instances_belong_to_the_fingerprint_of_the_service_alone() -> None:
    assert tool_print(JOKE_SERVICE | {"instances": [INSTANCE]}) == tool_print()
    assert service_print(instances=[INSTANCE]) != service_print()
    other = INSTANCE | {"response-queue": "response:evil:a"}
    assert service_print(instances=[other]) != service_print(instances=[INSTANCE])


@pytest.mark.costly
@pytest.mark.parametrize(
    "changes",
    [
        {"id": "jokes"},
        {"request_queue": "request:evil:joke"},
        {"response_queue": "response:evil:joke"},
        {"config_params": []},
        {"config_params": [{"name": "style", "required": True}]},
        {"version": "1.0.0"},
    ],
)
def test_a_changed_service_has_another_fingerprint(changes: dict[str, Any]) -> None:
    assert service_print(**changes) != service_print()


def test_the_weight_and_the_policy_leave_the_fingerprint_of_a_service_unchanged() -> None:
    assert service_print(policy={"timeout": 5}, permissions=["a"]) == service_print()
    assert service_print(instances=[INSTANCE | {"weight": 3}]) == service_print(instances=[INSTANCE])


def test_equal_descriptors_have_one_fingerprint() -> None:
    catalog = Catalog.of([JOKE_SERVICE], [TELL_JOKE])
    tool, service = catalog.tool("tell-joke"), catalog.service("joke-service")
    copy = msgspec.structs.replace(tool, config=dict(tool.config))
    assert fingerprint(copy, service) == fingerprint(tool, service) == tool_print()
    assert len(tool_print()) == 64


NAMES = st.sampled_from(["default", "*", "undefined", "", "a", "b", "A", "ab"])
RAW_KEYS = st.fixed_dictionaries(
    {}, optional={"group": st.lists(NAMES, max_size=3), "applicable-states": st.lists(NAMES, max_size=3)}
)


def offered(tools: list[dict[str, Any]], groups: list[str] | None, state: str | None) -> set[str]:
    catalog = Catalog.of([JOKE_SERVICE], [TELL_JOKE | {"name": f"t{index}"} | raw for index, raw in enumerate(tools)])
    if groups is None and state is None:  # list() would return all tools
        return {tool.name for tool in catalog.tools.values() if tool.is_offered()}
    return {tool.name for tool in catalog.list(groups=groups, state=state)}


@given(st.lists(RAW_KEYS, max_size=6), st.none() | st.lists(NAMES, max_size=3), st.none() | NAMES)
def test_the_same_tools_as_trustgraphs_filter(
    tools: list[dict[str, Any]], groups: list[str] | None, state: str | None
) -> None:
    for raw in tools:
        validate_tool_config(raw)
    known = {f"t{index}": SimpleNamespace(config=raw) for index, raw in enumerate(tools)}
    theirs = filter_tools_by_group_and_state(known, groups, state)
    assert offered(tools, groups, state) == set(theirs)


@pytest.mark.parametrize(
    ("raw", "groups", "state", "is_offered"),
    [
        ({}, ["default"], None, True),
        ({}, ["a"], None, False),
        ({}, ["a", "default"], None, True),
        ({}, ["*"], "any", True),
        ({}, [], None, False),
        ({"group": []}, ["default"], None, False),
        ({"group": []}, ["*"], None, True),
        ({"group": ["*"]}, ["a"], None, False),
        ({"group": ["a"]}, None, "s", False),
        ({"applicable-states": ["s"]}, None, "s", True),
        ({"applicable-states": ["s"]}, None, "t", False),
        ({"applicable-states": ["s"]}, ["default"], None, False),
        ({"applicable-states": ["undefined"]}, ["default"], None, True),
        ({"applicable-states": ["undefined"]}, None, "", True),
        ({"applicable-states": []}, ["*"], "s", False),
        ({"applicable-states": ["s", "*"]}, None, "t", True),
    ],
)
def test_the_rules(raw: dict[str, Any], groups: list[str] | None, state: str | None, is_offered: bool) -> None:
    assert offered([raw], groups, state) == ({"t0"} if is_offered else set())


def test_without_groups_and_state_all_tools_are_listed() -> None:
    catalog = Catalog.of([JOKE_SERVICE], [TELL_JOKE | {"group": ["a"], "applicable-states": ["s"]}])
    assert len(catalog.list()) == 1
    assert not catalog.tool("tell-joke").is_offered()
    assert catalog.tool("tell-joke").is_offered(["a"], "s")


@pytest.mark.parametrize(("state", "after"), [({"state": "done"}, "done"), ({"state": ""}, None), ({}, None)])
def test_the_state_after_a_call(state: dict[str, Any], after: str | None) -> None:
    assert Catalog.of([JOKE_SERVICE], [TELL_JOKE | state]).tool("tell-joke").state == after
