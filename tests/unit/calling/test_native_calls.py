"""Calls in messages of model APIs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dispatch.calling import MAX_CALLS, CallForm, parse

CHAT: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
}
NATIVE = {
    CallForm.OPENAI_CHAT: {"choices": [{"finish_reason": "tool_calls", "message": CHAT}]},
    CallForm.OPENAI_RESPONSES: {
        "status": "completed",
        "output": [
            {"type": "reasoning", "summary": []},
            {"type": "function_call", "call_id": "c1", "id": "fc_1", "name": "f", "arguments": '{"a": 1}'},
        ],
    },
    CallForm.ANTHROPIC: {
        "role": "assistant",
        "stop_reason": "tool_use",
        "content": [
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}},
        ],
    },
    CallForm.GEMINI: {
        "candidates": [
            {"content": {"role": "model", "parts": [{"functionCall": {"id": "c1", "name": "f", "args": {"a": 1}}}]}}
        ]
    },
}


@pytest.mark.parametrize("form", NATIVE)
def test_a_response_and_its_json_text_are_read(form: CallForm) -> None:
    for output in (NATIVE[form], json.dumps(NATIVE[form])):
        (call,) = parse(output)
        assert (call.name, call.args, call.call_id, call.form) == ("f", {"a": 1}, "c1", form)
        assert (call.repaired, call.truncated, call.error) == (False, False, None)


def test_a_message_alone_is_read() -> None:
    assert [call.call_id for call in parse(CHAT)] == ["c1"]
    assert [call.call_id for call in parse([CHAT, CHAT])] == ["c1", "c1"]


def test_arguments_that_are_cut_off_are_truncated() -> None:
    function = {"name": "f", "arguments": '{"path": "/srv/da'}
    (call,) = parse({"tool_calls": [{"id": "c1", "function": function}]})
    assert (call.args, call.truncated) == ({"path": "/srv/da"}, True)


def test_an_object_in_a_response_that_reached_its_limit_is_truncated() -> None:
    (call,) = parse({**NATIVE[CallForm.ANTHROPIC], "stop_reason": "max_tokens"})
    assert call.truncated


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [("[1]", "are a list"), ('{"a" 1}', "':' is missing"), ('{"a": 1} x', "go on behind"), (3, "are a number")],
)
def test_arguments_that_are_no_object_are_an_error_with_the_id(arguments: object, reason: str) -> None:
    (call,) = parse({"tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": arguments}}]})
    assert (call.name, call.args, call.call_id) == ("f", {}, "c1")
    assert call.error is not None
    assert reason in call.error


@pytest.mark.parametrize("arguments", ["", None, "{}", " "])
def test_missing_arguments_are_none(arguments: object) -> None:
    (call,) = parse({"tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": arguments}}]})
    assert (call.args, call.error) == ({}, None)


def test_each_call_beyond_the_limit_keeps_its_id() -> None:
    calls = parse({"tool_calls": [{**CHAT["tool_calls"][0], "id": f"c{n}"} for n in range(MAX_CALLS + 2)]})
    assert [call.call_id for call in calls] == [f"c{n}" for n in range(MAX_CALLS + 2)]
    assert [call.error is None for call in calls] == [True] * MAX_CALLS + [False] * 2


@pytest.mark.parametrize("output", [{}, [], None, 3, {"content": "hello"}, '{"tool_calls": 3}', '{"tool_use": '])
def test_other_values_have_no_calls(output: object) -> None:
    assert parse(output) == []
