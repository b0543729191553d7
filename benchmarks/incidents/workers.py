"""Worker processes: this benchmark's code with the ``dispatch`` of any checkout."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.processes import BenchmarkError, Child, held_back, product_command


class Worker(Child):
    """A process with one of the modules of :mod:`benchmarks.incidents.roles`, or of another package.

    Args:
        role: the module's name.
        product: the checkout whose ``dispatch`` is imported.
        package: of the module.
        files: descriptors that it inherits.
    """

    def __init__(
        self, role: str, product: Path, package: str = "benchmarks.incidents.roles", files: Sequence[int] = ()
    ) -> None:
        super().__init__(role, product_command(product, f"{package}.{role}"), files)
        self._killed = False

    @property
    def returncode(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        return self._process.poll()

    def kill(self) -> None:
        """Kill the process; no effect if it has ended."""
        self._killed = True
        super().kill()

    def stop_gracefully(self) -> None:
        """Close its stdin: the process stops as it does after its last command."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def close(self) -> None:
        """Wait until the process ends. One that does not end, or fails, is reported and killed; its figures count."""
        if self._killed:
            return
        try:
            super().close()
        except BenchmarkError as error:
            print(error, file=sys.stderr, flush=True)


def start(role: str, product: Path, spec: dict[str, Any], stack: contextlib.ExitStack) -> Worker:
    """A worker that ends with ``stack``, ready for commands.

    Raises:
        BenchmarkError: it was not ready in time, or ended.
    """
    with held_back(signal.SIGINT, signal.SIGTERM):
        worker = Worker(role, product)
        stack.enter_context(worker)
    worker.begin(spec)
    return worker


__all__ = ["BenchmarkError", "Worker", "start"]
