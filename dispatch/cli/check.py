"""``dispatch check``: every mistake in a folder of descriptors."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from dispatch.cli.output import paint, printable, put, put_json
from dispatch.cli.settings import Settings, takes

if TYPE_CHECKING:
    from dispatch.catalog import Problem

_STYLES = {"error": "red", "warning": "yellow", "info": "dim"}


@takes("catalog")
def check(
    settings: Settings,
    folder: Annotated[
        str | None,
        typer.Argument(metavar="DIR", help="The folder. Default: what --catalog says.", show_default=False),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Everything as one line of JSON.")] = False,
) -> None:
    """Check a folder of descriptors: every mistake with its file, its key and how to mend it.

    The exit code is 1 if there is an error; warnings and notes do not count. Nothing connects to a broker.
    """
    from dispatch.catalog import check_directory
    from dispatch.cli.failures import Exit

    where = folder if folder is not None else settings.require_catalog_folder()
    catalog, problems = check_directory(where)
    counts = {severity: sum(p.severity == severity for p in problems) for severity in _STYLES}
    if json:
        put_json(
            {
                "folder": where,
                "ok": catalog is not None,
                "services": None if catalog is None else len(catalog.services),
                "tools": None if catalog is None else len(catalog.tools),
                "problems": [
                    {"file": p.file, "key": p.key, "problem": p.problem, "fix": p.fix, "severity": p.severity}
                    for p in problems
                ],
            }
        )
    else:
        for problem in problems:
            _show(problem)
        put(_verdict(where, counts, None if catalog is None else (len(catalog.services), len(catalog.tools))))
    if catalog is None:
        raise typer.Exit(Exit.FAILED)


def _show(problem: Problem) -> None:
    where = f"{problem.file}: {problem.key}" if problem.key else problem.file
    severity = paint(f"{problem.severity}:", _STYLES[problem.severity], sys.stdout)
    put(f"{severity} {printable(where)}: {printable(problem.problem)}")
    put(f"  fix: {printable(problem.fix)}")


def _verdict(folder: str, counts: dict[str, int], loaded: tuple[int, int] | None) -> str:
    found = [
        f"{number} {name}{'' if number == 1 else 's'}"
        for name, number in zip(("error", "warning", "note"), counts.values(), strict=True)
        if number
    ]
    said = ", ".join(found) or "no mistakes"
    if loaded is None:
        return f"{printable(folder)}: {said}. Nothing is loaded until the errors are mended."
    services, tools = loaded
    return f"{printable(folder)}: {services} services, {tools} tools, {said}."
