from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from dispatch import CallResult, Outcome
from dispatch.errors import DispatchError, RejectedError, ThrottledError, ToolError
from dispatch.results import ResultFormatter, ResultStore
from dispatch.schemas import InvalidSchemaError

GOLDEN = Path(__file__).parent / "golden"
REPORT = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "celsius": {"type": "number"}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "celsius"],
}
LINES = "".join(f"line {number} — ligne — 行\n" for number in range(60))
ROWS = json.dumps([{"id": number, "text": f"a, b: {number}"} for number in range(40)])


@dataclasses.dataclass
class Point:
    x: int
    y: float


def reply(text: str) -> CallResult:
    return CallResult("weather", Outcome.SUCCESS, text)


def failure(error: DispatchError) -> CallResult:
    return CallResult("weather", error.outcome, error=error)


KINDS: dict[str, tuple[Any, ...]] = {
    "text": (reply("Sunny — 23 °C. 晴れ\n"),),
    "text-that-is-json": (reply('{"city":   "Oslo"}'),),
    "value": ({"city": "東京", "at": [1, 2.5, None]},),
    "value-of-a-class": (Point(1, 2.0),),
    "value-with-schema": ({"city": "Oslo", "celsius": 3}, REPORT),
    "json-with-schema": (reply('{ "city": "Oslo",\n  "celsius": 3.50, "id": 12345678901234567890123 }'), REPORT),
    "text-with-schema": (reply("42"), {"type": "string"}),
    "invalid-output": (reply('{"city": 7, "unit": "K"}'), REPORT),
    "invalid-output-no-json": (reply("It is sunny."), REPORT),
    "tool-error": (failure(ToolError("NoSuchCity", "There is no city 'Olso'. Use 'Oslo'.")),),
    "throttled": (
        failure(
            ThrottledError("overloaded", "Not executed. Wait.", retryable=True, retry_after=2.5, rejected_by="service")
        ),
    ),
    "unknown-tool": (
        failure(RejectedError("unknown-tool", "There is no tool 'wether'.", alternatives=("weather", "wind"))),
    ),
    "cut-text": (reply(LINES), None, 500),
    "cut-json": (reply(ROWS), None, 700),
    "cut-json-with-schema": (reply(ROWS), {"type": "array"}, 700),
    "cut-message-of-an-error": (failure(ToolError("Odd", LINES)), None, 600),
}


@pytest.mark.parametrize("kind", KINDS)
def test_golden(kind: str) -> None:
    result, *rest = KINDS[kind]
    handles = (f"handle-{number}" for number in itertools.count(1))
    formatter = ResultFormatter(ResultStore(new_handle=lambda: next(handles)))
    schema, max_chars = [*rest, *(None, 50_000)[len(rest) :]]
    content = formatter.format(result, schema, max_chars=max_chars)
    assert content == json.loads((GOLDEN / f"{kind}.json").read_text("utf-8"))
    for part in content["content"]:
        assert len(part["text"]) <= max_chars


def test_every_golden_file_has_a_kind() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(KINDS)


def test_the_rest_of_a_cut_result_is_read_by_its_user_alone() -> None:
    store = ResultStore(new_handle=lambda: "h")
    (part,) = ResultFormatter(store).format(reply(LINES), max_chars=500, user="alice")["content"]
    shown, _, notice = part["text"].rpartition("\n\n")
    assert shown + store.read("h", offset=len(shown), user="alice").text == LINES
    assert f"offset={len(shown)}" in notice
    with pytest.raises(DispatchError, match="no stored result has this handle"):
        store.read("h", user="bob")


@pytest.mark.parametrize("store", [None, ResultStore(max_bytes=1_000)])
def test_a_result_that_cannot_be_stored_says_so(store: ResultStore | None) -> None:
    (part,) = ResultFormatter(store).format(reply(LINES), max_chars=500)["content"]
    assert "were not stored" in part["text"]
    assert "read_result" not in part["text"]


def test_a_tiny_limit_leaves_the_line_that_says_how_to_read_on() -> None:
    store = ResultStore(new_handle=lambda: "h")
    (part,) = ResultFormatter(store).format(reply(LINES), max_chars=1)["content"]
    assert part["text"].startswith("\n\n[0 of ")
    assert len(part["text"]) < 250


def test_the_error_text_has_five_keys() -> None:
    error = ThrottledError("overloaded", "Wait.", retryable=True, retry_after=2.0)
    assert json.loads(ResultFormatter.format_error(error)) == {
        "error": "overloaded",
        "message": "Wait.",
        "retryable": True,
        "retry_after": 2.0,
        "alternatives": [],
    }


def test_a_long_error_remains_json() -> None:
    store = ResultStore(new_handle=lambda: "h")
    (part,) = ResultFormatter(store).format(failure(ToolError("Odd", 'a "b"\n' * 999)), max_chars=500)["content"]
    assert json.loads(part["text"])["error"] == "Odd"
    assert store.read("h").text == 'a "b"\n' * 999


@pytest.mark.parametrize("value", [["\ud800"], {"\ud800": 1}])
def test_a_value_that_is_no_json_is_written_as_text(value: object) -> None:
    assert ResultFormatter().format(value)["content"] == [{"type": "text", "text": str(value)}]


def test_a_cyclic_value_is_written_as_text() -> None:
    value: list[Any] = []
    value.append(value)
    assert ResultFormatter().format(value)["content"] == [{"type": "text", "text": "[[...]]"}]


def test_a_deep_answer_is_an_invalid_output_and_preserved() -> None:
    text = "[" * 500 + "]" * 500
    error, answer = ResultFormatter().format(reply(text), {"type": "array"})["content"]
    assert "at most 100 nested" in error["text"]
    assert answer["text"] == text


def test_a_schema_that_is_none_is_an_error() -> None:
    with pytest.raises(InvalidSchemaError):
        ResultFormatter().format(reply("3"), {"type": "text"})
