"""``dispatch serve`` and ``dispatch mcp``: serve functions, services, or all tools over MCP, until a signal stops them.

``dispatch init`` creates such a service.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import keyword
import logging
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, cast

import typer

from dispatch._internal import cancel_and_wait, join_names, read_text
from dispatch.admin import Admin, is_loopback, parse_host_port
from dispatch.announcements import DEFAULT_TOPIC, Announce
from dispatch.catalog import Folder, TopicError, TopicName
from dispatch.cli.base import (
    ADMIN,
    SOURCES,
    CliError,
    Exit,
    Settings,
    divert_prints,
    format_count,
    make_printable,
    print_err,
    print_json,
    print_out,
    read_secrets,
    report_admin,
    require_seconds,
    run_async,
    run_until,
    run_until_sigterm,
    show_logs,
    with_settings,
)
from dispatch.cli.sources import list_sources
from dispatch.cli.targets import Reloader, load_target, name_target, replaces_module
from dispatch.dispatcher import Dispatcher, connect
from dispatch.documents import replace_file
from dispatch.functions.served import Descriptors
from dispatch.messaging.wire import MAX_PAYLOAD_BYTES
from dispatch.server import DEFAULT_CONCURRENCY, DEFAULT_DRAIN_S, DEFAULT_QUEUE, ToolServer, name_topics
from dispatch.telemetry.observers import DEFAULT_TELEMETRY
from dispatch.transports import Transport, open_transport

_THREADS = "dispatch-serve"
_OWN_THREADS = 8
"""Threads of the default executor in addition to those for tools that use ``asyncio.to_thread``."""
_announcement = partial(typer.Option, rich_help_panel="Announcements")
RELOAD_CHECK_S = 0.1
"""Seconds between two checks whether a file has changed; a check of one folder takes some 50 µs."""
IDLE_S = 15.0
"""Seconds without a request after which the command reports it once."""
_THREAD_END_S = 0.5
"""Seconds to wait for idle threads to end; threads that run a tool are not awaited."""


@with_settings(*ADMIN, "broker", "token_file", "trust_certs")
def serve(
    settings: Settings,
    targets: list[str],
    service: Annotated[str | None, typer.Option(envvar="DISPATCH_SERVICE")] = None,
    request_queue: str | None = None,
    response_queue: str | None = None,
    instance: Annotated[str | None, typer.Option(envvar="DISPATCH_INSTANCE")] = None,
    concurrency: Annotated[int, typer.Option(min=1, envvar="DISPATCH_CONCURRENCY")] = DEFAULT_CONCURRENCY,
    max_queue: Annotated[int, typer.Option(min=0)] = DEFAULT_QUEUE,
    max_payload_bytes: Annotated[int, typer.Option(min=1)] = MAX_PAYLOAD_BYTES,
    drain_timeout: Annotated[float, typer.Option(min=0)] = DEFAULT_DRAIN_S,
    watch: bool = False,
    descriptors: Annotated[str | None, _announcement()] = None,
    announce: Annotated[str, _announcement(envvar="DISPATCH_ANNOUNCEMENTS")] = DEFAULT_TOPIC,
    signing_keys: Annotated[str | None, _announcement(envvar="DISPATCH_SIGNING_KEYS")] = None,
    label: Annotated[list[str] | None, _announcement()] = None,
    json: bool = False,
) -> None:
    """Serve functions or tool services until they are stopped.

    [bold]dispatch serve shop.py --watch[/bold]

    [bold]dispatch serve shop.py jokes.py:Joke --concurrency 8 --admin 127.0.0.1:9464[/bold]

    A file or module without a name serves its functions that are declared with @dispatch.tool; if none is, its only service
    class, or its public functions. 'dispatch export' writes the descriptors of functions.

    SIGTERM and the first Ctrl-C drain: running requests finish, others are rejected. A second Ctrl-C stops immediately.

    The exit code after SIGTERM is 0, after Ctrl-C 130.

    Args:
        targets (TARGET): Module or file: shop.py serves its functions, shop.py:price,order some of them, jokes.py:Joke
            a service class. Each target is a service; all share one connection.
        service (NAME): Name of the service: 'joke' consumes non-persistent://tg/request/joke and replies on
            non-persistent://tg/response/joke. Default for functions: the name of the file or module.
        request_queue (TOPIC): Full name of the request topic.
        response_queue (TOPIC): Full name of the response topic.
        instance (ID): Id of this instance. Default: generated.
        concurrency (N): Requests of a service executed at the same time.
        max_queue: Requests that may wait; further ones are rejected.
        max_payload_bytes (BYTES): Maximum size of a fragmented request or reply.
        drain_timeout (SECONDS): Time for running requests to be answered after a signal.
        watch: Load functions again when a file changes, for development. After a mistake the former functions stay.
        descriptors (DIR): Folder with the descriptors of service classes, which are announced; those of functions are
            generated.
        announce (TOPIC): Topic on which the services announce themselves; 'off': they do not.
        signing_keys (FILE): JSON file of secrets that sign the announcements, {"ID": "SECRET"}, two at most.
        label (KEY=VALUE): Label of the instance, such as zone=eu; repeatable.
        json: Report events (ready, draining, stopped) as lines of JSON.
    """
    broker = settings.require_pulsar_url("dispatch serve")
    require_seconds("--drain-timeout", drain_timeout, "30")
    if len(targets) > 1 and (service or request_queue or response_queue):
        raise CliError(
            "--service, --request-queue and --response-queue name one service, and there are several targets.",
            "leave them out: each service has the name of its file or module",
        )
    announcing = read_announce(announce, signing_keys, label or ())
    admin_settings = settings.load_admin()
    transport = open_transport(broker, security=settings.security())
    servers: dict[str, ToolServer] = {}
    reloaders: dict[str, Reloader] = {}
    for target in targets:
        name = service or (None if request_queue else name_target(target))
        topics = _resolve_topics(name, request_queue, response_queue)
        if topics[0] in servers:
            if targets.count(target) > 1:
                raise CliError(f"'{target}' is given twice.", "give each target once")
            raise CliError(f"Two services are named '{name}'.", "give their files different names")
        sys.dont_write_bytecode = sys.dont_write_bytecode or watch  # it is stale after two edits within a second
        with divert_prints():
            loaded = load_target(target)
        if watch:
            if not loaded.functions:
                raise CliError(f"--watch reloads functions, and '{target}' is a service class.", "leave it out")
            reloaders[topics[0]] = Reloader(target, loaded.module)
        if descriptors is not None and loaded.functions and len(targets) == 1:
            raise CliError(
                f"--descriptors is for service classes, and '{target}' is functions, whose descriptors are generated.",
                "leave it out",
            )
        described = Descriptors({}, [])
        if descriptors is not None and not loaded.functions:
            described = read_descriptors(descriptors, topics[0])
        try:
            servers[topics[0]] = ToolServer(
                loaded.implementation,
                transport,
                functions=loaded.functions or None,
                service=name,
                request_queue=topics[0],
                response_queue=topics[1],
                instance=instance,
                concurrency=concurrency,
                max_queue=max_queue,
                max_payload_bytes=max_payload_bytes,
                drain_timeout=drain_timeout,
                tools=described.tools,
                descriptor=described.service,
                announce=announcing,
            )
        except (TypeError, ValueError) as error:
            raise CliError(str(error)) from None
    if not settings.verbose:
        show_logs(settings.verbose, has_times=True)
        # Connection events matter here, unlike in commands that end by themselves.
        logging.getLogger("dispatch.transport").setLevel(logging.INFO)
    reporters = [ServerReporter(server, json, reloaders.get(queue)) for queue, server in servers.items()]
    pool = ThreadPoolExecutor(concurrency + _OWN_THREADS, thread_name_prefix=_THREADS)
    received = run_async(_serve_with(pool, transport, reporters, admin_settings))
    if received is not signal.SIGTERM:
        raise KeyboardInterrupt


def _resolve_topics(service: str | None, request_queue: str | None, response_queue: str | None) -> tuple[str, str]:
    if service is not None:
        requests, responses = name_topics(service)
        request_queue, response_queue = request_queue or requests, response_queue or responses
    if request_queue is None or response_queue is None:
        raise CliError(
            "No topic is given.", "use --service joke, or full names with --request-queue and --response-queue"
        )
    return str(TopicName.parse(request_queue)), str(TopicName.parse(response_queue))


def read_announce(topic: str, keys: str | None, labels: Sequence[str]) -> Announce | None:
    """Return how the services announce themselves; None: not at all.

    Args:
        topic: ``off``: not at all.
        keys: name of a JSON file of secrets by id.
        labels: each ``KEY=VALUE``.

    Raises:
        CliError: one of them is invalid.
    """
    if topic == "off":
        return None
    secrets: Mapping[str, str] = {}
    try:
        if keys is not None:
            secrets = read_secrets(keys, dict[str, str], "--signing-keys", 'write {"ID": "SECRET"}')
        pairs = [each.partition("=") for each in labels]
        if wrong := next((each for each, pair in zip(labels, pairs, strict=True) if not pair[1]), None):
            raise CliError(f"--label '{wrong}' is not KEY=VALUE.", "write for instance --label zone=eu")
        signing = {id: secret.encode() for id, secret in secrets.items()}
        return Announce(topic=topic, keys=signing, labels={key: value for key, _, value in pairs})
    except TopicError as error:  # a ValueError
        raise CliError(f"--announce: {error.problem}.", f"write a whole name such as {DEFAULT_TOPIC}, or off") from None
    except ValueError as error:
        raise CliError(str(error)) from None


def read_descriptors(folder: str, request_queue: str) -> Descriptors:
    """Return the descriptors of the service with that request topic, and of its tools.

    Raises:
        CatalogError: the folder has an invalid descriptor.
        CliError: it has no such service, or no tools of it.
    """
    items = Folder(folder).load()
    services = [item for item in items if item.kind == "tool-service"]
    for item in services:
        raw = cast(dict[str, Any], item.raw)
        if str(TopicName.parse(raw["request-queue"])) == request_queue:
            service = {**raw, "id": raw.get("id", item.key_name)}
            tools = [
                {"name": each.key_name, **cast(dict[str, Any], each.raw)}
                for each in items
                if each.kind == "tool" and cast(dict[str, Any], each.raw).get("service") == service["id"]
            ]
            if tools:
                return Descriptors(service, tools)
    raise CliError(
        f"'{folder}' has no tools of a service with the request-queue {request_queue}.",
        "name the folder of its descriptors, or leave --descriptors out",
    )


class ServerReporter:
    """Reports the events of one server: for people on stderr, for programs as JSON on stdout.

    Args:
        server: the server.
        json: for programs.
        reloader: loads its functions again; None: they stay.
    """

    def __init__(self, server: ToolServer, json: bool, reloader: Reloader | None = None) -> None:
        self.server = server
        self.is_json = json
        self._reloader = reloader

    def report(self, event: str, text: str, **facts: Any) -> None:
        if self.is_json:
            print_json({"event": event, "instance": self.server.instance, **facts})
        else:
            print_err(text)

    def report_ready(self) -> None:
        """Report the topics and the tools."""
        server = self.server
        tools = [each["name"] for each in server.descriptors.tools]
        shown = f" Tools: {join_names(tools)}." if tools else ""
        self.report(
            "ready",
            f"{server.instance} consumes {server.request_queue} and replies on {server.response_queue}.{shown} Ctrl-C "
            "drains and stops.",
            request_queue=server.request_queue,
            response_queue=server.response_queue,
            **({"tools": tools} if tools else {}),
        )

    def report_idle(self) -> None:
        """Report that no request has arrived: the callers may use another topic."""
        server = self.server
        if not server.requests:
            self.report(
                "idle",
                f"No request has arrived in {IDLE_S:g} s. Callers must use {server.request_queue} as request-queue on this "
                "broker: 'dispatch tools NAME' shows that of a tool, 'dispatch tools --all' what is not in force, "
                "'dispatch doctor' checks the whole path.",
                request_queue=server.request_queue,
            )

    def report_connection(self, is_connected: bool, seconds: float) -> None:
        """Report for programs that the broker is lost or back; the log says it to people."""
        if self.is_json:
            event = "broker-back" if is_connected else "broker-lost"
            self.report(event, "", at=round(time.time(), 3), seconds=round(seconds, 3))

    async def reload(self) -> None:
        """Replace the functions whenever a file changes. A mistake is reported, and the former functions stay."""
        server = self.server
        while self._reloader is not None:
            await asyncio.sleep(RELOAD_CHECK_S)
            if not self._reloader.has_changed():
                continue
            try:
                with self._reloader.load() as loaded:
                    server.replace_functions(loaded.functions)
            except (Exception, SystemExit) as error:  # of the code of the module, too
                problem = read_text(error)
                fix = f" Fix: {error.fix}." if isinstance(error, CliError) and error.fix else ""
                text = f"{server.service}: not loaded again, the former functions stay. {problem}{fix}"
                self.report("reload-failed", make_printable(text), problem=problem)
            else:
                tools = [each["name"] for each in server.descriptors.tools]
                self.report("reloaded", f"{server.service}: loaded again. Tools: {join_names(tools)}.", tools=tools)

    async def drain(self, received: signal.Signals, at_once: asyncio.Event) -> None:
        """Drain the server, until ``at_once`` is set."""
        server = self.server
        hint = " Ctrl-C again stops immediately." if received is signal.SIGINT else ""
        self.report(
            "draining",
            f"Draining: {server.running} running, {server.queued} queued; at most {server.drain_timeout:g} s.{hint}",
            running=server.running,
            queued=server.queued,
        )
        drained = await _drain(server, at_once, asyncio.get_running_loop())
        self.report(
            "stopped",
            f"{drained} {format_count(server.requests, 'request')} received, {sum(server.refused.values()):,} rejected.",
            drained=drained == _DRAINED,
            requests=server.requests,
            refused=dict(server.refused),
            malformed=server.malformed,
        )


async def _serve_with(
    pool: ThreadPoolExecutor, transport: Transport, reporters: Sequence[ServerReporter], settings: Admin | None
) -> signal.Signals:
    asyncio.get_running_loop().set_default_executor(pool)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(transport.close)
        if settings is not None:
            from dispatch.admin.app import ServiceAdmin  # perf: imports starlette

            admin = ServiceAdmin(settings, [each.server for each in reporters], DEFAULT_TELEMETRY, transport)
            stack.push_async_callback(admin.close)
            report_admin(admin.url)
        await transport.start()
        if settings is not None:
            admin.announce_beside_tools()
        for reporter in reporters:
            transport.on_connection_change(reporter.report_connection)
        received = await serve_until_signal(reporters)
    pool.shutdown(wait=False, cancel_futures=True)
    if _has_running_threads() or await _has_running_tasks():
        # A blocked thread, or a task that ignores its cancellation, would keep the process alive forever.
        _exit_process(0 if received is signal.SIGTERM else 130)
    return received


async def serve_until_signal(reporters: Sequence[ServerReporter]) -> signal.Signals:
    """Serve until a signal arrives; return the first one."""
    loop = asyncio.get_running_loop()
    received: list[signal.Signals] = []
    stop, at_once = asyncio.Event(), asyncio.Event()

    def on_signal(number: signal.Signals) -> None:
        received.append(number)
        (stop if len(received) == 1 else at_once).set()

    numbers = itertools.count(1)

    def exit_at_third(_number: int, _frame: object) -> None:
        if next(numbers) > 2:
            _exit_process(130)

    async with contextlib.AsyncExitStack() as stack:
        if any(each.is_json for each in reporters):
            stack.enter_context(divert_prints())
        for reporter in reporters:
            await reporter.server.start()
            stack.push_async_callback(reporter.server.close)
        # Before the servers are closed: a second Ctrl-C must not leak a connection.
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, on_signal, number)
            stack.callback(loop.remove_signal_handler, number)
            # The event loop handles no signal while a tool blocks it.
            signal.signal(number, exit_at_third)
        for reporter in reporters:
            reporter.report_ready()
        idle = [loop.call_later(IDLE_S, reporter.report_idle) for reporter in reporters]
        reloads = [loop.create_task(reporter.reload()) for reporter in reporters]
        await stop.wait()
        for timer in idle:
            timer.cancel()
        await cancel_and_wait(reloads)
        await asyncio.gather(*(reporter.drain(received[0], at_once) for reporter in reporters))
    return received[0]


_DRAINED = "Drained."


async def _drain(server: ToolServer, at_once: asyncio.Event, loop: asyncio.AbstractEventLoop) -> str:
    began = loop.time()
    if not await run_until(at_once, server.drain()):
        return f"Stopped immediately: {format_count(server.running, 'request')} cancelled."
    if server.drain_timeout <= loop.time() - began:
        return f"Not all requests were answered within {server.drain_timeout:g} s; the rest was given up."
    return _DRAINED


def _has_running_threads() -> bool:
    """Return whether a thread still runs a tool."""
    threads = [thread for thread in threading.enumerate() if thread.name.startswith(_THREADS)]
    for thread in threads:
        thread.join(_THREAD_END_S / len(threads))
    return any(thread.is_alive() for thread in threads)


async def _has_running_tasks() -> bool:
    """Cancel the tasks that are left on the event loop. Return whether one of them still runs."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    return bool(left) and bool((await asyncio.wait(left, timeout=_THREAD_END_S))[1])


