"""Who holds which idempotency key: claims, and claims that are undone."""

from __future__ import annotations

import pytest

from dispatch.routing import instance
from dispatch.routing.instance import Holder, KeyHolders

A, B = Holder("a", "1"), Holder("b", "1")


def test_a_key_is_held_by_the_last_that_claimed_it_for_that_user() -> None:
    holders = KeyHolders()
    assert holders.get("alice", "k") is None
    holders.claim("alice", "k", A)
    assert holders.get("alice", "k") == A
    assert holders.get("bob", "k") is None
    holders.claim("alice", "k", B)
    assert holders.get("alice", "k") == B
    assert len(holders) == 1


def test_an_undone_claim_leaves_what_was_before() -> None:
    holders = KeyHolders()
    first = holders.claim("alice", "k", A)
    first.undo()
    assert holders.get("alice", "k") is None
    holders.claim("alice", "k", A)
    second = holders.claim("alice", "k", B)
    second.undo()
    second.undo()
    assert holders.get("alice", "k") == A


def test_a_claim_is_not_undone_when_another_request_has_claimed_the_key_since() -> None:
    holders = KeyHolders()
    refused = holders.claim("alice", "k", A)
    holders.claim("alice", "k", Holder("a", "1"))
    refused.undo()
    assert holders.get("alice", "k") == A


def test_the_oldest_keys_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "MAX_KEYS", 3)
    holders = KeyHolders()
    for key in ("one", "two", "three", "one", "four"):
        holders.claim("", key, A)
    assert len(holders) == 3
    assert holders.get("", "two") is None
    assert holders.get("", "one") == A
