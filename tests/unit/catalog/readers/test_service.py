""" """

from __future__ import annotations

from typing import Any

import pytest

from dispatch.catalog import Catalog, ConfigParam, Instance, ServiceDescriptor
from dispatch.policy import DEFAULT_POLICY, PolicyError
from tests.helpers.catalog_items import (
    JOKE_SERVICE,
    TELL_JOKE,
    check,
    only,
    service_item,
    service_problem,
    tool_item,
    tool_problem,
    without,
)


def read(raw: dict[str, Any]) -> ServiceDescriptor:
    (service,) = Catalog.of([raw]).services.values()
    return service


def test_the_descriptor_of_trustgraphs_specification() -> None:
    assert read(JOKE_SERVICE) == ServiceDescriptor(
        id="joke-service",
        request_queue="non-persistent://tg/request/joke",
        response_queue="non-persistent://tg/response/joke",
        config_params=(ConfigParam("style", required=False),),
    )


@pytest.mark.parametrize("params", [{}, {"config-params": []}, {"config-params": None}])
def test_config_params_may_be_absent_or_empty(params: dict[str, Any]) -> None:
    assert read(without(JOKE_SERVICE, "config-params") | params).config_params == ()


def test_all_keys_of_dispatch() -> None:
    service = read(
        JOKE_SERVICE
        | {
            "config-params": [{"name": "collection", "required": True}, {"name": "style"}],
            "instances": [
                {
                    "id": "joke-1",
                    "request-queue": "non-persistent://tg/request/joke-1",
                    "response-queue": "non-persistent://tg/response/joke-1",
                    "weight": 2.5,
                    "version": "1.5.0",
                },
                {"id": "joke-2", "request-queue": "request:tg:joke-2"},
            ],
            "version": "1.4.0-rc.1",
            "policy": {"timeout": 5},
            "permissions": ["tools:jokes", "tools:fun"],
        }
    )
    assert service.config_params == (ConfigParam("collection", True), ConfigParam("style", False))
    assert service.instances == (
        Instance("joke-1", "non-persistent://tg/request/joke-1", "non-persistent://tg/response/joke-1", 2.5, "1.5.0"),
        Instance("joke-2", "non-persistent://tg/request/joke-2", "non-persistent://tg/response/joke", 1, "1.4.0-rc.1"),
    )
    assert service.version == "1.4.0-rc.1"
    assert service.policy == {"timeout": 5}
    assert service.permissions == ("tools:jokes", "tools:fun")


def test_the_short_form_of_a_topic_is_expanded() -> None:
    service = read(JOKE_SERVICE | {"request-queue": "request:tg:joke", "response-queue": "response:tg:joke"})
    assert service.request_queue == "non-persistent://tg/request/joke"
    assert service.response_queue == "non-persistent://tg/response/joke"


@pytest.mark.parametrize("key", ["request-queue", "response-queue"])
def test_a_missing_queue(key: str) -> None:
    problem = only(check(service_item(without(JOKE_SERVICE, key))))
    assert (problem.file, problem.key) == ("tool-service/joke-service.json", key)
    assert f"'{key}' is missing" in problem.problem
    assert f'add "{key}": "non-persistent://tg/' in problem.fix


def test_a_misspelt_key_is_named_in_the_fix_of_the_missing_one() -> None:
    raw = without(JOKE_SERVICE, "request-queue") | {"request_queue": "non-persistent://tg/request/joke"}
    problem = only(check(service_item(raw)))
    assert problem.key == "request-queue"
    assert problem.fix.startswith("rename 'request_queue' to 'request-queue'")


def test_a_key_that_is_right_is_never_proposed_for_another() -> None:
    problem = only(check(service_item(without(JOKE_SERVICE, "request-queue"))))
    assert "rename" not in problem.fix


def test_no_id_at_all() -> None:
    problem = only(check(service_item(without(JOKE_SERVICE, "id"), key="")))
    assert problem.key == "id"
    assert 'add "id"' in problem.fix


@pytest.mark.parametrize(
    ("changes", "key", "problem", "fix"),
    [
        ({"id": 7}, "id", "'id' is a number, not a text", 'write "id": "joke-service"'),
        ({"id": " "}, "id", "'id' is empty", 'write "id": "joke-service"'),
        ({"id": "joke "}, "id", "has blanks around it", 'write "id": "joke"'),
        ({"id": "jo\x1bke"}, "id", "a control character", "use letters"),
        ({"id": "j" * 257}, "id", "257 characters", "at most 256"),
        ({"request_queue": None}, "request-queue", "is null", 'add "request-queue"'),
        ({"request_queue": ["a"]}, "request-queue", "is a list, not a text", "non-persistent://tg/request/joke"),
        ({"request_queue": ""}, "request-queue", "is empty", "non-persistent://tg/request/joke"),
        (
            {"request_queue": "joke"},
            "request-queue",
            "'joke' is no whole topic name",
            "non-persistent://tg/request/joke",
        ),
        (
            {"response_queue": "tcp://a/b/c"},
            "response-queue",
            "'tcp' is no scheme",
            "non-persistent://tg/response/joke",
        ),
        ({"response_queue": "persistent://tg/x"}, "response-queue", "is not of the form", "all three parts"),
        (
            {"response_queue": "non-persistent://tg/request/joke"},
            "request-queue",
            "the same topic",
            "'non-persistent://tg/response/joke'",
        ),
        ({"config_params": {}}, "config-params", "an object, not a list", '[{"name": "style"'),
        ({"config_params": ["style"]}, "config-params[0]", "'style' instead of an object", '{"name": "style"'),
        ({"config_params": [{"required": True}]}, "config-params[0].name", "is missing", 'add "name"'),
        (
            {"config_params": [{"name": "a", "required": "yes"}]},
            "config-params[0].required",
            "a text, not true or false",
            '"required": true',
        ),
        (
            {"config_params": [{"name": "a"}, {"name": "a"}]},
            "config-params[1].name",
            "'a' is declared twice",
            "remove one",
        ),
        ({"instances": 2}, "instances", "a number, not a list", '[{"id": "joke-1"'),
        ({"instances": [2]}, "instances[0]", "2 instead of an object", '{"id": "joke-1"'),
        ({"version": "1.4"}, "version", "'1.4' is not a SemVer version", '"version": "1.4.0"'),
        ({"version": 1.4}, "version", "a number, not a text", '"version": "1.4.0"'),
    ],
)
def test_an_error_has_its_key_and_fix(changes: dict[str, Any], key: str, problem: str, fix: str) -> None:
    found = service_problem(**changes)
    assert found.key == key
    assert problem in found.problem
    assert fix in found.fix


