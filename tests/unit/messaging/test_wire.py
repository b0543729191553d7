"""The wire: TrustGraph's two dialects, in both directions, and whatever else may arrive.
Parts: whatever is split comes together again, whatever the order, and nothing else does; bounded in every direction.
Message properties: numbers that peers may get wrong, and texts that may not travel.

"""

from __future__ import annotations

import contextlib
import json
import math
import pickle
from collections import UserDict
from dataclasses import dataclass
from datetime import date, datetime
from enum import Enum
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch.catalog import TopicError, TopicName
from dispatch.errors import ToolError
from dispatch.messaging import wire
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
    payload = wire.encode_request('{"style":"pun"}', '{"topic":"cats"}', "alice")
    assert json.loads(payload) == {"user": "alice", "config": '{"style":"pun"}', "arguments": '{"topic":"cats"}'}


def test_a_user_is_a_text() -> None:
    with pytest.raises(TypeError, match="user must be a text, not int"):
        wire.encode_request("{}", "{}", 5)  # type: ignore[arg-type]


def test_a_request_of_the_specification_is_read() -> None:
    payload = json.dumps({"user": "alice", "config": '{"style": "pun"}', "arguments": '{"topic": "cats"}'}).encode()
    assert wire.decode_request(payload) == wire.Request({"style": "pun"}, {"topic": "cats"}, "alice")


def test_a_request_of_the_published_package_has_no_user() -> None:
    payload = json.dumps({"config": '{"style": "pun"}', "arguments": '{"topic": "cats"}'}).encode()
    assert wire.decode_request(payload) == wire.Request({"style": "pun"}, {"topic": "cats"}, "")


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
    assert wire.decode_request(json.dumps(raw).encode()) == wire.Request({}, {}, "")


def test_config_and_arguments_may_come_as_objects() -> None:
    payload = json.dumps({"config": {"style": "pun"}, "arguments": {"deep": {"list": [1, None]}}}).encode()
    assert wire.decode_request(payload) == wire.Request({"style": "pun"}, {"deep": {"list": [1, None]}}, "")


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
    with pytest.raises(wire.MalformedMessageError, match=key if value != "\ud800" else "not readable"):
        wire.decode_request(json.dumps({key: value}).encode())


@pytest.mark.parametrize("text", ["\ud83d", "\udc00 and more"])
def test_half_of_a_surrogate_pair_is_named(text: str) -> None:
    for payload in ({"user": text}, {"arguments": json.dumps({"a": text})}):
        with pytest.raises(wire.MalformedMessageError, match="half of a surrogate pair in a text; write both halves"):
            wire.decode_request(json.dumps(payload).encode())
    for write in (lambda: wire.json_text({"a": text}, "arguments"), lambda: wire.encode_request("{}", "{}", text)):
        with pytest.raises(TypeError, match="half of a surrogate pair in a text; write both halves"):
            write()


def test_what_json_does_not_know_and_trustgraph_writes_is_read_as_trustgraph_reads_it() -> None:
    for number in (math.inf, -math.inf):
        found = wire.decode_request(json.dumps({"arguments": json.dumps({"a": [number]})}).encode()).arguments
        assert found == {"a": [number]}
    assert math.isnan(wire.decode_request(json.dumps({"config": json.dumps({"a": math.nan})}).encode()).config["a"])


@pytest.mark.costly
@given(config=json_objects, arguments=json_objects, user=st.text())
def test_a_request_comes_back_as_it_was(config: dict[str, Any], arguments: dict[str, Any], user: str) -> None:
    payload = wire.encode_request(wire.json_text(config, "config"), wire.json_text(arguments, "arguments"), user)
    assert wire.decode_request(payload) == wire.Request(config, arguments, user)


@pytest.mark.parametrize("payload", MALFORMED_PAYLOADS)
def test_rubbish_is_no_request(payload: bytes) -> None:
    with pytest.raises(wire.MalformedMessageError):
        wire.decode_request(payload)


def test_the_error_does_not_quote_the_payload() -> None:
    for payload in (b'{"config": "SECRET', b'{"user": 5, "SECRET": 1}', b'{"arguments": "[\\"SECRET\\"]"}', b"SECRET"):
        with pytest.raises(wire.MalformedMessageError) as caught:
            wire.decode_request(payload)
        assert "SECRET" not in str(caught.value)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_request_or_malformed(payload: bytes) -> None:
    with contextlib.suppress(wire.MalformedMessageError):
        assert isinstance(wire.decode_request(payload), wire.Request)


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
    for decode in (wire.decode_request, wire.decode_reply):
        with contextlib.suppress(wire.MalformedMessageError):
            decode(payload)


