"""``dispatch rules export``: rules for Prometheus, and those of a catalogue's promises."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dispatch.cli.output import printable, put, put_json
from dispatch.cli.settings import Settings, takes

if TYPE_CHECKING:
    from dispatch.policy import Slo

DEFAULT_FOLDER = "dispatch-rules"

app = typer.Typer(
    help="Recording rules and alerts for Prometheus.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    add_completion=False,
)


@app.callback()
def rules() -> None:
    """Without it a group of one command would be that command."""


@app.command()
@takes("catalog", "policy")
def export(
    settings: Settings,
    folder: Annotated[
        str,
        typer.Argument(metavar="[DIR]", help=f"Where to write. Default: {DEFAULT_FOLDER}.", show_default=False),
    ] = DEFAULT_FOLDER,
    grafana: Annotated[
        str,
        typer.Option(
            "--grafana", metavar="URL", help="Where your Grafana is, for the alerts' links.", show_default=False
        ),
    ] = "",
    json: Annotated[bool, typer.Option("--json", help="What was written, as one line of JSON.")] = False,
) -> None:
    """Write rules for Prometheus: recording.yml and alerts.yml for all tools, slo.yml for what your tools promise.

    A tool promises something when its policy has 'slo'; an 'slo' in --policy is that of every tool that has none of its own.
    Without a catalogue there is no slo.yml. docs/how-to/runbook.md says what each alert means and what to do.

    [bold]dispatch rules export /etc/prometheus/dispatch --catalog tools/ --grafana https://grafana.example.org[/bold]

    Run it again when the catalogue has changed, and have Prometheus reload its rules.
    """
    from dispatch.cli.exit_codes import CliError
    from dispatch.telemetry.alerting.rule_files import SLO, YamlMissingError, render_rule_files
    from dispatch.telemetry.alerting.slo import describe_slo

    promised = _promises(settings)
    try:
        made = render_rule_files(promised, grafana)
    except YamlMissingError as missing:
        raise CliError(f"{missing}.") from None
    where = Path(folder)
    where.mkdir(parents=True, exist_ok=True)
    for name, text in made.items():
        (where / name).write_text(text, encoding="utf-8")
    stale = promised is not None and SLO not in made and (where / SLO).is_file()
    if stale:
        (where / SLO).unlink()
    if json:
        said = {label: describe_slo(slo) for label, slo in (promised or {}).items()}
        put_json({"folder": str(where), "files": list(made), "removed": [SLO] if stale else [], "promises": said})
        return
    for name in made:
        put(f"{printable(str(where / name))}: written")
    _say_promises(promised, where / SLO, stale=stale)
    put(f"For prometheus.yml:  rule_files: ['{printable(str(where.resolve()))}/*.yml']")


def _promises(settings: Settings) -> Mapping[str, Slo] | None:
    """None: there is no catalogue to look at."""
    from dispatch.telemetry.alerting.burn_rate import collect_slos

    user = settings.policy_keys()
    return None if settings.catalog_folder is None else collect_slos(settings.load_catalog(), user=user)


def _say_promises(promised: Mapping[str, Slo] | None, file: Path, *, stale: bool) -> None:
    from dispatch.telemetry.alerting.burn_rate import list_unpageable_objectives
    from dispatch.telemetry.alerting.slo import describe_slo

    if promised is None:
        put("No catalogue, so no slo.yml: give the folder of your descriptors by --catalog DIR.")
        return
    if stale:
        put(f"{printable(str(file))}: removed")
    if not promised:
        put("There is no slo.yml: no tool has an objective ('slo' in its policy, docs/how-to/choose-a-policy.md).")
    for label, slo in promised.items():
        put(f"  {printable(label)}: {describe_slo(slo)}")
        for what in list_unpageable_objectives(slo):
            put(f"    {what} allows so much that nobody is woken, whatever happens: only tickets come of it.")
