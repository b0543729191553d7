"""Calls in texts: forms, repairs, faults of other parsers, limits, and any division into chunks.
Chat2Graph's tests of its parser (``test/unit/test_util_json_parsing.py``, Apache-2.0), translated.

Its parser returns the JSON of any marked block; here the block is a call, and the JSON its arguments. The test of other
payload markers than the two has no counterpart.
Outputs of models in ten languages: the calls found are the calls meant.
What models write in place of JSON is translated into JSON, from left to right and at bounded cost.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.calling.corpus import make_corpus
from dispatch.calling import MAX_CALLS, MAX_DEPTH, MAX_TEXT_CHARS, CallForm, ParsedCall, Parser, parse
from dispatch.calling.json_repair import JsonFaultError, JsonValue, MarkFinder, read_json
from tests.helpers.run_profile import by_profile
from tests.unit.calling.chunks import parse_in_chunks

A_CALL = '<function_call>{"name": "a", "args": {}}</function_call>'


def tagged(args: str) -> str:
    return f'<function_call>{{"name": "f", "call_objective": "o", "args": {args}}}</function_call>'


def parse_one(text: str) -> ParsedCall:
    (call,) = parse(text)
    return call


# Faults of other parsers


@pytest.mark.parametrize("value", ["a = [1, 2,]", "d = {'a': 1}", "// no comment", "/* none */ # none", "{'a': [1,],}"])
def test_data_inside_strings_is_never_changed(value: str) -> None:
    call = parse_one(tagged(json.dumps({"a": value})))
    assert (call.args, call.repaired) == ({"a": value}, False)
    repaired = parse_one(tagged(json.dumps({"a": value})[:-1] + ",}"))
    assert (repaired.args, repaired.repaired) == ({"a": value}, True)


def test_two_calls_on_one_line_are_both_found() -> None:
    assert [call.name for call in parse(A_CALL + " and " + A_CALL.replace('"a"', '"b"'))] == ["a", "b"]


def test_a_closing_tag_in_a_string_or_payload_is_data() -> None:
    code = 'x = "</function_call>"\n"__PAYLOAD_END__"'
    assert parse_one(tagged(json.dumps({"c": code}))).args == {"c": code}
    assert parse_one(tagged(f'{{"c": __PAYLOAD_START__{code}__PAYLOAD_END__}}')).args == {"c": code}
    assert parse_one(tagged(f'{{"c": __PAYLOAD_START__{code}__PAYLOAD_END__,}}')).repaired


def test_quoted_payload_markers_are_data() -> None:
    text = "write __PAYLOAD_START__ and __PAYLOAD_END__"
    assert parse_one(tagged(json.dumps({"c": text}))).args == {"c": text}


def test_a_code_block_inside_a_tag_is_one_call() -> None:
    text = '<function_call>\n```json\n{"name": "f", "call_objective": "o", "args": {}}\n```\n</function_call>'
    assert parse_one(text).form is CallForm.FUNCTION_CALL
    assert not parse_one(text).repaired


@pytest.mark.parametrize("size", range(1, 60))
def test_the_end_of_a_code_block_in_two_chunks_begins_no_other_block(size: int) -> None:
    text = '```tool_call\n{"name": "f", "arguments": {}}\n```tool_code\nf()\n```\n'
    assert [(call.name, call.error) for call in parse(text)] == [("f", None)]
    assert parse_in_chunks(text, size) == parse(text)


def test_a_path_that_is_cut_off_is_marked_truncated() -> None:
    call = parse_one('<function_call>{"name": "rm", "args": {"path":"/srv/da')
    assert (call.name, call.args, call.truncated) == ("rm", {"path": "/srv/da"}, True)


def test_a_missing_quote_before_the_closing_tag_is_an_error() -> None:
    call = parse_one('<function_call>{"name": "rm", "args": {"path":"/srv/da</function_call> done')
    assert call.error is not None
    assert "closing quote" in call.error


# Forms


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ('<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', CallForm.TOOL_CALL),
        ('```tool_call\n{"name": "f", "arguments": {"a": 1}}\n```', CallForm.FENCE),
        ('Thought: I need it.\nAction: f\nArgs: {\n  "a": 1\n}', CallForm.REACT),
        ('Thought: I need it.\nAction: "f"\nArgs:\n{"a": 1}\n', CallForm.REACT),
        (
            'Thought: x\nAction: f\nAction Input: {"a": 1}\nObservation: made up\nThought: y\nAction: g\n',
            CallForm.REACT,
        ),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', CallForm.TOOL_CALL),
        ('<tool_call>{"type": "function", "function": {"name": "f", "parameters": {"a": 1}}}', CallForm.TOOL_CALL),
    ],
)
def test_forms(text: str, form: CallForm) -> None:
    call = parse_one(text)
    assert (call.name, call.args, call.form, call.repaired, call.error) == ("f", {"a": 1}, form, False, None)


LEARNED = [
    '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]',
    '[TOOL_CALLS]f[ARGS]{"a": 1}</s>',
    '[TOOL_CALLS]f[CALL_ID]a1B2c3D4e[ARGS]{"a": 1}',
    '<|python_tag|>{"name": "f", "parameters": {"a": 1}}<|eom_id|>',
    '<|tool_call|>[{"name": "f", "arguments": {"a": 1}}]<|/tool_call|>',
    '<|START_ACTION|>[\n{"tool_call_id": "0", "tool_name": "f", "parameters": {"a": 1}}\n]<|END_ACTION|>',
    '<function=f>{"a": 1}</function>',
    '<\uff5ctool▁calls▁begin\uff5c><\uff5ctool▁call▁begin\uff5c>f<\uff5ctool▁sep\uff5c>{"a": 1}<\uff5ctool▁call▁end\uff5c>',
    '<\uff5ctool▁call▁begin\uff5c>function<\uff5ctool▁sep\uff5c>f\n```json\n{"a": 1}\n```<\uff5ctool▁call▁end\uff5c>',
    '<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|>',
    '<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>',
    '{"name": "f", "parameters": {"a": 1}}',
    ' [{"name": "f", "arguments": {"a": 1}}]\n',
    '```json\n{"name": "f", "arguments": {"a": 1}}\n```',
    '\n```json\n[{"name": "f", "parameters": {"a": 1}}]\n```\n',
    '<tool_calls>[{"name": "f", "arguments": {"a": 1}}]</tool_calls>',
    '<tool_calls>\n<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>\n</tool_calls>',
]
"""A call of f with what models have learned to write: Mistral, Llama, Phi, Command, functionary, DeepSeek, Kimi, gpt-oss,
Jamba."""


@pytest.mark.parametrize("text", LEARNED)
def test_what_models_have_learned_to_write(text: str) -> None:
    call = parse_one(text)
    read = (call.name, call.args, call.form, call.repaired, call.error)
    assert read == ("f", {"a": 1}, CallForm.TOOL_CALL, False, None)
    for size in (1, 5, 30):
        assert parse_in_chunks(text, size) == [call]


def test_several_calls_between_tokens() -> None:
    text = 'Both. <|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}<|eom_id|>'
    assert [call.name for call in parse(text)] == ["f", "g"]
    text = '[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g[ARGS]{"a": "</s>[TOOL_CALLS]"}'
    assert [(call.name, call.args) for call in parse(text)] == [("f", {}), ("g", {"a": "</s>[TOOL_CALLS]"})]
    assert [call.truncated for call in parse('[TOOL_CALLS]rm[ARGS]{"path": "/srv/da')] == [True]
    bare = json.dumps([{"name": "f", "parameters": {}}] * (MAX_CALLS + 1))
    assert [call.error is None for call in parse(bare)] == [True] * MAX_CALLS + [False]


@pytest.mark.parametrize(
    "text",
    [
        '<function_calls>\n<invoke name="f">\n<parameter name="a">1</parameter>\n</invoke>\n</function_calls>',
        "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
        "```tool_code\nf(a=1)\n```",
        '<|python_tag|>brave_search.call(query="x")',
        '<tool_call>{"name": "f", "a": 1}</tool_call>',
        '[TOOL_CALLS]f[ARGS]{"a": 1',
    ],
)
def test_a_call_whose_arguments_cannot_be_read_is_reported(text: str) -> None:
    call = parse_one(text)
    assert (call.args == {} and "JSON" in (call.error or "")) or call.truncated
    assert parse_in_chunks(text, 3) == [call]


def test_the_calls_of_a_reasoning_that_begins_in_the_prompt_are_drafts() -> None:
    text = f"I could {A_CALL}\nThought: or\n</think>\n" + A_CALL.replace('"a"', '"b"')
    assert [call.name for call in parse(text)] == ["b"]
    assert [call.name for call in parse(A_CALL + " ends with `</think>`")] == ["a"]
    assert [call.name for call in parse(A_CALL.replace("{}", '{"a": "</think>"}'))] == ["a"]
    parser = Parser(in_reasoning=True)
    calls = [call for char in text for call in parser.feed(char)] + parser.close()
    assert calls == parse(text)
    assert parse_in_chunks(text, 5)[0].name == "a"
    assert Parser(in_reasoning=True).feed(A_CALL) == []


def test_an_action_without_arguments() -> None:
    assert [(call.name, call.args) for call in parse("Thought: status first\nAction: status\n")] == [("status", {})]


@pytest.mark.parametrize(
    "text",
    [
        "The syntax is `<function_call>{…}</function_call>` in one line.",
        'Write "<function_call>{"name": "f", "args": {}}</function_call>" to call f.',
        "Action: required\n",
        "Action: I will call f.\nArgs: none",
        "<think>maybe " + A_CALL + " or not</think>No.",
        '```json\n{"name": "John", "age": 3}\n```',
        'Thought: done\nFinal Answer: {"a": 1}\nAction: f\nArgs: {}\n',
        "Use <function_call> for calls.",
        "Mistral writes [TOOL_CALLS] in front, functionary <function=NAME>, gpt-oss to=functions.NAME.",
        'The token is "[TOOL_CALLS]f[ARGS]{}".',
        '{"name": "John", "parameters": {}, "age": 3}',
        '[{"name": "f", "parameters": {}}, 3]',
        '```json\n{"name": "f", "parameters": {}}\n```\nis how a call looks.',
        'A call looks like\n```json\n{"name": "f", "parameters": {}}\n```',
        '```json\n{"name": "f", "parameters": {}\n```',
        '```json\n{"name": }\n```',
        "```json\n[]\n```",
    ],
)
def test_prose_is_no_call(text: str) -> None:
    assert parse(text) == []


def test_several_objects_in_one_tag() -> None:
    two = '{"name": "a", "arguments": {}}, {"name": "b", "arguments": {}}'
    assert [call.name for call in parse(f"<tool_call>{two}</tool_call>")] == ["a", "b"]
    assert [call.name for call in parse(f"<tool_call>[{two}]</tool_call>")] == ["a", "b"]


def test_a_missing_closing_tag_before_the_next_call() -> None:
    text = '<function_call>{"name": "a", "args": {}}\n<function_call>{"name": "b", "args": {}}</function_call>'
    assert [(call.name, call.error) for call in parse(text)] == [("a", None), ("b", None)]


# Repairs


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ('{"a": [1, 2,],}', {"a": [1, 2]}),
        ('{"a": 1 /* one */, # two\n "b": 2}', {"a": 1, "b": 2}),
        ("{'a': 'it\\'s \"b\"'}", {"a": 'it\'s "b"'}),
        ('{"a": "one\ntwo\tthree"}', {"a": "one\ntwo\tthree"}),
        ('{"a": [1, {"b": 2}', {"a": [1, {"b": 2}]}),
        ("{'a': True, 'b': None, 'c': False}", {"a": True, "b": None, "c": False}),
        ("{'a': 'b', 'c': 'd', 'e': 'f',}", {"a": "b", "c": "d", "e": "f"}),
        ('{"a": 1, "b": [1, 2, 3, {"c": "d"},]}', {"a": 1, "b": [1, 2, 3, {"c": "d"}]}),
    ],
)
def test_repairs(args: str, expected: dict[str, Any]) -> None:
    call = parse_one(tagged(args))
    assert (call.args, call.repaired, call.truncated, call.error) == (expected, True, False, None)


def test_superfluous_end_brackets_are_dropped() -> None:
    call = parse_one('<function_call>{"name": "f", "args": {"a": 1}}}</function_call>')
    assert (call.args, call.repaired, call.error) == ({"a": 1}, True, None)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("f(a=1)", "not a JSON object"),
        ('{"name": "f", "args": {"a": 1}}, "b": 2}', "text follows"),
        ('{"name": "f", "args": {"a" 1}}', "':' is missing after 'a'"),
        ('{"name": "f", "args": {a: 1}}', "a name in double quotes"),
        ('{"name": "f", "args": {"a": NaN}}', "a JSON value is missing"),
        ('{"name": "f", "args": {"a": "\\d+"}}', "invalid escape"),
        ('{"name": "f", "args": [1]}', "are a list and not an object"),
        ('{"args": {}}', "the key 'name'"),
        ("[1]", "it is a number and not an object"),
        ('{"name": "f", "args": {"a": ' + "9" * 5000 + ",}}", "too many digits"),
        ('{"name": "f", "args": ' + '{"a":' * MAX_DEPTH + "1" + "}" * MAX_DEPTH + "}", "inside each other"),
        ('{"name": "f", "args": ' + '{"a":' * 5000, "inside each other"),
    ],
)
def test_errors_give_place_reason_and_form(content: str, reason: str) -> None:
    call = parse_one(f"One line.\n  <function_call>{content}</function_call>")
    assert (call.args, call.line, call.column) == ({}, 2, 3)
    assert call.error.startswith("The call at line 2, column ")
    assert reason in call.error
    assert call.error.endswith(
        'Write the whole call again as <function_call>{"name": "…", "call_objective": "…", "args": {…}}</function_call> '
        "with valid JSON."
    )
    assert len(call.error) < 480


def test_the_call_behind_an_invalid_one_is_found() -> None:
    broken = '<function_call>{"name": "x", "args": {"a" 1}}</function_call>'
    assert [(call.name, call.error is None) for call in parse(broken + A_CALL)] == [("", False), ("a", True)]


# Limits


def test_calls_beyond_the_limit_are_rejected_and_reported_once() -> None:
    calls = parse(A_CALL * (MAX_CALLS + 5))
    assert [call.error for call in calls[:MAX_CALLS]] == [None] * MAX_CALLS
    (rest,) = calls[MAX_CALLS:]
    assert rest.error is not None
    assert "all later ones are rejected" in rest.error


def test_text_beyond_the_limit_is_rejected_and_reported() -> None:
    text = A_CALL + "x" * MAX_TEXT_CHARS + A_CALL
    for calls in (parse(text), parse_in_chunks(text, 100_000)):
        assert [call.name for call in calls] == ["a", ""]
        assert calls[1].error is not None
        assert "1,048,576" in calls[1].error


def test_a_closed_parser_accepts_nothing() -> None:
    parser = Parser()
    parser.close()
    with pytest.raises(ValueError, match="closed"):
        parser.feed("x")


HEAD = '<function_call>{"name": "f", "args": {"a": '
SLOW = [
    *("\n", "<function_call>", "<function_call>\n", "<function_call>{", "```json\n", '```json\n{"', "```json{/*"),
    *("```json[[", '```json{"call_objective":', "```json{'call_objective': __PAYLOAD_START__"),
    *("Action: ", "Action: a\n"),
    *("Thought:\nAction: a\nArgs:\n\n", "<think>", "`", " \t", "        Action", "<tool_call>{}", "```json{}"),
    *("<|python_tag|>{#", "</think><function=f>{#", "</think>[TOOL_CALLS]f[ARGS]{<"),
    *("[TOOL_CALLS][]", "x [TOOL_CALLS]" + "f" * 120, "</think><tool_call>", "<function=f>", "to=functions.f", "[ "),
    *(HEAD + "\n" * 100_000, HEAD + "[" * 100_000, HEAD + '"' * 100_000, HEAD + '"' + "\\" * 100_000),
    *(HEAD + "'" + "\\'" * 50_000, HEAD + "//" * 50_000, HEAD + "//\n" * 33_000, HEAD + "[" + "1," * 50_000),
    *(HEAD + "[" + '"a",' * 25_000, HEAD + "[" + "'a'," * 25_000, HEAD + "__PAYLOAD_START__" * 6_000),
    *(HEAD + "__PAYLOAD_START__" + "__PAYLOAD_END__ " * 6_000, HEAD + "1" * 100_000, HEAD + '{"a":' * 20_000),
    *(HEAD + '"' + "</function_call>" * 6_000, "<function_call>{}" + "}" * 100_000, "<function_call>{} //" * 5_000),
]


@pytest.mark.costly
@pytest.mark.parametrize("text", SLOW, ids=lambda text: repr(text[:60]))
def test_100_kilobytes_cost_linear_time(text: str) -> None:
    text = (text * (100_000 // len(text) + 1))[:100_000]
    durations = []
    for _ in range(5):
        start = time.thread_time()
        parse(text)
        durations.append(time.thread_time() - start)
    # The bound is 50 ms, measured by benchmarks/calling on a quiet machine; quadratic time needs seconds.
    assert min(durations) < 0.25


# Any text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
ARGUMENTS = st.dictionaries(st.text(max_size=8), JSON, max_size=5)
NAMES = st.text("abcXYZ019_-.", min_size=1, max_size=20)
FORMS = {
    CallForm.FUNCTION_CALL: '<function_call>{{"name": "{0}", "args": {1}}}</function_call>',
    CallForm.TOOL_CALL: '<tool_call>\n{{"name": "{0}", "arguments": {1}}}\n</tool_call>',
    CallForm.FENCE: '```json\n{{"name": "{0}", "call_objective": "", "args": {1}}}\n```\n',
    CallForm.REACT: "Thought: now\nAction: {0}\nArgs: {1}\n",
}


@pytest.mark.costly
@given(
    calls=st.lists(st.tuples(NAMES, ARGUMENTS), min_size=1, max_size=4),
    form=st.sampled_from(list(FORMS)),
    is_ascii=st.booleans(),
    indent=st.sampled_from([None, 2]),
    size=st.integers(1, 40),
)
def test_valid_calls_are_read_unchanged(
    calls: list[tuple[str, dict[str, Any]]], form: CallForm, is_ascii: bool, indent: int | None, size: int
) -> None:
    written = ((name, json.dumps(args, ensure_ascii=is_ascii, indent=indent)) for name, args in calls)
    text = "\n".join(FORMS[form].format(*each) for each in written)
    found = parse(text)
    assert [(call.name, call.args, call.form) for call in found] == [(name, args, form) for name, args in calls]
    assert not any(call.repaired or call.truncated or call.error for call in found)
    assert parse_in_chunks(text, size) == found


@given(args=ARGUMENTS, payload=st.text(), size=st.integers(1, 40))
def test_payloads_are_read_unchanged(args: dict[str, Any], payload: str, size: int) -> None:
    text = tagged(f'{{"other": {json.dumps(args)}, "raw": __PAYLOAD_START__{payload}__PAYLOAD_END__}}')
    assert parse_one(text).args == {"other": args, "raw": payload}
    assert parse_in_chunks(text, size) == parse(text)


@given(args=ARGUMENTS, cut=st.floats(0, 1), size=st.integers(1, 40))
def test_a_cut_off_call_never_reads_as_a_whole_one(args: dict[str, Any], cut: float, size: int) -> None:
    text = tagged(json.dumps(args)).removesuffix("</function_call>")
    part = text[: len("<function_call>") + int(cut * (len(text) - len("<function_call>") - 1))]
    assert all(call.truncated for call in parse(part))
    assert parse_in_chunks(part, size) == parse(part)


def render_carelessly(value: Any, draw: random.Random) -> str:
    """JSON with trailing commas, comments, single quotes and Python's words, chosen by ``draw``."""
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else ((None, each) for each in value)
        items = [
            ("" if key is None else render_carelessly(key, draw) + draw.choice([":", " : "]))
            + render_carelessly(each, draw)
            for key, each in pairs
        ]
        inner = draw.choice([",", ", ", ", // note\n", " /* note */ ,"]).join(items)
        comma = draw.choice(["", ","]) if items else ""
        brackets = "{}" if isinstance(value, dict) else "[]"
        return f"{brackets[0]}{inner}{comma}{brackets[1]}"
    if isinstance(value, str) and draw.random() < 0.4:
        return "'" + json.dumps(value)[1:-1].replace('\\"', '"').replace("'", "\\'") + "'"
    return str(value) if (value is None or isinstance(value, bool)) and draw.random() < 0.5 else json.dumps(value)