# -- sizes ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("limit", [60, wire.MAX_MESSAGE_BYTES])
def test_the_limit_of_a_request_is_exact_and_in_bytes(limit: int) -> None:
    empty = len(wire.encode_request("{}", "{}", ""))
    fits = "ü" * ((limit - empty) // 2)
    assert len(wire.encode_request("{}", "{}", fits, limit=limit)) in (limit, limit - 1)
    with pytest.raises(wire.PayloadTooLargeError, match=f"{limit:,}") as caught:
        wire.encode_request("{}", "{}", fits + "ü", limit=limit)
    assert caught.value.limit == limit < caught.value.size <= limit + 2


def test_the_default_limit_leaves_room_for_properties_in_a_brokers_5_mib() -> None:
    assert wire.MAX_MESSAGE_BYTES == 5 * 1024 * 1024 - 20 * 1024
    with pytest.raises(wire.PayloadTooLargeError):
        wire.encode_request("{}", "{}", "x" * wire.MAX_MESSAGE_BYTES)
    with pytest.raises(wire.PayloadTooLargeError):
        wire.encode_reply(wire.Reply(None, "x" * wire.MAX_MESSAGE_BYTES, True))


def test_the_limit_of_a_reply_is_exact() -> None:
    size = len(wire.encode_reply(wire.Reply(None, "hello", True)))
    assert len(wire.encode_reply(wire.Reply(None, "hello", True), limit=size)) == size
    with pytest.raises(wire.PayloadTooLargeError):
        wire.encode_reply(wire.Reply(None, "hello", True), limit=size - 1)


# -- replies --------------------------------------------------------------------------------------------------------
def test_a_reply_is_exactly_what_trustgraph_reads() -> None:
    found = json.loads(wire.encode_reply(wire.Reply(None, "ha", True)))
    assert found == {"error": None, "response": "ha", "end_of_stream": True}
    seen = json.loads(wire.encode_reply(wire.Reply(wire.ErrorInfo("Odd", "no"), "", True)))
    assert seen == {"error": {"type": "Odd", "message": "no"}, "response": "", "end_of_stream": True}


@pytest.mark.parametrize(
    ("raw", "reply"),
    [
        ({"error": None, "response": "ha", "end_of_stream": True}, wire.Reply(None, "ha", True)),
        ({"response": "part"}, wire.Reply(None, "part", False)),
        ({}, wire.Reply(None, "", False)),
        ({"error": None, "response": None, "end_of_stream": None}, wire.Reply(None, "", False)),
        ({"error": {"type": "Odd", "message": "no"}}, wire.Reply(wire.ErrorInfo("Odd", "no"), "", False)),
        ({"error": {}}, wire.Reply(wire.ErrorInfo("", ""), "", False)),
        ({"error": "it broke", "end_of_stream": True}, wire.Reply(wire.ErrorInfo("", "it broke"), "", True)),
        ({"response": "ha", "end_of_stream": True, "tokens": 5}, wire.Reply(None, "ha", True)),
    ],
)
def test_a_reply_in_any_dialect_is_read(raw: dict[str, Any], reply: wire.Reply) -> None:
    assert wire.decode_reply(json.dumps(raw).encode()) == reply


@pytest.mark.parametrize("payload", MALFORMED_PAYLOADS)
def test_rubbish_is_no_reply(payload: bytes) -> None:
    with pytest.raises(wire.MalformedMessageError):
        wire.decode_reply(payload)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_reply_or_malformed(payload: bytes) -> None:
    with contextlib.suppress(wire.MalformedMessageError):
        assert isinstance(wire.decode_reply(payload), wire.Reply)


@given(text=st.text(), error=st.none() | st.builds(wire.ErrorInfo, st.text(), st.text()), end=st.booleans())
def test_a_reply_comes_back_as_it_was(text: str, error: wire.ErrorInfo | None, end: bool) -> None:
    assert wire.decode_reply(wire.encode_reply(wire.Reply(error, text, end))) == wire.Reply(error, text, end)


def test_half_a_surrogate_pair_cannot_travel() -> None:
    with pytest.raises(ValueError, match="surrogate"):
        wire.encode_reply(wire.Reply(None, "\ud800", True))


# -- values ---------------------------------------------------------------------------------------------------------
@dataclass
class Offer:
    price: float


class Bid(msgspec.Struct):
    price: float


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
        ({"offer": Offer(float("nan"))}, "not JSON compliant"),
        ({"offers": [Bid(float("inf"))]}, "not JSON compliant"),
    ],
)
def test_what_is_no_object_of_json_values_is_told_with_its_name(value: Any, problem: str) -> None:
    with pytest.raises(TypeError, match=rf"^arguments .*{problem}"):
        wire.json_text(value, "arguments")


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": {1: 1, "1": 2}}, "/a"),
        ({"a": [0, {"b": ({"1": 1, 1: 2},)}]}, "/a/1/b/0"),
        ({"a": Offer({1: 1, "1": 2})}, "/a/price"),  # type: ignore[arg-type]
        ({"a": {1: {2.5: 0, "2.5": 1}}}, "/a/1"),
        ({"a": {date(2026, 1, 2): 1, "2026-01-02": 2}}, "/a"),
    ],
)
def test_two_keys_that_are_one_in_json_lose_no_value_in_silence(value: Any, path: str) -> None:
    with pytest.raises(TypeError, match=rf"^arguments .*the keys .* and .* of {path} are one key in JSON; keep one"):
        wire.json_text(value, "arguments")


