"""A local Pulsar broker for development, tests and benchmarks: a process of this machine, or a Docker container.

`dispatch broker start|stop|status` uses `start_detached`, `stop_detached` and `status`; tests and benchmarks start a
`LocalBroker` or `DockerBroker` (`benchmarks/harness/broker.py`). Standard library only.
"""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import ipaddress
import json
import os
import random
import re
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Any, Literal, Self
from urllib.parse import quote, urlsplit

# Errors. Each message names the fix.


#: Receives one line of progress for people, such as ``print``.
Report = Callable[[str], None]


def ignore_progress(_line: str) -> None:
    """Discard progress: a ``Report`` without output."""


class LocalBrokerError(RuntimeError):
    """A local broker could not be downloaded, started, reached or stopped."""


class LocalBrokerUnavailableError(LocalBrokerError):
    """This machine cannot start a Pulsar broker.

    Attributes:
        problems: missing requirements, one short clause each.
    """

    def __init__(self, problems: list[str], fix: str) -> None:
        super().__init__(f"no Pulsar broker can be started here: {'; '.join(problems)}.\n{fix}")
        self.problems = problems


class AdminError(LocalBrokerError):
    """Pulsar's admin interface rejected a request, or did not respond.

    Attributes:
        status: HTTP status; None without a response.
        reason: reason given by the broker, or cause of the missing response.
    """

    def __init__(self, status: int | None, reason: str, request: str = "") -> None:
        what = "no response" if status is None else f"HTTP {status}"
        fix = ""
        if status in (401, 403):
            fix = "; use the token of a superuser (DISPATCH_TOKEN; PULSAR_TOKEN for tests and benchmarks)"
        elif status is None:
            fix = (
                "; check that the broker is running and that this is its admin URL "
                "(--admin; PULSAR_ADMIN_URL for tests and benchmarks)"
            )
        super().__init__(f"{request}: {what}: {reason}{fix}" if request else f"{what}: {reason}{fix}")
        self.status = status
        self.reason = reason


# Management of child processes: start, identify, signal, terminate.


KILL_WAIT = 10.0  # seconds to wait for a killed process: far more than the kernel needs
_POLL = 0.02  # seconds between polls of a process that is not a child
_WATCHDOG = Path(__file__).with_name("watchdog.py")


def process_identity(pid: int) -> str | None:
    """Return an identity that distinguishes the process from a later one with the same id: its start time. None if it has
    ended.

    A zombie has ended; a process whose first thread has ended has not.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return None if Path("/proc/self/stat").exists() else _identity_from_ps(pid)
    fields = stat.rpartition(")")[2].split()  # the preceding name may contain blanks and brackets
    state, threads, start_time = fields[0], int(fields[17]), fields[19]
    return None if state == "X" or (state == "Z" and threads <= 1) else f"{boot}:{start_time}"


def _identity_from_ps(pid: int) -> str | None:
    listing = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)],
        env={**os.environ, "LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    state, _, start_time = listing.stdout.strip().partition(" ")
    return None if not state or state.startswith("Z") else " ".join(start_time.split())


class ManagedProcess:
    """A process that was started here, or is known by id and identity.

    Attributes:
        pid: process id.
        identity: see `process_identity`; None if it ended before it could be determined.
    """

    def __init__(self, pid: int, identity: str | None, watchdog: subprocess.Popen[bytes] | None = None) -> None:
        self.pid = pid
        self.identity = identity
        self._watchdog = watchdog

    @property
    def watchdog_pid(self) -> int | None:
        """Return the id of the watchdog that ends this process with its parent; None for a detached process."""
        return None if self._watchdog is None else self._watchdog.pid

    def is_alive(self) -> bool:
        """Return whether the process exists, running or suspended."""
        return self.identity is not None and process_identity(self.pid) == self.identity

    def send_signal(self, number: signal.Signals) -> bool:
        """Send a signal; return False if the process has ended."""
        if not self.is_alive():
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for the end; return whether it has ended."""
        end = time.monotonic() + timeout
        if self._watchdog is not None:
            with suppress(subprocess.TimeoutExpired):
                self._watchdog.wait(timeout)
        while self.is_alive():
            if time.monotonic() >= end:
                return False
            time.sleep(_POLL)
        return True

    def kill(self) -> bool:
        """Kill the process (SIGKILL) and wait for its end; return whether it was running. Idempotent."""
        was_running = self.send_signal(signal.SIGKILL)
        if not self.wait(KILL_WAIT):
            raise LocalBrokerError(f"process {self.pid} does not end after SIGKILL: inspect it with ps")
        self._release()
        return was_running

    def terminate(self, grace: float) -> None:
        """Terminate the process (SIGTERM); kill it (SIGKILL) after `grace` seconds."""
        if self.send_signal(signal.SIGTERM):
            self.send_signal(signal.SIGCONT)  # a suspended process does not handle SIGTERM
            self.wait(grace)
        self.kill()

    def _release(self) -> None:
        if self._watchdog is not None:
            self._watchdog.wait(KILL_WAIT)
            if self._watchdog.stdin is not None:
                self._watchdog.stdin.close()

    @property
    def returncode(self) -> int | None:
        """Return the exit status (128 + n for signal n); None while it is running, and for a detached process."""
        return None if self._watchdog is None else self._watchdog.poll()


