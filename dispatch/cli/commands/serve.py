"""``dispatch serve``: run a tool service until it is told to stop."""

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
from dispatch.cli.metrics import LOOPBACK, MetricsAddress, MetricsPort, serving_metrics
from dispatch.cli.output import counted, put_json, say
from dispatch.cli.run_async import run_async
from dispatch.cli.settings import Settings, takes

if TYPE_CHECKING:
    from dispatch.serving.server import ToolServer

_THREADS = "dispatch-serve"
_OWN_THREADS = 8
"""Threads of the default executor beside those that tools take with ``asyncio.to_thread``."""
IDLE_S = 15.0
"""After so many seconds without a request, it is said once that none has come."""
_THREAD_END_S = 0.5
"""How long idle threads may take to end; one that runs a tool is not waited for."""


@takes("broker", "token_file", "trust_certs")
def serve(
    settings: Settings,
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:CLASS",
            help="Where the service class is: package.module:CLASS, or path/to/file.py:CLASS.",
            show_default=False,
        ),
    ],
    service: Annotated[
        str | None,
        typer.Option(
            "--service",
            metavar="NAME",
            help="The service's name: 'joke' listens on non-persistent://tg/request/joke and replies on "
            "non-persistent://tg/response/joke.",
            show_default=False,
        ),
    ] = None,
    request_queue: Annotated[
        str | None, typer.Option("--request-queue", metavar="TOPIC", help="Whole name instead.", show_default=False)
    ] = None,
    response_queue: Annotated[
        str | None, typer.Option("--response-queue", metavar="TOPIC", help="Whole name instead.", show_default=False)
    ] = None,
    instance: Annotated[
        str | None,
        typer.Option("--instance", metavar="ID", help="This process's own id, on every answer.", show_default=False),
    ] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, help="Requests run at once.")] = 64,
    max_queue: Annotated[
        int, typer.Option("--max-queue", min=0, help="Requests queued beyond that; further ones are refused at once.")
    ] = 1024,
    max_payload_bytes: Annotated[
        int,
        typer.Option(
            "--max-payload-bytes",
            metavar="BYTES",
            min=1,
            help="Largest request or answer that may go in parts (policy 'large-payloads').",
        ),
    ] = 64 * 1024 * 1024,
    drain_timeout: Annotated[
        float,
        typer.Option("--drain-timeout", metavar="SECONDS", min=0, help="For what runs to finish, once told to stop."),
    ] = 30.0,
    json: Annotated[bool, typer.Option("--json", help="Write ready, draining and stopped as lines of JSON.")] = False,
    metrics_port: MetricsPort = None,
    metrics_address: MetricsAddress = LOOPBACK,
) -> None:
    """Serve a tool service.

    SIGTERM, and the first Ctrl-C, drain: what runs finishes, everything else is refused. A second Ctrl-C stops at once.

    [bold]dispatch serve jokes.py:Joke --service joke[/bold]

    The exit code after SIGTERM is 0, after Ctrl-C 130.
    """
    from dispatch.cli.exit_codes import CliError
    from dispatch.cli.service_loader import load_service
    from dispatch.serving.server import ToolServer

    broker = settings.genuine_broker_url("dispatch serve")
    if not math.isfinite(drain_timeout):
        raise CliError(f"--drain-timeout {drain_timeout} is no number of seconds.", "give for instance 30")
    request_queue, response_queue = _queues(service, request_queue, response_queue)
    implementation = load_service(target)
    if not settings.verbose:
        # What becomes of the connection is news here, unlike in a command that ends by itself.
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
    with serving_metrics(metrics_port, metrics_address):
        received = run_async(_serve_with(pool, server, Voice(server, json)))
    if received is not signal.SIGTERM:
        raise KeyboardInterrupt


def _queues(service: str | None, request_queue: str | None, response_queue: str | None) -> tuple[str, str]:
    from dispatch.catalog import TopicError, TopicName
    from dispatch.cli.exit_codes import CliError

    if service is not None:
        request_queue = request_queue or f"non-persistent://tg/request/{service}"
        response_queue = response_queue or f"non-persistent://tg/response/{service}"
    if request_queue is None or response_queue is None:
        raise CliError(
            "Where to listen?", "give --service joke, or whole names with --request-queue and --response-queue"
        )
    try:
        return str(TopicName.parse(request_queue)), str(TopicName.parse(response_queue))
    except TopicError as error:
        raise CliError(f"{error.problem}.", error.fix) from None


