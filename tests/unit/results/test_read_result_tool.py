from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from dispatch.calling import call_function
from dispatch.errors import InvalidArgumentsError
from dispatch.results import PAGE_CHARS, ReadResultTool, ResultStore
from dispatch.schemas import SchemaValidator

TEXT = "".join(f"{number} 行 🙂\n" for number in range(20_000))


def read(tool: ReadResultTool, **arguments: Any) -> str:
    return asyncio.run(tool.invoke(**arguments))


def test_a_model_reads_page_by_page() -> None:
    store = ResultStore()
    handle = store.add(TEXT, "alice")
    tool = ReadResultTool(store, "alice")
    whole, offset = "", 0
    while offset < len(TEXT):
        page = read(tool, handle=handle, offset=offset)
        shown, separator, notice = page.rpartition("\n\n[")
        part = shown if separator else page
        whole += part
        offset += len(part)
        if separator:
            assert f'read_result(handle="{handle}", offset={offset})' in notice
            assert len(page) <= 50_000
    assert whole == TEXT


def test_a_page_is_limited() -> None:
    store = ResultStore()
    handle = store.add(TEXT)
    assert len(read(ReadResultTool(store), handle=handle, limit=10**9)) <= PAGE_CHARS + 250
    with pytest.raises(InvalidArgumentsError, match="limit"):
        read(ReadResultTool(store), handle=handle, limit="10")


def test_it_is_a_tool_for_models() -> None:
    store = ResultStore()
    store_tool = store.tool("alice")
    handle = store.add("ab", "alice")
    SchemaValidator(store_tool.parameters)
    text = f'<tool_call>{{"name": "read_result", "arguments": {{"handle": "{handle}", "offset": 1}}}}</tool_call>'
    results = asyncio.run(call_function([store_tool], text))
    assert results is not None
    assert results[0].output == "b"
    others = asyncio.run(call_function([ReadResultTool(store, "bob")], text))
    assert others is not None
    assert "no stored result has this handle" in others[0].output


def test_wrong_arguments_of_a_model_are_answered() -> None:
    store = ResultStore()
    for arguments, problem in (
        ({}, "the argument 'handle' is missing"),
        ({"handle": "x", "page": 1}, "no argument 'page'"),
    ):
        answer = asyncio.run(store.tool("alice").answer(arguments))
        assert answer.is_error
        assert problem in answer.text
        text = f'<tool_call>{{"name": "read_result", "arguments": {json.dumps(arguments)}}}</tool_call>'
        (result,) = asyncio.run(call_function([store.tool("alice")], text)) or []
        assert answer.error is not None
        assert result.output == answer.error.message
