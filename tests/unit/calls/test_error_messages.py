"""From a guard's rejection, or a mistake of the caller, to the error that the caller gets: class, flags and advice."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dispatch._internal import Rejection
from dispatch.calls.call import request_payload
from dispatch.calls.error_messages import (
    add_alternatives,
    error_from_closing,
    error_from_mistake,
    error_from_oversized_request,
    error_from_rejection,
)
from dispatch.errors import DispatchError, RejectedError, ThrottledError, TransportError
from dispatch.messaging.wire import PayloadTooLargeError
from dispatch.policy import Policy, PolicyError

REASONS = {
    "breaker": ("open", "paused", "probing", "forced-open"),
    "rate-limit": ("too-late", "queue-full", "too-large", "left"),
    "user-rate-limit": ("too-late", "queue-full", "too-large"),
    "bulkhead": ("full", "queue-full", "too-late", "too-long", "stalled", "overload", "occupied"),
    "balancer": ("no-instance",),
}
ALL = [(by, reason) for by, reasons in REASONS.items() for reason in reasons]
TYPES = {
    "breaker": "circuit-open",
    "rate-limit": "rate-limited",
    "user-rate-limit": "rate-limited",
    "bulkhead": "bulkhead-full",
    "balancer": "no-instance",
}
PERMANENT = [("breaker", "forced-open"), ("rate-limit", "too-large"), ("user-rate-limit", "too-large")]
LIMIT = 1_000


@pytest.mark.parametrize(("by", "reason"), ALL)
@pytest.mark.parametrize("after", [None, 0.04, 0.5, 1.2, 90.0])
def test_every_rejection_names_its_guard_and_the_time_to_wait(by: str, reason: str, after: float | None) -> None:
    error = error_from_rejection(Rejection(by, reason, after), "work")
    assert type(error) is (ThrottledError if by in ("rate-limit", "user-rate-limit", "bulkhead") else RejectedError)
    assert (error.type, error.rejected_by, error.retry_after) == (TYPES[by], by, after)
    assert error.message.startswith("Tool 'work' was not executed: ")
    assert error.retryable == ((by, reason) not in PERMANENT)


@pytest.mark.parametrize(
    ("after", "text"),
    [(0.01, "in 0.1 s or later"), (0.31, "in 0.4 s or later"), (1.0, "in 1 s or later"), (1.2, "in 2 s or later")],
)
def test_the_time_to_wait_is_rounded_up(after: float, text: str) -> None:
    assert text in error_from_rejection(Rejection("rate-limit", "too-late", after), "work").message
    assert text not in error_from_rejection(Rejection("breaker", "forced-open", after), "work").message


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
    assert text in error_from_rejection(Rejection(by, reason, 3.0), "work").message


@pytest.mark.parametrize("reason", ["closed", "closing", "loop-ended"])
def test_a_closed_dispatcher_has_sent_nothing(reason: str) -> None:
    error = error_from_rejection(Rejection("bulkhead", reason), "work")
    assert isinstance(error, TransportError)
    assert (error.type, error.may_have_run, error.message) == ("closed", False, error_from_closing("work").message)


def test_alternatives_are_added_once_to_the_attribute_and_the_text() -> None:
    error = add_alternatives(RejectedError("circuit-open", "Use another tool, or wait."), ("a", "b"))
    assert (error.alternatives, str(error)) == (("a", "b"), "Use another tool (a, b), or wait.")
    assert add_alternatives(error, ("c",)).message == "Use another tool (a, b), or wait."
    assert add_alternatives(DispatchError("x", "Report it."), ("a",)).message == "Report it (or use: a)."
    untouched = DispatchError("x", "Stop.")
    assert add_alternatives(untouched, ()) is untouched
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
    error = error_from_mistake("search", Policy(**policy), PayloadTooLargeError(size, limit))
    assert error.type == "request-too-large"
    assert f"{size:,} bytes, the limit is {limit:,}" in error.message
    assert [key for key in ("max-request-bytes",) if key in error.message] == ([fix.split("'")[1]] if fix else [])


def test_other_mistakes_have_types_of_their_own() -> None:
    timeout = PolicyError("timeout", "-1 is out of range", "give 10")
    assert error_from_mistake("search", Policy(), timeout).type == "invalid-timeout"
    priority = PolicyError("priority", "'high' is not a priority of this tool", "give one of batch")
    assert error_from_mistake("search", Policy(), priority).type == "unknown-priority"
    with pytest.raises(TypeError) as caught:
        request_payload("{}", {"n": math.nan}, "", Policy())
    error = error_from_mistake("search", Policy(), caught.value)
    assert error.type == "invalid-arguments"
    assert error.message.startswith("Tool 'search' was not executed: arguments cannot be written as JSON")


def test_a_request_above_the_largest_message_without_a_known_instance_is_not_retryable() -> None:
    error = error_from_oversized_request("search", 5_000, LIMIT)
    assert (error.type, error.retryable) == ("request-too-large", False)
    assert "5,000" in error.message
    assert "1,000" in error.message
