"""``dispatch doctor --loss``: how much one's own broker loses, and what to do about it."""

from __future__ import annotations

import contextlib
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import typer

from dispatch.cli.output import console, counted, is_terminal, printable, put, put_json
from dispatch.cli.run_async import run_async
from dispatch.cli.settings import Settings

if TYPE_CHECKING:
    from dispatch.devtools.lossprobe import Cell, Findings, Plan, Run
    from dispatch.transports import Security

COLUMNS = (
    "answer",
    "in flight",
    "plain calls",
    "plain lost",
    "plain calls/s",
    "credit calls",
    "credit lost",
    "credit calls/s",
)
LEGEND = (
    "plain: pulsar-client as anyone uses it, without credit · credit: dispatch's Dispatcher and ToolServer, with it"
)
WIDTH = 120
"""Columns of a paragraph of advice, at most: longer lines are hard to read."""

Tell = Callable[[str], None]


def measure_loss(
    settings: Settings, *, sizes: str | None, in_flight: str | None, calls: int | None, json: bool
) -> None:
    """Measure, and show the table and the advice; after Ctrl-C those of what was measured by then.

    Args:
        settings: where the broker is, the catalogue whose namespaces are used, who we are.
        sizes: as ``--sizes``; None: the default.
        in_flight: as ``--in-flight``; None: the default.
        calls: of each run; None: as many as go into a share of a minute.
        json: one line of JSON instead.

    Raises:
        CliError: options that do not go together; the measurement could not be made, or not be finished.
        TransportError: no broker, not let in, no such namespace.
        KeyboardInterrupt: there was a Ctrl-C.
        typer.Exit: with 1: calls of ours were lost.
    """
    from dispatch.cli.exit_codes import CliError, Exit
    from dispatch.devtools.lossprobe import Findings, PlanError, ProbeError, make_plan
    from dispatch.devtools.lossprobe.plan import DEFAULT_IN_FLIGHT, DEFAULT_SIZES
    from dispatch.errors import DispatchError
    from dispatch.transports.pulsar.service_url import endpoints

    try:
        plan = make_plan(sizes or DEFAULT_SIZES, in_flight or DEFAULT_IN_FLIGHT, calls)
    except PlanError as error:
        raise CliError(f"{error}.", error.fix) from None
    broker = settings.genuine_broker_url("dispatch doctor --loss")
    endpoints(broker)  # a wrong address is a wrong option
    security = settings.security()
    requests, responses = namespaces(settings)
    findings = Findings(plan)
    if not json:
        put(f"Broker {broker}, namespaces {requests} and {responses}: {_extent(plan)}.")
    ended: BaseException | None = None
    try:
        run_async(_measure(findings, broker, security, requests, responses))
    except (KeyboardInterrupt, DispatchError, OSError) as error:
        ended = error
    except ProbeError as error:
        ended = CliError(str(error), "dispatch doctor", Exit.TRANSPORT)
    if json:
        put_json(as_dict(findings, broker, requests, responses))
    elif findings.cells:
        show(findings)
    if ended is not None:
        raise ended
    if any(cell.credit is not None and cell.credit.lost for cell in findings.cells):
        raise typer.Exit(Exit.FAILED)


def namespaces(settings: Settings) -> tuple[str, str]:
    """Where the topics are made: in the namespaces of the catalogue's first service, else tg/request and tg/response."""
    from dispatch.catalog import TopicName

    if settings.catalog_folder is not None:
        for service in settings.load_catalog().services.values():
            return tuple(  # type: ignore[return-value] # of two
                TopicName.parse(topic).namespace_path for topic in (service.request_queue, service.response_queue)
            )
    return "tg/request", "tg/response"


def _extent(plan: Plan) -> str:
    runs = 2 * len(plan.cells)
    if plan.seconds is None:
        return f"{runs} runs of {counted(plan.calls or 0, 'call')}"
    return f"{runs} runs of {plan.seconds:.2g} s, about {max(1, round(runs * plan.seconds)):,} s"


