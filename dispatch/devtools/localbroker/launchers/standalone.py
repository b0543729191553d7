"""A Pulsar standalone broker as a process of this machine."""

from __future__ import annotations

import re
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Literal

from dispatch.devtools.localbroker.admin import Admin
from dispatch.devtools.localbroker.configuration import Configuration, Ports, read_bookie_port
from dispatch.devtools.localbroker.errors import LocalBrokerError, Report, ignore_progress
from dispatch.devtools.localbroker.install.distribution import VERSION, fetch_distribution
from dispatch.devtools.localbroker.launchers.readiness import READY_TIMEOUT, extract_errors, read_tail, wait_until_ready
from dispatch.devtools.localbroker.ports import LOOPBACK, find_free_ports, require_free
from dispatch.devtools.localbroker.processes.process_control import ManagedProcess, spawn
from dispatch.devtools.localbroker.security import SUPER_USER, Security

#: Seconds until a stopping broker is killed. It takes about one.
STOP_GRACE = 10.0

_READINESS_TIMEOUT = 2.0  # seconds for one readiness request
_ATTEMPTS = 3  # another process may bind a free port before the broker does
_INVALIDATED = re.compile(r"Lock on resource /ledgers/available/\S+ was invalidated")
_MANY = 10  # lines about an invalidated registration at the end of the log; one or two are usual


