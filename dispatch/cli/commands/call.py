"""``dispatch call``: call a tool."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dispatch.cli.exit_codes import Exit, exit_code_of, print_call_error
from dispatch.cli.output import format_result, print_json, print_out, print_warning
from dispatch.cli.run_async import run_async
from dispatch.cli.settings import Settings, with_settings
from dispatch.policy import DEFAULT_POLICY

if TYPE_CHECKING:
    from dispatch.catalog import ServiceDescriptor
    from dispatch.dispatcher import Dispatcher
    from dispatch.result import CallResult


@with_settings("broker", "catalog", "policy", "grants", "token_file", "trust_certs")
def call(
    settings: Settings,
    tool: Annotated[
        str, typer.Argument(metavar="TOOL", help="Name of the tool; 'dispatch tools' lists them.", show_default=False)
    ],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="Arguments, typed by the tool's descriptor. KEY:=JSON passes any JSON value.",
            show_default=False,
        ),
    ] = None,
    arguments: Annotated[
        str | None,
        typer.Option(
            "--arguments",
            "-a",
            metavar="JSON|@FILE|-",
            help="Arguments as a JSON object, from a file, or from stdin. KEY=VALUE overrides them.",
            show_default=False,
        ),
    ] = None,
    user: Annotated[
        str, typer.Option("--user", "-u", help="User on whose behalf the tool is called.", show_default=False)
    ] = "",
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            "-t",
            metavar="SECONDS",
            help=f"Timeout of the whole call. Default: the tool's policy ({DEFAULT_POLICY.timeout:g} s; a stream "
            f"{DEFAULT_POLICY.stream_timeout:g} s).",
            show_default=False,
        ),
    ] = None,
    stream: Annotated[bool, typer.Option("--stream", help="Print chunks of the reply as they arrive.")] = False,
    json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print the result as one line of JSON; with --stream, one line per chunk before it."
        ),
    ] = False,
) -> None:
    """Call a tool and print its result.

    The result goes to stdout. An error goes to stderr with message, outcome and type, and determines the exit code.

    [bold]dispatch call tell-joke topic=cats[/bold]

    [bold]dispatch call tell-story subject="a goat" words=60 --stream[/bold]

    [bold]echo '{"topic": "cats"}' | dispatch call tell-joke --arguments - --json[/bold]

    Exit codes: 0 success · 1 the tool's own error · 2 invalid arguments or unknown tool · 3 timeout · 4 transport ·
    5 throttled or rejected · 130 interrupted
    """
    from dispatch.calls.resolution.resolution_errors import error_from_unknown_name
    from dispatch.catalog import UnknownToolError
    from dispatch.cli.arguments import read_arguments
    from dispatch.dispatcher.connection import connect
    from dispatch.result import CallResult

    broker = settings.require_pulsar_url("dispatch call")
    catalog = settings.load_catalog()
    try:
        descriptor = catalog.tool(tool)
    except UnknownToolError as unknown:
        # Checked before connecting, so that a mistyped name is reported without a broker.
        error = error_from_unknown_name(unknown)
        result = CallResult(tool, error.outcome, error=error)
        service = None
    else:
        given = read_arguments(descriptor, words or (), arguments, print_warning)
        service = catalog.service_or_default(descriptor)
        dispatcher = connect(
            broker, catalog, policy=settings.load_policy(), grants=settings.load_grants(), security=settings.security()
        )
        if stream:
            result = run_async(stream_tool(dispatcher, tool, given, user=user, timeout=timeout, json=json))
        else:
            result = run_async(call_tool(dispatcher, tool, given, user=user, timeout=timeout))
    raise typer.Exit(show(result, service, streamed=stream, json=json))


async def call_tool(
    dispatcher: Dispatcher, tool: str, arguments: dict[str, Any], *, user: str, timeout: float | None
) -> CallResult:
    """Connect, call, disconnect. A failed connection is a result like any other error."""
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
    """Connect, call and print each chunk to stdout as it arrives."""
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
                    print_json({"chunk": chunk})
                else:
                    print_out(format_result(chunk), end="")
    except DispatchError as failure:
        error = failure
    finally:
        # An interrupted line is terminated, so that the next output starts a new one.
        if not json and chunks and not chunks[-1].endswith("\n"):
            print_out("")
    outcome = Outcome.SUCCESS if error is None else error.outcome
    # These outcomes may have been decided locally, before a request was sent.
    sent = bool(chunks) or outcome not in (Outcome.INVALID_ARGUMENTS, Outcome.REJECTED, Outcome.TRANSPORT)
    return CallResult(
        tool, outcome, "".join(chunks), error, time.monotonic() - started, attempts=int(sent), chunks=len(chunks)
    )


def show(result: CallResult, service: ServiceDescriptor | None, *, streamed: bool, json: bool) -> Exit:
    """Print the result and return the exit code.

    Args:
        service: service of the tool; None if the tool is unknown.
        streamed: whether the chunks have been printed.
    """
    if json:
        line = result.as_dict()
        print_json({"result": line} if streamed else line)
    elif result.error is not None:
        print_call_error(result.error, _hint(result, service))
    elif not streamed:
        print_out(format_result(result.text), end="" if result.text.endswith("\n") else "\n")
    return exit_code_of(result.error)


def _hint(result: CallResult, service: ServiceDescriptor | None) -> str:
    from dispatch.errors import ErrorType, Outcome

    is_missing = result.error is not None and result.error.type == ErrorType.NO_INSTANCE
    is_unanswered = result.outcome is Outcome.TIMEOUT and result.chunks == 0 and result.instance is None
    if service is not None and (is_missing or is_unanswered):
        return (
            f"check with 'dispatch doctor' that a service consumes {service.request_queue}; 'dispatch serve' starts one"
        )
    return ""
