"""Grants from files and mappings: who has what, and every mistake with its key and fix."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from dispatch.permissions.grants import (
    MAX_FILE_BYTES,
    MAX_GRANTS,
    MAX_NAME_CHARS,
    MAX_PROBLEMS,
    Grants,
    GrantsError,
    InvalidAnswerError,
    PermissionSet,
    check_answer,
)

RAW: dict[str, Any] = {
    "users": {"alice": ["tools:jokes"], "mallory": ["*", "!tools:admin"]},
    "groups": {
        "editors": {"members": ["alice", "bob"], "permissions": ["articles:*", "!articles:delete"]},
        "owners": {"members": ["bob"], "permissions": ["articles:delete", "tools:admin"]},
    },
    "everyone": ["tools:time"],
}


def permissions(*grants: str) -> PermissionSet:
    return PermissionSet(grants)


def test_a_user_has_own_grants_those_of_groups_and_those_of_everyone() -> None:
    grants = Grants.of(RAW)
    assert grants.permissions_of("alice") == permissions("tools:time", "tools:jokes", "articles:*", "!articles:delete")
    assert grants.permissions_of("bob") == permissions(
        "tools:time", "articles:*", "!articles:delete", "articles:delete", "tools:admin"
    )
    assert grants.permissions_of("unknown") == grants.permissions_of("") == permissions("tools:time")
    assert grants.permissions_of("Alice") == permissions("tools:time"), "names are case-sensitive"
    assert grants.users == 3


def test_all_keys_are_optional() -> None:
    assert Grants.of({}).permissions_of("alice") == permissions()


def test_a_file_has_the_same_keys(tmp_path: Path) -> None:
    file = tmp_path / "grants.json"
    file.write_text(json.dumps(RAW))
    assert Grants.load(file).permissions_of("alice") == Grants.of(RAW).permissions_of("alice")
    assert Grants.load(str(file)).path == file
    assert Grants.of(RAW).path is None


def problems(raw: object) -> list[tuple[str, str, str]]:
    with pytest.raises(GrantsError) as caught:
        Grants.of(raw)  # type: ignore[arg-type] # wrong on purpose
    for each in caught.value.problems:
        assert each.fix
        assert str(each) in str(caught.value)
    return [(each.key, each.problem, each.fix) for each in caught.value.problems]


@pytest.mark.parametrize(
    ("raw", "key", "problem"),
    [
        ([], "", "list in place of an object"),
        (None, "", "null in place of an object"),
        ({"user": {}}, "user", "an unknown key"),
        ({"users": None}, "users", "null in place of an object"),
        ({"users": {"alice": "tools:jokes"}}, "users.alice", "str in place of a list"),
        ({"users": {"alice": [1]}}, "users.alice[0]", "int in place of a text"),
        ({"users": {"alice": ["a", "to*ls"]}}, "users.alice[1]", "'to*ls': '*' is not the whole last segment"),
        (
            {"users": {"alice": ["! a"]}},
            "users.alice[0]",
            "'! a': a permission contains a blank or a control character",
        ),
        ({"users": {"": []}}, "users", "'' is no name of a user or a group"),
        ({"users": {" alice": []}}, "users", "' alice' is no name of a user or a group"),
        ({"users": {"x" * (MAX_NAME_CHARS + 1): []}}, "users", "is no name of a user or a group"),
        ({"users": {1: []}}, "users", "'int' is no name of a user or a group"),
        ({"groups": {"g": ["a"]}}, "groups.g", "list in place of an object"),
        (
            {"groups": {"g": {"members": [], "permission": [], "permissions": []}}},
            "groups.g.permission",
            "an unknown key",
        ),
        ({"groups": {"g": {"permissions": ["a"]}}}, "groups.g.members", "the key is missing"),
        ({"groups": {"g": {"members": ["alice"]}}}, "groups.g.permissions", "the key is missing"),
        ({"groups": {"g": {"members": [2], "permissions": []}}}, "groups.g.members[0]", "int in place of a text"),
        ({"groups": {"g": {"members": [""], "permissions": []}}}, "groups.g.members", "'' is no name"),
        ({"everyone": {"a": 1}}, "everyone", "dict in place of a list"),
        ({"everyone": ["a"] * (MAX_GRANTS + 1)}, "everyone", "1,001 grants, above the limit of 1,000"),
    ],
)
def test_every_mistake_has_key_and_fix(raw: object, key: str, problem: str) -> None:
    ((found_key, found_problem, _fix),) = problems(raw)
    assert found_key == key
    assert problem in found_problem


def test_a_misspelt_key_names_the_right_one() -> None:
    ((_, _, fix),) = problems({"everyones": []})
    assert fix == "rename it to 'everyone'"


def test_all_mistakes_are_listed_up_to_a_limit() -> None:
    assert len(problems({"users": {"a": [1], "b": ["* *"]}, "group": {}})) == 3
    assert len(problems({"everyone": [1] * (MAX_PROBLEMS + 5)})) == MAX_PROBLEMS


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "the file is not JSON"),
        (b'{"users": {"alice": ["a"]', "the file is not JSON"),
        (b"\xff", "the file is not JSON"),
        (b"[" * 100_000, "the file is not JSON"),
        (b'{"users": {"alice": ["a"], "alice": []}}', "the key occurs twice"),
        (b" " * (MAX_FILE_BYTES + 1), "the file has more than 4,194,304 bytes"),
    ],
)
def test_an_unreadable_file_names_itself_and_the_fix(tmp_path: Path, content: bytes, problem: str) -> None:
    file = tmp_path / "grants.json"
    file.write_bytes(content)
    with pytest.raises(GrantsError, match=problem) as caught:
        Grants.load(file)
    assert caught.value.file == str(file)
    assert str(file) in str(caught.value)
    assert pickle.loads(pickle.dumps(caught.value)).problems == caught.value.problems


def test_a_missing_file_is_an_error_with_a_fix(tmp_path: Path) -> None:
    with pytest.raises(GrantsError, match=r"cannot be read .*correct the path"):
        Grants.load(tmp_path / "missing.json")


@pytest.mark.parametrize("answer", [["a"], ("a",), {"a"}, frozenset({"a"}), {"a": 1}.keys()])
def test_the_answer_of_a_callable_is_a_collection_of_grants(answer: object) -> None:
    assert check_answer(answer) == ("a",)


@pytest.mark.parametrize(
    "answer", [None, "a", b"a", {"a": 1}, 1, ["x y"], [1], [None], ["a"] * (MAX_GRANTS + 1), iter(["a"])]
)
def test_any_other_answer_is_refused_without_its_content(answer: object) -> None:
    with pytest.raises(InvalidAnswerError, match="it returned") as caught:
        check_answer(answer)
    assert "x y" not in str(caught.value)