def _exit_process(code: int) -> None:
    """Exit without waiting for threads and tasks."""
    try:
        if code == 130:
            print_err("Interrupted.")
        sys.stdout.flush()
        sys.stderr.flush()
    finally:  # a signal may have interrupted code that writes there
        os._exit(code)


# ``dispatch mcp``: serve all tools over MCP.


class Search(StrEnum):
    """Values of ``--search``."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@with_settings(*ADMIN, "broker", *SOURCES, "policy", "grants", "approvals", "token_file", "trust_certs")
def mcp(
    settings: Settings,
    http: str | None = None,
    search: Search = Search.AUTO,
    always: list[str] | None = None,
    user: Annotated[str, typer.Option("--user", "-u")] = "",
    tokens: str | None = None,
    allow_host: list[str] | None = None,
) -> None:
    """Serve all tools over MCP (Model Context Protocol).

    [bold]dispatch mcp --catalog tools/[/bold]

    The tools of all services that announce themselves: [bold]dispatch mcp --announced[/bold]

    [bold]dispatch mcp --http 127.0.0.1:8080 --tokens tokens.json[/bold]

    On stdin and stdout it serves one client and ends when the client closes stdin. Only the protocol is written to stdout.

    The exit code after SIGTERM is 0, after Ctrl-C 130.

    Args:
        http (HOST:PORT): Serve streamable HTTP at http://HOST:PORT/mcp. Port 0: any free port. Default: stdin and
            stdout.
        search: List find_tools and call_tool in place of the tools: auto: above 40 tools.
        always (NAME): List this tool also beside find_tools; repeatable.
        user: User on whose behalf tools are listed and called without --tokens.
        tokens (FILE): JSON file of bearer tokens, {"USER": "TOKEN"}. Required if other machines reach HOST.
        allow_host (HOST): Name under which clients reach the server, such as that of a proxy; repeatable.
    """
    admin_settings = settings.load_admin()
    address = None if http is None else parse_address(http)
    if address is None and (tokens is not None or allow_host):
        raise CliError("--tokens and --allow-host are for HTTP.", "add --http 127.0.0.1:8080, or use --user")
    try:
        from dispatch.mcp.server import BearerTokens, McpServer, TokenFileError, serve_http
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
        settings.call_url,
        list_sources(settings, watch=True),
        policy=settings.load_policy(),
        grants=settings.load_grants(),
        approvals=settings.approvals_file,
        security=settings.security(),
        admin=admin_settings,
    )
    server = McpServer(dispatcher, user=user, search=search.value, always=always or ())
    serving = (
        server.serve_stdio()
        if address is None
        else serve_http(server, *address, hosts=allow_host or (), tokens=users, on_ready=_report_ready)
    )
    run_async(_serve(dispatcher, serving, http))


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``; an IPv6 address is in brackets.

    Raises:
        CliError: it has another form.
    """
    try:
        return parse_host_port(text)
    except ValueError as error:
        raise CliError(f"--http: {error}.", "use for instance --http 127.0.0.1:8080") from None


