"""A Pulsar broker in a Docker container, for machines without Java or Maven."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Literal

from dispatch.devtools.localbroker.admin import Admin
from dispatch.devtools.localbroker.configuration import MEMORY
from dispatch.devtools.localbroker.errors import LocalBrokerError, Report, ignore_progress
from dispatch.devtools.localbroker.install.distribution import VERSION
from dispatch.devtools.localbroker.launchers.readiness import READY_TIMEOUT, wait_until_ready
from dispatch.devtools.localbroker.ports import LOOPBACK, find_free_ports
from dispatch.devtools.localbroker.processes.command import Runner, run
from dispatch.devtools.localbroker.processes.process_control import ManagedProcess, spawn

#: Image published by Apache Pulsar.
IMAGE = f"apachepulsar/pulsar:{VERSION}"

_PULL_LIMIT = 1800.0  # seconds: more than a gigabyte over a slow connection
_STOP_GRACE = 10  # seconds

# The broker tells clients its own port, so it must be the same inside and outside the container.
_SCRIPT = (
    "bin/apply-config-from-env.py conf/standalone.conf && "
    f"exec bin/pulsar standalone --no-functions-worker --no-stream-storage --advertised-address {LOOPBACK}"
)


def is_engine_available(runner: Runner = run) -> bool:
    """Return whether the `docker` command exists and its engine responds."""
    try:
        return runner(["docker", "info", "--format", "{{.ServerVersion}}"]).returncode == 0
    except OSError:
        return False


def build_run_command(name: str, port: int, web_port: int, *, volume: str | None = None) -> list[str]:
    """Build the `docker run` command for a broker on loopback ports; data in `volume`, or deleted with the container."""
    return [
        *("docker", "run", "--detach", "--rm", "--name", name),
        *("--publish", f"{LOOPBACK}:{port}:{port}", "--publish", f"{LOOPBACK}:{web_port}:{web_port}"),
        *("--env", f"PULSAR_PREFIX_brokerServicePort={port}", "--env", f"PULSAR_PREFIX_webServicePort={web_port}"),
        *("--env", f"PULSAR_MEM={MEMORY}"),
        *(() if volume is None else ("--volume", f"{volume}:/pulsar/data")),
        *(IMAGE, "sh", "-c", _SCRIPT),
    ]


def is_container_running(name: str, runner: Runner = run) -> bool:
    """Return whether the container is running."""
    try:
        result = runner(["docker", "inspect", "--format", "{{.State.Running}}", name])
    except OSError:
        return False
    return result.returncode == 0 and result.stdout.strip() == "true"


def stop_container(name: str, runner: Runner = run) -> None:
    """Stop the container, killing it after 10 s; it deletes itself. Does nothing if it does not exist."""
    result = runner(["docker", "stop", "-t", str(_STOP_GRACE), name])
    if result.returncode != 0 and is_container_running(name, runner):
        raise LocalBrokerError(f"docker cannot stop {name}: {result.stderr.strip()}; try: docker rm --force {name}")


def remove_volume(name: str, runner: Runner = run) -> None:
    """Delete a volume with its data, if it exists."""
    result = runner(["docker", "volume", "rm", "--force", name])
    if result.returncode != 0:
        raise LocalBrokerError(f"docker cannot delete the volume {name}: {result.stderr.strip()}")


class DockerBroker:
    """A broker in a container. As a context manager it stops the container on exit.

    Attributes:
        name: name of the container.
        service_url: URL for clients.
        web_url: URL of the admin interface.
    """

    kind: Literal["docker"] = "docker"

    _follower: ManagedProcess  # `docker logs --follow`
    _folder: Path  # of its log

    def __init__(self, name: str, port: int, web_port: int, runner: Runner) -> None:
        """Internal: use `start`."""
        self.name = name
        self.service_url = f"pulsar://{LOOPBACK}:{port}"
        self.web_url = f"http://{LOOPBACK}:{web_port}"
        self._runner = runner

    @classmethod
    def start(
        cls,
        *,
        name: str | None = None,
        port: int = 0,
        web_port: int = 0,
        volume: str | None = None,
        detached: bool = False,
        report: Report = ignore_progress,
        ready_timeout: float = READY_TIMEOUT,
        runner: Runner = run,
    ) -> DockerBroker:
        """Start a container and wait until its broker is ready.

        Args:
            name: name of the container; default: random.
            port: port for clients; 0: any free port.
            web_port: port of the admin interface; 0: any free port.
            volume: volume for the data; default: data are deleted with the container.
            detached: the container outlives this process.
            report: receives progress lines.
            ready_timeout: seconds until the start counts as failed.
            runner: runs `docker` commands.

        Raises:
            LocalBrokerError: the broker did not start; the message names the cause.
        """
        name = name or f"tool-dispatch-pulsar-{secrets.token_hex(4)}"
        free, free_web = [free for free in find_free_ports(4) if free not in (port, web_port)][:2]
        broker = cls(name, port or free, web_port or free_web, runner)
        _pull(report, runner)
        report(f"starting Pulsar {VERSION} in Docker")
        result = runner(build_run_command(name, port or free, web_port or free_web, volume=volume))
        if result.returncode != 0:
            raise LocalBrokerError(f"docker cannot run {IMAGE}: {result.stderr.strip()}")
        remove = ["docker", "rm", "--force", name]
        folder = Path(tempfile.mkdtemp(prefix="tool-dispatch-docker-"))
        log = folder / "console.log"
        try:
            # Ends with the container, and removes the container if this process is killed.
            follower = spawn(
                ["docker", "logs", "--follow", name],
                log=log,
                remove=folder,
                on_owner_death=None if detached else remove,
            )
            try:
                seconds = wait_until_ready(
                    Admin(broker.web_url, timeout=2.0), follower.wait, logs=[log], timeout=ready_timeout, report=report
                )
            except BaseException:
                follower.kill()
                raise
        except BaseException:
            runner(remove)
            shutil.rmtree(folder, ignore_errors=True)
            raise
        broker._follower = follower
        broker._folder = folder
        if detached:
            broker._delete_log()
        report(f"Pulsar {VERSION} is ready after {seconds:.1f} s: {broker.service_url}")
        return broker

    def __enter__(self) -> DockerBroker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the container. Idempotent."""
        try:
            stop_container(self.name, self._runner)
        finally:
            self._delete_log()

    def _delete_log(self) -> None:
        self._follower.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


def _pull(report: Report, runner: Runner) -> None:
    if runner(["docker", "image", "inspect", IMAGE]).returncode == 0:
        return
    report(f"downloading the image {IMAGE}: a few minutes, once")
    result = runner(["docker", "pull", "--quiet", IMAGE], timeout=_PULL_LIMIT)
    if result.returncode != 0:
        raise LocalBrokerError(f"docker cannot download {IMAGE}: {result.stderr.strip()}")