@given(args=ARGUMENTS, seed=st.integers(0, 2**32), size=st.integers(1, 40))
def test_repairs_keep_every_value(args: dict[str, Any], seed: int, size: int) -> None:
    text = tagged(render_carelessly(args, random.Random(seed)))
    call = parse_one(text)
    assert (call.args, call.error) == (args, None)
    assert parse_in_chunks(text, size) == [call]


@given(st.text(), st.integers(1, 40))
def test_any_text_is_read_without_an_exception(text: str, size: int) -> None:
    assert parse_in_chunks(text, size) == parse(text)


SEEDS = [
    *(A_CALL, tagged('{"a": [1, 2, {"b": "c"}], "d": null}'), tagged("{'a': 'b',} // c\n")),
    tagged('{"a": __PAYLOAD_START__x = "</function_call>"\n__PAYLOAD_END__}'),
    *(template.format("f", '{"a": "b \\" \\u00e9", "c": -1.5e3}') for template in FORMS.values()),
    "<think>x</think>Thought: a\nAction: f\nArgs: {}\nObservation: b\nFinal Answer: c",
    json.dumps({"tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": '{"a": 1}'}}]}),
    json.dumps({"content": [{"type": "tool_use", "id": "t1", "name": "f", "input": {"a": [1]}}]}),
    *LEARNED,
]
TOKENS = [
    *"{}[]\"'\\,:#/*\n\t `<>0-eé\U0001f600\x00\ud800",
    *("//", "__PAYLOAD_START__", "__PAYLOAD_END__", "```json\n", "null", "True"),
    *("<function_call>", "</function_call>", "<tool_call>", "</tool_call>", "Action: f\n", "Args: ", "<think>"),
]
# Longer than the part of a text that the parser holds back: what is in front of them is read before what follows them.
TOKENS += [
    " " * 40,
    f"'{'z' * 40}'",
    f'"{"y" * 40}"',
    f"//{'c' * 40}",
    "\n" * 30,
    "//x\n",
    "Observation:",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<function=",
    "<|message|>",
    "\\u12",
    "'it\\'s \"q\"'",
]


