"""Twelve scenarios, for each adapter the same. A framework answers some of them by itself, as its test states."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import dispatch
from tests.adapters import lab
from tests.adapters.lab import LARGE, Answer, CallTool

KEYS = {"error", "message", "retryable", "retry_after", "alternatives"}
USER = "alice"
RESULTS: Final = Path(__file__).with_name("results.json")
"""Adapter → scenario → what the model got: the table in docs/frameworks.md."""
SUCCESSES: Final = ("success", "stream", "large_result", "unicode")
"""Scenarios whose first answer is shown; of the others the last one is."""


class Model:
    """A model that makes calls by way of one adapter.

    Attributes:
        answers_unknown: the framework answers calls of unknown tools by itself, and its text contains this one; "": the
            adapter does.
        is_marked: the framework has a mark for errors.
        checks: the framework answers bad arguments by itself, and its text contains this one.
    """

    def __init__(
        self, call_tool: CallTool, *, answers_unknown: str = "", is_marked: bool = True, checks: str = ""
    ) -> None:
        self._call_tool = call_tool
        self.answers_unknown = answers_unknown
        self.is_marked = is_marked
        self.checks = checks
        self.answers: list[Answer] = []

    async def call(self, dispatcher: dispatch.Dispatcher, name: str, user: str = USER, /, **arguments: Any) -> Answer:
        answer = await self._call_tool(dispatcher, name, arguments, user)
        self.answers.append(answer)
        return answer

    async def succeed(self, dispatcher: dispatch.Dispatcher, name: str, user: str = USER, /, **arguments: Any) -> str:
        text, is_error = await self.call(dispatcher, name, user, **arguments)
        assert not is_error, text
        return text

    async def fail(
        self, dispatcher: dispatch.Dispatcher, name: str, user: str = USER, /, **arguments: Any
    ) -> dict[str, Any]:
        text, is_error = await self.call(dispatcher, name, user, **arguments)
        assert is_error is self.is_marked, text
        start, end = text.index("{"), text.rindex("}") + 1
        error: dict[str, Any] = json.loads(text[start:end])
        assert set(error) == KEYS
        return error


async def success(model: Model) -> None:
    async with lab.connect() as dispatcher:
        assert await model.succeed(dispatcher, "tell-joke", topic="cat") == "alice: why did the cat cross the road?"
        assert await model.succeed(dispatcher, "repeat", text="again") == "alice: again"


async def stream(model: Model) -> None:
    async with lab.connect() as dispatcher:
        assert await model.succeed(dispatcher, "count", to=3) == "0 1 2 "


async def tool_error(model: Model) -> None:
    async with lab.connect() as dispatcher:
        error = await model.fail(dispatcher, "refuse")
        assert (error["error"], error["retryable"]) == ("no-such-file", False)
        assert "There is no file 'a'." in error["message"]


async def throttled(model: Model) -> None:
    async with lab.connect() as dispatcher:
        assert await model.succeed(dispatcher, "limited") == "done"
        error = await model.fail(dispatcher, "limited")
        assert (error["error"], error["retryable"]) == ("rate-limited", True)
        assert 0 < error["retry_after"] <= 60


async def open_circuit(model: Model) -> None:
    async with lab.connect() as dispatcher:
        dispatcher.breaker("broken").force_open()
        error = await model.fail(dispatcher, "broken")
        assert (error["error"], error["alternatives"]) == ("circuit-open", ["report"])


async def timeout(model: Model) -> None:
    async with lab.connect() as dispatcher:
        began = time.monotonic()
        error = await model.fail(dispatcher, "hang")
        assert error["error"] == "timeout"
        assert time.monotonic() - began < 10


async def cancel(model: Model) -> None:
    async with lab.connect() as dispatcher:
        task = asyncio.create_task(model.call(dispatcher, "sleep"))
        await lab.marks["started"].wait()
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            pass
        else:
            raise AssertionError("the call was not cancelled")
        await lab.marks["stopped"].wait()
        assert dispatcher.pending_requests == 0


async def bad_arguments(model: Model) -> None:
    async with lab.connect() as dispatcher:
        if model.checks:
            text, is_error = await model.call(dispatcher, "count", to="three")
            assert model.checks in text
            assert is_error is model.is_marked
            return
        error = await model.fail(dispatcher, "count", to="three")
        assert (error["error"], error["retryable"]) == ("invalid-arguments", False)
        assert "to" in error["message"]


async def unknown_tool(model: Model) -> None:
    async with lab.connect() as dispatcher:
        if model.answers_unknown:
            text, is_error = await model.call(dispatcher, "repaet", text="a")
            assert model.answers_unknown in text
            assert is_error is model.is_marked
            return
        error = await model.fail(dispatcher, "repaet", text="a")
        assert error["error"] == "unknown-tool"
        assert error["alternatives"][0] == "repeat"


async def permission(model: Model) -> None:
    async with lab.connect() as dispatcher:
        assert await model.succeed(dispatcher, "secret", "bob") == "secret"
        text, is_error = await model.call(dispatcher, "secret", USER)
        assert is_error is model.is_marked
        if model.answers_unknown:  # the tool is not in the list of the user
            assert model.answers_unknown in text
        else:
            assert json.loads(text)["error"] in ("not-permitted", "unknown-tool")


async def large_result(model: Model) -> None:
    async with lab.connect() as dispatcher:
        shown = await model.succeed(dispatcher, "report")
        assert len(shown) <= 50_000
        text, _, notice = shown.rpartition("\n\n")
        handle = notice.partition('handle="')[2].partition('"')[0]
        while notice:
            page = await model.succeed(dispatcher, "read_result", handle=handle, offset=len(text))
            part, _, notice = page.rpartition("\n\n") if page.endswith(")]") else (page, "", "")
            text += part
        assert text == LARGE
        error = await model.fail(dispatcher, "read_result", "bob", handle=handle)
        assert error["error"] == "unknown-result"


async def unicode(model: Model) -> None:
    async with lab.connect() as dispatcher:
        for text in ("你好, \U0001f469\u200d\U0001f680", "שלום \u202e abc", "a\u0301 \x7f \ufeff", "</tool_call>'\"\\"):
            assert await model.succeed(dispatcher, "repeat", text=text) == f"alice: {text}"


SCENARIOS: dict[str, Callable[[Model], Awaitable[None]]] = {
    each.__name__: each
    for each in (
        *(success, stream, tool_error, throttled, open_circuit, timeout, cancel, bad_arguments, unknown_tool),
        *(permission, large_result, unicode),
    )
}


def run_scenario(name: str, model: Model, adapter: str = "") -> None:
    """Run one scenario on an event loop of its own.

    Args:
        adapter: with a name, what the model got is compared with the table of the documentation. With the environment
            variable ``RECORD_ADAPTERS`` it is written there.
    """
    asyncio.run(asyncio.wait_for(SCENARIOS[name](model), 60))
    if not adapter:
        return
    shown = describe_answer(model.answers[0 if name in SUCCESSES else -1] if model.answers else None)
    results: dict[str, dict[str, str]] = json.loads(RESULTS.read_text("utf-8"))
    if os.environ.get("RECORD_ADAPTERS"):
        results.setdefault(adapter, {})[name] = shown
        RESULTS.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    assert results[adapter][name] == shown


def describe_answer(answer: Answer | None) -> str:
    """Return a cell of the table in the documentation."""
    if answer is None:
        return "cancelled"
    start, end = answer.text.find("{"), answer.text.rfind("}") + 1
    try:
        error = json.loads(answer.text[start:end])
    except ValueError:
        error = {}
    if isinstance(error, dict) and error.keys() == KEYS:
        return f"`{error['error']}`"
    return "the framework's text" if answer.is_error or "not found" in answer.text else "result"
