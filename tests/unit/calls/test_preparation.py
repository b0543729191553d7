"""The payload of a request stays within the limits of the broker and the policy."""

from __future__ import annotations

from typing import Any

import pytest

from dispatch.calls.call import request_payload
from dispatch.messaging.wire import PayloadTooLargeError, decode_request
from dispatch.policy import Policy
from dispatch.protocol.settings import DEFAULT_SETTINGS


@pytest.mark.parametrize(
    ("policy", "most"),
    [
        ({"max_request_bytes": 500}, 500),
        ({"max_request_bytes": 5_000}, 5_000),
        ({}, DEFAULT_SETTINGS.max_payload_bytes),
        ({"max_request_bytes": 2**30}, DEFAULT_SETTINGS.max_payload_bytes),
    ],
)
def test_no_more_is_sent_than_broker_and_policy_allow(policy: dict[str, Any], most: int) -> None:
    limits = Policy(**policy)
    around = len(request_payload("{}", {"text": ""}, "me", limits))
    payload = request_payload("{}", {"text": "x" * (most - around)}, "me", limits)
    assert len(payload) == most
    assert decode_request(payload).arguments == {"text": "x" * (most - around)}
    with pytest.raises(PayloadTooLargeError) as caught:
        request_payload("{}", {"text": "x" * (most - around + 1)}, "me", limits)
    assert (caught.value.size, caught.value.limit) == (most + 1, most)
