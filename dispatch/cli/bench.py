"""``dispatch bench``: run the benchmarks of a clone."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

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
    # In place of this process: signals reach the benchmarks, and their exit code is that of the command.
    command = [sys.executable, "-m", "benchmarks", *context.args]
    os.execve(command[0], command, {**os.environ, "PYTHONPATH": path})


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
