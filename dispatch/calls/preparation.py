"""Steps 2 and 3 of a call: authorize, deadline, and the payload of its request within the limits of broker and policy."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from dispatch.calls.argument_check import ArgumentCheck, must_check_arguments
from dispatch.calls.call_state import Call, CallOptions
from dispatch.calls.error_messages import error_from_argument_mistakes, error_from_closing, error_from_mistake
from dispatch.calls.resolution.resolved_tool import ResolvedTool
from dispatch.calls.tool_guards import ToolGuards
from dispatch.errors import DispatchError
from dispatch.messaging.wire.codec import PayloadTooLargeError, encode_request, json_text
from dispatch.messaging.wire.properties import check_property
from dispatch.permissions import Authorizer, Decision, Requirement
from dispatch.permissions.error_messages import error_from_decision
from dispatch.permissions.permission_lookup import LOOKUP_TIMEOUT_S
from dispatch.policy import Policy, PolicyError, check_seconds
from dispatch.protocol.settings import DEFAULT_SETTINGS
from dispatch.telemetry.call_observer import CallObserver
from dispatch.telemetry.logs import AUDIT, log_decision

_LIMITS = (int, float)
MISTAKES = (TypeError, PayloadTooLargeError, PolicyError, UnicodeError)
"""What a caller's own mistakes raise, before anything is sent."""


async def authorize_call(
    authorizer: Authorizer,
    tool: ResolvedTool,
    requirement: Requirement,
    decision: Decision | None,
    observer: CallObserver,
    options: CallOptions,
) -> DispatchError | None:
    """Step 2: conclude whether the user may call ``tool``, and log the decision. It waits only if the user's permissions
    are not cached, at most for :data:`LOOKUP_TIMEOUT_S` and the caller's own timeout.

    Args:
        requirement: of the tool.
        decision: of the authorizer at once; None: the permissions are not cached.

    Returns:
        The error of a refused call; None: the call is allowed.
    """
    user = options.user
    if not isinstance(user, str):
        return error_from_mistake(tool.label, tool.policy, TypeError(f"user must be a text, not {type(user).__name__}"))
    if decision is None:
        if authorizer.is_closed:
            return error_from_closing(tool.label)
        limit, timeout = LOOKUP_TIMEOUT_S, options.timeout
        if isinstance(timeout, _LIMITS) and timeout < limit:  # checked later, with the deadline
            limit = timeout
        decision = await authorizer.resolve(user, requirement, limit)
    if AUDIT.isEnabledFor(logging.INFO):
        reason, permission = decision.reason, decision.permission
        log_decision(user, tool.label, decision.is_allowed, reason, permission=permission, trace_id=observer.trace_id)
    if decision.is_allowed:
        return None
    error = error_from_decision(decision, tool.label, user)
    observer.on_rejected(error)
    return error


def prepare_call(
    tool: ResolvedTool,
    guards: ToolGuards,
    observer: CallObserver,
    arguments: Mapping[str, Any],
    options: CallOptions,
    started: float,
    argument_check: ArgumentCheck,
    *,
    is_stream: bool = False,
) -> Call | DispatchError:
    """Set the deadline of the call, encode its request, and check its arguments where the policy says so.

    Args:
        started: when the call began, on the loop's clock.
        argument_check: of the dispatcher.

    Returns:
        An error, if a mistake of the caller leaves nothing to send.
    """
    policy = tool.policy
    idle = 0.0
    try:
        # 3 deadline: one instant on the loop's clock for everything that follows.
        if is_stream:
            limit = policy.stream_timeout if options.timeout is None else check_seconds(options.timeout)
            idle = policy.stream_idle_timeout
            if options.idle_timeout is not None:
                idle = check_seconds(options.idle_timeout, "idle-timeout")
        else:
            limit = policy.timeout if options.timeout is None else check_seconds(options.timeout)
        if options.idempotency_key is not None:
            check_property(options.idempotency_key, "idempotency_key")
        if options.priority is not None:
            check_priority(options.priority, policy)
        config = tool.config_text if options.config is None else options.config
        payload = request_payload(config, arguments, options.user, policy)
        if must_check_arguments(tool, options) and (mistakes := argument_check.find_mistakes(tool, arguments)):
            return error_from_argument_mistakes(tool.label, mistakes)
    except MISTAKES as mistake:
        return error_from_mistake(tool.label, policy, mistake)
    observer.on_arguments(arguments)
    return Call(tool, guards, observer, options, payload, started + limit, limit, is_stream, idle)


def request_payload(config_text: str, arguments: Mapping[str, Any], user: str, policy: Policy) -> bytes:
    """Return the payload of a request.

    Raises:
        PayloadTooLargeError: the payload exceeds the policy's limit, or a session's.
        TypeError: an argument cannot be written as JSON.
    """
    most, allowed = DEFAULT_SETTINGS.max_payload_bytes, policy.max_request_bytes
    text = json_text(arguments, "arguments")
    return encode_request(config_text, text, user, limit=allowed if allowed < most else most)


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