def spawn(
    command: Sequence[str],
    *,
    log: Path,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    remove: Path | None = None,
    on_owner_death: Sequence[str] | None = None,
    detached: bool = False,
    on_spawn: Callable[[ManagedProcess], None] | None = None,
) -> ManagedProcess:
    """Start `command` in its own session, so that Ctrl-C on this terminal does not reach it.

    Args:
        command: program and arguments.
        log: file to which stdout and stderr are appended.
        environ: environment; default: that of this process.
        cwd: working folder; default: that of this process.
        remove: folder to delete if this process ends first.
        on_owner_death: command to run if this process ends first.
        detached: the process outlives this one; otherwise it is killed with it, even after SIGKILL.
        on_spawn: called with the process first; a detached process is released when this has returned.

    Raises:
        LocalBrokerError: the process could not be started.
    """
    job = {
        "owner": os.getpid(),
        "command": list(command),
        "remove": None if remove is None else str(remove),
        "on_owner_death": None if on_owner_death is None else list(on_owner_death),
        "detached": detached,
    }
    with log.open("ab") as output:
        watchdog = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_WATCHDOG), json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            env=None if environ is None else dict(environ),
            cwd=cwd,
            start_new_session=True,
        )
    child: ManagedProcess | None = None
    try:
        if watchdog.stdin is None or watchdog.stdout is None:
            raise AssertionError("both pipes were requested")
        with watchdog.stdout:
            line = watchdog.stdout.readline()
        if not line:
            raise LocalBrokerError(f"{command[0]} could not be started: see {log}")
        pid = int(line)
        child = ManagedProcess(pid, process_identity(pid), None if detached else watchdog)
        if on_spawn is not None:
            on_spawn(child)
        if detached:
            with suppress(BrokenPipeError):  # the process and its watchdog have ended
                watchdog.stdin.write(b"k")
                watchdog.stdin.close()
            watchdog.wait(KILL_WAIT)
    except BaseException:
        _stop_watchdog(watchdog)
        if child is not None:
            child.kill()  # the watchdog may have released it
        raise
    return child


def _stop_watchdog(watchdog: subprocess.Popen[bytes]) -> None:
    """Stop a watchdog: when its pipe closes, it kills its process and exits."""
    if watchdog.stdin is not None:
        with suppress(BrokenPipeError):
            watchdog.stdin.close()
    try:
        watchdog.wait(KILL_WAIT)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(watchdog.pid, signal.SIGKILL)
        watchdog.wait(KILL_WAIT)


# Running of short commands.


