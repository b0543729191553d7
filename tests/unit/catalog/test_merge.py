"""The merge of several sources: precedence, shadowing, last valid versions, atomic refusal, held changes.
The merge of changing sources against a simple model, which reads everything again each time.
Tools of one source that use a service of another one, whatever their order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dispatch
from dispatch import Catalog, CatalogError, Folder
from dispatch.catalog.catalog import fingerprint, hash_definition
from dispatch.catalog.items import Item
from dispatch.catalog.merge import MAX_REPORTED, Merged, Merger
from dispatch.policy import Policy
from tests.helpers.clock import advance
from tests.helpers.dispatcher_and_service import tool_of, topics_of
from tests.helpers.run_profile import examples
from tests.helpers.troubled_source import SERVICE, TOOL, TroubledSource


def service(id: str = "desk", **changes: Any) -> Item:
    return Item(f"tool-service/{id}", "tool-service", id, {"id": id, **topics_of(id, "persistent"), **changes})


def tool(name: str = "stamp", service: str = "desk", **changes: Any) -> Item:
    raw = tool_of(service, name, **{each.replace("_", "-"): value for each, value in changes.items()})
    key = f"{name}@{changes['version']}" if "version" in changes else name
    return Item(f"tool/{key}", "tool", key, raw)


def merger_of(**sources: list[Item]) -> Merger:
    merger = Merger()
    for id, items in sources.items():
        merger.add_source(id)
        assert merger.set_items(id, items) == []
    return merger


def described(merged: Merged) -> dict[str, str]:
    return {name: each.description for name, each in merged.catalog.tools.items()}


def refused(merged: Merged, id: str) -> list[str]:
    return [read.item.origin for read in merged.reports[id].refused]


# -- precedence ---------------------------------------------------------------------------------------------------------
def test_an_earlier_source_shadows_a_later_one_until_its_item_is_removed() -> None:
    theirs = [service("other"), tool(service="other", description="of b")]
    merger = merger_of(a=[service(), tool(description="of a")], b=theirs)
    merged = merger.merge()
    assert described(merged) == {"stamp": "of a"}
    (shadowed,) = merged.reports["b"].shadowed
    assert (shadowed.name, shadowed.source, shadowed.origin) == ("stamp", "b", "tool/stamp")
    assert (shadowed.active_source, shadowed.active_origin) == ("a", "tool/stamp")
    assert (merged.reports["a"].tools, merged.reports["b"].tools, merged.reports["b"].items) == (1, 0, 1)
    assert merged.catalog.source_of("stamp") == "a"

    merger.set_items("a", [service()])
    merged = merger.merge()
    assert described(merged) == {"stamp": "of b"}
    assert merged.reports["b"].shadowed == ()
    assert merged.catalog.source_of("stamp") == "b"


def test_the_versions_of_a_name_come_from_one_source() -> None:
    ours = [service(), tool(version="1.0.0"), tool(version="2.0.0")]
    theirs = [tool(version="3.0.0", description="of b")]
    merged = merger_of(a=ours, b=theirs).merge()
    assert [each.version for each in merged.catalog.versions("stamp")] == ["2.0.0", "1.0.0"]
    assert merged.reports["a"].tools == 2
    assert [each.name for each in merged.reports["b"].shadowed] == ["stamp"]


def test_another_order_is_another_precedence() -> None:
    merger = merger_of(a=[service(), tool(description="of a")], b=[tool(description="of b")])
    merger.merge()
    merger.set_order(("b", "a"))
    assert merger.order == ("b", "a")
    assert described(merger.merge()) == {"stamp": "of b"}


def test_a_tool_uses_the_service_in_force_of_any_source() -> None:
    merger = merger_of(a=[tool(style="pun")], b=[service(**{"config-params": [{"name": "style"}]})])
    assert merger.merge().catalog.tools["stamp"].config == {"style": "pun"}
    merger.remove_source("b")
    merged = merger.merge()
    assert (described(merged), refused(merged, "a")) == ({}, ["tool/stamp"])
    merger.add_source("b")
    merger.set_items("b", [service()])
    assert merger.merge().catalog.tools["stamp"].config == {}


def test_a_limited_number_of_shadowed_items_is_reported() -> None:
    tools = [tool(f"t{at}") for at in range(MAX_REPORTED + 5)]
    report = merger_of(a=[service(), *tools], b=tools).merge().reports["b"]
    assert (len(report.shadowed), report.items) == (MAX_REPORTED, 0)


def test_tools_of_other_runtimes_are_listed_with_their_owner() -> None:
    other = Item("tool/ask", "tool", "ask", {"type": "prompt", "name": "ask"})
    merger = merger_of(a=[other], b=[service(), other])
    found = merger.merge().others["ask"]
    assert (found.name, found.type, found.source, found.origin) == ("ask", "prompt", "a", "tool/ask")
    merger.set_items("a", [])
    assert merger.merge().others["ask"].source == "b"


def test_a_catalogue_is_a_source() -> None:
    merger = merger_of(a=[tool("second")])
    merger.add_source("code")
    merger.set_catalog("code", Catalog.of([service().raw], [tool().raw]))
    merged = merger.merge()
    assert set(merged.catalog.tools) == {"second", "stamp"}
    assert (merged.reports["code"].items, merged.catalog.source_of("stamp")) == (2, "code")


# -- invalid items ------------------------------------------------------------------------------------------------------
def test_an_invalid_item_keeps_its_last_valid_version() -> None:
    merger = merger_of(a=[service(), tool(description="first"), tool("second", color=3)])
    merged = merger.merge()
    merger.set_items("a", [service(), tool(description=7), tool("second")])
    merged = merger.merge()
    assert described(merged) == {"stamp": "first", "second": "Does second."}
    assert refused(merged, "a") == ["tool/stamp"]
    assert [problem.key for problem in merged.problems] == ["description"]
    for _ in range(2):
        assert described(merger.merge()) == {"stamp": "first", "second": "Does second."}
    merger.set_items("a", [service(), tool(description=8)])
    assert described(merger.merge()) == {"stamp": "first"}
    merger.set_items("a", [service(), tool(description="valid again")])
    merged = merger.merge()
    assert (described(merged), refused(merged, "a")) == ({"stamp": "valid again"}, [])


def test_a_last_valid_version_survives_the_absence_of_its_service() -> None:
    merger = merger_of(a=[tool(description="first")], b=[service()])
    merger.merge()
    merger.set_items("a", [tool(description=7)])
    merger.set_items("b", [])
    assert described(merger.merge()) == {}
    merger.set_items("b", [service()])
    assert described(merger.merge()) == {"stamp": "first"}


def test_an_invalid_service_keeps_its_last_valid_version_and_its_tools() -> None:
    merger = merger_of(a=[service(), tool()])
    before = merger.merge().catalog
    merger.set_items("a", [service(**{"request-queue": 7}), tool()])
    merged = merger.merge()
    assert merged.catalog == before
    assert refused(merged, "a") == ["tool-service/desk"]


def test_an_item_of_an_unknown_kind_is_refused() -> None:
    merged = merger_of(a=[Item("x", "toolbox", "x", {}), service(), tool()]).merge()
    assert (refused(merged, "a"), set(merged.catalog.tools)) == (["x"], {"stamp"})


def test_the_items_of_an_atomic_source_are_refused_as_a_whole() -> None:
    merger = Merger()
    merger.add_source("folder", is_atomic=True)
    assert merger.set_items("folder", [service(), tool(description="first")]) == []
    before = merger.merge()
    problems = merger.set_items("folder", [service(), tool(description="second"), tool("third", description=7)])
    assert [problem.file for problem in problems] == ["tool/third"]
    after = merger.merge()
    assert (described(after), refused(after, "folder")) == ({"stamp": "first"}, [])
    assert after.catalog == before.catalog
    assert len(merger.items("folder")) == 2


def test_a_required_item_is_refused_although_it_was_accepted_before() -> None:
    merger = merger_of(a=[tool(style="pun")], b=[service(**{"config-params": [{"name": "style"}]})])
    merger.merge()
    merger.set_items("b", [service(**{"config-params": [{"name": "style"}, {"name": "size", "required": True}]})])
    assert described(merger.merge()) == {}
    assert merger.set_items("a", [tool(style="pun")], tool(style="pun"))
    assert merger.set_items("a", [tool(style="pun", size=2)], tool(style="pun", size=2)) == []
    assert described(merger.merge()) == {"stamp": "Does stamp."}


def test_a_policy_is_checked_again_when_the_defaults_change() -> None:
    merger = merger_of(a=[service(), tool(policy={"timeout": 20})])
    unchanged = merger.merge().catalog.tools["stamp"]
    assert merger.copy(merger.order, Policy(timeout=5)).merge().catalog.tools["stamp"] == unchanged
    assert merger.merge().catalog.tools["stamp"] is unchanged


# -- identity -----------------------------------------------------------------------------------------------------------
def test_unchanged_items_keep_their_descriptors() -> None:
    merger = merger_of(a=[service(), tool(), tool("second")], b=[service("other"), tool("third", "other")])
    before = merger.merge().catalog
    merger.set_items("a", [service(), tool(), tool("second", description="changed")])  # equal, but other objects
    after = merger.merge().catalog
    for name in ("stamp", "third"):
        assert after.tools[name] is before.tools[name]
    assert after.services["desk"] is before.services["desk"]
    assert after.tools["second"].description == "changed"


def test_a_source_that_changes_its_list_in_place_changes_nothing_before_it_delivers_it() -> None:
    items = [service(), tool()]
    merger = merger_of(a=items)
    del items[1]
    items.append(tool("second"))
    assert set(merger.merge().catalog.tools) == {"stamp"}
    merger.set_items("a", items)
    assert set(merger.merge().catalog.tools) == {"second"}


# -- held changes -------------------------------------------------------------------------------------------------------
def holding(*items: Item, id: str = "a") -> Merger:
    merger = Merger()
    merger.add_source(id, on_change="hold")
    merger.set_items(id, items)
    return merger


def fingerprint_in(merged: Merged, name: str = "stamp") -> str:
    found = merged.catalog.tools[name]
    return fingerprint(found, merged.catalog.service_of(found))


def test_a_changed_definition_waits_for_its_approval() -> None:
    merger = holding(service(), tool(description="first"))
    merged = merger.merge()
    first = fingerprint_in(merged)
    assert merged.first_seen["tool/stamp"] == {first}
    assert set(merged.first_seen) == {"tool/stamp", "tool-service/desk"}

    merger.set_items("a", [service(), tool(description="second")])
    merged = merger.merge()
    assert (described(merged), merged.first_seen) == ({"stamp": "first"}, {})
    (held,) = merged.reports["a"].held
    assert (held.source, held.name, held.old) == ("a", "stamp", first)
    assert described(merger.merge()) == {"stamp": "first"}

    merger.approved = {**merger.approved, "tool/stamp": frozenset({held.new})}
    merged = merger.merge()
    assert (described(merged), merged.reports["a"].held) == ({"stamp": "second"}, ())
    assert fingerprint_in(merged) == held.new


def test_a_definition_with_a_former_approval_waits_from_the_start() -> None:
    merger = holding(service(), tool())
    merger.approved = {"tool/stamp": frozenset({"0" * 64})}
    merged = merger.merge()
    assert described(merged) == {}
    assert [each.old for each in merged.reports["a"].held] == [""]
    merger.approved = {"tool/stamp": frozenset()}
    assert described(merger.merge()) == {}


def test_a_definition_is_approved_by_its_first_appearance_in_one_source_only() -> None:
    merger = holding(service(), tool(description="of a"))
    merger.add_source("b", on_change="hold")
    merger.set_items("b", [tool(description="of b")])
    first = merger.merge()
    assert first.first_seen["tool/stamp"] == {fingerprint_in(first)}
    for merged in (first, merger.merge()):
        assert (described(merged), merged.reports["a"].held) == ({"stamp": "of a"}, ())
        assert [each.name for each in merged.reports["b"].held] == ["stamp"]
    merger.set_items("a", [service()])
    assert described(merger.merge()) == {}


def test_a_held_definition_is_not_in_force_without_its_service() -> None:
    merger = holding(tool(description="first"))
    merger.add_source("b")
    merger.set_items("b", [service(), service("other")])
    merger.merge()
    merger.set_items("a", [tool(service="other", description="second")])
    merger.set_items("b", [service("other")])
    merged = merger.merge()
    assert described(merged) == {}
    assert [each.old for each in merged.reports["a"].held] == [""]
    merger.set_items("b", [service(), service("other")])
    assert described(merger.merge()) == {"stamp": "first"}


def test_a_changed_service_holds_its_tools_of_the_same_source() -> None:
    merger = holding(service(), tool())
    before = merger.merge().catalog
    merger.set_items("a", [service(**{"request-queue": "persistent://tg/request/elsewhere"}), tool()])
    merged = merger.merge()
    assert merged.catalog == before
    assert [each.name for each in merged.reports["a"].held] == ["desk"]


def test_an_unchanged_definition_is_not_fingerprinted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from dispatch.catalog import merge

    counted: list[str] = []

    def count(definition: Mapping[str, Any]) -> str:
        if "name" in definition:  # of a tool
            counted.append(definition["name"])
        return hash_definition(definition)

    monkeypatch.setattr(merge, "hash_definition", count)
    merger = holding(service(), tool(), tool("second"))
    merger.merge()
    merger.set_items("a", [service(), tool(), tool("second", category="desk work")])
    merger.merge()
    assert counted == ["stamp", "second", "second"]


IDS = ("a", "b", "c")
NAMES = ("one", "two")
INVALID = 7
"""A description, or a topic, that is no text."""
Contents = Mapping[tuple[str, str], tuple[Any, ...]]
"""By kind and key: of a service its text; of a tool its name, service and text."""
texts = st.sampled_from(["x", "y", INVALID])
services = st.dictionaries(st.tuples(st.just("tool-service"), st.sampled_from(NAMES)), st.tuples(texts), max_size=2)
tools = st.dictionaries(
    st.tuples(st.just("tool"), st.sampled_from(["k1", "k2", "k3"])),
    st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES), texts),
    max_size=3,
)
contents = st.builds(lambda some, others: {**some, **others}, services, tools)
steps = st.one_of(
    st.tuples(st.just("set"), st.sampled_from(IDS), contents),
    st.tuples(st.just("fresh"), st.sampled_from(IDS), st.none()),
    st.tuples(st.just("order"), st.permutations(IDS), st.none()),
    st.tuples(st.just("policy"), st.sampled_from([20.0, 30.0]), st.none()),
)


def make_item(key: tuple[str, str], content: tuple[Any, ...]) -> Item:
    kind, name = key
    if kind == "tool-service":
        (text,) = content
        queue = text if text == INVALID else f"persistent://tg/request/{text}"
        raw = {"id": name, "request-queue": queue, "response-queue": "persistent://tg/response/all"}
    else:
        called, service, text = content
        raw = {"type": "tool-service", "name": called, "service": service, "description": text}
    return Item(f"{kind}/{name}", kind, name, raw)


class Model:
    """The sources, and the last valid content of each of their keys."""

    def __init__(self) -> None:
        self.order = list(IDS)
        self.contents: dict[str, Contents] = {id: {} for id in IDS}
        self.valid: dict[str, dict[tuple[str, str], tuple[Any, ...]]] = {id: {} for id in IDS}

    def merge(
        self,
    ) -> tuple[dict[str, str], dict[str, tuple[str, str, str]], set[tuple[str, str]], set[tuple[str, str]]]:
        """Return the services and tools in force, and what is refused and shadowed."""
        services: dict[str, str] = {}
        owners: dict[str, str] = {}
        refused, shadowed = set(), set()
        for id in self.order:
            for name, text in self._services_of(id, refused):
                if owners.setdefault(name, id) == id:
                    services[name] = text
                else:
                    shadowed.add((id, name))
        found: dict[str, tuple[str, str, str]] = {}
        for id in self.order:
            for name, service, text in self._tools_of(id, services, refused):
                if name in found:
                    shadowed.add((id, name))
                else:
                    found[name] = id, service, text
        return services, found, refused, shadowed

    def _services_of(self, id: str, refused: set[tuple[str, str]]) -> list[tuple[str, str]]:
        in_force, valid = [], {}
        for (kind, name), content in self.contents[id].items():
            if kind != "tool-service":
                continue
            if content[0] == INVALID:
                refused.add((id, f"{kind}/{name}"))
                content = self.valid[id].get((kind, name))
                if content is None:
                    continue
            valid[kind, name] = content
            in_force.append((name, content[0]))
        self.valid[id] = {key: each for key, each in self.valid[id].items() if key[0] == "tool"} | valid
        return in_force

    def _tools_of(self, id: str, services: Mapping[str, str], refused: set[tuple[str, str]]) -> list[tuple[Any, ...]]:
        in_force: list[tuple[Any, ...]] = []
        claimed: set[str] = set()
        valid = {}
        for key, content in self.contents[id].items():
            if key[0] != "tool":
                continue
            name, service, text = content
            is_claimed = name in claimed
            claimed.add(name)
            if text != INVALID and service in services and not is_claimed:
                valid[key] = content
                in_force.append(content)
                continue
            if text == INVALID or is_claimed or (id, f"tool-service/{service}") not in refused:
                refused.add((id, "/".join(key)))
            last = self.valid[id].get(key)
            if last is not None:
                valid[key] = last
                # A name that the invalid item itself has claimed is free for its last valid version.
                is_free = last[0] not in claimed or (last[0] == name and not is_claimed)
                if last[1] in services and is_free:
                    claimed.add(last[0])
                    in_force.append(last)
        self.valid[id] = {key: each for key, each in self.valid[id].items() if key[0] != "tool"} | valid
        return in_force


def check_equal(merged: Merged, model: Model) -> None:
    services, tools, refused, shadowed = model.merge()
    catalog = merged.catalog
    assert {id: each.request_queue.rpartition("/")[2] for id, each in catalog.services.items()} == services
    found = {name: (catalog.source_of(name), each.service, each.description) for name, each in catalog.tools.items()}
    assert found == tools
    reports = merged.reports
    assert {(id, read.item.origin) for id, report in reports.items() for read in report.refused} == refused
    assert {(id, each.name) for id, report in reports.items() for each in report.shadowed} == shadowed
    for id, report in reports.items():
        assert report.tools == sum(source == id for source, _, _ in tools.values())


@pytest.mark.costly
@settings(max_examples=examples(60))
@given(st.lists(steps, max_size=8))
def test_every_merge_is_that_of_the_model(steps: list[tuple[str, Any, Any]]) -> None:
    merger, model = Merger(), Model()
    for id in IDS:
        merger.add_source(id)
    for step, what, content in steps:
        match step:
            case "set":  # unchanged items are the same objects
                former = {(each.kind, each.key): each for each in merger.items(what)}
                known = model.contents[what]
                items = content.items()
                same = {key for key, each in items if known.get(key) == each}
                merger.set_items(what, [former[key] if key in same else make_item(key, each) for key, each in items])
                model.contents[what] = content
            case "fresh":  # equal items, but other objects
                merger.set_items(what, [make_item(key, each) for key, each in model.contents[what].items()])
            case "order":
                merger.set_order(what)
                model.order = list(what)
            case "policy":
                merger = merger.copy(merger.order, Policy(timeout=what))
        check_equal(merger.merge(), model)


@settings(max_examples=examples(20))
@given(st.lists(contents, min_size=1, max_size=4), contents)
def test_an_atomic_source_is_refused_exactly_if_one_of_its_items_is(several: list[Contents], other: Contents) -> None:
    merger = Merger()
    merger.add_source("a", is_atomic=True)
    merger.add_source("b")
    merger.set_items("b", [make_item(key, each) for key, each in other.items()])
    for content in several:
        merger.merge()
        items = [make_item(key, each) for key, each in content.items()]
        former = merger.items("a")
        trial = Merger()
        trial.add_source("a")
        trial.add_source("b")
        trial.set_items("a", items)
        trial.set_items("b", [make_item(key, each) for key, each in other.items()])
        problems = merger.set_items("a", items)
        assert bool(problems) == bool(trial.merge().reports["a"].refused)
        assert list(merger.items("a")) == (list(former) if problems else items)
        assert merger.merge().reports["a"].refused == ()


BROKER = "memory://across"


def folder(path: Path, **files: object) -> Folder:
    for name, content in files.items():
        kind, _, key = name.partition("__")
        at = path / kind.replace("_", "-")
        at.mkdir(parents=True, exist_ok=True)
        (at / f"{key}.json").write_text(json.dumps(content))
    return Folder(path)


def tools_and_service(path: Path) -> tuple[Folder, Folder]:
    return folder(path / "tools", tool__stamp=TOOL), folder(path / "services", tool_service__desk=SERVICE)


async def test_a_folder_may_use_a_service_of_a_later_folder(tmp_path: Path) -> None:
    async with dispatch.connect(BROKER, tools_and_service(tmp_path)) as dispatcher:
        assert list(dispatcher.catalog.tools) == ["stamp"]
        tools, services = tools_and_service(tmp_path / "others")
        await dispatcher.reload([tools, services])
        assert list(dispatcher.catalog.tools) == ["stamp"]
        await dispatcher.reload([services, tools])
        assert list(dispatcher.catalog.tools) == ["stamp"]


async def test_folders_may_use_services_of_each_other_in_turn(tmp_path: Path) -> None:
    second = {**SERVICE, "id": "counter"}
    folders = [
        folder(tmp_path / "a", tool__stamp=TOOL),
        folder(tmp_path / "b", tool_service__desk=SERVICE, tool__count={**TOOL, "name": "count", "service": "counter"}),
        folder(tmp_path / "c", tool_service__counter=second),
    ]
    async with dispatch.connect(BROKER, folders) as dispatcher:
        assert set(dispatcher.catalog.tools) == {"stamp", "count"}


def test_a_folder_without_its_service_is_refused_if_no_source_can_bring_it(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="no tool service 'desk'"):
        dispatch.connect(BROKER, [tools_and_service(tmp_path)[0], dispatch.Catalog.empty()])


async def test_a_folder_waits_for_the_service_of_a_source_that_is_read_later(tmp_path: Path) -> None:
    source = TroubledSource(on_change="apply")
    source.deliver()
    tools, _ = tools_and_service(tmp_path)
    async with dispatch.connect(BROKER, [tools, source]) as dispatcher:
        assert list(dispatcher.catalog.tools) == []
        status = dispatcher.registry.sources()[0]
        assert status.state == "failed"
        assert "no tool service 'desk'" in status.problem
        source.deliver(Item("tool-service/desk", "tool-service", "desk", SERVICE))
        await advance(40)
        assert list(dispatcher.catalog.tools) == ["stamp"]
        assert {status.state for status in dispatcher.registry.sources()} == {"ok"}


def test_a_mistake_in_a_folder_is_reported_at_once_beside_a_source_that_is_read_later(tmp_path: Path) -> None:
    tools = folder(tmp_path, tool__stamp={**TOOL, "description": 5})
    with pytest.raises(CatalogError, match="'description' is a number"):
        dispatch.connect(BROKER, [tools, TroubledSource(on_change="apply")])
