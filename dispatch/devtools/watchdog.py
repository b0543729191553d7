"""A small process between a parent and its broker: when the parent ends for any reason, it ends the broker.

Run as a script (`python -I -S watchdog.py JOB`), never imported. `JOB` is JSON with the keys `owner` (process id of
the parent), `command`, `remove` (folder or null), `on_owner_death` (command or null), `detached`. Only the parent holds the
other end of its stdin pipe. It writes the id of the started process to stdout; stderr and both outputs of that process go to
the log. A byte on stdin confirms that the process id is stored and the process may outlive the parent, so a detached broker
is not orphaned when its parent is killed during the start.

PR_SET_PDEATHSIG on the broker is not sufficient: it is sent when the forking *thread* ends, exists on Linux only, and leaves
the data behind. The pipe is not sufficient: processes that the parent forks without exec hold copies of it, so the parent's
id is checked too.
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
    """Start the command of the job and wait until it or the parent has ended. Returns the exit status of the command."""
    job = json.loads(sys.argv[1])
    wakeup_reader, wakeup_writer = os.pipe()
    os.set_blocking(wakeup_writer, False)
    # The exit of the child wakes the select below through this pipe.
    signal.set_wakeup_fd(wakeup_writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    child = start_child(job["command"], detached=job["detached"])
    os.write(1, b"%d\n" % child)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    while True:
        exited, status = os.waitpid(child, os.WNOHANG)
        if exited:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        ready, _, _ = select.select([0, wakeup_reader], [], [], PARENT_CHECK_INTERVAL)
        if wakeup_reader in ready:
            os.read(wakeup_reader, 4096)
        command_byte = os.read(0, 1) if 0 in ready else None
        if command_byte:
            return 0
        if command_byte == b"" or os.getppid() != job["owner"]:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            clean_up(job)
            return 0


def start_child(command: list[str], *, detached: bool) -> int:
    """Fork and exec `command`; fork is safe because this process has one thread."""
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    watchdog = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        if libc is not None and not detached:
            # Covers a kill of the watchdog; its only thread is the main thread, so the signal is reliable here.
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != watchdog:
                os._exit(1)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these signals, and exec would inherit that
            signal.signal(number, signal.SIG_DFL)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"cannot run {command[0]}: {error}\n".encode())
    os._exit(127)


def clean_up(job: dict[str, Any]) -> None:
    """Clean up in place of the parent."""
    if job["on_owner_death"]:
        subprocess.run(job["on_owner_death"], stdin=subprocess.DEVNULL, stdout=2, check=False, timeout=60)
    if job["remove"]:
        shutil.rmtree(job["remove"], ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
