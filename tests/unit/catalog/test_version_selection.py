from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.catalog.descriptors import Instance, ServiceDescriptor, ToolDescriptor
from dispatch.catalog.versions import (
    list_versions,
    parse_range,
    select_default,
    select_highest,
    select_service,
    select_version,
    sort_versions,
)


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
