"""Callbacks of an application that raise anything: the server gets an error without its text, and the session goes on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from mcp import MCPError
from mcp.types import INTERNAL_ERROR, ErrorData

from dispatch.mcp.conversion import Callbacks


@pytest.mark.parametrize(
    "error",
    [
        ValueError("4711"),
        SystemExit(4711),
        GeneratorExit(),
        KeyboardInterrupt(),
        asyncio.CancelledError(),
        StopIteration(1),
    ],
)
@pytest.mark.parametrize("kind", ["elicitation", "sampling", "roots"])
async def test_what_a_callback_raises_is_an_error_for_the_server(
    kind: str, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: Any) -> Any:
        raise error

    options = Callbacks(**{kind: fail}).as_options()
    callback = options["list_roots_callback" if kind == "roots" else f"{kind}_callback"]
    answer = await callback("context", "parameters")
    assert isinstance(answer, ErrorData)
    assert answer.code == INTERNAL_ERROR
    assert kind in answer.message
    assert "4711" not in answer.message
    assert f"the callback for {kind} failed" in caplog.text
    assert "4711" not in caplog.text


async def test_answers_and_errors_of_the_protocol_pass() -> None:
    async def decline(_context: object) -> Any:
        raise MCPError(-1, "not allowed")

    async def answer(_context: object, parameters: object) -> Any:
        return parameters

    options = Callbacks(roots=decline, sampling=answer).as_options()
    with pytest.raises(MCPError, match="not allowed"):
        await options["list_roots_callback"]("context")
    assert await options["sampling_callback"]("context", 5) == 5
    assert options["elicitation_callback"] is None


async def test_the_cancellation_of_the_session_passes() -> None:
    async def hang(_context: object) -> Any:
        await asyncio.Event().wait()

    task = asyncio.ensure_future(Callbacks(roots=hang).as_options()["list_roots_callback"]("context"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
