"""Names in the catalogue: readable, accepted by models, and different for different tools."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from dispatch.mcp.conversion import ServerTools, choose_names, map_names

USABLE = re.compile(r"[A-Za-z0-9_-]{1,64}")
MCP_NAMES = st.text("ab._-/ ü", min_size=1, max_size=128)


def names_of(*servers: ServerTools) -> dict[str, dict[str, str]]:
    return {server: dict(names) for server, names in choose_names(servers).names.items()}


def test_a_usable_name_stays() -> None:
    assert map_names(["search", "read_file", "a-b"]) == {"search": "search", "read_file": "read_file", "a-b": "a-b"}


def test_other_characters_are_replaced() -> None:
    assert map_names(["files.read", "größe", "."]) == {"files.read": "files_read", "größe": "gr_e", ".": "_"}


def test_names_that_become_equal_are_told_apart_and_a_usable_one_stays() -> None:
    found = map_names(["a.b", "a_b", "a/b"])
    assert found["a_b"] == "a_b"
    assert len(set(found.values())) == 3
    assert re.fullmatch(r"a_b-[0-9a-f]{6}", found["a.b"])
    assert found["a.b"] == map_names(["a/b", "a.b", "a_b"])["a.b"]  # in any order


def test_long_names_are_cut() -> None:
    one, other = "x" * 127 + "1", "x" * 127 + "2"
    found = map_names([one, other])
    assert found[one] != found[other]
    assert found[one].startswith("x" * 57)


@given(st.lists(MCP_NAMES, max_size=30))
def test_any_names(originals: list[str]) -> None:
    found = map_names(originals)
    assert found.keys() == set(originals)
    assert len(set(found.values())) == len(set(originals))
    assert all(USABLE.fullmatch(name) for name in found.values())


def test_a_clash_adds_the_prefix_of_each_server() -> None:
    servers = (ServerTools("one", None, ("search", "add")), ServerTools("two", None, ("search",)))
    assert names_of(*servers) == {"one": {"search": "one-search", "add": "add"}, "two": {"search": "two-search"}}
    assert choose_names(servers).clashes == {"search": ("one", "two")}


def test_prefix_always_and_never() -> None:
    servers = (
        ServerTools("one", "always", ("search",)),
        ServerTools("two", None, ("search", "add")),
        ServerTools("three", "never", ("add",)),
    )
    assert names_of(*servers) == {
        "one": {"search": "one-search"},
        "two": {"search": "search", "add": "two-add"},
        "three": {"add": "add"},
    }


@given(
    st.dictionaries(st.text("xyz. ", min_size=1, max_size=90), st.lists(MCP_NAMES, max_size=8), max_size=5),
    st.sampled_from(["always", None]),
)
def test_tools_of_all_servers_have_different_names(tools: dict[str, list[str]], prefix: str | None) -> None:
    servers = [ServerTools(name, prefix, tuple(each)) for name, each in tools.items()]  # type: ignore[arg-type]
    found = [name for names in choose_names(servers).names.values() for name in names.values()]
    assert all(USABLE.fullmatch(name) for name in found)
    assert len(found) == len(set(found))
