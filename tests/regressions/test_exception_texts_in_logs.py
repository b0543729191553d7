"""At DEBUG a service logged the text of a tool's exception, which often holds arguments; and a call of an unknown tool had
no line in ``dispatch.calls``. Texts are logged only where content is recorded, and each call has its line.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest

from dispatch import Telemetry
from tests.helpers.dispatcher_and_service import serving
from tests.helpers.telemetry_capture import Board, telling

SECRET = "4711-0815"


def work(arguments: dict[str, Any]) -> str:
    raise ValueError(f"no account has the number {arguments['number']}")


async def lines(caplog: pytest.LogCaptureFixture, **settings: Any) -> str:
    telemetry = Telemetry(registry=Board().registry, **settings)
    with caplog.at_level(logging.DEBUG), caplog.at_level(logging.DEBUG, "dispatch"):
        async with serving(work, telemetry=telemetry), telling(telemetry) as dispatcher:
            result = await dispatcher.execute("work", {"number": SECRET})
            await dispatcher.execute("find\nnothing", {"number": SECRET})
    assert result.error is not None
    assert SECRET in result.error.message, "the caller is told"
    return "\n".join(map(caplog.handler.format, caplog.records))


async def test_an_exceptions_text_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    text = await lines(caplog)
    assert SECRET not in text
    assert SECRET not in repr([vars(record) for record in caplog.records])
    assert "lab failed: ValueError" in text
    assert "raise ValueError(f" in text, "where it was raised"


async def test_an_exceptions_text_is_logged_where_content_is_recorded(caplog: pytest.LogCaptureFixture) -> None:
    assert f"ValueError: no account has the number {SECRET}" in await lines(caplog, content=True)


async def test_a_call_of_an_unknown_tool_has_its_line(caplog: pytest.LogCaptureFixture) -> None:
    await lines(caplog)
    (line,) = [record for record in caplog.records if getattr(record, "dispatch_error_type", "") == "unknown-tool"]
    assert line.name == "dispatch.calls"
    assert line.getMessage() == r"'find\nnothing': rejected after 0.000 s", "one line, whatever a model invents"
    assert vars(line)["dispatch_tool"] == r"find\nnothing"
