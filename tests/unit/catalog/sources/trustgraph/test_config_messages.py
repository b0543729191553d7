"""Messages of the config service: exactly TrustGraph's dataclasses as JSON, and whatever decodes as one."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from typing import Any

import pytest
import trustgraph.schema as published
from hypothesis import given
from hypothesis import strategies as st
from trustgraph.base.serialization import dataclass_to_dict, dict_to_dataclass

from dispatch.messaging.wire import ErrorInfo
from dispatch.trustgraph.config import (
    ConfigKey,
    ConfigPush,
    ConfigRequest,
    ConfigResponse,
    ConfigValue,
    MalformedConfigMessageError,
    WorkspaceChanges,
    decode_push,
    decode_response,
    encode_message,
)

TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
KEYS = st.builds(ConfigKey, type=TEXTS, key=TEXTS)
VALUES = st.builds(ConfigValue, type=TEXTS, key=TEXTS, value=st.none() | TEXTS, workspace=TEXTS)
TUPLES = st.lists(VALUES, max_size=3).map(tuple)
NAMES = st.lists(TEXTS, max_size=3).map(tuple)
REQUESTS = st.builds(
    ConfigRequest,
    operation=TEXTS,
    workspace=TEXTS,
    keys=st.lists(KEYS, max_size=3).map(tuple),
    type=TEXTS,
    values=TUPLES,
)
RESPONSES = st.builds(
    ConfigResponse,
    version=st.integers(0, 2**40),
    values=TUPLES,
    directory=NAMES,
    config=st.dictionaries(TEXTS, st.dictionaries(TEXTS, TEXTS, max_size=2), max_size=2),
    error=st.none() | st.builds(ErrorInfo, type=TEXTS, message=TEXTS),
)
PUSHES = st.builds(
    ConfigPush,
    version=st.integers(0, 2**40),
    changes=st.dictionaries(TEXTS, NAMES, max_size=3),
    workspace_changes=st.none() | st.builds(WorkspaceChanges, created=NAMES, deleted=NAMES),
)


def as_published(payload: bytes, type: Any) -> bytes:
    """Decode a payload as the published service does, and encode it as it does."""
    value = dict_to_dataclass(json.loads(payload), type)
    assert isinstance(value, type)
    return json.dumps(dataclass_to_dict(value)).encode()


@given(REQUESTS)
def test_the_published_service_reads_each_field_of_a_request(request: ConfigRequest) -> None:
    payload = encode_message(request)
    assert json.loads(as_published(payload, published.ConfigRequest)) == json.loads(payload)
    assert list(json.loads(payload)) == [field.name for field in dataclasses.fields(published.ConfigRequest)]


@given(RESPONSES)
def test_a_response_of_the_published_service_is_read_in_full(response: ConfigResponse) -> None:
    assert decode_response(as_published(encode_message(response), published.ConfigResponse)) == response


@given(PUSHES)
def test_a_notification_of_the_published_service_is_read_in_full(push: ConfigPush) -> None:
    assert decode_push(as_published(encode_message(push), published.ConfigPush)) == push


def test_payloads_are_those_of_the_protocol() -> None:
    request = ConfigRequest("getvalues", "default", type="tool")
    assert encode_message(request) == (
        b'{"operation":"getvalues","workspace":"default","keys":[],"type":"tool","values":[]}'
    )
    response = ConfigResponse(7, (ConfigValue("tool", "tell-joke", "{}"),))
    assert encode_message(response) == (
        b'{"version":7,"values":[{"type":"tool","key":"tell-joke","value":"{}","workspace":""}],'
        b'"directory":[],"config":{},"error":null}'
    )
    push = ConfigPush(7, {"tool": ("default",)})
    assert encode_message(push) == b'{"version":7,"changes":{"tool":["default"]},"workspace_changes":null}'


def test_unknown_fields_are_ignored_and_missing_or_null_ones_have_defaults() -> None:
    assert decode_response(b'{"other": 1}') == ConfigResponse()
    assert decode_push(b"{}") == ConfigPush()
    response = decode_response(b'{"version": null, "values": null, "directory": null, "config": null, "error": null}')
    assert (response.version, response.values, response.directory) == (None, None, None)


def test_half_a_surrogate_pair_in_one_value_hides_no_other() -> None:
    payload = json.dumps({"values": [{"key": "a", "value": "\ud800"}, {"key": "b", "value": "{}"}]}).encode()
    assert [each.value for each in decode_response(payload).values or ()] == ["\ud800", "{}"]


@given(st.binary(max_size=30) | st.sampled_from([b'{"values": [1]}', b'{"version": "7"}', b'{"changes": {"tool": 1}}']))
def test_any_payload_is_a_message_or_an_error(payload: bytes) -> None:
    for decode in (decode_response, decode_push):
        with contextlib.suppress(MalformedConfigMessageError):
            assert decode(payload) is not None


@pytest.mark.parametrize("payload", [b"", b"\xff", b"[]", b"null", b'{"version": "7"}', b"[" * 100_000])
def test_a_payload_of_another_shape_is_an_error(payload: bytes) -> None:
    for decode in (decode_response, decode_push):
        with pytest.raises(MalformedConfigMessageError):
            decode(payload)
