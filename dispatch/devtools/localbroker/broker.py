"""The detached broker of a user, for `dispatch broker start|stop|status`."""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from dispatch.devtools.localbroker.launch import (
    DEFAULT_NAMESPACES,
    STOP_GRACE,
    Admin,
    DockerBroker,
    LocalBroker,
    cache_dir,
    choose_launcher,
    create_namespaces,
    is_container_running,
    remove_volume,
    stop_container,
    wait_until_ready,
)
from dispatch.devtools.localbroker.processes import (
    LocalBrokerError,
    ManagedProcess,
    Report,
    hold_lock,
    ignore_progress,
    read_state,
    require_free,
    write_state,
)

#: Pulsar's default ports.
DEFAULT_PORT = 6650
DEFAULT_WEB_PORT = 8080

CONTAINER = "tool-dispatch-pulsar"
VOLUME = "tool-dispatch-pulsar"

_BUSY = "another 'dispatch broker' is running; waiting for it"


@dataclass(frozen=True)
class DetachedBroker:
    """A running detached broker.

    Attributes:
        kind: process of this machine, or container.
        service_url: URL for clients.
        web_url: URL of the admin interface.
        data_dir: folder of data and logs; None for a container, whose data are in a volume.
        pid: process id; None for a container.
        identity: distinguishes the process from a later one with the same id.
        container: name of the container; None for a process.
    """

    kind: Literal["process", "docker"]
    service_url: str
    web_url: str
    data_dir: str | None = None
    pid: int | None = None
    identity: str | None = None
    container: str | None = None

    def is_alive(self) -> bool:
        """Return whether the process or container exists, ready or not."""
        if self.container is not None:
            return is_container_running(self.container)
        return self.pid is not None and ManagedProcess(self.pid, self.identity).is_alive()

    def wait_for_end(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for the end; return whether it has ended."""
        if self.pid is not None:
            return ManagedProcess(self.pid, self.identity).wait(timeout)
        time.sleep(timeout)  # waiting for a container's end would need another process
        return not self.is_alive()


def start_detached(
    report: Report = ignore_progress, port: int | None = None, web_port: int | None = None, wipe: bool = False
) -> DetachedBroker:
    """Start a broker that outlives this process, with tenant and namespaces; or return the running one.

    Data are kept between starts. Concurrent calls start one broker.

    Args:
        report: receives progress lines.
        port: port for clients; 0: any free port; None: 6650, or the port of the running broker.
        web_port: port of the admin interface; 0: any free port; None: 8080, or the port of the running broker.
        wipe: delete the data of earlier starts.

    Raises:
        LocalBrokerUnavailableError: this machine cannot start a broker.
        PortInUseError: a port is in use.
        LocalBrokerError: the broker did not start, or a broker is running and `wipe` or another port was requested.
    """
    with hold_lock(_folder() / "lock", waiting=_BUSY, report=report):
        running = status()
        if running is not None:
            if wipe:
                raise LocalBrokerError(
                    f"a broker is running on these data ({running.service_url}): stop it first with dispatch broker stop"
                )
            for wanted, option, url in (
                (port, "--port", running.service_url),
                (web_port, "--web-port", running.web_url),
            ):
                if wanted and urlsplit(url).port != wanted:
                    raise LocalBrokerError(
                        f"a broker is already running at {running.service_url} (admin interface {running.web_url}); none "
                        f"was started with {option} {wanted}. Use it, or stop it first with dispatch broker stop"
                    )
            report(f"a broker is already running: {running.service_url}")
            admin = Admin(running.web_url)
            # The process that started it may have been killed before it was ready.
            wait_until_ready(admin.is_ready, running.wait_for_end, logs=_logs(running), report=report)
            create_namespaces(admin)
            return running
        port = DEFAULT_PORT if port is None else port
        web_port = DEFAULT_WEB_PORT if web_port is None else web_port
        for wanted, option in ((port, "--port"), (web_port, "--web-port")):
            if wanted:
                require_free(
                    wanted, f"choose another with {option} (0: any free port), or stop the process that uses it"
                )
        start = _start_process if choose_launcher() == "process" else _start_container
        return start(report, port, web_port, wipe)


def stop_detached(report: Report = ignore_progress) -> DetachedBroker | None:
    """Stop the detached broker and keep its data; return it, or None if none was running.

    Raises:
        LocalBrokerError: the broker does not stop.
    """
    with hold_lock(_folder() / "lock", waiting=_BUSY, report=report):
        running = status()
        if running is not None:
            report(f"stopping {running.service_url}")
            if running.container is not None:
                stop_container(running.container)
            elif running.pid is not None:
                ManagedProcess(running.pid, running.identity).terminate(STOP_GRACE)
        _state_file().unlink(missing_ok=True)
        return running


def status() -> DetachedBroker | None:
    """Return the running detached broker or None. It may still be starting: see `Admin.is_ready`."""
    state = _read()
    return state if state is not None and state.is_alive() else None


def _start_process(report: Report, port: int, web_port: int, wipe: bool) -> DetachedBroker:
    data_dir = _folder() / "data"
    if wipe and data_dir.exists():
        shutil.rmtree(data_dir)

    def describe(broker: LocalBroker) -> DetachedBroker:
        child = broker.process
        return DetachedBroker(
            broker.kind, broker.service_url, broker.web_url, str(broker.data_dir), child.pid, child.identity
        )

    new = not data_dir.exists()
    try:
        broker = LocalBroker.start(
            data_dir=data_dir,
            port=port,
            web_port=web_port,
            detached=True,
            report=report,
            # Written before the process is detached, so that it can always be found and stopped.
            on_spawn=lambda broker: _write(describe(broker)),
        )
    except LocalBrokerError as error:
        _state_file().unlink(missing_ok=True)
        if new:
            raise
        raise LocalBrokerError(f"{error}\nIf its stored data are damaged: dispatch broker start --wipe") from error
    except BaseException:
        _state_file().unlink(missing_ok=True)
        raise
    create_namespaces(broker.admin())
    return describe(broker)


def _start_container(report: Report, port: int, web_port: int, wipe: bool) -> DetachedBroker:
    if wipe:
        remove_volume(VOLUME)
    broker = DockerBroker.start(
        name=CONTAINER, port=port, web_port=web_port, volume=VOLUME, detached=True, report=report
    )
    state = DetachedBroker(broker.kind, broker.service_url, broker.web_url, container=broker.name)
    _write(state)
    create_namespaces(Admin(broker.web_url))
    return state


def _folder() -> Path:
    return cache_dir() / "broker"


def _state_file() -> Path:
    return _folder() / "state.json"


def _logs(state: DetachedBroker) -> list[Path]:
    return [] if state.data_dir is None else [Path(state.data_dir) / "logs" / "broker.log"]


def _write(state: DetachedBroker) -> None:
    write_state(_state_file(), dataclasses.asdict(state))


def _read() -> DetachedBroker | None:
    """Read the state; None if there is none, or it is damaged or of another version."""
    try:
        return DetachedBroker(**(read_state(_state_file()) or {}))
    except TypeError:
        return None


# A Pulsar broker for tests and benchmarks: that of the environment, or a temporary one.


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
