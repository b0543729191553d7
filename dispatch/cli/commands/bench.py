"""``dispatch bench``: the benchmarks of a checkout."""

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


def bench(context: typer.Context) -> None:
    """Run the benchmarks against a genuine broker (a quarter of an hour); all options go to them.

    They are part of the repository, not of the installed package: run this inside a checkout.

    [bold]dispatch bench --help[/bold] is this page; [bold]dispatch bench -- --help[/bold] is theirs.
    """
    from dispatch.cli.exit_codes import CliError

    home = find_checkout()
    if home is None:
        raise CliError(
            "The benchmarks are not here: they are in the repository, in the folder benchmarks/, and not in the "
            "installed package.",
            "run 'dispatch bench' or 'make bench' inside a checkout of tool-dispatch",
        )
    path = os.pathsep.join(filter(None, [str(home), os.environ.get("PYTHONPATH")]))
    status = run_to_end([sys.executable, "-m", "benchmarks", *context.args], environ={**os.environ, "PYTHONPATH": path})
    raise typer.Exit(status)


def find_checkout() -> Path | None:
    """The folder that holds ``benchmarks/``: this one or one above it, or that of an editable installation."""
    here = Path.cwd()
    for folder in (here, *here.parents, Path(dispatch.__file__).resolve().parent.parent):
        if (folder / "benchmarks" / "__main__.py").is_file() and (folder / "dispatch").is_dir():
            return folder
    found = importlib.util.find_spec("benchmarks")
    if found is not None and found.origin is not None:
        return Path(found.origin).parent.parent
    return None


def run_to_end(command: list[str], environ: dict[str, str]) -> int:
    """Run ``command`` in a process group of its own, pass Ctrl-C and SIGTERM on to it, and wait for its end.

    Of its own, because a terminal's Ctrl-C would reach it directly too: it must be told once.

    Raises:
        KeyboardInterrupt: there was a Ctrl-C; the command has ended.
    """
    received: list[int] = []
    child: subprocess.Popen[bytes] | None = None

    def pass_on(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        if child is not None:
            child.send_signal(signal.SIGKILL if len(received) > 2 else number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        child = subprocess.Popen(command, env=environ, process_group=0)
        for number in list(received):  # came before there was anyone to tell
            child.send_signal(number)
        status = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if signal.SIGINT in received:
        raise KeyboardInterrupt
    return 128 - status if status < 0 else status
