"""Python programs as processes of their own, which never outlive the test run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
READY_S = 30.0
END_S = 15.0


def environment() -> dict[str, str]:
    """The environment of a user who has dispatch installed: this checkout's, wherever the tests run."""
    return os.environ | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),  # as activated
        "PYTHONPATH": os.pathsep.join([str(REPO), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
    }


class Running:
    """A program that runs. ``output`` has the last lines of what it wrote, on both its streams."""

    def __init__(self, arguments: tuple[str, ...], ready: str) -> None:
        self._ready_text = ready
        self._changed = threading.Condition()
        self._ready = self._ended = False
        self.output: deque[str] = deque(maxlen=500)
        self.process = subprocess.Popen(
            [sys.executable, "-IS", str(Path(__file__).with_name("die_with_parent.py")), sys.executable, *arguments],
            cwd=REPO,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, name=f"output of {arguments[0]}", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        # To the end, so that a full pipe never holds the program up.
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.output.append(line)
                self._ready = self._ready or self._ready_text in line
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def text(self) -> str:
        """What it has written so far."""
        with self._changed:
            return "".join(self.output)

    def wait_ready(self) -> None:
        """Wait for the line that says that it is ready."""
        with self._changed:
            in_time = self._changed.wait_for(lambda: self._ready or self._ended, READY_S)
        if not self._ready:
            why = "ended early" if in_time else f"was not ready within {READY_S:g} s"
            raise AssertionError(f"the program {why}:\n{self.text()}")

    def end(self, how: signal.Signals, seconds: float = END_S) -> int:
        """Send it a signal and wait so many seconds for its end. Returns its exit code."""
        self.process.send_signal(how)
        code = self.process.wait(seconds)
        self._reader.join(END_S)
        return code

    def clear(self) -> None:
        """Kill it if it still runs, and leave nothing."""
        self.process.kill()
        self.process.wait(END_S)
        self._reader.join(END_S)
        self.process.stdout.close()


@contextlib.contextmanager
def running(*arguments: str, ready: str) -> Iterator[Running]:
    """``python *arguments``, from its line with ``ready`` in it to the end of the block."""
    program = Running(arguments, ready)
    try:
        program.wait_ready()
        yield program
    finally:
        program.clear()


def finish(*arguments: str, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
    """``python *arguments``, to its own end. Its streams are apart."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=REPO,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
