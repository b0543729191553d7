"""Every error text is fit for a model and for a person: short, sure about what happened, with the next step.

Guards against texts such as "try again" (a model that reads this repeats the call hundreds of times) and against texts that
leave open whether the tool was executed.
From a guard's rejection, or a mistake of the caller, to the error that the caller gets: class, flags and advice.
From the end of an exchange to what its caller is told: class, flags and advice.
A tool that fails for want of a required argument: the error names it instead of quoting it.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from mcp import MCPError
from mcp.types import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND

import dispatch
from dispatch import ToolError
from dispatch._internal import Rejection
from dispatch.calls import error_messages
from dispatch.calls.call import request_payload
from dispatch.catalog import UnknownServiceError, UnknownToolError
from dispatch.errors import (
    CallTimeoutError,
    DispatchError,
    ErrorType,
    InvalidArgumentsError,
    Origin,
    RejectedError,
    ThrottledError,
    TransportError,
)
from dispatch.mcp.conversion import (
    error_from_loss,
    error_from_mcp_error,
    error_from_missing_session,
    error_from_unreadable_result,
)
from dispatch.mcp.replies import TransportFailure
from dispatch.messaging.request import Answer, Closed, Lost, Overflow, Restarted, Settled, TimedOut, Unreadable
from dispatch.messaging.wire import PayloadTooLargeError, Refusal
from dispatch.permissions import Decision, Reason
from dispatch.policy import Policy, PolicyError
from dispatch.protocol.events import Failure
from dispatch.results import ResultStore, error_from_invalid_output
from dispatch.schemas import Mistake
from dispatch.serving.replies import REASONS
from dispatch.transports import errors
from dispatch.trustgraph.client import encode_config
from tests.helpers.dispatcher_and_service import catalog, read, stand

URL, TOPIC = "pulsar://broker.example:6650", "non-persistent://tg/request/joke"
ELSEWHERE = {
    *(ErrorType.RESULT_TOO_LARGE, ErrorType.INVALID_RESULT, ErrorType.CANCELLED, ErrorType.RELAY_LOOP),
    ErrorType.PORT_TAKEN,
}
"""Their texts are written by the service, a relay or the admin endpoint, and tested with it."""


def rejected() -> list[DispatchError]:
    reasons = {
        "breaker": ("open", "paused", "probing", "forced-open", "of-a-later-version"),
        "rate-limit": ("too-late", "queue-full"),
        "user-rate-limit": ("too-late", "queue-full"),
        "bulkhead": ("full", "queue-full", "too-late", "too-long", "stalled", "overload", "occupied", "closed"),
        "balancer": ("no-instance",),
        "exchange": ("pending-limit",),
    }
    return [
        error_messages.error_from_rejection(Rejection(by, reason, after), "work")
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
        error_messages.error_from_exchange(end, tool="work", limit=5, repeatable=repeatable)
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
        *(error_messages.error_from_mistake("work", Policy(), mistake) for mistake in mistakes),
        *(error_messages.error_from_unknown_name(each) for each in unknown),
        *(
            error_messages.error_from_version_mismatch("work", "^3", available)
            for available in ((), ("2.0.0", "1.4.0"))
        ),
        *(error_messages.error_from_requirement("work", "lab", "^3", (), by=by) for by in ("catalog", "balancer")),
        error_messages.error_from_requirement("work", "lab", "^3", ("2.0.0", "1.4.0")),
        error_messages.error_from_invalid_range("work", "'latest' is not a version range: cannot read 'latest'"),
        error_messages.error_from_oversized_request("work", 5_000, 1_000),
        error_messages.error_from_argument_mistakes("work", [Mistake("/a", "is required")]),
        error_messages.error_from_argument_mistakes(
            "work",
            [Mistake("", "must be an object, not null"), Mistake("/u", "must be one of the allowed values", ("1",))],
        ),
        config.value,
    ]


def refused() -> list[DispatchError]:
    reasons: tuple[Reason, ...] = ("not-granted", "denied", "no-grants", "unavailable")
    return [
        error_messages.error_from_decision(Decision(reason, "tools:jokes"), "work", user)
        for reason in reasons
        for user in ("alice", "")
    ]


def unsendable() -> list[DispatchError]:
    names = ("MessageTooBig", "Dropped", "AlreadyClosed", "Timeout", "NotConnected", "ConnectError")
    opening = ("TopicNotFound", "AuthorizationError", "Timeout", "ConsumerBusy", "InvalidTopicName", "CryptoError")
    return [
        error_messages.error_from_closing("work"),
        error_messages.error_from_disconnection("work", URL),
        error_messages.error_from_missing_instance("work", TOPIC),
        error_messages.error_from_key_holder_loss("work"),
        error_messages.error_from_client_failure("work", ValueError("It broke. Badly.")),
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
    ]


def formatted() -> list[DispatchError]:
    with pytest.raises(InvalidArgumentsError) as unknown:
        ResultStore().read("gone")
    return [unknown.value, error_from_invalid_output("Tool 'work'", [Mistake("/a", "is required")])]


UNSEEN = ("NOT_SENT", "FORGOTTEN", "INVALID_RESULT")
"""Failures of MCP's transports that :class:`McpInstance` handles itself."""


