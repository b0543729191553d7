"""The messages of services that announce themselves: format, parts, digest, signatures."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.announcements.messages import (
    HERE,
    MAX_BYTES,
    Announce,
    AnnouncementWriter,
    DescriptorParts,
    InstanceInfo,
    MalformedAnnouncementError,
    Question,
    decode_announcement,
    decode_question,
    digest_descriptors,
    is_signed,
    question_topic,
)
from tests.helpers.announcing import AnnouncingInstance, service, tool

KEY, OTHER = b"k" * 32, b"o" * 32


def test_a_message_has_the_documented_fields() -> None:
    instance = AnnouncingInstance("shop-1", incarnation="a", described=service(version="1.2.0"))
    full, heartbeat = json.loads(instance.writer.write_all(instance.parts)[0]), json.loads(instance.heartbeat())
    digest = digest_descriptors(service(version="1.2.0"), [tool()])
    assert full == {
        "announce": "here",
        "service": service(version="1.2.0"),
        "tools": [tool()],
        "instance": {"id": "shop-1", "incarnation": "a", "version": "1.2.0"},
        "sequence": 1,
        "ttl": 15.0,
        "digest": digest,
        "part": [1, 1],
    }
    assert heartbeat["sequence"] == 2
    assert "tools" not in heartbeat
    assert heartbeat["service"] == service(version="1.2.0")
    assert json.loads(Question(service="shop", part=1).encode()) == {"announce": "who", "service": "shop", "part": 1}


def test_large_descriptors_are_divided_and_each_message_is_small() -> None:
    tools = [tool(f"tool-{number}", description="x" * 20_000) for number in range(100)]
    parts = DescriptorParts(service(), tools)
    messages = AnnouncementWriter(InstanceInfo("i", "1"), {"k": KEY}).write_all(parts)
    assert len(messages) > 8
    assert max(map(len, messages)) <= MAX_BYTES
    read = [decode_announcement(message) for message in messages]
    assert [each.part for each in read] == [(number, len(messages)) for number in range(1, len(messages) + 1)]
    assert [each for message in read for each in message.read_tools()] == tools


def test_descriptors_that_no_message_can_carry_are_refused() -> None:
    with pytest.raises(ValueError, match="its tool 'huge' have more than 262,144 bytes"):
        DescriptorParts(service(), [tool("huge", description="x" * MAX_BYTES)])
    with pytest.raises(ValueError, match="Fix: divide its tools among several services"):
        DescriptorParts(service(), [tool(f"t-{number}", description="x" * 200_000) for number in range(40)])


def test_a_digest_depends_on_the_values_alone() -> None:
    one, other = {"a": 1, "b": [1.5, None]}, {"b": [1.5, None], "a": 1}
    assert digest_descriptors(service(), [one]) == digest_descriptors(dict(reversed(service().items())), [other])
    assert digest_descriptors(service(), [one]) != digest_descriptors(service(), [{**one, "a": 2}])


def test_a_signature_is_valid_for_its_message_and_key() -> None:
    message = AnnouncingInstance(keys={"old": KEY, "new": OTHER}).heartbeat()
    assert is_signed(message, {"old": KEY})
    assert is_signed(message, {"new": OTHER})
    assert is_signed(json.dumps(json.loads(message), indent=1).encode(), {"old": KEY})  # a relay may write it anew
    assert not is_signed(message, {"old": OTHER})
    assert not is_signed(message, {"third": KEY})
    assert not is_signed(message.replace(b'"sequence":1', b'"sequence":2'), {"old": KEY})
    assert not is_signed(AnnouncingInstance().heartbeat(), {"old": KEY})
    assert not is_signed(message, {})


@given(
    st.binary(max_size=200)
    | st.recursive(
        st.none() | st.text(max_size=5) | st.integers(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(["announce", "service", "instance", "sequence", "tools", "part", "ttl"]), inner
            )
        ),
    ).map(lambda value: json.dumps(value).encode())
)
def test_what_is_no_announcement_is_refused(payload: bytes) -> None:
    with pytest.raises(MalformedAnnouncementError):
        decode_announcement(payload)
    decode_question(payload)
    assert not is_signed(payload, {"old": KEY})


@pytest.mark.parametrize(
    "change",
    [
        {"announce": "who"},
        {"instance": {"id": "", "incarnation": "1"}},
        {"instance": {"id": "a\nb", "incarnation": "1"}},
        {"instance": {"id": "a" * 201, "incarnation": "1"}},
        {"instance": {"id": "a", "incarnation": ""}},
        {"digest": ""},
        {"sequence": -1},
        {"sequence": 2**70},
        {"ttl": 0},
        {"part": [2, 1]},
        {"part": [1, 1000]},
    ],
)
def test_values_out_of_range_are_refused(change: dict[str, object]) -> None:
    message = json.loads(AnnouncingInstance().heartbeat())
    with pytest.raises(MalformedAnnouncementError):
        decode_announcement(json.dumps(message | change).encode())


def test_a_message_that_is_too_large_is_not_decoded() -> None:
    with pytest.raises(MalformedAnnouncementError, match="the limit is 262,144"):
        decode_announcement(AnnouncingInstance().heartbeat() + b" " * MAX_BYTES)


def test_questions_have_a_topic_of_their_own() -> None:
    assert question_topic("notify:tg:tool-descriptors") == "non-persistent://tg/request/tool-descriptors-who"
    assert question_topic("persistent://acme/agents/tools") == "non-persistent://acme/agents/tools-who"


def test_settings_of_the_publisher_are_checked() -> None:
    with pytest.raises(ValueError, match="no whole topic name"):
        Announce(topic="tools")
    with pytest.raises(ValueError, match="at least 16"):
        Announce(keys={"a": b"short"})
    with pytest.raises(TypeError, match="not bytes"):
        Announce(keys={"a": "k" * 32})  # type: ignore[dict-item] # the mistake under test
    with pytest.raises(ValueError, match="3 keys"):
        Announce(keys=dict.fromkeys("abc", KEY))
    with pytest.raises(TypeError, match="topic"):
        Announce(topics="tools")  # type: ignore[call-arg] # the mistake under test
    assert AnnouncementWriter(InstanceInfo("i", "1"), {}).write(HERE, DescriptorParts(service(), []), part=1)
