"""``dispatch doctor --loss``: message loss of a broker, as a table with advice."""

from __future__ import annotations

import contextlib
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import typer

from dispatch.cli.output import console, format_count, is_terminal, make_printable, print_json, print_out
from dispatch.cli.run_async import run_async
from dispatch.cli.settings import Settings

if TYPE_CHECKING:
    from dispatch.devtools.lossprobe import Measurement, Plan, ProbeResults, RunResult
    from dispatch.transports import Security

COLUMNS = (
    "reply",
    "in flight",
    "plain calls",
    "plain lost",
    "plain calls/s",
    "session calls",
    "session lost",
    "session calls/s",
)
LEGEND = "plain: pulsar-client without sessions · session: dispatch's Dispatcher and ToolServer with sessions"
WIDTH = 120
"""Maximum width of a paragraph: longer lines are hard to read."""

Report = Callable[[str], None]


def measure_loss(
    settings: Settings, *, sizes: str | None, in_flight: str | None, calls: int | None, json: bool
) -> None:
    """Measure and show table and advice; after Ctrl-C those of the runs made so far.

    Args:
        settings: broker, security, and the catalogue whose namespaces are used.
        sizes: as ``--sizes``; None: the default.
        in_flight: as ``--in-flight``; None: the default.
        calls: calls per run; None: as many as fit into a share of a minute.
        json: print one line of JSON instead.

    Raises:
        CliError: the options conflict, or the measurement failed.
        TransportError: the broker is not reachable, rejects the token, or lacks a namespace.
        KeyboardInterrupt: Ctrl-C.
        typer.Exit: with 1 if calls with sessions were lost.
    """
    from dispatch.cli.exit_codes import CliError, Exit
    from dispatch.devtools.lossprobe import PlanError, ProbeError, ProbeResults, make_plan
    from dispatch.devtools.lossprobe.plan import DEFAULT_IN_FLIGHT, DEFAULT_SIZES
    from dispatch.errors import DispatchError
    from dispatch.transports.pulsar.service_url import endpoints

    try:
        plan = make_plan(sizes or DEFAULT_SIZES, in_flight or DEFAULT_IN_FLIGHT, calls)
    except PlanError as error:
        raise CliError(f"{error}.", error.fix) from None
    broker = settings.require_pulsar_url("dispatch doctor --loss")
    endpoints(broker)  # rejects a wrong URL as wrong usage
    security = settings.security()
    requests, responses = select_namespaces(settings)
    results = ProbeResults(plan)
    if not json:
        print_out(f"Broker {broker}, namespaces {requests} and {responses}: {_extent(plan)}.")
    interruption: BaseException | None = None
    try:
        run_async(_measure(results, broker, security, requests, responses))
    except (KeyboardInterrupt, DispatchError, OSError) as failure:
        interruption = failure
    except ProbeError as failure:
        interruption = CliError(str(failure), "dispatch doctor", Exit.TRANSPORT)
    if json:
        print_json(as_dict(results, broker, requests, responses))
    elif results.measurements:
        show(results)
    if interruption is not None:
        raise interruption
    if any(measurement.session is not None and measurement.session.lost for measurement in results.measurements):
        raise typer.Exit(Exit.FAILED)


def select_namespaces(settings: Settings) -> tuple[str, str]:
    """Return the namespaces of the probe's topics: the catalogue's first service's, else tg/request and tg/response."""
    from dispatch.catalog import TopicName
    from dispatch.messaging.wire.topics import REQUEST_NAMESPACE, RESPONSE_NAMESPACE

    if settings.catalog_folders:
        for service in settings.load_catalog().services.values():
            return tuple(  # type: ignore[return-value] # two topics
                TopicName.parse(topic).namespace_path for topic in (service.request_queue, service.response_queue)
            )
    return REQUEST_NAMESPACE, RESPONSE_NAMESPACE


def _extent(plan: Plan) -> str:
    runs = 2 * len(plan.loads)
    if plan.seconds is None:
        return f"{runs} runs of {format_count(plan.calls or 0, 'call')}"
    return f"{runs} runs of {plan.seconds:.2g} s, about {max(1, round(runs * plan.seconds)):,} s"


