"""A genuine Pulsar for a test run or a benchmark: the one of the environment, else one of our own."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from dispatch.devtools.localbroker.admin import DEFAULT_NAMESPACES, Admin, prepare
from dispatch.devtools.localbroker.errors import LocalBrokerError, Report, quiet
from dispatch.devtools.localbroker.launchers.docker import DockerBroker
from dispatch.devtools.localbroker.launchers.launcher_choice import choose_backend
from dispatch.devtools.localbroker.launchers.standalone import LocalBroker


@dataclass(frozen=True)
class Endpoint:
    """A broker that is ready, with tenant and namespaces.

    Attributes:
        service_url: where clients connect.
        web_url: the admin interface.
        token: what to authenticate with; None where no token is asked for.
        broker: the process, to be killed, paused and restarted; None for one of the environment or in a container.
    """

    service_url: str
    web_url: str
    token: str | None = None
    broker: LocalBroker | None = None

    def admin(self) -> Admin:
        """Its admin interface."""
        return Admin(self.web_url, self.token)


@contextmanager
def obtain(
    report: Report = quiet,
    *,
    namespaces: Iterable[str] = DEFAULT_NAMESPACES,
    environ: Mapping[str, str] = os.environ,
) -> Iterator[Endpoint]:
    """A genuine Pulsar for as long as the context lasts.

    PULSAR_URL takes a broker that runs (PULSAR_ADMIN_URL: its admin interface, by default port 8080 of the same host;
    PULSAR_TOKEN: a token). Otherwise a temporary one is started, and stopped with the context, or with this process
    should that end first. In both cases the namespaces, and their tenants, are made where they are missing.

    Raises:
        LocalBrokerUnavailableError: nothing in the environment, and this machine lacks what it needs to start one.
        LocalBrokerError: it did not start, or (`AdminError`) its admin interface refuses or does not answer.
    """
    given = from_environment(environ)
    if given is not None:
        report(f"using {given.service_url} (PULSAR_URL)")
        prepare(given.admin(), namespaces)
        yield given
        return
    if choose_backend() == "docker":
        with DockerBroker.start(report=report) as container:
            endpoint = Endpoint(container.service_url, container.web_url)
            prepare(endpoint.admin(), namespaces)
            yield endpoint
        return
    with LocalBroker.start(report=report) as broker:
        endpoint = Endpoint(broker.service_url, broker.web_url, broker=broker)
        prepare(endpoint.admin(), namespaces)
        yield endpoint


def from_environment(environ: Mapping[str, str] = os.environ) -> Endpoint | None:
    """The broker which PULSAR_URL names, unasked whether it answers; None if it is not set.

    Raises:
        LocalBrokerError: PULSAR_URL is no such address.
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
        raise LocalBrokerError(f"PULSAR_URL is {service_url!r}, and should look like pulsar://localhost:6650")
    host = f"[{first.hostname}]" if ":" in first.hostname else first.hostname
    return f"http://{host}:8080"
