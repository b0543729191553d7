"""Unexpected exceptions of tools, in services and in this process: one ERROR with a traceback per kind, no user data.
Of results that cannot be sent: one ERROR with their type."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import dispatch
from dispatch.telemetry.events import MAX_CHAINED, MAX_FRAMES, REPEAT_INTERVAL_S
from tests.helpers.dispatcher_and_service import BROKER, REQUESTS, RESPONSES, catalog, dispatching, serving

SECRET = "4711-0815"


class UnreadableError(Exception):
    def __str__(self) -> str:
        raise LookupError(SECRET)


def look_up(number: str) -> str:
    try:
        return {}[number]
    except KeyError as cause:
        raise ValueError(f"no account has the number {number}") from cause


def fail_twice(number: str) -> str:
    try:
        return {}[number]
    finally:
        raise OSError(number)


def fail_in_group(number: str) -> str:
    raise ExceptionGroup(f"about {number}", [ValueError(number), UnreadableError(number)])


def recurse(number: str) -> str:
    return fall(number)


def fall(number: str) -> str:
    return recurse(number)


def chain(number: str) -> str:
    error: Exception = ValueError(number)
    for _ in range(10 * MAX_CHAINED):
        following = ValueError(number)
        following.__cause__ = error
        error = following
    raise error


def fail_unreadably(number: str) -> str:
    raise UnreadableError(number)


def exit_at_once(number: str) -> str:
    raise SystemExit(number)


def raise_own_error(number: str) -> str:
    raise dispatch.ToolError("no-such-account", f"no account has the number {number}")


async def run(function: Callable[[str], str], where: str, telemetry: dispatch.Telemetry, count: int = 1) -> None:
    """Call ``function`` as a service's tool, or as a function of this process."""
    if where == "service":
        service = serving(lambda arguments: function(arguments["number"]), telemetry=telemetry)
        async with service, dispatching() as dispatcher:
            for _ in range(count):
                await dispatcher.execute("work", {"number": SECRET})
        return

    def work(number: str) -> str:
        return function(number)

    source = dispatch.Functions(work)
    async with dispatch.connect("memory://", catalog=[source], telemetry=telemetry) as dispatcher:
        for _ in range(count):
            await dispatcher.execute("work", {"number": SECRET})


def telemetry(**settings: Any) -> dispatch.Telemetry:
    return dispatch.Telemetry(metrics=False, traces="off", **settings)


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [caplog.handler.format(record) for record in caplog.records if record.levelno >= logging.ERROR]


every_place = pytest.mark.parametrize("where", ["service", "function"])


def fail_with_half_a_pair(number: str) -> str:
    raise ValueError(f"half a pair \udce9 in {number}")


@every_place
async def test_a_text_that_is_not_unicode_is_logged(where: str, caplog: pytest.LogCaptureFixture) -> None:
    await run(fail_with_half_a_pair, where, telemetry(content=True))
    (text,) = errors(caplog)
    assert f"ValueError: half a pair ? in {SECRET}" in text
    assert text.encode()


@every_place
@pytest.mark.parametrize(
    ("function", "shown"),
    [
        (look_up, ("ValueError", "KeyError", "direct cause", "raise ValueError(f")),
        (fail_twice, ("OSError", "KeyError", "During handling", "raise OSError(number)")),
        (fail_in_group, ("ExceptionGroup", "Member 1 of 2", "ValueError", "Member 2 of 2", "UnreadableError")),
        (fail_unreadably, ("UnreadableError", "raise UnreadableError(number)")),
        (exit_at_once, ("SystemExit", "in exit_at_once")),
    ],
)
async def test_one_error_with_its_traceback_and_without_its_text(
    function: Callable[[str], str], shown: tuple[str, ...], where: str, caplog: pytest.LogCaptureFixture
) -> None:
    await run(function, where, telemetry())
    (text,) = errors(caplog)
    for each in ("Traceback (most recent call last):", *shown):
        assert each in text
    assert SECRET not in text
    assert SECRET not in repr([vars(record) for record in caplog.records])
    assert "dispatch/serving" not in text, "it begins in the code of the tool"


@every_place
async def test_with_content_its_text_is_there(where: str, caplog: pytest.LogCaptureFixture) -> None:
    await run(look_up, where, telemetry(content=True))
    (text,) = errors(caplog)
    assert f"ValueError: no account has the number {SECRET}" in text
    assert f"KeyError: '{SECRET}'" in text


@every_place
async def test_an_unreadable_exception_with_content(where: str, caplog: pytest.LogCaptureFixture) -> None:
    await run(fail_unreadably, where, telemetry(content=True))
    (text,) = errors(caplog)
    assert "UnreadableError" in text


