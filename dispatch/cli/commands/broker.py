"""``dispatch broker start|stop|status``: a genuine local Pulsar for development."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from dispatch.cli.output import paint, put, put_json, say
from dispatch.cli.settings import Settings, takes

if TYPE_CHECKING:
    from dispatch.devtools.localbroker import State

app = typer.Typer(
    help="A genuine local Pulsar for development: start, stop, look.", no_args_is_help=True, rich_markup_mode="rich"
)

Json = Annotated[bool, typer.Option("--json", help="Where it is, as one line of JSON.")]


@app.command()
@takes()
def start(
    settings: Settings,
    port: Annotated[
        int | None,
        typer.Option("--port", min=0, max=65535, help="For clients; 0: any free one.", show_default="6650"),
    ] = None,
    web_port: Annotated[
        int | None,
        typer.Option(
            "--web-port", min=0, max=65535, help="For the admin interface; 0: any free one.", show_default="8080"
        ),
    ] = None,
    wipe: Annotated[bool, typer.Option("--wipe", help="Begin without the data of earlier starts.")] = False,
    json: Json = False,
) -> None:
    """Start a broker that goes on when this command ends, with tenant and namespaces; or show the one that runs. It is an
    error to ask for another port than that one has.

    The first time Pulsar is fetched (233 MiB, about half a minute); then it takes 6 to 10 s. It needs Java 17 and Maven, or
    Docker. It listens on the loopback only.
    """
    from dispatch.devtools.localbroker import start_detached

    state = start_detached(report=_progress, port=port, web_port=web_port, wipe=wipe)
    if json:
        put_json(_as_dict(state, True))
        return
    _show(state, True)
    if state.service_url.endswith(":6650"):
        put("It is where dispatch looks by default. Stop it with: dispatch broker stop")
    else:
        put(f"Use it: export DISPATCH_BROKER={state.service_url}   Stop it with: dispatch broker stop")


@app.command()
@takes()
def stop(settings: Settings, json: Json = False) -> None:
    """Stop the broker that 'start' started. Its data stay for the next start."""
    from dispatch.devtools.localbroker import stop_detached

    state = stop_detached(report=_progress)
    if json:
        put_json({"stopped": state is not None, "service_url": None if state is None else state.service_url})
    else:
        put("No broker was running." if state is None else f"Stopped {state.service_url}.")


@app.command()
@takes()
def status(settings: Settings, json: Json = False) -> None:
    """Show the broker that 'start' started. The exit code is 1 when none runs."""
    from dispatch.cli.exit_codes import Exit
    from dispatch.devtools.localbroker import Admin
    from dispatch.devtools.localbroker import status as local_status

    state = local_status()
    if state is None:
        if json:
            put_json({"running": False})
        else:
            put("No broker is running. Start one with: dispatch broker start")
        raise typer.Exit(Exit.FAILED)
    ready = Admin(state.web_url).ready()
    if json:
        put_json(_as_dict(state, ready))
    else:
        _show(state, ready)


def _progress(line: str) -> None:
    say(paint(line, "dim", sys.stderr))


def _as_dict(state: State, ready: bool) -> dict[str, object]:
    return {
        "running": True,
        "ready": ready,
        "kind": state.kind,
        "service_url": state.service_url,
        "web_url": state.web_url,
        "data_dir": state.data_dir,
        "pid": state.pid,
        "container": state.container,
    }


def _show(state: State, ready: bool) -> None:
    from dispatch.cli.commands.tools import aligned

    rows = [
        ("broker", state.service_url),
        ("admin", state.web_url),
        ("state", "ready" if ready else "running, not ready yet"),
    ]
    if state.data_dir is not None:
        rows.append(("data", state.data_dir))
    rows.append(("process", str(state.pid)) if state.pid is not None else ("container", str(state.container)))
    put(aligned(rows))
