"""Catalogues with several versions of one tool or service."""

from __future__ import annotations

import pickle

import msgspec
import pytest

from dispatch.catalog import (
    Catalog,
    Item,
    Problem,
    UnknownServiceError,
    UnknownToolError,
    VersionMismatchError,
    load_items,
)
from dispatch.catalog.merge import Merger
from dispatch.catalog.sources import OnChange
from tests.helpers.catalog_items import JOKE_SERVICE, TELL_JOKE, check, only, service_item, tool_item, without

JOKES = [JOKE_SERVICE | {"version": version} for version in ("1.0.0", "2.0.0", "1.5.0")]


def tool(version: str | None, **keys: object) -> dict[str, object]:
    return TELL_JOKE | {key.replace("_", "-"): value for key, value in keys.items()} | {"version": version}


@pytest.fixture
def catalog() -> Catalog:
    return Catalog.of(
        JOKES, [tool("1.4.0"), tool("2.0.0-rc.1"), TELL_JOKE | {"name": "other"}, tool("1.5.0"), tool(None)]
    )


def test_the_default_version_of_each_tool_and_service(catalog: Catalog) -> None:
    assert [(each.name, each.version) for each in catalog.tools.values()] == [("tell-joke", "1.5.0"), ("other", None)]
    assert [each.version for each in catalog.services.values()] == ["2.0.0"]
    assert catalog.tool("tell-joke").version == "1.5.0"
    assert catalog.service("joke-service").version == "2.0.0"


def test_all_versions_are_listed_the_highest_first(catalog: Catalog) -> None:
    assert [each.version for each in catalog.versions("tell-joke")] == ["2.0.0-rc.1", "1.5.0", "1.4.0", None]
    assert catalog.versions("other") == (catalog.tool("other"),)
    assert [each.version for each in catalog.service_versions("joke-service")] == ["2.0.0", "1.5.0", "1.0.0"]
    with pytest.raises(UnknownToolError):
        catalog.versions("nothing")
    with pytest.raises(UnknownServiceError):
        catalog.service_versions("nothing")


@pytest.mark.parametrize(("range", "version"), [("*", "1.5.0"), ("~1.4", "1.4.0"), ("2.0.0-rc.1", "2.0.0-rc.1")])
def test_a_range_selects_a_version(catalog: Catalog, range: str, version: str) -> None:
    assert catalog.tool("tell-joke", range).version == version
    assert [each.version for each in catalog.list(version=range)] == [version]


def test_a_range_without_a_version_names_those_that_there_are(catalog: Catalog) -> None:
    with pytest.raises(VersionMismatchError) as raised:
        catalog.tool("tell-joke", "^3")
    assert str(raised.value) == (
        "No version of the tool 'tell-joke' satisfies '^3'. Available versions: 2.0.0-rc.1, 1.5.0, 1.4.0."
    )
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
    with pytest.raises(VersionMismatchError, match="It declares no version"):
        catalog.tool("other", "*")
    assert catalog.list(version="^3") == ()


@pytest.mark.parametrize("range", ["newest", "1.2.3.4"])
def test_a_text_that_is_no_range(catalog: Catalog, range: str) -> None:
    with pytest.raises(ValueError, match="is not a version range"):
        catalog.tool("tell-joke", range)
    with pytest.raises(ValueError, match="is not a version range"):
        catalog.list(version=range)


@pytest.mark.parametrize(
    ("requires", "version"), [("^1", "1.5.0"), ("1.0.0", "1.0.0"), (">1", "2.0.0"), (None, "2.0.0")]
)
def test_the_service_of_a_tool_satisfies_its_requires(requires: str | None, version: str) -> None:
    catalog = Catalog.of(JOKES, [tool("1.0.0", requires=requires)])
    assert catalog.service_of("tell-joke").version == version


def test_no_version_of_the_service_satisfies_requires() -> None:
    instance = {"id": "a", "request-queue": "request:tg:a", "version": "1.7.0"}
    catalog = Catalog.of([JOKE_SERVICE | {"version": "1.0.0", "instances": [instance]}], [tool(None, requires="^3")])
    with pytest.raises(VersionMismatchError, match=r"tool service 'joke-service' satisfies '\^3'.*: 1.0.0, 1.7.0\.$"):
        catalog.service_of("tell-joke")
    assert catalog.service_or_default(catalog.tool("tell-joke")).version == "1.0.0"
    assert len(catalog.list(permission="none")) == 0


