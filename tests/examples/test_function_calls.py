from __future__ import annotations

import json

import pytest

from tests.examples.conftest import Load


async def test_the_whole_conversation(load: Load, capsys: pytest.CaptureFixture[str]) -> None:
    messages = await load("function_calls").run("memory://")
    assert [message["role"] for message in messages] == ["system", "user", *["assistant", "user"] * 3, "assistant"]
    answers = [
        json.loads(line)
        for message in messages[3::2]
        for line in message["content"].splitlines()
        if line.startswith("{")
    ]
    assert [(each["name"], each["status"]) for each in answers] == [
        ("list_prices", "FAILED"),
        ("calculator", "FAILED"),
        ("list_prices", "SUCCEEDED"),
        ("calculate", "SUCCEEDED"),
        ("remove_product", "FAILED"),
    ]
    errors = [json.loads(each["output"]) for each in answers if each["status"] == "FAILED"]
    assert [each["error"] for each in errors] == ["invalid-arguments", "unknown-tool", "invalid-arguments"]
    assert "/years must be an integer" in errors[0]["message"]
    assert errors[1]["alternatives"] == ["calculate"]
    assert "the text ended inside its call" in errors[2]["message"]
    assert [each["output"] for each in answers[2:4]] == ["[89, 93, 97]", "166"]
    assert '"name": "read_result"' in messages[0]["content"]
    assert capsys.readouterr().out.endswith("I have not removed it.\n")
