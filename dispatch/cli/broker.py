"""``dispatch broker start|stop|status`` and ``dispatch broker cluster``: local Pulsar brokers for development."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Annotated, NoReturn
from urllib.parse import urlsplit

import typer

from dispatch.cli.base import (
    CliError,
    Exit,
    Json,
    Settings,
    align_columns,
    colorize,
    make_group,
    print_err,
    print_out,
    print_result,
    with_settings,
)
from dispatch.transports import DEFAULT_BROKER

if TYPE_CHECKING:
    from dispatch.devtools.localbroker import DetachedBroker
    from dispatch.devtools.localcluster import LocalCluster


app = make_group("Start, stop and inspect a local Pulsar broker for development.")
cluster_app = make_group("Start a cluster of brokers, and kill, restart and unload parts of it.")
app.add_typer(cluster_app, name="cluster")


@app.command()
@with_settings()
def start(
    settings: Settings,
    port: Annotated[int | None, typer.Option(min=0, max=65535, show_default=str(urlsplit(DEFAULT_BROKER).port))] = None,
    web_port: Annotated[int | None, typer.Option(min=0, max=65535, show_default="8080")] = None,
    wipe: bool = False,
    json: Json = False,
) -> None:
    """Start a broker in the background, with the tenant and namespaces that dispatch uses; or show the running one.

    [bold]dispatch broker start[/bold] uses the default ports, where dispatch looks for a broker.

    [bold]dispatch broker start --port 0 --web-port 0[/bold] uses free ports. A running broker keeps its ports: another
    port is an error.

    The broker needs Java 17 and Maven, or Docker. The first start downloads Pulsar (233 MiB, about half a minute); later
    starts take 6 to 10 s. It listens on loopback only.

    Args:
        port: Port for clients; 0: any free port.
        web_port: Port of the admin interface; 0: any free port.
        wipe: Delete the data of earlier runs.
    """
    from dispatch.devtools.localbroker import start_detached

    state = start_detached(report=_progress, port=port, web_port=web_port, wipe=wipe)
    is_default = urlsplit(state.service_url).port == urlsplit(DEFAULT_BROKER).port
    use = f"Use it: export DISPATCH_BROKER={state.service_url}  "
    if is_default:
        use = "This is the default broker of dispatch."
    _show(state, True, f"\n{use} Stop it with: dispatch broker stop", json=json)


@app.command()
@with_settings()
def stop(settings: Settings, json: Json = False) -> None:
    """Stop the broker started by 'dispatch broker start'. Its data are kept for the next start."""
    from dispatch.devtools.localbroker import stop_detached

    state = stop_detached(report=_progress)
    url = None if state is None else state.service_url
    text = "No broker was running." if url is None else f"Stopped {url}."
    print_result({"stopped": url is not None, "service_url": url}, text, json=json)


@app.command()
@with_settings()
def status(settings: Settings, json: Json = False) -> None:
    """Show the broker started by 'dispatch broker start'. The exit code is 1 if none is running."""
    from dispatch.devtools.localbroker import Admin
    from dispatch.devtools.localbroker import status as local_status

    state = local_status()
    if state is None:
        _report_none("broker", "dispatch broker start", json=json)
    _show(state, Admin(state.web_url).is_ready(), json=json)


Number = Annotated[int, typer.Argument(help="Number of the broker, from 1.")]


@cluster_app.command("start")
@with_settings()
def start_cluster(
    settings: Settings, brokers: Annotated[int, typer.Option(min=1, max=9)] = 3, json: Json = False
) -> None:
    """Start a cluster in the background on free ports: ZooKeeper, a bookie and brokers; or show the running one.

    It needs Java 17 and Maven, 20 to 40 s on an idle machine, and about 1.5 GiB of memory for three brokers. It listens on
    loopback only, and its data are deleted when it stops.

    Args:
        brokers: Number of brokers.
    """
    from dispatch.devtools.localcluster import start_detached_cluster

    cluster = start_detached_cluster(brokers, report=_progress)
    _show_cluster(cluster, json)
    if not json:
        print_out(f"Use it: export DISPATCH_BROKER={cluster.service_url}   Stop it with: dispatch broker cluster stop")


@cluster_app.command("stop")
@with_settings()
def stop_cluster(settings: Settings) -> None:
    """Stop the cluster and delete its data."""
    from dispatch.devtools.localcluster import detached_cluster

    with detached_cluster(_progress) as cluster:
        cluster.stop()
    print_out(f"Stopped {cluster.service_url}.")


@cluster_app.command("kill")
@with_settings()
def kill_broker(settings: Settings, number: Number) -> None:
    """Kill a broker (SIGKILL) like a crash. The others own its topics after about 3 s."""
    from dispatch.devtools.localcluster import detached_cluster

    with detached_cluster(_progress) as cluster:
        was_running = cluster.kill(number)
    found = f"Killed broker {number}." if was_running else f"Broker {number} was not running."
    print_out(f"{found} Start it with: dispatch broker cluster restart {number}")


@cluster_app.command("restart")
@with_settings()
def restart_broker(settings: Settings, number: Number) -> None:
    """Stop a broker (SIGTERM) if it is running, and start it on the same ports."""
    from dispatch.devtools.localcluster import detached_cluster

    with detached_cluster(_progress) as cluster:
        cluster.restart(number)
    print_out(f"Broker {number} is ready: {cluster.broker(number).url}")


@cluster_app.command("unload")
@with_settings()
def unload_namespace(settings: Settings, namespace: str) -> None:
    """Unload a namespace: its topics close, and each bundle of them is assigned to a broker again.

    Args:
        namespace: For instance tg/request.
    """
    from dispatch.devtools.localcluster import detached_cluster

    with detached_cluster(_progress) as cluster:
        try:
            cluster.unload(namespace)
        except ValueError as error:
            raise CliError(str(error)) from None
    print_out(f"Unloaded {namespace}.")


@cluster_app.command("status")
@with_settings()
def cluster_status(settings: Settings, json: Json = False) -> None:
    """Show the processes of the cluster. The exit code is 1 if none is running."""
    from dispatch.devtools.localcluster import find_detached_cluster

    cluster = find_detached_cluster()
    if cluster is None:
        _report_none("cluster", "dispatch broker cluster start", json=json)
    _show_cluster(cluster, json)


def _show_cluster(cluster: LocalCluster, json: bool) -> None:
    states = {node.name: cluster.state(node) for node in cluster.nodes}
    nodes = [{**dataclasses.asdict(node), "state": states[node.name]} for node in cluster.nodes]
    rows = [
        (node.name, states[node.name], f"pid {node.pid}", f"{node.url} {node.web_url}" if node.web_port else "")
        for node in cluster.nodes
    ]
    value = {"running": True, "service_url": cluster.service_url, "nodes": nodes}
    print_result(value, align_columns(rows), json=json)


def _report_none(what: str, start: str, *, json: bool) -> NoReturn:
    """Report that there is none, with the command that starts one, and exit with 1."""
    print_result({"running": False}, f"No {what} is running. Start one with: {start}", json=json)
    raise typer.Exit(Exit.FAILED)


def _progress(line: str) -> None:
    print_err(colorize(line, "dim", sys.stderr))


def _show(state: DetachedBroker, ready: bool, advice: str = "", *, json: bool) -> None:
    """Show a running broker; ``advice``: behind the facts, for people."""
    value = {"running": True, "ready": ready, **dataclasses.asdict(state)}
    del value["identity"]
    rows = [
        ("broker", state.service_url),
        ("admin", state.web_url),
        ("state", "ready" if ready else "running, not ready yet"),
    ]
    if state.data_dir is not None:
        rows.append(("data", state.data_dir))
    rows.append(("process", str(state.pid)) if state.pid is not None else ("container", str(state.container)))
    print_result(value, align_columns(rows) + advice, json=json)
