"""``dispatch dashboards list|export``: dashboards for import into Grafana."""

from __future__ import annotations

import json as standard_json
from pathlib import Path
from typing import Annotated, Any

import typer

from dispatch.cli.base import CliError, Settings, make_printable, print_json, print_out, with_settings

DEFAULT_FOLDER = "dispatch-dashboards"

app = typer.Typer(
    help="List and export dashboards for Grafana.", no_args_is_help=True, rich_markup_mode="rich", add_completion=False
)

Json = Annotated[bool, typer.Option("--json", help="Print the result as one line of JSON.")]


@app.command("list")
@with_settings()
def list_(settings: Settings, json: Json = False) -> None:
    """List the dashboards with their descriptions and panels."""
    dashboards = _dashboards()
    if json:
        print_json([_describe(dashboard) for dashboard in dashboards.values()])
        return
    for name, dashboard in dashboards.items():
        description = _describe(dashboard)
        print_out(f"{name}: {description['title']}")
        print_out(f"  {description['description']}")
        print_out(f"  {len(description['panels'])} panels: {', '.join(description['panels'])}")


@app.command()
@with_settings()
def export(
    settings: Settings,
    folder: Annotated[
        str, typer.Argument(metavar="DIR", help=f"Output folder. Default: {DEFAULT_FOLDER}.", show_default=False)
    ] = DEFAULT_FOLDER,
    json: Json = False,
) -> None:
    """Write the dashboards as JSON, one file each.

    In Grafana: Dashboards, New, Import; or configure the folder as a provider. A variable at the top selects the Prometheus
    data source. docs/how-to/dashboards.md shows the dashboards.

    [bold]dispatch dashboards export[/bold] writes to dispatch-dashboards/.

    [bold]dispatch dashboards export /var/lib/grafana/dashboards/dispatch[/bold]
    """
    where = Path(folder)
    where.mkdir(parents=True, exist_ok=True)
    names = [path.name for path in _files()]
    for path in _files():
        (where / path.name).write_bytes(path.read_bytes())
    if json:
        print_json({"folder": str(where), "files": names})
        return
    for name in names:
        print_out(f"{make_printable(str(where / name))}: written")
    print_out("In Grafana: Dashboards, New, Import. Rules and alerts for Prometheus: dispatch rules export")


def _files() -> list[Path]:
    """List the JSON files: inside the installed package, or beside it in a clone."""
    package = Path(__file__).parents[1]
    for folder in (package / "dashboards", package.parent / "dashboards" / "json"):
        found = sorted(folder.glob("dispatch-*.json"))
        if found:
            return found
    raise CliError(
        "The dashboards were not found.", "install tool-dispatch from a wheel, or run inside a clone of the repository"
    )


def _dashboards() -> dict[str, dict[str, Any]]:
    return {path.name: standard_json.loads(path.read_text(encoding="utf-8")) for path in _files()}


def _describe(dashboard: dict[str, Any]) -> dict[str, Any]:
    panels = [panel["title"] for panel in dashboard["panels"] if panel["type"] != "row"]
    return {
        "uid": dashboard["uid"],
        "title": dashboard["title"],
        "description": dashboard["description"],
        "panels": panels,
    }
