"""``nats-server``: built once from its Go module, started for a run."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
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


class NatsServer:
    """A ``nats-server`` on a free port, with JetStream in a temporary folder. A context manager: leaving it kills it."""

    def __init__(self) -> None:
        self._program = find_nats_server()
        self._folder = tempfile.TemporaryDirectory(prefix="nats-")
        (self._port,) = find_free_ports(1)
        self.url = f"nats://127.0.0.1:{self._port}"
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
        command = [str(self._program), "-a", "127.0.0.1", "-p", str(self._port), "-js", "-sd", self._folder.name]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        end = time.monotonic() + START_S
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self._port), timeout=1):
                    return
            except OSError:
                if time.monotonic() > end:
                    raise BenchmarkError(f"nats-server does not accept connections on port {self._port}") from None
                time.sleep(0.02)

    def __enter__(self) -> NatsServer:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.kill()
        self._folder.cleanup()
