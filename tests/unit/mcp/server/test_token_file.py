"""The file of bearer tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dispatch.mcp.server import TokenFileError, read_tokens

ALICE, BOB, NEXT = "0123456789abcdef", "fedcba9876543210", "the-next-token-of-bob"


def write(folder: Path, contents: Any) -> Path:
    file = folder / "tokens.json"
    file.write_text(contents if isinstance(contents, str) else json.dumps(contents))
    return file


def test_a_user_has_a_token_or_several(tmp_path: Path) -> None:
    file = write(tmp_path, {"alice": ALICE, "bob": [BOB, NEXT]})
    assert read_tokens(file) == {ALICE: "alice", BOB: "bob", NEXT: "bob"}


def test_a_byte_order_mark_is_no_part_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    file.write_text(json.dumps({"alice": ALICE}), "utf-8-sig")
    assert read_tokens(file) == {ALICE: "alice"}


@pytest.mark.parametrize(
    ("contents", "problem"),
    [
        ("{", "is invalid"),
        ("[]", "is invalid"),
        ({"alice": 3}, "is invalid"),
        ({"alice": [3]}, "is invalid"),
        ({}, "has no tokens"),
        ({"alice": []}, "has no tokens"),
        ({"alice": "short-secret"}, "user 'alice'"),
        ({"alice": "0123456789 abcdef"}, "user 'alice'"),
        ({"alice": "0123456789abcd\u00e9f"}, "user 'alice'"),
        ({"alice": "0123456789\nabcdef"}, "user 'alice'"),
        ({"alice": ALICE, "bob": ALICE}, "'alice' and 'bob'"),
    ],
)
def test_a_mistake_is_named_without_a_token(contents: Any, problem: str, tmp_path: Path) -> None:
    with pytest.raises(TokenFileError) as caught:
        read_tokens(write(tmp_path, contents))
    text = str(caught.value)
    assert problem in text
    assert "tokens.json" in text
    assert "secret" not in text
    assert ALICE not in text


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenFileError, match=r"none\.json' cannot be read"):
        read_tokens(tmp_path / "none.json")
