"""``dispatch call``: one call of a tool."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dispatch.cli.exit_codes import Exit, code_of, show_call_error
from dispatch.cli.output import put, put_json, result_text, warn
from dispatch.cli.run_async import run_async
from dispatch.cli.settings import Settings, takes

if TYPE_CHECKING:
    from dispatch.catalog import ServiceDescriptor
    from dispatch.dispatcher import Dispatcher
    from dispatch.result import CallResult


@takes("broker", "catalog", "policy", "token_file", "trust_certs")
def call(
    settings: Settings,
    tool: Annotated[
        str, typer.Argument(metavar="TOOL", help="Its name in the catalogue: see 'dispatch tools'.", show_default=False)
    ],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="Arguments of the tool, typed as its descriptor says. KEY:=JSON gives any JSON.",
            show_default=False,
        ),
    ] = None,
    arguments: Annotated[
        str | None,
        typer.Option(
            "--arguments",
            "-a",
            metavar="JSON|@FILE|-",
            help="All arguments as one JSON object, from a file, or from stdin. KEY=VALUE is laid over it.",
            show_default=False,
        ),
    ] = None,
    user: Annotated[str, typer.Option("--user", "-u", help="On whose behalf.", show_default=False)] = "",
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            "-t",
            metavar="SECONDS",
            help="For the whole call. Default: the tool's policy (30 s; a stream 300 s).",
            show_default=False,
        ),
    ] = None,
    stream: Annotated[bool, typer.Option("--stream", help="Show the chunks of the answer as they come.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="The whole result as one line of JSON; with --stream a line per chunk first.")
    ] = False,
) -> None:
    """Call a tool and print its answer.

    The answer goes to stdout; an error goes to stderr with outcome, type and message, and its kind is the exit code.

    [bold]dispatch call tell-joke topic=cats[/bold]

    [bold]dispatch call tell-story subject="a goat" words=60 --stream[/bold]

    [bold]echo '{"topic": "cats"}' | dispatch call tell-joke --arguments - --json[/bold]

    Exit codes: 0 success · 1 the tool's own error · 2 invalid arguments or unknown tool · 3 timeout · 4 transport ·
    5 throttled or rejected · 130 interrupted
    """
    from dispatch.calls.error_messages import error_from_unknown_name
    from dispatch.catalog import UnknownToolError
    from dispatch.cli.arguments import read_arguments
    from dispatch.dispatcher import connect
    from dispatch.result import CallResult

    broker = settings.genuine_broker_url("dispatch call")
    catalog = settings.load_catalog()
    try:
        descriptor = catalog.tool(tool)
    except UnknownToolError as unknown:
        # Before anything connects: a slip of the pen is told at once, broker or not.
        error = error_from_unknown_name(unknown)
        result = CallResult(tool, error.outcome, error=error)
        service = None
    else:
        given = read_arguments(descriptor, words or (), arguments, warn)
        service = catalog.service_of(descriptor)
        dispatcher = connect(broker, catalog, policy=settings.load_policy(), security=settings.security())
        if stream:
            result = run_async(stream_tool(dispatcher, tool, given, user=user, timeout=timeout, json=json))
        else:
            result = run_async(call_tool(dispatcher, tool, given, user=user, timeout=timeout))
    raise typer.Exit(show(result, service, streamed=stream, json=json))


async def call_tool(
    dispatcher: Dispatcher, tool: str, arguments: dict[str, Any], *, user: str, timeout: float | None
) -> CallResult:
    """Connect, call, disconnect. A connection that cannot be made is a result as any other."""
    from dispatch.errors import DispatchError
    from dispatch.result import CallResult

    started = time.monotonic()
    try:
        async with dispatcher:
            return await dispatcher.execute(tool, arguments, user=user, timeout=timeout)
    except DispatchError as error:
        return CallResult(tool, error.outcome, error=error, duration=time.monotonic() - started)


async def stream_tool(
    dispatcher: Dispatcher, tool: str, arguments: dict[str, Any], *, user: str, timeout: float | None, json: bool
) -> CallResult:
    """The same, and each chunk goes to stdout when it comes."""
    from dispatch.errors import DispatchError, Outcome
    from dispatch.result import CallResult

    chunks: list[str] = []
    error: DispatchError | None = None
    started = time.monotonic()
    try:
        async with dispatcher:
            async for chunk in dispatcher.stream(tool, arguments, user=user, timeout=timeout):
                chunks.append(chunk)
                if json:
                    put_json({"chunk": chunk})
                else:
                    put(result_text(chunk), end="")
    except DispatchError as failure:
        error = failure
    finally:
        # An interrupted line is ended too: what comes next begins a new one.
        if not json and chunks and not chunks[-1].endswith("\n"):
            put("")
    outcome = Outcome.SUCCESS if error is None else error.outcome
    # Those may have been decided here, before anything was sent.
    sent = bool(chunks) or outcome not in (Outcome.INVALID_ARGUMENTS, Outcome.REJECTED, Outcome.TRANSPORT)
    return CallResult(
        tool, outcome, "".join(chunks), error, time.monotonic() - started, attempts=int(sent), chunks=len(chunks)
    )


def show(result: CallResult, service: ServiceDescriptor | None, *, streamed: bool, json: bool) -> Exit:
    """Write how the call ended; the exit code.

    Args:
        service: the tool's, None when there is no such tool.
        streamed: the chunks have been shown already.
    """
    if json:
        line = result.as_dict()
        put_json({"result": line} if streamed else line)
    elif result.error is not None:
        show_call_error(result.error, _hint(result, service))
    elif not streamed:
        put(result_text(result.text), end="" if result.text.endswith("\n") else "\n")
    return code_of(result.error)


def _hint(result: CallResult, service: ServiceDescriptor | None) -> str:
    from dispatch.errors import Outcome

    if service is not None and result.outcome is Outcome.TIMEOUT and result.chunks == 0 and result.instance is None:
        return f"does a service listen on {service.request_queue}? 'dispatch doctor' tells; 'dispatch serve' starts one"
    return ""