def of_mcp_servers() -> list[DispatchError]:
    of_transports = (each for each in TransportFailure if each.name not in UNSEEN)
    codes = (INVALID_PARAMS, METHOD_NOT_FOUND, INTERNAL_ERROR, *of_transports)
    answers = [MCPError(code, "It broke. Badly.") for code in codes]
    return [
        error_from_mcp_error(MCPError(TransportFailure.THROTTLED, "HTTP status 429", 7.5), "work", "server").error,
        *(error_from_mcp_error(each, "work", "server").error for each in answers),
        error_from_loss("work", "server").error,
        error_from_unreadable_result("work", "server", ValueError("No. Content.")).error,
        error_from_missing_session("work", 3.0),
    ]


ERRORS = [*rejected(), *refused(), *exchanged(), *mistaken(), *unsendable(), *formatted(), *of_mcp_servers()]
EXECUTED = re.compile(r"(was|were|been) (not )?executed|No tool was executed")
NEXT_STEP = re.compile(
    r"\b(Use|use|Call|Check|Report|report|Correct|Give|Send|Start|Create|Connect|Open|Stop|Leave|Discard)\b[^.]*\.$"
)


def sentences(text: str) -> int:
    return len(re.findall(r"[.!?](?= [A-Z]|$)", text))


def test_every_error_type_is_among_them() -> None:
    assert {ErrorType(error.type) for error in ERRORS} == set(ErrorType) - ELSEWHERE


def test_the_text_has_two_sentences_at_most_and_the_last_names_the_next_step() -> None:
    for error in ERRORS:
        assert error.message.endswith("."), error.message
        assert sentences(error.message) <= 2, error.message
        last = re.split(r"(?<=[.!?]) (?=[A-Z])", error.message)[-1]
        last = last.replace("0.1", "").replace("memory://.", "memory.").replace(".example", "")
        assert NEXT_STEP.search(last), error.message


def test_the_text_says_whether_the_tool_was_executed_and_agrees_with_the_flags() -> None:
    for error in ERRORS:
        assert EXECUTED.search(error.message), error.message
        surely_not = "not executed" in error.message or "No tool was executed" in error.message
        if isinstance(error, TransportError):
            assert surely_not is not error.may_have_run, error.message
        elif isinstance(error, CallTimeoutError):
            assert surely_not is (error.type == ErrorType.EXPIRED), error.message
        else:
            assert surely_not is (error.type not in (ErrorType.TOOL_ERROR, ErrorType.INVALID_OUTPUT)), error.message


def test_the_text_never_asks_for_a_repeat_at_once() -> None:
    for error in ERRORS:
        assert not re.search(r"\b(try|retry|please|sorry|somebody|nobody|who)\b", error.message, re.IGNORECASE)


def test_alternatives_add_no_sentence() -> None:
    for error in ERRORS:
        copied = DispatchError(error.type, error.message)
        error_messages.add_alternatives(copied, ("other", "third"))
        assert "other, third" in copied.message
        assert sentences(copied.message) <= 2, copied.message
        assert copied.message.endswith("."), copied.message


