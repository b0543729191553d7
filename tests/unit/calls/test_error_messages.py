"""What a guard's refusal means to a caller: what happened, and what to do next. Never "try again"."""

from __future__ import annotations

import pytest

from dispatch._internal.permit import Rejection
from dispatch.calls.error_messages import closed, refusal, with_alternatives
from dispatch.errors import DispatchError, RejectedError, ThrottledError, TransportError

REASONS = {
    "breaker": ("open", "paused", "probing", "forced-open"),
    "rate": ("too-late", "queue-full", "too-large", "left"),
    "bulkhead": ("full", "queue-full", "too-late", "too-long", "overload"),
    "balancer": ("no-instance",),
}
ALL = [(by, reason) for by, reasons in REASONS.items() for reason in reasons]


@pytest.mark.parametrize(("by", "reason"), ALL)
@pytest.mark.parametrize("after", [None, 0.04, 0.5, 1.2, 90.0])
def test_every_refusal_says_who_and_why_and_what_to_do(by: str, reason: str, after: float | None) -> None:
    error = refusal(Rejection(by, reason, after), "work")
    assert type(error) is (ThrottledError if by in ("rate", "bulkhead") else RejectedError)
    assert (error.rejected_by, error.retry_after) == (by, after)
    done = "executed: this dispatcher's limit" if by == "bulkhead" else "called: "
    assert error.message.startswith(f"'work' was not {done}")
    assert "Stop" in error.message
    assert "try again" not in error.message
    assert error.retryable == ((by, reason) not in (("breaker", "forced-open"), ("rate", "too-large")))


@pytest.mark.parametrize(
    ("after", "text"),
    [(0.01, "not before 0.1 s"), (0.31, "not before 0.4 s"), (1.0, "not before 1 s"), (1.2, "not before 2 s")],
)
def test_a_time_is_told_and_never_too_early(after: float, text: str) -> None:
    assert text in refusal(Rejection("rate", "too-late", after), "work").message
    assert text not in refusal(Rejection("breaker", "forced-open", after), "work").message


@pytest.mark.parametrize(("by", "reason", "text"), [
    ("rate", "too-late", "it may be called only so often."),
    ("rate", "queue-full", "it may be called only so often, and no more calls can wait"),
    ("bulkhead", "queue-full", "as many calls wait for a place as may (bulkhead.queue)"),
    ("bulkhead", "too-late", "would outlast the call's deadline"),
    ("bulkhead", "overload", "this dispatcher's limit of calls in flight (bulkhead.max-concurrent-calls) is reached"),
    ("breaker", "open", "has failed too often"),
    ("breaker", "probing", "finding out whether it is well"),
    ("balancer", "no-instance", "no instance of its service is there"),
])  # fmt: skip
def test_the_text_is_about_the_guard(by: str, reason: str, text: str) -> None:
    assert text in refusal(Rejection(by, reason, 3.0), "work").message


@pytest.mark.parametrize("reason", ["closed", "closing", "loop-ended"])
def test_a_dispatcher_that_closes_has_sent_nothing(reason: str) -> None:
    error = refusal(Rejection("bulkhead", reason), "work")
    assert isinstance(error, TransportError)
    assert (error.type, error.sent, error.message) == ("closed", False, closed().message)


def test_alternatives_are_in_the_attribute_and_in_the_text_once() -> None:
    error = with_alternatives(RejectedError("circuit-open", "Stop."), ("a", "b"))
    assert (error.alternatives, str(error)) == (("a", "b"), "Stop. Tools like it: a, b.")
    assert with_alternatives(error, ("c",)).message == "Stop. Tools like it: a, b."
    untouched = DispatchError("x", "Stop.")
    assert with_alternatives(untouched, ()) is untouched
    assert untouched.message == "Stop."