def test_keys_that_are_no_texts_and_differ_in_json_are_written_as_texts() -> None:
    value = {"a": {1: "x", 2: {date(2026, 1, 2): {"b"}}}, "at": datetime(2026, 1, 2), "none": None}
    found = json.loads(wire.json_text(value, "arguments"))
    assert found == {"a": {"1": "x", "2": {"2026-01-02": ["b"]}}, "at": "2026-01-02T00:00:00", "none": None}


def test_null_is_no_number() -> None:
    values = {"offer": Offer(None), "at": datetime(2026, 1, 2), "none": None}  # type: ignore[arg-type]
    assert json.loads(wire.json_text(values, "arguments"))["offer"] == {"price": None}


def test_an_object_that_holds_itself_is_told() -> None:
    endless: dict[str, Any] = {}
    endless["again"] = endless
    with pytest.raises(TypeError, match=r"^config cannot be written"):
        wire.json_text(endless, "config")


def test_null_itself_is_a_json_value() -> None:
    found = wire.json_text({"topic": None, "word": "null", "list": [None]}, "arguments")
    assert found == '{"topic":null,"word":"null","list":[null]}'


def test_any_mapping_will_do() -> None:
    assert json.loads(wire.json_text(UserDict({"topic": "cats"}), "arguments")) == {"topic": "cats"}


@given(json_objects)
def test_an_object_survives_its_text(value: dict[str, Any]) -> None:
    assert json.loads(wire.json_text(value, "arguments")) == value


class Animal(str, Enum):  # noqa: UP042 - formatted as its name, other than a StrEnum
    CAT = "cat"


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
        (Animal.CAT, "cat"),
        ([Animal.CAT], '["cat"]'),
    ],
)
def test_a_result_becomes_the_text_that_trustgraph_would_send(result: object, text: str) -> None:
    found = wire.write_result(result)
    assert (found, type(found)) == (text, str)


@given(json_values)
def test_any_json_result_can_be_read_again(value: Any) -> None:
    assert value == (wire.write_result(value) if isinstance(value, str) else json.loads(wire.write_result(value)))


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (object(), "JSON cannot express an object"),
        ([{"a": object()}], "JSON cannot express an object"),
        (Offer, "JSON cannot express the class Offer"),
        (math.sqrt, "JSON cannot express the function sqrt"),
        (type("bool", (), {"__module__": "numpy"})(), r"JSON cannot express a numpy\.bool"),
        ({(1, 2): 3}, "keys"),
    ],
)
def test_a_result_that_json_cannot_say_is_named_by_its_type_with_what_to_return(result: object, reason: str) -> None:
    with pytest.raises(ToolError, match=rf"JSON \(.*{reason}.*\): its code has to return a text") as caught:
        wire.write_result(result)
    assert caught.value.type == "invalid-result"


def test_a_result_that_holds_itself_is_told() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ToolError, match="result cannot be written as JSON"):
        wire.write_result(endless)


