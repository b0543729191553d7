from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dispatch import CallResult, Outcome
from dispatch.calling import call_function
from dispatch.errors import DispatchError, InvalidArgumentsError, RejectedError, ThrottledError, ToolError
from dispatch.results import (
    PAGE_CHARS,
    ReadResultTool,
    ResultFormatter,
    ResultStore,
    find_cut,
    find_end_of_value,
    is_json,
)
from dispatch.schemas import InvalidSchemaError, SchemaValidator

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.sampled_from('a",\\[{\n:é🙂'), max_size=6),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=5),
    max_leaves=25,
)


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


@given(JSON.filter(lambda value: isinstance(value, (list, dict))), st.integers(0, 60), st.sampled_from([None, 2]))
def test_json_is_cut_behind_a_value(value: object, limit: int, indent: int | None) -> None:
    text = json.dumps(value, indent=indent)
    end = find_end_of_value(text, limit)
    assert 0 <= end <= limit
    if end:
        closing = {"[": "]", "{": "}"}
        json.loads(text[: end - 1] + "".join(closing[each] for each in reversed(_find_open(text[:end]))))
        assert find_end_of_value(text, end) == end
        assert find_cut(text, end) == end


def _find_open(head: str) -> list[str]:
    stack: list[str] = []
    is_text = is_escaped = False
    for char in head:
        if is_text:
            is_text = is_escaped or char != '"'
            is_escaped = char == "\\" and not is_escaped
        elif char == '"':
            is_text, is_escaped = True, False
        elif char in "[{":
            stack.append(char)
        elif char in "]}":
            stack.pop()
    return stack


@given(st.text(st.sampled_from("ab \né🙂\u0301\u200d"), max_size=60), st.integers(0, 60))
def test_a_cut_is_within_the_limit(text: str, limit: int) -> None:
    cut = find_cut(text, limit)
    assert cut == len(text) if len(text) <= limit else max(limit - 16, 0) <= cut <= limit or cut > limit // 2


@pytest.mark.parametrize(
    ("text", "limit", "shown"),
    [
        ("one\ntwo\nthree\n", 9, "one\ntwo\n"),
        ("one two three", 9, "one two "),
        ("one\ntwo three four", 12, "one\ntwo "),  # the only line ends in the first half
        ("一二三四五六七八", 5, "一二三四五"),
        ("e\u0301" * 10, 5, "e\u0301e\u0301"),
        ("👩\u200d👩\u200d👧 " * 2, 4, ""),
        ("0123456789", 4, "0123"),
        ('["a, b", "c, d", "e"]', 15, '["a, b",'),
        ('{"a": [1,\n 2,\n 3], "b": 4}', 17, '{"a": [1,\n 2,'),
        ('["' + "x" * 50 + '"]', 20, '["' + "x" * 18),
        ("[not json, at all", 12, "[not json, "),
        ("abc", 0, ""),
        ("abc", 3, "abc"),
    ],
)
def test_places(text: str, limit: int, shown: str) -> None:
    assert text[: find_cut(text, limit)] == (shown or text[:limit])


def test_what_is_json() -> None:
    assert is_json(' {"a": 1}')
    assert not any(map(is_json, ["3", '"a"', "[1,]", "", "[" * 5_000, "[\ud800]"]))


@pytest.mark.parametrize(
    "text", ['["' + '\\"' * 500_000 + '"]', "[" + "1," * 500_000 + "1]", '"' * 1_000_000, "[" * 999_999]
)
def test_it_is_linear(text: str) -> None:
    started = time.process_time()
    find_cut(text, len(text) - 1)
    assert time.process_time() - started < 2.0


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
    assert results[0].output == "b"
    others = asyncio.run(call_function([ReadResultTool(store, "bob")], text))
    assert "no stored result has this handle" in others[0].output


def test_wrong_arguments_of_a_model_are_answered() -> None:
    store = ResultStore()
    missing, unknown = "the argument 'handle' is missing", "no argument 'page'"
    for arguments, problem in (({}, missing), ({"handle": "x", "page": 1}, unknown)):
        answer = asyncio.run(store.tool("alice").answer(arguments))
        assert answer.is_error
        assert problem in answer.text
        text = f'<tool_call>{{"name": "read_result", "arguments": {json.dumps(arguments)}}}</tool_call>'
        (result,) = asyncio.run(call_function([store.tool("alice")], text)) or []
        assert result.output == answer.error.message


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


THROTTLED = ThrottledError("overloaded", "Not executed. Wait.", retryable=True, retry_after=2.5, rejected_by="service")
UNKNOWN = RejectedError("unknown-tool", "There is no tool 'wether'.", alternatives=("weather", "wind"))
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
    "throttled": (failure(THROTTLED),),
    "unknown-tool": (failure(UNKNOWN),),
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


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


