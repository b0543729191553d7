"""The result of a call as a value."""

from __future__ import annotations

import json

from dispatch.errors import Outcome, ToolError
from dispatch.result import CallResult


def test_a_result_as_plain_values() -> None:
    result = CallResult(
        "work", Outcome.SUCCESS, "ha", duration=0.12345678, attempts=1, chunks=2, request_id="x", instance="one"
    )
    assert json.loads(json.dumps(result.as_dict())) == {
        "tool": "work",
        "outcome": "success",
        "text": "ha",
        "error": None,
        "duration": 0.123457,
        "attempts": 1,
        "chunks": 2,
        "request_id": "x",
        "instance": "one",
        "content": [],
        "structured_content": None,
    }
    assert (CallResult("work", Outcome.SUCCESS).attempts, CallResult("work", Outcome.SUCCESS).chunks) == (0, 0)
    failed = CallResult("work", Outcome.TOOL_ERROR, error=ToolError("Odd", "no"))
    assert (result.ok, failed.ok) == (True, False)
    assert failed.as_dict()["error"]["type"] == "Odd"
    assert failed.as_dict()["outcome"] == "tool_error"
