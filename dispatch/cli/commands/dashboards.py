"""``dispatch dashboards list|export``: dashboards for Grafana, ready to be imported."""

from __future__ import annotations

import json as standard_json
from pathlib import Path
from typing import Annotated, Any

import typer

from dispatch.cli.output import printable, put, put_json
from dispatch.cli.settings import Settings, takes

DEFAULT_FOLDER = "dispatch-dashboards"

app = typer.Typer(
    help="Dashboards for Grafana.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    add_completion=False,
)

Json = Annotated[bool, typer.Option("--json", help="The same as one line of JSON.")]


@app.command("list")
@takes()
def list_(settings: Settings, json: Json = False) -> None:
    """List the dashboards: what each one shows, and the panels on it."""
    made = _dashboards()
    if json:
        put_json([_told(dashboard) for dashboard in made.values()])
        return
    for name, dashboard in made.items():
        told = _told(dashboard)
        put(f"{name}: {told['title']}")
        put(f"  {told['description']}")
        put(f"  {len(told['panels'])} panels: {', '.join(told['panels'])}")


@app.command()
@takes()
def export(
    settings: Settings,
    folder: Annotated[
        str,
        typer.Argument(metavar="[DIR]", help=f"Where to write. Default: {DEFAULT_FOLDER}.", show_default=False),
    ] = DEFAULT_FOLDER,
    json: Json = False,
) -> None:
    """Write the dashboards as JSON, one file each.

    In Grafana: Dashboards, New, Import; or have Grafana read the folder (provisioning). Which Prometheus they ask is picked
    at their top. docs/how-to/dashboards.md shows them, panel by panel.

    [bold]dispatch dashboards export /var/lib/grafana/dashboards/dispatch[/bold]
    """
    where = Path(folder)
    where.mkdir(parents=True, exist_ok=True)
    names = [path.name for path in _files()]
    for path in _files():
        (where / path.name).write_bytes(path.read_bytes())
    if json:
        put_json({"folder": str(where), "files": names})
        return
    for name in names:
        put(f"{printable(str(where / name))}: written")
    put("In Grafana: Dashboards, New, Import. Rules and alerts for Prometheus: dispatch rules export")


def _files() -> list[Path]:
    """Where they are: with an installed package within it, in a clone of the repository beside it."""
    from dispatch.cli.exit_codes import CliError

    package = Path(__file__).parents[2]
    for folder in (package / "dashboards", package.parent / "dashboards" / "json"):
        found = sorted(folder.glob("dispatch-*.json"))
        if found:
            return found
    raise CliError(
        "The dashboards are not here.", "install tool-dispatch from a wheel, or run in a clone of the repository"
    )


def _dashboards() -> dict[str, dict[str, Any]]:
    return {path.name: standard_json.loads(path.read_text(encoding="utf-8")) for path in _files()}


def _told(dashboard: dict[str, Any]) -> dict[str, Any]:
    panels = [panel["title"] for panel in dashboard["panels"] if panel["type"] != "row"]
    return {
        "uid": dashboard["uid"],
        "title": dashboard["title"],
        "description": dashboard["description"],
        "panels": panels,
    }
