"""``dispatch demo``: run the demo and display it."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from dispatch._internal.cancellation import cancel_and_wait
from dispatch.cli.metrics import MetricsAddress, MetricsPort, serve_metrics
from dispatch.cli.output import is_terminal, print_err, print_json, print_out
from dispatch.cli.run_async import run_async
from dispatch.cli.settings import Settings, with_settings
from dispatch.telemetry.settings import METRICS_ADDRESS

if TYPE_CHECKING:
    from dispatch.devtools.demo import Demo, Summary

LIVE_EVERY_S = 0.125
"""Interval of the live view and of event lines for a pipe, in seconds."""
PROGRESS_TICKS = 8
"""Intervals between two lines of progress for a pipe: one second."""
PLAIN_WIDTH = 120


@with_settings("broker", "token_file", "trust_certs")
def demo(
    settings: Settings,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds",
            min=5,
            max=3600,
            help="Approximate duration; times of the guards are scaled to it. Default: 20.",
            show_default=False,
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print only the summary, as one line of JSON.")] = False,
    metrics_port: MetricsPort = None,
    metrics_address: MetricsAddress = METRICS_ADDRESS,
) -> None:
    """Watch agents call tools while faults are injected, in four scenarios.

    1. Every outcome that a call can have. 2. A slow instance is ejected and returns. 3. A service hangs: its circuit breaker
    opens, half-opens and closes. 4. A noisy user is rate-limited; other users are not affected.

    [bold]dispatch demo[/bold] uses the embedded broker: it needs nothing else.

    [bold]dispatch demo --broker pulsar://localhost:6650[/bold] uses a Pulsar broker (DISPATCH_BROKER is ignored here).

    Services and agents run in this process. The demo ends by itself; the exit code is 1 if a scenario deviates from the
    expected result.
    """
    from dispatch.cli.exit_codes import Exit
    from dispatch.cli.logs import show_logs
    from dispatch.devtools.demo import Demo
    from dispatch.devtools.demo.time_scale import DEFAULT_SECONDS

    if not settings.verbose:
        # The faults are injected: their warnings are expected.
        show_logs(False, logging.ERROR)
    duration = DEFAULT_SECONDS if seconds is None else seconds
    run = Demo(settings.broker or "memory://", duration, security=settings.security())
    with serve_metrics(metrics_port, metrics_address):
        summary = run_async(_quiet(run) if json else _live(run) if is_terminal(sys.stdout) else _plain(run))
    if json:
        print_json(summary.as_dict())
    else:
        from dispatch.cli.views.demo_summary import show_summary

        show_summary(summary)
    if summary.deviations:
        for line in summary.deviations:
            print_err(f"Unexpected: {line}")
        raise typer.Exit(Exit.FAILED)


async def _quiet(run: Demo) -> Summary:
    return await run.run()


async def _live(run: Demo) -> Summary:
    from rich.live import Live

    from dispatch.cli.output import console
    from dispatch.cli.views.demo import live_view

    target = console()
    # Overflow is cropped, not scrolled: the view keeps its place at any terminal size.
    with Live(console=target, auto_refresh=False, transient=False, vertical_overflow="crop") as live:

        def show() -> None:
            live.update(live_view(run, *target.size), refresh=True)

        try:
            return await _run_with_display(run, show, LIVE_EVERY_S)
        finally:
            show()


async def _plain(run: Demo) -> Summary:
    from dispatch.cli.views.demo import event_lines, plain_line

    print_out(f"Agents call tools on {run.broker} for about {run.time_scale.total:.0f} s. {run.time_scale.note}.")
    shown = ticks = 0

    def show(progress: bool = True) -> None:
        nonlocal shown, ticks
        for line in event_lines(run.events[shown:], width=PLAIN_WIDTH):
            print_out(line)
        shown = len(run.events)
        if progress and ticks % PROGRESS_TICKS == 0:
            print_out(plain_line(run))
        ticks += 1

    try:
        return await _run_with_display(run, show, LIVE_EVERY_S)
    finally:
        show(progress=False)


async def _run_with_display(run: Demo, show: Callable[[], None], every: float) -> Summary:
    """Run the demo and call ``show`` every ``every`` seconds. An error of ``show`` ends the run."""

    async def refresh() -> None:
        while True:
            show()
            await asyncio.sleep(every)

    running, refreshing = asyncio.ensure_future(run.run()), asyncio.ensure_future(refresh())
    try:
        await asyncio.wait({running, refreshing}, return_when=asyncio.FIRST_COMPLETED)
        if refreshing.done():
            refreshing.result()  # raises its error: it ends only by one
        return running.result()
    finally:
        await cancel_and_wait((running, refreshing))
