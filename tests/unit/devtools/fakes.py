"""What several of these tests need: a stand-in for the admin interface, and waiting for the end of any process."""

from __future__ import annotations

import json
import os
import select
import shutil
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import pytest

from dispatch.devtools import localbroker


@dataclass
class Request:
    """One request the stand-in has seen."""

    method: str
    path: str
    headers: dict[str, str]
    body: str


@dataclass
class AdminStandIn:
    """Answers as Pulsar's admin interface does, as far as tenants and namespaces go; or as `scripted` says."""

    url: str = ""
    requests: list[Request] = field(default_factory=list)
    tenants: dict[str, set[str]] = field(default_factory=lambda: {"public": {"public/default"}})
    scripted: dict[str, tuple[int, bytes, dict[str, str]]] = field(default_factory=dict)
    token: str | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, request: Request) -> tuple[int, bytes, dict[str, str]]:
        with self.lock:
            self.requests.append(request)
            key = f"{request.method} {request.path}"
            if key in self.scripted:
                return self.scripted[key]
            if self.token is not None and request.headers.get("authorization") != f"Bearer {self.token}":
                return 401, b'{"reason":"Authentication required"}', {}
            status, value = self._pulsar(request.method, request.path.removeprefix("/admin/v2/").split("/"))
            return status, b"" if value is None else json.dumps(value).encode(), {}

    def _pulsar(self, method: str, path: list[str]) -> tuple[int, Any]:
        match method, path:
            case "GET", ["clusters"]:
                return 200, ["standalone"]
            case "GET", ["tenants"]:
                return 200, sorted(self.tenants)
            case "PUT", ["tenants", tenant]:
                if tenant in self.tenants:
                    return 409, {"reason": "Tenant already exists"}
                self.tenants[tenant] = set()
                return 204, None
            case "GET", ["namespaces", tenant]:
                if tenant not in self.tenants:
                    return 404, {"reason": "Tenant not found"}
                return 200, sorted(self.tenants[tenant])
            case "GET", ["namespaces", tenant, name]:
                return (200, {}) if f"{tenant}/{name}" in self.tenants.get(tenant, set()) else (404, {"reason": "no"})
            case "PUT", ["namespaces", tenant, name]:
                if f"{tenant}/{name}" in self.tenants[tenant]:
                    return 409, {"reason": "Namespace already exists"}
                self.tenants[tenant].add(f"{tenant}/{name}")
                return 204, None
        return 404, {"reason": "no such path"}


class _Server(ThreadingHTTPServer):
    stand_in: AdminStandIn


class _Handler(BaseHTTPRequestHandler):
    def _any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.command, self.path, headers, body)
        status, answer, extra = cast("_Server", self.server).stand_in.answer(request)
        self.send_response(status)
        for name, value in extra.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_PUT = _any  # noqa: N815 - the names http.server looks for

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: pytest's output is for the tests."""


@contextmanager
def serve_admin(port: int = 0) -> Iterator[AdminStandIn]:
    """The stand-in on a port of the loopback, by default a free one."""
    with _Server(("127.0.0.1", port), _Handler) as server:
        server.stand_in = AdminStandIn(url=f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.stand_in
        finally:
            server.shutdown()
            thread.join()


def handshake(service_url: str, token: str | None) -> bytes:
    """What a broker answers to Pulsar's CONNECT with this token: its frame, undecoded."""

    def field(number: int, content: bytes) -> bytes:  # length-delimited; all of ours are shorter than 16 kB
        size = bytes([len(content) & 127 | 128, len(content) >> 7]) if len(content) > 127 else bytes([len(content)])
        return bytes([number << 3 | 2]) + size + content

    connect = field(1, b"test") + b"\x20\x15"  # client_version, protocol_version 21
    if token is not None:
        connect += field(5, b"token") + field(3, token.encode())  # auth_method_name, auth_data
    command = b"\x08\x02" + field(2, connect)  # type CONNECT
    address = urlsplit(service_url)
    with socket.create_connection((str(address.hostname), int(address.port or 0)), timeout=10) as connection:
        connection.sendall(struct.pack(">II", len(command) + 4, len(command)) + command)
        with connection.makefile("rb") as answers:
            [size] = struct.unpack(">I", answers.read(4))
            return answers.read(size)


FAKE_SCRIPT = """\
#!/bin/sh
echo "$$" >> "$(dirname "$0")/pids"
{body}
"""


def write_script(folder: Path, body: str) -> None:
    """Make `folder/pulsar` a shell script which notes its process id in `folder/pids` and does `body`."""
    script = folder / "pulsar"
    script.write_text(FAKE_SCRIPT.format(body=body))
    script.chmod(0o755)


def docker_calls(folder: Path) -> list[str]:
    """What the fake `docker` was asked for, one line a call."""
    return (folder / "calls").read_text().splitlines()


class Ending:
    """Any process, not only a child of ours: whether it has ended by some time. Open it while the process lives."""

    def __init__(self, pid: int) -> None:
        self._descriptor = os.pidfd_open(pid)

    def within(self, seconds: float) -> bool:
        """Wait up to so many seconds for its end; call it once."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        try:
            return bool(poll.poll(seconds * 1000))
        finally:
            os.close(self._descriptor)


class FakeRunner:
    """A `localbroker.run` which runs nothing: it answers by the beginning of the command, and remembers the commands."""

    def __init__(self, **answers: tuple[int, str, str] | OSError) -> None:
        self.answers = {name.replace("_", " "): answer for name, answer in answers.items()}
        self.commands: list[list[str]] = []

    def __call__(self, command: Sequence[str], *, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
        self.commands.append(list(command))
        said = " ".join([os.path.basename(command[0]), *command[1:]])
        for beginning, answer in self.answers.items():
            if said.startswith(beginning):
                if isinstance(answer, OSError):
                    raise answer
                return subprocess.CompletedProcess(command, *answer)
        return subprocess.CompletedProcess(command, 0, "", "")


class Machine:
    """A machine without any command."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        monkeypatch.delenv("JAVA_HOME", raising=False)
        self.has()

    def has(self, *installed: str, **answers: tuple[int, str, str] | OSError) -> FakeRunner:
        """Install these commands alone, which answer so."""
        runner = FakeRunner(**answers)
        self._monkeypatch.setattr(localbroker, "run", runner)
        self._monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}" if name in installed else None)
        return runner
