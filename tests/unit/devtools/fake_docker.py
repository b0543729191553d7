"""A `docker` with one container, run as a script: `run` serves a stand-in of the admin interface, `logs` follows it.

The files beside it say how it behaves (`refuse`, `die`) and what happened (`calls`, `pid`, `pulled`).
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

SERVER = """
import signal, sys
from tests.unit.devtools.fakes import serve_admin
with serve_admin(int(sys.argv[1])):
    signal.pause()
"""


def main(here: Path, arguments: list[str]) -> str | None:
    """Do one command; returns what went wrong."""
    with (here / "calls").open("a") as calls:
        calls.write(" ".join(arguments) + "\n")
    pid = here / "pid"
    match arguments[0]:
        case "image":
            return None if (here / "pulled").exists() else "no such image"
        case "pull":
            (here / "pulled").touch()
        case "run":
            if (here / "refuse").exists():
                return "docker: no space left"
            [web_port] = [word.partition("=")[2] for word in arguments if "webServicePort" in word]
            program = "" if (here / "die").exists() else SERVER
            nothing = subprocess.DEVNULL
            server = subprocess.Popen(
                [sys.executable, "-c", program, web_port], stdin=nothing, stdout=nothing, stderr=nothing
            )
            pid.write_text(str(server.pid))
            server.returncode = 0  # it lives on, as a container does
        case "logs":
            sys.stdout.write("12:00 ERROR bookie is full\n")
            sys.stdout.flush()
            with suppress(ProcessLookupError, FileNotFoundError):
                poll = select.poll()
                poll.register(os.pidfd_open(int(pid.read_text())), select.POLLIN)
                poll.poll()
        case "stop" | "rm":
            try:
                os.kill(int(pid.read_text()), signal.SIGKILL)
                pid.unlink()
            except (ProcessLookupError, FileNotFoundError):
                return "no such container"
        case "inspect":
            sys.stdout.write("true\n" if pid.exists() else "false\n")
    return None


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
