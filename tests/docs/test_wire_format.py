"""docs/reference/wire.md: payloads and topics agree with the code."""

from __future__ import annotations

import json
import re

import msgspec
import pytest

from dispatch.messaging import wire
from dispatch.messaging.wire import ErrorInfo, Reply, encode_reply, encode_request
from dispatch.trustgraph.config import (
    ConfigKey,
    ConfigPush,
    ConfigRequest,
    ConfigResponse,
    ConfigValue,
    WorkspaceChanges,
)
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "reference" / "wire.md").read_text(encoding="utf-8")
REQUESTS, RESPONSES = "non-persistent://tg/request/joke", "non-persistent://tg/response/joke"


def test_the_topics_are_those_that_the_code_names() -> None:
    named = {
        wire.hello_topic(REQUESTS),
        wire.instance_topic(REQUESTS, "joke-1"),
        wire.announcement_topic(REQUESTS, RESPONSES),
        wire.reply_topic(RESPONSES, "KEY-agent"),
    }
    values = {"<service>": "joke", "<n>": "4", "<instance>": "joke-1", "<key>": "KEY", "<name>": "agent"}
    shown = set()
    for name, namespace in re.findall(r"^\| `(dispatch-\S+)` \| (request|response) \|", PAGE, re.MULTILINE):
        for placeholder, value in values.items():
            name = name.replace(placeholder, value)
        shown.add(f"non-persistent://tg/{namespace}/{name}")
    assert shown == named


def test_the_payloads_have_the_fields_that_the_code_writes() -> None:
    request, reply = re.findall(r"^\| (?:request|reply) \| `(.+?)`", PAGE, re.MULTILINE)
    assert set(json.loads(encode_request("{}", "{}", "alice"))) == set(re.findall(r'"(\w+)"', request))
    assert set(json.loads(encode_reply(Reply(response="x", end_of_stream=True)))) <= set(re.findall(r'"(\w+)"', reply))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("config request", ConfigRequest(keys=(ConfigKey(),))),
        ("config response", ConfigResponse(error=ErrorInfo())),
        ("config value", ConfigValue()),
        ("config notification", ConfigPush(workspace_changes=WorkspaceChanges())),
    ],
)
def test_messages_of_the_config_service_have_the_fields_that_the_code_writes(row: str, message: msgspec.Struct) -> None:
    (shown,) = re.findall(rf"^\| {row} \| `(.+?)`", PAGE, re.MULTILINE)
    assert re.findall(r'"(\w+)"', shown) == re.findall(r'"(\w+)":', msgspec.json.encode(message).decode())
