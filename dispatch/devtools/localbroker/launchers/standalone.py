"""A genuine Pulsar standalone as a process of this machine."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Literal

from dispatch.devtools.localbroker.admin import Admin
from dispatch.devtools.localbroker.configuration import Configuration, Ports, kept_bookie_port
from dispatch.devtools.localbroker.errors import LocalBrokerError, Report, quiet
from dispatch.devtools.localbroker.install.distribution import VERSION, fetch_distribution
from dispatch.devtools.localbroker.launchers.readiness import READY_TIMEOUT, excerpt, wait_ready
from dispatch.devtools.localbroker.ports import LOOPBACK, free_ports, require_free
from dispatch.devtools.localbroker.processes.process_control import Child, spawn
from dispatch.devtools.localbroker.security import SUPER_USER, Security

#: Seconds a broker is given to stop by itself. It takes about one.
STOP_GRACE = 10.0

_ANSWER_TIMEOUT = 2.0  # seconds for one look whether it is ready
_ATTEMPTS = 3  # a free port may be taken by another between the look and the bind


class LocalBroker:
    """One broker with data of its own, on the loopback. A context manager: leaving it stops the broker.

    Make it with `LocalBroker.start`. Unless it was started detached, it ends with this process, even after a kill -9 of
    it. The methods block; from asyncio call them in a thread (any thread: the broker does not depend on it).
    """

    kind: Literal["process"] = "process"

    def __init__(
        self, configuration: Configuration, *, owns_data: bool, detached: bool, report: Report, ready_timeout: float
    ) -> None:
        """Not for users: see `start`."""
        self._configuration = configuration
        self._owns_data = owns_data
        self._detached = detached
        self._report = report
        self._ready_timeout = ready_timeout
        self._child: Child | None = None

    @classmethod
    def start(
        cls,
        *,
        data_dir: Path | None = None,
        port: int = 0,
        web_port: int = 0,
        security: bool = False,
        detached: bool = False,
        report: Report = quiet,
        ready_timeout: float = READY_TIMEOUT,
        on_spawn: Callable[[LocalBroker], None] | None = None,
    ) -> LocalBroker:
        """Start a broker and wait until it is ready: 6 to 10 s on two cores, more if it must be fetched first.

        Args:
            data_dir: a folder which keeps the data from one broker to the next. By default a temporary one, deleted
                when the broker stops.
            port: where clients connect; 0 for any free one.
            web_port: where the admin interface is; 0 for any free one.
            security: ask for tokens and authorize by them, and serve TLS as well.
            detached: let it live on when this process ends; needs a `data_dir`.
            report: takes the progress.
            ready_timeout: seconds until it counts as failed.
            on_spawn: called once the process is there, long before it is ready.

        Raises:
            LocalBrokerError: it did not start; the text says why, and what to do.
            PortInUseError: `port` or `web_port` is taken.
        """
        if detached and data_dir is None:
            raise ValueError("a detached broker needs a data_dir: nobody would delete a temporary one")
        home = fetch_distribution(report)
        if port and port == web_port:
            raise LocalBrokerError(f"one port cannot serve both clients and the admin interface: {port}; take two")
        for wanted in (port, web_port):
            if wanted:
                require_free(wanted, "take another, or 0 for any free one")
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
                    if attempt == _ATTEMPTS or not broker._lost_a_port():
                        raise
                    report("a free port was taken by somebody else meanwhile; starting again on others")
                    if owns_data:
                        broker._forget_data()
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
        """Where clients connect, without TLS."""
        return f"pulsar://{LOOPBACK}:{self._configuration.ports.broker}"

    @property
    def service_url_tls(self) -> str:
        """Where clients connect with TLS; `LocalBrokerError` for a broker started without security."""
        self._security()
        return f"pulsar+ssl://{LOOPBACK}:{self._configuration.ports.tls}"

    @property
    def web_url(self) -> str:
        """The admin interface."""
        return f"http://{LOOPBACK}:{self._configuration.ports.web}"

    @property
    def ca_file(self) -> Path:
        """The certificate a TLS client must trust; `LocalBrokerError` for a broker started without security."""
        return self._security().ca_file

    def token(self, subject: str = SUPER_USER) -> str:
        """A token for `subject`, by default the super user; `LocalBrokerError` for a broker started without security."""
        return self._security().token(subject)

    @property
    def super_user_token(self) -> str | None:
        """The token that may do everything, or None where no token is asked for."""
        return None if self._configuration.security is None else self.token()

    @property
    def data_dir(self) -> Path:
        """The folder of its data, logs (`logs/broker.log`) and configuration."""
        return self._configuration.data_dir

    @property
    def log_file(self) -> Path:
        """What the broker logs."""
        return self._configuration.log_file

    @property
    def pid(self) -> int:
        """The process id of the broker (of its Java, not of a wrapper)."""
        return self.child.pid

    @property
    def child(self) -> Child:
        """The process."""
        if self._child is None:
            raise LocalBrokerError("the broker was not started")
        return self._child

    def alive(self) -> bool:
        """Whether its process is there, ready or not."""
        return self._child is not None and self._child.alive()

    def admin(self) -> Admin:
        """Its admin interface, as the super user."""
        return Admin(self.web_url, self.super_user_token)

    def kill(self) -> None:
        """End it at once, as a crash would (SIGKILL); ports and data stay its own for `restart`."""
        self.child.kill()

    def restart(self) -> None:
        """Start it again on the same ports and data, and wait until it is ready. One that runs is stopped first.

        Raises:
            LocalBrokerError: it did not start.
        """
        self.child.terminate(STOP_GRACE)
        self._launch(None)

    def pause(self) -> None:
        """Make it hang (SIGSTOP): connections stay open, nothing is answered from now on."""
        if not self.child.stop():
            raise LocalBrokerError("the broker has ended")

    def resume(self) -> None:
        """Let it go on after `pause` (SIGCONT)."""
        if not self.child.signal(signal.SIGCONT):
            raise LocalBrokerError("the broker has ended")

    def stop(self) -> None:
        """Stop it (SIGTERM; SIGKILL after 10 s), and delete its data if they are temporary. Safe to call again."""
        try:
            if self._child is not None:
                self._child.terminate(STOP_GRACE)
        finally:
            if self._owns_data and self.data_dir.exists():
                shutil.rmtree(self.data_dir)

    def _launch(self, on_spawn: Callable[[LocalBroker], None] | None) -> None:
        configuration = self._configuration
        configuration.write()

        def spawned(child: Child) -> None:
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
            admin = Admin(self.web_url, self.super_user_token, timeout=_ANSWER_TIMEOUT)
            seconds = wait_ready(admin, child.wait, logs=self._logs(), timeout=self._ready_timeout, report=self._report)
        except BaseException:
            if self._child is not None:
                self._child.kill()
            raise
        self._report(f"Pulsar {VERSION} is ready after {seconds:.1f} s: {self.service_url}")

    def _logs(self) -> list[Path]:
        return [self._configuration.console_file, self._configuration.log_file]

    def _lost_a_port(self) -> bool:
        return "Address already in use" in excerpt(self._logs())

    def _forget_data(self) -> None:
        for folder in ("meta", "bk", "logs"):
            shutil.rmtree(self.data_dir / folder, ignore_errors=True)

    def _security(self) -> Security:
        if self._configuration.security is None:
            raise LocalBrokerError("the broker was started without security: LocalBroker.start(security=True)")
        return self._configuration.security


def _choose_ports(folder: Path, port: int, web_port: int, *, tls: bool) -> Ports:
    kept = kept_bookie_port(folder)
    broker, web, bookie, secure = [free for free in free_ports(7) if free not in (port, web_port, kept)][:4]
    if kept is not None:
        require_free(kept, f"the data in {folder} belong to it; stop who uses it, or delete the data")
    return Ports(port or broker, web_port or web, kept or bookie, secure if tls else None)