REASONS_MESSAGES = {
    "breaker": ("open", "paused", "probing", "forced-open"),
    "rate-limit": ("too-late", "queue-full", "left"),
    "user-rate-limit": ("too-late", "queue-full"),
    "bulkhead": ("full", "queue-full", "too-late", "too-long", "stalled", "overload", "occupied"),
    "balancer": ("no-instance",),
}
ALL = [(by, reason) for by, reasons in REASONS_MESSAGES.items() for reason in reasons]
TYPES = {
    "breaker": "circuit-open",
    "rate-limit": "rate-limited",
    "user-rate-limit": "rate-limited",
    "bulkhead": "bulkhead-full",
    "balancer": "no-instance",
}
PERMANENT = [("breaker", "forced-open")]
LIMIT = 1_000


@pytest.mark.parametrize("after", [None, 0.04, 0.5, 1.2, 90.0])
def test_every_rejection_names_its_guard_and_the_time_to_wait(after: float | None) -> None:
    for by, reason in ALL:
        error = error_messages.error_from_rejection(Rejection(by, reason, after), "work")
        assert type(error) is (ThrottledError if by in ("rate-limit", "user-rate-limit", "bulkhead") else RejectedError)
        assert (error.type, error.rejected_by, error.retry_after) == (TYPES[by], by, after)
        assert error.message.startswith("Tool 'work' was not executed: ")
        assert error.retryable == ((by, reason) not in PERMANENT)


@pytest.mark.parametrize(
    ("after", "text"),
    [(0.01, "in 0.1 s or later"), (0.31, "in 0.4 s or later"), (1.0, "in 1 s or later"), (1.2, "in 2 s or later")],
)
def test_the_time_to_wait_is_rounded_up(after: float, text: str) -> None:
    assert text in error_messages.error_from_rejection(Rejection("rate-limit", "too-late", after), "work").message
    assert text not in error_messages.error_from_rejection(Rejection("breaker", "forced-open", after), "work").message


@pytest.mark.parametrize(("by", "reason", "text"), [
    ("rate-limit", "too-late", "its rate limit is reached."),
    ("rate-limit", "queue-full", "its rate limit is reached and the queue for it is full"),
    ("user-rate-limit", "too-late", "its rate limit for this user is reached."),
    ("bulkhead", "queue-full", "the queue for it is full"),
    ("bulkhead", "too-late", "would exceed the call's deadline"),
    ("bulkhead", "stalled", "none of them has ended for many times their usual duration"),
    ("bulkhead", "overload", "limit of calls in flight (bulkhead.max-concurrent-calls) is reached"),
    ("breaker", "open", "circuit breaker is open"),
    ("breaker", "probing", "circuit breaker is half-open"),
    ("balancer", "no-instance", "no instance of its service is available"),
])  # fmt: skip
def test_the_text_names_the_cause(by: str, reason: str, text: str) -> None:
    assert text in error_messages.error_from_rejection(Rejection(by, reason, 3.0), "work").message


@pytest.mark.parametrize("reason", ["closed", "closing"])
def test_a_closed_dispatcher_has_sent_nothing(reason: str) -> None:
    error = error_messages.error_from_rejection(Rejection("bulkhead", reason), "work")
    assert isinstance(error, TransportError)
    message = error_messages.error_from_closing("work").message
    assert (error.type, error.may_have_run, error.message) == ("closed", False, message)


def test_alternatives_are_added_once_to_the_attribute_and_the_text() -> None:
    error = error_messages.add_alternatives(RejectedError("circuit-open", "Use another tool, or wait."), ("a", "b"))
    assert (error.alternatives, str(error)) == (("a", "b"), "Use another tool (a, b), or wait.")
    assert error_messages.add_alternatives(error, ("c",)).message == "Use another tool (a, b), or wait."
    assert error_messages.add_alternatives(DispatchError("x", "Report it."), ("a",)).message == "Report it (or use: a)."
    untouched = DispatchError("x", "Stop.")
    assert error_messages.add_alternatives(untouched, ()) is untouched
    assert untouched.message == "Stop."


