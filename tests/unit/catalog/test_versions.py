from __future__ import annotations

import itertools
import random

import pytest

from dispatch.catalog.descriptors import VERSION_EXAMPLE
from dispatch.catalog.versions import (
    MAX_NUMBER,
    MAX_VERSION_CHARS,
    is_prerelease,
    is_version,
    parse_version,
    version_key,
)


@pytest.mark.parametrize(
    "text",
    [
        "0.0.0",
        "1.4.0",
        "10.20.30",
        "1.0.0-rc.1",
        "1.0.0-alpha-a.b",
        "2.0.0+build.5",
        "1.0.0-0A.is.legal+x-1",
        VERSION_EXAMPLE,
    ],
)
def test_versions(text: str) -> None:
    assert is_version(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "1.2",
        "v1.2.3",
        "01.2.3",
        "1.2.3.4",
        "1.2.3-",
        "1.2.3-01",
        "1.2.3+",
        "1.2.x",
        " 1.2.3",
        "1.2.٣",
        "1.2.3\n",
        f"{MAX_NUMBER + 1}.0.0",
        f"0.0.{MAX_NUMBER + 1}",
        "1.0.0-" + "a" * 300,
    ],
)
def test_invalid_versions(text: str) -> None:
    assert not is_version(text)


# The order in SemVer 2.0.0, paragraph 11.
ORDERED = (
    *("0.0.0-0", "0.0.0", "0.9.10", "1.0.0-1", "1.0.0-2", "1.0.0-10", "1.0.0-alpha", "1.0.0-alpha.1"),
    *("1.0.0-alpha.beta", "1.0.0-beta", "1.0.0-beta.2", "1.0.0-beta.11", "1.0.0-rc.1", "1.0.0"),
    *("1.0.1", "1.2.0", "1.10.0", "2.0.0-R2", "2.0.0-r100", "2.0.0-r2", "2.0.0", "10.0.0"),
)


def test_versions_are_ordered_by_precedence() -> None:
    for lower, higher in itertools.combinations(ORDERED, 2):
        assert parse_version(lower) < parse_version(higher)
    shuffled: list[str | None] = [None, *ORDERED]
    random.Random(7).shuffle(shuffled)
    assert sorted(shuffled, key=version_key) == [None, *ORDERED]


def test_build_metadata_does_not_change_the_order() -> None:
    assert parse_version("1.0.0+a") == parse_version("1.0.0+b")
    assert version_key("1.0.0+a") == version_key("1.0.0")


def test_no_version_is_its_own_equal() -> None:
    assert sorted([None, "1.0.0", None], key=version_key) == [None, None, "1.0.0"]


def test_prereleases() -> None:
    assert is_prerelease("1.0.0-rc.1")
    assert not is_prerelease("1.0.0")
    assert not is_prerelease("1.0.0+rc-1")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1.4", "'1.4' is not a SemVer version"),
        (f"{MAX_NUMBER + 1}.0.0", "has a number above 9007199254740991"),
        ("1.0.0+" + "a" * MAX_VERSION_CHARS, "the version has 262 characters, and 256 are allowed"),
    ],
)
def test_an_error_says_why(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_version(text)