def mutate(text: str, draw: random.Random) -> str:
    for _ in range(draw.randint(1, 6)):
        start = draw.randint(0, len(text))
        end = min(len(text), start + draw.choice([0, 0, 1, 3, 20]))
        text = text[:start] + draw.choice([*TOKENS, "", "", text[end : end + 30]]) + text[end:]
    return text


@pytest.mark.long
def test_mutated_texts_are_read_without_an_exception() -> None:
    draw = random.Random(15)
    for number in range(by_profile(short=10_000, long=200_000)):
        text = mutate(draw.choice(SEEDS), draw)
        calls = parse(text)
        assert len(calls) <= MAX_CALLS + 1
        assert all(isinstance(call.args, dict) and (call.name or call.error) for call in calls)
        if number % 4 == 0:
            # A reasoning without its beginning is known at the end only.
            whole = parse_in_chunks(text, len(text) + 1) if "</think>" in text else calls
            assert parse_in_chunks(text, draw.randint(1, 30)) == whole, text


CODE = """
def process_data(data):
    # This is a comment inside the code
    if "special_key" in data:
        print(f"Found special key with value: {data['special_key']}")
    return {"status": "processed", "items": len(data)}
"""


def fence(args: str) -> str:
    return f'\n    ```json\n    {{"name": "f", "call_objective": "o", "args": {args}}}\n    ```\n    '


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
    cut = '{"name": "f", "args": {"valid": "json"} // Missing closing brace'
    call = parse_one(f"<function_call>\n{cut}\n</function_call>")
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


