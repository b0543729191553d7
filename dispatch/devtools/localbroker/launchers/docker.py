"""The same Pulsar in a container, where there is a Docker engine but no Java or Maven."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Literal

from dispatch.devtools.localbroker.admin import Admin
from dispatch.devtools.localbroker.configuration import MEMORY
from dispatch.devtools.localbroker.errors import LocalBrokerError, Report, quiet
from dispatch.devtools.localbroker.install.distribution import VERSION
from dispatch.devtools.localbroker.launchers.readiness import READY_TIMEOUT, wait_ready
from dispatch.devtools.localbroker.ports import LOOPBACK, free_ports
from dispatch.devtools.localbroker.processes.command import Runner, run
from dispatch.devtools.localbroker.processes.process_control import Child, spawn

#: Apache Pulsar's own image.
IMAGE = f"apachepulsar/pulsar:{VERSION}"

_PULL_LIMIT = 1800.0  # seconds: more than a gigabyte over a slow line
_STOP_GRACE = 10  # seconds

# Clients are told to connect to the broker's own port, so it has to be the same inside and outside.
_SCRIPT = (
    "bin/apply-config-from-env.py conf/standalone.conf && "
    f"exec bin/pulsar standalone --no-functions-worker --no-stream-storage --advertised-address {LOOPBACK}"
)


def engine_available(runner: Runner = run) -> bool:
    """Whether there is a `docker` command and an engine answers it."""
    try:
        return runner(["docker", "info", "--format", "{{.ServerVersion}}"]).returncode == 0
    except OSError:
        return False


def run_command(name: str, port: int, web_port: int, *, volume: str | None = None) -> list[str]:
    """The `docker run` for a broker on these ports of the loopback; its data in `volume`, or gone with the container."""
    return [
        *("docker", "run", "--detach", "--rm", "--name", name),
        *("--publish", f"{LOOPBACK}:{port}:{port}", "--publish", f"{LOOPBACK}:{web_port}:{web_port}"),
        *("--env", f"PULSAR_PREFIX_brokerServicePort={port}", "--env", f"PULSAR_PREFIX_webServicePort={web_port}"),
        *("--env", f"PULSAR_MEM={MEMORY}"),
        *(() if volume is None else ("--volume", f"{volume}:/pulsar/data")),
        *(IMAGE, "sh", "-c", _SCRIPT),
    ]


def container_running(name: str, runner: Runner = run) -> bool:
    """Whether a container of this name runs."""
    try:
        answer = runner(["docker", "inspect", "--format", "{{.State.Running}}", name])
    except OSError:
        return False
    return answer.returncode == 0 and answer.stdout.strip() == "true"


def stop_container(name: str, runner: Runner = run) -> None:
    """Stop the container, by force after 10 s; it deletes itself. Nothing happens if it is gone."""
    answer = runner(["docker", "stop", "-t", str(_STOP_GRACE), name])
    if answer.returncode != 0 and container_running(name, runner):
        raise LocalBrokerError(f"docker cannot stop {name}: {answer.stderr.strip()}; try: docker rm --force {name}")


def remove_volume(name: str, runner: Runner = run) -> None:
    """Delete a volume and the data in it, if it is there."""
    answer = runner(["docker", "volume", "rm", "--force", name])
    if answer.returncode != 0:
        raise LocalBrokerError(f"docker cannot delete the volume {name}: {answer.stderr.strip()}")


class DockerBroker:
    """One broker in a container. A context manager: leaving it stops the container.

    Attributes:
        name: the container's name.
        service_url: where clients connect.
        web_url: the admin interface.
    """

    kind: Literal["docker"] = "docker"

    _follower: Child  # `docker logs --follow`
    _folder: Path  # of its log

    def __init__(self, name: str, port: int, web_port: int, runner: Runner) -> None:
        """Not for users: see `start`."""
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
        report: Report = quiet,
        ready_timeout: float = READY_TIMEOUT,
        runner: Runner = run,
    ) -> DockerBroker:
        """Start a container and wait until its broker is ready.

        Args:
            name: the container's name; a random one by default.
            port: where clients connect; 0 for any free one.
            web_port: where the admin interface is; 0 for any free one.
            volume: keeps the data. By default they go with the container.
            detached: let it live on when this process ends.
            report: takes the progress.
            ready_timeout: seconds until it counts as failed.
            runner: runs the `docker` commands.

        Raises:
            LocalBrokerError: it did not start; the text says why.
        """
        name = name or f"tool-dispatch-pulsar-{secrets.token_hex(4)}"
        free, free_web = [free for free in free_ports(4) if free not in (port, web_port)][:2]
        broker = cls(name, port or free, web_port or free_web, runner)
        _pull(report, runner)
        report(f"starting Pulsar {VERSION} in Docker")
        answer = runner(run_command(name, port or free, web_port or free_web, volume=volume))
        if answer.returncode != 0:
            raise LocalBrokerError(f"docker cannot run {IMAGE}: {answer.stderr.strip()}")
        remove = ["docker", "rm", "--force", name]
        folder = Path(tempfile.mkdtemp(prefix="tool-dispatch-docker-"))
        log = folder / "console.log"
        try:
            # Ends with the container; and takes the container along if we die without a word.
            follower = spawn(
                ["docker", "logs", "--follow", name],
                log=log,
                remove=folder,
                on_owner_death=None if detached else remove,
            )
            try:
                seconds = wait_ready(
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
            broker._forget()
        report(f"Pulsar {VERSION} is ready after {seconds:.1f} s: {broker.service_url}")
        return broker

    def __enter__(self) -> DockerBroker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the container. Safe to call again."""
        try:
            stop_container(self.name, self._runner)
        finally:
            self._forget()

    def _forget(self) -> None:
        self._follower.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


def _pull(report: Report, runner: Runner) -> None:
    if runner(["docker", "image", "inspect", IMAGE]).returncode == 0:
        return
    report(f"fetching the image {IMAGE}: a few minutes, once")
    answer = runner(["docker", "pull", "--quiet", IMAGE], timeout=_PULL_LIMIT)
    if answer.returncode != 0:
        raise LocalBrokerError(f"docker cannot fetch {IMAGE}: {answer.stderr.strip()}")
