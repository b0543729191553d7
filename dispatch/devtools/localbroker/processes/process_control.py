"""Processes that live exactly as long as they should: start, recognise, signal, end."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from dispatch.devtools.localbroker.errors import LocalBrokerError

KILL_WAIT = 10.0  # seconds the kernel is given to end a killed process: far more than it takes
_POLL = 0.02  # seconds between two looks at a process that is not our child
_WATCHDOG = Path(__file__).with_name("parent_watchdog.py")


def process_identity(pid: int) -> str | None:
    """What tells this process from a later one of the same id: its start time. None if it has ended.

    A process which has ended but was not waited for (a zombie) has ended; one whose first thread has ended has not.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return None if Path("/proc/self/stat").exists() else _identity_from_ps(pid)
    fields = stat.rpartition(")")[2].split()  # the name before may hold blanks and brackets
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


def _at_work(pid: int) -> bool:
    """Has it a thread that is not stopped? As far as /proc tells."""
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):  # a thread that has ended meanwhile
            if stat.read_text().rpartition(")")[2].split()[0] not in "TtZX":
                return True
    return False


class Child:
    """A process we started, or one we know by its id and identity.

    Attributes:
        pid: its process id.
        identity: see `process_identity`; None if it had ended before we could look.
    """

    def __init__(self, pid: int, identity: str | None, watchdog: subprocess.Popen[bytes] | None = None) -> None:
        self.pid = pid
        self.identity = identity
        self._watchdog = watchdog

    @property
    def watchdog_pid(self) -> int | None:
        """The process that ends this one when its owner ends; None for a detached one."""
        return None if self._watchdog is None else self._watchdog.pid

    def alive(self) -> bool:
        """Whether it still runs (or is stopped by SIGSTOP)."""
        return self.identity is not None and process_identity(self.pid) == self.identity

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal; False if the process has ended."""
        if not self.alive():
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    def stop(self) -> bool:
        """Send SIGSTOP, and wait until its threads stand still: one that is at work elsewhere goes on for some milliseconds.
        Where the system does not tell of threads, it is only sent. False if the process has ended."""
        if not self.signal(signal.SIGSTOP):
            return False
        end = time.monotonic() + KILL_WAIT
        while _at_work(self.pid) and time.monotonic() < end:
            time.sleep(_POLL)
        return self.alive()

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for its end; whether it has ended."""
        end = time.monotonic() + timeout
        if self._watchdog is not None:
            try:
                self._watchdog.wait(timeout)
            except subprocess.TimeoutExpired:
                return not self.alive()
        return self._wait_for_stranger(end)

    def _wait_for_stranger(self, end: float) -> bool:
        """Wait for a process which is not our child, and of which nobody tells us."""
        if hasattr(os, "pidfd_open"):
            try:
                descriptor = os.pidfd_open(self.pid)
            except OSError:  # it has ended, or the kernel is older than 5.3
                pass
            else:
                try:
                    if self.alive():  # else the id belongs to another by now
                        poll = select.poll()
                        poll.register(descriptor, select.POLLIN)
                        poll.poll(max(0.0, end - time.monotonic()) * 1000)
                finally:
                    os.close(descriptor)
        while self.alive():
            if time.monotonic() >= end:
                return False
            time.sleep(_POLL)
        return True

    def kill(self) -> None:
        """End it at once (SIGKILL) and wait until it has ended. Nothing happens if it has already."""
        self.signal(signal.SIGKILL)
        if not self.wait(KILL_WAIT):
            raise LocalBrokerError(f"process {self.pid} does not end, not even by SIGKILL: look at it with ps")
        self._release()

    def terminate(self, grace: float) -> None:
        """Ask it to end (SIGTERM), and end it (SIGKILL) if it has not within `grace` seconds."""
        if self.signal(signal.SIGTERM):
            self.signal(signal.SIGCONT)  # a paused one could not hear
            self.wait(grace)
        self.kill()

    def _release(self) -> None:
        if self._watchdog is not None:
            self._watchdog.wait(KILL_WAIT)
            if self._watchdog.stdin is not None:
                self._watchdog.stdin.close()

    @property
    def returncode(self) -> int | None:
        """Its exit status (128 + n if signal n ended it); None while it runs, and for a detached one."""
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
    on_spawn: Callable[[Child], None] | None = None,
) -> Child:
    """Start `command` in a session of its own, so that a Ctrl-C in our terminal does not reach it.

    Args:
        command: program and arguments.
        log: a file to which both its outputs are appended.
        environ: its environment; ours by default.
        cwd: its working directory; ours by default.
        remove: a folder which is deleted if this process ends first.
        on_owner_death: a command which is run if this process ends first.
        detached: it goes on when this process ends. Otherwise it is killed then, even after a kill -9.
        on_spawn: called with the child before anything else; a detached one is let go only when this has returned.

    Raises:
        LocalBrokerError: it could not be started.
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
    child: Child | None = None
    try:
        if watchdog.stdin is None or watchdog.stdout is None:
            raise AssertionError("both were asked for")
        with watchdog.stdout:
            line = watchdog.stdout.readline()
        if not line:
            raise LocalBrokerError(f"{command[0]} could not be started: see {log}")
        pid = int(line)
        child = Child(pid, process_identity(pid), None if detached else watchdog)
        if on_spawn is not None:
            on_spawn(child)
        if detached:
            with suppress(BrokenPipeError):  # it has ended already, and its watchdog with it
                watchdog.stdin.write(b"k")
                watchdog.stdin.close()
            watchdog.wait(KILL_WAIT)
    except BaseException:
        _discard(watchdog)
        if child is not None:
            child.kill()  # a watchdog that has been told to let go of it does so
        raise
    return child


def _discard(watchdog: subprocess.Popen[bytes]) -> None:
    """End a watchdog: without its owner's pipe it kills its process and goes."""
    if watchdog.stdin is not None:
        with suppress(BrokenPipeError):
            watchdog.stdin.close()
    try:
        watchdog.wait(KILL_WAIT)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(watchdog.pid, signal.SIGKILL)
        watchdog.wait(KILL_WAIT)
