"""Processes: run commands, manage child processes, and end them with their parent."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

# Errors of a local broker. Each message names the fix.


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


class PortInUseError(LocalBrokerError):
    """A requested port is in use by another process.

    Attributes:
        port: the port.
    """

    def __init__(self, port: int, fix: str) -> None:
        super().__init__(f"port {port} on 127.0.0.1 is in use: {fix}")
        self.port = port


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


def _has_running_thread(pid: int) -> bool:
    """Return whether a thread is not stopped, according to /proc."""
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):  # the thread has ended
            if stat.read_text().rpartition(")")[2].split()[0] not in "TtZX":
                return True
    return False


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

    def suspend(self) -> bool:
        """Send SIGSTOP and wait until all threads are stopped: a running thread continues for milliseconds. Without /proc
        there is no wait. Returns False if the process has ended."""
        if not self.send_signal(signal.SIGSTOP):
            return False
        end = time.monotonic() + KILL_WAIT
        while _has_running_thread(self.pid) and time.monotonic() < end:
            time.sleep(_POLL)
        return self.is_alive()

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

    def kill(self) -> None:
        """Kill the process (SIGKILL) and wait for its end. Idempotent."""
        self.send_signal(signal.SIGKILL)
        if not self.wait(KILL_WAIT):
            raise LocalBrokerError(f"process {self.pid} does not end after SIGKILL: inspect it with ps")
        self._release()

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
    """Raise `PortInUseError` with `fix` in its message unless a server can listen on loopback `port`."""
    if not 0 < port < 65_536:
        raise LocalBrokerError(f"{port} is not a TCP port: use 1 to 65535")
    with _tcp_socket() as probe:
        if not _bind(probe, port):
            raise PortInUseError(port, fix)


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
