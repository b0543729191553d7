"""The file of bearer tokens is followed: a changed one is in force, an invalid one changes nothing."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from dispatch.mcp.server import BearerTokens, TokenFileError, read_tokens

ALICE, NEXT = "0123456789abcdef", "fedcba9876543210"


async def users(tokens: BearerTokens) -> list[str | None]:
    found = [await tokens.verify_token(token) for token in (ALICE, NEXT)]
    return [each and each.client_id for each in found]


async def test_a_changed_file_is_in_force(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "dispatch.mcp")
    file = tmp_path / "tokens.json"
    file.write_text(json.dumps({"alice": ALICE}))
    tokens = BearerTokens.load(file)
    tokens.close()  # the test makes the checks
    assert await users(tokens) == ["alice", None]
    assert tokens._watch is not None
    file.write_text(json.dumps({"alice": [ALICE, NEXT]}))
    tokens._watch.check()
    assert await users(tokens) == ["alice", "alice"]
    file.write_text(json.dumps({"alice": "short-secret"}))
    tokens._watch.check()
    assert await users(tokens) == ["alice", "alice"]
    assert "the tokens in force stay" in caplog.text
    assert "secret" not in caplog.text
    file.write_text(json.dumps({"bob": NEXT}))
    tokens._watch.check()
    assert await users(tokens) == [None, "bob"]
    assert "tokens loaded from" in caplog.text
    assert ALICE not in caplog.text
    assert NEXT not in caplog.text


def test_every_mistake_of_a_file_is_listed(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    file.write_text(json.dumps({"alice": "short", "bob": ALICE, "carol": ALICE}))
    with pytest.raises(TokenFileError) as caught:
        read_tokens(file)
    first, second = str(caught.value).splitlines()
    assert "A token of user 'alice'" in first
    assert "'bob' and 'carol'" in second
