"""``dispatch bench``: run the benchmarks of a clone."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

import typer

import dispatch
from dispatch.cli.base import CliError


def bench(context: typer.Context) -> None:
    """Run the benchmarks with a Pulsar broker, under half an hour. Options are passed to them.

    The benchmarks are part of the repository, not of the installed package: run this inside a clone.

    [bold]dispatch bench[/bold] runs all of them.

    [bold]dispatch bench -- --help[/bold] shows the options of the benchmarks.
    """
    home = find_checkout()
    if home is None:
        raise CliError(
            "The benchmarks were not found: they are in the repository, not in the installed package.",
            "run 'dispatch bench' or 'make bench' inside a clone of tool-dispatch",
        )
    path = os.pathsep.join(filter(None, [str(home), os.environ.get("PYTHONPATH")]))
    status = run_process(
        [sys.executable, "-m", "benchmarks", *context.args], environ={**os.environ, "PYTHONPATH": path}
    )
    raise typer.Exit(status)


def find_checkout() -> Path | None:
    """Find the folder that contains ``benchmarks/``: the current one, a parent, or that of an editable installation."""
    here = Path.cwd()
    for folder in (here, *here.parents, Path(dispatch.__file__).resolve().parent.parent):
        if (folder / "benchmarks" / "__main__.py").is_file() and (folder / "dispatch").is_dir():
            return folder
    found = importlib.util.find_spec("benchmarks")
    if found is not None and found.origin is not None:
        return Path(found.origin).parent.parent
    return None


def run_process(command: list[str], environ: dict[str, str]) -> int:
    """Run ``command`` in its own process group, forward SIGINT and SIGTERM to it, and wait for its end.

    The process group prevents a second delivery of a terminal's Ctrl-C.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed; the command has ended.
    """
    received: list[int] = []
    child: subprocess.Popen[bytes] | None = None

    def forward_signal(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        if child is not None:
            child.send_signal(signal.SIGKILL if len(received) > 2 else number)

    before = {number: signal.signal(number, forward_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        child = subprocess.Popen(command, env=environ, process_group=0)
        for number in list(received):  # received before the process started
            child.send_signal(number)
        status = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if signal.SIGINT in received:
        raise KeyboardInterrupt
    return 128 - status if status < 0 else status
