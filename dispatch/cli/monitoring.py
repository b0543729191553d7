"""``dispatch dashboards list|export`` and ``dispatch rules export``: files for Grafana and Prometheus."""

from __future__ import annotations

import json as standard_json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from dispatch.cli.base import (
    CliError,
    Json,
    Settings,
    make_group,
    make_printable,
    print_json,
    print_out,
    print_result,
    with_settings,
)
from dispatch.cli.sources import load_catalog
from dispatch.documents import replace_file
from dispatch.policy import Slo
from dispatch.telemetry.rules import SLO, collect_slos, describe_slo, list_unpageable_objectives, render_rule_files

DASHBOARDS_FOLDER = "dispatch-dashboards"

dashboards_app = make_group("List and export dashboards for Grafana.")


@dashboards_app.command("list")
@with_settings()
def list_dashboards(settings: Settings, json: Json = False) -> None:
    """List the dashboards with their descriptions and panels."""
    dashboards = _read_dashboards()
    if json:
        print_json([_describe_dashboard(dashboard) for dashboard in dashboards.values()])
        return
    for name, dashboard in dashboards.items():
        description = _describe_dashboard(dashboard)
        print_out(f"{name}: {description['title']}")
        print_out(f"  {description['description']}")
        print_out(f"  {len(description['panels'])} panels: {', '.join(description['panels'])}")


@dashboards_app.command("export")
@with_settings()
def export_dashboards(
    settings: Settings,
    folder: Annotated[str, typer.Argument(show_default=False)] = DASHBOARDS_FOLDER,
    json: Json = False,
) -> None:
    """Write the dashboards as JSON, one file each.

    In Grafana: Dashboards, New, Import; or configure the folder as a provider. A variable at the top selects the Prometheus
    data source. docs/how-to/dashboards.md shows the dashboards.

    [bold]dispatch dashboards export[/bold] writes to dispatch-dashboards/.

    [bold]dispatch dashboards export /var/lib/grafana/dashboards/dispatch[/bold]

    Args:
        folder (DIR): Output folder. Default: dispatch-dashboards.
    """
    where = Path(folder)
    where.mkdir(parents=True, exist_ok=True)
    names = [path.name for path in _list_dashboard_files()]
    for path in _list_dashboard_files():
        replace_file(where / path.name, path.read_text(encoding="utf-8"))
    lines = [f"{make_printable(str(where / name))}: written" for name in names]
    lines.append("In Grafana: Dashboards, New, Import. Rules and alerts for Prometheus: dispatch rules export")
    print_result({"folder": str(where), "files": names}, "\n".join(lines), json=json)


def _list_dashboard_files() -> list[Path]:
    """List the JSON files: inside the installed package, or beside it in a clone."""
    package = Path(__file__).parents[1]
    for folder in (package / "dashboards", package.parent / "dashboards" / "json"):
        found = sorted(folder.glob("dispatch-*.json"))
        if found:
            return found
    raise CliError(
        "The dashboards were not found.", "install tool-dispatch from a wheel, or run inside a clone of the repository"
    )


def _read_dashboards() -> dict[str, dict[str, Any]]:
    return {path.name: standard_json.loads(path.read_text(encoding="utf-8")) for path in _list_dashboard_files()}


def _describe_dashboard(dashboard: dict[str, Any]) -> dict[str, Any]:
    panels = [panel["title"] for panel in dashboard["panels"] if panel["type"] != "row"]
    return {
        "uid": dashboard["uid"],
        "title": dashboard["title"],
        "description": dashboard["description"],
        "panels": panels,
    }


# Prometheus rules, including error budgets of a catalogue's tools.


RULES_FOLDER = "dispatch-rules"

rules_app = make_group("Export recording rules and alerts for Prometheus.")


@rules_app.callback()
def rules() -> None:
    """Keep ``export`` a subcommand: typer merges a group of a single command."""


@rules_app.command("export")
@with_settings("catalog", "policy")
def export_rules(
    settings: Settings,
    folder: Annotated[str, typer.Argument(show_default=False)] = RULES_FOLDER,
    grafana: str = "",
    json: Json = False,
) -> None:
    """Write Prometheus rules: recording.yml and alerts.yml for all tools, slo.yml for tools with an objective.

    An objective is the key 'slo' in a tool's policy; 'slo' in --policy applies to every tool without its own. Without a
    catalogue there is no slo.yml. docs/how-to/runbook.md explains each alert.

    [bold]dispatch rules export[/bold] writes to dispatch-rules/.

    [bold]dispatch rules export /etc/prometheus/dispatch --catalog tools/ --grafana https://grafana.example.org[/bold]

    Run it again after a change of the catalogue, and reload the rules in Prometheus.

    Args:
        folder (DIR): Output folder. Default: dispatch-rules.
        grafana (URL): Base URL of Grafana for links in alerts.
    """
    if grafana and not grafana.startswith(("http://", "https://", "/", "{{")):
        raise CliError(f"--grafana '{grafana}' is no URL.", f"write http://{grafana} or https://{grafana}")
    user = settings.policy_keys()
    slos = collect_slos(load_catalog(settings), user=user) if settings.catalog_folders else None  # None: no catalogue
    try:
        files = render_rule_files(slos, grafana)
    except FileNotFoundError:
        raise CliError(
            "The rules were not found.", "install tool-dispatch from a wheel, or run inside a clone of the repository"
        ) from None
    where = Path(folder)
    where.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        replace_file(where / name, text)
    stale = slos is not None and SLO not in files and (where / SLO).is_file()
    if stale:
        (where / SLO).unlink()
    if json:
        objectives = {label: describe_slo(slo) for label, slo in (slos or {}).items()}
        print_json(
            {"folder": str(where), "files": list(files), "removed": [SLO] if stale else [], "objectives": objectives}
        )
        return
    for name in files:
        print_out(f"{make_printable(str(where / name))}: written")
    _print_slos(slos, where / SLO, stale=stale)
    print_out(f"For prometheus.yml:  rule_files: ['{make_printable(str(where.resolve()))}/*.yml']")


def _print_slos(slos: Mapping[str, Slo] | None, file: Path, *, stale: bool) -> None:
    if slos is None:
        print_out("No slo.yml: it needs a catalogue. Name the folder of your descriptors with --catalog DIR.")
        return
    if stale:
        print_out(f"{make_printable(str(file))}: removed")
    if not slos:
        print_out("No slo.yml: no tool has an objective ('slo' in its policy, docs/how-to/choose-a-policy.md).")
    for label, slo in slos.items():
        print_out(f"  {make_printable(label)}: {describe_slo(slo)}")
        for what in list_unpageable_objectives(slo):
            print_out(f"    {what} allows so many bad calls that it can raise tickets but never page.")
