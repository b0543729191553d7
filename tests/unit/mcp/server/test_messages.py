"""Messages of JSON-RPC as the server reads and writes them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from dispatch.mcp.server import UnreadableMessageError, find_id, read_message, write_message

CALL = b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"a","arguments":{"id":8}}}'


def refuse(data: bytes) -> tuple[int, Any, bool]:
    """The code and the id of the answer, and whether it is sent."""
    with pytest.raises(UnreadableMessageError) as caught:
        read_message(data)
    answer = json.loads(caught.value.answer)
    assert answer["jsonrpc"] == "2.0"
    assert "Nothing was executed" in answer["error"]["message"]
    return answer["error"]["code"], answer["id"], caught.value.is_answered


def test_messages() -> None:
    assert isinstance(read_message(CALL), JSONRPCRequest)
    assert isinstance(read_message(b' {"jsonrpc":"2.0","id":"x","method":"ping","params":null}\r'), JSONRPCRequest)
    assert isinstance(read_message(b'{"jsonrpc":"2.0","method":"notifications/initialized"}'), JSONRPCNotification)
    assert isinstance(read_message(b'{"jsonrpc":"2.0","id":1,"result":{}}'), JSONRPCResponse)


@pytest.mark.parametrize(
    ("data", "id"),
    [
        (b"\xef\xbb\xbf" + CALL, 7),
        (CALL[:-4], 7),
        (CALL[:24], 7),
        (CALL[:23], None),
        (CALL.replace(b"8", rb'"\ud83d"'), 7),
        (CALL.replace(b"8", b'"\xff"'), 7),
        (CALL.replace(b"8", b"NaN"), 7),
        (CALL.replace(b"8", b"-Infinity"), 7),
        (CALL.replace(b"8", b"[" * 3_000 + b"]" * 3_000), 7),
        (CALL.replace(b"8", b'{"a":' * 3_000 + b"1" + b"}" * 3_000), 7),
        (CALL.replace(b'"id":7', b'"id":"seven"')[:-1], "seven"),
        (CALL.replace(b'"id":7', rb'"id":"\ud83d"')[:-1], None),
        (CALL.replace(b'"id":7', b'"id":"\xff"')[:-1], None),
        (CALL.replace(b'"id":7,', b"")[:-1], None),
        (rb'{"method":"a\"b","params":{"id":3,"x":"]}\"{"},"id" : -4 ,"x"', -4),
        (CALL + CALL.replace(b"7", b"9"), 7),
        (CALL.decode().encode("utf-16"), None),
        (b"hello", None),
        (b"{", None),
    ],
)
def test_what_is_no_json(data: bytes, id: object) -> None:
    assert refuse(data) == (-32700, id, True)


@pytest.mark.parametrize(
    ("data", "id", "is_answered"),
    [
        (CALL.replace(b"7", b"1.5"), 1.5, True),
        (CALL.replace(b"7", b"1.0"), 1.0, True),
        (CALL.replace(b"7", b"null"), None, True),
        (CALL.replace(b"7", b"true"), None, True),
        (CALL.replace(b"7", b"[7]"), None, True),
        (CALL.replace(b'"2.0"', b'"1.0"'), 7, True),
        (CALL.replace(b'"jsonrpc":"2.0",', b""), 7, True),
        (CALL.replace(b'"tools/call"', b"3"), 7, True),
        (b'{"jsonrpc":"2.0","id":7,"method":"ping","params":[1]}', 7, True),
        (b'{"jsonrpc":"2.0","id":7}', 7, True),
        (b"{}", None, True),
        (b"[]", None, True),
        (b"[%b]" % CALL, None, True),
        (b"null", None, True),
        (b"1", None, True),
        (b'{"jsonrpc":"2.0","method":"notifications/initialized","params":[]}', None, False),
        (b'{"method":"notifications/initialized"}', None, False),
        (b'{"id":null,"error":"an error without code"}', None, False),
        (b'{"jsonrpc":"2.0","id":1,"result":null}', 1, False),
    ],
)
def test_what_is_no_request(data: bytes, id: object, is_answered: bool) -> None:
    assert refuse(data) == (-32600, id, is_answered)


def test_the_search_for_an_id_is_bounded() -> None:
    assert find_id(b'{"id":7,"a":' + b"[]{}" * 1_000_000) == b"7"
    assert find_id(b'{"a":[' + b"{}[]" * 1_000_000 + b'],"id":7,') == b"null"


@given(st.binary(max_size=60) | st.text('{}[]",:\\ id0."').map(str.encode))
def test_anything_is_read_or_refused(data: bytes) -> None:
    json.loads(find_id(data))
    try:
        read_message(data)
    except UnreadableMessageError as error:
        json.loads(error.answer)


def test_every_message_is_written() -> None:
    class Odd:
        def __repr__(self) -> str:
            return "odd \ud800"

    endless: dict[str, Any] = {}
    endless["again"] = endless
    for result, written in (
        ({"a": "größe"}, {"a": "größe"}),
        ({"a": "caf\udce9", "\ud800": ["\udfff"]}, {"a": "caf?", "?": ["?"]}),
        ({"a": float("nan")}, {"a": None}),
    ):
        message = json.loads(write_message(JSONRPCResponse(jsonrpc="2.0", id=3, result=result)))
        assert message == {"jsonrpc": "2.0", "id": 3, "result": written}
    for result in ({"a": Odd()}, endless):
        data = write_message(JSONRPCResponse.model_construct(jsonrpc="2.0", id=3, result=result))
        assert json.loads(data)["id"] == 3
        assert b"\n" not in data
