"""Chat2Graph's tests of its parser (``test/unit/test_util_json_parsing.py``, Apache-2.0), translated.

Its parser returns the JSON of any marked block; here the block is a call, and the JSON its arguments. The test of other
payload markers than the two has no counterpart.
"""

from __future__ import annotations

from typing import Any

import pytest

from dispatch.calling import CallForm, ParsedCall, parse

CODE = """
def process_data(data):
    # This is a comment inside the code
    if "special_key" in data:
        print(f"Found special key with value: {data['special_key']}")
    return {"status": "processed", "items": len(data)}
"""


def fence(args: str) -> str:
    return f'\n    ```json\n    {{"name": "f", "call_objective": "o", "args": {args}}}\n    ```\n    '


def parse_one(text: str) -> ParsedCall:
    (call,) = parse(text)
    return call


def read_args(args: str) -> dict[str, Any]:
    call = parse_one(fence(args))
    assert (call.name, call.call_objective, call.form, call.error) == ("f", "o", CallForm.FENCE, None)
    return call.args


def test_basic() -> None:
    assert read_args('{"key": "value"}') == {"key": "value"}


def test_tags_between_thoughts_that_name_the_tag() -> None:
    text = """
    <shallow_thinking>
        Understanding: The user instructs me to call the `query_system_status()` function.
        Action: I will generate a `<function_call>` to invoke the `query_system_status()` function as instructed.
    </shallow_thinking>
    <action>
        <function_call>
        {
            "name": "query_system_status",
            "call_objective": "Obtain the current system status for subsequent task decomposition.",
            "args": {}
        }
        </function_call>
    </action>

    More text.

    <function_call>
    {"name": "test", "args": {},} // Trailing comma removed
    </function_call>
    """
    first, second = parse(text)
    assert (first.name, first.args, first.repaired) == ("query_system_status", {}, False)
    assert (second.name, second.args, second.repaired) == ("test", {}, True)


def test_multiple() -> None:
    text = fence('{"id": 1}') + "Some text in between" + fence('{"id": 2}')
    assert [call.args for call in parse(text)] == [{"id": 1}, {"id": 2}]


def test_nested() -> None:
    person = '{"person": {"name": "John", "age": 30, "address": {"city": "New York", "country": "USA"}}}'
    assert read_args(person)["person"]["address"]["city"] == "New York"


def test_a_missing_end_bracket_is_repaired_and_marked() -> None:
    # Chat2Graph reports an error here.
    call = parse_one(
        '<function_call>\n{"name": "f", "args": {"valid": "json"} // Missing closing brace\n</function_call>'
    )
    assert (call.args, call.repaired, call.error) == ({"valid": "json"}, True, None)


def test_a_code_block_without_language_is_no_call() -> None:
    # Chat2Graph's function parses it, but its reasoner asks for ``json`` blocks only.
    assert parse(fence('{"name": "John"}').replace("```json", "```")) == []


def test_trailing_comments_and_comma() -> None:
    args = """{
        "url": "http://example.com", // Trailing comment (removed)
        "comment": "This // should remain as it's inside a string", // Trailing comment (removed)
        // Full line comment (removed)
        "valid": true, // Trailing comment (removed)
        "data": [
            1, // Trailing comment (removed)
            2 // Trailing comment (removed)
        ], // Trailing comma after array (removed by fixer)
        "last": "value" // No trailing comma needed here
    }"""
    assert read_args(args) == {
        "url": "http://example.com",
        "comment": "This // should remain as it's inside a string",
        "valid": True,
        "data": [1, 2],
        "last": "value",
    }


def test_an_apostrophe_in_single_quotes_is_an_error() -> None:
    args = """{
        'name': "Alice", // Fixed
        "age": 30 // Missing comma before next key
        "city": 'Bob's Town', // Invalid single quotes for value
    }"""
    call = parse_one(fence(args))
    assert call.error is not None
    assert "line 6, column 9" in call.error


def test_a_comment_in_a_string_is_data() -> None:
    args = """{
        "url": "http://example.com/path", // This trailing comment is removed correctly
        "script": "var x = '//not_a_comment';", // This should be preserved
        "valid": true
    }"""
    found = read_args(args)
    assert found["script"] == "var x = '//not_a_comment';"
    assert found["url"] == "http://example.com/path"


def test_first_key_in_single_quotes() -> None:
    args = """{ 'first_key': "value1", // Single quotes for the very first key
        "second_key": "value2" }"""
    assert read_args(args) == {"first_key": "value1", "second_key": "value2"}


def test_mixed_valid_and_commented() -> None:
    text = fence('{"valid": true}') + fence('{"invalid": "json,"}').replace('json,"}}', 'json,"}} // comment')
    assert [call.args for call in parse(text)] == [{"valid": True}, {"invalid": "json,"}]


def test_python_code_with_dictionaries_is_unchanged() -> None:
    code = (
        r"parsed = {'酒店': [5, 5, 4,], '露营地': [4, 1]}\n\nfor a, b in parsed.items():\n"
        r"    print(\"  {}: {:.2f}\".format(a, b)) # Handle\n"
    )
    content = f'{{"name": "execute_code", "call_objective": "计算", "args": {{"code": "{code}"}}}}'
    call = parse_one(f"<function_call>\n{content}\n</function_call>")
    assert call.args["code"] == code.replace(r"\n", "\n").replace(r"\"", '"')
    assert not call.repaired


def test_empty() -> None:
    assert parse("Some text without JSON markers") == []


def test_a_payload_is_raw_text() -> None:
    args = f'{{"action": "execute_code", "code": __PAYLOAD_START__{CODE}__PAYLOAD_END__ }}'
    assert read_args(args) == {"action": "execute_code", "code": CODE}


def test_payloads_in_a_list() -> None:
    sql = "SELECT * FROM users WHERE country = 'US';"
    steps = read_args(
        f"""{{ "steps": [
            {{ "type": "sql", "query": __PAYLOAD_START__{sql}__PAYLOAD_END__ }},
            {{ "type": "python", "code": __PAYLOAD_START__{CODE}__PAYLOAD_END__ }} ] }}"""
    )["steps"]
    assert steps == [{"type": "sql", "query": sql}, {"type": "python", "code": CODE}]


@pytest.mark.parametrize("space", ["", "\n", "  "])
def test_several_payloads_in_one_object(space: str) -> None:
    args = (
        f'{{ "code": __PAYLOAD_START__print("hello")__PAYLOAD_END__{space},'
        f'"explanation": __PAYLOAD_START__This is a multi-line\nexplanation.__PAYLOAD_END__{space}}}'
    )
    assert read_args(args) == {"code": 'print("hello")', "explanation": "This is a multi-line\nexplanation."}