@pytest.mark.parametrize(
    ("policy", "size", "limit", "fix"),
    [
        ({"max_request_bytes": 500}, 600, 500, "raise 'max-request-bytes'"),
        ({"max_request_bytes": 5_000}, 1_001, 1_000, None),
    ],
)
def test_a_request_too_large_names_the_policy_key_that_allows_it(
    policy: dict[str, Any], size: int, limit: int, fix: str | None
) -> None:
    error = error_messages.error_from_mistake("search", Policy(**policy), PayloadTooLargeError(size, limit))
    assert error.type == "request-too-large"
    assert f"{size:,} bytes, the limit is {limit:,}" in error.message
    assert [key for key in ("max-request-bytes",) if key in error.message] == ([fix.split("'")[1]] if fix else [])


def test_other_mistakes_have_types_of_their_own() -> None:
    timeout = PolicyError("timeout", "-1 is out of range", "give 10")
    assert error_messages.error_from_mistake("search", Policy(), timeout).type == "invalid-timeout"
    priority = PolicyError("priority", "'high' is not a priority of this tool", "give one of batch")
    assert error_messages.error_from_mistake("search", Policy(), priority).type == "unknown-priority"
    with pytest.raises(TypeError) as caught:
        request_payload("{}", {"n": math.nan}, "", Policy())
    error = error_messages.error_from_mistake("search", Policy(), caught.value)
    assert error.type == "invalid-arguments"
    assert error.message.startswith("Tool 'search' was not executed: arguments cannot be written as JSON")


def test_a_request_above_the_largest_message_without_a_known_instance_is_not_retryable() -> None:
    error = error_messages.error_from_oversized_request("search", 5_000, LIMIT)
    assert (error.type, error.retryable) == ("request-too-large", False)
    assert "5,000" in error.message
    assert "1,000" in error.message


def told(settled: Settled, *, limit: float = 5, repeatable: bool = False) -> DispatchError:
    error = error_messages.error_from_exchange(settled, tool="work", limit=limit, repeatable=repeatable)
    assert error is not None
    return error


def refusal(reason: str, retry_after: float | None = None) -> Answer:
    return Answer("", reason, "because", refused=reason, retry_after=retry_after)


def test_an_answer_is_no_error() -> None:
    assert error_messages.error_from_exchange(Answer("ha"), tool="work", limit=5, repeatable=False) is None


def test_a_tools_own_error_keeps_type_and_message() -> None:
    error = told(Answer("", "Odd", "It broke."))
    assert type(error) is ToolError
    assert (error.type, error.message, error.retryable) == ("Odd", "It broke.", False)


def test_a_tool_error_without_a_message_is_given_one() -> None:
    error = told(Answer("", ""))
    assert error.type == "tool-error"
    assert error.message.startswith("Tool 'work' was executed and failed without a message.")


@pytest.mark.parametrize(("seconds", "advice"), [(2.5, "in 3 s or later"), (None, "later.")])
def test_an_overloaded_service(seconds: float | None, advice: str) -> None:
    error = told(refusal("overloaded", seconds))
    assert type(error) is ThrottledError
    found = (error.type, error.retryable, error.retry_after, error.rejected_by)
    assert found == ("overloaded", True, seconds, "service")
    assert f"call it again {advice}" in error.message


@pytest.mark.parametrize("repeatable", [True, False])
def test_a_tool_that_its_service_stopped_in_time_is_a_timeout(repeatable: bool) -> None:
    stopped = Answer("", "deadline-exceeded", "because", 3, refused="stopped")
    error = told(stopped, repeatable=repeatable)
    assert type(error) is CallTimeoutError
    assert (error.type, error.limit_name, error.retryable) == ("timeout", "call", repeatable)
    assert "within 5 s after 2 chunk(s);" in error.message, "the error itself is no chunk"


def test_an_expired_request() -> None:
    error = told(refusal("expired"))
    assert type(error) is CallTimeoutError
    assert (error.type, error.limit_name) == ("expired", "call")
    assert "was not executed" in error.message


def test_a_request_the_service_could_not_read() -> None:
    error = told(refusal("invalid-request"))
    assert type(error) is InvalidArgumentsError
    assert not error.retryable
    assert "because" in error.message


@pytest.mark.parametrize(
    ("reason", "type_", "text"),
    [
        ("draining", "draining", "its service is shutting down."),
        ("some-later-reason", "service-refused", "its service refused the request (because)."),
    ],
)
def test_any_other_refusal(reason: str, type_: str, text: str) -> None:
    error = told(refusal(reason, 1.0))
    assert type(error) is RejectedError
    assert (error.type, error.retryable, error.retry_after, error.rejected_by) == (type_, True, 1.0, "service")
    assert text in error.message


