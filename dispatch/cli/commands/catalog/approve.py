"""``dispatch tools approve``: approve changed definitions."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dispatch.cli.output import make_printable, print_json, print_out
from dispatch.cli.settings import Settings, with_settings

if TYPE_CHECKING:
    from dispatch.cli.catalog.approval import HeldDefinition


@with_settings("broker", "catalog", "trustgraph", "workspace", "approvals", "token_file", "trust_certs")
def approve(
    settings: Settings,
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME", help="Tools or services whose present definition is approved.", show_default=False
        ),
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Approve without a question.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print what was approved as one line of JSON; needs --yes.")
    ] = False,
) -> None:
    """Approve the present definition of tools or services of sources that hold changes (on_change="hold").

    Shows what changes: the fingerprints, and the definition as the source delivers it now. Dispatchers with this file
    (connect(approvals=FILE)) put it in force within two seconds. The former approval of the name is withdrawn. A changed
    service of a tool is approved with the tool.

    List the held definitions: [bold]dispatch tools --approvals approvals.json --all[/bold]

    [bold]dispatch tools approve tell-joke --approvals approvals.json[/bold]

    [bold]dispatch tools approve tell-joke sing --approvals approvals.json --trustgraph --yes[/bold]
    """
    from dispatch.catalog.live.approvals import Approvals, ApprovalsError
    from dispatch.cli.catalog.approval import find_held, load_approved, select_held
    from dispatch.cli.catalog.given_sources import read_given_sources
    from dispatch.cli.exit_codes import CliError, Exit

    file = settings.approvals_file
    if file is None:
        raise CliError("No file of approved definitions.", "name that of connect(approvals=FILE) with --approvals FILE")
    approved = load_approved(file)
    snapshot = read_given_sources(settings, "dispatch tools approve").require_all()
    held = select_held(names, list(find_held(snapshot.catalog, approved)), snapshot.catalog, file)
    if not json:
        for each in held:
            _show(each)
    if not yes:
        if json or not sys.stdin.isatty():
            raise CliError("Nothing was approved: there is no terminal for the question.", "check, then give --yes")
        typer.confirm("Approve?", abort=True)
    try:
        Approvals(file).add({each.key: frozenset(each.present) for each in held})
    except ApprovalsError as error:
        raise CliError(str(error), code=Exit.FAILED) from None
    if json:
        print_json({"file": file, "approved": [_as_dict(each) for each in held]})
    else:
        print_out(f"{make_printable(file)}: approved {', '.join(each.key for each in held)}.")


def _show(held: HeldDefinition) -> None:
    import json

    print_out(f"{held.key}{f' of {held.source}' if held.source else ''}")
    for print in sorted(held.approved.difference(held.present)):
        print_out(f"  - {print}")
    for print in held.waiting:
        print_out(f"  + {print}")
    for definition in _definitions(held):
        print_out(make_printable(json.dumps(definition, indent=2, ensure_ascii=False)))


def _definitions(held: HeldDefinition) -> list[Any]:
    import msgspec

    return [
        msgspec.to_builtins(version)
        for version, print in zip(held.versions, held.present, strict=True)
        if print in held.waiting
    ]


def _as_dict(held: HeldDefinition) -> dict[str, Any]:
    return {
        "kind": held.kind,
        "name": held.name,
        "source": held.source,
        "old": sorted(held.approved),
        "new": list(held.present),
        "definitions": _definitions(held),
    }
