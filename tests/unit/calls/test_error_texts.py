"""Every error text is fit for a model and for a person: short, sure about what happened, with the next step.

Guards against texts such as "try again" (a model that reads this repeats the call hundreds of times) and against texts that
leave open whether the tool was executed.
"""

from __future__ import annotations

import re

import pytest
from mcp import MCPError
from mcp.types import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND
from prometheus_client import CollectorRegistry

from dispatch._internal import Rejection
from dispatch.calls.error_messages import (
    add_alternatives,
    error_from_argument_mistakes,
    error_from_client_failure,
    error_from_closing,
    error_from_decision,
    error_from_disconnection,
    error_from_exchange,
    error_from_invalid_range,
    error_from_key_holder_loss,
    error_from_missing_instance,
    error_from_mistake,
    error_from_oversized_request,
    error_from_rejection,
    error_from_requirement,
    error_from_unknown_name,
    error_from_version_mismatch,
)
from dispatch.catalog import UnknownServiceError, UnknownToolError
from dispatch.errors import CallTimeoutError, DispatchError, ErrorType, InvalidArgumentsError, TransportError
from dispatch.mcp.conversion import (
    error_from_loss,
    error_from_mcp_error,
    error_from_missing_session,
    error_from_unreadable_result,
)
from dispatch.mcp.replies import TransportFailure
from dispatch.messaging.request import Answer, Closed, Lost, Overflow, Restarted, Settled, TimedOut, Unreadable
from dispatch.messaging.wire import PayloadTooLargeError, Refusal
from dispatch.permissions.grants import Decision, Reason
from dispatch.policy import Policy, PolicyError
from dispatch.protocol.events import Failure
from dispatch.results import ResultStore, error_from_invalid_output
from dispatch.schemas import Mistake
from dispatch.serving.replies import REASONS
from dispatch.telemetry.exposition import expose_metrics
from dispatch.telemetry.observers import Telemetry
from dispatch.transports import errors
from dispatch.trustgraph.client import encode_config

URL, TOPIC = "pulsar://broker.example:6650", "non-persistent://tg/request/joke"
BY_SERVICE = {ErrorType.RESULT_TOO_LARGE, ErrorType.INVALID_RESULT, ErrorType.CANCELLED, ErrorType.RELAY_LOOP}
"""Their texts are written by the service or a relay, and tested with it."""


def rejected() -> list[DispatchError]:
    reasons = {
        "breaker": ("open", "paused", "probing", "forced-open", "of-a-later-version"),
        "rate-limit": ("too-late", "queue-full", "too-large"),
        "user-rate-limit": ("too-late", "queue-full", "too-large"),
        "bulkhead": ("full", "queue-full", "too-late", "too-long", "stalled", "overload", "occupied", "closed"),
        "balancer": ("no-instance",),
        "exchange": ("pending-limit",),
    }
    return [
        error_from_rejection(Rejection(by, reason, after), "work")
        for by, each in reasons.items()
        for reason in each
        for after in (None, 0.04, 1.2, 90.0)
    ]


def exchanged() -> list[DispatchError]:
    ends: list[Settled] = [
        *(TimedOut(clock, True, 2, 1) for clock in ("call", "attempt", "stream", "stream-idle")),
        TimedOut("call", may_have_run=False),
        *(Lost(reason, sent) for reason in Failure for sent in (True, False)),
        Unreadable("no JSON. Not at all."),
        Overflow("max-response-bytes"),
        Restarted(3),
        *(Closed(sent) for sent in (True, False)),
        Answer("", ""),
        *(Answer("", each, "Why. Why not.", refused=each) for each in (*REASONS, "of-a-later-version")),
        Answer("", Refusal.OVERLOADED, refused=Refusal.OVERLOADED, retry_after=2.5),
    ]
    found = [
        error_from_exchange(end, tool="work", limit=5, repeatable=repeatable)
        for end in ends
        for repeatable in (True, False)
    ]
    return [error for error in found if error is not None]


def mistaken() -> list[DispatchError]:
    mistakes = [
        PayloadTooLargeError(2_000, 1_000),
        PolicyError("timeout", "-1 is out of range", "give 10"),
        PolicyError("priority", "'x' is not a priority of this tool", "give one of batch, or leave 'priority' out"),
        TypeError("arguments cannot be written as JSON: NaN. Not at all."),
    ]
    unknown = [
        UnknownToolError("jok", ("joke",), ("joke", "story")),
        UnknownToolError("x", (), ("joke",)),
        UnknownServiceError("lap", ("lab",), ("lab",)),
        UnknownServiceError("x"),
    ]
    with pytest.raises(DispatchError) as config:
        encode_config({"n": object()})
    return [
        *(error_from_mistake("work", Policy(), mistake) for mistake in mistakes),
        *(error_from_unknown_name(each) for each in unknown),
        *(error_from_version_mismatch("work", "^3", available) for available in ((), ("2.0.0", "1.4.0"))),
        *(error_from_requirement("work", "lab", "^3", (), by=by) for by in ("catalog", "balancer")),
        error_from_requirement("work", "lab", "^3", ("2.0.0", "1.4.0")),
        error_from_invalid_range("work", "'latest' is not a version range: cannot read 'latest'"),
        error_from_oversized_request("work", 5_000, 1_000),
        error_from_argument_mistakes("work", [Mistake("/a", "is required")]),
        error_from_argument_mistakes(
            "work",
            [Mistake("", "must be an object, not null"), Mistake("/u", "must be one of the allowed values", ("1",))],
        ),
        config.value,
    ]


