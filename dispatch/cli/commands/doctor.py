"""``dispatch doctor``: is everything there that a call needs?"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from dispatch.cli.output import console, counted, is_terminal, paint, printable, put, put_json
from dispatch.cli.run_async import run_async
from dispatch.cli.settings import Settings, takes

if TYPE_CHECKING:
    from dispatch.catalog import Catalog
    from dispatch.cli.views.doctor_checks import Diagnosis, Finding

_LOSS = "Loss"
_STYLES = {"ok": "green", "failed": "red", "warning": "yellow", "skipped": "dim"}


@takes("broker", "catalog", "token_file", "trust_certs")
def doctor(
    settings: Settings,
    admin: Annotated[
        str | None,
        typer.Option(
            "--admin",
            metavar="URL",
            help="The broker's admin interface. Default: DISPATCH_ADMIN, else port 8080 of the broker's host.",
            show_default=False,
        ),
    ] = None,
    fix: Annotated[bool, typer.Option("--fix", help="Make the tenants and namespaces that are missing.")] = False,
    loss: Annotated[
        bool,
        typer.Option(
            "--loss", help="Measure what the broker loses, instead: about a minute of load.", rich_help_panel=_LOSS
        ),
    ] = False,
    sizes: Annotated[
        str | None,
        typer.Option(
            "--sizes",
            metavar="LIST",
            help="Sizes of an answer, with commas between; k and M are thousands and millions of bytes. "
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
            help="Numbers of calls at once, with commas between. Default: 1,16,64,256.",
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
            help="Calls for each size, number in flight and side. Default: as many as go into its share of a minute.",
            show_default=False,
            rich_help_panel=_LOSS,
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Everything as one line of JSON.")] = False,
) -> None:
    """Find out what is missing: connection, token, tenants and namespaces, a real round trip, listening services.

    Each line is ok or failed, with the command that mends it. The exit code is 1 if anything failed. The namespaces are
    those of the catalogue's topics; without a catalogue TrustGraph's four (tg/request, tg/response, tg/flow, tg/notify).

    [bold]dispatch doctor --fix[/bold] makes tenants and namespaces that are missing.

    [bold]dispatch doctor --loss[/bold] measures how many calls the broker loses, without credit (a plain pulsar-client) and
    with it (ours), on topics of its own, and says what to do. It loads the broker for about a minute; Ctrl-C shows what was
    measured so far. The exit code is 1 if calls of ours were lost.

    [bold]dispatch doctor --loss --sizes 10k,100k --in-flight 16,64[/bold] does so for the sizes and load you have.

    [bold]dispatch doctor --loss --sizes 100k --in-flight 64 --calls 10000 --json[/bold] finds rarer losses, for a program.
    """
    from dispatch.cli.exit_codes import CliError, Exit
    from dispatch.cli.views.doctor_checks import Diagnosis
    from dispatch.devtools.localbroker import Admin
    from dispatch.transports.pulsar.service_url import endpoints

    if loss:
        from dispatch.cli.views.doctor_loss import measure_loss

        if fix or admin is not None:
            raise CliError("--fix and --admin have nothing to do with --loss.", "run 'dispatch doctor --fix' before it")
        measure_loss(settings, sizes=sizes, in_flight=in_flight, calls=calls, json=json)
        return
    if sizes is not None or in_flight is not None or calls is not None:
        raise CliError("--sizes, --in-flight and --calls say what --loss measures.", "add --loss")
    broker = settings.genuine_broker_url("dispatch doctor")
    endpoints(broker)  # a wrong address is a wrong option
    security = settings.security()
    token = security.token() if callable(security.token) else security.token
    certificates = None if security.trust_certs is None else str(security.trust_certs)
    web_url = admin or os.environ.get("DISPATCH_ADMIN") or default_admin_url(broker)
    try:
        interface = Admin(web_url, token, ca_file=certificates)
    except ValueError as error:
        raise CliError(f"{error}.", "change --admin or DISPATCH_ADMIN") from None
    findings: list[Finding] = []
    catalog, first = _catalog(settings)
    if first is not None:
        findings.append(first)
    diagnosis = Diagnosis(broker, security, catalog, interface, repair=fix)
    if not json:
        put(f"Broker {broker}")
        for finding in findings:
            _show(finding)
    run_async(_collect(diagnosis, findings, json))
    failed = sum(finding.status == "failed" for finding in findings)
    if json:
        put_json(
            {
                "broker": broker,
                "admin": web_url,
                "ok": not failed,
                "checks": [finding.as_dict() for finding in findings],
            }
        )
    else:
        warnings = sum(finding.status == "warning" for finding in findings)
        put(
            f"{failed} failed." if failed else f"Nothing failed, {warnings} to look at." if warnings else "All is well."
        )
    if failed:
        raise typer.Exit(Exit.FAILED)


def _catalog(settings: Settings) -> tuple[Catalog | None, Finding | None]:
    from dispatch.catalog import check_directory
    from dispatch.cli.views.doctor_checks import Finding

    folder = settings.catalog_folder
    if folder is None:
        return None, None
    catalog, problems = check_directory(folder)
    if catalog is None:
        errors = sum(problem.severity == "error" for problem in problems)
        return None, Finding(
            "catalogue", "failed", f"{folder}: {counted(errors, 'mistake')}", f"dispatch check {folder}"
        )
    return catalog, Finding(
        "catalogue",
        "ok",
        f"{folder}: {counted(len(catalog.services), 'service')}, {counted(len(catalog.tools), 'tool')}",
    )


async def _collect(diagnosis: Diagnosis, findings: list[Finding], json: bool) -> None:
    with _busy(json):
        async with contextlib.aclosing(diagnosis.findings()) as found:
            async for finding in found:
                findings.append(finding)
                if not json:
                    _show(finding)


@contextlib.contextmanager
def _busy(json: bool) -> Iterator[None]:
    """Something moves on the terminal meanwhile: a broker that does not answer takes its seconds."""
    if json or not (is_terminal(sys.stderr) and is_terminal(sys.stdout)):
        yield
        return
    with console(sys.stdout).status("looking"):
        yield


def _show(finding: Finding) -> None:
    status = paint(f"{finding.status:8}", _STYLES[finding.status], sys.stdout)
    put(f"{status} {finding.name}: {printable(finding.detail)}")
    if finding.fix:
        put(f"         fix: {printable(finding.fix)}")


def default_admin_url(broker: str) -> str:
    """The admin interface of our own local broker, if that is it; else port 8080 of the broker's (first) host."""
    from dispatch.devtools.localbroker import status
    from dispatch.transports.pulsar.service_url import endpoints

    local = status()
    ours = endpoints(broker)
    if local is not None and set(ours) <= {
        (host, port) for _, port in endpoints(local.service_url) for host in _LOOPBACK
    }:
        return local.web_url
    host = ours[0][0]
    return f"http://{f'[{host}]' if ':' in host else host}:8080"


_LOOPBACK = ("127.0.0.1", "localhost", "::1")
