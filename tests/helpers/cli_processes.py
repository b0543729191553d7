"""``dispatch`` as a process of its own, on pipes or on a terminal, which never outlives the test run."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from tests.helpers import die_with_parent

REPO = Path(__file__).resolve().parents[2]
WAIT_S = 30.0
"""For anything that should happen soon; a test fails after it, and no test waits for it."""


def environment(**changes: str) -> dict[str, str]:
    """The environment of a user who has this checkout installed."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("DISPATCH_", "MAKE"))}
    path = os.pathsep.join(filter(None, [str(REPO), os.environ.get("PYTHONPATH")]))
    return inherited | {"PYTHONPATH": path, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"} | changes


class _Stream:
    """Reads a stream to its end, so that a full pipe never holds the program up."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._changed = threading.Condition()
        self._content = b""
        self._ended = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        # A terminal's end is an error, a pipe's is an empty read.
        with contextlib.suppress(OSError):
            while chunk := os.read(self._file.fileno(), 65_536):
                with self._changed:
                    self._content += chunk
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def text(self) -> str:
        with self._changed:
            return self._content.decode(errors="replace")

    def wait_for(self, wanted: str, times: int = 1) -> None:
        with self._changed:
            came = self._changed.wait_for(
                lambda: self._content.count(wanted.encode()) >= times or self._ended, timeout=WAIT_S
            )
        assert came, f"{wanted!r} did not come: {self.text()}"
        assert wanted in self.text(), f"it ended without {wanted!r}: {self.text()}"

    def close(self) -> None:
        self._thread.join(WAIT_S)
        self._file.close()


class Program:
    """A program that runs."""

    _write_end: int | None = None

    def __init__(
        self, arguments: tuple[str, ...], *, terminal: bool, env: Mapping[str, str], cwd: Path, keyboard: bool = False
    ) -> None:
        read_end: Any = None
        write_end: Any = subprocess.PIPE
        if terminal:
            read_end, write_end = pty.openpty()
            self._terminal = read_end
            self.mode_before = termios.tcgetattr(read_end)
        self.process = subprocess.Popen(
            [sys.executable, "-IS", die_with_parent.__file__, sys.executable, "-m", "dispatch", *arguments],
            cwd=cwd,
            env=dict(env),
            stdin=write_end if keyboard else subprocess.DEVNULL,
            stdout=write_end,
            stderr=subprocess.PIPE,
        )
        if terminal:
            if keyboard:
                self._write_end = write_end  # the terminal's mode can be read until it is closed
            else:
                os.close(write_end)
            self.out = _Stream(open(read_end, "rb", buffering=0))  # noqa: SIM115 - _Stream closes it
        else:
            assert self.process.stdout is not None
            self.out = _Stream(self.process.stdout)
        assert self.process.stderr is not None
        self.err = _Stream(self.process.stderr)

    def press(self, keys: str) -> None:
        """Type on its keyboard."""
        os.write(self._terminal, keys.encode())

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def terminate(self) -> None:
        """What a container platform sends first."""
        self.process.send_signal(signal.SIGTERM)

    def wait(self, limit: float = WAIT_S) -> int:
        """Its exit code, once it has ended and everything it wrote is read."""
        code = self.process.wait(limit)
        if self._write_end is not None:
            self.mode_after = termios.tcgetattr(self._write_end)
            os.close(self._write_end)
            self._write_end = None
        self.out.close()
        self.err.close()
        return code

    def assert_interrupted(self) -> None:
        """It ends as every command does after Ctrl-C."""
        code = self.wait()
        assert code == 130, (code, self.out.text(), self.err.text())
        assert "Interrupted." in self.err.text()
        assert "Traceback" not in self.err.text() + self.out.text()


@contextlib.contextmanager
def started(
    *arguments: str, terminal: bool = False, keyboard: bool = False, cwd: Path = REPO, **env: str
) -> Iterator[Program]:
    """``dispatch ARGUMENTS`` as a process; gone at the end. ``keyboard``: its stdin is the terminal, too."""
    program = Program(arguments, terminal=terminal, env=environment(**env), cwd=cwd, keyboard=keyboard)
    try:
        yield program
    finally:
        program.process.kill()
        with contextlib.suppress(ValueError):  # closed already
            program.wait()


def ended(
    *arguments: str, terminal: bool = False, cwd: Path = REPO, limit: float = WAIT_S, **env: str
) -> tuple[int, str, str]:
    """Run ``dispatch ARGUMENTS`` to its end: exit code, stdout, stderr."""
    with started(*arguments, terminal=terminal, cwd=cwd, **env) as program:
        code = program.wait(limit)
        return code, program.out.text(), program.err.text()
