"""The wire: TrustGraph's two dialects, in both directions, and whatever else may arrive."""

from __future__ import annotations

import contextlib
import json
import math
from collections import UserDict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.messaging.wire import (
    MAX_MESSAGE_BYTES,
    ErrorInfo,
    MalformedMessageError,
    PayloadTooLargeError,
    Reply,
    Request,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
    json_text,
    result_text,
)
from tests.helpers.malformed_messages import MALFORMED_PAYLOADS

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
json_objects = st.dictionaries(st.text(), json_values, max_size=5)


# -- requests -------------------------------------------------------------------------------------------------------


def test_a_request_is_exactly_what_the_specification_says() -> None:
    payload = encode_request('{"style":"pun"}', '{"topic":"cats"}', "alice")
    assert json.loads(payload) == {"user": "alice", "config": '{"style":"pun"}', "arguments": '{"topic":"cats"}'}


def test_a_user_is_a_text() -> None:
    with pytest.raises(TypeError, match="user must be a text, not int"):
        encode_request("{}", "{}", 5)  # type: ignore[arg-type]


def test_a_request_of_the_specification_is_read() -> None:
    payload = json.dumps({"user": "alice", "config": '{"style": "pun"}', "arguments": '{"topic": "cats"}'}).encode()
    assert decode_request(payload) == Request({"style": "pun"}, {"topic": "cats"}, "alice")


def test_a_request_of_the_published_package_has_no_user() -> None:
    payload = json.dumps({"config": '{"style": "pun"}', "arguments": '{"topic": "cats"}'}).encode()
    assert decode_request(payload) == Request({"style": "pun"}, {"topic": "cats"}, "")


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"user": None, "config": None, "arguments": None},
        {"user": "", "config": "", "arguments": ""},
        {"config": "{}", "arguments": {}},
        {"later-field": [1, {"deep": 2}], "workspace": "w"},
    ],
)
def test_what_is_missing_takes_its_default_and_what_is_unknown_is_ignored(raw: dict[str, Any]) -> None:
    assert decode_request(json.dumps(raw).encode()) == Request({}, {}, "")


def test_config_and_arguments_may_come_as_objects() -> None:
    payload = json.dumps({"config": {"style": "pun"}, "arguments": {"deep": {"list": [1, None]}}}).encode()
    assert decode_request(payload) == Request({"style": "pun"}, {"deep": {"list": [1, None]}}, "")


@pytest.mark.parametrize("key", ["config", "arguments"])
@pytest.mark.parametrize(
    "value",
    [
        "[]",
        "17",
        '"text"',
        "null",
        "true",
        "{",
        "{}x",
        "NaN",
        "[NaN]",
        '{"a": nan}',
        '{"a": NaN',
        "\ud800",
        '{"a":' * 2_000,
    ],
)
def test_config_and_arguments_must_be_objects_and_the_error_says_which_is_not(key: str, value: str) -> None:
    with pytest.raises(MalformedMessageError, match=key if value != "\ud800" else "not readable"):
        decode_request(json.dumps({key: value}).encode())


def test_what_json_does_not_know_and_trustgraph_writes_is_read_as_trustgraph_reads_it() -> None:
    for number in (math.inf, -math.inf):
        assert decode_request(json.dumps({"arguments": json.dumps({"a": [number]})}).encode()).arguments == {
            "a": [number]
        }
    assert math.isnan(decode_request(json.dumps({"config": json.dumps({"a": math.nan})}).encode()).config["a"])


@given(config=json_objects, arguments=json_objects, user=st.text())
def test_a_request_comes_back_as_it_was(config: dict[str, Any], arguments: dict[str, Any], user: str) -> None:
    payload = encode_request(json_text(config, "config"), json_text(arguments, "arguments"), user)
    assert decode_request(payload) == Request(config, arguments, user)


