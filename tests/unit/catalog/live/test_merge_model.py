"""The merge of changing sources against a simple model, which reads everything again each time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch.catalog.items import Item
from dispatch.catalog.merge import Merged, Merger
from dispatch.policy import Policy
from tests.helpers.run_profile import examples

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


@settings(max_examples=examples(150))
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
                merger.set_items(
                    what,
                    [former[key] if known.get(key) == each else make_item(key, each) for key, each in content.items()],
                )
                model.contents[what] = content
            case "fresh":  # equal items, but other objects
                merger.set_items(what, [make_item(key, each) for key, each in model.contents[what].items()])
            case "order":
                merger.set_order(what)
                model.order = list(what)
            case "policy":
                merger = merger.copy(merger.order, Policy(timeout=what))
        check_equal(merger.merge(), model)


@settings(max_examples=examples(50))
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
