"""``dispatch check``: every mistake in a folder of descriptors, and how the calls of each tool are guarded."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dispatch.cli.output import counted, paint, printable, put, put_json
from dispatch.cli.settings import Settings, takes

if TYPE_CHECKING:
    from dispatch.catalog import Catalog, Problem
    from dispatch.cli.views.effective_policy import ToolPlan

_STYLES = {"error": "red", "warning": "yellow", "info": "dim"}


class Extent(StrEnum):
    """How much of the plan is shown."""

    SHORT = "short"
    FULL = "full"
    NONE = "none"


@takes("catalog", "policy")
def check(
    settings: Settings,
    folder: Annotated[
        str | None,
        typer.Argument(metavar="DIR", help="The folder. Default: what --catalog says.", show_default=False),
    ] = None,
    plan: Annotated[
        Extent,
        typer.Option(
            "--plan",
            help="Of each tool's guards: what is not a default; every value; or nothing. With --json every value.",
        ),
    ] = Extent.SHORT,
    tool: Annotated[
        str | None,
        typer.Option("--tool", metavar="NAME", help="The plan of this tool alone, every value.", show_default=False),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Everything as one line of JSON.")] = False,
) -> None:
    """Check a folder of descriptors: every mistake with its file, its key and how to mend it; then the plan of each tool.

    The plan says how a tool's calls are guarded: which guards are on, how often a call may be repeated and why, who gets
    its requests, and each value with where it came from: default, user (--policy), service or tool, each over the one
    before it.

    [bold]dispatch check tools/[/bold]

    [bold]dispatch check tools/ --tool tell-joke --policy mine.json[/bold]

    The exit code is 1 if there is an error; warnings and notes do not count. Nothing connects to a broker.
    """
    from dispatch.catalog import check_directory
    from dispatch.cli.exit_codes import CliError, Exit
    from dispatch.cli.policy_file import check_policy_file

    where = folder if folder is not None else settings.require_catalog_folder()
    catalog, problems = check_directory(where)
    user: Mapping[str, Any] | None = {}
    if settings.policy_file is not None:
        user, wrong = check_policy_file(settings.policy_file)
        problems += wrong
    if catalog is not None and tool is not None and tool not in catalog.tools:
        from dispatch.catalog import UnknownToolError

        try:
            catalog.tool(tool)
        except UnknownToolError as unknown:
            raise CliError(str(unknown)) from None
    plans: list[ToolPlan] | None = None
    if catalog is not None and user is not None:
        wanted = [tool] if tool is not None else list(catalog.tools)
        plans, wrong = _plans(catalog, wanted, user, settings.policy_file or "")
        problems += wrong
    failed = any(problem.severity == "error" for problem in problems)
    if plan is Extent.NONE:
        plans = None
    if json:
        _put_json(where, catalog, problems, plans, failed=failed)
    else:
        for problem in problems:
            _show(problem)
        counts = {severity: sum(p.severity == severity for p in problems) for severity in _STYLES}
        put(_verdict(where, counts, None if catalog is None else (len(catalog.services), len(catalog.tools))))
        if plans:
            _show_plans(plans, full=plan is Extent.FULL or tool is not None)
    if failed:
        raise typer.Exit(Exit.FAILED)


def _plans(
    catalog: Catalog, tools: list[str], user: Mapping[str, Any], file: str
) -> tuple[list[ToolPlan], list[Problem]]:
    """The plan of each tool, and where the user's policy does not go with what services and tools say: once for each reason,
    however many tools it concerns."""
    from dispatch._internal.suggestions import excerpt, listed
    from dispatch.catalog import Problem
    from dispatch.cli.views.effective_policy import plan_of
    from dispatch.policy import PolicyError

    found: list[ToolPlan] = []
    wrong: dict[tuple[str, str, str], list[str]] = {}
    for name in tools:
        try:
            found.append(plan_of(catalog, name, user=user))
        except PolicyError as error:
            wrong.setdefault((error.key, error.problem, error.fix), []).append(name)
    problems = [
        Problem(excerpt(file, 4096), key, f"{problem}, together with the policy of {listed(names, 5)}", fix)
        for (key, problem, fix), names in wrong.items()
    ]
    return found, problems


def _put_json(
    where: str, catalog: Catalog | None, problems: list[Problem], plans: list[ToolPlan] | None, *, failed: bool
) -> None:
    from dispatch.cli.views.policy import as_json

    put_json(
        {
            "folder": where,
            "ok": not failed,
            "services": None if catalog is None else len(catalog.services),
            "tools": None if catalog is None else len(catalog.tools),
            "problems": [
                {"file": p.file, "key": p.key, "problem": p.problem, "fix": p.fix, "severity": p.severity}
                for p in problems
            ],
            "plan": as_json(plans),
        }
    )


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
    return f"{printable(folder)}: {counted(services, 'service')}, {counted(tools, 'tool')}, {said}."


def _show_plans(plans: list[ToolPlan], *, full: bool) -> None:
    from dispatch.cli.views.policy import UNITS, defaults_line, full_block, short_block

    for each in plans:
        put("")
        put(full_block(each) if full else short_block(each))
    put("")
    put(UNITS if full else defaults_line())
