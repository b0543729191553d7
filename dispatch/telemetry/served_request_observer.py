"""The observer of served requests: what a tool service reports, without knowing whether metrics or traces listen.

A tool server has one :class:`ServerObserver`, which gives a :class:`ServedRequestObserver` for each request that it runs.
These classes observe nothing, and so do their objects at the end of this module, which are used where telemetry is off: the
serving path has no conditions on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, Protocol

import msgspec

NO_PROPERTIES: Final[Mapping[str, str]] = {}

RunResult = Literal["ok", "error", "stopped"]
"""The end of a run of the tool: a result; the tool's error; or it was cancelled, or its caller's deadline passed."""


class ServerNames(msgspec.Struct, frozen=True):
    """The names of a tool server in metrics and traces.

    Attributes:
        service: name of the service.
        instance: id of the instance.
        topic: the request topic.
        replies: template of the callers' reply topics.
        responses: the service's response topic.
    """

    service: str
    instance: str
    topic: str
    replies: str
    responses: str


class ObservedServer(Protocol):
    """A tool server as a scrape reads it, on any thread."""

    meter_label: str
    refused: dict[str, int]

    @property
    def running(self) -> int:
        """Requests being run."""

    @property
    def queued(self) -> int:
        """Requests that wait for a place."""

    @property
    def abandoned_threads(self) -> int:
        """Threads that still run a tool although its request has ended."""

    @property
    def session_table(self) -> Any:
        """Sessions of dispatchers, a :class:`~dispatch.protocol.session_table.SessionTable`; None: it has none."""

    def counts(self) -> Mapping[str, int]:
        """Return the counts since the start, by the names in :mod:`dispatch.telemetry.metrics.service_metrics`."""


class ObservedRequest(Protocol):
    """A request as its observers read it."""

    @property
    def id(self) -> str:
        """The request's id, which its caller knows too."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers with the caller's trace context, among others."""

    @property
    def reply_topic(self) -> str:
        """The topic that the reply goes to."""


class ServedRequestObserver:
    """Receives the events of one request from the start of its run; ``on_end`` is the last one."""

    __slots__ = ()

    def on_reply(self, *, is_last: bool) -> Mapping[str, str]:
        """Observe a message of the reply before it is sent, and return its trace context, as W3C's headers."""
        return NO_PROPERTIES

    def on_error(self, error_type: str) -> None:
        """Observe that the request ends in an error of that type."""

    def on_tool_end(self, result: RunResult, seconds: float) -> None:
        """Observe the end of the tool's run after ``seconds``. A duplicate, which runs no tool, has none."""

    def on_end(self) -> None:
        """Observe the end of the request."""


class ServerObserver:
    """Observes one tool server from its start to its close."""

    def attach(self, server: ObservedServer) -> None:
        """Read the counts and gauges of ``server`` at each scrape."""

    def start_request(self, request: ObservedRequest, now: float) -> ServedRequestObserver:
        """Begin to observe a request in the task that runs it: the request's trace context becomes the task's.

        Args:
            request: the request.
            now: seconds, on the loop's clock.
        """
        return NULL_SERVED_REQUEST

    def close(self) -> None:
        """End the observation: gauges are no longer read, counts stay."""


NULL_SERVED_REQUEST = ServedRequestObserver()
NULL_SERVER = ServerObserver()
