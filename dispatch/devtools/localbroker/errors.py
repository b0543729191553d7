"""Errors of a local broker. Each message names the fix."""

from __future__ import annotations

from collections.abc import Callable

#: Receives one line of progress for people, such as ``print``.
Report = Callable[[str], None]


def ignore_progress(_line: str) -> None:
    """Discard progress: a ``Report`` without output."""


class LocalBrokerError(RuntimeError):
    """A local broker could not be downloaded, started, reached or stopped."""


class LocalBrokerUnavailableError(LocalBrokerError):
    """This machine cannot start a Pulsar broker.

    Attributes:
        problems: missing requirements, one short clause each.
    """

    def __init__(self, problems: list[str], fix: str) -> None:
        super().__init__(f"no Pulsar broker can be started here: {'; '.join(problems)}.\n{fix}")
        self.problems = problems


class PortInUseError(LocalBrokerError):
    """A requested port is in use by another process.

    Attributes:
        port: the port.
    """

    def __init__(self, port: int, fix: str) -> None:
        super().__init__(f"port {port} on 127.0.0.1 is in use: {fix}")
        self.port = port


class AdminError(LocalBrokerError):
    """Pulsar's admin interface rejected a request, or did not respond.

    Attributes:
        status: HTTP status; None without a response.
        reason: reason given by the broker, or cause of the missing response.
    """

    def __init__(self, status: int | None, reason: str, request: str = "") -> None:
        what = "no response" if status is None else f"HTTP {status}"
        fix = ""
        if status in (401, 403):
            fix = "; use the token of a superuser (DISPATCH_TOKEN; PULSAR_TOKEN for tests and benchmarks)"
        elif status is None:
            fix = (
                "; check that the broker is running and that this is its admin URL "
                "(DISPATCH_ADMIN; PULSAR_ADMIN_URL for tests and benchmarks)"
            )
        super().__init__(f"{request}: {what}: {reason}{fix}" if request else f"{what}: {reason}{fix}")
        self.status = status
        self.reason = reason