SCRIPTS = st.text(
    st.sampled_from("aé中文اختبارहिन्दी한국어🙂👩‍👩‍👧‍👦🇳🇴\u0301\u200d\n\r\t \x00\u2028\ufeff𝒳")
    | st.characters(exclude_categories=["Cs"])
)


@given(SCRIPTS, st.integers(1, 7))
def test_page_by_page_gives_the_whole_result(text: str, limit: int) -> None:
    store = ResultStore()
    handle = store.add(text, "alice")
    assert handle is not None
    pages, offset = [], 0
    while True:
        page = store.read(handle, offset=offset, limit=limit, user="alice")
        pages.append(page.text)
        assert page.total == len(text)
        if page.next_offset is None:
            break
        offset = page.next_offset
    assert "".join(pages).encode() == text.encode()


def is_unknown(store: ResultStore, handle: Any, user: str) -> bool:
    try:
        store.read(handle, user=user)
    except InvalidArgumentsError as error:
        return error.type == "unknown-result"
    return False


def test_a_handle_belongs_to_its_user() -> None:
    store = ResultStore()
    handle = store.add("secret", "alice")
    assert handle is not None
    assert store.read(handle, user="alice").text == "secret"
    messages = set()
    for user, given_handle in (("bob", handle), ("", handle), ("alice", "guess"), ("alice", None), ("alice", ["x"])):
        with pytest.raises(InvalidArgumentsError) as raised:
            store.read(given_handle, user=user)  # type: ignore[arg-type]  # the handle of a model
        messages.add((raised.value.type, raised.value.message))
    assert len(messages) == 1  # another user's handle looks like any unknown one


def test_handles_cannot_be_guessed() -> None:
    store = ResultStore()
    handles = {store.add("x") for _ in range(1_000)}
    assert len(handles) == 1_000
    assert all(handle is not None and len(handle) >= 22 for handle in handles)  # 128 bits


def test_a_result_expires_after_an_hour() -> None:
    clock = Clock()
    store = ResultStore(clock=clock)
    handle = store.add("x")
    assert handle is not None
    clock.now += 3599.9
    assert store.read(handle).text == "x"
    clock.now += 0.1
    assert is_unknown(store, handle, "")
    assert (len(store), store.size) == (0, 0)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"offset": -1}, "offset"),
        ({"offset": 4}, "offset"),
        ({"offset": "1"}, "offset"),
        ({"offset": True}, "offset"),
        ({"offset": 1.0}, "offset"),
        ({"limit": 0}, "limit"),
        ({"limit": None}, "limit"),
    ],
)
def test_wrong_places(options: dict[str, Any], name: str) -> None:
    store = ResultStore()
    handle = store.add("abc")
    assert handle is not None
    with pytest.raises(InvalidArgumentsError, match=name):
        store.read(handle, **options)
    assert store.read(handle, offset=3).text == ""


def test_many_results_of_one_user_do_not_displace_the_few_of_another() -> None:
    size = sys.getsizeof("x" * 1_000) + 500
    store = ResultStore(max_bytes=10 * size)
    alice = store.add("a" * 1_000, "alice")
    assert alice is not None
    bobs = [store.add("b" * 1_000, "bob") for _ in range(50)]
    assert store.read(alice, user="alice").text == "a" * 1_000
    assert [is_unknown(store, each, "bob") for each in bobs] == [True] * 41 + [False] * 9
    assert store.add("c" * 1_000 * 20, "bob") is None  # never fits
    assert store.add("c" * 9_900, "carol") is not None  # in place of bob's, who has more memory
    assert store.read(alice, user="alice").text == "a" * 1_000


class StoreMachine(RuleBasedStateMachine):
    """The store against a plain list of what was added."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        numbers = itertools.count()
        self.store = ResultStore(max_bytes=20_000, clock=self.clock, new_handle=lambda: str(next(numbers)))
        self.added: dict[str, tuple[str, str, float]] = {}

    @rule(user=st.sampled_from("abc"), length=st.integers(0, 20_000))
    def add(self, user: str, length: int) -> None:
        text = user * length
        handle = self.store.add(text, user)
        if handle is not None:
            self.added[handle] = (user, text, self.clock.now + 3600)
            assert self.store.read(handle, limit=30_000, user=user).text == text

    @rule(seconds=st.floats(0, 4_000))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @invariant()
    def it_is_bounded_and_gives_back_what_was_added(self) -> None:
        found = 0
        for handle, (user, text, expires) in self.added.items():
            if not is_unknown(self.store, handle, user):
                found += 1
                assert expires > self.clock.now
                assert self.store.read(handle, limit=30_000, user=user).text == text
        assert found <= len(self.store)
        assert self.store.size <= 20_000
        assert (self.store.size == 0) == (len(self.store) == 0)


TestStore = StoreMachine.TestCase
