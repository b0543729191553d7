"""A Pulsar broker for tests and benchmarks: that of the environment, or a temporary one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from dispatch.devtools.localbroker.admin import DEFAULT_NAMESPACES, Admin, create_namespaces
from dispatch.devtools.localbroker.detached_broker import DEFAULT_WEB_PORT
from dispatch.devtools.localbroker.errors import LocalBrokerError, Report, ignore_progress
from dispatch.devtools.localbroker.launchers.docker import DockerBroker
from dispatch.devtools.localbroker.launchers.launcher_choice import choose_launcher
from dispatch.devtools.localbroker.launchers.standalone import LocalBroker


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
    given = read_environment(environ)
    if given is not None:
        report(f"using {given.service_url} (PULSAR_URL)")
        create_namespaces(given.admin(), namespaces)
        yield given
        return
    if choose_launcher() == "docker":
        with DockerBroker.start(report=report) as container:
            endpoint = Endpoint(container.service_url, container.web_url)
            create_namespaces(endpoint.admin(), namespaces)
            yield endpoint
        return
    with LocalBroker.start(report=report) as broker:
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
