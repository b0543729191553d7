"""The frame of a benchmark's programme: options, figures as JSON, the generated part of a page, and a picture."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.environment import load
from benchmarks.harness.processes import ROOT

BEGIN = "<!-- begin of the figures of a run -->"
END = "<!-- end of the figures of a run -->"


class Programme(argparse.ArgumentParser):
    """The options of ``python -m MODULE``, and ``--json``.

    Args:
        module: name of the module.
        description: what it does.
        options: further ones of :class:`argparse.ArgumentParser`.
    """

    def __init__(self, module: str, description: str | None, **options: Any) -> None:
        super().__init__(prog=f"python -m {module}", description=description, **options)
        self.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")

    def add_number(self, name: str, default: int, help: str) -> None:
        """Add an option that is a whole number above 0."""
        self.add_argument(name, type=positive, default=default, metavar="N", help=f"{help} (default {default:,})")

    def begin(self, arguments: Sequence[str] | None) -> argparse.Namespace:
        """Return the options, and report the load of the machine. Before the measurement it ends the programme with exit
        code 2 if the file of ``--json`` cannot be written."""
        options = self.parse_args(arguments)
        if options.json is not None:
            try:
                options.json.parent.mkdir(parents=True, exist_ok=True)
                options.json.touch()
            except OSError as error:
                self.exit(2, f"the results cannot be written: {error}; choose another place with --json\n")
        print(f"load before: {load()}", file=sys.stderr)
        return options


def positive(text: str) -> int:
    """Parse a whole number above 0 of the command line."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"1 at least, not {text}")
    return value


def write_figures(path: Path | None, figures: object) -> None:
    """Write the figures as JSON; None: nowhere."""
    if path is not None:
        path.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_runs(
    module: str, description: str | None, arguments: Sequence[str] | None, *, nargs: str | int = 1
) -> tuple[list[Path], Path]:
    """Return the files of runs, and the checkout whose docs are written, of the command line of ``python -m MODULE``.

    Args:
        nargs: number of files, as of :meth:`argparse.ArgumentParser.add_argument`.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("json", type=Path, nargs=nargs, help="JSON file of a run; cases of later ones count")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout whose docs are written")
    options = parser.parse_args(arguments)
    return options.json, options.root


def write_page(page: Path, figures: str) -> None:
    """Replace the generated part of a page.

    Raises:
        ValueError: the page does not have both marks.
    """
    page.write_text(replace_figures(page.read_text(encoding="utf-8"), figures), encoding="utf-8")


def replace_figures(page: str, figures: str) -> str:
    """Return the page with other figures between the marks.

    Raises:
        ValueError: the page does not have both marks.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page does not have the marks {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{figures}\n\n{END}{after}"


@contextlib.contextmanager
def picture(
    path: Path, rows: int = 1, columns: int = 1, *, size: tuple[float, float], dpi: int, **options: Any
) -> Iterator[tuple[Any, Any]]:
    """Provide a figure and its grid of axes (rows of columns), and write it as PNG at the end of the block.

    Args:
        size: in inches.
        options: further ones of :func:`matplotlib.pyplot.subplots`.

    Raises:
        OSError: it cannot be written there.
    """
    import matplotlib  # perf: imported where it is used, not by each measured process

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained", **options)
    try:
        yield figure, grid
        figure.savefig(path, dpi=dpi)
    finally:
        pyplot.close(figure)