async def _measure(findings: Findings, broker: str, security: Security, requests: str, responses: str) -> None:
    from dispatch.devtools.lossprobe import Probe, Side, size_text

    plan = findings.plan
    with _progress(2 * len(plan.cells)) as (begin, end):
        begin("connecting")
        async with Probe(broker, security, requests, responses) as probe:
            for size, in_flight in plan.cells:
                # One after the other at each size: what else the machine does in this minute then touches both.
                for side in Side:
                    how = "without credit" if side is Side.PLAIN else "with credit"
                    begin(f"{size_text(size)}, {in_flight:,} in flight, {how}")
                    run = await probe.measure(
                        side, size=size, in_flight=in_flight, calls=plan.calls, seconds=plan.seconds
                    )
                    findings.add(size, in_flight, side, run)
                    end()
            begin("closing")


@contextlib.contextmanager
def _progress(total: int) -> Iterator[tuple[Tell, Callable[[], None]]]:
    """What begins, and that it ended, for who looks at a terminal: on stderr, gone at the end."""
    if not is_terminal(sys.stderr):
        yield (lambda _text: None), (lambda: None)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    with Progress(
        SpinnerColumn(),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
        console=console(sys.stderr),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
        refresh_per_second=5,  # drawing takes time from what is measured
    ) as progress:
        task = progress.add_task("", total=total)
        yield (lambda text: progress.update(task, description=text)), (lambda: progress.advance(task))


# -- what came of it ------------------------------------------------------------------------------------------------


def as_dict(findings: Findings, broker: str, requests: str, responses: str) -> dict[str, object]:
    """Everything as plain values, for ``--json``."""
    from dispatch.devtools.lossprobe import advice

    cells = findings.cells
    return {
        "broker": broker,
        "namespaces": {"request": requests, "response": responses},
        "complete": findings.complete,
        "cells": [cell.as_dict() for cell in cells],
        "advice": advice(cells, _planned(findings)),
    }


def _planned(findings: Findings) -> int | None:
    return None if findings.complete else len(findings.plan.cells)


def rows(cells: Sequence[Cell]) -> list[tuple[str, ...]]:
    """The table's cells."""
    from dispatch.devtools.lossprobe import size_text

    return [
        (size_text(cell.size), f"{cell.in_flight:,}", *_of_run(cell.plain), *_of_run(cell.credit)) for cell in cells
    ]


def _of_run(run: Run | None) -> tuple[str, str, str]:
    from dispatch.devtools.lossprobe.results import share_text

    if run is None:
        return "-", "-", "-"
    return f"{run.calls:,}", share_text(run.lost, run.calls), f"{run.rate:,.0f}"


def show(findings: Findings) -> None:
    """The table and the advice, on stdout."""
    from dispatch.devtools.lossprobe import advice

    cells = findings.cells
    terminal = is_terminal(sys.stdout)
    put("")
    if terminal:
        _show_table(cells)
    else:
        from dispatch.cli.commands.tools import aligned

        put(aligned([tuple(column.upper() for column in COLUMNS), *rows(cells)]))
    put("")
    put(LEGEND)
    if not findings.complete:
        were = "was" if len(cells) == 1 else "were"
        put(f"Only {len(cells)} of {len(findings.plan.cells)} lines {were} measured, the last perhaps in part.")
    put("")
    width = min(console().width, WIDTH) if terminal else 0
    for line in advice(cells, _planned(findings)):
        text = f"- {printable(line)}"
        put(textwrap.fill(text, width, subsequent_indent="  ", break_on_hyphens=False) if width else text)


def _show_table(cells: Sequence[Cell]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in COLUMNS:
        table.add_column(column.replace(" ", "\n", 1), justify="right", vertical="bottom", no_wrap=True)
    for cell, row in zip(cells, rows(cells), strict=True):
        styles = dict.fromkeys(range(len(COLUMNS)), "")
        for place, run in ((3, cell.plain), (6, cell.credit)):
            if run is not None:
                styles[place] = "red" if run.lost else "green"
        table.add_row(*(Text(text, styles[place]) for place, text in enumerate(row)))
    console().print(table)
