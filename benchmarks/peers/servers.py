"""Servers of compared systems: ``nats-server``, built once from its Go module, and ``redis-server``, of the machine."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from benchmarks.harness.processes import BenchmarkError
from dispatch.devtools.localbroker import cache_dir, find_free_ports

NATS_VERSION = "v2.15.3"
START_S = 10.0


def find_nats_server() -> Path:
    """Return the path of ``nats-server``; the first time it is built, which takes a minute.

    Raises:
        BenchmarkError: there is no Go, or the build failed.
    """
    folder = cache_dir() / f"nats-server-{NATS_VERSION}"
    program = folder / "nats-server"
    if program.exists():
        return program
    go = shutil.which("go")
    if go is None:
        raise BenchmarkError("nats-server is built with Go, which is not installed; on Debian: apt-get install golang")
    command = [go, "install", f"github.com/nats-io/nats-server/v2@{NATS_VERSION}"]
    built = subprocess.run(command, env={**os.environ, "GOBIN": str(folder)}, capture_output=True, text=True)
    if built.returncode != 0:
        raise BenchmarkError(f"nats-server could not be built:\n{built.stderr[-2_000:]}")
    return program


def find_redis_server() -> Path:
    """Return the path of ``redis-server``.

    Raises:
        BenchmarkError: it is not installed.
    """
    found = shutil.which("redis-server")
    if found is None:
        raise BenchmarkError("redis-server is not installed; on Debian: apt-get install redis-server")
    return Path(found)


class LocalServer:
    """A server on a free port of loopback, with a temporary folder. A context manager: leaving it kills the server.

    Args:
        scheme: of its URL.
        program: its path.
        options: of its command line, from its port and folder.

    Raises:
        BenchmarkError: it does not accept connections.
    """

    def __init__(self, scheme: str, program: Path, options: Callable[[int, str], Sequence[str]]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix=f"{scheme}-")
        (self._port,) = find_free_ports(1)
        self._command = [str(program), *options(self._port, self._folder.name)]
        self.url = f"{scheme}://127.0.0.1:{self._port}"
        self.restart()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.wait()

    def restart(self) -> None:
        """Start it, on the same port.

        Raises:
            BenchmarkError: it does not accept connections.
        """
        silent = subprocess.DEVNULL
        self._process = subprocess.Popen(
            self._command, stdin=silent, stdout=silent, stderr=silent, start_new_session=True
        )
        end = time.monotonic() + START_S
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self._port), timeout=1):
                    return
            except OSError:
                if time.monotonic() > end:
                    self.kill()
                    raise BenchmarkError(f"{self._command[0]} does not accept connections") from None
                time.sleep(0.02)

    def __enter__(self) -> LocalServer:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.kill()
        self._folder.cleanup()


def _nats_options(port: int, folder: str) -> Sequence[str]:
    return ("-a", "127.0.0.1", "-p", str(port), "-sd", folder)


def _redis_options(port: int, folder: str) -> Sequence[str]:
    return ("--bind", "127.0.0.1", "--port", str(port), "--dir", folder, "--appendonly", "yes")


SERVERS: Mapping[str, Callable[[], LocalServer]] = {
    "nats": lambda: LocalServer("nats", find_nats_server(), _nats_options),
    "redis": lambda: LocalServer("redis", find_redis_server(), _redis_options),
}
"""Starts a server by its name in :attr:`benchmarks.peers.system.System.SERVER`."""
