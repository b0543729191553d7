"""``dispatch find``: the tools of all sources that fit a query."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dispatch.cli.output import align_columns, make_printable, print_json, print_out
from dispatch.cli.settings import Settings, with_settings
from dispatch.search.tool_search import DEFAULT_LIMIT

if TYPE_CHECKING:
    from dispatch.catalog import Catalog, ToolDescriptor
    from dispatch.search.tool_search import RankedTool


@with_settings("broker", "catalog", "trustgraph", "workspace", "token_file", "trust_certs")
def find(
    settings: Settings,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What a tool should do, in words.", show_default=False)],
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="Tools to show.")] = DEFAULT_LIMIT,
    category: Annotated[str | None, typer.Option("--category", help="Of this category.", show_default=False)] = None,
    tag: Annotated[
        list[str] | None, typer.Option("--tag", help="With this tag; several: with one of them.", show_default=False)
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the tools as one line of JSON, best first.")] = False,
) -> None:
    """Find the tools of the catalogue that fit a query best, by meaning and by words, and say why.

    Search by meaning needs the extra [bold]search[/bold]; without it words alone decide. If no tool matches, the first
    tools of the catalogue are shown with score 0.

    [bold]dispatch find "something funny about cats"[/bold]

    [bold]dispatch find "convert money" --catalog tools --tag finance --limit 3 --json[/bold]
    """
    from dispatch.cli.catalog.given_sources import read_given_sources
    from dispatch.cli.run_async import run_async

    catalog = read_given_sources(settings, "dispatch find").require_all().log_warnings().catalog
    tools = {tool.name: tool for tool in catalog.list(category=category, tags_any=tag or ())}
    found = run_async(_search(catalog, query, tools, limit))
    if json:
        print_json(
            [
                {"name": tool.name, "score": round(score, 4), "why": why, "description": tool.description}
                for tool, score, why in found
            ]
        )
    elif found:
        rows = [
            (tool.name, f"{score:.2f}", make_printable(why), make_printable(tool.description))
            for tool, score, why in found
        ]
        print_out(align_columns([("TOOL", "SCORE", "WHY", "DESCRIPTION"), *rows]))
    else:
        print_out("No tool meets these conditions.")


async def _search(catalog: Catalog, query: str, tools: dict[str, ToolDescriptor], limit: int) -> list[RankedTool]:
    from dispatch.search import ToolSearch

    search = ToolSearch(lambda: catalog)
    try:
        await search.refresh()
        return await search.rank(query, tools, limit)
    finally:
        await search.close()
