"""Resolution of names: once for each tool, from defaults, service and tool."""

from __future__ import annotations

import json

import pytest

from dispatch import Policy, PolicyError, Retry
from dispatch.calls.resolution import ToolResolver
from dispatch.errors import RejectedError
from tests.helpers.dispatcher_and_service import catalog

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


@pytest.mark.parametrize(("kind", "name", "near"), [("tool", "quik", "quick"), ("service", "lap", "lab")])
def test_an_unknown_name_is_refused_with_those_that_are_near(kind: str, name: str, near: str) -> None:
    with pytest.raises(RejectedError, match=f"Call '{near}' if you meant that") as caught:
        getattr(ToolResolver(TOOLS, Policy()), kind)(name)
    assert (caught.value.type, caught.value.rejected_by) == (f"unknown-{kind}", "catalog")
    assert near in caught.value.alternatives


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
    assert (
        ToolResolver(catalog(work={"policy": {"retry": {"max-backoff": 5}}}), user)
        .check()
        .tool("work")
        .policy.retry.initial_backoff
        == 1.0
    )


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
