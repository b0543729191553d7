"""``dispatch export``: write the generated descriptors of functions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from dispatch.cli.base import (
    CliError,
    Settings,
    make_printable,
    print_json,
    print_out,
    print_warning,
    with_settings,
)
from dispatch.cli.items import ItemSource, open_source, run_on_source
from dispatch.cli.targets import load_target, name_target
from dispatch.functions.sources import CONFIG_PARAM
from dispatch.server import ToolServer


@with_settings("broker", "token_file", "trust_certs", "trustgraph", "workspace")
def export(
    settings: Settings,
    targets: Annotated[
        list[str], typer.Argument(metavar="TARGET", help="Module or file of functions, as of 'dispatch serve'.")
    ],
    to: Annotated[
        str | None, typer.Option("--to", metavar="DIR", help="Folder of descriptors, created if missing.")
    ] = None,
    service: Annotated[
        str | None,
        typer.Option(
            "--service",
            metavar="NAME",
            envvar="DISPATCH_SERVICE",
            help="Name of the service, as of 'dispatch serve'. Default: the name of the file or module.",
        ),
    ] = None,
) -> None:
    """Write the descriptors of functions that 'dispatch serve' serves.

    [bold]dispatch export shop.py --to tools[/bold]

    [bold]dispatch export shop.py --trustgraph[/bold] writes them to the configuration that TrustGraph's agents read.

    Without --to and --trustgraph they are printed, as one line of JSON for each service. A tool that is no longer among the
    functions stays, with a warning.
    """
    if len(targets) > 1 and service:
        raise CliError("--service names one service, and there are several targets.", "leave it out")
    if to is not None:
        settings.catalog = [to]
    exported = []
    for target in targets:
        loaded = load_target(target)
        if not loaded.functions:
            raise CliError(f"'{target}' is a service class, whose descriptors are not generated.", "name functions")
        name = service or name_target(target)
        exported.append(ToolServer(None, "memory://", functions=loaded.functions, service=name).descriptors)
    if to is None and settings.trustgraph_workspace is None:
        for each in exported:
            print_json({"service": each.service, "tools": each.tools})
        return
    if to is not None:
        os.makedirs(to, exist_ok=True)
    source = open_source(settings, "dispatch export")

    async def write() -> list[str]:
        lines = []
        for described in exported:
            lines += await _write_service(source, described.service, described.tools)
        return lines

    for line in run_on_source(settings, source, "dispatch export", write):
        print_out(make_printable(line))


async def _write_service(source: ItemSource, service: dict[str, Any], tools: Sequence[dict[str, Any]]) -> list[str]:
    """Write the descriptors, and return a line for each. Warn of tools of the service that are not among them."""
    await source.put("tool-service", service, key=service["id"])
    keys = {tool[CONFIG_PARAM]: tool for tool in tools}
    for key, tool in keys.items():
        await source.put("tool", tool, key=key)
    for key in await source.list("tool"):
        raw = None if key in keys else await source.get("tool", key)
        if isinstance(raw, dict) and raw.get("service") == service["id"]:
            print_warning(f"tool/{key} is not among the functions. Remove it: dispatch rm tool/{key}")
    return [f"tool-service/{service['id']}: written.", *(f"tool/{key}: written." for key in keys)]
