"""``dispatch mirror``: write announced tools into TrustGraph's configuration."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from typing import Annotated

import typer

from dispatch.announcements.messages import DEFAULT_TOPIC
from dispatch.announcements.source import Announced
from dispatch.cli.base import (
    CliError,
    Settings,
    make_printable,
    print_err,
    print_json,
    print_out,
    run_async,
    with_settings,
)
from dispatch.cli.sources import connect_sources, make_trustgraph_config
from dispatch.trustgraph.config import ALL_WORKSPACES
from dispatch.trustgraph.mirror import Mirror, Place


@with_settings("broker", "token_file", "trust_certs", "trustgraph", "workspace", "trust")
def mirror(
    settings: Settings,
    topic: Annotated[
        str,
        typer.Option("--topic", metavar="TOPIC", envvar="DISPATCH_ANNOUNCEMENTS", help="Topic of the announcements."),
    ] = DEFAULT_TOPIC,
    json: Annotated[bool, typer.Option("--json", help="Report each change as one line of JSON.")] = False,
) -> None:
    """Write announced tools into TrustGraph's configuration, so that its agents see them, and remove them again.

    [bold]dispatch mirror --trustgraph[/bold]

    It runs until SIGTERM or Ctrl-C, and leaves what it has written. Items that others have written are neither changed nor
    removed. Of several versions of a tool TrustGraph's agents get the highest one.
    """
    workspace = settings.trustgraph_workspace
    if workspace is None:
        raise CliError("No target is given.", "add --trustgraph, or --workspace NAME")
    if workspace == ALL_WORKSPACES:
        raise CliError("The tools are written to one workspace.", "name it with --workspace NAME")
    config = make_trustgraph_config(workspace)
    announced = Announced(settings.load_trust(), topic=topic)

    def report(written: Sequence[Place], removed: Sequence[Place]) -> None:
        if json:
            if written or removed:
                print_json({"written": [*map("/".join, written)], "removed": [*map("/".join, removed)]})
            return
        for verb, places in (("written", written), ("removed", removed)):
            for kind, key in places:
                print_out(make_printable(f"{kind}/{key}: {verb}."))

    async def run() -> None:
        async with connect_sources(settings, [config, announced], "dispatch mirror"):
            print_err(f"Mirroring {topic} into workspace '{workspace}'. Ctrl-C ends it and leaves what it has written.")
            following = asyncio.create_task(Mirror(announced, config, report).follow())
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, following.cancel)
            try:
                await following
            except asyncio.CancelledError:
                if not following.cancelled():
                    raise

    run_async(run())
