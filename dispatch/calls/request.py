"""From a call's arguments to the payload of a request, within the limits of the broker and the policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dispatch.messaging.wire.codec import encode_request, json_text
from dispatch.messaging.wire.fragments import MAX_PARTS
from dispatch.policy import Policy, PolicyError


def request_payload(config_text: str, arguments: Mapping[str, Any], user: str, policy: Policy, limit: int) -> bytes:
    """Return the payload of a request. ``limit``: the largest message in bytes that the broker accepts; the policy may allow
    more, in fragments.

    Raises:
        PayloadTooLargeError: the payload exceeds the limit.
        TypeError: an argument cannot be written as JSON.
    """
    most = limit * MAX_PARTS if policy.large_payloads else limit
    return encode_request(
        config_text, json_text(arguments, "arguments"), user, limit=min(most, policy.max_request_bytes)
    )


def check_priority(priority: object, policy: Policy) -> None:
    """Check that ``priority`` is one of the bulkhead's. Without a bulkhead there is no queue, and any priority is accepted.

    Raises:
        PolicyError: it is not.
    """
    if policy.bulkhead is not None and priority not in policy.bulkhead.priorities:
        known = ", ".join(policy.bulkhead.priorities)
        raise PolicyError(
            "priority",
            f"{priority!r:.80} is not a priority of this tool",
            f"give one of {known} (the most urgent first), or leave 'priority' out",
        )
