"""``dispatch check``: report every mistake in the sources of the catalogue, and each tool's effective policy."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from dispatch.cli.output import colorize, make_printable, print_json, print_out
from dispatch.cli.settings import Settings, with_settings

if TYPE_CHECKING:
    from dispatch.catalog import Catalog, Problem
    from dispatch.cli.catalog.checked_source import CheckedSource
    from dispatch.cli.views.effective_policy import ToolPlan

_STYLES = {"error": "red", "warning": "yellow", "info": "dim"}


class PlanDetail(StrEnum):
    """How much of the effective policy is shown."""

    SHORT = "short"
    FULL = "full"
    NONE = "none"


@with_settings("broker", "catalog", "trustgraph", "workspace", "policy", "grants", "token_file", "trust_certs")
def check(
    settings: Settings,
    folders: Annotated[
        list[str] | None,
        typer.Argument(metavar="DIR", help="Folders of the descriptors. Default: --catalog.", show_default=False),
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
    """Check the sources of the catalogue: report every mistake with file, key and fix; then each tool's effective policy.

    With several sources it also reports what is shadowed: of two tools with one name, that of the first source is used.

    The effective policy lists the guards that are on, the attempts of a call and the reason, the routing of requests, and
    each value with its source: default, user (--policy), service or tool, where later sources override earlier ones.
    Tools with permissions that no grant (--grants) matches are reported.

    [bold]dispatch check tools/[/bold]

    [bold]dispatch check tools/ more-tools/ --trustgraph --broker pulsar://localhost:6650[/bold]

    [bold]dispatch check tools/ --tool tell-joke --policy mine.json[/bold]

    The exit code is 1 if there is an error; warnings and notes do not count. A broker is used only with --trustgraph.
    """
    from dispatch.cli.catalog.checked_source import list_checked_sources
    from dispatch.cli.catalog.given_sources import read_given_sources
    from dispatch.cli.exit_codes import CliError, Exit
    from dispatch.cli.policy_file import check_policy_file
    from dispatch.cli.views.grants_check import check_grants

    if folders:
        settings.catalog = folders
    snapshot = read_given_sources(settings, "dispatch check")
    sources = list_checked_sources(snapshot)
    problems: list[Problem] = []
    catalog = None if snapshot.failures else snapshot.catalog
    user: Mapping[str, Any] | None = {}
    if settings.policy_file is not None:
        user, wrong = check_policy_file(settings.policy_file)
        problems += wrong
    if catalog is not None:
        problems += check_grants(catalog, settings.grants_file)
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
    everything = [problem for source in sources for problem in source.problems] + problems
    failed = any(problem.severity == "error" for problem in everything)
    if plan is PlanDetail.NONE:
        plans = None
    if json:
        _put_json(sources, catalog, problems, plans, failed=failed)
    else:
        for source in sources:
            for problem in source.problems:
                _show(problem)
            if len(sources) > 1:
                print_out(source.summary(source.problems))
        for problem in problems:
            _show(problem)
        print_out(sources[0].summary(everything) if len(sources) == 1 else _format_total(catalog, everything))
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
    sources: Sequence[CheckedSource],
    catalog: Catalog | None,
    problems: list[Problem],
    plans: list[ToolPlan] | None,
    *,
    failed: bool,
) -> None:
    from dispatch.cli.views.policy import as_json

    print_json(
        {
            "sources": [source.as_dict() for source in sources],
            "ok": not failed,
            "services": None if catalog is None else len(catalog.services),
            "tools": None if catalog is None else len(catalog.tools),
            "problems": [
                {"source": id, **msgspec.to_builtins(problem)}
                for id, found in (*((source.id, source.problems) for source in sources), ("", problems))
                for problem in found
            ],
            "plan": as_json(plans),
        }
    )


def _show(problem: Problem) -> None:
    where = f"{problem.file}: {problem.key}" if problem.key else problem.file
    severity = colorize(f"{problem.severity}:", _STYLES[problem.severity], sys.stdout)
    print_out(f"{severity} {make_printable(where)}: {make_printable(problem.problem)}")
    print_out(f"  fix: {make_printable(problem.fix)}")


def _format_total(catalog: Catalog | None, problems: list[Problem]) -> str:
    from dispatch.cli.catalog.checked_source import format_summary

    counts = None if catalog is None else (len(catalog.services), len(catalog.tools))
    return format_summary("all sources", problems, counts)


def _show_plans(plans: list[ToolPlan], *, full: bool) -> None:
    from dispatch.cli.views.policy import UNITS, format_defaults, format_details, format_summary

    for each in plans:
        print_out("")
        print_out(format_details(each) if full else format_summary(each))
    print_out("")
    print_out(UNITS if full else format_defaults())
