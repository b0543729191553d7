"""What can go wrong with a local broker. Each text names the fix."""

from __future__ import annotations

from collections.abc import Callable

#: Takes one line of progress for a person to read. ``print`` will do.
Report = Callable[[str], None]


def quiet(_line: str) -> None:
    """A ``Report`` that says nothing."""


class LocalBrokerError(RuntimeError):
    """A local broker could not be fetched, started, reached or stopped."""


class LocalBrokerUnavailableError(LocalBrokerError):
    """This machine lacks what a genuine Pulsar needs.

    Attributes:
        problems: what is missing, one short clause each.
    """

    def __init__(self, problems: list[str], fix: str) -> None:
        super().__init__(f"no genuine Pulsar can be started here: {'; '.join(problems)}.\n{fix}")
        self.problems = problems


class PortInUseError(LocalBrokerError):
    """A port that was asked for belongs to somebody else.

    Attributes:
        port: which.
    """

    def __init__(self, port: int, fix: str) -> None:
        super().__init__(f"port {port} on 127.0.0.1 is in use: {fix}")
        self.port = port


class AdminError(LocalBrokerError):
    """Pulsar's admin interface refused a request, or nobody answered.

    Attributes:
        status: the HTTP status, or None if there was no answer at all.
        reason: what the broker said, or why there was no answer.
    """

    def __init__(self, status: int | None, reason: str, request: str = "") -> None:
        what = "no answer" if status is None else f"HTTP {status}"
        fix = ""
        if status in (401, 403):
            fix = "; a token of a super user is needed (DISPATCH_TOKEN; PULSAR_TOKEN for tests and benchmarks)"
        elif status is None:
            fix = (
                "; is the broker running, and is this its admin address "
                "(DISPATCH_ADMIN; PULSAR_ADMIN_URL for tests and benchmarks)?"
            )
        super().__init__(f"{request}: {what}: {reason}{fix}" if request else f"{what}: {reason}{fix}")
        self.status = status
        self.reason = reason