def run(command: Sequence[str], *, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Run a command; after `timeout` seconds it is killed with status 124."""
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"{command[0]} did not finish within {timeout:g} s")


# Mutual exclusion of processes by an advisory lock on a file.


@contextmanager
def hold_lock(path: Path, *, waiting: str = "", report: Report = ignore_progress) -> Iterator[None]:
    """Hold the lock on `path` inside the context. The file is created if missing and never deleted: a deletion would allow
    two holders.

    While another process holds the lock, it reports `waiting` once and waits. The kernel releases the lock when its holder
    ends.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(waiting or f"waiting for {path}")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


# The state of a detached broker or cluster, in a file.


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write a JSON object atomically: readers hold no lock."""
    temporary = path.with_suffix(f".{time.monotonic_ns()}")
    temporary.write_text(json.dumps(state, indent=2) + "\n")
    temporary.replace(path)


def read_state(path: Path) -> dict[str, Any] | None:
    """Read a JSON object; None if there is none."""
    try:
        state = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return state if isinstance(state, dict) else None


# Free loopback ports for local servers.


LOOPBACK = "127.0.0.1"
_LOWEST = 15_000
_HIGHEST = 32_767
_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def find_free_ports(count: int) -> tuple[int, ...]:
    """Find `count` different loopback ports without a listener.

    They are below the ephemeral range: while a broker is down, a reconnecting client could otherwise get the broker's port
    as its source port and prevent the broker's restart.
    """
    with ExitStack() as stack:
        found: list[int] = []
        for port in random.sample(range(_LOWEST, _highest() + 1), k=200):
            candidate = stack.enter_context(_tcp_socket())
            if _bind(candidate, port):
                found.append(port)
            if len(found) == count:
                return tuple(found)
    raise LocalBrokerError(f"{count} free ports could not be found on this machine: stop programs that listen")


def require_free(port: int, fix: str) -> None:
    """Raise `LocalBrokerError` with `fix` in its message unless a server can listen on loopback `port`."""
    if not 0 < port < 65_536:
        raise LocalBrokerError(f"{port} is not a TCP port: use 1 to 65535")
    with _tcp_socket() as probe:
        if not _bind(probe, port):
            raise LocalBrokerError(f"port {port} on {LOOPBACK} is in use: {fix}")


def is_listening(port: int) -> bool:
    """Return whether a server accepts connections on loopback `port`."""
    with _tcp_socket() as probe:
        return probe.connect_ex((LOOPBACK, port)) == 0


def loopback_interface() -> str:
    """Return the name of the loopback interface: `lo` on Linux, `lo0` on macOS and BSD."""
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if name in ("lo", "lo0")), "lo")


def _highest() -> int:
    try:
        first_ephemeral = int(_RANGE_FILE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _HIGHEST
    # The machine's ephemeral range includes these ports: no better choice exists.
    return min(_HIGHEST, first_ephemeral - 1) if first_ephemeral > _LOWEST + 1_000 else _HIGHEST


def _tcp_socket() -> socket.socket:
    probe = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    # Like the broker: ignores connections in TIME_WAIT, conflicts with a listener.
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return probe


def _bind(probe: socket.socket, port: int) -> bool:
    try:
        probe.bind((LOOPBACK, port))
    except PermissionError as error:
        raise LocalBrokerError(f"this user has no permission for port {port}: use one above 1023") from error
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    return True


# Client of Pulsar's admin interface over HTTP, with the calls that dispatch needs; pulsar-client has none.


#: The namespaces of TrustGraph, which dispatch uses as well.
DEFAULT_NAMESPACES = ("tg/request", "tg/response", "tg/flow", "tg/notify")

_MAX_RESPONSE_BYTES = 16 * 1024 * 1024  # statistics of a topic with thousands of consumers are smaller


class Admin:
    """Client of one broker's admin interface. It keeps no connection open and is thread-safe.

    Args:
        web_url: for instance `http://127.0.0.1:8080`.
        token: token of a superuser or tenant administrator, if the broker requires one.
        ca_file: trusted CA certificates for https, in PEM; default: those of the system.
        timeout: seconds for one request. 10: a local broker responds in milliseconds, a busy one in a second.

    Every request raises `AdminError` if the broker rejects it or does not respond.
    """

    def __init__(
        self, web_url: str, token: str | None = None, *, ca_file: str | None = None, timeout: float = 10.0
    ) -> None:
        parts = urlsplit(web_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{web_url!r} is not an admin URL: use for example http://127.0.0.1:8080")
        self.web_url = web_url.rstrip("/")
        self._token = token
        self._timeout = timeout
        handlers: list[urllib.request.BaseHandler] = [_SameMethodRedirect()]
        if _is_loopback(parts.hostname):
            handlers.append(urllib.request.ProxyHandler({}))  # a proxy cannot reach loopback
        if parts.scheme == "https":
            handlers.append(urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=ca_file)))
        self._opener = urllib.request.build_opener(*handlers)

    def is_ready(self) -> bool:
        """Return whether the broker serves its default namespace; never raises `AdminError`."""
        try:
            self.request("GET", "namespaces/public/default")
        except AdminError:
            return False
        return True

    def clusters(self) -> list[str]:
        """List the clusters; a local broker has one, `standalone`."""
        return _names(self.request("GET", "clusters"))

    def namespaces(self, tenant: str) -> list[str]:
        """List the tenant's namespaces as `tenant/namespace`; raises `AdminError` 404 for an unknown tenant."""
        return _names(self.request("GET", f"namespaces/{_segment(tenant)}"))

    def topics(self, namespace: str) -> list[str]:
        """List the full names of the topics of `tenant/namespace`, without Pulsar's system topics."""
        return sorted(_names(self.request("GET", f"namespaces/{_namespace(namespace)}/topics?mode=ALL")))

    def stats(self, topic: str) -> dict[str, Any]:
        """Return the statistics of a topic, given by its full name, as the broker reports them.

        For a non-persistent topic, `publishers[].msgDropRate`, `subscriptions.*.msgDropRate` and
        `subscriptions.*.consumers[].availablePermits` are the only indication of silently dropped messages.
        """
        kind, separator, name = topic.partition("://")
        parts = name.split("/", 2)
        if not separator or kind not in ("persistent", "non-persistent") or len(parts) != 3 or not all(parts):
            raise ValueError(f"{topic!r} is not a full topic name: use for example non-persistent://tg/request/joke")
        response = self.request("GET", f"{kind}/{'/'.join(_segment(part) for part in parts)}/stats")
        if not isinstance(response, dict):
            raise AdminError(200, "the response is not a JSON object", f"GET {kind} stats")
        return response

    def unload(self, namespace: str) -> None:
        """Unload `tenant/namespace`: its topics close, and each bundle of them is assigned to a broker again."""
        self.request("PUT", f"namespaces/{_namespace(namespace)}/unload")

    def ensure_tenant(self, tenant: str) -> bool:
        """Create the tenant, allowed on every cluster, if it does not exist; return whether it was created."""
        try:
            self.namespaces(tenant)  # needs no superuser, unlike the list of tenants
        except AdminError as error:
            if error.status != 404:
                raise
        else:
            return False
        return self._create(f"tenants/{_segment(tenant)}", {"adminRoles": [], "allowedClusters": self.clusters()})

    def ensure_namespace(self, namespace: str) -> bool:
        """Create the namespace `tenant/namespace` if it does not exist; return whether it was created."""
        path = _namespace(namespace)
        if namespace in self.namespaces(namespace.partition("/")[0]):
            return False
        return self._create(f"namespaces/{path}", {})

    def _create(self, path: str, body: dict[str, Any]) -> bool:
        try:
            self.request("PUT", path, body)
        except AdminError as error:
            if error.status == 409:  # created concurrently
                return False
            raise
        return True

    def request(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Return the JSON value that the broker answers; None: an empty answer.

        Args:
            method: of HTTP.
            path: below `/admin/v2/`, or from the root with `/` before it; quoted.
            body: sent as JSON.

        Raises:
            AdminError: the broker refused the request, or did not answer with JSON.
        """
        url = f"{self.web_url}{path}" if path.startswith("/") else f"{self.web_url}/admin/v2/{path}"
        request = urllib.request.Request(url, method=method, headers={"Accept": "application/json"})
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        if self._token is not None:
            request.add_header("Authorization", f"Bearer {self._token}")
        what = f"{method} {url}"
        try:
            with self._opener.open(request, timeout=self._timeout) as response:
                raw = response.read(_MAX_RESPONSE_BYTES + 1)
        except urllib.error.HTTPError as error:
            with error:
                raise AdminError(error.code, _reason(error), what) from error
        except (OSError, HTTPException) as error:
            cause = error.reason if isinstance(error, urllib.error.URLError) else error
            raise AdminError(None, str(cause) or type(cause).__name__, what) from error
        if len(raw) > _MAX_RESPONSE_BYTES:
            raise AdminError(200, f"the response is longer than {_MAX_RESPONSE_BYTES} bytes", what)
        if not raw:
            return None
        try:
            return json.loads(raw)
        except ValueError as error:
            raise AdminError(200, "the response is not JSON: check that this is Pulsar's admin URL", what) from error


def create_namespaces(admin: Admin, namespaces: Iterable[str] = DEFAULT_NAMESPACES) -> list[str]:
    """Create missing namespaces (`tenant/namespace`) and tenants; return the created ones.

    The broker creates topics on use, but not tenants and namespaces. Idempotent, also from several processes at once.
    """
    wanted = list(dict.fromkeys(namespaces))
    created = [
        tenant for tenant in dict.fromkeys(name.partition("/")[0] for name in wanted) if admin.ensure_tenant(tenant)
    ]
    return created + [name for name in wanted if admin.ensure_namespace(name)]


class _SameMethodRedirect(urllib.request.HTTPRedirectHandler):
    """Follows redirects (307) to the broker that owns a namespace for all methods; urllib follows only GET."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        if code not in (307, 308) or req.get_method() == "GET":
            return super().redirect_request(req, fp, code, msg, headers, newurl)
        return urllib.request.Request(
            newurl, data=req.data, headers=req.headers, method=req.get_method(), unverifiable=True
        )


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        text = error.read(4096).decode(errors="replace")
    except (OSError, HTTPException):
        text = ""
    try:
        text = str(json.loads(text)["reason"])
    except (ValueError, KeyError, TypeError):
        if "<" in text:  # an HTML page adds nothing to the status
            text = ""
    return " ".join(text.split())[:500] or str(error.reason)


def _names(response: Any) -> list[str]:
    if not isinstance(response, list):
        raise AdminError(200, "the response is not a JSON list: check that this is Pulsar's admin URL")
    return [str(name) for name in response]


def _namespace(name: str) -> str:
    tenant, separator, namespace = name.partition("/")
    if not tenant or not separator or not namespace or "/" in namespace:
        raise ValueError(f"{name!r} is not a namespace: use for example tg/request")
    return f"{_segment(tenant)}/{_segment(namespace)}"


def _segment(text: str) -> str:
    return quote(text, safe="")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# Waiting for a starting broker to become ready, or to end.


#: Seconds until a start counts as failed. It takes 7 to 10 s on two idle cores; 26 s were seen on two cores with five
#: busy processes. A broker that ends is noticed immediately, so a long limit costs nothing.
READY_TIMEOUT = 120.0

_POLL_INTERVAL = 0.1  # seconds
_PROGRESS_INTERVAL = 5.0  # seconds
_TAIL = 64 * 1024  # bytes of a log that are read
_EXCERPT = 12  # lines
_ERROR_MARKERS = (" ERROR ", "Caused by:", "Error:", "Exception in")


def wait_until_ready(
    is_ready: Callable[[], bool],
    wait_for_end: Callable[[float], bool],
    *,
    logs: list[Path],
    what: str = "the broker",
    timeout: float = READY_TIMEOUT,
    report: Report = ignore_progress,
    clock: Callable[[], float] = time.monotonic,
) -> float:
    """Wait until a starting process is ready; return the seconds it took.

    Args:
        is_ready: returns whether it is.
        wait_for_end: waits up to the given seconds for its end, and returns whether it has ended.
        logs: logs that explain a failure.
        what: name in errors.
        timeout: seconds.
        report: receives progress lines.
        clock: monotonic seconds.

    Raises:
        LocalBrokerError: it ended or was not ready in time; the message contains the last lines of the logs.
    """
    start = clock()
    next_report = start + _PROGRESS_INTERVAL
    while not is_ready():
        if wait_for_end(_POLL_INTERVAL):
            raise LocalBrokerError(f"{what} ended during its start:\n{extract_errors(logs)}")
        now = clock()
        if now - start > timeout:
            raise LocalBrokerError(f"{what} was not ready within {timeout:g} s:\n{extract_errors(logs)}")
        if now >= next_report:
            report(f"still starting: {now - start:.0f} s so far")
            next_report = now + _PROGRESS_INTERVAL
    return clock() - start


def extract_errors(logs: list[Path]) -> str:
    """Extract the last error lines of each log, or its last lines if it has no errors."""
    parts = []
    for log in logs:
        lines = read_tail(log)
        errors = [line for line in lines if any(word in line for word in _ERROR_MARKERS)]
        shown = (errors or lines)[-_EXCERPT:]
        if shown:
            parts.append(f"--- {log}\n" + "\n".join(line[:300] for line in shown))
    return "\n".join(parts) or "(no log output)"


def read_tail(log: Path) -> list[str]:
    """Read the lines in the last 64 KiB of a file; empty if it does not exist."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            return file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return []


# Pulsar's server distribution: cache folder and download.


#: Version of all tests and measurements: the long-term support line. Another one for `make test-versions`.
VERSION = os.environ.get("DISPATCH_PULSAR_VERSION") or "4.0.6"

MAVEN_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
_FETCH_LIMIT = 1800.0  # seconds: 233 MiB over a slow connection

#: Unpacks the distribution into an empty folder.
Unpack = Callable[[Path, Report], None]


def cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the cache folder of dispatch.

    DISPATCH_CACHE, else XDG_CACHE_HOME/tool-dispatch, else ~/.cache/tool-dispatch.
    """
    if environ.get("DISPATCH_CACHE"):
        return Path(environ["DISPATCH_CACHE"]).expanduser().absolute()
    if environ.get("XDG_CACHE_HOME"):
        return Path(environ["XDG_CACHE_HOME"]).absolute() / "tool-dispatch"
    return Path.home() / ".cache" / "tool-dispatch"


def find_distribution() -> Path | None:
    """Return the unpacked distribution in the cache, or None."""
    home = _home()
    return home if _is_complete(home) else None


def fetch_distribution(report: Report = ignore_progress, *, unpack: Unpack | None = None) -> Path:
    """Return the unpacked distribution; download it with Maven into the cache if needed.

    It is unpacked into a temporary folder and renamed, so an interrupted run leaves no partial distribution; of two
    concurrent runs the second waits. The first run takes about half a minute and at most 500 MiB of disk.

    Args:
        report: receives progress lines.
        unpack: replaces `unpack_with_maven`.

    Raises:
        LocalBrokerError: Maven failed; the message contains its last lines.
    """
    found = find_distribution()
    if found is not None:
        return found
    home = _home()
    waiting = f"another process is downloading Pulsar {VERSION}; waiting for it"
    with hold_lock(home.parent / "lock", waiting=waiting, report=report):
        found = find_distribution()
        if found is not None:
            return found
        for stale in home.parent.glob(".unpack-*"):  # remains of a killed run: the lock excludes a running one
            shutil.rmtree(stale, ignore_errors=True)
        temporary = Path(tempfile.mkdtemp(dir=home.parent, prefix=".unpack-"))
        try:
            (unpack or unpack_with_maven)(temporary, report)
            if not _is_complete(temporary / home.name):
                raise LocalBrokerError(f"the download contains no complete {home.name}")
            _move(temporary / home.name, home)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return home


def unpack_with_maven(folder: Path, report: Report, version: str = VERSION) -> None:
    """Download a distribution with Maven (233 MiB, stored in its repository) and unpack it into `folder`."""
    report(f"downloading Pulsar {version} with Maven: 233 MiB, once, about half a minute")
    artifact = f"org.apache.pulsar:pulsar-server-distribution:{version}:tar.gz:bin"
    run_maven(
        [f"{MAVEN_PLUGIN}:unpack", f"-Dartifact={artifact}", f"-DoutputDirectory={folder}"], folder, report, version
    )


def run_maven(arguments: Sequence[str], folder: Path, report: Report, version: str = VERSION) -> None:
    """Run Maven to download what Pulsar `version` needs into `folder`, which is deleted if this process ends meanwhile.

    Raises:
        LocalBrokerError: Maven failed; the message contains its last lines.
    """
    # A separate folder: Maven reads a pom.xml of its working folder and writes files there.
    working_folder = Path(tempfile.mkdtemp(dir=folder, prefix="maven-"))
    log = working_folder / "maven.log"
    start = time.monotonic()
    child = spawn(["mvn", "-B", "-q", *arguments], log=log, cwd=working_folder, remove=folder)
    try:
        while not child.wait(_PROGRESS_INTERVAL):
            elapsed = time.monotonic() - start
            if elapsed > _FETCH_LIMIT:
                raise LocalBrokerError(f"Maven did not download Pulsar within {_FETCH_LIMIT:.0f} s: check the network")
            report(f"downloading Pulsar {version}: {elapsed:.0f} s so far")
    finally:
        child.kill()
    if child.returncode != 0:
        last_lines = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise LocalBrokerError(
            f"Maven could not download Pulsar {version} (exit status {child.returncode}):\n{last_lines}\n"
            "Check the network and Maven's settings.xml (mirrors, proxies), or use a running Pulsar broker "
            "(DISPATCH_BROKER; PULSAR_URL for tests and benchmarks)."
        )
    report(f"downloaded Pulsar {version} in {time.monotonic() - start:.0f} s")


def _home() -> Path:
    return cache_dir() / "pulsar" / f"apache-pulsar-{VERSION}"


def _is_complete(home: Path) -> bool:
    return all((home / part).exists() for part in ("bin/pulsar", "conf/standalone.conf", "lib"))


def _move(source: Path, target: Path) -> None:
    """Rename a folder unless a concurrent run has done so (locks do not work on some network file systems)."""
    try:
        source.rename(target)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY) or not _is_complete(target):
            raise LocalBrokerError(f"cannot move Pulsar to {target}: {error.strerror}; delete that folder") from error


# Configuration files, command line and environment of a local broker. Pure, except for `write`.


#: Sufficient for tens of thousands of 1 kB messages per second; 430 MiB resident after the start.
MEMORY = "-Xms256m -Xmx512m -XX:MaxDirectMemorySize=768m"

# G1 starts faster than the script's ZGC on two cores; PerfDisableSharedMem leaves no file in the temporary folder.
JVM_OPTIONS = "-XX:+UseG1GC -XX:+PerfDisableSharedMem"

# Variables of the start script that would change the broker unintentionally.
_FOREIGN = re.compile(r"(PULSAR|BOOKIE|BK|JAVA_TOOL|_JAVA|JDK_JAVA)_|(OPTS|CLASSPATH|ZK_OPTS)$")

# Bounded files, because a broker may run for weeks; immediate flush, because the last lines explain a crash.
_LOGGING = """\
<?xml version="1.0" encoding="UTF-8"?>
<Configuration status="ERROR" name="dispatch">
  <Appenders>
    <RollingFile name="File" fileName="${sys:pulsar.log.dir}/broker.log"
                 filePattern="${sys:pulsar.log.dir}/broker.%i.log" immediateFlush="true">
      <PatternLayout pattern="%d{ISO8601_OFFSET_DATE_TIME_HHMM} [%t] %-5level %logger{36} - %msg%n"/>
      <Policies><SizeBasedTriggeringPolicy size="16 MB"/></Policies>
      <DefaultRolloverStrategy max="3"/>
    </RollingFile>
  </Appenders>
  <Loggers>
    <Root level="info"><AppenderRef ref="File"/></Root>
  </Loggers>
</Configuration>
"""

_COOKIE_PORT = re.compile(r'^bookieHost: "[^"]*:(\d+)"', re.MULTILINE)


@dataclass(frozen=True)
class Ports:
    """Loopback ports of one broker; `tls` serves clients if the settings have a certificate."""

    broker: int
    web: int
    bookie: int
    tls: int


def apply_settings(text: str, settings: Mapping[str, str]) -> str:
    """Apply settings to a properties file: replace existing keys in place, append new ones.

    Comments and order are preserved; commented-out keys are ignored; a repeated key is replaced everywhere.
    """
    missing = dict(settings)
    lines = []
    for line in text.splitlines():
        key, separator, _ = line.partition("=")
        key = key.strip()
        if separator and key in settings and not line.lstrip().startswith("#"):
            missing.pop(key, None)
            lines.append(f"{key}={settings[key]}")
        else:
            lines.append(line)
    lines.extend(f"{key}={value}" for key, value in missing.items())
    return "\n".join(lines) + "\n"  # Pulsar's file has no final newline


def read_bookie_port(data_dir: Path) -> int | None:
    """Read the bookie port of existing data: the address is part of a bookie's identity. None for new data."""
    try:
        cookie = (data_dir / "bk" / "current" / "VERSION").read_text()
    except OSError:
        return None
    found = _COOKIE_PORT.search(cookie)
    return int(found[1]) if found else None


@dataclass(frozen=True)
class Configuration:
    """Configuration of one broker: distribution, data folder, ports, and further settings."""

    home: Path
    data_dir: Path
    ports: Ports
    further: Mapping[str, str] = field(default_factory=dict)

    @property
    def log_file(self) -> Path:
        """Return the broker's log: at most four files of 16 MB."""
        return self.data_dir / "logs" / "broker.log"

    @property
    def console_file(self) -> Path:
        """Return the file with the output of the start script and the JVM."""
        return self.data_dir / "logs" / "console.log"

    def settings(self) -> dict[str, str]:
        """Return the settings that differ from Pulsar's `standalone.conf`."""
        return {
            "brokerServicePort": str(self.ports.broker),
            "webServicePort": str(self.ports.web),
            "bindAddress": LOOPBACK,
            "webSocketServiceEnabled": "false",
            # Without these two the bookie listens on every interface at a random port.
            "listeningInterface": loopback_interface(),
            "allowEphemeralPorts": "true",
            # A graceful stop waits for a share of this: 5 s with the default of a minute, 1 s with this value.
            "brokerShutdownTimeoutMs": "3000",
            # By default the journal keeps five files of 2 GB.
            "journalMaxSizeMB": "256",
            "journalMaxBackups": "1",
            "logSizeLimit": str(256 * 1024 * 1024),
            **({"brokerServicePortTls": str(self.ports.tls)} if "tlsCertificateFilePath" in self.further else {}),
            **self.further,
        }

    def write(self) -> None:
        """Write the configuration files, create the broker's folders, and rename the logs of the previous start.

        Raises:
            LocalBrokerError: a path contains white space, which Pulsar's start script does not support.
        """
        write_configuration(self.home, self.data_dir, "standalone.conf", self.settings())

    def command(self) -> list[str]:
        """Return the start command; it `exec`s Java, so its process id is that of the broker."""
        return [
            str(self.home / "bin" / "pulsar"),
            "standalone",
            *("--no-functions-worker", "--no-stream-storage"),
            *("--advertised-address", LOOPBACK),
            *("--bookkeeper-port", str(self.ports.bookie)),
            *("--metadata-dir", str(self.data_dir / "meta")),
            *("--bookkeeper-dir", str(self.data_dir / "bk")),
        ]

    def environment(self, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Return the environment: see `java_environment`."""
        return {
            **java_environment(self.data_dir, MEMORY, environ),
            "PULSAR_STANDALONE_CONF": str(self.data_dir / "conf" / "standalone.conf"),
        }


def write_configuration(home: Path, folder: Path, name: str, settings: Mapping[str, str]) -> None:
    """Write `conf/NAME` of `folder`, that of the distribution with other settings; see `Configuration.write`."""
    for path, fix in ((home, "set DISPATCH_CACHE"), (folder, "set TMPDIR, or choose a data folder,")):
        if re.search(r"\s", str(path)):
            raise LocalBrokerError(
                f"Pulsar's start script does not support white space in a path: {str(path)!r}; {fix} to one without"
            )
    for part in ("conf", "logs", "tmp"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    for log in (folder / "logs" / "broker.log", folder / "logs" / "console.log"):
        if log.exists():
            log.replace(log.with_suffix(".previous.log"))
    original = (home / "conf" / name).read_text(encoding="utf-8")
    (folder / "conf" / name).write_text(apply_settings(original, settings), encoding="utf-8")
    (folder / "conf" / "log4j2.xml").write_text(_LOGGING, encoding="utf-8")


def java_environment(folder: Path, memory: str, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment of a start script of Pulsar: `environ` without variables that change the process, plus those
    that it needs. `folder` contains `conf/log4j2.xml`, `logs` and `tmp`; `memory` is in options of the JVM."""
    return {
        **{name: value for name, value in environ.items() if not _FOREIGN.match(name)},
        # The start script puts this file's folder on the class path: a missing one, so that all brokers have the same class
        # path, without which the JVM does not use an archive of classes.
        "PULSAR_LOG_CONF": "/nonexistent/log4j2.xml",
        "PULSAR_LOG_DIR": str(folder / "logs"),
        "PULSAR_GC_LOG": "-Xlog:disable",
        "PULSAR_MEM": memory,
        "PULSAR_GC": JVM_OPTIONS,
        # Native libraries are unpacked into the temporary folder and remain there after a kill.
        "PULSAR_EXTRA_OPTS": f"-Djava.io.tmpdir={folder / 'tmp'} -Dpulsar.allocator.exit_on_oom=true"
        f" -Dlog4j.configurationFile={folder / 'conf' / 'log4j2.xml'}",
    }


#: Image published by Apache Pulsar.
IMAGE = f"apachepulsar/pulsar:{VERSION}"

_PULL_LIMIT = 1800.0  # seconds: more than a gigabyte over a slow connection
_STOP_GRACE = 10  # seconds

# The broker tells clients its own port, so it must be the same inside and outside the container.
_SCRIPT = (
    "bin/apply-config-from-env.py conf/standalone.conf && "
    f"exec bin/pulsar standalone --no-functions-worker --no-stream-storage --advertised-address {LOOPBACK}"
)


def is_engine_available() -> bool:
    """Return whether the `docker` command exists and its engine responds."""
    try:
        return run(["docker", "info", "--format", "{{.ServerVersion}}"]).returncode == 0
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


def is_container_running(name: str) -> bool:
    """Return whether the container is running."""
    try:
        result = run(["docker", "inspect", "--format", "{{.State.Running}}", name])
    except OSError:
        return False
    return result.returncode == 0 and result.stdout.strip() == "true"


def stop_container(name: str) -> None:
    """Stop the container, killing it after 10 s; it deletes itself. Does nothing if it does not exist."""
    result = run(["docker", "stop", "-t", str(_STOP_GRACE), name])
    if result.returncode != 0 and is_container_running(name):
        raise LocalBrokerError(f"docker cannot stop {name}: {result.stderr.strip()}; try: docker rm --force {name}")


def remove_volume(name: str) -> None:
    """Delete a volume with its data, if it exists."""
    result = run(["docker", "volume", "rm", "--force", name])
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

    def __init__(self, name: str, port: int, web_port: int) -> None:
        """Internal: use `start`."""
        self.name = name
        self.service_url = f"pulsar://{LOOPBACK}:{port}"
        self.web_url = f"http://{LOOPBACK}:{web_port}"
        self._log = ExitStack()
        """Ends `docker logs --follow` and deletes its output."""

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
    ) -> DockerBroker:
        """Start a container and wait until its broker is ready.

        Args:
            name: name of the container; default: random.
            port: port for clients; 0: any free port.
            web_port: port of the admin interface; 0: any free port.
            volume: volume for the data; default: data are deleted with the container.
            detached: the container outlives this process.
            report: receives progress lines.

        Raises:
            LocalBrokerError: the broker did not start; the message names the cause.
        """
        name = name or f"tool-dispatch-pulsar-{secrets.token_hex(4)}"
        free, free_web = [free for free in find_free_ports(4) if free not in (port, web_port)][:2]
        port, web_port = port or free, web_port or free_web
        broker = cls(name, port, web_port)
        _pull(report)
        report(f"starting Pulsar {VERSION} in Docker")
        result = run(build_run_command(name, port, web_port, volume=volume))
        if result.returncode != 0:
            raise LocalBrokerError(f"docker cannot run {IMAGE}: {result.stderr.strip()}")
        remove = ["docker", "rm", "--force", name]
        with ExitStack() as undo:
            undo.callback(run, remove)
            temporary = tempfile.TemporaryDirectory(prefix="tool-dispatch-docker-", ignore_cleanup_errors=True)
            folder = Path(broker._log.enter_context(temporary))
            undo.enter_context(broker._log)
            # Ends with the container, and removes the container if this process is killed.
            follower = spawn(
                ["docker", "logs", "--follow", name],
                log=folder / "console.log",
                remove=folder,
                on_owner_death=None if detached else remove,
            )
            broker._log.callback(follower.kill)
            seconds = wait_until_ready(
                Admin(broker.web_url, timeout=2.0).is_ready, follower.wait, logs=[folder / "console.log"], report=report
            )
            undo.pop_all()
        if detached:
            broker._log.close()
        report(f"Pulsar {VERSION} is ready after {seconds:.1f} s: {broker.service_url}")
        return broker

    def __enter__(self) -> DockerBroker:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the container. Idempotent."""
        with self._log:
            stop_container(self.name)


def _pull(report: Report) -> None:
    if run(["docker", "image", "inspect", IMAGE]).returncode == 0:
        return
    report(f"downloading the image {IMAGE}: a few minutes, once")
    result = run(["docker", "pull", "--quiet", IMAGE], timeout=_PULL_LIMIT)
    if result.returncode != 0:
        raise LocalBrokerError(f"docker cannot download {IMAGE}: {result.stderr.strip()}")


# Check of the Java installation for the broker.


MINIMUM_JAVA = 17


def find_java_problem() -> str | None:
    """Return why the broker's start script finds no usable Java, in one clause; None if it finds one.

    Searches like that script: JAVA_HOME if set, else the PATH.
    """
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None:
        return "Java is not installed (no java on the PATH)"
    where = f"{java} (JAVA_HOME)" if home else java
    try:
        result = run([java, "-version"])
    except OSError as error:
        return f"{where} cannot be run: {error.strerror or error}"
    text = result.stderr + result.stdout
    if result.returncode != 0:
        return f"{where} failed: {text.strip()[:200] or f'exit status {result.returncode}'}"
    version = parse_java_version(text)
    if version is None:
        return f"{where} does not report its version"
    if version < MINIMUM_JAVA:
        return f"{where} is Java {version}, but Pulsar needs Java {MINIMUM_JAVA} or newer"
    return None


def parse_java_version(text: str) -> int | None:
    """Parse the feature release printed by `java -version`: 17 of `"17.0.15"`, 21 of `"21-ea"`, 8 of `"1.8.0_392"`."""
    found = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if found is None:
        return None
    first, second = int(found[1]), found[2]
    return int(second) if first == 1 and second is not None else first


# Choice between a local process and a container.


#: Process of this machine, or container.
Launcher = Literal["process", "docker"]

INSTALL = (
    f"install Java {MINIMUM_JAVA} or newer and Maven:\n    apt-get install openjdk-{MINIMUM_JAVA}-jre-headless "
    f"maven\n    (macOS: brew install openjdk@{MINIMUM_JAVA} maven)"
)
_FIX = (
    f"Either {INSTALL}\nor start a Docker engine (then the image {IMAGE} "
    "is used),\nor use a running Pulsar broker:\n    DISPATCH_BROKER=pulsar://HOST:6650 (or --broker) for the dispatch "
    "command,\n    PULSAR_URL=pulsar://HOST:6650 PULSAR_ADMIN_URL=http://HOST:8080 for tests and benchmarks"
)


def find_process_problems() -> list[str]:
    """Return what a broker as a process of this machine lacks, one clause each."""
    java = find_java_problem()
    problems = [] if java is None else [java]
    if find_distribution() is None and shutil.which("mvn") is None:
        problems.append("Maven is not installed (no mvn on the PATH)")
    return problems


def choose_launcher() -> Launcher:
    """Choose a process if Java is installed and the distribution is cached or Maven can download it; else Docker.

    Raises:
        LocalBrokerUnavailableError: neither is possible; the message names what to install.
    """
    problems = find_process_problems()
    if not problems:
        return "process"
    has_docker = shutil.which("docker") is not None
    if has_docker and is_engine_available():
        return "docker"
    problems.append("no Docker engine responds" if has_docker else "Docker is not installed")
    raise LocalBrokerUnavailableError(problems, _FIX)


# A Pulsar standalone broker as a process of this machine.


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

    Attributes:
        service_url: URL for clients.
        web_url: URL of the admin interface.
        data_dir: folder of data, logs (`logs/broker.log`) and configuration.
        log_file: the broker's log.
    """

    kind: Literal["process"] = "process"

    def __init__(
        self,
        configuration: Configuration,
        *,
        owns_data: bool,
        detached: bool,
        report: Report,
        ready_timeout: float,
        super_user_token: str | None,
    ) -> None:
        """Internal: use `start`."""
        self.super_user_token = super_user_token
        self.service_url = f"pulsar://{LOOPBACK}:{configuration.ports.broker}"
        self.web_url = f"http://{LOOPBACK}:{configuration.ports.web}"
        self.data_dir = configuration.data_dir
        self.log_file = configuration.log_file
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
        settings: Mapping[str, str] | None = None,
        super_user_token: str | None = None,
        detached: bool = False,
        report: Report = ignore_progress,
        ready_timeout: float = READY_TIMEOUT,
        on_spawn: Callable[[LocalBroker], None] | None = None,
    ) -> Self:
        """Start a broker and wait until it is ready: 6 to 10 s on two cores, longer if it must be downloaded.

        Args:
            data_dir: folder that keeps the data between starts; default: a temporary folder, deleted when the broker
                stops.
            port: port for clients; 0: any free port.
            web_port: port of the admin interface; 0: any free port.
            settings: of Pulsar's `standalone.conf`, besides those of `Configuration.settings`.
            super_user_token: of a superuser, where `settings` require tokens.
            detached: the broker outlives this process; requires `data_dir`.
            report: receives progress lines.
            ready_timeout: seconds until the start counts as failed.
            on_spawn: called when the process exists, before it is ready.

        Raises:
            LocalBrokerError: the broker did not start; the message names cause and fix.
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
            report(f"starting Pulsar {VERSION}")
            for attempt in range(1, _ATTEMPTS + 1):
                ports = _choose_ports(folder, port, web_port)
                broker = cls(
                    Configuration(home, folder, ports, settings or {}),
                    owns_data=owns_data,
                    detached=detached,
                    report=report,
                    ready_timeout=ready_timeout,
                    super_user_token=super_user_token,
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

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
                admin.is_ready, child.wait, logs=self._logs(), timeout=self._ready_timeout, report=self._report
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


def _choose_ports(folder: Path, port: int, web_port: int) -> Ports:
    bookie_port = read_bookie_port(folder)
    broker, web, bookie, tls = [free for free in find_free_ports(7) if free not in (port, web_port, bookie_port)][:4]
    if bookie_port is not None:
        require_free(bookie_port, f"the data in {folder} require it; stop the process that uses it, or delete the data")
    return Ports(port or broker, web_port or web, bookie_port or bookie, tls)


# The detached broker of a user, for `dispatch broker start|stop|status`.


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
        LocalBrokerError: the broker did not start, a port is in use, or a broker is running and `wipe` or another port was
            requested.
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
    try:
        state = DetachedBroker(**(read_state(_state_file()) or {}))
    except TypeError:  # there is none, or it is damaged or of another version
        return None
    return state if state.is_alive() else None


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
    except BaseException as error:
        _state_file().unlink(missing_ok=True)
        if isinstance(error, LocalBrokerError) and not new:
            raise LocalBrokerError(f"{error}\nIf its stored data are damaged: dispatch broker start --wipe") from error
        if isinstance(error, OSError):  # the disk is full, for instance
            fix = "free space there, or set DISPATCH_CACHE to another folder"
            raise LocalBrokerError(f"{data_dir} cannot be written: {error.strerror or error}; {fix}") from error
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