async def _measure(results: ProbeResults, broker: str, security: Security, requests: str, responses: str) -> None:
    from dispatch.devtools.lossprobe import Probe, Variant, format_size

    plan = results.plan
    with _progress(2 * len(plan.loads)) as (begin, end):
        begin("connecting")
        async with Probe(broker, security, requests, responses) as probe:
            for size, in_flight in plan.loads:
                # Both variants of a load run in sequence, so that other load on the machine affects both.
                for variant in Variant:
                    how = "without sessions" if variant is Variant.PLAIN else "with sessions"
                    begin(f"{format_size(size)}, {in_flight:,} in flight, {how}")
                    run = await probe.measure(
                        variant, size=size, in_flight=in_flight, calls=plan.calls, seconds=plan.seconds
                    )
                    results.add(size, in_flight, variant, run)
                    end()
            begin("closing")


@contextlib.contextmanager
def _progress(total: int) -> Iterator[tuple[Report, Callable[[], None]]]:
    """Show progress on a terminal's stderr, removed at the end."""
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
        refresh_per_second=5,  # drawing competes with the measurement
    ) as progress:
        task = progress.add_task("", total=total)
        yield (lambda text: progress.update(task, description=text)), (lambda: progress.advance(task))


# -- results ------------------------------------------------------------------------------------------------


def as_dict(results: ProbeResults, broker: str, requests: str, responses: str) -> dict[str, object]:
    """Return plain values, for ``--json``."""
    from dispatch.devtools.lossprobe import give_advice

    measurements = results.measurements
    return {
        "broker": broker,
        "namespaces": {"request": requests, "response": responses},
        "complete": results.is_complete,
        "measurements": [measurement.as_dict() for measurement in measurements],
        "advice": give_advice(measurements, _planned(results)),
    }


def _planned(results: ProbeResults) -> int | None:
    return None if results.is_complete else len(results.plan.loads)


def rows(measurements: Sequence[Measurement]) -> list[tuple[str, ...]]:
    """Return the cells of the table."""
    from dispatch.devtools.lossprobe import format_size

    return [
        (
            format_size(measurement.size),
            f"{measurement.in_flight:,}",
            *_format_run(measurement.plain),
            *_format_run(measurement.session),
        )
        for measurement in measurements
    ]


def _format_run(run: RunResult | None) -> tuple[str, str, str]:
    from dispatch.devtools.lossprobe.results import format_share

    if run is None:
        return "-", "-", "-"
    return f"{run.calls:,}", format_share(run.lost, run.calls), f"{run.rate:,.0f}"


def show(results: ProbeResults) -> None:
    """Write table and advice to stdout."""
    from dispatch.devtools.lossprobe import give_advice

    measurements = results.measurements
    terminal = is_terminal(sys.stdout)
    print_out("")
    if terminal:
        _show_table(measurements)
    else:
        from dispatch.cli.output import align_columns

        print_out(align_columns([tuple(column.upper() for column in COLUMNS), *rows(measurements)]))
    print_out("")
    print_out(LEGEND)
    if not results.is_complete:
        were = "was" if len(measurements) == 1 else "were"
        print_out(
            f"Only {len(measurements)} of {len(results.plan.loads)} lines {were} measured, the last perhaps partially."
        )
    print_out("")
    width = min(console().width, WIDTH) if terminal else 0
    for line in give_advice(measurements, _planned(results)):
        text = f"- {make_printable(line)}"
        print_out(textwrap.fill(text, width, subsequent_indent="  ", break_on_hyphens=False) if width else text)


def _show_table(measurements: Sequence[Measurement]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in COLUMNS:
        table.add_column(column.replace(" ", "\n", 1), justify="right", vertical="bottom", no_wrap=True)
    for measurement, row in zip(measurements, rows(measurements), strict=True):
        styles = dict.fromkeys(range(len(COLUMNS)), "")
        for place, run in ((3, measurement.plain), (6, measurement.session)):
            if run is not None:
                styles[place] = "red" if run.lost else "green"
        table.add_row(*(Text(text, styles[place]) for place, text in enumerate(row)))
    console().print(table)
