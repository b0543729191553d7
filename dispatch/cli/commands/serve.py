"""``dispatch serve``: serve a tool service until a signal stops it."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dispatch._internal.cancellation import cancel_and_wait
from dispatch.cli.metrics import MetricsAddress, MetricsPort, serve_metrics
from dispatch.cli.output import format_count, print_err, print_json
from dispatch.cli.run_async import run_async
from dispatch.cli.settings import Settings, with_settings
from dispatch.messaging.wire.fragments import MAX_PAYLOAD_BYTES
from dispatch.messaging.wire.topics import service_queues
from dispatch.serving.server import DEFAULT_CONCURRENCY, DEFAULT_DRAIN_S, DEFAULT_QUEUE
from dispatch.telemetry.settings import METRICS_ADDRESS

if TYPE_CHECKING:
    from dispatch.serving.server import ToolServer

_THREADS = "dispatch-serve"
_OWN_THREADS = 8
"""Threads of the default executor in addition to those for tools that use ``asyncio.to_thread``."""
IDLE_S = 15.0
"""Seconds without a request after which the command reports it once."""
_THREAD_END_S = 0.5
"""Seconds to wait for idle threads to end; threads that run a tool are not awaited."""


@with_settings("broker", "token_file", "trust_certs")
def serve(
    settings: Settings,
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:CLASS",
            help="Service class: package.module:CLASS or path/to/file.py:CLASS.",
            show_default=False,
        ),
    ],
    service: Annotated[
        str | None,
        typer.Option(
            "--service",
            metavar="NAME",
            help="Name of the service: 'joke' consumes {} and replies on {}.".format(*service_queues("joke")),
            show_default=False,
        ),
    ] = None,
    request_queue: Annotated[
        str | None,
        typer.Option("--request-queue", metavar="TOPIC", help="Full name of the request topic.", show_default=False),
    ] = None,
    response_queue: Annotated[
        str | None,
        typer.Option("--response-queue", metavar="TOPIC", help="Full name of the response topic.", show_default=False),
    ] = None,
    instance: Annotated[
        str | None,
        typer.Option("--instance", metavar="ID", help="Id of this instance. Default: generated.", show_default=False),
    ] = None,
    concurrency: Annotated[
        int, typer.Option("--concurrency", min=1, help="Requests executed at the same time.")
    ] = DEFAULT_CONCURRENCY,
    max_queue: Annotated[
        int, typer.Option("--max-queue", min=0, help="Requests that may wait; further ones are rejected.")
    ] = DEFAULT_QUEUE,
    max_payload_bytes: Annotated[
        int,
        typer.Option(
            "--max-payload-bytes", metavar="BYTES", min=1, help="Maximum size of a fragmented request or reply."
        ),
    ] = MAX_PAYLOAD_BYTES,
    drain_timeout: Annotated[
        float,
        typer.Option(
            "--drain-timeout", metavar="SECONDS", min=0, help="Time for running requests to finish after a signal."
        ),
    ] = DEFAULT_DRAIN_S,
    json: Annotated[
        bool, typer.Option("--json", help="Report events (ready, draining, stopped) as lines of JSON.")
    ] = False,
    metrics_port: MetricsPort = None,
    metrics_address: MetricsAddress = METRICS_ADDRESS,
) -> None:
    """Serve a tool service until it is stopped.

    [bold]dispatch serve jokes.py:Joke --service joke[/bold]

    [bold]dispatch serve jokes.py:Joke --service joke --concurrency 8 --metrics-port 9464[/bold]

    SIGTERM and the first Ctrl-C drain: running requests finish, others are rejected. A second Ctrl-C stops immediately.

    The exit code after SIGTERM is 0, after Ctrl-C 130.
    """
    from dispatch.cli.exit_codes import CliError
    from dispatch.cli.service_loader import load_service
    from dispatch.serving.server import ToolServer

    broker = settings.require_pulsar_url("dispatch serve")
    if not math.isfinite(drain_timeout):
        raise CliError(f"--drain-timeout {drain_timeout} is not a number of seconds.", "use for instance 30")
    request_queue, response_queue = _resolve_topics(service, request_queue, response_queue)
    implementation = load_service(target)
    if not settings.verbose:
        # Connection events matter here, unlike in commands that end by themselves.
        logging.getLogger("dispatch.transport").setLevel(logging.INFO)
    security = settings.security()
    try:
        server = ToolServer(
            implementation,
            broker,
            service=service,
            request_queue=request_queue,
            response_queue=response_queue,
            instance=instance,
            concurrency=concurrency,
            max_queue=max_queue,
            max_payload_bytes=max_payload_bytes,
            drain_timeout=drain_timeout,
            security=security,
        )
    except (TypeError, ValueError) as error:
        raise CliError(str(error)) from None
    pool = ThreadPoolExecutor(concurrency + _OWN_THREADS, thread_name_prefix=_THREADS)
    with serve_metrics(metrics_port, metrics_address):
        received = run_async(_serve_with(pool, server, ServerReporter(server, json)))
    if received is not signal.SIGTERM:
        raise KeyboardInterrupt


def _resolve_topics(service: str | None, request_queue: str | None, response_queue: str | None) -> tuple[str, str]:
    from dispatch.catalog import TopicError, TopicName
    from dispatch.cli.exit_codes import CliError

    if service is not None:
        requests, responses = service_queues(service)
        request_queue, response_queue = request_queue or requests, response_queue or responses
    if request_queue is None or response_queue is None:
        raise CliError(
            "No topic is given.", "use --service joke, or full names with --request-queue and --response-queue"
        )
    try:
        return str(TopicName.parse(request_queue)), str(TopicName.parse(response_queue))
    except TopicError as error:
        raise CliError(f"{error.problem}.", error.fix) from None


class ServerReporter:
    """Reports server events: for people on stderr, for programs as JSON on stdout."""

    def __init__(self, server: ToolServer, json: bool) -> None:
        self._server = server
        self._json = json

    def report(self, event: str, text: str, **facts: Any) -> None:
        if self._json:
            print_json({"event": event, "instance": self._server.instance, **facts})
        else:
            print_err(text)


async def _serve_with(pool: ThreadPoolExecutor, server: ToolServer, reporter: ServerReporter) -> signal.Signals:
    asyncio.get_running_loop().set_default_executor(pool)
    received = await serve_until_signal(server, reporter)
    pool.shutdown(wait=False, cancel_futures=True)
    if _has_running_threads():
        # A blocked thread cannot be stopped; waiting for it would keep the process alive forever.
        _exit_process(0 if received is signal.SIGTERM else 130)
    return received


async def serve_until_signal(server: ToolServer, reporter: ServerReporter) -> signal.Signals:
    """Serve until a signal arrives; return the first one."""
    loop = asyncio.get_running_loop()
    received: list[signal.Signals] = []
    stop, at_once = asyncio.Event(), asyncio.Event()

    def on_signal(number: signal.Signals) -> None:
        received.append(number)
        (stop if len(received) == 1 else at_once).set()
        if len(received) > 2:
            _exit_process(130)

    await server.start()
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, on_signal, number)
        reporter.report(
            "ready",
            f"{server.instance} consumes {server.request_queue} and replies on {server.response_queue}. Ctrl-C drains and "
            "stops.",
            request_queue=server.request_queue,
            response_queue=server.response_queue,
        )
        idle = loop.call_later(IDLE_S, _report_idle, server, reporter)
        await stop.wait()
        idle.cancel()
        hint = " Ctrl-C again stops immediately." if received[0] is signal.SIGINT else ""
        reporter.report(
            "draining",
            f"Draining: {server.running} running, {server.queued} queued; at most {server.drain_timeout:g} s.{hint}",
            running=server.running,
            queued=server.queued,
        )
        drained = await _drain(server, at_once, loop)
        reporter.report(
            "stopped",
            f"{drained} {format_count(server.requests, 'request')} received, {sum(server.refused.values()):,} rejected.",
            drained=drained == _DRAINED,
            requests=server.requests,
            refused=dict(server.refused),
            malformed=server.malformed,
        )
    finally:
        # Closed while the handlers are installed: a second Ctrl-C must not leak a connection.
        await server.close()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
    return received[0]


def _report_idle(server: ToolServer, reporter: ServerReporter) -> None:
    """Report that no request has arrived: the callers may use another topic."""
    if not server.requests:
        reporter.report(
            "idle",
            f"No request has arrived in {IDLE_S:g} s. Callers must use {server.request_queue} as request-queue on this "
            "broker: 'dispatch tools NAME' shows that of a tool, 'dispatch doctor' checks the whole path.",
            request_queue=server.request_queue,
        )


_DRAINED = "Drained."


async def _drain(server: ToolServer, at_once: asyncio.Event, loop: asyncio.AbstractEventLoop) -> str:
    began = loop.time()
    draining = asyncio.ensure_future(server.drain())
    second_signal = asyncio.ensure_future(at_once.wait())
    try:
        await asyncio.wait({draining, second_signal}, return_when=asyncio.FIRST_COMPLETED)
        if not draining.done():
            return f"Stopped immediately: {format_count(server.running, 'request')} cancelled."
        draining.result()
        late = server.drain_timeout <= loop.time() - began
        return (
            f"Not all requests finished within {server.drain_timeout:g} s; the rest was cancelled."
            if late
            else _DRAINED
        )
    finally:
        await cancel_and_wait((draining, second_signal))


def _has_running_threads() -> bool:
    """Return whether a thread still runs a tool."""
    threads = [thread for thread in threading.enumerate() if thread.name.startswith(_THREADS)]
    for thread in threads:
        thread.join(_THREAD_END_S / len(threads))
    return any(thread.is_alive() for thread in threads)


def _exit_process(code: int) -> None:
    """Exit without waiting for threads."""
    if code == 130:
        print_err("Interrupted.")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
