"""From the client's result names to typed errors: right about what may have been sent, and each names what to do."""

from __future__ import annotations

import pulsar
import pytest

from dispatch.errors import Outcome, TransportError
from dispatch.transports import errors
from dispatch.transports.errors import (
    namespace_of,
    opening_failed,
    sending_failed,
    unauthorized,
    unreachable,
    untrusted,
)

URL = "pulsar://broker.example:6650"
TOPIC = "non-persistent://corp/tools/search"
RESULTS = sorted(set(pulsar.Result.__members__) - {"Ok"})

AMBIGUOUS = {"Timeout", "AlreadyClosed", "UnknownError", "Disconnected", "Interrupted", "ReadError", "ChecksumError"}
"""Of these nobody can say whether the broker has the message."""
SURELY_NOT = {"ProducerQueueIsFull", "MemoryBufferIsFull", "MessageTooBig", "NotConnected", "ConnectError", "Dropped"}


def checked(error: TransportError) -> TransportError:
    assert error.outcome is Outcome.TRANSPORT
    never = error.type == "request-too-large"  # safe as well, but of no use
    assert error.retryable is not (error.may_have_run or never), "a repeat is safe when nothing was sent, and only then"
    assert "try again" not in error.message.lower()
    assert error.message.endswith(".")
    return error


@pytest.mark.parametrize("name", [*RESULTS, "Dropped", "SomethingNew"])
def test_every_result_of_a_publish_is_a_typed_error(name: str) -> None:
    error = checked(sending_failed(name, topic=TOPIC))
    assert TOPIC in error.message
    if name in AMBIGUOUS or name == "SomethingNew":
        assert error.may_have_run, "a message that is not known to be unsent may have been sent"
        assert "may have been executed" in error.message
    if name in SURELY_NOT:
        assert not error.may_have_run


def test_a_message_that_was_not_sent_is_not_said_to_have_got_through() -> None:
    for name in RESULTS:
        error = sending_failed(name, topic=TOPIC)
        assert ("was not executed" in error.message) is not error.may_have_run, name


@pytest.mark.parametrize(
    ("name", "type"),
    [
        ("MessageTooBig", "request-too-large"),
        ("Dropped", "publish-dropped"),
        ("AlreadyClosed", "connection-lost"),
        ("Timeout", "send-failed"),
    ],
)
def test_a_publish_fails_by_a_name_to_act_on(name: str, type: str) -> None:
    assert sending_failed(name, topic=TOPIC).type == type


def test_a_drop_says_when_to_come_back() -> None:
    assert sending_failed("Dropped", topic=TOPIC).retry_after == 0.1


def test_the_names_are_the_clients_own() -> None:
    """A slip here would call a message doubtful that never left."""
    known = set(RESULTS) | {name for name in dir(pulsar.exceptions) if name[0].isupper()}
    assert known >= errors._NEVER_SENT


@pytest.mark.parametrize("name", [*RESULTS, "SomethingNew"])
def test_whatever_opening_a_topic_meets_nothing_was_sent(name: str) -> None:
    error = checked(opening_failed(name, url=URL, topic=TOPIC))
    assert not error.may_have_run
    assert URL in error.message or TOPIC in error.message


@pytest.mark.parametrize(
    ("name", "type", "fix"),
    [
        ("TopicNotFound", "no-such-namespace", "pulsar-admin namespaces create corp/tools"),
        ("TopicNotFound", "no-such-namespace", "pulsar-admin tenants create corp"),
        ("AuthorizationError", "unauthorized", "DISPATCH_TOKEN"),
        ("AuthenticationError", "unauthorized", "--token-file"),
        ("ErrorGettingAuthenticationData", "unauthorized", "corp/tools"),
        ("Timeout", "unreachable", "dispatch broker start"),
        ("ConnectError", "unreachable", "DISPATCH_BROKER"),
        ("LookupError", "unreachable", "dispatch doctor"),
        ("ConsumerBusy", "topic-busy", "exclusively"),
        ("ProducerBusy", "topic-busy", "another name"),
        ("InvalidTopicName", "bad-topic", "non-persistent://TENANT/NAMESPACE/NAME"),
        ("CryptoError", "topic-refused", "CryptoError"),
    ],
)
def test_opening_fails_by_a_name_to_act_on_and_names_the_fix(name: str, type: str, fix: str) -> None:
    error = opening_failed(name, url=URL, topic=TOPIC)
    assert error.type == type
    assert fix in error.message


@pytest.mark.parametrize(
    ("topic", "namespace"),
    [
        *((TOPIC, "corp/tools"), ("persistent://tg/request/a/b", "tg/request")),
        *(("no topic", ""), ("x://only", "only"), ("", "")),
    ],
)
def test_the_namespace_of_a_topic(topic: str, namespace: str) -> None:
    assert namespace_of(topic) == namespace


@pytest.mark.parametrize(
    ("error", "type", "shown"),
    [
        (unreachable(URL), "unreachable", "--broker"),
        (unauthorized(URL, "token expired"), "unauthorized", "token expired"),
        (untrusted(URL, "CERTIFICATE_VERIFY_FAILED"), "untrusted", "--trust-certs"),
    ],
)
def test_what_the_handshake_says_names_the_broker_and_the_fix(error: TransportError, type: str, shown: str) -> None:
    assert checked(error).type == type
    assert not error.may_have_run
    assert URL in error.message
    assert shown in error.message