def _report_ready(url: str) -> None:
    print_err(f"MCP: {url}")


async def _serve(dispatcher: Dispatcher, serving: Coroutine[Any, Any, None], address: str | None) -> None:
    """Serve until the client leaves, or SIGTERM. Ctrl-C cancels this coroutine. ``address``: of HTTP.

    Raises:
        CliError: the address cannot be used.
    """
    try:
        async with dispatcher:
            report_admin(dispatcher.admin_url)
            if address is None and sys.stdin.isatty():
                print_err(
                    "MCP on stdin and stdout, for a client that starts this command. Ctrl-C ends it; --http "
                    "127.0.0.1:8080 serves at an address."
                )
            try:
                await run_until_sigterm(serving)
            except OSError as error:
                if address is None:
                    raise
                problem = f"MCP cannot be served on {address} ({error.strerror or error})."
                raise CliError(problem, "use another port (0: any free one)", Exit.TRANSPORT) from None
    finally:
        serving.close()


# ``dispatch init``: create a folder with a service of two functions, its test and its policy.


TEMPLATE: Final = Path(__file__).parent / "template"
"""The files, with ``{name}`` for the name of the service."""
_FILES: Final = {
    "{name}.py": "service.py.txt",
    "test_{name}.py": "test_service.py.txt",
    "policy.json": "policy.json",
    "compose.yaml": "compose.yaml",
    "README.md": "README.md",
}


