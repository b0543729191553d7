"""Names that operators see: of spans, attributes and events, and the buckets of histograms. A test freezes them, because
dashboards, rules and users' queries depend on them.

Spans and attributes follow OpenTelemetry's semantic conventions. They are written out here because the Python package has
those of generative AI and messaging only among the deprecated and incubating ones. dispatch's own begin with ``dispatch.``.
"""

from __future__ import annotations

from typing import Final

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"
"""Version of the conventions that the names follow."""

DURATION_BUCKETS: Final = (
    *(0.001, 0.0025, 0.005),
    *(0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92),
)
"""Upper bounds in seconds. From 10 ms on they are those of the conventions' ``gen_ai.execute_tool.duration``; the finer ones
below resolve the overhead of dispatch itself."""
FIRST_CHUNK_BUCKETS: Final = (0.01, 0.1, 0.5, 2.5, 10.0)
"""Upper bounds in seconds of the time to the first chunk of a stream."""
WAIT_BUCKETS: Final = (0.001, 0.01, 0.1, 1.0)
"""Upper bounds in seconds of the time in a queue, by default 1 s at most."""

OTHER: Final = "_OTHER"
"""Label of every name that is in no catalogue: models invent names, and the number of series must stay bounded."""

# -- spans ------------------------------------------------------------------------------------------------------

EXECUTE_TOOL: Final = "execute_tool"
EXECUTE_LOCALLY: Final = "attempt"
"""An attempt that this process executes; others are ``send`` spans."""
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
"""Type of a tool that is called on the agent's side and runs elsewhere."""

MESSAGING_SYSTEM: Final = "messaging.system"
PULSAR: Final = "pulsar"
"""Value of ``messaging.system``, for the embedded broker too: its topics are named and behave as Pulsar's."""
MESSAGING_OPERATION: Final = "messaging.operation.name"
MESSAGING_OPERATION_TYPE: Final = "messaging.operation.type"
MESSAGING_DESTINATION: Final = "messaging.destination.name"
MESSAGING_TEMPLATE: Final = "messaging.destination.template"
MESSAGING_TEMPORARY: Final = "messaging.destination.temporary"
MESSAGING_CONVERSATION: Final = "messaging.message.conversation_id"
MESSAGING_CLIENT: Final = "messaging.client.id"

ERROR_TYPE: Final = "error.type"

# dispatch's own attributes.
SERVICE: Final = "dispatch.service"
INSTANCE: Final = "dispatch.instance"
OUTCOME: Final = "dispatch.outcome"
ATTEMPTS: Final = "dispatch.attempts"
ATTEMPT: Final = "dispatch.attempt.number"
ATTEMPT_REASON: Final = "dispatch.attempt.reason"
CHUNKS: Final = "dispatch.chunks"
FIRST_CHUNK: Final = "dispatch.first_chunk.seconds"

# Events on the span of a call.
RETRY_EVENT: Final = "dispatch.retry"
HEDGE_EVENT: Final = "dispatch.hedge"
REJECTED_EVENT: Final = "dispatch.rejected"
REASON: Final = "dispatch.reason"
WAIT: Final = "dispatch.wait.seconds"