def test_config_params_are_those_of_the_version_of_the_service_that_is_required() -> None:
    services = [JOKE_SERVICE | {"version": "1.0.0"}, JOKE_SERVICE | {"version": "2.0.0", "config-params": []}]
    catalog = Catalog.of(services, [tool("1.0.0", requires="^1"), tool("2.0.0")])
    assert [each.config for each in catalog.versions("tell-joke")] == [{}, {"style": "pun"}]


def test_an_unchanged_catalogue_survives_pickling(catalog: Catalog) -> None:
    copy = pickle.loads(pickle.dumps(catalog))
    assert copy == catalog
    assert copy.versions("tell-joke") == catalog.versions("tell-joke")
    assert Catalog.of(JOKES, [tool("1.5.0"), TELL_JOKE | {"name": "other"}]) != catalog


def test_the_key_of_an_item_has_the_defaults_of_name_and_version() -> None:
    raw = without(TELL_JOKE, "name")
    items = [
        service_item(without(JOKE_SERVICE, "id"), key="joke-service@1.0.0"),
        tool_item(raw, "tool/tell-joke@2.0.0.json", "tell-joke@2.0.0"),
        tool_item(raw, "tool/tell-joke@1.0.0.json", "tell-joke@1.0.0"),
    ]
    catalog = load_items(items)
    assert [each.version for each in catalog.versions("tell-joke")] == ["2.0.0", "1.0.0"]
    assert catalog.service("joke-service").version == "1.0.0"


def test_a_version_that_differs_from_the_one_in_the_key_is_an_error() -> None:
    for item, others in (
        (tool_item(tool("1.0.0"), "x.json", "tell-joke@2.0.0"), (service_item(),)),
        (service_item(JOKE_SERVICE | {"version": "1.0.0"}, "x.json", "joke-service@2.0.0"), ()),
    ):
        problem = only(check(*others, item))
        assert (problem.file, problem.key) == ("x.json", "version")
        assert "'1.0.0' differs from the version '2.0.0' in the item's key" in problem.problem
        assert "remove 'version'" in problem.fix


def test_one_version_twice_is_an_error_that_names_both_items() -> None:
    problem = only(check(service_item(), tool_item(tool("1.0.0"), "a.json"), tool_item(tool("1.0.0"), "b.json")))
    assert (problem.file, problem.key) == ("b.json", "name")
    assert problem.problem == "the tool name 'tell-joke' with the version '1.0.0' is already used by a.json"
    assert "another name or version" in problem.fix


def test_one_item_twice_is_an_error() -> None:
    assert only(check(service_item(), tool_item(), tool_item())).key == "name"
    item = tool_item()
    assert only(check(service_item(), item, item)).key == "name"


def test_a_tool_is_offered_once_by_name_and_listed_with_its_source() -> None:
    catalog = Catalog.of(JOKES, [tool("1.0.0"), tool("2.0.0")])
    assert [each.version for each in catalog.list()] == ["2.0.0"]
    merged = Catalog(
        catalog.services.values(), catalog.versions("tell-joke"), source="code", sources={"tell-joke": "trustgraph"}
    )
    assert merged.source_of("tell-joke") == "trustgraph"
    assert catalog.source_of("tell-joke") == "code"
    assert len(merged.list(source="trustgraph")) == 1
    assert merged.list(source="code") == ()


def namespaced(item: Item, namespace: str = "crm") -> Item:
    return msgspec.structs.replace(item, namespace=namespace)


def test_a_namespace_is_the_prefix_of_names_ids_and_services() -> None:
    catalog = load_items([namespaced(service_item()), namespaced(tool_item()), service_item(), tool_item()])
    assert list(catalog.tools) == ["crm-tell-joke", "tell-joke"]
    assert list(catalog.services) == ["crm-joke-service", "joke-service"]
    assert catalog.service_of("crm-tell-joke").id == "crm-joke-service"
    assert catalog.service_of("tell-joke").id == "joke-service"


def test_a_tool_in_a_namespace_may_use_a_service_without_a_prefix() -> None:
    catalog = load_items([service_item(), namespaced(tool_item())])
    assert catalog.service_of("crm-tell-joke").id == "joke-service"
    assert catalog.tool("crm-tell-joke").config == {"style": "pun"}


