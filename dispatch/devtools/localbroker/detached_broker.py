"""The one detached broker of a user: what `dispatch broker start|stop|status` does."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from dispatch.devtools.localbroker.admin import Admin, prepare
from dispatch.devtools.localbroker.errors import LocalBrokerError, Report, quiet
from dispatch.devtools.localbroker.install.distribution import cache_dir
from dispatch.devtools.localbroker.launchers.docker import (
    DockerBroker,
    container_running,
    remove_volume,
    stop_container,
)
from dispatch.devtools.localbroker.launchers.launcher_choice import choose_backend
from dispatch.devtools.localbroker.launchers.readiness import wait_ready
from dispatch.devtools.localbroker.launchers.standalone import STOP_GRACE, LocalBroker
from dispatch.devtools.localbroker.lock import exclusive, exclusive_now
from dispatch.devtools.localbroker.ports import require_free
from dispatch.devtools.localbroker.processes.process_control import Child

#: Where Pulsar listens everywhere: clients find it without being told.
DEFAULT_PORT = 6650
DEFAULT_WEB_PORT = 8080

CONTAINER = "tool-dispatch-pulsar"
VOLUME = "tool-dispatch-pulsar"

_BUSY = "another 'dispatch broker' is at work; waiting for it"


@dataclass(frozen=True)
class State:
    """The detached broker that runs.

    Attributes:
        kind: a process of this machine, or a container.
        service_url: where clients connect.
        web_url: the admin interface.
        data_dir: the folder of its data and logs; None in a container, whose data are in a volume.
        pid: its process id; None in a container.
        identity: tells the process from a later one of the same id.
        container: the container's name; None for a process.
    """

    kind: Literal["process", "docker"]
    service_url: str
    web_url: str
    data_dir: str | None = None
    pid: int | None = None
    identity: str | None = None
    container: str | None = None

    def alive(self) -> bool:
        """Whether the process or container is there, ready or not."""
        if self.container is not None:
            return container_running(self.container)
        return self.pid is not None and Child(self.pid, self.identity).alive()

    def ended(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for its end; whether it has ended."""
        if self.pid is not None:
            return Child(self.pid, self.identity).wait(timeout)
        time.sleep(timeout)  # nothing tells us of a container's end without a process of its own
        return not self.alive()


def start_detached(
    report: Report = quiet, port: int | None = None, web_port: int | None = None, wipe: bool = False
) -> State:
    """Start a broker that outlives this process, with tenant and namespaces; or return the one that already runs.

    Its data stay from one start to the next. Two calls at once start one broker.

    Args:
        report: takes the progress.
        port: where clients connect; 0 for any free one; None for 6650, or the port of the broker that already runs.
        web_port: where the admin interface is; 0 for any free one; None for 8080, or the port of the one that runs.
        wipe: begin without the data of earlier starts.

    Raises:
        LocalBrokerUnavailableError: this machine lacks what it needs.
        PortInUseError: a port is taken.
        LocalBrokerError: it did not start, or one runs already and `wipe` or another port was asked for.
    """
    with exclusive(_folder() / "lock", waiting=_BUSY, report=report):
        running = _read()
        if running is not None and running.alive():
            if wipe:
                raise LocalBrokerError(
                    f"a broker runs on these data ({running.service_url}): dispatch broker stop, first"
                )
            for wanted, option, url in (
                (port, "--port", running.service_url),
                (web_port, "--web-port", running.web_url),
            ):
                if wanted and urlsplit(url).port != wanted:
                    raise LocalBrokerError(
                        f"a broker runs already at {running.service_url} (admin interface {running.web_url}), so none was "
                        f"started with {option} {wanted}. Use that one, or stop it first: dispatch broker stop"
                    )
            report(f"a broker runs already: {running.service_url}")
            admin = Admin(running.web_url)
            # Its starter may have been killed before it was ready.
            wait_ready(admin, running.ended, logs=_logs(running), report=report)
            prepare(admin)
            return running
        port = DEFAULT_PORT if port is None else port
        web_port = DEFAULT_WEB_PORT if web_port is None else web_port
        for wanted, option in ((port, "--port"), (web_port, "--web-port")):
            if wanted:
                require_free(wanted, f"choose another with {option}, 0 for any free one, or stop what uses it")
        start = _start_process if choose_backend() == "process" else _start_container
        return start(report, port, web_port, wipe)


def stop_detached(report: Report = quiet) -> State | None:
    """Stop the detached broker and keep its data; returns what was stopped, None if none ran.

    Raises:
        LocalBrokerError: it does not stop.
    """
    with exclusive(_folder() / "lock", waiting=_BUSY, report=report):
        running = _read()
        if running is not None and running.alive():
            report(f"stopping {running.service_url}")
            if running.container is not None:
                stop_container(running.container)
            elif running.pid is not None:
                Child(running.pid, running.identity).terminate(STOP_GRACE)
        else:
            running = None
        _state_file().unlink(missing_ok=True)
        return running


def status() -> State | None:
    """The detached broker, or None if none runs. It may still be starting: `Admin(state.web_url).ready()` tells."""
    state = _read()
    if state is None or state.alive():
        return state
    with exclusive_now(_folder() / "lock") as held:
        if held:  # else somebody is just writing a new one
            state = _read()
            if state is not None and not state.alive():
                _state_file().unlink(missing_ok=True)
    return None


def _start_process(report: Report, port: int, web_port: int, wipe: bool) -> State:
    data_dir = _folder() / "data"
    if wipe and data_dir.exists():
        shutil.rmtree(data_dir)

    def describe(broker: LocalBroker) -> State:
        child = broker.child
        return State(broker.kind, broker.service_url, broker.web_url, str(broker.data_dir), child.pid, child.identity)

    new = not data_dir.exists()
    try:
        broker = LocalBroker.start(
            data_dir=data_dir,
            port=port,
            web_port=web_port,
            detached=True,
            report=report,
            # Before it is let go: whatever happens to us, it can be found and stopped.
            on_spawn=lambda broker: _write(describe(broker)),
        )
    except LocalBrokerError as error:
        _state_file().unlink(missing_ok=True)
        if new:
            raise
        raise LocalBrokerError(f"{error}\nIf its kept data are damaged: dispatch broker start --wipe") from error
    except BaseException:
        _state_file().unlink(missing_ok=True)
        raise
    prepare(broker.admin())
    return describe(broker)


def _start_container(report: Report, port: int, web_port: int, wipe: bool) -> State:
    if wipe:
        remove_volume(VOLUME)
    broker = DockerBroker.start(
        name=CONTAINER, port=port, web_port=web_port, volume=VOLUME, detached=True, report=report
    )
    state = State(broker.kind, broker.service_url, broker.web_url, container=broker.name)
    _write(state)
    prepare(Admin(broker.web_url))
    return state


def _folder() -> Path:
    return cache_dir() / "broker"


def _state_file() -> Path:
    return _folder() / "state.json"


def _logs(state: State) -> list[Path]:
    return [] if state.data_dir is None else [Path(state.data_dir) / "logs" / "broker.log"]


def _write(state: State) -> None:
    """Whole or not at all: `status` reads without the lock."""
    temporary = _state_file().with_suffix(".new")
    temporary.write_text(json.dumps(dataclasses.asdict(state), indent=2) + "\n")
    temporary.replace(_state_file())


def _read() -> State | None:
    """What was written last; None if nothing was, or nothing we understand (another version, a damaged file)."""
    try:
        return State(**json.loads(_state_file().read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None
