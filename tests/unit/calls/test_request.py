"""What may be sent: the broker's limit, the policy's, and what is said to a caller who asks for more."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dispatch.calls.request import invalid, nobody_takes_parts, request_payload
from dispatch.messaging.wire.codec import PayloadTooLargeError, decode_request
from dispatch.messaging.wire.fragments import MAX_PARTS
from dispatch.policy import Policy, PolicyError

LIMIT = 1_000


@pytest.mark.parametrize(
    ("policy", "most"),
    [
        ({}, LIMIT),
        ({"max_arguments": 500}, 500),
        ({"max_arguments": 5_000}, LIMIT),
        ({"large_payloads": True, "max_arguments": 5_000}, 5_000),
        ({"large_payloads": True, "max_arguments": 500}, 500),
        ({"large_payloads": True}, LIMIT * MAX_PARTS),
    ],
)
def test_no_more_is_sent_than_broker_and_policy_allow(policy: dict[str, Any], most: int) -> None:
    limits = Policy(**policy)
    around = len(request_payload("{}", {"text": ""}, "me", limits, LIMIT))
    payload = request_payload("{}", {"text": "x" * (most - around)}, "me", limits, LIMIT)
    assert len(payload) == most
    assert decode_request(payload).arguments == {"text": "x" * (most - around)}
    with pytest.raises(PayloadTooLargeError) as caught:
        request_payload("{}", {"text": "x" * (most - around + 1)}, "me", limits, LIMIT)
    assert (caught.value.size, caught.value.limit) == (most + 1, most)


@pytest.mark.parametrize(
    ("policy", "size", "limit", "fix"),
    [
        ({}, 2_000, LIMIT, "set 'large-payloads'"),
        ({}, 1 << 40, LIMIT, None),
        ({"max_arguments": 500}, 600, 500, "raise 'max-arguments'"),
        ({"large_payloads": True, "max_arguments": 500}, 600, 500, "raise 'max-arguments'"),
        ({"large_payloads": True}, LIMIT * MAX_PARTS + 1, LIMIT * MAX_PARTS, None),
    ],
)
def test_what_is_too_large_names_the_key_that_allows_it(
    policy: dict[str, Any], size: int, limit: int, fix: str | None
) -> None:
    error = invalid("search", Policy(**policy), PayloadTooLargeError(size, limit))
    assert error.type == "payload-too-large"
    assert f"{size:,} bytes, the limit is {limit:,}" in error.message
    assert "Nothing was sent" in error.message
    assert [key for key in ("large-payloads", "max-arguments") if key in error.message] == (
        [fix.split("'")[1]] if fix else []
    )


def test_other_mistakes_are_told_as_such() -> None:
    assert (
        invalid("search", Policy(), PolicyError("timeout", "-1 is out of range", "give 10")).type == "invalid-timeout"
    )
    with pytest.raises(TypeError) as caught:
        request_payload("{}", {"n": math.nan}, "", Policy(), LIMIT)
    error = invalid("search", Policy(), caught.value)
    assert error.type == "invalid-arguments"
    assert "'search' was not called" in error.message


def test_nobody_who_takes_parts_is_an_error_that_a_repeat_does_not_mend() -> None:
    error = nobody_takes_parts("search", 5_000, LIMIT)
    assert (error.type, error.sent, error.retryable) == ("payload-too-large", False, False)
    assert "5,000" in error.message
    assert "1,000" in error.message
