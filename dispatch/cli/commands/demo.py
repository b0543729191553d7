"""``dispatch demo``: watch tool calls travel."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from dispatch._internal.cancellation import cancel_and_wait
from dispatch.cli.metrics import LOOPBACK, MetricsAddress, MetricsPort, serving_metrics
from dispatch.cli.output import is_terminal, put, put_json, say
from dispatch.cli.run_async import run_async
from dispatch.cli.settings import Settings, takes

if TYPE_CHECKING:
    from dispatch.devtools.demo import Demo, Summary

LIVE_EVERY_S = 0.125
"""How often the live view is drawn, and a pipe gets what has happened."""
PLAIN_LOOKS = 8
"""Every so many of them a pipe gets a line of progress: once a second."""
PLAIN_WIDTH = 120


@takes("broker", "token_file", "trust_certs")
def demo(
    settings: Settings,
    seconds: Annotated[
        float,
        typer.Option("--seconds", min=5, max=3600, help="How long it takes, about; the guards' times are made to fit."),
    ] = 20.0,
    json: Annotated[bool, typer.Option("--json", help="Only the summary, as one line of JSON.")] = False,
    metrics_port: MetricsPort = None,
    metrics_address: MetricsAddress = LOOPBACK,
) -> None:
    """Watch tool calls travel, and survive: a story in four acts.

    Every way in which a call can end. An instance that turns slow, is ejected and comes back. A service that hangs: its
    tool's circuit opens, probes, closes. A user that calls without end, and is limited while others flow.

    Services and agents run in this process on the embedded broker; with [bold]--broker pulsar://…[/bold] everything travels
    through a genuine one (DISPATCH_BROKER is not looked at here). It ends by itself. The exit code is 1 if something went
    otherwise than planned.
    """
    from dispatch.cli.exit_codes import Exit
    from dispatch.cli.logs import show_logs
    from dispatch.devtools.demo import Demo

    if not settings.verbose:
        # The incidents are on purpose: what they write to the log is not news.
        show_logs(False, logging.ERROR)
    run = Demo(settings.broker or "memory://", seconds, security=settings.security())
    with serving_metrics(metrics_port, metrics_address):
        summary = run_async(_quiet(run) if json else _live(run) if is_terminal(sys.stdout) else _plain(run))
    if json:
        put_json(summary.as_dict())
    else:
        from dispatch.cli.views.demo_summary import show_summary

        show_summary(summary)
    if summary.surprises:
        for line in summary.surprises:
            say(f"Unexpected: {line}")
        raise typer.Exit(Exit.FAILED)


async def _quiet(run: Demo) -> Summary:
    return await run.run()


async def _live(run: Demo) -> Summary:
    from rich.live import Live

    from dispatch.cli.output import console
    from dispatch.cli.views.demo import live_view

    target = console()
    # What does not fit is cut off, never scrolled: whatever the size, the view stays where it is.
    with Live(console=target, auto_refresh=False, transient=False, vertical_overflow="crop") as live:

        def show() -> None:
            live.update(live_view(run, *target.size), refresh=True)

        try:
            return await _watched(run, show, LIVE_EVERY_S)
        finally:
            show()


async def _plain(run: Demo) -> Summary:
    from dispatch.cli.views.demo import event_lines, plain_line

    put(f"Agents call tools on {run.broker}, for some {run.pace.total:.0f} s. {run.pace.shortened}.")
    shown = looks = 0

    def show(progress: bool = True) -> None:
        nonlocal shown, looks
        for line in event_lines(run.events[shown:], width=PLAIN_WIDTH):
            put(line)
        shown = len(run.events)
        if progress and looks % PLAIN_LOOKS == 0:
            put(plain_line(run))
        looks += 1

    try:
        return await _watched(run, show, LIVE_EVERY_S)
    finally:
        show(progress=False)


async def _watched(run: Demo, show: Callable[[], None], every: float) -> Summary:
    """Run it, and show it every ``every`` seconds. What goes wrong with the showing ends the run."""

    async def look() -> None:
        while True:
            show()
            await asyncio.sleep(every)

    running, looking = asyncio.ensure_future(run.run()), asyncio.ensure_future(look())
    try:
        await asyncio.wait({running, looking}, return_when=asyncio.FIRST_COMPLETED)
        if looking.done():
            looking.result()  # raises what went wrong: it never ends otherwise
        return running.result()
    finally:
        await cancel_and_wait((running, looking))
