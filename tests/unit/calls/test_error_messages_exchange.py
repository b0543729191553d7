"""From the end of an exchange to what its caller is told: class, flags and advice."""

from __future__ import annotations

import itertools
import re

import pytest

from dispatch.calls.error_messages import error_from_exchange
from dispatch.errors import (
    CallTimeoutError,
    DispatchError,
    InvalidArgumentsError,
    Origin,
    RejectedError,
    ThrottledError,
    ToolError,
    TransportError,
)
from dispatch.messaging.request import Answer, Lost, Overflow, Settled, TimedOut, Unreadable
from dispatch.protocol.events import Failure


def told(settled: Settled, *, limit: float = 5, repeatable: bool = False) -> DispatchError:
    error = error_from_exchange(settled, tool="work", limit=limit, repeatable=repeatable)
    assert error is not None
    return error


def refusal(reason: str, retry_after: float | None = None) -> Answer:
    return Answer("", reason, "because", refused=reason, retry_after=retry_after)


def test_an_answer_is_no_error() -> None:
    assert error_from_exchange(Answer("ha"), tool="work", limit=5, repeatable=False) is None


def test_a_tools_own_error_keeps_type_and_message() -> None:
    error = told(Answer("", "Odd", "It broke."))
    assert type(error) is ToolError
    assert (error.type, error.message, error.retryable) == ("Odd", "It broke.", False)


def test_a_tool_error_without_a_message_is_given_one() -> None:
    error = told(Answer("", ""))
    assert error.type == "tool-error"
    assert error.message.startswith("Tool 'work' was executed and failed without a message.")


@pytest.mark.parametrize(
    ("seconds", "advice"),
    [(2.5, "in 3 s or later"), (None, "later.")],
)
def test_an_overloaded_service(seconds: float | None, advice: str) -> None:
    error = told(refusal("overloaded", seconds))
    assert type(error) is ThrottledError
    assert (error.type, error.retryable, error.retry_after, error.rejected_by) == (
        "overloaded",
        True,
        seconds,
        "service",
    )
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


@pytest.mark.parametrize("settled", ENDS, ids=str)
@pytest.mark.parametrize("repeatable", [True, False])
def test_every_text_names_the_tool_and_never_tells_a_model_to_try_again(settled: Settled, repeatable: bool) -> None:
    error = told(settled, repeatable=repeatable)
    assert "'work'" in error.message, "the text names the tool"
    assert not re.search(r"\b(try|retry)\b", error.message, re.IGNORECASE)
    assert error.message.endswith("."), "a whole sentence"