@pytest.mark.parametrize("payload", MALFORMED_PAYLOADS)
def test_rubbish_is_no_request(payload: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        decode_request(payload)


def test_the_error_does_not_quote_the_payload() -> None:
    for payload in (b'{"config": "SECRET', b'{"user": 5, "SECRET": 1}', b'{"arguments": "[\\"SECRET\\"]"}', b"SECRET"):
        with pytest.raises(MalformedMessageError) as caught:
            decode_request(payload)
        assert "SECRET" not in str(caught.value)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_request_or_malformed(payload: bytes) -> None:
    with contextlib.suppress(MalformedMessageError):
        assert isinstance(decode_request(payload), Request)


almost_json = st.builds(
    lambda value, cut, glue: json.dumps(value).encode()[: cut or None] + glue,
    st.fixed_dictionaries(
        {},
        optional={
            key: json_values | st.text().map(lambda t: "{" + t) | json_objects.map(json.dumps)
            for key in ("user", "config", "arguments", "error", "response", "end_of_stream")
        },
    ),
    st.integers(-5, 0),
    st.binary(max_size=3),
)


@given(almost_json)
def test_anything_like_a_message_is_one_or_malformed(payload: bytes) -> None:
    for decode in (decode_request, decode_reply):
        with contextlib.suppress(MalformedMessageError):
            decode(payload)


# -- sizes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [60, MAX_MESSAGE_BYTES])
def test_the_limit_of_a_request_is_exact_and_in_bytes(limit: int) -> None:
    empty = len(encode_request("{}", "{}", ""))
    fits = "ü" * ((limit - empty) // 2)
    assert len(encode_request("{}", "{}", fits, limit=limit)) in (limit, limit - 1)
    with pytest.raises(PayloadTooLargeError, match=f"{limit:,}") as caught:
        encode_request("{}", "{}", fits + "ü", limit=limit)
    assert caught.value.limit == limit < caught.value.size <= limit + 2


def test_the_default_limit_leaves_room_for_properties_in_a_brokers_5_mib() -> None:
    assert MAX_MESSAGE_BYTES == 5 * 1024 * 1024 - 20 * 1024
    with pytest.raises(PayloadTooLargeError):
        encode_request("{}", "{}", "x" * MAX_MESSAGE_BYTES)
    with pytest.raises(PayloadTooLargeError):
        encode_reply(Reply(None, "x" * MAX_MESSAGE_BYTES, True))


def test_the_limit_of_a_reply_is_exact() -> None:
    size = len(encode_reply(Reply(None, "hello", True)))
    assert len(encode_reply(Reply(None, "hello", True), limit=size)) == size
    with pytest.raises(PayloadTooLargeError):
        encode_reply(Reply(None, "hello", True), limit=size - 1)


# -- replies --------------------------------------------------------------------------------------------------------


def test_a_reply_is_exactly_what_trustgraph_reads() -> None:
    assert json.loads(encode_reply(Reply(None, "ha", True))) == {"error": None, "response": "ha", "end_of_stream": True}
    assert json.loads(encode_reply(Reply(ErrorInfo("Odd", "no"), "", True))) == {
        "error": {"type": "Odd", "message": "no"},
        "response": "",
        "end_of_stream": True,
    }


@pytest.mark.parametrize(
    ("raw", "reply"),
    [
        ({"error": None, "response": "ha", "end_of_stream": True}, Reply(None, "ha", True)),
        ({"response": "part"}, Reply(None, "part", False)),
        ({}, Reply(None, "", False)),
        ({"error": None, "response": None, "end_of_stream": None}, Reply(None, "", False)),
        ({"error": {"type": "Odd", "message": "no"}}, Reply(ErrorInfo("Odd", "no"), "", False)),
        ({"error": {}}, Reply(ErrorInfo("", ""), "", False)),
        ({"error": "it broke", "end_of_stream": True}, Reply(ErrorInfo("", "it broke"), "", True)),
        ({"response": "ha", "end_of_stream": True, "tokens": 5}, Reply(None, "ha", True)),
    ],
)
def test_a_reply_in_any_dialect_is_read(raw: dict[str, Any], reply: Reply) -> None:
    assert decode_reply(json.dumps(raw).encode()) == reply


@pytest.mark.parametrize("payload", MALFORMED_PAYLOADS)
def test_rubbish_is_no_reply(payload: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        decode_reply(payload)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_reply_or_malformed(payload: bytes) -> None:
    with contextlib.suppress(MalformedMessageError):
        assert isinstance(decode_reply(payload), Reply)


@given(text=st.text(), error=st.none() | st.builds(ErrorInfo, st.text(), st.text()), end=st.booleans())
def test_a_reply_comes_back_as_it_was(text: str, error: ErrorInfo | None, end: bool) -> None:
    assert decode_reply(encode_reply(Reply(error, text, end))) == Reply(error, text, end)


def test_half_a_surrogate_pair_cannot_travel() -> None:
    with pytest.raises(ValueError, match="surrogate"):
        encode_reply(Reply(None, "\ud800", True))


# -- values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (None, "not NoneType"),
        ("topic=cats", "not str"),
        (["cats"], "not list"),
        (5, "not int"),
        ({1: "cats"}, "key 1 is int"),
        ({"topic": object()}, "object"),
        ({"topic": "\ud800"}, "surrogate"),
        ({"topic": 10**5_000}, "digits"),
        ({"price": float("nan")}, "not JSON compliant"),
        ({"deep": [{"price": float("-inf")}], "nothing": None}, "not JSON compliant"),
    ],
)
def test_what_is_no_object_of_json_values_is_told_with_its_name(value: Any, problem: str) -> None:
    with pytest.raises(TypeError, match=rf"^arguments .*{problem}"):
        json_text(value, "arguments")


def test_an_object_that_holds_itself_is_told() -> None:
    endless: dict[str, Any] = {}
    endless["again"] = endless
    with pytest.raises(TypeError, match=r"^config cannot be written"):
        json_text(endless, "config")


def test_null_itself_is_a_json_value() -> None:
    assert (
        json_text({"topic": None, "word": "null", "list": [None]}, "arguments")
        == '{"topic":null,"word":"null","list":[null]}'
    )


def test_any_mapping_will_do() -> None:
    assert json.loads(json_text(UserDict({"topic": "cats"}), "arguments")) == {"topic": "cats"}


@given(json_objects)
def test_an_object_survives_its_text(value: dict[str, Any]) -> None:
    assert json.loads(json_text(value, "arguments")) == value


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ("as it is: {\n", "as it is: {\n"),
        ("", ""),
        (None, "null"),
        (5, "5"),
        ({"a": [1, 2.5, None]}, '{"a": [1, 2.5, null]}'),
        ({"städte": "Köln 🎭"}, '{"städte": "Köln 🎭"}'),
        ((1, "zwei"), '[1, "zwei"]'),
    ],
)
def test_a_result_becomes_the_text_that_trustgraph_would_send(result: object, text: str) -> None:
    assert result_text(result) == text


@given(json_values)
def test_any_json_result_can_be_read_again(value: Any) -> None:
    assert value == (result_text(value) if isinstance(value, str) else json.loads(result_text(value)))


@pytest.mark.parametrize("result", [object(), [object()], {(1, 2): 3}])
def test_a_result_that_json_cannot_say_is_named_by_its_type(result: object) -> None:
    with pytest.raises(TypeError, match=f"returned a {type(result).__name__}"):
        result_text(result)


def test_a_result_that_holds_itself_is_told() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(TypeError, match="returned a list"):
        result_text(endless)
