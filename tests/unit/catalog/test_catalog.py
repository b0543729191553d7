from __future__ import annotations

import gc
import inspect
import pickle
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from dispatch.catalog import (
    Catalog,
    CatalogError,
    ServiceDescriptor,
    ToolDescriptor,
    UnknownServiceError,
    UnknownToolError,
    load_items,
)
from dispatch.catalog.catalog import ListConditions
from tests.helpers.catalog_items import JOKE_SERVICE, TELL_JOKE, service_item, tool_item

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


def test_a_tool_by_its_name(catalog: Catalog) -> None:
    assert catalog.tool("tell-joke").config == {"style": "pun"}
    assert list(catalog.tools) == ["tell-joke", "tell-story", "calculate"]


def test_a_service_by_its_id(catalog: Catalog) -> None:
    assert catalog.service("story-service").request_queue == "non-persistent://tg/request/story"
    assert list(catalog.services) == ["joke-service", "story-service"]


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


@pytest.mark.parametrize("name", ["Tell-Joke", "tell_joke", "TELL JOKE"])
def test_names_that_differ_in_case_or_separators_are_suggested_first(catalog: Catalog, name: str) -> None:
    with pytest.raises(UnknownToolError) as raised:
        catalog.tool(name)
    assert raised.value.near[0] == "tell-joke"


def test_an_unknown_tool_with_none_near(catalog: Catalog) -> None:
    with pytest.raises(UnknownToolError) as raised:
        catalog.tool("send-email")
    assert raised.value.near == ()
    assert str(raised.value) == "There is no tool 'send-email'. Known tools: tell-joke, tell-story, calculate."


def test_an_unknown_tool_of_an_empty_catalogue() -> None:
    with pytest.raises(UnknownToolError, match=r"^There is no tool 'x'\. No tools are loaded\.$"):
        Catalog.empty().tool("x")


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
    same = pickle.loads(pickle.dumps(catalog))
    assert same == catalog
    assert hash(same) == hash(catalog)
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


def test_listing_10_000_tools_by_text_is_fast(large: Catalog) -> None:
    def seconds() -> float:
        started = time.perf_counter()
        assert names(large.list(text="NUMBER 777 OF")) == ["tool-777"]
        return time.perf_counter() - started

    assert min(seconds() for _ in range(10)) < 0.025  # 3 ms, with room for a busy machine


def test_a_tool_among_10_000_requires_at_most_1_kib_beside_its_raw_descriptor() -> None:
    raw = [
        TELL_JOKE | {"name": f"tool-{n}", "description": f"Does the work number {n} of many.", "tags": ["all", "fun"]}
        for n in range(10_000)
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
    assert len(catalog.tools) == 10_000
    assert (after - before) / 10_000 <= 1_024


def test_descriptors_share_their_empty_values(large: Catalog) -> None:
    one, other = large.tool("tool-1"), large.tool("tool-2")
    for attribute in ("policy", "rollout", "permissions", "groups", "applicable_states"):
        assert getattr(one, attribute) is getattr(other, attribute)
    assert not gc.is_tracked(one)


def test_the_registry_lists_by_the_same_conditions() -> None:
    arguments = [name for name in inspect.signature(Catalog.list).parameters if name != "self"]
    assert arguments == [*ListConditions.__annotations__]
