"""``dispatch rules export``: Prometheus rules, including error budgets of a catalogue's tools."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from dispatch.cli.base import CliError, Settings, make_printable, print_json, print_out, with_settings
from dispatch.cli.sources import load_catalog
from dispatch.policy import Slo
from dispatch.telemetry.rules import (
    SLO,
    collect_slos,
    describe_slo,
    list_unpageable_objectives,
    render_rule_files,
)

DEFAULT_FOLDER = "dispatch-rules"

app = typer.Typer(
    help="Export recording rules and alerts for Prometheus.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    add_completion=False,
)


@app.callback()
def rules() -> None:
    """Keep ``export`` a subcommand: typer merges a group of a single command."""


@app.command()
@with_settings("catalog", "policy")
def export(
    settings: Settings,
    folder: Annotated[
        str, typer.Argument(metavar="DIR", help=f"Output folder. Default: {DEFAULT_FOLDER}.", show_default=False)
    ] = DEFAULT_FOLDER,
    grafana: Annotated[
        str, typer.Option("--grafana", metavar="URL", help="Base URL of Grafana for links in alerts.")
    ] = "",
    json: Annotated[bool, typer.Option("--json", help="Print the result as one line of JSON.")] = False,
) -> None:
    """Write Prometheus rules: recording.yml and alerts.yml for all tools, slo.yml for tools with an objective.

    An objective is the key 'slo' in a tool's policy; 'slo' in --policy applies to every tool without its own. Without a
    catalogue there is no slo.yml. docs/how-to/runbook.md explains each alert.

    [bold]dispatch rules export[/bold] writes to dispatch-rules/.

    [bold]dispatch rules export /etc/prometheus/dispatch --catalog tools/ --grafana https://grafana.example.org[/bold]

    Run it again after a change of the catalogue, and reload the rules in Prometheus.
    """
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
        (where / name).write_text(text, encoding="utf-8")
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