@pytest.mark.parametrize("reason", ["reply-evicted"])
@pytest.mark.parametrize("repeatable", [True, False])
def test_a_reply_that_is_gone_leaves_the_execution_in_doubt(reason: str, repeatable: bool) -> None:
    error = told(refusal(reason), repeatable=repeatable)
    assert isinstance(error, TransportError)
    assert (error.type, error.may_have_run, error.retryable, error.origin) == (reason, True, repeatable, Origin.TOOL)


@pytest.mark.parametrize("reason", [Failure.SILENT, Failure.RESTARTED, Failure.CLOSED, Failure.EVICTED])
@pytest.mark.parametrize("repeatable", [True, False])
def test_an_instance_that_is_lost_may_have_executed_what_it_was_sent(reason: Failure, repeatable: bool) -> None:
    error = told(Lost(reason, may_have_run=True), repeatable=repeatable)
    assert isinstance(error, TransportError)
    kind = "instance-restarted" if reason is Failure.RESTARTED else "instance-lost"
    assert (error.type, error.may_have_run, error.retryable, error.origin) == (kind, True, repeatable, Origin.TOOL)
    assert "may have been executed" in error.message


@pytest.mark.parametrize("reason", [Failure.SILENT, Failure.RESTARTED, Failure.CLOSED, Failure.EVICTED])
def test_what_an_instance_that_is_lost_surely_did_not_execute_may_be_repeated(reason: Failure) -> None:
    error = told(Lost(reason, may_have_run=False))
    assert isinstance(error, TransportError)
    assert (error.may_have_run, error.retryable) == (False, True)
    assert "was not executed" in error.message


@pytest.mark.parametrize(
    ("clock", "type_", "words"),
    [
        ("call", "timeout", "No complete reply arrived within 5 s after 2 chunk(s);"),
        ("attempt", "attempt-timeout", "No complete reply arrived within 5 s after 2 chunk(s);"),
        ("stream", "timeout", "The stream was not complete within 5 s after 2 chunk(s);"),
        ("stream-idle", "idle-timeout", "The stream brought nothing for 5 s after 2 chunk(s);"),
    ],
)
def test_a_limit_that_ran_out_names_itself_and_its_length(clock: str, type_: str, words: str) -> None:
    error = told(TimedOut(clock, may_have_run=True, chunks=2))
    assert type(error) is CallTimeoutError
    assert (error.type, error.limit_name, error.retryable) == (type_, clock, False)
    assert words in error.message
    assert "may have been executed. Check its effect before you call it again" in error.message


def test_the_limit_is_written_as_people_write_it() -> None:
    for limit, words in ((0.25, "0.25 s"), (600.0, "600 s"), (1, "1 s")):
        assert f"within {words};" in told(TimedOut("call", may_have_run=True), limit=limit).message


def test_a_lost_chunk_is_named() -> None:
    assert "(chunk 7 was lost)" in told(TimedOut("stream-idle", may_have_run=True, chunks=7, missing=7)).message
    assert "lost" not in told(TimedOut("stream-idle", may_have_run=True, chunks=7)).message


def test_what_may_be_repeated_says_so() -> None:
    error = told(TimedOut("call", may_have_run=True), repeatable=True)
    assert error.retryable
    assert "a repeat does no harm" in error.message


@pytest.mark.parametrize("repeatable", [True, False])
def test_what_never_left_may_be_repeated_whatever_the_tool(repeatable: bool) -> None:
    error = told(TimedOut("call", may_have_run=False), repeatable=repeatable)
    assert isinstance(error, TransportError)
    assert (error.type, error.may_have_run, error.retryable) == ("send-timeout", False, True)
    assert "was not executed" in error.message


def test_an_unreadable_answer() -> None:
    error = told(Unreadable("no JSON"))
    assert isinstance(error, TransportError)
    assert (error.type, error.may_have_run, error.retryable) == ("malformed-reply", True, False)
    assert "(no JSON)" in error.message


def test_an_answer_too_large_names_the_key_to_raise() -> None:
    error = told(Overflow("stream buffer"))
    assert isinstance(error, TransportError)
    assert (error.type, error.retryable) == ("response-limit-exceeded", False)
    assert "stream buffer" in error.message