CORPUS = make_corpus()


def test_the_corpus_has_200_different_outputs_in_ten_languages() -> None:
    assert len({case.text for case in CORPUS}) == len(CORPUS) >= 200
    assert set(Counter(case.language for case in CORPUS).values()) == {len(CORPUS) // 10}


def test_the_calls_found_are_the_calls_meant() -> None:
    for case in CORPUS:
        calls = parse(case.text)
        found = [(call.name, call.args) for call in calls if call.error is None and not call.truncated]
        assert found == case.calls, case.text
        assert sum(call.error is not None or call.truncated for call in calls) == case.unreadable, case.text
        assert any(call.truncated for call in calls) is case.truncated, case.text
        assert parse_in_chunks(case.text, 7) == calls, case.text


END = "</function_call>"


def read(text: str, start: int = 0) -> JsonValue:
    return read_json(MarkFinder(text), start, (END,))


def fail(text: str) -> tuple[str, int, bool]:
    """The reason, the place and whether more text could repair it."""
    with pytest.raises(JsonFaultError) as caught:
        read(text)
    return caught.value.reason, caught.value.position, caught.value.is_open


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{'a': \"b\", 'c': 'd \"e\" \\'f\\'', 'g': [1.5e3,],}", {"a": "b", "c": "d \"e\" 'f'", "g": [1.5e3]}),
        ("[1 /* , */ , // ]\n /* } */ ]", [1]),
        ('{"a": [1, {"b": 2}', {"a": [1, {"b": 2}]}),
        ('{"a": [{"b": 2]}', {"a": [{"b": 2}]}),
        ("[" + "1" * 400 + ",]", [int("1" * 400)]),
        ("{'a': '\\n\\u00e9', 'b': '\t'}", {"a": "\né", "b": "\t"}),
        ("['', '', \"\", \"'\", '\"',]", ["", "", "", "'", '"']),
    ],
)
def test_repairs_are_marked(text: str, value: Any) -> None:
    found = read(text + END)
    assert (found.value, found.end, found.repaired) == (value, len(text), True)