@with_settings()
def init(settings: Settings, name: str) -> None:
    """Create a folder with a service of two functions, its test, its policy and a compose file.

    [bold]dispatch init shop && cd shop && pytest && dispatch serve shop.py --watch[/bold]

    Args:
        name (NAME): Name of the service, of its file and of the folder.
    """
    if not name.isidentifier() or keyword.iskeyword(name) or not name.isascii():
        fix = "use the letters a to z, digits and '_', such as shop"
        raise CliError(f"'{name}' cannot be the name of a Python module.", fix)
    if replaces_module(name):
        raise CliError(f"'{name}.py' would replace the module '{name}', which dispatch uses.", "choose another name")
    folder = Path(name)
    if folder.exists():
        raise CliError(f"'{name}' exists already.", "choose another name, or remove it")
    folder.mkdir()
    files = {file.format(name=name): TEMPLATE / template for file, template in _FILES.items()}
    try:
        for file, template in files.items():
            replace_file(folder / file, template.read_text("utf-8").replace("{name}", name))
    except BaseException:
        shutil.rmtree(folder)  # a part of the files would keep the command from being repeated
        raise
    print_out(f"{name}/ has {', '.join(files)}.")
    print_out(f"Next: cd {name} && pytest && dispatch serve {name}.py --watch")