@pytest.mark.parametrize(
    "given", [TransportError("x", "m", may_have_run=False), ThrottledError("x", "m", retryable=True)]
)
def test_what_is_an_error_already_stays_itself(given: TransportError | ThrottledError) -> None:
    assert told(given) is given


CLOCKS = ("call", "attempt", "stream", "stream-idle")
ENDS: list[Settled] = [
    *(TimedOut(*end) for end in itertools.product(CLOCKS, (True, False), (0, 3), (None, 3))),
    *(refusal(reason) for reason in ("overloaded", "draining", "expired", "invalid-request", "other")),
    Unreadable("no JSON"),
    Overflow("max-response-bytes"),
    Answer("", ""),
]


@pytest.mark.parametrize("repeatable", [True, False])
def test_every_text_names_the_tool_and_never_tells_a_model_to_try_again(repeatable: bool) -> None:
    for settled in ENDS:
        error = told(settled, repeatable=repeatable)
        assert "'work'" in error.message, "the text names the tool"
        assert not re.search(r"\b(try|retry)\b", error.message, re.IGNORECASE)
        assert error.message.endswith("."), "a whole sentence"


SCHEMA = {"type": "object", "properties": {"product": {"type": "string"}, "note": {"type": "string"}}}
DECLARED: dict[str, dict[str, Any]] = {
    "schema": {"input-schema": {**SCHEMA, "required": ["product"]}},
    "arguments": {
        "arguments": [
            {"name": "product", "type": "string", "description": "What.", "required": True},
            {"name": "note", "type": "string", "description": "A note.", "required": False},
        ]
    },
    "trustgraph": {"arguments": [{"name": "product", "type": "string", "description": "What."}]},
}
MISSING = "The argument 'product' is missing. "


def key_error(arguments: dict[str, Any]) -> str:
    return f"{arguments['product']}"


def third_party(arguments: dict[str, Any]) -> str:
    """As services that send the text of the exception alone."""
    raise ToolError("tool-error", "'product'")


@pytest.mark.parametrize("declared", DECLARED)
@pytest.mark.parametrize("work", [key_error, third_party])
async def test_it_is_named(work: Any, declared: str) -> None:
    async with stand(work, catalog(work=DECLARED[declared])) as (dispatcher, _):
        result = await dispatcher.execute("work", {"note": "x"})
    assert isinstance(result.error, ToolError)
    assert result.error.type == ("KeyError" if work is key_error else "tool-error")
    assert result.error.message.startswith(MISSING)


async def test_it_is_named_in_a_stream_and_for_functions() -> None:
    async def stream(arguments: dict[str, Any]) -> AsyncIterator[str]:
        yield "one"
        yield arguments["product"]

    chunks: list[str] = []
    async with stand(lambda arguments: stream(arguments), catalog(work=DECLARED["schema"])) as (dispatcher, _):
        with pytest.raises(ToolError, match=MISSING):
            await read(dispatcher.stream("work"), chunks)
    assert chunks == ["one"]


@pytest.mark.parametrize(
    ("arguments", "key"), [({"product": "tea"}, "product"), ({}, "note"), ({}, "another"), ({}, "pro duct")]
)
async def test_any_other_key_is_quoted_with_the_class(arguments: dict[str, Any], key: str) -> None:
    def work(_: dict[str, Any]) -> str:
        raise KeyError(key)

    async with stand(work, catalog(work=DECLARED["schema"])) as (dispatcher, _):
        result = await dispatcher.execute("work", arguments)
    assert result.error.message == f"KeyError: '{key}'"


async def test_a_key_error_with_a_text_of_its_own_is_unchanged() -> None:
    class NoStockError(KeyError):
        def __str__(self) -> str:
            return "there is no tea"

    def raise_own() -> None:
        raise NoStockError

    def raise_key(shelf: int) -> None:
        raise KeyError("tea")

    async with dispatch.connect("memory://", catalog=[dispatch.Functions(raise_own, raise_key)]) as dispatcher:
        own, key = await dispatcher.execute("raise_own"), await dispatcher.execute("raise_key", {"shelf": 1})
    assert (own.error.message, key.error.message) == ("there is no tea", "KeyError: 'tea'")
