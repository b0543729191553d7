"""The keys that a policy accepts are those that are counted."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from dispatch.policy import PolicyError, parse_policy
from structure.policy_keys import find_policy_keys, find_short_forms


class Rate(msgspec.Struct, rename="kebab"):
    max_wait: float = 1.0


class Settings(msgspec.Struct, rename="kebab"):
    stream_timeout: float = 1.0
    rate: Rate | None = None
    user_rate: Rate | None = None


def test_a_part_under_two_keys_is_counted_once(tmp_path: Path) -> None:
    assert find_policy_keys(Settings, tmp_path) == ["rate", "rate.max-wait", "stream-timeout", "user-rate"]


def test_short_forms_are_found_in_the_parser(tmp_path: Path) -> None:
    source = 'def parse_policy(raw):\n    if "limit" in raw:\n        return 1\ndef other(raw):\n    return "x" in raw'
    (tmp_path / "policy.py").write_text(source, "utf-8")
    assert find_short_forms(tmp_path) == {"limit"}
    assert "limit (short form)" in find_policy_keys(Settings, tmp_path)


@pytest.mark.parametrize("key", [key.partition(" ")[0] for key in find_policy_keys()])
def test_every_counted_key_is_known_to_the_parser(key: str) -> None:
    part, _, inner = key.rpartition(".")
    with pytest.raises(PolicyError) as refused:  # no key accepts this value, and an unknown one says that it is unknown
        parse_policy({part: {inner: object()}} if part else {key: object()})
    assert refused.value.problem != "unknown key"
