"""Running of short commands."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from typing import Protocol


class Runner(Protocol):
    """Runs a command and returns its result with text output; raises FileNotFoundError for an unknown command."""

    def __call__(self, command: Sequence[str], *, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run `command` with a timeout in seconds."""


#: Finds a command on the PATH, like `shutil.which`.
Which = Callable[[str], str | None]


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