@every_place
async def test_a_tools_own_error_is_not_unexpected(where: str, caplog: pytest.LogCaptureFixture) -> None:
    await run(raise_own_error, where, telemetry(content=True))
    assert errors(caplog) == []


@every_place
async def test_each_kind_is_limited_in_rate(where: str, caplog: pytest.LogCaptureFixture) -> None:
    kinds = [look_up, fail_unreadably]

    def work(number: str) -> str:
        kinds.append(kinds.pop(0))
        return kinds[-1](number)

    async with asyncio.timeout(60):
        await run(work, where, telemetry(), count=20)
    assert len(errors(caplog)) == 2, "one for each kind"
    assert {
        getattr(record, "dispatch_error", None) for record in caplog.records if record.levelno >= logging.ERROR
    } == {"ValueError", "UnreadableError"}


async def test_a_later_line_counts_the_others(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        serving(lambda arguments: look_up(arguments["number"]), telemetry=telemetry()),
        dispatching() as dispatcher,
    ):
        for _ in range(5):
            await dispatcher.execute("work", {"number": SECRET})
        await asyncio.sleep(REPEAT_INTERVAL_S)
        await dispatcher.execute("work", {"number": SECRET})
    first, second = errors(caplog)
    assert first.endswith("\nValueError")
    assert second.endswith("\nValueError (4 more since the last line)")


@pytest.mark.parametrize("function", [recurse, chain])
async def test_a_traceback_is_bounded(function: Callable[[str], str], caplog: pytest.LogCaptureFixture) -> None:
    await run(function, "service", telemetry())
    (text,) = errors(caplog)
    assert text.count("Traceback") <= MAX_CHAINED
    assert text.count("  File ") <= MAX_CHAINED * MAX_FRAMES
    assert SECRET not in text


# -- results that cannot be sent --------------------------------------------------------------------------------------


class Account:
    def __init__(self, number: str) -> None:
        self.number = number

    def __repr__(self) -> str:
        return self.number


RESULTS: dict[str, tuple[Callable[[str], Any], str]] = {
    "object": (Account, "an Account"),
    "inner": (lambda number: [{"account": Account(number)}], "a list with an Account"),
    "infinite": (lambda number: {number: float("inf")}, "a dict"),
    "half": (lambda number: f"{number}\ud800", "a str"),
    "keys": (lambda number: {(number, number): 1}, "a dict"),
    "equal": (lambda number: {int(number[:4]): 1, number[:4]: 2}, "a dict"),
}


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("where", ["service", "functions", "process"])
@pytest.mark.parametrize("kind", RESULTS)
async def test_the_type_of_a_result_that_cannot_be_sent_is_logged(
    kind: str, where: str, is_stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    make, shown = RESULTS[kind]

    def work(number: str) -> Any:
        """Work."""
        return make(number)

    async def work_in_chunks(number: str) -> AsyncIterator[Any]:
        """Work."""
        yield make(number)

    class Whole(dispatch.ToolService):
        async def invoke(self, config: dict[str, Any], arguments: dict[str, Any]) -> Any:
            return make(arguments["number"])

    class Chunks(dispatch.ToolService):
        async def invoke(self, config: dict[str, Any], arguments: dict[str, Any]) -> AsyncIterator[Any]:
            yield make(arguments["number"])

    function = dispatch.tool(name="work")(work_in_chunks if is_stream else work)
    tools: Any = catalog(service={"config-params": [{"name": "tool"}]}, work={"tool": "work"})
    name = "tool 'work'"
    async with contextlib.AsyncExitStack() as stack:
        if where == "process":
            tools = [dispatch.Functions(function)]
        else:
            served: dict[str, Any] = {"functions": function} if where == "functions" else {}
            served = served or {"implementation": Chunks() if is_stream else Whole()}
            server = dispatch.ToolServer(
                **served, broker=BROKER, request_queue=REQUESTS, response_queue=RESPONSES, telemetry=telemetry()
            )
            await stack.enter_async_context(server)
            name = f"{server.service}: {name}" if where == "functions" else server.service
        dispatcher = await stack.enter_async_context(dispatch.connect(BROKER, catalog=tools, telemetry=telemetry()))
        for _ in range(3):
            result = await dispatcher.execute("work", {"number": SECRET})
    assert result.error.type == "invalid-result"
    (text,) = errors(caplog)
    assert f"{name} returned {shown}" in text
    assert "invalid-result" in text
    assert "Return a text, a number, a list, a dict, or a dataclass" in text
    assert SECRET not in text
    assert SECRET not in repr([vars(record) for record in caplog.records])
