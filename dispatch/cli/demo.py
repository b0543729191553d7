"""``dispatch demo``: watch tool calls travel."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from dispatch.cli.output import is_terminal, put, put_json, say
from dispatch.cli.running import run_async
from dispatch.cli.settings import Settings, takes

if TYPE_CHECKING:
    from dispatch.demo import Demo, Summary

LIVE_EVERY_S = 0.125
PLAIN_EVERY_S = 1.0


@takes("broker", "token_file", "trust_certs")
def demo(
    settings: Settings,
    seconds: Annotated[float, typer.Option("--seconds", min=1, max=3600, help="How long the agents work.")] = 10.0,
    json: Annotated[bool, typer.Option("--json", help="Only the summary, as one line of JSON.")] = False,
) -> None:
    """Watch tool calls travel: agents, tools, and everything that can happen to a call.

    Services and agents run in this process on the embedded broker; with [bold]--broker pulsar://…[/bold] everything travels
    through a genuine one (DISPATCH_BROKER is not looked at here). It ends by itself. The exit code is 1 if something went
    otherwise than planned.
    """
    from dispatch.cli.failures import Exit
    from dispatch.cli.logs import show_logs
    from dispatch.demo import Demo

    if not settings.verbose:
        # The incidents are on purpose: what they write to the log is not news.
        show_logs(False, logging.ERROR)
    run = Demo(settings.broker or "memory://", seconds, security=settings.security())
    summary = run_async(_quiet(run) if json else _live(run) if is_terminal(sys.stdout) else _plain(run))
    if json:
        put_json(summary.as_dict())
    else:
        from dispatch.cli.demo_view import show_summary

        show_summary(summary)
    if summary.surprises:
        for line in summary.surprises:
            say(f"Unexpected: {line}")
        raise typer.Exit(Exit.FAILED)


async def _quiet(run: Demo) -> Summary:
    return await run.run()


async def _live(run: Demo) -> Summary:
    from rich.live import Live

    from dispatch.cli.demo_view import live_view
    from dispatch.cli.output import console

    with Live(console=console(), auto_refresh=False, transient=False) as live:

        def show() -> None:
            live.update(live_view(run), refresh=True)

        try:
            return await _watched(run, show, LIVE_EVERY_S)
        finally:
            show()


async def _plain(run: Demo) -> Summary:
    from dispatch.cli.demo_view import plain_line

    put(f"Agents call tools on {run.broker} for {run.seconds:g} s.")
    return await _watched(run, lambda: put(plain_line(run)), PLAIN_EVERY_S)


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
        for task in (running, looking):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
