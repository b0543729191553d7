"""Run a command to its end."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from typing import Protocol


class Runner(Protocol):
    """Runs a command to its end and returns it with its output as text; FileNotFoundError if there is no such command."""

    def __call__(self, command: Sequence[str], *, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
        """`timeout` in seconds."""
        ...


#: Finds a command on the PATH, as `shutil.which` does.
Which = Callable[[str], str | None]


def run(command: Sequence[str], *, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
    """The `Runner` that really runs; a command which takes longer than `timeout` seconds is ended with status 124."""
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
        return subprocess.CompletedProcess(command, 124, "", f"{command[0]} did not answer within {timeout:g} s")
