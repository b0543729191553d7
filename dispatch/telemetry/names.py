"""Names that operators see: of metrics, spans, attributes and errors. Frozen by a test: dashboards, rules and other people's
queries hold on to them.

Spans and attributes are OpenTelemetry's semantic conventions, written out here because the Python package keeps those of
generative AI and messaging among what is deprecated or incubating. What is our own begins with ``dispatch.``.
"""

from __future__ import annotations

from typing import Final

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"
"""The version of the conventions that the names below are of."""

DURATION_BUCKETS: Final = (
    *(0.001, 0.0025, 0.005),
    *(0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92),
)
"""Seconds. From 10 ms on those of the conventions' ``gen_ai.execute_tool.duration``; finer ones below, where dispatch's own
share is."""
FIRST_CHUNK_BUCKETS: Final = (0.01, 0.1, 0.5, 2.5, 10.0)
"""Seconds until a stream begins."""
WAIT_BUCKETS: Final = (0.001, 0.01, 0.1, 1.0)
"""Seconds in line; by default nobody waits for longer than 1 s."""

OTHER: Final = "_OTHER"
"""Stands for every name that is in no catalogue: models invent them, and a label must not grow with their fantasy."""

# -- spans ------------------------------------------------------------------------------------------------------

EXECUTE_TOOL: Final = "execute_tool"
SEND: Final = "send"
PROCESS: Final = "process"

OPERATION: Final = "gen_ai.operation.name"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_TYPE: Final = "gen_ai.tool.type"
TOOL_DESCRIPTION: Final = "gen_ai.tool.description"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
TOOL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_RESULT: Final = "gen_ai.tool.call.result"
EXTENSION: Final = "extension"
"""The type of a tool that is called on the agent's side and runs elsewhere."""

MESSAGING_SYSTEM: Final = "messaging.system"
PULSAR: Final = "pulsar"
"""Its value; of the embedded broker too, whose topics are named and behave as Pulsar's."""
MESSAGING_OPERATION: Final = "messaging.operation.name"
MESSAGING_OPERATION_TYPE: Final = "messaging.operation.type"
MESSAGING_DESTINATION: Final = "messaging.destination.name"
MESSAGING_TEMPLATE: Final = "messaging.destination.template"
MESSAGING_TEMPORARY: Final = "messaging.destination.temporary"
MESSAGING_CONVERSATION: Final = "messaging.message.conversation_id"
MESSAGING_CLIENT: Final = "messaging.client.id"

ERROR_TYPE: Final = "error.type"

# Our own.
SERVICE: Final = "dispatch.service"
INSTANCE: Final = "dispatch.instance"
OUTCOME: Final = "dispatch.outcome"
ATTEMPTS: Final = "dispatch.attempts"
ATTEMPT: Final = "dispatch.attempt.number"
ATTEMPT_REASON: Final = "dispatch.attempt.reason"
TRANSMISSIONS: Final = "dispatch.transmissions"
CHUNKS: Final = "dispatch.chunks"
FIRST_CHUNK: Final = "dispatch.first_chunk.seconds"
REPLY_TEMPLATE: Final = "{reply-to}"
"""The template of the topics where dispatchers take their replies: each has its own."""

# Events on the span of a call.
RETRY_EVENT: Final = "dispatch.retry"
HEDGE_EVENT: Final = "dispatch.hedge"
REFUSED_EVENT: Final = "dispatch.refused"
REASON: Final = "dispatch.reason"
WAIT: Final = "dispatch.wait.seconds"