@given(st.text(max_size=300), st.integers(8, 400))
def test_a_text_comes_together_again_and_every_part_fits(text: str, limit: int) -> None:
    parts = list(wire.split_text(text, len(text.encode(errors="replace")), limit))
    assert "".join(part for part, _ in parts) == text
    assert [more for _, more in parts] == [True] * (len(parts) - 1) + [False] * bool(parts)
    assert all(0 < len(part.encode()) <= max(4, limit // 8) for part, _ in parts)


@pytest.mark.parametrize("letter", ["x", "ü", "😀", "\x01", '"'])
def test_a_part_of_the_most_costly_letters_is_still_a_message(letter: str) -> None:
    text = letter * wire.MAX_MESSAGE_BYTES
    for part, more in wire.split_text(text, len(text.encode()), wire.MAX_MESSAGE_BYTES):
        assert len(wire.encode_reply(wire.Reply(None, part, not more))) <= wire.MAX_MESSAGE_BYTES


def test_the_largest_text_has_fewer_parts_than_a_receiver_keeps_ahead() -> None:
    size = 1 << 28
    assert sum(1 for _ in wire.split_text("x" * size, size, wire.MAX_MESSAGE_BYTES)) <= wire.MAX_PARTS
    parts = wire.split_text("x" * (wire.PART_BYTES + 1), wire.PART_BYTES + 1, wire.MAX_MESSAGE_BYTES)
    assert [len(part) for part, _ in parts] == [wire.PART_BYTES, 1]


@pytest.mark.parametrize(("value", "number"), [("0", 0), ("7", 7), ("007", 7), ("9" * 18, 10**18 - 1)])
def test_a_property_that_is_a_whole_number(value: str, number: int) -> None:
    assert wire.whole_number({"remaining-ms": value}, "remaining-ms") == number


@pytest.mark.parametrize("value", ["", "-1", "+1", "1.5", "1e3", " 1", "1 ", "x", "٣", "²", "9" * 19, "9" * 10_000])
def test_a_property_that_is_none(value: str) -> None:
    assert wire.whole_number({"remaining-ms": value}, "remaining-ms") is None


@pytest.mark.parametrize("value", [5, None, ["5"], b"5"])
def test_a_property_of_another_type_is_none(value: Any) -> None:
    assert wire.whole_number({"remaining-ms": value}, "remaining-ms") is None


def test_a_missing_property_is_none() -> None:
    assert wire.whole_number({}, "remaining-ms") is None


@pytest.mark.parametrize(
    "value", [None, "", "order-17", "x" * wire.MAX_PROPERTY_BYTES, "ü" * (wire.MAX_PROPERTY_BYTES // 2)]
)
def test_what_may_travel_as_a_property(value: str | None) -> None:
    wire.check_property(value, "idempotency_key")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (5, "must be a text, not int"),
        (b"key", "must be a text, not bytes"),
        ("x" * (wire.MAX_PROPERTY_BYTES + 1), "has 8,193 bytes, the limit is 8,192: give a shorter one"),
        ("ü" * (wire.MAX_PROPERTY_BYTES // 2 + 1), "has 8,194 bytes"),
        ("\ud800", "has half of a surrogate pair in a text; write both halves, or the character"),
    ],
)
def test_what_may_not_is_told_by_its_name(value: object, problem: str) -> None:
    with pytest.raises(TypeError, match=f"^idempotency_key {problem}"):
        wire.check_property(value, "idempotency_key")


@given(st.text())
def test_no_property_makes_an_exception(value: str) -> None:
    number = wire.whole_number({"x": value}, "x")
    assert number is None or 0 <= number < 10**18


def test_a_whole_name_is_taken_apart_and_put_together_again() -> None:
    topic = TopicName.parse("persistent://acme/tools-eu/joke:v2")
    assert topic == TopicName(persistent=True, tenant="acme", namespace="tools-eu", name="joke:v2")
    assert str(topic) == "persistent://acme/tools-eu/joke:v2"


def test_a_non_persistent_name() -> None:
    assert TopicName.parse("non-persistent://tg/request/joke") == TopicName(False, "tg", "request", "joke")


def test_the_namespace_path_is_what_pulsars_tools_call_a_namespace() -> None:
    assert TopicName.parse("non-persistent://tg/response/joke").namespace_path == "tg/response"


def test_a_sibling_stays_in_the_namespace_and_as_persistent_as_it_was() -> None:
    found = str(TopicName.parse("non-persistent://tg/response/joke").sibling("r-1"))
    assert found == "non-persistent://tg/response/r-1"
    assert str(TopicName.parse("persistent://tg/flow/a").sibling("b")) == "persistent://tg/flow/b"


def test_a_sibling_is_checked_too() -> None:
    with pytest.raises(TopicError):
        TopicName.parse("persistent://tg/flow/a").sibling("b c")


@pytest.mark.parametrize(
    ("short", "whole"),
    [
        ("request:tg:joke", "non-persistent://tg/request/joke"),
        ("response:tg:joke", "non-persistent://tg/response/joke"),
        ("notify:tg:config", "non-persistent://tg/notify/config"),
        ("flow:tg:chunks", "persistent://tg/flow/chunks"),
        ("request:acme:text-completion:default", "non-persistent://acme/request/text-completion:default"),
    ],
)
def test_trustgraphs_short_form_is_expanded(short: str, whole: str) -> None:
    assert str(TopicName.parse(short)) == whole


def test_the_short_form_means_what_trustgraphs_own_client_makes_of_it() -> None:
    from trustgraph.base.async_pulsar_backend import AsyncPulsarBackend  # seconds, for this test alone

    map_topic = AsyncPulsarBackend._map_topic
    for text in ("request:tg:joke", "response:tg:joke", "notify:x:y", "flow:tg:a:b", "persistent://a/b/c"):
        assert str(TopicName.parse(text)) == map_topic(None, text)


@pytest.mark.parametrize(
    ("text", "problem", "fix"),
    [
        ("", "empty", "for example 'non-persistent://tg/request/joke'"),
        ("joke", "'joke' is no whole topic name", "for example 'non-persistent://tg/request/joke'"),
        ("tg/request/joke", "no whole topic name", "for example"),
        ("request:joke", "no whole topic name", "for example"),
        ("request::joke", "no whole topic name", "for example"),
        ("requests:tg:joke", "'requests' is no queue class", "write 'request'"),
        ("topic:tg:joke", "'topic' is no queue class", "flow, request, response, notify"),
        ("persistant://tg/request/joke", "'persistant' is no scheme", "write 'persistent'"),
        ("pulsar://tg/request/joke", "'pulsar' is no scheme", "persistent, non-persistent"),
        ("non-persistent://tg/joke", "not of the form non-persistent://tenant/namespace/name", "all three parts"),
        ("persistent://tg//joke", "not of the form persistent://", "all three parts"),
        ("persistent://", "not of the form", "all three parts"),
        ("persistent://tg/cluster/request/joke", "four parts", "leave the cluster out"),
        ("persistent://t/g/h/i/j", "not of the form", "all three parts"),
        ("persistent://t g/request/joke", "a blank", "take it out"),
        ("persistent://tg/request/joke\n", "a control character", "take it out"),
        ("persistent://tg/requ$st/joke", "the namespace 'requ$st'", "letters, digits"),
        ("persistent://tägg/request/joke", "the tenant 'tägg'", "letters, digits"),
        ("request:t/g:joke", "the tenant 't/g'", "letters, digits"),
        ("request:tg:jo/ke", "has a '/'", "for example"),
        ("persistent://tg/request/" + "j" * 1000, "the limit is 1,000", "for example"),
    ],
)
def test_what_is_no_topic_says_why_and_what_to_write(text: str, problem: str, fix: str) -> None:
    with pytest.raises(TopicError) as raised:
        TopicName.parse(text)
    assert problem in raised.value.problem
    assert fix in raised.value.fix
    assert raised.value.problem in str(raised.value)
    assert raised.value.fix in str(raised.value)


def test_the_error_survives_a_process_border() -> None:
    copy = pickle.loads(pickle.dumps(TopicError("a", "b")))
    assert (copy.problem, copy.fix) == ("a", "b")


@settings(deadline=None)  # a busy machine is no failure
@given(st.text())
def test_any_text_is_a_topic_or_a_topic_error(text: str) -> None:
    result: TopicName | TopicError
    try:
        result = TopicName.parse(text)
    except TopicError as error:
        result = error
    assert str(result).isprintable()
    if isinstance(result, TopicName):
        assert TopicName.parse(str(result)) == result
