"""Good items to spoil, and ways to ask what the loader says of them."""

from __future__ import annotations

from typing import Any

from dispatch.catalog import Item, Problem, check_items

JOKE_SERVICE: dict[str, Any] = {
    "id": "joke-service",
    "request-queue": "non-persistent://tg/request/joke",
    "response-queue": "non-persistent://tg/response/joke",
    "config-params": [{"name": "style", "required": False}],
}

TELL_JOKE: dict[str, Any] = {
    "type": "tool-service",
    "name": "tell-joke",
    "description": "Tell a joke on a given topic",
    "service": "joke-service",
    "style": "pun",
    "arguments": [{"name": "topic", "type": "string", "description": "The topic for the joke"}],
}


def without(item: dict[str, Any], *keys: str) -> dict[str, Any]:
    """A copy of ``item`` that lacks ``keys``."""
    return {key: value for key, value in item.items() if key not in keys}


def service_item(raw: object = None, file: str = "tool-service/joke-service.json", key: str = "joke-service") -> Item:
    return Item(file, "tool-service", key, JOKE_SERVICE if raw is None else raw)


def tool_item(raw: object = None, file: str = "tool/tell-joke.json", key: str = "tell-joke") -> Item:
    return Item(file, "tool", key, TELL_JOKE if raw is None else raw)


def check(*items: Item, severity: str = "error") -> list[Problem]:
    """The problems of one severity. As the loader promises, there is a catalogue if and only if none is an error."""
    catalog, problems = check_items(items)
    assert (catalog is None) == any(problem.severity == "error" for problem in problems)
    return [problem for problem in problems if problem.severity == severity]


def only(problems: list[Problem]) -> Problem:
    assert len(problems) == 1, problems
    return problems[0]


def service_problem(severity: str = "error", **changes: Any) -> Problem:
    """The one problem of the joke service with some keys changed (``request_queue`` is ``request-queue``)."""
    raw = JOKE_SERVICE | {key.replace("_", "-"): value for key, value in changes.items()}
    problem = only(check(service_item(raw), severity=severity))
    assert problem.file == "tool-service/joke-service.json"
    return problem


def tool_problem(severity: str = "error", **changes: Any) -> Problem:
    """The one problem of the joke tool with some keys changed."""
    raw = TELL_JOKE | {key.replace("_", "-"): value for key, value in changes.items()}
    problem = only(check(service_item(), tool_item(raw), severity=severity))
    assert problem.file == "tool/tell-joke.json"
    return problem


def assert_problem(found: Problem, key: str, problem: str = "", fix: str = "") -> None:
    """Check the key of a problem, and parts of its two texts."""
    assert found.key == key
    assert problem in found.problem
    assert fix in found.fix
