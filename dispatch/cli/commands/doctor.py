"""``dispatch doctor``: check everything that a call needs."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from dispatch.cli.output import colorize, console, format_count, is_terminal, make_printable, print_json, print_out
from dispatch.cli.run_async import run_async
from dispatch.cli.settings import Settings, with_settings

if TYPE_CHECKING:
    from dispatch.catalog import Catalog
    from dispatch.cli.views.check_result import CheckResult
    from dispatch.cli.views.doctor_checks import DoctorChecks

_LOSS = "Loss"
_STYLES = {"ok": "green", "failed": "red", "warning": "yellow", "skipped": "dim"}


@with_settings("broker", "catalog", "token_file", "trust_certs")
def doctor(
    settings: Settings,
    admin: Annotated[
        str | None,
        typer.Option(
            "--admin",
            metavar="URL",
            help="URL of the broker's admin interface. Default: DISPATCH_ADMIN, else port 8080 of the broker's host.",
            show_default=False,
        ),
    ] = None,
    fix: Annotated[bool, typer.Option("--fix", help="Create missing tenants and namespaces.")] = False,
    loss: Annotated[
        bool,
        typer.Option("--loss", help="Measure message loss instead: about a minute of load.", rich_help_panel=_LOSS),
    ] = False,
    sizes: Annotated[
        str | None,
        typer.Option(
            "--sizes",
            metavar="LIST",
            help="Reply sizes, separated by commas; k and M are thousands and millions of bytes. "
            "Default: 120,1k,10k,100k,1M.",
            show_default=False,
            rich_help_panel=_LOSS,
        ),
    ] = None,
    in_flight: Annotated[
        str | None,
        typer.Option(
            "--in-flight",
            metavar="LIST",
            help="Numbers of concurrent calls, separated by commas. Default: 1,16,64,256.",
            show_default=False,
            rich_help_panel=_LOSS,
        ),
    ] = None,
    calls: Annotated[
        int | None,
        typer.Option(
            "--calls",
            metavar="N",
            min=1,
            help="Calls per size, number in flight and variant. Default: as many as fit into a share of a minute.",
            show_default=False,
            rich_help_panel=_LOSS,
        ),
    ] = None,
    packet: Annotated[
        str | None,
        typer.Option(
            "--packet",
            metavar="HEX",
            help="Decode a packet of a session instead: hexadecimal or base64; -: from stdin. Payloads are shown as sizes.",
            show_default=False,
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print everything as one line of JSON.")] = False,
) -> None:
    """Check everything that a call needs: connection, token, tenants and namespaces, a round trip, services.

    Each line is ok or failed, with the command that fixes it. The exit code is 1 if a check failed. The namespaces are those
    of the catalogue's topics; without a catalogue TrustGraph's four (tg/request, tg/response, tg/flow, tg/notify).

    [bold]dispatch doctor --catalog tools/[/bold] also checks that services consume their request topics, and opens a session
    with each instance: its round-trip time, window and requests in execution. No tool is executed.

    [bold]dispatch doctor --fix[/bold] creates missing tenants and namespaces.

    [bold]dispatch doctor --loss[/bold] measures how many calls lose their messages on this broker, without sessions (a plain
    pulsar-client) and with sessions (dispatch), on topics of its own, and gives advice. It loads the broker for about a
    minute; Ctrl-C shows the results so far. The exit code is 1 if calls with sessions were lost.

    [bold]dispatch doctor --loss --sizes 10k,100k --in-flight 16,64[/bold] measures your own sizes and load.

    [bold]dispatch doctor --loss --sizes 100k --in-flight 64 --calls 10000 --json[/bold] finds rarer losses.

    [bold]dispatch doctor --packet 9a01…[/bold] decodes a packet between a dispatcher and an instance, without its secrets.
    """
    from dispatch.cli.exit_codes import CliError, Exit
    from dispatch.cli.views.doctor_checks import DoctorChecks
    from dispatch.devtools.localbroker import Admin
    from dispatch.transports.pulsar.service_url import endpoints

    if packet is not None:
        from dispatch.cli.views.doctor_packet import show_packet

        if fix or loss or admin is not None:
            raise CliError("--packet cannot be combined with --fix, --loss and --admin.", "leave these options out")
        show_packet(packet, json=json)
        return
    if loss:
        from dispatch.cli.views.doctor_loss import measure_loss

        if fix or admin is not None:
            raise CliError("--fix and --admin cannot be combined with --loss.", "run 'dispatch doctor --fix' first")
        measure_loss(settings, sizes=sizes, in_flight=in_flight, calls=calls, json=json)
        return
    if sizes is not None or in_flight is not None or calls is not None:
        raise CliError("--sizes, --in-flight and --calls require --loss.", "add --loss")
    broker = settings.require_pulsar_url("dispatch doctor")
    endpoints(broker)  # rejects a wrong URL as wrong usage
    security = settings.security()
    token = security.token() if callable(security.token) else security.token
    certificates = None if security.trust_certs is None else str(security.trust_certs)
    web_url = admin or os.environ.get("DISPATCH_ADMIN") or default_admin_url(broker)
    try:
        interface = Admin(web_url, token, ca_file=certificates)
    except ValueError as error:
        raise CliError(f"{error}.", "change --admin or DISPATCH_ADMIN") from None
    results: list[CheckResult] = []
    catalog, first = _load_catalog(settings)
    if first is not None:
        results.append(first)
    checks = DoctorChecks(broker, security, catalog, interface, repair=fix)
    if not json:
        print_out(f"Broker {broker}")
        for result in results:
            _show(result)
    run_async(_collect(checks, results, json))
    failed = sum(result.status == "failed" for result in results)
    if json:
        print_json(
            {"broker": broker, "admin": web_url, "ok": not failed, "checks": [result.as_dict() for result in results]}
        )
    else:
        warnings = sum(result.status == "warning" for result in results)
        print_out(
            f"{failed} failed."
            if failed
            else f"No check failed; {format_count(warnings, 'warning')}."
            if warnings
            else "All checks passed."
        )
    if failed:
        raise typer.Exit(Exit.FAILED)


def _load_catalog(settings: Settings) -> tuple[Catalog | None, CheckResult | None]:
    from dispatch.catalog import CatalogError
    from dispatch.cli.views.check_result import CheckResult

    folders = settings.catalog_folders
    if not folders:
        return None, None
    where = ", ".join(folders)
    try:
        catalog = settings.load_catalog()
    except CatalogError as error:
        errors = sum(problem.severity == "error" for problem in error.problems)
        return None, CheckResult(
            "catalogue", "failed", f"{where}: {format_count(errors, 'mistake')}", f"dispatch check {' '.join(folders)}"
        )
    return catalog, CheckResult(
        "catalogue",
        "ok",
        f"{where}: {format_count(len(catalog.services), 'service')}, {format_count(len(catalog.tools), 'tool')}",
    )


async def _collect(checks: DoctorChecks, results: list[CheckResult], json: bool) -> None:
    with _show_spinner(json):
        async with contextlib.aclosing(checks.run_checks()) as found:
            async for result in found:
                results.append(result)
                if not json:
                    _show(result)


@contextlib.contextmanager
def _show_spinner(json: bool) -> Iterator[None]:
    """Show a spinner on a terminal: a broker that does not reply takes seconds."""
    if json or not (is_terminal(sys.stderr) and is_terminal(sys.stdout)):
        yield
        return
    with console(sys.stdout).status("checking"):
        yield


def _show(result: CheckResult) -> None:
    status = colorize(f"{result.status:8}", _STYLES[result.status], sys.stdout)
    print_out(f"{status} {result.name}: {make_printable(result.detail)}")
    if result.fix:
        print_out(f"         fix: {make_printable(result.fix)}")


def default_admin_url(broker: str) -> str:
    """Return the admin URL of the local broker if ``broker`` is that one; else port 8080 of the first host."""
    from dispatch.devtools.localbroker import DEFAULT_WEB_PORT, status
    from dispatch.transports.pulsar.service_url import endpoints

    local = status()
    broker_endpoints = endpoints(broker)
    if local is not None and set(broker_endpoints) <= {
        (host, port) for _, port in endpoints(local.service_url) for host in _LOOPBACK
    }:
        return local.web_url
    host = broker_endpoints[0][0]
    return f"http://{f'[{host}]' if ':' in host else host}:{DEFAULT_WEB_PORT}"


_LOOPBACK = ("127.0.0.1", "localhost", "::1")