def test_a_tool_without_a_namespace_does_not_find_a_service_in_one() -> None:
    assert only(check(namespaced(service_item()), tool_item())).key == "service"


def test_a_refused_service_in_a_namespace_is_not_called_unknown() -> None:
    refused = namespaced(service_item(JOKE_SERVICE | {"version": "x"}))
    assert only(check(refused, namespaced(tool_item()))).key == "version"


@pytest.mark.parametrize(("length", "is_valid"), [(60, True), (61, False)])
def test_a_name_has_at_most_64_characters_with_its_namespace(length: int, is_valid: bool) -> None:
    item = namespaced(tool_item(TELL_JOKE | {"name": "t" * length}))
    problems = check(service_item(), item)
    if is_valid:
        assert problems == []
    else:
        problem = only(problems)
        assert problem.key == "name"
        assert "65 characters with the namespace 'crm'" in problem.problem
        assert "at most 64" in problem.fix


def test_the_id_of_a_service_has_at_most_256_characters_with_its_namespace() -> None:
    problem = only(check(namespaced(service_item(JOKE_SERVICE | {"id": "s" * 253}))))
    assert problem.key == "id"
    assert "257 characters" in problem.problem


def test_the_fix_of_a_reference_to_a_key_in_a_namespace_is_the_id_without_its_prefix() -> None:
    problem = only(
        check(namespaced(service_item(key="jokes")), namespaced(tool_item(TELL_JOKE | {"service": "jokes"})))
    )
    assert problem.fix.startswith('write "service": "joke-service": that is the id in the item \'jokes\'')


def rollout_warning(*raws: dict[str, object]) -> Problem:
    items = [tool_item(raw, f"{index}.json", f"tell-joke@{raw['version']}") for index, raw in enumerate(raws)]
    return only(check(service_item(), *items, severity="warning"))


def test_a_share_for_a_version_that_is_missing_is_a_warning() -> None:
    warning = rollout_warning(tool("1.0.0", rollout={"2.0.0": 5, "1.5.0": 5}), tool("1.5.0"))
    assert (warning.file, warning.key) == ("0.json", "rollout['2.0.0']")
    assert "there is no version 2.0.0 of 'tell-joke'" in warning.problem


def test_a_rollout_that_is_not_on_the_default_version_is_a_warning() -> None:
    warning = rollout_warning(tool("3.0.0"), tool("1.0.0", rollout={"2.0.0": 5, "2.1.0": 5}), tool("2.0.0"))
    assert (warning.file, warning.key) == ("1.json", "rollout")
    assert "the default version is 3.0.0" in warning.problem


def test_a_rollout_in_force_is_no_warning() -> None:
    items = [
        tool_item(tool("1.0.0", rollout={"2.0.0": 5}), "a.json", "a"),
        tool_item(tool("2.0.0"), "b.json", "b"),
    ]
    assert check(service_item(), *items, severity="warning") == []


@pytest.mark.parametrize(
    ("service", "requires", "known"),
    [({}, "*", "declares no version"), ({"version": "1.0.0"}, "^2", "has the version 1.0.0")],
)
def test_a_range_that_no_service_satisfies_is_a_warning(service: dict[str, str], requires: str, known: str) -> None:
    items = (service_item(JOKE_SERVICE | service), tool_item(TELL_JOKE | {"requires": requires}))
    warning = only(check(*items, severity="warning"))
    assert warning.key == "requires"
    assert known in warning.problem
    assert "each call is rejected" in warning.problem


def test_a_range_that_an_instance_satisfies_is_no_warning() -> None:
    instance = {"id": "a", "request-queue": "request:tg:a", "version": "2.0.0"}
    items = (service_item(JOKE_SERVICE | {"instances": [instance]}), tool_item(TELL_JOKE | {"requires": "^2"}))
    assert check(*items, severity="warning") == []


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
    catalog = merger.merge().catalog
    assert catalog.service_of("tell-joke").version == "1.5.0"
    assert catalog.source_of("tell-joke") == "b"
    assert len(catalog.list(source="b")) == 1
    assert catalog.list(source="a") == ()


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
    items = [
        tool_item(tool(version), f"{version}.json", f"tell-joke@{version}") for version in ("1.0.0", "2.0.0", "3.0.0")
    ]
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