def test_wide_blanks_are_blanks() -> None:
    assert read("{\u3000\u00a0'a'\ufeff:\u200b1 }").value == {"a": 1}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1, "b', {"a": 1}),
        ('{"a": 1, "b":', {"a": 1}),
        ('{"a": 1, "b": tr', {"a": 1}),
        ('{"a": 1, "\\"b\\\\" : ', {"a": 1}),
        ('{"a": "x\\u00', {"a": "x"}),
        ('{"a": "x\\\\', {"a": "x\\"}),
        ("{'a': 'it\\'s", {"a": "it's"}),
        ('{"a": [1, 2, ', {"a": [1, 2]}),
        ('{"a": [1, /', {"a": [1]}),
        ('{"a": __PAYLOAD_START__b "c', {"a": 'b "c'}),
        ('{"a": 1, // and', {"a": 1}),
    ],
)
def test_a_value_that_is_cut_off_is_marked_truncated(text: str, value: Any) -> None:
    found = read(text)
    assert (found.value, found.end, found.truncated) == (value, len(text), True)


NO_VALUE = "a JSON value is missing"
NO_NAME = "a name in double quotes is missing"


@pytest.mark.parametrize(
    ("text", "reason", "position"),
    [
        ("[,]", NO_VALUE, 1),
        ("[1,,]", NO_VALUE, 3),
        ("{,}", NO_NAME, 1),
        ('{"a":,}', NO_VALUE, 5),
        ("['a' 'b']", "',' or an end bracket is missing", 5),
        ("{'a': 1 'b': 2}", "',' or an end bracket is missing", 8),
        ("{'a\"b': 'c' 'd': 2}", "',' or an end bracket is missing", 12),
        ("{'a', 'b': 1}", "':' is missing after 'a'", 2),
        ('{"a" /* b */ 1,}', "':' is missing after 'a'", 4),
        ('{"a": 1, b: 2}', NO_NAME, 9),
        ("[undefined]", NO_VALUE, 1),
        ("[1.]", NO_VALUE, 1),
        ('{"a": "\\d", }', r"a string has an invalid escape sequence (write '\\' for a backslash)", 7),
        ("{'a': 'b', 'c': '\\d'}", r"a string has an invalid escape sequence (write '\\' for a backslash)", 16),
        ("[1}", "']' is expected in place of '}'", 2),
        ("// nothing", NO_VALUE, 10),
        ("'text'", NO_VALUE, 0),
    ],
)
def test_a_fault_is_the_first_one_of_the_text(text: str, reason: str, position: int) -> None:
    assert fail(text) == (reason, position, False)
    assert fail(text + " [1,], }, 'a\n" if not text.startswith("//") else text) == (reason, position, False)


