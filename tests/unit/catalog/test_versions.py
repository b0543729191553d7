from __future__ import annotations

import itertools
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.catalog.descriptors import RANGE_EXAMPLE, VERSION_EXAMPLE, Instance, ServiceDescriptor, ToolDescriptor
from dispatch.catalog.versions import (
    MAX_NUMBER,
    MAX_RANGE_CHARS,
    MAX_VERSION_CHARS,
    is_version,
    list_versions,
    parse_range,
    parse_version,
    select_default,
    select_highest,
    select_service,
    select_version,
    sort_versions,
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
    assert parse_version("1.0.0-rc.1").prerelease == "rc.1"
    assert parse_version("1.0.0").prerelease is parse_version("1.0.0+rc-1").prerelease is None


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


PAIRS: dict[str, Any] = json.loads(Path(__file__).with_name("node_semver_pairs.json").read_text("utf-8"))
"""What node-semver answers for each pair of a range and a version, produced with the program itself."""
NUMBERS = st.integers(0, 3)
RELEASES = st.tuples(NUMBERS, NUMBERS, NUMBERS).map(lambda numbers: ".".join(map(str, numbers)))
VERSIONS = st.builds("{}{}".format, RELEASES, st.sampled_from(("", "", "-0", "-alpha", "-rc.1", "-rc.2")))


def test_a_range_includes_what_node_semver_includes() -> None:
    for row in PAIRS["ranges"]:
        parsed = parse_range(row["range"])
        assert [each for each in PAIRS["versions"] if parsed.includes(each)] == row["includes"], row["range"]


def test_what_node_semver_rejects_is_an_error() -> None:
    for text in PAIRS["invalid"]:
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


@given(RELEASES, VERSIONS)
def test_comparators_follow_the_order_of_versions(one: str, other: str) -> None:
    first, second = parse_version(one), parse_version(other)
    for operator, holds in (
        (">", first > second),
        ("<", first < second),
        (">=", first >= second),
        ("<=", first <= second),
    ):
        assert parse_range(f"{operator}{other}").includes(first) == holds


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


def tool(version: str | None, **rollout: float) -> ToolDescriptor:
    shares = {name.lstrip("v").replace("_", "."): share for name, share in rollout.items()}
    return ToolDescriptor("t", "A tool.", "s", version=version, rollout=shares)


def service(version: str | None, *instance_versions: str) -> ServiceDescriptor:
    instances = tuple(Instance(v, f"request:tg:{v}", "response:tg:s", version=v) for v in instance_versions)
    return ServiceDescriptor("s", "request:tg:s", "response:tg:s", version=version, instances=instances)


ORDER = ["2.0.0", "2.0.0-rc.1", "1.10.0", "1.9.0+b", "1.9.0+a", "1.9.0", "0.1.0", None]


@given(st.randoms())
def test_versions_are_sorted_by_precedence_whatever_their_order(shuffle: random.Random) -> None:
    versions = [tool(version) for version in ORDER]
    shuffle.shuffle(versions)
    assert [each.version for each in sort_versions(versions)] == ORDER


@pytest.mark.parametrize(
    ("versions", "default"),
    [
        (["2.0.0", "1.0.0"], "2.0.0"),
        (["2.0.0-rc.1", "1.0.0"], "1.0.0"),
        (["2.0.0-rc.2", "2.0.0-rc.1"], "2.0.0-rc.2"),
        (["2.0.0-rc.1", None], None),
        (["1.0.0", None], "1.0.0"),
        (["1.0.0-rc.1"], "1.0.0-rc.1"),
    ],
)
def test_the_default_is_the_highest_version_that_is_no_prerelease(
    versions: list[str | None], default: str | None
) -> None:
    assert select_default([tool(version) for version in versions]).version == default


@pytest.mark.parametrize("share", [0, 5, 100])
def test_a_version_that_is_being_rolled_out_is_no_default(share: float) -> None:
    versions = [tool("2.0.0"), tool("1.4.0", v2_0_0=share), tool("1.3.0")]
    assert select_default(versions).version == "1.4.0"


def test_versions_that_all_have_a_share_have_a_default_all_the_same() -> None:
    assert select_default([tool("2.0.0", v1_0_0=5), tool("1.0.0", v2_0_0=5)]).version == "2.0.0"


def test_a_share_for_a_lower_version_leaves_the_default_as_it_is() -> None:
    assert select_default([tool("2.0.0", v1_0_0=5), tool("1.0.0")]).version == "2.0.0"


def test_a_range_selects_the_default_before_a_higher_version() -> None:
    versions = [tool("2.0.0"), tool("1.4.0", v2_0_0=5), tool("1.3.0"), tool(None)]
    default = versions[1]
    assert select_version(default, versions, parse_range(">=1")) is default
    assert select_version(default, versions, parse_range("2.x")) is versions[0]
    assert select_version(default, versions, parse_range("~1.3")) is versions[2]
    assert select_version(default, versions, parse_range("^3")) is None
    assert select_highest(versions, parse_range("*")) is versions[0]


def test_a_descriptor_without_a_version_is_in_no_range() -> None:
    assert select_version(tool(None), [tool(None)], parse_range("*")) is None
    assert select_service([service(None)], "*") is None


def test_a_service_satisfies_a_range_itself_or_with_one_of_its_instances() -> None:
    versions = [service("2.0.0"), service("1.0.0", "1.0.0", "1.5.0")]
    assert select_service(versions, None) is versions[0]
    assert select_service(versions, "^1") is versions[1]
    assert select_service(versions, "^1.5") is versions[1]
    assert select_service(versions, ">=1") is versions[0]
    assert select_service(versions, "^3") is None


def test_declared_versions_in_their_order() -> None:
    assert list_versions([service("2.0.0"), service(None), service("1.0.0")]) == ("2.0.0", "1.0.0")
