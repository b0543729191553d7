"""``dispatch serve``: serve a tool service until a signal stops it."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import logging
import math
import os
import signal
import sys
import threading
import traceback
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dispatch._internal import cancel_and_wait, find_near_names, join_alternatives, read_text
from dispatch.catalog import TopicError, TopicName
from dispatch.cli.base import (
    CliError,
    MetricsAddress,
    MetricsPort,
    Settings,
    format_count,
    print_err,
    print_json,
    run_async,
    serve_metrics,
    with_settings,
)
from dispatch.cli.sources import list_sources
from dispatch.messaging.wire import MAX_PAYLOAD_BYTES, service_queues
from dispatch.serving.server import DEFAULT_CONCURRENCY, DEFAULT_DRAIN_S, DEFAULT_QUEUE
from dispatch.serving.tool_service import ToolService, read_invoke
from dispatch.telemetry.observers import METRICS_ADDRESS

if TYPE_CHECKING:
    from dispatch.dispatcher import Dispatcher
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


# Loading of a tool service from ``MODULE:CLASS``.


def load_service(target: str) -> object:
    """Load the service that ``target`` names.

    Args:
        target: ``package.module:CLASS`` or ``path/to/file.py:CLASS``. CLASS may be a class without constructor arguments, an
            instance, or a function that returns one; default: the module's only service class.

    Raises:
        CliError: the target does not exist, cannot be imported, or is not a service.
    """
    module_name, _, name = target.rpartition(":") if _has_name(target) else (target, "", "")
    module = _import_file(Path(module_name)) if _is_path(module_name) else _import_module(module_name)
    found = _only_service(module, module_name) if not name else _attribute(module, module_name, name)
    return _instance(found, f"{module_name}:{name or getattr(found, '__name__', '')}")


def _has_name(target: str) -> bool:
    return ":" in target and not target.endswith(".py")


def _is_path(name: str) -> bool:
    return name.endswith(".py") or "/" in name


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise CliError(f"The file '{path}' does not exist.", "give the path of the file with your service class")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise CliError(f"'{path}' is not a Python file.", "give a file with the extension .py")
    sys.path.insert(0, str(path.resolve().parent))  # modules beside it can be imported, as when Python runs the file
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise _import_failed(str(path), error) from error
    return module


def _import_module(name: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))  # as 'python -m' does
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise CliError(
                f"The module '{error.name}' does not exist.",
                "give MODULE:CLASS with an importable module, or the path of a file: jokes.py:Joke",
            ) from None
        raise _import_failed(name, error) from error
    except Exception as error:
        raise _import_failed(name, error) from error


def _import_failed(name: str, error: Exception) -> CliError:
    if isinstance(error, SyntaxError):
        where = f" ({error.filename}, line {error.lineno})"
    else:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if "importlib" not in frame.filename and frame.filename != __file__]
        where = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    text = error.msg if isinstance(error, SyntaxError) else read_text(error)
    return CliError(
        f"'{name}' cannot be imported: {type(error).__name__}: {text}{where}.",
        "fix the module; --verbose shows the traceback",
    )


def _attribute(module: ModuleType, module_name: str, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            near = _find_near_services(found, part)
            fix = (
                f"did you mean {join_alternatives(near)}?"
                if near
                else "give the name of your service class after the ':'"
            )
            raise CliError(f"'{module_name}' has no '{name}'.", fix) from None
    return found


def _find_near_services(owner: Any, name: str) -> tuple[str, ...]:
    """Return names of ``owner`` that ``name`` may mean: of services, or else of functions and classes that lead to one. A
    constant is never served."""
    names = [known for known in dir(owner) if not known.startswith("_")]
    services = [known for known in names if _is_service(getattr(owner, known, None))]
    near = find_near_names(name, services) or tuple(
        known for known in services if known.casefold() in name.casefold() or name.casefold() in known.casefold()
    )
    others = [known for known in names if callable(getattr(owner, known, None)) and known not in services]
    return near or find_near_names(name, others)


def _is_service(value: Any) -> bool:
    """Return whether ``value`` is a class with an ``invoke``, or an object of one; not the base class itself."""
    return value is not ToolService and callable(getattr(value, "invoke", None))


def _only_service(module: ModuleType, module_name: str) -> Any:
    own = [
        value
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, ToolService) and value.__module__ == module.__name__
    ]
    if len(own) == 1:
        return own[0]
    example = f"{module_name}:{own[0].__name__ if own else 'Joke'}"
    names = ", ".join(value.__name__ for value in own)
    raise CliError(
        f"'{module_name}' has several services: {names}." if own else f"'{module_name}' has no ToolService class.",
        f"select one: {example}",
    )


def _instance(found: Any, name: str) -> object:
    try:
        if inspect.isclass(found) or (inspect.isroutine(found) and not hasattr(found, "invoke")):
            found = found()
        read_invoke(found)
    except Exception as error:
        # The message about a wrong 'invoke' is specific; constructor arguments can only come from the module.
        fix = (
            "fix the class"
            if "invoke" in str(error)
            else "the class is created without arguments; if it needs some, create the instance in the module and name it"
        )
        raise CliError(f"'{name}' cannot be served: {type(error).__name__}: {error}.", fix) from error
    return found


# ``dispatch mcp``: serve all tools over MCP.


class Search(StrEnum):
    """Values of ``--search``."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@with_settings(
    "broker", "catalog", "policy", "grants", "token_file", "trust_certs", "trustgraph", "workspace", "approvals"
)
def mcp(
    settings: Settings,
    http: Annotated[
        str | None,
        typer.Option(
            "--http",
            metavar="HOST:PORT",
            help="Serve streamable HTTP at http://HOST:PORT/mcp. Port 0: any free port. Default: stdin and stdout.",
            show_default=False,
        ),
    ] = None,
    search: Annotated[
        Search,
        typer.Option("--search", help="List find_tools and call_tool in place of the tools: auto: above 40 tools."),
    ] = Search.AUTO,
    always: Annotated[
        list[str] | None,
        typer.Option(
            "--always", metavar="NAME", help="List this tool also beside find_tools; repeatable.", show_default=False
        ),
    ] = None,
    user: Annotated[
        str,
        typer.Option(
            "--user",
            "-u",
            help="User on whose behalf tools are listed and called without --tokens.",
            show_default=False,
        ),
    ] = "",
    tokens: Annotated[
        str | None,
        typer.Option(
            "--tokens",
            metavar="FILE",
            help='JSON file of bearer tokens, {"USER": "TOKEN"}. Required if other machines reach HOST.',
            show_default=False,
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host",
            metavar="HOST",
            help="Name under which clients reach the server, such as that of a proxy; repeatable.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Serve all tools over MCP (Model Context Protocol).

    [bold]dispatch mcp --catalog tools/[/bold]

    [bold]dispatch mcp --http 127.0.0.1:8080 --tokens tokens.json[/bold]

    On stdin and stdout it serves one client and ends when the client closes stdin. Only the protocol is written to stdout.

    The exit code after SIGTERM is 0, after Ctrl-C 130.
    """
    from dispatch.dispatcher import connect

    address = None if http is None else parse_address(http)
    if address is None and (tokens is not None or allow_host):
        raise CliError("--tokens and --allow-host are for HTTP.", "add --http 127.0.0.1:8080, or use --user")
    try:
        from dispatch.mcp.server import BearerTokens, McpServer, TokenFileError, is_loopback, serve_http
    except ImportError as error:
        raise CliError(str(error)) from None
    try:
        users = None if tokens is None else BearerTokens.load(tokens)
    except TokenFileError as error:
        raise CliError(str(error)) from None
    if address is not None and users is None and not is_loopback(address[0]):
        raise CliError(
            f"Other machines reach '{address[0]}', and every client must name itself there with a bearer token.",
            "add --tokens FILE, or listen at 127.0.0.1",
        )
    dispatcher = connect(
        settings.broker_url,
        list_sources(settings, watch=True),
        policy=settings.load_policy(),
        grants=settings.load_grants(),
        approvals=settings.approvals_file,
        security=settings.security(),
    )
    server = McpServer(dispatcher, user=user, search=search.value, always=always or ())
    serving = (
        server.serve_stdio()
        if address is None
        else serve_http(server, *address, hosts=allow_host or (), tokens=users, on_ready=_report_ready)
    )
    run_async(_serve(dispatcher, serving))


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``; an IPv6 address is in brackets.

    Raises:
        CliError: it has another form.
    """
    host, separator, port = text.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if not separator or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise CliError(f"--http '{text}' is not HOST:PORT.", "write for instance --http 127.0.0.1:8080")
    if ":" in host and not is_bracketed:
        raise CliError(f"The address in --http '{text}' is not unambiguous.", f"write --http [{host}]:{port}")
    return host.strip("[]"), int(port)


def _report_ready(url: str) -> None:
    print_err(f"MCP: {url}")


async def _serve(dispatcher: Dispatcher, serving: Coroutine[Any, Any, None]) -> None:
    """Serve until the client leaves, or SIGTERM. Ctrl-C cancels this coroutine."""
    try:
        async with dispatcher:
            task = asyncio.create_task(serving)
            stopped = asyncio.Event()
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGTERM, stopped.set)
            stopping = asyncio.create_task(stopped.wait())
            try:
                await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
            finally:
                loop.remove_signal_handler(signal.SIGTERM)
                stopping.cancel()
                task.cancel()
                await asyncio.wait([task])
            if not task.cancelled():
                task.result()
    finally:
        serving.close()