def test_what_is_at_the_end_may_be_the_beginning_of_an_end_mark() -> None:
    assert fail('{"a": 1, b') == (NO_NAME, 9, True)
    assert fail("{'a' Act") == ("':' is missing after 'a'", 2, True)
    assert fail("{'a' </func") == ("':' is missing after 'a'", 2, True)
    assert fail("{'a' </fund") == ("':' is missing after 'a'", 2, False)
    text = "Thought: a\nAction: f\nArgs: {\"b\": 1, 'c'" + " " * 40 + "\nAction: g\nArgs: {}"
    assert [call.args for call in parse(text)] == [{"b": 1}, {}]
    assert all(parse_in_chunks(text, size) == parse(text) for size in range(1, 30))


@pytest.mark.parametrize(("text", "start"), [('{"a": "b', 6), ("{'a': 'b", 6), ('{"a": __PAYLOAD_START__b', 6)])
def test_a_string_without_end_before_the_closing_tag_is_open(text: str, start: int) -> None:
    reason, position, is_open = fail(text + END)
    assert ("has no" in reason, position, is_open) == (True, start, True)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" + "[{]," * 65 + "]", "'}' is expected in place of ']'"),
        ("[" + "True," * 10_002 + "]", "more than 10,000 parts of it are not valid JSON"),
        ("[" * 65 + "'a'" + "]" * 65, "more than 64 objects and lists are inside each other"),
        ("[" + "1" * 5000 + ",]", "a number has too many digits"),
    ],
)
def test_the_number_of_repairs_is_limited(text: str, reason: str) -> None:
    assert fail(text)[0] == reason


@given(st.lists(st.text(alphabet="ab'\"\\\n,]}:", max_size=8), max_size=6))
def test_strings_in_single_quotes_keep_every_character(texts: list[str]) -> None:
    quoted = ["'" + json.dumps(each)[1:-1].replace('\\"', '"').replace("'", "\\'") + "'" for each in texts]
    assert read(f"[{', '.join(quoted)}{',' if texts else ''}]").value == texts


def test_the_values_of_one_tag_are_limited() -> None:
    calls = parse("<tool_call>" + '{"name": "a", "arguments": {}} ' * 10_000)
    assert len(calls) == MAX_CALLS + 1
    (fault,) = parse("<tool_call>" + "[] " * 10_000)
    assert fault.error is not None
    assert "an empty list is in front of another value" in fault.error
