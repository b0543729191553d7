"""Resolution of names: once for each tool, from defaults, service and tool.


Versions of one tool side by side: which one a call gets.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch import Catalog, Policy, PolicyError, Retry
from dispatch.calls.error_messages import (
    error_from_invalid_range,
    error_from_requirement,
    error_from_unknown_name,
    error_from_version_mismatch,
)
from dispatch.calls.resolution import BUCKETS, MAX_RANGES, ResolvedTool, Rollout, ToolResolver, hash_bucket
from dispatch.catalog import UnknownServiceError, UnknownToolError
from dispatch.errors import RejectedError
from tests.helpers.dispatcher_and_service import catalog, tool_of, topics_of

TOOLS = catalog(
    service={"policy": {"timeout": 8, "max-response-bytes": 5}, "config-params": [{"name": "style"}]},
    plain={},
    quick={"policy": {"timeout": 4}, "style": {"deep": ["ü"]}},
    careful={"read-only": True},
    again={"idempotent": True},
)


def test_a_target_has_all_that_does_not_change() -> None:
    targets = ToolResolver(TOOLS, Policy(timeout=16, stream_timeout=32))
    quick = targets.tool("quick")
    assert (quick.label, quick.service) == ("quick", TOOLS.services["lab"])
    assert json.loads(quick.config_text) == {"style": {"deep": ["ü"]}}
    assert quick.policy == Policy(timeout=4, stream_timeout=32, max_response_bytes=5)
    assert targets.tool("plain").policy == Policy(timeout=8, stream_timeout=32, max_response_bytes=5)
    assert targets.tool("plain").config_text == "{}"
    assert targets.tool("quick") is quick, "worked out once"


@pytest.mark.parametrize(("tool", "repeatable"), [("plain", False), ("careful", True), ("again", True)])
def test_what_is_declared_read_only_or_idempotent_may_be_repeated(tool: str, repeatable: bool) -> None:
    assert ToolResolver(TOOLS, Policy()).tool(tool).repeatable is repeatable


def test_a_service_by_itself_has_its_own_policy_and_no_config() -> None:
    lab = ToolResolver(TOOLS, Policy(timeout=16)).service("lab")
    assert (lab.label, lab.config_text, lab.repeatable) == ("lab", "{}", False)
    assert (lab.policy.timeout, lab.policy.max_response_bytes) == (8, 5)


@pytest.mark.parametrize("queue", ["persistent://tg/request/lab", "non-persistent://tg/request/lab"])
def test_only_what_may_be_repeated_and_is_kept_may_come_to_another_instance(queue: str) -> None:
    targets = ToolResolver(catalog(service={"request-queue": queue}, plain={}, careful={"read-only": True}), Policy())
    is_kept = queue.startswith("persistent")
    plain, careful, bare = targets.tool("plain"), targets.tool("careful"), targets.service("lab")
    assert (plain.is_durable, careful.is_durable, bare.is_durable) == (is_kept,) * 3
    assert [target.may_be_redelivered(None) for target in (plain, careful, bare)] == [False, is_kept, False]
    assert [target.may_be_redelivered("key") for target in (plain, careful, bare)] == [is_kept] * 3


def test_a_policy_that_does_not_go_with_a_services_or_a_tools_is_refused_at_once() -> None:
    user = Policy(retry=Retry(initial_backoff=1.0))
    with pytest.raises(PolicyError, match=r"'retry.max-backoff'.*the service 'lab'"):
        ToolResolver(catalog(service={"policy": {"retry": {"max-backoff": 0.5}}}), user).check()
    with pytest.raises(PolicyError, match=r"'retry.max-backoff'.*the tool 'work'"):
        ToolResolver(catalog(work={"policy": {"retry": {"max-backoff": 0.5}}}), user).check()
    resolver = ToolResolver(catalog(work={"policy": {"retry": {"max-backoff": 5}}}), user).check()
    assert resolver.tool("work").policy.retry.initial_backoff == 1.0


DESCRIPTORS = {"plain": {}, "quick": {"policy": {"timeout": 4}}}


def test_an_unchanged_tool_keeps_its_resolved_tool() -> None:
    first = ToolResolver(catalog(**DESCRIPTORS), Policy())
    plain, quick, lab = first.tool("plain"), first.tool("quick"), first.service("lab")
    renewed = first.renewed(catalog(plain={}, quick={"policy": {"timeout": 5}}, new={}), Policy())
    assert renewed.tool("plain") is plain
    assert renewed.service("lab") is lab
    assert renewed.tool("quick") is not quick
    assert renewed.tool("quick").policy.timeout == 5
    assert renewed.tool("new").pool_key is plain.pool_key


def test_a_changed_service_changes_its_tools() -> None:
    first = ToolResolver(catalog(**DESCRIPTORS), Policy())
    plain, lab = first.tool("plain"), first.service("lab")
    renewed = first.renewed(catalog(service={"policy": {"timeout": 9}}, **DESCRIPTORS), Policy())
    assert (renewed.tool("plain").policy.timeout, renewed.service("lab").policy.timeout) == (9, 9)
    assert renewed.tool("plain") is not plain
    assert renewed.service("lab") is not lab


def test_another_default_policy_changes_only_what_it_affects() -> None:
    tools = catalog(**DESCRIPTORS)
    first = ToolResolver(tools, Policy(timeout=20))
    plain, quick, lab = first.tool("plain"), first.tool("quick"), first.service("lab")
    renewed = first.renewed(tools, Policy(timeout=21))
    assert renewed.tool("quick") is quick
    assert (renewed.tool("plain").policy.timeout, renewed.service("lab").policy.timeout) == (21, 21)
    assert (plain.policy.timeout, lab.policy.timeout) == (20, 20)


def test_a_removed_tool_is_not_kept() -> None:
    first = ToolResolver(catalog(**DESCRIPTORS), Policy())
    first.tool("quick")
    renewed = first.renewed(catalog(plain={}), Policy())
    assert renewed.find("quick", None) is None
    with pytest.raises(RejectedError):
        renewed.tool("quick")


def test_a_renewal_checks_the_policies() -> None:
    first = ToolResolver(catalog(work={"policy": {"retry": {"max-backoff": 0.5}}}), Policy())
    first.tool("work")
    with pytest.raises(PolicyError, match=r"'retry.max-backoff'.*the tool 'work'"):
        first.renewed(first.catalog, Policy(retry=Retry(initial_backoff=1.0)))


def test_an_unknown_name_is_answered_with_the_nearest_and_the_known_ones() -> None:
    near = error_from_unknown_name(UnknownToolError("jok", ("joke",), ("joke", "story")))
    assert (near.type, near.rejected_by, near.alternatives) == ("unknown-tool", "catalog", ("joke",))
    assert "there is no tool 'jok'. Call 'joke' if you meant that" in near.message
    assert "joke, story" in near.message
    assert error_from_unknown_name(UnknownToolError("x", (), ("joke",))).message.endswith("Call one of these: joke.")
    empty = error_from_unknown_name(UnknownServiceError("x"))
    assert (empty.type, empty.alternatives) == ("unknown-service", ())
    assert empty.message.endswith("Report that no tool services are loaded.")


def test_a_version_mismatch_names_the_range_and_the_versions() -> None:
    error = error_from_version_mismatch("joke", "^3", ("2.0.0", "1.4.0"))
    assert (error.type, error.rejected_by, error.retryable) == ("version-mismatch", "catalog", False)
    assert "none of its versions satisfies '^3', there are 2.0.0, 1.4.0. Call one of these" in error.message
    undeclared = error_from_version_mismatch("joke", "*", ())
    assert undeclared.message.endswith("no version is declared for it. Call it without a version.")


def test_a_requirement_names_the_service_and_its_versions() -> None:
    error = error_from_requirement("joke", "lab", "^2", ("1.0.0",))
    assert (error.type, error.rejected_by, error.retryable) == ("version-mismatch", "catalog", False)
    assert "it requires version '^2' of 'lab', and there are 1.0.0." in error.message
    balanced = error_from_requirement("joke", "lab", "^2", (), by="balancer")
    assert (balanced.rejected_by, balanced.retryable) == ("balancer", True), "an instance may be started"
    assert "no version is declared" in balanced.message


def test_a_text_that_is_no_range_is_a_mistake_of_the_caller() -> None:
    error = error_from_invalid_range("joke", "'latest' is not a version range: cannot read 'latest'")
    assert (str(error.outcome), error.type, error.retryable) == ("invalid_arguments", "invalid-arguments", False)
    assert error.message.endswith("cannot read 'latest'. Correct 'version', or leave it out.")


SHARES = st.integers(0, 10_000).map(lambda parts: parts / 100)


def buckets_of(shares: dict[str, float]) -> dict[str | None, set[int]]:
    rollout = Rollout(shares)
    found: dict[str | None, set[int]] = {version: set() for version in (None, *shares)}
    for bucket in range(BUCKETS):
        found[rollout.version_of(bucket)].add(bucket)
    return found


@pytest.mark.parametrize(
    "shares",
    [
        {},
        {"2.0.0": 5},
        {"2.0.0": 0},
        {"2.0.0": 100},
        {"2.0.0": 0.01},
        {"2.0.0": 99.99},
        {"2.0.0": 5, "1.5.0": 20},
        {"2.0.0": 50, "1.5.0": 50},
        {"1.0.0": 10, "2.0.0": 20, "3.0.0": 30, "10.0.0": 40},
    ],
)
def test_each_version_has_its_share(shares: dict[str, float]) -> None:
    found = buckets_of(shares)
    for version, share in shares.items():
        assert len(found[version]) == round(share * BUCKETS / 100)
    assert len(found[None]) == BUCKETS - sum(round(share * BUCKETS / 100) for share in shares.values())


@given(SHARES, SHARES)
def test_a_raised_share_only_adds_buckets(one: float, other: float) -> None:
    lower, higher = sorted((one, other))
    assert buckets_of({"2.0.0": lower})["2.0.0"] <= buckets_of({"2.0.0": higher})["2.0.0"]


@given(st.floats(0, 50), st.floats(0, 50), st.floats(0, 50), st.booleans())
def test_two_shares_change_independently(fixed: float, one: float, other: float, is_higher_fixed: bool) -> None:
    constant, changed = ("2.0.0", "1.0.0") if is_higher_fixed else ("1.0.0", "2.0.0")
    before, after = buckets_of({constant: fixed, changed: one}), buckets_of({constant: fixed, changed: other})
    assert before[constant] == after[constant]


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=6))
def test_rounding_costs_a_version_few_buckets(parts: list[int]) -> None:
    shares = {f"{index}.0.0": 100 * part / max(sum(parts), 1) for index, part in enumerate(parts)}
    found = buckets_of(shares)
    for version, share in shares.items():
        assert abs(len(found[version]) - share * BUCKETS / 100) <= len(parts)


def test_the_order_of_the_shares_changes_nothing() -> None:
    assert buckets_of({"2.0.0": 5, "10.0.0": 7}) == buckets_of({"10.0.0": 7, "2.0.0": 5})


def test_users_are_spread_evenly_and_differently_for_each_tool() -> None:
    users = [f"user-{number}" for number in range(20_000)]
    counts = Counter(hash_bucket("tell-joke", user) * 20 // BUCKETS for user in users)
    assert len(counts) == 20
    assert all(880 <= count <= 1120 for count in counts.values())  # 1,000, standard deviation 31
    both = sum(hash_bucket("tell-joke", user) < 500 and hash_bucket("find", user) < 500 for user in users)
    assert both < 100  # 50 ± 7 if independent, 1,000 if the same


def test_the_bucket_of_a_user_is_the_same_in_every_process() -> None:
    assert hash_bucket("tell-joke", "alice") == 4716
    assert hash_bucket("tell-joke", "\ud800") != hash_bucket("tell-joke", "alice"), "any text is a user"


CALLS = 100_000


def service(version: str | None = None, **keys: Any) -> dict[str, Any]:
    if version is None:
        return {"id": "lab", **topics_of("lab"), **keys}
    return {"id": "lab", **topics_of(f"lab-{version}"), "version": version, **keys}


def tool(version: str | None = None, name: str = "joke", **keys: Any) -> dict[str, Any]:
    return tool_of("lab", name, **({} if version is None else {"version": version}), **keys)


def resolver(*tools: Mapping[str, Any], services: Any = None, policy: Policy | None = None) -> ToolResolver:
    return ToolResolver(Catalog.of(services or [service()], tools), policy or Policy()).check()


class Selection:
    """Selects versions for calls, with seeded randomness."""

    def __init__(self, tools: ToolResolver) -> None:
        self.tools = tools
        self.refused: set[str | None] = set()
        self._randomness = random.Random(3).random

    def version(self, caller: str = "", version: str | None = None) -> str | None:
        return self.select(caller, version).version

    def select(self, caller: str = "", version: str | None = None) -> ResolvedTool:
        return self.tools.select(
            "joke",
            version,
            caller,
            can_admit=lambda found: found.version not in self.refused,
            randomness=self._randomness,
        )


# -- ranges ---------------------------------------------------------------------------------------------------------
@pytest.mark.costly
def test_the_ranges_of_callers_use_bounded_memory() -> None:
    tools = resolver(tool("1.4.0"))
    for patch in range(3 * MAX_RANGES):
        tools.tool("joke", f">=1.0.{patch}")
    assert len(tools._by_range) <= MAX_RANGES


# -- services -------------------------------------------------------------------------------------------------------
def test_a_tool_requires_a_version_of_its_service() -> None:
    services = [service("1.5.0"), service("2.1.0")]
    tools = resolver(tool("1.0.0", requires="^1"), tool("2.0.0", requires="^2"), services=services)
    one, two = tools.tool("joke", "1"), tools.tool("joke", "2")
    assert (one.service.version, two.service.version) == ("1.5.0", "2.1.0")
    assert one.pool_key != two.pool_key
    assert (one.requires, two.requires) == (None, None), "all instances of these services satisfy it"
    assert tools.pool_user(one.pool_key) is not None
    assert tools.pool_user(two.pool_key) is not None


def test_instances_with_versions_of_their_own_are_restricted() -> None:
    instances = [
        {"id": "old", "request-queue": "non-persistent://tg/request/old", "version": "1.0.0"},
        {"id": "new", "request-queue": "non-persistent://tg/request/new", "version": "2.0.0"},
    ]
    tools = resolver(tool(requires="^2"), tool(name="any"), services=[service("2.0.0", instances=instances)])
    assert tools.tool("joke").requires.text == "^2"
    assert tools.tool("any").requires is None


def test_a_requirement_that_no_service_satisfies_rejects_each_call() -> None:
    tools = resolver(tool("1.0.0", requires="^3"), tool("0.9.0"), services=[service("1.5.0"), service("2.1.0")])
    for version in (None, "1.0.0"):
        with pytest.raises(
            RejectedError, match=r"requires version '\^3' of 'lab', and there are 2\.1\.0, 1\.5\.0"
        ) as caught:
            tools.tool("joke", version)
        assert (caught.value.type, caught.value.rejected_by) == ("version-mismatch", "catalog")
    assert tools.find("joke", "1.0.0") is None
    assert tools.describe("joke").version == "1.0.0", "for a report"


def test_a_report_has_the_tool_that_calls_use() -> None:
    tools = resolver(tool("1.0.0"))
    assert tools.describe("joke") is tools.describe("joke") is tools.tool("joke")


# -- rollout --------------------------------------------------------------------------------------------------------
def canary(share: float, **keys: Any) -> ToolResolver:
    return resolver(tool("1.4.0", rollout={"2.0.0": share}), tool("2.0.0", **keys))


def test_a_share_of_the_calls_gets_the_canary() -> None:
    selection = Selection(canary(5))
    share = sum(selection.version() == "2.0.0" for _ in range(CALLS)) / CALLS
    assert abs(share - 0.05) < 0.003


def test_a_user_stays_on_one_version() -> None:
    selection = Selection(canary(5))
    users = [f"user-{number}" for number in range(CALLS // 10)]
    first = {user: selection.version(user) for user in users}
    assert all(selection.version(user) == first[user] for _ in range(3) for user in users)
    share = sum(version == "2.0.0" for version in first.values()) / len(users)
    assert abs(share - 0.05) < 0.01


def test_a_raised_share_takes_no_user_away_from_the_canary() -> None:
    users = [f"user-{number}" for number in range(2_000)]
    before, after = Selection(canary(5)), Selection(canary(50))
    moved = [user for user in users if before.version(user) == "2.0.0" != after.version(user)]
    assert moved == []


@pytest.mark.parametrize(("share", "version"), [(0, "1.4.0"), (100, "2.0.0")])
def test_the_ends_of_a_rollout(share: float, version: str) -> None:
    selection = Selection(canary(share))
    assert {selection.version(caller) for caller in ("", "alice", "bob") for _ in range(100)} == {version}


def test_the_share_of_a_canary_whose_circuit_is_open_goes_to_the_default() -> None:
    selection = Selection(canary(100))
    selection.refused = {"2.0.0"}
    assert {selection.version(f"user-{number}") for number in range(100)} == {"1.4.0"}
    selection.refused = {"1.4.0"}
    assert {selection.version(f"user-{number}") for number in range(100)} == {"2.0.0"}


def test_an_open_circuit_of_the_default_version_gives_the_canary_nothing() -> None:
    selection = Selection(canary(0))
    selection.refused = {"1.4.0"}
    assert selection.version("alice") == "1.4.0", "the call is rejected by the circuit breaker"


@pytest.mark.parametrize("requires", [None, "^9"])
def test_the_share_of_a_version_that_cannot_be_called_stays_with_the_default(requires: str | None) -> None:
    extra = [] if requires is None else [tool("2.0.0", requires=requires)]
    assert Selection(resolver(tool("1.4.0", rollout={"2.0.0": 100}), *extra)).version("alice") == "1.4.0"


@pytest.mark.parametrize(("permissions", "version"), [(["tools:puns"], "1.4.0"), (["tools:jokes"], "2.0.0")])
def test_a_version_with_other_permissions_than_lists_show_gets_no_share(permissions: list[str], version: str) -> None:
    default = tool("1.4.0", rollout={"2.0.0": 100}, permissions=permissions)
    assert Selection(resolver(default, tool("2.0.0", permissions=["tools:jokes"]))).version("alice") == version


def test_a_call_with_a_version_takes_part_in_no_rollout() -> None:
    selection = Selection(canary(100))
    assert selection.version("alice", "^1") == "1.4.0"
    selection = Selection(canary(0))
    assert selection.version("alice", "^2") == "2.0.0"


def test_a_tool_without_a_rollout_is_looked_up_once() -> None:
    tools = canary(5)
    Selection(tools).version("alice")
    assert tools.fixed == {}
    plain = resolver(tool("1.4.0"), tool("1.2.0"))
    assert plain.fixed == {"joke": Selection(plain).select("alice")}


# -- policies -------------------------------------------------------------------------------------------------------
def test_every_version_has_the_rate_limits_of_the_default_one() -> None:
    generous = {"rate-limit": "100/s", "user-rate-limit": "50/s", "shared-user-rate-limit": "70/s", "timeout": 5}
    tools = resolver(tool("1.4.0", rollout={"2.0.0": 5}, policy={"rate-limit": "5/s"}), tool("2.0.0", policy=generous))
    one, two = tools.tool("joke").policy, tools.tool("joke", "2").policy
    assert one.rate_limit is not None
    assert (two.rate_limit, two.user_rate_limit, two.shared_user_rate_limit) == (one.rate_limit, None, None)
    assert (one.timeout, two.timeout) == (30, 5)


# -- another catalogue ----------------------------------------------------------------------------------------------
def test_another_share_changes_neither_versions_resolved_tool_but_the_default() -> None:
    former = canary(5)
    default, new = former.tool("joke"), former.tool("joke", "2")
    renewed = former.renewed(canary(50).catalog, Policy())
    assert renewed.tool("joke", "2") is new
    assert renewed.tool("joke") is not default, "its descriptor has the share"
    assert renewed.tool("joke").pool_key is default.pool_key


def test_another_limit_of_the_default_version_changes_every_version() -> None:
    former = canary(5)
    new = former.tool("joke", "2")
    limited = resolver(tool("1.4.0", rollout={"2.0.0": 5}, policy={"rate-limit": "5/s"}), tool("2.0.0"))
    renewed = former.renewed(limited.catalog, Policy())
    assert new.policy.rate_limit is None
    assert renewed.tool("joke", "2").policy.rate_limit == renewed.tool("joke").policy.rate_limit is not None


def test_a_removed_version_is_not_kept() -> None:
    former = resolver(tool("1.4.0"), tool("2.0.0"))
    one = former.tool("joke", "1")
    former.tool("joke", "2")
    renewed = former.renewed(resolver(tool("1.4.0")).catalog, Policy())
    assert renewed.find("joke", "2.0.0") is None
    assert renewed.tool("joke") is not None
    assert renewed.tool("joke") == one


def test_a_further_service_version_moves_a_tool_that_does_not_require_another_one() -> None:
    tools = [tool(), tool(name="pinned", requires="^1")]
    former = resolver(*tools, services=[service("1.5.0")])
    joke, pinned, lab = former.tool("joke"), former.tool("pinned"), former.service("lab")
    renewed = former.renewed(resolver(*tools, services=[service("1.5.0"), service("2.1.0")]).catalog, Policy())
    assert renewed.tool("joke").service.version == "2.1.0"
    assert renewed.tool("pinned") is pinned
    assert renewed.service("lab") is not lab
    assert renewed.pool_user(joke.pool_key) is lab, "the pool of the former version stays in use"
