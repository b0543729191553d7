from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.catalog.descriptors import RANGE_EXAMPLE
from dispatch.catalog.versions import MAX_RANGE_CHARS, parse_range, parse_version

PAIRS: dict[str, Any] = json.loads(Path(__file__).with_name("node_semver_pairs.json").read_text("utf-8"))
"""What node-semver answers for each pair of a range and a version, produced with the program itself."""

NUMBERS = st.integers(0, 3)
VERSIONS = st.builds(
    lambda numbers, label: ".".join(map(str, numbers)) + label,
    st.tuples(NUMBERS, NUMBERS, NUMBERS),
    st.sampled_from(("", "", "-0", "-alpha", "-rc.1", "-rc.2")),
)


@pytest.mark.parametrize("row", PAIRS["ranges"], ids=lambda row: repr(row["range"]))
def test_a_range_includes_what_node_semver_includes(row: dict[str, Any]) -> None:
    parsed = parse_range(row["range"])
    assert [each for each in PAIRS["versions"] if parsed.includes(each)] == row["includes"]
    with_prereleases = [each for each in PAIRS["versions"] if parsed.includes(each, include_prerelease=True)]
    assert with_prereleases == row["includes with prereleases"]


@pytest.mark.parametrize("text", PAIRS["invalid"])
def test_what_node_semver_rejects_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a version range: .+"):
        parse_range(text)


@pytest.mark.parametrize("text", ["1.2.3*", "^=1.2.3", "==1", "> =1", "~ >1", ">==1", "vv1", "v=1"])
def test_what_node_semver_accepts_by_accident_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="is not a version range"):
        parse_range(text)


@given(VERSIONS)
def test_a_version_is_a_range_of_itself(version: str) -> None:
    assert parse_range(version).includes(version)
    assert parse_range(f">={version} <={version}").includes(version)
    assert not parse_range(f">{version}").includes(version)
    assert not parse_range(f"<{version}").includes(version)


@given(VERSIONS, VERSIONS)
def test_comparators_follow_the_order_of_versions(one: str, other: str) -> None:
    first, second = parse_version(one), parse_version(other)
    for operator, holds in (
        (">", first > second),
        ("<", first < second),
        (">=", first >= second),
        ("<=", first <= second),
    ):
        assert parse_range(f"{operator}{other}").includes(first, include_prerelease=True) == holds


@given(VERSIONS, VERSIONS, VERSIONS)
def test_alternatives_are_a_union(version: str, one: str, other: str) -> None:
    both = parse_range(f"^{one} || ~{other}").includes(version)
    assert both == (parse_range(f"^{one}").includes(version) or parse_range(f"~{other}").includes(version))


@given(st.text("0123456789.xX*<>=~^|-+v a", max_size=40) | st.text(max_size=40))
def test_any_text_is_a_range_or_a_value_error(text: str) -> None:
    try:
        parsed = parse_range(text)
    except ValueError:
        return
    assert parsed.text == text == str(parsed)
    parsed.includes("1.2.3")


@pytest.mark.parametrize("text", ["latest", "1.2", "", "1.2.3.4", "1.2.3-01", "9" * 400])
def test_a_text_that_is_no_version_satisfies_no_range(text: str) -> None:
    assert not parse_range("*").includes(text)


def test_ranges_compare_by_their_text() -> None:
    assert parse_range("^1.2") == parse_range("^1.2")
    assert hash(parse_range("^1.2")) == hash(parse_range("^1.2"))
    assert parse_range("^1.2") != parse_range("^1.3")
    assert parse_range("^1.2") != "^1.2"
    assert repr(parse_range(RANGE_EXAMPLE)) == "<Range: ^1.4>"


def test_the_length_is_bounded() -> None:
    assert parse_range("1".ljust(MAX_RANGE_CHARS)).includes("1.0.0")
    with pytest.raises(ValueError, match=f"257 characters, and {MAX_RANGE_CHARS} are allowed"):
        parse_range("1".ljust(MAX_RANGE_CHARS + 1))


@pytest.mark.parametrize("piece", [">1 ", "|", "~> ", "1.2.3-", "-", "1 - ", "+a.", "*", "0", "x."])
def test_long_invalid_texts_cost_no_more_than_their_length(piece: str) -> None:
    text = (piece * MAX_RANGE_CHARS)[: MAX_RANGE_CHARS - 1] + "!"
    began = time.perf_counter()
    with pytest.raises(ValueError, match="is not a version range"):
        parse_range(text)
    assert time.perf_counter() - began < 0.5  # ~0.2 ms each; backtracking would take minutes
