"""``dispatch toolkit show|recommend|draw``: a toolkit file as a list, as a recommendation and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dispatch._internal import find_near_names
from dispatch.cli.base import (
    CliError,
    Json,
    Settings,
    format_count,
    make_group,
    make_printable,
    print_json,
    print_out,
    with_settings,
)
from dispatch.documents import replace_file

if TYPE_CHECKING:
    from dispatch.toolkit import Toolkit


app = make_group("Show a toolkit file: its graph of actions and tools, recommendations, pictures.")

File = Annotated[str, typer.Argument(metavar="FILE", help="Toolkit in YAML.")]


@app.command()
@with_settings()
def show(settings: Settings, file: File, json: Json = False) -> None:
    """List the actions of a toolkit file with the actions that follow and the tools; then the groups of tools.

    Mistakes in the file are reported with key and fix. No module is imported and no server is contacted.

    [bold]dispatch toolkit show toolkit.yml[/bold]
    """
    _show(_load(file), as_json=json)


@app.command()
@with_settings()
def recommend(
    settings: Settings,
    file: File,
    actions: list[str],
    threshold: Annotated[float | None, typer.Option(min=0, max=1)] = None,
    hops: Annotated[int | None, typer.Option(min=0)] = None,
    json: Json = False,
) -> None:
    """List the actions and tools within reach of some actions.

    [bold]dispatch toolkit recommend toolkit.yml research --hops 2 --threshold 0.6[/bold]

    Args:
        actions (ACTION...): Ids or names of actions.
        threshold (SCORE): Smallest score of an edge. Default: 0.5.
        hops (N): Steps to actions that follow. Default: 0.
    """
    toolkit = _load(file)
    from dispatch.toolkit import ToolkitService

    known = {id: action for id, _ in toolkit.vertices_data() if (action := toolkit.get_action(id)) is not None}
    by_name = {action.name: action for action in known.values()} | known
    for name in actions:
        if name not in by_name:
            near = find_near_names(name, by_name, 1)
            fix = f"write {near[0]!r}" if near else "list the actions: dispatch toolkit show FILE"
            raise CliError(f"There is no action {make_printable(repr(name))} in the toolkit.", fix)
    given = {"threshold": threshold, "hops": hops}
    options: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    found = ToolkitService(toolkit).recommend_subgraph([by_name[name] for name in actions], **options)
    _show(found, as_json=json)


@app.command()
@with_settings()
def draw(settings: Settings, file: File, output: str = "") -> None:
    """Draw a toolkit file: actions, tools and groups, with the score of each edge.

    [bold]dispatch toolkit draw toolkit.yml --output toolkit.png[/bold]

    Args:
        output (PICTURE): Output file: .png, .svg or .pdf (needs the extra 'draw'), .mmd (Mermaid) or .graphml. Default:
            FILE with .svg.
    """
    toolkit = _load(file)
    from dispatch.toolkit import ToolkitService, render_graphml, render_mermaid

    target = Path(output) if output else Path(file).with_suffix(".svg")
    if target.suffix == ".mmd":
        replace_file(target, render_mermaid(toolkit))
    elif target.suffix == ".graphml":
        replace_file(target, render_graphml(toolkit))
    elif target.suffix in (".png", ".svg", ".pdf"):
        try:
            ToolkitService().visualize(toolkit, Path(file).name).savefig(target)
        except (ImportError, ValueError) as error:
            raise CliError(str(error)) from None
    else:
        raise CliError(
            f"{make_printable(repr(target.suffix))} is no format of pictures.", "use .png, .svg, .pdf, .mmd or .graphml"
        )
    print_out(f"{make_printable(str(target))}: written")


def _load(file: str) -> Toolkit:
    """Read a file. Call it before an import of the package: it reports a missing extra."""
    try:
        from dispatch.toolkit import Toolkit
    except ImportError as error:
        raise CliError(str(error)) from None
    return Toolkit.load(file)


def _show(toolkit: Toolkit, *, as_json: bool) -> None:
    actions = [_describe_action(toolkit, id) for id in toolkit.vertices() if toolkit.is_action(id)]
    groups = {
        group.name: [_name(toolkit, tool) for tool in toolkit.successors(id)]
        for id in toolkit.vertices()
        if (group := toolkit.get_tool_group(id)) is not None
    }
    tools = sorted(_name(toolkit, id) for id in toolkit.vertices() if toolkit.is_tool(id))
    if as_json:
        print_json({"actions": actions, "tools": tools, "groups": groups})
        return
    for action in actions:
        print_out(make_printable(action["name"]))
        for kind in ("next", "tools"):
            for each in action[kind]:
                print_out(f"  {kind:5}  {each['score']:.2f}  {make_printable(each['name'])}")
    for name, members in groups.items():
        print_out(f"{make_printable(name)} (group): {make_printable(', '.join(members))}")
    counts = (
        format_count(len(actions), "action"),
        format_count(len(tools), "tool"),
        format_count(len(groups), "group"),
    )
    print_out(", ".join(counts))


def _describe_action(toolkit: Toolkit, id: str) -> dict[str, Any]:
    edges = sorted(toolkit.successors(id), key=lambda v: -toolkit.get_score(id, v))
    scored = [(v, {"name": _name(toolkit, v), "score": toolkit.get_score(id, v)}) for v in edges]
    return {
        "id": id,
        "name": _name(toolkit, id),
        "next": [each for v, each in scored if toolkit.is_action(v)],
        "tools": [each for v, each in scored if toolkit.is_tool(v)],
    }


def _name(toolkit: Toolkit, id: str) -> str:
    data = toolkit.get_data(id)
    return id if data is None else data.name