class LocalBroker:
    """A broker with its own data on loopback. As a context manager it stops the broker on exit.

    Created by `LocalBroker.start`. Unless detached, it ends with this process, even if that is killed by SIGKILL. The
    methods block; from asyncio call them in a thread.
    """

    kind: Literal["process"] = "process"

    def __init__(
        self, configuration: Configuration, *, owns_data: bool, detached: bool, report: Report, ready_timeout: float
    ) -> None:
        """Internal: use `start`."""
        self._configuration = configuration
        self._owns_data = owns_data
        self._detached = detached
        self._report = report
        self._ready_timeout = ready_timeout
        self._child: ManagedProcess | None = None

    @classmethod
    def start(
        cls,
        *,
        data_dir: Path | None = None,
        port: int = 0,
        web_port: int = 0,
        security: bool = False,
        detached: bool = False,
        report: Report = ignore_progress,
        ready_timeout: float = READY_TIMEOUT,
        on_spawn: Callable[[LocalBroker], None] | None = None,
    ) -> LocalBroker:
        """Start a broker and wait until it is ready: 6 to 10 s on two cores, longer if it must be downloaded.

        Args:
            data_dir: folder that keeps the data between starts; default: a temporary folder, deleted when the broker
                stops.
            port: port for clients; 0: any free port.
            web_port: port of the admin interface; 0: any free port.
            security: require tokens, authorize by them, and serve TLS as well.
            detached: the broker outlives this process; requires `data_dir`.
            report: receives progress lines.
            ready_timeout: seconds until the start counts as failed.
            on_spawn: called when the process exists, before it is ready.

        Raises:
            LocalBrokerError: the broker did not start; the message names cause and fix.
            PortInUseError: `port` or `web_port` is in use.
        """
        if detached and data_dir is None:
            raise ValueError("a detached broker requires data_dir: a temporary one would never be deleted")
        home = fetch_distribution(report)
        if port and port == web_port:
            raise LocalBrokerError(f"port {port} cannot serve both clients and the admin interface: use two ports")
        for wanted in (port, web_port):
            if wanted:
                require_free(wanted, "use another, or 0 for any free port")
        owns_data = data_dir is None
        folder = (
            Path(tempfile.mkdtemp(prefix="tool-dispatch-pulsar-")).resolve()
            if data_dir is None
            else data_dir.absolute()
        )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            guard = Security.create(folder / "security") if security else None
            report(f"starting Pulsar {VERSION}")
            for attempt in range(1, _ATTEMPTS + 1):
                ports = _choose_ports(folder, port, web_port, tls=security)
                broker = cls(
                    Configuration(home, folder, ports, guard),
                    owns_data=owns_data,
                    detached=detached,
                    report=report,
                    ready_timeout=ready_timeout,
                )
                try:
                    broker._launch(on_spawn)
                except LocalBrokerError:
                    if attempt == _ATTEMPTS or not broker._has_port_conflict():
                        raise
                    report("another process took a port; starting again on others")
                    if owns_data:
                        broker._delete_data()
                else:
                    return broker
        except BaseException:
            if owns_data:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        raise AssertionError("the last attempt returns or raises")

    def __enter__(self) -> LocalBroker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def service_url(self) -> str:
        """Return the URL for clients, without TLS."""
        return f"pulsar://{LOOPBACK}:{self._configuration.ports.broker}"

    @property
    def service_url_tls(self) -> str:
        """Return the URL for clients with TLS; raises `LocalBrokerError` without security."""
        self._security()
        return f"pulsar+ssl://{LOOPBACK}:{self._configuration.ports.tls}"

    @property
    def web_url(self) -> str:
        """Return the URL of the admin interface."""
        return f"http://{LOOPBACK}:{self._configuration.ports.web}"

    @property
    def ca_file(self) -> Path:
        """Return the CA certificate for TLS clients; raises `LocalBrokerError` without security."""
        return self._security().ca_file

    def token(self, subject: str = SUPER_USER) -> str:
        """Create a token for `subject`, by default the superuser; raises `LocalBrokerError` without security."""
        return self._security().token(subject)

    @property
    def super_user_token(self) -> str | None:
        """Return the token of the superuser; None without security."""
        return None if self._configuration.security is None else self.token()

    @property
    def data_dir(self) -> Path:
        """Return the folder of data, logs (`logs/broker.log`) and configuration."""
        return self._configuration.data_dir

    @property
    def log_file(self) -> Path:
        """Return the broker's log file."""
        return self._configuration.log_file

    @property
    def pid(self) -> int:
        """Return the process id of the broker's JVM."""
        return self.process.pid

    @property
    def process(self) -> ManagedProcess:
        """Return the process."""
        if self._child is None:
            raise LocalBrokerError("the broker was not started")
        return self._child

    def is_alive(self) -> bool:
        """Return whether the process exists, ready or not."""
        return self._child is not None and self._child.is_alive()

    def admin(self) -> Admin:
        """Create a client of the admin interface, as the superuser."""
        return Admin(self.web_url, self.super_user_token)

    def kill(self) -> None:
        """Kill the broker (SIGKILL) like a crash; ports and data are kept for `restart`."""
        self.process.kill()

    def restart(self) -> None:
        """Stop the broker if it is running, start it on the same ports and data, and wait until it is ready.

        Raises:
            LocalBrokerError: the broker did not start.
        """
        self.process.terminate(STOP_GRACE)
        self._launch(None)

    def pause(self) -> None:
        """Suspend the broker (SIGSTOP): connections stay open without responses."""
        if not self.process.suspend():
            raise LocalBrokerError("the broker has ended")

    def resume(self) -> None:
        """Resume the broker after `pause` (SIGCONT)."""
        if not self.process.send_signal(signal.SIGCONT):
            raise LocalBrokerError("the broker has ended")

    def stop(self) -> None:
        """Stop the broker (SIGTERM; SIGKILL after 10 s) and delete temporary data. Idempotent."""
        try:
            if self._child is not None:
                self._child.terminate(STOP_GRACE)
        finally:
            if self._owns_data and self.data_dir.exists():
                shutil.rmtree(self.data_dir)

    def _launch(self, on_spawn: Callable[[LocalBroker], None] | None) -> None:
        for attempt in range(1, _ATTEMPTS + 1):
            seconds = self._launch_once(on_spawn)
            if attempt == _ATTEMPTS or not self._fights_over_registration():
                break
            self._report("the killed broker's registration is in the way; starting again without it")
            self.process.terminate(STOP_GRACE)
        self._report(f"Pulsar {VERSION} is ready after {seconds:.1f} s: {self.service_url}")

    def _fights_over_registration(self) -> bool:
        """Return whether the bookie deletes and creates its registration for ever, at the cost of a processor.

        A killed broker leaves the registration in its metadata. The next one deletes it and creates its own. If the
        notification of that deletion arrives only after its own is there, Pulsar 4.0.6 takes that one for lost and replaces
        it, which notifies it again. A broker that is stopped (SIGTERM) removes the registration, even while it does so, and
        the next start has nothing to delete.
        """
        return sum(bool(_INVALIDATED.search(line)) for line in read_tail(self._configuration.log_file)) >= _MANY

    def _launch_once(self, on_spawn: Callable[[LocalBroker], None] | None) -> float:
        """Start the process, and return the seconds until it was ready."""
        configuration = self._configuration
        configuration.write()

        def spawned(child: ManagedProcess) -> None:
            self._child = child
            if on_spawn is not None:
                on_spawn(self)

        try:
            child = spawn(
                configuration.command(),
                log=configuration.console_file,
                environ=configuration.environment(),
                remove=self.data_dir if self._owns_data else None,
                detached=self._detached,
                on_spawn=spawned,
            )
            admin = Admin(self.web_url, self.super_user_token, timeout=_READINESS_TIMEOUT)
            return wait_until_ready(
                admin, child.wait, logs=self._logs(), timeout=self._ready_timeout, report=self._report
            )
        except BaseException:
            if self._child is not None:
                self._child.kill()
            raise

    def _logs(self) -> list[Path]:
        return [self._configuration.console_file, self._configuration.log_file]

    def _has_port_conflict(self) -> bool:
        return "Address already in use" in extract_errors(self._logs())

    def _delete_data(self) -> None:
        for folder in ("meta", "bk", "logs"):
            shutil.rmtree(self.data_dir / folder, ignore_errors=True)

    def _security(self) -> Security:
        if self._configuration.security is None:
            raise LocalBrokerError("the broker was started without security: LocalBroker.start(security=True)")
        return self._configuration.security


def _choose_ports(folder: Path, port: int, web_port: int, *, tls: bool) -> Ports:
    bookie_port = read_bookie_port(folder)
    broker, web, bookie, secure = [free for free in find_free_ports(7) if free not in (port, web_port, bookie_port)][:4]
    if bookie_port is not None:
        require_free(bookie_port, f"the data in {folder} require it; stop the process that uses it, or delete the data")
    return Ports(port or broker, web_port or web, bookie_port or bookie, secure if tls else None)
