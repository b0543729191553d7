"""``dispatch relay``: forward the public topics of tool services to their instances until a signal stops it."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import time
from dataclasses import replace
from typing import Annotated, Final

import msgspec
import typer

from dispatch._internal import cancel_and_wait
from dispatch.catalog.activation import describe_error
from dispatch.cli.base import (
    ADMIN,
    CliError,
    Exit,
    Settings,
    format_count,
    make_printable,
    print_err,
    print_json,
    report_admin,
    run_async,
    run_until,
    with_settings,
)
from dispatch.documents import sign_file
from dispatch.errors import TransportError
from dispatch.relay import Relay, RelayConfig, RelayError
from dispatch.transports import default_broker

CHECK_S: Final = 1.0
"""Seconds between two checks whether the configuration has changed."""
YOUNG_OBJECTS: Final = 10_000
"""Objects after which the garbage collection looks at the new ones: more than the calls in flight have. They form no cycles;
at Python's 700, each burst of 24 calls was looked at, which took 8 % of the time of a call."""


@with_settings(*ADMIN, "broker", "token_file", "trust_certs")
def relay(
    settings: Settings,
    config: Annotated[str, typer.Option("--config", "-c")],
    json: bool = False,
) -> None:
    """Stand between unmodified agents and unmodified tool services: consume the public topics of the services, and forward
    each request to their instances with every guard of a dispatcher.

    [bold]dispatch relay --config relay.json[/bold]

    'dispatch check --relay relay.json' shows what it would do. Several relays with one configuration share the requests. The
    broker that the file names is used without --broker and DISPATCH_BROKER.

    SIGHUP, and a change of the file, put the configuration in force again; with a mistake the former one stays. SIGTERM and
    Ctrl-C stop: calls in flight finish; a second one cancels them. The exit code after SIGTERM is 0, after Ctrl-C 130.

    Args:
        config (FILE): Configuration in JSON or YAML.
        json: Report events (ready, changed, reloaded, stopped) as lines of JSON.
    """
    admin_settings = settings.load_admin()
    try:
        made = Relay(
            load_config(config, settings),
            security=settings.security(),
            on_change=lambda line: report("changed", line, json=json),
            admin=admin_settings,
        )
    except (RelayError, ImportError) as error:
        raise CliError(str(error)) from None
    replace(settings, broker=made.config.broker).require_pulsar_url("dispatch relay")
    if not settings.verbose:
        logging.getLogger("dispatch.transport").setLevel(logging.INFO)
    received = run_async(run_relay(made, config, settings, json=json))
    if received is not signal.SIGTERM:
        raise KeyboardInterrupt


def load_config(path: str, settings: Settings) -> RelayConfig:
    """Read the configuration; the broker is that of ``--broker``, else of ``DISPATCH_BROKER``, else of the file.

    Raises:
        RelayError: it has mistakes.
    """
    config = RelayConfig.load(path)
    return msgspec.structs.replace(config, broker=settings.broker or default_broker(config.broker))


def report(event: str, line: str, *, json: bool) -> None:
    """Report an event: for people on stderr, for programs as JSON on stdout."""
    if json:
        print_json({"event": event, "text": line})
    else:
        print_err(make_printable(line))


async def run_relay(made: Relay, path: str, settings: Settings, *, json: bool) -> signal.Signals:
    """Run the relay until a signal stops it; return that signal."""
    loop = asyncio.get_running_loop()
    received: list[signal.Signals] = []
    stop, at_once, hangup = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def on_signal(number: signal.Signals) -> None:
        received.append(number)
        if len(received) > 2:
            os._exit(Exit.INTERRUPTED)
        (stop if len(received) == 1 else at_once).set()

    for number in (signal.SIGINT, signal.SIGTERM):  # before the start: it may have consumed requests when it is stopped
        loop.add_signal_handler(number, on_signal, number)
    loop.add_signal_handler(signal.SIGHUP, hangup.set)
    tasks = []
    try:
        if await run_until(stop, made.start()):
            report_admin(made.dispatcher.admin_url)
            tasks = [
                loop.create_task(_reload(made, path, settings, hangup, json=json)),
                loop.create_task(_feed_watchdog()),
            ]
            spare_collections()
            report("ready", f"Relaying {_name_services(made)}. Ctrl-C finishes calls in flight and stops.", json=json)
            await notify_systemd("READY=1")
            await stop.wait()
        await notify_systemd("STOPPING=1")
        running = sum(server.running + server.queued for server in made.servers)
        hint = " Ctrl-C again stops immediately." if received[0] is signal.SIGINT else ""
        report("stopping", f"Stopping: {format_count(running, 'call')} in flight.{hint}", json=json)
        await cancel_and_wait(tasks[:1])
        await run_until(at_once, made.drain())
    except RelayError as error:
        raise CliError(str(error)) from None
    finally:
        await made.close()
        await cancel_and_wait(tasks)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)
    report("stopped", f"Stopped. {format_count(made.requests, 'request')} received.", json=json)
    return received[0]


def spare_collections() -> None:
    """Let the garbage collection leave out what the relay has loaded, which took 40 ms of each full one, and come seldom."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)


async def _reload(made: Relay, path: str, settings: Settings, hangup: asyncio.Event, *, json: bool) -> None:
    """Put the configuration in force again at SIGHUP, and when its file has changed."""
    signature = sign_file(path)
    while True:
        try:
            async with asyncio.timeout(CHECK_S):
                await hangup.wait()
        except TimeoutError:
            if sign_file(path) == signature:
                continue
        hangup.clear()
        signature = sign_file(path)
        await notify_systemd(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1_000}")
        try:
            await made.reload(await asyncio.to_thread(load_config, path, settings))
        except Exception as error:  # of any source; the next reload must still work
            reason = error if isinstance(error, ValueError | TransportError) else describe_error(error)
            report("reload-failed", f"Not reloaded, the former configuration stays. {reason}", json=json)
        else:
            report("reloaded", f"Reloaded: relaying {_name_services(made)}.", json=json)
        await notify_systemd("READY=1")


def _name_services(made: Relay) -> str:
    flows = made.config.mcp_tool
    named = [format_count(len(made.services), "service")] if made.services else []
    named += [] if flows is None else [f"the flows of {flows.processor}"]
    return (
        " and ".join(named) or "no services yet: none of the catalogue has instances with request topics of their own"
    )


# systemd's notifications (sd_notify): the type of the unit is ``notify-reload``.


NOTIFY_S: Final = 1.0
"""Seconds for which a message waits for room in the socket of the service manager."""


async def notify_systemd(state: str) -> None:
    """Send ``state`` to the service manager, if there is one."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as connection:
        try:
            connection.connect(f"\0{address[1:]}" if address.startswith("@") else address)
            async with asyncio.timeout(NOTIFY_S):
                await asyncio.get_running_loop().sock_sendall(connection, state.encode())
        except OSError as error:
            logging.getLogger("dispatch.relay").warning(
                "systemd is not notified: %s", str(error) or f"its socket is full for {NOTIFY_S:g} s"
            )


async def _feed_watchdog() -> None:
    """Tell the watchdog of systemd twice an interval that the event loop runs."""
    microseconds = int(os.environ.get("WATCHDOG_USEC") or 0)
    while microseconds and os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid()):
        await notify_systemd("WATCHDOG=1")
        await asyncio.sleep(microseconds / 2_000_000)
