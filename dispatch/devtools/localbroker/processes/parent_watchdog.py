"""A tiny process between an owner and its broker: when the owner ends, however it ends, the broker ends too.

Run as a script of its own (`python -I -S parent_watchdog.py JOB`), never imported by what it guards. `JOB` is JSON with the
keys `owner` (a process id), `command`, `remove` (a folder or null), `on_owner_death` (a command or null), `detached`.
Its stdin is a pipe which only the owner holds open; to its stdout it writes the id of the process it started;
stderr, and both outputs of that process, go to the log. A byte on stdin says: the process is known and may live by
itself; so even a detached broker is not lost when its starter is killed in the middle of starting it.

Why a process, and not just PR_SET_PDEATHSIG on the broker: that signal comes when the *thread* which forked ends, so a
broker started from a worker thread would die with it; it exists on Linux only; and it leaves the data behind. Why not
only the pipe: whatever the owner forks without exec holds a copy of it, hence the look at the parent's id.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from typing import Any

PARENT_CHECK_INTERVAL = 1.0  # seconds
_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Start the command of the job and stay until it, or the owner, has ended; its exit status is ours."""
    job = json.loads(sys.argv[1])
    waker, wakened = os.pipe()
    os.set_blocking(wakened, False)
    # An exit of the child interrupts the wait below through this pipe.
    signal.set_wakeup_fd(wakened, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    child = start(job["command"], detached=job["detached"])
    os.write(1, b"%d\n" % child)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        ready, _, _ = select.select([0, waker], [], [], PARENT_CHECK_INTERVAL)
        if waker in ready:
            os.read(waker, 4096)
        word = os.read(0, 1) if 0 in ready else None
        if word:
            return 0
        if word == b"" or os.getppid() != job["owner"]:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            clean_up(job)
            return 0


def start(command: list[str], *, detached: bool) -> int:
    """Fork and exec `command`; safe with fork because this process has one thread."""
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    watchdog = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        if libc is not None and not detached:
            # The watchdog itself may be killed. Its one thread is its main thread, so the signal means what it should.
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != watchdog:
                os._exit(1)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these, and exec would hand that on
            signal.signal(number, signal.SIG_DFL)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"cannot run {command[0]}: {error}\n".encode())
    os._exit(127)


def clean_up(job: dict[str, Any]) -> None:
    """What the owner would have done, had it lived."""
    if job["on_owner_death"]:
        subprocess.run(job["on_owner_death"], stdin=subprocess.DEVNULL, stdout=2, check=False, timeout=60)
    if job["remove"]:
        shutil.rmtree(job["remove"], ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
