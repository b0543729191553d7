"""From a call's arguments to the payload of a request, within what may be sent; and what their mistakes mean to a caller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dispatch.errors import InvalidArgumentsError, TransportError
from dispatch.messaging.wire.codec import PayloadTooLargeError, encode_request, json_text
from dispatch.messaging.wire.fragments import MAX_PARTS
from dispatch.policy import Policy, PolicyError


def request_payload(config_text: str, arguments: Mapping[str, Any], user: str, policy: Policy, limit: int) -> bytes:
    """The payload of a request. ``limit``: bytes that the broker takes as one message; more may go in parts.

    Raises:
        PayloadTooLargeError: more than the policy allows.
        TypeError: something that JSON cannot say.
    """
    most = limit * MAX_PARTS if policy.large_payloads else limit
    return encode_request(config_text, json_text(arguments, "arguments"), user, limit=min(most, policy.max_arguments))


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


def invalid(tool: str, policy: Policy, error: Exception) -> InvalidArgumentsError:
    """The caller's own mistake, found before anything was sent."""
    if isinstance(error, PayloadTooLargeError):
        fix = ""
        if error.limit == policy.max_arguments:
            fix = ", or raise 'max-arguments' in the tool's policy"
        elif error.size <= policy.max_arguments and not policy.large_payloads:
            fix = ", or set 'large-payloads' in the tool's policy if its service is one of dispatch's"
        return InvalidArgumentsError(
            "payload-too-large",
            f"The arguments of '{tool}' make a message of {error}: send less, for instance a reference instead of the "
            f"data{fix}. Nothing was sent.",
        )
    if isinstance(error, PolicyError):
        if error.key == "priority":
            return InvalidArgumentsError(
                "unknown-priority",
                f"'{tool}' was not called: {error.problem}; {error.fix}.",
            )
        return InvalidArgumentsError("invalid-timeout", f"{error}. '{tool}' was not called.")
    return InvalidArgumentsError("invalid-arguments", f"{error}. '{tool}' was not called; mend the arguments.")


def nobody_takes_parts(tool: str, size: int, limit: int) -> TransportError:
    """The request is too large for one message, and its service is none of ours, or not known by name."""
    return TransportError(
        "payload-too-large",
        f"The arguments of '{tool}' make a message of {size:,} bytes, the broker takes {limit:,}, and no instance of its "
        "service is known that takes more in parts. It did not run. Send less, for instance a reference to the data.",
        sent=False,
        retryable=False,
    )


def nobody_there(tool: str, request_queue: str) -> TransportError:
    """No instance of ours is known, and the policy ``only-ours`` lets nobody else have the request."""
    return TransportError(
        "no-instance",
        f"No instance of the service of '{tool}' is there: none answered on {request_queue}. The tool did not run. Stop and "
        "report that it has to be started; if others' services listen there, take 'only-ours' out of the tool's policy.",
        sent=False,
        retry_after=1.0,
    )