@pytest.mark.parametrize(
    ("instance", "key", "problem", "fix"),
    [
        ({"id": None}, "instances[1].id", "null", 'add "id"'),
        ({"id": "joke-1"}, "instances[1].id", "'joke-1' is not unique", "its own id"),
        ({"request-queue": None}, "instances[1].request-queue", "null", "non-persistent://tg/request/joke-1"),
        ({"request-queue": "joke-2"}, "instances[1].request-queue", "no whole topic name", "joke-1"),
        ({"request-queue": "response:tg:joke"}, "instances[1].request-queue", "the same topic", "two topics"),
        ({"response-queue": "x:y:z"}, "instances[1].response-queue", "'x' is no queue class", "response/joke-1"),
        ({"weight": 0}, "instances[1].weight", "0 is not above 0", "remove it"),
        ({"weight": -0.5}, "instances[1].weight", "-0.5 is not above 0", "remove it"),
        ({"weight": "2"}, "instances[1].weight", "a text, not a number", '"weight": 1'),
        ({"weight": True}, "instances[1].weight", "true, not a number", '"weight": 1'),
    ],
)
def test_an_error_in_an_instance(instance: dict[str, Any], key: str, problem: str, fix: str) -> None:
    first = {"id": "joke-1", "request-queue": "request:tg:joke-1", "response-queue": "response:tg:joke-1"}
    second = {"id": "joke-2", "request-queue": "request:tg:joke-2", "response-queue": "response:tg:joke-2"}
    found = service_problem(instances=[first, second | instance])
    assert found.key == key
    assert problem in found.problem
    assert fix in found.fix


def test_two_instances_on_one_topic_are_worth_a_warning() -> None:
    instances = [{"id": "a", "request-queue": "request:tg:x"}, {"id": "b", "request-queue": "request:tg:x"}]
    found = service_problem("warning", instances=instances)
    assert found.key == "instances[1].request-queue"
    assert "the same topic as instance 'a'" in found.problem
    assert "topic of its own" in found.fix


def test_an_instance_may_share_the_services_own_queue() -> None:
    raw = JOKE_SERVICE | {"instances": [{"id": "a", "request-queue": "non-persistent://tg/request/joke"}]}
    assert read(raw).instances[0].request_queue == "non-persistent://tg/request/joke"


@pytest.mark.parametrize(
    ("changes", "key", "fix"),
    [
        ({"versoin": "1.0.0"}, "versoin", "rename it to 'version'"),
        ({"colour": "red"}, "colour", "remove it"),
        ({"config_params": [{"name": "a", "default": 1}]}, "config-params[0].default", "remove it"),
        ({"instances": [{"id": "a", "request-queue": "request:tg:a", "wieght": 2}]}, "instances[0].wieght", "'weight'"),
    ],
)
def test_an_unknown_key_is_a_warning(changes: dict[str, Any], key: str, fix: str) -> None:
    found = service_problem("warning", **changes)
    assert found.key == key
    assert "ignored" in found.problem
    assert fix in found.fix


def test_a_description_is_a_note_to_people() -> None:
    assert not check(service_item(JOKE_SERVICE | {"description": "tells jokes"}), severity="warning")


def test_an_id_other_than_the_items_key_is_worth_a_note() -> None:
    found = only(check(service_item(key="jokes"), severity="info"))
    assert found.key == "id"
    assert "'jokes'" in found.problem


def test_every_mistake_of_one_descriptor_is_found() -> None:
    raw = {
        "id": 1,
        "request-queue": "x",
        "config-params": [3, {"name": "a", "required": 1}],
        "instances": [{"weight": 0}],
        "version": "one",
        "policy": {"timeout": 0},
    }
    assert [problem.key for problem in check(service_item(raw))] == [
        "id",
        "request-queue",
        "response-queue",
        "config-params[0]",
        "config-params[1].required",
        "instances[0].id",
        "instances[0].request-queue",
        "instances[0].weight",
        "version",
        "policy.timeout",
    ]


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
    def refuse(raw: object, base: object, *_: object) -> None:
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