def refused() -> list[DispatchError]:
    reasons: tuple[Reason, ...] = ("not-granted", "denied", "no-grants", "unavailable")
    return [
        error_from_decision(Decision(reason, "tools:jokes"), "work", user)
        for reason in reasons
        for user in ("alice", "")
    ]


def unsendable() -> list[DispatchError]:
    names = ("MessageTooBig", "Dropped", "AlreadyClosed", "Timeout", "NotConnected", "ConnectError")
    opening = ("TopicNotFound", "AuthorizationError", "Timeout", "ConsumerBusy", "InvalidTopicName", "CryptoError")
    telemetry = Telemetry(registry=CollectorRegistry())
    with expose_metrics(telemetry, 0) as port, pytest.raises(TransportError) as taken, expose_metrics(telemetry, port):
        pass
    return [
        error_from_closing("work"),
        error_from_disconnection("work", URL),
        error_from_missing_instance("work", TOPIC),
        error_from_key_holder_loss("work"),
        error_from_client_failure("work", ValueError("It broke. Badly.")),
        *(errors.sending_failed(name, topic=TOPIC) for name in names),
        *(errors.opening_failed(name, url=URL, topic=TOPIC) for name in opening),
        errors.closed(),
        errors.publish_queue_full(10_000, topic=TOPIC, retry_after=1.0),
        errors.message_rejected(ValueError("x"), topic=TOPIC),
        errors.bad_address("nonsense", ""),
        errors.connection_refused(URL, "Too old. Upgrade."),
        errors.unauthorized(URL, "Token expired."),
        errors.no_token(URL, "no such file"),
        errors.untrusted(URL, "CERTIFICATE_VERIFY_FAILED"),
        *(errors.wrong_protocol(URL, "broker.example", 8080, http=http) for http in (True, False)),
        taken.value,
    ]


def formatted() -> list[DispatchError]:
    with pytest.raises(InvalidArgumentsError) as unknown:
        ResultStore().read("gone")
    return [unknown.value, error_from_invalid_output("Tool 'work'", [Mistake("/a", "is required")])]


UNSEEN = ("NOT_SENT", "FORGOTTEN", "INVALID_RESULT")
"""Failures of MCP's transports that :class:`McpInstance` handles itself."""


def of_mcp_servers() -> list[DispatchError]:
    codes = (
        INVALID_PARAMS,
        METHOD_NOT_FOUND,
        INTERNAL_ERROR,
        *(each for each in TransportFailure if each.name not in UNSEEN),
    )
    answers = [MCPError(code, "It broke. Badly.") for code in codes]
    return [
        error_from_mcp_error(MCPError(TransportFailure.THROTTLED, "HTTP status 429", 7.5), "work", "server").error,
        *(error_from_mcp_error(each, "work", "server").error for each in answers),
        error_from_loss("work", "server").error,
        error_from_unreadable_result("work", "server", ValueError("No. Content.")).error,
        error_from_missing_session("work", 3.0),
    ]


ERRORS = [*rejected(), *refused(), *exchanged(), *mistaken(), *unsendable(), *formatted(), *of_mcp_servers()]
IDS = [f"{number}-{error.type}" for number, error in enumerate(ERRORS)]
EXECUTED = re.compile(r"(was|were|been) (not )?executed|No tool was executed")
NEXT_STEP = re.compile(
    r"\b(Use|use|Call|Check|Report|report|Correct|Give|Send|Start|Create|Connect|Open|Stop|Leave|Discard)\b[^.]*\.$"
)


def sentences(text: str) -> int:
    return len(re.findall(r"[.!?](?= [A-Z]|$)", text))


def test_every_error_type_is_among_them() -> None:
    assert {ErrorType(error.type) for error in ERRORS} == set(ErrorType) - BY_SERVICE


@pytest.mark.parametrize("error", ERRORS, ids=IDS)
def test_the_text_has_two_sentences_at_most_and_the_last_names_the_next_step(error: DispatchError) -> None:
    assert error.message.endswith(".")
    assert sentences(error.message) <= 2
    last = re.split(r"(?<=[.!?]) (?=[A-Z])", error.message)[-1]
    assert NEXT_STEP.search(last.replace("0.1", "").replace("memory://.", "memory.").replace(".example", ""))


@pytest.mark.parametrize("error", ERRORS, ids=IDS)
def test_the_text_says_whether_the_tool_was_executed_and_agrees_with_the_flags(error: DispatchError) -> None:
    assert EXECUTED.search(error.message)
    surely_not = "not executed" in error.message or "No tool was executed" in error.message
    if isinstance(error, TransportError):
        assert surely_not is not error.may_have_run
    elif isinstance(error, CallTimeoutError):
        assert surely_not is (error.type == ErrorType.EXPIRED)
    else:
        assert surely_not is (error.type not in (ErrorType.TOOL_ERROR, ErrorType.INVALID_OUTPUT))


@pytest.mark.parametrize("error", ERRORS, ids=IDS)
def test_the_text_never_asks_for_a_repeat_at_once(error: DispatchError) -> None:
    assert not re.search(r"\b(try|retry|please|sorry|somebody|nobody|who)\b", error.message, re.IGNORECASE)


@pytest.mark.parametrize("error", ERRORS, ids=IDS)
def test_alternatives_add_no_sentence(error: DispatchError) -> None:
    copied = DispatchError(error.type, error.message)
    add_alternatives(copied, ("other", "third"))
    assert "other, third" in copied.message
    assert sentences(copied.message) <= 2
    assert copied.message.endswith(".")