class Voice:
    """Says what the server does: to a person on stderr, to a program on stdout."""

    def __init__(self, server: ToolServer, json: bool) -> None:
        self._server = server
        self._json = json

    def tell(self, event: str, text: str, **facts: Any) -> None:
        if self._json:
            put_json({"event": event, "instance": self._server.instance, **facts})
        else:
            say(text)


async def _serve_with(pool: ThreadPoolExecutor, server: ToolServer, voice: Voice) -> signal.Signals:
    asyncio.get_running_loop().set_default_executor(pool)
    received = await serve_until_told(server, voice)
    pool.shutdown(wait=False, cancel_futures=True)
    if _left_behind():
        # A tool that blocks its thread cannot be ended by anyone; waiting for it would keep the process for ever.
        _end(0 if received is signal.SIGTERM else 130)
    return received


async def serve_until_told(server: ToolServer, voice: Voice) -> signal.Signals:
    """Serve until a signal comes; the first of them."""
    loop = asyncio.get_running_loop()
    received: list[signal.Signals] = []
    stop, at_once = asyncio.Event(), asyncio.Event()

    def on_signal(number: signal.Signals) -> None:
        received.append(number)
        (stop if len(received) == 1 else at_once).set()
        if len(received) > 2:
            _end(130)

    await server.start()
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, on_signal, number)
        voice.tell(
            "ready",
            f"{server.instance} serves {server.request_queue} and answers on {server.response_queue}. Ctrl-C drains and "
            "stops.",
            request_queue=server.request_queue,
            response_queue=server.response_queue,
        )
        idle = loop.call_later(IDLE_S, _tell_idle, server, voice)
        await stop.wait()
        idle.cancel()
        again = " Ctrl-C again stops at once." if received[0] is signal.SIGINT else ""
        voice.tell(
            "draining",
            f"Draining: {server.running} running, {server.queued} queued; at most {server.drain_timeout:g} s.{again}",
            running=server.running,
            queued=server.queued,
        )
        drained = await _drain(server, at_once, loop)
        voice.tell(
            "stopped",
            f"{drained} {counted(server.requests, 'request')} came, {sum(server.refused.values()):,} refused.",
            drained=drained == _DRAINED,
            requests=server.requests,
            refused=dict(server.refused),
            malformed=server.malformed,
        )
    finally:
        # Closed while the handlers stand: an impatient Ctrl-C must not leave a connection behind.
        await server.close()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
    return received[0]


def _tell_idle(server: ToolServer, voice: Voice) -> None:
    """Say that no request has come, if none has: the topic may be another one than the callers'."""
    if not server.requests:
        voice.tell(
            "idle",
            f"No request has come in {IDLE_S:g} s. Callers must have {server.request_queue} as the service's request-queue, "
            "on this broker: 'dispatch tools NAME' shows a tool's, 'dispatch doctor' looks at the whole path.",
            request_queue=server.request_queue,
        )


_DRAINED = "Drained."


async def _drain(server: ToolServer, at_once: asyncio.Event, loop: asyncio.AbstractEventLoop) -> str:
    began = loop.time()
    draining = asyncio.ensure_future(server.drain())
    impatient = asyncio.ensure_future(at_once.wait())
    try:
        await asyncio.wait({draining, impatient}, return_when=asyncio.FIRST_COMPLETED)
        if not draining.done():
            return f"Stopped at once: {counted(server.running, 'request')} cut off."
        draining.result()
        late = server.drain_timeout <= loop.time() - began
        return f"Not all had finished after {server.drain_timeout:g} s: the rest is cut off." if late else _DRAINED
    finally:
        await cancel_and_wait((draining, impatient))


def _left_behind() -> bool:
    """Does a thread still run a tool?"""
    threads = [thread for thread in threading.enumerate() if thread.name.startswith(_THREADS)]
    for thread in threads:
        thread.join(_THREAD_END_S / len(threads))
    return any(thread.is_alive() for thread in threads)


def _end(code: int) -> None:
    """End the process without waiting for its threads."""
    if code == 130:
        say("Interrupted.")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
