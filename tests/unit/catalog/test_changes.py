"""The differences between two catalogues."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import given

from dispatch.catalog import Catalog
from dispatch.catalog.catalog import CatalogChanges, NameChanges, compare


def catalog(tools: dict[str, str], **services: Any) -> Catalog:
    """The tools by name with their service, and the services with their policies."""
    topic = "non-persistent://tg/{}/{}"
    return Catalog.of(
        [
            {
                "id": id,
                "request-queue": topic.format("request", id),
                "response-queue": topic.format("response", id),
                "policy": policy,
            }
            for id, policy in services.items()
        ],
        [
            {"type": "tool-service", "name": name, "description": "Does it.", "service": service}
            for name, service in tools.items()
        ],
    )


def test_equal_catalogues_have_no_changes() -> None:
    one = catalog({"a": "x"}, x={})
    for other in (one, catalog({"a": "x"}, x={})):
        changes = compare(one, other)
        assert changes == CatalogChanges()
        assert not changes


def test_changes_are_listed_by_kind() -> None:
    former = catalog({"a": "x", "b": "x", "c": "y"}, x={}, y={}, z={})
    new = catalog({"d": "x", "c": "x", "b": "x"}, x={}, y={"retry": 1}, v={})
    changes = compare(former, new)
    assert changes.tools == NameChanges(added=("d",), changed=("c",), removed=("a",))
    assert changes.services == NameChanges(added=("v",), changed=("y",), removed=("z",))
    assert list(changes.tools) == ["d", "c", "a"]
    assert changes


def test_the_tools_of_a_changed_service_have_changed() -> None:
    former, new = catalog({"a": "x", "b": "y"}, x={}, y={}), catalog({"a": "x", "b": "y"}, x={"retry": 1}, y={})
    assert compare(former, new) == CatalogChanges(NameChanges(changed=("a",)), NameChanges(changed=("x",)))


catalogs = st.builds(
    lambda tools, policies: catalog(tools, **policies),
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
