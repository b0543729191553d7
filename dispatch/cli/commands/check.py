"""``dispatch check``: report every mistake in a folder of descriptors, and each tool's effective policy."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dispatch.cli.output import colorize, format_count, make_printable, print_json, print_out
from dispatch.cli.settings import Settings, with_settings

if TYPE_CHECKING:
    from dispatch.catalog import Catalog, Problem
    from dispatch.cli.views.effective_policy import ToolPlan

_STYLES = {"error": "red", "warning": "yellow", "info": "dim"}


class PlanDetail(StrEnum):
    """How much of the effective policy is shown."""

    SHORT = "short"
    FULL = "full"
    NONE = "none"


@with_settings("catalog", "policy")
def check(
    settings: Settings,
    folder: Annotated[
        str | None,
        typer.Argument(metavar="DIR", help="Folder of the descriptors. Default: --catalog.", show_default=False),
    ] = None,
    plan: Annotated[
        PlanDetail,
        typer.Option(
            "--plan",
            help="Effective policy of each tool: values that differ from the defaults, every value, or nothing. --json has "
            "every value.",
        ),
    ] = PlanDetail.SHORT,
    tool: Annotated[
        str | None,
        typer.Option("--tool", metavar="NAME", help="Show every value of this tool only.", show_default=False),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print everything as one line of JSON.")] = False,
) -> None:
    """Check a folder of descriptors: report every mistake with file, key and fix; then the effective policy of each tool.

    The effective policy lists the guards that are on, the attempts of a call and the reason, the routing of requests, and
    each value with its source: default, user (--policy), service or tool, where later sources override earlier ones.

    [bold]dispatch check tools/[/bold]

    [bold]dispatch check tools/ --tool tell-joke --policy mine.json[/bold]

    The exit code is 1 if there is an error; warnings and notes do not count. No broker connection is made.
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
        plans, wrong = _build_plans(catalog, wanted, user, settings.policy_file or "")
        problems += wrong
    failed = any(problem.severity == "error" for problem in problems)
    if plan is PlanDetail.NONE:
        plans = None
    if json:
        _put_json(where, catalog, problems, plans, failed=failed)
    else:
        for problem in problems:
            _show(problem)
        counts = {severity: sum(p.severity == severity for p in problems) for severity in _STYLES}
        print_out(
            _format_summary(where, counts, None if catalog is None else (len(catalog.services), len(catalog.tools)))
        )
        if plans:
            _show_plans(plans, full=plan is PlanDetail.FULL or tool is not None)
    if failed:
        raise typer.Exit(Exit.FAILED)


def _build_plans(
    catalog: Catalog, tools: list[str], user: Mapping[str, Any], file: str
) -> tuple[list[ToolPlan], list[Problem]]:
    """Return the effective policy of each tool, and the conflicts between the user's policy and those of services and tools,
    one problem per reason."""
    from dispatch._internal.suggestions import excerpt, join_names
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
        Problem(excerpt(file, 4096), key, f"{problem}, together with the policy of {join_names(names, 5)}", fix)
        for (key, problem, fix), names in wrong.items()
    ]
    return found, problems


def _put_json(
    where: str, catalog: Catalog | None, problems: list[Problem], plans: list[ToolPlan] | None, *, failed: bool
) -> None:
    from dispatch.cli.views.policy import as_json

    print_json(
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
    severity = colorize(f"{problem.severity}:", _STYLES[problem.severity], sys.stdout)
    print_out(f"{severity} {make_printable(where)}: {make_printable(problem.problem)}")
    print_out(f"  fix: {make_printable(problem.fix)}")


def _format_summary(folder: str, counts: dict[str, int], loaded: tuple[int, int] | None) -> str:
    found = [
        f"{number} {name}{'' if number == 1 else 's'}"
        for name, number in zip(("error", "warning", "note"), counts.values(), strict=True)
        if number
    ]
    text = ", ".join(found) or "no mistakes"
    if loaded is None:
        return f"{make_printable(folder)}: {text}. The catalogue cannot be loaded until the errors are fixed."
    services, tools = loaded
    return f"{make_printable(folder)}: {format_count(services, 'service')}, {format_count(tools, 'tool')}, {text}."


def _show_plans(plans: list[ToolPlan], *, full: bool) -> None:
    from dispatch.cli.views.policy import UNITS, format_defaults, format_details, format_summary

    for each in plans:
        print_out("")
        print_out(format_details(each) if full else format_summary(each))
    print_out("")
    print_out(UNITS if full else format_defaults())
