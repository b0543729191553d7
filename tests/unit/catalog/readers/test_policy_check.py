from __future__ import annotations

from typing import Any

import pytest

from dispatch.catalog import Catalog
from dispatch.policy import DEFAULT_POLICY, PolicyError
from tests.helpers.catalog_items import (
    JOKE_SERVICE,
    TELL_JOKE,
    check,
    service_item,
    service_problem,
    tool_item,
    tool_problem,
)


@pytest.mark.parametrize(
    ("policy", "key", "problem", "fix"),
    [
        ({"timeout": -1}, "policy.timeout", "out of range", "seconds"),
        ({"timeout": "10"}, "policy.timeout", "not a number", "seconds"),
        ({"time-out": 10}, "policy.time-out", "unknown key", "did you mean 'timeout'?"),
        ({"a.b": 10}, "policy.a.b", "unknown key", "known keys"),
        ({"max-response-bytes": 0}, "policy.max-response-bytes", "0", "≥ 1"),
        (10, "policy", "'policy' is a number, not an object", '{"timeout": 10}'),
    ],
)
def test_a_bad_policy_of_a_service_or_of_a_tool(policy: object, key: str, problem: str, fix: str) -> None:
    for found in (service_problem(policy=policy), tool_problem(policy=policy)):
        assert found.key == key
        assert problem in found.problem
        assert fix in found.fix


def test_every_mistake_in_a_policy_is_found() -> None:
    policy: dict[str, Any] = {"timeout": 0, "colour": "red", "stream-timeout": None, "max-response-bytes": 10}
    problems = check(service_item(JOKE_SERVICE | {"policy": policy}))
    assert {problem.key for problem in problems} == {"policy.timeout", "policy.colour", "policy.stream-timeout"}


def test_a_long_value_is_not_repeated_whole() -> None:
    assert len(tool_problem(policy={"timeout": "9" * 100_000}).problem) <= 200


def test_a_policy_mistake_at_no_key_of_the_descriptor_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(raw: object, base: object) -> None:
        raise PolicyError("together", "these do not go together", "change one")

    monkeypatch.setattr("dispatch.catalog.fields.parse_policy", refuse)
    problem = service_problem(policy={"timeout": 1})
    assert (problem.key, problem.fix) == ("policy.together", "change one")


def test_the_raw_policy_keys_are_returned() -> None:
    catalog = Catalog.of(
        [JOKE_SERVICE | {"policy": {"timeout": 5, "stream-timeout": 60}}], [TELL_JOKE | {"policy": {"timeout": 7}}]
    )
    tool = catalog.tool("tell-joke")
    merged = DEFAULT_POLICY.merged(catalog.service_of(tool).policy).merged(tool.policy)
    assert (merged.timeout, merged.stream_timeout) == (7, 60)
    assert merged.stream_idle_timeout == DEFAULT_POLICY.stream_idle_timeout


def test_without_a_policy_there_are_no_keys() -> None:
    catalog = Catalog.of([JOKE_SERVICE], [TELL_JOKE])
    assert catalog.tool("tell-joke").policy == {}
    assert catalog.services["joke-service"].policy == {}


def test_a_tool_is_still_checked_when_its_services_policy_is_bad() -> None:
    problems = check(
        service_item(JOKE_SERVICE | {"policy": {"timeout": 0}}), tool_item(TELL_JOKE | {"policy": {"timeout": 0}})
    )
    assert [(problem.file, problem.key) for problem in problems] == [
        ("tool-service/joke-service.json", "policy.timeout"),
        ("tool/tell-joke.json", "policy.timeout"),
    ]
