"""A Pulsar broker for tests and benchmarks: that of the environment, or a temporary one, which may be suspended."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from dispatch.devtools.localbroker import (
    DEFAULT_NAMESPACES,
    DEFAULT_WEB_PORT,
    KILL_WAIT,
    Admin,
    DockerBroker,
    LocalBroker,
    LocalBrokerError,
    ManagedProcess,
    Report,
    choose_launcher,
    create_namespaces,
    ignore_progress,
)

_POLL = 0.02  # seconds between two looks at the threads of a process


@dataclass(frozen=True)
class Endpoint:
    """A ready broker with tenant and namespaces.

    Attributes:
        service_url: URL for clients.
        web_url: URL of the admin interface.
        token: authentication token; None if the broker requires none.
        broker: the process, for kill, pause and restart; None for a broker of the environment or in a container.
    """

    service_url: str
    web_url: str
    token: str | None = None
    broker: LocalBroker | None = None

    def admin(self) -> Admin:
        """Create a client of the admin interface."""
        return Admin(self.web_url, self.token)


@contextmanager
def provide_broker(
    report: Report = ignore_progress,
    *,
    namespaces: Iterable[str] = DEFAULT_NAMESPACES,
    environ: Mapping[str, str] = os.environ,
) -> Iterator[Endpoint]:
    """Provide a Pulsar broker inside the context.

    PULSAR_URL selects a running broker (PULSAR_ADMIN_URL: its admin interface, default port 8080 of the same host;
    PULSAR_TOKEN: a token). Otherwise a temporary broker is started; it stops with the context or with this process. Missing
    namespaces and tenants are created.

    Raises:
        LocalBrokerUnavailableError: PULSAR_URL is not set, and this machine cannot start a broker.
        LocalBrokerError: the broker did not start, or its admin interface failed (`AdminError`).
    """
    with ExitStack() as stack:
        endpoint = read_environment(environ)
        if endpoint is not None:
            report(f"using {endpoint.service_url} (PULSAR_URL)")
        elif choose_launcher() == "docker":
            container = stack.enter_context(DockerBroker.start(report=report))
            endpoint = Endpoint(container.service_url, container.web_url)
        else:
            broker = stack.enter_context(LocalBroker.start(report=report))
            endpoint = Endpoint(broker.service_url, broker.web_url, broker=broker)
        create_namespaces(endpoint.admin(), namespaces)
        yield endpoint


def read_environment(environ: Mapping[str, str] = os.environ) -> Endpoint | None:
    """Return the broker of PULSAR_URL without connecting to it; None if it is not set.

    Raises:
        LocalBrokerError: PULSAR_URL is not a service URL.
    """
    service_url = environ.get("PULSAR_URL")
    if not service_url:
        return None
    return Endpoint(
        service_url, environ.get("PULSAR_ADMIN_URL") or _admin_url(service_url), environ.get("PULSAR_TOKEN") or None
    )


def _admin_url(service_url: str) -> str:
    parts = urlsplit(service_url)
    first = parts._replace(netloc=parts.netloc.split(",")[0])  # pulsar://a:6650,b:6650 is one cluster
    if first.scheme not in ("pulsar", "pulsar+ssl") or not first.hostname:
        raise LocalBrokerError(f"PULSAR_URL {service_url!r} is not valid: use for example pulsar://localhost:6650")
    host = f"[{first.hostname}]" if ":" in first.hostname else first.hostname
    return f"http://{host}:{DEFAULT_WEB_PORT}"


def suspend(process: ManagedProcess) -> bool:
    """Send SIGSTOP and wait until all threads are stopped: a running thread continues for milliseconds. Without /proc there
    is no wait. Returns False if the process has ended."""
    if not process.send_signal(signal.SIGSTOP):
        return False
    end = time.monotonic() + KILL_WAIT
    while _has_running_thread(process.pid) and time.monotonic() < end:
        time.sleep(_POLL)
    return process.is_alive()


def _has_running_thread(pid: int) -> bool:
    """Return whether a thread is not stopped, according to /proc."""
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):  # the thread has ended
            if stat.read_text().rpartition(")")[2].split()[0] not in "TtZX":
                return True
    return False
